"""Runs for the tests of exact resume: settings as a list, and everything of a run that must be equal."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import optim
from burnt.data import Batch, Loader, Shards, StreamLoader, TensorDataset
from burnt.record import read_tensors
from burnt.train import (
    Checkpoints,
    ClassificationOutput,
    EarlyStopping,
    Histogram,
    Image,
    Interrupted,
    KeepBest,
    KeepLast,
    Learner,
    Plateau,
    RunReader,
    SupervisedTraining,
    Table,
    replay,
)
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss
from burnt.train.rewind.replaying import ReplayReport

ROOT = Path(__file__).parents[2]
ITEMS, BATCH, EPOCHS = 14, 2, 2  # 7 batches of an epoch


def tensors() -> dict[str, torch.Tensor]:
    x = torch.randn(ITEMS, 3, generator=torch.Generator().manual_seed(7))
    return {"x": x, "y": (x.sum(1) > 0).long()}


class Net(nn.Module):
    """Batch statistics, dropout, and a buffer that is not in the state dict but changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("drift", torch.zeros(4), persistent=False)
        self.register_buffer("table", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.a(x))
        if self.training and not x.is_meta:
            self.drift = 0.9 * self.drift + 0.1 * hidden.detach().mean(0)
        return self.b(F.dropout(hidden + self.drift * self.table, 0.3, self.training))


def step(model: nn.Module, batch: Batch) -> ClassificationOutput:
    logits = model(batch.x)
    # Python's and NumPy's generators take part as well.
    loss = F.cross_entropy(logits, batch.y) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())
    return ClassificationOutput(loss, logits, batch.y, log={"mean": logits.mean()})


def overflowing_step(model: nn.Module, batch: Batch) -> ClassificationOutput:
    """A step whose gradients overflow in float16 now and then."""
    output = step(model, batch)
    output.loss = output.loss * (1e9 if float(batch.x[0, 0]) > 1.5 else 1.0)
    return output


def manual_step(model: nn.Module, batch: Batch, optimizers: Any) -> ClassificationOutput:
    """A step that steps two optimizers itself, one of them twice for some batches."""
    for _ in range(1 + (float(batch.x[0, 0]) > 0)):
        optimizers["b"].step(step(model, batch).loss, clip_norm=0.1)
    output = step(model, batch)
    optimizers["*"].step(optimizers["*"].gradients(output.loss))
    return output


class Halving(optim.Sgd):
    """Evaluates the loss twice: it tries a step, and goes half of it back where the loss has grown."""

    needs_closure = True

    def step_with(self, lr: float, model: Any, closure: Any, *, clip_norm: float | None = None) -> Any:
        loss, grads = closure()
        before = {path: p.detach().clone() for path, p in model.items()}
        result = self.step(lr, model, grads, clip_norm=clip_norm)
        if closure()[0] > loss:
            for path, p in model.items():
                p.data.lerp_(before[path], 0.5)
        return result


def groups() -> optim.Groups:
    own_rate = optim.Warmup(3, optim.Cosine(0.02, 9))
    return optim.Groups(
        [
            ("norm.*", optim.AdamW(weight_decay=0), lambda step: 0.1 / (2 + step)),
            (optim.matrices, optim.Muon(), own_rate, 1.0),
            ("*", optim.Sgd(momentum=0.9)),
        ]
    )


def logging_step(model: nn.Module, batch: Batch) -> ClassificationOutput:
    """A step that logs something of each kind."""
    output = step(model, batch)
    x = float(batch.x[0, 0])
    burnt.log(number=x, often=float(len(batch.x)), pixels=Image(batch.x.sigmoid()))
    burnt.log({"a b": batch.x[0, 0] > 0, "text": f"x is {x}"})
    if x > 0:  # not in every step
        burnt.log(rare=batch.x[0, 0])
    output.log = {"rows": Table(["x"], [[x]]), "spread": Histogram(batch.x, bins=3)}
    return output


