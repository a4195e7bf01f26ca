/* Conversions between element types. For values in range they are the same as torch's on x86.
 *
 * bfloat16 and float16 are stored as uint16_t: loads and stores convert, arithmetic is in float. The conversions
 * use bit operations instead of the compiler's _Float16, which gcc 12 does not vectorise on x86.
 */
#ifndef BURNT_CONVERT_H
#define BURNT_CONVERT_H

#include "math.h"

static inline float f32_of_bf16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

/* Rounds to nearest, halves to even. Every NaN becomes the same quiet NaN: rounding its bits might give infinity. */
static inline uint16_t bf16_of_f32(float x) {
    uint32_t u = bits_f32(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

static inline float f32_of_f16(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
    /* Multiplying by 2^112 moves the exponent to float's bias, and normalises denormals. */
    float x = float_of_bits(u) * 0x1p112f;
    uint32_t special = u >= 0x0f800000u ? 0x7f800000u : 0u; /* infinity and NaN keep their mantissa bits */
    return float_of_bits(bits_f32(x) | special | (uint32_t)(h & 0x8000u) << 16);
}

/* Rounds to nearest, halves to even; infinity from 65520 on. An addition does the rounding: it adds a power of two
 * so much larger than x that the sum's last bit is float16's last bit. The idea is from M. Dukhan's FP16 library. */
static inline uint16_t f16_of_f32(float x) {
    uint32_t u = bits_f32(x), twice = u << 1;
    /* Scales by 4; a value that overflows float16 becomes infinity in between. */
    float scaled = __builtin_fabsf(x) * 0x1p112f * 0x1p-110f;
    uint32_t exponent = twice & 0xff000000u;
    exponent = exponent < 0x71000000u ? 0x71000000u : exponent; /* that of float16's denormals */
    uint32_t sum = bits_f32(scaled + float_of_bits((exponent >> 1) + 0x07800000u));
    uint32_t y = (sum >> 13 & 0x7c00u) + (sum & 0x0fffu);
    y = twice > 0xff000000u ? 0x7e00u : y; /* NaN */
    return (uint16_t)(y | (u >> 16 & 0x8000u));
}

/* Rounds a float to float16's precision and range, by an addition as above, but without the conversions. */
static inline float round_f16(float x) {
    uint32_t u = bits_f32(x), exponent = u & 0x7f800000u;
    exponent = exponent < 0x38800000u ? 0x38800000u : exponent; /* that of float16's denormals */
    exponent = exponent > 0x70000000u ? 0x70000000u : exponent; /* far out of range, and 13 more do not overflow */
    float large = float_of_bits(exponent + (13u << 23));
    float y = (__builtin_fabsf(x) + large) - large;
    y = y > 65504.0f ? __builtin_inff() : y;
    return float_of_bits(bits_f32(y) | (u & 0x80000000u));
}

/* Conversions of rows, by x86 instructions that gcc 12 does not use for loops. Float rows have room for whole
 * vectors of `burnt_f16_lanes`, and the last, partial vector is converted as a whole, too: gcc would vectorise a
 * remainder loop again, and a later load of a vector stored in parts would stall. Vectors are as wide as in the
 * loops that load the converted row: a load that spans two stores waits until both have left the store buffer. */
#if defined(__F16C__) && defined(__AVX__)
#ifdef __AVX512F__
enum { burnt_f16_lanes = 16 };
typedef float burnt_floats __attribute__((vector_size(64)));
typedef short burnt_shorts __attribute__((vector_size(32)));
static inline burnt_floats floats_of_shorts(burnt_shorts h) {
    return __builtin_ia32_vcvtph2ps512_mask(h, (burnt_floats){0}, -1, 4); /* 4: rounding mode, which does not matter */
}
static inline burnt_shorts shorts_of_floats(burnt_floats f) {
    return __builtin_ia32_vcvtps2ph512_mask(f, 0, (burnt_shorts){0}, -1); /* 0: round to nearest, halves to even */
}
#else
enum { burnt_f16_lanes = 8 };
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
/* Load and store the last n elements of a row, fewer than a vector has. */
#if defined(__AVX512BW__) && defined(__AVX512VL__)
static inline burnt_shorts load_last_shorts(const uint16_t *x, int64_t n) {
    return __builtin_ia32_loaddquhi256_mask((const short *)x, (burnt_shorts){0}, (1u << n) - 1);
}
static inline void store_last_shorts(uint16_t *y, burnt_shorts h, int64_t n) {
    __builtin_ia32_storedquhi256_mask((short *)y, h, (1u << n) - 1);
}
#else
static inline burnt_shorts load_last_shorts(const uint16_t *x, int64_t n) {
    burnt_shorts h = {0};
    __builtin_memcpy(&h, x, n * sizeof *x);
    return h;
}
static inline void store_last_shorts(uint16_t *y, burnt_shorts h, int64_t n) {
    __builtin_memcpy(y, &h, n * sizeof *y);
}
#endif
static inline void f32_of_f16_row(float *restrict y, const uint16_t *restrict x, int64_t n) {
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + burnt_f16_lanes <= n; i += burnt_f16_lanes) f32_of_f16_vector(y + i, x + i);
    if (i == n) return;
    burnt_floats f = floats_of_shorts(load_last_shorts(x + i, n - i));
    __builtin_memcpy(y + i, &f, sizeof f);
}
static inline void f16_of_f32_row(uint16_t *restrict y, const float *restrict x, int64_t n) {
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + burnt_f16_lanes <= n; i += burnt_f16_lanes) f16_of_f32_vector(y + i, x + i);
    if (i == n) return;
    burnt_floats f;
    __builtin_memcpy(&f, x + i, sizeof f);
    store_last_shorts(y + i, shorts_of_floats(f), n - i);
}
/* Conversions of 16 elements: a constant number, so that the floats stay in registers. */
static inline void f32_of_f16_strip(float *restrict y, const uint16_t *restrict x) {
    for (int i = 0; i < 16; i += burnt_f16_lanes) f32_of_f16_vector(y + i, x + i);
}
static inline void f16_of_f32_strip(uint16_t *restrict y, const float *restrict x) {
    for (int i = 0; i < 16; i += burnt_f16_lanes) f16_of_f32_vector(y + i, x + i);
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

/* Round towards zero. Narrow integers are converted through int32_t, so that values out of range wrap as in torch
 * instead of being undefined. Values out of the range of int32_t depend on the compiler. */
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
