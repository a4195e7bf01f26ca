"""Undo what a run on meta tensors leaves behind in state outside of the model.

User code caches tensors: in `functools.lru_cache`, in a global dictionary, on a class, in a closure. A meta
tensor there would be used by the training that follows, and fail. While a run is under way, no mode of torch
can tell a tensor that is going to be cached from another, and a run on real tensors would need the model's
memory and time. So the state that code can reach by the names it mentions is noted when the code is first
executed. If the run leaves meta tensors in it, all of it is put back, as if the run had not been: a flag that
says that a table is filled must not outlive the table.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["without_meta_leaks"]

# Packages whose own state is not looked into, as that of the standard library. What they hold of the user's
# is: closures, bound methods.
_EXCLUDED = frozenset({"burnt", "numpy", "torch", "triton"})
# Standard classes that hold the user's objects.
_HOLDER_MODULES = frozenset({"_thread", "collections", "functools", "types", "weakref"})
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CACHE: Any = type(functools.lru_cache(len))
_MISSING: Any = object()
_EMPTY_CELL: Any = object()

_Restore = Callable[[Any, Any], None]  # of a slot's key and its earlier value


@contextmanager
def without_meta_leaks(*roots: Any) -> Iterator[Callable[[], None]]:
    """Context for a run on meta tensors: if it leaves some in state that code can reach, undo its changes.

    The state is: global variables, attributes of modules, classes, functions and objects, closures, default
    arguments, and the containers in them. Of `functools` caches only those that hold meta tensors are
    cleared, since single entries cannot be removed. State of the standard library, NumPy, torch and burnt is
    not changed, nor is what code reaches otherwise than by names, such as by `getattr` with a string.

    Args:
        roots: the model, and what else is called.

    Yields:
        a function that ends the search for state, which slows Python down: for further runs of the same code.
    """
    reached = _Reached(roots)
    # A debugger or a measurement of coverage may use the one hook, a profiler the other.
    install = next((s for g, s in _HOOKS if g() is None), None)

    def stop() -> None:
        nonlocal install
        if install is not None:
            install(None)
        install = None

    if install is not None:
        install(reached.on_event)
    try:
        yield stop
    finally:
        stop()
        reached.restore()


_HOOKS: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
)


class _Slots:
    """A holder of values (namespace, class, object, container or closure), and its values before the run."""

    def __init__(self, read: Callable[[], dict[Any, Any]], write: _Restore, before: dict[Any, Any]) -> None:
        self.read, self.write, self.before = read, write, before

    def changes(self) -> list[tuple[Any, Any]]:
        """Return the keys whose values are other objects now, with these; `_MISSING` if there is none."""
        now = self.read()
        now = dict([*dict.items(now)])
        changed = [(k, now.get(k, _MISSING)) for k, v in self.before.items() if now.get(k, _MISSING) is not v]
        return changed + [(k, v) for k, v in now.items() if k not in self.before]

    def restore(self, key: Any) -> None:
        """Put the earlier value of a key back, or remove the key."""
        self.write(key, self.before.get(key, _MISSING))


class _Reached:
    """The state that executed code can reach by the names it mentions, as it was when first reached."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.slots: list[_Slots] = []
        self.sequences: list[tuple[Any, Any]] = []
        self.caches: list[tuple[Any, int]] = []
        self._seen: dict[int, Any] = {}  # by id; the objects are kept alive, so that ids stay theirs
        self._executed: dict[int, types.CodeType] = {}
        self._namespaces: dict[int, dict[str, Any]] = {}  # by id: the values of the names mentioned
        self._pending: list[Any] = []
        self._follow_all(roots)

    def on_event(self, frame: types.FrameType, event: str, arg: object) -> None:
        """Hook of `sys.settrace` or `sys.setprofile`: follow the names of code when it is first executed."""
        code = frame.f_code
        if event != "call" or id(code) in self._executed:
            return
        self._executed[id(code)] = code
        namespace = frame.f_globals
        # Not by __module__: decorators copy it from the function that they wrap.
        if not _is_excluded(namespace.get("__name__")):
            names = code.co_names
            self._add_names(namespace, names)
            # What code imports itself: its names are those of modules, from a package on.
            parts = (namespace.get("__package__") or "").split(".")
            prefixes = ["", *itertools.accumulate(f"{part}." for part in parts)]
            imported = (sys.modules.get(prefix + name) for prefix in prefixes for name in names)
            self._follow_all([module for module in imported if module is not None], names)

    # --- following ------------------------------------------------------------------------------------------

    def _follow_all(self, values: Iterable[Any], names: Iterable[str] = ()) -> None:
        """Follow values; of modules, the attributes that have one of these names."""
        followed_modules: set[int] = set()
        self._pending += values
        while self._pending:
            value = self._pending.pop()
            if not issubclass(type(value), types.ModuleType):
                self._follow(value)
            elif id(value) not in followed_modules and not _is_excluded(vars(value).get("__name__")):
                followed_modules.add(id(value))
                self._add_names(vars(value), names)

    def _add_names(self, namespace: dict[str, Any], names: Iterable[str]) -> None:
        """Note the values of global variables or attributes of a module; they are followed next."""
        noted = self._namespaces.get(id(namespace))
        if noted is None:
            noted = self._namespaces[id(namespace)] = {}
            self.slots.append(_Slots(_names_reader(namespace, noted), _dict_writer(namespace), noted))
        for name in names:
            value = namespace.get(name, _MISSING)
            if name not in noted:
                noted[name] = value
                self._pending.append(value)
            elif issubclass(type(value), types.ModuleType):
                self._pending.append(value)  # other code may mention other attributes of it

    def _follow(self, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS or id(value) in self._seen or issubclass(kind, Tensor):
            return
        self._seen[id(value)] = value
        if kind is types.FunctionType:
            self._follow_function(value)
        elif issubclass(kind, type):
            self._follow_class(value)
        elif kind is _CACHE:
            self.caches.append((value, value.cache_info().misses))
            self._pending += (getattr(value, "__wrapped__", None), *_cached_values(value))
        elif issubclass(kind, dict):
            self._add_dict(value)
        elif _is_sequence(kind):
            if not issubclass(kind, tuple | frozenset):
                self.sequences.append((value, tuple(value)))
            self._pending += value
        elif kind is types.MethodType:
            self._pending += (value.__self__, value.__func__)
        elif issubclass(kind, staticmethod | classmethod):
            self._pending.append(value.__func__)
        elif issubclass(kind, property):
            self._pending += (value.fget, value.fset)
        elif issubclass(kind, functools.partial):
            self._pending += (value.func, value.args, value.keywords, vars(value))
        else:
            self._follow_object(value)

    def _follow_function(self, function: types.FunctionType) -> None:
        cells = function.__closure__ or ()
        if cells:
            self.slots.append(_Slots(lambda: _read_cells(cells), _cell_writer(cells), _read_cells(cells)))
        self._pending += [_read_cell(cell) for cell in cells]
        self._pending += [function.__defaults__, function.__kwdefaults__, vars(function)]

    def _follow_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if not _is_excluded(base.__module__) and (base is cls or id(base) not in self._seen):
                self._seen[id(base)] = base
                members = dict(vars(base))
                self.slots.append(_Slots(_class_reader(base), _attribute_writer(base), members))
                self._pending += members.values()

    def _follow_object(self, value: Any) -> None:
        cls = type(value)
        attributes = _attributes_of(value)
        is_module = issubclass(cls, nn.Module)
        if is_module or not _is_excluded(cls.__module__) or cls.__module__ in _HOLDER_MODULES:
            self._pending += (attributes, cls)
            members = _slot_members(cls)
            if members:
                read = functools.partial(_read_slots, value, members)
                self.slots.append(_Slots(read, _slot_writer(value, members), read()))
                self._pending += read().values()
        elif attributes is not None and "__wrapped__" in attributes:  # a decorated function
            self._pending.append(attributes["__wrapped__"])

    def _add_dict(self, values: dict[Any, Any]) -> None:
        # By dict's own methods: a subclass may import a module for each of its values.
        before = dict([*dict.items(values)])
        self.slots.append(_Slots(lambda: values, _dict_writer(values), before))
        self._pending += before.values()

    # --- restoring ------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Undo all changes, if there are meta tensors among them."""
        changes = [(slots, key, value) for slots in self.slots for key, value in slots.changes()]
        changed_sequences = [
            (now, before) for now, before in self.sequences if [*map(id, now)] != [*map(id, before)]
        ]
        values = [value for _, _, value in changes] + [now for now, _ in changed_sequences]
        if self._hold_meta(values):
            for slots, key, _ in changes:
                slots.restore(key)
            for now, before in changed_sequences:
                now.clear()
                (now.update if isinstance(now, set) else now.extend)(before)
        for cache, misses in self.caches:
            if cache.cache_info().misses != misses and self._hold_meta(_cached_values(cache)):
                cache.cache_clear()

    def _hold_meta(self, values: Iterable[Any]) -> bool:
        """Whether there are meta tensors in values, outside of objects that were followed before the run."""
        pending, seen = list(values), set[int]()
        while pending:
            value = pending.pop()
            kind = type(value)
            if issubclass(kind, Tensor):
                if value.is_meta:
                    return True
            elif kind not in _ATOMS and id(value) not in seen:
                seen.add(id(value))
                if issubclass(kind, dict):
                    pending += dict.values(value)
                elif _is_sequence(kind):
                    pending += value
                elif id(value) in self._seen or issubclass(kind, type | types.ModuleType):
                    continue
                elif kind is types.FunctionType:
                    pending += [_read_cell(cell) for cell in value.__closure__ or ()]
                elif kind is _CACHE:
                    pending += _cached_values(value)
                elif kind in (types.MethodType, functools.partial):
                    pending += gc.get_referents(value)
                else:
                    pending.append(_attributes_of(value))
                    pending += _read_slots(value, _slot_members(kind)).values()
        return False


# --- slots ----------------------------------------------------------------------------------------------


def _read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty: it is assigned later
        return _EMPTY_CELL


def _read_cells(cells: tuple[types.CellType, ...]) -> dict[Any, Any]:
    return {i: _read_cell(cell) for i, cell in enumerate(cells)}


def _cell_writer(cells: tuple[types.CellType, ...]) -> _Restore:
    def write(key: int, value: Any) -> None:
        if value is _EMPTY_CELL:
            del cells[key].cell_contents
        else:
            cells[key].cell_contents = value

    return write


def _names_reader(namespace: dict[str, Any], names: Iterable[str]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: namespace[name] for name in names if name in namespace}


def _dict_writer(values: dict[Any, Any]) -> _Restore:
    def write(key: Any, value: Any) -> None:
        if value is _MISSING:
            values.pop(key, None)
        else:
            values[key] = value

    return write


def _class_reader(cls: type) -> Callable[[], dict[str, Any]]:
    return lambda: dict(vars(cls))


def _attribute_writer(cls: type) -> _Restore:
    def write(key: str, value: Any) -> None:
        if value is _MISSING:
            type.__delattr__(cls, key)
        else:
            type.__setattr__(cls, key, value)

    return write


def _slot_members(cls: type) -> dict[str, Any]:
    """Return the descriptors of the ``__slots__`` of a class."""
    bases = [vars(base) for base in cls.__mro__ if not _is_excluded(base.__module__)]
    return {
        name: member
        for members in bases
        for name, member in members.items()
        if type(member) is types.MemberDescriptorType
    }


def _read_slots(value: Any, members: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for name, member in members.items():
        with suppress(AttributeError):  # it has no value yet
            values[name] = member.__get__(value)
    return values


def _slot_writer(value: Any, members: dict[str, Any]) -> _Restore:
    def write(key: str, earlier: Any) -> None:
        if earlier is _MISSING:
            members[key].__delete__(value)
        else:
            members[key].__set__(value, earlier)

    return write


# --- objects --------------------------------------------------------------------------------------------


def _is_sequence(cls: type) -> bool:
    """Whether a class is a built-in container of elements, and iterates as one."""
    builtin = (list, tuple, set, frozenset, deque)
    return any(issubclass(cls, base) and cls.__iter__ is base.__iter__ for base in builtin)


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__``; None if it has none of its own."""
    has_dict = any("__dict__" in vars(base) for base in type(value).__mro__)
    if not has_dict and not issubclass(type(value), threading.local):
        return None
    try:
        attributes = value.__dict__
    except Exception:  # a proxy for another object may raise anything
        return None
    return attributes if type(attributes) is dict else None


def _cached_values(cache: Any) -> list[Any]:
    """Return what a `functools.lru_cache` holds, which only the garbage collector tells."""
    function = getattr(cache, "__wrapped__", None)
    values: list[Any] = []
    for referent in gc.get_referents(cache):
        # Without a limit of entries, there is a dictionary of results; with one, the results are listed.
        values += referent.values() if type(referent) is dict else [referent]
    return [value for value in values if value is not function]


@functools.cache
def _is_excluded(module: Any) -> bool:
    """Whether the state of a module, given by its name, is not looked into."""
    package = module.partition(".")[0] if isinstance(module, str) else "builtins"
    if package not in sys.stdlib_module_names:
        return package in _EXCLUDED
    # A user's module may have the name of one of the standard library, such as "test" or "code".
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is None or Path(file).is_relative_to(Path(os.__file__).parent)
