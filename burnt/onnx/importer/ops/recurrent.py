"""RNN, GRU and LSTM: layers where weights are constant and torch computes the same, functions otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node, handler, to_text
from burnt.onnx.importer.ops.layers import float_constant
from burnt.onnx.importer.program import Name, Size

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""ONNX's gates in torch's order."""

_DEFAULTS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


@handler("RNN", "GRU", "LSTM")
def _recurrent(build: Build, node: Node) -> Any:
    num_states = 2 if node.op == "LSTM" else 1
    layer = _layer(build, node)
    if layer is not None:
        node.ignore("activation_alpha", "activation_beta")  # torch's activations have none
        return _call_layer(build, node, layer)
    options = node.options(
        *(("direction", "forward"), ("activations", []), ("alpha", None, "activation_alpha")),
        *(("beta", None, "activation_beta"), ("clip", None), ("layout", 0)),
        *(("linear_before_reset", False), ("input_forget", False)),
    )
    if "activations" in options:
        options["activations"] = list(map(to_text, options["activations"]))
    inputs = build.tensors_of(node, 8 if node.op == "LSTM" else 6)
    while inputs[-1] is None:
        inputs.pop()
    return build.calls(f"ops.{node.op.lower()}", *inputs, count=1 + num_states, hint="states", **options)


def _layer(build: Build, node: Node) -> Any:
    """Return the layer that computes a node; None if torch has none."""
    weight, recurrence = float_constant(build, node, 1), float_constant(build, node, 2)
    bias, direction = float_constant(build, node, 3), node.text("direction", "forward")
    if weight is None or recurrence is None or (bias is None and node.has(3)) or direction == "reverse":
        return None
    names = [to_text(name).lower() for name in node.attr("activations", [])]
    directions = weight.shape[0]
    default = _DEFAULTS[node.op]
    is_relu = node.op == "RNN" and names == ["relu"] * directions
    if (names and names != default * directions and not is_relu) or node.attr("clip") is not None:
        return None
    if node.op == "GRU" and not node.attr("linear_before_reset", 0):
        return None  # torch multiplies by the reset gate after the matmul
    if node.attr("layout", 0) or node.attr("input_forget", 0) or node.has(4) or node.has(7):
        return None
    hidden, gates = recurrence.shape[-1], _GATES[node.op]
    kwargs: dict[str, Any] = {"nonlinearity": "relu"} if is_relu else {}
    cls: Any = {"LSTM": nn.Lstm, "GRU": nn.Gru, "RNN": nn.Rnn}[node.op]
    layer = cls(weight.shape[-1], hidden, bias=bias is not None, bidirectional=directions == 2, **kwargs)
    for number in range(directions):
        suffix = "l0_reverse" if number else "l0"
        parts = {"weight_ih": weight[number], "weight_hh": recurrence[number]}
        if bias is not None:
            parts["bias_ih"], parts["bias_hh"] = np.split(bias[number], 2)
        for name, array in parts.items():
            blocks = np.split(array, len(gates))
            getattr(layer, f"{name}_{suffix}").data = to_tensor(np.concatenate([blocks[g] for g in gates]))
    return layer


def _call_layer(build: Build, node: Node, layer: Any) -> Any:
    x = build.tensor(node, 0)
    states = [build.tensor(node, i) for i in ((5, 6) if node.op == "LSTM" else (5,))]
    directions = 2 if layer.bidirectional else 1
    initial: tuple[Any, ...] = ()
    if any(state is not None for state in states):
        assert isinstance(x, Name)
        shape = (directions, Size(x, 1), layer.hidden_size)
        states = [
            build.call("torch.zeros", shape, dtype=build.dtype(node, 0), device=build.device(x), hint="state")
            if state is None
            else state
            for state in states
        ]
        initial = (tuple(states) if node.op == "LSTM" else states[0],)
    batch_first = build.call("torch.transpose", x, 0, 1, hint="x")
    result = build.layer(layer, batch_first, *initial, hint=node.op)
    y, last = build.calls("ops.unpack", result, count=2, hint="states")
    split = build.call("torch.unflatten", y, -1, (directions, layer.hidden_size), hint="states")
    y = build.call("torch.permute", split, (1, 2, 0, 3), hint="states")
    if node.op == "LSTM":
        return (y, *build.calls("ops.unpack", last, count=2, hint="last"))
    return y, last
