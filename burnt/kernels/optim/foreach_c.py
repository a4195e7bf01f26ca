"""Optimizer kernels over lists of tensors in C: `sum_of_squares` for the norm, `apply_update` for a formula.

The elements of all tensors are divided into *blocks*, which threads process in order whatever tensor they
belong to: 300 tensors of all sizes use the threads as well as one large tensor. A call gets a *table* with
one row per tensor, which holds its element count, scalars and addresses. Squares are summed in double per
block, and the blocks in order, so that the norm does not depend on the number of threads. 16-bit elements are
computed in float32.

Input checks and the choice of kernels are in `burnt.kernels.optim.foreach`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_compiler, c_library
from burnt.kernels.optim.formula import Lists, Options, Scope, Term, Trace, Update, trace

# Elements per block. In float32, blocks of four tensors take 256 KiB, which fits a core's own cache.
BLOCK = 1 << 14

# C types of an element in memory and in computations, and the suffix of its conversion functions.
DTYPES: dict[torch.dtype, tuple[str, str, str]] = {
    torch.float64: ("double", "double", ""),
    torch.float32: ("float", "float", ""),
    torch.bfloat16: ("uint16_t", "float", "bf16"),
    torch.float16: ("uint16_t", "float", "f16"),
}


_SOURCE = r"""
#include <string.h>

/* Columns: elements, index of the first block, scalars or their addresses, addresses of the elements. */
enum { COUNT, FIRST, SCALARS, ADDRESSES = SCALARS + SCALAR_COUNT };

