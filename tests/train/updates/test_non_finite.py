"""Losses and gradients that are not finite: skipped, stopped at, named."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import NonFiniteError, UnsupportedError
from burnt.train import KeepLast, Learner, RunReader, StepOutput
from burnt.train.metrics import Accuracy
from tests.train.cases import bare, refused, supervised

BAD = (6, 13)
"""Items with bad values."""


def data(bad=BAD, value=math.nan) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, 4, generator=generator)
    y = torch.randint(2, (16,), generator=generator)
    x[list(bad)] = value
    return TensorDataset(x=x, y=y)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def step(model, batch) -> StepOutput:
    logits = model(batch.x)
    return StepOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def steep(model, batch) -> StepOutput:
    """A finite loss, with gradients that are infinite where the first feature is 9."""
    output = step(model, batch)
    weight = next(model.parameters()).flatten()[0]
    # The derivative of a root at 0 is infinite.
    steep = torch.sqrt(weight - weight.detach()) if (batch.x == 9).any() else 0.0
    return StepOutput(output.loss + steep, output.outputs, output.targets)


def train(folder, how=step, optimizer=None, model=None, **settings):
    batches = Loader(data(), 2, shuffle=True, seed=5)
    defaults = {"train": batches, "duration": "2 epochs", "metrics": [Accuracy()], "log_every": 1}
    training = supervised(folder, {**defaults, "monitor": "plain"}, **settings)
    return training.run(Learner(model or net(), optimizer or optim.AdamW(), 0.01, step=how))


def bad_steps(epochs: int = 2, accumulate: int = 1) -> list[int]:
    """The steps with a bad item in their window, from 1."""
    loader = Loader(data(), 2, shuffle=True, seed=5)
    orders = [loader.order(epoch).split(2 * accumulate) for epoch in range(epochs)]
    windows = [set(part.tolist()) for parts in orders for part in parts]
    return [number for number, items in enumerate(windows, 1) if items & set(BAD)]


def without_bad(accumulate: int) -> nn.Module:
    """The model that a loop by hand trains, which leaves out the windows with bad items."""
    model, optimizer = net(), optim.AdamW()
    loader = Loader(data(), 2, shuffle=True, seed=5)
    for epoch in range(2):
        for indices in loader.order(epoch).split(2 * accumulate):
            if set(indices.tolist()) & set(BAD):
                continue
            grads = [torch.zeros_like(p) for p in model.parameters()]
            for part in indices.split(2):
                batch = loader.dataset.take(part)
                loss = step(model, batch).loss
                for total, g in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                    total += g * len(part) / len(indices)
            named = dict(model.named_parameters())
            optimizer.step(0.01, named, dict(zip(named, grads, strict=True)))
    return model


@pytest.mark.sample(1)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipped_steps_change_nothing(tmp_path, accumulate, capsys):
    result = train(tmp_path / "run", on_nan="skip", accumulate=accumulate)
    assert result.reason == "finished"
    assert result.position.step == 16 // accumulate  # skipped steps count
    for ours, expected in zip(
        result.model.state_dict().values(), without_bad(accumulate).state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, expected)  # running statistics too
    assert math.isfinite(result.values["train/loss"])
    assert math.isfinite(result.values["train/accuracy"])
    skipped = bad_steps(accumulate=accumulate)
    with RunReader(tmp_path / "run") as run:
        events = run.events("non_finite")
        assert [event.step for event in events] == skipped
        assert run.points("skipped_steps").values[-1] == len(skipped)
    loader = Loader(data(), 2, shuffle=True, seed=5)
    for event in events:
        (batch,) = event.data["batches"]  # only the micro-batch that is bad
        assert event.data["samples"] == loader.samples(event.data["epoch"] - 1, batch - 1)
        assert set(event.data["samples"]) & set(BAD)
        assert (event.data["what"], event.data["value"], event.data["policy"]) == ("the loss", "nan", "skip")
    out = capsys.readouterr().out
    first = events[0]
    samples = ", ".join(map(str, first.data["samples"]))
    assert (
        f"Skipped step {first.step}, epoch 1, batch {first.data['batches'][0]}, samples {samples}: "
        "the loss is nan." in out
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("cls", [optim.AdamW, bare(optim.AdamW), lambda: optim.Ema(optim.AdamW())])
@pytest.mark.parametrize("clip", [{}, {"clip_value": 0.1}, {"clip_norm": 0.1}])
def test_gradients_are_looked_at_too(tmp_path, cls, clip):
    loader = Loader(data(value=9.0), 2, shuffle=True, seed=5)
    result = train(tmp_path / "run", steep, cls(), train=loader, on_nan="skip", **clip)
    assert all(p.isfinite().all() for p in result.model.parameters())
    with RunReader(tmp_path / "run") as run:
        events = run.events("non_finite")
        assert [event.step for event in events] == bad_steps()
        assert {event.data["what"] for event in events} == {"a gradient"}
        assert {event.data["value"] for event in events} == {"nan or infinite"}


class Assigning(nn.Module):
    """Keeps statistics in a buffer that it assigns anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_buffers_that_are_assigned_are_put_back(tmp_path, accumulate):
    model, loader = Assigning(), Loader(data(), 2)
    train(tmp_path, model=model, train=loader, on_nan="skip", accumulate=accumulate, duration="1 epoch")
    with RunReader(tmp_path) as reader:
        # A bad micro-batch does not spoil the ones after it.
        batches = [event.data["batches"] for event in reader.events("non_finite")]
    assert batches == [[4], [7]]
    assert model.mean.isfinite().all()


