"""The math of generated Triton kernels: accuracy over all floats, and torch's special values."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from burnt.codegen import triton_math

BLOCK = 4096
# Largest error in units of the last place, float32, in the interpreter, whose 2^x, log, sin, cos and erf are
# NumPy's. Where those of a GPU are 2 ulp off instead of half an ulp, the sum stays below 4.
ULP = {
    "exp": 2.0, "exp2": 1.6, "expm1": 1.7, "log10": 3.0, "log1p": 1.7, "sigmoid": 2.6, "tanh": 2.7,
    "sinh": 1.8, "cosh": 1.7, "asinh": 2.1, "acosh": 2.3, "atanh": 2.4, "erf": 1.6, "erfc": 3.0, "sin": 1.5,
    "tan": 2.5, "asin": 1.8, "acos": 1.3, "atan": 1.5, "sqrt": 0.51, "rsqrt": 1.6, "reciprocal": 0.51,
    "neg": 0, "floor": 0, "ceil": 0, "trunc": 0, "round": 0, "sign": 0, "relu": 0,
}  # fmt: skip
EXACT = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log10": torch.log10, "log1p": torch.log1p,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "sinh": torch.sinh, "cosh": torch.cosh,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf, "erfc": torch.erfc,
    "neg": torch.neg, "sin": torch.sin, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "floor": torch.floor,
    "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "sign": torch.sign, "relu": torch.relu,
    "atan2": torch.atan2, "pow": torch.pow, "fmod": torch.fmod, "remainder": torch.remainder,
    "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin,
    "copysign": torch.copysign, "divide": torch.div,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.0, 88.0]


@triton.jit
def _unary(x, y, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, F(tl.load(x + i, mask=i < n, other=1)), mask=i < n)


@triton.jit
def _binary(x, y, z, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=1)
    b = tl.load(y + i, mask=i < n, other=1)
    tl.store(z + i, F(a, b), mask=i < n)


def apply(name: str, *inputs: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    kernel = _unary if len(inputs) == 1 else _binary
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with np.errstate(all="ignore"):
        kernel[grid](*inputs, out, out.numel(), F=getattr(triton_math, name), BLOCK=BLOCK)
    return out


def floats(count: int, seed: int = 0) -> torch.Tensor:
    """Float32 bit patterns, evenly over exponents and signs."""
    step = 2**32 // count
    offsets = np.random.default_rng(seed).integers(0, step, count, dtype=np.uint64)
    patterns = (np.arange(count, dtype=np.uint64) * np.uint64(step) + offsets).astype(np.uint32)
    made = torch.from_numpy(patterns.view(np.float32).copy())
    return made.where(~made.isnan(), math.nan)  # quiet ones: of the others torch's fmax makes NaN


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance in units of the last place of the exact value, in `found`'s dtype."""
    info = torch.finfo(found.dtype)
    largest = torch.tensor(info.max, dtype=torch.float64)
    spacing = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - 1).nan_to_num(1) * info.eps
    spacing = spacing.clamp(min=info.smallest_normal * info.eps)
    error = (found.double() - exact).abs() / spacing
    same = found.double().eq(exact) | (found.isnan() & exact.isnan())
    same |= found.isinf() & (exact.abs() > largest) & (found.sign() == exact.sign())
    return torch.where(same, 0.0, error.nan_to_num(math.inf, math.inf))


def test_every_function_is_looked_at():
    inner = {"index_div", "index_mod", "multiply", "either", "both", "argmax", "argmin"}
    names = {n for n, f in vars(triton_math).items() if hasattr(f, "fn") and not n.startswith("_")}
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


def pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    special = torch.tensor(SPECIAL)
    x, y = (
        floats(count, 1),
        floats(count, 2)[torch.randperm(count, generator=torch.Generator().manual_seed(3))],
    )
    some = torch.randn(2, count, generator=torch.Generator().manual_seed(4)) * 10
    return (
        torch.cat([x, some[0], special.repeat_interleave(len(SPECIAL))]),
        torch.cat([y, some[1], special.repeat(len(SPECIAL))]),
    )


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "copysign", "divide"])
def test_pairs_exactly(name):
    x, y = pairs(4096)
    found, expected = apply(name, x, y), EXACT[name](x, y)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("name", ["fmod", "remainder", "trunc_div", "floor_div"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_with_rest(name, dtype):
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
