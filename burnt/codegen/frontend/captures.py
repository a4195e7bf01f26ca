"""Objects that a function captures from closures, globals and defaults, and how to notice that they changed.

A plan is valid for the objects that were captured when it was built. A capture is identified by its site (a
cell, namespace or attribute), so that a call notices another object there. Of modules, dataclass instances
and the object of a method, what they hold is captured too (`instances`). Other objects that can change
without becoming another object (lists, dicts, ...) are not supported: the eager function runs.
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

from burnt import _torch
from burnt.codegen.frontend.containers import FlatCall
from burnt.codegen.frontend.instances import InstanceState, StateReader, has_captured_state
from burnt.codegen.frontend.trace import InlinedWhenTraced

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
    "os.urandom", "torch.random.", "torch.seed", "torch.cuda.seed", "torch.cuda.random.", "torch.mps.seed",
    "torch.xpu.seed", "torch.xpu.random.",
)  # fmt: skip
# What sets or reads the state of a random generator, of any object and under any name of a module.
_GENERATOR_STATE = frozenset({
    "manual_seed", "manual_seed_all", "seed_all", "initial_seed", "fork_rng", "get_rng_state",
    "get_rng_state_all", "set_rng_state", "set_rng_state_all", "default_generator", "default_generators",
})  # fmt: skip
# Builtin functions that can change or read what the bytecode does not name.
_REFLECTIVE = frozenset({"setattr", "delattr", "vars", "globals", "exec", "eval"})
_STABLE_PACKAGES = _TRUSTED | {"numpy", "triton"} | sys.stdlib_module_names
_IS_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE
# Names whose use may read attributes that the code does not name.
_READS_ALL = frozenset({"getattr", "vars", "__dict__", "__getattribute__", "__getattr__", "attrgetter"})
# Special methods that no op on an instance calls.
_NOT_CALLED = frozenset({
    "__init_subclass__", "__set_name__", "__del__", "__repr__", "__str__", "__getstate__", "__setstate__",
    "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__", "__dir__",
})  # fmt: skip
_INITIALIZERS = frozenset({"__init__", "__new__", "__post_init__"})
_COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"})


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
        return why_unsupported_callable(fn.__func__)  # what its object holds is captured
    if isinstance(fn, FlatCall | InlinedWhenTraced):
        return why_unsupported_callable(getattr(fn, "fn", None))
    if isinstance(fn, type):
        return f"it is the class {fn.__name__}, not a function"
    return None  # the methods of a callable object are captures


CaptureSite = tuple[Any, "str | StateReader"]


def captures(fn: Callable[..., Any]) -> list[CaptureSite]:
    """Return the sites of all objects that a function and its helpers capture, as (holder, name).

    A holder is a cell (with an empty name), a namespace, the defaults of arguments (with an index), an
    instance (with a `StateReader`), or a module, class, function or property with an attribute.
    """
    return _Visitor(fn).sites()


class _Visitor:
    """Finds what a function captures: it visits the function, its helpers and the methods that they call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.found: dict[tuple[int, str], CaptureSite] = {}
        self.functions: dict[int, types.FunctionType] = {}
        self.classes: set[type] = set()  # whose methods are all visited
        self.instances: dict[int, Any] = {}
        self.called_forward: Any = None  # the module whose `forward` is the function
        self.names_read: set[str] = set()  # attributes that the code reads, of any object
        self.may_read_all = False  # it may also read others, by `getattr`
        self.compares = False  # it may compare instances
        self.visit(fn)
        visited = -1
        while visited < (visited := len(self.found) + len(self.functions) + len(self.instances)):
            for instance in list(self.instances.values()):  # what they hold may lead to others
                self.visit_attributes(instance)

    def sites(self) -> list[CaptureSite]:
        """Return all sites."""
        states: list[CaptureSite] = [
            (instance, self.state_reader(instance))
            for instance in self.instances.values()
            if not isinstance(instance, type)  # a class holds only its attributes
        ]
        return [*states, *self.found.values()]

    def state_reader(self, instance: Any) -> StateReader:
        """Return which part of an instance's state the code may read."""
        reads_all = self.may_read_all or _has_library_methods(instance)
        names = None if reads_all else frozenset(self.names_read)
        return StateReader(names, ignores_hooks=instance is self.called_forward)

    def add_site(self, holder: Any, name: str) -> Any:
        """Add a site, and what is captured through the object that is there; return that."""
        captured = read_capture(holder, name)
        if (id(holder), name) not in self.found:
            self.found[id(holder), name] = holder, name
            self.visit_value(captured)
        return captured

    def visit_value(self, value: Any) -> None:
        """Visit a captured object."""
        if has_captured_state(value):
            self.instances[id(value)] = value
        elif isinstance(value, types.FunctionType | InlinedWhenTraced):
            self.visit(value)

    def visit(self, called: Any) -> None:
        """Visit a function or another callable object."""
        if isinstance(called, FlatCall | InlinedWhenTraced):
            if hasattr(called, "fn"):  # an op of burnt has none
                self.visit(called.fn)
        elif isinstance(called, functools.partial):
            for i in range(len(called.args)):
                self.add_site(called.args, str(i))
            for name in called.keywords:
                self.add_site(called.keywords, name)
            self.visit(called.func)
        elif isinstance(called, types.MethodType):
            self.visit(called.__func__)
            self.instances[id(called.__self__)] = called.__self__
            if called.__name__ == "forward":
                self.called_forward = called.__self__
        elif isinstance(called, types.FunctionType):
            self.visit_function(called)
        elif isinstance(called, torch.nn.Module) or not (
            isinstance(called, _CALLABLES) or _package(called) in _TRUSTED
        ):
            self.instances[id(called)] = called

    def visit_function(self, function: types.FunctionType) -> None:
        """Visit the defaults, cells, globals and attributes that a function reads."""
        if id(function) in self.functions:
            return
        self.functions[id(function)] = function
        if _package(function) == "torch":
            return
        defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
        default_sites = [
            *((defaults[0], str(i)) for i in range(len(defaults[0]))),
            *((defaults[1], n) for n in defaults[1]),
        ]
        for holder, name in default_sites:
            if not isinstance(read_capture(holder, name), (*CONSTANT_TYPES, float)):
                self.add_site(holder, name)
        code = function.__code__
        for i in _instructions(code):
            if i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                self.names_read.add(i.argval)
            if _package(function) not in _STABLE_PACKAGES:
                self.may_read_all |= i.argval in _READS_ALL
                self.compares |= i.opname in ("COMPARE_OP", "CONTAINS_OP")
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for cell in cells.values():
            self.add_site(cell, "")
        for name, *attributes in sorted(set(_attribute_chains(code))):
            if name == "__class__":  # of `super()`: the instance's classes are visited
                continue
            if name in cells:
                value = read_capture(cells[name], "")
            elif name in function.__globals__:
                value = function.__globals__[name]
                if not isinstance(value, types.ModuleType):
                    self.add_site(function.__globals__, name)
            else:
                continue
            for attribute in attributes:
                missing = inspect.getattr_static(value, attribute, inspect) is inspect
                if missing or not _may_change_attributes(value):
                    break
                value = self.add_site(value, attribute)
            else:
                self.visit_class(value)

    def visit_class(self, cls: Any) -> None:
        """Visit the methods of a class that a function uses itself, and not only attributes of it."""
        if isinstance(cls, type) and _may_change_attributes(cls) and cls not in self.classes:
            self.classes.add(cls)
            for name, method in _methods_of(cls):
                if name not in _NOT_CALLED:
                    self.visit_function(method)

    def visit_attributes(self, instance: Any) -> None:
        """Visit what an instance holds, and add methods and attributes of its classes that code may use."""
        if not isinstance(instance, type):
            for value in self.state_reader(instance)(instance).values:
                self.visit_value(value)
        not_called = _NOT_CALLED | _INITIALIZERS | (frozenset() if self.compares else _COMPARISONS)
        for cls in (instance if isinstance(instance, type) else type(instance)).__mro__[:-1]:
            if _package(cls) in _STABLE_PACKAGES:
                continue
            for name, member in list(vars(cls).items()):
                is_read = self.may_read_all or name in self.names_read
                is_special = name == "forward" or (name.startswith("__") and name not in not_called)
                function_sites = _function_sites(cls, name, member)
                if function_sites and (is_read or is_special):
                    self.add_site(*function_sites[0])
                elif is_read and not name.startswith("__") and not hasattr(type(member), "__get__"):
                    self.add_site(cls, name)


