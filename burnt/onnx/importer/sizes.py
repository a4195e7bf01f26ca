"""Sizes of axes: what they are called in written Python, and where they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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

    from burnt.onnx.importer.build import Build


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


def read_sizes_from_inputs(build: Build) -> None:
    """Read sizes of results from the inputs whose axes have their names in the file, in place."""

    def leaf(one: Name | Size | Device) -> Expr:
        if not isinstance(one, Size) or one.axis is None:
            return one
        sizes = build.shapes.get(one.tensor, [])
        size = build.size_of(sizes[one.axis]) if one.axis < len(sizes) else None
        return size if isinstance(size, Size) else one

    program = build.program
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


def name_sizes(module: Block, axes: Mapping[str, tuple[str, ...]]) -> None:
    """Name the sizes that blocks of a module take after the axes that they are read from, in place.

    Args:
        module: its results stay the same.
        axes: what the axes of its inputs are called.
    """
    module.axes = dict(axes)
    axes = {**axes, **_axes_of_images(module)}
    calls: dict[str, list[tuple[Block, Sequence[Expr]]]] = {}
    for blocks, args in _calls_of_blocks(module):
        for block in blocks:
            calls.setdefault(block.kind, []).append((block, args))
    for same in calls.values():
        for i, column in enumerate(zip(*(args for _, args in same), strict=False)):
            names = {_axis_of(size, axes) for size in column}
            if len(names) == 1 and (name := names.pop()):
                for program in {id(block.program): block.program for block, _ in same}.values():
                    _rename_input(program, i, name)


def _axis_of(size: Expr, axes: Mapping[str, tuple[str, ...]]) -> str:
    """Return what the axis of a size is called; "" for other arguments and axes without a name."""
    if not isinstance(size, Size) or size.axis is None or size.tensor.name not in axes:
        return ""
    return axes[size.tensor.name][size.axis]


def _axes_of_images(module: Block) -> dict[str, tuple[str, ...]]:
    """Return what the axes of results of convolutions are called."""
    return {
        statement.outputs[0]: ("", "", "height", "width")
        for statement in module.program.statements
        if isinstance(statement, Statement)
        and isinstance(module._modules.get(statement.call.function.removeprefix("self.")), nn.Conv2d)
    }


def _calls_of_blocks(module: Block) -> Iterator[tuple[list[Block], Sequence[Expr]]]:
    """Yield the blocks of a module that are called, and their arguments."""
    for statement in module.program.statements:
        if isinstance(statement, Repeat):
            target = module._modules[statement.modules.removeprefix("self.")]
            blocks = list(target) if isinstance(target, torch.nn.ModuleList) else [target]
            args: tuple[Expr, ...] = (*statement.initial, *statement.args)
        elif isinstance(statement, Statement):
            path = re.fullmatch(r"self\.(\w+)(?:\[(\d+)\])?", statement.call.function)
            target = None if path is None else module._modules.get(path[1])
            if path is not None and path[2] and isinstance(target, torch.nn.ModuleList):
                target = target[int(path[2])]
            blocks, args = [target], statement.call.args
        else:
            continue
        yield [block for block in blocks if isinstance(block, Block)], args


def _rename_input(program: Program, i: int, name: str) -> None:
    used = {other: 1 for other in program.inputs if other != program.inputs[i]}
    for statement in program.statements:
        if not isinstance(statement, Define):
            used |= dict.fromkeys(statement.outputs, 1)
    new = unique_name(name, used)
    program.rename({program.inputs[i]: new})
    program.inputs[i] = new
