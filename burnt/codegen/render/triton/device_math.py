"""Device functions that `triton.language` lacks: math, division with remainder, reductions, as in torch.

Functions named after torch's take and return one element, float32 or float64. They are formulas, because
libdevice's functions do not exist in Triton's interpreter. Where `tl` has a function that is libdevice's own
on a device and NumPy's in the interpreter (log, log2, sin, cos, erf), it is used.

Float32 functions are within 4 ulp of the true value, return torch's special values and preserve denormals.
They use no float64 instruction, except in libdevice's sin and cos of numbers beyond 10^5. Kernels are
compiled without fused multiply-add; where a product must not be rounded, and in polynomials, `tl.fma` is
explicit. The interpreter rounds it, and is less accurate for large arguments of exp, pow and fmod. Float64
functions are within a few ulp; pow within its exponent times the logarithm. fmod is exact for quotients up to
2^60 in float32 and 2^150 in float64.

Polynomials are from ``c/math.h``, or fitted in the same way.
"""

import triton
import triton.language as tl

# `tl` has functions of these two names, but tl.maximum and tl.minimum drop NaN by default.


@triton.jit
def maximum(a, b):
    """The larger of two numbers; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller of two numbers; NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def fmax(a, b):
    """The larger of two numbers; the other one if one is NaN."""
    return tl.where((a >= b) | (b != b), a, b)


@triton.jit
def fmin(a, b):
    """The smaller of two numbers; the other one if one is NaN."""
    return tl.where((a <= b) | (b != b), a, b)


@triton.jit
def multiply(a, b):
    """The product, for `tl.reduce`."""
    return a * b


@triton.jit
def bitwise_or(a, b):
    """Bitwise or, for `tl.reduce`."""
    return a | b


@triton.jit
def bitwise_and(a, b):
    """Bitwise and, for `tl.reduce`."""
    return a & b


@triton.jit
def argmax(value, index, other, other_index):
    """The larger of two numbers and its index; NaN is largest, and of equal numbers the first is taken."""
    is_better = (value > other) | ((value != value) & (other == other))
    is_equal = (value == other) | ((value != value) & (other != other))
    is_better = is_better | (is_equal & (index < other_index))
    return tl.where(is_better, value, other), tl.where(is_better, index, other_index)


@triton.jit
def argmin(value, index, other, other_index):
    """The smaller of two numbers and its index; NaN is smallest, and of equal numbers the first is taken."""
    is_better = (value < other) | ((value != value) & (other == other))
    is_equal = (value == other) | ((value != value) & (other != other))
    is_better = is_better | (is_equal & (index < other_index))
    return tl.where(is_better, value, other), tl.where(is_better, index, other_index)


@triton.jit
def last_max(value, index, other, other_index):
    """The larger of two numbers and its index; NaN is largest, and of equal numbers the last is taken."""
    is_better = (other > value) | ((other != other) & (value == value))
    is_equal = (value == other) | ((value != value) & (other != other))
    is_better = is_better | (is_equal & (other_index > index))
    return tl.where(is_better, other, value), tl.where(is_better, other_index, index)


@triton.jit
def last_min(value, index, other, other_index):
    """The smaller of two numbers and its index; NaN is smallest, and of equal numbers the last is taken."""
    is_better = (other < value) | ((other != other) & (value == value))
    is_equal = (value == other) | ((value != value) & (other != other))
    is_better = is_better | (is_equal & (other_index > index))
    return tl.where(is_better, other, value), tl.where(is_better, other_index, index)


@triton.jit
def log_add_exp(a, b):
    """log(e^a + e^b); two equal infinities give that infinity."""
    high = maximum(a, b)
    low = tl.where(a < b, a, b)
    y = high + log1p(exp(low - high))
    return tl.where((low == high) & (tl.abs(high) == float("inf")), high, y)


@triton.jit
def online_maximum(maximum_so_far, x):
    """The larger of a maximum and the numbers along the last axis of x, NaN if one is."""
    return maximum(maximum_so_far, tl.reduce(x, len(maximum_so_far.shape), maximum))


@triton.jit
def online_add_exp(total, old_maximum, new_maximum, x):
    """Add e^x, along the last axis of x, to a sum relative to its maximum; make it relative to the new one.

    The exponents are at most 0: their rounding errors, which grow with them, hardly count in the sum.
    """
    base = tl.where(new_maximum == -float("inf"), 0.0, new_maximum)
    terms = fast_exp2((x - tl.expand_dims(base, len(base.shape))) * 1.4426950408889634)
    return total * fast_exp2((old_maximum - base) * 1.4426950408889634) + tl.sum(terms, len(base.shape))


@triton.jit
def rescale_exp(total, old_maximum, new_maximum):
    """Make a sum of exponentials relative to another maximum."""
    return tl.where(old_maximum == new_maximum, total, total * exp(old_maximum - new_maximum))


@triton.jit
def online_add_square(squares, total, count, x):
    """Add a number to the squared deviations from the mean of `count` numbers with this total (Welford)."""
    deviation = x - total * (1 / tl.maximum(count, 1))
    return squares + deviation * deviation * (count / (count + 1))


@triton.jit
def rescale_squares(squares, total, count, final_total, final_count):
    """Turn squared deviations from the mean of a part into those from the mean of all (Chan et al.)."""
    shift = total / tl.maximum(count, 1) - final_total / tl.maximum(final_count, 1)
    return squares + count * shift * shift


# --- integers ---------------------------------------------------------------------------------------------


@triton.jit
def index_div(a, b):
    """The quotient of an index that may be negative, rounded down; ``b > 0``."""
    return a // b - (a % b < 0).to(a.dtype)


@triton.jit
def index_mod(a, b):
    """The remainder that belongs to `index_div`."""
    rest = a % b
    return tl.where(rest < 0, rest + b, rest)


# --- bits and rounding ------------------------------------------------------------------------------------


@triton.jit
def _has_sign_bit(x):
    """Whether the sign bit is set."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def neg(x):
    """-x. Triton compiles the minus sign to 0 - x, which is 0, not -0, for 0, and a constant -0 to 0."""
    return x * -1.0


