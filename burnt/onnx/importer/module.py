"""ImportedModule: a program with its tensors and layers, which computes what the ONNX model does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.module import Module
from burnt.onnx import functions
from burnt.onnx.importer.program import Define, Program, evaluate

__all__ = ["ImportedModule"]


class ImportedModule(Module, init=False):
    """A module that was imported from an ONNX file.

    Args:
        program: what it computes.
        tensors: its parameters (floating-point) and buffers, by name.
        layers: its layers, by name.
        names: of inputs and outputs in the file.
        dtypes: of the inputs in the file, None where it does not say.

    Inputs are positional, in the order of the graph; one output is returned as it is, several as a tuple.
    """

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        layers: Mapping[str, torch.nn.Module],
        names: tuple[list[str], list[str]],
    ) -> None:
        super().__init__()
        self.program = program
        self.input_names, self.output_names = names
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                self.register_parameter(name, torch.nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs of the graph."""
        outputs = _run(self.program, inputs, self._names())
        return outputs[0] if len(outputs) == 1 else outputs

    def _names(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for store in (self._parameters, self._buffers, self._modules):
            own.update({f"self.{name}": value for name, value in store.items()})
        return own


_NAMESPACES = {"torch": torch, "F": F, "ops": functions}


def _run(program: Program, inputs: tuple[Any, ...], outer: Mapping[str, Any]) -> tuple[Any, ...]:
    names = _Scope(outer)
    names.update(zip(program.inputs, inputs, strict=True))
    for statement, dead in zip(program.statements, program.last_uses(), strict=True):
        if isinstance(statement, Define):
            names[statement.name] = _function(statement.program, names)
        else:
            call = statement.call
            function = _resolve(call.function, names)
            args = [evaluate(arg, names) for arg in call.args]
            kwargs = {key: evaluate(value, names) for key, value in call.kwargs.items()}
            result = function(*args, **kwargs)
            if len(statement.outputs) == 1:
                names[statement.outputs[0]] = result
            elif statement.outputs:
                names.update(zip(statement.outputs, result, strict=True))
        for name in dead:
            names.pop(name, None)
    return tuple(evaluate(output, names) for output in program.outputs)


class _Scope(dict[str, Any]):
    """Names of a function, with those around it."""

    def __init__(self, outer: Mapping[str, Any]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Any:
        return self.outer[name]


def _function(program: Program, outer: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a nested function; its program has one output, a tuple."""

    def call(*inputs: Any) -> Any:
        return _run(program, inputs, outer)[0]

    return call


def _resolve(path: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    if path.startswith("self."):
        layer: Callable[..., Any] = names[path]
        return layer
    root, *rest = path.split(".")
    found: Any = _NAMESPACES[root]
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
