"""replay: a step is run again bit for bit, and the first values that are not finite are found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import ConfigError, NonFiniteError, RunError
from burnt.train import Checkpoints, Learner, RunReader, StepOutput, SupervisedTraining, replay
from tests.train import exact


class Probe(nn.Module):
    """Two layers, and what an argument does to the values between them at step `at`."""

    def __init__(self, spoil, at):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)
        self.spoil, self.at, self.calls = spoil, at, 0

    def forward(self, x):
        self.calls += self.training
        hidden = self.first(x)
        return self.second(self.spoil(hidden) if self.calls == self.at else hidden)


class Infinite(nn.Module):
    def forward(self, x):
        return x / 0


class SteepRoot(nn.Module):
    """A root whose gradient is infinite where its value is 0."""

    def forward(self, x):
        return (x * 0).clamp(min=0).sqrt()


def step(model, batch):
    return StepOutput(loss=(model(batch.x) - batch.y).square().mean(), targets=batch.y)


def prepared(folder, model, **settings):
    torch.manual_seed(0)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
    train = Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), 4)
    training = SupervisedTraining(
        folder, train=train, duration="3 epochs", monitor="off", device="cpu", check=False, log_every=1,
        checkpoint_every="2 steps", **settings,
    )  # fmt: skip
    return training, Learner(model(), optim.Sgd(), 1e-2, step)


class Spoilt(Probe):
    def __init__(self, inside, at=5):
        super().__init__(None, at)
        self.between = inside
        self.spoil = inside


@pytest.mark.parametrize(
    ("inside", "layer", "text"),
    [
        (Infinite, "between", "the output of between (Infinite): 12 of 12 values"),
        (SteepRoot, "between", "the gradient from between (SteepRoot): 12 of 12 values"),
    ],
)
def test_the_first_layer_that_is_not_finite_is_named(tmp_path, inside, layer, text):
    training, learner = prepared(tmp_path, lambda: Spoilt(inside()))
    with pytest.raises(NonFiniteError) as caught:
        training.run(learner)
    assert "burnt.train.replay(training, learner, " in str(caught.value)
    # The steps are counted by the module, which a checkpoint does not know.
    start = Checkpoints(tmp_path / "checkpoints").saved()[-1].position.step
    report = replay(*prepared(tmp_path, lambda: Spoilt(inside(), at=5 - start)), (start + 1, 6))
    assert (report.step.step, report.step.layer, report.step.non_finite) == (5, layer, text)
    assert report.start == "step-00000004"
    assert report.step.samples == [4, 5, 6, 7]


def test_a_loss_that_is_not_finite_though_the_layers_are(tmp_path):
    def broken(model, batch):
        return StepOutput(loss=model(batch.x).mean() * float("inf"), targets=batch.y)

    for _ in range(2):
        training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()), resume=True)
        learner.step = broken
        with pytest.raises(NonFiniteError):
            training.run(learner)
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    learner.step = broken
    report = replay(training, learner, 1)
    assert report.step.non_finite == "the loss, from finite outputs of the layers"
    assert "not finite     the loss" in str(report)


@pytest.mark.sample(keep=("validations",))
@pytest.mark.parametrize("setting", exact.SETTINGS)
def test_every_step_of_a_run_is_repeated_bit_for_bit(tmp_path, setting):
    exact.run(tmp_path, setting, checkpoint_every="3 steps")
    with RunReader(tmp_path) as reader:
        last = reader.progress().step
    for number in (1, last // 2, last):
        report = exact.replayed(tmp_path, setting, number)
        assert report.difference is None
        assert report.step.step == number
        assert len(report.step.losses) == len(report.step.batches)
        assert len(report.step.batches) <= exact.SETTINGS[setting]().get("accumulate", 1)


def test_a_step_that_raises_is_reported_with_its_samples(tmp_path):
    def failing(model, batch):
        if model.training and batch.x[0, 0] == x[8, 0] and broken:
            raise ValueError("no such class")
        return step(model, batch)

    broken = True
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    x = training.train.dataset.take(torch.arange(12)).x
    learner.step = failing
    with pytest.raises(ValueError, match="no such class"):
        training.run(learner)
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    learner.step = failing
    report = replay(training, learner, 3)
    assert report.step.error == "ValueError: no such class"
    assert report.step.samples == [8, 9, 10, 11]
    assert "raised         ValueError: no such class" in str(report)


@pytest.mark.full
def test_a_learning_rate_that_a_command_set_is_that_of_the_replay(tmp_path):
    class Faster:
        def on_step(self, event):
            if event.training.position.step == 5 and sent:
                control = event.training.control
                control.override, control.override_factor = 0.5, None
                event.training.writer.event("learning_rate", 5, value=0.5)

    sent = True
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()), callbacks=[Faster()])
    training.checkpoint_every = type(training.checkpoint_every).parse("1 epoch")
    training.run(learner)
    sent = False
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    report = replay(training, learner, 8)
    assert (report.start, report.step.learning_rate, report.difference) == ("step-00000006", 0.5, None)
    report = replay(*prepared(tmp_path, lambda: Spoilt(nn.Identity())), 6)
    assert (report.start, report.step.learning_rate, report.difference) == (None, 0.5, None)


def test_another_program_differs(tmp_path):
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    training.run(learner)
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    learner.schedule = optim.Constant(2e-2)
    report = replay(training, learner, 8)
    assert report.difference.startswith("train/learning_rate at step 1: 0.01 in the run, 0.02 now")


def test_steps_that_the_run_does_not_have(tmp_path):
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    with pytest.raises(RunError, match="holds no run"):
        replay(training, learner, 1)
    training.run(learner)
    with pytest.raises(RunError, match="the run has no step 11"):
        replay(*prepared(tmp_path, lambda: Spoilt(nn.Identity())), 11)
    for wrong in (0, (3, 2)):
        with pytest.raises(ConfigError, match="no such steps"):
            replay(training, learner, wrong)
    training, learner = prepared(tmp_path, lambda: Spoilt(nn.Identity()))
    training.duration = type(training.duration).parse("1 epoch")
    with pytest.raises(RunError, match="the training ended before step 8"):
        replay(training, learner, 8)
