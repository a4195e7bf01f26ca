"""Train a text classifier on a CSV file.

    python examples/text_classification/text_classification.py
    burnt train examples/text_classification/text_classification.py:main data=reviews.csv

The file has the columns text and label. Without one, the program writes docstrings of Python's standard
library, without the names of the packages: which one is a docstring from?
"""

from __future__ import annotations

import csv
import re
import sys
import zlib
from pathlib import Path

import torch

import burnt
from burnt import data, nn, optim
from burnt.plot import Line, Plot
from burnt.train import ClassificationOutput, EarlyStopping, Learner, RunReader, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy, ConfusionMatrix

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d]")


class Net(burnt.Module):
    """Words [n, length], 0 for padding -> logits [n, classes], from the mean of the words' embeddings."""

    embedding: nn.Embedding
    dropout: nn.Dropout
    head: nn.Linear

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        count = (words != 0).sum(1, keepdim=True).clamp(min=1)
        return self.head(self.dropout(self.embedding(words).sum(1) / count.sqrt()))

    def training_step(self, batch: data.Batch) -> ClassificationOutput:
        logits = self(batch.words)
        loss = torch.nn.functional.cross_entropy(logits, batch.label)
        return ClassificationOutput(loss, logits, batch.label)


class Settings(burnt.Config):
    """The settings of the program."""

    data: str = "docstrings.csv"
    folder: str = "runs/text_classification"
    resume: bool = False
    epochs: int = 40
    batch_size: int = 32
    dim: int = 64
    dropout: float = 0.5
    lr: float = 1e-2
    seed: int = 0
    device: str | None = None
    classes: int = len(PACKAGES)
    vocabulary: int = 1 << 14

    def init(self) -> Net:
        embedding = nn.Embedding(self.vocabulary, self.dim, padding_idx=0)
        return Net(embedding, nn.Dropout(self.dropout), nn.Linear(self.dim, self.classes))


def write_docstrings(path: str) -> None:
    """Write the docstrings of the packages, each with the name of its package."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in sorted((Path(csv.__file__).parent / package).rglob("*.py")):
            for _, text in re.findall(r"(\"{3}|'{3})(.*?)\1", file.read_text(encoding="utf-8"), re.DOTALL):
                text = " ".join(re.sub("|".join(PACKAGES), "", text).split())
                if text.count(" ") > 3:
                    found.setdefault(text, set()).add(package)
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = [(text, *packages) for text, packages in found.items() if len(packages) == 1]
        csv.writer(file).writerows([("text", "label"), *rows])


def main(settings: Settings) -> float:
    """Train, compare with scikit-learn on the test set, and return the accuracy."""
    torch.manual_seed(settings.seed)
    if settings.data == Settings().data and not Path(settings.data).exists():
        write_docstrings(settings.data)
    table = data.CsvDataset(settings.data, label="label", types={"text": str})

    def encode(row: dict) -> dict:
        # Numbers of words by a hash: there is no list of words to save.
        hashes = [zlib.crc32(word.encode()) for word in WORD.findall(row["text"].lower())[:200]]
        return {"words": [1 + h % (settings.vocabulary - 1) for h in hashes], "label": row["label"]}

    encoded = data.cache(data.map(table, encode))
    train, valid, test = data.split(encoded, 0.65, 0.1, 0.25, seed=0, stratify="label")
    pad = data.Pad({"words": 0})
    training = SupervisedTraining(
        settings.folder,
        train=data.Loader(train, settings.batch_size, shuffle=True, seed=settings.seed, batcher=pad),
        valid=data.Loader(valid, 256, batcher=pad),
        duration=f"{settings.epochs} epochs",
        metrics=[Accuracy()],
        stopping=EarlyStopping("loss", patience="5 epochs", restore_best=True),
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    result = training.run(Learner(settings.init(), optim.AdamW(weight_decay=0.1), settings.lr))
    confusion = ConfusionMatrix()
    values = evaluate(result.model, data.Loader(test, 256, batcher=pad), [Accuracy(), confusion])
    with RunReader(result.folder) as run:
        lines = [Line(f"{split} loss", *run.points("loss", split)[::2]) for split in ("train", "valid")]
    (result.folder / "loss.svg").write_text(Plot(lines).svg())
    print(f"{confusion}\n\nTest accuracy: {values['accuracy']:.4f} on {len(test)} texts")
    return values["accuracy"]


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