def _has_library_methods(instance: Any) -> bool:
    """Whether methods that are not visited may read an instance's attributes, such as torch's."""
    bases = (object, torch.nn.Module)
    return any(_package(cls) in _TRUSTED and cls not in bases for cls in type(instance).__mro__)


def _function_sites(cls: type, name: str, member: Any) -> list[tuple[Any, str]]:
    """Return the sites of the functions that a member of a class calls, if it is a method or property."""
    if isinstance(member, types.FunctionType | InlinedWhenTraced):
        return [(cls, name)]
    if isinstance(member, staticmethod | classmethod):
        return [(member, "__func__")]
    if isinstance(member, property):
        return [(member, "fget"), (member, "fset"), (member, "fdel")]
    return [(member, "func")] if isinstance(member, functools.cached_property) else []


def read_capture(holder: Any, name: str | StateReader) -> Any:
    """Return the object at a capture site now; None for an empty cell."""
    if isinstance(name, StateReader):
        return name(holder)
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
            id(captured), captured.shape, strides, captured.dtype, captured.device,
            _torch.is_lazy(captured), captured.requires_grad,
        )  # fmt: skip
    if kind is float:
        return captured.hex()
    if kind is types.MethodType:
        return kind, id(captured.__self__), id(captured.__func__)  # each access makes another method object
    if kind is InstanceState:
        return id(captured.kind), captured.names, captured.has_hooks, *map(capture_key, captured.values)
    if kind is tuple:
        return id(captured), *map(capture_key, captured)  # the same objects may have changed inside
    if kind is types.MappingProxyType:
        return id(captured), *((key, capture_key(value)) for key, value in captured.items())
    return (kind, captured) if kind in _COMPARED_BY_VALUE else id(captured)


