"""docs/parity.md is what scripts/parity makes of the code, and nothing is missing without a reason."""

import runpy
from pathlib import Path

import pytest
import torch

from burnt import nn, optim

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parity():
    return runpy.run_path(str(ROOT / "scripts" / "parity"))


def tables(parity, **changed):
    """The tables of all sections, some of them with other names."""
    sections = {**parity["sections"](), **changed}
    return {title: parity["rows"](names, package) for title, (package, names) in sections.items()}


def test_the_page_is_current_and_nothing_is_missing(parity):
    found = tables(parity)
    assert parity["problems"](found) == []
    assert (ROOT / "docs" / "parity.md").read_text() == parity["page"](found), "run scripts/parity"


def test_every_name_of_torch_has_a_row(parity):
    found = tables(parity)
    for title, base in (("torch.nn", torch.nn.Module), ("torch.optim", torch.optim.Optimizer)):
        package = getattr(torch, title.removeprefix("torch."))
        public = {name for name in vars(package) if not name.startswith("_")}
        classes = {name for name in public if isinstance(getattr(package, name), type)}
        assert {row.name for row in found[title]} == {
            name for name in classes if issubclass(getattr(package, name), base)
        }
    assert [row.name for row in found["torch.optim.lr_scheduler"]] == torch.optim.lr_scheduler.__all__


@pytest.mark.parametrize(
    ("name", "package", "path"),
    [
        ("ReLU", nn, "nn.Relu"),  # its base class
        ("SGD", optim, "optim.Sgd"),  # the class that steps
        ("BatchNorm3d", nn, "nn.BatchNorm"),  # a hint
        ("MseLoss", nn, "nn.Mse"),  # spelling
        ("StepLrScheduler", optim, "optim.Step"),
        ("ReduceLROnPlateau", optim, "train.Plateau"),
        ("ComposedLrScheduler", optim, "optim.Sum: and optim.Product, optim.Mean"),  # the table of names
        ("Nothing", nn, None),
    ],
)
def test_find(parity, name, package, path):
    assert parity["find"](name, package) == path


def test_what_is_missing_and_excuses_for_what_is_there_are_problems(parity):
    data = parity["DATA"]
    data["left_out"] |= {"Muon": "too fast", "Gone": "gone"}
    data["names"]["Never"] = "nn.Relu"
    found = tables(parity, more=(nn, ["Linear", "Novel"]))
    assert set(parity["problems"](found)) == {
        "more: Novel is neither in burnt nor left out with a reason",
        "Burn: optimizers: Muon is left out (too fast), but is there: optim.Muon",
        "torch.optim: Muon is left out (too fast), but is there: optim.Muon",
        "[left_out] Gone: torch and Burn have no such name",
        "[names] Never: torch and Burn have no such name",
    }


def test_a_row_shows_the_name_or_the_reason(parity):
    page = parity["page"](tables(parity))
    assert "| `LBFGS` |" in page
    assert "| `ReduceLROnPlateau` | `train.Plateau` |" in page
    assert "| `Rprop` | left out: for full batches; hardly used |" in page
