"""predict on models that mix the items of a batch, and what it leaves unchanged."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn

import burnt
from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import DataError
from burnt.train import Learner, StepOutput, SupervisedTraining, predict

X = torch.randn(150, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))


class Forward(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


MIXING: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x - x.mean(0),
    "softmax": lambda x: x.softmax(0),
    "running sum": lambda x: x.cumsum(0),
    "first item": lambda x: x - x[0],
    "last item": lambda x: x - x[-1],
    "order": lambda x: x.sort(0).values,
    "places": lambda x: x.argsort(0),
    "reversed": lambda x: x.flip(0),
    "rolled": lambda x: x.roll(1, 0),
    "number of items": lambda x: x / len(x),
    "position": lambda x: x + torch.arange(len(x))[:, None],
    "products": lambda x: x @ x.T,
    "statistics": lambda x: nn.functional.batch_norm(x, None, None, training=True),
    "one of several outputs": lambda x: {"a": x, "b": (x, x - x.mean(0))},
    "a little": lambda x: x + 0.02 * x.mean(0),
    "next to a mask": lambda x: torch.hstack([x - x.mean(0), torch.full_like(x, -1e9)]),
    "next to timestamps": lambda x: torch.hstack([x.softmax(0), x * 0 + 1.7e9]),
    "three items or more": lambda x: nn.functional.pad(x.T, (2, 2), "reflect").T.unfold(0, 5, 1).mean(-1),
}
SEPARATE: dict[str, Callable[[Tensor], Any]] = {
    "matmul": lambda x: x @ WEIGHT,
    "random": lambda x: nn.functional.dropout(x, 0.5, training=True),
    "only rounding": lambda x: ((x @ WEIGHT) @ WEIGHT.inverse() - x) ** 2,
    "not finite": lambda x: x.log(),
    "in place": lambda x: x.div_(100),
    "a number for each batch": lambda x: (x, x.sum()),
    "16 bits": lambda x: (x.bfloat16() @ WEIGHT.bfloat16()).argmax(-1),
    "padded to the longest": lambda x: x[:, : 1 + int(x.abs().max() > 2)],
}


@pytest.mark.parametrize("name", MIXING)
def test_outputs_that_depend_on_the_division_into_batches_are_refused(name: str) -> None:
    data = [
        (X, "batch_size=1 runs each item by itself, the number"),
        (TensorDataset(x=X), "batch_size=1 runs each item by itself, the number"),
        (Loader(TensorDataset(x=X), 50), "stream=True"),
        (iter(X.split(50)), "stream=True"),
    ]
    for given, hint in data if name == "mean" else data[:1]:
        with pytest.raises(DataError, match="depend on the other items of its batch") as caught:
            predict(Forward(MIXING[name]), given)
        assert caught.value.where == "Forward"
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", SEPARATE)
def test_other_outputs_are_not_and_the_data_stays_as_it_was(name: str) -> None:
    before = X.clone()
    found = predict(Forward(SEPARATE[name]), X)
    assert torch.equal(X, before)
    if name in ("matmul", "not finite", "in place"):
        expected = torch.cat([SEPARATE[name](row[None].clone()) for row in X])
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_what_the_hint_says_runs() -> None:
    model = Forward(lambda x: x - x.mean(0))
    assert torch.equal(predict(model, X, batch_size=1), torch.zeros_like(X))
    torch.testing.assert_close(predict(model, X, batch_size=150), X - X.mean(0))
    batches = list(predict(model, iter(X.split(50)), stream=True))
    for found, batch in zip(batches, X.split(50), strict=True):
        torch.testing.assert_close(found, batch - batch.mean(0))
    with pytest.raises(DataError, match="depend on the other items"):
        next(predict(model, X, stream=True))


def test_a_model_that_takes_the_sequence_first() -> None:
    torch.manual_seed(0)
    x = torch.randn(100, 2, 8)
    for model in (nn.GRU(8, 4), nn.TransformerEncoderLayer(8, 2, 16)):
        with pytest.raises(DataError, match="depend on the other items"):
            predict(model, x)
    batch_first = nn.GRU(8, 4, batch_first=True)
    torch.testing.assert_close(predict(batch_first, x)[0], batch_first(x)[0].detach())


def test_the_last_items_of_a_batch_of_two_and_models_that_take_no_two_items() -> None:
    with pytest.raises(DataError, match="depend on the other items"):
        predict(Forward(lambda x: x - x.mean(0)), X[:5], 2)
    fixed = Forward(lambda x: x.view(50, -1) + 1)
    assert torch.equal(predict(fixed, X, 50), X + 1)


class Stateful(nn.Module):
    """Counts its calls in several places, and keeps a state of its last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        state = torch.zeros_like(x) if self.state is None else self.state
        self.state = x + state
        return self.state


