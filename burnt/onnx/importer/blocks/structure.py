"""What blocks that differ only in numbers have in common: one class, whose constructor takes the numbers.

The layers of a ResNet's stages have other channels, and the same statements. Numbers that are equal in all
blocks stay in the class; those that differ become arguments of its constructor, one for all numbers that are
equal in each block, named after the layer's parameter that they go to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from burnt.config import qualified_name
from burnt.nn.quantized import Quantized
from burnt.onnx.importer.paths import is_reserved
from burnt.onnx.importer.program import Arithmetic, Call, Device, Expr, Name, Program, Size, Statement, parts
from burnt.onnx.importer.python.expressions import parameter_name
from burnt.onnx.importer.python.layers import has_values, layer_arguments, layer_code, tensor_code

_MOST_PARAMETERS = 8

Value: TypeAlias = "int | float | tuple[int | float, ...]"


@dataclass(frozen=True)
class Number:
    """A number, or a tuple of numbers, in which blocks of one class may differ."""

    member: str  # the layer or tensor that it is an argument of; "" for one of `forward`
    parameter: str  # the layer's, ``shape`` of a tensor, or what a number in `forward` is called
    index: int  # the axis of a tensor, or the position among the numbers of `forward`
    value: Value  # int, float, or a tuple of these


@dataclass(frozen=True)
class Structure:
    """What statements do, without their numbers."""

    key: Hashable  # equal for statements that do the same with other numbers in the same places
    numbers: tuple[Number, ...]


def structure_of(
    inputs: Sequence[Expr], statements: Sequence[Statement], members: Mapping[str, torch.nn.Module | Tensor]
) -> Structure:
    """Return the structure of statements. Names of variables do not count."""
    found = _Structures(members, {given: ("input", i) for i, given in enumerate(inputs)})
    parts = tuple(found.statement(i, statement) for i, statement in enumerate(statements))
    return Structure((len(inputs), parts, tuple(found.kinds.items())), (*found.of_members, *found.of_forward))


@dataclass
class _Structures:
    members: Mapping[str, torch.nn.Module | Tensor]
    labels: dict[Expr, Hashable]
    kinds: dict[str, Hashable] = field(default_factory=dict)
    of_members: list[Number] = field(default_factory=list)
    of_forward: list[Number] = field(default_factory=list)

    def statement(self, i: int, statement: Statement) -> Hashable:
        call = _with_numbers(statement.call, self.number)
        kwargs = tuple((key, self.expr(value)) for key, value in sorted(call.kwargs.items()))
        part = self.expr(Name(call.function)), len(statement.outputs), self.expr(call.args), kwargs
        self.labels.update({Name(name): ("result", i, j) for j, name in enumerate(statement.outputs)})
        return part

    def number(self, value: int | float, name: str) -> Expr:
        self.of_forward.append(Number("", name, len(self.of_forward), value))
        return f"<{type(value).__name__}>"

    def expr(self, tree: Expr) -> Hashable:
        """Return what counts of an expression without numbers."""
        if isinstance(tree, Name | Size) and tree in self.labels:
            return self.labels[tree]
        if isinstance(tree, Name):
            path = tree.name.removeprefix("self.")
            if path != tree.name and path in self.members and path not in self.kinds:
                self.kinds[path] = self.kind(path)
            return tree.name
        if isinstance(tree, Size):
            return "size", self.expr(tree.tensor), tree.axis
        if isinstance(tree, Device):
            return "device", self.labels.get(tree.tensor)
        if isinstance(tree, Arithmetic | tuple | list):
            kind = tree.symbol if isinstance(tree, Arithmetic) else type(tree).__name__
            return kind, *map(self.expr, parts(tree))
        return repr(tree)

    def kind(self, path: str) -> Hashable:
        """Return what counts of a layer or tensor, and add its numbers."""
        member = self.members[path]
        if isinstance(member, Tensor):
            kind = isinstance(member, torch.nn.Parameter), member.dtype, member.dim()
            if has_values(member):
                return kind, tensor_code(member).text
            self.of_members += [Number(path, "shape", axis, size) for axis, size in enumerate(member.shape)]
            return kind
        if isinstance(member, Quantized):
            return layer_code(member).text
        weight = next(member.parameters(), None)
        parts: list[Hashable] = [qualified_name(type(member)), None if weight is None else weight.dtype]
        for argument in layer_arguments(member):
            values = argument.value if isinstance(argument.value, tuple) else (argument.value,)
            kinds = tuple(map(type, values))
            if values and set(kinds) <= {int, float}:
                self.of_members.append(Number(path, argument.name, 0, argument.value))
                parts.append((argument.name, type(argument.value), kinds))
            else:
                parts.append((argument.name, repr(argument.value)))
        return tuple(parts)


def _with_numbers(call: Call, replace: Callable[[int | float, str], Expr]) -> Call:
    """Return a call with other numbers above zero; `replace` takes each and what it may be called."""

    def tree(expr: Expr, name: str) -> Expr:
        if (type(expr) is int or type(expr) is float) and expr > 0:
            return replace(expr, name)
        if isinstance(expr, Arithmetic):
            return Arithmetic(expr.symbol, tree(expr.left, name), tree(expr.right, name))
        if isinstance(expr, tuple):
            return tuple(tree(part, name) for part in expr)
        return [tree(part, name) for part in expr] if isinstance(expr, list) else expr

    names = (parameter_name(call.function, i) or "size" for i in range(len(call.args)))
    args = tuple(tree(arg, name) for arg, name in zip(call.args, names, strict=True))
    keywords = {key: tree(call.kwargs[key], key) for key in sorted(call.kwargs)}
    return Call(call.function, args, {key: keywords[key] for key in call.kwargs})


def with_attributes(program: Program, names: Mapping[int, str]) -> Program:
    """Return a program that reads attributes of the module in the place of numbers.

    `names` has the attributes by the position of the number among those of `structure_of`.
    """
    position = -1

    def replace(value: int | float, _: str) -> Expr:
        nonlocal position
        position += 1
        return Name(f"self.{names[position]}") if position in names else value

    found = Program(program.inputs, program.outputs)
    for statement in program.statements:
        assert isinstance(statement, Statement)
        found.statements.append(Statement(statement.outputs, _with_numbers(statement.call, replace)))
    return found


# --- arguments of constructors ----------------------------------------------------------------------------


@dataclass
class Parameter:
    """An argument of a constructor."""

    name: str
    values: list[Any]  # of each block
    uses: list[Number]  # the numbers that it stands for, as they are in the first block

    @property
    def hint(self) -> str:
        """The type, as it is annotated."""
        value = self.values[0]
        if isinstance(value, tuple):
            return f"tuple[{', '.join(type(one).__name__ for one in value)}]"
        return type(value).__name__

    @property
    def is_width(self) -> bool:
        """Whether it is a number of channels or features of a layer."""
        return any(use.parameter in _LAYER_WIDTHS for use in self.uses)


@dataclass
class Constructor:
    """The arguments of the constructor of a class."""

    parameters: list[Parameter] = field(default_factory=list)

    def of_member(self, path: str) -> dict[str | int, str]:
        """Return the names of the parameters that a layer's parameters, or a tensor's axes, are given."""
        uses = [(use, p.name) for p in self.parameters for use in p.uses if use.member == path]
        return {use.index if use.parameter == "shape" else use.parameter: name for use, name in uses}

    def of_forward(self) -> dict[int, str]:
        """Return the names of the parameters that stand for numbers of `forward`, and are attributes."""
        return {use.index: p.name for p in self.parameters for use in p.uses if not use.member}


def constructor(blocks: Sequence[Structure], members: set[str]) -> Constructor | None:
    """Return the constructor of a class for blocks of one structure; None if it took too many arguments."""
    parameters: dict[Hashable, Parameter] = {}
    inputs: dict[str, list[Any]] = {}  # channels of convolutions
    for same in zip(*(block.numbers for block in blocks), strict=True):
        values = [number.value for number in same]
        if len({repr(value) for value in values}) == 1:
            continue
        first = same[0]
        if first.member and all(isinstance(v, tuple) and len({*map(repr, v)}) == 1 for v in values):
            values = [value[0] for value in values]  # layers take one number for all axes
        if first.parameter == "in_channels":
            inputs[first.member] = values
        is_depthwise = first.parameter == "groups" and values == inputs.get(first.member)
        is_width = first.parameter in (*_LAYER_WIDTHS, "shape", "size")
        kind = "width" if is_width or is_depthwise else first.parameter
        parameters.setdefault((kind, *map(repr, values)), Parameter("", values, [])).uses.append(first)
    found = sorted(parameters.values(), key=lambda one: not one.is_width)  # those are positional
    if len(found) > _MOST_PARAMETERS:
        return None
    _name_parameters(found, blocks[0].numbers, set(members))
    return Constructor(found)


_INPUTS = ("in_channels", "in_features")
_OUTPUTS = ("out_channels", "out_features")
_LAYER_WIDTHS = {
    *(*_INPUTS, *_OUTPUTS, "num_features", "num_channels", "normalized_shape", "embedding_dim"),
    *("input_size", "hidden_size"),
}
_PLAIN = {
    **dict.fromkeys(("normalized_shape", "embedding_dim"), "features"),
    **dict.fromkeys(("num_features", "num_channels"), "channels"),
    "shape": "size",
}


def _name_parameters(parameters: list[Parameter], numbers: Sequence[Number], used: set[str]) -> None:
    """Name parameters after the parameters of layers that they go to."""
    first = next((number for number in numbers if number.parameter in _INPUTS), None)
    last = next((number for number in reversed(numbers) if number.parameter in _OUTPUTS), None)
    for parameter in parameters:
        made = next((use for use in parameter.uses if use.parameter in _OUTPUTS), None)
        ends = [("in_", first in parameter.uses), ("out_", last in parameter.uses)]
        hint = _PLAIN.get(parameter.uses[0].parameter, parameter.uses[0].parameter)
        if any(is_end for _, is_end in ends):
            base = "channels" if "channels" in ((first or last).parameter) else "features"  # type: ignore[union-attr]
            hint = base if all(end for _, end in ends) else next(start for start, end in ends if end) + base
        elif made is not None:
            hint = "hidden"
        name, number = hint, 1
        while name in used or is_reserved(name):
            number += 1
            name = f"{hint}_{number}"
        parameter.name = name
        used.add(name)
