"""Record: the tensors and metadata of a module, and how it is created from one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from burnt.config import Config, qualified_name
from burnt.errors import RecordError, quantity
from burnt.record.arranging.layout import without_wrappers
from burnt.record.arranging.quantized import quantized_layers, scale_paths, with_weight_dtype
from burnt.record.formats.burnpack_file import SUFFIX, is_burnpack, read_burnpack, write_burnpack
from burnt.record.formats.folder import SHARD_BYTES, write_folder
from burnt.record.formats.safetensors_file import check_dense, read_tensors, with_document, write_stored
from burnt.record.stored import MemoryTensor, StoredTensor, cast_tensors, memory_of

FORMAT = 1
"""Version of the document in a record's file."""

_MATERIALIZE = "model.to_empty(device=...) gives it memory; then load a record or reset the parameters"


class _Metadata(msgspec.Struct):
    """The contents of a record's document, except the format version."""

    aliases: dict[str, str]
    model: str | None
    config_type: str | None
    config: dict[str, Any] | None
    static: dict[str, dict[str, Any]]
    quantized: dict[str, dict[str, Any]] = {}
    constants: dict[str, dict[str, Any]] = {}


@dataclasses.dataclass(frozen=True)
class Record:
    """A module's tensors by path, and the metadata to build the module again.

    Args:
        tensors: parameters and buffers by path; a tied tensor only under its first path.
        aliases: the other paths of tied tensors -> the path in `tensors`.
        model: the module's class, by qualified name.
        config_type: the class of the Config that built it, by qualified name.
        config: the values of that Config.
        static: static fields by module path and name.
        quantized: the schemes of quantized layers by path, and what else is needed to build them.
        constants: numbers and texts of torch's layers that are not static fields, such as ``eps``.

    >>> import burnt, tempfile, pathlib
    >>> record = burnt.nn.Linear(2, 3).into_record()
    >>> print(record)
    Record(2 tensors, 9 values, model='burnt.nn.linear.Linear', config_type=None)
      weight  (3, 2) torch.float32
      bias    (3,) torch.float32
    """

    tensors: Mapping[str, Tensor]
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    model: str | None = None
    config_type: str | None = None
    config: dict[str, Any] | None = None
    static: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    quantized: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    constants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        tensors = quantity(len(self.tensors), "tensor")
        values = quantity(sum(t.numel() for t in self.tensors.values()), "value")
        return f"Record({tensors}, {values}, model={self.model!r}, config_type={self.config_type!r})"

    def __str__(self) -> str:
        width = max(map(len, self.tensors), default=0)
        lines = [f"  {path:<{width}}  {tuple(t.shape)} {t.dtype}" for path, t in self.tensors.items()]
        lines += [f"  {alias} is {path}" for alias, path in self.aliases.items()]
        return "\n".join([repr(self), *lines])

    def check(self) -> None:
        """Check whether the record can be saved, without writing anything.

        Raises:
            RecordError: a static field cannot be stored as JSON, or a tensor is on the meta device, sparse or
                a subclass with a layout of its own.
        """
        for path, tensor in self.tensors.items():
            if tensor.is_meta:
                raise RecordError(
                    "a tensor on the meta device has no values to save", where=path, hint=_MATERIALIZE
                )
            check_dense(path, tensor)
        for module, fields in self.static.items():
            for name, value in fields.items():
                _check_json(value, f"{module}.{name}" if module else name)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        keep: str | Sequence[str] | None = None,
    ) -> None:
        """Write one safetensors file, or with the name ``*.bpk`` a burnpack file of Burn's, atomically.

        Args:
            path: the file; an old one is replaced when the new one is complete.
            dtype: what floating-point tensors are converted to. In float16 and bfloat16, modules with
                running statistics (BatchNorm) stay as they are, and so do floats of 8 bits and the scales of
                quantized layers.
            keep: patterns on paths of further tensors that stay as they are (``"*norm*|lm_head"``).

        Raises:
            RecordError: as in `check`, or a value is too large for `dtype`; or Burn has no such dtype.
            OSError: the folder cannot be written or is full; an old file is unchanged.
        """
        tensors = self._stored(dtype, keep)
        document = self._document(dtype, keep)
        if Path(path).suffix == SUFFIX:
            write_burnpack(path, tensors, document)
        else:
            write_stored(path, tensors, with_document({}, document))

    def save_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        shard_bytes: int = SHARD_BYTES,
        dtype: torch.dtype | None = None,
        keep: str | Sequence[str] | None = None,
    ) -> None:
        """Write a folder that transformers and other programs of Hugging Face load.

        It holds ``model.safetensors``, or if that would be too large ``model-00001-of-00003.safetensors``
        and so on, and ``model.safetensors.index.json``. Tied tensors are stored once, under their first path.

        Args:
            folder: is created if its parent exists. Weights in this layout are replaced, and stay complete
                until the new ones are; other files in it stay.
            shard_bytes: the size of a file; only a single larger tensor makes a larger one.
            dtype: what floating-point tensors are converted to, as in `save`.
            keep: patterns on paths of tensors that stay as they are, as in `save`.

        Raises:
            RecordError: as in `save`, or the folder has weights of another layout.
            OSError: the folder cannot be written or is full; then it is as before.
        """
        tensors = self._stored(dtype, keep)
        write_folder(Path(folder), tensors, self._document(dtype, keep), shard_bytes=shard_bytes)

    def _stored(self, dtype: torch.dtype | None, keep: str | Sequence[str] | None) -> dict[str, StoredTensor]:
        self.check()
        tensors = {path: MemoryTensor.of(tensor) for path, tensor in self.tensors.items()}
        return cast_tensors(tensors, dtype, keep, unchanged=scale_paths(self.quantized))

    def _document(self, dtype: torch.dtype | None, keep: str | Sequence[str] | None) -> dict[str, Any]:
        """Return the metadata of a file whose tensors were converted to `dtype`."""
        quantized = with_weight_dtype(self.quantized, dtype, keep)
        return dataclasses.replace(self, quantized=quantized).document()

    def document(self) -> dict[str, Any]:
        """Return the metadata as JSON values, as they are stored with the tensors."""
        document: dict[str, Any] = {"format": FORMAT, "torch": torch.__version__}
        for field in dataclasses.fields(self):
            if field.name != "tensors":
                document[field.name] = getattr(self, field.name)
        return document

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a file that `save` wrote, or any safetensors or burnpack file (then without metadata).

        Raises:
            RecordError: the file is truncated, damaged, or of a newer format.
            OSError: the file does not exist or cannot be read.
        """
        read = read_burnpack if Path(path).is_file() and is_burnpack(path) else read_tensors
        tensors, document = read(path)
        return dataclasses.replace(parse_metadata(document, tensors, os.fspath(path)), tensors=tensors)


def parse_metadata(
    document: Mapping[str, Any] | None,
    names: Collection[str],
    where: str,
    foreign: Mapping[str, str] | None = None,
) -> Record:
    """Return a record without tensors that holds the metadata of a file, which messages call `where`.

    The document is what `Record.save` stored with the tensors; None if another program wrote the file.
    `foreign` is that program's metadata: safetensors' own `save_model` names tied tensors in it.
    """
    if document is None:
        pairs = (foreign or {}).items()
        return Record({}, {name: source for name, source in pairs if source in names and name not in names})
    check_format(document, where)
    try:
        metadata = msgspec.structs.asdict(msgspec.convert(document, _Metadata))
    except msgspec.ValidationError as error:
        raise RecordError("the metadata of a record is damaged", where=where, found=str(error)) from None
    if both := sorted(set(metadata["aliases"]) & set(names)):
        raise RecordError(
            "the metadata of a record is damaged",
            where=where,
            expected="other names of tensors that are not names of tensors themselves",
            found=repr(both[0][:200]),
        )
    missing_sources = sorted(set(metadata["aliases"].values()) - set(names))
    if missing_sources:
        raise RecordError(
            "tied tensors of a record are missing", where=where, expected=missing_sources[0], found="nothing"
        )
    return Record({}, **metadata)


def check_format(document: Mapping[str, Any], where: str) -> None:
    """Refuse a document that a newer burnt has stored.

    Raises:
        RecordError: its format is newer than `FORMAT`.
    """
    version = document.get("format")
    if type(version) is not int or version > FORMAT:
        raise RecordError(
            "a record of a newer format cannot be read",
            where=where,
            expected=f"format {FORMAT}",
            found=f"format {version}",
            hint="a newer burnt wrote this file: upgrade burnt",
        )


def record_of(
    module: torch.nn.Module, *, config: Config | None = None, whole: Callable[[Any], Tensor] | None = None
) -> Record:
    """Create the record of any torch module; it shares memory with the module.

    The paths have no prefixes of torch.compile, DistributedDataParallel or FSDP. With FSDP, all ranks must
    call it together, and the tensors are whole copies, which `whole` makes of ``DTensor`` s.

    Raises:
        RecordError: the module has extra state that is not a tensor.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_paths: dict[object, str] = {}
    inner = unwrapped(module)
    for path, value in inner.state_dict().items():
        path = without_wrappers(path)
        if not isinstance(value, Tensor):
            raise RecordError(
                "the module has state that is not a tensor",
                where=path,
                expected="parameters and buffers",
                found=type(value).__name__,
                hint="store it in a buffer or a static field; records do not use pickle",
            )
        sharded: Any = value if isinstance(value, _sharded()) else None
        local = value if sharded is None else sharded.to_local()
        memory = memory_of(local)
        identity = (memory, value.shape) if memory is not None else path
        if first_paths.setdefault(identity, path) != path:
            aliases[path] = first_paths[identity]
        else:
            tensors[path] = (value if sharded is None else (whole or _whole)(sharded)).detach()
    return Record(
        tensors,
        aliases,
        qualified_name(_class_of(inner)),
        None if config is None else qualified_name(type(config)),
        None if config is None else config.to_dict(),
        static_fields_of(inner),
        {without_wrappers(path): entry for path, entry in quantized_layers(inner).items()},
        constants_of(inner),
    )