def test_a_model_is_left_as_after_only_its_batches() -> None:
    model = Stateful()
    torch.manual_seed(5)
    found = predict(model, X, 50)
    assert torch.equal(found, torch.cat([X[:50], X[:50] + X[50:100], X[:50] + X[50:100] + X[100:]]))
    assert (model.count.item(), model.calls) == (3, 3)
    drawn = torch.rand(())
    torch.manual_seed(5)
    assert torch.equal(torch.rand(()), drawn)


def test_hooks_see_only_the_batches() -> None:
    seen: list[int] = []
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, output: seen.append(len(output)))
    predict(model, X, 50)
    assert seen == [50, 50, 50]


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.recurrent = nn.GRU(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.recurrent(self.layer(x))[0]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "add_hook",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.3),
        lambda layer: layer.register_forward_hook(lambda *_: None),
    ],
)
def test_models_with_hooks_are_checked_and_keep_them(add_hook: Callable[[nn.Module], Any]) -> None:
    model = SequenceFirst()
    add_hook(model.layer)
    before = dict(vars(model.layer))
    with pytest.raises(DataError, match="depend on the other items"):
        predict(model, X)
    assert all(vars(model.layer)[name] is value for name, value in before.items() if name != "training")


def test_items_that_are_equal_show_nothing_and_others_are_chosen() -> None:
    some = X.clone()
    some[[0, 31, 63]] = X[0]
    padded = X.clone()
    padded[:64] = 0
    two = X.clone()
    two[:64] = X[0]
    two[40] = X[1]
    for data in (some, padded, two):
        with pytest.raises(DataError, match="depend on the other items"):
            predict(Forward(lambda x: x - x.mean(0)), data)
        torch.testing.assert_close(predict(Forward(lambda x: x @ WEIGHT), data), data @ WEIGHT)


def test_two_layers_are_not_two_items() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(4, 3, num_layers=2, batch_first=True)
    x = X.view(75, 2, 4)
    outputs, _ = predict(model, x, 25)
    torch.testing.assert_close(outputs, model(x)[0].detach())


