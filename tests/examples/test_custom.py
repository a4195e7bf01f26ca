"""The examples with a loop, a kernel and a metric of the user's own: their parts, and short runs."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

import burnt
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import ClassificationOutput, evaluate

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / request.param))
    sys.modules.pop("train", None)
    return importlib.import_module("train")


@pytest.mark.parametrize("example", ["custom_loop"], indirect=True)
def test_the_loop_of_sam_is_the_one_in_the_paper(example: Any) -> None:
    torch.manual_seed(0)
    model = example.LoopConfig(hidden=8).init().double()
    batch = Batch(x=torch.randn(20, 64).double(), y=torch.randint(10, (20,)))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    _, found = example.sam_gradients(model, batch, 0.3)
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)

    def gradients_here() -> list[torch.Tensor]:
        loss = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
        return list(torch.autograd.grad(loss, list(model.parameters())))

    plain = gradients_here()
    norm = torch.cat([gradient.flatten() for gradient in plain]).norm()
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), plain, strict=True):
            parameter += 0.3 * gradient / norm
    torch.testing.assert_close(list(found.values()), gradients_here())


@pytest.mark.parametrize("example", ["custom_loop"], indirect=True)
def test_the_loop_learns_and_writes_runs(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(example.LoopConfig(epochs=6, seeds=1))
    assert [values[0] > 0.7 for values in found.values()] == [True, True]
    assert f"SAM, rho 0.1  test accuracy {found[0.1][0]:.4f}" in capsys.readouterr().out
    assert example.Net.load("runs/custom_loop/rho-0-seed-0/model.safetensors").layers[0].in_features == 64
    with burnt.store.RunReader("runs/custom_loop/rho-0.1-seed-0") as run:
        assert run.points("accuracy", "test").values[-1] == found[0.1][0]
    assert Path("runs/custom_loop/errors.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("example", ["custom_metric"], indirect=True)
def test_the_metrics_are_those_of_whole_epochs(example: Any) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(101, 10), torch.randint(10, (101,))
    logits[torch.arange(101), labels] += 2
    loader = Loader(TensorDataset(x=logits, y=labels), 40)

    def step(model: torch.nn.Module, batch: Batch) -> ClassificationOutput:
        return ClassificationOutput(torch.zeros(()), batch.x, batch.y)

    values = evaluate(torch.nn.Identity(), loader, [example.Cost(), example.Coverage(0.1)], step=step)
    label, best = logits.argmax(1), logits.softmax(1).amax(1).tolist()
    distances = [abs(found - right) for found, right in zip(label.tolist(), labels.tolist(), strict=True)]
    assert values["cost"] == pytest.approx(sum(distances) / 101)
    order = sorted(range(101), key=lambda item: -best[item])
    shares = [count for count in range(1, 102) if sum(distances[i] > 0 for i in order[:count]) <= 0.1 * count]
    assert values["coverage_at_0.1"] == pytest.approx(max(shares) / 101)
    assert 0.1 < values["coverage_at_0.1"] < 0.9
    assert example.coverage_at(0.0, torch.ones(3), torch.zeros(3)) == 0


@pytest.mark.parametrize("example", ["custom_metric"], indirect=True)
def test_a_training_goes_by_the_coverage(example: Any) -> None:
    values = example.main(example.MetricConfig(epochs=4))
    assert values["accuracy"] > 0.75
    assert 0 < values["coverage_at_0.005"] < 1
    assert Path("runs/custom_metric/coverage.svg").read_text().startswith("<svg")
    assert sum(len(part) for part in example.load_splits()) == len(load_digits().target)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here, so that eager functions run")
@pytest.mark.parametrize("example", ["custom_kernel"], indirect=True)
def test_the_kernel_is_checked_and_trains(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.snake.fallback_reason(torch.randn(4, 8, requires_grad=True), torch.ones(8)) is None
    errors = example.main(example.KernelConfig(steps=60, hidden=16, size=8))
    assert errors.keys() == {"snake", "relu"}
    assert "elementwise" in capsys.readouterr().out
    assert Path("runs/custom_kernel/signal.svg").read_text().startswith("<svg")
