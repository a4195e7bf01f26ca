"""Config: typed, frozen values that build a model or describe an experiment, stored as JSON.

Validation and JSON come from msgspec: 27 ms to import where pydantic takes 45 ms, tagged unions, frozen
keyword-only classes, no dependencies. This module adds: validation in the constructor, all problems of a file
reported at once with exact path and nearest known name, a format version in files, and models that remember
the Config that built them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import json
import math
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, dataclass_transform

import msgspec

from burnt._files import parse_json, replacing
from burnt._hints import VALUE_SYNONYMS, argument_error
from burnt.errors import BurntError, ConfigError, DefinitionError, did_you_mean, nearest

FORMAT = 1
"""Version of the JSON layout that `Config.save` writes."""

_MAX_LISTED = 8  # Configs of a union that a message lists

_RUN_KEYS = {"config", "model", "optimizer", "duration"}
"""Keys of the ``config.json`` in a run folder, which holds the run's Config among other settings."""

_OPEN: set[Any] = set()
"""The Config classes that were declared with ``open=True``."""

_T = TypeVar("_T")
_MUTABLE = (list, dict, set, bytearray)
_SEQUENCES = (list, tuple, set, frozenset)
_CONTAINERS = (*_SEQUENCES, dict)


class _ConfigMeta(msgspec.StructMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        where = f"{namespace.get('__module__')}.{namespace.get('__qualname__', name)}"
        annotations = _annotations_in(namespace)
        fields = {
            key: _to_msgspec_field(value, f"{where}.{key}", is_field=key in annotations)
            for key, value in namespace.items()
            if not _is_class_variable(annotations.get(key))
        }
        try:
            # msgspec inherits every option of a Struct except this one.
            options = {"kw_only": True, **options}
            is_open = options.pop("open", False)
            cls = super().__new__(mcls, name, bases, {**namespace, **fields}, **options)
        except TypeError as error:
            raise DefinitionError(
                f"the Config {name} cannot be defined",
                where=where,
                found=str(error),
                hint="burnt.field(default_factory=...)" if "default_factory" in str(error) else None,
            ) from None
        if is_open:
            if cls.__struct_config__.tag is None:
                raise DefinitionError(
                    f"the open Config {name} has no tag, by which JSON names its subclasses",
                    where=where,
                    hint=f"class {name}(Config, tag=True, open=True)",
                )
            _OPEN.add(cls)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except BurntError:
            raise
        except TypeError:
            error = argument_error(cls, args, kwargs)
            if error is None:  # it was raised inside
                raise
        raise error


def _annotations_in(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations of a class that is being made; undefined names stay unresolved."""
    if sys.version_info >= (3, 14) and "__annotations__" not in namespace:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        if annotate is None:
            return {}
        return annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)
    annotations: dict[str, Any] = namespace.get("__annotations__", {})
    return annotations


def _is_class_variable(annotation: Any) -> bool:
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.startswith(("ClassVar", "typing.ClassVar"))


def _to_msgspec_field(default: Any, where: str, *, is_field: bool) -> Any:
    """Return a field's default in the form that msgspec takes.

    msgspec copies only empty lists, dicts and sets for each instance, and knows no `dataclasses.field`.
    """
    if isinstance(default, dataclasses.Field):
        if not default.init:
            raise DefinitionError(
                "a field of a Config cannot be computed",
                where=where,
                expected="burnt.field(default=...) or burnt.field(default_factory=...)",
                found="init=False",
                hint="define a property",
            )
        options: dict[str, Any] = {
            key: value
            for key, value in (("default", default.default), ("default_factory", default.default_factory))
            if value is not dataclasses.MISSING
        }
        if isinstance(options.get("default"), _MUTABLE):
            return _to_msgspec_field(options["default"], where, is_field=True)
        return msgspec.field(**options)
    if is_field and isinstance(default, _MUTABLE):
        return msgspec.field(default_factory=functools.partial(copy.deepcopy, default))
    return default


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field, dataclasses.field)
)
class Config(msgspec.Struct, metaclass=_ConfigMeta, frozen=True, forbid_unknown_fields=True):
    """Base of configurations: frozen, keyword-only, typed, nested; reads and writes JSON.

    Fields may be numbers, strings, booleans, None, enums, paths, lists, tuples, dicts, other Configs and
    unions of these. A default that is a list, dict or set is copied for each instance; other defaults may be
    computed by ``burnt.field(default_factory=...)``. Configs in one union need a tag, as in
    ``class Adam(Config, tag=True)``. A Config that builds an object has a method ``init``; a model that it
    builds stores the Config in its record.

    As the type of a field, a class declared by ``class Model(Config, tag=True, open=True)`` stands for all
    its subclasses, those defined later included; JSON names the subclass by its tag.

    Raises:
        ConfigError: a value is not of its field's type.
        DefinitionError: the class is written wrongly.

    >>> class DigitsConfig(Config):
    ...     hidden: int = 64
    ...     dropout: float = 0.1
    >>> DigitsConfig(hidden=32).replace(dropout=0.0)
    DigitsConfig(hidden=32, dropout=0.0)
    >>> DigitsConfig.from_json('{"hiden": 32}')
    Traceback (most recent call last):
    burnt.errors.ConfigError: DigitsConfig cannot be read
      in        hiden
      found     an unknown key
      hint      did you mean 'hidden'? Known: hidden, dropout
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        build = cls.__dict__.get("init")
        if isinstance(build, types.FunctionType):
            cls.init = _remember_config_of(build)  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        problems: list[_Problem] = []
        for info in _fields(type(self)):
            value = getattr(self, info.name)
            try:
                converted = _convert(value, info.type)
            except msgspec.ValidationError:
                problems += _problems(value, info.type, info.name)
            else:
                if _holds_open(info.type):
                    msgspec.structs.force_setattr(self, info.name, converted)
        if problems:
            raise _error(f"{_class_name(type(self))} cannot be built", problems)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{_class_name(type(self))}({fields})"

    @classmethod
    def _from_plain(cls, value: Any, *, strict: bool) -> Config:
        """Build an instance of an open class from a value that is neither one nor an object with a tag.

        With `strict` false, numbers may be text, as on a command line. ValueError: there is no such instance.
        """
        raise ValueError(f"Expected `{_class_name(cls)}`, got `{type(value).__name__}`")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Raises:
            ConfigError: no such field, or a value of the wrong type.
        """
        known = self.__struct_fields__
        unknown = [_unknown_key(name, name, known) for name in changes if name not in known]
        if unknown:
            raise _error(f"{_class_name(type(self))} has no such field", unknown)
        return msgspec.structs.replace(self, **changes)

    def override(self, assignments: Iterable[str]) -> Self:
        """Return a copy with dotted keys set from text, as on a command line.

        Args:
            assignments: texts such as ``"model.hidden=128"``; lists and objects are written as JSON. Where a
                Config may be of several classes, ``"schedule.type=Cosine"`` selects one, with its defaults.

        Raises:
            ConfigError: no such key, or a value that is not of its type.

        >>> class RunConfig(Config):
        ...     epochs: int = 8
        ...     name: str = "a"
        >>> RunConfig().override(["epochs=16", "name=12"])
        RunConfig(epochs=16, name='12')
        """
        return type(self)._from_assignments_on(self.to_dict(), assignments)

    @classmethod
    def from_assignments(cls, assignments: Iterable[str]) -> Self:
        """Build a Config from its defaults and assignments as in `override`, which may set required fields.

        Args:
            assignments: texts such as ``"model.hidden=128"``.

        Raises:
            ConfigError: no such key, a value that is not of its type, or a required field that is not set.

        >>> class TrainConfig(Config):
        ...     data: str
        ...     epochs: int = 8
        >>> TrainConfig.from_assignments(["data=digits"])
        TrainConfig(data='digits', epochs=8)
        """
        return cls._from_assignments_on(_defaults(cls), assignments)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as dicts, lists, strings and numbers, for JSON; sets are sorted.

        Raises:
            ConfigError: a value is of a type that JSON cannot hold, such as a function.
        """
        result = _to_plain(self, type(self).__name__)
        assert isinstance(result, dict)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a Config from the result of `to_dict`.

        Raises:
            ConfigError: an unknown, missing or ill-typed key, with its path and the nearest known name.
        """
        return cls._read(dict(data), f"{_class_name(cls)} cannot be read")

    def to_json(self) -> str:
        """Return the values as JSON text, indented by two spaces."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build a Config from the result of `to_json`.

        Raises:
            ConfigError: the text is not JSON, or as in `from_dict`.
        """
        return cls.from_dict(_loads(text, f"{_class_name(cls)} cannot be read", None))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file with a format version, atomically.

        Raises:
            OSError: the folder does not exist or cannot be written.
        """
        document = {"format": FORMAT, "type": qualified_name(type(self)), "config": self.to_dict()}
        with replacing(path) as file:
            file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote, or the ``config.json`` of a run.

        Raises:
            ConfigError: the file is not a Config, is of a newer format, or does not fit this class; or the
                run was given no Config.
            OSError: the file cannot be read.
        """
        what = f"{_class_name(cls)} cannot be read from {os.fspath(path)}"
        document = _loads(Path(path).read_bytes(), what, os.fspath(path))
        is_run = "format" not in document and document.keys() >= _RUN_KEYS
        if is_run and not document["config"]:
            raise ConfigError(
                what,
                where="config",
                expected="the Config of a run",
                found="a run that was given none",
                hint="SupervisedTraining(config=...) writes it to the run's config.json",
            )
        version = FORMAT if is_run else document.get("format")
        if type(version) is not int or "config" not in document:
            raise ConfigError(
                what,
                expected='{"format": 1, "type": ..., "config": {...}}',
                found=f"the keys {', '.join(document) or '(none)'}",
                hint=f"{_class_name(cls)}.from_json reads values without a format version",
            )
        if version > FORMAT:
            raise ConfigError(
                what,
                where="format",
                expected=f"at most {FORMAT}",
                found=version,
                hint="a newer burnt wrote this file: upgrade burnt",
            )
        if not isinstance(document["config"], dict):
            raise ConfigError(
                what, where="config", expected="an object", found=type(document["config"]).__name__
            )
        return cls._read(document["config"], what, root="config")

    @classmethod
    def _from_assignments_on(cls, data: dict[str, Any], assignments: Iterable[str]) -> Self:
        assigned: list[str] = []
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise ConfigError(
                    f"{assignment!r} is not an assignment", expected="key=value", hint="e.g. model.hidden=128"
                )
            *parents, last = key.split(".")
            node: Any = data
            kind: Any = cls
            for i, name in enumerate(parents):
                holder, children, kind = node, _children(node), _child_kind(node, kind, name)
                selects_type = i == len(parents) - 1 and last == _tag_field(kind)
                if name not in children and (not selects_type or isinstance(holder, list)):
                    raise _error(
                        f"{_class_name(cls)} has no key {key!r}",
                        [_unknown_key(".".join(parents[: i + 1]), name, children)],
                    )
                node = children.get(name)
                if selects_type:
                    prefix = ".".join(parents) + "."
                    given = {
                        k.removeprefix(prefix).partition(".")[0] for k in assigned if k.startswith(prefix)
                    }
                    node = _of_type(text, node, kind, given)
                    holder[int(name) if isinstance(holder, list) else name] = node
            assigned.append(key)
            if isinstance(node, list):
                if last not in _children(node):
                    raise ConfigError(
                        f"{_class_name(cls)} has no key {key!r}",
                        expected=f"an index below {len(node)}",
                        found=last,
                    )
                node[int(last)] = _parse(text, _child_kind(node, kind, last))
            elif isinstance(node, dict):
                node[last] = _parse(text, _child_kind(node, kind, last))
            else:
                parent, field = ".".join(parents), _tag_field(kind)
                raise ConfigError(
                    f"{_class_name(cls)} has no key {key!r}",
                    where=parent,
                    found=repr(node),
                    hint=f'select a type first: {parent}.{field}=..., or {parent}={{"{field}": ...}} as JSON'
                    if field
                    else None,
                )
        return cls._read(data, f"{_class_name(cls)} cannot be built", strict=False)

    @classmethod
    def _read(cls, data: dict[str, Any], what: str, *, root: str = "", strict: bool = True) -> Self:
        _fields(cls)
        try:
            return _convert(data, cls, strict=strict)
        except msgspec.ValidationError as error:
            problems = _problems(data, cls, root, strict=strict)
            raise _error(what, problems or [_Problem(root, found=str(error))]) from None


class _NoDerivedConfigError(DefinitionError, AttributeError):
    """No Config can be derived. An AttributeError, so that `hasattr` and `help` go on without it."""


class DerivedConfig:
    """Descriptor of a class attribute ``Config`` that is derived at its first use, once per class."""

    def __init__(self, derive: Callable[[Any], type[Config]]) -> None:
        self._derive = derive

    def __get__(self, instance: object, owner: type) -> type[Config]:
        if "_derived_config" not in owner.__dict__:
            try:
                owner._derived_config = self._derive(owner)  # type: ignore[attr-defined]
            except DefinitionError as error:
                raise _NoDerivedConfigError(**vars(error)) from error.__cause__
        derived: type[Config] = owner._derived_config  # type: ignore[attr-defined]
        return derived


def derive_config(owner: type, init: Callable[..., Any]) -> type[Config]:
    """Create a Config class with the annotated parameters of a class's `__init__`, less device and dtype."""
    parameters = dict(inspect.signature(owner.__init__).parameters)  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(owner.__init__)  # type: ignore[misc]
    except NameError as error:
        raise DefinitionError(
            f"no Config can be derived for {owner.__qualname__}",
            where="the annotations of its __init__",
            expected="names that exist at run time, not for type checkers only",
            found=str(error),
        ) from error
    annotations: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, parameter in list(parameters.items())[1:]:
        if name in ("device", "dtype"):
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name not in hints:
            raise DefinitionError(
                f"no Config can be derived for {owner.__qualname__}",
                where=f"the parameter {name!r} of its __init__",
                expected="annotated parameters, none of them * or **",
            )
        annotations[name] = _without_torch_types(bind_type_variables(owner, hints[name]))
        if parameter.default is not parameter.empty:
            defaults[name] = parameter.default
    init.__annotations__["return"] = owner
    namespace = {
        "__annotations__": annotations,
        "__doc__": f"The arguments of `{owner.__qualname__}`, less device and dtype.",
        "__module__": owner.__module__,
        "__qualname__": f"{owner.__qualname__}.Config",
        "init": init,
        **defaults,
    }
    return types.new_class(
        "Config", (Config,), {"tag": owner.__qualname__}, lambda body: body.update(namespace)
    )


def type_arguments(owner: type) -> dict[Any, Any]:
    """Return the types that a class has chosen for the type variables of its generic bases."""
    chosen: dict[Any, Any] = {}
    for base in owner.__mro__:
        for alias in vars(base).get("__orig_bases__", ()):
            variables = getattr(typing.get_origin(alias), "__parameters__", ())
            for variable, argument in zip(variables, typing.get_args(alias), strict=False):
                chosen.setdefault(variable, chosen.get(argument, argument))
    return chosen


def bind_type_variables(owner: type, hint: Any) -> Any:
    """Return an annotation in a generic base of a class with the types that the class has chosen."""
    chosen = type_arguments(owner)
    if isinstance(hint, TypeVar):
        return chosen.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(chosen.get(variable, variable) for variable in variables)] if variables else hint


def bound_signature(owner: type) -> inspect.Signature:
    """Return the signature of a class's `__init__` with the types that it has chosen in the annotations."""
    texts = {v.__name__: inspect.formatannotation(kind) for v, kind in type_arguments(owner).items()}
    signature = inspect.signature(owner.__init__)  # type: ignore[misc]
    parameters = [
        p.replace(annotation=re.sub(r"\w+", lambda word: texts.get(word[0], word[0]), p.annotation))
        if isinstance(p.annotation, str)
        else p
        for p in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters)


def _without_torch_types(kind: Any) -> Any:
    """Remove torch types from a union annotation that also has JSON types."""
    # Torch types are recognised by the name of their module, so that this file need not import torch.
    kinds = list(_alternatives(kind))
    json_kinds = [k for k in kinds if getattr(k, "__module__", "").partition(".")[0] != "torch"]
    return functools.reduce(operator.or_, json_kinds) if 0 < len(json_kinds) < len(kinds) else kind


def field_values(config: Config) -> dict[str, Any]:
    """Return the fields of a Config by name; nested Configs are not converted."""
    return {name: getattr(config, name) for name in config.__struct_fields__}


def qualified_name(cls: type) -> str:
    """Return module and name of a class, as in records and config files."""
    return f"{cls.__module__}.{cls.__qualname__}"


class _Problem(typing.NamedTuple):
    path: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None


def _error(what: str, problems: list[_Problem]) -> ConfigError:
    first, *others = problems
    origin = [
        f"{p.path}: {p.found}" + (f", expected {p.expected}" if p.expected else "")
        + (f" ({p.hint})" if p.hint else "")
        for p in others
    ]  # fmt: skip
    where = first.path or None
    if origin:
        what = f"{what}: {len(problems)} problems"
        origin[0] = f"also {origin[0]}"
    return ConfigError(
        what, where=where, expected=first.expected, found=first.found, hint=first.hint, origin=origin
    )


def _unknown_key(path: str, name: str, known: Iterable[str]) -> _Problem:
    names = list(known)
    close = nearest(name, names)
    listing = f"Known: {', '.join(names)}" if names else "It has no keys of its own"
    return _Problem(
        path, found="an unknown key", hint=f"did you mean {close!r}? {listing}" if close else listing
    )


def _problems(data: Any, kind: Any, path: str, *, strict: bool = True) -> list[_Problem]:
    """Return every problem of `data` as a value of type `kind`, each with its path."""
    try:
        _convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason, cause = str(error), error.__cause__
    else:
        return []
    found: list[_Problem] = []
    struct = _struct_for(data, kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if struct is not None and isinstance(data, dict):
        tag = struct.__struct_config__.tag_field
        infos = {info.encode_name: info for info in _fields(struct)}
        for name in data:
            if name not in infos and name != tag:
                found.append(_unknown_key(_join(path, name), name, infos))
        for name, info in infos.items():
            if name in data:
                found += _problems(data[name], info.type, _join(path, name), strict=strict)
            elif info.required:
                found.append(_Problem(_join(path, name), expected=_describe(info.type), found="nothing"))
    elif isinstance(data, list | tuple) and origin in _SEQUENCES:
        kinds = args if origin is tuple and args[-1:] != (...,) else args[:1] * len(data)
        if len(kinds) == len(data):
            for i, (item, item_kind) in enumerate(zip(data, kinds, strict=True)):
                found += _problems(item, item_kind, f"{path}[{i}]", strict=strict)
    elif isinstance(data, dict) and origin is dict:
        for key, item in data.items():
            found += _problems(item, args[1], _join(path, str(key)), strict=strict)
    if not found and isinstance(cause, ConfigError):  # a check of the class itself
        where = _join(path, cause.where) if cause.where else path
        expected, found_text = (None if v is None else str(v) for v in (cause.expected, cause.found))
        return [_Problem(where, expected, found_text, cause.hint)]
    return found or [_value_problem(data, kind, path, reason)]


def _value_problem(data: Any, kind: Any, path: str, reason: str) -> _Problem:
    structs = [a for a in _alternatives(kind) if _is_config(a)]
    field = structs[0].__struct_config__.tag_field if structs else None
    if isinstance(data, dict) and field is not None and (len(structs) > 1 or field in data):
        tags = [str(s.__struct_config__.tag) for s in structs]
        if data.get(field) not in tags:
            return _Problem(
                _join(path, field),
                expected=" or ".join(map(repr, tags)),
                found=repr(data[field]) if field in data else "nothing",
                hint=did_you_mean(data.get(field, ""), tags),
            )
    if reason.startswith(("Expected ", "Invalid ")):
        words = [word for a in _alternatives(kind) for word in _literal_values(a) if isinstance(word, str)]
        tags = [str(s.__struct_config__.tag) for s in structs if s.__struct_config__.tag is not None]
        return _Problem(
            path,
            expected=_describe(kind),
            found=f"{data!r} ({type(data).__name__})",
            hint=suggest_value(data, words, tags),
        )
    return _Problem(path, found=reason.partition(" - at ")[0])


def suggest_value(found: object, words: Iterable[str], tags: Iterable[str]) -> str | None:
    """Return a hint for a value that is none of some words, and no Config with one of some tags.

    >>> suggest_value("LeakyReLU", ["relu", "leaky_relu"], ["LeakyRelu", "Softmax"])
    "did you mean 'leaky_relu'?"
    >>> suggest_value("softmax", ["relu", "leaky_relu"], ["LeakyRelu", "Softmax"])
    'did you mean {"type": "Softmax"}?'
    """
    tags = list(tags)
    if isinstance(found, type) and issubclass(found, Config):
        return f"call it: {_class_name(found)}(...)" if str(found.__struct_config__.tag) in tags else None
    if isinstance(found, str | None):
        name = str(found)
    elif callable(found):
        name = getattr(found, "__name__", type(found).__name__)
        if name in tags and hasattr(found, "Config"):
            return f"a Config, not the layer itself: {name}.Config(...)"
    else:
        return None
    by_key = {_plain_word(word): word for word in words}
    key = _plain_word(name)
    key = VALUE_SYNONYMS.get(key, key)
    starts = [other for other in by_key if key.startswith(other)]
    if key not in by_key and starts:  # "BatchNorm2d" for "batch"
        key = max(starts, key=len)
    if key in by_key:
        word = repr(by_key[key])
        return f"by name: {word}" if callable(found) else f"did you mean {word}?"
    by_tag = {_plain_word(tag): tag for tag in tags}
    if (close := nearest(key, [*by_key, *by_tag])) is None:
        return None
    text = repr(by_key[close]) if close in by_key else f'{{"type": "{by_tag[close]}"}}'
    return f"did you mean {text}?"


def _plain_word(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _struct_for(data: Any, kind: Any) -> type[Config] | None:
    structs = [a for a in _alternatives(kind) if _is_config(a)]
    if len(structs) > 1 and isinstance(data, dict):
        field = structs[0].__struct_config__.tag_field
        matches = [s for s in structs if data.get(field) == s.__struct_config__.tag]
        if len(matches) > 1:  # msgspec refuses it for the classes that a union lists
            raise ConfigError(
                "two Configs have the same tag",
                where=f"{field}={data[field]!r}",
                found=" and ".join(map(qualified_name, matches)),
                hint=f"give one of them another: class {matches[-1].__name__}(..., tag=...)",
            )
        return matches[0] if matches else None
    return structs[0] if structs else None


def _alternatives(kind: Any, *, listing_open: bool = True) -> Iterator[Any]:
    """Yield the types of a union; an open Config is one of its subclasses, unless `listing_open` is false."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        for inner in typing.get_args(kind):
            yield from _alternatives(inner, listing_open=listing_open)
    elif typing.get_origin(kind) is typing.Annotated:
        yield from _alternatives(typing.get_args(kind)[0], listing_open=listing_open)
    elif listing_open and _is_open(kind):
        yield from _members(kind)
    else:
        yield kind


def _is_open(kind: Any) -> bool:
    return _is_config(kind) and kind in _OPEN


def _members(kind: type[Config]) -> list[type[Config]]:
    """Return the subclasses that an open Config stands for, in the order of their definition.

    A class that was defined again, as in a notebook, replaces the earlier one.
    """
    members: dict[str, type[Config]] = {}
    for member in kind.__subclasses__():
        if not _is_open(member):
            members[qualified_name(member)] = member
        members |= {qualified_name(inner): inner for inner in _members(member)}
    return list(members.values())


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Config)


def _literal_values(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _describe(kind: Any) -> str:
    alternatives = list(_alternatives(kind, listing_open=False))
    configs = [a for a in alternatives if _is_config(a)]
    if len(configs) > _MAX_LISTED:
        alternatives = [a for a in alternatives if a not in configs]
    texts = [_describe_alternative(a) for a in alternatives]
    if len(configs) > _MAX_LISTED:
        texts.append(f"one of {len(configs)} Configs, such as {_class_name(configs[0])}")
    return " | ".join(texts)


def _describe_alternative(kind: Any) -> str:
    if values := _literal_values(kind):
        return " | ".join(map(repr, values))
    if kind is type(None) or kind is ...:
        return "None" if kind is not ... else "..."
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in _CONTAINERS:
        return f"{origin.__name__}[{', '.join(map(_describe, args))}]"
    if not isinstance(kind, type) or origin is not None:
        return str(kind)
    return _class_name(kind)


def _class_name(cls: type) -> str:
    """Return the name of a class for messages, with its owner's if it is a layer's Config."""
    return cls.__qualname__.rpartition("<locals>.")[2] if cls.__name__ == "Config" else cls.__name__


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _convert(data: Any, kind: type[_T], *, strict: bool = True) -> _T:
    if not _holds_open(kind):
        return msgspec.convert(data, kind, strict=strict, dec_hook=_decode)
    try:
        converted: _T = _convert_open(data, kind, strict)
    except msgspec.ValidationError:
        raise
    except (ValueError, TypeError) as error:
        # As msgspec does for an error in __post_init__.
        raise msgspec.ValidationError(str(error)) from error
    return converted


def _convert_open(data: Any, kind: Any, strict: bool) -> Any:
    """Convert to a type that holds an open Config: msgspec knows only the classes that a union lists."""
    alternatives = list(_alternatives(kind))
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(data, Config) and type(data) in alternatives:
        return data
    if isinstance(data, dict) and (struct := _struct_for(data, kind)) is not None:
        infos = {info.encode_name: info for info in _fields(struct)}
        tag = struct.__struct_config__.tag_field
        if tag is not None and data.get(tag, struct.__struct_config__.tag) != struct.__struct_config__.tag:
            raise ValueError(f"Invalid value {data[tag]!r}")
        if unknown := [name for name in data if name not in infos and name != tag]:
            raise ValueError(f"Object contains unknown field `{unknown[0]}`")
        if missing := [name for name, info in infos.items() if info.required and name not in data]:
            raise ValueError(f"Object missing required field `{missing[0]}`")
        values = {name: data[name] for name in infos if name in data}
        return struct(**{infos[k].name: _convert(v, infos[k].type, strict=strict) for k, v in values.items()})
    if isinstance(data, _SEQUENCES) and origin in _SEQUENCES:
        is_fixed = origin is tuple and args[-1:] != (...,)
        kinds = args if is_fixed else args[:1] * len(data)
        if len(kinds) != len(data):
            raise ValueError(f"Expected `array` of length {len(kinds)}, got {len(data)}")
        return origin(_convert(item, inner, strict=strict) for item, inner in zip(data, kinds, strict=True))
    if isinstance(data, dict) and origin is dict:
        return {
            _convert(key, args[0], strict=strict): _convert(item, args[1], strict=strict)
            for key, item in data.items()
        }
    listed = list(_alternatives(kind, listing_open=False))
    for alternative in listed:
        if alternative is not kind:
            with contextlib.suppress(msgspec.ValidationError):
                return _convert(data, alternative, strict=strict)
    if _is_open(kind) and not isinstance(data, dict | Config):
        return kind._from_plain(data, strict=strict)
    raise ValueError(f"Expected `{_describe(kind)}`, got `{type(data).__name__}`")


def _holds_open(kind: Any, outer: frozenset[type] = frozenset()) -> bool:
    """Whether a type is or contains an open Config; `outer` are the Configs around it."""
    if _is_config(kind):
        return _is_open(kind) or (kind not in outer and _fields_hold_open(kind, outer))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        inner = inner[:1]
    return origin is not Callable and any(_holds_open(a, outer) for a in inner)


@functools.cache
def _fields_hold_open(cls: type[Config], outer: frozenset[type]) -> bool:
    return any(_holds_open(info.type, outer | {cls}) for info in _fields(cls))


def _to_plain(value: Any, name: str) -> Any:
    """Return a value as dicts, lists, strings and numbers; `name` is what an error calls it."""
    try:
        return _with_sorted_sets(msgspec.to_builtins(value, enc_hook=_encode), value)
    except NotImplementedError as error:
        raise ConfigError(
            f"{name} cannot be saved as JSON",
            expected="values that are themselves Configs, numbers, text, or containers of these",
            found=str(error),
            hint="instead of a function, write a Config with __call__, such as a subclass of "
            "burnt.optim.Schedule"
            if str(error).startswith("a function")
            else None,
        ) from None


def _with_sorted_sets(plain: Any, value: Any) -> Any:
    """Return the plain form of a value with its sets as sorted lists: their own order differs by process."""
    if isinstance(value, Config):
        for info in _fields(type(value)):
            plain[info.encode_name] = _with_sorted_sets(plain[info.encode_name], getattr(value, info.name))
    elif dataclasses.is_dataclass(value) and isinstance(plain, dict):
        for name in plain:
            plain[name] = _with_sorted_sets(plain[name], getattr(value, name))
    elif isinstance(value, dict):
        return dict(zip(plain, map(_with_sorted_sets, plain.values(), value.values()), strict=True))
    elif isinstance(value, _SEQUENCES):
        plain = type(plain)(map(_with_sorted_sets, plain, value))
    return sorted(plain, key=_order) if isinstance(value, set | frozenset) else plain


def _order(item: Any) -> tuple[str, Any]:
    return type(item).__name__, item if isinstance(item, int | float | str) else repr(item)


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        raise NotImplementedError(f"a function, {getattr(value, '__qualname__', type(value).__qualname__)}")
    raise NotImplementedError(f"a {type(value).__name__}")


def _decode(kind: type, value: Any) -> Any:
    if typing.get_origin(kind) is Callable:
        if callable(value):
            return value
        raise ValueError(f"Expected `Callable`, got `{type(value).__name__}`")
    if issubclass(kind, Path):
        if isinstance(value, str | Path):
            return kind(value)
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if isinstance(value, kind):
        return value
    raise NotImplementedError(f"a Config cannot hold a {kind.__name__}")


def _defaults(cls: type[Config]) -> dict[str, Any]:
    """Return the defaults of a Config's fields in the form of `to_dict`; fields without one are absent.

    A field that is a Config without a default gets that Config's defaults.
    """
    data: dict[str, Any] = {}
    for info in _fields(cls):
        if info.default is not msgspec.NODEFAULT:
            data[info.encode_name] = _to_plain(info.default, f"the default of {cls.__name__}.{info.name}")
        elif info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
            data[info.encode_name] = _to_plain(default, f"the default of {cls.__name__}.{info.name}")
        elif _is_config(info.type):
            data[info.encode_name] = _defaults(info.type)
    return data


def _children(node: Any) -> dict[str, Any]:
    if isinstance(node, list):
        return {str(i): item for i, item in enumerate(node)}
    return node if isinstance(node, dict) else {}


def _child_kind(node: Any, kind: Any, name: str) -> Any:
    """Return the type of an item or field of a value of type `kind`; None if it is unknown."""
    struct = _struct_for(node, kind) if isinstance(node, dict) else None
    if struct is not None:
        return next((info.type for info in _fields(struct) if info.encode_name == name), None)
    for alternative in _alternatives(kind):
        origin, args = typing.get_origin(alternative), typing.get_args(alternative)
        if isinstance(node, dict) and origin is dict:
            return args[1]
        if isinstance(node, list) and origin in _SEQUENCES and name.isdecimal():
            is_fixed = origin is tuple and args[-1:] != (...,)
            return args[int(name)] if is_fixed and int(name) < len(args) else args[0]
    return None


def _tag_field(kind: Any) -> str | None:
    """Return the key by which JSON names the class of a Config; None if `kind` has no tagged Config."""
    structs = [a for a in _alternatives(kind) if _is_config(a)]
    return structs[0].__struct_config__.tag_field if structs else None


def _of_type(tag: str, node: Any, kind: Any, given: set[str]) -> dict[str, Any]:
    """Return the defaults of the Config with a tag, in the form of `to_dict`.

    A present value of that class, `node`, stays, and so do its keys in `given`, which were assigned.
    """
    field = _tag_field(kind)
    assert field is not None
    present = node if isinstance(node, dict) else {}
    if present.get(field) == tag:
        return present
    struct = _struct_for({field: tag}, kind)
    defaults = {} if struct is None else _defaults(struct)
    return {field: tag, **defaults, **{key: present[key] for key in given if key in present}}


def _parse(text: str, kind: Any) -> Any:
    """Return the value that a text of a command line stands for, in a field of type `kind`.

    The lax conversion makes "12" a number later where the field is one, and keeps it where the field is a
    string. Where it may be either, JSON decides: 12 and true are not strings; "12" in quotes and nan are.
    """
    kinds = list(_alternatives(kind, listing_open=False))
    if type(None) in kinds and text in ("None", "none", "null"):
        return None
    if str in kinds and len(kinds) > 1 and not text.startswith("["):
        with contextlib.suppress(ValueError):
            value = parse_json({"True": "true", "False": "false"}.get(text, text))
            is_finite = type(value) is not float or math.isfinite(value)
            if is_finite and (type(value) in kinds or (type(value) is int and float in kinds)):
                return value
    if not text.startswith(("[", "{", '"')):
        return text
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{text!r} is not JSON", found=str(error)) from None


def _loads(text: str | bytes, what: str, where: str | None) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            what, where=where, expected="JSON", found=str(error), hint="the file is damaged or not JSON"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(what, where=where, expected="an object", found=type(document).__name__)
    return document


@functools.cache
def _fields(cls: type[Config]) -> tuple[msgspec.structs.FieldInfo, ...]:
    try:
        return msgspec.structs.fields(cls)
    except NameError as error:
        raise DefinitionError(
            f"an annotation of {qualified_name(cls)} cannot be resolved",
            found=str(error),
            hint="define the type at module level, or before the Config",
        ) from None


def _remember_config_of(build: Any) -> Any:
    @functools.wraps(build)
    def init(self: Config, *args: Any, **kwargs: Any) -> Any:
        built = build(self, *args, **kwargs)
        remember = getattr(type(built), "_remember_config", None)
        if remember is not None:
            remember(built, self)
        return built

    return init