@triton.jit
def copysign(x, y):
    """|x| with y's sign, including the sign of 0 and NaN."""
    a = tl.abs(x)
    return tl.where(_has_sign_bit(y), neg(a), a)


@triton.jit
def floor(x):
    """Round down; Triton's own function treats denormals as 0."""
    y = tl.floor(x)
    return tl.where((y == 0) & (x < 0), -1.0, y)


@triton.jit
def ceil(x):
    """Round up; a result of 0 keeps the sign of x."""
    y = tl.ceil(x)
    return copysign(tl.where((y == 0) & (x > 0), 1.0, y), x)


@triton.jit
def trunc(x):
    """Round towards 0."""
    return copysign(tl.floor(tl.abs(x)), x)


@triton.jit
def round(x):
    """Round to the nearest integer, halves to even: adding 2^23 (2^52) leaves no bits for a fraction."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        limit = 4503599627370496.0
    else:
        limit = 8388608.0
    return copysign(tl.where(a < limit, (a + limit) - limit, a), x)


@triton.jit
def sign(x):
    """-1, 0 or 1; 0 for NaN."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def relu(x):
    """0 for negative numbers; NaN stays NaN."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def divide(a, b):
    """The correctly rounded quotient; Triton's own float32 division is off by up to 2 ulp."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def sqrt(x):
    """The correctly rounded square root."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def rsqrt(x):
    """1 / sqrt(x)."""
    return divide(tl.full([], 1.0, x.dtype), sqrt(x))


@triton.jit
def reciprocal(x):
    """1 / x."""
    return divide(tl.full([], 1.0, x.dtype), x)


# --- exponentials -----------------------------------------------------------------------------------------


@triton.jit
def _power_of_two(n):
    """2^n as float32, -126 <= n <= 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _scale_by_power_of_two(x, n):
    """x 2^n in two steps, so that n from -252 to 254 overflows or becomes denormal with one rounding."""
    half = n >> 1
    return x * _power_of_two(half) * _power_of_two(n - half)


