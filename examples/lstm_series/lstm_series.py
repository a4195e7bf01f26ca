"""Forecast a time series by an LSTM: the sunspots of the next year, from those of all years before.

    python examples/lstm_series/lstm_series.py
    burnt train examples/lstm_series/lstm_series.py:main hidden=64

sunspots.csv, next to this program, has the mean number of sunspots of each year from 1700 to 2008.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import burnt
from burnt import nn, optim
from burnt.data import CsvDataset, Loader, windows
from burnt.plot import Line, Plot
from burnt.train import EarlyStopping, Learner, StepOutput, SupervisedTraining
from burnt.train.metrics import MAE


class Forecaster(burnt.Module):
    """Values of consecutive years [n, years] -> a forecast of the year after each, [n, years]."""

    scale: nn.Standardize
    lstm: nn.Lstm
    dropout: nn.Dropout
    head: nn.Linear

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.scale(values[..., None]))
        change = self.head(self.dropout(states))[
            ..., 0
        ]  # in standard deviations: the LSTM adds to the naive forecast
        return values + change * self.scale.feature_std

    def training_step(self, series: torch.Tensor) -> StepOutput:
        outputs, targets = self(series[:, :-1]), series[:, 1:]
        # The first years have too little before them.
        outputs, targets = outputs[:, 11:], targets[:, 11:]
        loss = torch.nn.functional.smooth_l1_loss(outputs / 40, targets / 40)
        return StepOutput(loss, outputs, targets)


class Settings(burnt.Config):
    """The settings of the program."""

    data: Path = Path(__file__).with_name("sunspots.csv")
    folder: str = "runs/lstm_series"
    resume: bool = False
    train_until: int = 1900
    valid_until: int = 1950
    years: int = 44
    hidden: int = 8
    dropout: float = 0.1
    epochs: int = 150
    batch_size: int = 16
    lr: float = 1e-2
    seed: int = 0
    device: str | None = None

    def init(self) -> Forecaster:
        return Forecaster(
            nn.Standardize(1), nn.Lstm(1, self.hidden), nn.Dropout(self.dropout), nn.Linear(self.hidden, 1)
        )


def main(settings: Settings) -> float:
    """Train, forecast each year from `valid_until` on, draw that, and return the mean absolute error."""
    torch.manual_seed(settings.seed)
    table = CsvDataset(settings.data, types={"year": int, "sunspots": float})
    years, series = table.column("year"), table.column("sunspots")
    train = series[years < settings.train_until]
    valid = series[(years >= settings.train_until - settings.years) & (years < settings.valid_until)]
    model = settings.init()
    model.scale.fit(train)
    spans = windows(train, settings.years + 1)
    loader = Loader(spans, settings.batch_size, shuffle=True, seed=settings.seed)
    training = SupervisedTraining(
        settings.folder,
        train=loader,
        valid=Loader(windows(valid, len(valid)), 1),
        duration=f"{settings.epochs} epochs",
        metrics=[MAE()],
        stopping=EarlyStopping("loss", patience="30 epochs", restore_best=True),
        clip_norm=1.0,
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    result = training.run(Learner(model, optim.AdamW(weight_decay=0.1), settings.lr))

    test = years >= settings.valid_until
    truth = series[test]
    forecasts = {
        "LSTM": burnt.predict(result.model, series[None])[0].roll(1)[test],
        "the value of the year before": series.roll(1)[test],
        "the value of eleven years before": series.roll(11)[test],
    }
    since_1900 = (years[test] - 1900).tolist()
    lines = [Line("sunspots", since_1900, truth.tolist())]
    for name, forecast in forecasts.items():
        error = (forecast - truth).abs().mean().item()
        print(f"mean absolute error {error:5.2f}  {name}")
        lines.append(Line(name, since_1900, forecast.tolist()))
    (result.folder / "forecast.svg").write_text(Plot(lines[:3], x="years since 1900").svg())
    return (forecasts["LSTM"] - truth).abs().mean().item()


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
