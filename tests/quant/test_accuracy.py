"""What quantization costs in accuracy: digits with int8 convolutions, and lines of source with int4."""

import copy
import sysconfig
import zlib
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

import burnt
from burnt.nn.quantized import Folded

PACKAGES = (
    "asyncio",
    "ctypes",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
)
BUCKETS, LENGTH = 4096, 60

Data = tuple[Tensor, Tensor, Tensor, Tensor]  # inputs and labels to train with, and those held out


def train(model: nn.Module, data: Data, epochs: int, batch_size: int, lr: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr)
    inputs, labels = data[:2]
    for _ in range(epochs):
        for index in torch.randperm(len(inputs)).split(batch_size):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[index]), labels[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()


def accuracy(model: nn.Module, data: Data) -> float:
    """Return the accuracy on the lines or images held out, in points."""
    with torch.no_grad():
        return float((model(data[2]).argmax(1) == data[3]).double().mean()) * 100


# --- digits -----------------------------------------------------------------------------------------------


def digits(seed: int) -> Data:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=seed, stratify=labels)
    x, x_test, y, y_test = map(torch.tensor, parts)
    return x.float().view(-1, 1, 8, 8) / 16, y, x_test.float().view(-1, 1, 8, 8) / 16, y_test


def convolutional(width: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(1, width), *block(width, 2 * width), nn.MaxPool2d(2), *block(2 * width, 2 * width)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10))


def digits_accuracies(seed: int, width: int, epochs: int) -> tuple[float, float]:
    """Return the accuracies of float32 and static int8."""
    torch.manual_seed(seed)
    data, model = digits(seed), convolutional(width)
    assert len(data[2]) == 360
    train(model, data, epochs, 64, 3e-3)
    quantized = copy.deepcopy(model)
    batches = data[0].split(128)  # type: ignore[no-untyped-call]
    report = burnt.quantize(quantized, "int8-static", calibrate=batches[:8])
    assert len(report.quantized) == 4
    assert sum(isinstance(layer, Folded) for layer in quantized) == 3
    return accuracy(model, data), accuracy(quantized, data)


def test_digits_in_int8():
    before, after = digits_accuracies(0, 8, 3)
    assert before > 90
    assert abs(before - after) <= 0.9  # 3 of 360 images


@pytest.mark.full
def test_digits_in_int8_over_five_seeds():
    results = [digits_accuracies(seed, 16, 12) for seed in range(5)]
    print("digits, float32 and static int8:", [f"{a:.2f} {b:.2f}" for a, b in results])
    before, after = (sum(column) / 5 for column in zip(*results, strict=True))
    print(f"mean of 5: float32 {before:.2f}, static int8 {after:.2f}, difference {after - before:+.2f}")
    assert before > 98
    assert before - after <= 0.3


# --- text -------------------------------------------------------------------------------------------------


def trigram_ids(line: str) -> list[int]:
    """Return hashed trigrams of characters, padded with 0."""
    ids = [1 + zlib.crc32(line[i : i + 3].encode()) % (BUCKETS - 1) for i in range(len(line) - 2)][:LENGTH]
    return ids + [0] * (LENGTH - len(ids))


def source_lines(seed: int, per_package: int) -> Data:
    """Return lines of the standard library with the package as label; each line occurs once."""
    folder = Path(sysconfig.get_path("stdlib"))
    lines: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        text = "\n".join(
            path.read_text(encoding="utf-8") for path in sorted((folder / package).rglob("*.py"))
        )
        own = sorted({line.strip() for line in text.splitlines() if len(line.strip()) >= 20} - lines.keys())
        order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
        lines |= {own[i]: label for i in order[:per_package].tolist()}
    ids, labels = torch.tensor([trigram_ids(line) for line in lines]), torch.tensor(list(lines.values()))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    held, rest = order[:2250], order[2250:]
    return ids[rest], labels[rest], ids[held], labels[held]


class TextClassifier(nn.Module):
    """The mean of the trigrams' vectors, and two layers: ids [batch, length] -> logits."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BUCKETS, size, padding_idx=0)
        self.hidden, self.head = nn.Linear(size, 2 * size), nn.Linear(2 * size, len(PACKAGES))

    def forward(self, ids: Tensor) -> Tensor:
        mean = self.embedding(ids).sum(1) / (ids > 0).sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head(self.hidden(mean).relu())
        return logits


def text_accuracies(seed: int, size: int, per_package: int, epochs: int) -> tuple[float, float]:
    """Return the accuracies of float32 and int4 in blocks of 32."""
    torch.manual_seed(seed)
    data, model = source_lines(seed, per_package), TextClassifier(size)
    assert len(data[2]) >= 2000
    train(model, data, epochs, 128, 5e-3)
    quantized = copy.deepcopy(model)
    report = burnt.quantize(quantized, "int4-block32")
    assert len(report.quantized) == 3
    return accuracy(model, data), accuracy(quantized, data)


def test_text_in_int4():
    before, after = text_accuracies(0, 32, 700, 3)
    assert before > 40  # a ninth by chance
    assert before - after <= 2.0


@pytest.mark.full
def test_text_in_int4_over_five_seeds():
    results = [text_accuracies(seed, 64, 1500, 6) for seed in range(5)]
    print("text, float32 and int4 block 32:", [f"{a:.2f} {b:.2f}" for a, b in results])
    before, after = (sum(column) / 5 for column in zip(*results, strict=True))
    print(f"mean of 5: float32 {before:.2f}, int4 block 32 {after:.2f}, difference {after - before:+.2f}")
    assert before > 60
    assert before - after <= 1.0
