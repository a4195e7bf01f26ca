"""Train a ConvNet on pictures in folders, one for each class, and predict others with `burnt predict`.

    python examples/image_folder/image_folder.py
    burnt train examples/image_folder/image_folder.py:main data=FOLDER size=64 classes=5

The folder has train, valid and test, each with a folder for each class. Without data=, the program writes
the 1,797 digits that ship with scikit-learn as PNG files.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits

import burnt
from burnt import nn, optim
from burnt.cli import main as run_command
from burnt.data import Batch, ImageFolder, Loader, transforms
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.metrics import Accuracy


class Net(burnt.Module):
    """Images [n, 3, height, width] of any size -> logits [n, classes]."""

    layers: nn.Sequential
    head: nn.Linear

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images).mean((2, 3)))

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.images)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return ClassificationOutput(loss, logits, batch.labels)


class Settings(burnt.Config):
    """The settings of the program."""

    data: str = "digits"
    folder: str = "runs/image_folder"
    resume: bool = False
    size: int = 16
    classes: int = 10
    width: int = 32
    epochs: int = 15
    batch_size: int = 32
    lr: float = 5e-3
    seed: int = 0
    device: str | None = None

    def init(self) -> Net:
        layers = nn.Sequential(
            *(nn.Conv2d(3, self.width, 3, padding=1), nn.BatchNorm(self.width), nn.Relu(), nn.MaxPool2d(2)),
            *(nn.Conv2d(self.width, 2 * self.width, 3), nn.BatchNorm(2 * self.width), nn.Relu()),
            *(nn.Conv2d(2 * self.width, 4 * self.width, 3), nn.BatchNorm(4 * self.width), nn.Relu()),
        )
        return Net(layers, nn.Linear(4 * self.width, self.classes))


def write_digits(folder: Path) -> None:
    """Write scikit-learn's digits as train/3/0017.png and so on; the last writers are those of the test."""
    pixels, labels = load_digits(return_X_y=True)
    for i, (image, label) in enumerate(zip(pixels.reshape(-1, 8, 8), labels, strict=True)):
        split = "train" if i < 1100 else "valid" if i < 1400 else "test"
        path = folder / split / str(label) / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * (255 / 16)).astype("uint8")).save(path)


def main(settings: Settings) -> float:
    """Train, draw what the augmentation does, predict the test pictures, and return the accuracy."""
    torch.manual_seed(settings.seed)
    folder = Path(settings.data)
    if settings.data == Settings().data and not folder.exists():
        write_digits(folder)
    resize = transforms.Resize((settings.size, settings.size))
    prepare = (transforms.ToFloat(), transforms.Normalize())
    move = transforms.RandomAffine(12, translate=(0.1, 0.1), scale=(0.85, 1.15))
    augment = transforms.Compose(resize, move, transforms.ColorJitter(brightness=0.3, contrast=0.3), *prepare)
    train = ImageFolder(folder / "train")
    valid = ImageFolder(folder / "valid", classes=train.classes)
    loader = Loader(train, settings.batch_size, shuffle=True, seed=settings.seed, item_transform=augment)
    training = SupervisedTraining(
        settings.folder,
        train=loader,
        valid=Loader(valid, 128, item_transform=transforms.Compose(resize, *prepare)),
        duration=f"{settings.epochs} epochs",
        metrics=[Accuracy()],
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    schedule = optim.Cosine(settings.lr, steps=settings.epochs * len(loader))
    result = training.run(Learner(settings.init(), optim.AdamW(), schedule))
    rows = []
    for i in range(0, len(train), len(train) // 8):  # a row for each picture: eight versions of it
        versions = [augment(train[i], torch.Generator().manual_seed(seed))["images"] for seed in range(8)]
        rows.append(torch.cat(versions, 2))
    sheet = transforms.Normalize().inverse()(torch.cat(rows, 1)).clamp(0, 1)
    picture = Image.fromarray((255 * sheet).byte().permute(1, 2, 0).numpy())
    picture.resize((2 * picture.width, 2 * picture.height), 0).save(result.folder / "augmented.png")

    file = result.folder / "test.csv"  # as: burnt predict runs/image_folder --data digits/test -o test.csv
    run_command(["predict", str(result.folder), "--data", str(folder / "test"), "-o", str(file), "--force"])
    predicted = csv.DictReader(file.read_text("utf-8").splitlines())
    right = [row["path"].split("/")[0] == row["prediction"] for row in predicted]
    print(f"Test accuracy: {sum(right) / len(right):.4f} on {len(right)} pictures; {file}")
    return sum(right) / len(right)


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