def with_bad_row(batch: Batch, generator: torch.Generator) -> Batch:
    """Make a value of one row NaN."""
    bad = batch.x == tensors()["x"][8, 0]
    return noisy(batch.replace(x=batch.x.masked_fill(bad, float("nan"))), generator)


def noisy(batch: Batch, generator: torch.Generator) -> Batch:
    return batch.replace(x=batch.x + 0.1 * torch.randn(batch.x.shape, generator=generator))


def noisy_by_global_state(batch: Batch, generator: torch.Generator) -> Batch:
    return batch.replace(x=batch.x + 0.1 * torch.randn(batch.x.shape) + 0.1 * random.random())


class Stream:
    """Batches in an order that the global state of Python draws; neither a length nor a position."""

    def __iter__(self) -> Iterator[Batch]:
        x, y = tensors().values()
        order = random.sample(range(ITEMS), ITEMS)
        for start in range(0, ITEMS, BATCH):
            rows = order[start : start + BATCH]
            yield Batch(x=x[rows] + 0.1 * np.random.rand(), y=y[rows])


def torch_loader() -> Any:
    x, y = tensors().values()

    def collate(rows: list[int]) -> Batch:
        return Batch(x=x[rows] + 0.1 * torch.randn(len(rows), 3), y=y[rows])

    return torch.utils.data.DataLoader(range(ITEMS), BATCH, shuffle=True, collate_fn=collate)


def loader(**settings: Any) -> Loader[Any]:
    dataset: Any = Items() if "item_transform" in settings else TensorDataset(**tensors())
    return Loader(dataset, BATCH, shuffle=True, seed=3, **settings)


def validation(transform: Any = None) -> Loader[Any]:
    return Loader(TensorDataset(**tensors()), 5, transform=transform)


def noisy_item(item: Any, generator: torch.Generator) -> Any:
    return {**item, "x": item["x"] + 0.1 * torch.randn(3, generator=generator)}


class Rows:
    def __call__(self, shard: int) -> Any:
        x, y = tensors().values()
        return [{"x": x[i], "y": y[i]} for i in range(shard, min(shard + 5, ITEMS))]


