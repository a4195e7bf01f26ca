"""What blocks that differ in numbers alone have in common: one class, whose constructor takes the numbers.

The layers of a ResNet's stages have other channels, and the same statements. Numbers that are equal in all
blocks stay in the class; those that differ become arguments of its constructor, one for all numbers that are
equal in each block, named after the layer's parameter that they go to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from burnt.config import qualified_name
from burnt.nn.quantized import Quantized
from burnt.onnx.importer.members import has_values, layer_arguments, layer_source, tensor_code
from burnt.onnx.importer.module import Block
from burnt.onnx.importer.names import is_reserved
from burnt.onnx.importer.printing import parameter_name
from burnt.onnx.importer.program import (
    Arithmetic,
    Call,
    Device,
    Expr,
    Name,
    Program,
    Size,
    Statement,
    leaves,
    name_of,
    names_in,
)

_MOST_PARAMETERS = 8

# Which arguments of functions are sizes, that blocks of one class may differ in.
_SIZES: dict[str, tuple[int, ...]] = {
    "F.adaptive_avg_pool2d": (1,),
    "F.avg_pool2d": (1, 2, 3),
    "F.max_pool2d": (1, 2, 3),
    "F.pad": (1,),
    "ops.arange": (0, 1),
    "ops.expand": (1,),
    "ops.full": (0,),
    "ops.reshape": (1,),
    "ops.slice_": (1, 2),
    "torch.arange": (0, 1),
    "torch.full": (0,),
    "torch.reshape": (1,),
    "torch.select": (2,),
    "torch.split": (1,),
    "torch.unflatten": (2,),
    "torch.zeros": (0,),
}


Value: TypeAlias = "int | float | tuple[int | float, ...]"


@dataclass(frozen=True)
class Number:
    """A number, or a tuple of numbers, in which blocks of one class may differ.

    Args:
        member: the layer or tensor that it is an argument of; "" for one of `forward`.
        parameter: the layer's, ``shape`` of a tensor, or what a size in `forward` is called.
        index: the axis of a tensor, or the position among the numbers of `forward`.
        value: int, float, or a tuple of these.
    """

    member: str
    parameter: str
    index: int
    value: Value


@dataclass(frozen=True)
class Structure:
    """What statements do, without their numbers.

    Args:
        key: equal for statements that do the same with the same numbers of the same places.
        numbers: in order.
        members: names of layers and tensors in the order of their first use.
    """

    key: Hashable
    numbers: tuple[Number, ...]
    members: tuple[str, ...]

    @property
    def exact(self) -> Hashable:
        """Equal for statements that do the same with the same numbers."""
        return self.key, tuple(repr(number.value) for number in self.numbers)


def structure_of(
    inputs: Sequence[Expr],
    statements: Sequence[Statement],
    outputs: Sequence[Expr],
    members: Mapping[str, torch.nn.Module | Tensor],
    nested: Callable[[torch.nn.Module], Hashable] = id,
) -> Structure:
    """Return the structure of statements. Names of variables and members do not count.

    Args:
        inputs: names and sizes that they read from around them.
        statements: calls of functions and of members.
        outputs: what is read outside of them.
        members: layers and tensors by name, ``self.`` left out.
        nested: returns what counts of a block, or of a list of blocks.
    """
    found = _Structures(members, nested, _shape_roles(statements))
    found.labels.update({given: ("input", i) for i, given in enumerate(inputs)})
    parts = [found.statement(i, statement) for i, statement in enumerate(statements)]
    key = len(inputs), tuple(parts), tuple(map(found.expr, outputs)), tuple(found.kinds.values())
    return Structure(key, (*found.of_members, *found.of_forward), tuple(found.kinds))


def block_structure(block: Block, nested: Callable[[torch.nn.Module], Hashable] = id) -> Structure:
    """Return the structure of a block.

    Args:
        block: with its program.
        nested: returns what counts of a block in it.
    """
    program = block.program
    statements = [s for s in program.statements if isinstance(s, Statement)]
    if len(statements) < len(program.statements):  # with functions or loops in it: one of its own
        return Structure(id(block), (), ())
    members = {**block._modules, **block._parameters, **block._buffers}
    given = {name: member for name, member in members.items() if member is not None}
    return structure_of(list(map(Name, program.inputs)), statements, program.outputs, given, nested)


@dataclass
class _Structures:
    members: Mapping[str, torch.nn.Module | Tensor]
    nested: Callable[[torch.nn.Module], Hashable]
    roles: Mapping[tuple[str, ...], Sequence[str]]
    labels: dict[Expr, Hashable] = field(default_factory=dict)
    kinds: dict[str, Hashable] = field(default_factory=dict)
    of_members: list[Number] = field(default_factory=list)
    of_forward: list[Number] = field(default_factory=list)

    def statement(self, i: int, statement: Statement) -> Hashable:
        call = _with_numbers(statement.call, self.number, self.roles.get(statement.outputs, ()))
        function = self.expr(Name(call.function))
        kwargs = tuple((key, self.expr(value)) for key, value in sorted(call.kwargs.items()))
        part = function, len(statement.outputs), self.expr(call.args), kwargs
        self.labels.update({Name(name): ("result", i, j) for j, name in enumerate(statement.outputs)})
        return part

    def number(self, value: Value, name: str) -> Expr:
        self.of_forward.append(Number("", name, len(self.of_forward), value))
        return f"<{type(value).__name__} {len(value) if isinstance(value, tuple) else 1}>"

    def expr(self, tree: Expr) -> Hashable:
        """Return what counts of an expression without numbers."""
        if isinstance(tree, Name | Size) and tree in self.labels:
            return self.labels[tree]
        if isinstance(tree, Name):
            name = tree.name.removeprefix("self.")
            if name == tree.name or name not in self.members:
                return tree.name
            if name not in self.kinds:
                self.kinds[name] = self.kind(name)
            return "member", list(self.kinds).index(name)
        if isinstance(tree, Size):
            return "size", self.expr(tree.tensor), tree.axis
        if isinstance(tree, Device):
            is_own = tree.tensor.name.startswith("self.")
            return "device", self.expr(tree.tensor) if is_own else self.labels.get(tree.tensor)
        if isinstance(tree, Arithmetic):
            return tree.symbol, self.expr(tree.left), self.expr(tree.right)
        if isinstance(tree, tuple | list):
            return type(tree).__name__, *map(self.expr, tree)
        return repr(tree)

    def kind(self, name: str) -> Hashable:
        """Return what counts of a layer or tensor, and add its numbers."""
        member = self.members[name]
        if isinstance(member, Tensor):
            kind = isinstance(member, torch.nn.Parameter), member.dtype, member.dim()
            if has_values(member):
                return kind, tensor_code(member).text
            self.of_members += [Number(name, "shape", axis, size) for axis, size in enumerate(member.shape)]
            return kind
        if isinstance(member, torch.nn.ModuleList | Block):
            return self.nested(member)
        if isinstance(member, Quantized):
            return layer_source(member)
        weight = next(member.parameters(), None)
        parts: list[Hashable] = [qualified_name(type(member)), None if weight is None else weight.dtype]
        for argument in layer_arguments(member):
            values = argument.value if isinstance(argument.value, tuple) else (argument.value,)
            if values and all(type(value) in (int, float) for value in values):
                self.of_members.append(Number(name, argument.name, 0, argument.value))
                shape = type(argument.value), len(values)
                parts.append((argument.name, shape, tuple(map(type, values))))
            else:
                parts.append((argument.name, repr(argument.value)))
        return tuple(parts)


def _shape_roles(statements: Sequence[Statement]) -> dict[tuple[str, ...], Sequence[str]]:
    """Return what the sizes of reshapes are called, by the results of these."""
    heads = {
        name_of(leaf).name
        for statement in statements
        if statement.call.function == "F.scaled_dot_product_attention"
        for leaf in leaves(statement.call.args[:3])
    }
    roles: dict[tuple[str, ...], Sequence[str]] = {}
    for statement in reversed(statements):
        call = statement.call
        if call.function == "torch.transpose" and heads.intersection(statement.outputs):
            heads.update(names_in(call.args))
        elif call.function in ("torch.reshape", "ops.reshape") and isinstance(call.args[1], tuple | list):
            if len(call.args[1]) == 3:
                roles[statement.outputs] = "batch", "length", "size"
            elif len(call.args[1]) == 4 and heads.intersection(statement.outputs):
                roles[statement.outputs] = "batch", "length", "heads", "head_size"
        elif call.function == "torch.unflatten" and heads.intersection(statement.outputs):
            roles[statement.outputs] = ("heads", "head_size") if _parts(call.args[2]) == 2 else ()
    return roles


def _parts(sizes: Expr) -> int:
    return len(sizes) if isinstance(sizes, tuple | list) else 0


def _with_numbers(call: Call, replace: Callable[[Value, str], Expr], roles: Sequence[str] = ()) -> Call:
    """Return a call with other numbers: sizes above zero, and floating-point arguments.

    Args:
        call: of a function.
        replace: takes a number and what it may be called.
        roles: what the parts of a tuple of sizes may be called.
    """

    def sizes(tree: Expr, role: str = "size") -> Expr:
        if type(tree) is int and tree > 0:
            return replace(tree, role)
        if isinstance(tree, Arithmetic):
            return Arithmetic(tree.symbol, sizes(tree.left), sizes(tree.right))
        if isinstance(tree, tuple | list):
            parts = [sizes(part, roles[i] if roles else "size") for i, part in enumerate(tree)]
            return tuple(parts) if isinstance(tree, tuple) else parts
        return tree

    def argument(i: int | str, tree: Expr) -> Expr:
        if type(tree) is float:
            return replace(tree, i if isinstance(i, str) else parameter_name(call.function, i) or "value")
        if call.function == "F.pad" and i == 1 and _is_constant(tree):
            return replace(tree, "pad")
        return sizes(tree) if i in _SIZES.get(call.function, ()) else tree

    args = tuple(argument(i, arg) for i, arg in enumerate(call.args))
    keywords = {key: argument(key, call.kwargs[key]) for key in sorted(call.kwargs)}
    return Call(call.function, args, {key: keywords[key] for key in call.kwargs})


def _is_constant(tree: Expr) -> TypeGuard[tuple[int, ...]]:
    return isinstance(tree, tuple) and bool(tree) and all(type(part) is int for part in tree)


# --- arguments of constructors ----------------------------------------------------------------------------


@dataclass
class Parameter:
    """An argument of a constructor.

    Args:
        name: of the parameter.
        values: of each block.
        uses: the numbers that it stands for, as they are in the first block.
    """

    name: str
    values: list[Any]
    uses: list[Number]

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
    """The arguments of the constructor of a class.

    Args:
        parameters: in order.
    """

    parameters: list[Parameter] = field(default_factory=list)

    def of_layer(self, member: str) -> dict[str, str]:
        """Return the names of the parameters that a layer's parameters are given."""
        return {u.parameter: p.name for p in self.parameters for u in p.uses if u.member == member}

    def of_tensor(self, member: str) -> dict[int, str]:
        """Return the names of the parameters that are the sizes of a tensor's axes."""
        return {u.index: p.name for p in self.parameters for u in p.uses if u.member == member}

    def attributes(self) -> list[str]:
        """Return the names of the parameters that `forward` reads."""
        return [p.name for p in self.parameters if any(not use.member for use in p.uses)]

    def of_forward(self) -> dict[int, str]:
        """Return the names of the parameters that stand for numbers of `forward`."""
        return {u.index: p.name for p in self.parameters for u in p.uses if not u.member}


