"""Small runs: limits, overfitting a few batches, and a quick run of everything."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Loader
from burnt.train import ClassificationOutput, EarlyStopping, Learner, RunReader, SupervisedTraining
from burnt.train.metrics import Accuracy, ConfusionMatrix
from tests.train.cases import AtStep, labelled


def loader(shuffle: bool = True) -> Loader:
    return labelled(40, 4, shuffle=shuffle)


class Run:
    def __init__(self, **settings) -> None:
        torch.manual_seed(0)
        self.seen: list[float] = []
        self.batches = {True: 0, False: 0}
        self.model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.1), nn.ReLU(), nn.Linear(64, 3))
        self.learner = Learner(self.model, optim.AdamW(), 0.01, step=self.step)
        self.settings = {
            "train": loader(), "valid": loader(False), "duration": "2 epochs", "monitor": "off",
            "device": "cpu", "metrics": [Accuracy()], "check": False, **settings,
        }  # fmt: skip

    def training(self, folder, **more) -> SupervisedTraining:
        return SupervisedTraining(folder, **{**self.settings, **more})

    def step(self, model, batch):
        self.batches[model.training] += 1
        self.seen.append(batch.x.sum().item())
        logits = model(batch.x)
        return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def test_limits_of_training_and_validation(tmp_path):
    run = Run(limit_train=0.3, limit_valid=2)
    result = run.training(tmp_path / "run").run(run.learner)
    assert (result.position.step, run.batches) == (6, {True: 6, False: 4})
    assert run.seen[:3] == [batch.x.sum().item() for batch in loader().epoch(0)][:3]
    assert run.seen[5:8] == [batch.x.sum().item() for batch in loader().epoch(1)][:3]
    with RunReader(tmp_path / "run") as reader:
        assert reader.progress().total_steps == 6


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "k", [4, pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("settings", "steps"), [({"limit_train": 3}, 9), ({"overfit_batches": 3, "accumulate": 2}, 6)]
)
def test_a_limited_run_resumes_exactly(tmp_path, settings, steps, k):
    whole = Run(duration="3 epochs", **settings)
    assert whole.training(tmp_path / "whole").run(whole.learner).position.step == steps
    folder = tmp_path / "run"
    first = Run(duration="3 epochs", **settings)
    first.training(folder, callbacks=[AtStep({k: lambda training: training.stop("enough")})]).run(
        first.learner
    )
    second = Run(duration="3 epochs", **settings)
    second.training(folder, resume=True).run(second.learner)
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_same_few_batches_are_learnt_by_heart(tmp_path):
    run = Run(overfit_batches=2, duration="60 epochs", stopping=EarlyStopping("accuracy", target=1.0))
    result = run.training(tmp_path / "run").run(run.learner)
    assert result.values["valid/accuracy"] == 1.0  # of labels that are random
    assert len(set(run.seen)) == 2


def test_a_quick_run_does_one_of_everything_and_leaves_nothing(tmp_path):
    events = []

    class Count:
        def on_step(self, event):
            events.append("step")

        def on_validation(self, event):
            events.append("validation")

        def on_checkpoint(self, event):
            events.append("checkpoint")

    stopping = EarlyStopping("loss", patience="9 epochs")
    run = Run(stopping=stopping, callbacks=[Count()], accumulate=2, metrics=[Accuracy(), ConfusionMatrix(3)])
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    rng = torch.get_rng_state()
    training = run.training(tmp_path / "run", seed=3, monitor="plain")
    values = training.quick_run(run.learner)
    assert set(values) == {"train/loss", "train/accuracy", "valid/loss", "valid/accuracy"}
    assert events == ["step", "validation", "checkpoint"]
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert not run.learner.optimizer.into_record().tensors
    assert (stopping.best, list(tmp_path.iterdir())) == (None, [])
    assert training.run(run.learner).position.step == 10  # the run itself is as it was asked for


def test_a_quick_run_finds_what_a_checkpoint_cannot_hold(tmp_path):
    class Failing:
        def on_checkpoint(self, event):
            raise RuntimeError("in the callback")

    run = Run(callbacks=[Failing()])
    with pytest.raises(RuntimeError, match="in the callback"):
        run.training(tmp_path / "run").quick_run(run.learner)
    assert not list(tmp_path.iterdir())
