"""Trainings of two ranks that cannot train together: `bad_input.py FOLDER CASE ...`.

What each rank prints of its error, or of a training that went well, is in FOLDER/CASE/failing/rank1.txt.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from burnt import Config, data, nn, optim
from burnt.errors import BurntError
from burnt.train import Ranks, StepOutput
from burnt.train.metrics import EpochMetric
from tests.train.ranks import programs
from tests.train.ranks.failures import Group, chunks, wait


class Settings(Config):
    """A Config of which a rank may have another value."""

    width: int = 16


class Own(EpochMetric):
    """A metric with a state of its own, which nothing can add to that of another process."""

    name = "own"

    def update(self, output: StepOutput) -> None:
        self.count += 1

    def compute(self) -> float:
        return float(self.count)

    def load_state(self, state: Any) -> None:
        self.count = state["count"]


class Unsized:
    """Batches without a number."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def batches(*sizes: int, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 6, generator=generator, dtype=torch.float64)
    return [data.Batch(x=part, y=torch.zeros(len(part), dtype=torch.long)) for part in x.split(sizes)]


def sparse(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(60, 3, sparse=True).double()

    def step(model: torch.nn.Module, batch: Any) -> StepOutput:
        logits = model(batch.i)
        return StepOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

    table = data.TensorDataset(i=torch.arange(programs.ITEMS), y=programs.table().columns["y"])
    loader = data.Loader(table, 8)
    return programs.train(
        folder, embedding, optim.Sgd(), step=step, loader=loader, metrics=[], valid=None, **settings
    )


class Noise:
    """Adds to the gradients what other ranks do not add."""

    def on_gradients(self, event: Any) -> None:
        event.gradients = event.gradients.scale(1 + float(torch.rand(())))


def cases(rank: int) -> dict[str, Callable[[Path], Any]]:
    """The trainings; what differs between the ranks, or what neither of them can do."""

    def train(**settings: Any) -> Callable[[Path], Any]:
        return functools.partial(programs.train, strategy=Ranks(timeout=20), **settings)

    own = torch.nn.Linear(6, 3 + rank).double()
    return {
        "config": train(config=Settings(width=16 + rank)),
        "dataset": train(loader=data.Loader(programs.table(50 + rank), 8)),
        "settings": train(clip_norm=1.0 if rank else None),
        "optimizer": train(optimizer=optim.AdamW(weight_decay=0.1 * rank)),
        "rate": train(rate=0.1 * (1 + rank)),
        "shapes": train(model=own, check=False),
        "parameters": train(model=programs.network(*[nn.Linear(16, 16)] * rank)),
        "first batch": train(loader=batches(4, 4, seed=rank), valid=None),
        "stream": train(loader=data.StreamLoader(data.Shards([0], lambda _: programs.rows(rank)), 8)),
        "length": train(loader=Unsized(batches(4, 4, *[4] * rank)), valid=None),
        "sizes": train(loader=batches(4, 4 + rank), valid=None),
        "merge": train(metrics=[Own()]),
        "taken": train(),
        "small": train(loader=data.Loader(programs.table(4), 1), duration="1 epoch", monitor="plain"),
        "drift": train(callbacks=[Noise()], duration="1 epoch", monitor="plain"),
        "sparse": functools.partial(sparse, strategy=Ranks(timeout=20)),
    }


def attempt(folder: Path, name: str) -> None:
    """Train, and print what that raises."""
    try:
        cases(int(os.environ["RANK"]))[name](folder / "run")
        print("trained")
    except BurntError as error:
        print(f"{type(error).__name__}\n{error}")


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if "taken" in names:
        (folder / "taken" / "run").mkdir(parents=True)
        (folder / "taken" / "run" / "mine.txt").write_text("a file of the user")
    gc.collect()
    gc.freeze()
    for some in chunks(names, 3):
        wait([Group(2, folder / name, functools.partial(attempt, folder / name, name)) for name in some])


if __name__ == "__main__":
    main()
