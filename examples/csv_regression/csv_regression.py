"""Train a regression on a CSV file, and compare it with scikit-learn's ridge regression.

    python examples/csv_regression/csv_regression.py
    burnt train examples/csv_regression/csv_regression.py:main data=patients.csv

Without data= it writes a file: scikit-learn's diabetes data, ten measurements of each of 442 patients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import burnt
from burnt import nn, optim
from burnt.data import Batch, CsvDataset, Loader, split
from burnt.plot import Line, Plot
from burnt.train import EarlyStopping, Learner, StepOutput, SupervisedTraining, evaluate
from burnt.train.metrics import MAE, R2

FEATURES = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]


class Net(burnt.Module):
    """Features [n, 10] -> progression [n]. What `scale` and `target` learn is saved with the weights."""

    scale: nn.Standardize
    layers: nn.Sequential
    target: nn.Standardize

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        standardized = self.layers(self.scale(features))[:, 0]
        return standardized * self.target.feature_std + self.target.feature_mean

    def training_step(self, batch: Batch) -> StepOutput:
        outputs = self(batch.features)
        loss = torch.nn.functional.mse_loss(self.target(outputs[:, None]), self.target(batch.target[:, None]))
        return StepOutput(loss, outputs, batch.target)


class Settings(burnt.Config):
    """The settings of the program."""

    data: str = "diabetes.csv"
    folder: str = "runs/csv_regression"
    resume: bool = False
    epochs: int = 200
    batch_size: int = 32
    hidden: int = 32
    dropout: float = 0.4
    lr: float = 1e-3
    seed: int = 0
    device: str | None = None

    def init(self) -> Net:
        layers = nn.Sequential(
            *(nn.Linear(len(FEATURES), self.hidden), nn.Relu(), nn.Dropout(self.dropout)),
            *(nn.Linear(self.hidden, self.hidden), nn.Relu(), nn.Linear(self.hidden, 1)),
        )
        return Net(nn.Standardize(len(FEATURES)), layers, nn.Standardize(1))


def load(path: str) -> CsvDataset:
    """Open the table; write scikit-learn's diabetes data first, unless another file is asked for."""
    if path == Settings().data and not Path(path).exists():
        diabetes, header = load_diabetes(scaled=False), ",".join([*FEATURES, "target"])
        table = np.column_stack([diabetes.data, diabetes.target])
        np.savetxt(path, table, "%g", delimiter=",", header=header, comments="")
    types = dict.fromkeys([*FEATURES, "target"], float)
    return CsvDataset(path, columns={"features": FEATURES, "target": "target"}, types=types)


def main(settings: Settings) -> dict[str, float]:
    """Train, compare with scikit-learn on the test set, draw the errors, and return R2 and MAE."""
    torch.manual_seed(settings.seed)
    train, valid, test = split(load(settings.data), 0.6, 0.15, 0.25, seed=0)
    model = settings.init()
    model.scale.fit(train, "features")
    model.target.fit(train, "target")
    training = SupervisedTraining(
        settings.folder,
        train=Loader(train, settings.batch_size, shuffle=True, seed=settings.seed),
        valid=Loader(valid, 256),
        duration=f"{settings.epochs} epochs",
        metrics=[MAE(), R2()],
        stopping=EarlyStopping(R2(), patience="40 epochs", restore_best=True),
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    result = training.run(Learner(model, optim.AdamW(weight_decay=1.0), settings.lr))
    values = evaluate(result.model, Loader(test, 256), [R2(), MAE()])
    truth = test.column("target")
    ridge = make_pipeline(StandardScaler(), RidgeCV(alphas=[0.1, 1, 10, 100]))
    ridge.fit(train.column("features"), train.column("target"))
    predictions = {
        "burnt": burnt.predict(model, test),
        "ridge regression": torch.tensor(ridge.predict(test.column("features"))),
        "mean": train.column("target").mean().expand(len(truth)),
    }
    lines = []
    for name, predicted in predictions.items():
        errors = (predicted - truth).abs().sort().values
        print(f"{name:<16}  R2 {r2_score(truth, predicted):6.3f}  MAE {errors.mean():5.1f}")
        lines.append(Line(name, [100 * i / len(errors) for i in range(len(errors))], errors.tolist()))
    (result.folder / "errors.svg").write_text(Plot(lines, x="% of the patients").svg())
    return values


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
