"""The formats that weights are converted to, by the suffix of the file; a folder has shards of safetensors.

A new format is a function and a line in `WRITERS`. The record has the other names of tensors in its
``aliases`` and no tensors of its own; `metadata` is that of other programs.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from burnt._files import replacing
from burnt.record.formats.burnpack_file import SUFFIX, write_burnpack
from burnt.record.formats.safetensors_file import (
    check_dense,
    check_storable,
    name_refused,
    with_document,
    write_stored,
)
from burnt.record.record import Record
from burnt.record.stored import MemoryTensor, StoredTensor

Tensors: TypeAlias = Mapping[str, StoredTensor]
"""What is written: tensors by name, each once, read when they are written."""


def write_safetensors(path: Path, tensors: Tensors, record: Record, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, a tensor at a time; other names of a tensor are in its metadata."""
    # As safetensors' own `save_model` writes them, and `load_model` reads them.
    write_stored(path, tensors, with_document({**metadata, **record.aliases}, record.document()))


def write_npz(path: Path, tensors: Tensors, record: Record, metadata: Mapping[str, str]) -> None:
    """Write a .npz file, a tensor at a time. It has no metadata, so a tensor of two names is in it twice."""
    for name, stored in tensors.items():
        check_storable(name, stored, _NUMPY_DTYPES)
    names = {name: name for name in tensors} | dict(record.aliases)
    if ended := next((name for name in names if "\0" in name), None):  # where zipfile cuts a name off
        raise name_refused(ended, ".npz")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, source in names.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # without the time, so that equal weights are equal files
            with archive.open(member, "w", force_zip64=True) as file:
                npy.write_array(file, tensors[source].read().numpy(), allow_pickle=False)


def write_torch(path: Path, tensors: Tensors, record: Record, metadata: Mapping[str, str]) -> None:
    """Write a state dict with `torch.save`, for which all tensors are in memory; tied ones share theirs."""
    state: dict[str, Tensor] = {}
    for name, stored in tensors.items():
        if isinstance(stored, MemoryTensor):
            check_dense(name, stored.tensor)
        tensor = stored.read()
        # torch.save writes the whole storage of a view.
        is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        state[name] = tensor if is_whole else tensor.clone()
    state |= {alias: state[name] for alias, name in record.aliases.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        torch.save(state, file)


def write_bpk(path: Path, tensors: Tensors, record: Record, metadata: Mapping[str, str]) -> None:
    """Write a burnpack file of Burn's, a tensor at a time; metadata of other programs is left out."""
    write_burnpack(path, tensors, record.document())


_NUMPY_DTYPES = {
    torch.from_numpy(np.empty(0, f"{kind}{size}")).dtype
    for kind, sizes in {"u": [1, 2, 4, 8], "i": [1, 2, 4, 8], "f": [2, 4, 8], "c": [8, 16]}.items()
    for size in sizes
} | {torch.bool}

WRITERS: dict[str, Callable[[Path, Tensors, Record, Mapping[str, str]], Any]] = {
    ".safetensors": write_safetensors,
    ".npz": write_npz,
    ".pt": write_torch,
    ".pth": write_torch,
    ".bin": write_torch,
    SUFFIX: write_bpk,
}
