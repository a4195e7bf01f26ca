"""What a step of an optimizer costs the host on a GPU, in counts, with a driver that launches nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from tests import forked
from tests.null import driver

WHY_NOT = driver.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

MANY_TENSORS = """
import collections, torch
from tests.null import driver
driver.install()
from burnt import Gradients, optim
from burnt.kernels.optim import foreach_triton

params = {f"p{i}": torch.nn.Parameter(torch.zeros(4, 4)) for i in range(300)}
steps = [Gradients({path: torch.zeros(4, 4) for path in params}) for _ in range(64)]
optimizer = optim.AdamW()

def step(grads):
    result = optimizer.step(1e-3, params, grads, clip_norm=1.0)
    assert result.by == "burnt", result.by

for grads in steps:
    step(grads)
launches, placed = driver.last_launch().launches, foreach_triton._to_device
foreach_triton._to_device = None  # an upload raises
for grads in steps:
    step(grads)
assert driver.last_launch().launches == launches + 4 * 64

reads, data_ptr = collections.Counter(), torch.Tensor.data_ptr

def counted(tensor):
    reads[id(tensor)] += 1
    return data_ptr(tensor)

torch.Tensor.data_ptr = counted
step(steps[0])
states = [t for state in optimizer._state.values() for t in state.values()]
tensors = [*params.values(), *(g for _, g in steps[0].items()), *states]
read = sum(reads[id(t)] for t in tensors)
assert read <= 2 * 300, read
assert max(reads[id(t)] for t in tensors) == 1
assert sum(reads.values()) - read < 40, "those of tables and results"

# Other gradients are one small upload; parameters and the state are not uploaded again.
uploads = []
foreach_triton._to_device = lambda table, device: uploads.append(table) or placed(table, device)
step(Gradients({path: torch.zeros(4, 4) for path in params}))
assert [tuple(table.shape) for table in uploads] == [(300,)]
next(iter(params.values())).data = torch.zeros(4, 4)
step(steps[1])
assert [tuple(table.shape) for table in uploads[1:]] == [(300,)]
print("as expected")
"""


def test_what_many_tensors_cost() -> None:
    done = forked.run(MANY_TENSORS)
    assert done.stdout.endswith("as expected\n"), done.stdout + done.stderr


TRAINING = """
import tempfile, torch
from tests.null import driver
driver.install()
from burnt import nn, optim
from burnt.data import Batch
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.metrics import Accuracy, Loss

class Batches:
    def __iter__(self):
        batch, profiler = Batch(x=torch.randn(32, 64), y=torch.randint(10, (32,))), torch.profiler.profile()
        for number in range(12):
            if number == 8:
                profiler.__enter__()
            if number == 9:  # the loop asks for a batch when all of the step before is done
                profiler.__exit__(None, None, None)
                self.events = profiler.events()
            yield batch

def step(model, batch):
    logits = model(batch.x)
    loss = torch.nn.functional.cross_entropy(logits, batch.y)
    return ClassificationOutput(loss, outputs=logits, targets=batch.y)

# A loop by hand with the same metrics and torch's fused AdamW calls 54 without clipping.
for clip_norm, most in ((None, 48), (1.0, 52)):
    layers = [nn.Linear(64, 96), nn.Relu(), nn.Linear(96, 96), nn.Relu(), nn.Linear(96, 10)]
    learner, batches = Learner(torch.nn.Sequential(*layers), optim.AdamW(), 1e-3, step=step), Batches()
    launches = driver.last_launch().launches
    with tempfile.TemporaryDirectory() as folder:
        SupervisedTraining(
            folder, train=batches, duration="12 steps", log_every=12, checkpoints=None, monitor="plain",
            device="cpu", clip_norm=clip_norm, metrics=[Loss(), Accuracy()],
        ).run(learner)
    events = [e for e in batches.events if e.name.startswith("aten::")]
    whole = [e.name for e in events if not (e.cpu_parent and e.cpu_parent.name.startswith("aten::"))]
    assert len(whole) <= most, (len(whole), whole)
    waits = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}
    assert not waits & {e.name for e in events}, events
    assert driver.last_launch().launches >= launches + 12 * 2
print("as expected")
"""


def test_a_step_of_a_training_calls_little_of_torch() -> None:
    done = forked.run(TRAINING)
    assert done.stdout.endswith("as expected\n"), done.stdout + done.stderr
