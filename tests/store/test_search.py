"""The search of runs: which runs a query finds, and where an invalid one is wrong."""

from __future__ import annotations

import math

import pytest

from burnt.errors import QueryError
from burnt.store import Series
from burnt.store.search import RunFacts, parse_query, settings_of

A = RunFacts(
    names=["digits-a", "runs/digits-a"],
    state="finished",
    tags=["baseline", "paper"],
    notes=["the rate was too high"],
    settings=settings_of(
        {
            "config": {"lr": 0.01, "model": {"hidden": 128, "name": "ResNet 18"}, "amp": True, "wd": None},
            "optimizer": "AdamW(lr=1, betas=[0.9, 0.999])",
            "sizes": [1, 2],
            "load": {"secret": 1},
            "fork": {"folder": "x", "step": 3},
        }
    ),
    last={Series("loss", "valid"): 0.25, Series("grad_norm/layer1", "train"): math.nan},
    best=lambda series: 0.2 if series.name == "loss" else None,
    numbers={"step": 500, "epoch": 4, "took": 7300.0, "age": 3 * 86400.0},
)
B = RunFacts(
    names=["letters", "runs/letters"],
    state="crashed",
    tags=[],
    notes=[],
    settings={"config.lr": 1e-4, "config.model.hidden": 64, "eval.hidden": 128},
    last={Series("loss", "valid"): 0.5},
    best=lambda series: 0.4,
    numbers={},
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "AB"),
        ("digits", "A"),
        ("DIGITS finished", "A"),
        ("too", "A"),
        ("paper", "A"),
        ('"too high"', "A"),
        ("too\thigh", "A"),
        ("tag:baseline", "A"),
        ("tag:base", ""),
        ("tag:base*", "A"),
        ("tag:x,paper", "A"),
        ("-tag:paper", "B"),
        ("state:crashed,stopped", "B"),
        ("state:FINISHED", "A"),
        ("-state:crashed", "A"),
        ("name:runs/*-a", "A"),
        ('note:"too high"', "A"),
        ("config:adamw", "A"),
        ("config:model.hidden=64", "B"),
        ("config:secret", ""),
        ("lr>0.001", "A"),
        ("lr > 1e-3", "A"),
        ("lr<=0.01", "AB"),
        ("lr=1e-2", "A"),
        ("lr!=0.01", "B"),
        ("-lr=0.01", "B"),
        ("config.lr>0.001", "A"),
        ("hidden=128", "AB"),  # of B, that of the evaluation
        ("model.hidden=128", "A"),
        ("model.hidden!=128", "B"),
        ("el.hidden=128", ""),
        ('name="resnet 18"', "A"),
        ("model.name=res*", "A"),
        ("model.name~NET", "A"),
        ("amp=true", "A"),
        ("amp=1", ""),
        ("wd=null", "A"),
        ("sizes=[1,*2]", "A"),
        ('sizes="[1, 2]"', "A"),
        ("nothing!=3", ""),
        ("-nothing=3", "AB"),
        ("valid/loss<0.3", "A"),
        ("valid/loss>=0.25", "AB"),
        ("valid/loss<0.25", ""),
        ("best:valid/loss<0.21", "A"),
        ("best:train/grad_norm/layer1<1", ""),
        ("train/grad_norm/layer1=nan", "A"),
        ("train/grad_norm/layer1<1", ""),
        ("step>=500", "A"),
        ("epoch=4", "A"),
        ("took>2h", "A"),
        ("age<7d", "A"),
        ("12:30", ""),
        ("a-b-c", ""),
    ],
)
def test_what_a_query_finds(query: str, found: str) -> None:
    parsed = parse_query(query)
    assert "".join(name for name, facts in (("A", A), ("B", B)) if parsed.matches(facts)) == found


@pytest.mark.parametrize(
    ("query", "position", "words"),
    [
        ("lr>", 3, "a value is missing: a value after >"),
        ("tag:a lr>fast", 9, "> compares with a number: a number, such as 1e-3: fast"),
        ("a >3 =4", 5, "an operator stands after a setting"),
        (" <3", 1, "an operator stands after a setting"),
        ("tag:", 4, "a value after tag:"),
        ("tag:a,", 6, "a value after tag:"),
        ("stat:crashed", 0, "there is no field 'stat': tag:, state:, name:, note:, config:, best:"),
        ("x state:crashd", 8, "there is no such state"),
        ('name:"a b', 5, "the quotes are not closed"),
        ("a - b", 3, "a - stands before a term"),
        ("best:valid/loss", 15, "best: compares a metric"),
        ("took>soon", 5, "> compares with a time: a time, such as 90s, 20m, 2h or 7d"),
        ("step=many", 5, "= compares with a number"),
        ("é\x1b lr<x", 6, "< compares with a number"),
    ],
)
def test_an_error_points_at_its_place(query: str, position: int, words: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse_query(query)
    error = raised.value
    text, mark = str(error.where).split("\n")
    assert mark == " " * position + "^"
    assert len(text) == len(query)
    assert "\x1b" not in text
    said = f"{error.what}: {error.expected}: {error.found}"
    for word in words.split(": "):
        assert word in said


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("state:crashd", "did you mean 'crashed'?"),
        ("stat:crashed", "did you mean 'state'?"),
        ("zzz:1", '"zzz:1" finds this text'),
    ],
)
def test_hints(query: str, hint: str) -> None:
    with pytest.raises(QueryError) as raised:
        parse_query(query)
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("lr>1 valid/loss<3 step>1 tag:x", None),
        ("hiden=3", ("hiden", "hidden")),
        ("loss<3", ("loss", "valid/loss")),
        ("best:valid/los<3", ("valid/los", "valid/loss")),
        ("zzzz=3", ("zzzz", None)),
    ],
)
def test_keys_that_no_run_has_are_named(query: str, unknown: tuple[str, str | None] | None) -> None:
    assert parse_query(query).unknown_key([A, B]) == unknown
