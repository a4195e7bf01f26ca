"""`burnt bench`, on small models."""

import json

import pytest
import torch

from burnt.cli import main
from burnt.swapping import benchmark, measure

MODELS = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, tokens, labels=None):
        logits = self.head(self.table(tokens))
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

def pair():
    tokens = torch.arange(6).view(2, 3)
    return Words(), {"tokens": tokens, "labels": tokens}

def none():
    return 3

def sized(width):
    return nn.Linear(width, width)

def broken():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(3, 4))
"""


@pytest.fixture(autouse=True)
def models(desk, monkeypatch):
    (desk / "models.py").write_text(MODELS)
    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "_MIN_ROUNDS", 2)

    def compiled(model):
        raise RuntimeError("no compiler\nat all")

    # Inductor takes longer than all of this; that it fails is to be seen.
    monkeypatch.setattr(torch, "compile", lambda model: lambda *args, **kwargs: compiled(model))


def rows(capsys, *words):
    assert main(["bench", *words, "--seconds", "0", "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_forward_and_training_of_a_model(capsys):
    found = rows(capsys, "models.py:model", "--input", "32x64")
    assert [(row["device"], row["step"]) for row in found] == [("cpu", "forward"), ("cpu", "training")]
    for row in found:
        assert set(row["rivals"]) == {"eager", "swapped"}
        assert row["failed"] == {"inductor": "RuntimeError: no compiler"}
        assert row["rivals"]["eager"]["speed"] == 1.0
        for rival in row["rivals"].values():
            assert rival["ms"] > 0
            assert rival["rounds"] == 2
            assert rival["quartiles"][0] <= rival["speed"] <= rival["quartiles"][1]
        assert row["report"].startswith("4 sites, mode=")
    assert found[0]["error"] < 1e-5


def test_a_model_with_its_batch_and_its_loss(capsys):
    found = rows(capsys, "models:pair", "--step", "training")
    assert [row["step"] for row in found] == ["training"]
    assert rows(capsys, "models:Words", "--input", "2x3:int64:10", "--step", "forward")[0]["rivals"]


def test_a_table_for_people(capsys):
    assert main(["bench", "models.py:pair", "--seconds", "0", "--device", "cpu", "--report"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines() if line.startswith("cpu")]
    assert [line[1:3] for line in lines] == [
        [step, rival] for step in ("forward", "training") for rival in ("eager", "inductor", "swapped")
    ]
    assert lines[0][4] == "1.00x"
    assert "RuntimeError: no compiler" in out
    assert "swapped on cpu, training" in out
    assert "cpu forward: measuring" in err


def test_inductor_beside_the_others(capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    found = rows(capsys, "models.py:model", "--input", "4x64", "--step", "forward")
    assert set(found[0]["rivals"]) == {"eager", "inductor", "swapped"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models"], "the target names no model"),
        (["models:modle", "--input", "2x64"], "did you mean 'model'?"),
        (["models:model"], "there are no inputs for models:model"),
        (["models:none"], "is no model, and makes none"),
        (["models:sized"], "models:sized is called without arguments, but requires width"),
        (["models:model", "--input", "2by3"], "the input is invalid"),
        (["models:model", "--input", "2x3:flaot"], "the input is invalid"),
        (["models:model", "--input", "2x3:int64"], "--input 2x3:int64:1000"),
        (["models:model", "--input", "2x64", "--device", "toaster"], "torch cannot use the device 'toaster'"),
        (["modles:model"], "did you mean 'models'?"),
    ],
)
def test_bad_words(capsys, words, message):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_fails_with_its_input(capsys):
    assert main(["bench", "models:broken", "--input", "2x3", "--device", "cpu"]) == 1
    assert "the model fails with the batch" in capsys.readouterr().err
