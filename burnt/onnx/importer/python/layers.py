"""Layers, parameters and buffers as Python: the calls that create them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from burnt import nn
from burnt.config import qualified_name
from burnt.errors import UnsupportedError
from burnt.nn.quantized import Quantized
from burnt.onnx.importer.node import shortest_decimal
from burnt.onnx.importer.python.expressions import Code, bracketed, code_of, prefixed

_MAX_CONSTANT = 4  # elements of a buffer that is written with its values


@dataclass(frozen=True)
class Argument:
    """An argument of a layer's constructor."""

    name: str
    value: Any
    is_keyword: bool  # whether the parameter has a default
    is_default: bool  # whether the value is the default


def layer_arguments(layer: torch.nn.Module) -> list[Argument]:
    """Return the arguments that build a layer, without device and dtype."""
    found = []
    for parameter in _parameters(type(layer).__init__):
        if parameter.name == "bias" and not getattr(layer, "elementwise_affine", True):
            continue
        value, default = _attribute(layer, parameter.name), parameter.default
        is_keyword = default is not parameter.empty
        is_default = is_keyword and (value == default or value == _spread(default, value))
        found.append(Argument(parameter.name, value, is_keyword, is_default))
    return found


@functools.cache
def _parameters(init: Callable[..., None]) -> list[inspect.Parameter]:
    found = inspect.signature(init).parameters.values()
    return [parameter for parameter in found if parameter.name not in ("self", "device", "dtype")]


def layer_code(layer: torch.nn.Module, given: Mapping[Any, Code] | None = None) -> Code:
    """Return the call that builds a layer.

    >>> layer_code(nn.Conv2d(3, 8, 3, padding=1, bias=False)).text
    'nn.Conv2d(3, 8, (3, 3), padding=(1, 1), bias=False)'
    """
    given = given or {}
    if isinstance(layer, Quantized):
        scheme = bracketed("QuantScheme.parse(", [code_of(layer.scheme.name)], ")")
        return bracketed(f"nn.quantized.{type(layer).__name__}(", [layer_code(layer.restore()), scheme], ")")
    cls = type(layer)
    prefix = "nn" if cls.__module__.startswith("burnt.nn") else "torch.nn"
    positional, keywords = [], []
    for argument in layer_arguments(layer):
        code = given.get(argument.name) or code_of(argument.value)
        if not argument.is_keyword:
            positional.append(code)
        elif argument.name in given or not argument.is_default:
            keywords.append(prefixed(f"{argument.name}=", code))
    weight = next(layer.parameters(), None)
    if weight is not None and weight.dtype != torch.float32:
        keywords.append(Code(f"dtype={weight.dtype}"))
    return bracketed(f"{prefix}.{cls.__name__}(", [*positional, *keywords], ")")


def _attribute(layer: torch.nn.Module, name: str) -> Any:
    value = getattr(layer, name, inspect.Parameter.empty)
    if isinstance(value, torch.nn.Dropout):
        return value.p
    if name == "bias" and isinstance(layer, nn.GatedFeedForward):
        return layer.gate_proj.bias is not None
    if name in ("bias", "affine", "elementwise_affine") and not isinstance(value, bool):
        return value is not None and value is not inspect.Parameter.empty
    if value is inspect.Parameter.empty:
        raise UnsupportedError(
            f"{qualified_name(type(layer))} cannot be written as Python",
            expected=f"an attribute {name!r}, as its argument",
            found="none",
        )
    return value


def _spread(default: Any, value: Any) -> Any:
    """Return a default number as the tuple that a layer keeps of it: 1 as (1, 1)."""
    return (default,) * len(value) if isinstance(value, tuple) and not isinstance(default, tuple) else default


def tensor_code(tensor: torch.Tensor, given: Mapping[Any, Code] | None = None) -> Code:
    """Return the call that creates a parameter or buffer; small buffers are written with their values.

    `given` is other code for some sizes, by axis.
    """
    kind = "Parameter" if isinstance(tensor, torch.nn.Parameter) else "Buffer"
    if has_values(tensor):
        values = tensor.tolist()
        items = [code_of(_decimals(values) if tensor.dtype == torch.float32 else values)]
        if tensor.dtype in (torch.float64, torch.int32):
            items.append(Code(f"dtype={tensor.dtype}"))
        inner = bracketed("torch.tensor(", items, ")")
    else:
        items = [(given or {}).get(axis) or code_of(size) for axis, size in enumerate(tensor.shape)]
        items = items or [Code("()")]
        if tensor.dtype != torch.float32:
            items.append(Code(f"dtype={tensor.dtype}"))
        inner = bracketed("torch.empty(", items, ")")
    return bracketed(f"torch.nn.{kind}(", [inner], ")")


def _decimals(values: Any) -> Any:
    """Return nested lists of float32 numbers with the shortest decimals."""
    return list(map(_decimals, values)) if isinstance(values, list) else shortest_decimal(values)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a buffer that is written with its values."""
    is_plain = tensor.dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
    is_small = is_plain and 1 <= tensor.numel() <= _MAX_CONSTANT
    return is_small and not isinstance(tensor, torch.nn.Parameter) and not bool(tensor.isnan().any())
