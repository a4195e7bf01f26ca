"""Containers as arguments and results: flattened to leaves, with a structure to put them together again.

Containers are what `torch.utils._pytree` knows (lists, tuples, named tuples, dicts, classes registered
there), `torch.Size`, and instances of dataclasses, by their fields. Everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from burnt.codegen.frontend.instances import FUSED_METHODS

_SEQUENCES = frozenset({list, tuple, torch.Size})
_LEAVES = frozenset({Tensor, torch.nn.Parameter, float, int, bool, str, type(None)})


class Structure(NamedTuple):
    """The structure of a container; equal for containers that differ in their leaves only."""

    kind: type
    context: Any  # what its class needs besides its elements, such as the keys of a dict. Hashable
    # The types of the keys, which tell 1 and True apart; empty unless it is a dict.
    key_types: tuple[type, ...]
    elements: tuple[Structure | None, ...]  # the structures of its elements, in order; None for a leaf


def is_container(value: object) -> bool:
    """Whether a value is a container, which has leaves of its own."""
    kind: type = type(value)
    return kind not in _LEAVES and (kind in _SEQUENCES or _node_type(kind) is not None or _has_fields(value))


def flatten(value: Any, leaves: list[Any], containers: list[Any] | None = None) -> Structure | None:
    """Append the leaves of a value to a list, in order, and return its structure; None for a leaf.

    All containers in the value are appended to `containers`.

    Raises:
        TypeError: what a container holds besides its elements cannot be hashed.
        RecursionError: a container holds itself.

    >>> leaves = []
    >>> structure = flatten({"x": 1, "y": [2, 3]}, leaves)
    >>> leaves
    [1, 2, 3]
    >>> unflatten(structure, [4, 5, 6])
    {'x': 4, 'y': [5, 6]}
    """
    kind: type = type(value)
    context: Any = None
    key_types: tuple[type, ...] = ()
    elements: Iterable[Any]
    if kind in _SEQUENCES:
        elements = value
    elif kind is dict:
        elements, context, key_types = value.values(), tuple(value), tuple(map(type, value))
    elif kind in _LEAVES or not is_container(value):
        leaves.append(value)
        return None
    elif (node_type := _node_type(kind)) is not None:
        elements, context = pytree.SUPPORTED_NODES[node_type].flatten_fn(value)
        context = _hashable(context)
        key_types = tuple(map(type, value)) if isinstance(value, Mapping) else ()
    else:
        context = tuple(field.name for field in dataclasses.fields(value))
        elements = [getattr(value, name) for name in context]
    hash(context)
    if containers is not None:
        containers.append(value)
    return Structure(kind, context, key_types, tuple([flatten(e, leaves, containers) for e in elements]))


def unflatten(structure: Structure | None, leaves: Sequence[Any]) -> Any:
    """Return a new container of this structure with these leaves; the only leaf if there is no structure."""
    return leaves[0] if structure is None else _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure | None, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, context, _, structures = structure
    elements = [_unflatten(s, leaves) for s in structures]
    if kind in _SEQUENCES:
        return kind(elements)
    node_type = _node_type(kind)
    if node_type is not None:
        return pytree.SUPPORTED_NODES[node_type].unflatten_fn(elements, context)
    # Without `__init__`, which may compute or check, and takes only some of the fields.
    instance: Any = object.__new__(kind)
    for name, element in zip(context, elements, strict=True):
        object.__setattr__(instance, name, element)
    return instance


@functools.lru_cache(1024)
def _node_type(kind: type) -> Any:
    """Return the key of a container's class in pytree's table; None if pytree does not know it."""
    key = namedtuple if pytree.is_namedtuple_class(kind) else kind
    return key if key in pytree.SUPPORTED_NODES else None


def _has_fields(value: object) -> bool:
    """Whether a value is an instance of a dataclass that holds its fields and nothing else."""
    kind = type(value)
    names = getattr(kind, "__dataclass_fields__", None)
    if names is None or isinstance(value, torch.nn.Module) or not dataclasses.is_dataclass(kind):
        return False
    fields = [field.name for field in dataclasses.fields(kind)]
    attributes = {*getattr(value, "__dict__", ())} - {FUSED_METHODS}
    return all(hasattr(value, name) for name in fields) and attributes <= {*fields}


def _hashable(context: Any) -> Any:
    """Return a context with tuples in place of lists."""
    return tuple(map(_hashable, context)) if type(context) in (list, tuple) else context


class FlatCall:
    """A function as a function of the leaves of its arguments, ``(args, kwargs)``, which have this structure.

    Without a structure, the leaves are the positional arguments.
    """

    def __init__(self, fn: Callable[..., Any], structure: Structure | None = None) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.structure = structure
        self.result_structure: Structure | None = None
        self.unsupported_reason: str | None = None

    def __call__(self, *leaves: Any) -> Any:
        """Call the function with new containers."""
        args, kwargs = (leaves, {}) if self.structure is None else unflatten(self.structure, leaves)
        return self.fn(*args, **kwargs)

    def trace(self, *leaves: Any) -> list[Any]:
        """Call the function and return the leaves of its result.

        Sets `result_structure`, and `unsupported_reason` if the function does with a container what a plan
        does not: a call of a plan neither changes containers nor returns those that it was given.
        """
        args, kwargs = (leaves, {}) if self.structure is None else unflatten(self.structure, leaves)
        containers: list[Any] = []
        flatten((args, kwargs), [], containers)
        result = self.fn(*args, **kwargs)
        after: list[Any] = []
        if self.structure is not None and (
            flatten((args, kwargs), after) != self.structure
            or any(a is not b for a, b in zip(after, leaves, strict=True))
        ):
            self.unsupported_reason = (
                "it changes a list, dict or other container that it is given, which a plan would not do: "
                "return new values instead"
            )
        results: list[Any] = []
        returned: list[Any] = []
        self.result_structure = flatten(result, results, returned)
        given = {id(c): c for c in containers if not isinstance(c, tuple)}
        same = next((r for r in returned if id(r) in given), None)
        if same is not None:
            self.unsupported_reason = (
                f"it returns a {type(same).__name__} that it is given, and a plan would return another: "
                "return its elements, or a new one"
            )
        return results
