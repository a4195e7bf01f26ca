"""Exact resume: a run stopped anywhere and resumed ends bit for bit like an uninterrupted one."""

import os
import random
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt.nn
from burnt import kernels, optim
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import CheckpointError
from burnt.kernels.autotune.database import Row, TuningDatabase
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    Interrupted,
    KeepBest,
    KeepLast,
    Learner,
    Plateau,
    RunReader,
    SupervisedTraining,
)
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss
from tests import forked
from tests.train.cases import assert_same_tensors

ITEMS, BATCH, EPOCHS = 23, 5, 3  # the last batch of an epoch has 3 items
STEPS = 5 * EPOCHS


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(ITEMS, 4, generator=generator)
    return {"x": x, "y": (x.sum(1) > 0).long()}


def noisy(batch: Batch, generator: torch.Generator) -> Batch:
    return batch.replace(x=batch.x + 0.1 * torch.randn(batch.x.shape, generator=generator))


def burnt_loader() -> Loader:
    return Loader(TensorDataset(**tensors()), BATCH, shuffle=True, seed=3, transform=noisy)


class Run:
    """One go at a training, with objects of its own; stopped by a signal after step `stop_at`."""

    def __init__(
        self,
        folder,
        loader=burnt_loader,
        *,
        stop_at=None,
        stop_in_validation=None,
        init_seed=0,
        how=(),
        drop=None,
        **settings: Any,
    ):
        torch.manual_seed(init_seed)
        random.seed(init_seed)
        np.random.seed(init_seed)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), drop or nn.Dropout(0.3), nn.Linear(8, 2)
        )
        self.losses: dict[int, float] = {}
        self.stop_at = stop_at
        self.stop_in_validation, self.validated = stop_in_validation, 0
        # Settings of their own, not the library's, so that each run starts from others.
        self.optimizer = optim.AdamW(weight_decay=0.1)
        schedule = optim.Cosine(3e-2, STEPS)

        def counted(step: int) -> float:
            self.step_number = step + 1
            return schedule(step)

        self.step_number = 0
        self.stopping = settings.pop("stopping", None) or EarlyStopping(Loss(), patience="9 epochs")
        self.schedule = settings.pop("schedule", None) or optim.Cosine(3e-2, STEPS)
        training = SupervisedTraining(
            folder,
            train=loader(),
            valid=Loader(TensorDataset(**tensors()), 4),
            metrics=[Accuracy(), ConfusionMatrix(2)],
            checkpoints=settings.pop("checkpoints", [KeepLast(2), KeepBest(Loss())]),
            stopping=self.stopping,
            device="cpu",
            log_every=1,
            **{"duration": f"{EPOCHS} epochs", "monitor": "off", **settings},
        )
        self.interrupted = False
        try:
            result = training.run(Learner(self.model, self.optimizer, self.schedule, step=self.step))
            self.outcome = (result.reason, dict(result.values))
        except Interrupted as stop:
            self.interrupted = stop.code == 128 + signal.SIGINT
        self.rng = torch.get_rng_state()
        self.on_host = (random.random(), np.random.rand(), self.stopping.best, self.stopping.best_at)

    def step(self, model: nn.Module, batch: Batch) -> ClassificationOutput:
        logits = model(batch.x)
        # Python's and NumPy's generators have a say as well.
        loss = F.cross_entropy(logits, batch.y) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())
        if not model.training:
            self.validated += 1  # the first is the look before the first step
            if self.validated == self.stop_in_validation:
                os.kill(os.getpid(), signal.SIGINT)
        if model.training and not loss.is_meta:
            number = self.optimizer_steps() + 1
            self.losses[number] = loss.item()
            if number == self.stop_at:
                os.kill(os.getpid(), signal.SIGINT)
        return ClassificationOutput(loss, logits, batch.y)

    def optimizer_steps(self) -> int:
        steps = [t for name, t in self.optimizer.into_record().tensors.items() if name == "0.weight/step"]
        return int(steps[0]) if steps else 0

    def state(self) -> dict[str, torch.Tensor]:
        return {**self.model.state_dict(), **self.optimizer.into_record().tensors, "rng": self.rng}


def history(folder) -> dict[str, Any]:
    """Everything that the run store shows of the course of a run, but times."""
    with RunReader(folder) as run:
        series = {
            (s.name, s.split): tuple(run.points(s.name, s.split)[::2])
            for s in run.series()
            if "second" not in s.name and "wait" not in s.name
        }
        epochs = {event.step: event.data for event in run.events("epoch")}
        # Those without a step tell of an attempt: the model on its first batch, the kernels in use.
        tables = {(a.name, a.step): a.data for a in run.artefacts("table") if a.step is not None}
        return {"series": series, "epochs": epochs, "tables": repr(tables), "state": run.state()}


