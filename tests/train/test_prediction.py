"""predict: kinds of data, how inputs are found in a batch, what is gathered, and its messages."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnt
from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import ConfigError, DataError, DefinitionError, InputTypeError
from burnt.train import Learner, StepOutput, SupervisedTraining, predict
from burnt.train.after.gathering import gather
from burnt.train.after.trained import TrainedAs

X = torch.randn(70, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(70)


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x if mask is None else x * mask


class Labelled(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        assert labels is None
        return x


class Two(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(X)


DATA = {
    "tensor": X,
    "array": X.numpy(),
    "list of items": list(X),
    "dataset": torch.utils.data.TensorDataset(X, Y),
    "burnt dataset": TensorDataset(input=X, y=Y),
    "dict of tensors": {"input": X, "y": Y.numpy()},
    "batch": Batch(input=X, y=Y),
    "tuple of tensors": (X, Y),
    "loader": Loader(TensorDataset(input=X, y=Y), 16),
    "torch loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 16),
    "iterable items": Stream(),
    "iterator of batches": None,
    "iterator of pairs": None,
}


@pytest.mark.parametrize("kind", DATA)
def test_every_kind_of_data_gives_the_outputs_in_order(kind: str) -> None:
    model = nn.Linear(3, 2)
    data = {
        "iterator of batches": (X[i : i + 9] for i in range(0, 70, 9)),
        "iterator of pairs": ([X[i : i + 9], Y[i : i + 9]] for i in range(0, 70, 9)),
    }.get(kind, DATA[kind])
    found = predict(model, data)
    assert not found.requires_grad
    torch.testing.assert_close(found, model(X).detach())


def test_batch_size_divides_the_data_and_the_last_batch_may_be_smaller() -> None:
    sizes: list[int] = []

    def call(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        return model(batch)

    predict(nn.Identity(), X, 32, call=call)
    predict(nn.Identity(), X, call=call)
    predict(nn.Identity(), list(X), 64, call=call)
    assert sizes == [32, 32, 6, 64, 6, 64, 6]
    assert predict(nn.Linear(3, 2), X[:0]).shape == (0, 2)


def test_modes_are_restored_and_gradients_are_off_also_after_an_error_and_between_streamed_batches() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    stream = predict(model, X, 16, stream=True)
    first = next(stream)
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert torch.equal(first, predict(model, X[:16]))
    assert [len(rest) for rest in stream] == [16, 16, 16, 6]
    with pytest.raises(RuntimeError) as caught:
        predict(model, torch.zeros(40, 4), 16)
    assert caught.value.__notes__ == ["burnt.predict was at batch 0, items 0 to 15"]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_transform_and_methods_and_functions() -> None:
    model = nn.Linear(3, 2)
    model.double = lambda x: 2 * x  # type: ignore[assignment, method-assign]
    probabilities = predict(model, X, 16, transform=nn.Softmax(-1))
    torch.testing.assert_close(probabilities, model(X).softmax(-1).detach())
    assert torch.equal(predict(model, {"x": X, "y": Y}, call="double", inputs="x"), 2 * X)
    found = predict(model, {"x": X, "y": Y}, 16, call=lambda model, batch: (model(batch.x), batch.y))
    assert torch.equal(found[1], Y)
    texts = predict(model, ["a", "b", "c"], 2, call=lambda model, batch: [text.upper() for text in batch])
    assert texts == ["A", "B", "C"]


def test_inputs_by_hand() -> None:
    data = {"a": X, "b": X + 1, "label": Y}
    expected = torch.full_like(X, -1.0)
    assert torch.equal(predict(Two(), data, inputs=["a", "b"]), X - (X + 1))
    assert torch.equal(predict(Two(), data, inputs={"left": "b", "right": "a"}), X + 1 - X)
    assert torch.equal(predict(Two(), data, inputs=lambda batch: (batch.a, batch.a + 1)), X - (X + 1))
    assert torch.equal(predict(Two(), data, inputs=lambda b: {"left": b.a, "right": b.b}), X - (X + 1))
    assert torch.equal(predict(Masked(), (X, Y), inputs=0), X)
    assert torch.equal(predict(Masked(), (Y, X), inputs=1), X)
    torch.testing.assert_close(predict(Two(), (X, X + 1, Y)), expected)


def test_inputs_by_the_names_of_forward() -> None:
    assert torch.equal(predict(Two(), {"right": X, "left": 2 * X, "y": Y}), 2 * X - X)
    assert torch.equal(predict(Masked(), {"x": X, "mask": torch.zeros(70, 1)}), torch.zeros_like(X))
    assert torch.equal(predict(Labelled(), {"x": X, "labels": Y}), X)
    assert torch.equal(predict(Masked(), {"anything": X}), X)


@pytest.mark.parametrize(
    ("model", "data", "found"),
    [
        (Masked(), (X, Y), "a batch of 0, 1"),  # the second may be a mask or a target
        (nn.Linear(3, 2), {"images": X, "y": Y}, "a batch of images, y"),
        (Two(), {"left": X, "y": Y}, "a batch of left, y"),
    ],
)
def test_inputs_that_are_ambiguous_are_asked_for(model: nn.Module, data: Any, found: str) -> None:
    with pytest.raises(DataError) as caught:
        predict(model, data)
    assert caught.value.what == "the inputs of the model are not known"
    assert caught.value.found == found
    assert "inputs=" in str(caught.value.hint)


def train(folder: Path, step: Any, data: TensorDataset, **settings: Any) -> Learner:
    config = burnt.nn.Linear.Config(in_features=3, out_features=2)
    learner = Learner(config.init(), optim.Sgd(), 0.01, step=step)
    training = SupervisedTraining(
        folder, train=Loader(data, 35), duration="1 epoch", monitor="off", device="cpu", **settings
    )
    training.run(learner)
    return learner


def test_a_trained_and_a_loaded_model_take_what_the_training_step_gave_them(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Batch) -> StepOutput:
        outputs = model(batch.features)
        return StepOutput(outputs.square().mean(), outputs, batch.label)

    data = TensorDataset(label=Y, features=X)
    learner = train(tmp_path / "run", step, data, precision="bfloat16")
    expected = predict(learner, X)
    assert expected.dtype == torch.bfloat16  # as trained
    assert torch.equal(predict(learner, data), expected)
    assert torch.equal(predict(learner.model, data), expected)
    assert torch.equal(predict(learner, data.columns), expected)
    loaded = burnt.load(tmp_path / "run")
    assert torch.equal(predict(loaded, data), expected)
    assert predict(loaded, data, precision="float32").dtype == torch.float32
    with pytest.raises(DataError, match="lacks what the model was trained on") as caught:
        predict(loaded, {"label": Y, "pixels": X})
    assert (caught.value.where, caught.value.expected) == ("Linear.forward, input", "features")
    assert caught.value.found == "a batch of label, pixels"


def test_a_step_that_computes_the_inputs_must_be_repeated(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Batch) -> StepOutput:
        outputs = model(batch.input / 255)
        return StepOutput(outputs.square().mean(), outputs, batch.y)

    learner = train(tmp_path / "run", step, TensorDataset(input=X, y=Y))
    for data in ({"input": X, "y": Y}, {"input": X}):
        with pytest.raises(DataError) as caught:  # by its name it would get what it was not trained on
            predict(learner, data)
    assert caught.value.what == "the model's training step computes its inputs from the batch"
    assert caught.value.where == "Linear.forward, input"
    expected = predict(learner, X / 255)
    assert torch.equal(
        predict(learner, {"input": X, "y": Y}, inputs=lambda batch: batch.input / 255), expected
    )


def test_a_run_without_a_check_leaves_the_names_of_forward(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Batch) -> StepOutput:
        return StepOutput(model(batch.input).square().mean(), targets=batch.y)

    learner = train(tmp_path / "run", step, TensorDataset(input=X, y=Y), check=False)
    assert TrainedAs.of(learner.model) == TrainedAs("float32")
    assert predict(learner, {"input": X, "y": Y}).shape == (70, 2)


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


def test_outputs_are_gathered_in_their_containers() -> None:
    def call(model: nn.Module, x: torch.Tensor) -> Any:
        n = len(x)
        return {
            "dataclass": Output(x, (x, 2 * x)),
            "named": Pair(x, x.mean()),
            "ragged": x[:, : 1 + n % 2],
            "levels": [x, x[:, :1]],
            "boxes": [{"box": row} for row in x],
            "texts": [str(float(row[0])) for row in x],
            "number": n,
            "weights": torch.zeros(2, 2),
        }

    found = predict(nn.Identity(), X[:7], 4, call=call)
    assert isinstance(found["dataclass"], Output)
    assert found["dataclass"].loss is None
    assert torch.equal(found["dataclass"].hidden[1], 2 * X[:7])
    assert torch.equal(found["named"].a, X[:7])
    torch.testing.assert_close(found["named"].b, torch.stack([X[:4].mean(), X[4:7].mean()]))
    assert [len(row) for row in found["ragged"]] == [1, 1, 1, 1, 2, 2, 2]
    assert [level.shape for level in found["levels"]] == [(7, 3), (7, 1)]
    assert [torch.equal(entry["box"], row) for entry, row in zip(found["boxes"], X, strict=False)] == [
        True
    ] * 7
    assert found["texts"] == [str(float(row[0])) for row in X[:7]]
    assert found["number"] == [4, 3]
    assert [value.shape for value in found["weights"]] == [(2, 2), (2, 2)]  # no row for each item


def test_gathering_outputs_whose_structure_changes_loses_nothing() -> None:
    parts = [{"a": X}, {"b": X}]
    assert gather(parts, [70, 70]) == parts
    assert gather([None, None], [1, 1]) is None
    assert gather([(X,), None], [70, 1])[1] is None
    assert gather([["a"], ["b", "c"]], [3, 3]) == [["a"], ["b", "c"]]
    nested = torch.nested.nested_tensor([X[:2], X[:3]], layout=torch.jagged)
    assert [row.shape for row in gather([nested], [2])] == [(2, 3), (3, 3)]


@pytest.mark.full  # for the import of transformers
def test_the_outputs_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    found = predict(nn.Identity(), X, 32, call=lambda model, x: outputs.SequenceClassifierOutput(logits=x))
    assert torch.equal(found.logits, X)


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        ({"data": "runs/x"}, DataError, ("data= cannot be predicted", "a text")),
        ({"data": 3}, DataError, ("data= cannot be predicted", "a int")),
        ({"data": []}, DataError, ("the dataset is empty", "a list of length 0")),
        ({"data": iter([])}, DataError, ("data= gave no batches", None)),
        (
            {"data": {"x": X, "y": Y[:3]}},
            DataError,
            ("the columns of the data have no common first axis", "x: (70, 3), y: (3,)"),
        ),
        (
            {"data": torch.tensor(3.0)},
            DataError,
            ("the columns of the data have no common first axis", "data: ()"),
        ),
        ({"data": {"x": X, "y": list(Y)}}, DataError, ("a column of the data is not a tensor", "a list")),
        ({"data": {}}, DataError, ("a column of the data is not a tensor", "no columns")),
        ({"data": X, "batch_size": 0}, ConfigError, ("batch_size is invalid", "0")),
        (
            {"data": iter([X]), "batch_size": 2},
            ConfigError,
            ("batch_size= is given, but the data is in batches already", "a list_iterator"),
        ),
        (
            {"data": Loader(TensorDataset(x=X), 8, shuffle=True)},
            DataError,
            ("the loader does not give all items in their order", "shuffle=True"),
        ),
        (
            {"data": Loader(TensorDataset(x=X), 8, drop_last=True)},
            DataError,
            ("the loader does not give all items in their order", "drop_last=True"),
        ),
        (
            {"data": torch.utils.data.DataLoader(X, 8, shuffle=True)},
            DataError,
            ("the loader does not give all items in their order", "a RandomSampler"),
        ),
        ({"data": X, "call": "forwards"}, DefinitionError, ("Linear has no method 'forwards'", None)),
        (
            {"data": X, "call": lambda m, b: b, "inputs": 0},
            ConfigError,
            ("inputs= and a function call= exclude each other", "both"),
        ),
        ({"data": {"x": X, "y": Y}, "inputs": "xx"}, DataError, ("the batch has no column 'xx'", None)),
        ({"data": X, "inputs": 0}, DataError, ("the batch has no column 0", None)),
        (
            {"data": {"x": X}, "inputs": {"out": "x"}},
            InputTypeError,
            ("the inputs are not those of the model", "missing a required argument: 'input'"),
        ),
    ],
)
def test_messages(
    arguments: dict[str, Any], error: type[Exception], expected: tuple[str, str | None]
) -> None:
    with pytest.raises(error) as caught:
        predict(nn.Linear(3, 2), **arguments)
    assert (caught.value.what, caught.value.found) == expected  # type: ignore[attr-defined]


def test_the_model_must_be_one() -> None:
    with pytest.raises(DefinitionError, match="the class Linear"):
        predict(nn.Linear, X)
    with pytest.raises(DefinitionError, match=r"burnt\.load"):
        predict("runs/digits", X)
    with pytest.raises(TypeError, match=r"model\.to"):
        predict(nn.Identity(), X, device="cpu")


def test_numpy_is_not_copied_and_integers_stay() -> None:
    found = predict(nn.Identity(), np.arange(5, dtype=np.int32), 2)
    assert found.dtype == torch.int32
    assert found.tolist() == [0, 1, 2, 3, 4]
