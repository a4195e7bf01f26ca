"""Module: a `torch.nn.Module` with declared fields, and methods that call burnt's functions for any module.

What lives here: the derived `__init__`, the registration of declared fields, the derived `Config` of classes
with their own `__init__`, and those methods. Records, checks and summaries are implemented in `burnt.record`
and `burnt.inspect`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import re
import sys
import types
import typing
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field as field
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import msgspec
import torch
from torch import Tensor

from burnt import inspect as _inspect
from burnt import record as _record
from burnt.config import Config as _Config
from burnt.config import DerivedConfig, bind_type_variables, derive_config, field_values, qualified_name
from burnt.device import as_device
from burnt.errors import DefinitionError, RecordError

if TYPE_CHECKING:
    from burnt.inspect import CheckReport, Summary
    from burnt.record import LoadReport, Record


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class Module(torch.nn.Module):
    """Base of models and layers: a `torch.nn.Module` with declared fields.

    A subclass annotates its fields and `__init__` is derived from them, as for a dataclass. Fields that hold
    a Module, a Parameter, a tensor (a buffer), or a list, tuple, dict or Optional of these, are registered;
    others are static and are saved in the record's metadata. A class that defines `__init__` keeps its own.

    Raises:
        DefinitionError: a field has the name of an attribute of `torch.nn.Module`, or a default
            that all instances would share.

    >>> from burnt import Module, nn
    >>> class Mlp(Module):
    ...     layers: list[nn.Linear]
    ...     scale: float = 1.0
    ...
    ...     def forward(self, x):
    ...         for layer in self.layers:
    ...             x = torch.relu(layer(x))
    ...         return x * self.scale
    >>> Mlp([nn.Linear(4, 8), nn.Linear(8, 2)]).num_params()
    58
    """

    _declared: ClassVar[dict[str, dataclasses.Field[Any]]] = {}
    _built_by: _Config | None = None

    if TYPE_CHECKING:

        class Config(_Config):
            """The arguments of `__init__` less device and dtype; `init(device=, dtype=)` builds the layer."""

            def __init__(self, **values: Any) -> None: ...

            def init(self, device: Any = None, dtype: torch.dtype | None = None) -> Any:
                """Build the layer."""

    else:
        Config = DerivedConfig(lambda owner: _derive_config(owner))

    def __init_subclass__(cls, *, init: bool = True, **kwargs: Any) -> None:
        # `init=False` is for type checkers: they then take the `__init__` of the next base, a layer of torch.
        super().__init_subclass__(**kwargs)
        if not init and _init_is_derived(cls):
            raise DefinitionError(
                f"{cls.__qualname__} has no __init__ to inherit",
                where=f"{cls.__module__}.{cls.__qualname__}",
                expected="init=False next to a base with its own __init__, such as a layer of torch.nn",
                hint="leave out init=False, and __init__ is derived from the fields",
            )
        _refuse_layers_in_body(cls)
        own_fields = [name for name, kind in inspect.get_annotations(cls).items() if _is_field(kind)]
        for name in own_fields:
            if name in _RESERVED:
                raise DefinitionError(
                    f"{cls.__qualname__} cannot have a field {name!r}",
                    where=f"{cls.__module__}.{cls.__qualname__}",
                    found=f"torch.nn.Module.{name}, which the field would hide",
                    hint=f"use another name, such as {name}_",
                )
            default = _layer_in(cls.__dict__.get(name))
            if default is not None:
                raise DefinitionError(
                    f"all instances of {cls.__qualname__} would share the default of {name!r}",
                    expected=f"{name}: ... = burnt.field(default_factory=...)",
                    found=f"a {type(default).__name__}",
                )
        derived = _init_is_derived(cls)
        try:
            dataclasses.dataclass(init=derived, eq=False, repr=False)(cls)
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"no __init__ can be derived for {cls.__qualname__}",
                where=f"{cls.__module__}.{cls.__qualname__}",
                found=str(error),
            ) from None
        cls._declared = {
            f.name: f
            for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        }
        if derived:
            cls.__init__ = _with_torch_init(cls.__init__)  # type: ignore[method-assign]
            for name in own_fields:
                # torch finds registered fields through __getattr__; a class attribute would be found first.
                if name in cls.__dict__:
                    delattr(cls, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._declared:
            value = _to_registered(value, type(self), name)
            if isinstance(value, torch.nn.Module | Tensor) and "_parameters" not in self.__dict__:
                raise DefinitionError(
                    f"{type(self).__qualname__}.{name} is assigned too early",
                    found=f"a {type(value).__name__} before torch.nn.Module has been set up",
                    hint="call super().__init__() first",
                )
            if value is not None:
                # A field that is None may get a value of any kind; torch would accept only its former kind.
                for slots in ("_parameters", "_buffers", "_modules"):
                    if self.__dict__.get(slots, {}).get(name, self) is None:
                        del self.__dict__[slots][name]
            if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
                if name not in self._parameters and name not in self._buffers:
                    self.__dict__.pop(name, None)
                    self._modules.pop(name, None)
                    self.register_buffer(name, value)
                    return
            elif isinstance(value, torch.nn.Module | torch.nn.Parameter):
                self._buffers.pop(name, None)
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Return the module's own part of `repr`: torch's text for its layer, then the static fields."""
        torch_text = super().extra_repr()
        static = [
            f"{name}={value!r}"
            for name, value in self.static_fields().items()
            if not re.search(rf"\b{name}=", torch_text)
        ]
        return ", ".join(filter(None, [torch_text, *static]))

    def static_fields(self) -> dict[str, Any]:
        """Return the declared fields that hold no modules, parameters or tensors, by name."""
        # In a class with its own `__init__`, a field that was never assigned is the default in the class.
        return {
            name: getattr(self, name)
            for name in self._declared
            if name in self.__dict__ or (hasattr(type(self), name) and not self._is_registered(name))
        }

    def _is_registered(self, name: str) -> bool:
        return name in self._parameters or name in self._buffers or name in self._modules

    def num_params(self, trainable: bool | None = None) -> int:
        """Return the number of parameters: `burnt.num_params`."""
        return _inspect.num_params(self, trainable)

    def visit(self, fn: Callable[[str, torch.nn.Parameter], object]) -> None:
        """Call `fn(path, parameter)` for every parameter: `burnt.inspect.visit`."""
        _inspect.visit(self, fn)

    def map(self, fn: Callable[[str, torch.nn.Parameter], Tensor]) -> Self:
        """Replace every parameter by `fn(path, parameter)`, in place: `burnt.inspect.map_params`."""
        _inspect.map_params(self, fn)
        return self

    def freeze(self, *patterns: str) -> Self:
        """Exclude the parameters that match path patterns from training: `burnt.freeze`."""
        _inspect.freeze(self, *patterns)
        return self

    def unfreeze(self, *patterns: str) -> Self:
        """Train the parameters that match path patterns again: `burnt.unfreeze`."""
        _inspect.unfreeze(self, *patterns)
        return self

    def check(self, *inputs: Any, **kwargs: Any) -> CheckReport:
        """Check that shapes fit, without computing values: `burnt.check`."""
        return _inspect.check(self, *inputs, **kwargs)

    def summary(self, *inputs: Any, **kwargs: Any) -> Summary:
        """Tabulate layers, shapes, parameters and FLOPs: `burnt.summary`."""
        return _inspect.summary(self, *inputs, **kwargs)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast parameters and buffers in place, as `torch.nn.Module.to`.

        Raises:
            DeviceError: there is no such device.
        """
        device = kwargs.get("device", args[0] if args else None)
        if isinstance(device, str | torch.device | int):
            as_device(device)
        return super().to(*args, **kwargs)

    def fork(self, device: torch.device | str | None = None) -> Self:
        """Return an independent copy, on `device` if given; no gradient flows between the two.

        Raises:
            DeviceError: there is no such device.

        >>> from burnt import nn
        >>> layer = nn.Linear(2, 3)
        >>> twin = layer.fork("cpu")
        >>> twin.weight is layer.weight, bool((twin.weight == layer.weight).all())
        (False, True)
        """
        device = None if device is None else as_device(device)
        memo: dict[int, Any] = {}
        for parameter in self.parameters():
            data = parameter.detach().to(device, copy=True)
            memo[id(parameter)] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
        for buffer in self.buffers():
            memo[id(buffer)] = buffer.detach().to(device, copy=True)
        return copy.deepcopy(self, memo)

    def into_record(self) -> Record:
        """Return a record of parameters, buffers, static fields and Config, sharing the module's memory."""
        return _record.record_of(self, config=self._built_by)

    def load_record(self, record: Record, *, partial: bool = False) -> LoadReport:
        """Copy a record's tensors into this module: `burnt.record.load_into`, which `load_weights` extends.

        Raises:
            RecordError: tensors are missing or unexpected (unless `partial`), or have another shape;
                nothing was changed.
        """
        return _record.load_into(self, record, partial=partial)

    def save(self, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
        """Write parameters, buffers, static fields and Config to one file, atomically, as `Record.save` does.

        Args:
            path: the file; an old one is replaced when the new one is complete.
            dtype: what floating-point tensors are converted to, as in `Record.save`; modules with running
                statistics stay in float32.

        Raises:
            RecordError: a static field cannot be stored as JSON, or a value is too large for `dtype`.
            OSError: the folder cannot be written or is full; an old file is unchanged.
        """
        self.into_record().save(path, dtype=dtype)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        config: _Config | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Build the model that `save` wrote, with the Config in the file.

        Static fields get the values that they had when the file was written, also where they were set after
        `init`. A file without a Config is loaded too where the class has a constructor without parameters, as
        those that ``burnt import`` writes.

        Nothing in the file is executed, and nothing is imported: the Config must be a class that is already
        imported, whose `init` is annotated to return this class, or has no annotation and is defined in the
        module of this class. It is found by its qualified name, or by its own name in the module of this
        class, which may have had another name when the file was written (``__main__``).

        Args:
            path: the file.
            config: a Config to build with, instead of the one in the file.
            device: the device of the tensors; by default the one that `init` uses.

        Returns:
            The model, in training mode like every model that was just built: call ``model.eval()`` before
            you use its predictions.

        Raises:
            RecordError: there is no Config, or it is unknown or builds another class; a damaged file; tensors
                or static fields that do not fit.
            DeviceError: there is no such device.
        """
        record = _record.Record.load(path)
        if config is None and record.config_type is None and not inspect.signature(cls).parameters:
            model = cls()
        else:
            builder = _config_in(record, cls, os.fspath(path)) if config is None else config
            model = builder.init()  # type: ignore[attr-defined]
        if not isinstance(model, cls):
            raise RecordError(
                f"{os.fspath(path)} builds no {cls.__name__}",
                expected=f"{type(builder).__qualname__}.init to return a {cls.__name__}",
                found=type(model).__name__,
            )
        model.load_record(record)
        _, was_kept = restore_fields(model, record)
        if was_kept and config is None:
            warnings.warn(f"the model differs from the saved one: {', '.join(was_kept)}", stacklevel=2)
        return model if device is None else model.to(device)

    def _remember_config(self, config: _Config) -> None:
        object.__setattr__(self, "_built_by", config)


class TensorList(torch.nn.Module):
    """A list of buffers; registers a declared ``list[Tensor]``."""

    def __init__(self, tensors: typing.Iterable[Tensor]) -> None:
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(str(i), tensor)

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, index: int) -> Tensor:
        buffer = self._buffers[str(range(len(self))[index])]
        assert buffer is not None
        return buffer

    def __iter__(self) -> typing.Iterator[Tensor]:
        return (self[i] for i in range(len(self)))


class TensorDict(torch.nn.Module):
    """A dict of buffers; registers a declared ``dict[str, Tensor]``."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for key, tensor in tensors.items():
            self.register_buffer(key, tensor)

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, key: str) -> Tensor:
        buffer = self._buffers[key]
        assert buffer is not None
        return buffer

    def __iter__(self) -> typing.Iterator[str]:
        return iter(self._buffers)