class Items:
    """Rows one by one, for workers."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        x, y = tensors().values()
        return {"x": x[index], "y": y[index]}


class Counter:
    """A callback with a state, which draws random numbers, changes gradients and stops nothing."""

    def __init__(self) -> None:
        self.steps, self.logged, self.validated = 0, [], 0

    def on_start(self, event: Any) -> None:
        torch.rand(1)

    def on_gradients(self, event: Any) -> None:
        event.gradients = event.gradients.scale(1 + 0.01 * self.steps)

    def on_step(self, event: Any) -> None:
        self.steps += 1

    def on_log(self, event: Any) -> None:
        self.logged.append(event.values["loss"])

    def on_validation(self, event: Any) -> None:
        self.validated += 1

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: {"train": loader(transform=noisy)},
    "accumulate": lambda: {
        "train": loader(transform=noisy), "accumulate": 3, "log_every": 2, "clip_norm": 0.5,
        "callbacks": [Counter()],
    },
    "validations": lambda: {
        "check": True, "train": loader(transform=noisy_by_global_state),
        "valid": {"valid": validation(noisy_by_global_state), "again": validation(noisy)},
        "validate_every": {"valid": "3 steps", "again": "2 steps"}, "checkpoint_every": "4 steps",
        "log_every": 4,
        "schedule": Plateau(optim.Warmup(3, 3e-2), "loss", 2, factor=0.5, threshold=100.0,
                            threshold_mode="abs"),
    },
    "stream": lambda: {
        "train": Stream(), "accumulate": 2, "validate_every": "2 steps", "checkpoint_every": "3 steps",
        "log_every": 3, "optimizer": optim.Ema(optim.Sgd(momentum=0.9), decay=0.9),
    },
    "threads": lambda: {
        "train": loader(workers="2 threads", item_transform=noisy_item, transform=noisy), "accumulate": 3,
    },
    "workers": lambda: {"train": loader(workers=2, item_transform=noisy_item), "log_every": 2},
    "shards": lambda: {
        "train": StreamLoader(
            Shards([0, 5, 10], Rows()), BATCH, shuffle=3, seed=4, drop_last=True, transform=noisy
        ),
        "accumulate": 2, "log_every": 2,
    },
    "background": lambda: {
        "train": loader(transform=noisy), "async_checkpoints": True, "checkpoint_every": "1 step",
        "log_every": 3, "accumulate": 2,
    },
    "torch": lambda: {"train": torch_loader(), "log_every": 5, "checkpoint_every": "2 steps"},
    "float16": lambda: {
        "train": loader(transform=noisy), "precision": "float16", "accumulate": 2, "clip_norm": 0.5,
        "log_every": 2, "step": overflowing_step,
    },
    "skip": lambda: {
        "train": loader(transform=with_bad_row), "on_nan": "skip", "accumulate": 2, "log_every": 2,
        "log_gradient_norm": True,
    },
    "manual": lambda: {
        "train": loader(transform=with_bad_row), "step": manual_step, "validation_step": step,
        "optimizer": {"b": optim.Sgd(momentum=0.9), "*": optim.Ema(optim.AdamW(), decay=0.9)},
        "schedule": {"b": 1e-2, "*": optim.Cosine(3e-2, 20)}, "log_every": 3, "clip_norm": 1.0,
        "precision": "float16", "on_nan": "skip",
    },
    "groups": lambda: {"train": loader(transform=noisy), "optimizer": optim.Ema(groups()), "clip_norm": 1.0},
    "closure": lambda: {
        "train": loader(transform=noisy), "optimizer": optim.Swa(Halving(momentum=0.9), start=2),
        "clip_norm": 1.0,
    },
    "swa": lambda: {
        "train": loader(transform=noisy), "optimizer": optim.Swa(optim.Sgd(momentum=0.9), start=4, every=3),
    },
    "schedule-free": lambda: {
        "train": loader(transform=noisy), "optimizer": optim.ScheduleFreeAdamW(warmup_steps=3),
    },
    "lbfgs": lambda: {
        "train": loader(transform=noisy),
        "optimizer": optim.Lbfgs(max_iter=3, line_search_fn="strong_wolfe"),
    },
    "logged": lambda: {
        "train": loader(transform=noisy), "step": logging_step, "log_every": 3, "accumulate": 2,
        "validate_every": "2 steps",
    },
}  # fmt: skip
"""Settings by name; each call makes new objects. Others are added here: every test takes them all."""


class Crash(BaseException):
    """Ends a training at once, without a last checkpoint."""


class Stopper:
    def __init__(self, at: int | None, how: str) -> None:
        self.at, self.how = at, how

    def on_step(self, event: Any) -> None:
        if event.training.position.step == self.at:
            if self.how == "crash":
                raise Crash
            os.kill(os.getpid(), signal.Signals[self.how])


@dataclasses.dataclass
class Ended:
    """What is left of a run in this process."""

    finished: bool
    state: dict[str, Any]
    reason: str | None = None


@dataclasses.dataclass
class Prepared:
    """A training with its own objects, from a seed of its own."""

    training: SupervisedTraining
    learner: Learner
    callbacks: list[Any]

    def state(self) -> dict[str, Any]:
        """Return everything that an interruption must not change."""
        optimizer, schedule = self.learner.optimizer, self.learner.schedule
        assert self.training.stopping is not None
        return {
            **{f"model/{name}": value for name, value in self.learner.model.state_dict().items()},
            **{f"buffer/{name}": value for name, value in self.learner.model.named_buffers()},
            **{f"optimizer/{name}": value for name, value in optimizer.into_record().tensors.items()},
            "rng": torch.get_rng_state(),
            "host": (random.random(), np.random.rand()),
            "stopping": self.training.stopping.state(),
            "plateau": schedule.state() if isinstance(schedule, Plateau) else None,
            "callbacks": [callback.state() for callback in self.callbacks if hasattr(callback, "state")],
        }


def prepared(
    folder: Path,
    setting: str,
    *,
    seed: int = 0,
    train: Callable[[Any], Any] | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Prepared:
    """Return a training of a setting; `train` may wrap its loader."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    given = {**SETTINGS[setting](), **settings}
    if train is not None:
        given["train"] = train(given["train"])
    own = given.pop("callbacks", [])
    learner = Learner(
        given.pop("model", Net)(),
        given.pop("optimizer", None) or optim.AdamW(weight_decay=0.1),
        given.pop("schedule", None) or optim.Cosine(3e-2, 20),
        step=given.pop("step", step),
        validation_step=given.pop("validation_step", None),
        compile=given.pop("compile", False),
    )
    training = SupervisedTraining(
        folder,
        callbacks=[*own, *callbacks],
        metrics=[Accuracy(), ConfusionMatrix(2)],
        device="cpu",
        **{
            "checkpoints": [KeepLast(2), KeepBest(Loss(), count=2)],
            "stopping": EarlyStopping(Loss(), patience="9 epochs"),
            "duration": f"{EPOCHS} epochs", "valid": validation(), "monitor": "off", "log_every": 1,
            "checkpoint_every": "2 steps", "check": False, **given,
        },
    )  # fmt: skip
    return Prepared(training, learner, own)