def assert_same(one: Run, other: Run) -> None:
    assert_same_tensors(one.state(), other.state())
    assert (one.on_host, one.outcome) == (other.on_host, other.outcome)


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [1, 3, 6, 8, 18])
def test_stopped_in_a_validation_it_validates_anew_when_resumed(tmp_path, batch):
    whole = Run(tmp_path / "whole")
    first = Run(tmp_path / "run", stop_in_validation=1 + batch)
    assert first.interrupted
    assert first.validated == 1 + batch
    second = Run(tmp_path / "run", resume=True, init_seed=9)
    assert {**first.losses, **second.losses} == whole.losses
    assert_same(second, whole)
    assert history(tmp_path / "run") == history(tmp_path / "whole")


@pytest.mark.parametrize("stop_at", [pytest.param(5, marks=pytest.mark.full), 10])
def test_a_run_that_is_to_stop_early_stops_there_also_when_it_was_interrupted_there(tmp_path, stop_at):
    def impatient() -> EarlyStopping:
        # No loss is better by so much, so the second epoch is the last.
        return EarlyStopping("loss", patience="1 epoch", min_delta=100.0)

    whole = Run(tmp_path / "whole", stopping=impatient())
    assert (whole.outcome[0], list(whole.losses)) == ("stopped early", list(range(1, 11)))
    assert Run(tmp_path / "run", stop_at=stop_at, stopping=impatient()).interrupted
    assert_same(Run(tmp_path / "run", resume=True, init_seed=9, stopping=impatient()), whole)
    # Once more, and with more patience it goes on.
    assert_same(Run(tmp_path / "run", resume=True, init_seed=9, stopping=impatient()), whole)
    patient = Run(tmp_path / "run", resume=True, stopping=EarlyStopping("loss", patience="9 epochs"))
    assert (patient.outcome[0], list(patient.losses)) == ("finished", [11, 12, 13, 14, 15])


def test_an_early_stopping_that_was_in_another_run_starts_afresh(tmp_path):
    stopping = EarlyStopping("loss", patience="1 epoch", min_delta=100.0)
    for name in ("one", "other"):
        assert len(Run(tmp_path / name, stopping=stopping).losses) == 10


def test_a_finished_run_resumed_changes_nothing(tmp_path):
    whole = Run(tmp_path / "run")
    assert_same(Run(tmp_path / "run", resume=True, init_seed=9), whole)


def test_a_longer_duration_goes_on_from_the_end(tmp_path):
    long = Run(tmp_path / "long", duration="20 steps")
    Run(tmp_path / "run", duration="10 steps")
    assert_same(Run(tmp_path / "run", duration="20 steps", resume=True, init_seed=9), long)


class DroppedWide(nn.Module):
    """Features by a mean over so many dropped copies that kernels are generated for the dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = burnt.nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x.unsqueeze(-1).expand(*x.shape, 9000)).mean(-1)


@pytest.mark.sample(1)
@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library serves")
@pytest.mark.parametrize("k", [1, 7])
def test_dropout_by_generated_kernels_goes_on_where_it_was(tmp_path, k):
    whole = Run(tmp_path / "whole", drop=DroppedWide())
    assert any(key.startswith("dropout") and c == "generated" for key, c in kernels.choices().items())
    folder = tmp_path / "stopped"
    first = Run(folder, stop_at=k, drop=DroppedWide())
    assert first.interrupted
    second = Run(folder, resume=True, init_seed=1000 + k, drop=DroppedWide())
    assert {**first.losses, **second.losses} == whole.losses
    assert_same(second, whole)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library serves")
def test_kernels_are_those_of_the_checkpoint_whatever_the_tuner_has_found_since(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    for op in kernels.OPS.values():
        op.forget()
    whole, folder = Run(tmp_path / "whole", drop=DroppedWide()), tmp_path / "stopped"
    first = Run(folder, stop_at=6, drop=DroppedWide())
    chosen = {k: c for k, c in kernels.choices().items() if k.startswith("dropout") and c == "generated"}
    assert chosen
    for key in chosen:
        TuningDatabase().add([Row(key, "generated", "ok", 2.0), Row(key, "library", "ok", 1.0)])
    kernels.dropout.forget()
    second = Run(folder, resume=True, init_seed=1006, drop=DroppedWide())
    assert {**first.losses, **second.losses} == whole.losses
    assert_same(second, whole)
    # A run that starts anew goes by what was found: torch's dropout draws other numbers.
    kernels.dropout.forget()
    assert Run(tmp_path / "other", drop=DroppedWide()).losses != whole.losses
    kernels.dropout.forget()


KILLED = """
import importlib.util, os, signal, sys, time
spec = importlib.util.spec_from_file_location("trial", sys.argv[1])
trial = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trial)

class Killed(trial.Run):
    def step(self, model, batch):
        output = super().step(model, batch)
        if self.losses and max(self.losses) == int(sys.argv[3]):
            with trial.RunReader(sys.argv[2]) as run:  # has rows that must not be seen twice
                while len(self.losses) > 1 and not (
                    run.series() and max(run.points("loss", "train").steps) == max(self.losses) - 1
                ):
                    time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        return output

