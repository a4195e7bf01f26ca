"""Weights from anywhere: opens a file, a folder of shards, a state dict or a Record as a `Source`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from burnt._files import parse_json
from burnt.errors import RecordError
from burnt.record.formats.burnpack_file import MAGIC, open_burnpack
from burnt.record.formats.checksums import check_checksum, check_header, without_checksums
from burnt.record.formats.gguf_file import MAGIC as GGUF
from burnt.record.formats.gguf_file import open_gguf
from burnt.record.formats.npz_file import open_npz
from burnt.record.formats.safetensors_file import (
    CUT,
    DOCUMENT,
    MOST_HEADER_BYTES,
    check_count,
    open_safetensors,
    read_header_checksum,
)
from burnt.record.formats.torch_file import find_state_dict, is_legacy, read_torch
from burnt.record.record import Record, parse_metadata
from burnt.record.stored import MemoryTensor, StoredTensor, check_plain, read_all

_INDEX = ".index.json"
_FILES = ("model.safetensors", "pytorch_model.bin")
_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.npz", "*.bpk", "*.gguf")

_SHARD = re.compile(r"-[0-9]{5}-of-(?!00001)[0-9]{5}[.]")
"""The end of the name of one file of several."""

_MOST_ATTEMPTS = 20
"""How often a folder is opened again whose weights were replaced meanwhile."""

_OTHERS = {
    b"\x89HDF": ("a HDF5 file", "read it with Keras or h5py, and numpy.savez its arrays"),
    b"\x1f\x8b": ("a gzip file", "unpack it first"),
    b"{": ("a JSON file", "load its folder: the index names the shards"),
    b"\x93NUMPY": ("a .npy file", "numpy.savez(path, **arrays) gives each array a name"),
    b"version https://git-lfs": ("a pointer of Git LFS", "git lfs pull fetches the file"),
    b"<": ("a web page", "download the file itself: the address was that of a page"),
}
"""What people try, by the first bytes, and how to get on."""

_FORMATS = "a safetensors, PyTorch, .npz, burnpack or GGUF file"


@dataclasses.dataclass(frozen=True)
class Source:
    """An open source of weights: what messages call its `kind`, and its tensors by name.

    The tensors of `record` are not used, only its metadata; `metadata` is what other programs stored. `notes`
    say what was decided when the source was opened. `path` is of a file or folder; `shards` of a folder with
    several files, the file's name by the tensor's.
    """

    kind: str
    tensors: Mapping[str, StoredTensor]
    path: str | None = None
    record: Record = dataclasses.field(default_factory=lambda: Record({}))
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shards: Mapping[str, str] = dataclasses.field(default_factory=dict)
    format: str = ""


class _Index(msgspec.Struct):
    """The index of a sharded folder, as Hugging Face writes it."""

    weight_map: dict[str, str]
    metadata: dict[str, Any] = {}


def open_source(source: object, stack: ExitStack) -> Source:
    """Open what weights are loaded from; of files that allow it, only the headers are read."""
    if isinstance(source, Record):
        return Source("record", _in_memory(source.tensors, "record"), record=source)
    if isinstance(source, Mapping):
        state, notes = find_state_dict(source, "state dict")
        return Source("state dict", _in_memory(state, "state dict"), notes=notes)
    if not isinstance(source, str | os.PathLike):
        raise RecordError(
            "weights cannot be loaded from this",
            expected="a file, a folder, a state dict or a Record",
            found=type(source).__name__,
            hint="pass module.state_dict()" if isinstance(source, torch.nn.Module) else None,
        )
    path = Path(source)
    return _open_folder(path, stack) if path.is_dir() else _open_file(path, stack)


def read_weights(source: str | os.PathLike[str] | Mapping[str, Any] | Record) -> Record:
    """Read every tensor of a source that `load_weights` takes into a Record, in memory.

    Raises:
        RecordError: the source is damaged, unsafe or of no known format.
        OSError: the file does not exist or cannot be read.

    >>> import torch
    >>> print(read_weights(torch.nn.Linear(2, 1, bias=False).state_dict()))
    Record(1 tensor, 2 values, model=None, config_type=None)
      weight  (1, 2) torch.float32
    """
    with ExitStack() as stack:
        opened = open_source(source, stack)
        return dataclasses.replace(opened.record, tensors=read_all(opened.tensors, opened.path))


def _in_memory(tensors: Mapping[str, Tensor], where: str) -> dict[str, StoredTensor]:
    for name, tensor in tensors.items():
        hint = "convert it: to_dense(), dequantize(), full_tensor(), or burnt.quant.from_torchao(model)"
        check_plain(tensor, f"{where}: {name}", hint)
    return {name: MemoryTensor.of(tensor) for name, tensor in tensors.items()}


def _open_file(path: Path, stack: ExitStack) -> Source:
    where = os.fspath(path)
    with path.open("rb") as file:
        start = file.read(64)
    is_zip = start[:4] in (b"PK\3\4", b"PK\5\6")
    if is_zip and _is_npz(path):
        return Source("file", open_npz(where, stack), where, format="NumPy .npz")
    if is_zip or is_legacy(start):
        state, notes = read_torch(where, legacy=is_legacy(start))
        kind = "PyTorch, before 1.6" if is_legacy(start) else "PyTorch"
        return Source("file", _in_memory(state, where), where, notes=notes, format=kind)
    if start.startswith(MAGIC):
        tensors, document, notes = open_burnpack(path, stack)
        record = parse_metadata(document, tensors, where)
        return Source("file", tensors, where, record, notes, format="burnpack")
    if start.startswith(GGUF):
        gguf = open_gguf(path, stack)
        record = Record({}, quantized=gguf.quantized)
        return Source("file", gguf.tensors, where, record, gguf.notes, gguf.metadata, format="GGUF")
    if int.from_bytes(start[:8], "little") > MOST_HEADER_BYTES:  # no safetensors file
        _refuse_other_formats(start, where)
    tensors, document, metadata = open_safetensors(path, stack)
    record = parse_metadata(document, tensors, where, metadata)
    return Source("file", tensors, where, record, metadata=_foreign(metadata), format="safetensors")


def _refuse_other_formats(start: bytes, where: str) -> None:
    for magic, (name, hint) in _OTHERS.items():
        if start.startswith(magic):
            raise RecordError(
                f"weights cannot be loaded from {name}", where=where, expected=_FORMATS, hint=hint
            )
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise RecordError(
            "this is a pickle that torch.save did not write; it is not unpickled",
            where=where,
            expected=_FORMATS,
            hint="where you trust the file: load it with pickle, and torch.save its tensors as a dict",
        )
    raise RecordError(
        "this is not a tensor file, or only its beginning",
        where=where,
        expected=_FORMATS,
        found=f"bytes that start with {start[:4]!r}",
        hint=f"the program that wrote it can save its arrays with numpy.savez; or {CUT}",
    )


def _is_npz(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # a damaged one is refused when it is opened
        return path.suffix == ".npz"
    return all(name.endswith(".npy") for name in names) if names else path.suffix == ".npz"


def _open_folder(folder: Path, stack: ExitStack) -> Source:
    """Open a folder of which `write_folder` may replace the weights meanwhile."""
    for _ in range(_MOST_ATTEMPTS):
        before = _indexes(folder)
        with ExitStack() as files:
            try:
                source = _find_in_folder(folder, files)
            except (RecordError, FileNotFoundError):
                if _indexes(folder) == before:
                    raise
                continue
            # Names of shards are used again: those of one index are complete while it is there.
            if _indexes(folder) == before:
                stack.enter_context(files.pop_all())
                return source
    raise RecordError(
        "the weights of a folder are replaced again and again",
        where=os.fspath(folder),
        hint="load them when the program that saves them has ended",
    )


def _indexes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what changes whenever an index in a folder is replaced."""
    found = {}
    for path in folder.glob("*" + _INDEX):
        with suppress(FileNotFoundError):
            status = path.stat()
            found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def _find_in_folder(folder: Path, stack: ExitStack) -> Source:
    """Open a folder as Hugging Face lays it out: one file, or shards and their index."""
    for name in _FILES:
        index = folder / (name + _INDEX)
        if index.is_file():
            return _open_shards(folder, index, stack)
        if (folder / name).is_file():
            return _open_file(folder / name, stack)
    indexes = sorted(folder.glob("*" + _INDEX))
    if len(indexes) == 1:
        return _open_shards(folder, indexes[0], stack)
    for pattern in _PATTERNS:
        found = sorted(folder.glob(pattern))
        if len(found) == 1 and not _SHARD.search(found[0].name):
            return _open_file(found[0], stack)
        if found:
            what, hint = "a folder has several files of weights and no index", "name one of the files"
            if _SHARD.search(found[0].name):
                what = "a folder has shards of weights and no index, which would name all of them"
                hint = "they were not written or copied completely: take another copy"
            raise RecordError(
                what,
                where=os.fspath(folder),
                expected=f"one file, or {_FILES[0]}{_INDEX}",
                found=", ".join(path.name for path in found[:5]) + (", ..." if len(found) > 5 else ""),
                hint=hint,
            )
    raise RecordError(
        "a folder has no weights",
        where=os.fspath(folder),
        expected=" or ".join((*_FILES, _FILES[0] + _INDEX)),
        found=", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing",
        hint="a checkpoint of TensorFlow or JAX: read it there, and numpy.savez its arrays"
        if any((folder / name).exists() for name in ("checkpoint", "_METADATA", "_CHECKPOINT_METADATA"))
        else None,
    )