class Counting(nn.Module):
    """Has states in attributes, and one in a variable that a function encloses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.calls = {"list": [0]}
        self.tensor = torch.zeros(())
        self.generator = torch.Generator().manual_seed(3)
        self.rng = np.random.default_rng(3)
        enclosed = [0]

        def count() -> int:
            enclosed[0] += 1
            return enclosed[0]

        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        self.calls["list"][0] += 1
        self.tensor += 1
        return (
            x
            + {
                "list": lambda: self.calls["list"][0],
                "tensor": lambda: self.tensor,
                "generator": lambda: torch.rand(x.shape, generator=self.generator),
                "rng": lambda: torch.from_numpy(self.rng.random(x.shape)).float(),
                "enclosed": self.count,
            }[self.name]()
        )


@pytest.mark.parametrize("name", ["list", "tensor", "generator", "rng", "enclosed"])
def test_outputs_that_depend_on_calls_before_are_not_refused(name: str) -> None:
    """The state after it is the same as after a loop over the batches."""
    model, other = Counting(name), Counting(name)
    found = predict(model, X, 50)
    expected = torch.cat([other(x) for x in X.split(50)])
    if name != "enclosed":
        assert torch.equal(found, expected)
    assert (model.calls, model.tensor) == ({"list": [3]}, 3)


# --- steps that change their batch in place


CHANGES: dict[str, Callable[[Batch], object]] = {
    "a view": lambda batch: batch.x.view(-1).div_(100),
    "items": lambda batch: operator.setitem(batch.x, slice(None), batch.x / 100),
    "out=": lambda batch: torch.div(batch.x, 100, out=batch.x),
    "data": lambda batch: batch.x.data.mul_(0.01),
    "detached": lambda batch: batch.x.detach().mul_(0.01),
    "assigned data": lambda batch: setattr(batch.x, "data", batch.x / 100),
    "an array": lambda batch: operator.itruediv(batch.x.numpy(), 100),
    "a field": lambda batch: setattr(batch, "x", batch.x / 100),
    "a list": lambda batch: torch._foreach_div_([batch.x], 100),
    "a part": lambda batch: operator.setitem(batch.x, (slice(None), 0), 0),
}


class Linear(nn.Linear):
    """Its argument has the column's name, by which it would be found."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def train(folder: Path, prepare: Callable[[Batch], Tensor], model: nn.Module) -> Learner:
    def step(model: nn.Module, batch: Batch) -> StepOutput:
        return StepOutput(model(prepare(batch)).square().mean())

    learner = Learner(model, optim.Sgd(), 1e-2, step=step)
    loader = Loader(TensorDataset(x=X.clone(), y=torch.arange(150)), 75)
    SupervisedTraining(folder, train=loader, duration="1 epoch", monitor="off", device="cpu").run(learner)
    return learner


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_step_that_changes_its_batch_must_be_repeated(name: str, tmp_path: Path) -> None:
    def prepare(batch: Batch) -> Tensor:
        CHANGES[name](batch)
        return batch.x

    learner = train(tmp_path / "run", prepare, Linear(4, 2))
    for data in ({"x": X, "y": X}, {"x": X}):
        with pytest.raises(DataError) as caught:
            predict(learner, data)
        assert caught.value.what == "the model's training step computes its inputs from the batch"
    with pytest.raises(DataError, match="computes its inputs"):
        predict(burnt.load(tmp_path / "run", model=Linear(4, 2)), {"x": X, "y": X})
    found = predict(learner, {"x": X, "y": X}, inputs=lambda batch: prepare(Batch(x=batch.x.clone())))
    with torch.no_grad():
        torch.testing.assert_close(found, learner.model(prepare(Batch(x=X.clone()))))


class InPlace(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.div_(100))


def test_a_model_that_changes_its_input_in_place_does_so_once_and_on_a_copy(tmp_path: Path) -> None:
    learner = train(tmp_path / "run", lambda batch: batch.x, InPlace(4, 2))
    before = X.clone()
    for data in ({"x": X, "y": X}, X, TensorDataset(x=X, y=X), iter(X.split(50))):
        found = predict(learner, data)
        assert torch.equal(X, before)
        with torch.no_grad():
            torch.testing.assert_close(found, learner.model(X.clone()))


def test_a_step_that_changes_other_columns_takes_the_inputs_as_they_are(tmp_path: Path) -> None:
    def prepare(batch: Batch) -> Tensor:
        batch.y.add_(1)
        return batch.x

    learner = train(tmp_path / "run", prepare, Linear(4, 2))
    with torch.no_grad():
        torch.testing.assert_close(predict(learner, {"x": X, "y": X}), learner.model(X))


def test_one_scale_for_the_items_of_a_batch_is_warned_of() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    burnt.quantize(model, "int8-dynamic_tensor")
    with pytest.warns(UserWarning, match="one scale for all items of a batch"):
        predict(model, X)
    large = X.clone()
    large[0] *= 1000
    with (
        pytest.raises(DataError, match="depend on the other items"),
        pytest.warns(UserWarning, match="one scale"),
    ):
        predict(model, large)
    expected = torch.cat([model(row[None]).detach() for row in large])
    torch.testing.assert_close(predict(model, large, batch_size=1), expected)
