"""Trainings on a GPU: accumulation, float16, pinned batches, checkpoints in the background, replay.

`pytest tests/gpu --device cpu` rehearses them on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from burnt import kernels, nn, optim
from burnt.data import Batch, Loader, Mover, TensorDataset
from burnt.train import KeepLast, Learner, StepOutput, SupervisedTraining, replay
from burnt.train.checkpoints.checkpoint import copied_tensors
from tests.gpu.test_device import Classifier, classifier, data, training

pytestmark = pytest.mark.gpu


def parameters(model: torch.nn.Module) -> list[Tensor]:
    return [p.detach().double().cpu() for p in model.parameters()]


def smooth() -> Classifier:
    torch.manual_seed(0)
    return Classifier([nn.Linear(9, 33), nn.LayerNorm(33), nn.Gelu(), nn.Linear(33, 3)])


@pytest.mark.parametrize("fused", [False, True])
def test_accumulated_steps_are_those_of_large_batches(
    fused: bool, device: torch.device, tmp_path: Path
) -> None:
    optimizer = optim.AdamW if fused else lambda: optim.Sgd(momentum=0.9)
    results = []
    for accumulate in (4, 1):
        learner = Learner(smooth(), optimizer(), 1e-2)
        loader = Loader(data(), 64 // accumulate, shuffle=True, seed=3)
        folder = tmp_path / str(accumulate)
        training(folder, device, "2 epochs", train=loader, accumulate=accumulate, clip_norm=0.5).run(learner)
        results.append(parameters(learner.model))
    # Adam divides by the root of small numbers: an error of the gradient grows there.
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=2e-4 if fused else 2e-6)


PRECISIONS = ("float16", "bfloat16 whole", "tf32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_learns_in_every_precision(precision: str, device: torch.device, tmp_path: Path) -> None:
    learner = Learner(classifier(), optim.AdamW(), 1e-2)
    result = training(tmp_path, device, "8 epochs", precision=precision, clip_norm=1.0).run(learner)
    stored = torch.bfloat16 if precision == "bfloat16 whole" else torch.float32
    norm = learner.model.layers[1]  # stays in float32
    assert {p.dtype for p in norm.parameters()} == {torch.float32}
    assert {p.dtype for p in learner.model.parameters()} == {stored, torch.float32}
    assert result.values["valid/accuracy"] > 0.9


@pytest.mark.parametrize("precision", PRECISIONS)
def test_everything_at_once_resumes_bit_for_bit(precision: str, device: torch.device, tmp_path: Path) -> None:
    """Pinned batches of two threads, windows of 3, checkpoints in the background, a stop in an epoch."""

    def run(folder: str, duration: str, *, resume: bool = False) -> dict[str, Tensor]:
        learner = Learner(classifier(), optim.Ema(optim.AdamW(), decay=0.9), optim.Cosine(1e-2, steps=12))
        loader = Loader(data(), 24, shuffle=True, seed=3, workers="2 threads", prefetch=2, pin=True)
        result = training(
            tmp_path / folder, device, duration, train=loader, accumulate=3, precision=precision,
            checkpoints=[KeepLast(2)], checkpoint_every="2 steps", async_checkpoints=True, resume=resume,
            clip_value=0.5,
        ).run(learner)  # fmt: skip
        return {**result.model.state_dict(), **learner.optimizer.into_record().tensors}

    whole = run("whole", "9 steps")
    halves = run("halves", "5 steps")
    assert not torch.equal(halves["layers.0.weight"], whole["layers.0.weight"])
    halves = run("halves", "9 steps", resume=True)
    assert whole.keys() == halves.keys()
    for name, value in whole.items():
        assert torch.equal(value, halves[name]), name


def overflowing(model: torch.nn.Module, batch: Batch) -> StepOutput:
    """The loss of the tenth batch is not finite."""
    logits = model(batch.x)
    loss = torch.nn.functional.cross_entropy(logits, batch.y)
    return StepOutput(loss * torch.where(batch.bad.any(), torch.inf, 1.0), logits, batch.y)


def with_one_bad_sample() -> TensorDataset:
    whole = everything()
    bad = torch.zeros(len(whole.x), dtype=torch.bool)
    bad[150] = True
    return TensorDataset(x=whole.x, y=whole.y, bad=bad)


def everything() -> Batch:
    return next(iter(Loader(data(), len(data())).epoch(0)))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_step_that_is_not_finite_is_skipped(precision: str, device: torch.device, tmp_path: Path) -> None:
    learner = Learner(classifier(), optim.AdamW(), 1e-2, overflowing)
    SupervisedTraining(
        tmp_path, train=Loader(with_one_bad_sample(), 16), duration="8 epochs", monitor="off", device=device,
        precision=precision, on_nan="skip",
    ).run(learner)  # fmt: skip
    assert all(p.isfinite().all() for p in learner.model.parameters())
    learner.model.eval()
    predicted = learner.model(everything().x.to(device)).argmax(-1)
    assert (predicted.cpu() == everything().y).float().mean() > 0.85


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_checkpointed_activations_change_nothing(
    precision: str, device: torch.device, tmp_path: Path
) -> None:
    results = []
    for pattern in (None, "layers.*"):
        learner = Learner(classifier(), optim.Sgd(), 1e-2)
        options = {"checkpoint_activations": pattern, "precision": precision, "clip_norm": 1.0}
        training(tmp_path / str(pattern).replace("*", "all"), device, "10 steps", **options).run(learner)
        results.append(parameters(learner.model))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_step_of_a_training_is_replayed_to_the_bit(device: torch.device, tmp_path: Path) -> None:
    def prepared() -> tuple[SupervisedTraining, Learner]:
        options = {"checkpoints": [KeepLast(2)], "checkpoint_every": "3 steps", "log_every": 1}
        return training(tmp_path, device, "10 steps", **options), Learner(classifier(), optim.AdamW(), 1e-2)

    first, learner = prepared()
    first.run(learner)
    report = replay(*prepared(), 8)
    assert report.step.step == 8
    assert report.compared > 0
    assert report.difference is None


def test_pinned_batches_arrive_whole_while_the_device_computes(device: torch.device) -> None:
    """A copy on a stream of its own must be waited for, and its memory must not be taken early."""
    x = torch.arange(64 * 100_000, dtype=torch.float32).reshape(64, -1)
    loader = Loader(TensorDataset(x=x), 4, pin=True, prefetch=3, workers="2 threads")
    work, mover, sums = torch.randn(1024, 1024, device=device), Mover(device), []
    for epoch in range(3):
        for batch in loader.epoch(epoch):
            moved = mover(batch)
            for _ in range(5):
                work = torch.tanh(work @ work)
            sums.append(moved.x.double().sum())
            del moved
    expected = [part.double().sum() for part in x.split(4)] * 3
    assert [float(s) for s in sums] == [float(e) for e in expected]


def test_copies_for_a_checkpoint_do_not_follow_the_training(device: torch.device) -> None:
    tensors = {str(i): torch.full((300, 301), float(i), device=device).t() for i in range(20)}
    copies = copied_tensors(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(copy.device.type == "cpu" for copy in copies.values())
    assert all((copies[str(i)] == i).all() for i in range(20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_groups_against_float64(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(300, 128), torch.randn(4, 128, 64)
    ends = torch.tensor([100, 100, 260, 290])
    grad = torch.randn(300, 64)

    def results(place: torch.device, dtype: torch.dtype) -> list[Tensor]:
        given = [t.to(place, dtype).requires_grad_() for t in (a, b)]
        output = kernels.grouped_matmul(*given, ends.to(place))
        gradients = torch.autograd.grad(output, given, grad.to(place, dtype))
        return [t.detach().double().cpu()[:290] for t in (output, *gradients)]

    exact = results(torch.device("cpu"), torch.float64)
    for got, want in zip(results(device, dtype), exact, strict=True):
        limit = 2 * torch.finfo(dtype).eps * want.abs().max() + 1e-4
        assert (got - want).abs().max() <= limit * (1 if dtype == torch.bfloat16 else 10)