def with_attributes(program: Program, names: Mapping[int, str]) -> Program:
    """Return a program that reads attributes of the module in the place of numbers.

    Args:
        program: of statements alone.
        names: of attributes, by the position of the number among those of `structure_of`.
    """
    position = -1

    def replace(value: Value, _: str) -> Expr:
        nonlocal position
        position += 1
        return Name(f"self.{names[position]}") if position in names else value

    found = Program(program.inputs, program.outputs)
    for statement in program.statements:
        assert isinstance(statement, Statement)
        found.statements.append(Statement(statement.outputs, _with_numbers(statement.call, replace)))
    return found


def constructor(blocks: Sequence[Structure], members: Sequence[str]) -> Constructor | None:
    """Return the constructor of a class for blocks of one structure; None if it took too many arguments.

    Args:
        blocks: the structures; their keys are equal.
        members: names that its arguments do not have.
    """
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
        kind = "width" if _is_width(first) or is_depthwise else first.parameter
        parameter = parameters.setdefault((kind, *map(repr, values)), Parameter("", values, []))
        parameter.uses.append(first)
    found = list(parameters.values())
    if len(found) > _MOST_PARAMETERS:
        return None
    found.sort(key=lambda parameter: not parameter.is_width)  # those are positional
    _name_parameters(found, blocks[0].numbers, set(members))
    return Constructor(found)


