"""Generated C on ARM: values, math, random numbers and vector instructions, on AArch64 in QEMU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.runtime.c_backend import C
from burnt.errors import InputIndexError
from tests.codegen.compare import judge
from tests.codegen.programs import program
from tests.codegen.render.c.aarch64 import AARCH64, build_program, needs_aarch64
from tests.codegen.render.c.test_math_header import UNARY_ULP
from tests.codegen.render.metal.test_kernel import floats, ulps
from tests.codegen.render.metal.test_random import SEEDS, drawn
from tests.codegen.test_fusion import FUSED, layer_norm, randn, same
from tests.codegen.test_random_programs import REGRESSIONS, regression

pytestmark = [needs_aarch64, pytest.mark.filterwarnings("ignore")]  # torch's remarks on what programs do


def arm(fn: Callable[..., Any]) -> Function:
    return Function(fn, target=AARCH64)


@pytest.mark.sample(4, keep=["softmax", "matmul, bias and relu"])
@pytest.mark.parametrize("name", FUSED)
def test_values(name: str) -> None:
    fn, args, _ = FUSED[name]
    fused = arm(fn)
    same(fused(*args), fn(*args))
    assert fused.fallback_reason(*args) is None


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes_and_gradients(dtype: torch.dtype) -> None:
    """Next to float64, rounded: eager's own gradients in 16 bits are further from it."""
    args = [t.to(dtype) for t in (randn(7, 530), randn(530), randn(530, seed=1))]
    results = []
    for fn, given in (layer_norm, [t.double() for t in args]), (arm(layer_norm), args):
        wanted = [t.clone().requires_grad_() for t in given]
        result = fn(*wanted)
        result.backward(torch.ones_like(result) / 4)
        results.append([t.to(dtype) for t in (result, *(t.grad for t in wanted))])
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(results[1], results[0], rtol=4 * eps, atol=4 * eps)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", UNARY_ULP)
def test_math(name: str) -> None:
    x = floats(20_000, 0)
    if name == "acosh":
        x = x.abs() + 1
    elif name in ("asin", "acos", "atanh"):
        x = torch.cat([x[x.abs() <= 1], torch.linspace(-1, 1, 10_000)])
    fn = getattr(torch, name)
    fused = arm(fn)
    assert ulps(fused(x), fn(x.double())) <= UNARY_ULP[name] + 0.01
    assert fused.fallback_reason(x) is None


def test_random_numbers_are_those_of_this_machine() -> None:
    x = torch.ones(37, 53)
    theirs, ours = (Function(drawn, target=target).plan(x) for target in (C, AARCH64))
    assert theirs is not None
    assert ours is not None
    for seed in SEEDS[:2]:
        pairs = zip(ours([x], [], torch.tensor([seed])), theirs([x], [], torch.tensor([seed])), strict=True)
        for i, (a, b) in enumerate(pairs):
            torch.testing.assert_close(a, b, rtol=1e-6 if i == 6 else 0, atol=0)


def test_an_index_out_of_range() -> None:
    def fn(x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    x, i = randn(50, 7), torch.tensor([3, -1, 49])
    same(arm(fn)(x, i), fn(x, i))
    with pytest.raises(InputIndexError, match="index: index 50 is out of range"):
        arm(fn)(x, i + 1)


def test_loops_use_vector_instructions() -> None:
    def instructions(fn: Callable[[Tensor], Tensor], dtype: torch.dtype, lanes: str) -> int:
        plan = arm(fn).plan(randn(100, 100, dtype=dtype))
        assert plan is not None
        program = build_program(plan.texts[plan.kernels[0]], plan.kernels)
        command = ["aarch64-linux-gnu-objdump", "-d", str(program)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return len(re.findall(rf"\tf(?:mul|add|div|mla)\tv\d+\.{lanes}", listing))

    assert instructions(lambda x: F.silu(x) * 2, torch.float32, "4s") > 10
    assert instructions(lambda x: x * 3 + 1, torch.float64, "2d") >= 2


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 16, 4))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 4):
        judge(program(seed), arm)


@pytest.mark.full
@pytest.mark.sample(0, full=12)
@pytest.mark.parametrize("first", range(16, 3000, 8))
def test_more_random_programs(first: int) -> None:
    """Of all of them 12, which BURNT_SEED draws."""
    for seed in range(first, first + 8):
        judge(program(seed), arm)


@pytest.mark.full
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regressions(name: str) -> None:
    judge(regression(name), arm)
