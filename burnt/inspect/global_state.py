"""Undo what a run on meta tensors leaves behind in state outside of the model.

User code caches tensors: in `functools.lru_cache`, in a global dictionary, on a class, in a closure. A meta
tensor there would be used by the training that follows, and fail. While a run is under way, no mode of torch
can tell a tensor that is going to be cached from another, and a run on real tensors would need the model's
memory and time. So the state that code can reach by the names it mentions is noted when the code is first
executed. If the run leaves meta tensors in the state of a package, all of that is put back, as if the run had
not been: a flag that says that a table is filled must not outlive the table. What an import changes stays,
since the module stays imported.
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

# Packages whose own state is not looked into, as that of the standard library. What they hold of the user's
# is: closures, bound methods.
_EXCLUDED = frozenset({"burnt", "numpy", "torch", "triton"})
# Standard classes that hold the user's objects.
_HOLDER_MODULES = frozenset({"_thread", "collections", "functools", "types", "weakref"})
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CACHE: Any = type(functools.lru_cache(len))
_MISSING: Any = object()
_EMPTY_CELL: Any = object()

_Write = Callable[[Any, Any], None]


@contextmanager
def without_meta_leaks(*roots: Any) -> Iterator[Callable[[], None]]:
    """Context for a run on meta tensors: if it leaves some in state that code can reach, undo its changes.

    The state is: global variables, attributes of modules, classes, functions and objects, closures, default
    arguments, and the containers in them. Of `functools` caches only those that hold meta tensors are
    cleared, since single entries cannot be removed. State of the standard library, NumPy, torch and burnt is
    not changed, nor are objects that code reaches otherwise than by names, as by `getattr` with a string.

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
    """A holder of values (namespace, class, object, container or closure), and its values before the run.

    Args:
        package: of the code that holds or names it.
        read: returns the values now, by key.
        write: sets the value of a key; `_MISSING` removes it.
        before: the values before the run.
    """

    def __init__(
        self, package: str, read: Callable[[], dict[Any, Any]], write: _Write, before: dict[Any, Any]
    ) -> None:
        self.package, self.read, self.write, self.before = package, read, write, before

    def values(self) -> dict[Any, Any]:
        """Return a copy of the values now."""
        # By dict's own methods: a subclass may import a module for each of its values.
        return dict([*dict.items(self.read())])

    def changes(self) -> list[tuple[Any, Any]]:
        """Return the keys whose values are other objects now, with these; `_MISSING` if there is none."""
        return _differences(self.before, self.values())

    def restore(self) -> None:
        """Put the earlier values back."""
        for key, _ in self.changes():
            self.write(key, self.before.get(key, _MISSING))


class _Elements(_Slots):
    """A list, set or deque, as a holder of a single value: its elements, in a tuple."""

    def __init__(self, package: str, elements: Any) -> None:
        self.elements = elements
        super().__init__(package, lambda: {0: tuple(elements)}, self._write, {0: tuple(elements)})

    def changes(self) -> list[tuple[Any, Any]]:
        """Return the elements now, if they are others or in another order."""
        now = tuple(self.elements)
        return [(0, now)] if [*map(id, now)] != [*map(id, self.before[0])] else []

    def _write(self, key: int, before: tuple[Any, ...]) -> None:
        self.elements.clear()
        (self.elements.update if isinstance(self.elements, set) else self.elements.extend)(before)