def why_unsupported_captures(captured_objects: Sequence[Any]) -> str | None:
    """Return why captured objects are not supported: one could change unnoticed. None if all are."""
    for captured in captured_objects:
        if isinstance(captured, InstanceState):
            reason = _why_unsupported_state(captured)
        elif not _is_immutable(captured) and not has_captured_state(captured):
            reason = f"it captures a {type(captured).__name__}, whose changes would go unnoticed"
        elif isinstance(captured, types.FunctionType | InlinedWhenTraced):
            reason = why_unsupported_callable(captured)
        else:
            reason = None
        if reason is not None:
            return reason
    return None


def _why_unsupported_state(state: InstanceState) -> str | None:
    """Return why what an instance holds is not supported: something could change unnoticed, or hooks run."""
    built_in = next((cls for cls in state.kind.__mro__[:-1] if not cls.__flags__ & _IS_PYTHON_CLASS), None)
    if built_in is not None:
        return (
            f"it captures a {state.kind.__name__}, whose changes as a {built_in.__name__} would go unnoticed"
        )
    if state.has_hooks:
        return f"it calls a {state.kind.__name__} that has hooks"
    for name, value in zip(state.names, state.values, strict=True):
        if not _is_immutable(value) and not has_captured_state(value):
            return (
                f"it captures a {type(value).__name__}, the attribute {name!r} of a {state.kind.__name__}, "
                "whose changes would go unnoticed"
            )
    return None


def _why_impure(
    function: types.FunctionType, local_object: str | None = None, examined: set[type] | None = None
) -> str | None:
    """Return which side effect or nondeterminism a function has, which a plan would lose; None if none.

    An attribute that is set while tracing would hold a tensor of the trace, without memory; those of
    `local_object`, a local variable, may be set. Methods of classes that the function uses are examined too,
    unless they are among the `examined`; functions that it calls are not.
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
        if isinstance(i.argval, str) and i.argval in _GENERATOR_STATE:
            return f"it uses {i.argval}, which sets or reads the state of a random generator"
    for name, *attributes in _attribute_chains(code):
        value = function.__globals__.get(name)
        if name == "__class__":  # of `super()`
            continue
        if name in code.co_freevars:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            value = read_capture(cells[name], "")
        elif name in _REFLECTIVE and name not in function.__globals__ and not is_stable:
            return f"it uses {name}, whose effect is not known"
        path = ".".join([value.__name__, *attributes]) if isinstance(value, types.ModuleType) else ""
        if isinstance(value, types.BuiltinMethodType | types.FunctionType):
            path = f"{value.__module__}.{value.__name__}"
            is_random = isinstance(getattr(value, "__self__", None), random.Random)
            path = f"random.{value.__name__}" if is_random else path
        if path.startswith(_NONDETERMINISTIC):
            return f"it uses {path}, which may differ at each call"
        for attribute in attributes:
            value = inspect.getattr_static(value, attribute, None) if _may_change_attributes(value) else None
        if isinstance(value, type) and _may_change_attributes(value) and value not in examined:
            examined.add(value)
            reason = _why_impure_class(value, examined)
            if reason is not None:
                return reason
    return None


def _why_impure_class(cls: type, examined: set[type]) -> str | None:
    """Return which side effect a class's own methods may have on other objects than the instance, or None."""
    for name, method in _methods_of(cls):
        is_bound = isinstance(vars(cls)[name], types.FunctionType | property | functools.cached_property)
        self_name = method.__code__.co_varnames[0] if is_bound and method.__code__.co_argcount else None
        reason = _why_impure(method, self_name, examined)
        if reason is not None:
            return reason
    return None


def _methods_of(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the names and functions of a class's own methods and properties."""
    for name, member in vars(cls).items():
        for holder, attribute in _function_sites(cls, name, member):
            function = member if holder is cls else getattr(holder, attribute)
            if isinstance(function, types.FunctionType):
                yield name, function


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
    """Yield the instructions of code, then of the functions defined in it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname != "EXTENDED_ARG":
            yield instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _may_change_attributes(value: Any) -> bool:
    """Whether an object is a module, class or function whose attributes may be rebound between calls."""
    if isinstance(value, types.ModuleType):
        return value.__name__.split(".")[0] not in _STABLE_PACKAGES
    functions = types.FunctionType | InlinedWhenTraced
    if isinstance(value, enum.EnumType) or not isinstance(value, type | functions):
        return False
    return _package(value) not in _STABLE_PACKAGES


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
    is_default_factory = type(value).__module__ == "dataclasses"  # the mark of a field's, in ``__init__``
    return is_default_factory or isinstance(value, _IMMUTABLE_TYPES)


def _package(value: object) -> str:
    return (getattr(value, "__module__", None) or "").split(".")[0]
