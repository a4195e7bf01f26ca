"""`quantized_linear` in C: few rows of inputs times a packed weight, decoded in registers.

The weight is read once, which is what takes the time: a thread takes four rows of it, and the dot products
with all rows of `x` run over the columns. For one row of `x` values are decoded into registers, for more into
a buffer in the first-level cache that all rows use.

A byte holds 1, 2 or 4 values. The inputs are split likewise into that many *streams*: stream ``s`` has the
columns whose values are the ``s``-th of their bytes, so that a vector of bytes meets vectors of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_compiler, c_library
from burnt.scheme import VALUES

MAX_ROWS = 64
"""Most rows of inputs; the sums of four rows of the weight with all of them stay in the first-level cache."""

_STEP = 64  # bytes that are multiplied at once, without blocks
_MIN_STEP, _MAX_STEP = 4, 4096  # bytes of a block
_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # the C code knows them by their index

# Legend: m rows of inputs, n of the weight, k columns, streams of `width` bytes. SPLIT, BITS, IS_FLOAT, STEP
# (bytes of a block, or at once without blocks), HAS_BLOCKS and HAS_ZERO are constants of the compiled
# variant, and for float8 MANTISSA (bits), BIAS (of the exponent) and SMALLEST (number above 0).
_SOURCE = r"""
#include <string.h>

#if defined(__AVX512F__)
#define NATIVE 16
#elif defined(__AVX__)
#define NATIVE 8
#else
#define NATIVE 4
#endif
#if STEP % NATIVE == 0
#define LANES NATIVE
#elif STEP % 8 == 0
#define LANES 8
#else
#define LANES 4
#endif
enum { TALL = 4, CHUNK = 512, LAST = 8 - BITS }; /* rows of the weight at once; bytes per decoded buffer */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));

static inline ints choose(ints mask, ints a, ints b) { return (mask & a) | (~mask & b); }

/* The values of stream s, from bytes with sign. */
static inline __attribute__((always_inline)) vec decode(ints w, const int s)
{
#if IS_FLOAT && BITS == 8
    const ints magnitude = w & 0x7f, sign = w & (int32_t)0x80000000;
    const ints tiny = (ints)(__builtin_convertvector(magnitude, vec) * SMALLEST);
    const ints normal = (magnitude << (23 - MANTISSA)) + ((127 - BIAS) << 23);
    ints out = choose(magnitude < (1 << MANTISSA), tiny, normal);
#if BIAS == 7
    out = choose(magnitude == 0x7f, (ints){0} + 0x7fc00000, out); /* without infinities */
#else
    out = choose(magnitude >= 0x7c, out + ((127 - BIAS) << 23), out);
#endif
    return (vec)(out | sign);
#elif IS_FLOAT
    const ints code = (w >> (4 * s)) & 15, magnitude = code & 7; /* 0, 1, 2, 3, 4, 6, 8, 12 halves */
    const ints large = choose(magnitude < 6, magnitude * 2 - 4, magnitude * 4 - 16);
    const vec size = __builtin_convertvector(choose(magnitude < 4, magnitude, large), vec) * 0.5f;
    return (vec)((ints)size | ((code & 8) << 28));
#else
    if (s == SPLIT - 1) return __builtin_convertvector(w >> LAST, vec); /* the highest bits have the sign */
    return __builtin_convertvector((w << (32 - BITS * (s + 1))) >> (32 - BITS), vec);
#endif
}

static inline __attribute__((always_inline)) vec unscaled(ints w, const int s, float zero)
{
    return HAS_ZERO ? decode(w, s) - zero : decode(w, s);
}

/* gcc 12 converts a vector of bytes by some 30 instructions; there is one for it. */
#if defined(__AVX512F__) && LANES == 16 && !defined(__clang__)
typedef char burnt_bytes __attribute__((vector_size(16)));
static inline ints load(const int8_t *w)
{
    burnt_bytes b;
    memcpy(&b, w, 16);
    return (ints)__builtin_ia32_pmovsxbd512_mask(b, (int __attribute__((vector_size(64)))){0}, 0xffff);
}
#elif defined(__AVX2__) && LANES == 8 && !defined(__clang__)
typedef char burnt_bytes __attribute__((vector_size(16)));
static inline ints load(const int8_t *w)
{
    long long b;
    memcpy(&b, w, 8);
    return (ints)__builtin_ia32_pmovsxbd256((burnt_bytes)(long long __attribute__((vector_size(16)))){b, 0});
}
#else
typedef int8_t burnt_bytes __attribute__((vector_size(LANES), aligned(1)));
static inline ints load(const int8_t *w) { return __builtin_convertvector(*(const burnt_bytes *)w, ints); }
#endif

