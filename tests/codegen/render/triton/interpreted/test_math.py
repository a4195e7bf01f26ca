"""Accuracy of Triton device math over all floats, and torch's special values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from burnt.codegen.render.triton import device_math
from tests.codegen.render.triton.accuracy import EXACT, SPECIAL, apply, errors, floats, pairs

# Largest error in units of the last place, float32, in the interpreter, whose 2^x, log, sin, cos and erf are
# NumPy's. Where those of a GPU are 2 ulp off instead of half an ulp, the sum stays below 4.
ULP = {
    "exp": 2.0, "exp2": 1.6, "expm1": 1.7, "log10": 3.0, "log1p": 1.7, "sigmoid": 2.6, "tanh": 2.7,
    "sinh": 1.8, "cosh": 1.7, "asinh": 2.1, "acosh": 2.3, "atanh": 2.4, "erf": 1.6, "erfc": 3.0, "sin": 1.5,
    "tan": 2.5, "asin": 1.8, "acos": 1.3, "atan": 1.5, "sqrt": 0.51, "rsqrt": 1.6, "reciprocal": 0.51,
    "neg": 0, "floor": 0, "ceil": 0, "trunc": 0, "round": 0, "sign": 0, "relu": 0,
}  # fmt: skip


def test_every_function_is_tested():
    inner = {"index_div", "index_mod", "multiply", "bitwise_or", "bitwise_and", "argmax", "argmin"}
    inner |= {"philox_word", "uniform", "random_below", "last_max", "last_min", "log_add_exp"}
    inner |= {"fast_exp2", "online_maximum", "online_add_exp"}  # in test_online.py
    inner |= {"online_add_square", "rescale_exp", "rescale_squares"}
    inner |= {"power"}  # in test_whole_numbers.py
    inner |= {"decode_e4m3", "decode_e5m2", "encode_e4m3", "encode_e5m2"}  # in test_quantized.py
    names = {n for n, f in vars(device_math).items() if hasattr(f, "fn") and not n.startswith("_")}
    assert names - inner == set(EXACT)


@pytest.mark.parametrize("name", ULP)
def test_float32(name):
    x = torch.cat([floats(1 << 15), torch.linspace(-12, 12, 1 << 13), torch.tensor(SPECIAL)])
    if name in ("sin", "tan"):
        x = x[x.abs() < 1e5]
    found, exact = apply(name, x), EXACT[name](x.double())
    if name == "erfc":  # torch's own loses digits where it is a denormal
        exact = torch.tensor([float(mpmath.erfc(v)) if v > 5 else math.erfc(v) for v in x.double().tolist()])
        exact = exact.double()
    error = errors(found, exact)
    worst = error.argmax()
    assert error[worst] <= ULP[name], (float(x[worst]), float(found[worst]), float(exact[worst]))


@pytest.mark.parametrize("name", ULP)
def test_special_values(name):
    x = torch.tensor(SPECIAL)
    for dtype in (torch.float32, torch.float64):
        found, expected = apply(name, x.to(dtype)), EXACT[name](x.to(dtype))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0, equal_nan=True)
        zero = expected.eq(0)
        assert torch.equal(found.signbit()[zero], expected.signbit()[zero])


# Over the range in which they are used, against 40 digits.
WIDE = {
    "expm1": 6, "log10": 3, "log1p": 4, "sigmoid": 4, "tanh": 6, "sinh": 6, "cosh": 5, "asinh": 6, "acosh": 6,
    "atanh": 6, "erfc": 6, "tan": 6, "asin": 6, "acos": 6, "atan": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_float64(name):
    source = torch.Generator().manual_seed(1)
    x = torch.randn(700, generator=source, dtype=torch.float64)
    x = torch.cat([x, x * 10, x * 1e-3, x * 1e-9])
    if name == "erfc":
        x = x.clamp(max=26)
    if name in ("asin", "acos", "atanh"):
        x = x.remainder(2) - 1
    elif name in ("acosh", "log10", "log1p"):
        x = x.abs() + (1 if name == "acosh" else 0)
    found = apply(name, x)
    exact = []
    with mpmath.workdps(40):
        for value, near in zip(x.tolist(), found.tolist(), strict=True):
            true = (
                1 / (1 + mpmath.exp(-value))
                if name == "sigmoid"
                else getattr(mpmath, name)(mpmath.mpf(value))
            )
            exact.append(abs(float((mpmath.mpf(near) - true) / (abs(true) or 1))) / 2.0**-53)
    worst = int(np.argmax(exact))
    assert exact[worst] <= WIDE[name], (float(x[worst]), float(found[worst]), exact[worst])


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "copysign", "divide"])
def test_pairs_exactly(name):
    x, y = pairs(4096)
    found, expected = apply(name, x, y), EXACT[name](x, y)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("name", ["fmod", "remainder", "trunc_div", "floor_div"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_with_remainder(name, dtype):
    x, y = (t.to(dtype) for t in pairs(4096))
    usual = (x / y).abs() < 2.0**60
    keep = usual | (x / y).isnan() | x.isinf() | y.isinf() | (y == 0)
    x, y = x[keep], y[keep]
    found, expected = apply(name, x, y), EXACT[name](x, y)
    wrong = found.ne(expected) & ~(found.isnan() & expected.isnan())
    assert not wrong.any(), (x[wrong][:3], y[wrong][:3], found[wrong][:3], expected[wrong][:3])


def test_powers():
    x, y = pairs(8192)
    near = torch.rand(2, 8192, generator=torch.Generator().manual_seed(5))
    x, y = torch.cat([x, near[0] * 4]), torch.cat([y, (near[1] - 0.5) * 200])
    found, exact = apply("pow", x, y), torch.pow(x.double(), y.double())
    error = errors(found, exact)
    worst = error.argmax()
    assert error[worst] <= 1.5, (float(x[worst]), float(y[worst]), float(found[worst]), float(exact[worst]))
    x, y = x[-8192:].double(), y[-8192:].double() / 40
    found, exact = apply("pow", x, y), torch.pow(x, y)
    assert ((found - exact).abs() <= 2.0**-52 * exact.abs() * (2 + (y * x.log()).abs())).all()


def test_angles():
    x, y = pairs(8192)
    found, exact = apply("atan2", x, y), torch.atan2(x.double(), y.double())
    assert errors(found, exact).max() <= 2.5
    assert torch.equal(found.signbit()[~exact.isnan()], exact.signbit()[~exact.isnan()])
    found = apply("atan2", x.double(), y.double())
    assert ((found - exact).abs() <= 4 * 2.0**-52 * exact.abs() + 1e-300).logical_or(exact.isnan()).all()
