import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.errors import ConfigError, DataError, ShapeError


def reference(logits: Tensor, labels: Tensor, weight: Tensor, ignore: int, smoothing: float) -> Tensor:
    """The mean cross entropy of labels, element by element in float64."""
    total = norm = 0.0
    classes = logits.shape[1]
    for row, label in zip(logits.double(), labels.tolist(), strict=True):
        if label == ignore:
            continue
        logs = row - row.exp().sum().log()
        total -= (1 - smoothing) * weight[label] * logs[label]
        total -= smoothing / classes * (weight * logs).sum()
        norm += weight[label]
    return torch.as_tensor(total / norm)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_by_its_formula(smoothing: float) -> None:
    logits, labels = torch.randn(9, 4), torch.tensor([0, 1, 2, 3, 1, 1, 0, 2, 1])
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0])
    loss = nn.CrossEntropy(weight.tolist(), ignore_index=1, label_smoothing=smoothing)
    expected = reference(logits, labels, weight.double(), 1, smoothing)
    torch.testing.assert_close(loss(logits, labels).double(), expected, atol=1e-6, rtol=1e-6)


def test_cross_entropy_of_probabilities_images_and_one_sample() -> None:
    logits = torch.randn(2, 5, 3, 4)
    probabilities = torch.rand(2, 5, 3, 4).softmax(1)
    labels = torch.randint(5, (2, 3, 4))
    logs = logits.double().log_softmax(1)
    torch.testing.assert_close(
        nn.CrossEntropy()(logits, probabilities).double(), -(probabilities * logs).sum(1).mean()
    )
    torch.testing.assert_close(
        nn.CrossEntropy(reduction="none")(logits, labels).double(), -logs.gather(1, labels[:, None])[:, 0]
    )
    torch.testing.assert_close(
        nn.CrossEntropy()(logits[0, :, 0, 0], labels[0, 0, 0]).double(), -logs[0, labels[0, 0, 0], 0, 0]
    )


def test_weights_may_be_numbers_or_a_tensor_and_are_a_buffer() -> None:
    numbers, tensor = nn.CrossEntropy([1.0, 2.0]), nn.CrossEntropy(torch.tensor([1.0, 2.0]).double())
    assert list(numbers.state_dict()) == ["weight"]
    assert numbers.weight is not None
    assert numbers.weight.dtype == torch.float32
    assert tensor.weight is not None
    assert tensor.weight.dtype == torch.float64
    assert nn.CrossEntropy((1, 2)).weight.tolist() == [1.0, 2.0]
    assert nn.CrossEntropy.Config(weight=[1.0, 2.0]).init().weight.tolist() == [1.0, 2.0]
    with pytest.raises(ConfigError, match="weight"):
        nn.CrossEntropy.Config(weight=torch.ones(2))


@pytest.mark.parametrize(
    ("labels", "found", "hint"),
    [
        ([0, 10, 3], "labels from 0 to 10", "the last layer needs at least 11 outputs"),
        ([1, 10, 3], "labels from 1 to 10", "do the labels start at 1? Then subtract 1"),
        ([0, -1, 3], "labels from -1 to 3", "ignore_index, which is -100 here"),
        ([-100, 99, 3], "labels from 3 to 99", "the last layer needs at least 100 outputs"),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("extra", [(), (2, 2)])
def test_a_label_that_is_no_class(
    labels: list[int], found: str, hint: str, smoothing: float, extra: tuple[int, ...]
) -> None:
    loss = nn.CrossEntropy(label_smoothing=smoothing)
    target = torch.tensor(labels).view(-1, *(1 for _ in extra)).expand(-1, *extra)
    with pytest.raises(DataError) as caught:
        loss(torch.randn(3, 10, *extra), target)
    assert caught.value.expected == "labels from 0 to 9, for logits of 10 classes"
    assert caught.value.found == found
    assert hint in str(caught.value)


def test_a_label_that_is_no_class_of_one_sample() -> None:
    with pytest.raises(DataError, match="labels from 0 to 3"):
        nn.CrossEntropy()(torch.randn(4), torch.tensor(4))


def test_labels_are_not_read_on_the_normal_path(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 3, 1])

    def refuse(*_: object) -> float:
        raise AssertionError("a tensor was read")

    for name in ("item", "tolist", "__int__", "__bool__", "min", "max"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    nn.CrossEntropy()(logits, labels).backward()


def test_mse_refuses_to_broadcast() -> None:
    with pytest.raises(ShapeError) as caught:
        nn.Mse()(torch.zeros(4, 1), torch.zeros(4))
    assert caught.value.expected == "a target of shape (4, 1)"
    assert caught.value.found == (4,)
    assert "unsqueeze" in str(caught.value.hint)
    with pytest.raises(ShapeError):
        nn.Mse()(torch.zeros(4, 2), torch.zeros(4, 3))


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 2.5), ("sum", 5.0), ("none", [1.0, 4.0])])
def test_mse_by_hand(reduction: str, expected: object) -> None:
    loss = nn.Mse(reduction)  # type: ignore[arg-type]
    assert loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])).tolist() == expected