@triton.jit
def _clamp(x, low, high):
    """Clamp between two bounds; NaN stays NaN."""
    x = tl.where(x < low, low, x)
    return tl.where(x > high, high, x)


@triton.jit
def _reduce_by_ln2(x):
    """x = n ln(2) + r, |r| <= ln(2) / 2, for |x| < 2^20: adding 1.5 2^23 rounds, and leaves n in the bits."""
    t = tl.fma(x, 1.4426950216293335, 12582912.0)
    k = t - 12582912.0
    n = t.to(tl.int32, bitcast=True) - 0x4B400000
    r = tl.fma(k, -0.693147182464599609375, x)
    return tl.fma(k, 1.904652435769094154e-09, r), n


@triton.jit
def _expm1_poly(r):
    """e^r - 1 for |r| <= ln(2) / 2."""
    q = tl.fma(r, 0.0013937921, 0.00836655591)
    q = tl.fma(q, r, 0.0416664332)
    q = tl.fma(q, r, 0.166665435)
    q = tl.fma(q, r, 0.5)
    return tl.fma(r * r, q, r)


@triton.jit
def exp(x):
    """e^x."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        # The fast 2^r is within 2 ulp where r is small; tl.exp alone is 20 ulp off at 80.
        r, n = _reduce_by_ln2(_clamp(x, -104.0, 89.0))
        return _scale_by_power_of_two(tl.exp2(r * 1.4426950216293335), n)


@triton.jit
def exp2(x):
    """2^x."""
    if x.dtype == tl.float64:
        return tl.exp2(x)
    else:
        y = _clamp(x, -151.0, 129.0)
        t = y + 12582912.0
        n = t.to(tl.int32, bitcast=True) - 0x4B400000
        return _scale_by_power_of_two(tl.exp2(y - (t - 12582912.0)), n)


@triton.jit
def fast_exp2(x):
    """2^x within 2 ulp; 0 where that is no normal float32."""
    return tl.exp2(x)


@triton.jit
def expm1(x):
    """e^x - 1."""
    if x.dtype == tl.float64:
        # Kahan: the logarithm corrects the rounding error of e^x.
        u = tl.exp(x)
        y = (u - 1) * (x / tl.log(u))
        y = tl.where((x < -37.5) | (x > 709), u - 1, y)
        return tl.where(u == 1, x, y)
    else:
        r, n = _reduce_by_ln2(_clamp(x, -20.0, 89.0))
        s = _power_of_two(n - 1)  # half of the scale: 2^128 is not a float32
        y = 2.0 * tl.fma(s, _expm1_poly(r), s - 0.5)
        return tl.where(tl.abs(x) < 5.9604644775390625e-08, x, y)


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), computed from e^-|x|, which neither overflows nor cancels."""
    e = exp(-tl.abs(x))
    return divide(tl.where(x >= 0, 1.0, e), 1.0 + e)


@triton.jit
def tanh(x):
    """Hyperbolic tangent, from e^2a - 1."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        e = expm1(2 * tl.where(a > 20, 20.0, a))
    else:
        r, n = _reduce_by_ln2(2.0 * tl.where(a > 10.0, 10.0, a))
        s = _power_of_two(n)
        e = tl.fma(s, _expm1_poly(r), s - 1.0)
    return copysign(divide(e, e + 2.0), x)


@triton.jit
def _half_exp(a):
    """e^a / 2, which overflows where sinh and cosh do."""
    r, n = _reduce_by_ln2(tl.where(a > 90.0, 90.0, a))
    return _scale_by_power_of_two(1.0 + _expm1_poly(r), n - 1)


@triton.jit
def sinh(x):
    """Hyperbolic sine."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        e = expm1(a)
        small = 0.5 * (e + e / (e + 1))
        h = tl.exp(0.5 * a)
        return copysign(tl.where(a < 20, small, (0.5 * h) * h), x)
    else:
        z = a * a
        h = _half_exp(a)
        q = tl.fma(z, 2.78221319e-06, 0.000198428956)
        q = tl.fma(q, z, 0.00833331048)
        q = tl.fma(q, z, 0.166666672)
        return copysign(
            tl.where(a < 1.0, tl.fma(a * z, q, a), h - tl.div_rn(tl.full([], 0.25, tl.float32), h)), x
        )


