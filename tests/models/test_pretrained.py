"""Snapshots in and out: what is loaded, what is new, what is refused, and what is on the disk afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import burnt
from burnt.errors import ConfigError, DeviceError, InputTypeError, RecordError, RunError, ShapeError
from burnt.models import BertConfig, Gpt2Config, Llama, LlamaConfig, Pretrained, load_pretrained
from burnt.record import Record

TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def small(**options: Any) -> Llama:
    sizes = {"vocab_size": 20, "d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return LlamaConfig(**{**sizes, **options}).init()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    small().save_pretrained(tmp_path / "snapshot")
    return tmp_path / "snapshot"


def change(folder: Path, **values: Any) -> None:
    """Change keys of the config.json; None removes one."""
    document = json.loads((folder / "config.json").read_text())
    for key, value in values.items():
        document.pop(key, None)
        if value is not None:
            document[key] = value
    (folder / "config.json").write_text(json.dumps(document))


def test_a_model_is_loaded_in_eval_mode_without_computing_new_weights(snapshot: Path) -> None:
    before = torch.get_rng_state()
    model = Llama.from_pretrained(snapshot)
    assert torch.equal(before, torch.get_rng_state())
    assert not model.training
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()])
    assert model.load_report is not None
    assert len(model.load_report.applied) == len(model.state_dict())
    torch.manual_seed(0)
    expected = small().eval()
    assert torch.equal(model(TOKENS), expected(TOKENS))


@pytest.mark.full
def test_loading_imports_neither_compiler_nor_sympy(snapshot: Path) -> None:
    # Several calls on meta tensors would: seconds before the first weight is read.
    code = f"""
