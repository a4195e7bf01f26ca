"""benchmarks/layers.py runs for every layer that has a twin, and its sizes are those of layers that exist."""

import importlib
import itertools
import types
from typing import Any

import pytest
import torch

from burnt import nn
from tests.benchmarks.running import ROOT, output_of


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("layers")


def test_layers_with_sizes_have_twins_with_their_state(layers: Any) -> None:
    for name, (twin, arguments, _) in layers.SIZES.items():
        with torch.device("meta"):
            ours, theirs = getattr(nn, name)(**arguments), getattr(torch.nn, twin)(**arguments)
        assert list(ours.state_dict()) == list(theirs.state_dict()), name


@pytest.mark.parametrize(("seconds", "mark"), [(2e-3, "slower"), (1e-3, ""), (0.5e-3, "")])
def test_a_slower_layer_is_marked(
    layers: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, mark: str
) -> None:
    called = []

    class Ours(torch.nn.Identity):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            called.append(True)
            return input

    def sample(run: Any, calls: int) -> Any:
        called.clear()
        run()
        return layers.clock.Sample(seconds if called else 1e-3, calm=True)

    monkeypatch.setattr(layers.clock, "sample", sample)
    row = layers.Row("Identity", Ours, torch.nn.Identity, lambda: (torch.randn(3, 4),))
    lines = layers.measure(row, layers.QUICK_EFFORT)
    assert [line[0] for line in lines] == ["Identity, training", "Identity, inference"]
    ratio = 1e-3 / seconds
    expected = ["3x4", "1000", f"{seconds * 1e6:.0f}", f"{ratio:.2f} ({ratio:.2f}-{ratio:.2f})", mark]
    assert [line[1:] for line in lines] == [expected, expected]


def test_inputs_of_the_tests_grow(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = itertools.count(1)  # each step takes 10 us longer than the one before
    monkeypatch.setattr(
        layers.clock, "sample", lambda run, calls: types.SimpleNamespace(seconds=1e-5 * next(slower))
    )
    (row,) = layers.rows("^Relu$", quick=True)
    assert row.inputs()[0].shape[0] == 4
    (row,) = layers.rows("^Relu$", quick=False)
    assert row.inputs()[0].shape[0] > 4


@pytest.mark.full
def test_layers_are_listed_beside_their_twins() -> None:
    printed = output_of("layers.py", "--quick")
    for name in ("Conv3d", "GroupNorm", "MaxPool1d", "Mse", "Relu"):
        for mode in ("training", "inference"):
            assert f"\n{name}, {mode} " in printed
