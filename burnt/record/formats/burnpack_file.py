"""Tensors of Burn's burnpack files (``.bpk``): read one at a time, and written.

A file is a header of 10 bytes, metadata as CBOR and the tensors' values, all little-endian::

    b"NRUB"   version: u16   length of the metadata: u32
    {"tensors": {"fc.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], "param_id": 7}},
     "metadata": {"epoch": "3"},
     "scalars": {"step": {"UInt": 7}}}
    zeros up to a multiple of 256
    the tensors, each of which starts at a multiple of 256

``param_id`` (under which Burn's optimizers know a parameter), ``metadata`` and ``scalars`` may be missing.
Of CBOR (RFC 8949) it uses numbers, text, arrays and maps of known length.
Burn 0.19 wrote the tensors one after the other, without any zeros, under the same version. Names and shapes
are those in the file: Burn's linear layers store ``[in, out]``, its norms ``gamma`` and ``beta``.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from burnt._files import replacing
from burnt.errors import RecordError
from burnt.record.formats.checksums import check_header, fill_checksums, with_checksums
from burnt.record.formats.safetensors_file import (
    CUT,
    FileTensor,
    bytes_of,
    parse_document,
    with_document,
    wrong_size,
)
from burnt.record.stored import StoredTensor, read_all

MOST_ITEMS = 3_000_000
"""In one document: some 3 s, and 180,000 tensors; Burn reads at most 100,000."""

_DEEPEST = 32

_UNSIGNED, _NEGATIVE, _TEXT, _ARRAY, _MAP, _SIMPLE = 0, 1, 3, 4, 5, 7
_CONSTANTS = {20: False, 21: True, 22: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}

CborValue = int | str | Sequence["CborValue"] | Mapping[str, "CborValue"]


def encode_cbor(value: CborValue) -> bytes:
    """Encode integers from 0 on, text, sequences and maps with text as keys.

    >>> encode_cbor({"shape": [3, 256]}).hex(" ")
    'a1 65 73 68 61 70 65 82 03 19 01 00'
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: CborValue, parts: list[bytes]) -> None:
    if isinstance(value, int):
        parts.append(_head(_UNSIGNED, value))
    elif isinstance(value, str):
        text = value.encode()
        parts += (_head(_TEXT, len(text)), text)
    elif isinstance(value, Mapping):
        parts.append(_head(_MAP, len(value)))
        for key, item in value.items():
            _encode(key, parts)
            _encode(item, parts)
    else:
        parts.append(_head(_ARRAY, len(value)))
        for item in value:
            _encode(item, parts)


def _head(kind: int, argument: int) -> bytes:
    """Return the first bytes of an item: its type in three bits, and a number in as few bytes as it takes."""
    if argument < 24:
        return bytes([kind << 5 | argument])
    power = next(power for power in range(4) if argument < 1 << (8 << power))
    return bytes([kind << 5 | 24 + power]) + argument.to_bytes(1 << power, "big")


