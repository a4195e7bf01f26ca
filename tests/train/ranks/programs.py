"""Trainings that one process and several must do alike: `python programs.py FOLDER CASE ... RANK`."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchmetrics

import burnt
from burnt import data, nn, optim
from burnt.errors import NonFiniteError
from burnt.record import record_of
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    KeepLast,
    Learner,
    Plateau,
    StepOutput,
    SupervisedTraining,
)
from burnt.train.metrics import AUROC, F1, Accuracy, EpochMetric, TorchMetric
from burnt.train.ranks import ranks

SETTINGS: dict[str, Any] = {}
ITEMS = 53  # batches of 8, and a last one of 5


def table(items: int = ITEMS) -> data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(items, 6, generator=generator, dtype=torch.float64)
    return data.TensorDataset(x=x, y=(x.sum(1) > 0).long() + (x[:, 0] > 0.5).long())


def network(*layers: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(3)
    middle = layers or (nn.Tanh(),)
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.Linear(16, 3)).double()


def classify(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
    logits = model(batch.x)
    return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def train(
    folder: Path,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    step: Callable[..., Any] | None = classify,
    rate: Any = 1e-2,
    loader: Any = None,
    validation_step: Any = None,
    compile: bool = False,
    **settings: Any,
) -> tuple[torch.nn.Module, Any]:
    model = network() if model is None else model
    options = {
        "duration": "3 epochs",
        "metrics": [Accuracy()],
        "seed": 0,
        "log_every": 2,
        "valid": data.Loader(table(), 7),
        "monitor": "off",
        **SETTINGS,
        **settings,
    }
    training = SupervisedTraining(
        folder,
        train=data.Loader(table(), 8, shuffle=True) if loader is None else loader,
        device="cpu",
        **options,
    )
    learner = Learner(model, optimizer or optim.AdamW(), rate, step, validation_step, compile)
    return model, training.run(learner)


class Gan(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.generator = nn.Linear(6, 6).double()
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def training_step(self, batch: Any, optimizers: Any) -> StepOutput:
        fake = self.generator(batch.x)
        loss = self.critic(fake.detach()).mean() - self.critic(batch.x).mean()
        optimizers["critic"].step(loss)
        own = -self.critic(fake).mean() + fake.square().mean()
        optimizers["generator"].step(own)
        return StepOutput(own.detach() + loss.detach(), fake.detach(), batch.x)

    def validation_step(self, batch: Any) -> StepOutput:
        return StepOutput(self.critic(self.generator(batch.x)).mean(), batch.x, batch.x)


class MedianLoss(EpochMetric):
    name, higher_is_better = "median_logit", False

    def update(self, output: StepOutput) -> None:
        self.keep(output.outputs.amax(-1))

    def compute(self) -> float:
        return float(self.kept()[0].sort().values[self.count // 2])


def labels(output: StepOutput) -> Any:
    return (output.targets.double(),)


class WithShorts(torch.nn.Module):
    """Has a buffer of a dtype that torch.distributed does not send, with other values in each process."""

    def __init__(self) -> None:
        super().__init__()
        rank = int(os.environ.get("RANK", "0"))
        self.register_buffer("short", torch.full((2,), 1 - rank, dtype=torch.int16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.short[0]


class StopOnLastRank:
    def on_step(self, event: Any) -> None:
        if event.training.position.step == 11 and os.environ.get("RANK", "0") == str(
            int(os.environ.get("WORLD_SIZE", "1")) - 1
        ):
            event.training.stop("stopped by a callback")


class Tied(torch.nn.Module):
    """Layers that share a weight, some of them of a single row, of which not every rank has a part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = torch.nn.ModuleList([nn.Linear(6, 1), nn.Linear(1, 6)])
        self.shared = torch.nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.shared[1].weight = self.shared[0].weight
        self.last = nn.Linear(6, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.rows[1](self.rows[0](x).tanh())
        return self.last(self.shared[1](self.shared[0](x).tanh()))


def ignored(folder: Path, *layers: torch.nn.Module) -> Any:
    """Most parts of a batch have no item that the loss counts, and so a mean that is NaN."""

    def step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        logits, counted = model(batch.x), batch.x[:, 0] > 0.9
        loss = torch.nn.functional.cross_entropy(logits, torch.where(counted, batch.y, -100))
        return ClassificationOutput(loss, logits, batch.y, count=int(counted.sum()))

    return train(folder, network(*layers), step=step, validation_step=classify)


def auxiliary(folder: Path) -> Any:
    """The loss has a term of a layer that outputs do not reach; one rank has no item of the last batch."""
    heads = torch.nn.ModuleList([network(nn.SyncBatchNorm(16)), network(nn.SyncBatchNorm(16))])

    def step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        twice = torch.cat([batch.x, -batch.x])  # so that a last batch of one item has a variance
        main, other = (head(twice)[: len(batch.x)] for head in model)
        losses = [torch.nn.functional.cross_entropy(logits, batch.y) for logits in (main, other)]
        return ClassificationOutput(losses[0] + 0.3 * losses[1], main, batch.y)

    return train(folder, heads, step=step, loader=data.Loader(table(9), 8), validation_step=step)


def gan(folder: Path, normalize: bool = False) -> Any:
    model = Gan()
    if normalize:
        model.generator = nn.Sequential(model.generator, nn.SyncBatchNorm(6).double())
    pair = {"critic": optim.AdamW(), "generator": optim.AdamW()}
    loader = data.Loader(table(19), 8, shuffle=True)
    return train(folder, model, pair, None, metrics=[], loader=loader if normalize else None)


def uneven(folder: Path) -> Any:
    """One item in the last batch, so that ranks have none; a mean over other numbers than items.

    What steps log counts by items, and what a callback logs, by ranks.
    """
    loader = data.Loader(table(17), 8, shuffle=True)

    def step(model: torch.nn.Module, batch: Any) -> StepOutput:
        logits = model(batch.x)
        counted = batch.y > 0
        loss = torch.nn.functional.cross_entropy(logits, torch.where(counted, batch.y, -100))
        burnt.log(first_feature=batch.x[:, 0].mean())
        return ClassificationOutput(loss, logits, batch.y, count=int(counted.sum()))

    def validation_step(model: torch.nn.Module, batch: Any) -> StepOutput:
        output = classify(model, batch)
        output.log = {"first_feature": batch.x[:, 0].mean()}
        return output

    class Logging:
        def on_step(self, event: Any) -> None:
            burnt.log(step=event.training.position.step)

    return train(folder, step=step, loader=loader, validation_step=validation_step, callbacks=[Logging()])


def half(folder: Path) -> Any:
    model = network().float()

    def step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        logits = model(batch.x.float())
        return ClassificationOutput(
            torch.nn.functional.cross_entropy(logits.float(), batch.y), logits, batch.y
        )

    return train(folder, model, step=step, precision="float16")


def packed(folder: Path) -> Any:
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(2, 9, (40,), generator=generator).tolist()
    documents = [torch.randint(0, 20, (length,), generator=generator) for length in lengths]
    loader = data.Loader(documents, 3, shuffle=True, pack=data.Pack(12))
    torch.manual_seed(6)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).double()

    def step(model: torch.nn.Module, batch: Any) -> StepOutput:
        logits, counted = model(batch.tokens), batch.labels != -100
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        return StepOutput(loss, count=int(counted.sum()))

    return train(
        folder,
        model,
        step=step,
        loader=loader,
        metrics=[],
        validation_step=lambda model, batch: StepOutput(batch.x.mean(), count=len(batch.x)),
    )