static inline float total(vec x)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

static inline void floats_of(float *restrict y, const void *x, int64_t n, int64_t kind)
{
    if (kind == 0) memcpy(y, x, (size_t)n * sizeof(float));
    else if (kind == 1) for (int64_t i = 0; i < n; i++) y[i] = f32_of_bf16(((const uint16_t *)x)[i]);
    else f32_of_f16_row(y, x, n);
}

/* One row of inputs: values are decoded into registers. Rows of a weight may lie in a page each, at whose end
 * the processor's own prefetching stops. */
#define DOT(ROWS)                                                                                            \
    static void dot_##ROWS(int64_t width, int64_t scales_row, int64_t x_stream, const float *restrict x,     \
                           const int8_t *restrict w, int64_t w_row, const float *restrict scale,             \
                           const float *restrict zero, vec *restrict sums)                                   \
    {                                                                                                        \
        vec sum[ROWS] = {0};                                                                                 \
        for (int64_t from = 0; from < width; from += STEP) {                                                 \
            _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                         \
                vec part = {0};                                                                              \
                const int8_t *at = w + r * w_row + from;                                                     \
                __builtin_prefetch(at + TALL * w_row);                                                       \
                for (int64_t j = 0; j < STEP; j += LANES) {                                                  \
                    const ints v = load(at + j);                                                             \
                    _Pragma("GCC unroll 4") for (int s = 0; s < SPLIT; s++)                                  \
                        part += unscaled(v, s, zero[r * scales_row]) *                                       \
                                *(const vec *)(x + s * x_stream + from + j);                                 \
                }                                                                                            \
                sum[r] += HAS_BLOCKS ? part * scale[r * scales_row] : part;                                  \
            }                                                                                                \
            scale += HAS_BLOCKS, zero += HAS_BLOCKS;                                                         \
        }                                                                                                    \
        _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) sums[r] += sum[r];                            \
    }
DOT(1) DOT(4)

/* Several rows of inputs times decoded rows of the weight, [TALL][SPLIT][CHUNK]. */
#define TILE(ROWS)                                                                                           \
    static void tile_##ROWS(int64_t width, int64_t x_stream, const float *restrict x, int64_t x_row,         \
                            const float *restrict w, vec *restrict sums)                                     \
    {                                                                                                        \
        vec sum[ROWS][TALL];                                                                                 \
        _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++)                                               \
            _Pragma("GCC unroll 4") for (int n = 0; n < TALL; n++) sum[r][n] = sums[r * TALL + n];           \
        for (int64_t s = 0; s < SPLIT; s++)                                                                  \
            for (int64_t j = 0; j < width; j += LANES) {                                                     \
                vec left[ROWS];                                                                              \
                _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++)                                       \
                    left[r] = *(const vec *)(x + r * x_row + s * x_stream + j);                              \
                _Pragma("GCC unroll 4") for (int n = 0; n < TALL; n++) {                                     \
                    const vec right = *(const vec *)(w + (n * SPLIT + s) * CHUNK + j);                       \
                    _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) sum[r][n] += left[r] * right;     \
                }                                                                                            \
            }                                                                                                \
        _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++)                                               \
            _Pragma("GCC unroll 4") for (int n = 0; n < TALL; n++) sums[r * TALL + n] = sum[r][n];           \
    }
TILE(1) TILE(2) TILE(4)

