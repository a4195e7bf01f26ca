"""Train a small text classifier: which package of Python's standard library is a line of source from?

    python examples/quantize/lines.py            # or: burnt train examples/quantize/lines.py:main epochs=2

The data is on every machine that has Python. A fifth of the lines is the test split, used only at the end.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import time
import zlib
from collections import Counter
from pathlib import Path

import torch

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import ClassificationOutput, KeepBest, KeepLast, Learner, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy, Loss

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
TOKEN = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")
LENGTH = 24  # tokens of a line; longer lines are cut
PADDING = 0


class Lines(burnt.Module):
    """Tokens [batch, length] -> logits [batch, packages], by a convolution over neighbouring tokens."""

    embedding: nn.Embedding
    conv: nn.Conv1d
    hidden: nn.Linear
    dropout: nn.Dropout
    head: nn.Linear
    loss: nn.CrossEntropy

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(self.embedding(tokens).transpose(1, 2)))
        x = x.masked_fill(tokens[:, None] == PADDING, 0).amax(2)
        return self.head(self.dropout(torch.relu(self.hidden(x))))

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.tokens)
        return ClassificationOutput(self.loss(logits, batch.labels), logits, batch.labels)


class LinesConfig(burnt.Config):
    """The sizes of the network."""

    vocabulary: int = 4096
    dim: int = 64
    hidden: int = 256
    dropout: float = 0.3

    def init(self) -> Lines:
        return Lines(
            embedding=nn.Embedding(self.vocabulary, self.dim, padding_idx=PADDING),
            conv=nn.Conv1d(self.dim, self.hidden, 3, padding=1),
            hidden=nn.Linear(self.hidden, self.hidden),
            dropout=nn.Dropout(self.dropout),
            head=nn.Linear(self.hidden, len(PACKAGES)),
            loss=nn.CrossEntropy(),
        )


class TrainConfig(burnt.Config):
    """The settings of the training program."""

    model: LinesConfig = LinesConfig()
    epochs: int = 4
    batch_size: int = 128
    lr: float = 3e-3
    weight_decay: float = 0.05
    seed: int = 0
    folder: Path | None = None
    monitor: str = "auto"


def read_lines() -> list[tuple[str, int]]:
    """Return lines of the packages with the package's number; a line that is in several is left out."""
    found: dict[str, set[int]] = {}
    for number, package in enumerate(PACKAGES):
        for file in sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py")):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if len(TOKEN.findall(line)) >= 5:
                    found.setdefault(line.strip(), set()).add(number)
    return [(line, numbers.pop()) for line, numbers in sorted(found.items()) if len(numbers) == 1]


def tokens_of(line: str, vocabulary: int) -> list[int]:
    """Return the numbers of a line's words, digits and signs: hashes, since there is no list of words."""
    numbers = [1 + zlib.crc32(token.lower().encode()) % (vocabulary - 1) for token in TOKEN.findall(line)]
    return (numbers + [PADDING] * LENGTH)[:LENGTH]


def load_splits(config: LinesConfig | None = None) -> dict[str, TensorDataset]:
    """Load the lines, split by a hash of the line: train 70 %, valid 10 %, test 20 %."""
    vocabulary = (config or LinesConfig()).vocabulary
    parts: dict[str, list[tuple[list[int], int]]] = {"train": [], "valid": [], "test": []}
    for line, label in read_lines():
        share = zlib.crc32(line.encode()) % 10
        split = "test" if share < 2 else "valid" if share == 2 else "train"
        parts[split].append((tokens_of(line, vocabulary), label))
    return {
        name: TensorDataset(
            tokens=torch.tensor([tokens for tokens, _ in items]),
            labels=torch.tensor([label for _, label in items]),
        )
        for name, items in parts.items()
    }


def main(config: TrainConfig) -> float:
    """Train, evaluate on the test split, and return the test accuracy."""
    torch.manual_seed(config.seed)
    splits = load_splits(config.model)
    train = Loader(splits["train"], config.batch_size, shuffle=True, seed=config.seed)
    learner = Learner(
        config.model.init(),
        optim.AdamW(weight_decay=config.weight_decay),
        optim.Cosine(config.lr, steps=config.epochs * len(train)),
    )
    training = SupervisedTraining(
        config.folder or Path("runs") / time.strftime("lines-%Y%m%d-%H%M%S"),
        train=train,
        valid=Loader(splits["valid"], 1024),
        duration=f"{config.epochs} epochs",
        metrics=[Accuracy(), Loss()],
        checkpoints=[KeepLast(1), KeepBest(Accuracy())],
        monitor=config.monitor,
        config=config,
    )
    result = training.run(learner)
    labels = splits["test"].columns["labels"]
    values = evaluate(learner, Loader(splits["test"], 1024), [Accuracy()])
    most_frequent = Counter(labels.tolist()).most_common(1)[0][1] / len(labels)
    print(f"\nRun folder: {result.folder}   (burnt runs show {result.folder})")
    print(
        f"Test accuracy: {values['accuracy']:.4f} on {len(labels):,} lines, "
        f"of which {most_frequent:.4f} are of one package"
    )
    return values["accuracy"]


if __name__ == "__main__":
    main(TrainConfig.from_assignments(sys.argv[1:]))
