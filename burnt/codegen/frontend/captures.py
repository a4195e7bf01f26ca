"""Objects that a function captures from closures, globals and defaults, and how to notice that they changed.

A plan is valid for the objects that were captured when it was built. A capture is identified by its site (a
cell, namespace or attribute), so that a call notices another object there. Objects that can change without
becoming another object (lists, instances, ...) are not supported: the eager function runs.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.frontend.trace import InlinedWhenTraced

__all__ = [
    "CONSTANT_TYPES",
    "capture_key",
    "captures",
    "copy_partial",
    "read_capture",
    "why_unsupported_callable",
    "why_unsupported_captures",
]

_COMPARED_BY_VALUE = frozenset({bool, int, str, type(None)})
CONSTANT_TYPES = (bool, int, str, type(None), torch.dtype, torch.device, torch.memory_format)
_CALLABLES = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, InlinedWhenTraced)
_IMMUTABLE_TYPES = (
    *CONSTANT_TYPES,
    *_CALLABLES,
    float,
    Tensor,
    type,
    types.ModuleType,
    enum.Enum,
    slice,
    range,
)
# Packages whose functions, modules and classes are assumed to be pure and not to change.
_TRUSTED = frozenset({"torch", "burnt"})
# Names whose value differs from call to call.
_NONDETERMINISTIC = (
    "random.", "time.", "secrets.", "uuid.", "datetime.", "numpy.random.", "os.environ", "os.getenv",
    "os.urandom",
)  # fmt: skip
# Builtin functions that can change or read what the bytecode does not name.
_REFLECTIVE = frozenset({"setattr", "delattr", "vars", "globals", "exec", "eval"})
_STABLE_PACKAGES = _TRUSTED | {"numpy", "triton"} | sys.stdlib_module_names


def copy_partial(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a `functools.partial`, so that nobody else can change it; return other callables as they are."""
    return functools.partial(fn.func, *fn.args, **fn.keywords) if isinstance(fn, functools.partial) else fn


def why_unsupported_callable(fn: Any) -> str | None:
    """Return why plans cannot be made for a callable; None if they can."""
    if isinstance(fn, types.FunctionType):
        return _why_impure(fn)
    if isinstance(fn, functools.partial):
        return why_unsupported_callable(fn.func)  # the bound arguments are captures
    if isinstance(fn, types.MethodType):
        kind = f"method of a {type(fn.__self__).__name__}"
    elif isinstance(fn, torch.nn.Module | type):
        kind = type(fn).__name__
    elif isinstance(fn, _CALLABLES) or _package(fn) in _TRUSTED:
        return None
    else:
        return next(filter(None, map(_why_impure_class, type(fn).__mro__[:-1])), None)
    return f"it is a {kind}, not a function: changes of its attributes would go unnoticed"


