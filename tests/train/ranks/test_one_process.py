"""A training in one process has nothing to do with other ranks."""

from tests import forked

PROGRAM = """
import sys
from pathlib import Path
import torch.distributed as dist
import torch
from burnt import data, nn, optim
from burnt.train import Learner, StepOutput, SupervisedTraining

called = set()

def note(frame, event, argument):
    if event == "call" and "/burnt/train/ranks/" in frame.f_code.co_filename:
        called.add(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")

sys.setprofile(note)
table = data.TensorDataset(x=torch.randn(24, 4))
step = lambda model, batch: StepOutput(model(batch.x).square().mean(), count=len(batch.x))
for on_nan in ("raise", "skip"):
    training = SupervisedTraining(
        Path(sys.argv[1], on_nan), train=data.Loader(table, 4), valid=data.Loader(table, 4), device="cpu",
        duration="2 epochs", monitor="off", on_nan=on_nan, clip_norm=1.0, log_every=2, accumulate=2,
    )
    training.run(Learner(nn.Linear(4, 2), optim.AdamW(), 1e-2, step))
sys.setprofile(None)
loaded = sorted(name for name in sys.modules if name.startswith("burnt.train.ranks."))
print(sorted(called), dist.is_initialized(), loaded, sep="\\n")
"""


def test_no_step_calls_or_loads_what_is_for_several_ranks(tmp_path):
    done = forked.run(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    called, is_initialized, loaded = done.stdout.splitlines()[-3:]
    # Once for each training, before its first step.
    assert called == "['launch.find', 'strategy.check_strategy', 'strategy.ranks_of']"
    assert is_initialized == "False"
    assert loaded == "['burnt.train.ranks.launch', 'burnt.train.ranks.strategy']"
