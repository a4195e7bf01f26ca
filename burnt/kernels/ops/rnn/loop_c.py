"""The loop over the steps of a recurrent layer in C: the whole sequence in one call, forward and backward.

The sequences of a batch are independent: each thread takes *chunks* of rows through all steps without waiting
for the others. A step is a matmul of the chunk's states with the packed recurrent weights, followed by the
cell. Each row is summed in the same order whatever its chunk, so results do not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_compiler, c_library

_MAX_CHUNK_ROWS = 12  # the C code's state buffers and register tiles are sized for it

# Layouts: T steps, B rows, d hidden units, G gates. `product` multiplies rows of states by packed weights:
# panels of PANEL columns, each as long as the states. Unused rows of a chunk are zeros.
_STEPS = r"""
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TALL = 12 }; /* rows whose accumulators fit in registers, two vectors each */
#elif defined(__AVX__)
enum { LANES = 8, TALL = 6 };
#else
enum { LANES = 4, TALL = 12 };
#endif
enum { PANEL = 2 * LANES };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

#define TILE(R)                                                                                              \
    static void tile_##R(int64_t terms, const float *restrict a, int64_t a_row, const float *restrict w,     \
                         float *restrict y, int64_t y_row)                                                   \
    {                                                                                                        \
        vec left[R] = {0}, right[R] = {0};                                                                   \
        for (int64_t k = 0; k < terms; k++) {                                                                \
            const vec w0 = *(const vec *)(w + k * PANEL), w1 = *(const vec *)(w + k * PANEL + LANES);        \
            _Pragma("GCC unroll 12") for (int r = 0; r < R; r++) {                                           \
                left[r] += w0 * a[r * a_row + k];                                                            \
                right[r] += w1 * a[r * a_row + k];                                                           \
            }                                                                                                \
        }                                                                                                    \
        _Pragma("GCC unroll 12") for (int r = 0; r < R; r++) {                                               \
            *(vec *)(y + r * y_row) = left[r];                                                               \
            *(vec *)(y + r * y_row + LANES) = right[r];                                                      \
        }                                                                                                    \
    }
TILE(1) TILE(2) TILE(4) TILE(6) TILE(8) TILE(12)

static inline int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

/* y[rows, columns] = a[rows, terms] w */
static void product(int64_t rows, int64_t terms, int64_t columns, const float *a, const float *w, float *y)
{
    const int64_t y_row = panels_of(columns) * PANEL;
    for (int64_t p = 0; p < panels_of(columns); p++)
        for (int64_t r = 0; r < rows; r += TALL) {
            const int64_t left = rows - r;
            const float *from = a + r * terms, *panel = w + p * terms * PANEL;
            float *to = y + r * y_row + p * PANEL;
            if (left == 1) tile_1(terms, from, terms, panel, to, y_row);
            else if (left == 2) tile_2(terms, from, terms, panel, to, y_row);
            else if (left <= 4) tile_4(terms, from, terms, panel, to, y_row);
            else if (left <= 6 || TALL == 6) tile_6(terms, from, terms, panel, to, y_row);
            else if (left <= 8) tile_8(terms, from, terms, panel, to, y_row);
            else tile_12(terms, from, terms, panel, to, y_row);
        }
}

/* Pack a panel of the weights w(k, n) = w[k * down + n * across]. */
static void pack(int64_t panel, int64_t terms, int64_t columns, const float *w, int64_t down, int64_t across,
                 float *packed)
{
    packed += panel * terms * PANEL;
    for (int64_t k = 0; k < terms; k++)
        for (int64_t j = 0; j < PANEL; j++) {
            const int64_t n = panel * PANEL + j;
            packed[k * PANEL + j] = n < columns ? w[k * down + n * across] : 0.0f;
        }
}

