"""`burnt train --nproc 2`: how it ends when a process fails or is stopped."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from burnt.cli import several
from burnt.store import RunReader
from tests.forked import ROOT

pytestmark = pytest.mark.full  # each starts three interpreters that import torch

PROGRAM = """
import os
import signal
import time

import torch

from burnt import Config, data, nn, optim
from burnt.train import Learner, StepOutput, SupervisedTraining


class Run(Config):
    kind: str = ""


class Fault:
    def __init__(self, kind):
        self.kind = kind

    def on_step(self, event):
        if event.training.position.step != 12 or os.environ.get("RANK") != "1":
            return
        if self.kind == "error":
            raise ValueError("broken on purpose")
        if self.kind == "again":  # Ctrl-C again, while the process hangs
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGINT, lambda *_: os.kill(os.getppid(), signal.SIGINT))
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(600)
        if self.kind == "KILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind in ("INT", "TERM"):  # the launcher passes it on, as it does Ctrl-C
            os.kill(os.getppid(), getattr(signal, f"SIG{self.kind}"))


def step(model, batch):
    return StepOutput(model(batch.x).square().mean(), count=len(batch.x))


def main(config: Run):
    torch.manual_seed(0)
    table = data.TensorDataset(x=torch.randn(40, 4))
    SupervisedTraining(
        "run",
        train=data.Loader(table, 8),
        # Until the signal comes; afterwards the run is over.
        duration="1000000 steps" if config.kind in ("INT", "TERM", "again") else "16 steps",
        checkpoint_every="5 steps",
        device="cpu",
        callbacks=[Fault(config.kind)],
        config=config,
    ).run(Learner(nn.Linear(4, 2), optim.AdamW(), 1e-2, step))
"""


def burnt(folder, *words):
    def default() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a shell's jobs

    return subprocess.run(
        [sys.executable, "-m", "burnt", "train", "--nproc", "2", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=default,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        ("error", 1, "ValueError: broken on purpose"),
        ("KILL", 1, "killed by SIGKILL"),
        ("INT", 130, None),
        ("TERM", 143, None),
    ],
)
def test_a_process_that_ends_ends_all(tmp_path, kind, code, reason):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = burnt(tmp_path, "program.py:main", f"kind={kind}")
    assert done.returncode == code, done.stderr[-3000:]
    assert "death signal" not in done.stderr  # the launcher's own log
    with RunReader(tmp_path / "run") as run:
        steps = [event.step for event in run.events("checkpoint")]
    if reason is None:
        assert "burnt train --resume run --nproc 2" in done.stdout
        assert steps[-1] >= 12  # saved when the signal came
        return
    last = done.stderr.splitlines()[-2:]
    if kind == "KILL":
        assert last[0] == f"rank 1 of 2 has failed first: {reason}"
        assert "Traceback" not in done.stderr
    else:  # each thing once: the traceback of the first cause, its rank, the command
        lines = done.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert [lines.count(reason), done.stderr.count("Traceback"), done.stderr.count("rank 1")] == [1, 1, 1]
        assert last[0] == "rank 1 of 2 has failed first"
    assert last[1] == "to go on from the last checkpoint: burnt train --resume run --nproc 2"
    assert steps == [5, 10]
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("callbacks=[Fault(config.kind)],", ""))
    resumed = burnt(tmp_path, "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert "resuming after step 10" in resumed.stdout
    with RunReader(tmp_path / "run") as run:
        assert run.events("checkpoint")[-1].step == 16


def test_ctrl_c_again_ends_all_at_once(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = burnt(tmp_path, "program.py:main", "kind=again")
    assert done.returncode == 130, done.stderr[-3000:]
    with RunReader(tmp_path / "run") as run:
        assert [event.step for event in run.events("checkpoint")] == [5, 10]


def test_a_wrong_command_line_is_reported_once(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = burnt(tmp_path, "program.py:man")
    assert (done.returncode, done.stderr.count("has no function 'man'")) == (2, 1)
    assert "failed first" not in done.stderr


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        # Of the same second: rank 0 has lost rank 1, which was killed; or was stopped by the launcher.
        ({0: (1, "", 7), 1: (-9, "", 7)}, 1),
        ({0: (-15, "", 7), 1: (1, "", 7)}, 1),
        # A cause that the training recorded, also where another process ended before.
        ({0: (1, "", 7), 1: (-15, {"extraInfo": {"py_callstack": "Traceback"}}, 8)}, 1),
    ],
)
def test_the_first_of_several_failures(tmp_path, failures, first):
    made = {
        rank: SimpleNamespace(exitcode=code, message=message, timestamp=second)
        for rank, (code, message, second) in failures.items()
    }
    assert min(made, key=lambda rank: several._order(made[rank])) == first
    assert several._text_of(made[1], tmp_path / "none") == ("Traceback" if made[1].message else "")


def test_several_processes_are_not_started_in_a_process_of_a_launcher(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "burnt", "train", "--nproc", "2", "program.py:main"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "1"},
    )
    assert done.returncode == 2
    assert "no launcher has started" in done.stderr
