"""Tensor files: safetensors with a JSON document in the metadata; written atomically, validated when read."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Container, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from burnt._files import parse_json, replacing
from burnt.errors import RecordError
from burnt.record.formats.checksums import (
    HEADER_CHECKSUM,
    check_checksum,
    check_header,
    fill_checksums,
    with_checksums,
)
from burnt.record.stored import MemoryTensor, StoredTensor, check_plain, read_all

MOST_TENSORS = 500_000
"""Files with more tensors are refused. The largest published checkpoints have some 150,000."""

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DOCUMENT = "burnt"
"""The key of burnt's own document in the metadata of a file or an index."""

_METADATA = "__metadata__"
"""The key of the metadata in a header, next to the names of the tensors."""

_CHUNK = 32 << 20
"""How many bytes are read at once where they are converted."""

_CHECKED_AT_ONCE = 1 << 20
"""How many bytes are read at once for a checksum: they stay in the processor's cache."""

CUT = "the file was cut off or overwritten: take another copy"

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Entry(msgspec.Struct):
    """A tensor in the header of a file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class _Header:
    entries: dict[str, _Entry]
    metadata: dict[str, str]
    start: int  # of the tensors' bytes
    checksums: Mapping[str, int]


@dataclass(frozen=True)
class FileTensor(StoredTensor):
    """A tensor whose values lie one after the other in a file."""

    file: io.FileIO = field(repr=False)
    offset: int
    checksum: int | None = None

    def verify(self, where: str) -> None:
        """Read the values once, for their checksum, in little memory."""
        if self.checksum is None:
            return
        found, chunk = 0, torch.empty(_CHECKED_AT_ONCE, dtype=torch.uint8, device="cpu")
        plain = FileTensor((self.nbytes,), torch.uint8, self.file, self.offset)
        for first in range(0, self.nbytes, _CHECKED_AT_ONCE):
            part = plain._read(chunk[: self.nbytes - first], first)
            found = zlib.crc32(bytes_of(part), found)
        check_checksum(self.checksum, found, where)

    def read_verified(self, where: str) -> Tensor:
        """Read the values, then compare the checksum of what was read."""
        values = self.read()
        if self.checksum is not None:
            check_checksum(self.checksum, zlib.crc32(bytes_of(values)), where)
        return values

    def read_into(self, out: Tensor) -> None:
        """Read straight into the memory of `out` where it has the same bytes, else a chunk at a time."""
        if not out.is_contiguous():
            out.copy_(self._read(torch.empty(self.shape, dtype=self.dtype, device="cpu"), 0))
        elif out.dtype == self.dtype and out.device.type == "cpu":
            self._read(out, 0)
            if not out.is_inference():
                # Autograd and caches of converted weights go by the version, which no op has counted up here.
                torch.autograd.graph.increment_version(out)
        else:
            flat = out.view(-1)
            size = max(1, _CHUNK // self.dtype.itemsize)
            for first in range(0, flat.numel(), size):
                part = flat[first : first + size]
                part.copy_(self._read(torch.empty(part.shape, dtype=self.dtype, device="cpu"), first))

    def read_rows_into(self, first: int, out: Tensor) -> None:
        """Read only these bytes."""
        start = self.offset + first * math.prod(self.shape[1:]) * self.dtype.itemsize
        FileTensor(tuple(out.shape), self.dtype, self.file, start).read_into(out)

    def _read(self, out: Tensor, first: int) -> Tensor:
        """Read `out`'s elements from the one numbered `first` on."""
        if out.numel() == 0:
            return out
        buffer = bytes_of(out)
        self.file.seek(self.offset + first * self.dtype.itemsize)
        done = 0
        while done < len(buffer):  # the system reads at most 2 GB at once
            count = self.file.readinto(buffer[done:])
            if not count:
                raise RecordError(
                    "a tensor file became shorter while it was read",
                    where=str(self.file.name),
                    hint="part of the model is loaded: load a complete file before it is used",
                )
            done += count
        return out


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    document: Mapping[str, Any] | None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write named tensors and a JSON document to one safetensors file: temporary file, fsync, rename.

    Args:
        path: the file; an old one is replaced only after the new one is complete.
        tensors: tensors by name, on any device; shared memory is written once per name.
        document: JSON values, stored in the file's metadata under ``burnt``; None stores nothing.
        metadata: more metadata, for other programs.

    Raises:
        RecordError: a tensor cannot be stored as plain values.
        OSError: the folder does not exist, cannot be written or is full.
    """
    stored = {name: MemoryTensor.of(tensor) for name, tensor in tensors.items()}
    write_stored(path, stored, with_document(metadata or {}, document))


def write_stored(
    path: str | os.PathLike[str], tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]
) -> int:
    """Write tensors to a safetensors file, only one in memory at a time; return the header's checksum."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} of {target.name} does not exist")
    if _METADATA in tensors:
        raise name_refused(_METADATA, "safetensors")
    for name, stored in tensors.items():
        check_storable(name, stored, _DTYPE_NAMES)
    # Descending sizes of elements align all values after an aligned header.
    ordered = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    ends = list(itertools.accumulate(tensors[name].nbytes for name in ordered))
    starts = dict(zip(ordered, [0, *ends], strict=False))
    header: dict[str, Any] = {_METADATA: with_checksums(metadata, len(tensors))}
    for name, stored in tensors.items():
        header[name] = {
            "dtype": _DTYPE_NAMES[stored.dtype],
            "shape": stored.shape,
            "data_offsets": (starts[name], starts[name] + stored.nbytes),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise RecordError(
            "the names and metadata are too large for a safetensors file",
            where=os.fspath(target),
            expected=f"at most {MOST_HEADER_BYTES:,} bytes",
            found=f"{len(text):,} bytes",
        )
    sums = {}
    with replacing(target) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            values = bytes_of(tensors[name].read())
            sums[name] = zlib.crc32(values)
            file.write(values)
        text, own = fill_checksums(text, [sums[name] for name in tensors])
        file.seek(8)
        file.write(text)
    return own


def with_document(metadata: Mapping[str, str], document: Mapping[str, Any] | None) -> dict[str, str]:
    """Return metadata with a document in it."""
    return {**metadata, **({} if document is None else {DOCUMENT: json.dumps(document)})}


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    # A contiguous tensor of one element may have any stride, which views of another dtype refuse.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data)


def check_storable(name: str, stored: StoredTensor, dtypes: Container[torch.dtype]) -> None:
    """Refuse a tensor that a file cannot hold as plain values."""
    if isinstance(stored, MemoryTensor):
        check_dense(name, stored.tensor)
    if stored.dtype not in dtypes:
        raise RecordError(
            "a tensor cannot be stored as plain values in this format",
            where=name,
            expected="a dtype that the format has",
            found=str(stored.dtype),
            hint="convert its dtype",
        )


def check_dense(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that has no value in memory for each element."""
    check_plain(tensor, name, "save tensor.to_dense(), or the tensors that it holds")


def name_refused(name: str, file_format: str) -> RecordError:
    """Return the error for a name that a format has another use for."""
    return RecordError(
        f"a {file_format} file cannot hold a tensor of this name", where=repr(name), hint="rename the tensor"
    )


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Read the tensors of a safetensors file, and the document that `write_tensors` has stored.

    Returns:
        tensors by name, on the CPU; the document, or None if another program wrote the file.

    Raises:
        RecordError: the file is truncated, damaged, or no safetensors file.
        OSError: the file does not exist or cannot be read.
    """
    path = Path(path)
    _check_not_folder(path)
    with ExitStack() as stack:
        stored, document, _ = open_safetensors(path, stack)
        return read_all(stored, os.fspath(path)), document


def read_document(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read only the document of a file that `write_tensors` wrote; None if another program wrote the file.

    Raises:
        RecordError: the file is truncated, damaged, or no safetensors file.
        OSError: the file does not exist or cannot be read.
    """
    return parse_document(_open_header(path).metadata, Path(path))


def read_header_checksum(path: str | os.PathLike[str]) -> int | None:
    """Read the checksum of a file's header, which files of other weights do not have; None without."""
    metadata = _open_header(path).metadata
    return int(metadata[HEADER_CHECKSUM], 16) if HEADER_CHECKSUM in metadata else None


def _open_header(path: str | os.PathLike[str]) -> _Header:
    path = Path(path)
    _check_not_folder(path)
    with path.open("rb", buffering=0) as file:
        return _read_header(file, path)


def _check_not_folder(path: Path) -> None:
    if path.is_dir():
        inside = path / "model.safetensors"
        hint = f"a checkpoint's model is {inside}" if inside.exists() else "name a .safetensors file in it"
        if inside.exists() and (path / "config.json").exists():  # a run has the one, a checkpoint the other
            hint = "burnt.models.load_pretrained(folder) loads a snapshot of Hugging Face"
        raise RecordError("this is a folder, not a tensor file", where=str(path), hint=hint)


def open_safetensors(
    path: Path, stack: ExitStack
) -> tuple[dict[str, StoredTensor], dict[str, Any] | None, dict[str, str]]:
    """Open a safetensors file to read its tensors one at a time.

    Returns tensors by name; the document as in `read_tensors`; the metadata of other programs.
    """
    file = stack.enter_context(path.open("rb", buffering=0))
    header = _read_header(file, path)
    tensors: dict[str, StoredTensor] = {
        name: FileTensor(
            entry.shape,
            _DTYPES[entry.dtype],
            file,
            header.start + entry.data_offsets[0],
            header.checksums.get(name),
        )
        for name, entry in header.entries.items()
    }
    return tensors, parse_document(header.metadata, path), header.metadata


def _read_header(file: io.FileIO, path: Path) -> _Header:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
        raise RecordError(
            "this is not a tensor file, or only its beginning",
            where=str(path),
            expected="a safetensors file",
            found=f"{size} bytes" + (f" starting with {start[:4]!r}" if start else ""),
            hint=CUT,
        )
    text = file.read(length)
    check_count(text.count(b'"data_offsets"'), str(path))
    try:
        tensors = msgspec.convert(parse_json(text), dict[str, Any])
        metadata = msgspec.convert(tensors.pop(_METADATA, {}), dict[str, str])
        entries = msgspec.convert(tensors, dict[str, _Entry])
    except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise _damaged_header(path, str(error)) from None
    expected = 8 + length + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != expected:
        raise wrong_size("a tensor file", path, expected, size)
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise RecordError(
                "a tensor has a dtype that torch lacks", where=f"{path}: {name}", found=entry.dtype[:50]
            )
        if any(not 0 <= length < 2**62 for length in entry.shape):
            raise _damaged_header(path, f"{name[:200]}: shape {entry.shape[:8]}")
        # Without gaps and overlaps, the tensors take no more memory than the file has bytes.
        if entry.data_offsets != (position, position + math.prod(entry.shape) * dtype.itemsize):
            raise _damaged_header(
                path, f"{name[:200]}: shape {entry.shape[:8]} of {entry.dtype} at bytes {entry.data_offsets}"
            )
        position = entry.data_offsets[1]
    return _Header(entries, metadata, 8 + length, check_header(text, metadata, list(entries), str(path)))


def wrong_size(what: str, path: Path, expected: int, size: int, hint: str = "") -> RecordError:
    """Return the error for a file that is shorter or longer than its header says."""
    return RecordError(
        f"{what} is truncated" if size < expected else f"{what} has bytes too many",
        where=str(path),
        expected=f"{expected} bytes",
        found=f"{size} bytes",
        hint=CUT + hint,
    )


def check_count(count: int, where: str) -> None:
    """Refuse a file with so many tensors that reading their names alone takes minutes."""
    if count > MOST_TENSORS:
        raise RecordError(
            "a file has too many tensors",
            where=where,
            expected=f"at most {MOST_TENSORS:,}",
            found=f"{count:,}",
        )


def _damaged_header(path: Path, found: str) -> RecordError:
    return RecordError("the header of a tensor file is damaged", where=str(path), found=found, hint=CUT)


def parse_document(metadata: Mapping[str, str], path: Path) -> dict[str, Any] | None:
    """Return the document in the metadata of a file, or None."""
    text = metadata.get(DOCUMENT)
    if text is None:
        return None
    try:
        document = parse_json(text)
    except json.JSONDecodeError as error:
        raise RecordError(
            "the metadata of a tensor file is damaged", where=str(path), found=str(error), hint=CUT
        ) from None
    if not isinstance(document, dict):
        raise RecordError("the metadata of a tensor file is damaged", where=str(path), hint=CUT)
    return document
