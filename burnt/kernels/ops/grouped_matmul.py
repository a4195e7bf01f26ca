"""Products of groups of rows with a matrix for each group, the op `grouped_matmul`, for mixtures of experts.

Candidates:

- ``loop``: one product for each group. It reads the ends of the groups, for which a GPU has to be waited for.
- ``torch``: torch's own kernel, which reads them on the device; on a GPU it is used for bfloat16.

The reference multiplies all rows with each matrix, so that no shape depends on values: compilers and exports
see it, and it serves where no candidate can run.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.device import processor
from burnt.errors import InputIndexError, InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.ops.matmul import onednn_mm

_MIN_MULTIPLICATIONS = 1 << 20  # of a group; below, oneDNN is not faster than torch's matmul


def _check(a: Tensor, b: Tensor, ends: Tensor) -> None:
    check_one_device("grouped_matmul", a=a, b=b, ends=ends)
    check_floating("grouped_matmul", a=a, b=b)
    check_one_dtype("grouped_matmul", a=a, b=b)
    is_matching = a.dim() == 2 and b.dim() == 3 and a.shape[1] == b.shape[1] and ends.shape == b.shape[:1]
    if not (is_matching and b.shape[0]) or ends.dtype not in (torch.int64, torch.int32):
        raise InputRuntimeError(
            "the shapes or dtypes of a, b and ends of grouped_matmul do not match",
            where="burnt.kernels.grouped_matmul",
            expected="a [rows, k], b [groups, k, n] and ends [groups], int64 or int32; at least one group",
            found=f"a {list(a.shape)}, b {list(b.shape)} and ends {list(ends.shape)}, {ends.dtype}",
            hint="weights [groups, n, k] of Linears are passed as weight.mT"
            if a.dim() == 2 and b.dim() == 3 and a.shape[1] == b.shape[2]
            else None,
        )


def _check_ends(a: Tensor, b: Tensor, ends: Tensor) -> None:
    bounds = [0, *ends.tolist(), a.shape[0]]
    if any(start > end for start, end in itertools.pairwise(bounds)):
        raise InputIndexError(
            "the ends of the groups are not in order",
            where="burnt.kernels.grouped_matmul",
            expected=f"ends that do not fall, from 0 to {a.shape[0]}, the number of rows",
            found=ends.tolist(),
            hint="the ends are the cumulative sums of the sizes",
        )


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for rows, groups, k, n in [(2048, 8, 512, 1024), (256, 64, 128, 64), (13, 4, 7, 5)]:
        ends = torch.randint(rows + 1, (groups,), device=device).sort().values
        a, b = torch.randn(rows, k, device=device), torch.randn(groups, k, n, device=device) / k**0.5
        examples += [(a, b, ends), (a, torch.randn(groups, n, k, device=device).mT / k**0.5, ends)]
    return examples


@op(check=_check, look=_check_ends, always_looks=True, examples=_examples, autocast=cast_all)
def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Multiply consecutive groups of rows, each with a matrix of its own.

    Args:
        a: ``[rows, k]``, floating-point, sorted by group.
        b: ``[groups, k, n]``, in the dtype of `a`; any strides, such as those of ``weight.mT``.
        ends: ``[groups]``, int64 or int32: the row after the last one of each group. Groups may be empty.

    Returns:
        ``[rows, n]``: row ``i`` of group ``g`` is ``a[i] @ b[g]``; rows after the last group are zero.

    Raises:
        InputIndexError: the ends fall, or exceed the rows (checked on the CPU).

    As `torch.nn.functional.grouped_mm`, for all floating-point dtypes and sizes.

    >>> b = torch.stack([torch.eye(2), 2 * torch.eye(2)])
    >>> grouped_matmul(torch.ones(3, 2), b, torch.tensor([2, 3]))
    tensor([[1., 1.],
            [1., 1.],
            [2., 2.]])
    """
    row = torch.arange(a.shape[0], device=a.device)[:, None]
    output: Tensor | float = 0.0
    start = ends.new_zeros(())
    for matrix, end in zip(b.unbind(0), ends.unbind(0), strict=False):  # `_check` compares their lengths
        output = torch.where((row >= start) & (row < end), a @ matrix, output)
        start = end
    return output  # type: ignore[return-value]


# --- candidates -------------------------------------------------------------------------------------------


def _loop_unsupported_reason(a: Tensor, b: Tensor, ends: Tensor) -> str | None:
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        return "the ends cannot be read while a CUDA graph is captured"
    return None


@grouped_matmul.candidate(
    "loop", devices=["cpu", "cuda", "mps", "xpu"], when=_loop_unsupported_reason, differentiable=True
)
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    bounds = [0, *ends.tolist(), a.shape[0]]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    is_onednn_best = a.dtype == torch.float32 and a.device.type == "cpu" and processor().mkl_is_slow
    *groups, rest = torch.split_with_sizes(a, sizes)
    parts = [
        onednn_mm(rows, matrix)
        if is_onednn_best and rows.numel() * b.shape[2] >= _MIN_MULTIPLICATIONS
        else rows @ matrix
        for rows, matrix in zip(groups, b.unbind(0), strict=True)
    ]
    return torch.cat([*parts, rest.new_zeros(rest.shape[0], b.shape[2])])


def _torch_unsupported_reason(a: Tensor, b: Tensor, ends: Tensor) -> str | None:
    if not hasattr(F, "grouped_mm"):
        return "this torch has no grouped_mm"
    if a.is_cuda and (a.dtype != torch.bfloat16 or torch.cuda.get_device_capability(a.device) < (8, 0)):
        return "on a GPU it is for bfloat16, from compute capability 8.0 on"
    if a.dtype == torch.float64:
        return "it does not support float64"
    lines = [a.shape[1], b.shape[1], b.shape[2], *a.stride(), *b.stride()]
    if any(line * a.element_size() % 16 for line in lines if line != 1) or not (a.numel() and b.numel()):
        return "rows that are no multiple of 16 bytes, or an empty tensor"
    return None


@grouped_matmul.candidate(
    "torch",
    devices=["cpu", "cuda"],
    when=_torch_unsupported_reason,
    best=lambda a, b, ends: a.is_cuda,
    differentiable=True,
)
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    # Rows after the last group are written neither in the output nor in the gradient of `a`.
    is_in_group = torch.arange(a.shape[0], device=a.device)[:, None] < ends[-1]
    a = torch.where(is_in_group, a, 0) if a.requires_grad else a
    return torch.where(is_in_group, F.grouped_mm(a, b, offs=ends.to(torch.int32)), 0)
