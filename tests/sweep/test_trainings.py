"""`burnt sweep` with real trainings: ten kills, and the same values as without them."""

import os
import signal
import subprocess
import sys
import time

import pytest

import burnt
from burnt.errors import BurntError
from burnt.store import RunReader
from burnt.store.sweeps import read_trials

PROGRAM = """
import torch
import burnt
from burnt import data, nn, optim
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.metrics import Accuracy


class Net(burnt.Module):
    body: nn.Sequential

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        logits = self(batch.x)
        return ClassificationOutput(nn.CrossEntropy()(logits, batch.y), logits, batch.y)


class Settings(burnt.Config):
    folder: str = "runs/x"
    epochs: int = 60
    lr: float = 1e-2
    hidden: int = 16


def rows(count, seed):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return data.TensorDataset(x=x, y=(x[:, 0] * x[:, 1] > 0).long())


def main(config: Settings):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, config.hidden), nn.Relu(), nn.Dropout(0.1), nn.Linear(config.hidden, 2))
    SupervisedTraining(
        config.folder,
        train=data.Loader(rows(512, 0), batch_size=16, shuffle=True),
        valid=data.Loader(rows(256, 1), batch_size=64),
        duration=f"{config.epochs} epochs",
        metrics=[Accuracy()],
        device="cpu",
        config=config,
    ).run(Learner(Net(body=body), optim.AdamW(), config.lr))
"""
WORDS = ["toy.py:main", "lr=1e-3..1e-1:log", "hidden=4|16", "--trials", "3", "--sampler", "random"]
WORDS += ["--metric", "accuracy"]
# (what is killed, after how many steps of the trial that runs): a trial has 1,920.
KILLS = [
    *(("trial", 10), ("sweep", 300), ("both", 900), ("trial", 1500), ("sweep", 1)),
    *(("both", 100), ("trial", 700), ("sweep", 1800), ("both", 40), ("trial", 1200)),
]


def start(folder):
    env = {
        **os.environ,
        "PYTHONPATH": os.path.dirname(os.path.dirname(burnt.__file__)),
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "burnt", "sweep", *WORDS, "--name", str(folder)]
    with (folder.parent / "log").open("ab") as log:
        return subprocess.Popen(words, cwd=folder.parent, env=env, stdout=log, stderr=log)


def values_of(folder, trial):
    with RunReader(folder / trial.name) as reader:
        points = reader.points("accuracy", "valid")
        return list(points.steps), list(points.values)


def running_step(folder):
    """The trial that runs now, and the steps that it has done."""
    for trial in read_trials(folder) if folder.exists() else ():
        if trial.state == "running" and trial.is_alive():
            try:
                with RunReader(folder / trial.name) as reader:
                    progress = reader.progress()
                    if reader.state() == "running" and progress is not None:
                        return trial, progress.step
            except BurntError:
                pass
    return None, 0


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_ten_kills_change_nothing(tmp_path):
    (tmp_path / "toy.py").write_text(PROGRAM)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    kills, sweep, done = list(KILLS), start(killed), []
    while sweep.poll() is None or (kills and any(t.state == "running" for t in read_trials(killed))):
        if sweep.poll() is not None:
            sweep = start(killed)
        trial, step = running_step(killed)
        if trial is not None and kills and step >= kills[0][1]:
            what, _ = kills.pop(0)
            done.append((what, trial.number, step))
            if what in ("sweep", "both"):
                sweep.kill()
                sweep.wait()
            if what in ("trial", "both"):
                os.kill(trial.process[1], signal.SIGKILL)
        time.sleep(0.02)
    assert sweep.returncode == 0, (tmp_path / "log").read_text()
    assert len(done) == len(KILLS), done
    for trial, expected in zip(read_trials(killed), read_trials(whole), strict=True):
        assert (trial.number, trial.params, trial.state) == (expected.number, expected.params, "complete")
        assert trial.value == expected.value
        assert values_of(killed, trial) == values_of(whole, expected)
        assert not trial.is_alive()
