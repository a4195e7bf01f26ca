"""Embedding look-up, with a backward that adds up in one order (`burnt.kernels.ops.embedding.backward`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.codegen.runtime.targets import target_of
from burnt.errors import InputIndexError, InputRuntimeError, range_hint
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_one_device
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.embedding.backward import embedding_gradient, supported

__all__ = ["embedding"]


def _check(indices: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    check_one_device("embedding", indices=indices, weight=weight)
    if indices.dtype not in (torch.int64, torch.int32):
        raise InputRuntimeError(
            "indices of this dtype are not looked up",
            where="burnt.kernels.embedding",
            expected="int64 or int32",
            found=indices.dtype,
            hint="indices come first, then the table" if indices.is_floating_point() else "indices.long()",
        )
    if weight.dim() != 2:
        raise InputRuntimeError(
            "the table of an embedding has rows and columns",
            where="burnt.kernels.embedding",
            expected="[rows, d]",
            found=tuple(weight.shape),
        )


def _look(indices: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    if not indices.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(indices))
    if smallest < 0 or largest >= weight.shape[0]:
        raise InputIndexError(
            "an index has no embedding",
            where="burnt.kernels.embedding",
            expected=f"indices from 0 to {weight.shape[0] - 1}",
            found=f"indices from {smallest} to {largest}",
            hint=range_hint(smallest, largest, weight.shape[0]),
        )


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for count, rows, columns, dtype in [
        ((8, 512), 32000, 256, torch.float32),
        ((8, 512), 32000, 256, torch.bfloat16),
        ((7, 5), 11, 3, torch.float32),
    ]:
        indices = torch.randint(rows, count, device=device)
        table = torch.randn(rows, columns, device=device).to(dtype)
        made += [(indices, table, pad) for pad in (None, 1)]
    return made


# Times as fast as torch's, inputs beyond the caches, one thread (`benchmarks/ops.py embedding`). Look-ups of
# float32, generated: 1.4 to 2.6 at 4096 of 32000 x 256, 1.1 to 2.8 from 2000 rows of 256 to 1024; below some
# 10^5 elements, and of 16 bits, 0.3 to 1. Gradients, sorted: of 16 bits 1.1 to 1.4 where the table has more
# rows than there are indices, else 0.6 to 1; of float32 0.5 to 1.1, and 1.3 to 1.9 where half of the indices
# are one and several threads wait for it.
_LARGE = 1 << 17


def _library_best(indices: Tensor, weight: Tensor, padding_idx: int | None) -> bool:
    large = indices.numel() * weight.shape[1] >= _LARGE
    return wants_gradient(weight) or weight.dtype != torch.float32 or not large


def _sorted_best(indices: Tensor, weight: Tensor, padding_idx: int | None) -> bool:
    large = indices.numel() * weight.shape[1] >= _LARGE
    rows_to_spare = indices.numel() <= weight.shape[0]
    return weight.device.type == "cpu" and weight.dtype.itemsize == 2 and large and rows_to_spare


@op(check=_check, look=_look, examples=_examples, library_best=_library_best)
def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of a table, looked up by index.

    Args:
        indices: ``[*]``, int64 or int32.
        weight: ``[rows, d]``, the table.
        padding_idx: the row that gets no gradient; negative counts from the end.

    Returns:
        ``[*, d]``.

    Raises:
        InputIndexError: an index outside of the table, on the CPU; a GPU reports it later, as a failed
            assertion, or not at all.
        InputRuntimeError: shapes, dtypes or devices do not fit each other.

    As `torch.nn.functional.embedding`. The candidate ``sorted`` adds its gradient up in one fixed order, that
    of the sorted indices, whatever the number of threads.

    >>> embedding(torch.tensor([1, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    return F.embedding(indices, weight, padding_idx)


class _Sorted(torch.autograd.Function):
    """A look-up, whatever computes it, and the gradient by sorting. It keeps nothing but the indices."""

    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return embedding.run((indices, weight, padding_idx))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: torch's call has one
            padding = -1 if ctx.padding_idx is None else ctx.padding_idx % ctx.rows
            made = torch.ops.aten.embedding_dense_backward(cotangent, indices, ctx.rows, padding, False)
        else:
            made = embedding_gradient(cotangent, indices, ctx.rows, ctx.padding_idx)
        return None, made, None


def _why_not_sorted(indices: Tensor, weight: Tensor, padding_idx: int | None) -> str | None:
    if not wants_gradient(weight):
        return "no gradient is wanted, and it differs in the gradient"
    if not supported(weight.dtype):
        return f"a table of {weight.dtype}"
    target = target_of(weight.device)
    return target if isinstance(target, str) else None


@embedding.candidate(
    "sorted",
    devices=["cpu", "cuda"],
    when=_why_not_sorted,
    best=_sorted_best,
    differentiable=True,
    checks_values=True,
)
def _(indices: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    return _Sorted.apply(indices, weight, padding_idx)  # type: ignore[no-any-return, no-untyped-call]