Killed(sys.argv[2], checkpoint_every="2 steps", **trial.settings(sys.argv[4]))
"""


def settings(kind: str) -> dict[str, Any]:
    """The settings of a kind of run, made anew for each."""
    if kind == "cosine":
        return {}
    # No loss is better by so much: the rate falls at every second validation, which is every third step.
    return {
        "schedule": Plateau(optim.Warmup(3, 3e-2), "loss", 2, factor=0.5, threshold=100.0,
                            threshold_mode="abs"),
        "validate_every": "3 steps",
    }  # fmt: skip


def reductions(folder) -> dict[int, float]:
    """The rate after each reduction, by step: those of a later attempt replace what was written before."""
    with RunReader(folder) as run:
        return {event.step: event.data["rate"] for event in run.events("plateau")}


@pytest.mark.parametrize("stops", [[7], pytest.param([1, 3, 5, 6, 9, 10, 12, 15], marks=pytest.mark.full)])
def test_a_plateau_goes_on_where_it_was(tmp_path, stops):
    whole = Run(tmp_path / "whole", **settings("plateau"))
    assert reductions(tmp_path / "whole") == {9: 0.015, 15: 0.0075}
    assert whole.schedule.state() == {
        "best": whole.schedule.best, "scale": 0.25, "evaluations": 5, "updated_at": 15, "waiting_since": 5,
        "cooldown_until": 5,
    }  # fmt: skip
    for k in stops:
        folder = tmp_path / f"stopped-{k}"
        assert Run(folder, stop_at=k, **settings("plateau")).interrupted
        second = Run(folder, resume=True, init_seed=9, **settings("plateau"))
        assert_same(second, whole)
        assert second.schedule.state() == whole.schedule.state()
        assert reductions(folder) == reductions(tmp_path / "whole")
        assert history(folder) == history(tmp_path / "whole")
    # In another run it starts afresh.
    assert_same(Run(tmp_path / "other", **{**settings("plateau"), "schedule": whole.schedule}), whole)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("killed_at", "kind"), [(1, "cosine"), (9, "cosine"), (13, "plateau")])
def test_killed_in_the_middle_it_resumes_from_the_last_checkpoint(tmp_path, killed_at, kind):
    whole = Run(tmp_path / "whole", checkpoint_every="2 steps", **settings(kind))
    folder = tmp_path / "run"
    killed = forked.run(KILLED, __file__, folder, killed_at, kind)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with RunReader(folder) as run:
        assert run.state() == "crashed"
    resumed = Run(folder, resume=True, init_seed=9, checkpoint_every="2 steps", **settings(kind))
    saved = killed_at - killed_at % 2 if killed_at > 1 else 0
    assert list(resumed.losses) == list(range(saved + 1, STEPS + 1))
    if saved:
        assert resumed.losses == {k: v for k, v in whole.losses.items() if k > saved}
        assert_same(resumed, whole)
        assert history(folder) == history(tmp_path / "whole")
    with RunReader(folder) as run:
        assert run.points("loss", "train").steps == list(range(1, STEPS + 1))
        assert run.attempts()[-1].resumed_from_step == (saved or None)


def test_other_loaders_between_epochs_are_reported_and_in_an_epoch_refused(tmp_path, capsys):
    Run(tmp_path / "run", stop_at=5)
    resumed = Run(
        tmp_path / "run", resume=True, loader=lambda: Loader(TensorDataset(**tensors()), 6), monitor="plain"
    )
    assert max(resumed.losses) == 13
    assert (
        "Warning: train= changed since the checkpoint: was {'seed': 3, 'shuffle': True, 'batch_size': 5"
        in capsys.readouterr().out
    )
    with RunReader(tmp_path / "run") as run:
        assert (run.progress().step, run.progress().total_steps) == (13, 13)
    Run(tmp_path / "other", stop_at=7)
    with pytest.raises(CheckpointError) as caught:
        Run(tmp_path / "other", resume=True, loader=lambda: Loader(TensorDataset(**tensors()), 6))
    message = str(caught.value)
    assert message.startswith("step-00000007 was saved in the middle of an epoch, with a different loader")
    assert "'batch_size': 5" in message
    assert "'batch_size': 6" in message
    assert "resume with the same loader" in message


def test_other_precision_and_clipping_are_reported(tmp_path, capsys):
    Run(tmp_path / "run", stop_at=5, clip_norm=1.0)
    Run(tmp_path / "run", resume=True, precision="bfloat16", monitor="plain")
    out = capsys.readouterr().out
    assert "Warning: precision= changed since the checkpoint: was float32, is now bfloat16." in out
    assert "Warning: clip_norm= changed since the checkpoint: was 1.0, is now None." in out
