"""Which axes of a file are open, how far, and what fixes one that cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from burnt.errors import BurntError, InputRuntimeError, InputValueError
from burnt.inspect.signature import Signature, forward_signature
from burnt.onnx.importer.module import ImportedModule

__all__ = [
    "Limit",
    "axes_of_imported",
    "fixed_axis_error",
    "limits_in",
    "size_of_batch",
    "with_open_axes",
]

OpenAxes = Mapping[str, Mapping[int, str]]
"""Names of axes, by input and axis."""

_LARGEST_MINIMUM = 4  # sizes below are compared one by one


@dataclass(frozen=True)
class Limit:
    """The sizes that an open axis may have, where not all.

    Args:
        smallest: below it torch's graph is not known to hold; the comparison looks at all these sizes.
        largest: beyond it a table ends; None if none does.
        table: the parameter or buffer of that size, by its name in the module.
    """

    smallest: int = 1
    largest: int | None = None
    table: str | None = None

    def __str__(self) -> str:
        return f"at most {self.largest}, the size of {self.table}"


def size_of_batch(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], open_axes: OpenAxes
) -> int | None:
    """Return the example's size along an axis that is opened as the batch, such as the second of a state.

    Another size of all leading axes alone, which `signature_of` tries by default, would not fit the model.
    """
    try:
        arguments = forward_signature(model).bind(*args, **kwargs).arguments
    except TypeError:
        return None  # `signature_of` says what is wrong
    for name, names in open_axes.items():
        tensor = arguments.get(name)
        for axis, symbol in names.items():
            if symbol == "batch" and isinstance(tensor, Tensor) and axis < tensor.dim():
                return tensor.shape[axis]
    return None


def with_open_axes(signature: Signature, open_axes: OpenAxes) -> tuple[Signature, list[dict[int, str]]]:
    """Return a signature with further batch axes, and the names of all open axes of each input.

    Raises:
        InputValueError: `open_axes` is about no input or axis, or the example's sizes do not fit it.
    """
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
            shape, where = infos[name].shape, f"{name}: {{{axis}: {symbol!r}}}"
            if axis not in range(len(shape)) or axis in axes[name]:
                raise InputValueError(
                    "open_axes= names no axis that can be opened",
                    where=where,
                    expected=f"an axis of {infos[name].shape_text()}, other than the batch",
                )
            if not symbol.isidentifier():
                raise InputValueError(
                    "open_axes= has an invalid name",
                    where=where,
                    expected="an identifier, such as 'sequence'",
                )
            if shape[axis] < 2 or shape[axis] != sizes.setdefault(symbol, shape[axis]):
                raise InputValueError(
                    "the example has an unsuitable size along an open axis",
                    where=where,
                    expected="at least 2, and the same along all axes of one name",
                    found=shape[axis],
                )
            axes[name][axis] = symbol
            if symbol == "batch":
                infos[name] = replace(infos[name], batch_axis=axis)
    return replace(signature, inputs=tuple(infos.values())), list(axes.values())


def axes_of_imported(model: nn.Module, signature: Signature) -> dict[str, dict[int, str]]:
    """Return the axes beside the batch that the file of an imported model leaves open, where they can be.

    Args:
        model: any module; of others than imported ones there are none.
        signature: of an example. An axis stays fixed that has less than two elements there, or another size
            than the axes of its name.
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
    """Return a name of an axis as `torch.export` takes it; ``batch`` is that of the items."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() and found != "batch" else f"axis_{found}"


def limits_in(text: str, model: nn.Module) -> dict[str, Limit] | None:
    """Return the limits of open axes that torch.export's error asks for; None if it asks for more than that.

    A largest size must be that of a parameter or buffer, such as a table of positions: any other comes from
    code that does something else for larger ones, which a file would not do.
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
