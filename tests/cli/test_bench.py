"""`burnt bench`, on small models."""

import json
import re
from unittest.mock import Mock

import pytest
import torch

from burnt.cli import main
from burnt.swapping import benchmark, measure
from tests.cli.commands import printed, refused

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

    class Compiled(torch.nn.Module):
        def forward(self, *args, **kwargs):
            raise RuntimeError("no compiler\nat all")

    # Compilers take longer than all of this; that one fails is to be seen.
    monkeypatch.setattr(torch, "compile", lambda model, backend: model if backend == "burnt" else Compiled())


def rows(capsys, *words):
    assert main(["bench", *words, "--seconds", "0", "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_forward_and_training_of_a_model(capsys):
    found = rows(capsys, "models.py:model", "--input", "32x64")
    assert [(row["device"], row["step"]) for row in found] == [("cpu", "forward"), ("cpu", "training")]
    for row in found:
        assert set(row["rivals"]) == {"eager", "compiled", "swapped"}
        assert row["failed"] == {"inductor": "RuntimeError: no compiler"}
        assert row["rivals"]["eager"]["speed"] == 1.0
        for rival in row["rivals"].values():
            assert rival["ms"] > 0
            assert rival["rounds"] == 2
            assert rival["interval"][0] <= rival["speed"] <= rival["interval"][1]
            assert rival["speed"] == pytest.approx(row["rivals"]["eager"]["ms"] / rival["ms"])
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
        [step, rival] for step in ("forward", "training") for rival in benchmark.RIVALS
    ]
    assert lines[0][4] == "1.00x"
    assert "RuntimeError: no compiler" in out
    assert "swapped on cpu, training" in out
    assert "RuntimeError: no compiler\nat all\n" in out
    first, *others = err.splitlines()
    assert first.startswith(
        "2 comparisons, each of swapping, compiling with Inductor and burnt (often a minute or more)"
    )
    assert all(re.match(r" *\d+ s  cpu (forward|training): ", line) for line in others)
    assert [line.partition(": ")[2].partition(",")[0] for line in others[: len(others) // 2]] == [
        "swapping",
        "running eager for the first time",
        "compiling with inductor",
        "compiling with burnt",
        "running swapped for the first time",
        "measuring",
    ]
    assert "--report and --json show the whole error" in printed(
        capsys, "bench", "models.py:pair", "--seconds", "0", "--device", "cpu", "--step", "forward"
    )


def test_inductor_beside_the_others(capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, backend: model)
    found = rows(capsys, "models.py:model", "--input", "4x64", "--step", "forward")
    assert set(found[0]["rivals"]) == {"eager", "inductor", "compiled", "swapped"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models"], "the target names no model"),
        (["models:modle", "--input", "2x64"], "did you mean 'model'?"),
        (["models:model"], "there are no inputs for models:model"),
        (["models:none"], "is not a model, and builds none"),
        (["models:sized"], "models:sized needs arguments"),
        (["models:model", "--input", "2by3"], "the input is invalid"),
        (["models:model", "--input", "2x3:flaot"], "the input is invalid"),
        (["models:model", "--input", "2x3:int64"], "--input 2x3:int64:1000"),
        (
            ["models:model", "--input", "2x64", "--device", "cpu", "--device", "toaster"],
            "torch cannot use the device 'toaster'",
        ),
        (["modles:model"], "did you mean 'models'?"),
    ],
)
def test_bad_words(capsys, words, message):
    assert message in (err := refused(capsys, "bench", *words))
    assert "measuring" not in err


def test_a_model_that_fails_with_its_input(capsys):
    assert "the model fails with the batch" in refused(
        capsys, "bench", "models:broken", "--input", "2x3", "--device", "cpu", code=1
    )


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_gradients_of_the_model_stay(train, broken, monkeypatch):
    model, batch = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(3, 4)
    model(batch).sum().backward()
    model[0].bias.grad = None
    gradient, before = model[0].weight.grad, model[0].weight.grad.clone()
    if broken:
        monkeypatch.setattr(benchmark, "_sample", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            benchmark.compare(model, batch, train, rivals=("eager", "swapped"), seconds=0)
    else:
        benchmark.compare(model, batch, train, rivals=("eager", "swapped"), seconds=0)
    assert model[0].weight.grad is gradient
    assert torch.equal(gradient, before)
    assert model[0].bias.grad is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("no compiler\nat all"), "RuntimeError: no compiler"),
        (ValueError(""), "ValueError: "),
        (
            RuntimeError(
                "C++ compile error\n\nCommand:\ng++ a.cpp\n\nOutput:\na.cpp:3:1: error: no 'f'\nerror: 2"
            ),
            "RuntimeError: C++ compile error a.cpp:3:1: error: no 'f'",
        ),
        (
            RuntimeError("backend='inductor' raised:\nTypeError: no"),
            "RuntimeError: backend='inductor' raised: TypeError: no",
        ),
    ],
)
def test_why_a_rival_is_missing(error, line):
    assert benchmark._reason(error) == line


def test_the_speed_agrees_with_the_times_and_its_interval_with_the_speed():
    eager, swapped = [166.0, 150.0, 175.0, 169.0, 120.0], [163.0, 180.0, 186.0, 160.0, 127.0]
    comparison = benchmark.Comparison(False, Mock(), {"eager": eager, "swapped": swapped})
    speed, low, high = comparison.speedup("swapped")
    assert speed == comparison.median("eager") / comparison.median("swapped") == 166 / 163
    assert low < speed < high
    assert comparison.speedup("eager") == (1.0, 1.0, 1.0)
    steady = benchmark.Comparison(False, Mock(), {"eager": [2.0] * 9, "swapped": [1.0] * 9})
    assert steady.speedup("swapped") == (2.0, 2.0, 2.0)
