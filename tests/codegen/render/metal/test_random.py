"""Random numbers in Metal, run on the shim: the documented stream, the same as in C."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Expr, IndexExpr, Kernel, Store, Var, index_value, load
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.schedule.scheduler import TorchCall
from tests.codegen.philox_reference import words
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")

SEEDS = (0, 7, -1, 0x0123456789ABCDEF)


def drawn(x):
    return (
        torch.rand_like(x), torch.randint_like(x, 1000), torch.randint(-3, 1 << 31, x.shape),
        torch.bernoulli(x * 0.3), F.dropout(x, 0.4), torch.rand_like(x).t(), torch.rand_like(x).sum(0),
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(37, 53), (1, 1), (70_001, 1)], ids=str)
def test_the_stream_is_the_documented_one(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    plan = Function(lambda x: (torch.rand_like(x), torch.rand_like(x)), target=METAL_SHIM).plan(x)
    assert plan is not None
    for seed in SEEDS:
        for stream, result in enumerate(plan([x], [], torch.tensor([seed]))):
            expected = (words(seed, stream, result.numel()) >> np.uint64(8)).astype(np.float32) * 2.0**-24
            assert np.array_equal(result.flatten().numpy(), expected)


def test_numbers_are_those_of_c() -> None:
    x = torch.ones(37, 53)
    plans = [Function(drawn, target=target).plan(x) for target in (C, METAL_SHIM)]
    for plan in plans:
        assert plan is not None
        assert not any(isinstance(step, TorchCall) for step in plan.plan.steps)
    for seed in SEEDS:
        theirs, ours = (plan([x], [], torch.tensor([seed])) for plan in plans if plan is not None)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-6 if i == 6 else 0, atol=0)


def test_normal_numbers_are_nearly_those_of_c() -> None:
    def fn(x):
        return torch.randn_like(x), x.new_empty(x.shape).exponential_(2.0)

    x = torch.ones(300, 41)
    ours, theirs = (Function(fn, target=target).plan(x) for target in (METAL_SHIM, C))
    assert ours is not None
    assert theirs is not None
    seed = torch.tensor([11])
    torch.testing.assert_close(ours([x], [], seed), theirs([x], [], seed), rtol=1e-5, atol=1e-6)


def test_the_backward_drops_what_the_forward_dropped() -> None:
    x = torch.ones(64, 100, requires_grad=True)
    fused = Function(lambda x: F.dropout(x * 2, 0.3), target=METAL_SHIM)
    for _ in range(2):
        y = fused(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient, y)
    assert 0.2 < float((y == 0).float().mean()) < 0.4


def test_counters_beyond_32_bits() -> None:
    """Both halves of a counter matter: a word with a large counter is as defined."""
    first = (1 << 35) + 6
    i = Var(8)
    seed = Buffer("x0", "input", 0, (1,), (1,), torch.int64)
    y = Buffer("y0", "output", 0, (8,), (1,), torch.float32)
    value = Expr.make(
        "uniform", (load(seed, IndexExpr()), index_value(IndexExpr.of(i) + first)), torch.float32, 5
    )
    kernel = Kernel("far", (i,), [Store(y, (), IndexExpr.of(i), value, (i,))])
    result = torch.empty(8)
    code = HostCode(["seed", "y"])
    METAL_SHIM.build([kernel], [seed, y], ()).launchers[kernel](code, code.parameters, ())
    code.build()(torch.tensor([99]), result)
    expected = (words(99, 5, 8, first) >> np.uint64(8)).astype(np.float32) * 2.0**-24
    assert np.array_equal(result.numpy(), expected)
