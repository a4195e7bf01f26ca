"""Which axes of a file are open, how far, and what fixes one that cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from burnt._independence import BatchProbe, pad
from burnt.errors import BurntError, InputRuntimeError, InputValueError
from burnt.inspect.signature import Signature, TensorInfo
from burnt.onnx.importer.module import ImportedModule

OpenAxes = Mapping[str, Mapping[int, str]]
"""Names of axes, by input and axis."""

OPEN_AXIS = "axis_0"
"""The name of an open axis that would be the batch if outputs did not depend on its other entries."""

_LARGEST_MINIMUM = 4  # sizes below are compared one by one


@dataclass(frozen=True)
class Limit:
    """The sizes that an open axis may have, where not all."""

    smallest: int = 1  # below it torch's graph is not known to hold; the comparison looks at all these sizes
    largest: int | None = None  # beyond it a table ends; None if none does
    table: str | None = None  # the parameter or buffer of that size, by its name in the module

    def __str__(self) -> str:
        return f"at most {self.largest}, the size of {self.table}"


def with_named_batch(signature: Signature, open_axes: OpenAxes) -> Signature:
    """Return a signature whose batch axes are those named ``"batch"``, such as the second of a state.

    Of inputs without such a name, the first axis is the batch if it has the same size and no other name. If
    there are no such names, nothing is changed.
    """
    named = {
        name: axis for name, axes in open_axes.items() for axis, symbol in axes.items() if symbol == "batch"
    }
    sizes = {
        size
        for info in signature.inputs
        for axis, size in enumerate(info.shape)
        if axis == named.get(info.name)
    }
    if not sizes:
        return signature
    inputs = []
    for info in signature.inputs:
        is_first = bool(info.shape) and info.shape[0] in sizes and 0 not in open_axes.get(info.name, {})
        inputs.append(replace(info, batch_axis=named.get(info.name, 0 if is_first else None)))
    return replace(signature, inputs=tuple(inputs))


def without_batch(signature: Signature, open_axes: OpenAxes) -> tuple[Signature, OpenAxes]:
    """Return a signature without a batch, and names of open axes in which its batch axes are further ones."""
    inputs = tuple(
        replace(info, shape=info.shape_for(max(2, info.shape[info.batch_axis])), batch_axis=None)
        if info.batch_axis is not None
        else info
        for info in signature.inputs
    )
    axes = {
        info.name: {
            **open_axes.get(info.name, {}),
            **({} if info.batch_axis is None else {info.batch_axis: OPEN_AXIS}),
        }
        for info in signature.inputs
    }
    return replace(signature, inputs=inputs), axes


def items_depend(model: nn.Module, signature: Signature, tolerance: float) -> bool:
    """Whether outputs of an item depend on the others of its batch, by random items within the ranges.

    False where no output has a batch axis, and where the model fails. Not compared are outputs of which
    another axis grows with the batch, too: these cannot be divided among items.
    """
    varied = tuple(replace(info, range=_wider(info)) for info in signature.inputs)
    examples = [replace(signature, inputs=varied).example(1, seed) for seed in range(3)]
    items = [[tensor.numpy() for tensor in tensors] for tensors in examples]
    for array, info in zip(items[0], varied, strict=True):
        low, high = info.range or (0, 0)
        if array.dtype != bool:
            array[...] = low + (array - low) / 2  # sums and largest numbers of many elements hardly differ
        if low <= 0 <= high:
            pad(array, info.batch_axis)
    inputs, outputs = ([info.batch_axis for info in infos] for infos in (signature.inputs, signature.outputs))
    probe = BatchProbe(items, inputs, outputs, tolerance)
    for size in (1, 1, 2, 3):
        batch = [torch.from_numpy(array) for array in probe.batch(size)]
        try:
            with torch.no_grad():
                found = signature.call(model, batch)
        except Exception:  # the model's code may raise anything; tracing it says what fixes a size
            return False
        for i, (info, tensor) in enumerate(zip(signature.outputs, found, strict=True)):
            outputs[i] = outputs[i] if info.shape_for(size) == tensor.shape else None
        probe.add([tensor.numpy() for tensor in found])
    return probe.depends


def _wider(info: TensorInfo) -> tuple[float, float] | None:
    """Return the range of an example; of one whose values are all the same, one with others."""
    if info.range is None or info.range[0] < info.range[1]:
        return info.range
    return None if info.torch_dtype.is_floating_point else (info.range[0], info.range[0] + 1)


def with_open_axes(signature: Signature, open_axes: OpenAxes) -> tuple[Signature, list[dict[int, str]]]:
    """Return a signature with further batch axes, and the names of all open axes of each input."""
    infos = {info.name: info for info in signature.inputs}
    axes: dict[str, dict[int, str]] = {name: {} for name in infos}
    sizes: dict[str, int] = {}
    for name, info in infos.items():
        if info.batch_axis is not None:
            axes[name][info.batch_axis] = "batch"
            sizes["batch"] = info.shape[info.batch_axis]
    for name, names in open_axes.items():
        if name not in infos:
            raise InputValueError(
                "open_axes= names no input", expected=" or ".join(map(repr, infos)), found=repr(name)
            )
        for axis, symbol in names.items():
            shape, batch = infos[name].shape, infos[name].batch_axis
            problem: str | None = None
            hint: str | None = None
            found: Any = None
            expected: Any = "an identifier, such as 'sequence'"
            if axis not in range(len(shape)) or (symbol == "batch") != (axis == batch):
                problem = "open_axes= names no axis that can be opened"
                expected = f"an axis of {infos[name].shape_text()}, other than the batch"
                hint = 'name the axis of the items: {1: "batch"}' if axis == batch else None
            elif not symbol.isidentifier():
                problem = "open_axes= has an invalid name"
            elif shape[axis] < 2 or shape[axis] != sizes.setdefault(symbol, shape[axis]):
                problem = "the example has an unsuitable size along an open axis"
                expected, found = "at least 2, and the same along all axes of one name", shape[axis]
            if problem is not None:
                where = f"{name}: {{{axis}: {symbol!r}}}"
                raise InputValueError(problem, where=where, expected=expected, found=found, hint=hint)
            axes[name][axis] = symbol
    return replace(signature, inputs=tuple(infos.values())), list(axes.values())


def axes_of_imported(model: nn.Module, signature: Signature) -> dict[str, dict[int, str]]:
    """Return the axes other than the batch that the file of an imported model leaves open, where they can be.

    An axis stays fixed that has less than two elements in the example, or another size there than the axes of
    its name. Modules that were not imported have none.
    """
    named = model.signature.axes if isinstance(model, ImportedModule) and model.signature else ()
    if len(named) != len(signature.inputs):
        return {}
    pairs = list(zip(signature.inputs, named, strict=True))
    batches = {names.get(info.batch_axis) for info, names in pairs if info.batch_axis is not None} - {None}
    sizes: dict[str, set[int]] = {}
    for info, names in pairs:
        for axis, name in names.items():
            sizes.setdefault(name, set()).add(info.shape[axis])
    kept = {name for name, found in sizes.items() if len(found) == 1 and min(found) > 1} - batches
    axes = {
        info.name: {
            axis: _identifier(name)
            for axis, name in names.items()
            if name in kept and axis != info.batch_axis
        }
        for info, names in pairs
    }
    return {name: found for name, found in axes.items() if found}


def _identifier(name: str) -> str:
    """Return a name of an axis as `torch.export` takes it; ``batch`` is the axis of the items."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() and found != "batch" else f"axis_{found}"