_RESERVED = frozenset(name for name in dir(Module) if not name.startswith("__")) | {"training"}
_LISTS = (torch.nn.ModuleList, torch.nn.ParameterList, TensorList)
_DICTS = (torch.nn.ModuleDict, torch.nn.ParameterDict, TensorDict)


def _layer_in(value: Any) -> torch.nn.Module | Tensor | None:
    """Return the first module or tensor in a value, in its lists, tuples, sets and dicts too."""
    if isinstance(value, torch.nn.Module | Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple | set | frozenset | deque):
        return None
    return next((layer for item in value if (layer := _layer_in(item)) is not None), None)


def layers_in_body(cls: type) -> Iterator[tuple[str, torch.nn.Module | Tensor]]:
    """Yield what a class and its bases hold of layers and tensors as class attributes: name, value.

    All instances share them, and they are neither trained nor saved. A ClassVar is left out.
    """
    for base in cls.__mro__:
        if base in (Module, torch.nn.Module, object):
            continue
        kinds = inspect.get_annotations(base)
        for name, value in vars(base).items():
            is_wanted = name not in kinds or (_is_field(kinds[name]) and not hasattr(base, "_declared"))
            layer = _layer_in(value)
            if layer is not None and is_wanted and inspect.getattr_static(cls, name) is value:
                yield name, layer


