"""The op `embedding`; its candidate ``sorted`` has a deterministic backward, in C.

The gradient of the table is rows of grad_output, summed by index in a fixed order. The indices are sorted
(stably), so that the entries for one row of the table are a contiguous *run*. The sorted list is split into
*parts* of equal length regardless of runs, so that a padding token that is half of the batch costs no more
than as many other entries. Each part sums its runs one after the other. A run within one part is written to
the table; a run that crosses parts is stored as partial sums, which are added in order at the end. Parts
depend only on the number of indices, so the result does not depend on the number of threads. For CUDA see
`burnt.kernels.ops.embedding.backward_triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_compiler, c_library
from burnt.codegen.runtime.targets import target_of
from burnt.errors import InputIndexError, InputRuntimeError, range_hint
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_one_device
from burnt.kernels.interface.tuning_key import wants_gradient

_MIN_PART_LENGTH, _MAX_PARTS = 64, 256

# C type, load and store expressions of an element, with the conversions of `burnt.codegen.render.c.prelude`.
_C_TYPES: dict[torch.dtype, tuple[str, str, str]] = {
    torch.float64: ("double", "(x)", "(x)"),
    torch.float32: ("float", "(double)(x)", "(float)(x)"),
    torch.bfloat16: ("uint16_t", "(double)f32_of_bf16(x)", "bf16_of_f32((float)(x))"),
    torch.float16: ("uint16_t", "(double)f32_of_f16(x)", "f16_of_f32((float)(x))"),
}

# Sums are in double and rounded once, as in generated kernels. The table is zeroed first, in one sequential
# stream, and rows of grad_output are prefetched, since sorting makes their order random: without either, ATen
# is faster.
_SOURCE = r"""
#include <string.h>

enum { TILE = 256, AHEAD = 6 }; /* columns whose sums stay in the L1 cache; rows to prefetch */

static inline void prefetch_row(const element *row, int64_t d)
{
    for (int64_t k = 0; k < d; k += 64 / (int64_t)sizeof(element)) __builtin_prefetch(row + k);
}

void embedding_gradient(const burnt_arg *a)
{
    const element *restrict g = a[0].p;     /* [count, d] */
    const int64_t *restrict keys = a[1].p;  /* [count], sorted: a row of the table */
    const int64_t *restrict order = a[2].p; /* [count]: the row of g that goes there */
    element *restrict y = a[3].p;           /* [rows, d] */
    double *restrict partial = a[4].p;      /* [parts, 2, d]: sums of a run that began in an earlier part, and
                                               of one that continues in the next */
    const int64_t count = a[5].i, d = a[6].i, rows = a[7].i, padding = a[8].i, length = a[9].i;
    const int64_t parts = (count + length - 1) / length, block = 4096;
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row += block) {
            const int64_t zeros = (rows - row < block ? rows - row : block) * d;
            memset(y + row * d, 0, (size_t)zeros * sizeof(element));
        }
        #pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t begin = part * length, end = begin + length < count ? begin + length : count;
            for (int64_t i = begin, next; i < end; i = next) {
                const int64_t key = keys[i];
                for (next = i + 1; next < end && keys[next] == key; next++) {}
                if (key == padding) continue;
                if (i + AHEAD < end) prefetch_row(g + order[i + AHEAD] * d, d);
                const int before = i == begin && i > 0 && keys[i - 1] == key;
                const int after = next == end && end < count && keys[end] == key;
                double *aside = before ? partial + 2 * part * d : after ? partial + (2 * part + 1) * d : 0;
                if (!aside && next == i + 1) {
                    memcpy(y + key * d, g + order[i] * d, (size_t)d * sizeof(element));
                    continue;
                }
                for (int64_t c = 0; c < d; c += TILE) {
                    const int64_t width = c + TILE < d ? TILE : d - c;
                    double sum[TILE] = {0.0};
                    int64_t j = i;
                    for (; j + 4 <= next; j += 4) {
                        const element *restrict g0 = g + order[j] * d + c;
                        const element *restrict g1 = g + order[j + 1] * d + c;
                        const element *restrict g2 = g + order[j + 2] * d + c;
                        const element *restrict g3 = g + order[j + 3] * d + c;
                        for (int64_t n = j + 4; n < j + 8 && n < end; n++)
                            prefetch_row(g + order[n] * d + c, width);
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++)
                            sum[k] = sum[k] + LOAD(g0[k]) + LOAD(g1[k]) + LOAD(g2[k]) + LOAD(g3[k]);
                    }
                    for (; j < next; j++) {
                        const element *restrict g0 = g + order[j] * d + c;
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++) sum[k] += LOAD(g0[k]);
                    }
                    if (aside) {
                        memcpy(aside + c, sum, (size_t)width * sizeof(double));
                    } else {
                        element *restrict to = y + key * d + c;
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++) to[k] = STORE(sum[k]);
                    }
                }
            }
        }
        #pragma omp for schedule(static)
        for (int64_t part = 0; part < parts - 1; part++) {
            const int64_t begin = part * length, end = begin + length, key = keys[end - 1];
            /* The part where a run begins adds the partial sums of the following parts. */
            if (keys[end] != key || key == padding || (begin > 0 && keys[begin - 1] == key)) continue;
            double *restrict sum = partial + (2 * part + 1) * d;
            for (int64_t other = part + 1; other < parts && keys[other * length] == key; other++)
                for (int64_t k = 0; k < d; k++) sum[k] += partial[2 * other * d + k];
            for (int64_t k = 0; k < d; k++) y[key * d + k] = STORE(sum[k]);
        }
    }
}
"""


def is_supported(dtype: torch.dtype) -> bool:
    """Whether `embedding_gradient` supports a dtype."""
    return dtype in _C_TYPES


def embedding_gradient(grad_output: Tensor, indices: Tensor, rows: int, padding_idx: int | None) -> Tensor:
    """Return the gradient ``[rows, d]`` of ``table`` for the result ``table[indices]``.

    It is the same from run to run, whatever the number of threads; the row `padding_idx` gets none.

    >>> embedding_gradient(torch.ones(3, 2), torch.tensor([0, 2, 2]), 3, None)
    tensor([[1., 1.],
            [0., 0.],
            [2., 2.]])
    """
    keys, order = torch.sort(indices.reshape(-1), stable=True)
    columns = grad_output.shape[-1]
    grad_rows = grad_output.reshape(indices.numel(), columns).contiguous()
    padding = -1 if padding_idx is None else padding_idx % rows
    if grad_rows.is_cuda:
        from burnt.kernels.ops.embedding import backward_triton

        return backward_triton.sum_rows_by_key(grad_rows, keys, order, rows, padding)
    keys = keys.to(torch.int64)
    length = max(_MIN_PART_LENGTH, -(-len(keys) // _MAX_PARTS))
    grad_weight = grad_rows.new_empty(rows, columns)
    partial_sums = torch.empty(2 * -(-len(keys) // length), columns, dtype=torch.float64)
    tensors = [t.data_ptr() for t in (grad_rows, keys, order, grad_weight, partial_sums)]
    _load_kernel(grad_rows.dtype)(*tensors, len(keys), columns, rows, padding, length)
    return grad_weight


@cache
def _load_kernel(dtype: torch.dtype) -> Callable[..., Any]:
    element, load, store = _C_TYPES[dtype]
    types = f"typedef {element} element;\n#define LOAD(x) {load}\n#define STORE(x) {store}\n"
    source = c_compiler.PREAMBLE + prelude.source() + types + _SOURCE
    return c_library.launcher(
        c_library.load(source, ["embedding_gradient"])["embedding_gradient"], pointers=5, ints=5
    )


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
