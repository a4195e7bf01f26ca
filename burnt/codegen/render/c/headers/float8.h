/* Conversions between float and the bytes of float8 numbers: e4m3 (torch.float8_e4m3fn) and e5m2.
 *
 * Rounded to nearest, halves to even. A byte is in the low bits of a uint32_t. e4m3 has no infinity: what is larger than
 * 448 becomes 448, as in torch from 2.13 on. No float is denormal, which processors multiply slowly and Metal
 * flushes to zero.
 */
#ifndef BURNT_FLOAT8_H
#define BURNT_FLOAT8_H

#include "math.h"

static inline float f32_of_e4m3(uint32_t byte) {
    uint32_t size = (byte & 0x7fu) << 20;
    /* A subnormal is the mantissa of a number in [2^-6, 2^-5), without the implicit one. */
    uint32_t subnormal = bits_f32(float_of_bits(size + (121u << 23)) - 0x1p-6f);
    uint32_t u = size < 1u << 23 ? subnormal : size + (120u << 23);
    u = size == 0x7fu << 20 ? 0x7fc00000u : u;
    return float_of_bits(u | (byte & 0x80u) << 24);
}

static inline float f32_of_e5m2(uint32_t byte) {
    uint32_t size = (byte & 0x7fu) << 21;
    uint32_t subnormal = bits_f32(float_of_bits(size + (113u << 23)) - 0x1p-14f);
    uint32_t u = size < 1u << 23 ? subnormal : size + (112u << 23);
    u = size >= 0x7cu << 21 ? size > 0x7cu << 21 ? 0x7fc00000u : 0x7f800000u : u;
    return float_of_bits(u | (byte & 0x80u) << 24);
}

/* A subnormal result is rounded by an addition: the last bit of 2^14 is the smallest e4m3 number. */
static inline uint32_t e4m3_of_f32(float x) {
    uint32_t size = bits_f32(x) & 0x7fffffffu;
    uint32_t subnormal = bits_f32(float_of_bits(size) + 0x1p14f) - (141u << 23);
    uint32_t y = (size - (120u << 23) + 0x7ffffu + (size >> 20 & 1u)) >> 20;
    y = size < 121u << 23 ? subnormal : y;
    y = size >= 0x43e80000u ? size > 0x7f800000u ? 0x7fu : 0x7eu : y; /* from 464 on */
    return y | (bits_f32(x) >> 24 & 0x80u);
}

static inline uint32_t e5m2_of_f32(float x) {
    uint32_t size = bits_f32(x) & 0x7fffffffu;
    uint32_t subnormal = bits_f32(float_of_bits(size) + 0x1p7f) - (134u << 23);
    uint32_t y = (size - (112u << 23) + 0xfffffu + (size >> 21 & 1u)) >> 21;
    y = size < 113u << 23 ? subnormal : y;
    y = size >= 143u << 23 ? 0x7cu : y;
    y = size > 0x7f800000u ? 0x7fu : y;
    return y | (bits_f32(x) >> 24 & 0x80u);
}

#endif
