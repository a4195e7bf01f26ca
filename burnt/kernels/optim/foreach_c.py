"""Optimizer kernels over lists of tensors in C: `sum_of_squares` for the norm, `apply_update` for the rest.

The elements of all tensors are divided into *blocks*, which threads process in order whatever tensor they
belong to: 300 tensors of all sizes use the threads as well as one large tensor. A call gets a *table* with
one row per tensor, which holds its element count and addresses. Squares are summed in double per block, and
the blocks in order, so that the norm does not depend on the number of threads. 16-bit elements are computed
in float32.

Input checks and the choice of kernels are in `burnt.kernels.optim.foreach`.
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

__all__ = ["ADAM", "BLOCK", "DTYPES", "MOMENTUM", "MUON", "SGD", "Update", "apply_update", "sum_of_squares"]

# Elements per block. In float32, blocks of four tensors take 256 KiB, which fits a core's own cache.
BLOCK = 1 << 14

# C types of an element in memory and in computations, and the suffix of its conversion functions.
DTYPES: dict[torch.dtype, tuple[str, str, str]] = {
    torch.float64: ("double", "double", ""),
    torch.float32: ("float", "float", ""),
    torch.bfloat16: ("uint16_t", "float", "bf16"),
    torch.float16: ("uint16_t", "float", "f16"),
}


@dataclass(frozen=True)
class Update:
    """An elementwise update of parameters and optimizer state.

    Args:
        name: name of the C function.
        streams: one letter per list of tensors; all are read.
        written: the letters of the lists that are written as well.
        numbers: names of the scalar arguments, the same for all tensors, separated by spaces.
        constants: C code before the loop; it may use the numbers and `extra`, the row's number or address of
            its own tensor.
        body: C code for the element ``i``.
    """

    name: str
    streams: str
    written: str
    numbers: str
    constants: str
    body: str

    @property
    def increments_steps(self) -> bool:
        """Whether `extra` is the address of a float32 step counter, which is incremented."""
        return self.name == "adam"

    @property
    def has_gradients(self) -> bool:
        """Whether it reads gradients; its first number is then the factor that they are multiplied by."""
        return self.numbers.startswith("grad_factor")


# The formulas and the order of roundings are those of torch's fused steps.
ADAM = Update(
    "adam",
    "pgmvxe",
    "pmvxe",
    "grad_factor lr beta1 beta2 eps weight_decay ema_weight",
    r"""
    const double step = *(const float *)extra; /* of this tensor */
    const real first_weight = (real)(1.0 - beta1), second_weight = (real)(1.0 - beta2);
    const real second_decay = (real)beta2;
    const real step_size = (real)(-lr / (1.0 - pow(beta1, step)));
    const real bias_correction = (real)sqrt(1.0 - pow(beta2, step));
    const real shrink = (real)(1.0 - lr * weight_decay);
    """,
    r"""
    real gradient = g[i] * (real)grad_factor, parameter = p[i];
    if (DECAY == 1) gradient += parameter * (real)weight_decay;
    if (DECAY == 2) parameter *= shrink;
    const real first = lerp(m[i], gradient, first_weight);
    const real second = v[i] * second_decay + second_weight * gradient * gradient;
    m[i] = first;
    v[i] = second;
    IF_X(const real largest = x[i] > second || x[i] != x[i] ? x[i] : second; x[i] = largest;)
    IF_NOT_X(const real largest = second;)
    p[i] = parameter + step_size * first / (square_root(largest) / bias_correction + (real)eps);
    IF_E(e[i] = lerp(e[i], p[i], (real)ema_weight);)
    """,
)
SGD = Update(
    "sgd",
    "pgme",
    "pme",
    "grad_factor lr momentum dampening weight_decay ema_weight",
    r"""
    /* In the first step (extra != 0) there is no dampening; the buffer is 0. */
    const real momentum_decay = (real)momentum, grad_weight = extra ? (real)1 : (real)(1.0 - dampening);
    """,
    r"""
    real gradient = g[i] * (real)grad_factor;
    if (DECAY) gradient += p[i] * (real)weight_decay;
    IF_M(const real moment = m[i] * momentum_decay + gradient * grad_weight; m[i] = moment;)
    IF_M(gradient = NESTEROV ? gradient + moment * momentum_decay : moment;)
    p[i] += gradient * (real)-lr;
    IF_E(e[i] = lerp(e[i], p[i], (real)ema_weight);)
    """,
)
MOMENTUM = Update(  # first half of Muon; `u` is the matrix to orthogonalize
    "momentum",
    "ugm",
    "um",
    "grad_factor momentum",
    "const real momentum_decay = (real)momentum, grad_weight = (real)(1.0 - momentum);",
    r"""
    const real gradient = g[i] * (real)grad_factor, moment = lerp(m[i], gradient, grad_weight);
    m[i] = moment;
    u[i] = NESTEROV ? lerp(gradient, moment, momentum_decay) : moment;
    """,
)
MUON = Update(
    "muon",
    "pue",
    "pe",
    "shrink ema_weight",
    "double rate; memcpy(&rate, &extra, sizeof rate);",
    r"""
    p[i] = p[i] * (real)shrink - (real)rate * u[i];
    IF_E(e[i] = lerp(e[i], p[i], (real)ema_weight);)
    """,
)

_SOURCE = r"""
#include <string.h>

