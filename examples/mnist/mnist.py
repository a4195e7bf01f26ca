"""Train a ConvNet on MNIST, or without its files on the digits that ship with scikit-learn.

    python examples/mnist/mnist.py
    burnt train examples/mnist/mnist.py:main data=MNIST_FOLDER download=true epochs=5

The folder holds MNIST's four idx files, with or without .gz; Fashion-MNIST's have the same names. Those that
are missing are downloaded.
"""

from __future__ import annotations

import sys

import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, Mnist, TensorDataset, split, transforms
from burnt.train import ClassificationOutput, Learner, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy


class Net(burnt.Module):
    """Images [n, 1, 28, 28] of uint8 -> logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images / 255)

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.images)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return ClassificationOutput(loss, logits, batch.labels)


class Settings(burnt.Config):
    """The settings of the program."""

    data: str | None = None
    download: bool = False
    folder: str = "runs/mnist"
    resume: bool = False
    epochs: int = 20
    batch_size: int = 64
    width: int = 16
    lr: float = 3e-3
    seed: int = 0
    device: str | None = None

    def init(self) -> Net:
        return Net(
            nn.Sequential(
                *(nn.Conv2d(1, self.width, 3, padding=1), nn.Relu(), nn.MaxPool2d(2)),
                *(nn.Conv2d(self.width, 2 * self.width, 3, padding=1), nn.Relu(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(2 * self.width * 7 * 7, 10)),
            )
        )


def load(folder: str | None, download: bool) -> tuple[TensorDataset, TensorDataset]:
    """Return MNIST's training and test set; without a folder four and one fifth of scikit-learn's digits."""
    if folder is not None:
        return Mnist(folder, "train", download=download), Mnist(folder, "test", download=download)
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels * (255 / 16)).view(-1, 1, 8, 8).to(torch.uint8)
    images = transforms.functional.resize(images, 28)
    return split(TensorDataset(images=images, labels=torch.tensor(labels)), 0.8, seed=0, stratify="labels")


def draw(images: torch.Tensor, texts: list[str], columns: int = 10) -> Image.Image:
    """Draw images, [n, 1, 28, 28], in rows, with a text below each."""
    sheet = Image.new("L", (64 * columns, 80 * -(-len(texts) // columns)), 255)
    for i, (image, text) in enumerate(zip(images, texts, strict=True)):
        x, y = 64 * (i % columns) + 4, 80 * (i // columns) + 4
        sheet.paste(Image.fromarray(255 - image[0].numpy()).resize((56, 56)), (x, y))
        ImageDraw.Draw(sheet).text((x, y + 58), text)
    return sheet


def main(settings: Settings) -> float:
    """Train, draw the test images that are read least surely, and return the test accuracy."""
    torch.manual_seed(settings.seed)
    data, test = load(settings.data, settings.download)
    train, valid = split(data, 0.9, seed=0, stratify="labels")
    move = transforms.RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1))
    loader = Loader(train, settings.batch_size, shuffle=True, seed=settings.seed, transform=move)
    training = SupervisedTraining(
        settings.folder,
        train=loader,
        valid=Loader(valid, 256),
        duration=f"{settings.epochs} epochs",
        metrics=[Accuracy()],
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    schedule = optim.Cosine(settings.lr, steps=settings.epochs * len(loader))
    result = training.run(Learner(settings.init(), optim.AdamW(), schedule))
    accuracy = evaluate(result.model, Loader(test, 256), [Accuracy()])["accuracy"]

    images, labels = test.column("images"), test.column("labels")
    probabilities = burnt.predict(result.model, images, transform=torch.nn.Softmax(-1))
    unsure = probabilities[range(len(labels)), labels].argsort()[:30]
    texts = [f"{labels[i]} read {probabilities[i].argmax()}" for i in unsure.tolist()]
    draw(images[unsure], texts).save(result.folder / "unsure.png")
    print(f"Test accuracy: {accuracy:.4f} on {len(labels):,} images; {result.folder / 'unsure.png'}")
    return accuracy


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
