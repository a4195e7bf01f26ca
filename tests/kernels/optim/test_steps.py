"""Optimizer steps over lists of tensors against their formulas in float64, and against torch's steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputRuntimeError, InputUnsupportedError, InputValueError
from burnt.kernels import adam_step, adamw_step, sgd_step
from burnt.kernels.optim import foreach_c

pytestmark = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler works here: torch runs the steps"
)

SHAPES = [(0,), (1,), (7,), (), (3, 0, 2), (31, 17), (foreach_c.BLOCK + 1,), (3, 101, 89)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CANDIDATES = ["burnt", "torch"]


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


class Exact:
    """The steps by their formulas in float64, one tensor at a time, continuing from the rounded results."""

    def __init__(self, params: list[Tensor], ema_decay: float = 0.9) -> None:
        self.p = [p.to(torch.float64, copy=True) for p in params]
        self.m = [torch.zeros_like(p) for p in self.p]
        self.v = [torch.zeros_like(p) for p in self.p]
        self.x = [torch.zeros_like(p) for p in self.p]
        self.e = [p.clone() for p in self.p]
        self.steps, self.ema_decay = 0, ema_decay

    def load(self, **columns: Any) -> None:
        """Load the rounded tensors that the last step returned."""
        for name, column in columns.items():
            for mine, t in zip(getattr(self, name), column, strict=True):
                if t is not None:
                    mine.copy_(t)

    def gradients(self, grads: list[Tensor], scale: float, max_norm: float | None) -> list[Tensor]:
        wide = [g.double() / scale for g in grads]
        self.norm = math.sqrt(sum(float((g * g).sum()) for g in wide))
        factor = 1.0 if max_norm is None else min(1.0, max_norm / (self.norm + 1e-6))
        return [g * factor for g in wide]

    def average(self) -> None:
        for p, e in zip(self.p, self.e, strict=True):
            e += (1 - self.ema_decay) * (p - e)

    def adam(
        self,
        grads: list[Tensor],
        betas: Any,
        eps: float,
        decay: float,
        decoupled: bool,
        amsgrad: bool,
        lr: float = 0.01,
    ) -> None:
        self.steps += 1
        for p, g, m, v, x in zip(self.p, grads, self.m, self.v, self.x, strict=True):
            g = g if decoupled else g + decay * p
            if decoupled:
                p *= 1 - lr * decay
            m.copy_(betas[0] * m + (1 - betas[0]) * g)
            v.copy_(betas[1] * v + (1 - betas[1]) * g * g)
            x.copy_(torch.maximum(x, v))
            largest = x if amsgrad else v
            first = m / (1 - betas[0] ** self.steps)
            p -= lr * first / ((largest / (1 - betas[1] ** self.steps)).sqrt() + eps)
        self.average()

    def sgd(
        self, grads: list[Tensor], lr: float, momentum: float, dampening: float, decay: float, nesterov: bool
    ) -> None:
        for p, g, m in zip(self.p, grads, self.m, strict=True):
            g = g + decay * p
            if momentum:
                m.copy_(momentum * m + (1 - dampening) * g if self.steps else g)
                g = g + momentum * m if nesterov else m
            p -= lr * g
        self.steps += 1
        self.average()


def close(
    made: list[Tensor], exact: list[Tensor], ulps: float, before: Sequence[Tensor] | None = None
) -> None:
    """Assert equality within `ulps` units in the last place of the largest element, including `before`."""
    for a, b, *older in zip(made, exact, *([] if before is None else [before]), strict=True):
        size = max((float(t.abs().max()) for t in (b, *older) if t.numel()), default=0.0)
        assert a.shape == b.shape
        worst = float((a.double() - b).abs().max()) if b.numel() else 0.0
        assert worst <= ulps * torch.finfo(a.dtype).eps * max(size, 1e-3), (worst, size)


LIMITS: list[dict[str, Any]] = [
    {},
    {"max_norm": 2.5},
    {"grad_scale": torch.tensor(256.0), "max_norm": 1.0},
    {"grad_scale": 1024.0, "max_norm": math.inf},
    {"max_norm": 1e9},
    {"max_norm": 0.0},
]


def tolerance_in_ulps(candidate: str, dtype: torch.dtype) -> int:
    """Return the tolerance in units in the last place.

    torch rounds intermediates such as clipped gradients to 16 bits; in float64 the formulas round as well.
    """
    if candidate == "torch" and dtype.itemsize == 2:
        return 500
    return 64 if dtype == torch.float64 else 4


@pytest.mark.sample(14)
@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("step", "options"),
    [
        (adamw_step, {}),
        (adamw_step, {"weight_decay": 0.0, "betas": (0.3, 0.9), "eps": 1e-3}),
        (adamw_step, {"weight_decay": 0.3, "amsgrad": True}),
        (adam_step, {"weight_decay": 0.1}),
        (adam_step, {"amsgrad": True}),
    ],
    ids=["adamw", "no-decay", "adamw-amsgrad", "adam", "adam-amsgrad"],
)
def test_adam_matches_its_formulas(candidate: str, dtype: torch.dtype, step: Any, options: Any) -> None:
    options = dict(options)
    amsgrad = options.pop("amsgrad", False)
    p = drawn(SHAPES, dtype, 0)
    exact, e = Exact(p), drawn(SHAPES, dtype, 9)
    m, v, x = ([torch.zeros_like(t) for t in p] for _ in range(3))
    steps = [torch.zeros(()) for _ in p]
    for step_index, limits in enumerate(LIMITS):
        g = drawn(SHAPES, dtype, step_index + 1)
        before = [t.clone() for t in g]
        exact.load(p=p, m=m, v=v, x=x, e=e)
        older = [[t.clone() for t in kind] for kind in (p, e, m, v, x)]
        result = step(
            p, g, m, v, steps, x if amsgrad else None,
            lr=0.01, ema=e, ema_decay=0.9, candidate=candidate, **options, **limits,
        )  # fmt: skip
        exact.adam(
            exact.gradients(g, float(limits.get("grad_scale", 1.0)), limits.get("max_norm")),
            options.get("betas", (0.9, 0.999)), options.get("eps", 1e-8),
            options.get("weight_decay", 0.01 if step is adamw_step else 0.0), step is adamw_step, amsgrad,
        )  # fmt: skip
        assert all(torch.equal(a, b) for a, b in zip(g, before, strict=True))
        assert result.by == ("burnt" if candidate == "burnt" else "torch: requested")
        assert not result.skipped
        if limits:
            assert float(result.norm) == pytest.approx(exact.norm, rel=4 * torch.finfo(dtype).eps)
        else:
            assert result.norm is None
        ulps = tolerance_in_ulps(candidate, dtype)
        pairs = (p, exact.p), (e, exact.e), (m, exact.m), (v, exact.v), (x, exact.x)
        for (ours, theirs), first in zip(pairs, older, strict=True):
            if ours is not x or amsgrad:
                # Where an average changes its sign, its terms are larger than itself.
                close(ours, theirs, ulps, first)
        assert all(float(s) == step_index + 1 for s in steps)


@pytest.mark.sample(14)
@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.2},
        {"momentum": 0.8, "nesterov": True},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_sgd_matches_its_formulas(candidate: str, dtype: torch.dtype, options: Any) -> None:
    p = drawn(SHAPES, dtype, 0)
    exact, e = Exact(p), drawn(SHAPES, dtype, 9)
    buffers: list[Tensor | None] = [None] * len(p)
    for step_index, limits in enumerate(LIMITS):
        g = drawn(SHAPES, dtype, step_index + 1)
        exact.load(p=p, m=buffers, e=e)
        result = sgd_step(
            p, g, buffers, lr=0.05, ema=e, ema_decay=0.9, candidate=candidate, **options, **limits
        )
        clipped = exact.gradients(g, float(limits.get("grad_scale", 1.0)), limits.get("max_norm"))
        exact.sgd(
            clipped, 0.05, options.get("momentum", 0.0), options.get("dampening", 0.0),
            options.get("weight_decay", 0.0), options.get("nesterov", False),
        )  # fmt: skip
        assert result.by.startswith(candidate)
        ulps = tolerance_in_ulps(candidate, dtype)
        close(p, exact.p, ulps)
        close(e, exact.e, ulps)
        if options.get("momentum"):
            close(buffers, exact.m, ulps)  # type: ignore[arg-type]
        else:
            assert buffers == [None] * len(p)


def test_mixed_dtypes_have_one_norm() -> None:
    p = [t for dtype in DTYPES for t in drawn([(5,), (1, 3)], dtype, 0)]
    g = [t for dtype in DTYPES for t in drawn([(5,), (1, 3)], dtype, 1)]
    order = [0, 4, 2, 6, 1, 7, 3, 5]
    p, g = [p[i] for i in order], [g[i] for i in order]
    exact = Exact(p)
    result = sgd_step(p, g, lr=0.5, max_norm=0.7, candidate="burnt")
    exact.sgd(exact.gradients(g, 1.0, 0.7), 0.5, 0.0, 0.0, 0.0, False)
    close(p, exact.p, 2)
    assert result.norm is not None
    assert result.norm.dtype == torch.float64
    assert float(result.norm) == pytest.approx(exact.norm, rel=1e-12)


def test_many_tensors_of_all_sizes_match_torch() -> None:
    shapes = [(int(1.02**i * 3),) for i in range(300)]
    p, g = drawn(shapes, torch.float32, 0), drawn(shapes, torch.float32, 1)
    theirs = [torch.nn.Parameter(t.clone()) for t in p]
    for t, gradient in zip(theirs, g, strict=True):
        t.grad = gradient.clone()
    reference = torch.optim.AdamW(theirs, lr=0.01, fused=True)
    m, v, steps = (
        [torch.zeros_like(t) for t in p],
        [torch.zeros_like(t) for t in p],
        [torch.zeros(()) for _ in p],
    )
    for _ in range(3):
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        reference.step()
        result = adamw_step(p, g, m, v, steps, lr=0.01, max_norm=1.0, candidate="burnt")
        assert result.norm is not None
        for t, gradient in zip(theirs, g, strict=True):
            t.grad = gradient.clone()
    torch.testing.assert_close(result.norm, norm)
    for ours, other in zip(p, theirs, strict=True):
        torch.testing.assert_close(ours, other.detach(), rtol=1e-5, atol=1e-6)


def test_other_memory_layouts() -> None:
    """Channels-last and transposed parameters, expanded gradients, and views with gaps (run by torch)."""
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    transposed = torch.randn(6, 4).t()
    p = [channels_last, transposed]
    g = [torch.randn(1, 3, 1, 1).expand(2, 3, 4, 5), torch.randn(4, 6)]
    exact = Exact(p)
    buffers: list[Tensor | None] = [torch.zeros_like(t) for t in p]
    exact.steps = 1
    result = sgd_step(p, g, buffers, lr=0.5, momentum=0.9, max_norm=1.0)
    exact.sgd(exact.gradients(g, 1.0, 1.0), 0.5, 0.9, 0.0, 0.0, False)
    assert result.by == "burnt"
    close(p, exact.p, 4)
    close(buffers, exact.m, 4)  # type: ignore[arg-type]
    large = torch.arange(12.0).view(3, 4)
    result = sgd_step([large[:, 1]], [torch.ones(3)], lr=1.0)
    assert result.by == "torch: a parameter that is a view with gaps between its elements"
    assert large.tolist() == [[0, 0, 2, 3], [4, 4, 6, 7], [8, 8, 10, 11]]
    result = sgd_step([torch.ones(2, 3)], [torch.ones(2, 3)], [torch.zeros(3, 2).t()], lr=1.0, momentum=0.1)
    assert result.by == "torch: a state with other strides than its parameter"


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scaled_gradient_that_is_not_finite_skips_the_step(
    candidate: str, bad: float, dtype: torch.dtype
) -> None:
    shapes = [(3,), (40_000,), (2, 2)]
    p, g = drawn(shapes, dtype, 0), drawn(shapes, dtype, 1)
    g[1][31_111] = bad
    m, v, e = ([t.clone() for t in drawn(shapes, dtype, i)] for i in (2, 3, 4))
    steps = [torch.tensor(5.0) for _ in p]
    everything = [*p, *m, *v, *e, *steps]
    before = [t.clone() for t in everything]
    result = adamw_step(p, g, m, v, steps, lr=0.1, grad_scale=4.0, max_norm=1.0, ema=e, candidate=candidate)
    assert bool(result.skipped)
    assert result.norm is not None
    assert not result.norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(everything, before, strict=True))
    buffers: list[Tensor | None] = [None, m[1], None]
    result = sgd_step(p, g, buffers, lr=0.1, momentum=0.9, dampening=0.5, grad_scale=4.0, candidate=candidate)
    assert bool(result.skipped)
    assert buffers[0] is None
    assert all(torch.equal(a, b) for a, b in zip(everything, before, strict=True))


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_without_a_scale_nan_and_infinity_propagate_as_in_torch(candidate: str) -> None:
    p, g = [torch.ones(3), torch.ones(2)], [torch.tensor([1.0, math.nan, 2.0]), torch.ones(2)]
    result = sgd_step(p, g, lr=1.0, candidate=candidate)
    assert not result.skipped
    assert p[0].isnan().tolist() == [False, True, False]
    result = sgd_step(p, g, lr=1.0, max_norm=1.0, candidate=candidate)
    assert all(bool(t.isnan().all()) for t in p)
    p, g = [torch.ones(3)], [torch.tensor([1.0, math.inf, 2.0])]
    result = sgd_step(p, g, lr=1.0, max_norm=1.0, candidate=candidate)
    assert p[0].isnan().tolist() == [False, True, False]
    assert p[0][0] == 1
    assert result.norm is not None
    assert float(result.norm) == math.inf


def test_overflowing_squares_of_finite_gradients_do_not_skip_the_step() -> None:
    p, g = [torch.ones(2, dtype=torch.float64)], [torch.tensor([1e200, 1.0], dtype=torch.float64)]
    result = sgd_step(p, g, lr=1e-200, grad_scale=1.0, candidate="burnt")
    assert not result.skipped
    assert p[0].tolist() == pytest.approx([0.0, 1.0], abs=1e-15)


def test_the_norm_does_not_depend_on_the_number_of_threads() -> None:
    g = drawn([(5,), (300_001,), (0,), (16384,), (77_777,)], torch.float64, 0)
    zeros, threads, norms = [torch.zeros_like(t) for t in g], torch.get_num_threads(), set()
    try:
        for count in (1, 2, 3, 7, 1):
            torch.set_num_threads(count)
            norm = sgd_step(zeros, g, lr=0.0, max_norm=9.0, candidate="burnt").norm
            assert norm is not None
            norms.add(float(norm))
    finally:
        torch.set_num_threads(threads)
    assert len(norms) == 1


def test_a_step_increments_tensor_versions() -> None:
    """So that autograd rejects a changed saved tensor, and packed weights are packed again."""
    weight, x = torch.nn.Parameter(torch.randn(3, 3)), torch.randn(2, 3, requires_grad=True)
    loss = (x @ weight).sum()
    average = torch.zeros(3, 3)
    before = average._version
    sgd_step([weight], [torch.ones(3, 3)], lr=0.1, ema=[average], candidate="burnt")
    assert average._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_empty_lists() -> None:
    for candidate in CANDIDATES:
        result = sgd_step([], [], lr=0.1, max_norm=1.0, candidate=candidate)
        assert result.norm == 0
        assert not result.skipped


@pytest.mark.full
def test_more_elements_than_an_int32_counts() -> None:
    """The zeros are pages that the operating system never allocates."""
    count = 2**31 + 5
    zeros = np.zeros(count, np.uint16)
    zeros[-1], zeros[2**31] = 0x4040, 0x4080  # 3 and 4 in bfloat16
    g = torch.from_numpy(zeros).view(torch.bfloat16)
    assert foreach_c.sum_of_squares([g]) == 25.0


# Rejected arguments.


def arguments() -> tuple[list[Tensor], ...]:
    return tuple([torch.ones(2, 3), torch.ones(4)] for _ in range(4))


Step = Callable[..., Any]


def sgd(**options: Any) -> Step:
    return lambda p, g, m, v: sgd_step(p, g, **{"lr": 0.1, **options})


def adam(step: Step = adamw_step, **options: Any) -> Step:
    return lambda p, g, m, v: step(p, g, m, v, [torch.zeros(())] * 2, **{"lr": 0.1, **options})


REJECTED: list[tuple[Step, type[Exception], str]] = [
    (
        lambda p, g, m, v: adam()(p, g[:1], m, v),
        InputRuntimeError,
        "grads of adamw_step has the wrong length\n  in        burnt.kernels.adamw_step\n"
        "  expected  2 tensors, one for each of params\n  found     1 tensors",
    ),
    (
        lambda p, g, m, v: adam()(p, g, m, [v[0], torch.ones(5)]),
        InputRuntimeError,
        "exp_avg_sqs of adamw_step does not match the parameters\n  in        burnt.kernels.adamw_step\n"
        "  expected  exp_avg_sqs[1]: float32 (4,) on cpu, like params[1]\n  found     float32 (5,) on cpu",
    ),
    (
        lambda p, g, m, v: sgd_step(p, [g[0], g[1].to("meta")], lr=0.1),
        InputRuntimeError,
        "expected  grads[1]: float32 (4,) on cpu, like params[1]\n  found     float32 (4,) on meta",
    ),
    (
        lambda p, g, m, v: sgd_step(p, [g[0].double(), g[1]], lr=0.1),
        InputRuntimeError,
        "found     float64 (2, 3) on cpu",
    ),
    (
        lambda p, g, m, v: adam_step(p, g, m, v, [torch.zeros(())], lr=0.1),
        InputRuntimeError,
        "steps of adam_step does not match the parameters",
    ),
    (sgd(momentum=0.9), InputValueError, "pass [None] * len(params) in the first step"),
    (sgd(lr=-0.1), InputValueError, "sgd_step does not accept this lr"),
    (sgd(lr=math.nan), InputValueError, "found     nan"),
    (lambda p, g, m, v: sgd_step(p, g, m, lr=0.1, momentum=-0.9), InputValueError, "this momentum"),
    (adam(lr=-0.1), InputValueError, "adamw_step does not accept this lr"),
    (adam(adam_step, betas=(0.9, 1.0)), InputValueError, "below 1\n  found     (0.9, 1.0)"),
    (adam(betas=(-0.1, 0.9)), InputValueError, "found     (-0.1, 0.9)"),
    (adam(eps=-1e-8), InputValueError, "this eps"),
    (sgd(max_norm=-1.0), InputValueError, "a limit of at least 0"),
    (sgd(max_norm=math.nan), InputValueError, "found     nan"),
    (sgd(grad_scale=0.0), InputValueError, "a positive number"),
    (sgd(grad_scale=torch.ones(2)), InputValueError, "with one element"),
    (sgd(ema=arguments()[0], ema_decay=1.5), InputValueError, "from 0 to 1"),
    (sgd(candidate="triton"), InputValueError, "'burnt', 'torch'"),
    (
        lambda p, g, m, v: sgd_step([t.to(torch.complex64) for t in p], g, lr=0.1),
        InputUnsupportedError,
        "torch.view_as_real",
    ),
    (lambda p, g, m, v: sgd_step([p[0].int()], [g[0].int()], lr=0.1), InputUnsupportedError, "for int32"),
    (lambda p, g, m, v: sgd_step(p, [g[0].to_sparse(), g[1]], lr=0.1), InputUnsupportedError, "to_dense()"),
    (
        lambda p, g, m, v: adam_step(
            p, g, m, v, [torch.zeros((), dtype=torch.float64)] * 2, lr=0.1, candidate="burnt"
        ),
        InputUnsupportedError,
        "found     a step counter that is float64 () on cpu",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), REJECTED)
def test_bad_input(call: Step, kind: type[Exception], words: str) -> None:
    args = arguments()
    before = [[t.clone() for t in column] for column in args]
    with pytest.raises(kind) as caught:
        call(*args)
    assert words in str(caught.value)
    for column, other in zip(args, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(column, other, strict=True))


def test_torch_runs_unsupported_steps_and_the_reason_is_reported() -> None:
    class Mine(Tensor):
        pass

    p = [torch.ones(2).as_subclass(Mine)]
    result = kernels.sgd_step(p, [torch.ones(2)], lr=0.5)
    assert result.by == "torch: a tensor subclass, Mine"
    assert p[0].tolist() == [0.5, 0.5]
    meta = [torch.ones(2, device="meta")]
    assert kernels.sgd_step(meta, meta, lr=0.5).by == "torch: tensors on meta"