enum { COUNT, FIRST, EXTRA, ADDRESSES }; /* columns: elements, index of the first block, extra, addresses */

static inline real square_root(real x)
{
    return sizeof(real) == 4 ? __builtin_sqrtf((float)x) : __builtin_sqrt(x);
}

/* Like torch's lerp, which is exact at both ends. */
static inline real lerp(real a, real b, real weight)
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

static const int64_t *find_row(const int64_t *table, int64_t tensors, int64_t block)
{
    int64_t low = 0, high = tensors; /* binary search for the last row with FIRST <= block */
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
        const int64_t *row = find_row(table, tensors, block), from = (block - row[FIRST]) * BLOCK;
        const int64_t left = row[COUNT] - from;
        partial[block] = squares_of((const element *)row[ADDRESSES] + from, left < BLOCK ? left : BLOCK);
    }
    for (int64_t block = 0; block < blocks; block++) *sum += partial[block];
}
"""


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Return the sum of the squares of all elements, accumulated in double.

    Args:
        tensors: dense tensors of one dtype.
    """
    table = _build_table([tensors], [0] * len(tensors))
    blocks = sum(-(-t.numel() // BLOCK) for t in tensors)
    partial, total = torch.empty(blocks, dtype=torch.float64), array("d", [0.0])
    _compile_squares(tensors[0].dtype)(
        table.buffer_info()[0], partial.data_ptr(), total.buffer_info()[0], len(tensors)
    )
    return total[0]


def apply_update(
    update: Update,
    columns: Sequence[Sequence[Tensor] | None],
    numbers: Sequence[float],
    options: Sequence[tuple[str, int]] = (),
    *,
    steps: Sequence[Tensor] | None = None,
    extras: Sequence[int | float] | None = None,
) -> None:
    """Apply an update to lists of tensors in place.

    Args:
        update: the update.
        columns: for each stream of the update a list with one tensor per parameter, or None for an optional
            stream. All tensors have one dtype; those of one parameter are dense, with its shape and strides.
        numbers: values of the update's numbers, in order.
        options: C macros and their values.
        steps: float32 step counters, one per parameter; each is incremented.
        extras: one number per parameter, the `extra` of its row.
    """
    present = [column for column in columns if column is not None]
    if steps is not None:
        extras = [step.data_ptr() for step in steps]
    count = len(present[0])
    table = _build_table(present, [0] * count if extras is None else extras)
    letters = "".join(s for s, c in zip(update.streams, columns, strict=True) if c is not None)
    call = _compile_update(update, letters, present[0][0].dtype, tuple(options))
    call(table.buffer_info()[0], count, *numbers)
    # Autograd and caches of packed weights detect changed tensors by their version.
    written = [c for letter, c in zip(letters, present, strict=True) if letter in update.written]
    torch.autograd.graph.increment_version(chain(*written, steps or ()))


def _build_table(columns: Sequence[Sequence[Tensor]], extras: Sequence[int | float]) -> array[int]:
    sizes = [t.numel() for t in columns[0]]
    bits = [e if isinstance(e, int) else struct.unpack("q", struct.pack("d", e))[0] for e in extras]
    addresses = [[t.data_ptr() for t in column] for column in columns]
    rows = zip(sizes, [0] * len(sizes), bits, *addresses, strict=True)
    return array("q", chain.from_iterable(rows))


def _common_source(dtype: torch.dtype, columns: int) -> str:
    element, real, conversion = DTYPES[dtype]
    if conversion:
        row = f"real x[TILE]; of_{conversion}_row(x, from, n);"
    else:
        row = "const real *restrict x = from;"
    return (
        c_library.PREAMBLE
        + c_library.ALLOW_FMA
        + prelude.source()
        + f"typedef {element} element;\ntypedef {real} real;\n"
        + f"enum {{ COLUMNS = {columns}, BLOCK = {BLOCK}, TILE = {512 if conversion else BLOCK} }};\n"
        + f"#define ROW_OF(x, from, n) {row}\n"
        + _SOURCE
    )


@cache
def _compile_squares(dtype: torch.dtype) -> Callable[..., Any]:
    library = c_library.load(_common_source(dtype, 4) + _SQUARES, ["squares"])
    return c_library.launcher(library["squares"], pointers=3, ints=1)


@cache
def _compile_update(
    update: Update, letters: str, dtype: torch.dtype, options: tuple[tuple[str, int], ...]
) -> Callable[..., Any]:
    conversion, names = DTYPES[dtype][2], update.numbers.split()
    macros = [f"#define {name} {value}" for name, value in options]
    for letter in "MXE":
        if_present, if_absent = ("__VA_ARGS__", "") if letter.lower() in letters else ("", "__VA_ARGS__")
        macros += [f"#define IF_{letter}(...) {if_present}", f"#define IF_NOT_{letter}(...) {if_absent}"]
    numbers = [f"const double {name} = numbers[{i}].f;" for i, name in enumerate(names)]
    pointers, loads, stores = [], [], []
    for i, letter in enumerate(letters):
        qualifier = "" if letter in update.written else "const "
        address = f"({qualifier}element *)row[ADDRESSES + {i}] + from"
        pointers.append(f"{qualifier}element *restrict {letter}_ = {address};")
        if not conversion:
            loads.append(f"{qualifier}real *restrict {letter} = {letter}_ + t;")
            continue
        loads.append(f"real {letter}[TILE]; of_{conversion}_row({letter}, {letter}_ + t, width);")
        if letter in update.written:
            stores.append(f"{conversion}_row({letter}_ + t, {letter}, width);")
    newline = "\n    "
    macro_definitions = "\n".join(macros)
    step_increment = int(update.increments_steps)
    source = f"""
{macro_definitions}

static void update_block(const int64_t *row, int64_t from, int64_t n, const burnt_arg *numbers)
{{
    const int64_t extra = row[EXTRA];
    {newline.join(numbers)}
    {update.constants}
    {newline.join(pointers)}
    for (int64_t t = 0; t < n; t += TILE) {{
    const int64_t width = n - t < TILE ? n - t : TILE;
    {newline.join(loads)}
    #pragma omp simd
    for (int64_t i = 0; i < width; i++) {{
    {update.body}
    }}
    {newline.join(stores)}
    }}
}}

void {update.name}(const burnt_arg *a)
{{
    int64_t *table = a[0].p;
    const int64_t tensors = a[1].i, blocks = count_blocks(table, tensors);
    if ({step_increment})
        for (int64_t t = 0; t < tensors; t++) *(float *)table[t * COLUMNS + EXTRA] += 1.0f;
    #pragma omp parallel for schedule(dynamic, 4) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {{
        const int64_t *row = find_row(table, tensors, block), from = (block - row[FIRST]) * BLOCK;
        const int64_t left = row[COUNT] - from;
        update_block(row, from, left < BLOCK ? left : BLOCK, a + 2);
    }}
}}
"""
    library = c_library.load(_common_source(dtype, 3 + len(letters)) + source, [update.name])
    return c_library.launcher(library[update.name], pointers=1, ints=1, floats=len(names))
