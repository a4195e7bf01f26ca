"""ImportedModule: what `burnt.onnx.load` returns, a program with its layers and tensors."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import InputTypeError, ShapeError, did_you_mean, quantity
from burnt.module import Module
from burnt.onnx.importer.paths import add_members, find_member, flat, flat_names
from burnt.onnx.importer.program import Program, Size, run_program


@dataclass(frozen=True)
class Signature:
    """What a file says of its model."""

    inputs: tuple[str, ...]  # the name of each with its dtype and sizes, ``ids: int64 [batch, 128]``
    outputs: tuple[str, ...]
    tensors: tuple[bool, ...]  # for each input, whether it is a tensor
    origin: str  # what wrote the file, and its operator set
    axes: tuple[Mapping[int, str], ...] = ()  # for each input, the names of its open axes
    described_axes: tuple[tuple[str, ...], ...] = ()  # what axes are called in written Python; "" for no name


class ImportedModule(Module, init=False):
    """A module that was imported from an ONNX file; its parameters have the paths of the file.

    `program` is what it computes, where ``self.encoder.norm`` is the name of a layer, `members` are its
    layers, parameters and buffers by path, `names` the names of inputs and outputs in the file, and `sizes`
    has for sizes of results the sizes of inputs that the file calls the same.

    Inputs are positional, in the order of the graph, or keywords: their names in the file, or the
    arguments' in written Python, which differ where a name is not an identifier.
    """

    def __init__(
        self,
        program: Program,
        members: Mapping[str, torch.nn.Module | Tensor],
        names: tuple[list[str], list[str]],
        signature: Signature | None = None,
        sizes: Mapping[Size, Size] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.program = program
        add_members(self, members)
        self.input_names, self.output_names = names
        self.signature = signature
        self.sizes = dict(sizes)
        self._shared_axes = {} if signature is None else _shared_axes(signature.axes)
        self.__signature__ = signature_of_inputs(self.input_names, program.inputs)

    @property
    def members(self) -> dict[str, torch.nn.Module | Tensor]:
        """The layers, parameters and buffers that the program reads, by path, in the order of the module."""
        read = {name for name in self.program.free_names() if name.startswith("self.")}
        everything = [*self.named_modules(), *self.named_parameters(), *self.named_buffers()]
        order = [path for path, _ in everything if f"self.{path}" in read]
        return {path: find_member(self, f"self.{path}") for path in order}

    @property
    def flat_names(self) -> list[tuple[str, Callable[[re.Match[str]], str]]]:
        """The ``rename=`` of `burnt.load_weights` for weights of an import that had no paths of the file.

        It called ``bert.encoder.layer.0.output.dense`` ``encoder_layer.0.output_dense``.
        """
        known = flat_names(self.state_dict())
        return [(".+", lambda found: known.get(flat(found[0]), found[0]))]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs of the model.

        What torch raises for an input of a wrong dtype or shape has a note on what the file declares.
        """
        if named or len(inputs) != len(self.input_names):
            inputs = in_order(inputs, named, self.input_names, self.program.inputs, type(self).__name__)
        if self._shared_axes and not torch.compiler.is_compiling():
            self._check_axes(inputs)
        try:
            outputs = run_program(self.program, inputs, functools.partial(find_member, self))
            return outputs[0] if len(outputs) == 1 else outputs
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if self.signature is not None and not torch.compiler.is_compiling():
                given = ", ".join(map(_described, inputs))
                error.add_note(f"the file declares: {'; '.join(self.signature.inputs)}\ngiven: {given}")
            raise

    def _check_axes(self, inputs: Sequence[Any]) -> None:
        """Refuse sizes that differ where the file says that they are equal, on which the program relies."""
        for name, places in self._shared_axes.items():
            sizes = {
                (i, axis): inputs[i].shape[axis]
                for i, axis in places
                if isinstance(inputs[i], Tensor) and axis < inputs[i].dim()
            }
            if len(set(sizes.values())) > 1:
                raise ShapeError(
                    f"axes that the file calls {name!r} have different sizes",
                    where=type(self).__name__,
                    expected="one size for all of them",
                    found=", ".join(
                        f"{size} (axis {axis} of {self.input_names[i]})" for (i, axis), size in sizes.items()
                    ),
                    hint="give them one size; expand() repeats an axis of size 1",
                )


def _shared_axes(axes: Sequence[Mapping[int, str]]) -> dict[str, list[tuple[int, int]]]:
    """Return the names of several axes, with the position of each axis: that of the input, and in it."""
    places: dict[str, list[tuple[int, int]]] = {}
    for i, names in enumerate(axes):
        for axis, name in names.items():
            places.setdefault(name, []).append((i, axis))
    return {name: found for name, found in places.items() if len(found) > 1}


def _described(value: Any) -> str:
    """Return the dtype and sizes of an input, or its class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype} {list(value.shape)}"
    return type(value).__name__


def in_order(
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    names: Sequence[str],
    arguments: Sequence[str],
    where: str,
) -> tuple[Any, ...]:
    """Return the inputs of a model in the order of its file.

    `named` has the names in the file, or of the arguments of written Python.

    >>> in_order((1,), {"input_2": 3, "mask": 2}, ["ids", "mask", "input.2"], ["ids", "mask", "input_2"], "")
    (1, 2, 3)
    """
    positions = {name: i for i, name in enumerate(arguments)} | {name: i for i, name in enumerate(names)}
    values = dict(enumerate(inputs))
    problem: str | None = None
    hint: str | None = None
    pairs = [] if len(inputs) > len(names) else list(named.items())
    if len(inputs) > len(names):
        problem = "the model takes fewer inputs"
    for name, value in pairs:
        position = positions.get(name)
        if position is None:
            problem, hint = f"the model has no input {name!r}", did_you_mean(name, positions)
        elif position in values:
            problem = f"the input {names[position]!r} is given twice"
            hint = "positional inputs are the first ones of the file"
        if problem is not None or position is None:
            break
        values[position] = value
    missing = [name for position, name in enumerate(names) if position not in values]
    if problem is None and missing:
        problem = f"the model lacks {quantity(len(missing), 'input')}: {', '.join(missing)}"
    if problem is not None:
        raise InputTypeError(
            problem,
            where=where,
            expected=f"{len(names)}: {', '.join(names)}" if names else "no inputs",
            found=", ".join([*([f"{len(inputs)} positional"] if inputs else []), *named]) or "none",
            hint=hint,
        )
    return tuple(values[position] for position in range(len(names)))


def signature_of_inputs(names: Sequence[str], arguments: Sequence[str]) -> inspect.Signature:
    """Return the signature of a model's ``forward``: its inputs by their names in the file.

    Those that are not identifiers have the names of arguments.

    >>> signature_of_inputs(["input.1", "Mask"], ["input_1", "mask"])
    <Signature (input_1, Mask)>
    """
    chosen = [
        name if name.isidentifier() and not keyword.iskeyword(name) else argument
        for name, argument in zip(names, arguments, strict=True)
    ]
    if len(set(chosen)) < len(chosen):
        chosen = list(arguments)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in chosen])