def run(
    folder: Path,
    setting: str,
    *,
    stop_at: int | None = None,
    how: str = "SIGINT",
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Ended:
    """Train in this process, and stop after a step in some way."""
    given = prepared(folder, setting, callbacks=[*callbacks, Stopper(stop_at, how)], **settings)
    reason = None
    with contextlib.suppress(Interrupted, Crash):
        reason = given.training.run(given.learner).reason
    return Ended(reason is not None, given.state(), reason)


def replayed(folder: Path, setting: str, number: int, **settings: Any) -> ReplayReport:
    given = prepared(folder, setting, **settings)
    return replay(given.training, given.learner, number)


def history(folder: Path) -> dict[str, Any]:
    """Return what readers see of the metrics of a run, by each of their ways."""
    with RunReader(folder) as reader:
        names = [s for s in reader.series() if "second" not in s.name and "wait" not in s.name]
        points = {s: tuple(reader.points(*s)[::2]) for s in names}
        by_attempt = {
            s: [
                (point.step, point.value)
                for attempt in reader.attempts()
                for _, point in reader.raw_points(*s, attempt.id)
            ]
            for s in names
        }
        ends = {s: ((last := reader.last(*s)) and last[::3], reader.best(*s)[::2]) for s in names}
        artefacts = {
            (kind, a.name, a.step): a.data
            for kind in ("table", "image", "histogram")
            for a in reader.artefacts(kind)
            if a.step is not None
        }
        state = reader.state()
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection:
        view = connection.execute(
            "SELECT name, split, step, value FROM metrics"
            " WHERE name NOT LIKE '%second%' AND name NOT LIKE '%wait%' ORDER BY name, split, step"
        ).fetchall()
    assert all(points[s] == tuple(map(list, zip(*sorted(by_attempt[s]), strict=True))) for s in names)
    return {"points": points, "ends": ends, "artefacts": repr(artefacts), "view": view, "state": state}


def checkpoints(folder: Path) -> dict[str, Any]:
    found = {}
    for saved in Checkpoints(folder / "checkpoints").saved():
        for file in ("model.safetensors", "training.safetensors"):
            values, document = read_tensors(saved.path / file)
            if document is not None:
                document.get("position", {}).pop("seconds", None)  # by the clock
            found[saved.path.name, file] = ({k: v.tolist() for k, v in values.items()}, document)
    return found


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return where two nested values differ."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [f"{where}: {sorted(map(str, one.keys() ^ other.keys()))}"]
        return [text for key in one for text in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [text for i, pair in pairs for text in differences(*pair, f"{where}[{i}]")]
    return [] if repr(one) == repr(other) else [f"{where}: {str(one)[:200]} is not {str(other)[:200]}"]


def assert_equal_runs(folder: Path, whole: Path) -> None:
    """Check that two runs have the same history and the same checkpoints, to the bit."""
    for look in (history, checkpoints):
        found = differences(look(folder), look(whole))
        assert not found, found
