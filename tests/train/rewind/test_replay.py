"""replay: a step is run again bit for bit, and the first values that are not finite are found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import ConfigError, NonFiniteError, RunError
from burnt.train import (
    Checkpoints,
    Every,
    KeepLast,
    Learner,
    RunReader,
    StepOutput,
    SupervisedTraining,
    replay,
)
from burnt.train.control.control import TrainingClock
from burnt.train.events import Callbacks
from burnt.train.rewind.rewind import Past, train_forward
from burnt.train.sinks import Sink
from tests.train import exact
from tests.train.cases import AtStep, refused


class Spoilt(nn.Module):
    """Two layers, with a module between them at step `at`."""

    def __init__(self, between, at=5):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)
        self.between, self.at, self.calls = between, at, 0

    def forward(self, x):
        self.calls += self.training
        hidden = self.first(x)
        return self.second(self.between(hidden) if self.calls == self.at else hidden)


class Infinite(nn.Module):
    def forward(self, x):
        return x / 0


class SteepRoot(nn.Module):
    """A root whose gradient is infinite where its value is 0."""

    def forward(self, x):
        return (x * 0).clamp(min=0).sqrt()


def step(model, batch):
    return StepOutput(loss=(model(batch.x) - batch.y).square().mean(), targets=batch.y)


def prepared(folder, model=None, **settings):
    torch.manual_seed(0)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
    train = Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), 4)
    training = SupervisedTraining(
        folder, train=train, monitor="off", device="cpu", check=False, log_every=1,
        checkpoint_every="2 steps", **{"duration": "3 epochs", **settings},
    )  # fmt: skip
    return training, Learner(Spoilt(nn.Identity()) if model is None else model(), optim.Sgd(), 1e-2, step)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("inside", "layer", "text"),
    [
        (Infinite, "between", "the output of between (Infinite): 12 of 12 values"),
        (SteepRoot, "between", "the gradient from between (SteepRoot): 12 of 12 values"),
    ],
)
def test_the_first_layer_that_is_not_finite_is_named(tmp_path, inside, layer, text):
    training, learner = prepared(tmp_path, lambda: Spoilt(inside()))
    with refused(NonFiniteError, "burnt.train.replay(training, learner, "):
        training.run(learner)
    # The steps are counted by the module, which a checkpoint does not know.
    start = Checkpoints(tmp_path / "checkpoints").saved()[-1].position.step
    report = replay(*prepared(tmp_path, lambda: Spoilt(inside(), at=5 - start)), (start + 1, 6))
    assert (report.step.step, report.step.layer, report.step.non_finite) == (5, layer, text)
    assert report.start == "step-00000004"
    assert report.step.samples == [4, 5, 6, 7]


@pytest.mark.full
def test_a_loss_that_is_not_finite_though_the_layers_are(tmp_path):
    def broken(model, batch):
        return StepOutput(loss=model(batch.x).mean() * float("inf"), targets=batch.y)

    for _ in range(2):
        training, learner = prepared(tmp_path, resume=True)
        learner.step = broken
        with pytest.raises(NonFiniteError):
            training.run(learner)
    training, learner = prepared(tmp_path)
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
    training, learner = prepared(tmp_path)
    x = training.train.dataset.take(torch.arange(12)).x
    learner.step = failing
    with pytest.raises(ValueError, match="no such class"):
        training.run(learner)
    training, learner = prepared(tmp_path)
    learner.step = failing
    report = replay(training, learner, 3)
    assert report.step.error == "ValueError: no such class"
    assert report.step.samples == [8, 9, 10, 11]
    assert "raised         ValueError: no such class" in str(report)


@pytest.mark.full
def test_a_learning_rate_that_a_command_set_is_that_of_the_replay(tmp_path):
    callbacks = [Rates({5: 0.5})]
    training, learner = prepared(tmp_path, callbacks=callbacks)
    training.checkpoint_every = type(training.checkpoint_every).parse("1 epoch")
    training.run(learner)
    training, learner = prepared(tmp_path)
    report = replay(training, learner, 8)
    assert (report.start, report.step.learning_rate, report.difference) == ("step-00000006", 0.5, None)
    report = replay(*prepared(tmp_path), 6)
    assert (report.start, report.step.learning_rate, report.difference) == (None, 0.5, None)


class Rates:
    """Sets the learning rate after some steps, as a command does, and ends at once after one."""

    def __init__(self, rates, end=None):
        self.rates, self.end = rates, end

    def on_step(self, event):
        step, training = event.training.position.step, event.training
        if step in self.rates:
            training.control.override, training.control.override_factor = self.rates[step], None
            training.writer.event("learning_rate", step, value=self.rates[step])
        if step == self.end:
            raise exact.Crash


@pytest.mark.full
def test_learning_rates_that_earlier_attempts_were_given(tmp_path):
    def attempt(resume, rates, end=None):
        training, learner = prepared(
            tmp_path, callbacks=[Rates(rates, end)], resume=resume,
            checkpoints=[KeepLast(1), Every("8 steps")],
        )  # fmt: skip
        training.run(learner)

    # What is set after step 5 is lost: that attempt saves nothing before it ends.
    for resume, rates, end in ((False, {2: 0.5}, 3), (True, {3: 0.25, 4: None, 5: 0.5}, 6)):
        with pytest.raises(exact.Crash):
            attempt(resume, rates, end)
    attempt(True, {6: 0.125})
    for number, rate in ((3, 0.5), (4, 0.25), (5, 0.01), (6, 0.01), (7, 0.125), (9, 0.125)):
        report = replay(*prepared(tmp_path), number)
        assert (report.step.learning_rate, report.difference) == (rate, None)
        assert (report.step.epoch, report.step.batches) == ((number + 2) // 3, [(number - 1) % 3])
        assert report.start == (None if number < 9 else "step-00000008")


@pytest.mark.full
def test_what_the_clock_had_decided_is_repeated(tmp_path):
    def pass_a_day(training):
        training.trained = TrainingClock(training.trained.seconds() + 86400)

    settings = {"validate_every": "5 steps or 1 day", "checkpoint_every": "9 epochs", "log_every": 1}
    exact.run(tmp_path, "validations", **settings, callbacks=[AtStep({4: pass_a_day})])
    with RunReader(tmp_path) as reader:
        assert reader.points("loss", "valid").steps == [4, 5, 10, 14]
    for number, duration in ((4, "2 epochs"), (9, "2 epochs"), (9, "2 epochs or 0.000001 s")):
        report = exact.replayed(tmp_path, "validations", number, **settings, duration=duration)
        assert (report.step.step, report.difference) == (number, None)


@pytest.mark.full
def test_training_forward_from_the_checkpoint_of_an_interruption_leaves_it(tmp_path):
    settings = {"checkpoint_every": "9 epochs", "validate_every": "9 epochs"}
    exact.run(tmp_path / "whole", "plain", **settings, duration="7 steps")
    folder, scratch = tmp_path / "run", tmp_path / "scratch"
    exact.run(folder, "plain", **settings, stop_at=5)
    exact.run(folder, "plain", **settings, resume=True, stop_at=8, how="crash")
    before, past = exact.checkpoints(folder), Past.read(folder, 7, before=7)
    assert (past.start.path.name, past.start.scheduled) == ("step-00000005", False)
    given = exact.prepared(folder, "plain", **settings)
    scratch.mkdir()
    train_forward(given.training, given.learner, past, scratch, finish=True)
    (saved,) = Checkpoints(scratch / "checkpoints").saved()
    assert (saved.position.step, saved.path.is_symlink()) == (7, False)
    files = ("step-00000007", "model.safetensors")
    assert exact.checkpoints(scratch)[files] == exact.checkpoints(tmp_path / "whole")[files]
    assert exact.checkpoints(folder) == before


@pytest.mark.full  # starts the compiler
def test_a_compiled_model_is_replayed_by_the_graphs_of_the_run(tmp_path):
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def model():
        torch._dynamo.reset()
        return torch.compile(nn.Sequential(nn.Linear(2, 3), SteepRoot(), nn.Linear(3, 1)), backend=backend)

    training, learner = prepared(tmp_path, model, duration="2 steps", on_nan="skip")
    training.run(learner)
    of_the_run = list(graphs)
    graphs.clear()
    report = replay(*prepared(tmp_path, model, duration="2 steps", on_nan="skip"), 1)
    assert graphs == of_the_run
    assert report.step.unseen == ["0", "1", "2"]
    assert "not looked at  0, 1, 2: compiled, or not used\n" in str(report)
    assert report.step.non_finite == "the gradient of the parameter 0.weight: 6 of 6 values"


def test_a_replay_is_not_sent_to_trackers(tmp_path):
    class Tracker(Sink):
        name = "tracker"
        opened = 0

        def open(self, run):
            Tracker.opened += 1

        def send(self, records):
            pass

    training, learner = prepared(tmp_path, callbacks=[Tracker()])
    training.quick_run(learner)
    assert Tracker.opened == 0
    training.run(learner)
    replay(*prepared(tmp_path, callbacks=[Tracker()]), 3)
    assert Tracker.opened == 1


def test_another_program_differs(tmp_path):
    training, learner = prepared(tmp_path)
    training.run(learner)
    training, learner = prepared(tmp_path)
    learner.schedule = optim.Constant(2e-2)
    report = replay(training, learner, 8)
    assert report.difference.startswith("train/learning_rate at step 1: 0.01 in the run, 0.02 now")


def test_steps_that_the_run_does_not_have(tmp_path):
    training, learner = prepared(tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        replay(training, learner, 1)
    training.callbacks = Callbacks([Rates({}, end=9)])
    with pytest.raises(exact.Crash):
        training.run(learner)
    with pytest.raises(RunError, match="the run has no step 11"):
        replay(*prepared(tmp_path), 11)
    training, learner = prepared(tmp_path, resume=True)
    training.run(learner)
    # A step that was not done may have failed, but not after the end of the training.
    with pytest.raises(RunError, match=r"the run has no step 10(.|\n)*from 1 to 9"):
        replay(*prepared(tmp_path), 10)
    for wrong in (0, (3, 2)):
        with pytest.raises(ConfigError, match="no such steps"):
            replay(training, learner, wrong)
    training, learner = prepared(tmp_path)
    training.duration = type(training.duration).parse("1 epoch")
    with pytest.raises(RunError, match="the training ended before step 8"):
        replay(training, learner, 8)
