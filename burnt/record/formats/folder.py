"""Folders of safetensors files in Hugging Face's layout: readers see the old or the new weights.

A single file replaces another at once. Of several, the index makes them weights: new shards are written under
names that the old index does not have, then the index is replaced, then the old files are deleted. Killed at
any point, the folder has the complete old or new weights, and maybe files that no index names, which the next
save deletes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnt._files import locked, replacing, sync_folder
from burnt.errors import RecordError
from burnt.record.formats.checksums import fill_checksums, with_checksums
from burnt.record.formats.safetensors_file import DOCUMENT, with_document, write_stored
from burnt.record.stored import StoredTensor

SHARD_BYTES = 5_000_000_000
"""The default size of a file, as in huggingface_hub."""

_WHOLE = "model.safetensors"
_INDEX = _WHOLE + ".index.json"
_SHARD = re.compile(r"model(-[0-9]+)?-[0-9]{5}-of-[0-9]{5}\.safetensors")

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.index.json")
"""What other programs may load from a folder."""


def find_weights(folder: Path) -> list[str]:
    """Return the names of the files in a folder that hold weights or name them."""
    return sorted({path.name for pattern in _WEIGHTS for path in folder.glob(pattern)})


def write_folder(
    folder: Path,
    tensors: Mapping[str, StoredTensor],
    document: Mapping[str, Any] | None,
    *,
    metadata: Mapping[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write ``model.safetensors``, or if that would be too large shards and their index; return the files.

    The folder is created if its parent exists. Weights in this layout are replaced; other files stay. The
    document is burnt's own, None for a layout of other programs, which `metadata` is for. Only a single
    tensor makes a file larger than `shard_bytes`.
    """
    if shard_bytes < 1:
        raise RecordError(
            "files cannot be that small", expected="shard_bytes of at least 1", found=shard_bytes
        )
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        with locked(folder):  # all processes of a training may save there at once
            return _replace_weights(folder, _shards(tensors, shard_bytes), document, metadata)
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _replace_weights(
    folder: Path,
    shards: list[dict[str, StoredTensor]],
    document: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None,
) -> list[Path]:
    old = set(find_weights(folder))
    ours = {name for name in old if name in (_WHOLE, _INDEX) or _SHARD.fullmatch(name)}
    if old - ours:
        raise RecordError(
            "the folder has weights of another layout",
            where=os.fspath(folder),
            found=", ".join(sorted(old - ours)[:5]),
            hint="choose another folder or delete them: other programs might load these",
        )
    texts = {**(metadata or {}), "format": "pt"}  # transformers requires it
    names = [_WHOLE] if len(shards) == 1 else _new_names(len(shards), old)
    if len(shards) == 1:
        _write_whole(folder, shards[0], with_document(texts, document), old)
    else:
        _write_shards(folder, dict(zip(names, shards, strict=True)), document, texts)
    for name in ours - {_INDEX, *names}:
        (folder / name).unlink(missing_ok=True)
    sync_folder(folder)
    return [folder / name for name in names]


def _write_whole(
    folder: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str], old: set[str]
) -> None:
    whole, index = folder / _WHOLE, folder / _INDEX
    try:
        write_stored(whole, tensors, metadata)
        index.unlink(missing_ok=True)  # it names the old shards, and comes before a single file
    except BaseException:
        if _WHOLE not in old and index.exists() == (_INDEX in old):
            with suppress(OSError):
                whole.unlink()
        raise


def _write_shards(
    folder: Path,
    shards: Mapping[str, Mapping[str, StoredTensor]],
    document: Mapping[str, Any] | None,
    metadata: Mapping[str, str],
) -> None:
    total = sum(stored.nbytes for shard in shards.values() for stored in shard.values())
    weight_map = {path: name for name, shard in shards.items() for path in shard}
    own = {} if document is None else {DOCUMENT: document}
    own = with_checksums({"total_size": total, **own}, len(shards))
    text = json.dumps({"metadata": own, "weight_map": weight_map}, indent=2).encode()
    try:
        checksums = [write_stored(folder / name, shard, metadata) for name, shard in shards.items()]
        text, _ = fill_checksums(text, checksums)
        with replacing(folder / _INDEX) as temporary:
            temporary.write_bytes(text)
    except BaseException:
        if not _has_text(folder / _INDEX, text):
            for name in shards:
                with suppress(OSError):
                    (folder / name).unlink()
        raise


def _has_text(path: Path, text: bytes) -> bool:
    try:
        return path.read_bytes() == text
    except OSError:
        return False


def _new_names(count: int, old: set[str]) -> list[str]:
    """Return the names of shards: Hugging Face's, or with a number where the folder has these."""
    for number in itertools.count(1):
        stem = "model" if number == 1 else f"model-{number}"
        names = [f"{stem}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
        if old.isdisjoint(names):
            break
    return names


def _shards(tensors: Mapping[str, StoredTensor], most_bytes: int) -> list[dict[str, StoredTensor]]:
    shards: list[dict[str, StoredTensor]] = [{}]
    size = 0
    for path, stored in tensors.items():
        if shards[-1] and size + stored.nbytes > most_bytes:
            shards.append({})
            size = 0
        shards[-1][path] = stored
        size += stored.nbytes
    return shards
