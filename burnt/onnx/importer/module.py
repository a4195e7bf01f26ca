"""Modules that run a program: what `burnt.onnx.load` returns, and the blocks in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import InputTypeError
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
        axes: for each input, the names of its open axes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[bool, ...]
    origin: str
    axes: tuple[Mapping[int, str], ...] = ()


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

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs of the model.

        Args:
            inputs: as many as `input_names`, in that order: tensors, or numpy arrays of texts.

        Raises:
            InputTypeError: there are more or fewer inputs.

        What torch raises for an input of a wrong dtype or shape has a note on what the file declares.
        """
        if len(inputs) != len(self.input_names):
            raise InputTypeError(
                "the model takes another number of inputs",
                where=type(self).__name__,
                expected=f"{len(self.input_names)}: {', '.join(self.input_names)}",
                found=len(inputs),
            )
        try:
            return super().forward(*inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if self.signature is not None and not torch.compiler.is_compiling():
                given = ", ".join(map(_described, inputs))
                error.add_note(f"the file declares: {'; '.join(self.signature.inputs)}\ngiven: {given}")
            raise


def _described(value: Any) -> str:
    """Return the dtype and sizes of an input, or its class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype} {list(value.shape)}"
    return type(value).__name__