import sys
from burnt.models import load_pretrained
load_pretrained({os.fspath(snapshot)!r})
print(*{{"sympy", "torch._dynamo", "torch._inductor"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_subclass_is_built_as_such(snapshot: Path) -> None:
    class Longer(Llama):
        pass

    assert type(Longer.from_pretrained(snapshot)) is Longer
    assert type(load_pretrained(snapshot)) is Llama


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, "stored"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_dtypes(dtype: Any, stored: torch.dtype, tmp_path: Path) -> None:
    small().to(stored).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(stored)[6:]
    model = Llama.from_pretrained(tmp_path, dtype=dtype, head="classification")
    wanted = {None: torch.float32, "stored": stored}.get(dtype, dtype)
    assert {p.dtype for p in model.parameters()} == {wanted}
    assert {b.dtype for b in model.buffers()} == {torch.float32}  # the frequencies of the rotary encoding
    assert model(TOKENS).isfinite().all()


def test_a_missing_head_is_new_and_named(snapshot: Path) -> None:
    small(head=None).save_pretrained(snapshot)
    assert Llama.from_pretrained(snapshot).head is None
    change(snapshot, architectures=None)
    with pytest.warns(UserWarning, match=r"has no head\.weight: these weights are new"):
        model = Llama.from_pretrained(snapshot)
    assert model.load_report is not None
    assert model.load_report.missing == ("head.weight",)
    assert model(TOKENS).isfinite().all()


@pytest.mark.parametrize(
    "saved", [{"head": None}, {"head": "lm"}, {"head": "classification", "num_classes": 3}]
)
def test_a_head_for_other_classes_is_new_on_request(saved: dict[str, Any], tmp_path: Path) -> None:
    body = small(**saved)
    body.save_pretrained(tmp_path)
    with warnings.catch_warnings(action="error"):
        model = Llama.from_pretrained(tmp_path, head="classification", num_classes=5)
    assert model(TOKENS).shape == (2, 5)
    assert torch.equal(model.embedding.weight, body.embedding.weight)
    model.save_pretrained(tmp_path)
    again = Llama.from_pretrained(tmp_path)
    assert again.config.num_classes == 5
    assert torch.equal(again(TOKENS), model(TOKENS))


def test_a_head_in_the_file_is_left_out_of_the_body(snapshot: Path) -> None:
    with warnings.catch_warnings(action="error"):
        model = Llama.from_pretrained(snapshot, head=None)
    assert model.load_report is not None
    assert model.load_report.unexpected == ("head.weight",)
    assert model(TOKENS).shape == (2, 3, 16)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    small(tied=True).save_pretrained(tmp_path)
    model = Llama.from_pretrained(tmp_path)
    assert model.head is not None
    assert model.head.weight is model.embedding.weight
    names = burnt.record.read_weights(tmp_path).tensors
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_sizes_that_do_not_fit_are_refused(snapshot: Path) -> None:
    with pytest.raises(RecordError, match="does not fit Llama") as caught:
        Llama.from_pretrained(snapshot, vocab_size=21)
    assert caught.value.hint == "without vocab_size, the sizes are those of config.json"
    change(snapshot, intermediate_size=32)
    with pytest.raises(RecordError, match="does not fit Llama") as caught:
        Llama.from_pretrained(snapshot)
    assert caught.value.hint == "config.json and weights are of different models"
    assert "(32, 16) in the module, (24, 16) in the file" in str(caught.value)


@pytest.mark.parametrize(("layers", "line"), [(1, "unexpected  layers.1."), (3, "missing     layers.2.")])
def test_another_number_of_layers_is_refused(layers: int, line: str, snapshot: Path) -> None:
    change(snapshot, num_hidden_layers=layers)
    with pytest.raises(RecordError, match="the weights do not fit their config") as caught:
        Llama.from_pretrained(snapshot)
    assert caught.value.origin[0].startswith(line)
    assert caught.value.hint is None
    change(snapshot, num_hidden_layers=2)
    with pytest.raises(RecordError, match="the weights do not fit their config") as caught:
        Llama.from_pretrained(snapshot, num_layers=layers)
    assert caught.value.hint == "without num_layers, the sizes are those of config.json"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num_labels", "in burnt: num_classes"),
        ("torch_dtype", "in burnt: dtype"),
        ("num_hidden_layers", "in burnt: num_layers"),
        ("num_layer", "did you mean 'num_layers'?"),
    ],
)
def test_a_field_by_the_name_of_transformers_is_translated(name: str, hint: str, snapshot: Path) -> None:
    with pytest.raises(ConfigError, match="LlamaConfig has no such field") as caught:
        Llama.from_pretrained(snapshot, **{name: 3})
    assert str(caught.value.hint).startswith(hint)


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("bfloat16", "dtype=torch.bfloat16"),
        ("auto", "dtype='stored'"),
        ("half-ish", None),
        (torch.int32, None),
    ],
)
def test_what_is_no_dtype_of_parameters_is_refused(dtype: Any, hint: str | None, snapshot: Path) -> None:
    with pytest.raises(InputTypeError, match="this is not a dtype of parameters") as caught:
        Llama.from_pretrained(snapshot, dtype=dtype)
    assert (caught.value.where, caught.value.found, caught.value.hint) == ("dtype", repr(dtype), hint)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(vocab_size=20, d_model=16, d_ff=24, num_layers=1, num_heads=2),
        Gpt2Config(vocab_size=20, d_model=16, num_layers=1, num_heads=2),
        BertConfig(vocab_size=20, d_model=16, d_ff=24, num_layers=1, num_heads=2),
    ],
    ids=lambda config: type(config).__name__,
)
def test_what_is_no_batch_of_tokens_is_refused(config: Any) -> None:
    model: Any = config.init()
    name = type(model).__name__
    with pytest.raises(InputTypeError, match="tokens are a tensor") as kind:
        model([[1, 2, 3]])
    assert (kind.value.where, kind.value.found) == (name, "list")
    assert "tokenizer.batch(texts)" in str(kind.value.hint)
    with pytest.raises(ShapeError, match="tokens are a batch of sequences") as shape:
        model(TOKENS[None])
    assert (shape.value.found, shape.value.hint) == ((1, 2, 3), None)
    if name != "Bert":  # which takes one sequence, too
        with pytest.raises(ShapeError, match="tokens are a batch of sequences") as shape:
            model(TOKENS[0])
        assert shape.value.hint == "tokens[None] is a batch of one sequence"
    for padding, found in ((torch.ones(2, 3).long(), "torch.int64"), (torch.ones(2, 3), "torch.float32")):
        with pytest.raises(InputTypeError, match="padding is boolean") as mask:
            model(TOKENS, padding=padding)
        assert mask.value.found == found
        assert mask.value.hint == "padding=attention_mask == 0, of a tokenizer's attention_mask"


