"""Measure the accuracy of Triton device math, on a device or in the interpreter."""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl

from burnt.codegen.render.triton import device_math

BLOCK = 4096
# What torch computes, in the inputs' dtype.
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
    """Apply a function of `device_math` to each element, where the inputs are."""
    out = torch.empty_like(inputs[0])
    kernel = _unary if len(inputs) == 1 else _binary
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with np.errstate(all="ignore"):
        kernel[grid](*inputs, out, out.numel(), F=getattr(device_math, name), BLOCK=BLOCK)
    return out


def floats(count: int, seed: int = 0) -> torch.Tensor:
    """Float32 numbers with bit patterns spread evenly over exponents and signs."""
    step = 2**32 // count
    offsets = np.random.default_rng(seed).integers(0, step, count, dtype=np.uint64)
    patterns = (np.arange(count, dtype=np.uint64) * np.uint64(step) + offsets).astype(np.uint32)
    values = torch.from_numpy(patterns.view(np.float32).copy())
    return values.where(~values.isnan(), math.nan)  # quiet NaNs: torch's fmax returns NaN for signaling ones


def errors(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance from the exact value in units of its last place, in the dtype of `result`."""
    info = torch.finfo(result.dtype)
    largest = torch.tensor(info.max, dtype=torch.float64)
    spacing = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - 1).nan_to_num(1) * info.eps
    spacing = spacing.clamp(min=info.smallest_normal * info.eps)
    error = (result.double() - exact).abs() / spacing
    same = result.double().eq(exact) | (result.isnan() & exact.isnan())
    same |= result.isinf() & (exact.abs() > largest) & (result.sign() == exact.sign())
    return torch.where(same, 0.0, error.nan_to_num(math.inf, math.inf))


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
