"""TensorSpec, and walks through the nested values that models take and return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["TensorSpec", "is_list_of_tensors", "map_tensors", "shape_text", "shapes_text", "tensors_in"]

# Objects that have a __dict__ and are no carriers of data.
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


@dataclass(frozen=True)
class TensorSpec:
    """Stands for a tensor in `check` and `summary`, where only shape and dtype matter.

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
    """A copy of a nested value with ``fn`` applied to each tensor and TensorSpec in it.

    Goes through mappings, lists, tuples, named tuples, dataclasses and plain objects. Whatever holds no
    tensor is returned itself, as are nested tensors, and a tensor that occurs twice is mapped once.
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
    memo[id(value)] = value  # what refers back to itself is met again as it was
    mapped = {name: map_tensors(part, fn, memo) for name, part in parts.items()}
    if any(mapped[name] is not part for name, part in parts.items()):
        memo[id(value)] = _rebuilt(value, mapped)
    return memo[id(value)]


def tensors_in(value: Any) -> Iterator[Any]:
    """Each tensor and TensorSpec in a nested value, once, in order."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return iter(found)


def is_list_of_tensors(tensor: torch.Tensor) -> bool:
    """Whether it is a nested tensor of the older kind, which has neither a shape nor a meta kernel."""
    return tensor.is_nested and tensor.layout == torch.strided


def shape_text(tensor: Any) -> str:
    """``(2, 7, 256)``."""
    return str(tuple(tensor.shape))


def shapes_text(value: Any) -> str:
    """The shapes of the tensors in a nested value: ``(2, 10), (2,)``."""
    shapes = [shape_text(tensor) for tensor in tensors_in(value)]
    if not shapes:
        return type(value).__name__
    return ", ".join(shapes[:4]) + (f", and {len(shapes) - 4} more" if len(shapes) > 4 else "")


def _parts(value: Any) -> dict[Any, Any]:
    """What a container holds, by key, index or attribute."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, _OPAQUE):
        return {}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return {name: getattr(value, name) for name in names}
    return dict(vars(value)) if hasattr(value, "__dict__") else {}


def _rebuilt(value: Any, parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    if isinstance(value, (list, tuple)):
        if hasattr(value, "_fields"):
            return type(value)(*parts.values())
        return type(value)(parts.values())
    twin = copy.copy(value)
    if isinstance(value, Mapping):
        # copy.copy of a UserDict shares the dictionary underneath, so items are set on a copy of it.
        if hasattr(twin, "data") and isinstance(twin.data, dict):
            twin.data = dict(twin.data)
        for key, part in parts.items():
            twin[key] = part
        return twin
    for name, part in parts.items():
        object.__setattr__(twin, name, part)  # also on frozen dataclasses
    return twin
