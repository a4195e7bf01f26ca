"""Optimizer steps over lists of tensors, in C: one pass for the norm, one for everything else.

All tensors are cut into *blocks*, and threads take blocks of whatever tensor comes next: three hundred
tensors of all sizes keep them as busy as one large one. A call gets a *table* with a row for each tensor, of
numbers and addresses. Squares are added up in double, by block and then in the order of blocks, so that the
norm does not depend on the number of threads. Elements of 16 bits are float32 inside.

What is computed, and why something may not be, is `burnt.kernels.optim.steps`'s matter.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_library

__all__ = ["ADAM", "BLOCK", "DTYPES", "MOMENTUM", "MUON", "SGD", "Update", "advance", "squares"]

# Elements. Of float32, the blocks of four tensors fill a quarter of a megabyte: a core's own cache.
BLOCK = 1 << 14

# How elements are kept, what they are computed in, and how rows of them are converted.
DTYPES: dict[torch.dtype, tuple[str, str, str]] = {
    torch.float64: ("double", "double", ""),
    torch.float32: ("float", "float", ""),
    torch.bfloat16: ("uint16_t", "float", "bf16"),
    torch.float16: ("uint16_t", "float", "f16"),
}


@dataclass(frozen=True)
class Update:
    """What a step does to the elements of a tensor.

    Args:
        streams: a letter for each column of tensors, and whether it is written; all are read.
        numbers: names of the numbers that a call gets, the same for all tensors.
        constants: C before the loop, of the numbers and of `extra`, what a tensor's row has besides.
        body: C for the element ``i``.
    """

    name: str
    streams: str
    written: str
    numbers: str
    constants: str
    body: str

    @property
    def counts(self) -> bool:
        """Whether `extra` is the address of a counter of steps, float32, which goes a step further."""
        return self.name == "adam"

    @property
    def takes_gradients(self) -> bool:
        """Whether its first number is what gradients are multiplied by."""
        return self.numbers.startswith("factor")


# The terms, and the order in which they are rounded, are those of torch's fused steps.
ADAM = Update(
    "adam",
    "pgmvxe",
    "pmvxe",
    "factor lr beta1 beta2 eps decay averaging",
    r"""
    const double step = *(const float *)extra; /* of this tensor, which may have begun later than others */
    const real toward = (real)(1.0 - beta1), rest = (real)(1.0 - beta2), keep = (real)beta2;
    const real size = (real)(-lr / (1.0 - pow(beta1, step))), root = (real)sqrt(1.0 - pow(beta2, step));
    const real shrink = (real)(1.0 - lr * decay);
    """,
    r"""
    real gradient = g[i] * (real)factor, parameter = p[i];
    if (DECAY == 1) gradient += parameter * (real)decay;
    if (DECAY == 2) parameter *= shrink;
    const real first = between(m[i], gradient, toward);
    const real second = v[i] * keep + rest * gradient * gradient;
    m[i] = first;
    v[i] = second;
    IF_X(const real largest = x[i] > second || x[i] != x[i] ? x[i] : second; x[i] = largest;)
    IF_NOT_X(const real largest = second;)
    p[i] = parameter + size * first / (square_root(largest) / root + (real)eps);
    IF_E(e[i] = between(e[i], p[i], (real)averaging);)
    """,
)
SGD = Update(
    "sgd",
    "pgme",
    "pme",
    "factor lr momentum dampening decay averaging",
    r"""
    /* The first gradient is the momentum, whatever the dampening; what was there is 0. */
    const real keep = (real)momentum, taken = extra ? (real)1 : (real)(1.0 - dampening);
    """,
    r"""
    real gradient = g[i] * (real)factor;
    if (DECAY) gradient += p[i] * (real)decay;
    IF_M(const real moved = m[i] * keep + gradient * taken; m[i] = moved;)
    IF_M(gradient = NESTEROV ? gradient + moved * keep : moved;)
    p[i] += gradient * (real)-lr;
    IF_E(e[i] = between(e[i], p[i], (real)averaging);)
    """,
)
MOMENTUM = Update(  # the first half of Muon: `u` is what is made orthogonal
    "momentum",
    "ugm",
    "um",
    "factor momentum",
    "const real keep = (real)momentum, taken = (real)(1.0 - momentum);",
    r"""
    const real gradient = g[i] * (real)factor, moved = between(m[i], gradient, taken);
    m[i] = moved;
    u[i] = NESTEROV ? between(gradient, moved, keep) : moved;
    """,
)
MUON = Update(
    "muon",
    "pue",
    "pe",
    "shrink averaging",
    "double size; memcpy(&size, &extra, sizeof size);",
    r"""
    p[i] = p[i] * (real)shrink - (real)size * u[i];
    IF_E(e[i] = between(e[i], p[i], (real)averaging);)
    """,
)

_SOURCE = r"""
#include <string.h>