def captures(fn: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Return the sites of all objects that a function and its helpers capture, as (holder, name).

    A holder is a cell (with an empty name), a namespace, the defaults of arguments (with an index), or a
    module, class, function or callable object with an attribute.
    """
    sites: list[tuple[Any, str]] = []
    seen: set[types.CodeType] = set()
    classes: set[type] = set()

    def add_site(holder: Any, name: str) -> Any:
        sites.append((holder, name))
        captured = read_capture(holder, name)
        visit(captured)
        return captured

    def visit(function: Any) -> None:
        if isinstance(function, InlinedWhenTraced):
            function = getattr(function, "fn", None)
        if not isinstance(function, types.FunctionType) or function.__code__ in seen:
            return
        seen.add(function.__code__)
        if _package(function) == "torch":
            return
        defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
        default_sites = [
            *((defaults[0], str(i)) for i in range(len(defaults[0]))),
            *((defaults[1], n) for n in defaults[1]),
        ]
        for holder, name in default_sites:
            if not isinstance(read_capture(holder, name), (*CONSTANT_TYPES, float)):
                add_site(holder, name)
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            add_site(cell, "")
        for name, *attributes in sorted(set(_attribute_chains(code))):
            if name in cells:
                value = read_capture(cells[name], "")
            elif name in function.__globals__:
                value = function.__globals__[name]
                if not isinstance(value, types.ModuleType):
                    add_site(function.__globals__, name)
            else:
                continue
            for attribute in attributes:
                if not _may_change_attributes(value) or not _has_attribute(value, attribute):
                    break
                value = add_site(value, attribute)
            else:
                visit_class(value)

    def visit_class(cls: Any) -> None:
        """Visit the methods of a class that a function uses itself, and not only attributes of it."""
        if isinstance(cls, type) and _may_change_attributes(cls) and cls not in classes:
            classes.add(cls)
            for _, method in _methods_of(cls):
                visit(method)

    called = fn.func if isinstance(fn, functools.partial) else fn
    if isinstance(fn, functools.partial):
        for i in range(len(fn.args)):
            add_site(fn.args, str(i))
        for name in fn.keywords:
            add_site(fn.keywords, name)
    visit(called)
    if not isinstance(called, (*_CALLABLES, types.MethodType)) and _package(called) not in _TRUSTED:
        for name in _data_attributes(called):
            add_site(called, name)
        for cls in type(called).__mro__[:-1]:
            for _, method in _methods_of(cls):
                visit(method)
    return list({(id(holder), name): (holder, name) for holder, name in sites}.values())


def read_capture(holder: Any, name: str) -> Any:
    """Return the object at a capture site now; None for an empty cell."""
    if type(holder) is dict:
        return holder.get(name)
    if type(holder) is tuple:
        return holder[int(name)]
    if name:
        return getattr(holder, name, None)
    try:
        return holder.cell_contents
    except ValueError:
        return None


def capture_key(captured: Any) -> Any:
    """Return what a signature holds for a captured object; 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(captured)
    if kind is Tensor or kind is torch.nn.Parameter:
        # The same tensor object may get other memory and another layout, as in `module.double()`.
        strides = captured.stride() if captured.layout is torch.strided else None
        return (
            id(captured), captured.shape, strides, captured.dtype, captured.device, captured.is_neg(),
            captured.requires_grad,
        )  # fmt: skip
    if kind is float:
        return captured.hex()
    if kind is types.MethodType:
        return kind, id(captured.__self__), id(captured.__func__)  # each access makes another method object
    if kind is tuple:
        return id(captured), *map(capture_key, captured)  # the same objects may have changed inside
    if kind is types.MappingProxyType:
        return id(captured), *((key, capture_key(value)) for key, value in captured.items())
    return (kind, captured) if kind in _COMPARED_BY_VALUE else id(captured)


def why_unsupported_captures(captured_objects: Sequence[Any]) -> str | None:
    """Return why captured objects are not supported: one could change unnoticed. None if all are."""
    for captured in captured_objects:
        if not _is_immutable(captured):
            return f"it captures a {type(captured).__name__}, whose changes would go unnoticed"
        function = getattr(captured, "fn", None) if isinstance(captured, InlinedWhenTraced) else captured
        reason = _why_impure(function) if isinstance(function, types.FunctionType) else None
        if reason is not None:
            return reason
    return None


def _why_impure(
    function: types.FunctionType, local_object: str | None = None, examined: set[type] | None = None
) -> str | None:
    """Return which side effect or nondeterminism a function has, which a plan would lose; None if none.

    An attribute that is set while tracing would hold a tensor of the trace, without memory.

    Args:
        function: the function. Methods of classes that it uses are examined too, functions that it calls are
            not.
        local_object: the name of a local variable whose attributes may be set.
        examined: classes that need not be examined again; more are added.
    """
    examined = set() if examined is None else examined
    package = _package(function)
    if package in _TRUSTED:
        return None
    code = function.__code__
    is_stable = package in _STABLE_PACKAGES
    receiver = None
    for i in _instructions(code):
        if i.opname == "STORE_GLOBAL" or (i.opname == "STORE_DEREF" and i.argval in code.co_freevars):
            return f"it assigns to {i.argval!r}, a global or a variable of an enclosing function"
        is_store = i.opname in ("STORE_ATTR", "DELETE_ATTR") and not is_stable
        if is_store and (receiver is None or receiver != local_object):
            return f"it assigns to the attribute {i.argval!r}, which a plan would not do"
        receiver = i.argval if i.opname == "LOAD_FAST" else None
    for name, *attributes in _attribute_chains(code):
        value = function.__globals__.get(name)
        if name in code.co_freevars:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            value = read_capture(cells[name], "")
        elif name in _REFLECTIVE and name not in function.__globals__ and not is_stable:
            return f"it uses {name}, whose effect is not known"
        path = ".".join([value.__name__, *attributes]) if isinstance(value, types.ModuleType) else ""
        if isinstance(value, types.BuiltinMethodType):
            path = f"{value.__module__}.{value.__name__}"
            path = f"random.{value.__name__}" if isinstance(value.__self__, random.Random) else path
        if path.startswith(_NONDETERMINISTIC):
            return f"it uses {path}, which may differ at each call"
        for attribute in attributes:
            value = inspect.getattr_static(value, attribute, None) if _may_change_attributes(value) else None
        if isinstance(value, type) and _may_change_attributes(value) and value not in examined:
            examined.add(value)
            reason = _why_impure_class(value, is_instance_local=True, examined=examined)
            if reason is not None:
                return reason
    return None


def _why_impure_class(
    cls: type, *, is_instance_local: bool = False, examined: set[type] | None = None
) -> str | None:
    """Return which side effect a class's methods may have; None if none.

    Args:
        cls: the class; its bases are not examined.
        is_instance_local: the function makes the instance, so that methods may set its attributes. Otherwise
            it is made before, by ``__init__``.
        examined: classes that need not be examined again; more are added.
    """
    for name, method in _methods_of(cls):
        member = vars(cls)[name]
        if is_instance_local:
            is_bound = isinstance(member, types.FunctionType | property | functools.cached_property)
            self_name = method.__code__.co_varnames[0] if is_bound and method.__code__.co_argcount else None
            reason = _why_impure(method, self_name, examined)
        elif isinstance(member, functools.cached_property):
            reason = f"it has a cached property, {name!r}"
        else:
            reason = None if name in ("__init__", "__new__") else _why_impure(method, None, examined)
        if reason is not None:
            return reason
    return None


def _methods_of(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the names and functions of a class's own methods and properties."""
    for name, member in vars(cls).items():
        parts: tuple[Any, ...] = (member,)
        if isinstance(member, staticmethod | classmethod):
            parts = (member.__func__,)
        elif isinstance(member, property):
            parts = (member.fget, member.fset, member.fdel)
        elif isinstance(member, functools.cached_property):
            parts = (member.func,)
        yield from ((name, part) for part in parts if isinstance(part, types.FunctionType))


def _attribute_chains(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the global and enclosing names that code reads, each with the attributes read from it in turn."""
    chain: list[str] = []
    for i in _instructions(code):
        if chain and i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain.append(i.argval)
            continue
        if chain:
            yield tuple(chain)
        chain = [i.argval] if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") else []
    if chain:
        yield tuple(chain)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of code, then those of the functions defined in it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname != "EXTENDED_ARG":
            yield instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _data_attributes(instance: Any) -> list[str]:
    """Return the names of an object's data attributes, including those of its classes."""
    data_types = (types.MemberDescriptorType, *CONSTANT_TYPES, float, Tensor, list, dict, set, tuple)
    of_classes = [
        name
        for cls in type(instance).__mro__[:-1]
        for name, value in vars(cls).items()
        if isinstance(value, data_types) and not name.startswith("__")
    ]
    return sorted({*getattr(instance, "__dict__", ()), *of_classes})


def _may_change_attributes(value: Any) -> bool:
    """Whether an object is a module, class or function whose attributes may be rebound between calls."""
    if isinstance(value, types.ModuleType):
        return value.__name__.split(".")[0] not in _STABLE_PACKAGES
    functions = types.FunctionType | InlinedWhenTraced
    if isinstance(value, enum.EnumType) or not isinstance(value, type | functions):
        return False
    return _package(value) not in _STABLE_PACKAGES


def _has_attribute(value: Any, name: str) -> bool:
    return inspect.getattr_static(value, name, inspect) is not inspect


def _is_immutable(value: Any) -> bool:
    """Whether a captured object is safe to build into a plan: it changes only by becoming another object."""
    if isinstance(value, tuple):
        # The captures of functions in it are not examined, so only torch's and burnt's functions are allowed.
        functions = (types.FunctionType, InlinedWhenTraced)
        return all(_package(c) in _TRUSTED if isinstance(c, functions) else _is_immutable(c) for c in value)
    if isinstance(value, types.MappingProxyType):  # a read-only table; its owner is trusted not to change it
        return _is_immutable(tuple(value.values()))
    if isinstance(value, types.MethodType):
        return _package(value) in _STABLE_PACKAGES  # what it reads from its class or instance is not examined
    return isinstance(value, _IMMUTABLE_TYPES)


def _package(value: object) -> str:
    """Return the top-level package that an object is defined in."""
    return (getattr(value, "__module__", None) or "").split(".")[0]
