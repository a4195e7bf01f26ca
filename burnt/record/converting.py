"""`convert_weights`: named tensors from any source to a file or folder of another format.

The suffix of the file says which; a folder has shards of safetensors. A new format is a function and a line
in `WRITERS`. The record has the other names of tensors in its ``aliases`` and no tensors of its own;
`metadata` is other programs' metadata.
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from burnt._files import replacing
from burnt.errors import RecordError, nearest, quantity
from burnt.record.arranging.quantized import renamed_layers, scale_paths, with_weight_dtype
from burnt.record.formats.burnpack_file import SUFFIX, write_burnpack
from burnt.record.formats.folder import SHARD_BYTES, find_weights, write_folder
from burnt.record.formats.safetensors_file import (
    check_dense,
    check_storable,
    name_refused,
    with_document,
    write_stored,
)
from burnt.record.loading import RenameStep, Selection, rename_tensors, strip_prefixes
from burnt.record.record import Record
from burnt.record.report import as_table, cast_rows, first_of
from burnt.record.sources import Source, open_source
from burnt.record.stored import DTYPES, MemoryTensor, StoredTensor, can_overflow, cast_tensors, memory_of

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


_SIZES = {"total_size", "total_parameters"}
"""What the index of a folder says of its files."""


@dataclass(frozen=True)
class ConvertReport:
    """The result of converting weights.

    Args:
        source: the file or folder that was read, or the kind of object.
        files: the files that were written.
        tensors: name -> (shape, dtype) of what was written.
        cast: name -> (dtype in the source, dtype in the file).
        kept: names of floating-point tensors that were not converted to the `dtype` that was asked for.
        tied: other names of tensors -> the name under which each is stored.
        skipped: names that `only=` and `skip=` left out.
        notes: what was found out about the source: a nested key, a prefix.
        nbytes: the size of the files.
    """

    source: str
    files: tuple[Path, ...]
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    cast: Mapping[str, tuple[torch.dtype, torch.dtype]]
    kept: tuple[str, ...]
    tied: Mapping[str, str]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
    nbytes: int

    def __str__(self) -> str:
        count = quantity(len(self.tensors), "tensor")
        to = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files in {self.files[0].parent}"
        rows = [("note", note) for note in self.notes] + cast_rows(self.cast)
        if self.kept:
            dtypes = ", ".join(dict.fromkeys(str(self.tensors[name][1]) for name in self.kept))
            rows.append(("kept", f"{first_of(self.kept)}: {dtypes}"))
        if self.tied:
            rows.append(("tied", first_of([f"{name} is {source}" for name, source in self.tied.items()])))
        if self.skipped:
            rows.append(("skipped", first_of(self.skipped)))
        return as_table(f"{count} from {self.source} to {to}", rows)


def convert_weights(
    source: str | os.PathLike[str] | Mapping[str, Any] | Record,
    target: str | os.PathLike[str],
    *,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    rename: Sequence[RenameStep] = (),
    dtype: torch.dtype | None = None,
    keep: str | Sequence[str] | None = None,
    shard_bytes: int | None = None,
    overwrite: bool = False,
    on_read: Callable[[int, int], object] | None = None,
) -> ConvertReport:
    """Convert weights from anything that `load_weights` takes to a file or folder of another format.

    Tensors are read and written one at a time, but for ``.pt`` files, which take all of them in memory.
    Prefixes of DDP, FSDP and torch.compile are taken away, and tensors of two names are stored once, except
    in a ``.npz`` file. The target is replaced when everything is written, or stays as it was.

    Args:
        source: a file, a folder, a state dict or a Record, as in `load_weights`.
        target: a ``.safetensors``, ``.npz``, ``.pt``, ``.pth`` or ``.bin`` file, or a folder, which gets
            Hugging Face's layout: a path that is one, or ends in ``/``.
        only: patterns on names, after `rename`; nothing else is written.
        skip: patterns on names that are left out.
        rename: changes of the names, applied in order, as in `load_weights`.
        dtype: what floating-point tensors are converted to, as in `Record.save`.
        keep: patterns on names of tensors that are not converted, as in `Record.save`.
        shard_bytes: the most bytes in a file of a folder, 5 GB by default; the target is then a folder.
        overwrite: whether to replace what is there.
        on_read: called with the number of bytes that were read, and of those that will be, after each tensor.
            What float16 may not hold is read twice.

    Raises:
        RecordError: the source is damaged or unsafe; the target exists, or is of no known format, or its
            format cannot hold a tensor; a value is too large for `dtype`; a pattern matches nothing.
        OSError: the source cannot be read, or the target cannot be written.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = convert_weights(torch.nn.Linear(2, 3).state_dict(), f"{folder}/m.npz", skip="bias")
    >>> list(report.tensors), report.skipped
    (['weight'], ('bias',))
    """
    path = Path(target)
    is_folder = _is_folder(os.fspath(target), shard_bytes)
    _check_target(path, is_folder, overwrite)
    with ExitStack() as stack:
        opened = open_source(source, stack)
        tensors, notes = strip_prefixes(opened, ())
        tensors, origins, unused = rename_tensors(tensors, rename)
        names = list(tensors)
        selection = Selection(only, skip)
        selection.check(_modules(names), names)
        tensors = {name: stored for name, stored in tensors.items() if selection.takes(name)}
        for name, stored in tensors.items():
            if isinstance(stored, MemoryTensor):
                check_dense(name, stored.tensor)
            stored.verify(name if opened.path is None else f"{opened.path}: {name}")
        tied = _tied(tensors)
        read = {name: stored for name, stored in tensors.items() if name not in tied}
        if on_read is not None:
            done, total = 0, _bytes_to_read(read, dtype)

            def add(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                on_read(done, total)

            read = {name: _Watched(s.shape, s.dtype, s, add) for name, s in read.items()}
        layers = renamed_layers(opened.record.quantized, {new: (old,) for new, old in origins.items()})
        layers = {path: entry for path, entry in layers.items() if selection.takes(f"{path}.values")}
        written = cast_tensors(read, dtype, keep, unchanged=scale_paths(layers))
        record = _record(opened, tied, bool(rename), with_weight_dtype(layers, dtype, keep))
        metadata = _metadata(opened)
        if is_folder:
            size = SHARD_BYTES if shard_bytes is None else shard_bytes
            files = write_folder(path, written, record.document(), metadata=metadata, shard_bytes=size)
        else:
            WRITERS[path.suffix.lower()](path, written, record, metadata)
            files = [path]
    cast = {
        name: (read[name].dtype, to.dtype) for name, to in written.items() if to.dtype != read[name].dtype
    }
    return ConvertReport(
        opened.path or f"a {opened.kind}",
        tuple(files),
        {name: (stored.shape, stored.dtype) for name, stored in written.items()},
        cast,
        tuple(n for n, t in written.items() if dtype and t.dtype.is_floating_point and t.dtype != dtype),
        tied,
        tuple(name for name in names if name not in tensors),
        (*notes, *unused),
        sum(file.stat().st_size for file in files),
    )


@dataclass(frozen=True)
class _Watched(StoredTensor):
    """A tensor that tells how many bytes were read of it."""

    source: StoredTensor = field(repr=False)
    on_read: Callable[[int], object]

    def read(self) -> Tensor:
        tensor = self.source.read()
        self.on_read(self.nbytes)
        return tensor

    def read_into(self, out: Tensor) -> None:
        self.source.read_into(out)
        self.on_read(self.nbytes)


def _bytes_to_read(tensors: Mapping[str, StoredTensor], dtype: torch.dtype | None) -> int:
    return sum(
        stored.nbytes * (2 if dtype in DTYPES and can_overflow(stored.dtype, dtype) else 1)
        for stored in tensors.values()
    )


def _is_folder(target: str, shard_bytes: int | None) -> bool:
    suffix = Path(target).suffix.lower()
    if suffix in WRITERS and not Path(target).is_dir():
        if shard_bytes is not None:
            raise RecordError(
                "a single file has no shards",
                where=target,
                expected="a folder to write the shards to",
                hint=f"name a folder: {target[: -len(suffix)]}/",
            )
        return False
    is_folder = target.endswith(("/", os.sep)) or Path(target).is_dir() or shard_bytes is not None
    if not is_folder:
        guess = nearest(suffix, WRITERS)
        raise RecordError(
            "the name does not say in which format to write",
            where=target,
            expected=f"a name that ends in {', '.join(WRITERS)}, or in / for a folder of safetensors",
            found=f"a name that ends in {suffix}" if suffix else "a name without an ending",
            hint=f"did you mean {target[: -len(suffix)]}{guess}?" if guess else None,
        )
    return is_folder


def _check_target(path: Path, is_folder: bool, overwrite: bool) -> None:
    if overwrite or not path.exists():
        return
    found = find_weights(path) if is_folder and path.is_dir() else [path.name]
    if found:
        raise RecordError(
            "the folder has weights already" if is_folder else "the file exists already",
            where=os.fspath(path),
            found=", ".join(found[:5]) if is_folder else None,
            hint="overwrite=True (--force) replaces what is there",
        )


def _modules(names: Sequence[str]) -> list[str]:
    """Return the paths of the modules that tensors of these names are in."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(p[:i]) for p in parts for i in range(1, len(p))))


def _tied(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return the further names of tensors that have several -> the first one."""
    first: dict[object, str] = {}
    tied = {}
    for name, stored in tensors.items():
        key: object = id(stored)
        if isinstance(stored, MemoryTensor):
            key = memory_of(stored.tensor) or key
        if first.setdefault(key, name) != name:
            tied[name] = first[key]
    return tied


def _record(
    source: Source, tied: Mapping[str, str], is_renamed: bool, quantized: dict[str, dict[str, Any]]
) -> Record:
    """Return the metadata to write; those of a model with other paths would not fit the tensors."""
    record = Record({}) if is_renamed else source.record
    return dataclasses.replace(record, tensors={}, aliases=tied, quantized=quantized)


def _metadata(source: Source) -> dict[str, str]:
    aliases = source.record.aliases
    return {
        key: value
        for key, value in source.metadata.items()
        if isinstance(value, str) and key not in _SIZES and key not in aliases
    }
