"""Train one model on two machines, or on one with two addresses; the program is that of one process.

    torchrun --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port 29500 --local-addr 127.0.0.1 \
        --no-python burnt train examples/two_nodes/two_nodes.py:main
    torchrun --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port 29500 --local-addr 127.0.0.2 \
        --no-python burnt train examples/two_nodes/two_nodes.py:main

Both commands at the same time, each in a terminal of its own.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits

import burnt
from burnt import data, nn, optim
from burnt.plot import Line, Plot
from burnt.train import ClassificationOutput, Learner, RunReader, SupervisedTraining
from burnt.train.metrics import Accuracy


class ConvNet(burnt.Module):
    """Images [n, 1, 8, 8] -> logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)

    def training_step(self, batch: data.Batch) -> ClassificationOutput:
        logits = self(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


class Settings(burnt.Config):
    """The settings of the program."""

    folder: str = "runs/two_nodes"  # on a disk that both machines have
    resume: bool = False
    width: int = 16
    epochs: int = 20
    batch_size: int = 64  # of the whole batch: with two processes, 32 items on each
    lr: float = 1e-2
    device: str | None = None
    seed: int = 0

    def init(self) -> ConvNet:
        torch.manual_seed(self.seed)
        conv1, conv2 = nn.Conv2d(1, self.width, 3, padding=1), nn.Conv2d(self.width, self.width * 2, 3)
        layers = (conv1, nn.Relu(), nn.MaxPool2d(2), conv2, nn.Relu(), nn.Flatten())
        return ConvNet(nn.Sequential(*layers, nn.Linear(self.width * 8, 10)))


def main(settings: Settings) -> ConvNet:
    """Train, and draw the loss; the same on each process, of which the first writes the run."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    digits = data.TensorDataset(x=pixels, y=torch.tensor(labels))
    train, test = data.split(digits, 0.8, seed=0, stratify="y")
    training = SupervisedTraining(
        settings.folder,
        train=data.Loader(train, settings.batch_size, shuffle=True, seed=settings.seed),
        valid=data.Loader(test, 256),
        duration=f"{settings.epochs} epochs",
        metrics=[Accuracy()],
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    schedule = optim.Cosine(settings.lr, steps=settings.epochs * len(training.train))
    result = training.run(Learner(settings.init(), optim.AdamW(), schedule))
    if training.ranks is None or training.ranks.rank == 0:
        with RunReader(result.folder) as run:
            lines = [Line(f"{split} loss", *run.points("loss", split)[::2]) for split in ("train", "valid")]
        (result.folder / "loss.svg").write_text(Plot(lines).svg())
    return result.model


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
