"""Sizes of axes: their names in the file, and blocks that read them from their arguments.

An exporter takes the batch from any tensor that has it, so a block gets sizes beside its tensors. Where the
shapes that are inferred here say that a size is that of an axis of the block's first argument, the block
reads it there. What a file says of shapes is not relied on, but for the ranks of its inputs: two axes of one
name may differ when the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from burnt import nn
from burnt.onnx.importer.module import Block
from burnt.onnx.importer.names import unique_name
from burnt.onnx.importer.program import (
    Call,
    Define,
    Device,
    Expr,
    Name,
    Program,
    Repeat,
    Size,
    Statement,
    replace_leaves,
)

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["axis_names", "name_sizes"]

_Shape: TypeAlias = "tuple[int | Size | None, ...]"
"""Sizes of axes: numbers, those of axes of the model's inputs, None for unknown ones."""

_USELESS = re.compile(
    r"none|unnamed|unknown|(s|u|d|dim|axis|sym|symbol|unk|var)_*\d+|.*(_dim_\d+|dynamic_axes_\d+|_d\d+|unk_.*)|\d.*"
)


def axis_names(values: Sequence[ir.Value], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what the axes of inputs are called, with "" for those without a name.

    Args:
        values: inputs of the graph.
        names: of the arguments that they become.
    """
    found = {}
    for value, name in zip(values, names, strict=True):
        if value.shape is not None:
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            dtype = "" if value.dtype is None else value.dtype.name
            found[name] = tuple(_axis_name(sizes, axis, dtype) for axis in range(len(sizes)))
    return found


def _axis_name(sizes: Sequence[int | str | None], axis: int, dtype: str) -> str:
    """Return the name of an open axis; where the file's says nothing, what it certainly is."""
    symbol = sizes[axis]
    if isinstance(symbol, int):
        return ""
    if symbol and re.fullmatch(r"[\w.\- ]+", symbol, re.ASCII) and not _USELESS.fullmatch(symbol.lower()):
        return unique_name(symbol, {})
    if axis == 0:
        return "batch"
    if len(sizes) == 2 and "INT" in dtype:
        return "length"
    is_image = len(sizes) == 4 and "FLOAT" in dtype and isinstance(sizes[1], int)
    if is_image and not isinstance(sizes[2], int) and not isinstance(sizes[3], int):
        return ("height", "width")[axis - 2]
    return ""


def name_sizes(module: Block, axes: Mapping[str, tuple[str, ...]]) -> None:
    """Name the sizes that blocks of a module take, or leave them away, in place.

    Args:
        module: its results stay the same to the bit.
        axes: what the axes of its inputs are called.
    """
    module.axes = dict(axes)
    members = _members(module)
    inputs: list[_Shape | None] = [
        tuple(Size(Name(name), axis) for axis in range(len(axes[name]))) if name in axes else None
        for name in module.program.inputs
    ]
    scope, guess = (
        _Scope(members, dict(zip(module.program.inputs, inputs, strict=True)), is_guess=is_guess)
        for is_guess in (False, True)
    )
    scope.add(module.program)
    guess.add(module.program)
    _read_from_inputs(module.program, scope, set(axes))
    axes = {**axes, **_axes_of_images(module.program, members)}
    found = zip(*(_calls_of_blocks(module.program, members, one) for one in (scope, guess)), strict=True)
    for (blocks, sites), (_, guessed) in found:
        _Sizes(blocks, sites, [site.shapes[0] for site in guessed], axes).replace(module.program)


def _axes_of_images(program: Program, members: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return what the axes of results of convolutions are called."""
    return {
        statement.outputs[0]: ("", "", "height", "width")
        for statement in program.statements
        if isinstance(statement, Statement) and isinstance(members.get(statement.call.function), nn.Conv2d)
    }


def _members(module: Block) -> dict[str, Any]:
    """Return layers and tensors of a module by their names in its program."""
    found: dict[str, Any] = {}
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        found[f"self.{name}"] = tensor
    for name, layer in module._modules.items():
        found[f"self.{name}"] = layer
        if isinstance(layer, torch.nn.ModuleList):
            found |= {f"self.{name}[{i}]": block for i, block in enumerate(layer)}
    return found


def _read_from_inputs(program: Program, scope: _Scope, inputs: set[str]) -> None:
    """Read sizes of results from the inputs that certainly have them, in place."""

    def leaf(one: Name | Size | Device) -> Expr:
        size = scope.size(one) if isinstance(one, Size) and one.axis is not None else one
        return size if isinstance(size, Size) and size.tensor.name in inputs else one

    _replace(program, leaf)


def _replace(program: Program, leaf: Any) -> None:
    """Replace the leaves of a program's own statements, in place."""
    for i, statement in enumerate(program.statements):
        if isinstance(statement, Repeat):
            initial = tuple(replace_leaves(expr, leaf) for expr in statement.initial)
            args = tuple(replace_leaves(expr, leaf) for expr in statement.args)
            program.statements[i] = replace(statement, initial=initial, args=args)
        elif isinstance(statement, Statement):
            call = statement.call
            args = tuple(replace_leaves(expr, leaf) for expr in call.args)
            kwargs = {key: replace_leaves(value, leaf) for key, value in call.kwargs.items()}
            program.statements[i] = Statement(statement.outputs, Call(call.function, args, kwargs))
    program.outputs = [replace_leaves(output, leaf) for output in program.outputs]


# --- calls of blocks --------------------------------------------------------------------------------------


@dataclass
class _Site:
    """A call of blocks.

    Args:
        position: of the statement.
        args: what the blocks get.
        shapes: of these; for a loop, those that all its blocks get.
    """

    position: int
    args: tuple[Expr, ...]
    shapes: list[_Shape | None]


def _calls_of_blocks(
    program: Program, members: Mapping[str, Any], scope: _Scope
) -> list[tuple[list[Block], list[_Site]]]:
    """Return the blocks of each list, and single ones, with the calls of them."""
    sites: dict[str, list[_Site]] = {}
    for i, statement in enumerate(program.statements):
        if isinstance(statement, Repeat):
            shapes = [*scope.carried[statement.modules], *map(scope.shape, statement.args)]
            site = _Site(i, (*statement.initial, *statement.args), shapes)
            sites.setdefault(statement.modules, []).append(site)
        elif isinstance(statement, Statement) and isinstance(members.get(statement.call.function), Block):
            args = statement.call.args
            name = re.sub(r"\[\d+\]$", "", statement.call.function)
            sites.setdefault(name, []).append(_Site(i, args, list(map(scope.shape, args))))
    found = []
    for name, calls in sites.items():
        member = members[name]
        each = list(member) if isinstance(member, torch.nn.ModuleList) else [member]
        blocks = [block for block in each if isinstance(block, Block)]
        lengths = {len(site.args) for site in calls} | {len(block.program.inputs) for block in blocks}
        if len(blocks) == len(each) and len(lengths) == 1:
            found.append((blocks, calls))
    return found


@dataclass
class _Sizes:
    """The sizes that blocks take.

    Args:
        blocks: those of a list, or a single one.
        sites: all calls of them.
        guessed: likely shapes of their first arguments, for names.
        axes: what the axes of the model's inputs and of images are called.
    """

    blocks: list[Block]
    sites: list[_Site]
    guessed: list[_Shape | None]
    axes: Mapping[str, tuple[str, ...]]

    def replace(self, program: Program) -> None:
        """Name them, or leave them away, in the blocks and in the program that calls them."""
        programs = list({id(block.program): block.program for block in self.blocks}.values())
        if any(isinstance(s, Define) for body in programs for s in body.statements):
            return
        dropped = []
        for i in range(len(self.sites[0].args)):
            if not all(isinstance(site.args[i], Size) for site in self.sites):
                continue
            axis = self.axis_of_first(i)
            name = self.name([site.args[i] for site in self.sites])
            for body in programs:
                if axis is not None:
                    _substitute(body, body.inputs[i], Size(Name(body.inputs[0]), axis))
                elif name:
                    _rename_input(body, i, name)
            if axis is not None:
                dropped.append(i)
        for body in programs:
            body.inputs = [name for i, name in enumerate(body.inputs) if i not in dropped]
        for site in self.sites:
            _drop_arguments(program, site.position, dropped)
        shapes = [shape for shape in self.guessed if shape is not None]
        if len(shapes) == len(self.guessed) and len({len(shape) for shape in shapes}) == 1:
            names = tuple(map(self.name, zip(*shapes, strict=True)))
            for block in self.blocks:
                block.axes = {block.program.inputs[0]: names}

    def axis_of_first(self, i: int) -> int | None:
        """Return which axis of the first argument certainly has the size that is an argument."""
        axes: set[int] | None = None
        for site in self.sites:
            same = {axis for axis, size in enumerate(site.shapes[0] or ()) if size == site.args[i]}
            axes = same if axes is None else axes & same
        return min(axes) if axes else None

    def name(self, sizes: Iterable[Any]) -> str:
        """Return what all calls call a size; "" if there is no such name."""
        found = {
            self.axes[size.tensor.name][size.axis]
            if isinstance(size, Size) and size.axis is not None and size.tensor.name in self.axes
            else ""
            for size in sizes
        }
        return found.pop() if len(found) == 1 else ""


def _substitute(program: Program, name: str, size: Size) -> None:
    """Read a size of an argument for another argument, in place."""
    _replace(program, lambda one: size if one == Name(name) else one)


def _rename_input(program: Program, i: int, name: str) -> None:
    used = {other: 1 for other in program.inputs if other != program.inputs[i]}
    for statement in program.statements:
        if not isinstance(statement, Define):
            used |= dict.fromkeys(statement.outputs, 1)
    new = unique_name(name, used)
    program.rename({program.inputs[i]: new})
    program.inputs[i] = new


def _drop_arguments(program: Program, position: int, dropped: Sequence[int]) -> None:
    statement = program.statements[position]
    if isinstance(statement, Repeat):
        first = len(statement.initial)
        args = tuple(arg for i, arg in enumerate(statement.args, first) if i not in dropped)
        program.statements[position] = replace(statement, args=args)
    elif isinstance(statement, Statement):
        args = tuple(arg for i, arg in enumerate(statement.call.args) if i not in dropped)
        program.statements[position] = replace(statement, call=replace(statement.call, args=args))


# --- inference of shapes ----------------------------------------------------------------------------------

_KEEP_SHAPE = {
    *("F.gelu", "F.silu", "F.relu6", "F.hardswish", "F.hardsigmoid", "F.mish", "F.softplus"),
    *("torch.relu", "torch.tanh", "torch.sigmoid", "torch.exp", "torch.neg", "torch.sqrt", "torch.erf"),
    *("torch.softmax", "torch.clamp", "torch.logical_not", "ops.cast", "ops.quick_gelu", "ops.swish"),
    *("ops.wrap_indices", "ops.cumsum", "torch.bitwise_not", "torch.cos", "torch.sin"),
}
_BROADCAST = {
    *("torch.add", "torch.sub", "torch.mul", "torch.div", "torch.pow", "torch.where", "torch.maximum"),
    *("torch.minimum", "torch.logical_and", "torch.logical_or", "ops.swiglu", "ops.geglu"),
    *("torch.eq", "torch.lt", "torch.le", "torch.gt", "torch.ge"),
}


@dataclass
class _Scope:
    """Shapes of the values of a program that are certain, whatever the sizes of the model's inputs.

    Args:
        members: layers and tensors by name.
        shapes: by name; None where the rank is not known.
        values: of arguments that are sizes.
        carried: for each loop, the shapes that all its blocks get and return.
        is_guess: whether operands with two sizes that are not known to be equal have the size of the first.
    """

    members: Mapping[str, Any]
    shapes: dict[str, _Shape | None]
    values: dict[str, int | Size | None] = field(default_factory=dict)
    carried: dict[str, list[_Shape | None]] = field(default_factory=dict)
    is_guess: bool = False

    def add(self, program: Program) -> None:
        """Add the shapes of a program's results."""
        for statement in program.statements:
            if isinstance(statement, Repeat):
                found = self.loop(statement)
                self.carried[statement.modules] = found
                self.shapes.update(zip(statement.outputs, found, strict=True))
            elif isinstance(statement, Statement):
                found = self.results(statement.call, len(statement.outputs))
                self.shapes.update(zip(statement.outputs, found, strict=False))

    def size(self, expr: Any) -> int | Size | None:
        """Return a size as a number or that of an axis of an input."""
        if type(expr) is int:
            return expr if expr >= 0 else None
        if isinstance(expr, Name):
            return self.values.get(expr.name)
        if not isinstance(expr, Size) or expr.axis is None:
            return None
        shape = self.shape(expr.tensor)
        return shape[expr.axis] if shape is not None and -len(shape) <= expr.axis < len(shape) else None

    def shape(self, expr: Any) -> _Shape | None:
        """Return the shape of a tensor."""
        if not isinstance(expr, Name):
            return () if isinstance(expr, int | float) else None
        member = self.members.get(expr.name)
        if isinstance(member, torch.Tensor):
            return tuple(member.shape)
        return self.shapes.get(expr.name)

    def block(
        self, block: Block, shapes: Sequence[_Shape | None], args: Sequence[Any]
    ) -> list[_Shape | None]:
        """Return the shapes of what a block returns."""
        names = block.program.inputs
        values = {name: self.size(arg) for name, arg in zip(names, args, strict=False)}
        given = dict(zip(names, shapes, strict=False))
        inner = _Scope(_members(block), given, values, is_guess=self.is_guess)
        inner.add(block.program)
        return [inner.shape(output) for output in block.program.outputs]

    def loop(self, repeat: Repeat) -> list[_Shape | None]:
        """Return the shapes that all blocks of a loop get and return: those that no block changes."""
        target = self.members[repeat.modules]
        blocks = list(target) if repeat.count is None else [target]
        carried = list(map(self.shape, repeat.initial))
        if not all(isinstance(block, Block) for block in blocks):
            return [None] * len(carried)
        while True:
            shapes = [*carried, *map(self.shape, repeat.args)]
            before = carried
            for block in blocks:
                found = self.block(block, shapes, (*repeat.initial, *repeat.args))
                carried = list(map(_common, carried, found))
            if carried == before:
                return carried

    def results(self, call: Call, count: int) -> list[_Shape | None]:
        """Return the shapes of the results of a call."""
        member = self.members.get(call.function)
        if isinstance(member, Block):
            return self.block(member, list(map(self.shape, call.args)), call.args)
        shape = self.result(call, member) if count == 1 else None
        return [shape] * count

    def result(self, call: Call, layer: Any) -> _Shape | None:
        """Return the shape of the one result of a call; None for functions without a rule."""
        shape = self.shape(call.args[0]) if call.args else None
        args: Any = call.args
        if isinstance(layer, nn.LayerNorm | nn.RmsNorm):
            return shape
        if shape is not None and isinstance(layer, nn.Linear):
            return (*shape[:-1], int(layer.weight.shape[0]))
        if shape is not None and isinstance(layer, nn.Embedding):
            return (*shape, int(layer.weight.shape[1]))
        if call.function in _KEEP_SHAPE:
            return shape
        if call.function in _BROADCAST:
            return _broadcast([self.shape(arg) for arg in args], self.is_guess)
        if call.function == "torch.reshape" and isinstance(args[1], tuple):
            return tuple(map(self.size, args[1]))
        if call.function == "torch.arange" and args[0] == 0 and args[2:] == (1,):
            return (self.size(args[1]),)
        if call.function == "ops.gather_elements":
            return self.shape(args[1])
        if shape is None:
            return None
        rank = len(shape)
        if call.function == "ops.expand" and isinstance(args[1], list):
            return _broadcast([shape, tuple(map(self.size, args[1]))], self.is_guess)
        if call.function == "ops.expand" and isinstance(args[1], Size) and args[1].axis is None:
            return _broadcast([shape, self.shape(args[1].tensor)], self.is_guess)
        if call.function == "ops.slice_":
            axes: Any = call.kwargs.get("axes")
            is_known = isinstance(axes, list) and all(type(axis) is int for axis in axes)
            cut = {axis % rank for axis in axes} if is_known and isinstance(axes, list) else range(rank)
            return tuple(None if axis in cut else size for axis, size in enumerate(shape))
        if call.function == "ops.gather" and args[2:] in ((), (0,)) and not call.kwargs:
            indices = self.shape(args[1])
            return None if indices is None else (*indices, *shape[1:])
        if call.function == "torch.transpose":
            order = list(range(rank))
            order[args[1]], order[args[2]] = order[args[2]], order[args[1]]
            return tuple(shape[axis] for axis in order)
        if call.function == "torch.permute":
            return tuple(shape[axis] for axis in args[1])
        if call.function in ("torch.unsqueeze", "ops.unsqueeze"):
            axes = args[1] if isinstance(args[1], list) else [args[1]]
            if not all(type(axis) is int and 0 <= axis < rank + len(axes) for axis in axes):
                return None
            rest = iter(shape)
            return tuple(1 if axis in axes else next(rest) for axis in range(rank + len(axes)))
        if call.function == "torch.matmul" and rank > 1 and len(other := self.shape(args[1]) or ()) == 2:
            return (*shape[:-1], other[1])
        return None


def _common(one: _Shape | None, other: _Shape | None) -> _Shape | None:
    """Return the sizes that two shapes have in common."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def _broadcast(shapes: Sequence[_Shape | None], is_guess: bool) -> _Shape | None:
    """Return the shape that shapes are broadcast to."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    found: list[int | Size | None] = []
    for axis in range(-max(map(len, known), default=0), 0):
        sizes = dict.fromkeys(shape[axis] for shape in known if len(shape) >= -axis)
        sizes.pop(1, None)
        numbers = [size for size in sizes if type(size) is int]
        symbols = [size for size in sizes if isinstance(size, Size)]
        if numbers or not sizes:
            found.append(numbers[0] if numbers else 1)
        else:
            found.append(symbols[0] if symbols and (is_guess or len(sizes) == 1) else None)
    return tuple(found)
