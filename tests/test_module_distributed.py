"""A Module under torch's DDP and FSDP: the step of two halves is that of the whole, and so is the record."""

from pathlib import Path

import pytest

from tests.distributed import by_two

WORKER = """
import os
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import burnt
from burnt import nn


class Mlp(burnt.Module):
    layers: list[nn.Linear]
    head: nn.Linear
    scale: torch.Tensor

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x) * self.scale


def build():
    torch.manual_seed(0)
    return Mlp([nn.Linear(6, 8), nn.Linear(8, 8)], nn.Linear(8, 4), torch.tensor(2.0))


kind, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
torch.manual_seed(1)
inputs = torch.randn(10, 6)

whole = build()
optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
whole(inputs).square().mean().backward()
optimizer.step()

model = build()
if kind == "ddp":
    wrapped = DistributedDataParallel(model)
elif kind == "fsdp1":
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
else:
    mesh = init_device_mesh("cpu", (2,))
    for layer in [*model.layers, model.head]:
        fully_shard(layer, mesh=mesh)
    wrapped = fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
half = inputs[rank * 5 : rank * 5 + 5]
wrapped(half).square().mean().backward()
optimizer.step()
record = burnt.record.record_of(wrapped)
assert (record.model, record.static) == (whole.into_record().model, whole.into_record().static)
assert list(record.tensors) == list(whole.state_dict())
for name, expected in whole.state_dict().items():
    torch.testing.assert_close(record.tensors[name], expected, msg=lambda text: f"{name}: {text}")
record.save(f"{os.path.dirname(__file__)}/{rank}.safetensors")
for (name, expected), found in zip(whole.named_parameters(), model.parameters(), strict=True):
    if kind == "fsdp1":
        break  # its parameters are parts of flat ones
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    torch.testing.assert_close(found, expected, msg=lambda text: f"{name}: {text}")
print("equal", flush=True)
dist.destroy_process_group()
# Threads of gloo that outlive it abort a process that ends in the usual way, now and then.
os._exit(0)
"""


@pytest.mark.parametrize(
    "kind",
    [pytest.param("ddp", marks=pytest.mark.full), pytest.param("fsdp1", marks=pytest.mark.full), "fsdp2"],
)
def test_two_halves_make_the_step_of_the_whole_batch(kind: str, tmp_path: Path) -> None:
    by_two(WORKER, tmp_path, kind)
