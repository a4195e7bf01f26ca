"""torchrun restarts all processes when one has failed, and the training goes on from its checkpoint."""

import os
import subprocess
import sys

import pytest

from burnt.store import RunReader
from burnt.store.ranks import read_ranks
from tests.forked import ROOT

PROGRAM = """
import os, signal, torch
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

class Dies:
    def on_step(self, event):
        is_first = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if event.training.position.step == 7 and is_first:
            os.kill(os.getpid(), signal.SIGKILL)

def step(model, batch):
    return StepOutput(torch.nn.functional.mse_loss(model(batch.x), batch.y))

torch.manual_seed(0)
items = TensorDataset(x=torch.randn(64, 4), y=torch.randn(64, 1))
settings = dict(duration="20 steps", checkpoint_every="5 steps", resume=True, callbacks=[Dies()])
training = SupervisedTraining("run", train=Loader(items, 8), **settings)
training.run(Learner(nn.Linear(4, 1), optim.Sgd(), 1e-2, step))
"""


@pytest.mark.full
def test_torchrun_restarts_a_training_whose_rank_was_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BURNT_MONITOR": "plain", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "--max-restarts", "1", str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    with RunReader(tmp_path / "run") as run:
        assert [attempt.resumed_from_step for attempt in run.attempts()] == [None, 5]
        assert run.state() == "finished"
        assert run.last("loss").step == 20
    assert [load.state for load in read_ranks(tmp_path / "run")] == ["finished", "finished"]
