"""A Learner that trains its model compiled by burnt.compile."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import burnt
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import DefinitionError, FusionWarning, UnsupportedError
from burnt.fusion import backend
from burnt.store import RunReader
from burnt.train import ClassificationOutput, Learner, evaluate, predict
from tests.train import exact
from tests.train.cases import labelled, refused, supervised

SETTINGS = {"duration": "2 epochs", "seed": 0, "log_every": 1}


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    counters.clear()


class Net(burnt.Module):
    body: nn.Sequential

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        logits = self(batch.x)
        return ClassificationOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def net(cls=Net):
    torch.manual_seed(0)
    return cls(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)))


def learner(model=None, compile=True):
    return Learner(net() if model is None else model, optim.Ema(optim.Sgd(), 0.9), 0.1, compile=compile)


def train(folder, ours, **settings):
    loaders = {"train": labelled(24, 4), "valid": labelled(12, 4, seed=2)}
    return supervised(folder, {**loaders, **SETTINGS, **settings}).run(ours)


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_compiled_training_is_the_plain_one_with_its_checkpoints(tmp_path):
    ours, plain = learner(), learner(compile=False)
    done = train(tmp_path / "ours", ours, accumulate=2, check=True)
    expected = train(tmp_path / "plain", plain, accumulate=2, check=True)
    assert counters["stats"]["unique_graphs"] == 2  # training, validation
    same(dict(done.values), dict(expected.values))
    same(done.model.state_dict(), expected.model.state_dict())
    batches = labelled(8, 4, seed=2)
    same(evaluate(ours, batches), evaluate(plain, batches))
    inputs = next(iter(batches)).x
    same(predict(done.model, inputs), predict(expected.model, inputs))
    assert counters["stats"]["unique_graphs"] == 2  # those of the training serve
    with RunReader(tmp_path / "ours") as run:
        assert run.config()["compile"] is True
        assert run.config()["model"] == "Net"
    # A checkpoint is one of the plain model, and the resume says that it is no longer compiled.
    train(tmp_path / "ours", learner(compile=False), accumulate=2, duration="3 epochs", resume=True)
    with RunReader(tmp_path / "ours") as run:
        assert any("compile= changed since the checkpoint: was True" in x.text for x in run.log_lines())


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(3, 32), nn.BatchNorm1d(32), nn.Dropout(0.3)
        self.b = nn.Linear(32, 2)

    def forward(self, x):
        return self.b(self.drop(nn.functional.gelu(self.norm(self.a(x)))))


def test_compiling_draws_no_random_numbers():
    model = burnt.compile(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)))
    states = []
    for _ in range(2):
        torch.manual_seed(1)
        model(torch.ones(2, 3)).sum().backward()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.full
@pytest.mark.parametrize(
    ("stop_at", "settings"),
    [(3, {}), (4, {"checkpoint_activations": "drop"}), (5, {"precision": "bfloat16"})],
)
def test_a_resume_is_exact_with_dropout_and_a_smaller_last_batch(tmp_path, stop_at, settings):
    items = TensorDataset(**exact.tensors())  # 14: batches of 4, 4, 4 and 2

    def run(name, **more):
        if "resume" in more:
            torch._dynamo.reset()
        loader = Loader(items, 4, shuffle=True, seed=3)
        given = {"model": Dropping, "train": lambda _: loader, "checkpoint_every": "1 steps", **settings}
        return exact.run(tmp_path / name, "plain", compile=True, **given, **more)

    run("whole")
    assert not run("stopped", stop_at=stop_at).finished
    run("stopped", resume=True, seed=77)
    exact.assert_equal_runs(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.full
def test_a_smaller_last_batch_compiles_once_more(tmp_path):
    loaders = {"train": labelled(22, 4), "valid": labelled(11, 4, seed=2)}
    done = train(tmp_path / "ours", learner(), duration="3 epochs", **loaders)
    expected = train(tmp_path / "plain", learner(compile=False), duration="3 epochs", **loaders)
    same(dict(done.values), dict(expected.values))
    assert counters["stats"]["unique_graphs"] <= 4


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["body.*", "body"])
def test_checkpointed_activations_change_nothing(tmp_path, pattern):
    done = train(tmp_path / "ours", learner(), checkpoint_activations=pattern)
    expected = train(tmp_path / "plain", learner(compile=False))
    same(done.model.state_dict(), expected.model.state_dict())


@pytest.mark.full
def test_a_copy_of_the_learner_is_compiled_again(tmp_path):
    ours = learner()
    loaders = {"train": labelled(22, 4), "valid": labelled(11, 4, seed=2)}
    supervised(tmp_path / "run", {**loaders, **SETTINGS}).quick_run(ours)
    assert counters["stats"]["unique_graphs"]


def refusing(*args, **kwargs):
    raise UnsupportedError("there are no kernels today")


def test_what_torch_runs_is_in_the_log_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "_plan", refusing)
    with pytest.warns(FusionWarning, match="there are no kernels today"):
        train(tmp_path / "run", learner(), valid=None, duration="2 steps")
    with RunReader(tmp_path / "run") as run:
        warned = [line.text for line in run.log_lines() if line.level == "warning"]
    assert len(warned) == 2  # forward and backward
    assert all("no kernels can be generated for it: there are no kernels today" in text for text in warned)


class Parts(Net):
    def training_step(self, batch):
        logits = self.body(batch.x)
        return ClassificationOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def test_what_cannot_be_compiled_is_refused(tmp_path):
    swapped = net()
    burnt.swap(swapped)
    with refused(
        DefinitionError, "the Learner cannot compile its model", "burnt.swap has replaced", "unswap"
    ):
        learner(swapped)
    with refused(DefinitionError, "it is compiled already", "leave out compile=, or torch.compile"):
        learner(torch.compile(net()))
    with refused(DefinitionError, "compile= of the Learner is not understood", "options of burnt.compile"):
        learner(compile=None)
    with pytest.raises(TypeError, match="fullgraphs"):
        learner(compile={"fullgraphs": True})
    with refused(DefinitionError, "compile= has no effect", "calls of body", 'compile(backend="burnt")'):
        train(tmp_path / "run", learner(net(Parts)), check=True)
    assert not Path(tmp_path / "run").exists()
