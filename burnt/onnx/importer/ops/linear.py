"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build, Node
from burnt.onnx.importer.registry import handler


@handler("MatMul")
def _matmul(build: Build, node: Node) -> Any:
    return build.call("torch.matmul", build.tensor(node, 0), build.tensor(node, 1), hint="matmul")
