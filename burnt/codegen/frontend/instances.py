"""What instances hold: the modules, dataclass instances and objects with methods that a function captures.

A plan is valid for the attributes that an instance had when it was built. Calls compare them all, so
attributes may be set between calls.
"""

from __future__ import annotations

import dataclasses
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt._snapshot import Snapshot

FUSED_METHODS = "_burnt_fused_methods"
"""The attribute in which an instance keeps its fused methods; it is not part of the state."""

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# Attributes of a module that its calls do not read, or that hold its tables and hooks.
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"} | {FUSED_METHODS}
_CHECKED_INTERNALS = frozenset({*_MODULE_TABLES, *_MODULE_HOOKS})


class InstanceState(NamedTuple):
    """What an instance holds."""

    kind: type
    # The names of its attributes; of a module also those of its parameters, buffers and modules.
    names: tuple[str, ...]
    values: tuple[Any, ...]
    has_hooks: bool  # whether it is a module whose call runs hooks, its own or global ones


class StateReader(NamedTuple):
    """Which part of an instance's state a function captures; the name of a capture site."""

    # The attributes that its code reads; None if it may read all. The parameters, buffers and modules of a
    # module are always captured.
    names: frozenset[str] | None
    ignores_hooks: bool = False  # the function is the ``forward`` of the module, and runs after its hooks

    def __call__(self, instance: Any) -> InstanceState:
        """Return what an instance of a Python class holds now."""
        names, values = [], []
        for name, value in _attributes(instance):
            if self.names is None or name in self.names:
                names.append(name)
                values.append(value)
        for table in _module_tables(instance):
            names += table.keys()
            values += table.values()
        hooks = [] if self.ignores_hooks else _hooks(instance)
        has_hooks = any(hooks) or (bool(hooks) and _torch.has_global_hooks())
        return InstanceState(type(instance), tuple(names), tuple(values), has_hooks)


def has_captured_state(value: object) -> bool:
    """Whether the state of an instance is captured wherever the instance is."""
    is_module = isinstance(value, torch.nn.Module)
    return is_module or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _attributes(instance: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes in an instance's dict, and those that its classes declare as slots."""
    skipped = _MODULE_INTERNALS if isinstance(instance, torch.nn.Module) else frozenset({FUSED_METHODS})
    for name, value in getattr(instance, "__dict__", {}).items():
        if name not in skipped:
            yield name, value
    for cls in type(instance).__mro__[:-1]:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType):
                yield name, getattr(instance, name, None)


def _module_tables(instance: Any) -> list[dict[str, Any]]:
    is_module = isinstance(instance, torch.nn.Module)
    return [vars(instance)[name] for name in _MODULE_TABLES] if is_module else []


def _hooks(instance: Any) -> list[dict[int, Any]]:
    is_module = isinstance(instance, torch.nn.Module)
    return [vars(instance)[name] for name in _MODULE_HOOKS] if is_module else []


def build_state_check(
    sites: Sequence[tuple[Any, StateReader]], states: Sequence[InstanceState]
) -> Callable[[], bool]:
    """Return a function that tests quickly whether instances hold the same objects as in these states.

    It may return False for states that are equal, never True for others: it compares identities, and the
    layouts of all tensors at once. The states must be without hooks, and the tensors in them strided.
    """
    classes, attributes, tables, slots, hooks = [], [], [], [], []
    for (instance, reader), state in zip(sites, states, strict=True):
        classes.append((instance, state.kind))
        own = getattr(instance, "__dict__", {})
        read = [n for n in own if reader.names is None or n in reader.names or n in _CHECKED_INTERNALS]
        attributes.append((instance, list(own), read, [own[name] for name in read]))
        tables += [(table, list(table), list(table.values())) for table in _module_tables(instance)]
        slots += [(instance, name, value) for name, value in _attributes(instance) if name not in own]
        hooks += [] if reader.ignores_hooks else _hooks(instance)
    tensors = list({id(t): t for state in states for t in _tensors(state.values)}.values())
    have_same_layout = _torch.build_tensor_guard(tensors) if tensors else None

    def is_same() -> bool:
        for instance, kind in classes:
            if type(instance) is not kind:
                return False
        for instance, names, read, values in attributes:
            own = getattr(instance, "__dict__", {})
            if list(own) != names or not all(map(operator.is_, map(own.get, read), values)):
                return False
        for table, names, values in tables:
            if list(table) != names or not all(map(operator.is_, table.values(), values)):
                return False
        for instance, name, value in slots:
            if getattr(instance, name, None) is not value:
                return False
        if hooks and (any(hooks) or _torch.has_global_hooks()):
            return False
        return have_same_layout is None or have_same_layout(*tensors)

    return is_same


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def snapshot_attributes(instances: Sequence[Any]) -> Snapshot:
    """Return a snapshot of the attributes of instances, and of the tables of those that are modules."""
    snapshot = Snapshot(ignores=FUSED_METHODS.__eq__)
    for instance in instances:
        for table in (getattr(instance, "__dict__", {}), *_module_tables(instance)):
            snapshot.add(table, owner=instance)
    return snapshot
