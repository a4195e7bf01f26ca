/* Functions that generated Metal calls and that cannot be taken from c/headers/math.h: bit casts, functions that
 * use double in C (which Metal does not have), and communication between threads.
 *
 * Functions with the same names as in math.h replace those; the others are Metal's alone. All other functions
 * are converted from math.h (burnt.codegen.render.metal.prelude).
 */

inline uint32_t bits_f32(float x) { return as_type<uint>(x); }
inline float float_of_bits(uint32_t u) { return as_type<float>(u); }

/* ---- indices ------------------------------------------------------------------------------------------ */

inline int floor_div(int a, int b) { return a / b - (a % b < 0); }
inline long floor_div(long a, long b) { return a / b - (a % b < 0); }
inline int floor_mod(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
inline long floor_mod(long a, long b) { return a % b < 0 ? a % b + b : a % b; }

/* An integer to a non-negative integer power; wraps on overflow. */
template <typename T> inline T power(T a, T b) {
    T result = 1;
    for (; b; b >>= 1, a *= a) result *= b & 1 ? a : T(1);
    return result;
}

/* ---- sums and extremes -------------------------------------------------------------------------------- */

/* Compensated summation: adds x to sum, and the rounding error to low, so that the total error does not grow with
 * the number of elements. */
inline void add_compensated(thread float &sum, thread float &low, float x) {
    const float total = sum + x, rest = total - sum;
    low += (sum - (total - rest)) + (x - rest);
    sum = total;
}

/* The total. Once the sum is infinite, low is NaN and is ignored. */
inline float compensated_sum(float sum, float low) { return low == low ? sum + low : sum; }

/* Adds a sum of exponentials relative to the maximum x to one relative to peak; both are compensated. Equal maxima
 * need no scaling, and must not be subtracted if they are infinite. */
inline void add_exp_sum(thread float &peak, thread float &sum, thread float &low, float x, float x_sum, float x_low) {
    const float high = maximum_f32(peak, x);
    const float scale = peak == high ? 1.0f : exp_f32(peak - high), x_scale = x == high ? 1.0f : exp_f32(x - high);
    sum *= scale, low *= scale;
    add_compensated(sum, low, x_sum * x_scale);
    low += x_low * x_scale;
    peak = high;
}

/* Adds an element to a mean and a sum of squared differences from the mean (Welford, 1962). */
inline void add_square(thread float &mean, thread float &squares, thread float &count, float x) {
    const float difference = x - mean;
    count += 1.0f;
    mean += difference / count;
    squares += difference * (x - mean);
}

/* Convert a sum of exponentials from one maximum to another, or a sum of squares of `count` differences from one
 * mean to another. */
inline float rescale_exp_sum(float sum, float from, float to) { return from == to ? sum : sum * exp_f32(from - to); }
inline float shift_square_sum(float squares, float count, float from, float to) {
    return squares + count * (from - to) * (from - to);
}

/* Whether x at index `at` beats the best so far; an index below 0 means that there is no value. NaN beats all
 * numbers, and the first of equal values wins. */
template <typename T, typename I> inline bool is_larger(T x, I at, T best, I best_at) {
    if (at < 0 || best_at < 0)
        return best_at < 0 && at >= 0;
    const bool nan = x != x, best_nan = best != best, first = at < best_at;
    return nan || best_nan ? nan && (!best_nan || first) : x > best || (x == best && first);
}

template <typename T, typename I> inline bool is_smaller(T x, I at, T best, I best_at) {
    if (at < 0 || best_at < 0)
        return best_at < 0 && at >= 0;
    const bool nan = x != x, best_nan = best != best, first = at < best_at;
    return nan || best_nan ? nan && (!best_nan || first) : x < best || (x == best && first);
}

/* The value of another lane of the simdgroup. Metal shuffles at most 32 bits, so 64 are shuffled as two halves. */
inline float shuffle_xor(float x, ushort distance) { return simd_shuffle_xor(x, distance); }
inline int shuffle_xor(int x, ushort distance) { return simd_shuffle_xor(x, distance); }
inline long shuffle_xor(long x, ushort distance) {
    return as_type<long>(simd_shuffle_xor(as_type<int2>(x), distance));
}

/* The value of the lane `distance` below; a lane with none below gets its own value. */
inline float shuffle_up(float x, ushort distance) { return simd_shuffle_up(x, distance); }
inline int shuffle_up(int x, ushort distance) { return simd_shuffle_up(x, distance); }
inline long shuffle_up(long x, ushort distance) {
    return as_type<long>(simd_shuffle_up(as_type<int2>(x), distance));
}

inline float broadcast_last_lane(float x) { return simd_shuffle(x, (ushort)31); }
inline int broadcast_last_lane(int x) { return simd_shuffle(x, (ushort)31); }
inline long broadcast_last_lane(long x) { return as_type<long>(simd_shuffle(as_type<int2>(x), (ushort)31)); }

/* ---- trigonometric functions --------------------------------------------------------------------------- */

/* The binary digits of 2/pi, after 32 zeros. */
constant uint32_t two_over_pi[8] = {0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                    0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};

/* 32 bits of the table, starting at bit `from`. */
inline uint32_t bits_of_two_over_pi(int from) {
    const int word = from / 32;
    const ulong both = (ulong)two_over_pi[word] << 32 | two_over_pi[word + 1];
    return (uint32_t)(both << (from % 32) >> 32);
}

/* a = (4 m + quadrant) pi/2 + r, |r| <= pi/4: returns r and sets quadrant, for every finite a >= 0; NaN for
 * infinity.
 *
 * Small a: subtracts a multiple of pi/2, which is split into three floats. Large a: the method of Payne and Hanek,
 * which multiplies the 96 relevant bits of 2/pi by the 24 bits of a. */
inline float reduce_angle(float a, thread int32_t *quadrant) {
    *quadrant = 0;
    if (!(a < INFINITY))
        return NAN;
    if (a < 32768.0f) {
        const float k = rint(a * 0.636619747f);
        *quadrant = (int32_t)k;
        float r = fma(k, -1.57079637f, a);
        r = fma(k, 4.37113883e-08f, r);
        return fma(k, 1.71512451e-15f, r);
    }
    const int from = (int)(bits_f32(a) >> 23) - 150 + 30;
    const ulong m = (bits_f32(a) & 0x7fffffu) | 0x800000u;
    ulong product = m * bits_of_two_over_pi(from + 64);
    product = m * bits_of_two_over_pi(from + 32) + (product >> 32);
    const ulong low = product & 0xffffffffu;
    product = m * bits_of_two_over_pi(from) + (product >> 32);
    const ulong quarters = product << 32 | low; /* a / (pi/2) modulo 4, times 2^62 */
    const ulong nearest = (quarters + 0x2000000000000000u) >> 62;
    *quadrant = (int32_t)(nearest & 3);
    const long rest = (long)(quarters - (nearest << 62));
    const float high = (float)rest, tail = (float)(rest - (long)high);
    /* pi/2 2^-62 in two floats */
    return fma(high, 3.40612167e-19f, fma(high, -9.47839643e-27f, tail * 3.40612167e-19f));
}

/* ---- powers and remainders ----------------------------------------------------------------------------- */

/* 2^(y log2|x|), where the logarithm and its product with y are two floats each. Beyond 2^160 or below 2^-160 the
 * result is infinity or 0. */
inline float pow_f32(float x, float y) {
    float a = fabs(x), e, f = log_reduce(a, &e);
    /* log2(1 + f) = log2((1 + s) / (1 - s)) with s = f / (2 + f) */
    const float d = 2.0f + f, d_low = f - (d - 2.0f), s = f / d;
    const float s_low = (fma(-s, d, f) - s * d_low) / d;
    const float z = s * s, z_low = fma(s, s, -z) + 2.0f * s * s_low;
    float q = 0.340729743f;
    q = fma(q, z, 0.411672741f);
    q = fma(q, z, 0.577083588f);
    /* s^3, and the first two coefficients, in two floats each */
    const float cube = s * z, cube_low = fma(s, z, -cube) + (s * z_low + s_low * z);
    const float second = cube * 0.961796701f;
    const float second_low = fma(cube, 0.961796701f, -second) + (cube * -2.76113941e-08f + cube_low * 0.961796701f + cube * (z * q));
    const float first = s * 2.88539004f;
    const float first_low = fma(s, 2.88539004f, -first) + (s * 3.85314181e-08f + s_low * 2.88539004f);
    const float part = first + second, whole = e + part;
    float low = (second - (part - first)) + (first_low + second_low);
    low += part - (whole - e); /* |e| >= 1 > |part|, or e is 0 */
    float l = whole + low;
    const float l_low = low - (l - whole);
    l = a == 0.0f ? -INFINITY : a < INFINITY ? l : a;

    float t = y * l;
    const bool inside = fabs(t) < 160.0f;
    const float t_low = inside ? fma(y, l, -t) + y * l_low : 0.0f;
    t = t < -160.0f ? -160.0f : t; /* NaN stays */
    t = t > 160.0f ? 160.0f : t;
    const float k = rint(t);
    const int32_t n = inside ? (int32_t)k : t < 0.0f ? -160 : 160;
    const float m = scale_f32(1.0f + expm1_poly(((t - k) + t_low) * 0.693147182f), n);

    const bool integer = trunc(y) == y;
    const bool odd = integer && trunc(0.5f * y) != 0.5f * y;
    float signed_m = odd ? copysign(m, x) : m;
    signed_m = x < 0.0f && x > -INFINITY && !integer ? NAN : signed_m;
    return y == 0.0f || x == 1.0f || (x == -1.0f && fabs(y) == INFINITY) ? 1.0f : signed_m;
}

/* x - trunc(x / y) y, exact. A quotient below 2^22 is computed by a division; a larger one by long division of
 * the mantissas, 40 bits at a time. */
inline float fmod_f32(float x, float y) {
    const float a = fabs(x), b = fabs(y);
    if (!(a < INFINITY) || !(b > 0.0f))
        return NAN;
    if (a < b)
        return x;
    const float q = trunc(a / b);
    float r = fma(-q, b, a);
    r = r < 0.0f ? r + b : r;
    r = r >= b ? r - b : r;
    if (!(q < 4194304.0f)) {
        const uint32_t u = bits_f32(a), v = bits_f32(b);
        const int e = (int)(u >> 23 ? u >> 23 : 1), scale = (int)(v >> 23 ? v >> 23 : 1);
        const ulong divisor = v >> 23 ? (v & 0x7fffffu) | 0x800000u : v;
        ulong rest = (u >> 23 ? (u & 0x7fffffu) | 0x800000u : u) % divisor;
        for (int left = e - scale; left > 0; left -= 40)
            rest = (rest << min(left, 40)) % divisor;
        r = scale_f32((float)rest, scale - 150);
    }
    return copysign(r, x);
}

inline float trunc_div_f32(float a, float b) { return trunc(a / b); }

/* Computed from the remainder, as in torch, so that rounding of a / b does not matter. */
inline float floor_div_f32(float a, float b) {
    const float m = fmod_f32(a, b), quotient = (a - m) / b;
    const float lower = m != 0.0f && (b < 0.0f) != (m < 0.0f) ? quotient - 1.0f : quotient;
    const float down = floor(lower), near = lower - down > 0.5f ? down + 1.0f : down;
    return b == 0.0f ? a / b : lower == 0.0f ? copysign(0.0f, a / b) : near;
}