@triton.jit
def cosh(x):
    """Hyperbolic cosine."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        h = tl.exp(0.5 * a)
        e = tl.exp(tl.where(a < 20, a, 20.0))
        return tl.where(a < 20, 0.5 * (e + 1 / e), (0.5 * h) * h)
    else:
        h = _half_exp(a)
        return h + tl.div_rn(tl.full([], 0.25, tl.float32), h)


# --- logarithms -------------------------------------------------------------------------------------------


@triton.jit
def log10(x):
    """Decimal logarithm."""
    if x.dtype == tl.float64:
        return tl.log(x) * 0.43429448190325182765
    else:
        return tl.log2(x) * 0.30102999566398119521


@triton.jit
def _log_reduce(x):
    """x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for x positive and finite: f and e."""
    is_denormal = x < 1.1754943508222875e-38
    u = tl.where(is_denormal, x * 8388608.0, x).to(tl.int32, bitcast=True) - 0x3F3504F3
    e = (u >> 23) - tl.where(is_denormal, 23, 0)
    return ((u & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0, e.to(tl.float32)


@triton.jit
def _log1p_remainder(f):
    """log(1 + f) - f for what `_log_reduce` returns."""
    q = tl.fma(f, -0.0763640404, 0.127622053)
    q = tl.fma(q, f, -0.131596148)
    q = tl.fma(q, f, 0.142015815)
    q = tl.fma(q, f, -0.166234091)
    q = tl.fma(q, f, 0.200012416)
    q = tl.fma(q, f, -0.250008196)
    q = tl.fma(q, f, 0.333333313)
    return (f * f) * tl.fma(q, f, -0.5)


@triton.jit
def _log1p_positive(x):
    """log(1 + x) with 1 + x positive and finite.

    The mantissa is computed from x rather than from 1 + x, which has lost x's low bits. Beyond 2^30 the 1 no
    longer matters, and 2^-e would leave the normal range.
    """
    m, e = _log_reduce(1.0 + x)
    s = _power_of_two(-tl.where(e > 30.0, 30.0, e).to(tl.int32))
    f = tl.where(e > 30.0, m, tl.fma(x, s, s - 1.0))
    y = tl.fma(e, -1.904652435769094154e-09, _log1p_remainder(f)) + f
    return tl.fma(e, 0.693147182464599609375, y)


@triton.jit
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    if x.dtype == tl.float64:
        # The relative rounding error of 1 + x is the absolute error of the logarithm.
        y = tl.log(u) + (x - (u - 1.0)) / u
        return tl.where((u == 1.0) | (x == float("inf")), x, tl.where(u > 0, y, tl.log(u)))
    else:
        y = _log1p_positive(x)
        y = tl.where(u == float("inf"), u, y)
        y = tl.where(u == 0.0, float("-inf"), y)
        y = tl.where(u >= 0.0, y, float("nan"))
        return tl.where(x == 0.0, x, y)


@triton.jit
def _log1p_or_double(u, a):
    """log1p(u), or log(2 a) where a is so large that its square may overflow."""
    if a.dtype == tl.float64:
        large = a >= 1e15
        y = log1p(tl.where(large, a, u))
        y = tl.where(large, y + 0.69314718055994530942, y)
    else:
        large = a >= 1073741824.0
        y = _log1p_positive(tl.where(large, a, u)) + tl.where(large, 0.693147182464599609375, 0.0)
    return tl.where(a == float("inf"), a, y)


@triton.jit
def asinh(x):
    """Inverse hyperbolic sine."""
    a = tl.abs(x)
    z = a * a
    y = _log1p_or_double(a + divide(z, 1.0 + sqrt(1.0 + z)), a)
    return tl.where(x != x, x, copysign(y, x))


@triton.jit
def acosh(x):
    """Inverse hyperbolic cosine."""
    t = x - 1.0
    y = _log1p_or_double(t + sqrt(tl.fma(t, t, 2.0 * t)), x)
    return tl.where(x >= 1.0, y, float("nan"))


@triton.jit
def atanh(x):
    """Inverse hyperbolic tangent; small x are returned unchanged: halving would cost a denormal a bit."""
    a = tl.abs(x)
    y = 0.5 * log1p(divide(2.0 * a, 1.0 - a))
    return tl.where(a < (1e-9 if x.dtype == tl.float64 else 2.44140625e-4), x, copysign(y, x))


# --- error function ---------------------------------------------------------------------------------------


@triton.jit
def erf(x):
    """The error function; libdevice's treats denormals as 0."""
    if x.dtype == tl.float64:
        return tl.erf(x)
    else:
        return tl.where(tl.abs(x) < 1.220703125e-4, x * 1.12837916709551257390, tl.erf(x))