static inline real square_root(real x)
{
    return sizeof(real) == 4 ? __builtin_sqrtf((float)x) : __builtin_sqrt(x);
}
static inline real absolute(real x)
{
    return sizeof(real) == 4 ? __builtin_fabsf((float)x) : __builtin_fabs(x);
}
static inline real sign(real x)
{
    return (real)(x > (real)0) - (real)(x < (real)0);
}
/* NaN if one of them is NaN. */
static inline real maximum(real a, real b)
{
    return a > b || a != a ? a : b;
}
static inline double number_of(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
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
    """Return the sum of the squares of all elements of dense tensors of one dtype, accumulated in double."""
    table = _build_table([tensors], [])
    blocks = sum(-(-t.numel() // BLOCK) for t in tensors)
    partial, total = torch.empty(blocks, dtype=torch.float64), array("d", [0.0])
    _compile_squares(tensors[0].dtype)(
        table.buffer_info()[0], partial.data_ptr(), total.buffer_info()[0], len(tensors)
    )
    return total[0]


def apply_update(update: Update, elements: Lists, options: Options, scalars: Lists) -> None:
    """Apply an update to lists of tensors in place.

    All elements have one dtype; one parameter's are dense, with its shape and strides. Options include
    ``grad_factor`` if there are gradients.
    """
    traced = trace(update, elements.keys(), options)
    table = _build_table(list(elements.values()), [scalars[name] for name in traced.scalars])
    call = _compile_update(traced, next(iter(elements.values()))[0].dtype)
    numbers = [options[name] for name in traced.numbers]
    call(table.buffer_info()[0], len(next(iter(elements.values()))), *numbers)
    increment_versions(traced, elements, scalars)


def increment_versions(traced: Trace, elements: Lists, scalars: Lists) -> None:
    """Increment the versions of changed tensors, by which autograd and caches of packed weights see them."""
    written = [(elements if name in elements else scalars)[name] for name in traced.results]
    torch.autograd.graph.increment_version(chain.from_iterable(written))


def _build_table(columns: Sequence[Sequence[Tensor]], scalars: Sequence[Sequence[Any]]) -> array[int]:
    sizes = [t.numel() for t in columns[0]]
    rows = zip(sizes, [0] * len(sizes), *map(numbers_of, (*scalars, *columns)), strict=True)
    return array("q", chain.from_iterable(rows))


def numbers_of(column: Sequence[Any]) -> array[int]:
    """Return what tables hold of a list: addresses of tensors, or the bits of numbers."""
    if isinstance(column[0], Tensor):
        return array("q", map(Tensor.data_ptr, column))
    return array("q", array("d", column).tobytes())


def _common_source(dtype: torch.dtype, columns: int, scalars: int) -> str:
    element, real, conversion = DTYPES[dtype]
    if conversion:
        row = f"real x[TILE]; of_{conversion}_row(x, from, n);"
    else:
        row = "const real *restrict x = from;"
    return (
        c_compiler.PREAMBLE
        + c_compiler.ALLOW_FMA
        + prelude.source()
        + f"typedef {element} element;\ntypedef {real} real;\n"
        + "typedef float float32;\ntypedef double float64;\n"
        + f"enum {{ COLUMNS = {2 + scalars + columns}, SCALAR_COUNT = {scalars} }};\n"
        + f"enum {{ BLOCK = {BLOCK}, TILE = {512 if conversion else BLOCK} }};\n"
        + f"#define ROW_OF(x, from, n) {row}\n"
        + _SOURCE
    )


@cache
def _compile_squares(dtype: torch.dtype) -> Callable[..., Any]:
    library = c_library.load(_common_source(dtype, 1, 0) + _SQUARES, ["squares"])
    return c_library.launcher(library["squares"], pointers=3, ints=1)


_OPERATIONS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "{} / {}",
    "sqrt": "square_root({})",
    "absolute": "absolute({})",
    "sign": "sign({})",
    "power": "pow({}, {})",
    "maximum": "maximum({}, {})",
    "lerp": "lerp({}, {}, {})",
    "where_greater": "{} > {} ? {} : {}",
}


class _Printer:
    """Prints the terms of a formula: `once` is computed in double for a block, `loop` for each element."""

    def __init__(self, traced: Trace) -> None:
        self.once: list[str] = []
        self.loop: list[str] = []
        self.names: dict[Term, str] = {}
        for i, term in enumerate(traced.terms()):
            operation = _OPERATIONS[term.op]
            if term.scope is Scope.ELEMENT:
                text = operation.format(*map(self.element, term.args))
                self.loop.append(f"const real t{i} = {text};")
            else:
                text = operation.replace("square_root", "sqrt").format(*map(self.name, term.args))
                self.once.append(f"const double t{i} = {text};")
            self.names[term] = f"t{i}"

    def name(self, term: Term) -> str:
        if term in self.names:
            return self.names[term]
        return repr(term.args[0]) if term.op == "literal" else f"{term.args[0]}"

    def element(self, term: Term) -> str:
        """The name of an operand in the loop."""
        if term.op == "element":
            return f"{self.name(term)}[i]"
        return self.name(term) if term.scope is Scope.ELEMENT else f"(real){self.name(term)}"


@cache
def _compile_update(traced: Trace, dtype: torch.dtype) -> Callable[..., Any]:
    conversion, name, printer = DTYPES[dtype][2], traced.update.name, _Printer(traced)
    constants = [f"const double {number} = numbers[{i}].f;" for i, number in enumerate(traced.numbers)]
    for i, scalar in enumerate(traced.scalars):
        source = f"row[SCALARS + {i}]"
        source = (
            f"number_of({source})"
            if scalar in traced.update.values
            else f"*({scalar_type(traced, scalar)} *){source}"
        )
        constants.append(f"const double {scalar} = {source};")
    constants += printer.once
    scalar_stores = [
        f"*({scalar_type(traced, scalar)} *)row[SCALARS + {i}] = {printer.name(traced.results[scalar])};"
        for i, scalar in enumerate(traced.scalars)
        if scalar in traced.results
    ]
    used = traced.used
    pointers, loads, stores = [], [], []
    for i, element in enumerate(traced.elements):
        qualifier = "" if element in traced.results else "const "
        address = f"({qualifier}element *)row[ADDRESSES + {i}] + from"
        pointers.append(f"{qualifier}element *restrict {element}_ = {address};")
        if not conversion:
            loads.append(f"{qualifier}real *restrict {element} = {element}_ + t;")
            continue
        loads.append(f"real {element}[TILE];")
        if element in used:
            loads.append(f"of_{conversion}_row({element}, {element}_ + t, width);")
        if element in traced.results:
            stores.append(f"{conversion}_row({element}_ + t, {element}, width);")
    results = [f"{element}[i] = {printer.element(traced.results[element])};" for element in traced.written]
    newline = "\n    "
    source = f"""
static void update_block(const int64_t *row, int64_t from, int64_t n, const burnt_arg *numbers)
{{
    {newline.join(constants)}
    {newline.join(pointers)}
    for (int64_t t = 0; t < n; t += TILE) {{
    const int64_t width = n - t < TILE ? n - t : TILE;
    {newline.join(loads)}
    #pragma omp simd
    for (int64_t i = 0; i < width; i++) {{
    {newline.join(printer.loop)}
    {newline.join(results)}
    }}
    {newline.join(stores)}
    }}
}}

static void update_scalars(const int64_t *row, const burnt_arg *numbers)
{{
    {newline.join(constants)}
    {newline.join(scalar_stores)}
}}

void {name}(const burnt_arg *a)
{{
    int64_t *table = a[0].p;
    const int64_t tensors = a[1].i, blocks = count_blocks(table, tensors);
    #pragma omp parallel for schedule(dynamic, 4) if (blocks > 4)
    for (int64_t block = 0; block < blocks; block++) {{
        const int64_t *row = find_row(table, tensors, block), from = (block - row[FIRST]) * BLOCK;
        const int64_t left = row[COUNT] - from;
        update_block(row, from, left < BLOCK ? left : BLOCK, a + 2);
    }}
    for (int64_t t = 0; t < tensors; t++) update_scalars(table + t * COLUMNS, a + 2);
}}
"""
    common = _common_source(dtype, len(traced.elements), len(traced.scalars))
    library = c_library.load(common + source, [name])
    return c_library.launcher(library[name], pointers=1, ints=1, floats=len(traced.numbers))


def scalar_type(traced: Trace, scalar: str) -> str:
    """Return the type of a scalar of the state."""
    return "float64" if scalar in traced.update.wide else "float32"
