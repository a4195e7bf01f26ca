"""Hints for the names of other trainers."""

import inspect
from pathlib import Path

import pytest

from burnt._hints import SYNONYMS
from burnt.errors import ArgumentError
from burnt.train import SupervisedTraining
from burnt.train.events import HOOKS
from burnt.train.other_trainers import CALLBACK_METHODS, LOG_OPTIONS, TRAINER_OPTIONS

DOCS = Path(__file__).parents[2] / "docs/from-lightning.md"
PARAMETERS = inspect.signature(SupervisedTraining.__init__).parameters


@pytest.mark.parametrize("name", TRAINER_OPTIONS)
def test_each_option_is_explained(name):
    with pytest.raises(ArgumentError) as caught:
        SupervisedTraining("runs/a", train=[1], duration="1 epoch", **{name: 1})
    assert caught.value.hint == TRAINER_OPTIONS[name]
    assert name not in PARAMETERS


def test_the_hints_name_what_exists():
    for hint in CALLBACK_METHODS.values():
        assert hint.split()[0] in {*HOOKS, "the", "burnt.log"}
    assert not CALLBACK_METHODS.keys() & HOOKS.keys()


def test_the_page_has_every_name():
    text = DOCS.read_text()
    names = {*TRAINER_OPTIONS, *CALLBACK_METHODS, *LOG_OPTIONS}
    names -= {"loss", "model", "optimizer", "criterion", "batch_size"}  # of no trainer of theirs
    names |= {name for name, ours in SYNONYMS.items() if {"duration", "clip_norm"} & {*ours}}
    names -= {"epochs", "num_epochs", "grad_clip"}
    assert not [name for name in sorted(names) if f"`{name}`" not in text and f"`{name}=" not in text]
