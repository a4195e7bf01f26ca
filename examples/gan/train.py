"""Train a GAN that draws handwritten digits, on those that ship with scikit-learn.

    python examples/gan/train.py                 # or: burnt train examples/gan/train.py:main epochs=20

Two optimizers, each for a part of the model, are stepped by the training step itself.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import one_hot, softplus

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining


def mlp(*sizes: int) -> torch.nn.Sequential:
    """Linear layers of these sizes, with LeakyReLU in between."""
    layers: list[torch.nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.LeakyRelu(0.2)]
    return torch.nn.Sequential(*layers[:-1])


class Gan(burnt.Module):
    """A generator of images of digits, and a discriminator that tells them from real ones."""

    generator: torch.nn.Sequential
    discriminator: torch.nn.Sequential
    noise: int

    def draw(self, labels: torch.Tensor) -> torch.Tensor:
        """Draw an image of each digit: [batch] -> [batch, 64], from 0 to 1."""
        noise = torch.randn(len(labels), self.noise, device=labels.device)
        return self.generator(torch.cat([noise, one_hot(labels, 10)], 1)).sigmoid()

    def judge(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """How real images of these digits are: [batch, 1], above 0 for real."""
        return self.discriminator(torch.cat([images, one_hot(labels, 10)], 1))

    def training_step(self, batch: Batch, optimizers: burnt.train.StepOptimizers) -> StepOutput:
        drawn = self.draw(batch.labels)
        real, fake = self.judge(batch.images, batch.labels), self.judge(drawn.detach(), batch.labels)
        optimizers["discriminator"].step(softplus(-real).mean() + softplus(fake).mean())
        # Its gradients pass through the discriminator, and change only the generator.
        loss = softplus(-self.judge(drawn, batch.labels)).mean()
        optimizers["generator"].step(loss)
        return StepOutput(loss.detach(), targets=batch.labels)


class GanConfig(burnt.Config):
    """The settings of the training program."""

    epochs: int = 100
    noise: int = 32
    lr: float = 5e-4
    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    monitor: str = "auto"


def sheet(images: torch.Tensor, columns: int = 10) -> str:
    """Return images, [n, 64], as text."""
    rows = images.view(-1, columns, 8, 8).transpose(1, 2).flatten(0, 1).flatten(1)
    lines = ["".join(2 * " .:-=+*#%@"[int(value * 9.99)] for value in row) for row in rows.tolist()]
    return "\n\n".join("\n".join(lines[i : i + 8]) for i in range(0, len(lines), 8))


def main(config: GanConfig) -> Gan:
    """Train, print two drawings of each digit, and return the model."""
    torch.manual_seed(config.seed)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(images=torch.tensor(images / 16).float(), labels=torch.tensor(labels))
    model = Gan(mlp(config.noise + 10, 256, 256, 64), mlp(64 + 10, 256, 256, 1), config.noise)
    optimizers = {
        "generator": optim.Ema(optim.Adam(betas=(0.5, 0.999)), decay=0.995),
        "discriminator": optim.Adam(betas=(0.5, 0.999)),
    }
    training = SupervisedTraining(
        config.folder or Path("runs") / time.strftime("gan-%Y%m%d-%H%M%S"),
        train=Loader(data, 64, shuffle=True, drop_last=True),
        duration=f"{config.epochs} epochs",
        checkpoint_every="20 epochs",
        monitor=config.monitor,
        resume=config.resume,
        config=config,
    )
    training.run(Learner(model, optimizers, {"generator": config.lr, "discriminator": config.lr}))
    with torch.no_grad():
        print(sheet(model.draw(torch.arange(10).repeat(2))))
    return model


if __name__ == "__main__":
    main(GanConfig.from_assignments(sys.argv[1:]))