_INPUTS = ("in_channels", "in_features")
_OUTPUTS = ("out_channels", "out_features")
_LAYER_WIDTHS = {
    *(*_INPUTS, *_OUTPUTS, "num_features", "num_channels", "normalized_shape", "embedding_dim"),
    *("input_size", "hidden_size"),
}
_SHARED_ROLES = ("heads", "head_size", "length", "batch", "size", "shape")
"""What sizes of tensors may be called, the best name first."""


def _is_width(number: Number) -> bool:
    return number.parameter in _LAYER_WIDTHS or number.parameter in _SHARED_ROLES


def _name_parameters(parameters: list[Parameter], numbers: Sequence[Number], members: set[str]) -> None:
    """Name parameters after the parameters of layers that they go to."""
    first = next((number for number in numbers if number.parameter in _INPUTS), None)
    last = next((number for number in reversed(numbers) if number.parameter in _OUTPUTS), None)
    used = set(members)
    for parameter in parameters:
        uses = [use for use in parameter.uses if use.member]
        made = [use for use in uses if use.parameter in _OUTPUTS]
        if first in uses or last in uses:
            base = (first if first in uses else last).parameter.split("_")[1]  # type: ignore[union-attr]
            hints = [
                base if first in uses and last in uses else f"in_{base}" if first in uses else f"out_{base}"
            ]
        elif made:
            words = [word for word in made[0].member.split("_") if not word.isdecimal()]
            hints = ["hidden", f"{words[-1] if words else 'inner'}_{made[0].parameter.split('_')[1]}"]
        else:
            roles = sorted((use.parameter for use in parameter.uses), key=_rank)
            hints = [_PLAIN.get(roles[0], roles[0])]
        hints += [f"{hints[-1]}_{number}" for number in range(2, len(parameters) + len(used) + 3)]
        parameter.name = next(hint for hint in hints if hint not in used and not is_reserved(hint))
        used.add(parameter.name)


def _rank(parameter: str) -> int:
    return _SHARED_ROLES.index(parameter) if parameter in _SHARED_ROLES else -1


_PLAIN = {
    "normalized_shape": "features",
    "num_features": "channels",
    "num_channels": "channels",
    "embedding_dim": "features",
    "shape": "size",
}
