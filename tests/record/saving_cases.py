"""What is saved over what, for the tests of saving under failures: each case has an old and a new content."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import burnt
from burnt import nn, optim
from burnt.errors import RecordError
from burnt.record import Record, read_weights
from burnt.train.checkpoints.checkpoint import Checkpoints, KeepLast, TrainingState
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checkpoints.saving import CheckpointWriter
from burnt.train.duration import Position


@dataclass(frozen=True)
class Case:
    """A saver.

    Args:
        save: writes the old (0) or the new (1) content below a folder.
        load: what is found there afterwards: 0, 1 or None if there is nothing; anything else is an error.
        has_old: whether the old content is there before.
    """

    save: Callable[[Path, int], object]
    load: Callable[[Path], int | None]
    has_old: bool = True


def record(which: int) -> Record:
    return Record({f"{i}.weight": torch.full((5, 5), float(which)) for i in range(4)}, model=str(which))


def found(loaded: Record) -> int:
    """Which content a record has, all of it."""
    assert list(loaded.tensors) == list(record(0).tensors)
    (which,) = {value for tensor in loaded.tensors.values() for value in tensor.flatten().tolist()}
    assert loaded.model == str(int(which))
    return int(which)


def in_folder(folder: Path) -> int | None:
    try:
        return found(read_weights(folder))
    except FileNotFoundError:
        return None
    except RecordError as error:
        if re.match("a folder has (no|shards of) weights", error.what):
            return None
        raise


def folder_case(*shard_bytes: int | None) -> Case:
    def save(folder: Path, which: int) -> None:
        size = shard_bytes[which]
        assert size is not None
        record(which).save_folder(folder / "model", shard_bytes=size)

    return Case(save, lambda folder: in_folder(folder / "model"), has_old=shard_bytes[0] is not None)


class Net(burnt.Module):
    layer: nn.Linear


class NetConfig(burnt.Config):
    def init(self) -> Net:
        return Net(nn.Linear(3, 3))


def net(which: int) -> Net:
    model = NetConfig().init()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(which)
    return model


def save_net(folder: Path, which: int) -> None:
    net(which).save(folder / "net.safetensors")


def load_net(folder: Path) -> int:
    (which,) = {
        int(value) for p in Net.load(folder / "net.safetensors").parameters() for value in p.flatten()
    }
    return which


def save_checkpoint(folder: Path, which: int, steps: tuple[int, int], *, in_background: bool = False) -> None:
    model = net(which)
    position = Position(step=steps[which])
    optimizer = optim.Sgd(momentum=0.9)
    values = {"loss": float(which)}
    state = TrainingState(model, optimizer.into_record(), [], position, values, RandomStates.capture())
    checkpoints = Checkpoints(folder / "checkpoints", [KeepLast(1)])
    run: Any = SimpleNamespace(sync=lambda: None, event=lambda *_, **__: None)
    writer = CheckpointWriter(checkpoints, run, lambda saved: None, in_background=in_background)
    writer.save(state, None, wait=False)
    writer.report(wait=True)


def load_checkpoint(folder: Path) -> int:
    checkpoints = Checkpoints(folder / "checkpoints", [KeepLast(1)])
    model = net(7)
    newest = checkpoints.newest()
    assert newest is not None
    checkpoints.load(newest, model, [])
    (which,) = {int(value) for parameter in model.parameters() for value in parameter.flatten()}
    assert checkpoints.saved()[-1].values == {"loss": float(which)}
    return which


ONE, TWO, FOUR = 1000, 200, 100

CASES = {
    "record": Case(
        lambda folder, which: record(which).save(folder / "m.safetensors"),
        lambda folder: found(Record.load(folder / "m.safetensors")),
    ),
    "burnpack": Case(
        lambda folder, which: record(which).save(folder / "m.bpk"),
        lambda folder: found(Record.load(folder / "m.bpk")),
    ),
    "module": Case(save_net, load_net),
    "a new file in a folder": folder_case(None, ONE),
    "a file over a file": folder_case(ONE, ONE),
    "new shards": folder_case(None, TWO),
    "more shards": folder_case(TWO, FOUR),
    "fewer shards": folder_case(FOUR, TWO),
    "as many shards": folder_case(TWO, TWO),
    "shards over a file": folder_case(ONE, TWO),
    "a file over shards": folder_case(FOUR, ONE),
    "next checkpoint": Case(lambda f, which: save_checkpoint(f, which, (1, 2)), load_checkpoint),
    "next checkpoint in the background": Case(
        lambda f, which: save_checkpoint(f, which, (1, 2), in_background=True), load_checkpoint
    ),
    "same checkpoint": Case(lambda f, which: save_checkpoint(f, which, (1, 1)), load_checkpoint),
}