void multiply(const burnt_arg *a)
{
    const char *x = a[0].p;                  /* [m, k] */
    const int8_t *values = a[1].p;           /* [n, w_row] */
    const char *scale = a[2].p;              /* [n or 1, blocks] */
    const int8_t *zero_point = a[3].p;       /* [n or 1, blocks] or none */
    const float *bias = a[4].p;              /* [n] or none */
    float *restrict y = a[5].p;              /* [m, n] */
    float *streams = a[6].p;                 /* [m, SPLIT, x_stream]: the inputs */
    float *work = a[7].p;                    /* [parts, 2, TALL, scales_row]: scales and zero points */
    const int64_t m = a[8].i, k = a[9].i, n = a[10].i, w_row = a[11].i, x_row = a[12].i, x_stream = a[13].i;
    const int64_t blocks = a[14].i, scale_row = a[15].i, zero_row = a[16].i, scales_row = a[17].i;
    const int64_t parts = a[18].i, x_kind = a[19].i, scale_kind = a[20].i;
    const int64_t x_size = x_kind ? 2 : 4, scale_size = scale_kind ? 2 : 4;
    const int64_t width = (k + SPLIT - 1) / SPLIT, whole = width / STEP * STEP, tiles = (n + TALL - 1) / TALL;
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t r = 0; r < m; r++) {
            float *row = streams + r * SPLIT * x_stream;
            memset(row, 0, (size_t)(SPLIT * x_stream) * sizeof(float));
            for (int64_t from = 0; from < k; from += CHUNK) {
                float chunk[CHUNK];
                const int64_t length = k - from < CHUNK ? k - from : CHUNK;
                floats_of(chunk, x + (r * x_row + from) * x_size, length, x_kind);
                for (int64_t s = 0; s < SPLIT; s++)
                    for (int64_t i = s; i < length; i += SPLIT)
                        row[s * x_stream + (from + i) / SPLIT] = chunk[i];
            }
        }
        #pragma omp for schedule(dynamic)
        for (int64_t part = 0; part < parts; part++)
        for (int64_t t = part * tiles / parts; t < (part + 1) * tiles / parts; t++) {
            float *scales = work + part * 2 * TALL * scales_row, *zeros = scales + TALL * scales_row;
            const int64_t first = t * TALL, rows = n - first < TALL ? n - first : TALL;
            for (int64_t r = 0; r < rows; r++) {
                const char *row_scale = scale + (first + r) * scale_row * scale_size;
                const int8_t *row_zero = zero_point ? zero_point + (first + r) * zero_row : 0;
                floats_of(scales + r * scales_row, row_scale, blocks, scale_kind);
                for (int64_t b = 0; b < blocks; b++)
                    zeros[r * scales_row + b] = row_zero ? (float)row_zero[b] : 0.0f;
            }
            const int8_t *w = values + first * w_row;
            int8_t last[TALL][STEP] = {{0}}; /* the bytes after the last whole step */
            for (int64_t r = 0; r < rows; r++)
                memcpy(last[r], w + r * w_row + whole, (size_t)(width - whole));
            vec sums[MAX_ROWS * TALL];
            for (int64_t i = 0; i < m * TALL; i++) sums[i] = (vec){0};
            if (m == 1) {
                const int64_t b = HAS_BLOCKS ? whole / STEP : 0;
                if (rows == TALL)
                    dot_4(whole, scales_row, x_stream, streams, w, w_row, scales, zeros, sums);
                else
                    for (int64_t r = 0; r < rows; r++)
                        dot_1(whole, scales_row, x_stream, streams, w + r * w_row, w_row,
                              scales + r * scales_row, zeros + r * scales_row, sums + r);
                for (int64_t r = 0; r < rows && whole < width; r++)
                    dot_1(STEP, scales_row, x_stream, streams + whole, last[r], STEP,
                          scales + r * scales_row + b, zeros + r * scales_row + b, sums + r);
            } else
                for (int64_t from = 0; from < width; from += CHUNK) {
                    float decoded[TALL * SPLIT * CHUNK];
                    const int64_t left = (width - from + LANES - 1) / LANES * LANES;
                    const int64_t length = left < CHUNK ? left : CHUNK;
                    for (int64_t r = 0; r < TALL; r++) {
                        const int64_t row = r < rows ? r : 0; /* rows that are not there are not stored */
                        for (int64_t j = 0; j < length; j += LANES) {
                            const int64_t at = from + j, b = row * scales_row + (HAS_BLOCKS ? at / STEP : 0);
                            const ints v = load(at < whole ? w + row * w_row + at : last[row] + (at - whole));
                            _Pragma("GCC unroll 4") for (int s = 0; s < SPLIT; s++) {
                                const vec number = unscaled(v, s, zeros[b]);
                                *(vec *)(decoded + (r * SPLIT + s) * CHUNK + j) =
                                    HAS_BLOCKS ? number * scales[b] : number;
                            }
                        }
                    }
                    for (int64_t r = 0; r < m;) {
                        const int64_t left_row = SPLIT * x_stream;
                        const float *left = streams + r * left_row + from;
                        vec *to = sums + r * TALL;
                        if (m - r >= 4) tile_4(length, x_stream, left, left_row, decoded, to), r += 4;
                        else if (m - r >= 2) tile_2(length, x_stream, left, left_row, decoded, to), r += 2;
                        else tile_1(length, x_stream, left, left_row, decoded, to), r++;
                    }
                }
            for (int64_t r = 0; r < m; r++)
                for (int64_t i = 0; i < rows; i++) {
                    float sum = total(sums[r * TALL + i]);
                    if (!HAS_BLOCKS) sum *= scales[i * scales_row];
                    y[r * n + first + i] = bias ? sum + bias[first + i] : sum;
                }
        }
    }
}
"""


def unsupported_reason(
    x: Tensor, values: Tensor, scale: Tensor, zero_point: Tensor | None, value: str, block: int
) -> str | None:
    """Return why the C kernel cannot multiply these, or None."""
    k = x.shape[-1]
    m = x.numel() // max(k, 1)
    if x.dtype not in _TYPES or scale.dtype not in _TYPES:
        return f"x of {x.dtype} with scales of {scale.dtype}: they have 16 bits or are float32"
    if not (m and k and values.shape[0]):
        return "an empty tensor"
    if m > MAX_ROWS:
        return f"{m} rows; more than {MAX_ROWS} are faster with the weight dequantized"
    step = block * VALUES[value].bits / 8
    if block and (step % _MIN_STEP or step > _MAX_STEP):
        return f"blocks of {block} columns: they take a multiple of {_MIN_STEP} bytes, at most {_MAX_STEP}"
    tensors = (values, scale) if zero_point is None else (values, scale, zero_point)
    if any(t.shape[-1] > 1 and t.stride(-1) != 1 for t in tensors):
        return "rows of the weight are not contiguous"
    return None


def multiply(
    x: Tensor,
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    bias: Tensor | None,
    value: str,
    block: int,
) -> Tensor:
    """Multiply up to `MAX_ROWS` rows by a packed weight, in float32: ``[m, n]``.

    Rows of `x` and `values` are contiguous, the bias is float32; the others are as for `quantized_linear`. A
    scale is shared by `block` columns, which have at least 4 bytes; 0 for whole rows.
    """
    (m, k), n = x.shape, values.shape[0]
    per_byte = VALUES[value].per_byte
    width = -(-k // per_byte)
    step = block // per_byte or _STEP
    x_stream = -(-width // step) * step
    blocks = scale.shape[1]
    scales_row = -(-blocks // 16) * 16  # conversions write whole vectors
    parts = min(8 * torch.get_num_threads(), -(-n // 4))
    out = x.new_empty(m, n, dtype=torch.float32)
    streams = x.new_empty(m * per_byte * x_stream, dtype=torch.float32)
    work = x.new_empty(parts * 8 * scales_row, dtype=torch.float32)
    sizes = (
        m, k, n, values.stride(0), x.stride(0), x_stream, blocks, _row_stride(scale), _row_stride(zero_point),
        scales_row, parts, _TYPES.index(x.dtype), _TYPES.index(scale.dtype),
    )  # fmt: skip
    pointers = (x, values, scale, zero_point, bias, out, streams, work)
    call = _compile(value, step, bool(block), zero_point is not None)
    call(*(0 if t is None else t.data_ptr() for t in pointers), *sizes)
    return out


def _row_stride(parameters: Tensor | None) -> int:
    """Return the stride of the rows of scales or zero points, 0 if all rows share them."""
    return 0 if parameters is None or parameters.shape[0] == 1 else parameters.stride(0)


_FLOAT8 = {
    "float8_e4m3": "enum { MANTISSA = 3 };\n#define BIAS 7\n#define SMALLEST 0x1p-9f\n",
    "float8_e5m2": "enum { MANTISSA = 2 };\n#define BIAS 15\n#define SMALLEST 0x1p-16f\n",
}


@cache
def _compile(value: str, step: int, has_blocks: bool, has_zero: bool) -> Callable[..., Any]:
    kind = VALUES[value]
    constants = (
        f"#define BITS {kind.bits}\n#define SPLIT {kind.per_byte}\n#define IS_FLOAT {int(kind.is_float)}\n"
        f"#define STEP {step}\n#define HAS_BLOCKS {int(has_blocks)}\n#define HAS_ZERO {int(has_zero)}\n"
        f"enum {{ MAX_ROWS = {MAX_ROWS} }};\n"
    )
    header = c_compiler.PREAMBLE + c_compiler.ALLOW_FMA + prelude.source()
    library = c_library.load(header + constants + _FLOAT8.get(value, "") + _SOURCE, ["multiply"])
    return c_library.launcher(library["multiply"], pointers=8, ints=13)
