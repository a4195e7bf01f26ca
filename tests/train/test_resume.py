"""Exact resume: a run that was stopped anywhere ends bit for bit as one that never was."""

import os
import random
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    Interrupted,
    KeepBest,
    KeepLast,
    Learner,
    RunReader,
    SupervisedTraining,
)
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss

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


def torch_loader() -> torch.utils.data.DataLoader:
    """Shuffled by the global random state, with a transform that draws from it as well."""
    x, y = tensors().values()

    def collate(indices: list[int]) -> Batch:
        return Batch(x=x[indices] + 0.1 * torch.randn(len(indices), 4), y=y[indices])

    return torch.utils.data.DataLoader(range(ITEMS), BATCH, shuffle=True, collate_fn=collate)


class Run:
    """One go at a training, with objects of its own; stopped by a signal after step `stop_at`."""

    def __init__(self, folder, loader=burnt_loader, *, stop_at=None, init_seed=0, how=(), **settings: Any):
        torch.manual_seed(init_seed)
        random.seed(init_seed)
        np.random.seed(init_seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.losses: dict[int, float] = {}
        self.stop_at = stop_at
        # Settings of their own, not the library's, so that each run starts from others.
        self.optimizer = optim.AdamW(weight_decay=0.1)
        schedule = optim.Cosine(3e-2, STEPS)

        def counted(step: int) -> float:
            self.step_number = step + 1
            return schedule(step)

        self.step_number = 0
        self.stopping = settings.pop("stopping", None) or EarlyStopping(Loss(), patience="9 epochs")
        training = SupervisedTraining(
            folder,
            train=loader(),
            valid=Loader(TensorDataset(**tensors()), 4),
            duration=f"{EPOCHS} epochs",
            metrics=[Accuracy(), ConfusionMatrix(2)],
            checkpoints=[KeepLast(2), KeepBest(Loss())],
            stopping=self.stopping,
            device="cpu",
            monitor="off",
            log_every=1,
            **settings,
        )
        self.interrupted = False
        self.position = 0
        try:
            result = training.run(Learner(self.model, self.optimizer, counted, step=self.step))
            self.reason, self.values = result.reason, result.values
        except Interrupted as stop:
            assert stop.code == 128 + signal.SIGINT
            self.interrupted = True

    def step(self, model: nn.Module, batch: Batch) -> ClassificationOutput:
        logits = model(batch.x)
        if not torch.is_tensor(batch.x) or batch.x.is_meta:
            return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)
        # Python's and NumPy's generators have a say as well.
        loss = F.cross_entropy(logits, batch.y) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())
        if model.training and torch.is_grad_enabled():
            number = self.optimizer_steps() + 1
            self.losses[number] = loss.item()
            if number == self.stop_at:
                os.kill(os.getpid(), signal.SIGINT)
        return ClassificationOutput(loss, logits, batch.y)

    def optimizer_steps(self) -> int:
        steps = [t for name, t in self.optimizer.into_record().tensors.items() if name == "0.weight/step"]
        return int(steps[0]) if steps else 0

    def state(self) -> dict[str, torch.Tensor]:
        record = self.optimizer.into_record()
        return {**self.model.state_dict(), **record.tensors, "rng": torch.get_rng_state()}

    def host_state(self) -> tuple[Any, ...]:
        return (
            random.random(),
            np.random.rand(),
            self.stopping.best,
            self.stopping.best_at,
            dict(self.values),
            self.reason,
        )


def history(folder) -> dict[str, Any]:
    """Everything that the run store shows of the course of a run, but times."""
    with RunReader(folder) as run:
        series = {
            (s.name, s.split): tuple(run.points(s.name, s.split)[::2])
            for s in run.series()
            if "second" not in s.name and "wait" not in s.name
        }
        epochs = {event.step: event.data for event in run.events("epoch")}
        tables = {(a.name, a.step): a.data for a in run.artefacts("table")}
        return {"series": series, "epochs": epochs, "tables": repr(tables), "state": run.state()}


def assert_same(one: Run, other: Run) -> None:
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    assert one.host_state() == other.host_state()


@pytest.mark.parametrize("loader", [burnt_loader, torch_loader])
def test_stopped_after_any_step_and_resumed_it_ends_as_if_it_had_never_stopped(tmp_path, loader):
    whole = Run(tmp_path / "whole", loader)
    assert list(whole.losses) == list(range(1, STEPS + 1))
    whole_state, whole_host, whole_history = whole.state(), whole.host_state(), history(tmp_path / "whole")
    assert whole_history["state"] == "finished"
    for k in range(1, STEPS + 1):
        folder = tmp_path / f"stopped-{k}"
        first = Run(folder, loader, stop_at=k)
        assert first.interrupted
        assert list(first.losses) == list(range(1, k + 1))
        second = Run(folder, loader, resume=True, init_seed=1000 + k)
        assert not second.interrupted
        assert {**first.losses, **second.losses} == whole.losses, k
        assert list(second.losses) == list(range(k + 1, STEPS + 1))
        ours = second.state()
        assert ours.keys() == whole_state.keys()
        for name, value in whole_state.items():
            assert torch.equal(ours[name], value), (k, name)
        assert second.host_state() == whole_host, k
        assert history(folder) == whole_history, k
