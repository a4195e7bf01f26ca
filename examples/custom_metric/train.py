"""Train with metrics of one's own: what mistakes cost, and how many digits can be read without a person.

python examples/custom_metric/train.py          # or: burnt train examples/custom_metric/train.py:main
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

import burnt
from burnt import nn, optim
from burnt.data import Batch, Dataset, Loader, TensorDataset, split
from burnt.plot import Line, Plot
from burnt.train import ClassificationOutput, EarlyStopping, KeepBest, Learner, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy, EpochMetric, Metric


class Cost(Metric):
    """The mean distance of the digit that is read from the right one, as a ratio of two sums."""

    name = "cost"
    higher_is_better = False

    def update(self, output: ClassificationOutput) -> None:
        self.add((output.outputs.argmax(1) - output.targets).abs().sum(), len(output.targets))


def coverage_at(risk: float, confidence: Tensor, right: Tensor) -> float:
    """Return the largest share of items, the most confident first, of which at most `risk` are wrong."""
    wrong = 1 - right[confidence.argsort(descending=True)].double()
    counts = torch.arange(1, len(wrong) + 1)
    accepted = counts[wrong.cumsum(0) <= risk * counts]
    return accepted[-1].item() / len(wrong) if len(accepted) else 0.0


class Coverage(EpochMetric):
    """The share of digits that can be read automatically if `risk` of these may be wrong; sorts an epoch."""

    higher_is_better = True

    def __init__(self, risk: float) -> None:
        super().__init__()
        self.risk, self.name = risk, f"coverage_at_{risk:g}"

    def update(self, output: ClassificationOutput) -> None:
        confidence, label = output.outputs.softmax(1).max(1)
        self.keep(confidence, label == output.targets)

    def compute(self) -> float:
        return coverage_at(self.risk, *self.kept())


class Reader(burnt.Module):
    """Images [n, 64] to logits [n, 10]."""

    layers: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.x)
        return ClassificationOutput(cross_entropy(logits, batch.y), logits, batch.y)


class MetricConfig(burnt.Config):
    """The settings of the training program."""

    epochs: int = 40
    risk: float = 0.005
    seed: int = 0
    folder: Path = Path("runs/custom_metric")

    def init(self) -> Reader:
        return Reader(nn.Sequential(nn.Linear(64, 64), nn.Relu(), nn.Dropout(0.2), nn.Linear(64, 10)))


def load_splits() -> list[Dataset]:
    """Load the digits: 600 to train, 398 to validate, 799 for the test."""
    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(x=torch.tensor(x / 16).float(), y=torch.tensor(y))
    return split(digits, 600, 398, 799, seed=0, stratify="y")


def main(config: MetricConfig) -> dict[str, float]:
    """Train until the coverage no longer rises, print the metrics of the test split and draw its coverage."""
    torch.manual_seed(config.seed)
    train, valid, test = load_splits()
    coverage = Coverage(config.risk)
    training = SupervisedTraining(
        config.folder,
        train=Loader(train, 32, shuffle=True, seed=config.seed),
        valid=Loader(valid, 128),
        duration=f"{config.epochs} epochs",
        metrics=[Accuracy(), Cost(), coverage],
        checkpoints=[KeepBest(coverage)],
        stopping=EarlyStopping(coverage, patience="15 epochs", restore_best=True),
        exists="number",
        config=config,
    )
    learner = Learner(config.init(), optim.AdamW(weight_decay=0.1), 3e-3)
    folder = training.run(learner).folder
    values = evaluate(learner, Loader(test, 128), [Accuracy(), Cost(), coverage])
    print("Test: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    confidence, label = burnt.predict(learner.model, test, transform=nn.Softmax(1)).max(1)
    percents = [i / 10 for i in range(31)]
    shares = [coverage_at(risk / 100, confidence, label == test.column("y")) for risk in percents]
    drawing = Plot([Line("share read automatically", percents, shares)], x="% of these wrong")
    Path(folder, "coverage.svg").write_text(drawing.svg())
    return values


if __name__ == "__main__":
    main(MetricConfig.from_assignments(sys.argv[1:]))
