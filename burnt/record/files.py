"""Tensor files: safetensors with a JSON document in the metadata; written atomically, validated when read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from burnt._files import replacing
from burnt._json import parse_json
from burnt.errors import RecordError

_KEY = "burnt"


class _Entry(msgspec.Struct):
    """The part of a tensor's header entry that is read."""

    data_offsets: tuple[int, int]


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]
) -> None:
    """Write named tensors and a JSON document to one safetensors file: temporary file, fsync, rename.

    Args:
        path: the file; an old one is replaced only after the new one is complete.
        tensors: tensors by name, on any device; shared memory is written once per name.
        document: JSON values, stored in the file's metadata under ``burnt``.

    Raises:
        OSError: the folder does not exist, cannot be written or is full.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} of {target.name} does not exist")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():
        # The format does not allow storage that two names share.
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            plain[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    with replacing(target) as temporary:
        try:
            safetensors.torch.save_file(plain, temporary, {_KEY: json.dumps(document)})
        except safetensors.SafetensorError as error:
            # safetensors raises its own error for a full disk.
            raise OSError(f"{target} cannot be written: {error}") from error


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Read the tensors of a safetensors file, and the document that `write_tensors` has stored.

    Returns:
        tensors by name, on the CPU; the document, or None if another program wrote the file.

    Raises:
        RecordError: the file is truncated, damaged, or no safetensors file.
        OSError: the file does not exist or cannot be read.
    """
    document = read_document(path)
    try:
        tensors = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise RecordError("a tensor file is damaged", where=os.fspath(path), found=str(error)) from None
    return tensors, document


def read_document(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Read only the document of a file that `write_tensors` wrote; None if another program wrote the file.

    Raises:
        RecordError: the file is truncated, damaged, or no safetensors file.
        OSError: the file does not exist or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        inside = path / "model.safetensors"
        raise RecordError(
            "this is a folder, not a tensor file",
            where=str(path),
            hint=f"a checkpoint's model is {inside}" if inside.exists() else "name a .safetensors file in it",
        )
    size = path.stat().st_size
    hint = "the file was cut off or overwritten: take another copy"
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= size - 8:
            raise RecordError(
                "this is no tensor file, or only its beginning",
                where=str(path),
                expected="a safetensors file",
                found=f"{size} bytes" + (f" starting with {start[:4]!r}" if start else ""),
                hint=hint,
            )
        try:
            header = parse_json(file.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordError(
                "the header of a tensor file is damaged", where=str(path), found=str(error), hint=hint
            ) from None
    try:
        tensors = msgspec.convert(header, dict[str, Any])
        metadata = msgspec.convert(tensors.pop("__metadata__", {}), dict[str, str])
        entries = msgspec.convert(tensors, dict[str, _Entry])
    except msgspec.ValidationError as error:
        raise RecordError(
            "the header of a tensor file is damaged", where=str(path), found=str(error), hint=hint
        ) from None
    expected = 8 + length + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != expected:
        raise RecordError(
            "a tensor file is truncated" if size < expected else "a tensor file has bytes too many",
            where=str(path),
            expected=f"{expected} bytes",
            found=f"{size} bytes",
            hint=hint,
        )
    text = metadata.get(_KEY)
    if text is None:
        return None
    try:
        document = parse_json(text)
    except json.JSONDecodeError as error:
        raise RecordError(
            "the metadata of a tensor file is damaged", where=str(path), found=str(error), hint=hint
        ) from None
    if not isinstance(document, dict):
        raise RecordError("the metadata of a tensor file is damaged", where=str(path), hint=hint)
    return document
