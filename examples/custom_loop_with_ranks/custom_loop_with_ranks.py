"""Train in several processes by a loop of one's own, with burnt's Gradients and torch.distributed.

    burnt train --nproc 2 examples/custom_loop_with_ranks/custom_loop_with_ranks.py:main
    torchrun --nproc-per-node 2 examples/custom_loop_with_ranks/custom_loop_with_ranks.py

Each process (a rank) computes the gradients of its items of each batch. Their sum is the gradient of the
whole batch, so that the ranks take the same steps as one process does. There is no Learner.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import burnt
from burnt import Gradients, nn, optim
from burnt.data import Dataset, Loader, TensorDataset, split
from burnt.plot import Line, Plot
from burnt.store import RunWriter


class Net(burnt.Module):
    """Images [n, 64] to logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Settings(burnt.Config):
    """The settings of the program."""

    hidden: int = 128
    epochs: int = 20
    batch_size: int = 50
    lr: float = 3e-3
    seed: int = 0
    folder: str = "runs/custom_loop_with_ranks"

    def init(self) -> Net:
        hidden = self.hidden
        inner = (nn.Linear(64, hidden), nn.Relu(), nn.Linear(hidden, hidden), nn.Relu())
        return Net(nn.Sequential(*inner, nn.Linear(hidden, 10)))


def join() -> tuple[int, int, torch.device]:
    """Meet the other processes that a launcher has started; return rank, number of ranks and device."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1, torch.device("cpu")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(dist.destroy_process_group)
    return dist.get_rank(), dist.get_world_size(), device


def load_splits() -> list[Dataset]:
    """Load 1,437 digits to train and 360 to test."""
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(x=torch.tensor(images / 16).float(), y=torch.tensor(labels))
    return split(digits, 0.8, seed=0, stratify="y")


def sum_over_ranks(gradients: Gradients, loss: torch.Tensor) -> tuple[Gradients, torch.Tensor]:
    """Return the sums of the gradients and of the loss over all ranks, sent as one message."""
    tensors = [*gradients.values(), loss.detach()]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    *sums, total = flat.split([tensor.numel() for tensor in tensors])
    shaped = [value.view_as(tensor) for value, tensor in zip(sums, tensors, strict=False)]
    return Gradients(dict(zip(gradients, shaped, strict=True))), total.squeeze()


def accuracy(model: Net, data: Dataset, device: torch.device) -> float:
    with torch.no_grad():
        right = [(model(b.x.to(device)).argmax(1) == b.y.to(device)).sum().item() for b in Loader(data, 256)]
    return sum(right) / len(data)


def main(config: Settings) -> Net:
    """Train on all ranks, and return the model, which is the same on each of them."""
    rank, size, device = join()
    torch.manual_seed(config.seed)  # so that all ranks build the same model
    model, optimizer = config.init().to(device), optim.AdamW(weight_decay=0.01)
    train, test = load_splits()
    loader = Loader(train, config.batch_size, shuffle=True, seed=config.seed)  # the same order on all ranks
    schedule, step, losses = optim.Cosine(config.lr, steps=config.epochs * len(loader)), 0, list[float]()
    with RunWriter.create(config.folder, config=config.to_dict()) if not rank else nullcontext() as run:
        for epoch in range(1, config.epochs + 1):
            for batch in loader:
                x, y = batch.x[rank::size].to(device), batch.y[rank::size].to(device)
                # Divided by the items of the whole batch: parts may differ by one, and may be empty.
                loss = cross_entropy(model(x), y, reduction="sum") / len(batch.y)
                gradients = Gradients.of(loss, model)
                if size > 1:
                    gradients, loss = sum_over_ranks(gradients, loss)
                optimizer.step(schedule(step), model, gradients, clip_norm=5.0)
                step += 1
                if run is not None:
                    losses.append(loss.item())
                    run.log(step, epoch, {"loss": losses[-1]})
    if run is not None:
        print(f"test accuracy {accuracy(model, test, device):.4f}, after {step} steps on {size} ranks")
        model.save(f"{config.folder}/model.safetensors")
        run.folder.joinpath("loss.svg").write_text(Plot([Line("loss", range(1, step + 1), losses)]).svg())
    return model


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
