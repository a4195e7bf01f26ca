"""Trainings of several ranks, of which one fails at a place: `failures.py FOLDER JSON`, a list of `Case`.

Each rank is a fork of this program, which has imported burnt, so that a case takes tenths of a second.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from burnt import data, nn
from burnt.record import record_of
from burnt.train import ClassificationOutput, Ranks
from burnt.train.checkpoints.checkpoint import Checkpoints
from burnt.train.metrics import Accuracy
from burnt.train.ranks.sharded import ShardedRanks
from tests.train.ranks import programs

T = TypeVar("T")
HANGS = 60
"""After so many seconds a process that still runs prints where it is, and ends."""
KINDS = ("error", "KILL", "STOP", "INT", "TERM")
PLACES = (
    "first read",
    "start",
    "read",
    "forward",
    "backward",
    "step",
    "log",
    "validation",
    "saving",
    "end",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training whose rank `victim` fails at a place, and then a second one that resumes it."""

    kind: str = ""
    place: str = ""
    victim: int = 0
    size: int = 2
    resumed: int = 2
    dropout: bool = True
    strategy: str = "ddp"

    @property
    def name(self) -> str:
        words = [self.kind, self.place, self.victim, self.size, self.resumed, "d" if self.dropout else ""]
        words += [self.strategy]
        return "-".join(map(str, words)).replace(" ", "_")


class Fault:
    """Fails when a place is reached for the n-th time, in the rank that is to fail."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.left = {"read": 40, "forward": 8, "backward": 8, "step": 8, "log": 2, "saving": 8}
        if case.victim == 0:
            self.left["saving"] = 2  # the second checkpoint; the other ranks wait at other times too

    def __call__(self, place: str) -> None:
        if place != self.case.place or os.environ.get("RANK", "0") != str(self.case.victim):
            return
        self.left[place] = self.left.get(place, 1) - 1
        if self.left[place]:
            return
        if self.case.kind == "error":
            raise ValueError("broken on purpose")
        os.kill(os.getpid(), getattr(signal, f"SIG{self.case.kind}"))

    def on_start(self, event: Any) -> None:
        self("start")

    def on_step(self, event: Any) -> None:
        self("step")

    def on_log(self, event: Any) -> None:
        self("log")

    def on_end(self, event: Any) -> None:
        self("end")


class Table(torch.utils.data.Dataset[Any]):
    """The items of a table, of which each read is a place to fail."""

    def __init__(self, fault: Fault) -> None:
        self.table, self.fault = programs.table(), fault

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        self.fault("first read")
        self.fault("read")
        return self.table[index]


def train(folder: Path, case: Case) -> Any:
    """Train for two epochs of 7 steps, or to the end of a run that was begun."""
    fault = Fault(case)

    def step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        fault("forward")
        output = programs.classify(model, batch)
        if case.place == "backward" and output.loss.requires_grad:
            output.loss.register_hook(lambda gradient: fault("backward"))
        return output

    def validation_step(model: torch.nn.Module, batch: Any) -> ClassificationOutput:
        fault("validation")
        return programs.classify(model, batch)

    save, wait = Checkpoints.save, Ranks._wait

    def saving(*arguments: Any) -> Any:
        fault("saving")
        return save(*arguments)

    def waiting(*arguments: Any) -> Any:
        fault("saving")
        return wait(*arguments)

    Checkpoints.save, Ranks._wait = saving, waiting  # type: ignore[method-assign]
    layers = (nn.Tanh(), nn.Dropout(0.3)) if case.dropout else ()
    strategy = ShardedRanks if case.strategy == "fsdp" else Ranks
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return programs.train(
        folder,
        programs.network(*layers),
        step=step,
        validation_step=validation_step,
        loader=data.Loader(Table(fault), 8, shuffle=True),
        duration="2 epochs",
        checkpoint_every="3 steps",
        metrics=[Accuracy(), programs.MedianLoss()],
        callbacks=[fault],
        resume=True,
        check=case.place == "first read",
        strategy=strategy(timeout=3 if case.kind == "STOP" else 30) if several else "auto",
    )


class Group:
    """The processes of one training, forks of this one."""

    def __init__(self, size: int, folder: Path, function: Callable[[], object]) -> None:
        self.codes: list[int | None] = [None] * size
        self.stopped: set[int] = set()
        self.ranks: dict[int, int] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(size):
            if child := os.fork():
                self.ranks[child] = rank
                continue
            if size > 1:
                launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in launched.items()})
                os.environ["MASTER_ADDR"] = "127.0.0.1"
            output = os.open(folder / f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a shell's jobs
            faulthandler.dump_traceback_later(HANGS, exit=True)
            function()
            sys.exit()  # as a program that ends; its errors leave through the caller

    def ended(self, pid: int, status: int) -> None:
        """Note that a process has ended or stopped; one that stopped goes on after the others have ended."""
        rank = self.ranks[pid]
        if os.WIFSTOPPED(status):
            self.stopped.add(pid)
        else:
            self.codes[rank] = os.waitstatus_to_exitcode(status)
            self.stopped.discard(pid)
        if self.stopped and self.codes.count(None) == len(self.stopped):
            for stopped in self.stopped:
                os.kill(stopped, signal.SIGCONT)


def wait(groups: Sequence[Group]) -> None:
    """Wait until all processes have ended."""
    while any(None in group.codes for group in groups):
        pid, status = os.waitpid(-1, os.WUNTRACED)
        next(group for group in groups if pid in group.ranks).ended(pid, status)


def finish(folder: Path, case: Case) -> None:
    """Train to the end, and write the weights and values."""
    model, result = train(folder / "run", case)
    if case.kind:
        return  # a rank that has failed cannot help to gather them
    weights = record_of(model).tensors
    if os.environ.get("RANK", "0") == "0":
        torch.save({path: tensor.clone() for path, tensor in weights.items()}, folder / "weights.pt")
        values = {**dict(result.values), "step": result.position.step}
        (folder / "values.json").write_text(json.dumps(values))


def chunks(cases: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return the cases in parts: so many processes run at once."""
    for begin in range(0, len(cases), size):
        yield cases[begin : begin + size]


def main() -> None:
    """Run the cases of a JSON document, and write the exit codes of both trainings of each."""
    folder, document = Path(sys.argv[1]), json.loads(sys.argv[2])
    cases = [Case(**one) for one in document]
    gc.collect()
    gc.freeze()  # or each rank would copy and search all that was imported
    codes: dict[str, Any] = {case.name: [] for case in cases}
    for some in chunks(cases, 3):
        for phase in ("failing", "resumed"):
            groups = {}
            for case in some:
                if case.kind or phase == "resumed":
                    now = case if phase == "failing" else dataclasses.replace(case, kind="", place="")
                    size = case.size if phase == "failing" else case.resumed
                    own = folder / case.name
                    groups[case.name] = Group(size, own / phase, functools.partial(finish, own, now))
            wait(list(groups.values()))
            for name, group in groups.items():
                codes[name].append(group.codes)
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
