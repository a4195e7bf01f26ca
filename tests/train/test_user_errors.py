"""Errors of the user's code: their line is shown, wherever they were raised, and nothing of them is lost."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt._user_code import user_line
from burnt.data import Batch, Loader
from burnt.errors import BurntError, DataError
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from tests.train.cases import AtStep


class Rows:
    def __init__(self, label: int = 1) -> None:
        self.label = label

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.zeros(4), "y": self.label if index == 6 else json.loads("1")}


class Broken(Rows):
    def __getitem__(self, index: int) -> dict[str, object]:
        return super().__getitem__(index) if index < 4 else json.loads("{1}")  # raises in Python's library


def step(model: nn.Module, batch: Batch) -> ClassificationOutput:
    logits = model(batch.x)
    return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)  # in torch for label 9


def failing(model: nn.Module, batch: Batch) -> ClassificationOutput:
    raise KeyError("nothing")


def augment(batch: Batch, generator: torch.Generator) -> Batch:
    return batch.replace(x=batch.pixels)


def fail(training: object) -> None:
    raise OSError("a callback's")


def train(folder: Path, rows: Rows, **settings: object) -> None:
    loader = {name: settings.pop(name) for name in ("workers", "transform") if name in settings}
    validation_step = settings.pop("validation_step", None)
    SupervisedTraining(
        folder,
        train=Loader(rows, 4, **loader),
        duration="1 epoch",
        device="cpu",
        monitor="off",
        **{"check": False, **settings},
    ).run(Learner(nn.Linear(4, 3), optim.Sgd(), 0.1, step, validation_step))


@pytest.mark.parametrize(
    ("rows", "settings", "kind", "line"),
    [
        (Rows(label=9), {}, IndexError, "at test_user_errors.py:%d   return ClassificationOutput(F.cross"),
        (
            Broken(),
            {},
            DataError,
            "  from      test_user_errors.py:%d   return super().__getitem__(index) if",
        ),
        (
            Broken(),
            {"workers": 1},
            DataError,
            "  from      test_user_errors.py:%d   return super().__getitem__(index) if",
        ),
        (
            Rows(),
            {"transform": augment},
            DataError,
            "  from      test_user_errors.py:%d   return batch.replace(x=batch.pixels)",
        ),
        (
            Rows(),
            {"callbacks": [AtStep({1: fail})]},
            OSError,
            'at test_user_errors.py:%d   raise OSError("a callback\'s")',
        ),
        (
            Rows(),
            {"valid": Loader(Rows(), 4), "validation_step": failing},
            KeyError,
            'at test_user_errors.py:%d   raise KeyError("nothing")',
        ),
        (
            Rows(),
            {"valid": Loader(Rows(), 4), "validation_step": failing, "check": True},
            BurntError,
            '  from      test_user_errors.py:%d   raise KeyError("nothing")',
        ),
    ],
    ids=["torch", "item", "worker", "transform", "callback", "validation", "check"],
)
def test_the_line_of_the_user_comes_after_the_traceback(
    tmp_path: Path, rows: Rows, settings: dict[str, object], kind: type[Exception], line: str
) -> None:
    with pytest.raises(kind) as caught:
        train(tmp_path / "run", rows, **settings)
    text = "".join(traceback.format_exception(caught.value))
    source = line.partition("%d   ")[2]
    numbers = [n for n, code in enumerate(Path(__file__).read_text().splitlines(), 1) if source in code]
    assert line % numbers[0] in text
    after = text.rpartition("\n  File ")[2]
    assert line % numbers[0] in after  # below all frames
    assert text.count(f"line {numbers[0]}, in ") >= 1  # and its frame is still among them


def test_lines_of_libraries_are_no_users() -> None:
    with pytest.raises(BurntError) as caught:
        Loader([1], 0)
    assert user_line(caught.value).startswith("test_user_errors.py:")  # the call
    try:
        F.cross_entropy(torch.zeros(1, 2), torch.tensor([5]))
    except IndexError as error:
        inner = error
        inner.__traceback__ = inner.__traceback__.tb_next  # torch's frames alone
    assert user_line(inner) is None
    assert user_line(ValueError("never raised")) is None
