"""The op `embedding`; its candidate ``sorted`` has a deterministic backward (see `backward`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.codegen.runtime.targets import target_of
from burnt.errors import InputIndexError, InputRuntimeError, range_hint
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_one_device
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.embedding.backward import embedding_gradient, is_supported


def _check(indices: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    check_one_device("embedding", indices=indices, weight=weight)
    if indices.dtype not in (torch.int64, torch.int32):
        raise InputRuntimeError(
            "the indices of an embedding have the wrong dtype",
            where="burnt.kernels.embedding",
            expected="int64 or int32",
            found=indices.dtype,
            hint="indices.long()" if weight.is_floating_point() else "pass indices first, then the table",
        )
    if weight.dim() != 2:
        raise InputRuntimeError(
            "the table of an embedding must have two axes",
            where="burnt.kernels.embedding",
            expected="[rows, d]",
            found=tuple(weight.shape),
        )


def _check_index_range(indices: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    if not indices.numel():
        return
    smallest, largest = (int(t) for t in torch.aminmax(indices))
    if smallest < 0 or largest >= weight.shape[0]:
        raise InputIndexError(
            "an index is outside the embedding table",
            where="burnt.kernels.embedding",
            expected=f"indices from 0 to {weight.shape[0] - 1}",
            found=f"indices from {smallest} to {largest}",
            hint=range_hint(smallest, largest, weight.shape[0]),
        )


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for count, rows, columns, dtype in [
        ((8, 512), 32000, 256, torch.float32),
        ((8, 512), 32000, 256, torch.bfloat16),
        ((7, 5), 11, 3, torch.float32),
    ]:
        indices = torch.randint(rows, count, device=device)
        table = torch.randn(rows, columns, device=device).to(dtype)
        examples += [(indices, table, pad) for pad in (None, 1)]
    return examples


# Sorted gradients of more elements in 16 bits are 1.1 to 1.4 times as fast as torch's if the table has more
# rows than there are indices, else 0.6 to 1; in float32 0.5 to 1.1 (`benchmarks/ops.py`, one thread).
_MIN_ELEMENTS = 1 << 17


def _features(indices: Tensor, weight: Tensor, padding_idx: int | None) -> dict[str, int]:
    return {"gathered": indices.numel() * weight.shape[1]}


def _is_sorted_best(indices: Tensor, weight: Tensor, padding_idx: int | None) -> bool:
    is_large = indices.numel() * weight.shape[1] >= _MIN_ELEMENTS
    has_few_indices = indices.numel() <= weight.shape[0]
    return weight.device.type == "cpu" and weight.dtype.itemsize == 2 and is_large and has_few_indices


@op(check=_check, look=_check_index_range, examples=_examples, features=_features)
def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Return the rows of a table at the given indices.

    Args:
        indices: ``[*]``, int64 or int32.
        weight: ``[rows, d]``, the table.
        padding_idx: row that gets no gradient; negative counts from the end.

    Returns:
        ``[*, d]``.

    Raises:
        InputIndexError: an index is outside of the table (on the CPU); a GPU reports it later, as a failed
            assertion, or not at all.
        InputRuntimeError: the shapes, dtypes or devices do not match.

    As `torch.nn.functional.embedding`. The candidate ``sorted`` sums its gradient in the order of the sorted
    indices, whatever the number of threads.

    >>> embedding(torch.tensor([1, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    return F.embedding(indices, weight, padding_idx)


class _SortedEmbedding(torch.autograd.Function):
    """The autograd function of ``sorted``: any forward, the gradient by sorting; saves only the indices."""

    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return embedding.run((indices, weight, padding_idx))  # type: ignore[no-any-return]

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        if not _torch.is_plain_backward():  # use torch's op, which can be differentiated and batched
            padding = -1 if ctx.padding_idx is None else ctx.padding_idx % ctx.rows
            grad_weight = torch.ops.aten.embedding_dense_backward(
                grad_output, indices, ctx.rows, padding, False
            )
        else:
            grad_weight = embedding_gradient(grad_output, indices, ctx.rows, ctx.padding_idx)
        return None, grad_weight, None


def _unsupported_reason(indices: Tensor, weight: Tensor, padding_idx: int | None) -> str | None:
    if not wants_gradient(weight):
        return "no gradient is needed, and the forward is the same"
    if not is_supported(weight.dtype):
        return f"a table of {weight.dtype}"
    target = target_of(weight.device)
    return target if isinstance(target, str) else None


@embedding.candidate(
    "sorted",
    devices=["cpu", "cuda"],
    when=_unsupported_reason,
    best=_is_sorted_best,
    differentiable=True,
    checks_values=True,
)
def _(indices: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
    return _SortedEmbedding.apply(indices, weight, padding_idx)  # type: ignore[no-any-return, no-untyped-call]
