"""TensorSpec, and traversal of the nested values that models take and return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

# Objects with a __dict__ that are not searched for tensors.
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


Path = tuple[str | int, ...]
"""Keys, indices and attribute names that lead to a part of a nested value."""


@dataclass(frozen=True)
class TensorSpec:
    """A placeholder for a tensor in `check` and `summary`, with a shape and a dtype.

    Args:
        shape: sizes of the axes, the batch first.
        dtype: the element type.

    >>> TensorSpec((8, 128), torch.int64)
    TensorSpec(shape=(8, 128), dtype=torch.int64)
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))


def map_tensors(value: Any, fn: Callable[[Any], Any], memo: dict[int, Any] | None = None) -> Any:
    """Return a copy of a nested value with ``fn`` applied to each tensor and TensorSpec in it.

    Traverses mappings, lists, tuples, named tuples, dataclasses and plain objects. A value without tensors is
    returned itself, as are nested tensors. A tensor that occurs twice is mapped once.
    """
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor) and is_list_of_tensors(value):
        return value
    if isinstance(value, (torch.Tensor, TensorSpec)):
        if id(value) not in memo:
            memo[id(value)] = fn(value)
        return memo[id(value)]
    parts = _parts(value)
    if not parts:
        return value
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = value  # for values that contain themselves
    mapped = {name: map_tensors(part, fn, memo) for name, part in parts.items()}
    if any(mapped[name] is not part for name, part in parts.items()):
        memo[id(value)] = _rebuild(value, mapped)
    return memo[id(value)]


def tensors_in(value: Any) -> Iterator[Any]:
    """Return an iterator over each tensor and TensorSpec in a nested value, once, in order."""
    found: list[Any] = []

    def append(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    map_tensors(value, append)
    return iter(found)


def named_tensors(value: Any, name: str) -> dict[str, Any]:
    """Return each tensor and TensorSpec in a nested value, once, by the expression that leads to it.

    >>> list(named_tensors({"x": torch.ones(1), "pair": (torch.ones(2), 3)}, "batch"))
    ["batch['x']", "batch['pair'][0]"]
    """
    return {text: tensor for text, _, tensor in _walk(value, name, (), set())}


def tensor_paths(value: Any) -> dict[int, Path]:
    """Return the path to each tensor in a nested value by the tensor's `id`.

    >>> x = torch.ones(1)
    >>> tensor_paths({"pair": (x, 3)})[id(x)]
    ('pair', 0)
    """
    found = _walk(value, "", (), set())
    return {id(tensor): path for _, path, tensor in found if isinstance(tensor, torch.Tensor)}


def _walk(value: Any, name: str, path: Path, seen: set[int]) -> Iterator[tuple[str, Path, Any]]:
    """Yield the expression, path and value of each tensor and TensorSpec in a nested value, once."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.Tensor, TensorSpec)):
        yield name, path, value
        return
    is_indexed = isinstance(value, (Mapping, list, tuple)) and not hasattr(value, "_fields")
    for key, part in _parts(value).items():
        yield from _walk(part, f"{name}[{key!r}]" if is_indexed else f"{name}.{key}", (*path, key), seen)


def at_path(value: Any, path: Path) -> Any:
    """Return the part of a nested value that a path leads to; a name is a key or an attribute.

    >>> at_path({"pair": (5, 3)}, ("pair", 0))
    5
    """
    for key in path:
        value = value[key] if isinstance(key, int) or isinstance(value, Mapping) else getattr(value, key)
    return value


def is_list_of_tensors(tensor: torch.Tensor) -> bool:
    """Whether this is a nested tensor in the strided layout, which has neither shape nor meta kernels."""
    return tensor.is_nested and tensor.layout == torch.strided


def shape_text(tensor: Any) -> str:
    """Format a tensor's shape: ``(2, 7, 256)``."""
    return str(tuple(tensor.shape))


def shapes_text(value: Any) -> str:
    """Format the shapes of the tensors in a nested value: ``(2, 10), (2,)``."""
    shapes = [shape_text(tensor) for tensor in tensors_in(value)]
    if not shapes:
        return type(value).__name__
    return ", ".join(shapes[:4]) + (f", and {len(shapes) - 4} more" if len(shapes) > 4 else "")


def _parts(value: Any) -> dict[Any, Any]:
    """Return the parts of a container by key, index or attribute."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, _OPAQUE):
        return {}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return {name: getattr(value, name) for name in names}
    return dict(vars(value)) if hasattr(value, "__dict__") else {}


def _rebuild(value: Any, parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    if isinstance(value, (list, tuple)):
        if hasattr(value, "_fields"):
            return type(value)(*parts.values())
        return type(value)(parts.values())
    new = copy.copy(value)
    if isinstance(value, Mapping):
        # copy.copy of a UserDict shares the dictionary underneath, so items are set on a copy of it.
        if hasattr(new, "data") and isinstance(new.data, dict):
            new.data = dict(new.data)
        for key, part in parts.items():
            new[key] = part
        return new
    for name, part in parts.items():
        object.__setattr__(new, name, part)  # also on frozen dataclasses
    return new
