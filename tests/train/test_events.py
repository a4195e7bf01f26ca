"""Callbacks and their events, and loaders that know their own position."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import DefinitionError
from burnt.gradients import Gradients
from burnt.train import EarlyStopping, KeepLast, Learner, Position, StepOutput, SupervisedTraining
from burnt.train.events import HOOKS
from burnt.train.metrics import Loss
from tests.train.cases import AtStep


def batches(count: int = 12) -> Loader:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), batch_size=2)


def step(model: nn.Module, batch: Batch) -> StepOutput:
    outputs = model(batch.x)
    return StepOutput(F.mse_loss(outputs, batch.y), outputs, batch.y)


def learner() -> Learner:
    torch.manual_seed(0)
    return Learner(nn.Linear(3, 1), optim.Sgd(), 0.01, step=step)


def train(folder, callbacks, **settings):
    settings = {"train": batches(), "duration": "1 epoch", "monitor": "off", **settings}
    return SupervisedTraining(folder, callbacks=callbacks, **settings).run(learner())


class Recorder:
    """Keeps the name of each event and the step at which it came."""

    def __init__(self) -> None:
        self.seen = []


def _hook(name):
    def hook(self, event):
        self.seen.append((name.removeprefix("on_"), event.training.position.step))
        self.last = event

    return hook


for name in HOOKS:
    setattr(Recorder, name, _hook(name))


def test_the_order_of_events(tmp_path):
    recorder = Recorder()
    train(tmp_path / "run", [recorder], valid=batches(4), accumulate=4, log_every=2)
    assert recorder.seen == [
        ("start", 0),
        ("gradients", 0),
        ("step", 1),
        ("gradients", 1),
        ("step", 2),
        ("log", 2),
        ("epoch", 2),
        ("validation", 2),
        ("checkpoint", 2),
        ("end", 2),
    ]
    assert recorder.last.reason == "finished"


def test_an_exception_is_an_event_and_ends_the_training(tmp_path):
    class Failing:
        def on_step(self, event):
            if event.training.position.step == 2:
                raise RuntimeError("no more")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no more"):
        train(tmp_path / "run", [Failing(), recorder])
    assert recorder.seen[-1] == ("error", 2)
    assert str(recorder.last.error) == "no more"


def test_a_callback_that_fails_too_hides_neither_the_error_nor_other_callbacks(tmp_path):
    class Failing:
        def on_step(self, event):
            raise RuntimeError("no more")

        def on_error(self, event):
            raise OSError("the disk is full")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no more") as caught:
        train(tmp_path / "run", [Failing(), recorder])
    assert recorder.seen[-1] == ("error", 1)
    assert caught.value.__notes__[0] == "Failing.on_error failed, too: OSError: the disk is full"


class Stateful:
    def on_step(self, event):
        pass

    def state(self):
        return {"seen": torch.ones(1)}


class Losing:
    def on_gradients(self, event):
        event.gradients = None


class Scaling:
    def on_gradients(self, event):
        event.gradients = {path: 2 * value for path, value in event.gradients.items()}


@pytest.mark.parametrize(
    ("callback", "where", "hint"),
    [(Stateful(), r"Stateful\.state\(\)", r"tensor\.tolist\(\)"), (Losing(), "on_gradients", "NoneType")],
)
def test_what_callbacks_cannot_give(tmp_path, callback, where, hint):
    with pytest.raises(DefinitionError, match=where) as caught:
        train(tmp_path / "run", [callback])
    assert caught.match(hint)


def test_gradients_may_be_a_dict(tmp_path):
    # With what an optimizer does not support itself, too.
    train(tmp_path / "run", [Scaling()], clip_value=0.1, on_nan="skip")


def test_a_callback_sees_the_step_and_may_replace_gradients(tmp_path):
    losses = []

    class Halved:
        def on_gradients(self, event):
            event.gradients = event.gradients.scale(0.5)

        def on_step(self, event):
            losses.append(float(event.output.loss))
            assert event.learning_rate == 0.01
            assert len(event.batch) == 2

    train(tmp_path / "run", [Halved()])
    by_hand, expected = learner().model, []
    for batch in batches():
        output = step(by_hand, batch)
        expected.append(float(output.loss.detach()))
        gradients = Gradients.of(output.loss, by_hand)
        with torch.no_grad():
            for path, parameter in by_hand.named_parameters():
                parameter -= 0.01 * (0.5 * gradients[path])
    assert losses == expected


def test_a_callback_ends_the_training_and_its_state_resumes(tmp_path):
    class Counter:
        def __init__(self, until):
            self.steps, self.until = 0, until

        def on_step(self, event):
            self.steps += 1
            if self.steps == self.until:
                event.training.stop(f"{self.until} steps are enough")

        def state(self):
            return {"steps": self.steps}

        def load_state(self, state):
            self.steps = state["steps"]

    first, other = Counter(3), Counter(100)
    result = train(tmp_path / "run", [first, other])
    assert (result.reason, result.position.step) == ("3 steps are enough", 3)
    assert result.checkpoints[-1].position.step == 3
    first, other = Counter(5), Counter(100)
    result = train(tmp_path / "run", [first, other], resume=True)
    assert (result.reason, first.steps, other.steps) == ("5 steps are enough", 5, 5)


@pytest.mark.parametrize(
    ("callback", "found", "hint"),
    [
        (object(), "none of them", None),
        (
            type("Late", (), {"on_stepp": lambda self, event: None})(),
            "a method on_stepp",
            "did you mean on_step?",
        ),
        (
            type("Theirs", (), {"on_train_batch_end": lambda self, event: None})(),
            "a method on_train_batch_end",
            "did you mean on_step?",
        ),
        (EarlyStopping("loss", "1 epoch"), "none of them", "it belongs to stopping="),
        (KeepLast(1), "none of them", "what selects checkpoints belongs to checkpoints="),
        (Recorder, "the class Recorder", None),
    ],
)
def test_what_is_no_callback(tmp_path, callback, found, hint):
    with pytest.raises(DefinitionError) as caught:
        train(tmp_path / "run", [callback])
    assert (caught.value.found, caught.value.hint) == (found, hint)


def test_several_validations_by_name(tmp_path):
    recorder = Recorder()
    valid = {"clean": batches(4), "shifted": [Batch(x=torch.ones(2, 3), y=torch.zeros(2, 1))]}
    result = train(tmp_path / "run", [recorder], valid=valid, checkpoints=[KeepLast(1)])
    assert [name for name, _ in recorder.seen].count("validation") == 2
    model = result.model
    with torch.no_grad():
        expected = F.mse_loss(model(torch.ones(2, 3)), torch.zeros(2, 1))
    assert result.values["shifted/loss"] == float(expected)
    assert result.values["clean/loss"] != result.values["shifted/loss"]


class Stream:
    """Batches that only their iterator can find again: each depends on a sum over those before."""

    def __init__(self):
        self.opened = []

    def epoch(self, epoch, start=0):
        assert start == 0, "a stream cannot skip"
        return Chain(self, 0, 0.0)

    def resume(self, epoch, start, state):
        assert state["number"] == start
        return Chain(self, state["number"], state["total"])

    def num_batches(self):
        return None

    def state(self):
        return {}


class Chain:
    def __init__(self, stream, number, total):
        self.stream, self.number, self.total = stream, number, total

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == 7:
            raise StopIteration
        self.stream.opened.append(self.number)
        self.number, self.total = self.number + 1, self.total + 0.1 * self.number
        return Batch(x=torch.full((2, 3), self.total), y=torch.ones(2, 1))

    def state(self):
        return {"number": self.number, "total": self.total}


@pytest.mark.full
def test_a_loader_resumes_by_its_own_state(tmp_path):
    stop = AtStep({2: lambda training: training.stop("enough")})
    settings = {"accumulate": 3, "checkpoints": [KeepLast(2)], "check": False, "metrics": [Loss()]}
    whole = train(tmp_path / "whole", [], train=Stream(), **settings)
    assert whole.position.step == 3  # 3, 3 and 1 batches
    train(tmp_path / "run", [stop], train=Stream(), **settings)
    stream = Stream()
    resumed = train(tmp_path / "run", [], train=stream, resume=True, **settings)
    assert stream.opened == [6]
    assert resumed.values == whole.values
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_position_of_the_start_moves_with_the_training(tmp_path):
    """A training step knows its step and epoch by it, also after a resume (docs/training.md)."""

    class Clock:
        position = Position()

        def on_start(self, event):
            self.position = event.training.position

    clock, seen = Clock(), []

    def step(model, batch):
        seen.append((clock.position.step, clock.position.epoch))
        return StepOutput(model(batch).square().mean(), targets=batch)

    for duration in ("1 epoch", "2 epochs"):
        SupervisedTraining(
            tmp_path / "run", train=[torch.ones(2, 1)] * 2, duration=duration, callbacks=[clock],
            device="cpu", monitor="off", check=False, exists="resume",
        ).run(Learner(torch.nn.Linear(1, 1), optim.Sgd(), 0.1, step))  # fmt: skip
    assert seen == [(0, 0), (1, 0), (2, 1), (3, 1)]
