"""Steps of optimizers (domain ai.onnx.preview.training)."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node, handler

_NAMES = {
    "Adagrad": {"epsilon": "epsilon", "decay_factor": "decay", "norm_coefficient": "penalty"},
    "Adam": {
        "alpha": "alpha",
        "beta": "beta",
        "epsilon": "epsilon",
        "norm_coefficient": "penalty",
        "norm_coefficient_post": "penalty_after",
    },
    "Momentum": {"alpha": "alpha", "beta": "beta", "norm_coefficient": "penalty"},
}


@handler("Adagrad", "Adam", "Momentum", domain="ai.onnx.preview.training")
def _step(build: Build, node: Node) -> Any:
    options = {new: node.attr(old) for old, new in _NAMES[node.op].items() if node.attr(old) is not None}
    if node.op == "Momentum" and node.text("mode", "standard") == "nesterov":
        options["nesterov"] = True
    rate, step, *tensors = build.tensors_of(node)
    function = f"ops.{node.op.lower()}_step"
    return build.calls(function, rate, step, tensors, count=node.num_outputs, hint="updated", **options)
