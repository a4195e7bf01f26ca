"""Train with a loop of one's own: sharpness-aware minimization, which takes two gradients a step.

    python examples/custom_loop/train.py            # or: burnt train examples/custom_loop/train.py:main rho=0

The model, the optimizer, the gradients, the loader and the run store are burnt's, each without the Learner.
SAM (Foret et al., 2021) steps by the gradient at the nearby point where the loss is largest to first order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import burnt
from burnt import Gradients, nn, optim
from burnt.data import Batch, Dataset, Loader, TensorDataset, split
from burnt.plot import Line, Plot
from burnt.store import RunReader, RunWriter


class Net(burnt.Module):
    """Images [n, 64] to logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class LoopConfig(burnt.Config):
    """The settings of the training program."""

    hidden: int = 128
    epochs: int = 60
    lr: float = 3e-3
    rho: float = 0.1
    seeds: int = 5
    folder: Path = Path("runs/custom_loop")

    def init(self) -> Net:
        hidden = self.hidden
        inner = (nn.Linear(64, hidden), nn.Relu(), nn.Linear(hidden, hidden), nn.Relu())
        return Net(nn.Sequential(*inner, nn.Linear(hidden, 10)))


def load_splits() -> list[Dataset]:
    """Load 300 digits to train with few of them, and the other 1,497 for the test."""
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(x=torch.tensor(images / 16).float(), y=torch.tensor(labels))
    return split(digits, 300, seed=0, stratify="y")


def sam_gradients(model: Net, batch: Batch, rho: float) -> tuple[torch.Tensor, Gradients]:
    """Return the loss, and its gradients at the weights moved by ``rho`` along the gradient there."""
    loss = cross_entropy(model(batch.x), batch.y)
    gradients = Gradients.of(loss, model)
    if not rho:
        return loss, gradients
    parameters = dict(model.named_parameters())
    saved = {path: parameters[path].detach().clone() for path in gradients}
    step = gradients.scale(rho / (gradients.norm() + 1e-12))
    with torch.no_grad():
        for path, value in step.items():
            parameters[path].add_(value)
    sharp = Gradients.of(cross_entropy(model(batch.x), batch.y), model)
    with torch.no_grad():
        for path, value in saved.items():
            parameters[path].copy_(value)
    return loss, sharp


def accuracy(model: Net, data: Dataset) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(batch.x).argmax(1) == batch.y).sum().item() for batch in Loader(data, 256)]
    model.train()
    return sum(right) / len(data)


def fit(config: LoopConfig, seed: int, folder: Path) -> float:
    """Train one model, write its run and its weights, and return the accuracy on the test split."""
    torch.manual_seed(seed)
    train, test = load_splits()
    loader = Loader(train, 50, shuffle=True, seed=seed)
    schedule, step = optim.Cosine(config.lr, steps=config.epochs * len(loader)), 0
    model, optimizer = config.init(), optim.AdamW(weight_decay=0.01)
    with RunWriter.create(folder, config=config.to_dict()) as run:  # `burnt monitor` shows it
        for epoch in range(1, config.epochs + 1):
            for batch in loader:  # in a new order each time
                loss, gradients = sam_gradients(model, batch, config.rho)
                optimizer.step(schedule(step), model, gradients, clip_norm=5.0)
                step += 1
                run.log(step, epoch, {"loss": loss.item()})
            run.log(step, epoch, {"accuracy": accuracy(model, test)}, split="test")
    model.save(folder / "model.safetensors")
    return accuracy(model, test)


def main(config: LoopConfig) -> dict[float, list[float]]:
    """Train with AdamW and with SAM around it; print and draw their accuracies over all seeds."""
    found, lines = dict[float, list[float]](), []
    for rho in (0.0, config.rho):
        folders = [config.folder / f"rho-{rho:g}-seed-{seed}" for seed in range(config.seeds)]
        found[rho] = [fit(config.override([f"rho={rho}"]), seed, at) for seed, at in enumerate(folders)]
        with RunReader(folders[0]) as run:
            points = run.points("accuracy", "test")
        name = f"SAM, rho {rho:g}" if rho else "AdamW"
        lines.append(Line(name, points.steps, [1 - value for value in points.values]))
        mean, low, high = sum(found[rho]) / config.seeds, min(found[rho]), max(found[rho])
        print(f"{name:<13} test accuracy {mean:.4f}, of {low:.4f} to {high:.4f}")
    (config.folder / "errors.svg").write_text(Plot(lines, x="step; y: share of test errors").svg())
    return found


if __name__ == "__main__":
    main(LoopConfig.from_assignments(sys.argv[1:]))