@triton.jit
def erfc(x):
    """1 - erf(x). From 1/2 on (1 + 2a) e^(a^2) erfc(a) is a polynomial in (a - k) / (a + k)."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        a = tl.where(a > 27.3, 27.3, a)
        q = (a - 3.0) / (a + 3.0)
        # tl.fma would treat the coefficients as float32.
        p = 2.4258404207629788e-09 * q - 6.719815775977803e-09
        p = p * q - 1.76163860578129e-08
        p = p * q + 4.115191140508051e-08
        p = p * q + 1.074684716646416e-07
        p = p * q - 1.4297241300795243e-07
        p = p * q - 6.208543650474935e-07
        p = p * q + 3.58814299706627e-07
        p = p * q + 3.4744300645093407e-06
        p = p * q - 7.327492634621623e-07
        p = p * q - 2.0101214570902363e-05
        p = p * q + 4.949934282441871e-06
        p = p * q + 0.00012509949383509962
        p = p * q - 0.00010515989894923924
        p = p * q - 0.000779832293085984
        p = p * q + 0.0018886903721678134
        p = p * q + 0.002529391818092003
        p = p * q - 0.023770514919580838
        p = p * q + 0.06830802734386257
        p = p * q - 0.11927366341527633
        p = p * q + 0.12964515870276386
        p = p * q - 0.04756229435345116
        p = p * q - 0.1356211061245812
        p = p * q + 1.2530080582697296
        s = a * a
        e = tl.exp(-s) * (1.0 - tl.fma(a, a, -s))  # the second factor: the rounding error of a^2
        large = e * p / (1.0 + 2.0 * a)
        small = 1.0 - tl.erf(a)
    else:
        a = tl.where(a > 10.3, 10.3, a)  # 0 from 10.06 on
        s = a * a
        small = tl.fma(s, 0.00461393362, -0.0266991984)
        small = tl.fma(small, s, 0.112817429)
        small = tl.fma(small, s, -0.376125336)
        small = tl.fma(small, s, 0.128379151)
        small = 1.0 - tl.fma(a, small, a)
        q = tl.div_rn(a - 2.0, a + 2.0)
        p = tl.fma(q, -0.00132789253, 0.000953314593)
        p = tl.fma(p, q, 0.00870148465)
        p = tl.fma(p, q, -0.00795073621)
        p = tl.fma(p, q, -0.0542201661)
        p = tl.fma(p, q, 0.164043099)
        p = tl.fma(p, q, -0.166030198)
        p = tl.fma(p, q, -0.0927636251)
        p = tl.fma(p, q, 1.27697837)
        r, n = _reduce_by_ln2(-s)
        r = r - tl.fma(a, a, -s)  # less the rounding error of a^2
        e = 1.0 + _expm1_poly(r)
        d = 1.0 + 2.0 * a
        inverse = tl.div_rn(tl.full([], 1.0, tl.float32), d)
        y = p * inverse
        rest = tl.fma(-y, d, p) - y * (1.0 - (d - 2.0 * a))  # the remainder of y, and the rounding error of d
        large = _scale_by_power_of_two(tl.fma(e, y, e * inverse * rest), n)
    y = tl.where(a < 0.5, small, large)
    return tl.where(x < 0, 2.0 - y, y)


# --- trigonometric functions ------------------------------------------------------------------------------


@triton.jit
def sin(x):
    """Sine; libdevice's treats denormals as 0."""
    if x.dtype == tl.float64:
        return tl.sin(x)
    else:
        return tl.where(tl.abs(x) < 2.44140625e-4, x, tl.sin(x))


