"""Embedding look-up, with a backward that adds up in one order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputIndexError, InputRuntimeError, range_hint
from burnt.kernels.checks import one_device
from burnt.kernels.op import op

__all__ = ["embedding"]


def _check(indices: Tensor, weight: Tensor, padding_idx: int | None) -> None:
    one_device("embedding", indices=indices, weight=weight)
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
    for count, rows, columns in [((8, 512), 32000, 256), ((7, 5), 11, 3)]:
        indices = torch.randint(rows, count, device=device)
        made += [(indices, torch.randn(rows, columns, device=device), pad) for pad in (None, 1)]
    return made


@op(check=_check, look=_look, examples=_examples, vendor_best=lambda *_: True)
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

    As `torch.nn.functional.embedding`, whose gradient is added up in the order of the sorted indices, and is
    the same from run to run.

    >>> embedding(torch.tensor([1, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    return F.embedding(indices, weight, padding_idx)