void forward_steps(const burnt_arg *a)
{
    const float *restrict w = a[0].p;         /* [G d, d] */
    const float *restrict bias = a[1].p;      /* [d] or none: recurrent bias of a GRU's last gate */
    float *restrict gates = a[2].p;           /* [T, B, G d]: the inputs' part; then, if saved, the gates */
    const float *h0 = a[3].p, *c0 = a[4].p;   /* [B, d] or none: zeros */
    const int64_t *lengths = a[5].p;          /* [B] or none: T */
    float *restrict y = a[6].p;               /* [T, B, d] */
    float *restrict saved = a[7].p;           /* [T, B, d] or none */
    float *restrict h_n = a[8].p, *restrict c_n = a[9].p; /* [B, d] */
    float *packed = a[10].p, *work = a[11].p;
    const int64_t T = a[12].i, B = a[13].i, d = a[14].i, reverse = a[15].i, chunk = a[16].i;
    const int64_t work_size = a[17].i;
    const int64_t columns = GATES * d, z_row = panels_of(columns) * PANEL, chunks = (B + chunk - 1) / chunk;
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < panels_of(columns); p++) pack(p, d, columns, w, 1, d, packed);
        #pragma omp for schedule(static)
        for (int64_t n = 0; n < chunks; n++) {
            const int64_t first = n * chunk, rows = first + chunk < B ? chunk : B - first;
            float *h = work + n * work_size, *c = h + MAX_ROWS * d, *z = c + MAX_ROWS * d;
            memset(h, 0, (size_t)(2 * MAX_ROWS * d) * sizeof(float));
            if (h0) memcpy(h, h0 + first * d, (size_t)(rows * d) * sizeof(float));
            if (c0) memcpy(c, c0 + first * d, (size_t)(rows * d) * sizeof(float));
            for (int64_t step = 0; step < T; step++) {
                const int64_t t = reverse ? T - 1 - step : step;
                product(rows, d, columns, h, packed, z);
                for (int64_t r = 0; r < rows; r++) {
                    const int64_t at = t * B + first + r;
                    if (lengths && t >= lengths[first + r]) {
                        memset(y + at * d, 0, (size_t)d * sizeof(float));
                        continue;
                    }
                    if (saved)
                        forward_cell(d, z + r * z_row, bias, gates + at * columns, h + r * d, c + r * d,
                                     y + at * d, saved + at * d, 1);
                    else
                        forward_cell(d, z + r * z_row, bias, gates + at * columns, h + r * d, c + r * d,
                                     y + at * d, 0, 0);
                }
            }
            memcpy(h_n + first * d, h, (size_t)(rows * d) * sizeof(float));
            if (c_n) memcpy(c_n + first * d, c, (size_t)(rows * d) * sizeof(float));
        }
    }
}

