"""download=True: what is asked of huggingface_hub, and its failures. Nothing is downloaded."""

import builtins
import inspect
import json
import types

import pytest

from burnt.errors import BurntError, RecordError, UnsupportedError
from burnt.models import Llama, LlamaConfig
from burnt.models.pretrained import download_snapshot

huggingface_hub = pytest.importorskip("huggingface_hub")
REAL = inspect.signature(huggingface_hub.snapshot_download)

COMMON = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    "merges.txt",
]  # fmt: skip
OTHERS = [
    ".gitattributes", "README.md", "flax_model.msgpack", "tf_model.h5", "model.gguf", "training_args.bin",
    "consolidated.safetensors", "onnx/model.safetensors", "onnx/config.json", "models/other.safetensors",
    "modeling_llama.py", "optimizer.bin",
]  # fmt: skip


class Hub:
    """Repositories by name -> files; as snapshot_download, which takes what the real one does."""

    def __init__(self, folder, repositories):
        self.folder = folder
        self.repositories = repositories
        self.calls = []

    def snapshot_download(self, *arguments, **options):
        bound = REAL.bind(*arguments, **options).arguments  # a TypeError where the real one would raise it
        self.calls.append(bound)
        names = self.repositories[bound["repo_id"]]
        chosen = huggingface_hub.utils.filter_repo_objects(
            names, allow_patterns=bound["allow_patterns"], ignore_patterns=bound["ignore_patterns"]
        )
        self.folder.mkdir(exist_ok=True)
        for name in chosen:
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(name)
        return str(self.folder)


def downloaded(monkeypatch, folder, files):
    hub = Hub(folder, {"owner/name": files})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    found = download_snapshot("owner/name", revision="v1")
    assert found == folder
    assert all(call["revision"] == "v1" for call in hub.calls)
    return {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}, len(hub.calls)


@pytest.mark.parametrize(
    "weights",
    [
        ["model.safetensors"],
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ],
    ],
)
def test_safetensors_come_before_bin_files(monkeypatch, tmp_path, weights):
    files = [*COMMON, *OTHERS, *weights, "pytorch_model.bin", "pytorch_model.bin.index.json"]
    assert downloaded(monkeypatch, tmp_path / "s", files) == ({*COMMON, *weights}, 1)


def test_bin_files_where_there_is_nothing_else(monkeypatch, tmp_path):
    weights = ["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"]
    assert downloaded(monkeypatch, tmp_path / "s", [*COMMON, *OTHERS, *weights]) == ({*COMMON, *weights}, 2)


def test_a_repository_without_weights(monkeypatch, tmp_path):
    with pytest.raises(RecordError, match="a repository has no weights that can be read") as caught:
        downloaded(monkeypatch, tmp_path / "s", ["config.json", "model.gguf"])
    assert "in        owner/name\n" in str(caught.value)
    assert "found     config.json" in str(caught.value)


def test_a_model_is_loaded_from_the_downloaded_folder(monkeypatch, tmp_path):
    small = LlamaConfig(
        vocab_size=7, d_model=8, d_ff=8, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4
    )
    small.init().save_pretrained(tmp_path / "snapshot")
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options["revision"]))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    model = Llama.from_pretrained("owner/name", download=True, revision="main")
    assert asked == [("owner/name", "main")]
    assert model.config.d_model == 8
    with pytest.raises(RecordError, match="there is no such snapshot"):
        Llama.from_pretrained("owner/name")
    assert len(asked) == 1
    assert Llama.from_pretrained(tmp_path / "snapshot", download=True).config.d_model == 8
    assert len(asked) == 1  # a folder is not a name


def hub_error(name, text="403 Client Error.\nmore"):
    kind = getattr(huggingface_hub.errors, name)
    if not issubclass(kind, huggingface_hub.errors.HfHubHTTPError):
        return kind(text)
    return kind(text, response=types.SimpleNamespace(headers={}, request=None, status_code=403))


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (
            hub_error("GatedRepoError"),
            "only after its terms are accepted",
            "https://huggingface.co/owner/name, then",
        ),
        (hub_error("RepositoryNotFoundError"), "there is no such repository on the Hub", "check the name"),
        (hub_error("RevisionNotFoundError"), "the repository has no such revision", "/owner/name/refs"),
        (hub_error("HFValidationError"), "neither a folder nor a name on the Hub", None),
        (hub_error("LocalEntryNotFoundError"), "the Hub cannot be reached", "HF_HUB_OFFLINE"),
        (hub_error("HfHubHTTPError"), "the snapshot cannot be downloaded", None),
        (OSError(28, "No space left on device"), "the snapshot cannot be downloaded", None),
        (ConnectionError(), "the snapshot cannot be downloaded", None),
    ],
)
def test_every_failure_is_a_record_error_with_its_cause(monkeypatch, error, what, hint):
    def snapshot_download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(RecordError, match=what) as caught:
        download_snapshot("owner/name", revision="v2")
    assert caught.value.__cause__ is error
    text = str(caught.value)
    assert "in        owner/name at v2\n" in text
    assert f"found     {type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip() in text
    assert "more" not in text
    assert hint is None or hint in text


def test_an_interrupt_is_no_failure(monkeypatch):
    def snapshot_download(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(KeyboardInterrupt):
        download_snapshot("owner/name")


def test_huggingface_hub_is_not_installed(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name == "huggingface_hub":
            raise ImportError("no module")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match="which is not installed") as caught:
        download_snapshot("owner/name")
    assert 'pip install "burnt[models]"' in str(caught.value)
    assert isinstance(caught.value.__cause__, ImportError)


def test_offline_and_from_the_cache(monkeypatch, tmp_path):
    # The real function, in its offline mode: first without, then with the folder in its cache.
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BurntError, match="not in the cache, and the Hub cannot be reached") as caught:
        download_snapshot("owner/name")
    assert isinstance(caught.value.__cause__.__cause__, huggingface_hub.errors.OfflineModeIsEnabled)
    commit = "0" * 40
    repository = tmp_path / "models--owner--name"
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (folder / "config.json").write_text(json.dumps({}))
    (folder / "model.safetensors").write_bytes(b"")
    assert download_snapshot("owner/name") == folder