enum { COUNT, FIRST, EXTRA, ADDRESSES }; /* of a row: elements, blocks of the rows before, ... */

static inline real square_root(real x)
{
    return sizeof(real) == 4 ? __builtin_sqrtf((float)x) : __builtin_sqrt(x);
}

/* As torch's lerp, which is exact at both ends. */
static inline real between(real a, real b, real weight)
{
    return weight < (real)0.5 ? a + weight * (b - a) : b - ((real)1 - weight) * (b - a);
}

static inline void bf16_row(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = bf16_of_f32(x[i]);
}
static inline void of_bf16_row(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    #pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = f32_of_bf16(x[i]);
}
static inline void f16_row(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    f16_of_f32_row(y, x, n);
}
static inline void of_f16_row(float *restrict y, const uint16_t *restrict x, int64_t n)
{
    f32_of_f16_row(y, x, n);
}

static int64_t count_blocks(int64_t *table, int64_t tensors)
{
    int64_t blocks = 0;
    for (int64_t t = 0; t < tensors; t++) {
        table[t * COLUMNS + FIRST] = blocks;
        blocks += (table[t * COLUMNS + COUNT] + BLOCK - 1) / BLOCK;
    }
    return blocks;
}

static const int64_t *row_of(const int64_t *table, int64_t tensors, int64_t block)
{
    int64_t low = 0, high = tensors; /* the last row that begins at the block or before */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (table[middle * COLUMNS + FIRST] <= block) low = middle; else high = middle;
    }
    return table + low * COLUMNS;
}
"""

_SQUARES = r"""
static double squares_of(const element *x_, int64_t n)
{
    double sums[32] = {0.0};
    for (int64_t t = 0; t < n; t += TILE) {
        const int64_t width = n - t < TILE ? n - t : TILE;
        ROW_OF(x, x_ + t, width)
        int64_t i = 0;
        for (; i + 32 <= width; i += 32)
            #pragma omp simd
            for (int64_t j = 0; j < 32; j++) sums[j] += (double)x[i + j] * (double)x[i + j];
        for (; i < width; i++) sums[i % 32] += (double)x[i] * (double)x[i];
    }
    for (int64_t half = 16; half; half /= 2)
        for (int64_t j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

void squares(const burnt_arg *a)
{
    int64_t *table = a[0].p;
    double *restrict partial = a[1].p, *restrict sum = a[2].p;
    const int64_t tensors = a[3].i, blocks = count_blocks(table, tensors);
    #pragma omp parallel for schedule(dynamic, 4) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t *row = row_of(table, tensors, block), from = (block - row[FIRST]) * BLOCK;
        const int64_t left = row[COUNT] - from;
        partial[block] = squares_of((const element *)row[ADDRESSES] + from, left < BLOCK ? left : BLOCK);
    }
    for (int64_t block = 0; block < blocks; block++) *sum += partial[block];
}
"""


def squares(columns: Sequence[Tensor]) -> float:
    """The sum of the squares of all elements, in double.

    Args:
        columns: tensors of one dtype, each of them dense.
    """
    table = _table([columns], [0] * len(columns))
    blocks = sum(-(-t.numel() // BLOCK) for t in columns)
    partial, total = torch.empty(blocks, dtype=torch.float64), array("d", [0.0])
    _squares(columns[0].dtype)(
        table.buffer_info()[0], partial.data_ptr(), total.buffer_info()[0], len(columns)
    )
    return total[0]


def advance(
    update: Update,
    columns: Sequence[Sequence[Tensor] | None],
    numbers: Sequence[float],
    options: Sequence[tuple[str, int]] = (),
    *,
    steps: Sequence[Tensor] | None = None,
    extras: Sequence[int | float] | None = None,
) -> None:
    """Change tensors, in place.

    Args:
        update: what is done.
        columns: for each of its streams one tensor per parameter, or None where an option lacks it. All are
            of one dtype; those of a parameter are dense, and have its shape and strides.
        numbers: the update's, in order.
        options: macros and their values.
        steps: float32 counters, one per parameter; each is a step further afterwards.
        extras: a number per parameter.
    """
    present = [column for column in columns if column is not None]
    if steps is not None:
        extras = [step.data_ptr() for step in steps]
    count = len(present[0])
    table = _table(present, [0] * count if extras is None else extras)
    letters = "".join(s for s, c in zip(update.streams, columns, strict=True) if c is not None)
    call = _advance(update, letters, present[0][0].dtype, tuple(options))
    call(table.buffer_info()[0], count, *numbers)
    # Autograd, and whoever keeps something made of a parameter, knows by its version that it has changed.
    written = [c for letter, c in zip(letters, present, strict=True) if letter in update.written]
    torch.autograd.graph.increment_version(chain(*written, steps or ()))


def _table(columns: Sequence[Sequence[Tensor]], extras: Sequence[int | float]) -> array[int]:
    counts = [t.numel() for t in columns[0]]
    bits = [e if isinstance(e, int) else struct.unpack("q", struct.pack("d", e))[0] for e in extras]
    addresses = [[t.data_ptr() for t in column] for column in columns]
    rows = zip(counts, [0] * len(counts), bits, *addresses, strict=True)
    return array("q", chain.from_iterable(rows))


def _types(dtype: torch.dtype, columns: int) -> str:
    element, real, rows = DTYPES[dtype]
    if rows:
        row = f"real x[TILE]; of_{rows}_row(x, from, n);"
    else:
        row = "const real *restrict x = from;"
    return (
        c_library.PREAMBLE
        + c_library.ALLOW_FMA
        + prelude.source()
        + f"typedef {element} element;\ntypedef {real} real;\n"
        + f"enum {{ COLUMNS = {columns}, BLOCK = {BLOCK}, TILE = {512 if rows else BLOCK} }};\n"
        + f"#define ROW_OF(x, from, n) {row}\n"
        + _SOURCE
    )


@cache
def _squares(dtype: torch.dtype) -> Callable[..., Any]:
    library = c_library.load(_types(dtype, 4) + _SQUARES, ["squares"])
    return c_library.launcher(library["squares"], pointers=3, ints=1)


@cache
def _advance(
    update: Update, letters: str, dtype: torch.dtype, options: tuple[tuple[str, int], ...]
) -> Callable[..., Any]:
    rows, names = DTYPES[dtype][2], update.numbers.split()
    macros = [f"#define {name} {value}" for name, value in options]
    for letter in "MXE":
        there, absent = ("__VA_ARGS__", "") if letter.lower() in letters else ("", "__VA_ARGS__")
        macros += [f"#define IF_{letter}(...) {there}", f"#define IF_NOT_{letter}(...) {absent}"]
    numbers = [f"const double {name} = numbers[{i}].f;" for i, name in enumerate(names)]
    addresses, before, after = [], [], []
    for i, letter in enumerate(letters):
        constant = "" if letter in update.written else "const "
        at = f"({constant}element *)row[ADDRESSES + {i}] + from"
        addresses.append(f"{constant}element *restrict {letter}_ = {at};")
        if not rows:
            before.append(f"{constant}real *restrict {letter} = {letter}_ + t;")
            continue
        before.append(f"real {letter}[TILE]; of_{rows}_row({letter}, {letter}_ + t, width);")
        if letter in update.written:
            after.append(f"{rows}_row({letter}_ + t, {letter}, width);")
    newline = "\n    "
    defined = "\n".join(macros)
    counts = int(update.counts)
    source = f"""
{defined}

static void block_of(const int64_t *row, int64_t from, int64_t n, const burnt_arg *numbers)
{{
    const int64_t extra = row[EXTRA];
    {newline.join(numbers)}
    {update.constants}
    {newline.join(addresses)}
    for (int64_t t = 0; t < n; t += TILE) {{
    const int64_t width = n - t < TILE ? n - t : TILE;
    {newline.join(before)}
    #pragma omp simd
    for (int64_t i = 0; i < width; i++) {{
    {update.body}
    }}
    {newline.join(after)}
    }}
}}

void {update.name}(const burnt_arg *a)
{{
    int64_t *table = a[0].p;
    const int64_t tensors = a[1].i, blocks = count_blocks(table, tensors);
    if ({counts})
        for (int64_t t = 0; t < tensors; t++) *(float *)table[t * COLUMNS + EXTRA] += 1.0f;
    #pragma omp parallel for schedule(dynamic, 4) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {{
        const int64_t *row = row_of(table, tensors, block), from = (block - row[FIRST]) * BLOCK;
        const int64_t left = row[COUNT] - from;
        block_of(row, from, left < BLOCK ? left : BLOCK, a + 2);
    }}
}}
"""
    library = c_library.load(_types(dtype, 3 + len(letters)) + source, [update.name])
    return c_library.launcher(library[update.name], pointers=1, ints=1, floats=len(names))
