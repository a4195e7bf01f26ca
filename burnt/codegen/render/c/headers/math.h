/* Elementwise math functions that the compiler can vectorise.
 *
 * Functions are named `<torch's name>_f32` and `<torch's name>_f64`, and compute one value. This header has math
 * on floating-point numbers; conversions between types are in convert.h, random numbers in random.h.
 *
 * Rules:
 * - A _f32 function has no branches, tables or calls. A conditional is a select: both sides are computed. So any
 *   loop that calls these functions can be vectorised.
 * - Special values (NaN, infinities, denormals, signed zeros) are handled as in torch. -ffast-math would break
 *   this; the flags are -O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off.
 * - Every _f32 function is within 4 ulp of the exact value over all floats. The bound of each function is in
 *   tests/codegen/render/c/test_math_header.py.
 * - A _f64 function calls libm if it needs more than a rounding instruction: accurate, but not vectorised.
 *
 * The compiler must not contract a * b + c to fma, so that a value does not depend on the code around it. Where
 * fma is needed for accuracy or speed, it is written explicitly; without FMA hardware it is a slow but correct
 * call.
 *
 * Polynomials are minimax (Lawson's iteration on a target of 120 bits), weighted by the relative error of the
 * result. Coefficients are rounded to float from the lowest order up, and the later ones fitted again each time.
 */
#ifndef BURNT_MATH_H
#define BURNT_MATH_H

#include <stdint.h>

/* ---- products and sums ------------------------------------------------------------------------------ */

/* a * b + c, rounded once. */
static inline float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma_f64(double a, double b, double c) { return __builtin_fma(a, b, c); }

/* ---- bits ------------------------------------------------------------------------------------------- */

