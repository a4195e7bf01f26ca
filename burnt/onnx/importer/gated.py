"""Feed-forward blocks with a gate: three linear layers and a gated unit become one layer of burnt.nn.

The layer has the weights as the file has them: ``down_proj(silu(gate_proj(x)) * up_proj(x))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnt import nn
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.program import Call, Name, Reads, Statement, names_in

_ACTIVATIONS = {"ops.swiglu": {"none": "silu"}, "ops.geglu": {"none": "gelu", "tanh": "gelu_tanh"}}
"""Activations of a gate by function, and by its `approximate`."""


def gather_gated(build: Build) -> None:
    """Put one layer in the place of three linear ones around a gated unit, in place.

    They are called once each, nothing else reads what lies between them, and they keep their paths.
    """
    program, members = build.program, build.members
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
        unit = single(down.args[0]) if _linear(down, members) is not None else None
        activation = None if unit is None else _activation(unit)
        if unit is None or activation is None:
            continue
        gate, up = single(unit.args[0]), single(unit.args[1])
        if gate is None or up is None or gate.args != up.args:
            continue
        layer = _layer([_linear(call, members) for call in (gate, up, down)], activation)
        paths = [call.function.removeprefix("self.") for call in (gate, up, down)]
        hint = _path(paths)
        if layer is None or hint is None:
            continue
        for path in paths:
            del members[path]
        name = hint if "." in paths[0] else build.paths.new(hint)
        members[name] = layer
        program.statements[i] = Statement(statement.outputs, Call(f"self.{name}", gate.args))
        removed |= {*names_in((down.args, unit.args))}
    program.statements[:] = [
        statement
        for statement in program.statements
        if not (isinstance(statement, Statement) and removed & {*statement.outputs})
    ]


def _linear(call: Call, members: Mapping[str, object]) -> nn.Linear | None:
    """Return the linear layer that a call calls."""
    layer = members.get(call.function.removeprefix("self.")) if call.function.startswith("self.") else None
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
    kinds = {(layer.bias is None, layer.weight.dtype) for layer in (gate, up, down)}
    shapes = [gate.weight.shape, up.weight.shape, down.weight.shape[::-1]]
    if len(kinds) > 1 or shapes != shapes[:1] * 3:
        return None
    d_ff, d_model = gate.weight.shape
    kind: Any = activation
    has_bias = gate.bias is not None
    layer = nn.GatedFeedForward(d_model, d_ff, activation=kind, bias=has_bias, device="meta")
    layer.gate_proj, layer.up_proj, layer.down_proj = gate, up, down
    return layer


def _path(paths: list[str]) -> str | None:
    """Return the path of a layer whose linear layers keep theirs; None if they have others."""
    parents = {path.rpartition(".")[0] for path in paths}
    if parents == {""}:  # the file does not name them
        return "mlp"
    names = [path.rpartition(".")[2] for path in paths]
    return parents.pop() if len(parents) == 1 and names == ["gate_proj", "up_proj", "down_proj"] else None
