"""Optimizer steps in Triton compared with those in C, or with torch's where results are equal."""

import copy
import math
import pickle
from functools import partial

import pytest
import torch

from burnt import optim
from burnt.errors import InputRuntimeError
from burnt.kernels.optim import foreach, foreach_triton
from burnt.kernels.optim import steps as optim_steps
from burnt.kernels.optim.foreach_triton import DevicePasses
from burnt.kernels.optim.steps import lamb_step, muon_step
from tests.kernels.optim.test_formula import CASES, IDS, begin
from tests.kernels.optim.test_formula import drawn as drawn_for_formula

SHAPES = [(0,), (1,), (7,), (31, 17), (1027,), (3, 0)]
LIMITS = [
    {},
    {"max_norm": 2.5},
    {"grad_scale": 64.0, "max_norm": 1e9},
    {"grad_scale": 64.0, "max_norm": math.inf},
]


@pytest.fixture
def triton(monkeypatch):
    """Tensors on the CPU go through the passes of a GPU, in the interpreter."""
    monkeypatch.setattr(foreach_triton, "BLOCK", 512)
    monkeypatch.setattr(foreach_triton, "CHUNK", 1024)
    ours = foreach.HostPasses

    def switch(on):
        monkeypatch.setattr(foreach, "HostPasses", DevicePasses if on else ours)

    return switch


def drawn(dtype, seed, sign=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * sign).to(dtype) for shape in SHAPES]


def same(made, right, dtype, ulps=4):
    for a, b in zip(made, right, strict=True):
        size = float(b.double().abs().max()) if b.numel() else 0.0
        worst = float((a.double() - b.double()).abs().max()) if b.numel() else 0.0
        assert worst <= ulps * torch.finfo(dtype).eps * max(size, 1.0), (worst, size)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("step", "amsgrad", "decay"),
    [
        (optim_steps.adamw_step, False, 0.1),
        (optim_steps.adam_step, True, 0.1),
        (optim_steps.adam_step, False, 0.0),
    ],
)
def test_adam(triton, dtype, step, amsgrad, decay):
    kept = []
    for on in (False, True):
        triton(on)
        p, m, v, x, e = (drawn(dtype, seed) for seed in (0, 1, 2, 3, 4))
        v, x = [t.abs() for t in v], [t.abs() for t in x]
        steps = [torch.tensor(float(i)) for i in range(len(p))]
        norms = []
        for turn, limits in enumerate(LIMITS):
            result = step(
                p, drawn(dtype, 10 + turn), m, v, steps, x if amsgrad else None, lr=0.02, weight_decay=decay,
                ema=e if turn % 2 else None, ema_decay=0.9, candidate="burnt", **limits,
            )  # fmt: skip
            assert not result.skipped
            norms.append(result.norm)
        assert [float(s) for s in steps] == [i + len(LIMITS) for i in range(len(p))]
        kept.append((p, m, v, x, e, norms))
    for theirs, ours in zip(*(k[:5] for k in kept), strict=True):
        same(ours, theirs, dtype)
    for theirs, ours in zip(kept[0][5], kept[1][5], strict=True):
        assert (theirs is None) == (ours is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}],
)
def test_sgd(triton, dtype, options):
    kept = []
    for on in (False, True):
        triton(on)
        p, e = drawn(dtype, 0), drawn(dtype, 4)
        buffers = [None, *drawn(dtype, 1)[1:3], None, None, None]
        for turn, limits in enumerate(LIMITS):
            optim_steps.sgd_step(
                p, drawn(dtype, 10 + turn), buffers, lr=0.1, ema=e if turn else None, ema_decay=0.3,
                candidate="burnt", **limits, **options,
            )  # fmt: skip
        kept.append((p, e, [] if buffers[0] is None else buffers))
    for theirs, ours in zip(*kept, strict=True):
        same(ours, theirs, dtype)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite(triton, bad):
    triton(True)
    p, g = drawn(torch.float32, 0), drawn(torch.float32, 1)
    g[3][30, 16] = bad
    m, v, counts = drawn(torch.float32, 2), drawn(torch.float32, 3), [torch.tensor(3.0) for _ in p]
    kept = [*p, *m, *v, *counts]
    before = [t.clone() for t in kept]
    result = optim_steps.adamw_step(
        p, g, m, v, counts, lr=0.1, grad_scale=torch.tensor(8.0), candidate="burnt"
    )
    assert result.skipped
    assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True))
    result = optim_steps.sgd_step(p, g, lr=0.1, max_norm=1.0, candidate="burnt")
    assert not result.skipped
    assert p[3].isnan().sum() == (1 if bad == math.inf else p[3].numel())


