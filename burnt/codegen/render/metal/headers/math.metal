/* What generated Metal calls and c/math.h does not give it: bit casts, functions that C computes in double,
 * which Metal does not have, and what threads tell one another.
 *
 * Lives here: functions that stand in the place of c/math.h's, by the same names, and those of Metal alone.
 * All others are taken from c/math.h (burnt.codegen.render.metal.prelude).
 */

inline uint32_t bits_f32(float x) { return as_type<uint>(x); }
inline float float_of_bits(uint32_t u) { return as_type<float>(u); }

/* ---- indices ------------------------------------------------------------------------------------------ */

inline int floor_div(int a, int b) { return a / b - (a % b < 0); }
inline long floor_div(long a, long b) { return a / b - (a % b < 0); }
inline int floor_mod(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
inline long floor_mod(long a, long b) { return a % b < 0 ? a % b + b : a % b; }

/* A whole number to a whole power of at least 0, as far as its bits go. */
template <typename T> inline T power(T a, T b) {
    T whole = 1;
    for (; b; b >>= 1, a *= a) whole *= b & 1 ? a : T(1);
    return whole;
}

/* ---- sums and extremes -------------------------------------------------------------------------------- */

/* A sum with what rounding took from it: the error of many elements is that of a few. */
inline void add_to(thread float &sum, thread float &low, float x) {
    const float total = sum + x, rest = total - sum;
    low += (sum - (total - rest)) + (x - rest);
    sum = total;
}

/* Once an infinity is in the sum, what rounding took is NaN. */
inline float sum_of(float sum, float low) { return low == low ? sum + low : sum; }

/* A sum of exponentials less e^top, with what rounding took from it, and another that joins. A top that is
 * infinite is not taken from itself. */
inline void add_exp_to(thread float &top, thread float &sum, thread float &low, float x, float x_sum, float x_low) {
    const float high = maximum_f32(top, x);
    const float mine = top == high ? 1.0f : exp_f32(top - high), its = x == high ? 1.0f : exp_f32(x - high);
    sum *= mine, low *= mine;
    add_to(sum, low, x_sum * its);
    low += x_low * its;
    top = high;
}

/* Squares about the mean of so many elements, with one more (Welford, 1962). */
inline void add_square_to(thread float &mean, thread float &squares, thread float &turns, float x) {
    const float off = x - mean;
    turns += 1.0f;
    mean += off / turns;
    squares += off * (x - mean);
}

/* A sum of exponentials about a largest element, or of squares about the mean of so many, about another. */
inline float moved_exp(float sum, float from, float to) { return from == to ? sum : sum * exp_f32(from - to); }
inline float moved_squares(float squares, float turns, float from, float to) {
    return squares + turns * (from - to) * (from - to);
}

/* Whether a candidate comes before the best so far, of which a place below 0 says that there is none: NaN
 * before all numbers, and of equals the first. */
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

/* What another lane of the simdgroup holds. Metal shuffles 32 bits at most. */
inline float of_lane(float x, ushort distance) { return simd_shuffle_xor(x, distance); }
inline int of_lane(int x, ushort distance) { return simd_shuffle_xor(x, distance); }
inline long of_lane(long x, ushort distance) {
    return as_type<long>(simd_shuffle_xor(as_type<int2>(x), distance));
}

/* What the lane so far below holds; lanes that have none below them get their own. */
inline float of_lane_below(float x, ushort distance) { return simd_shuffle_up(x, distance); }
inline int of_lane_below(int x, ushort distance) { return simd_shuffle_up(x, distance); }
inline long of_lane_below(long x, ushort distance) {
    return as_type<long>(simd_shuffle_up(as_type<int2>(x), distance));
}

inline float of_last_lane(float x) { return simd_shuffle(x, (ushort)31); }
inline int of_last_lane(int x) { return simd_shuffle(x, (ushort)31); }
inline long of_last_lane(long x) { return as_type<long>(simd_shuffle(as_type<int2>(x), (ushort)31)); }

/* ---- trigonometric functions --------------------------------------------------------------------------- */

/* 2/pi after 32 zeros, in binary. */
constant uint32_t two_over_pi[8] = {0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                    0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};

/* 32 bits of 2/pi from a bit on. */
inline uint32_t bits_of_two_over_pi(int from) {
    const int word = from / 32;
    const ulong both = (ulong)two_over_pi[word] << 32 | two_over_pi[word + 1];
    return (uint32_t)(both << (from % 32) >> 32);
}

/* a = (4 m + quadrant) pi/2 + r, |r| <= pi/4: returns r, for every finite a >= 0; NaN for infinity.
 *
 * Small a: pi/2 in three floats, taken off as often as it fits. Large a: the method of Payne and Hanek, the
 * 96 bits of 2/pi that count, times a's 24. */
inline float turn_reduce(float a, thread int32_t *quadrant) {
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
    const ulong turns = product << 32 | low; /* of pi/2, modulo 4, times 2^62 */
    const ulong nearest = (turns + 0x2000000000000000u) >> 62;
    *quadrant = (int32_t)(nearest & 3);
    const long rest = (long)(turns - (nearest << 62));
    const float high = (float)rest, tail = (float)(rest - (long)high);
    /* pi/2 2^-62 in two floats */
    return fma(high, 3.40612167e-19f, fma(high, -9.47839643e-27f, tail * 3.40612167e-19f));
}

/* ---- powers and division with rest --------------------------------------------------------------------- */

/* 2^(y log2|x|), the logarithm and its product with y in two floats each. Beyond 2^160 either way it is
 * infinity or 0. */
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

/* x - trunc(x / y) y, exact. A quotient below 2^22 is found by dividing; beyond, by long division of the
 * mantissas, 40 bits at a time. */
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

/* As torch has it: from the rest, so that what rounding makes of a / b does not count. */
inline float floor_div_f32(float a, float b) {
    const float m = fmod_f32(a, b), whole = (a - m) / b;
    const float lower = m != 0.0f && (b < 0.0f) != (m < 0.0f) ? whole - 1.0f : whole;
    const float down = floor(lower), near = lower - down > 0.5f ? down + 1.0f : down;
    return b == 0.0f ? a / b : lower == 0.0f ? copysign(0.0f, a / b) : near;
}
