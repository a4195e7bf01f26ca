"""What a function finds that is no argument, and whether a change of it would be noticed.

A plan is right for what was captured when it was made. Captures are known by where they are found, a cell, a
namespace or an attribute, so that another object in the same place is noticed at a call; objects that may
change and stay the same are refused, and the eager function runs.
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

__all__ = ["SIMPLE", "captures", "content", "identity", "own", "unsuited_callable", "unsuited_captures"]

_NUMBERS = frozenset({bool, int, str, type(None)})
SIMPLE = (bool, int, str, type(None), torch.dtype, torch.device, torch.memory_format)
_CALLED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, InlinedWhenTraced)
_FIXED = (*SIMPLE, *_CALLED, float, Tensor, type, types.ModuleType, enum.Enum, slice, range)
# Packages whose modules and classes are taken as they are.
_OURS = frozenset({"torch", "burnt"})
# What is another at each call.
_CHANGING = (
    "random.", "time.", "secrets.", "uuid.", "datetime.", "numpy.random.", "os.environ", "os.getenv",
    "os.urandom",
)  # fmt: skip
_KNOWN = _OURS | {"numpy", "triton"} | sys.stdlib_module_names


def own(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or a copy of one whose arguments are given in part: nobody else can change that."""
    return functools.partial(fn.func, *fn.args, **fn.keywords) if isinstance(fn, functools.partial) else fn


def unsuited_callable(fn: Any) -> str | None:
    """Why what is called is no function that can be relied on; None where it can."""
    if isinstance(fn, types.FunctionType):
        return _impure(fn)
    if isinstance(fn, functools.partial):
        return unsuited_callable(fn.func)  # what is given is captured
    if isinstance(fn, types.MethodType):
        kind = f"method of a {type(fn.__self__).__name__}"
    elif isinstance(fn, torch.nn.Module | type):
        kind = type(fn).__name__
    else:
        return None
    return f"it is a {kind} and no function: changes of what it holds would go unnoticed"


