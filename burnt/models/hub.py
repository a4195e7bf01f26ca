"""Snapshots from the Hugging Face Hub, downloaded by huggingface_hub."""

from __future__ import annotations

import os
from pathlib import Path

from burnt.errors import RecordError, UnsupportedError

_CONFIGS = ["config.json", "generation_config.json", "preprocessor_config.json"]
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip
"""What snapshots have for their tokenizers. burnt makes no use of a chat template, but copies it."""

_SAFETENSORS = ["model*.safetensors", "model*.safetensors.index.json"]
_BIN = ["pytorch_model*.bin", "pytorch_model*.bin.index.json"]


def find_folder(
    source: str | os.PathLike[str], *, download: bool, revision: str | None, weights: bool = True
) -> Path:
    """Return a folder, or that of the Hub's cache with what was downloaded, if that is asked for."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if download:
        return download_snapshot(os.fspath(source), revision=revision, weights=weights)
    raise RecordError(
        "there is no such snapshot",
        where=os.fspath(source),
        expected=f"a folder with {'config.json and weights' if weights else 'the files of a tokenizer'}",
        found="a file" if folder.exists() else "nothing",
        hint="pass the folder that it is in"
        if folder.exists()
        else "download=True fetches one by its name on the Hugging Face Hub, such as 'Qwen/Qwen2-0.5B'",
    )


def download_snapshot(name: str, *, revision: str | None = None, weights: bool = True) -> Path:
    """Download what burnt reads of a repository, or take it from huggingface_hub's cache.

    That is the configuration, the files of the tokenizer, and the weights: as safetensors, or where there are
    none as ``.bin`` files. Cache, offline mode, tokens and mirrors are those of huggingface_hub, with its
    environment variables (``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_TOKEN``, ``HF_ENDPOINT``).

    `name` is ``"owner/name"``, or ``"name"`` for the oldest repositories, `revision` a branch, tag or commit.
    Returns the folder in the cache. Without huggingface_hub it raises an UnsupportedError, and a RecordError,
    whose cause is that of huggingface_hub, if nothing can be downloaded.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise UnsupportedError(
            "a snapshot is downloaded by huggingface_hub, which is not installed",
            where=name,
            hint='pip install "burnt[models]"; or download its files into a folder, and pass the folder',
        ) from error
    for files in (_SAFETENSORS, _BIN) if weights else ([],):
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    name,
                    revision=revision,
                    allow_patterns=[*_CONFIGS, *TOKENIZER_FILES, *files],
                    ignore_patterns=["*/*"],  # the patterns match in folders, too
                )
            )
        except Exception as error:  # of huggingface_hub, of its HTTP client and of the system
            raise _download_error(name, revision, error) from error
        if not weights or any(any(folder.glob(pattern)) for pattern in files):
            return folder
    raise RecordError(
        "a repository has no weights that can be read",
        where=name,
        expected="model.safetensors or pytorch_model.bin, or shards with their index",
        found=", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing",
    )


def _download_error(name: str, revision: str | None, error: Exception) -> RecordError:
    from huggingface_hub import errors

    at = name if revision is None else f"{name} at {revision}"
    found = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    login = "`hf auth login`, or HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):  # is a RepositoryNotFoundError
        return RecordError(
            "a repository may be downloaded only after its terms are accepted",
            where=at,
            found=found,
            hint=f"accept them at https://huggingface.co/{name}, then {login}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = f"check the name; a private repository needs {login}"
        return RecordError("there is no such repository on the Hub", where=at, found=found, hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        hint = f"see https://huggingface.co/{name}/refs for branches and tags"
        return RecordError("the repository has no such revision", where=at, found=found, hint=hint)
    if isinstance(error, errors.HFValidationError):
        return RecordError(
            "this is neither a folder nor a name on the Hub",
            where=at,
            expected="owner/name, such as 'Qwen/Qwen2-0.5B'",
            found=found,
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return RecordError(
            "the snapshot is not in the cache, and the Hub cannot be reached",
            where=at,
            found=found,
            hint="check the network, and whether HF_HUB_OFFLINE is set; or pass a folder with the files",
        )
    return RecordError("the snapshot cannot be downloaded", where=at, found=found)