def decode_cbor(data: bytes) -> Any:
    """Decode one item that fills `data`.

    Python's usual decoders also build dates, fractions, references and more from tags, which a hostile file
    can make expensive; burnpack files have none. A ValueError is raised if the item is damaged, nested more
    than 32 deep, has more than `MOST_ITEMS` items or a key twice in a map, or has what burnpack files lack:
    tags, byte strings, items of unknown length.

    >>> decode_cbor(bytes.fromhex("a1 65 73 68 61 70 65 82 03 19 01 00"))
    {'shape': [3, 256]}
    """
    decoder = _Decoder(data)
    value = decoder.item(0)
    if decoder.position != len(data):
        raise ValueError(f"{len(data) - decoder.position} bytes too many")
    return value


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.items = 0

    def item(self, depth: int) -> Any:
        self.items += 1
        if self.items > MOST_ITEMS:
            raise ValueError(f"more than {MOST_ITEMS:,} items")
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        start = self.position
        first = self._take(1)[0]
        kind, info = first >> 5, first & 31
        if info < 24:
            argument = info
        elif info < 28:
            argument = int.from_bytes(self._take(1 << (info - 24)), "big")
        else:
            raise ValueError(f"an item of unknown length at byte {start}")
        if kind == _UNSIGNED:
            return argument
        if kind == _NEGATIVE:
            return -1 - argument
        if kind == _TEXT:
            return self._take(argument).decode()
        if kind == _ARRAY:
            self._check_left(argument)
            return [self.item(depth + 1) for _ in range(argument)]
        if kind == _MAP:
            self._check_left(2 * argument)
            return self._map(argument, depth + 1)
        if kind == _SIMPLE and info in _CONSTANTS:
            return _CONSTANTS[info]
        if kind == _SIMPLE and info in _FLOATS:
            return struct.unpack(_FLOATS[info], self.data[start + 1 : self.position])[0]
        raise ValueError(f"an item of type {kind}.{info} at byte {start}")

    def _map(self, length: int, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(length):
            key = self.item(depth)
            if not isinstance(key, str):
                raise ValueError(f"a key of type {type(key).__name__}")
            if key in values:
                raise ValueError(f"the key {key[:80]!r} twice")
            values[key] = self.item(depth)
        return values

    def _take(self, count: int) -> bytes:
        self._check_left(count)
        self.position += count
        return self.data[self.position - count : self.position]

    def _check_left(self, count: int) -> None:
        left = len(self.data) - self.position
        if count > left:
            # An item takes a byte or more.
            raise ValueError(f"{count} or more bytes expected at byte {self.position}, {left} left")


SUFFIX = ".bpk"

MAGIC = b"NRUB"
_HEADER = struct.Struct("<4sHI")
_VERSION = 1
_ALIGNMENT = 256

_MOST_METADATA = 100 << 20
"""Burn refuses to read files with more."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "Flex32": torch.float32,  # computed with less precision, stored as float32
    "Bool": torch.bool,  # until Burn 0.20; {"Bool": "Native"} since
}  # fmt: skip
_BOOLS = {"Native": torch.bool, "U8": torch.bool, "U32": torch.uint32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if name not in ("Flex32", "Bool")}


class _Entry(msgspec.Struct):
    """A tensor in the metadata."""

    dtype: str | dict[str, Any]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    param_id: int | None = None


class _Metadata(msgspec.Struct):
    tensors: dict[str, _Entry]
    metadata: dict[str, str] = {}
    scalars: dict[str, Any] = {}


def open_burnpack(
    path: Path, stack: ExitStack
) -> tuple[dict[str, StoredTensor], dict[str, Any] | None, tuple[str, ...]]:
    """Open a burnpack file to read its tensors one at a time.

    Returns tensors by name, in the order of the file; the document that `write_burnpack` has stored, or None;
    notes on what is ignored.
    """
    file = stack.enter_context(path.open("rb", buffering=0))
    metadata, end, sums = _read_metadata(file, path)
    dtypes = {
        name: _torch_dtype(entry.dtype, f"{path}: {name[:200]}") for name, entry in metadata.tensors.items()
    }
    entries = dict(sorted(metadata.tensors.items(), key=lambda item: item[1].data_offsets))
    start = _find_data(file, path, entries, dtypes, end)
    tensors: dict[str, StoredTensor] = {
        name: FileTensor(entry.shape, dtypes[name], file, start + entry.data_offsets[0], sums.get(name))
        for name, entry in entries.items()
    }
    notes = []
    if names := list(metadata.scalars):
        shown = ", ".join(repr(name)[:80] for name in names[:5]) + (", ..." if len(names) > 5 else "")
        notes.append(f"ignored, as they are not tensors: {shown}")
    return tensors, parse_document(metadata.metadata, path), tuple(notes)


def is_burnpack(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a burnpack file, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_burnpack(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Read the tensors of a burnpack file, and the document that `write_burnpack` has stored."""
    with ExitStack() as stack:
        stored, document, _ = open_burnpack(Path(path), stack)
        return read_all(stored, os.fspath(path)), document


def write_burnpack(
    path: str | os.PathLike[str], tensors: Mapping[str, StoredTensor], document: Mapping[str, Any] | None
) -> None:
    """Write tensors, one at a time, and a JSON document to one burnpack file: temporary file, fsync, rename.

    The document is stored in the file's metadata under ``burnt``, with checksums; None stores nothing, as
    Burn does.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} of {target.name} does not exist")
    entries: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        first = _align(end)
        end = first + tensor.nbytes
        entries[name] = {
            "dtype": _burn_dtype(tensor.dtype, f"{target}: {name}"),
            "shape": tensor.shape,
            "data_offsets": (first, end),
        }
    # Burn, too, sorts the metadata by name and leaves the tensors in the order of the module.
    contents: dict[str, Any] = {"tensors": dict(sorted(entries.items()))}
    if document is not None:
        contents["metadata"] = with_checksums(with_document({}, document), len(tensors))
    metadata = encode_cbor(contents)
    start = _align(_HEADER.size + len(metadata))
    sums = {}
    with replacing(target) as temporary, temporary.open("wb") as file:
        file.write(_HEADER.pack(MAGIC, _VERSION, len(metadata)) + metadata)
        file.write(bytes(start - file.tell()))
        for name, tensor in tensors.items():
            file.write(bytes(start + entries[name]["data_offsets"][0] - file.tell()))
            values = bytes_of(tensor.read())
            sums[name] = zlib.crc32(values)
            file.write(values)
        if document is not None:
            file.seek(_HEADER.size)
            file.write(fill_checksums(metadata, [sums[name] for name in contents["tensors"]])[0])


def _read_metadata(file: io.FileIO, path: Path) -> tuple[_Metadata, int, dict[str, int]]:
    """Return a file's metadata, where it ends, and the checksums of the tensors."""
    size = os.fstat(file.fileno()).st_size
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise wrong_size("a burnpack file", path, _HEADER.size, size)
    _, version, length = _HEADER.unpack(header)
    if version != _VERSION:
        raise RecordError(
            "a burnpack file of another version cannot be read",
            where=str(path),
            expected=f"version {_VERSION}",
            found=f"version {version}",
            hint="a newer Burn wrote this file: save a .safetensors file with it, or upgrade burnt",
        )
    if length > min(size - _HEADER.size, _MOST_METADATA):
        raise RecordError(
            "a burnpack file is truncated, or its header is damaged",
            where=str(path),
            expected=f"{length:,} bytes of metadata, at most {_MOST_METADATA:,}",
            found=f"{size - _HEADER.size:,} bytes after the header",
            hint=CUT,
        )
    text = file.read(length)
    try:
        metadata = msgspec.convert(decode_cbor(text), _Metadata)
    except (ValueError, msgspec.ValidationError) as error:
        raise _damaged(path, str(error)) from None
    sums = check_header(text, metadata.metadata, list(metadata.tensors), str(path))
    return metadata, _HEADER.size + length, sums


def _find_data(
    file: io.FileIO, path: Path, entries: Mapping[str, _Entry], dtypes: Mapping[str, torch.dtype], end: int
) -> int:
    """Return where the tensors' values start in a file whose metadata ends at `end`."""
    position, is_aligned, is_contiguous = 0, True, True
    for name, entry in entries.items():
        first, last = entry.data_offsets
        # Without overlaps, the tensors take no more memory than the file has bytes.
        if (
            any(not 0 <= length < 2**62 for length in entry.shape)
            or last - first != math.prod(entry.shape) * dtypes[name].itemsize
            or first < position
        ):
            raise _damaged(
                path, f"{name[:200]}: shape {entry.shape[:8]} of {entry.dtype} at bytes {entry.data_offsets}"
            )
        is_aligned = is_aligned and first % _ALIGNMENT == 0
        is_contiguous = is_contiguous and first == position
        position = last
    if not (is_aligned or is_contiguous):
        raise _damaged(
            path, f"tensors that start neither at multiples of {_ALIGNMENT} nor one after the other"
        )
    size = os.fstat(file.fileno()).st_size
    start = _align(end)
    if is_aligned and size == start + position:
        return start
    # Burn 0.19. A newer file has this size, too, if as many bytes were cut off as zeros precede its tensors.
    if is_contiguous and size == end + position and not (is_aligned and not any(file.read(start - end))):
        return end
    expected = position + (start if is_aligned else end)
    hint = "; if Burn 0.19 wrote it, save it with a newer Burn" if size == end + position else ""
    raise wrong_size("a burnpack file", path, expected, size, hint)


def _align(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _torch_dtype(stored: str | dict[str, Any], where: str) -> torch.dtype:
    if isinstance(stored, str):
        dtype = _DTYPES.get(stored)
    else:
        store = stored.get("Bool")
        dtype = _BOOLS.get(store) if isinstance(store, str) and len(stored) == 1 else None
    if dtype is None:
        is_quantized = isinstance(stored, dict) and "QFloat" in stored
        raise RecordError(
            "a tensor is quantized, and quantized tensors of Burn cannot be read"
            if is_quantized
            else "a tensor has a dtype that torch or Burn lacks",
            where=where,
            found=f"dtype {stored}"[:200],
            hint="save the model in Burn before it is quantized" if is_quantized else None,
        )
    return dtype


def _burn_dtype(dtype: torch.dtype, where: str) -> str | dict[str, str]:
    if dtype == torch.bool:
        return {"Bool": "Native"}
    if dtype not in _NAMES:
        raise RecordError(
            "Burn has no such dtype",
            where=where,
            expected=", ".join(str(known).removeprefix("torch.") for known in (*_NAMES, torch.bool)),
            found=str(dtype).removeprefix("torch."),
            hint="convert the tensor, or save a .safetensors file",
        )
    return _NAMES[dtype]


def _damaged(path: Path, found: str) -> RecordError:
    return RecordError("the metadata of a burnpack file is damaged", where=str(path), found=found, hint=CUT)