void backward_steps(const burnt_arg *a)
{
    const float *restrict w = a[0].p;       /* [G d, d] */
    const float *restrict gates = a[1].p;   /* [T, B, G d] */
    const float *restrict saved = a[2].p;   /* [T, B, d] */
    const float *previous = a[3].p;         /* [T, B, d]: c (LSTM) or h (GRU); a cell reads that of the
                                               previous step */
    const float *initial = a[4].p;          /* [B, d] or none: zeros; the state before the first step */
    const int64_t *lengths = a[5].p;        /* [B] or none: T */
    const float *dy = a[6].p;               /* [T, B, d] by strides, or none: zeros */
    const float *dh_n = a[7].p, *dc_n = a[8].p; /* [B, d] or none: zeros */
    float *restrict d_input = a[9].p;       /* [T, B, G d]: of the inputs' part of the gates */
    float *restrict d_state = a[10].p;      /* [T, B, G d] or none: of the states' part, for a GRU */
    float *restrict dh_0 = a[11].p, *restrict dc_0 = a[12].p; /* [B, d] */
    float *packed = a[13].p, *work = a[14].p;
    const int64_t T = a[15].i, B = a[16].i, d = a[17].i, reverse = a[18].i, chunk = a[19].i;
    const int64_t work_size = a[20].i, dy_step = a[21].i, dy_row = a[22].i;
    const int64_t terms = GATES * d, z_row = panels_of(d) * PANEL, chunks = (B + chunk - 1) / chunk;
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < panels_of(d); p++) pack(p, terms, d, w, d, 1, packed);
        #pragma omp for schedule(static)
        for (int64_t n = 0; n < chunks; n++) {
            const int64_t first = n * chunk, rows = first + chunk < B ? chunk : B - first;
            float *dh = work + n * work_size, *dc = dh + MAX_ROWS * d, *dg = dc + MAX_ROWS * d;
            float *z = dg + MAX_ROWS * terms;
            const float *zeros = z + MAX_ROWS * z_row;
            memset(dh, 0, (size_t)(MAX_ROWS * (2 * d + terms + z_row) + d) * sizeof(float));
            if (dh_n) memcpy(dh, dh_n + first * d, (size_t)(rows * d) * sizeof(float));
            if (dc_n) memcpy(dc, dc_n + first * d, (size_t)(rows * d) * sizeof(float));
            for (int64_t step = 0; step < T; step++) {
                const int64_t t = reverse ? step : T - 1 - step;
                for (int64_t r = 0; r < rows; r++) {
                    const int64_t row = first + r, at = t * B + row;
                    const int64_t length = lengths ? lengths[row] : T;
                    float *restrict sum = dh + r * d, *restrict from = z + r * z_row;
                    #pragma omp simd
                    for (int64_t k = 0; k < d; k++) sum[k] += from[k];
                    if (t >= length) {
                        memset(dg + r * terms, 0, (size_t)terms * sizeof(float));
                        memset(d_input + at * terms, 0, (size_t)terms * sizeof(float));
                        if (d_state) memset(d_state + at * terms, 0, (size_t)terms * sizeof(float));
                        continue;
                    }
                    if (dy) {
                        const float *restrict more = dy + t * dy_step + row * dy_row;
                        #pragma omp simd
                        for (int64_t k = 0; k < d; k++) sum[k] += more[k];
                    }
                    const float *state = previous + (reverse ? at + B : at - B) * d;
                    if (t == (reverse ? length - 1 : 0)) state = initial ? initial + row * d : zeros;
                    backward_cell(d, gates + at * terms, saved + at * d, state, sum, dc + r * d,
                                  dg + r * terms, d_input + at * terms);
                    if (d_state) memcpy(d_state + at * terms, dg + r * terms, (size_t)terms * sizeof(float));
                }
                product(rows, terms, d, dg, packed, z);
            }
            for (int64_t r = 0; r < rows; r++)
                for (int64_t k = 0; k < d; k++) {
                    dh_0[(first + r) * d + k] = dh[r * d + k] + z[r * z_row + k];
                    if (dc_0) dc_0[(first + r) * d + k] = dc[r * d + k];
                }
        }
    }
}
"""

# Gates are in torch's order; z is the states' part of them. `forward_cell` leaves the new state in h and c;
# `backward_cell` leaves in dh and dc the part of the previous state's gradient that needs no matmul.
_LSTM = r"""
enum { GATES = 4 };

static inline __attribute__((always_inline)) void forward_cell(
    int64_t d, const float *restrict z, const float *bias, float *restrict gates, float *restrict h,
    float *restrict c, float *restrict y, float *restrict saved, const int save)
{
    (void)bias;
    #pragma omp simd
    for (int64_t k = 0; k < d; k++) {
        const float in = sigmoid_f32(gates[k] + z[k]);
        const float forget = sigmoid_f32(gates[d + k] + z[d + k]);
        const float new = tanh_f32(gates[2 * d + k] + z[2 * d + k]);
        const float out = sigmoid_f32(gates[3 * d + k] + z[3 * d + k]);
        const float cell = forget * c[k] + in * new;
        const float state = out * tanh_f32(cell);
        c[k] = cell;
        h[k] = y[k] = state;
        if (save) {
            gates[k] = in;
            gates[d + k] = forget;
            gates[2 * d + k] = new;
            gates[3 * d + k] = out;
            saved[k] = cell;
        }
    }
}

