"""Generate a plan's calls of torch's own ops, and find the views that need no call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.schedule.placement import VIEW_OPS
from burnt.codegen.schedule.scheduler import TorchCall

Allocation = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a buffer's tensor."""
View = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape and strides of a view, and its distance in elements from the start of its base."""

aten = torch.ops.aten
# torch's own functions skip the checks by which an op finds its overload: half a microsecond.
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: torch.mm, aten.bmm.default: torch.bmm, aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm, aten.convolution.default: torch.convolution,
}  # fmt: skip


def is_own_memory(step: TorchCall) -> bool:
    """Whether a call's results certainly are new memory, which no other tensor shares."""
    return step.node.target in _FUNCTIONS or bool(step.node.meta.get("returns_new_memory"))


def add_torch_call(
    code: HostCode,
    step: TorchCall,
    inputs: Mapping[torch.fx.Node, str],
    outputs: Sequence[str | None],
    allocations: Sequence[Allocation | None],
    numbers: Mapping[float, str],
) -> None:
    """Append a call, given the variables of its tensors, of its results, and of stand-ins for numbers.

    The results get the strides that the plan expects.
    """

    def text(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return inputs[value]
        if isinstance(value, list | tuple):
            parts = "".join(f"{text(v)}, " for v in value)
            return f"[{parts}]" if isinstance(value, list) else f"({parts})"
        return numbers.get(value) or code.name(value) if isinstance(value, float) else code.name(value)

    if _torch.without_autocast not in code.contexts:  # the trace contains autocast's casts already
        code.contexts[_torch.without_autocast] = f"{code.call(_torch.is_autocast)}"
    node = step.node
    arguments = [*map(text, node.args), *(f"{key}={text(v)}" for key, v in node.kwargs.items())]
    called = code.call(_FUNCTIONS.get(node.target, node.target), *arguments)
    targets = ", ".join("_" if t is None else t for t in outputs)
    if isinstance(node.meta.get("val"), tuple | list):
        targets += ","
    code.lines.append(f"{targets} = {called}" if outputs else called)
    for variable, buffer, allocation in zip(outputs, step.outputs, allocations, strict=True):
        if buffer is not None and allocation is not None:
            # The strides of a buffer whose result has another shape are those of its elements.
            code.lines.append(f"if {variable}.stride() != {code.name(buffer.strides)}:")
            arguments = [str(variable), code.name(allocation)]
            code.lines.append(f"    {variable} = {code.call(_restrided, *arguments)}")


def layout_of_view(step: TorchCall) -> View | None:
    """Return the layout of the view that a call makes; None if it may copy."""
    (output,) = step.outputs[:1] or [None]
    if step.node.target not in VIEW_OPS or output is None:
        return None
    ((base, buffer),) = step.inputs.items()
    meta, base_meta = step.node.meta["val"], base.meta["val"]
    same = (buffer.shape, buffer.strides) == (tuple(base_meta.shape), base_meta.stride())
    if not same or (output.shape, output.strides) != (tuple(meta.shape), meta.stride()):
        return None
    return output.shape, output.strides, meta.storage_offset() - base_meta.storage_offset()


def _restrided(tensor: Tensor, allocation: Allocation) -> Tensor:
    """Return a tensor with other strides: a copy, unless only those of axes of size 1 differ."""
    shape, strides, dtype = allocation
    axes = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if not tensor.numel() or all(own == other for size, own, other in axes if size > 1):
        return tensor.as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)
