"""The loss of a last layer whose weight is shared out among processes, as FSDP2 (ZeRO) does it."""

from pathlib import Path

import pytest

from tests.distributed import by_two

WORKER = """
import copy, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import burnt
from burnt import kernels

kind, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 12))

    def forward(self, x, target):
        loss = kernels.linear_cross_entropy.candidates["chunked"](
            x, self.weight, target, None, -100, "none" if kind == "none" else "mean", 0.0, 0.0, False
        )
        return loss.mean()


def head_and_batch():
    return Head(), (torch.randn(8, 12), torch.randint(40, (8,)))


def model_and_batch():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    tokens = torch.randint(40, (8, 6))
    return transformers.LlamaForCausalLM(config), (tokens,)


swapped = kind.startswith("swapped")
model, batch = model_and_batch() if swapped else head_and_batch()
run = (lambda m, t: m(input_ids=t, labels=t).loss) if swapped else (lambda m, *given: m(*given))
whole = copy.deepcopy(model).train()
for _ in range(2):
    run(whole, *batch).backward()
if swapped:
    burnt.swap(model.train(), only=["lm_head", ""], skip="linear", defer_logits=True)
if kind == "swapped, a unit of its own":
    fully_shard(model.lm_head, mesh=mesh)
fully_shard(model, mesh=mesh)
if swapped:
    logits = model(batch[0]).logits
    assert (type(logits).__name__ == "Logits") == (kind == "swapped"), type(logits)
half = [t[rank * 4 : rank * 4 + 4] for t in batch]
for _ in range(2):  # gradients add up
    run(model, *half).backward()
for (name, expected), found in zip(whole.named_parameters(), model.parameters(), strict=True):
    torch.testing.assert_close(found.grad.full_tensor(), expected.grad, msg=lambda text: f"{name}: {text}")
print("equal", flush=True)
dist.destroy_process_group()
# Threads of gloo that outlive it abort a process that ends in the usual way, now and then.
os._exit(0)
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mean", "none", "swapped", "swapped, a unit of its own"])
def test_halves_of_a_batch_give_the_gradients_of_the_whole(kind: str, tmp_path: Path) -> None:
    by_two(WORKER, tmp_path, kind)
