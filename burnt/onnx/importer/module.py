"""ImportedModule: a program with its tensors and layers, which computes what the ONNX model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.module import Module
from burnt.onnx.importer.evaluate import run_program
from burnt.onnx.importer.program import Program

__all__ = ["ImportedModule"]


class ImportedModule(Module, init=False):
    """A module that was imported from an ONNX file.

    Args:
        program: what it computes.
        tensors: its parameters and buffers, by name.
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
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs of the graph."""
        outputs = run_program(self.program, inputs, self._names())
        return outputs[0] if len(outputs) == 1 else outputs

    def _names(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for store in (self._parameters, self._buffers, self._modules):
            own.update({f"self.{name}": value for name, value in store.items()})
        return own
