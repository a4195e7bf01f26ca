"""Verification of compiled graphs: what it accepts, and that it can fail."""

import math
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import burnt
from burnt import optim
from burnt.codegen.lower import LOWERINGS
from burnt.codegen.verification import Difference, Verification, compare, interval_of, listeners
from burnt.errors import FusionError, FusionWarning, InputValueError
from burnt.fusion import backend
from burnt.store import RunReader
from burnt.train import ClassificationOutput, Learner
from tests.train.cases import labelled, supervised

aten = torch.ops.aten
BROKEN = "computes something else than torch"


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


@pytest.fixture
def tanh_is_sin(monkeypatch):
    monkeypatch.setitem(LOWERINGS, aten.tanh.default, LOWERINGS[aten.sin.default])


@pytest.fixture
def found():
    """The errors of sampled calls."""
    errors = []
    listeners.append(errors.append)
    yield errors
    listeners.remove(errors.append)


class Drawing(nn.Module):
    """Numbers drawn plainly, by dropout and under checkpoint, and a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.norm, self.part = nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x):
        x = self.norm(x + 0.1 * torch.randn(16, 6) + nn.functional.dropout(x, 0.3))
        return checkpoint(self.part, x, use_reentrant=False)


def test_random_numbers_of_the_reference_are_the_plans(found):
    plain, x = Drawing(), torch.randn(16, 6)
    model = burnt.compile(plain, verify=1 / 2)
    results = []
    for _ in range(2):  # verified, and not
        plain.norm.reset_running_stats()
        torch.manual_seed(3)
        result = model(x)
        gradients = torch.autograd.grad(result.cos().sum(), list(plain.parameters()))
        state = [result, *gradients, *plain.norm.buffers(), torch.get_rng_state()]
        results.append([t.clone() for t in state])
    assert all(map(torch.equal, *results))
    assert [next(iter(errors)).rpartition("_")[2] for errors in found] == ["forward", "size0"]
    assert all(0 < error < 1e-4 for errors in found for error in errors.values())


def test_a_broken_lowering_is_reported(tanh_is_sin):
    model = burnt.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), verify=True)
    with pytest.raises(FusionError, match=rf"graph\d+_inference {BROKEN}") as error, torch.no_grad():
        model(torch.randn(3, 4))
    assert "result 0, tanh, torch.float32 [3, 4]" in str(error.value)
    assert re.search(r"off by \S+ of the largest number, where \S+ is allowed", str(error.value))
    with torch.no_grad():
        model(torch.randn(3, 4))  # only new plans are compared


def test_a_broken_pass_is_reported(monkeypatch):
    def broken(graph):
        for node in graph.find_nodes(op="call_function", target=aten.tanh.default):
            node.target = aten.sin.default

    monkeypatch.setattr(backend, "run_passes", broken)
    with pytest.raises(FusionError, match=BROKEN):
        burnt.compile(lambda x: x.tanh(), verify=True)(torch.randn(5))


def test_a_broken_backward_and_a_broken_change_in_place_are_reported(monkeypatch):
    monkeypatch.setitem(LOWERINGS, aten.cos.default, LOWERINGS[aten.exp.default])
    result = burnt.compile(lambda x: x.sin(), verify=True)(torch.randn(5, requires_grad=True))
    with pytest.raises(FusionError, match=rf"graph\d+_backward {BROKEN}"):
        result.sum().backward()
    changed = torch.randn(5)
    with pytest.raises(FusionError, match=BROKEN) as error:
        burnt.compile(lambda x, y: x.copy_(y.cos()) is None, verify=True)(changed, torch.randn(5))
    assert "changed argument, " in str(error.value)


def test_a_sample_is_logged_in_the_run_and_warns(tmp_path, tanh_is_sin, capsys):
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())

    def step(model, batch):
        logits = model(batch.x)
        return ClassificationOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

    learner = Learner(model, optim.Sgd(), 0.1, step, compile={"verify": 1 / 2})
    settings = {"train": labelled(16, 4), "duration": "4 steps", "log_every": 1}
    with pytest.warns(FusionWarning, match=BROKEN):
        supervised(tmp_path / "run", settings).run(learner)
    with RunReader(tmp_path / "run") as run:
        series = [one for one in run.series() if one.name.startswith("verify/graph")]
        (forward,) = [one for one in series if one.name.endswith("_forward")]
        points = run.points(*forward)
        assert points.steps == [1, 3]  # of four calls
        assert all(0.01 < value < 1 for value in points.values)
        assert any(BROKEN in line.text and line.level == "warning" for line in run.log_lines())
    from burnt.cli import main

    assert main(["runs", "show", str(tmp_path / "run")]) == 0
    assert f"train/{forward.name}" in capsys.readouterr().out


def test_fused_functions_are_verified_forward_and_backward(found, monkeypatch):
    def plain(x, scale, p):
        x.mul_(0.5)
        return torch.tanh(nn.functional.dropout(x, p) * scale).sum(-1), x.exp()

    def differentiable(x, scale, p):
        return torch.tanh(nn.functional.dropout(x * 0.5, p) * scale).sum(-1), x.exp()

    burnt.fuse(plain, verify=1.0)(torch.randn(4, 8), 1.5, 0.3)
    fused = burnt.fuse(differentiable, verify=1 / 2)
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(3):  # the second is not verified
        first, second = fused(x, 1.5, 0.3)
        (first.sum() + second.mean()).backward()
    assert [*map(list, found)] == [
        ["verify/plain"],
        *[["verify/differentiable"], ["verify/differentiable_backward"]] * 2,
    ]
    assert all(0 < error < 1e-6 for errors in found for error in errors.values())
    monkeypatch.setitem(LOWERINGS, aten.exp.default, LOWERINGS[aten.cos.default])
    with pytest.raises(FusionError, match=f"plain {BROKEN}"):
        burnt.fuse(verify=True)(plain)(torch.randn(4, 8), 1.5, 0.3)
    with pytest.raises(InputValueError, match=r"in +burnt\.fuse"):
        burnt.fuse(plain, verify=3)


def test_numbers_that_torch_draws_are_not_verified():
    with pytest.warns(FusionWarning, match="is not verified, as torch draws random numbers: aten.randperm"):
        burnt.compile(lambda x: x[torch.randperm(5)].tanh(), verify=True)(torch.randn(5))


def test_what_a_comparison_accepts():
    theirs = torch.linspace(-1, 1, 1000)
    exact = theirs.double()
    assert compare([theirs], [theirs], [exact]) == Difference(0, 0.0, 1.0)
    off = theirs.clone()
    off[7] += 1e-4
    position, error, tolerance = compare([theirs, off], [theirs, theirs], [exact, exact])
    assert position == 1
    assert error == pytest.approx(1e-4, rel=1e-2)
    assert tolerance < 1e-5
    # torch's own result is as far from float64.
    assert (worst := compare([off], [off.clone()], [exact])).error < worst.tolerance
    # Rounding decides near-ties, and not more.
    flipped = (theirs > 0).clone()
    flipped[:5] = True
    for many, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        pair = [flipped, theirs.to(dtype)], [theirs > 0, theirs.to(dtype)]
        worst = compare(*pair, None)
        assert (worst.error > worst.tolerance) is many
    for wrong in (theirs[:-1], theirs.double(), None, torch.where(theirs > 0.5, math.nan, theirs)):
        assert compare([wrong], [theirs], [exact]).error == math.inf
    infinite = torch.tensor([1.0, math.inf])
    assert compare([infinite], [infinite.clone()], None).error == 0
    assert compare([torch.tensor([1.0, 3e38])], [infinite], None).error == math.inf
    # What is infinite in float64 alone: torch rounds a divisor off zero, too.
    assert compare([torch.ones(2)], [torch.ones(2)], [infinite.double()]).error == 0


def test_which_calls_are_verified():
    assert [interval_of(value, "here") for value in (False, True, 1, 1 / 3, 1 / 1000)] == [
        None,
        0,
        1,
        3,
        1000,
    ]
    for wrong in (0, -1, 2.0, "often"):
        with pytest.raises(InputValueError, match=r"verify= is not understood(?s:.*)1/1000"):
            burnt.compile(nn.Identity(), verify=wrong)
    for interval, due in ((0, [0]), (1, [0, 1, 2, 3]), (3, [0, 3])):
        verification = Verification("f", interval)
        assert [call for call in range(4) if verification.is_due()] == due