def test_callbacks_get_each_step_with_the_output_of_its_last_batch(tmp_path):
    seen = []

    class Seen:
        def on_step(self, event):
            torch.testing.assert_close(event.output.targets, event.batch.y)
            seen.append((event.training.position.step, event.skipped, bool(event.output.loss.isfinite())))

    settings = {"train": Loader(data(), 2), "duration": "1 epoch", "callbacks": [Seen()]}
    train(tmp_path, on_nan="skip", accumulate=2, **settings)
    # Items 6 and 13 are in the batches 4 and 7, from 1.
    assert seen == [(1, False, True), (2, True, False), (3, False, True), (4, True, True)]


def test_stop_saves_the_last_good_parameters(tmp_path):
    result = train(tmp_path / "run", on_nan="stop", checkpoints=[KeepLast(1)])
    first = bad_steps()[0]
    assert result.reason == "stopped by a step that was not finite"
    assert (result.position.step, result.checkpoints[-1].position.step) == (first, first)
    assert all(p.isfinite().all() for p in result.model.state_dict().values())
    with RunReader(tmp_path / "run") as run:
        (attempt,) = run.attempts()
    assert (attempt.end_state, attempt.end_reason) == ("stopped", result.reason)
    # It goes on behind the bad batch, as a training that skips.
    resumed = train(tmp_path / "run", on_nan="skip", checkpoints=[KeepLast(1)], resume=True)
    skipping = train(tmp_path / "skipping", on_nan="skip")
    for p, q in zip(resumed.model.parameters(), skipping.model.parameters(), strict=True):
        assert torch.equal(p, q)
    with RunReader(tmp_path / "run") as run:
        assert run.points("skipped_steps").values[-1] == len(bad_steps())


def test_the_error_names_step_and_samples(tmp_path):
    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path / "run", log_every=50)
    first = bad_steps()[0]
    samples = Loader(data(), 2, shuffle=True, seed=5).samples(0, first - 1)
    assert f"step {first}, epoch 1, batch {first}, samples {samples[0]}, {samples[1]}" in str(caught.value)
    assert (caught.value.steps, caught.value.samples) == ((first, first), samples)
    with RunReader(tmp_path / "run") as run:
        (event,) = run.events("error")
    assert (event.data["first_step"], event.data["samples"]) == (first, samples)


def test_a_loader_need_not_know_its_samples(tmp_path, capsys):
    batches = list(Loader(data(), 2, shuffle=True, seed=5).epoch(0))
    train(tmp_path / "run", train=batches, duration="1 epoch", on_nan="skip")
    with RunReader(tmp_path / "run") as run:
        assert {json.dumps(event.data["samples"]) for event in run.events("non_finite")} == {"null"}
    assert "samples" not in capsys.readouterr().out.split("Skipped", 1)[1].split(":")[0]


def test_many_in_a_row_end_the_training(tmp_path, capsys):
    with refused(
        NonFiniteError,
        "100 steps in a row were skipped\n  in        step 100, epoch 13, batch 4",
        "hint      the parameters are finite, so look at the data and at the loss",
    ):
        train(
            tmp_path / "run",
            train=Loader(data(range(16)), 2),
            duration="99 epochs",
            on_nan="skip",
            log_every=7,
        )
    out = capsys.readouterr().out
    assert out.count("Skipped step") == 5
    assert "Further ones are events of the run." in out


def test_an_optimizer_with_closures_skips_no_step(tmp_path):
    with refused(UnsupportedError, "cannot skip one", "on_nan='stop'"):
        train(tmp_path / "run", optimizer=optim.Lbfgs(), on_nan="stop")
