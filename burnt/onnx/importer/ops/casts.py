"""Casts."""

from __future__ import annotations

from typing import Any

import torch

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import torch_dtype
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler

_NAMES = {8: "string", 21: "uint4", 22: "int4", 23: "float4", 25: "uint2", 26: "int2"}
_PLAIN = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Dtypes between which torch's conversion is ONNX's."""


def _cast(build: Build, node: Node, to: int) -> Any:
    options: dict[str, Any] = {}
    node.ignore("saturate", "round_mode")  # of float8 alone
    if 17 <= to <= 20 or to == 24:
        options["saturate"] = bool(node.attr("saturate", 1))
    if to == 24:
        options["round_mode"] = node.attr("round_mode", "up")
    if node.is_text(0):
        options["device"] = build.device()
    dtype, before = _NAMES.get(to) or torch_dtype(to), build.dtype(node, 0)
    if before in _PLAIN and dtype in _PLAIN:
        return build.call("torch.Tensor.to", build.tensor(node, 0), dtype, hint="cast")
    return build.call("ops.cast", build.tensor(node, 0), dtype, hint="cast", **options)


@handler("Cast")
def _cast_to(build: Build, node: Node) -> Any:
    to = node.attr("to")
    if isinstance(to, str):  # version 1 names the type
        import onnx

        to = onnx.TensorProto.DataType.Value(to)
    return _cast(build, node, int(to))


@handler("CastLike")
def _cast_like(build: Build, node: Node) -> Any:
    value = node.node.inputs[1]
    if value is not None and value.dtype is not None:
        return _cast(build, node, value.dtype.value)
    saturate = bool(node.attr("saturate", 1))
    return build.call("ops.cast_like", build.tensor(node, 0), build.tensor(node, 1), saturate, hint="cast")


@handler("BitCast")
def _bit_cast(build: Build, node: Node) -> Any:
    dtype = torch_dtype(int(node.attr("to")))
    assert isinstance(dtype, torch.dtype)
    return build.call("ops.bitcast", build.tensor(node, 0), dtype, hint="bits")