@triton.jit
def tan(x):
    """Tangent."""
    return divide(sin(x), tl.cos(x))


@triton.jit
def _asin_remainder(s, z):
    """asin(s) - s for s = sqrt(z) <= 1/2."""
    q = tl.fma(z, 0.0421583056, 0.0241847783)
    q = tl.fma(q, z, 0.0454691499)
    q = tl.fma(q, z, 0.0749530941)
    q = tl.fma(q, z, 0.166667521)
    return (s * z) * q


@triton.jit
def asin(x):
    """Inverse sine: pi/2 - 2 asin(sqrt((1 - a) / 2)) above 1/2."""
    if x.dtype == tl.float64:
        return atan2(x, tl.sqrt((1.0 - x) * (1.0 + x)))
    else:
        a = tl.abs(x)
        large = a > 0.5
        z = tl.where(large, 0.5 - 0.5 * a, a * a)
        s = tl.where(large, tl.sqrt_rn(z), a)
        t = _asin_remainder(s, z)
        return copysign(
            tl.where(large, 1.57079637050628662109 - 2.0 * (s + (t + 2.1855694143368964433e-08)), s + t), x
        )


@triton.jit
def acos(x):
    """Inverse cosine."""
    if x.dtype == tl.float64:
        return atan2(tl.sqrt((1.0 - x) * (1.0 + x)), x)
    else:
        a = tl.abs(x)
        large = a > 0.5
        z = tl.where(large, 0.5 - 0.5 * a, a * a)
        s = tl.where(large, tl.sqrt_rn(z), x)
        t = _asin_remainder(s, z)
        rest = t + 4.3711388286737928865e-08
        outer = tl.where(x > 0, 2.0 * (s + t), 3.14159274101257324219 - 2.0 * (s + rest))
        return tl.where(large, outer, 1.57079637050628662109 - (s + rest))


@triton.jit
def _atan_poly(t):
    """atan(t) for 0 <= t <= 1."""
    z = t * t
    q = tl.fma(z, -0.0017875476, 0.0108873611)
    q = tl.fma(q, z, -0.0311270021)
    q = tl.fma(q, z, 0.0579065457)
    q = tl.fma(q, z, -0.0840047523)
    q = tl.fma(q, z, 0.109511748)
    q = tl.fma(q, z, -0.142640516)
    q = tl.fma(q, z, 0.19998531)
    q = tl.fma(q, z, -0.333332986)
    y = tl.fma(t * z, q, t)
    if t.dtype == tl.float64:
        # One Newton step doubles the eight correct digits.
        s = tl.sin(y)
        c = tl.cos(y)
        y = y + tl.fma(t, c, -s) / (c + t * s)
    return y


@triton.jit
def atan(x):
    """Inverse tangent."""
    a = tl.abs(x)
    large = a > 1.0
    y = _atan_poly(tl.where(large, divide(tl.full([], 1.0, x.dtype), a), a))
    if x.dtype == tl.float64:
        y = tl.where(large, 1.57079632679489655800 - (y - 6.123233995736766036e-17), y)
    else:
        y = tl.where(large, 1.57079637050628662109 - (y + 4.3711388286737928865e-08), y)
    return copysign(y, x)