def small_buckets(folder: Path) -> Any:
    """Several buckets of gradients, and a layer that is trained from the second epoch on."""
    ranks._BUCKET_BYTES = 200
    model = network(nn.Linear(16, 16), nn.Tanh()).requires_grad_(True)
    model[1].double().requires_grad_(False)

    class Unfreezing:
        def on_epoch(self, event: Any) -> None:
            model[1].requires_grad_(True)

    try:
        return train(folder, model, callbacks=[Unfreezing()])
    finally:
        ranks._BUCKET_BYTES = 25 << 20


def resumed(folder: Path) -> Any:
    """In the middle of an epoch, with layers in layers, and with metrics whose state is more than sums."""
    metrics = [Accuracy(), F1("macro"), AUROC(), MedianLoss()]
    for settings in ({"duration": "11 steps"}, {"resume": True}):
        block = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        done = train(folder, network(block, Nested(nn.Linear(16, 16))), metrics=metrics, **settings)
    return done


class Nested(torch.nn.Module):
    """A layer of the user's own with a container in it."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ModuleList([layer, torch.nn.Tanh()])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, activation in self.layers:
            x = activation(layer(x))
        return x


def stream(folder: Path, durations: tuple[str, ...] = ("9 steps", "2 epochs")) -> Any:
    """With transforms that draw, stopped and resumed in the middle of an epoch."""

    def noisy(item: Any, generator: torch.Generator) -> Any:
        return {**item, "x": item["x"] + torch.randn(6, generator=generator, dtype=torch.float64)}

    for duration in durations:
        shards = data.Shards(range(3), rows)
        loader = data.StreamLoader(shards, 8, shuffle=10, item_transform=noisy, workers=1)
        limited = data.LimitedLoader(loader, 6)
        model, result = train(folder, loader=limited, duration=duration, resume=True)
        loader.close()
    return model, result


SHARDED = (
    "nan skip",
    "adamw",
    "compiled",
    "sgd",
    "clip value",
    "ema",
    "schedule free",
    "uneven",
    "half",
    "stopping",
    "resumed",
    "foreign",
    "tied",
    "ignored",
)
"""What ``strategy="fsdp"`` does too."""


def not_finite(folder: Path, policy: str) -> Any:
    """The loss of one item is NaN, which one rank has; another has an infinite gradient of a finite loss."""
    items = table()
    items.columns["x"][20] = math.nan
    items.columns["x"][7, 0] = 9.0

    def step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        output = classify(model, batch)
        logit = output.outputs[0, 0]
        if (batch.x[:, 0] == 9.0).any() and policy == "skip":
            output.loss = output.loss + torch.sqrt(logit - logit.detach())
        return output

    loader = data.Loader(items, 8, shuffle=True)
    try:
        return train(folder, step=step, loader=loader, on_nan=policy, accumulate=2)
    except NonFiniteError as error:
        return network(), Raised(f"{error.what} {error.where} {error.found}", Raised.Position(error.steps[0]))


@dataclasses.dataclass
class Raised:
    """What a training is compared by that has raised an error."""

    @dataclasses.dataclass
    class Position:
        step: int

    reason: str
    position: Position
    values: Any = ()


CASES: dict[str, Callable[[Path], Any]] = {
    "adamw": lambda folder: train(folder, metrics=[Accuracy(), F1("macro"), AUROC(), MedianLoss()]),
    "compiled": lambda folder: train(
        folder, network(nn.LayerNorm(16), nn.Tanh()), compile=True, accumulate=2
    ),
    "sgd": lambda folder: train(folder, optimizer=optim.Sgd(momentum=0.9), clip_norm=0.5, accumulate=3),
    "clip value": lambda folder: train(folder, clip_value=0.01, log_gradient_norm=True, on_nan="skip"),
    "ema": lambda folder: train(folder, optimizer=optim.Ema(optim.AdamW(), 0.9)),
    "schedule free": lambda folder: train(folder, optimizer=optim.ScheduleFreeAdamW()),
    "lbfgs": lambda folder: train(
        folder, optimizer=optim.Lbfgs(), rate=0.1, loader=data.Loader(table(), ITEMS), accumulate=1
    ),
    "gan": gan,
    "nan skip": lambda folder: not_finite(folder, "skip"),
    "nan stop": lambda folder: not_finite(folder, "stop"),
    "nan raise": lambda folder: not_finite(folder, "raise"),
    "resumed": resumed,
    "small buckets": small_buckets,
    "uneven": uneven,
    "half": half,
    "packed": packed,
    "buckets": lambda folder: train(
        folder, loader=data.Loader(table(), 8, shuffle=True, buckets=[i % 7 for i in range(ITEMS)])
    ),
    "limited": lambda folder: train(folder, limit_train=4, limit_valid=3),
    "overfit": lambda folder: train(folder, overfit_batches=2),
    "foreign": lambda folder: train(
        folder, loader=torch.utils.data.DataLoader(table(), 8, shuffle=True, collate_fn=data.collate)
    ),
    "stream": stream,
    "stream begun": lambda folder: stream(folder, ("9 steps",)),
    "stopping": lambda folder: train(
        folder,
        duration="40 epochs",
        rate=Plateau(0.5, "loss", patience="1 epoch"),
        stopping=EarlyStopping("loss", patience="2 epochs", restore_best=True),
    ),
    "batch norm": lambda folder: train(folder, network(nn.SyncBatchNorm(16), nn.Tanh()), accumulate=2),
    "batch norm uneven": lambda folder: train(
        folder, network(nn.SyncBatchNorm(16), nn.Tanh()), loader=data.Loader(table(18), 8, shuffle=True)
    ),
    "gan norm": lambda folder: gan(folder, normalize=True),
    "tied": lambda folder: train(folder, Tied()),
    "ignored": ignored,
    "auxiliary": auxiliary,
    "ignored norm": lambda folder: ignored(folder, nn.SyncBatchNorm(16), nn.Tanh()),
    "total": lambda folder: train(folder, metrics=[TorchMetric(torchmetrics.SumMetric(), labels, "total")]),
    "dtypes": lambda folder: train(folder, network(WithShorts())),
    "stop": lambda folder: train(folder, callbacks=[StopOnLastRank()]),
    "last": lambda folder: train(folder, checkpoints=[KeepLast(3)], checkpoint_every="5 steps"),
}


def rows(shard: int) -> Any:
    columns = table().columns
    return [{name: column[index] for name, column in columns.items()} for index in range(shard, ITEMS, 3)]


def main(folder: str, *names: str) -> None:
    size, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "0")
    for name in names:
        run = Path(folder, f"{name}-{size}")
        SETTINGS["strategy"] = "auto"
        if name.endswith("-fsdp") and size != "1":
            SETTINGS["strategy"] = "fsdp"
        torch.manual_seed(7)  # layers are made before `network` sets its seed
        model, result = CASES[name.removesuffix("-fsdp").replace("-", " ")](run)
        state = {path: tensor.clone() for path, tensor in record_of(model).tensors.items()}
        torch.save(state, f"{run}.rank{rank}.pt")
        document = {"values": dict(result.values), "step": result.position.step, "reason": result.reason}
        document["model"] = repr(model)  # what fully_shard makes of it has the names of its classes
        Path(f"{run}.rank{rank}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:-1])  # the last one is the rank