class _Reached:
    """The state that executed code can reach by the names it mentions, as it was when first reached."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.slots: list[_Slots] = []
        self.caches: list[Any] = []
        self._seen: dict[int, Any] = {}  # by id; the objects are kept alive, so that ids stay theirs
        self._executed: dict[int, types.CodeType] = {}
        self._namespaces: dict[int, dict[str, Any]] = {}  # by id: the values of the names mentioned
        self._pending: list[Any] = []
        self._package = ""  # of the code that is followed
        self._imports = 0  # that are under way, one in another
        self._before_import: list[dict[Any, Any]] = []
        for root in roots:
            self._package = _package_of(type(root).__module__)
            self._follow_all([root])

    def on_event(self, frame: types.FrameType, event: str, arg: object) -> Any:
        """Hook of `sys.settrace` or `sys.setprofile`: follow the names of code when it is first executed."""
        code = frame.f_code
        if code.co_name == "<module>":
            return self._on_import(frame, event)
        if event != "call" or id(code) in self._executed or self._imports:
            return None
        self._executed[id(code)] = code
        namespace = frame.f_globals
        # Not by __module__: decorators copy it from the function that they wrap.
        if not _is_excluded(namespace.get("__name__")):
            self._package = _package_of(namespace.get("__name__"))
            # Its own name is that of what caches its results, or of its class.
            names = (*code.co_names, code.co_qualname.partition(".")[0])
            self._add_names(namespace, names)
            # What code imports itself: its names are those of modules, from a package on.
            parts = (namespace.get("__package__") or "").split(".")
            prefixes = ["", *itertools.accumulate(f"{part}." for part in parts)]
            imported = (sys.modules.get(prefix + name) for prefix in prefixes for name in names)
            self._follow_all([module for module in imported if module is not None], names)
        return None

    def _on_import(self, frame: types.FrameType, event: str) -> Any:
        """Take what changes while a module is imported for what was there before the run."""
        if event == "call":
            self._imports += 1
            if self._imports == 1:
                self._before_import = [slots.values() for slots in self.slots]
            frame.f_trace_lines = False
            return self._on_import_event  # of `sys.settrace`: else it would not call for the return
        if event == "return" and self._imports:
            self._imports -= 1
            if not self._imports:
                for slots, before in zip(self.slots, self._before_import, strict=True):
                    if type(slots) is _Elements:
                        slots.before = slots.values() if slots.changes() else slots.before
                        continue
                    for key, value in _differences(before, slots.values()):
                        slots.before[key] = value
        return None

    def _on_import_event(self, frame: types.FrameType, event: str, arg: object) -> Any:
        self._on_import(frame, event)
        return self._on_import_event

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
            package = _package_of(namespace.get("__name__"))
            self._add_slots(_names_reader(namespace, noted), _dict_writer(namespace), noted, package)
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
            self.caches.append(value)
            self._pending += (getattr(value, "__wrapped__", None), *_cached_values(value))
        elif issubclass(kind, dict):
            self._add_dict(value)
        elif _is_sequence(kind):
            if not issubclass(kind, tuple | frozenset):
                self.slots.append(_Elements(self._package, value))
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
            self._add_slots(lambda: _read_cells(cells), _cell_writer(cells), _read_cells(cells))
        self._pending += [_read_cell(cell) for cell in cells]
        self._pending += [function.__defaults__, function.__kwdefaults__, vars(function)]

    def _follow_class(self, cls: type) -> None:
        for base in cls.__mro__:
            if not _is_excluded(base.__module__) and (base is cls or id(base) not in self._seen):
                self._seen[id(base)] = base
                members = dict(vars(base))
                package = _package_of(base.__module__)
                self._add_slots(_class_reader(base), _attribute_writer(base), members, package)
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
                self._add_slots(read, _slot_writer(value, members), read())
                self._pending += read().values()
        elif attributes is not None and "__wrapped__" in attributes:  # a decorated function
            self._pending.append(attributes["__wrapped__"])

    def _add_dict(self, values: dict[Any, Any]) -> None:
        before = dict([*dict.items(values)])
        self._add_slots(lambda: values, _dict_writer(values), before)
        self._pending += before.values()

    def _add_slots(
        self,
        read: Callable[[], dict[Any, Any]],
        write: _Write,
        before: dict[Any, Any],
        package: str | None = None,
    ) -> None:
        self.slots.append(_Slots(self._package if package is None else package, read, write, before))

    # --- restoring ------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Undo the changes of each package that has meta tensors among them."""
        changed: dict[str, list[_Slots]] = {}
        for slots in self.slots:
            if slots.changes():
                changed.setdefault(slots.package, []).append(slots)
        for of_package in changed.values():
            if self._hold_meta(value for slots in of_package for _, value in slots.changes()):
                for slots in of_package:
                    slots.restore()
        for cache in self.caches:
            if self._hold_meta(_cached_values(cache)):
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


def _differences(before: dict[Any, Any], now: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the keys whose values are other objects now, with these; `_MISSING` if there is none."""
    changed = [(k, now.get(k, _MISSING)) for k, v in before.items() if now.get(k, _MISSING) is not v]
    return changed + [(k, v) for k, v in now.items() if k not in before]


# --- slots ----------------------------------------------------------------------------------------------


def _read_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty: it is assigned later
        return _EMPTY_CELL


def _read_cells(cells: tuple[types.CellType, ...]) -> dict[Any, Any]:
    return {i: _read_cell(cell) for i, cell in enumerate(cells)}


def _cell_writer(cells: tuple[types.CellType, ...]) -> _Write:
    def write(key: int, value: Any) -> None:
        if value is _EMPTY_CELL:
            del cells[key].cell_contents
        else:
            cells[key].cell_contents = value

    return write


def _names_reader(namespace: dict[str, Any], names: Iterable[str]) -> Callable[[], dict[str, Any]]:
    return lambda: {name: namespace[name] for name in names if name in namespace}


def _dict_writer(values: dict[Any, Any]) -> _Write:
    def write(key: Any, value: Any) -> None:
        if value is _MISSING:
            values.pop(key, None)
        else:
            values[key] = value

    return write


def _class_reader(cls: type) -> Callable[[], dict[str, Any]]:
    return lambda: dict(vars(cls))


def _attribute_writer(cls: type) -> _Write:
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


def _slot_writer(value: Any, members: dict[str, Any]) -> _Write:
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
    package = _package_of(module)
    if package not in sys.stdlib_module_names:
        return package in _EXCLUDED
    # A user's module may have the name of one of the standard library, such as "test" or "code".
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is None or Path(file).is_relative_to(Path(os.__file__).parent)


def _package_of(module: Any) -> str:
    """Return the package of a module, given by its name."""
    return module.partition(".")[0] if isinstance(module, str) else "builtins"
