"""Lowerings of float8: bytes seen as float8 and converted to a wider float, and the way back.

Quantized values are stored as bytes. ``values.view(torch.float8_e4m3fn).to(dtype)`` and
``x.to(torch.float8_e4m3fn).view(torch.uint8)`` are elementwise functions of bytes, so they fuse like any
other. Between the two ops, a `Value` of a float8 dtype has bytes as its elements. It has no place in memory:
a float8 tensor that is an argument, a result or an input of torch's own call is converted by torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from burnt import _torch
from burnt.codegen.ir import DTYPES, Expr, Index, Value, cast
from burnt.codegen.lower.elementwise import lower_to_copy
from burnt.codegen.lower.registry import LOWERINGS, Unlowered, aten, register_lowering

FLOAT8_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
"""The float8 dtypes, with their names in expressions."""
_BYTES = (torch.uint8, torch.int8)
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_VIEWS = (
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.permute.default,
    aten.select.int, aten.slice.Tensor, aten.expand.default, aten.detach.default, aten.alias.default,
)  # fmt: skip


def find_float8_nodes(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes with float8 results or arguments that need no float8 tensor in memory.

    Such results are made by conversions or views of such, and only these read them.
    """
    touching = [n for n in nodes if _is_float8(n) or any(map(_is_float8, n.all_input_nodes))]
    found = {n for n in touching if _is_conversion(n)}
    while True:
        needs_memory = {
            n
            for n in found
            if any(_is_float8(source) and source not in found for source in n.all_input_nodes)
            or (_is_float8(n) and any(user not in found for user in n.users))
        }
        if not needs_memory:
            return found
        found -= needs_memory


def _is_float8(node: Node) -> bool:
    meta = node.meta.get("val")
    return isinstance(meta, torch.Tensor) and meta.dtype in FLOAT8_FORMATS


def _is_conversion(node: Node) -> bool:
    """Whether a node with a float8 tensor converts it or views it."""
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    (x,) = node.all_input_nodes
    meta, made = x.meta.get("val"), node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    source, result = meta.dtype, made.dtype
    if node.target is aten.view.dtype:
        return {source, result} <= {*FLOAT8_FORMATS, *_BYTES}
    if node.target in _CASTS:
        device = node.kwargs.get("device")
        is_here = device is None or device == made.device
        are_floats = source.is_floating_point and result.is_floating_point
        return is_here and are_floats and {source, result} <= {*DTYPES, *FLOAT8_FORMATS}
    return node.target in _VIEWS


@register_lowering(aten.view.dtype)
def _lower_view_dtype(meta: torch.Tensor, x: Value, dtype: torch.dtype) -> Value:
    """See bytes as float8, or float8 as bytes. Other views of a dtype are torch's: they share memory."""
    is_float8 = bool({x.dtype, dtype} & {*FLOAT8_FORMATS})
    if not is_float8 or not {x.dtype, dtype} <= {*FLOAT8_FORMATS, *_BYTES}:
        raise Unlowered
    stored = dtype if dtype in _BYTES else torch.uint8
    return Value(x.shape, dtype, lambda index: cast(x.at(index), stored))


def _lower_cast(meta: torch.Tensor, x: Value, *args: Any, **options: Any) -> Value:
    if meta.dtype == x.dtype or not {meta.dtype, x.dtype} & {*FLOAT8_FORMATS}:
        return lower_to_copy(meta, x, *args, **options)

    def at(index: Index) -> Expr:
        element = x.at(index)
        if x.dtype in FLOAT8_FORMATS:
            element = Expr.make("decode_float8", (element,), torch.float32, FLOAT8_FORMATS[x.dtype])
        if meta.dtype in FLOAT8_FORMATS:
            element = cast(element, torch.float32)
            if meta.dtype == torch.float8_e4m3fn and not _saturates():
                element = element.apply("abs").le(464.0).where(element, math.nan)
            return Expr.make("encode_float8", (element,), torch.uint8, FLOAT8_FORMATS[meta.dtype])
        return cast(element, meta.dtype)

    return Value(x.shape, meta.dtype, at)


@functools.cache
def _saturates() -> bool:
    """Whether torch converts what is too large for e4m3 to the largest number; before 2.13 to NaN."""
    with _torch.real_tensors():
        return not torch.tensor(1e3).to(torch.float8_e4m3fn).float().isnan().item()


LOWERINGS.update(dict.fromkeys(_CASTS, _lower_cast))
