"""Random programs of views, detached tensors, gradient modes and ops in place, with strides and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

VIEWS = [
    "{a}.detach()", "{a}.data", "{a}.t()", "{a}[:]", "{a}.view(4, 4)", "{a}.reshape(16).reshape(4, 4)",
    "{a}.contiguous()", "{a}.t().clone()", "{a}.detach().t()", "{a}.float()",
]  # fmt: skip
VALUES = [
    "{a} * {b}", "{a}.sin()", "{a} + {b}.data", "torch.where({a} > 0, {a}, {b})", "{a}.softmax(-1)",
    "{a} @ {b}", "{a} * {b}.stride(0)", "({a} if {b}.is_contiguous() else {a} * 2)",
]  # fmt: skip
PLACES = ["{a}", "{a}", "{a}.detach()", "{a}.data", "{a}[1:3]", "{a}.t()", "{a}[0]", "{a}.detach()[1:]"]
WRITES = [
    "{p}.mul_(0.5)", "{p}.zero_()", "{p}.fill_(0.7)", "{p}.clamp_(-0.5, 0.5)", "{p}.cumsum_(0)",
    "{p}.masked_fill_({p} > 0, 0.3)", "{n} = {p}.mul_(0.5)", "{a}.copy_({b})", "{a}.add_({b})",
    "{a}.detach().copy_({b})", "{a}[1] = {b}[2]", "{a} += {b}", "torch.mul({b}, {b}, out={a})", "{a}.t_()",
    "{a}.mul_({b})", "{a}.data.add_({b})", "{a}.lerp_({b}, 0.3)", "{a}.exp_()", "{a}.detach_()",
]  # fmt: skip
MODES = ["with torch.no_grad(): ", "with torch.no_grad(): ", "with torch.enable_grad(): "]


def source_of(seed: int) -> str:
    """A function of x, which requires a gradient, and w, which does not."""
    draw = random.Random(seed)
    lines = ["y, z, w = x * 3, torch.zeros(4, 4), w.clone()"]
    names = ["x", "y", "z", "w"]
    for i in range(draw.randint(3, 8)):
        kind, name = draw.random(), f"v{i}"
        mode = draw.choice(MODES) if draw.random() < 0.3 else ""
        if kind < 0.6:
            chosen = draw.choice(VIEWS if kind < 0.35 else VALUES)
            lines.append(f"{mode}{name} = {chosen.format(a=draw.choice(names), b=draw.choice(names))}")
            names.append(name)
        else:
            target = draw.choice(names[1:])
            place = draw.choice(PLACES).format(a=target)
            line = draw.choice(WRITES).format(p=place, a=target, b=draw.choice(names), n=name)
            lines.append(mode + line)
            names += [name] * line.startswith(name)
    results = draw.sample(names[1:], draw.randint(1, 3))
    return "\n    ".join(["def fn(x, w):", *lines, f"return {', '.join(results)}, x * {results[0]}"])


def outcome(fn: Callable[..., Any], requires_grad: bool) -> Any:
    """Results and gradient; None if the function raises, the results alone if they have no gradient."""
    x = (torch.arange(16.0).view(4, 4) / 9 - 0.8).requires_grad_(requires_grad)
    try:
        results = fn(x, torch.linspace(-1, 1, 16).view(4, 4).t())
        parts = [r * torch.arange(1.0, 1 + r.numel()).view(r.shape) for r in results if r.requires_grad]
    except (RuntimeError, ValueError):
        return None
    facts = [(r.stride(), r.requires_grad) for r in results]
    values: list[Tensor] = [r.detach().clone() for r in results]
    if not parts:
        return facts, values, []
    try:
        return facts, values, torch.autograd.grad([p.sum() for p in parts], x, allow_unused=True)
    except RuntimeError:  # a saved tensor has changed
        return facts, values, None


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 120, 10))
def test_what_random_programs_write(first: int) -> None:
    planned = 0
    for seed in range(first, first + 10):
        source, space = source_of(seed), {"torch": torch}
        exec(source, space)
        for requires_grad in (True, False):
            expected = outcome(space["fn"], requires_grad)  # type: ignore[arg-type]
            if expected is None:  # torch forbids to use some views from no_grad, and plans have other tensors
                continue
            fused = Function(space["fn"], always_generate=True)  # type: ignore[arg-type]
            found = outcome(fused, requires_grad)
            planned += any(entry.forward is not None for entry in fused.cache_entries())
            assert found is not None, source
            assert found[0] == expected[0], source
            assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5, msg=lambda m, s=source: f"{m}\n{s}")
            if expected[2] is not None:  # a plan recomputes what a change spoils
                close = {"rtol": 1e-3, "atol": 1e-4}
                assert_close(found[2], expected[2], **close, msg=lambda m, s=source: f"{m}\n{s}")
    assert planned >= 8