def _open_shards(folder: Path, index: Path, stack: ExitStack) -> Source:
    try:
        text = index.read_bytes()
        parsed = msgspec.convert(parse_json(text), _Index)
    except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise RecordError("the index of a folder is damaged", where=str(index), found=str(error)) from None
    check_count(len(parsed.weight_map), str(index))
    shards: dict[str, Source] = {}
    for name in dict.fromkeys(parsed.weight_map.values()):
        # Files of a Hugging Face snapshot are links to elsewhere, so that only the name is checked.
        if name in ("", ".", "..") or set(name) & set("/\\:\0"):
            raise RecordError(
                "the index of a folder names a file outside of it",
                where=str(index),
                expected="names of files in the folder",
                found=repr(name[:200]),
            )
        if not (folder / name).is_file():
            raise RecordError(
                "a shard of a folder is missing", where=str(index), expected=name, found="no such file"
            )
        shards[name] = _open_file(folder / name, stack)
    for name, checksum in check_header(text, parsed.metadata, list(shards), str(index)).items():
        what = "a shard belongs to other weights than the index"
        check_checksum(checksum, read_header_checksum(folder / name), os.fspath(folder / name), what)
    tensors: dict[str, StoredTensor] = {}
    for tensor, name in parsed.weight_map.items():
        if tensor not in shards[name].tensors:
            raise RecordError(
                "a shard lacks a tensor that the index expects in it",
                where=str(folder / name),
                expected=tensor,
                found=f"{len(shards[name].tensors)} other tensors",
            )
        tensors[tensor] = shards[name].tensors[tensor]
    document = parsed.metadata.get(DOCUMENT)
    record = parse_metadata(document if isinstance(document, dict) else None, tensors, str(index), {})
    notes = dict.fromkeys(note for shard in shards.values() for note in shard.notes)
    metadata = _foreign({**next(iter(shards.values())).metadata, **parsed.metadata}) if shards else {}
    formats = " and ".join(dict.fromkeys(shard.format for shard in shards.values()))
    return Source(
        "folder", tensors, os.fspath(folder), record, tuple(notes), metadata, parsed.weight_map, formats
    )


def _foreign(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata less burnt's own document, and checksums."""
    return {key: value for key, value in without_checksums(metadata).items() if key != DOCUMENT}
