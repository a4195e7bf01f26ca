"""Train a small ConvNet on the handwritten digits that ship with scikit-learn.

    python examples/digits/train.py                 # or: burnt train examples/digits/train.py:main epochs=10

1,797 grey images of 8 x 8 pixels. A fifth of them is the test split, used only once at the end.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import ClassificationOutput, KeepBest, KeepLast, Learner, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss


class Block(burnt.Module):
    """Convolution, batch norm and ReLU: [batch, in, h, w] -> [batch, out, h, w]."""

    conv: nn.Conv2d
    norm: nn.BatchNorm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Digits(burnt.Module):
    """A small ConvNet: images [batch, 1, 8, 8] -> logits [batch, 10]."""

    blocks: list[Block]
    pool: nn.MaxPool2d
    dropout: nn.Dropout
    head: nn.Linear
    loss: nn.CrossEntropy

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](images)
        x = self.pool(self.blocks[1](x))  # 4 x 4
        x = self.pool(self.blocks[2](x))  # 2 x 2
        return self.head(self.dropout(x.flatten(1)))

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.images)
        return ClassificationOutput(self.loss(logits, batch.labels), logits, batch.labels)


class DigitsConfig(burnt.Config):
    """The sizes of the network."""

    hidden: int = 32
    dropout: float = 0.3
    label_smoothing: float = 0.05

    def init(self) -> Digits:
        widths = [1, self.hidden, 2 * self.hidden, 4 * self.hidden]
        return Digits(
            blocks=[
                Block(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm(outside))
                for inside, outside in itertools.pairwise(widths)
            ],
            pool=nn.MaxPool2d(2),
            dropout=nn.Dropout(self.dropout),
            head=nn.Linear(4 * widths[-1], 10),
            loss=nn.CrossEntropy(label_smoothing=self.label_smoothing),
        )


class TrainConfig(burnt.Config):
    """The settings of the training program."""

    model: DigitsConfig = DigitsConfig()
    epochs: int = 30
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.05
    seed: int = 0
    precision: str = "float32"
    folder: Path | None = None
    resume: bool = False
    monitor: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs < 1:
            raise ValueError("epochs: expected at least 1")
        if self.resume and self.folder is None:
            raise ValueError("resume=true needs the run's folder: folder=runs/digits-... resume=true")


def load_splits() -> dict[str, TensorDataset]:
    """Load the digits, split the same way in every run: 1,149 to train, 288 to validate, 360 to test."""
    images, labels = load_digits(return_X_y=True)
    rest, test, rest_labels, test_labels = train_test_split(
        images, labels, test_size=360, stratify=labels, random_state=0
    )
    train, valid, train_labels, valid_labels = train_test_split(
        rest, rest_labels, test_size=288, stratify=rest_labels, random_state=0
    )
    return {
        name: TensorDataset(
            images=torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8),
            labels=torch.tensor(y, dtype=torch.int64),
        )
        for name, x, y in (
            ("train", train, train_labels),
            ("valid", valid, valid_labels),
            ("test", test, test_labels),
        )
    }


def distort(batch: Batch, generator: torch.Generator) -> Batch:
    """Rotate, stretch and shift each image slightly, by its own random amount."""
    count = len(batch)

    def uniform(limit: float) -> torch.Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle, shear = uniform(math.radians(12)), uniform(0.15)
    scale_x, scale_y = 1 + uniform(0.12), 1 + uniform(0.12)
    shift_x, shift_y = uniform(0.25), uniform(0.25)  # in units of half the width: at most one pixel
    rows = [
        torch.stack([scale_x * angle.cos(), shear - angle.sin(), shift_x], 1),
        torch.stack([angle.sin(), scale_y * angle.cos(), shift_y], 1),
    ]
    grid = torch.nn.functional.affine_grid(
        torch.stack(rows, 1), list(batch.images.shape), align_corners=False
    )
    images = torch.nn.functional.grid_sample(batch.images, grid, align_corners=False)
    return batch.replace(images=images)


def main(config: TrainConfig) -> float:
    """Train, evaluate on the test split and print results per digit; return the test accuracy."""
    torch.manual_seed(config.seed)
    splits = load_splits()
    train = Loader(splits["train"], config.batch_size, shuffle=True, seed=config.seed, transform=distort)
    steps = config.epochs * len(train)
    warmup = max(1, steps // 27)
    learner = Learner(
        config.model.init(),
        optim.AdamW(weight_decay=config.weight_decay),
        optim.Warmup(warmup, optim.Cosine(config.lr, steps=max(1, steps - warmup))),
    )
    training = SupervisedTraining(
        config.folder or Path("runs") / time.strftime("digits-%Y%m%d-%H%M%S"),
        train=train,
        valid=Loader(splits["valid"], 288),
        duration=f"{config.epochs} epochs",
        metrics=[Accuracy(), Loss(), ConfusionMatrix(10)],
        checkpoints=[KeepLast(2), KeepBest(Loss())],
        precision=config.precision,
        monitor=config.monitor,
        resume=config.resume,
        config=config,
    )
    result = training.run(learner)
    confusion = ConfusionMatrix(10)
    values = evaluate(learner, Loader(splits["test"], 360), [Accuracy(), confusion])
    print(f"\nTest results per digit:\n{confusion}\n")
    print(f"Run folder: {result.folder}   (burnt runs show {result.folder})")
    print(f"Test accuracy: {values['accuracy']:.4f}")
    return values["accuracy"]


if __name__ == "__main__":
    main(TrainConfig.from_assignments(sys.argv[1:]))
