"""Compute the parts of a batch on threads, and add their Gradients: several devices in one process.

    burnt train examples/threads/threads.py:main threads=4            # or devices=cuda:0,cuda:1

Gradients are values that each thread returns. No thread writes what another one reads, so there are no locks.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import burnt
from burnt import Gradients, nn, optim
from burnt.data import Batch, Loader, TensorDataset, split
from burnt.plot import Line, Plot
from burnt.store import RunWriter


class Net(burnt.Module):
    """Images [n, 64] to logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Settings(burnt.Config):
    """The settings of the program. With several devices there is a thread for each of them."""

    threads: int = 2
    devices: str = "cpu"
    hidden: int = 1024
    epochs: int = 20
    batch_size: int = 250
    lr: float = 1e-3
    seed: int = 0
    folder: str = "runs/threads"

    def init(self) -> Net:
        inner = (nn.Linear(64, self.hidden), nn.Relu(), nn.Linear(self.hidden, self.hidden), nn.Relu())
        return Net(nn.Sequential(*inner, nn.Linear(self.hidden, 10)))


class Threads:
    """Computes losses and gradients of a model on threads.

    Args:
        model: the model that an optimizer changes.
        devices: one for each thread. All threads on the model's device share the model; others have a copy.
    """

    def __init__(self, model: Net, devices: list[torch.device]) -> None:
        self.device = next(model.parameters()).device
        self.model = model
        self.copies = {device: copy.deepcopy(model).to(device) for device in {*devices} - {self.device}}
        self.replicas = [self.copies.get(device, model) for device in devices]
        self.pool = ThreadPoolExecutor(len(devices))

    def __call__(self, batch: Batch) -> tuple[float, Gradients]:
        """Return the mean loss over a batch, and its gradients on the model's device."""

        def part(number: int, replica: Net) -> tuple[float, Gradients]:
            device = next(replica.parameters()).device
            x, y = (values[number :: len(self.replicas)].to(device) for values in (batch.x, batch.y))
            loss = cross_entropy(replica(x), y, reduction="sum") / len(batch.y)
            gradients = Gradients.of(loss, replica)
            return loss.item(), gradients.map(lambda value: value.to(self.device))

        losses, gradients = zip(*self.pool.map(part, itertools.count(), self.replicas), strict=True)
        return sum(losses), functools.reduce(Gradients.accumulate, gradients)

    def refresh(self) -> None:
        """Give the copies on other devices the model's parameters, after a step."""
        for replica in self.copies.values():
            replica.load_state_dict(self.model.state_dict())


def main(config: Settings) -> Net:
    """Train; print the accuracy on the test split and the time of a step."""
    torch.set_num_threads(1)  # of torch, in each of these threads
    devices = [torch.device(name) for name in config.devices.split(",")]
    devices *= config.threads if len(devices) == 1 else 1
    torch.manual_seed(config.seed)
    model, optimizer = config.init().to(devices[0]), optim.AdamW(weight_decay=0.01)
    compute = Threads(model, devices)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(x=torch.tensor(images / 16).float(), y=torch.tensor(labels))
    train, test = split(digits, 0.8, seed=0, stratify="y")
    loader = Loader(train, config.batch_size, shuffle=True, seed=config.seed)
    schedule = optim.Cosine(config.lr, steps=config.epochs * len(loader))
    step, seconds, losses = 0, 0.0, list[float]()
    with RunWriter.create(config.folder, config=config.to_dict()) as run:
        for epoch in range(1, config.epochs + 1):
            for batch in loader:
                start = time.perf_counter()
                loss, gradients = compute(batch)
                optimizer.step(schedule(step), model, gradients)
                compute.refresh()
                seconds, step = seconds + time.perf_counter() - start, step + 1
                losses.append(loss)
                run.log(step, epoch, {"loss": loss})
    (batch,) = Loader(test, len(test))
    right = (model(batch.x.to(devices[0])).argmax(1).cpu() == batch.y).float().mean()
    print(f"test accuracy {right:.4f}, {1000 * seconds / step:.1f} ms a batch on {len(devices)} threads")
    run.folder.joinpath("loss.svg").write_text(Plot([Line("loss", range(1, step + 1), losses)]).svg())
    return model


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