def _refuse_layers_in_body(cls: type[Module]) -> None:
    for name, layer in layers_in_body(cls):
        kind = type(layer).__name__
        raise DefinitionError(
            f"{cls.__qualname__}.{name} would be neither trained nor saved",
            where=f"{cls.__module__}.{cls.__qualname__}",
            expected=f"an annotated field, {name}: {kind}, whose value each instance is given",
            found=f"a {kind} assigned in the body of the class, which all instances would share",
            hint=f"{name}: {kind} = burnt.field(default_factory=...) for a default; "
            f"{name}: ClassVar[{kind}] for a constant that is not part of the model",
        )


def _is_field(annotation: Any) -> bool:
    text = annotation if isinstance(annotation, str) else None
    if text is not None:
        return not text.startswith(("ClassVar", "typing.ClassVar", "InitVar", "dataclasses.InitVar"))
    return typing.get_origin(annotation) is not ClassVar and annotation is not ClassVar


def _init_is_derived(cls: type) -> bool:
    """Whether the `__init__` of a class is, or will be, derived from its fields."""
    defining_class = next(c for c in cls.__mro__ if "__init__" in c.__dict__)
    return defining_class is torch.nn.Module or hasattr(defining_class.__dict__["__init__"], "_derived")


def _with_torch_init(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:
        if "_parameters" not in self.__dict__:
            torch.nn.Module.__init__(self)
        init(self, *args, **kwargs)

    __init__._derived = True  # type: ignore[attr-defined]
    return __init__


def _to_registered(value: Any, owner: type[Module], name: str) -> Any:
    """Convert lists, tuples and dicts of modules, parameters or tensors to registrable containers."""
    if isinstance(value, list | tuple):
        items = [_to_registered(item, owner, name) for item in value]
        kind = _container_kind(items, owner, name)
        return value if kind is None else _LISTS[kind](items)
    if isinstance(value, dict):
        mapping = {key: _to_registered(item, owner, name) for key, item in value.items()}
        kind = _container_kind(list(mapping.values()), owner, name)
        if kind is None:
            return value
        invalid_key = next((key for key in mapping if not isinstance(key, str)), None)
        if invalid_key is not None:
            raise DefinitionError(
                f"{owner.__qualname__}.{name} cannot be registered",
                expected="keys that are strings, since they become parts of parameter paths",
                found=repr(invalid_key),
            )
        return _DICTS[kind](mapping)
    return value


def _container_kind(items: list[Any], owner: type[Module], name: str) -> int | None:
    """Return 0 for a container of modules, 1 of parameters, 2 of tensors, None for a static one."""
    if not items:
        # Only the annotation says what an empty container will hold.
        return 0 if _mentions_module(_field_type(owner, name)) else None
    kinds = {_value_kind(item) for item in items}
    if len(kinds) > 1:
        raise DefinitionError(
            f"{owner.__qualname__}.{name} cannot be registered",
            expected="a container of modules, or of parameters, or of tensors, or of none of these",
            found="a mixture: " + ", ".join(sorted({type(item).__name__ for item in items})),
            hint="one field each; what is not registered would be neither trained nor saved",
        )
    return kinds.pop()


def _value_kind(item: Any) -> int | None:
    kinds = (torch.nn.Module, torch.nn.Parameter, Tensor)
    return next((i for i, kind in enumerate(kinds) if isinstance(item, kind)), None)


def _field_type(owner: type[Module], name: str) -> Any:
    """Return the annotation of a field; None where only a function or type checkers know its names."""
    defining_class = next(cls for cls in owner.__mro__ if name in inspect.get_annotations(cls))
    annotation = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(defining_class)[name]})
    try:
        hints = typing.get_type_hints(annotation, vars(sys.modules[defining_class.__module__]))
        return bind_type_variables(owner, hints[name])
    except NameError:
        return None


