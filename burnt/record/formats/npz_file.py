"""Arrays of NumPy's ``.npz`` files, read one at a time; object arrays, which are pickles, are refused."""

from __future__ import annotations

import math
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from burnt.errors import RecordError
from burnt.record.formats.safetensors_file import check_count
from burnt.record.stored import StoredTensor


@dataclass(frozen=True)
class _NpzTensor(StoredTensor):
    archive: zipfile.ZipFile = field(repr=False)
    member: zipfile.ZipInfo = field(repr=False)

    def read_into(self, out: Tensor) -> None:
        try:
            with self.archive.open(self.member) as file:
                array = npy.read_array(file, allow_pickle=False)
        except Exception as error:  # NumPy, zipfile and zlib raise many kinds
            raise _damaged(self.archive, self.member, error) from None
        out.copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(self.shape))

    def verify(self, where: str) -> None:
        """Read the array once, for the checksum of the zip."""
        try:
            with self.archive.open(self.member) as file:
                while file.read(1 << 20):
                    pass
        except Exception as error:
            raise _damaged(self.archive, self.member, error) from None


def open_npz(path: str, stack: ExitStack) -> dict[str, StoredTensor]:
    """Open a ``.npz`` file; only the headers of its arrays are read."""
    tensors: dict[str, StoredTensor] = {}
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except Exception as error:
        raise RecordError(
            "a .npz file is damaged", where=path, found=str(error), hint="take another copy"
        ) from None
    check_count(len(archive.infolist()), path)
    for member in archive.infolist():
        try:
            with archive.open(member) as file:
                version = npy.read_magic(file)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, _, dtype = read(file)
                start = file.tell()
        except Exception as error:
            raise _damaged(archive, member, error) from None
        # Without this check a header of a few bytes could ask for any amount of memory.
        if not dtype.hasobject and start + math.prod(shape) * dtype.itemsize != member.file_size:
            raise _damaged(archive, member, f"a header of shape {shape} and {member.file_size} bytes")
        tensors[member.filename.removesuffix(".npy")] = _NpzTensor(
            tuple(map(int, shape)), _torch_dtype(dtype, archive, member), archive, member
        )
    return tensors


def _torch_dtype(dtype: np.dtype[Any], archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> torch.dtype:
    try:
        if dtype.isnative:
            return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        pass
    raise RecordError(
        "an array holds Python objects, which would have to be unpickled"
        if dtype.hasobject
        else "an array has a dtype that torch lacks",
        where=f"{archive.filename}: {member.filename}",
        found=f"dtype {dtype}",
        hint="save it again as an array of numbers",
    )


def _damaged(archive: zipfile.ZipFile, member: zipfile.ZipInfo, error: object) -> RecordError:
    return RecordError(
        "an array of a .npz file is damaged",
        where=f"{archive.filename}: {member.filename}",
        found=str(error) or type(error).__name__,
    )