@triton.jit
def atan2(y, x):
    """The angle of the point (x, y), with torch's results at zeros and infinities."""
    a = tl.abs(y)
    b = tl.abs(x)
    small = tl.where(a > b, b, a)
    large = tl.where(a > b, a, b)
    t = divide(small, large)
    t = tl.where(small == float("inf"), 1.0, t)  # both infinite
    t = tl.where(large == 0, 0.0, t)  # both zero
    r = _atan_poly(t)
    if x.dtype == tl.float64:
        r = tl.where(a > b, 1.57079632679489655800 - (r - 6.123233995736766036e-17), r)
        r = tl.where(_has_sign_bit(x), 3.14159265358979311600 - (r - 1.2246467991473532072e-16), r)
    else:
        r = tl.where(a > b, 1.57079637050628662109 - (r + 4.3711388286737928865e-08), r)
        r = tl.where(_has_sign_bit(x), 3.14159274101257324219 - (r + 8.742277657347585773e-08), r)
    return tl.where((x != x) | (y != y), float("nan"), copysign(r, y))


# --- powers and division with remainder -------------------------------------------------------------------


@triton.jit
def power(a, b):
    """An integer to an integer power of at least 0, modulo the integer's range."""
    result = a * 0 + b * 0 + 1
    for _ in range(a.dtype.primitive_bitwidth):
        result = tl.where((b & 1) != 0, result * a, result)
        a = a * a
        b = b >> 1
    return result


@triton.jit
def _log2_parts(a):
    """log2(a) as an unevaluated sum of two float32 numbers, for a positive and finite.

    With s = f / (2 + f) it is 2 / ln(2) (s + s^3 / 3 + ...); s and the first term are each held in two parts.
    """
    f, e = _log_reduce(a)
    d = 2.0 + f
    s = tl.div_rn(f, d)
    s_low = tl.div_rn(tl.fma(-s, d, f) - s * (f - (d - 2.0)), d)
    z = s * s
    q = tl.fma(z, 0.11665932564871899, 0.14275381395554332)
    q = tl.fma(q, z, 0.20000061219575918)
    q = tl.fma(q, z, 0.33333333276792787)
    # Without a name for the product: the compiler may or may not round it before a sum.
    high = tl.fma(2.8853900432586670, s, e)
    low = tl.fma(2.8853900432586670, s, e - high)
    # The series of s + s_low: its derivative is 1 + z and so on.
    rest = tl.fma(s * z, q, tl.fma(s_low, z, s_low))
    low = low + (2.8853900432586670 * rest + 3.8519259822532350e-08 * s)
    total = high + low
    return total, low - (total - high)


@triton.jit
def pow(x, y):
    """x^y as 2^(y log2|x|), with the logarithm in two parts."""
    a = tl.abs(x)
    if x.dtype == tl.float64:
        m = tl.exp(y * tl.log(a))
    else:
        high, low = _log2_parts(a)
        high = tl.where(a == 0, float("-inf"), tl.where(a < float("inf"), high, a))
        low = tl.where((a == 0) | (a == float("inf")), 0.0, low)
        t = _clamp(y * high, -400.0, 400.0)
        rest = tl.where(tl.abs(t) < 400.0, tl.fma(y, high, -t) + y * low, 0.0)
        k = t + 12582912.0
        n = k.to(tl.int32, bitcast=True) - 0x4B400000
        n = tl.where(n < -252, -252, tl.where(n > 254, 254, n))
        r = (t - (k - 12582912.0)) + rest
        m = _scale_by_power_of_two(1.0 + _expm1_poly(r * 0.693147182464599609375), n)
        m = tl.where(t != t, t, m)
    is_integer = trunc(y) == y
    is_odd = is_integer & (trunc(0.5 * y) != 0.5 * y)
    m = tl.where(is_odd, copysign(m, x), m)
    m = tl.where((x < 0) & (x > float("-inf")) & (trunc(y) != y), float("nan"), m)
    is_one = (y == 0) | (x == 1) | ((x == -1) & (tl.abs(y) == float("inf")))
    return tl.where(is_one, 1.0, m)


@triton.jit
def fmod(x, y):
    """x - trunc(x / y) y, exact: each step removes as many bits of the quotient as a float has."""
    d = tl.abs(y)
    r = tl.abs(x)
    for _ in tl.static_range(3):
        # Exact: the remainder has no more bits than x and y. It is negative where the quotient was
        # rounded up.
        q = divide(r, d)
        q = tl.where(q > 1e38, 1e38, q)
        r = tl.fma(-tl.floor(q), d, r)
    r = tl.where(r < 0, r + d, r)
    r = tl.where(r >= d, r - d, r)
    r = tl.where(d == float("inf"), tl.abs(x), r)
    r = tl.where((d == 0) | (tl.abs(x) == float("inf")), float("nan"), r)
    return copysign(r, x)