static inline void backward_cell(
    int64_t d, const float *restrict gates, const float *restrict saved, const float *restrict previous,
    float *restrict dh, float *restrict dc, float *restrict dg, float *restrict d_input)
{
    #pragma omp simd
    for (int64_t k = 0; k < d; k++) {
        const float in = gates[k], forget = gates[d + k], new = gates[2 * d + k], out = gates[3 * d + k];
        const float cell = tanh_f32(saved[k]), dh_k = dh[k];
        const float d_cell = dc[k] + dh_k * out * (1.0f - cell * cell);
        d_input[k] = dg[k] = d_cell * new * in * (1.0f - in);
        d_input[d + k] = dg[d + k] = d_cell * previous[k] * forget * (1.0f - forget);
        d_input[2 * d + k] = dg[2 * d + k] = d_cell * in * (1.0f - new * new);
        d_input[3 * d + k] = dg[3 * d + k] = dh_k * cell * out * (1.0f - out);
        dc[k] = d_cell * forget;
        dh[k] = 0.0f;
    }
}
"""

_GRU = r"""
enum { GATES = 3 };

static inline __attribute__((always_inline)) void forward_cell(
    int64_t d, const float *restrict z, const float *restrict bias, float *restrict gates, float *restrict h,
    float *restrict c, float *restrict y, float *restrict saved, const int save)
{
    (void)c;
    #pragma omp simd
    for (int64_t k = 0; k < d; k++) {
        const float reset = sigmoid_f32(gates[k] + z[k]);
        const float update = sigmoid_f32(gates[d + k] + z[d + k]);
        const float state_n = z[2 * d + k] + bias[k];
        const float new = tanh_f32(gates[2 * d + k] + reset * state_n);
        h[k] = y[k] = new + update * (h[k] - new);
        if (save) {
            gates[k] = reset;
            gates[d + k] = update;
            gates[2 * d + k] = new;
            saved[k] = state_n;
        }
    }
}