def _mentions_module(hint: Any) -> bool:
    if isinstance(hint, type) and not typing.get_args(hint):
        return issubclass(hint, torch.nn.Module)
    return any(_mentions_module(argument) for argument in typing.get_args(hint))


def _derive_config(owner: type[Module]) -> type[_Config]:
    if _init_is_derived(owner):
        raise DefinitionError(
            f"{owner.__qualname__} has no derived Config",
            found="an __init__ that is derived from its fields",
            hint="write a Config class with the values that the model is built from, and an `init` method",
        )
    takes_placement = {"device", "dtype"} <= inspect.signature(owner.__init__).parameters.keys()

    def init(self: Any, device: Any = None, dtype: torch.dtype | None = None) -> Any:
        device = None if device is None else as_device(device)
        if takes_placement:
            return owner(**field_values(self), device=device, dtype=dtype)
        return owner(**field_values(self)).to(device=device, dtype=dtype)

    return derive_config(owner, init)


def _config_in(record: Record, model: type[Module], path: str) -> _Config:
    """Return the Config in a record's metadata; its class must be imported and build `model`."""
    name, values = record.config_type, record.config
    by_hand = f"build the model yourself, then model.load_record(burnt.Record.load({path!r}))"
    if name is None or values is None:
        raise RecordError(
            f"{path} holds no Config, so {model.__name__}.load cannot build the model",
            found="a model that was not built by a Config",
            hint=f"build it as the training did: burnt.load(RUN, model={model.__name__}(...)), or {by_hand}",
        )
    configs = _configs_named(name, model)
    if not configs:
        raise RecordError(
            f"the Config that built {path} is not imported",
            expected=name,
            found=f"no such class, nor one of its name in {model.__module__}, which defines {model.__name__}",
            hint=f"import it first, pass config=, or {by_hand}",
        )
    config = next((config for config in configs if _may_build(config, model)), None)
    if config is None:
        returns = _return_type(configs[0])
        found = {None: "no init", _NOT_ANNOTATED: "an init without a return annotation"}
        raise RecordError(
            f"{path} builds no {model.__name__}",
            expected=f"{qualified_name(configs[0])}.init annotated to return {model.__name__}",
            found=found.get(returns, f"-> {getattr(returns, '__name__', returns)}"),
            hint=f"annotate it: def init(self) -> {model.__name__}; or {by_hand}"
            if returns is _NOT_ANNOTATED
            else by_hand,
        )
    return config.from_dict(values)


