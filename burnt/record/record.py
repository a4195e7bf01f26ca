"""Record: the tensors and metadata of a module; create it from a module, and load it into one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from burnt.config import Config, qualified_name
from burnt.errors import RecordError, nearest, quantity
from burnt.record.files import read_tensors, write_tensors

FORMAT = 1
"""Version of the document in a record's file."""

_MATERIALIZE = "model.to_empty(device=...) gives it memory; then load a record or reset the parameters"

_COMPILED = "_orig_mod"
"""The name that torch.compile adds to the path of the module that it wraps."""


class _Metadata(msgspec.Struct):
    """The contents of a record's document, except the format version."""

    aliases: dict[str, str]
    model: str | None
    config_type: str | None
    config: dict[str, Any] | None
    static: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Record:
    """A module's tensors by path, and the metadata to build the module again.

    Args:
        tensors: parameters and buffers by path; a tied tensor only under its first path.
        aliases: the other paths of tied tensors -> the path in `tensors`.
        model: the module's class, by qualified name.
        config_type: the class of the Config that built it, by qualified name.
        config: that Config's values.
        static: static fields by module path and name.

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
            RecordError: a static field cannot be stored as JSON, or a tensor is on the meta device.
        """
        for path, tensor in self.tensors.items():
            if tensor.is_meta:
                raise RecordError(
                    "a tensor on the meta device has no values to save", where=path, hint=_MATERIALIZE
                )
        for module, fields in self.static.items():
            for name, value in fields.items():
                _check_json(value, f"{module}.{name}" if module else name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically.

        Raises:
            RecordError: as in `check`.
            OSError: the folder cannot be written; an old file is unchanged.
        """
        self.check()
        document = {"format": FORMAT, "torch": torch.__version__}
        for field in dataclasses.fields(self):
            if field.name != "tensors":
                document[field.name] = getattr(self, field.name)
        write_tensors(path, self.tensors, document)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a file that `save` wrote, or any safetensors file (then without metadata).

        Raises:
            RecordError: the file is truncated, damaged, or of a newer format.
            OSError: the file does not exist or cannot be read.
        """
        tensors, document = read_tensors(path)
        if document is None:
            return cls(tensors)
        version = document.get("format")
        if type(version) is not int or version > FORMAT:
            raise RecordError(
                "a record of a newer format cannot be read",
                where=os.fspath(path),
                expected=f"format {FORMAT}",
                found=f"format {version}",
                hint="a newer burnt wrote this file: upgrade burnt",
            )
        try:
            metadata = msgspec.structs.asdict(msgspec.convert(document, _Metadata))
        except msgspec.ValidationError as error:
            raise RecordError(
                "the metadata of a record is damaged", where=os.fspath(path), found=str(error)
            ) from None
        missing_sources = sorted(set(metadata["aliases"].values()) - tensors.keys())
        if missing_sources:
            raise RecordError(
                "tied tensors of a record are missing",
                where=os.fspath(path),
                expected=missing_sources[0],
                found="nothing",
            )
        return cls(tensors, **metadata)


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading a record.

    Args:
        applied: paths that were copied.
        missing: paths of the module that the record lacks.
        unexpected: paths of the record that the module lacks.
        cast: path -> (dtype in the record, dtype in the module).
        static: path of a static field -> (value in the record, value in the module), where they differ.
    """

    applied: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    cast: Mapping[str, tuple[torch.dtype, torch.dtype]] = dataclasses.field(default_factory=dict)
    static: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{quantity(len(self.applied), 'tensor')} loaded"]
        lines += [f"missing in the record: {path}" for path in self.missing]
        lines += [f"not in the module: {path}" for path in self.unexpected]
        lines += [f"{path}: cast from {old} to {new}" for path, (old, new) in self.cast.items()]
        lines += [f"{path}: {old!r} in the record, {new!r} here" for path, (old, new) in self.static.items()]
        return "\n".join(lines)


def record_of(module: torch.nn.Module, *, config: Config | None = None) -> Record:
    """Create the record of any torch module; it shares memory with the module.

    Raises:
        RecordError: the module has extra state that is no tensor.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_paths: dict[tuple[object, ...], str] = {}
    for path, value in module.state_dict().items():
        path = _without_compile_prefix(path)
        if not isinstance(value, Tensor):
            raise RecordError(
                "the module has state that is no tensor",
                where=path,
                expected="parameters and buffers",
                found=type(value).__name__,
                hint="store it in a buffer or a static field; records do not use pickle",
            )
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        if value.data_ptr() and identity in first_paths:
            aliases[path] = first_paths[identity]
        else:
            first_paths[identity] = path
            tensors[path] = value.detach()
    inner = getattr(module, _COMPILED, module)
    return Record(
        tensors,
        aliases,
        qualified_name(type(inner)),
        None if config is None else qualified_name(type(config)),
        None if config is None else config.to_dict(),
        _static_fields(inner),
    )


def load_into(module: torch.nn.Module, record: Record, *, partial: bool = False) -> LoadReport:
    """Copy a record's tensors into any torch module, converted to the module's dtypes and devices.

    Args:
        module: the module to load into.
        record: the record to load.
        partial: report tensors that are missing on either side instead of raising an error.

    Raises:
        RecordError: tensors are missing, unexpected or of another shape, or the module's are on the meta
            device; the module is unchanged.
    """
    own = {_without_compile_prefix(path): value for path, value in module.state_dict().items()}
    new_tensors = dict(record.tensors)
    new_tensors.update({alias: record.tensors[path] for alias, path in record.aliases.items()})
    missing = [path for path in own if path not in new_tensors]
    unexpected = [path for path in new_tensors if path not in own]
    shared = [path for path in own if path in new_tensors]
    empty = next((path for path in shared if own[path].is_meta and not new_tensors[path].is_meta), None)
    if empty is not None:
        raise RecordError(
            f"{type(module).__name__} has no memory to load a record into",
            where=empty,
            found="a tensor on the meta device",
            hint=_MATERIALIZE,
        )
    problems = [
        _mismatch_line(path, own[path], new_tensors[path])
        for path in shared
        if own[path].shape != new_tensors[path].shape
    ]
    if not partial:
        problems += [_missing_line(path, own[path], unexpected) for path in missing]
        problems += [
            f"{path}: in the record, not in the module"
            for path in unexpected
            if not _similar_path(path, missing)
        ]
    if problems:
        shown = problems[:12] + ([f"and {len(problems) - 12} more"] if len(problems) > 12 else [])
        raise RecordError(
            f"the record does not fit {type(module).__name__}: {len(problems)} of "
            f"{len(own.keys() | new_tensors.keys())} tensors",
            expected=f"the tensors of {type(module).__name__}",
            found=f"a record of {record.model}" if record.model else "a record of an unnamed model",
            origin=shown,
            hint="nothing was changed"
            + ("; partial=True loads what fits by name" if missing or unexpected else ""),
        )
    with torch.no_grad():
        for path in shared:
            own[path].copy_(new_tensors[path])
    static = _static_fields(getattr(module, _COMPILED, module))
    return LoadReport(
        tuple(shared),
        tuple(missing),
        tuple(unexpected),
        {p: (new_tensors[p].dtype, own[p].dtype) for p in shared if new_tensors[p].dtype != own[p].dtype},
        {
            f"{path}.{name}" if path else name: (value, static[path][name])
            for path, fields in record.static.items()
            for name, value in fields.items()
            if name in static.get(path, {}) and not _equal_as_json(value, static[path][name])
        },
    )


def _without_compile_prefix(path: str) -> str:
    return ".".join(name for name in path.split(".") if name != _COMPILED)


def _static_fields(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    # Looked up by name, since burnt.module imports this package.
    fields: dict[str, dict[str, Any]] = {}
    for path, child in module.named_modules():
        static = getattr(child, "static_fields", None)
        values = static() if callable(static) else {}
        if values:
            fields[_without_compile_prefix(path)] = {
                name: value.to_dict() if isinstance(value, Config) else value
                for name, value in values.items()
            }
    return fields


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


def _equal_as_json(saved: Any, value: Any) -> bool:
    # Compared as JSON, which turns tuples into lists and keys into strings.
    try:
        return bool(json.loads(json.dumps(value)) == json.loads(json.dumps(saved)))
    except TypeError:
        return False


def _mismatch_line(path: str, own: Tensor, new_tensors: Tensor) -> str:
    line = f"{path}: {tuple(own.shape)} in the module, {tuple(new_tensors.shape)} in the record"
    if own.dim() == 2 and own.shape == new_tensors.T.shape:
        line += " (transposed?)"
    return line


def _missing_line(path: str, own: Tensor, unexpected: list[str]) -> str:
    guess = _similar_path(path, unexpected)
    line = f"{path}: {tuple(own.shape)} in the module, nothing in the record"
    return line + (f" (is {guess!r} it?)" if guess else "")


def _similar_path(path: str, candidates: list[str]) -> str | None:
    suffix = [c for c in candidates if c.endswith(f".{path}") or path.endswith(f".{c}")]
    return suffix[0] if suffix else nearest(path, candidates)