def test_other_models_are_named(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherConfig(LlamaConfig):
        _MODEL_TYPES: ClassVar = {"other": "Other"}

    class Other(Pretrained[OtherConfig]):
        config_class = OtherConfig

    monkeypatch.setattr(burnt.models.pretrained, "model_classes", lambda: {"other": Other, "llama": Llama})
    with pytest.raises(ConfigError, match="this is not a model for OtherConfig") as caught:
        Other.from_pretrained(snapshot)
    assert caught.value.hint == "burnt.models.Llama reads it"
    change(snapshot, model_type="gpt9")
    with pytest.raises(ConfigError, match="burnt has no such model") as caught:
        load_pretrained(snapshot)
    assert (caught.value.expected, caught.value.found) == ("'other' or 'llama'", "'gpt9'")
    assert "load_weights" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("files", "found", "hint"),
    [
        ([], "nothing", "load_weights"),
        (["model.safetensors", "vocab.json"], "model.safetensors, vocab.json", "load_weights"),
        (["adapter_config.json"], "adapter_config.json", "load_lora"),
        (["refs", "snapshots/1a2b/config.json"], "refs, snapshots", "snapshots/1a2b' is a snapshot in it"),
        (list("abcdef"), "a, b, c, d, e, ...", "load_weights"),
    ],
)
def test_a_folder_without_a_config_is_no_snapshot(
    files: list[str], found: str, hint: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(RecordError, match="the folder is not a snapshot") as caught:
        load_pretrained(tmp_path)
    assert caught.value.found == found
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("load", [burnt.load, Llama.load])
def test_who_loads_a_snapshot_as_something_else_is_told_how(load: Any, snapshot: Path) -> None:
    with pytest.raises((RunError, RecordError)) as caught:
        load(snapshot)
    assert caught.value.hint == "burnt.models.load_pretrained(folder) loads a snapshot of Hugging Face"


def test_what_is_no_folder_is_refused(snapshot: Path) -> None:
    with pytest.raises(RecordError, match="there is no such snapshot") as caught:
        Llama.from_pretrained("owner/name")
    assert "download=True" in str(caught.value.hint)
    with pytest.raises(RecordError, match="there is no such snapshot") as caught:
        Llama.from_pretrained(snapshot / "config.json")
    assert caught.value.hint == "pass the folder that it is in"
    with pytest.raises(DeviceError):
        Llama.from_pretrained(snapshot, device="cudax")
    with pytest.raises(RecordError, match="a snapshot is a folder") as caught:
        small().save_pretrained(snapshot / "config.json")
    assert (caught.value.where, caught.value.found) == (str(snapshot / "config.json"), "a file")


def test_a_folder_without_weights_is_refused(snapshot: Path) -> None:
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(RecordError, match="a folder has no weights") as caught:
        Llama.from_pretrained(snapshot)
    assert caught.value.found == "config.json"


@pytest.mark.parametrize(
    ("text", "message"), [("{", "this is not JSON"), ("[1]", "this is not a JSON object")]
)
def test_a_damaged_config_is_refused(text: str, message: str, snapshot: Path) -> None:
    (snapshot / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Llama.from_pretrained(snapshot)
    assert caught.value.where == str(snapshot / "config.json")


def test_keys_of_others_are_written_back(snapshot: Path) -> None:
    change(snapshot, eos_token_id=[7, 8], torch_dtype="float64", num_labels=2)
    Llama.from_pretrained(snapshot).save_pretrained(snapshot)
    document = json.loads((snapshot / "config.json").read_text())
    assert document["eos_token_id"] == [7, 8]
    assert document["dtype"] == "float32"
    assert "torch_dtype" not in document


def test_a_snapshot_is_replaced_as_a_whole_or_not_at_all(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snapshot / "tokenizer.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in snapshot.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(Record, "save_folder", lambda *args, **options: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            small(d_ff=32).save_pretrained(snapshot)
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == before
    for d_ff, shard_bytes in ((32, 1000), (48, 10_000_000)):
        small(d_ff=d_ff).save_pretrained(snapshot, shard_bytes=shard_bytes)
        assert Llama.from_pretrained(snapshot).config.d_ff == d_ff
    assert (snapshot / "tokenizer.json").exists()


@pytest.mark.parametrize("part", ["all", "layer"])
def test_a_compiled_model_is_saved_without_the_names_of_the_compiler(part: str, tmp_path: Path) -> None:
    model = small()
    expected = model.state_dict()
    whole: Any = model
    if part == "all":
        whole = torch.compile(model, backend="eager")
    else:
        model.layers[1] = torch.compile(model.layers[1], backend="eager")
    whole.save_pretrained(tmp_path)
    again = Llama.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[path], value) for path, value in expected.items())