def _configs_named(name: str, model: type[Module]) -> list[type[_Config]]:
    """Return the imported Configs that a record's ``config_type`` may mean, the most likely one first.

    A module has different names as a script (``__main__``), as a file (``burnt train net.py:main``) and as a
    part of a package. So the Configs in the module that defines `model` are also found by
    only their own name.
    """
    if name.endswith(f".{model.__qualname__}.Config") and not _init_is_derived(model):
        return [model.Config]
    known = list(reversed(_subclasses(_Config)))
    beside = [config for config in known if config.__module__ == model.__module__]
    exact = [config for config in known if qualified_name(config) == name]
    renamed = [config for config in beside if f".{name}".endswith(f".{config.__qualname__}")]
    # Of Net.Config and Config, the longer one is meant.
    renamed.sort(key=lambda config: -len(config.__qualname__))
    return list(dict.fromkeys([*exact, *renamed[:1]]))


def _may_build(config: type[_Config], model: type[Module]) -> bool:
    """Whether a file may call the `init` of a Config in order to build `model`.

    An `init` without an annotation is trusted only in the module that defines `model`: a file must not be
    able to call any `init` in the program.
    """
    returns = _return_type(config)
    if returns is _NOT_ANNOTATED:
        return config.__module__ == model.__module__
    return isinstance(returns, type) and issubclass(returns, model)


def loading_problem(model: torch.nn.Module) -> str | None:
    """Return why `Module.load` could not build a saved model by its Config; None if it could, or has none."""
    config = getattr(model, "_built_by", None)
    if config is None or not isinstance(model, Module) or _may_build(type(config), type(model)):
        return None
    name = type(model).__name__
    return (
        f"{name}.load will not build the saved model, because {qualified_name(type(config))}.init is not "
        f"annotated to return {name}"
    )


