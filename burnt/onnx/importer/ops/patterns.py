"""Nodes that `burnt.onnx.importer.patterns` writes."""

from __future__ import annotations

import math
from typing import Any

from burnt.onnx.importer.build import Build, Node
from burnt.onnx.importer.patterns import DOMAIN
from burnt.onnx.importer.registry import handler


@handler("Silu", domain=DOMAIN)
def _silu(build: Build, node: Node) -> Any:
    return build.call("F.silu", build.tensor(node, 0), hint="silu")


@handler("Rotary", domain=DOMAIN)
def _rotary(build: Build, node: Node) -> Any:
    return build.call("ops.rotate", *build.tensors_of(node), hint="rotated")


@handler("Attention", domain=DOMAIN)
def _attention(build: Build, node: Node) -> Any:
    scale, value = node.attr("scale"), node.node.inputs[0]
    size = value.shape[-1] if value is not None and value.shape is not None else None
    is_default = isinstance(size, int) and math.isclose(scale, size**-0.5, rel_tol=1e-6)
    extra = {} if is_default else {"scale": scale}
    return build.call("F.scaled_dot_product_attention", *build.tensors_of(node), hint="attention", **extra)
