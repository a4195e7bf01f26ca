"""Feed-forward blocks with a gate: three linear layers and a gated unit become one layer of burnt.nn.

The layer has the weights as the file has them: ``down_proj(silu(gate_proj(x)) * up_proj(x))``.
"""

from __future__ import annotations

import itertools
import re

import torch

from burnt import nn
from burnt.onnx.importer.names import unique_name
from burnt.onnx.importer.program import Call, Name, Program, Reads, Statement, names_in

_ACTIVATIONS = {"ops.swiglu": {"none": "silu"}, "ops.geglu": {"none": "gelu", "tanh": "gelu_tanh"}}
"""Activations of a gate by function, and by its `approximate`."""


def gather_gated(program: Program, layers: dict[str, torch.nn.Module], member_names: dict[str, int]) -> None:
    """Put one layer in the place of three linear ones around a gated unit, in place.

    Args:
        program: of the module; its results stay the same to the bit.
        layers: of the module, by name.
        member_names: of layers and tensors of the module, for `unique_name`.

    The three layers are called once each, and nothing else reads what lies between them.
    """
    reads = Reads(program).total
    made = {
        statement.outputs[0]: statement
        for statement in program.statements
        if isinstance(statement, Statement) and len(statement.outputs) == 1
    }

    def single(name: object) -> Call | None:
        """Return the call of a result that is read once, if its function is not called again."""
        statement = made.get(name.name) if isinstance(name, Name) else None
        if statement is None or reads[statement.outputs[0]] != 1:
            return None
        call = statement.call
        return call if not call.function.startswith("self.") or reads[call.function] == 1 else None

    removed: set[str] = set()
    for i, statement in enumerate(program.statements):
        if not isinstance(statement, Statement) or reads[statement.call.function] != 1:
            continue
        down = statement.call
        unit = single(down.args[0]) if _linear(down, layers) is not None else None
        activation = None if unit is None else _activation(unit)
        if unit is None or activation is None:
            continue
        gate, up = single(unit.args[0]), single(unit.args[1])
        if gate is None or up is None or gate.args != up.args:
            continue
        layer = _layer([_linear(call, layers) for call in (gate, up, down)], activation)
        if layer is None:
            continue
        names = [call.function.removeprefix("self.") for call in (gate, up, down)]
        name = unique_name(_common_path(names), member_names)
        layers[name] = layer
        for old in names:
            del layers[old]
        program.statements[i] = Statement(statement.outputs, Call(f"self.{name}", gate.args))
        removed |= {*names_in((down.args, unit.args))}
    program.statements[:] = [
        statement
        for statement in program.statements
        if not (isinstance(statement, Statement) and removed & {*statement.outputs})
    ]


def _linear(call: Call, layers: dict[str, torch.nn.Module]) -> nn.Linear | None:
    """Return the linear layer that a call calls."""
    layer = layers.get(call.function.removeprefix("self.")) if call.function.startswith("self.") else None
    return layer if type(layer) is nn.Linear else None


def _activation(call: Call) -> str | None:
    """Return what activates the gate of a unit."""
    if len(call.args) != 2 or not set(call.kwargs) <= {"approximate"}:
        return None
    return _ACTIVATIONS.get(call.function, {}).get(str(call.kwargs.get("approximate", "none")))


def _layer(linears: list[nn.Linear | None], activation: str) -> nn.GatedFeedForward | None:
    """Return a layer of the weights of a gate, of what it gates, and of what follows, if they fit."""
    gate, up, down = linears
    if gate is None or up is None or down is None:
        return None
    d_model, d_ff = gate.in_features, gate.out_features
    sizes = [(layer.in_features, layer.out_features) for layer in (gate, up, down)]
    biases = {layer.bias is None for layer in (gate, up, down)}
    dtypes = {layer.weight.dtype for layer in (gate, up, down)}
    if sizes != [(d_model, d_ff), (d_model, d_ff), (d_ff, d_model)] or len(biases) > 1 or len(dtypes) > 1:
        return None
    layer = nn.GatedFeedForward(
        d_model,
        d_ff,
        activation=activation,  # type: ignore[arg-type]
        bias=gate.bias is not None,
        device="meta",
    )
    layer.gate_proj, layer.up_proj, layer.down_proj = gate, up, down
    return layer


def _common_path(names: list[str]) -> str:
    """Return what the names of layers have in common: ``layers_0_mlp``."""
    words = zip(*(name.split("_") for name in names), strict=False)
    path = "_".join(column[0] for column in itertools.takewhile(lambda column: len({*column}) == 1, words))
    return path if re.search(r"[a-z]$", path) else f"{path}_mlp".strip("_")