def test_gradient_norm_overflows(triton):
    triton(True)
    p, g = [torch.ones(2)], [torch.tensor([1e30, -1.0])]
    result = optim_steps.sgd_step(p, g, lr=1e-30, grad_scale=1.0, candidate="burnt")
    assert not result.skipped
    assert result.norm == math.inf
    assert p[0].tolist() == [0.0, 1.0]


def test_mixed_dtypes_and_unaligned_tensors(triton):
    kept = []
    for on in (False, True):
        triton(on)
        p = [torch.arange(9.0)[1:], torch.arange(5).bfloat16(), torch.arange(4).half()[3:], torch.ones(700)]
        result = optim_steps.sgd_step(p, [t.clone() for t in p], lr=0.5, max_norm=1.0, candidate="burnt")
        kept.append((p, result.norm))
    for theirs, ours in zip(kept[0][0], kept[1][0], strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(kept[0][1], kept[1][1])


MATRICES = [(1, 1), (7, 3), (16, 40), (0, 5), (61, 61)]
MUON = [
    {"momentum": 0.95, "weight_decay": 0.1, "nesterov": True},
    {"momentum": 0.3, "weight_decay": 0.0, "nesterov": False},
    {"momentum": 0.0, "weight_decay": 0.5, "nesterov": True, "adjust_lr_fn": "match_rms_adamw"},
]


def matrices(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in MATRICES]


@pytest.mark.sample(1, full=4)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("options", MUON, ids=lambda options: f"momentum {options['momentum']}")
def test_muon_by_its_definition(triton, monkeypatch, dtype, options):
    """Both of its kernels; the iteration between them is one for all devices, and left out here."""
    triton(True)
    monkeypatch.setattr(optim_steps, "orthogonalized", lambda update, *_: update)
    lr, averaging = 0.05, 0.9
    p, m, e = (matrices(dtype, seed) for seed in (0, 1, 2))
    kept = options["momentum"]
    for turn, limits in enumerate(LIMITS):
        g = matrices(dtype, 10 + turn)
        exact = [[t.double() for t in tensors] for tensors in (p, g, m, e)]
        averaged = turn % 2 == 1
        result = muon_step(
            p, g, m, lr=lr, ema=e if averaged else None, ema_decay=averaging, candidate="burnt", **options,
            **limits,
        )  # fmt: skip
        assert not result.skipped
        factor = 1 / limits.get("grad_scale", 1.0)
        norm = math.sqrt(sum(float(t.square().sum()) for t in exact[1])) * factor
        if "max_norm" in limits:
            factor *= min(1.0, limits["max_norm"] / (norm + 1e-6))
            torch.testing.assert_close(float(result.norm), norm, rtol=1e-3, atol=0)
        for i, (x, gradient, mean, average) in enumerate(zip(*exact, strict=True)):
            rows, columns = x.shape
            mean = kept * mean + (1 - kept) * gradient * factor
            update = kept * mean + (1 - kept) * gradient * factor if options["nesterov"] else mean
            rate = lr * math.sqrt(max(1.0, rows / columns))
            if "adjust_lr_fn" in options:
                rate = lr * 0.2 * math.sqrt(max(rows, columns))
            x = x * (1 - lr * options["weight_decay"]) - rate * update
            same([m[i], p[i]], [mean, x], dtype)
            same([e[i]], [averaging * average + (1 - averaging) * x if averaged else average], dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_muon_compared_with_the_cpu(triton, dtype):
    kept = []
    for on in (False, True):
        triton(on)
        p, m, e = (matrices(dtype, seed) for seed in (0, 1, 2))
        for turn, limits in enumerate(LIMITS):
            muon_step(p, matrices(dtype, 10 + turn), m, lr=0.05, ema=e, candidate="burnt", **limits)
        kept.append((p, m, e))
    for theirs, ours in zip(*kept, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            # The iteration is in bfloat16, whose steps one of the updates may have crossed.
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_muon_skips_a_nonfinite_gradient(triton):
    triton(True)
    p, g, m = (matrices(torch.float32, seed) for seed in (0, 1, 2))
    g[2][3, 30] = math.nan
    before = [t.clone() for t in (*p, *m)]
    assert muon_step(p, g, m, lr=0.1, grad_scale=8.0, candidate="burnt").skipped
    assert all(torch.equal(a, b) for a, b in zip((*p, *m), before, strict=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("update", "options"), CASES, ids=IDS)
def test_every_formula(triton, update, options, dtype):
    kept = []
    for on in (False, True):
        triton(on)
        params, states, scalars = begin(update, options, dtype)
        average = drawn_for_formula(dtype, 9)
        bad = drawn_for_formula(dtype, 30)
        bad[3][30, 16] = math.nan
        clipped = {"ema": average, "ema_decay": 0.75, "max_norm": 2.5, "grad_scale": 2.0}
        for grads, settings in (
            (drawn_for_formula(dtype, 31), {}),
            (bad, {"grad_scale": 2.0}),
            (drawn_for_formula(dtype, 32), clipped),
        ):
            result = optim_steps.update_step(
                update.name, update, params, grads, states, scalars, lr=0.05, candidate="burnt", **options,
                **settings,
            )  # fmt: skip
            assert bool(result.skipped) == (grads is bad)
        for column in scalars.values():
            assert all(s.isfinite() for s in column)
        kept.append((*states.values(), params, average, *scalars.values()))
    for theirs, ours in zip(*kept, strict=True):
        if theirs[0].dim() == 0:
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
        else:
            same(ours, theirs, dtype, ulps=8)  # a variance is a difference


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)], ids=str
)
def test_lamb(triton, dtype):
    kept = []
    for on in (False, True):
        triton(on)
        p, m, v = drawn(dtype, 0), drawn(dtype, 1), [t.abs() for t in drawn(dtype, 2)]
        steps = [torch.ones(()) for _ in p]
        for turn, limits in enumerate(LIMITS):
            result = lamb_step(p, drawn(dtype, 10 + turn), m, v, steps, lr=0.05, weight_decay=0.1, **limits)
            assert result.by == "burnt"
        kept.append((p, m, v, steps))
    for theirs, ours in zip(*kept, strict=True):
        same(ours, theirs, dtype)


TRAINED = {
    "adamw": (lambda: optim.AdamW(amsgrad=True), partial(torch.optim.AdamW, amsgrad=True)),
    "sgd": (
        lambda: optim.Sgd(momentum=0.9, dampening=0.5, weight_decay=0.1),
        partial(torch.optim.SGD, momentum=0.9, dampening=0.5, weight_decay=0.1),
    ),
}


@pytest.mark.sample(keep=("adamw",))
@pytest.mark.parametrize("kind", TRAINED)
def test_an_optimizer_whose_tensors_change(triton, kind):
    """What an optimizer found out in a step is used in the next for the same tensors only."""
    triton(True)
    make, make_torch = TRAINED[kind]
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (16, 16), "b": (31, 17), "c": (7,), "d": (16, 2)}
    params = {name: torch.nn.Parameter(torch.randn(s, generator=generator)) for name, s in shapes.items()}
    theirs = {name: torch.nn.Parameter(p.detach().clone()) for name, p in params.items()}
    ours, reference = make(), make_torch(theirs.values(), lr=0.05)
    averages, expected = ({name: p.detach().clone() for name, p in params.items()} for _ in range(2))

    def step(by="burnt", without=(), change=lambda grads: grads):
        for _ in range(2):  # checked, and as in the step before
            grads = {n: torch.randn(p.shape, generator=generator) for n, p in params.items()}
            for name, p in theirs.items():
                p.grad = None if name in without else grads[name].clone()
            torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
            reference.step()
            grads = change({name: grad for name, grad in grads.items() if name not in without})
            result = ours.step(0.05, params, grads, clip_norm=0.5, ema=averages, ema_decay=0.75)
            assert result.by.startswith(by)
            for name, p in params.items():
                torch.testing.assert_close(p, theirs[name], rtol=1e-5, atol=1e-6)
                expected[name].lerp_(theirs[name].detach(), 0.25)
                torch.testing.assert_close(averages[name], expected[name], rtol=1e-5, atol=1e-6)

    step()
    keep = [p.data for p in params.values()]  # so that their memory is not what is allocated next
    for p in params.values():
        p.data = p.data.clone()
    step()
    params["b"].data = torch.cat([torch.zeros(1), params["b"].data.flatten()])[1:].view(31, 17)  # unaligned
    step()
    step(without="b")
    step()
    step(
        change=lambda grads: {
            name: torch.cat([torch.zeros(1), g.flatten()])[1:].view_as(g) for name, g in grads.items()
        }
    )
    step(change=lambda grads: {name: g.t().contiguous().t() for name, g in grads.items()})
    step(change=lambda grads: {name: torch._neg_view(-g) for name, g in grads.items()})
    params["a"].requires_grad_(False)
    step()
    averages["a"] = averages["a"].clone()
    step()
    transposed = params["a"].data.t().contiguous().t()  # of the same shape
    params["a"].data, keep = transposed, [*keep, params["a"].data]
    step(by="torch: a state with other strides")
    params["a"].data = params["a"].data.contiguous()
    step()
    for state in ours._state.values():
        for name, value in state.items():
            state[name] = value.clone()
            value.fill_(math.nan)
    step()
    before = ours
    ours, params, averages = copy.deepcopy((ours, params, averages))
    for state in before._state.values():
        for value in state.values():
            value.fill_(math.nan)
    step()
    ours.load_record(pickle.loads(pickle.dumps(ours)).into_record())
    step()
    with pytest.raises(InputRuntimeError, match=r"grads of .* does not match the parameters"):
        ours.step(0.05, params, {"c": torch.zeros(7).bfloat16()}, clip_norm=0.5)
    params, theirs = dict(params), dict(theirs)
    params["e"], theirs["e"] = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    averages["e"], expected["e"] = torch.ones(5), torch.ones(5)
    reference.add_param_group({"params": [theirs["e"]]})
    step()


@pytest.mark.parametrize("make", [optim.Lamb, optim.Muon, optim.ScheduleFreeAdamW])
def test_repeated_steps_compared_with_the_cpu(triton, make):
    """Of optimizers with tensors that live for a step, or that are exchanged between steps."""
    results = []
    for on in (False, True):
        triton(on)
        generator = torch.Generator().manual_seed(0)
        params = {str(i): torch.nn.Parameter(torch.randn(16, 9, generator=generator)) for i in range(3)}
        optimizer = make()
        for turn in range(6):
            grads = {name: torch.randn(16, 9, generator=generator) for name in params}
            assert optimizer.step(0.1 / (1 + turn), params, grads, clip_norm=0.5).by == "burnt"
            if turn == 3:
                optimizer.eval(params)
                optimizer.train(params)
        results.append([p.detach() for p in params.values()])
    loose = {"rtol": 0.02, "atol": 0.02} if make is optim.Muon else {}  # its iteration is in bfloat16
    torch.testing.assert_close(*results, **loose)