def captures(fn: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Where a function finds what is no argument, its own and its helpers': holders, and names in them.

    A holder is a cell (with an empty name), a namespace, the defaults of arguments (with an index), or a
    module, class, function or callable object with an attribute.
    """
    found: list[tuple[Any, str]] = []
    seen: set[types.CodeType] = set()

    def take(holder: Any, name: str) -> Any:
        found.append((holder, name))
        taken = content(holder, name)
        look(taken)
        return taken

    def look(function: Any) -> None:
        if isinstance(function, InlinedWhenTraced):
            function = getattr(function, "fn", None)
        if not isinstance(function, types.FunctionType) or function.__code__ in seen:
            return
        seen.add(function.__code__)
        if _package(function) == "torch":
            return
        defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
        places = [
            *((defaults[0], str(i)) for i in range(len(defaults[0]))),
            *((defaults[1], n) for n in defaults[1]),
        ]
        for holder, name in places:
            if not isinstance(content(holder, name), (*SIMPLE, float)):
                take(holder, name)
        code = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            take(cell, "")
        for name, *attributes in sorted(set(_chains(code))):
            if name in cells:
                held = content(cells[name], "")
            elif name in function.__globals__:
                held = function.__globals__[name]
                if not isinstance(held, types.ModuleType):
                    take(function.__globals__, name)
            else:
                continue
            for attribute in attributes:
                if not _is_open(held) or not _has(held, attribute):
                    break
                held = take(held, attribute)

    called = fn.func if isinstance(fn, functools.partial) else fn
    if isinstance(fn, functools.partial):
        for i in range(len(fn.args)):
            take(fn.args, str(i))
        for name in fn.keywords:
            take(fn.keywords, name)
    look(called)
    if not isinstance(called, (*_CALLED, types.MethodType)) and _package(called) not in _OURS:
        for name in _attributes(called):
            take(called, name)
        for cls in type(called).__mro__[:-1]:
            for value in vars(cls).values():
                look(value)
    return list({(id(holder), name): (holder, name) for holder, name in found}.values())


def content(holder: Any, name: str) -> Any:
    """What is there now; None in a cell that is not filled yet."""
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


def identity(held: Any) -> Any:
    """What a signature knows a capture by. 1, 1.0 and True are three, and so are 0.0 and -0.0 two."""
    kind = type(held)
    if kind is Tensor or kind is torch.nn.Parameter:
        # Of the same object memory and layout may be others, as `module.double()` makes them.
        strides = held.stride() if held.layout is torch.strided else None
        return id(held), held.shape, strides, held.dtype, held.device, held.is_neg(), held.requires_grad
    if kind is float:
        return held.hex()
    if kind is types.MethodType:
        return kind, id(held.__self__), id(held.__func__)  # another object at each look
    if kind is tuple:
        return id(held), *map(identity, held)  # of the same objects, which need not be the same inside
    if kind is types.MappingProxyType:
        return id(held), *((key, identity(value)) for key, value in held.items())
    return (kind, held) if kind in _NUMBERS else id(held)


def unsuited_captures(held: Sequence[Any]) -> str | None:
    """Why a capture cannot be relied on: its contents may change without its being another object."""
    for each in held:
        if not _is_fixed(each):
            return f"it captures a {type(each).__name__}, whose changes would go unnoticed"
        function = getattr(each, "fn", None) if isinstance(each, InlinedWhenTraced) else each
        why = _impure(function) if isinstance(function, types.FunctionType) else None
        if why is not None:
            return why
    return None


def _impure(function: types.FunctionType) -> str | None:
    """What a function does besides computing, which a plan would do once or never; None if nothing."""
    if _package(function) in _OURS:
        return None
    code = function.__code__
    for i in _instructions(code):
        if i.opname == "STORE_GLOBAL" or (i.opname == "STORE_DEREF" and i.argval in code.co_freevars):
            return f"it gives {i.argval!r}, which is not its own, another value"
    for name, *attributes in _chains(code):
        held = function.__globals__.get(name)
        if name in code.co_freevars:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            held = content(cells[name], "")
        path = ".".join([held.__name__, *attributes]) if isinstance(held, types.ModuleType) else ""
        if isinstance(held, types.BuiltinMethodType):
            path = f"{held.__module__}.{held.__name__}"
            path = f"random.{held.__name__}" if isinstance(held.__self__, random.Random) else path
        if path.startswith(_CHANGING):
            return f"it asks for {path}, which is another at each call"
    return None


def _chains(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """The names that code looks up outside of itself, each with the attributes that it takes of it."""
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
    """What code does, and then what the functions inside of it do."""
    for instruction in dis.get_instructions(code):
        if instruction.opname != "EXTENDED_ARG":
            yield instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _attributes(held: Any) -> list[str]:
    """The names of an object's data, its classes' included."""
    data = (types.MemberDescriptorType, *SIMPLE, float, Tensor, list, dict, set, tuple)
    of_classes = [
        name
        for cls in type(held).__mro__[:-1]
        for name, value in vars(cls).items()
        if isinstance(value, data) and not name.startswith("__")
    ]
    return sorted({*getattr(held, "__dict__", ()), *of_classes})


def _is_open(held: Any) -> bool:
    """Whether attributes of an object may be others at the next call: a module's, class' or function's."""
    if isinstance(held, types.ModuleType):
        return held.__name__.split(".")[0] not in _KNOWN
    if isinstance(held, enum.EnumType) or not isinstance(held, type | types.FunctionType):
        return False
    return _package(held) not in _KNOWN


def _has(held: Any, name: str) -> bool:
    return inspect.getattr_static(held, name, inspect) is not inspect


def _is_fixed(held: Any) -> bool:
    if isinstance(held, tuple):
        # What functions inside of it capture is not looked at; those of torch and burnt are what they are.
        inner = (types.FunctionType, InlinedWhenTraced)
        return all(_package(c) in _OURS if isinstance(c, inner) else _is_fixed(c) for c in held)
    if isinstance(held, types.MappingProxyType):  # a table that is meant to stay as it is
        return _is_fixed(tuple(held.values()))
    if isinstance(held, types.MethodType):
        return _package(held) in _KNOWN  # what it reads of its class or instance is not looked at
    return isinstance(held, _FIXED)


def _package(held: object) -> str:
    """The package that an object is defined in."""
    return (getattr(held, "__module__", None) or "").split(".")[0]