def _whole(sharded: Any) -> Tensor:
    tensor: Tensor = sharded.full_tensor()
    return tensor


def _sharded() -> tuple[type[Any], ...]:
    """Return the class of tensors that are spread over processes, where a program has imported it."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return () if tensor is None else (tensor.DTensor,)


def _class_of(module: torch.nn.Module) -> type[torch.nn.Module]:
    """Return the class of a module, which FSDP replaces by a subclass, or wraps."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return type(module)
    if isinstance(module, fsdp.FullyShardedDataParallel):
        return _class_of(module.module)
    if isinstance(module, fsdp.FSDPModule):
        return next(base for base in type(module).__bases__ if base is not fsdp.FSDPModule)
    return type(module)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside torch.compile's, DataParallel's and DistributedDataParallel's wrappers."""
    while True:
        if isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), torch.nn.Module):
            module = inner
        else:
            return module


def static_fields_of(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return the static fields of burnt's modules in a model, by module path and name."""
    # Looked up by name, since burnt.module imports this package.
    fields: dict[str, dict[str, Any]] = {}
    for path, child in module.named_modules():
        static = getattr(child, "static_fields", None)
        values = static() if callable(static) else {}
        if values:
            fields[without_wrappers(path)] = {
                name: value.to_dict() if isinstance(value, Config) else value
                for name, value in values.items()
            }
    return fields


def constants_of(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return what torch's layers list as their ``__constants__``, by path and name, but static fields.

    Of a layer without tensors and parts, such as an activation, it has the class too: no tensor tells it.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, child in module.named_modules():
        declared = getattr(child, "_declared", ())
        names = [name for name in getattr(child, "__constants__", ()) if name not in declared]
        values = {name: vars(child)[name] for name in names if _is_plain(vars(child).get(name, ...))}
        if path and next(child.children(), None) is None and not child.state_dict():
            values["class"] = _class_of(child).__name__
        if values:
            found[without_wrappers(path)] = values
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _check_json(value: Any, where: str) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise RecordError(
            "a static field cannot be saved",
            where=where,
            expected="what JSON can hold: numbers, strings, booleans, None, lists and dicts of these",
            found=f"{type(value).__name__} ({error})",
            hint="keep it out of the annotated fields, or make it a tensor",
        ) from None