@triton.jit
def remainder(x, y):
    """The remainder with y's sign, as torch's ``%``: y is added to fmod's result where signs differ."""
    m = fmod(x, y)
    return tl.where((m != 0) & (_has_sign_bit(m) != _has_sign_bit(y)), m + y, m)


@triton.jit
def trunc_div(a, b):
    """The quotient rounded towards 0."""
    return trunc(divide(a, b))


@triton.jit
def floor_div(a, b):
    """The quotient rounded down: how many times b goes into a, not the floor of a rounded quotient."""
    m = fmod(a, b)
    whole = divide(a - m, b)
    lower = whole - ((m != 0) & ((b < 0) != (m < 0))).to(a.dtype)
    down = tl.floor(lower)
    near = tl.where(lower - down > 0.5, down + 1.0, down)
    quotient = divide(a, b)
    near = tl.where(lower == 0, copysign(tl.full([], 0.0, a.dtype), quotient), near)
    return tl.where(b == 0, quotient, near)


# --- random numbers ---------------------------------------------------------------------------------------


@triton.jit
def philox_word(seed, counter, stream):
    """A 32-bit word of Philox4x32-10: of the four words for ``counter // 4``, number ``counter % 4``."""
    block = counter.to(tl.uint64) >> 2
    low = block.to(tl.uint32)
    high = (block >> 32).to(tl.uint32)
    third = tl.full([], stream, tl.uint32) + low * 0
    a, b, c, d = tl.philox(seed.to(tl.uint64), low, high, third, third * 0)
    which = counter & 3
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


@triton.jit
def uniform(seed, counter, stream):
    """A number in [0, 1), uniform over the multiples of 2^-24: the upper 24 bits of a word."""
    return (philox_word(seed, counter, stream) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def random_below(seed, counter, stream, bound):
    """An integer in [0, bound), for a bound of at most 2^32."""
    return ((philox_word(seed, counter, stream).to(tl.uint64) * bound) >> 32).to(tl.int64)


# --- float8 -----------------------------------------------------------------------------------------------

# As the functions in ``c/headers/float8.h``, which has comments.


@triton.jit
def decode_e4m3(byte):
    """The float32 number of the byte of a float8 number of torch.float8_e4m3fn."""
    byte = byte.to(tl.uint32)
    size = (byte & 0x7F) << 20
    subnormal = (size + 0x3C800000).to(tl.float32, bitcast=True) - 0.015625
    number = tl.where(size < 0x800000, subnormal, (size + 0x3C000000).to(tl.float32, bitcast=True))
    bits = tl.where(size == 0x7F00000, 0x7FC00000, number.to(tl.uint32, bitcast=True))
    return (bits | ((byte & 0x80) << 24)).to(tl.float32, bitcast=True)


@triton.jit
def decode_e5m2(byte):
    """The float32 number of the byte of a float8 number of torch.float8_e5m2: a float16's upper byte."""
    return (byte.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def encode_e4m3(x):
    """The byte of a float32 number, rounded to torch.float8_e4m3fn."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    subnormal = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    y = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    y = tl.where(size < 0x3C800000, subnormal, y)
    y = tl.where(size >= 0x43E80000, tl.where(size > 0x7F800000, 0x7F, 0x7E), y)
    return (y | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def encode_e5m2(x):
    """The byte of a float32 number, rounded to torch.float8_e5m2."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    subnormal = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.uint32, bitcast=True) - 0x43000000
    y = (size - 0x38000000 + 0xFFFFF + ((size >> 21) & 1)) >> 21
    y = tl.where(size < 0x38800000, subnormal, y)
    y = tl.where(size >= 0x47800000, 0x7C, y)
    y = tl.where(size > 0x7F800000, 0x7F, y)
    return (y | ((bits >> 24) & 0x80)).to(tl.uint8)