static inline void backward_cell(
    int64_t d, const float *restrict gates, const float *restrict saved, const float *restrict previous,
    float *restrict dh, float *restrict dc, float *restrict dg, float *restrict d_input)
{
    (void)dc;
    #pragma omp simd
    for (int64_t k = 0; k < d; k++) {
        const float reset = gates[k], update = gates[d + k], new = gates[2 * d + k], dh_k = dh[k];
        const float d_new = dh_k * (1.0f - update) * (1.0f - new * new);
        d_input[k] = dg[k] = d_new * saved[k] * reset * (1.0f - reset);
        d_input[d + k] = dg[d + k] = dh_k * (previous[k] - new) * update * (1.0f - update);
        d_input[2 * d + k] = d_new;
        dg[2 * d + k] = d_new * reset;
        dh[k] = dh_k * update;
    }
}
"""


class Loop(NamedTuple):
    """What the loops of the forward and of the backward take, for a `kind` ``"lstm"`` or ``"gru"``.

    `gates` ``[steps, batch, G d]`` is what inputs and biases contribute, overwritten by the gates in a
    forward that saves them; `weight` is ``[G d, d]``, `bias` ``[d]`` of a GRU's last gate; `initial` states
    (h, and an LSTM's c) are ``[batch, d]``, `lengths` ``[batch]``, int64. `reverse` starts from the last
    step.
    """

    kind: str
    gates: Tensor
    weight: Tensor
    bias: Tensor | None
    initial: Sequence[Tensor | None]
    lengths: Tensor | None
    reverse: bool


def forward_steps(loop: Loop, save: bool) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Run all steps of a layer. All tensors are float32 and contiguous.

    Returns the outputs ``[batch, steps, d]``, stored with the steps first; with `save`, what `backward_steps`
    needs, ``[steps, batch, d]`` (an LSTM's cells, or the states' part of a GRU's last gate); and last states.
    """
    kind, gates, weight, bias, initial, lengths, reverse = loop
    steps, batch, columns = gates.shape
    width = weight.shape[1]
    output = gates.new_empty_strided((batch, steps, width), (width, batch * width, 1))
    saved = gates.new_empty(steps, batch, width) if save else None
    last = [gates.new_empty(batch, width) for _ in range(2 if kind == "lstm" else 1)]
    chunk, chunks = _chunks(batch)
    work_size = _MAX_CHUNK_ROWS * (2 * width + columns + _MAX_PANEL)
    packed = gates.new_empty(width * (columns + _MAX_PANEL))
    work = gates.new_empty(chunks, work_size)
    pointers = (
        weight, bias, gates, *_two_states(initial), lengths, output, saved, *_two_states(last), packed, work,
    )  # fmt: skip
    sizes = (steps, batch, width, reverse, chunk, work_size)
    _load_function(kind, "forward_steps", len(pointers), len(sizes))(*map(_address, pointers), *sizes)
    return output, saved, last


def backward_steps(
    loop: Loop, saved: Tensor, output: Tensor, grad_output: Tensor | None, grad_last: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Run all steps of the backward of `forward_steps`, which has saved `loop.gates`, `saved` and `output`.

    Gradients are contiguous along the last axis. Returns those of the inputs' and of the states' parts of the
    gates, ``[steps, batch, G d]`` (one tensor for an LSTM), and of the initial states.
    """
    kind, gates, weight, _, initial, lengths, reverse = loop
    steps, batch, columns = gates.shape
    width = weight.shape[1]
    grad_input_gates = torch.empty_like(gates)
    grad_state_gates = torch.empty_like(gates) if kind == "gru" else None
    grad_initial = [gates.new_empty(batch, width) for _ in initial]
    chunk, chunks = _chunks(batch)
    work_size = _MAX_CHUNK_ROWS * (3 * width + columns + _MAX_PANEL) + width
    packed = gates.new_empty(columns * (width + _MAX_PANEL))
    work = gates.new_empty(chunks, work_size)
    previous = saved if kind == "lstm" else output
    pointers = (
        weight, gates, saved, previous, initial[-1], lengths, grad_output, *_two_states(grad_last),
        grad_input_gates, grad_state_gates, *_two_states(grad_initial), packed, work,
    )  # fmt: skip
    strides = (0, 0) if grad_output is None else grad_output.stride()[:2]
    sizes = (steps, batch, width, reverse, chunk, work_size, *strides)
    _load_function(kind, "backward_steps", len(pointers), len(sizes))(*map(_address, pointers), *sizes)
    return grad_input_gates, grad_input_gates if grad_state_gates is None else grad_state_gates, grad_initial


_MAX_PANEL = 32  # columns that packed weights are rounded up to, at most


def _chunks(batch: int) -> tuple[int, int]:
    """Return the rows per chunk and the number of chunks, which is even over the threads."""
    threads = torch.get_num_threads()
    count = -(-batch // _MAX_CHUNK_ROWS)
    count = min(-(-count // threads) * threads, max(batch, 1))
    rows = max(-(-batch // count), 1)
    return rows, -(-batch // rows)


def _two_states(states: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
    return states[0], states[1] if len(states) > 1 else None


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@cache
def _load_function(kind: str, name: str, pointers: int, ints: int) -> Callable[..., Any]:
    cell = {"lstm": _LSTM, "gru": _GRU}[kind]
    header = c_compiler.PREAMBLE + c_compiler.ALLOW_FMA + prelude.source()
    source = f"{header}enum {{ MAX_ROWS = {_MAX_CHUNK_ROWS} }};\n{cell}{_STEPS}"
    functions = c_library.load(source, ["forward_steps", "backward_steps"])
    return c_library.launcher(functions[name], pointers=pointers, ints=ints)
