/* Conversions between element types, as torch makes them on x86 for values that fit.
 *
 * bfloat16 and float16 travel as uint16_t: loads and stores convert, arithmetic is in float. Bit code rather
 * than the compiler's _Float16, which gcc 12 does not vectorise on x86.
 */
#ifndef BURNT_CONVERT_H
#define BURNT_CONVERT_H

#include "math.h"

static inline float f32_of_bf16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

/* Nearest, halves to even. A NaN becomes the one quiet NaN: rounding might turn its bits into infinity. */
static inline uint16_t bf16_of_f32(float x) {
    uint32_t u = bits_f32(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

static inline float f32_of_f16(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
    /* Multiplying by 2^112 moves the exponent to float's bias, and normalises denormals. */
    float x = float_of_bits(u) * 0x1p112f;
    uint32_t special = u >= 0x0f800000u ? 0x7f800000u : 0u; /* infinity and NaN keep their mantissa */
    return float_of_bits(bits_f32(x) | special | (uint32_t)(h & 0x8000u) << 16);
}

/* Nearest, halves to even; infinity from 65520 on. The rounding is that of an addition: of a power of two as
 * much larger than x as makes the sum's last bit float16's. The idea is that of M. Dukhan's FP16 library. */
static inline uint16_t f16_of_f32(float x) {
    uint32_t u = bits_f32(x), twice = u << 1;
    /* Times 4 in the end; what overflows float16 becomes infinity on the way. */
    float scaled = __builtin_fabsf(x) * 0x1p112f * 0x1p-110f;
    uint32_t exponent = twice & 0xff000000u;
    exponent = exponent < 0x71000000u ? 0x71000000u : exponent; /* float16's denormals share one */
    uint32_t sum = bits_f32(scaled + float_of_bits((exponent >> 1) + 0x07800000u));
    uint32_t y = (sum >> 13 & 0x7c00u) + (sum & 0x0fffu);
    y = twice > 0xff000000u ? 0x7e00u : y; /* NaN */
    return (uint16_t)(y | (u >> 16 & 0x8000u));
}

/* What float16 keeps of a float. The sum's last bit is float16's, as above; without the way there and back. */
static inline float round_f16(float x) {
    uint32_t u = bits_f32(x), exponent = u & 0x7f800000u;
    exponent = exponent < 0x38800000u ? 0x38800000u : exponent; /* float16's denormals share one */
    exponent = exponent > 0x70000000u ? 0x70000000u : exponent; /* far beyond, and room to add 13 */
    float large = float_of_bits(exponent + (13u << 23));
    float y = (__builtin_fabsf(x) + large) - large;
    y = y > 65504.0f ? __builtin_inff() : y;
    return float_of_bits(bits_f32(y) | (u & 0x80000000u));
}

/* Rows, by the instructions that x86 has and gcc 12 does not take for loops. Floats have room for whole vectors
 * of `burnt_halves`, and what is left goes as one, too: a loop would become another one of vectors, and a part
 * of a vector that was stored alone would be waited for. Vectors are as wide as those of the loops that load
 * what was just stored: of one in two parts, a load waits for both to have left the core. */
#if defined(__F16C__) && defined(__AVX__)
#ifdef __AVX512F__
enum { burnt_halves = 16 };
typedef float burnt_floats __attribute__((vector_size(64)));
typedef short burnt_shorts __attribute__((vector_size(32)));
static inline burnt_floats floats_of_shorts(burnt_shorts h) {
    return __builtin_ia32_vcvtph2ps512_mask(h, (burnt_floats){0}, -1, 4); /* 4: the mode does not matter */
}
static inline burnt_shorts shorts_of_floats(burnt_floats f) {
    return __builtin_ia32_vcvtps2ph512_mask(f, 0, (burnt_shorts){0}, -1); /* 0: to nearest, halves to even */
}
#else
enum { burnt_halves = 8 };
typedef float burnt_floats __attribute__((vector_size(32)));
typedef short burnt_shorts __attribute__((vector_size(16)));
static inline burnt_floats floats_of_shorts(burnt_shorts h) { return __builtin_ia32_vcvtph2ps256(h); }
static inline burnt_shorts shorts_of_floats(burnt_floats f) { return __builtin_ia32_vcvtps2ph256(f, 0); }
#endif
static inline void f32_of_f16_vector(float *y, const uint16_t *x) {
    burnt_shorts h;
    __builtin_memcpy(&h, x, sizeof h);
    burnt_floats f = floats_of_shorts(h);
    __builtin_memcpy(y, &f, sizeof f);
}
static inline void f16_of_f32_vector(uint16_t *y, const float *x) {
    burnt_floats f;
    __builtin_memcpy(&f, x, sizeof f);
    burnt_shorts h = shorts_of_floats(f);
    __builtin_memcpy(y, &h, sizeof h);
}
/* The n elements that are left of a row, fewer than a vector has. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
static inline burnt_shorts shorts_left(const uint16_t *x, int64_t n) {
    return __builtin_ia32_loaddquhi256_mask((const short *)x, (burnt_shorts){0}, (1u << n) - 1);
}
static inline void put_shorts_left(uint16_t *y, burnt_shorts h, int64_t n) {
    __builtin_ia32_storedquhi256_mask((short *)y, h, (1u << n) - 1);
}
#else
static inline burnt_shorts shorts_left(const uint16_t *x, int64_t n) {
    burnt_shorts h = {0};
    __builtin_memcpy(&h, x, n * sizeof *x);
    return h;
}
static inline void put_shorts_left(uint16_t *y, burnt_shorts h, int64_t n) {
    __builtin_memcpy(y, &h, n * sizeof *y);
}
#endif
static inline void f32_of_f16_row(float *restrict y, const uint16_t *restrict x, int64_t n) {
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + burnt_halves <= n; i += burnt_halves) f32_of_f16_vector(y + i, x + i);
    if (i == n) return;
    burnt_floats f = floats_of_shorts(shorts_left(x + i, n - i));
    __builtin_memcpy(y + i, &f, sizeof f);
}
static inline void f16_of_f32_row(uint16_t *restrict y, const float *restrict x, int64_t n) {
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + burnt_halves <= n; i += burnt_halves) f16_of_f32_vector(y + i, x + i);
    if (i == n) return;
    burnt_floats f;
    __builtin_memcpy(&f, x + i, sizeof f);
    put_shorts_left(y + i, shorts_of_floats(f), n - i);
}
/* Of a number of elements that the compiler knows, whose floats then stay in registers. */
static inline void f32_of_f16_strip(float *restrict y, const uint16_t *restrict x) {
    for (int i = 0; i < 16; i += burnt_halves) f32_of_f16_vector(y + i, x + i);
}
static inline void f16_of_f32_strip(uint16_t *restrict y, const float *restrict x) {
    for (int i = 0; i < 16; i += burnt_halves) f16_of_f32_vector(y + i, x + i);
}
#else
static inline void f32_of_f16_row(float *restrict y, const uint16_t *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = f32_of_f16(x[i]);
}
static inline void f16_of_f32_row(uint16_t *restrict y, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = f16_of_f32(x[i]);
}
static inline void f32_of_f16_strip(float *restrict y, const uint16_t *restrict x) { f32_of_f16_row(y, x, 16); }
static inline void f16_of_f32_strip(uint16_t *restrict y, const float *restrict x) { f16_of_f32_row(y, x, 16); }
#endif

static inline float f32_of_f64(double x) { return (float)x; }
static inline double f64_of_f32(float x) { return (double)x; }

/* Towards zero. Narrow integers go through int32_t, so that what lies outside wraps as in torch instead of
 * being undefined; beyond int32_t the result is the compiler's. */
static inline uint8_t bool_of_f32(float x) { return x != 0.0f; }
static inline uint8_t u8_of_f32(float x) { return (uint8_t)(int32_t)x; }
static inline int8_t i8_of_f32(float x) { return (int8_t)(int32_t)x; }
static inline int16_t i16_of_f32(float x) { return (int16_t)(int32_t)x; }
static inline int32_t i32_of_f32(float x) { return (int32_t)x; }
static inline int64_t i64_of_f32(float x) { return (int64_t)x; }
static inline uint8_t bool_of_f64(double x) { return x != 0.0; }
static inline uint8_t u8_of_f64(double x) { return (uint8_t)(int32_t)x; }
static inline int8_t i8_of_f64(double x) { return (int8_t)(int32_t)x; }
static inline int16_t i16_of_f64(double x) { return (int16_t)(int32_t)x; }
static inline int32_t i32_of_f64(double x) { return (int32_t)x; }
static inline int64_t i64_of_f64(double x) { return (int64_t)x; }

#endif