def limits_in(text: str, model: nn.Module) -> dict[str, Limit] | None:
    """Return the limits of open axes that torch.export's error asks for; None if it asks for more than that.

    A largest size must be a parameter's or buffer's, such as a table of positions: any other comes from code
    that does something else for larger ones, which a file would not do.
    """
    fixes = text.partition("Suggested fixes:\n")[2]
    limits = {}
    for fix in fixes.split("\n\n")[0].splitlines():
        parts = re.fullmatch(r"\s*(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)\s*", fix)
        if parts is None:
            return None
        smallest, largest = int(parts[2] or 1), int(parts[3]) if parts[3] else None
        table = None if largest is None else table_of(largest, model)
        if smallest > _LARGEST_MINIMUM or (largest is not None and (table is None or parts[1] == "batch")):
            return None
        limits[parts[1]] = Limit(smallest, largest, table)
    return limits or None


def table_of(size: int, model: nn.Module) -> str | None:
    """Return the name of a parameter or buffer with an axis of a size, one of positions before others."""
    names = [name for name, tensor in _tensors(model) if size in tensor.shape]
    return min(names, key=lambda name: "pos" not in name.lower(), default=None)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def fixed_axis_error(model: nn.Module, text: str) -> BurntError:
    """Return the error for an open axis whose size the code fixes or limits, from torch's text about it."""
    fixed = re.search(
        r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)", text
    )
    limited = re.search(r"values of (\w+) = (\S+) in the .* generated guard (.*)", text)
    symbol, found = "an open axis", text
    hint = "use -1 or x.shape[0] for it in the code"
    if fixed:
        symbol, found = fixed[1], f"code that fixes its size to {fixed[2]}{_table_text(fixed[2], model)}"
        hint += (
            f", or fix it here, too: batch={fixed[2]}"
            if symbol == "batch"
            else ", or leave it out of open_axes="
        )
        if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
            hint = "torch.export writes each step of a recurrent layer: leave its length out of open_axes="
    elif limited:
        symbol, found = limited[1], limited[3].replace(limited[2], limited[1])
        found += "".join(_table_text(size, model) for size in re.findall(r"\d+", found)[-1:])
        if "//" in found:
            hint = (
                "a pool or a strided convolution compares a size of its output, and torch.export takes that "
                "for a limit: leave the axis out of open_axes=, or try torch.onnx.export"
            )
    return InputRuntimeError(
        f"the axis {symbol} of {type(model).__name__} cannot stay open",
        expected="any size",
        found=found,
        hint=hint,
    )


def _table_text(size: str, model: nn.Module) -> str:
    table = table_of(int(size), model) if int(size) > 1 else None
    return "" if table is None else f", the size of {table}"