def restore_fields(
    model: torch.nn.Module, record: Record, *, always: Collection[str] = (), by_hand: bool = True
) -> tuple[list[str], list[str]]:
    """Set static fields of burnt's modules in a model to the values that a record of it has, or none of them.

    A model that another Config has built keeps its fields, since that Config may be why they differ, except
    for those with a path in `always`. `by_hand`: fields of a model that no Config has built are set, too.
    Return a text for each field that was set, and one for each that differs and was kept.
    """
    config = getattr(model, "_built_by", None)
    same = by_hand if config is None else _record.equal_as_json(record.config, config.to_dict())
    inner = _record.unwrapped(model)
    modules = {_record.without_wrappers(path): module for path, module in inner.named_modules()}
    changes: list[tuple[Module, str, Any]] = []
    was_set, was_kept = [], []
    for path, (saved, own) in _record.static_differences(record, inner).items():
        mine = "no such field" if own is _record.ABSENT else repr(own)
        owner, _, name = path.rpartition(".")
        # Whoever builds a model by hand may leave out a Dropout.
        if not (same or path in always) or (config is None and name == "class"):
            was_kept.append(f"{path}: {saved!r} in the file, {mine} here")
            continue
        module, value = modules.get(owner), _NOT_RESTORED
        if isinstance(module, Module) and name in module._declared and not module._is_registered(name):
            value = _from_json(saved, getattr(module, name, None), _field_type(type(module), name))
        elif own is not _record.ABSENT and name != "class":  # a constant of a torch layer
            value = _from_json(saved, own, None)
        if value is _NOT_RESTORED:
            raise RecordError(
                f"{path} of the model cannot be made what it was when it was saved",
                where=path,
                expected=repr(saved),
                found=mine,
                hint="build the model with this value, and load the tensors with model.load_record(record)",
            )
        changes.append((module, name, value))  # type: ignore[arg-type]
        was_set.append(f"{path}: {saved!r} instead of {mine}")
    for module, name, value in changes:
        setattr(module, name, value)
    return was_set, was_kept


def _from_json(saved: Any, own: Any, kind: Any) -> Any:
    """Return a value of a field that JSON has made lists and texts of; `_NOT_RESTORED` if that is lost."""
    if isinstance(own, tuple) and type(own) is not tuple and isinstance(saved, list):
        return getattr(type(own), "_make", type(own))(saved)
    if isinstance(own, _Config) or (kind in (None, Any, object) and own is not None):
        kind = type(own)
    if _is_ambiguous(saved, kind):
        return _NOT_RESTORED
    try:
        value = msgspec.convert(saved, Any if kind in (None, object) else kind, str_keys=True)
    except (msgspec.ValidationError, TypeError):  # TypeError: a type that msgspec does not know
        value = _NOT_RESTORED if isinstance(saved, list | dict) else saved
    if isinstance(own, list | tuple) and isinstance(value, list | tuple):
        value = type(own)(value)  # of an annotation such as Sequence
    return value


def _is_ambiguous(saved: Any, kind: Any) -> bool:
    """Whether JSON made one of several values: the annotation does not say of which type its parts are."""
    if kind is tuple:
        return any(isinstance(part, list) for part in saved or ())
    # JSON has made texts of keys such as 1, 0.5, True and None.
    keys = saved if kind is dict and isinstance(saved, dict) else ()
    return any(key in ("true", "false", "null") or re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", key) for key in keys)


_NOT_RESTORED = object()
_NOT_ANNOTATED = object()


def _return_type(config: type[_Config]) -> Any:
    """Return the annotation of a Config's `init`; None without `init`, a text if it cannot be resolved."""
    build = getattr(config, "init", None)
    if build is None:
        return None
    try:
        # From Python 3.14 on, a wrapper does not share the annotations that were set on what it wraps.
        return typing.get_type_hints(inspect.unwrap(build)).get("return", _NOT_ANNOTATED)
    except NameError as error:
        return f"an annotation that cannot be resolved ({error})"


def _subclasses(cls: type[_Config]) -> list[type[_Config]]:
    found: list[type[_Config]] = []
    for child in cls.__subclasses__():
        found += [child, *_subclasses(child)]
    return found
