"""Signature: what a model takes and returns, seen on meta tensors, and given back from JSON."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from burnt.errors import InputRuntimeError, InputTypeError, ShapeError, UnsupportedError
from burnt.inspect import Signature, TensorSpec, signature_of
from tests.messages import raises

Pair = namedtuple("Pair", "mean spread")


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(
        self, batch: dict[str, Any], *more: torch.Tensor, scale: float = 1.0, masks: Any = None
    ) -> dict[str, Any]:
        y = self.linear(batch["x"]) * scale + sum(tensor.sum() for tensor in more)
        return {"logits": y * masks[0], "states": Pair(y[:, 0], y.sum())}


def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ({"x": torch.rand(4, 3)}, torch.ones(2)), {"scale": 2.0, "masks": [torch.ones(4, 1)]}


def test_nested_arguments_are_named_and_come_back() -> None:
    args, kwargs = example()
    model = Nested()
    signature = signature_of(model, *args, **kwargs)
    assert str(signature) == (
        "batch.x: float32[batch, 3], more.0: float32[2], masks.0: float32[batch, 1]"
        " -> output.logits: float32[batch, 2], output.states.mean: float32[batch],"
        " output.states.spread: float32[]"
    )
    read = Signature.from_dict(json.loads(json.dumps(signature.to_dict())))
    assert read == signature
    tensors = [args[0]["x"], args[1], kwargs["masks"][0]]
    expected = model(*args, **kwargs)
    found = read.call(model, tensors)
    assert torch.equal(found[0], expected["logits"])
    assert torch.equal(found[2], expected["states"].spread)


def test_a_batch_axis_need_not_be_the_first() -> None:
    class TimeFirst(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(0, 1).sum(1)

    signature = signature_of(TimeFirst(), TensorSpec((4, 7)))
    assert str(signature) == "x: float32[batch, 7] -> output: float32[7]"


@pytest.mark.full
def test_random_inputs_keep_to_the_ranges() -> None:
    tokens = torch.tensor([[3, 9], [4, 5]])
    signature = signature_of(nn.Embedding(10, 2), tokens)
    assert signature.inputs[0].range == (3, 9)
    (drawn,) = signature.example(500)
    assert drawn.shape == (500, 2)
    assert (drawn.min(), drawn.max()) == (3, 9)
    (image,) = signature_of(nn.Flatten(), torch.tensor([[0.0, 0.25]])).example(500)
    assert 0 <= image.min() < image.max() <= 0.25
    (unknown,) = signature_of(nn.Embedding(10, 2), TensorSpec((2, 2), torch.int64)).example()
    assert unknown.tolist() == [[0, 0], [0, 0]]


def test_code_that_depends_on_values_runs_on_the_example() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    assert (
        str(signature_of(Branches(), torch.ones(3, 2))) == "x: float32[batch, 2] -> output: float32[batch, 2]"
    )


def test_what_cannot_be_described_is_refused() -> None:
    class Takes(nn.Module):
        def forward(self, options: object, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(UnsupportedError, match="cannot be described") as caught:
        signature_of(Takes(), object(), torch.ones(2))
    assert "found     a object" in str(caught.value) or "an object" in str(caught.value)
    with pytest.raises(ShapeError):
        signature_of(nn.Linear(3, 2), torch.ones(4, 5))


def test_inputs_that_do_not_fit_are_named() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    signature = signature_of(Two(), torch.ones(4, 3), torch.ones(4, 1))
    good = {"y": torch.ones(5, 1), "x": torch.ones(5, 3)}
    assert [tensor.shape[1] for tensor in signature.check(good)] == [3, 1]
    for change, error, text in (
        ({"z": torch.ones(1)}, InputTypeError, "expected  x, y"),
        ({"x": torch.ones(5, 3).double()}, InputTypeError, "found     float64"),
        ({"x": torch.ones(5, 4)}, InputRuntimeError, r"expected  [batch, 3]"),
        ({"x": torch.ones(3)}, InputRuntimeError, "found     [3]"),
        ({"y": torch.ones(2, 1)}, InputRuntimeError, "expected  [batch, 1] with batch 5"),
    ):
        with raises(error, text):
            signature.check({**good, **change})


def test_only_an_axis_of_the_batch_s_size_is_the_batch() -> None:
    class Folds(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.flatten(0, 1), x.transpose(0, 1), x[0]

    outputs = signature_of(Folds(), torch.rand(4, 5, 3)).outputs
    assert [info.batch_axis for info in outputs] == [None, 1, None]
    assert outputs[0].shape == (20, 3)


def test_an_output_has_another_name_than_the_inputs() -> None:
    class Loss(nn.Module):
        def forward(self, output: torch.Tensor) -> torch.Tensor:
            return output.square()

    assert str(signature_of(Loss(), torch.rand(4))) == "output: float32[batch] -> output_: float32[batch]"


def test_a_single_batch_size_can_be_tried() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, -1)

    with pytest.raises(ShapeError):
        signature_of(Fixed(), torch.rand(4, 3))
    signature = signature_of(Fixed(), torch.rand(4, 3), batch_sizes=(4,))
    assert str(signature) == "x: float32[batch, 3] -> output: float32[batch, 3]"


def test_arguments_that_forward_does_not_take_are_named() -> None:
    with pytest.raises(InputTypeError, match="not those of the model") as caught:
        signature_of(nn.Linear(3, 2), x=torch.rand(4, 3))
    assert "forward(input" in str(caught.value.expected)
    assert "missing a required argument: 'input'" in str(caught.value)
