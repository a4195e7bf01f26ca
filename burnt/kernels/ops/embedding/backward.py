"""The gradient of an embedding's table: the cotangent's rows, added up by index in one fixed order.

Indices are sorted, stably, so that what goes to one row of the table is a *run* of neighbours. The sorted
list is cut into *parts* of equal length, whatever the runs: a padding token that is half of the batch costs
no more than as many others. A part adds up its runs one after the other. A run that it has to itself goes to
the table; of those that it shares with the parts before or after, it keeps the sum aside, and these are added
up in order at the end. Where parts begin depends on the number of indices alone, so that the result does not
depend on the number of threads. Here in C, for CUDA in `burnt.kernels.ops.embedding.backward_triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_library

__all__ = ["embedding_gradient", "supported"]

_SHORTEST, _MOST_PARTS = 64, 256

# How an element is read and written, by the names of `burnt.codegen.render.c.prelude`'s conversions.
_TYPES: dict[torch.dtype, tuple[str, str, str]] = {
    torch.float64: ("double", "(x)", "(x)"),
    torch.float32: ("float", "(double)(x)", "(float)(x)"),
    torch.bfloat16: ("uint16_t", "(double)f32_of_bf16(x)", "bf16_of_f32((float)(x))"),
    torch.float16: ("uint16_t", "(double)f32_of_f16(x)", "f16_of_f32((float)(x))"),
}

# Sums are in double: as in generated kernels, the only rounding that shows is the last one. The table is
# zeroed as a whole, which is one stream, and rows of the cotangent are asked for ahead, since sorting has put
# them out of order: without either, ATen's is faster.
_SOURCE = r"""
#include <string.h>

enum { TILE = 256, AHEAD = 6 }; /* columns whose sums stay in the first cache; rows */

static inline void ask_for(const element *row, int64_t d)
{
    for (int64_t k = 0; k < d; k += 64 / (int64_t)sizeof(element)) __builtin_prefetch(row + k);
}

void embedding_gradient(const burnt_arg *a)
{
    const element *restrict g = a[0].p;     /* [count, d] */
    const int64_t *restrict keys = a[1].p;  /* [count], sorted: a row of the table */
    const int64_t *restrict order = a[2].p; /* [count]: the row of g that goes there */
    element *restrict y = a[3].p;           /* [rows, d] */
    double *restrict shared = a[4].p;       /* [parts, 2, d]: of a run that began before, and of one that
                                               begins here and goes on */
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
                if (i + AHEAD < end) ask_for(g + order[i + AHEAD] * d, d);
                const int before = i == begin && i > 0 && keys[i - 1] == key;
                const int after = next == end && end < count && keys[end] == key;
                double *aside = before ? shared + 2 * part * d : after ? shared + (2 * part + 1) * d : 0;
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
                            ask_for(g + order[n] * d + c, width);
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++)
                            sum[k] = sum[k] + LOADED(g0[k]) + LOADED(g1[k]) + LOADED(g2[k]) + LOADED(g3[k]);
                    }
                    for (; j < next; j++) {
                        const element *restrict g0 = g + order[j] * d + c;
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++) sum[k] += LOADED(g0[k]);
                    }
                    if (aside) {
                        memcpy(aside + c, sum, (size_t)width * sizeof(double));
                    } else {
                        element *restrict to = y + key * d + c;
                        #pragma omp simd
                        for (int64_t k = 0; k < width; k++) to[k] = STORED(sum[k]);
                    }
                }
            }
        }
        #pragma omp for schedule(static)
        for (int64_t part = 0; part < parts - 1; part++) {
            const int64_t begin = part * length, end = begin + length, key = keys[end - 1];
            /* The part where a run begins adds up what the following ones have of it. */
            if (keys[end] != key || key == padding || (begin > 0 && keys[begin - 1] == key)) continue;
            double *restrict sum = shared + (2 * part + 1) * d;
            for (int64_t other = part + 1; other < parts && keys[other * length] == key; other++)
                for (int64_t k = 0; k < d; k++) sum[k] += shared[2 * other * d + k];
            for (int64_t k = 0; k < d; k++) y[key * d + k] = STORED(sum[k]);
        }
    }
}
"""


def supported(dtype: torch.dtype) -> bool:
    """Whether gradients of this dtype are added up here."""
    return dtype in _TYPES


def embedding_gradient(cotangent: Tensor, indices: Tensor, rows: int, padding_idx: int | None) -> Tensor:
    """What the cotangent of ``table[indices]`` makes of the table.

    Args:
        cotangent: ``[*, d]``, of a floating-point dtype, on a CPU or a CUDA device.
        indices: ``[*]``, int64 or int32, all of them rows of the table.
        rows: of the table.
        padding_idx: the row that gets no gradient; negative counts from the end.

    Returns:
        ``[rows, d]``, as the cotangent; the same from run to run, whatever the number of threads.

    >>> embedding_gradient(torch.ones(3, 2), torch.tensor([0, 2, 2]), 3, None)
    tensor([[1., 1.],
            [0., 0.],
            [2., 2.]])
    """
    keys, order = torch.sort(indices.reshape(-1), stable=True)
    columns = cotangent.shape[-1]
    given = cotangent.reshape(indices.numel(), columns).contiguous()
    padding = -1 if padding_idx is None else padding_idx % rows
    if given.is_cuda:
        from burnt.kernels.ops.embedding import backward_triton

        return backward_triton.summed(given, keys, order, rows, padding)
    keys = keys.to(torch.int64)
    length = max(_SHORTEST, -(-len(keys) // _MOST_PARTS))
    made = given.new_empty(rows, columns)
    shared = torch.empty(2 * -(-len(keys) // length), columns, dtype=torch.float64)
    tensors = [t.data_ptr() for t in (given, keys, order, made, shared)]
    _launcher(given.dtype)(*tensors, len(keys), columns, rows, padding, length)
    return made


@cache
def _launcher(dtype: torch.dtype) -> Callable[..., Any]:
    element, loaded, stored = _TYPES[dtype]
    types = f"typedef {element} element;\n#define LOADED(x) {loaded}\n#define STORED(x) {stored}\n"
    source = c_library.PREAMBLE + prelude.source() + types + _SOURCE
    return c_library.launcher(
        c_library.load(source, ["embedding_gradient"])["embedding_gradient"], pointers=5, ints=5
    )