static inline uint32_t bits_f32(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of_bits(uint32_t u) {
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint64_t bits_f64(double x) {
    uint64_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}

static inline double double_of_bits(uint64_t u) {
    double x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

#define BURNT_NAN __builtin_nanf("")
#define BURNT_INF __builtin_inff()

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum. This rounds and converts to an integer
 * at once, and is defined for NaN too. */
#define BURNT_ROUND_F32 0x1.8p23f
#define BURNT_ROUND_F64 0x1.8p52

/* 2^n, -126 <= n <= 127. */
static inline float power_of_two(int32_t n) { return float_of_bits((uint32_t)(n + 127) << 23); }

/* x 2^n for 1/2 < x < 2 and n from -252 to 254. Two multiplications, of which at most one rounds when the result
 * overflows or is denormal. */
static inline float scale_f32(float x, int32_t n) {
    int32_t half = n >> 1;
    return x * power_of_two(half) * power_of_two(n - half);
}

/* ---- single instructions ---------------------------------------------------------------------------- */

static inline float abs_f32(float x) { return __builtin_fabsf(x); }
static inline float sqrt_f32(float x) { return __builtin_sqrtf(x); }
static inline float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float floor_f32(float x) { return __builtin_floorf(x); }
static inline float ceil_f32(float x) { return __builtin_ceilf(x); }
static inline float trunc_f32(float x) { return __builtin_truncf(x); }
/* Rounds halves to even, as torch.round does. */
static inline float round_f32(float x) { return __builtin_rintf(x); }
static inline float copysign_f32(float x, float y) { return __builtin_copysignf(x, y); }

static inline double abs_f64(double x) { return __builtin_fabs(x); }
static inline double sqrt_f64(double x) { return __builtin_sqrt(x); }
static inline double rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }
static inline double floor_f64(double x) { return __builtin_floor(x); }
static inline double ceil_f64(double x) { return __builtin_ceil(x); }
static inline double trunc_f64(double x) { return __builtin_trunc(x); }
static inline double round_f64(double x) { return __builtin_rint(x); }
static inline double copysign_f64(double x, double y) { return __builtin_copysign(x, y); }

/* 0 for NaN and for -0, as torch.sign. */
static inline float sign_f32(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }
static inline double sign_f64(double x) { return (double)((x > 0.0) - (x < 0.0)); }

/* maximum and minimum return NaN if either argument is NaN; fmax and fmin return the other argument. Of equal
 * values (zeros of different sign too) the first is returned; torch's choice depends on its vector path. */
/* The first comparison is one x86 instruction, which returns x if either is NaN: only y needs a NaN test. */
static inline float maximum_f32(float x, float y) {
    float most = y > x ? y : x;
    return y != y ? y : most;
}
static inline float minimum_f32(float x, float y) {
    float least = y < x ? y : x;
    return y != y ? y : least;
}
static inline double maximum_f64(double x, double y) {
    double most = y > x ? y : x;
    return y != y ? y : most;
}
static inline double minimum_f64(double x, double y) {
    double least = y < x ? y : x;
    return y != y ? y : least;
}
static inline float fmax_f32(float x, float y) { return x >= y || y != y ? x : y; }
static inline float fmin_f32(float x, float y) { return x <= y || y != y ? x : y; }
static inline double fmax_f64(double x, double y) { return x >= y || y != y ? x : y; }
static inline double fmin_f64(double x, double y) { return x <= y || y != y ? x : y; }

/* ---- exponentials ----------------------------------------------------------------------------------- */

/* e^r - 1 for |r| <= ln(2)/2. */
static inline float expm1_poly(float r) {
    float q = 0.0013937921f;
    q = fma_f32(q, r, 0.00836655591f);
    q = fma_f32(q, r, 0.0416664332f);
    q = fma_f32(q, r, 0.166665435f);
    q = fma_f32(q, r, 0.5f);
    return fma_f32(r * r, q, r);
}

/* x = n ln(2) + r: returns r, |r| <= ln(2)/2, and sets n. For |x| < 2^20. */
static inline float exp_reduce(float x, int32_t *n) {
    float t = fma_f32(x, 0x1.715476p0f, BURNT_ROUND_F32);
    float k = t - BURNT_ROUND_F32;
    *n = (int32_t)(bits_f32(t) - bits_f32(BURNT_ROUND_F32));
    float r = fma_f32(k, -0x1.62e430p-1f, x);
    return fma_f32(k, 0x1.05c610p-29f, r);
}

/* y 2^n for |n| < 160, where t = n + BURNT_ROUND_F32 + 254. 2^n is split into 2^64 or 2^-64, by the sign of x, and
 * a remaining power built from the low bits of t. Rounds once, where the result overflows or is denormal. */
static inline float scale_by_sign(float y, float x, float t) {
    float far = x < 0.0f ? 0x1p-64f : 0x1p64f;
    return y * float_of_bits((bits_f32(t) << 23) - bits_f32(far)) * far;
}

/* Arguments out of range are handled by a select at the end, which keeps the comparisons off the critical path. */
static inline float exp_f32(float x) {
    float t = fma_f32(x, 0x1.715476p0f, BURNT_ROUND_F32 + 254.0f);
    float k = t - (BURNT_ROUND_F32 + 254.0f);
    float r = fma_f32(k, 0x1.05c610p-29f, fma_f32(k, -0x1.62e430p-1f, x));
    float y = scale_by_sign(1.0f + expm1_poly(r), x, t);
    float limit = x < 0.0f ? 0.0f : BURNT_INF;
    return __builtin_fabsf(x) > 104.0f ? limit : y;
}

/* e^x for x <= 0, as a term of a sum that is at least 1. Needs fewer instructions than exp: results below e^-87 (in
 * double: e^-700) are 0, and NaN may be lost. */
static inline float exp_term_f32(float x) {
    float t = fma_f32(x, 0x1.715476p0f, BURNT_ROUND_F32);
    float k = t - BURNT_ROUND_F32;
    float r = fma_f32(k, 0x1.05c610p-29f, fma_f32(k, -0x1.62e430p-1f, x));
    float y = float_of_bits(bits_f32(1.0f + expm1_poly(r)) + (bits_f32(t) << 23));
    return x < -87.0f ? 0.0f : y;
}

static inline double exp_term_f64(double x) {
    double t = fma_f64(x, 0x1.71547652b82fep0, 0x1.8p52);
    double k = t - 0x1.8p52;
    double r = fma_f64(k, -0x1.abc9e3b39803fp-56, fma_f64(k, -0x1.62e42fefa39efp-1, x));
    double q = 1.0 / 6227020800;
    q = fma_f64(q, r, 1.0 / 479001600);
    q = fma_f64(q, r, 1.0 / 39916800);
    q = fma_f64(q, r, 1.0 / 3628800);
    q = fma_f64(q, r, 1.0 / 362880);
    q = fma_f64(q, r, 1.0 / 40320);
    q = fma_f64(q, r, 1.0 / 5040);
    q = fma_f64(q, r, 1.0 / 720);
    q = fma_f64(q, r, 1.0 / 120);
    q = fma_f64(q, r, 1.0 / 24);
    q = fma_f64(q, r, 1.0 / 6);
    q = fma_f64(q, r, 0.5);
    double y = double_of_bits(bits_f64(1.0 + fma_f64(r * r, q, r)) + (bits_f64(t) << 52));
    return x < -700.0 ? 0.0 : y;
}

static inline float exp2_f32(float x) {
    float t = x + (BURNT_ROUND_F32 + 254.0f);
    float r = (x - (t - (BURNT_ROUND_F32 + 254.0f))) * 0x1.62e430p-1f;
    float y = scale_by_sign(1.0f + expm1_poly(r), x, t);
    float limit = x < 0.0f ? 0.0f : BURNT_INF;
    return __builtin_fabsf(x) > 151.0f ? limit : y;
}

/* A GPU has a faster one. */
static inline float fast_exp2_f32(float x) { return exp2_f32(x); }

static inline float expm1_f32(float x) {
    int32_t n;
    float p = expm1_poly(exp_reduce(x, &n));
    float s = power_of_two(n - 1); /* half of the scale: 2^128 is not a float */
    float y = 2.0f * fma_f32(s, p, s - 0.5f);
    y = x < -20.0f ? -1.0f : y;
    y = x > 89.0f ? BURNT_INF : y;
    return __builtin_fabsf(x) < 0x1p-24f ? x : y;
}

/* Uses e^-|x|, which neither overflows nor cancels. */
static inline float sigmoid_f32(float x) {
    int32_t n;
    float a = __builtin_fabsf(x), r = exp_reduce(-a, &n);
    float e = (1.0f + expm1_poly(r)) * power_of_two(n + 64) * 0x1p-64f; /* scale_f32 for n <= 0 */
    e = a > 104.0f ? 0.0f : e;
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

static inline float tanh_f32(float x) {
    int32_t n;
    float a = __builtin_fabsf(x);
    float p = expm1_poly(exp_reduce(2.0f * a, &n));
    float s = power_of_two(n);
    float e = fma_f32(s, p, s - 1.0f); /* e^2a - 1 */
    float y = e / (e + 2.0f);
    return __builtin_copysignf(a > 10.0f ? 1.0f : y, x);
}

/* e^a / 2. Overflows only where sinh and cosh do. */
static inline float half_exp(float a) {
    int32_t n;
    float r = exp_reduce(a, &n);
    float y = (1.0f + expm1_poly(r)) * power_of_two(n - 65) * 0x1p64f;
    return a > 90.0f ? BURNT_INF : y;
}

static inline float sinh_f32(float x) {
    float a = __builtin_fabsf(x), z = a * a, h = half_exp(a);
    float q = 2.78221319e-06f;
    q = fma_f32(q, z, 0.000198428956f);
    q = fma_f32(q, z, 0.00833331048f);
    q = fma_f32(q, z, 0.166666672f);
    float small = fma_f32(a * z, q, a);
    return __builtin_copysignf(a < 1.0f ? small : h - 0.25f / h, x);
}

static inline float cosh_f32(float x) {
    float h = half_exp(__builtin_fabsf(x));
    return h + 0.25f / h;
}

/* ---- logarithms ------------------------------------------------------------------------------------- */

/* x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2): returns f and sets e. For positive, finite x. */
static inline float log_reduce(float x, float *e) {
    int tiny = x < 0x1p-126f;
    uint32_t u = bits_f32(tiny ? x * 0x1p23f : x) - 0x3f3504f3u;
    *e = (float)(((int32_t)u >> 23) - (tiny ? 23 : 0));
    return float_of_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}

/* log(1 + f) - f, for the f of log_reduce. */
static inline float log_tail(float f) {
    float q = -0.0763640404f;
    q = fma_f32(q, f, 0.127622053f);
    q = fma_f32(q, f, -0.131596148f);
    q = fma_f32(q, f, 0.142015815f);
    q = fma_f32(q, f, -0.166234091f);
    q = fma_f32(q, f, 0.200012416f);
    q = fma_f32(q, f, -0.250008196f);
    q = fma_f32(q, f, 0.333333313f);
    return (f * f) * fma_f32(q, f, -0.5f);
}

/* y if x is positive and finite; otherwise the special value that every logarithm has there. */
static inline float log_special(float x, float y) {
    y = x == BURNT_INF ? x : y;
    y = x == 0.0f ? -BURNT_INF : y;
    return x >= 0.0f ? y : BURNT_NAN;
}

static inline float log_f32(float x) {
    float e, f = log_reduce(x, &e);
    float y = fma_f32(e, -0x1.05c610p-29f, log_tail(f)) + f;
    return log_special(x, fma_f32(e, 0x1.62e430p-1f, y));
}

/* log(1 + f) / log(base), where high + low is 1 / log(base). The caller adds the exponent's part last. */
static inline float log_scaled(float f, float high, float low) {
    float t = log_tail(f), y = f * high;
    float rest = fma_f32(f, high, -y); /* rounding error of f * high */
    return y + fma_f32(t, high, fma_f32(f, low, rest));
}

static inline float log2_f32(float x) {
    float e, f = log_reduce(x, &e);
    return log_special(x, e + log_scaled(f, 0x1.715476p0f, 0x1.4ae0cp-26f));
}

static inline float log10_f32(float x) {
    float e, f = log_reduce(x, &e);
    float y = fma_f32(e, -0x1.ec10cp-27f, log_scaled(f, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f));
    return log_special(x, fma_f32(e, 0x1.344136p-2f, y));
}

/* log(1 + x) for 1 + x positive and finite. The mantissa is computed from x, because 1 + x has lost x's low bits.
 * For e > 30 the 1 is negligible, and 2^-e would leave the normal range. */
static inline float log1p_positive(float x) {
    float e, u = 1.0f + x, m = log_reduce(u, &e);
    float s = power_of_two(-(int32_t)(e > 30.0f ? 30.0f : e));
    float f = e > 30.0f ? m : fma_f32(x, s, s - 1.0f);
    float y = fma_f32(e, -0x1.05c610p-29f, log_tail(f)) + f;
    return fma_f32(e, 0x1.62e430p-1f, y);
}

static inline float log1p_f32(float x) {
    float y = log_special(1.0f + x, log1p_positive(x));
    return x == 0.0f ? x : y;
}

/* ---- inverse hyperbolic functions -------------------------------------------------------------------- */

/* log1p(u), or log(2 a) if a is so large that its square may overflow. */
static inline float log1p_or_double(float u, float a) {
    int large = a >= 0x1p30f;
    float y = log1p_positive(large ? a : u) + (large ? 0x1.62e430p-1f : 0.0f);
    return a == BURNT_INF ? a : y;
}

static inline float asinh_f32(float x) {
    float a = __builtin_fabsf(x), z = a * a;
    float y = log1p_or_double(a + z / (1.0f + __builtin_sqrtf(1.0f + z)), a);
    return x != x ? x : __builtin_copysignf(y, x);
}

static inline float acosh_f32(float x) {
    float t = x - 1.0f;
    float y = log1p_or_double(t + __builtin_sqrtf(fma_f32(t, t, 2.0f * t)), x);
    return x >= 1.0f ? y : BURNT_NAN;
}

static inline float atanh_f32(float x) {
    float a = __builtin_fabsf(x);
    float y = 0.5f * log1p_f32(2.0f * a / (1.0f - a));
    /* For small a, return x: doubling and halving would lose the last bit of a denormal. */
    return a < 0x1p-12f ? x : __builtin_copysignf(y, x);
}

/* ---- error function --------------------------------------------------------------------------------- */

static inline float erf_f32(float x) {
    float a = __builtin_fabsf(x), z = a * a;
    float q = 7.80690316e-05f;
    q = fma_f32(q, z, -0.00079978531f);
    q = fma_f32(q, z, 0.0051871622f);
    q = fma_f32(q, z, -0.0268533472f);
    q = fma_f32(q, z, 0.112835787f);
    q = fma_f32(q, z, -0.37612626f);
    q = fma_f32(q, z, 0.128379166f);
    float small = fma_f32(a, q, a);

    float t = a > 4.0f ? 4.0f : a; /* erf is 1 from 3.92 on */
    float p = 0.000210647049f;     /* log(erfc(t)) / t on [1, 4] */
    p = fma_f32(p, t, -0.00318697677f);
    p = fma_f32(p, t, 0.0227985587f);
    p = fma_f32(p, t, -0.105116293f);
    p = fma_f32(p, t, -0.635831356f);
    p = fma_f32(p, t, -1.12848008f);
    int32_t n;
    float r = exp_reduce(p * t, &n);
    float large = 1.0f - (1.0f + expm1_poly(r)) * power_of_two(n);
    return __builtin_copysignf(a < 1.0f ? small : large, x);
}

/* For a >= 1/2, (1 + 2a) e^(a^2) erfc(a) is approximated by a polynomial in (a - 2) / (a + 2). Below, 1 - erf(a)
 * has the smaller error. */
static inline float erfc_f32(float x) {
    float a = __builtin_fabsf(x);
    a = a > 10.3f ? 10.3f : a; /* 0 from 10.06 on */
    float s = a * a;
    float small = 0.00461393362f;
    small = fma_f32(small, s, -0.0266991984f);
    small = fma_f32(small, s, 0.112817429f);
    small = fma_f32(small, s, -0.376125336f);
    small = fma_f32(small, s, 0.128379151f);
    small = 1.0f - fma_f32(a, small, a);

    float q = (a - 2.0f) / (a + 2.0f);
    float p = -0.00132789253f;
    p = fma_f32(p, q, 0.000953314593f);
    p = fma_f32(p, q, 0.00870148465f);
    p = fma_f32(p, q, -0.00795073621f);
    p = fma_f32(p, q, -0.0542201661f);
    p = fma_f32(p, q, 0.164043099f);
    p = fma_f32(p, q, -0.166030198f);
    p = fma_f32(p, q, -0.0927636251f);
    p = fma_f32(p, q, 1.27697837f);
    int32_t n;
    float r = exp_reduce(-s, &n) - fma_f32(a, a, -s); /* corrected for the rounding error of a^2 */
    float e = 1.0f + expm1_poly(r);
    float d = 1.0f + 2.0f * a, inverse = 1.0f / d, y0 = p * inverse;
    float rest = fma_f32(-y0, d, p) - y0 * (1.0f - (d - 2.0f * a)); /* errors of y0 and of rounding d */
    float large = scale_f32(fma_f32(e, y0, e * inverse * rest), n);
    float y = a < 0.5f ? small : large;
    return x < 0.0f ? 2.0f - y : y;
}

/* ---- trigonometric functions ------------------------------------------------------------------------- */

/* a = (4 m + quadrant) pi/2 + r, |r| <= pi/4: returns r and sets quadrant, for every finite a >= 0; NaN for
 * infinity.
 *
 * Computes a / (2 pi) modulo 1 in double, without a table: 1/(2 pi) is split into pieces of 29 bits, whose
 * products with the 24 bits of a are exact, so that the integer part of each can be dropped. From 2^80 on, the
 * pieces leave out the bits whose products are integers. */
static inline float reduce_angle(float a, int32_t *quadrant) {
    int huge = a >= 0x1p80f;
    double x = (double)a;
    double y0 = x * (huge ? 0x1.29fc275p-58 : 0x1.45f306dp-3);
    double y1 = x * (huge ? 0x1.f47d4d2p-88 : 0x1.9391054p-32);
    double y2 = x * (huge ? 0x1.77036d8p-116 : 0x1.4fe13abp-61);
    y0 -= __builtin_rint(y0);
    y1 -= __builtin_rint(y1);
    y2 -= __builtin_rint(y2);
    double t = fma_f64(x, huge ? 0x1.4acc9e21c821p-145 : 0x1.d1f534ddc0db6p-90, y2);
    t += y0 + y1;
    double k = __builtin_rint(4.0 * t);
    *quadrant = (int32_t)k;
    return (float)((t - 0.25 * k) * 0x1.921fb54442d18p2);
}

static inline float sin_poly(float r) {
    float z = r * r;
    float q = -0.000195180997f;
    q = fma_f32(q, z, 0.00833218824f);
    q = fma_f32(q, z, -0.166666552f);
    return fma_f32(r * z, q, r);
}

static inline float cos_poly(float r) {
    float z = r * r;
    float q = 2.44325529e-05f;
    q = fma_f32(q, z, -0.00138873106f);
    q = fma_f32(q, z, 0.0416666456f);
    return fma_f32(z, fma_f32(z, q, -0.5f), 1.0f);
}

static inline float sin_f32(float x) {
    int32_t j;
    float r = reduce_angle(__builtin_fabsf(x), &j);
    float y = j & 1 ? cos_poly(r) : sin_poly(r);
    uint32_t sign = (bits_f32(x) & 0x80000000u) ^ ((uint32_t)(j & 2) << 30);
    return float_of_bits(bits_f32(y) ^ sign);
}

static inline float cos_f32(float x) {
    int32_t j;
    float r = reduce_angle(__builtin_fabsf(x), &j);
    float y = j & 1 ? sin_poly(r) : cos_poly(r);
    return float_of_bits(bits_f32(y) ^ ((uint32_t)((j + 1) & 2) << 30));
}

static inline float tan_f32(float x) {
    int32_t j;
    float r = reduce_angle(__builtin_fabsf(x), &j);
    float s = sin_poly(r), c = cos_poly(r);
    float y = (j & 1 ? -c : s) / (j & 1 ? s : c);
    return float_of_bits(bits_f32(y) ^ (bits_f32(x) & 0x80000000u));
}

/* ---- inverse trigonometric functions ------------------------------------------------------------------ */

/* asin(s) - s for s = sqrt(z) <= 1/2. */
static inline float asin_tail(float s, float z) {
    float q = 0.0421583056f;
    q = fma_f32(q, z, 0.0241847783f);
    q = fma_f32(q, z, 0.0454691499f);
    q = fma_f32(q, z, 0.0749530941f);
    q = fma_f32(q, z, 0.166667521f);
    return (s * z) * q;
}

static inline float asin_f32(float x) {
    float a = __builtin_fabsf(x);
    int large = a > 0.5f; /* asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)) */
    float z = large ? 0.5f - 0.5f * a : a * a;
    float s = large ? __builtin_sqrtf(z) : a;
    float t = asin_tail(s, z);
    float y = large ? 0x1.921fb6p0f - 2.0f * (s + (t + 0x1.777a5cp-26f)) : s + t;
    return __builtin_copysignf(y, x);
}

static inline float acos_f32(float x) {
    float a = __builtin_fabsf(x);
    int large = a > 0.5f;
    float z = large ? 0.5f - 0.5f * a : a * a;
    float s = large ? __builtin_sqrtf(z) : x;
    float t = asin_tail(s, z);
    float positive = 2.0f * (s + t);
    float negative = 0x1.921fb6p1f - 2.0f * (s + (t + 0x1.777a5cp-25f));
    float middle = 0x1.921fb6p0f - (s + (t + 0x1.777a5cp-25f));
    return large ? (x > 0.0f ? positive : negative) : middle;
}

/* atan(t) for 0 <= t <= 1. */
static inline float atan_poly(float t) {
    float z = t * t;
    float q = -0.0017875476f;
    q = fma_f32(q, z, 0.0108873611f);
    q = fma_f32(q, z, -0.0311270021f);
    q = fma_f32(q, z, 0.0579065457f);
    q = fma_f32(q, z, -0.0840047523f);
    q = fma_f32(q, z, 0.109511748f);
    q = fma_f32(q, z, -0.142640516f);
    q = fma_f32(q, z, 0.19998531f);
    q = fma_f32(q, z, -0.333332986f);
    return fma_f32(t * z, q, t);
}

static inline float atan_f32(float x) {
    float a = __builtin_fabsf(x);
    int large = a > 1.0f;
    float y = atan_poly(large ? 1.0f / a : a);
    return __builtin_copysignf(large ? 0x1.921fb6p0f - (y + 0x1.777a5cp-25f) : y, x);
}

static inline float atan2_f32(float y, float x) {
    float a = __builtin_fabsf(y), b = __builtin_fabsf(x);
    float small = a > b ? b : a, large = a > b ? a : b;
    float t = small / large;
    t = small == BURNT_INF ? 1.0f : t; /* both infinite */
    t = large == 0.0f ? 0.0f : t;      /* both zero */
    float r = atan_poly(t);
    r = a > b ? 0x1.921fb6p0f - (r + 0x1.777a5cp-25f) : r;
    r = bits_f32(x) >> 31 ? 0x1.921fb6p1f - (r + 0x1.777a5cp-24f) : r;
    return x != x || y != y ? BURNT_NAN : __builtin_copysignf(r, y);
}

/* ---- powers and remainders ---------------------------------------------------------------------------- */

/* 2^(y log2|x|) in double; the conversion to float handles overflow and denormals. */
static inline float pow_f32(float x, float y) {
    float a = __builtin_fabsf(x), e, f = log_reduce(a, &e);
    double s = (double)f / (2.0 + (double)f), z = s * s;
    double q = 0.34072975201881056; /* log2((1 + s) / (1 - s)) / s */
    q = fma_f64(q, z, 0.41167273694719514);
    q = fma_f64(q, z, 0.57708358469132193);
    q = fma_f64(q, z, 0.96179667334304253);
    q = fma_f64(q, z, 2.8853900817900855);
    double l = fma_f64(s, q, (double)e);
    l = a == 0.0f ? (double)-BURNT_INF : l;
    l = a < BURNT_INF ? l : (double)a; /* infinity and NaN */

    double t = (double)y * l;
    t = t < -400.0 ? -400.0 : t;
    t = t > 400.0 ? 400.0 : t;
    double k = t + BURNT_ROUND_F64, r = t - (k - BURNT_ROUND_F64);
    double p = 0.00015345807372545313;
    p = fma_f64(p, r, 0.0013399931178947214);
    p = fma_f64(p, r, 0.009618488973687174);
    p = fma_f64(p, r, 0.055503287770778315);
    p = fma_f64(p, r, 0.2402264689048178);
    p = fma_f64(p, r, 0.69314720573719779);
    p = fma_f64(p, r, 1.0);
    float m = (float)(p * double_of_bits((bits_f64(k) << 52) + 0x3ff0000000000000u));

    int integer = __builtin_truncf(y) == y;
    int odd = integer & (__builtin_truncf(0.5f * y) != 0.5f * y);
    float signed_m = odd ? __builtin_copysignf(m, x) : m;
    signed_m = (x < 0.0f) & (x > -BURNT_INF) & !integer ? BURNT_NAN : signed_m;
    int one = (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (__builtin_fabsf(y) == BURNT_INF));
    return one ? 1.0f : signed_m;
}

/* r minus a multiple of d. The quotient, below 2^(51 + k), is rounded to a multiple of 2^k by adding 1.5 2^(52 + k).
 * It may be wrong in its last bit; the result is exact in double all the same. */
static inline double fmod_step(double r, double d, double inverse, double round) {
    double q = fma_f64(r, inverse, round) - round;
    return fma_f64(-q, d, r);
}

/* x - trunc(x / y) y, exact. The quotient has up to 277 bits; each step removes 50 of them. */
static inline float fmod_f32(float x, float y) {
    double r = (double)x, d = __builtin_fabs((double)y), inverse = 1.0 / d;
    r = fmod_step(r, d, inverse, 0x1.8p302);
    r = fmod_step(r, d, inverse, 0x1.8p252);
    r = fmod_step(r, d, inverse, 0x1.8p202);
    r = fmod_step(r, d, inverse, 0x1.8p152);
    r = fmod_step(r, d, inverse, 0x1.8p102);
    r = fmod_step(r, d, inverse, 0x1.8p52);
    r = (r < 0.0) & (x > 0.0f) ? r + d : r;
    r = (r > 0.0) & (x < 0.0f) ? r - d : r;
    float m = r == 0.0 ? __builtin_copysignf(0.0f, x) : (float)r;
    int whole = (__builtin_fabsf(y) == BURNT_INF) & (__builtin_fabsf(x) < BURNT_INF);
    return whole ? x : m;
}

/* The remainder with y's sign, as torch's % and remainder: fmod, plus y if the signs differ. */
static inline float remainder_f32(float x, float y) {
    float m = fmod_f32(x, y);
    int opposite = (int32_t)(bits_f32(m) ^ bits_f32(y)) < 0;
    return (m != 0.0f) & opposite ? m + y : m;
}

/* ---- double: libm ------------------------------------------------------------------------------------ */

static inline double exp_f64(double x) { return __builtin_exp(x); }
static inline double exp2_f64(double x) { return __builtin_exp2(x); }
static inline double expm1_f64(double x) { return __builtin_expm1(x); }
static inline double log_f64(double x) { return __builtin_log(x); }
static inline double log2_f64(double x) { return __builtin_log2(x); }
static inline double log10_f64(double x) { return __builtin_log10(x); }
static inline double log1p_f64(double x) { return __builtin_log1p(x); }
static inline double tanh_f64(double x) { return __builtin_tanh(x); }
static inline double sinh_f64(double x) { return __builtin_sinh(x); }
static inline double cosh_f64(double x) { return __builtin_cosh(x); }
static inline double erf_f64(double x) { return __builtin_erf(x); }
static inline double erfc_f64(double x) { return __builtin_erfc(x); }
static inline double sin_f64(double x) { return __builtin_sin(x); }
static inline double cos_f64(double x) { return __builtin_cos(x); }
static inline double tan_f64(double x) { return __builtin_tan(x); }
static inline double asin_f64(double x) { return __builtin_asin(x); }
static inline double acos_f64(double x) { return __builtin_acos(x); }
static inline double atan_f64(double x) { return __builtin_atan(x); }
static inline double asinh_f64(double x) { return __builtin_asinh(x); }
static inline double acosh_f64(double x) { return __builtin_acosh(x); }
static inline double atanh_f64(double x) { return __builtin_atanh(x); }
static inline double atan2_f64(double y, double x) { return __builtin_atan2(y, x); }
static inline double pow_f64(double x, double y) { return __builtin_pow(x, y); }
static inline double fmod_f64(double x, double y) { return __builtin_fmod(x, y); }

static inline double sigmoid_f64(double x) {
    double e = __builtin_exp(-__builtin_fabs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

static inline double remainder_f64(double x, double y) {
    double m = __builtin_fmod(x, y);
    return (m != 0.0) & ((y < 0.0) != (m < 0.0)) ? m + y : m;
}

#endif
