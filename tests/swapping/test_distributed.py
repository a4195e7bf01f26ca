"""A swapped model under DDP: gradients of two halves, in two processes, are those of the whole, unswapped."""

from pathlib import Path

from tests.distributed import by_two

WORKER = """
import copy, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import burnt
from burnt.swapping import measure

# Whatever is right is swapped, however slow.
measure._GAIN, measure._EVEN, measure._ROUNDS, measure._SECONDS = 0.0, 0.0, range(1, 2), 0.0
rank = int(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.run = nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        return nn.functional.cross_entropy(self.head(self.layer(self.run(self.embed(tokens))[0])).mT, tokens)


for kind in ("before", "verified", "after"):  # the wrapper
    torch.manual_seed(0)
    model, tokens = Model(), torch.randint(11, (8, 5))
    whole = copy.deepcopy(model)
    for _ in range(2):
        whole(tokens).backward()
    half = tokens[rank * 4 : rank * 4 + 4]
    if kind != "after":
        report = burnt.swap(model, verify=half if kind == "verified" else None)
    wrapped = DistributedDataParallel(model)
    if kind == "after":
        report = burnt.swap(wrapped)
    for _ in range(2):  # the first call is that which places wait for
        wrapped(half).backward()
    states = {row.path.removeprefix("module."): row.state for row in report.rows}
    for path in ("embed", "run", "layer.self_attn", "layer.linear2", "layer.norm1", "head"):
        assert states[path] == "swapped", report
    for (name, expected), found in zip(whole.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=lambda text: f"{name}: {text}")
    burnt.unswap(wrapped)
    wrapped.zero_grad()
    wrapped(half).backward()
    for (name, expected), found in zip(whole.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(2 * found.grad, expected.grad, msg=lambda text: f"{name}: {text}")
print("equal", flush=True)
dist.destroy_process_group()
# Threads of gloo that outlive it abort a process that ends in the usual way, now and then.
os._exit(0)
"""


def test_two_halves_have_the_gradients_of_the_whole(tmp_path: Path) -> None:
    by_two(WORKER, tmp_path, "swapping")
