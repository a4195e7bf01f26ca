"""Modules that run a program: what `burnt.onnx.load` returns, and the blocks in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnt.module import Module
from burnt.onnx.importer.evaluate import run_program
from burnt.onnx.importer.program import Program

__all__ = ["Block", "ImportedModule", "Signature"]


@dataclass(frozen=True)
class Signature:
    """What a file says of its model.

    Args:
        inputs: the name of each input with its dtype and sizes, such as ``ids: int64 [batch, 128]``.
        outputs: likewise.
        tensors: for each input, whether it is a tensor.
        origin: what wrote the file, and its operator set.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[bool, ...]
    origin: str


class Block(Module, init=False):
    """A program with its tensors and layers; what an imported model repeats is one class of blocks.

    Args:
        program: what it computes; ``self.weight`` and ``self.layers[0]`` are names in it.
        tensors: its parameters and buffers, by name.
        layers: its layers, and lists of them, by name.
        kind: the name of its class, where it is written as Python.

    One output is returned as it is, several as a tuple.
    """

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        layers: Mapping[str, torch.nn.Module],
        kind: str = "Block",
    ) -> None:
        super().__init__()
        self.program = program
        self.kind = kind
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs of the program."""
        outputs = run_program(self.program, inputs, self._find)
        return outputs[0] if len(outputs) == 1 else outputs

    def _find(self, path: str) -> Any:
        """Return what a program calls ``self.weight`` or ``self.layers[0]``."""
        name, _, index = path.removeprefix("self.").partition("[")
        found = getattr(self, name)
        return found[int(index.removesuffix("]"))] if index else found


class ImportedModule(Block, init=False):
    """A module that was imported from an ONNX file.

    Args:
        program: what it computes.
        tensors: its parameters and buffers, by name.
        layers: its layers, by name.
        names: of inputs and outputs in the file.
        signature: what the file says of inputs and outputs.

    Inputs are positional, in the order of the graph.
    """

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, Tensor],
        layers: Mapping[str, torch.nn.Module],
        names: tuple[list[str], list[str]],
        signature: Signature | None = None,
    ) -> None:
        super().__init__(program, tensors, layers)
        self.input_names, self.output_names = names
        self.signature = signature
