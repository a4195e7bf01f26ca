import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import nn
from burnt.errors import (
    ConfigError,
    DataError,
    InputIndexError,
    InputRuntimeError,
    InputUnsupportedError,
    InputValueError,
    ShapeError,
)
from burnt.nn.loss import __all__ as loss_names


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


# Values, by formulas in float64


def elements(x: Tensor) -> list[float]:
    return [float(value) for value in x.flatten()]


def close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(expected).double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.5])
def test_lp_by_its_formula(p: float) -> None:
    x, target = torch.randn(4, 3), torch.randn(4, 3)
    errors = [abs(a - b) ** p for a, b in zip(elements(x), elements(target), strict=True)]
    close(nn.Lp(p)(x, target), sum(errors) / 12)
    close(nn.Lp(p, "sum")(x, target), sum(errors))
    close(nn.Lp(p, "none")(x, target).flatten(), errors)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0])
def test_lp_of_equal_numbers_has_no_gradient(p: float) -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    nn.Lp(p)(x, torch.tensor([1.0, 1.0])).backward()
    assert x.grad is not None
    close(x.grad, [0.0, p * 2.0 ** (p - 1) / 2])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_binary_focal_by_its_formula(gamma: float, alpha: float | None) -> None:
    x, target = 3 * torch.randn(7), torch.randint(2, (7,)).float()
    expected = []
    for logit, label in zip(elements(x), elements(target), strict=True):
        p = 1 / (1 + math.exp(-logit))
        p_t, alpha_t = (p, alpha) if label else (1 - p, None if alpha is None else 1 - alpha)
        expected.append(-(1.0 if alpha_t is None else alpha_t) * (1 - p_t) ** gamma * math.log(p_t))
    close(nn.BinaryFocal(gamma, alpha, "none")(x, target), expected)
    close(nn.BinaryFocal(gamma, alpha)(x, target), sum(expected) / 7)
    close(nn.BinaryFocal(gamma, alpha, "sum")(x, target), sum(expected))
    if gamma == 0 and alpha is None:
        close(nn.BinaryCrossEntropyWithLogits()(x, target), sum(expected) / 7)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_by_its_formula(gamma: float) -> None:
    x, labels, weight = 3 * torch.randn(5, 4), torch.tensor([0, 3, 1, -7, 2]), [1.0, 2.0, 0.5, 3.0]
    expected, total = [], 0.0
    for row, label in zip(x.double().tolist(), labels.tolist(), strict=True):
        p = math.exp(row[label]) / sum(map(math.exp, row)) if label != -7 else 1.0
        w = weight[label] if label != -7 else 0.0
        expected.append(-w * (1 - p) ** gamma * math.log(p))
        total += w
    options = {"weight": weight, "ignore_index": -7}
    close(nn.Focal(gamma, **options, reduction="none")(x, labels), expected)
    close(nn.Focal(gamma, **options, reduction="sum")(x, labels), sum(expected))
    close(nn.Focal(gamma, **options)(x, labels), sum(expected) / total)
    if gamma == 0:
        close(nn.CrossEntropy(**options)(x, labels), sum(expected) / total)


def test_focal_of_images_and_of_one_element() -> None:
    x, labels = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    found = nn.Focal(reduction="none")(x, labels)
    close(found, nn.Focal(reduction="none")(x.movedim(1, -1).reshape(-1, 4), labels.flatten()).view(2, 3, 5))
    close(nn.Focal()(x[0, :, 0, 0], labels[0, 0, 0]), found[0, 0, 0])


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_focal_losses_of_certain_predictions_have_finite_gradients(gamma: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[90.0, -90.0], [-90.0, 90.0]], dtype=dtype, requires_grad=True)
    loss = nn.Focal(gamma)(x, torch.tensor([0, 0])) + nn.BinaryFocal(gamma)(x, torch.eye(2, dtype=dtype))
    loss.backward()
    assert loss.dtype == dtype
    assert loss.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_focal_loss_takes_labels() -> None:
    with pytest.raises(InputRuntimeError, match=r"expected  labels of dtype int64 or uint8") as caught:
        nn.Focal()(torch.zeros(2, 3), torch.zeros(2, 3))
    assert "BinaryFocal" in str(caught.value)


def dice(p: Tensor, t: Tensor, smooth: float) -> float:
    overlap = sum(a * b for a, b in zip(elements(p), elements(t), strict=True))
    return 1 - (2 * overlap + smooth) / (sum(elements(p)) + sum(elements(t)) + smooth)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_dice_by_its_formula(smooth: float, shape: tuple[int, ...]) -> None:
    x, labels = torch.randn(2, 3, *shape), torch.randint(3, (2, *shape))
    p = x.double().softmax(1)
    masks = torch.stack([labels == c for c in range(3)], 1).double()
    expected = torch.tensor([[dice(p[n, c], masks[n, c], smooth) for c in range(3)] for n in range(2)])
    close(nn.Dice(smooth=smooth, reduction="none")(x, labels), expected)
    close(nn.Dice(smooth=smooth)(x, labels.to(torch.uint8)), expected.mean())
    close(nn.Dice(smooth=smooth, reduction="sum")(x, masks.float()), expected.sum())
    weight = torch.tensor([0.0, 1.0, 3.0])
    close(nn.Dice(smooth=smooth, weight=weight)(x, labels), (expected * weight).sum(1).mean() / 4)
    p = x.double().sigmoid()
    expected = torch.tensor([[dice(p[n, c], masks[n, c], smooth) for c in range(3)] for n in range(2)])
    close(nn.Dice("sigmoid", smooth=smooth, reduction="none")(x, masks.float()), expected)


def test_dice_leaves_out_ignored_pixels() -> None:
    x, labels = torch.randn(1, 3, 6), torch.tensor([[0, 1, 9, 2, 9, 1]])
    counted = labels[0] != 9
    close(nn.Dice(ignore_index=9)(x, labels), nn.Dice()(x[..., counted], labels[:, counted]))


def test_dice_of_nothing_has_no_loss() -> None:
    close(nn.Dice("sigmoid")(torch.full((1, 1, 4), -40.0), torch.zeros(1, 1, 4)), 0.0)


def test_dice_refuses_what_means_nothing() -> None:
    with pytest.raises(InputValueError, match=r'hint      Dice\("sigmoid"\) for one mask'):
        nn.Dice()(torch.zeros(2, 1, 4), torch.zeros(2, 4).long())
    with pytest.raises(InputValueError, match="activation is not valid"):
        nn.Dice("relu")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="a Dice loss takes a batch"):
        nn.Dice()(torch.zeros(4), torch.zeros(4))
    with pytest.raises(DataError, match="labels from 0 to 3"):
        nn.Dice()(torch.zeros(1, 3, 2), torch.tensor([[0, 3]]))
    for target in (torch.ones(2, 4, 4), torch.ones(2, 4, 4).long()):
        with pytest.raises(ShapeError, match=r"hint      target.unsqueeze\(1\)"):
            nn.Dice("sigmoid")(torch.zeros(2, 1, 4, 4), target)
    for shape in ((2, 4, 5), (2, 3, 4, 5)):
        with pytest.raises(ShapeError, match=r"input.movedim\(-1, 1\)"):
            nn.Dice()(torch.zeros(2, 4, 5, 3), torch.zeros(shape).long())
    with pytest.raises(ShapeError, match=r"labels of shape \(2, 4\), or masks of shape \(2, 3, 4\)"):
        nn.Dice()(torch.zeros(2, 3, 4), torch.zeros(2, 5).long())


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce_by_its_formula(symmetric: bool) -> None:
    a, b = torch.randn(4, 3), torch.randn(4, 3)

    def cosine(x: list[float], y: list[float]) -> float:
        return sum(i * j for i, j in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)

    scores = [[cosine(x, y) / 0.2 for y in b.tolist()] for x in a.tolist()]
    expected = [math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(scores)]
    if symmetric:
        columns = [list(column) for column in zip(*scores, strict=True)]
        back = [math.log(sum(map(math.exp, column))) - column[i] for i, column in enumerate(columns)]
        expected = [(x + y) / 2 for x, y in zip(expected, back, strict=True)]
    close(nn.InfoNce(0.2, symmetric, "none")(a, b), expected)
    close(nn.InfoNce(0.2, symmetric)(a, b), sum(expected) / 4)


@pytest.mark.parametrize("kind", [nn.BinaryCrossEntropy, nn.BinaryCrossEntropyWithLogits])
def test_label_smoothing_of_binary_cross_entropy(kind: Any) -> None:
    x, target = torch.randn(6), torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 1.0])
    expected = 0.0
    for logit, label in zip(elements(x), elements(target), strict=True):
        p, t = 1 / (1 + math.exp(-logit)), 0.8 * label + 0.1
        expected -= t * math.log(p) + (1 - t) * math.log(1 - p)
    given = x.sigmoid() if kind is nn.BinaryCrossEntropy else x
    close(kind(label_smoothing=0.2)(given, target), expected / 6)


def test_logits_are_not_taken_for_probabilities() -> None:
    with pytest.raises(InputRuntimeError, match="input from -2 to 3, target from 0 to 1") as caught:
        nn.BinaryCrossEntropy()(torch.tensor([-2.0, 3.0]), torch.tensor([0.0, 1.0]))
    assert caught.value.hint == "for logits: burnt.nn.BinaryCrossEntropyWithLogits"


def test_the_divergence_is_the_batch_mean() -> None:
    p, q = torch.randn(3, 4).softmax(1), torch.randn(3, 4).softmax(1)
    expected = (q.double() * (q.double().log() - p.double().log())).sum() / 3
    close(nn.KlDiv("batchmean")(p.log(), q), expected)
    close(nn.KlDiv("batchmean", log_target=True)(p.log(), q.log()), expected)
    close(nn.KlDiv()(p.log(), q), expected / 4)


# Gaussian likelihood


@pytest.mark.parametrize("var", [0.5, torch.rand(4, 3), torch.rand(4, 1), torch.rand(4), torch.rand(1, 3)])
@pytest.mark.parametrize("full", [False, True])
def test_gaussian_nll_is_torchs(var: Any, full: bool) -> None:
    x, target = torch.randn(4, 3), torch.randn(4, 3)
    theirs = torch.nn.GaussianNLLLoss(full=full)
    close(nn.GaussianNll(full=full)(x, target, var), theirs(x, target, var))


def test_a_variance_that_is_too_small_gets_a_gradient() -> None:
    var = torch.tensor([0.0, 1e-9, 0.5], requires_grad=True)
    x, target = torch.zeros(3), torch.full((3,), 1e-3)
    (ours,) = torch.autograd.grad(nn.GaussianNll()(x, target, var), var)
    (theirs,) = torch.autograd.grad(torch.nn.GaussianNLLLoss()(x, target, var), var)
    close(ours, theirs)
    assert ours.all()


def test_a_variance_that_is_none() -> None:
    x = torch.zeros(4, 3)
    with pytest.raises(InputValueError, match=r"a variance is negative(.|\n)*found     -1(.|\n)*softplus"):
        nn.GaussianNll()(x, x, torch.tensor([1.0, 1.0, 1.0, -1.0]))
    for shape in ((3,), (4, 2), (1, 1), (4, 3, 1)):
        with pytest.raises(ShapeError, match=r"expected  a var of shape \(4, 3\), \(4, 1\) or \(4,\)"):
            nn.GaussianNll()(x, x, torch.ones(shape))


# Connectionist temporal classification


def ctc_by_enumeration(probs: list[list[float]], target: list[int], blank: int) -> float:
    """The loss of one sequence, by the probabilities of all alignments."""
    total = 0.0
    for path in itertools.product(range(len(probs[0])), repeat=len(probs)):
        if [c for c, _ in itertools.groupby(path) if c != blank] == target:
            total += math.prod(probs[t][c] for t, c in enumerate(path))
    return -math.log(total) if total else math.inf


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_by_enumeration(blank: int) -> None:
    probs = torch.randn(5, 4, 3, dtype=torch.float64).softmax(2)
    first, other = (1, 2) if blank == 0 else (0, 1)
    targets = torch.tensor([[first, other, first], [first, first, 7], [other, 7, 7], [7, 7, 7]])
    steps, lengths = torch.tensor([5, 4, 3, 5]), torch.tensor([3, 2, 1, 0])
    expected = [
        ctc_by_enumeration(probs[:t, n].tolist(), targets[n, :length].tolist(), blank)
        for n, (t, length) in enumerate(zip(steps.tolist(), lengths.tolist(), strict=True))
    ]
    close(nn.Ctc(blank, "none")(probs.log(), targets, steps, lengths), expected)


@pytest.mark.sample
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_compiled_is_ctc(reduction: Any, zero_infinity: bool) -> None:
    torch._dynamo.reset()
    log_probs = torch.randn(4, 3, 3, dtype=torch.float64).log_softmax(2).requires_grad_()
    # The second target needs five steps: a blank between each two equal labels.
    given = torch.tensor([[1, 2, 1], [1, 1, 1], [2, 0, 0]]), torch.tensor([4, 4, 2]), torch.tensor([3, 3, 1])
    loss = nn.Ctc(reduction=reduction, zero_infinity=zero_infinity)
    found = torch.compile(loss, backend="eager", fullgraph=True)(log_probs, *given)
    expected = loss(log_probs, *given)
    close(found, expected)
    if zero_infinity:
        close(*(torch.autograd.grad(x.sum(), log_probs)[0] for x in (found, expected)))


def test_ctc_of_one_sequence_and_of_targets_in_a_row() -> None:
    log_probs = torch.randn(6, 2, 4).log_softmax(2)
    targets, steps, lengths = torch.tensor([[1, 2, 3], [2, 2, 0]]), [6, 5], [3, 2]
    loss = nn.Ctc(reduction="none")
    expected = loss(log_probs, targets, steps, lengths)
    close(loss(log_probs, torch.tensor([1, 2, 3, 2, 2]), steps, lengths), expected)
    one = torch.tensor(6), torch.tensor(3)
    close(loss(log_probs[:, 0], targets[0], *one), expected[0])
    assert loss(log_probs[:, 0].to("meta"), targets[0].to("meta"), *(x.to("meta") for x in one)).shape == ()


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"targets": [[1, 4], [1, 1]]}, InputIndexError, "labels from 1 to 4"),
        ({"input_lengths": [6, 7]}, InputValueError, "input_lengths are out of range"),
        ({"target_lengths": [3, 1]}, InputValueError, r"target_lengths are out of range(.|\n)*0 to 2"),
        ({"input_lengths": [6] * 6, "target_lengths": [1] * 6}, ShapeError, r"log_probs.transpose\(0, 1\)\?"),
        ({"targets": [[1, 2]] * 3}, ShapeError, r"targets of shape \(2, longest\) or \(total,\)"),
        ({"targets": [[1, 2], [0, 1]]}, InputValueError, "a label is the blank(.|\n)*1 of 3 labels are 0"),
        ({"targets": [[1.5, 2.0], [1.0, 1.0]]}, InputRuntimeError, r"hint      targets.long\(\)"),
        ({"target_lengths": [2.0, 1.0]}, InputRuntimeError, "target_lengths of dtype int64"),
        ({"log_probs": torch.ones(6, 2, 4)}, InputValueError, r"up to 1(.|\n)*log_probs.log_softmax\(-1\)"),
        ({"log_probs": torch.zeros(6, 2, 4).long()}, InputUnsupportedError, r"log_probs.float\(\)"),
        ({"log_probs": torch.zeros(6)}, ShapeError, r"\[steps, batch, num_classes\]"),
    ],
)
def test_ctc_refuses_what_does_not_fit(changed: dict[str, Any], error: type[Exception], match: str) -> None:
    given: dict[str, Any] = {
        "log_probs": torch.zeros(6, 2, 4),
        "targets": [[1, 2], [1, 1]],
        "input_lengths": [6, 6],
        "target_lengths": [2, 1],
    }
    with pytest.raises(error, match=match):
        nn.Ctc()(**{name: torch.as_tensor(value) for name, value in {**given, **changed}.items()})


# Losses that hold the last layer


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_linear_cross_entropy_is_both_in_turn(reduction: Any) -> None:
    options = {"reduction": reduction, "ignore_index": 3, "label_smoothing": 0.1}
    loss = nn.LinearCrossEntropy(6, 9, bias=True, **options)
    x, labels = torch.randn(2, 5, 6), torch.randint(9, (2, 5))
    found = loss(x, labels)
    expected = nn.CrossEntropy(**options)(loss.linear(x).flatten(0, 1), labels.flatten())
    close(found.detach(), expected.detach().view_as(found))
    assert found.shape == (labels.shape if reduction == "none" else ())


def test_linear_cross_entropy_with_weights_several_labels_and_probabilities() -> None:
    x, weight = torch.randn(4, 6), torch.rand(5)
    loss = nn.LinearCrossEntropy(6, 5, out_features=(2,), weight=weight)
    logits = loss.linear(x).view(4, 5, 2)
    labels = torch.randint(5, (4, 2))
    close(loss(x, labels), torch.nn.functional.cross_entropy(logits, labels, weight))
    probabilities = torch.rand(4, 5, 2).softmax(1)
    close(loss(x, probabilities), torch.nn.functional.cross_entropy(logits, probabilities, weight))


def test_linear_cross_entropy_with_tied_weights() -> None:
    embedding, loss = nn.Embedding(9, 6), nn.LinearCrossEntropy(6, 9)
    loss.linear.weight = embedding.weight
    loss(embedding(torch.tensor([1, 2])), torch.tensor([3, 4])).backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.all()


def test_adaptive_log_softmax_is_the_softmax_of_all_classes() -> None:
    loss = nn.AdaptiveLogSoftmax(8, 30, [5, 12], 2.0, head_bias=True)
    x, labels = torch.randn(30, 8), torch.randperm(30)
    output, mean = loss(x, labels)
    full = loss.log_prob(x)
    close(full.exp().sum(1), torch.ones(30))
    close(output, full.gather(1, labels[:, None])[:, 0])
    close(mean, -output.mean())
    assert torch.equal(loss.predict(x), full.argmax(1))
    one = loss(x[0], labels[0])
    assert one.output.shape == one.loss.shape == ()
    close(one.output, output[0])


def test_adaptive_log_softmax_without_rare_labels_leaves_out_their_cluster() -> None:
    loss = nn.AdaptiveLogSoftmax(8, 30, [5, 12], 2.0)
    loss(torch.randn(4, 8), torch.tensor([0, 7, 4, 6])).loss.backward()
    found = [cluster[1].weight.grad is None for cluster in loss.tail]
    assert found == [False, True]
    with torch.autocast("cpu", torch.bfloat16):
        assert loss(torch.randn(4, 8), torch.tensor([0, 7, 4, 29])).loss.isfinite()


@pytest.mark.parametrize("cutoffs", [[], [0, 3], [5, 3], [3, 3], [10]])
def test_cutoffs_that_do_not_split_the_classes(cutoffs: list[int]) -> None:
    with pytest.raises(InputValueError, match="ascending numbers from 1 to 9"):
        nn.AdaptiveLogSoftmax(8, 10, cutoffs)


# What holds for several losses


def build(name: str, **arguments: Any) -> Any:
    needed = {"Lp": {"p": 3.0}, "LinearCrossEntropy": {"in_features": 4, "num_classes": 3}}
    return getattr(nn, name)(**needed.get(name, {}), **arguments)


@pytest.mark.parametrize("name", [name for name in loss_names if name != "AdaptiveLogSoftmax"])
def test_a_reduction_that_does_not_exist(name: str) -> None:
    with pytest.raises(InputValueError) as caught:
        build(name, reduction="avg")
    assert caught.value.what == "there is no reduction 'avg'"
    assert caught.value.where == name
    assert str(caught.value.expected).startswith("'mean', 'sum', 'none'")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("Lp", {"p": 0.0}, "more than 0"),
        ("SmoothL1", {"beta": -1.0}, "at least 0"),
        ("Huber", {"delta": 0.0}, "more than 0"),
        ("GaussianNll", {"eps": -1.0}, "at least 0"),
        ("CrossEntropy", {"label_smoothing": 1.5}, "0 to 1"),
        ("BinaryCrossEntropy", {"label_smoothing": -0.5}, "0 to 1"),
        ("Focal", {"gamma": -1.0}, "at least 0"),
        ("BinaryFocal", {"alpha": 2.0}, "0 to 1"),
        ("MultiMargin", {"p": 3}, "1 to 2"),
        ("CosineEmbedding", {"margin": 2.0}, "-1 to 1"),
        ("TripletMargin", {"margin": 0.0}, "more than 0"),
        ("TripletMarginWithDistance", {"margin": -1.0}, "more than 0"),
        ("InfoNce", {"temperature": 0.0}, "more than 0"),
        ("Dice", {"smooth": -1.0}, "at least 0"),
        ("CrossEntropy", {"label_smoothing": "x"}, "0 to 1"),
        ("Focal", {"gamma": "2"}, "at least 0"),
        ("CrossEntropy", {"ignore_index": None}, "an integer"),
        ("Nll", {"ignore_index": 0.5}, "an integer"),
        ("Dice", {"ignore_index": "0"}, "an integer"),
        ("Focal", {"weight": 0.25}, "numbers such as [1.0, 2.0], or a tensor [num_classes]"),
        ("CrossEntropy", {"weight": "sum"}, "numbers such as [1.0, 2.0], or a tensor [num_classes]"),
        ("Nll", {"weight": torch.ones(2, 2)}, "numbers such as [1.0, 2.0], or a tensor [num_classes]"),
        ("Ctc", {"blank": -1}, "a class, an integer of at least 0"),
    ],
)
def test_an_argument_out_of_range(name: str, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputValueError) as caught:
        getattr(nn, name)(**arguments)
    assert caught.value.expected == expected
    assert caught.value.where == name


@pytest.mark.parametrize(
    "name",
    [
        *("L1", "Mse", "Lp", "SmoothL1", "Huber", "PoissonNll", "KlDiv", "BinaryCrossEntropy", "SoftMargin"),
        *("BinaryCrossEntropyWithLogits", "BinaryFocal", "MultiLabelSoftMargin", "HingeEmbedding"),
    ],
)
def test_a_loss_refuses_to_broadcast(name: str) -> None:
    for found in ((4,), (4, 1), (1, 3), ()):
        with pytest.raises(ShapeError) as caught:
            build(name)(torch.rand(4, 3), torch.rand(found))
        assert caught.value.expected == "a target of shape (4, 3)"
        assert caught.value.found == found
        assert caught.value.where == name


@pytest.mark.parametrize("name", ["CrossEntropy", "Nll", "Focal"])
def test_labels_that_are_not_one_for_each_element(name: str) -> None:
    loss = build(name)
    with pytest.raises(ShapeError, match=r"hint      classes are the second axis: input.movedim\(-1, 1\)\?"):
        loss(torch.zeros(2, 5, 3), torch.zeros(2, 5).long())
    for shape in ((3,), (2, 1), ()):
        with pytest.raises(ShapeError, match=r"labels of shape \(2,\), for an input of \(2, 3\)"):
            loss(torch.zeros(2, 3), torch.zeros(shape).long())
    with pytest.raises(ShapeError):
        loss(torch.zeros(()), torch.zeros(()).long())


@pytest.mark.parametrize("name", ["Nll", "Focal", "MultiMargin", "MultiLabelMargin", "LinearCrossEntropy"])
@pytest.mark.parametrize("label", [-2, 3])
def test_every_loss_of_labels_says_which_is_no_class(name: str, label: int) -> None:
    labels = torch.tensor([0, label])
    target = torch.stack([labels, torch.full((2,), -1)], 1).repeat(1, 2)[:, :3]
    x = torch.randn(2, 4) if name == "LinearCrossEntropy" else torch.randn(2, 3)
    with pytest.raises(InputIndexError) as caught:
        build(name)(x, target if name == "MultiLabelMargin" else labels)
    assert caught.value.where == name
    assert caught.value.expected == "labels from 0 to 2, for logits of 3 classes"
    assert str(label) in str(caught.value.found)


@pytest.mark.parametrize("name", ["Nll", "Focal", "MultiMargin", "Dice", "AdaptiveLogSoftmax"])
def test_labels_are_not_truncated(name: str) -> None:
    loss = nn.AdaptiveLogSoftmax(3, 3, [1], 1.0) if name == "AdaptiveLogSoftmax" else build(name)
    with pytest.raises(InputRuntimeError) as caught:
        loss(torch.zeros(2, 3), torch.tensor([0.0, 1.5]))
    assert caught.value.where == name
    assert "labels of dtype int64" in str(caught.value.expected)
    assert caught.value.found == "torch.float32 (2,)"


@pytest.mark.parametrize(
    "name",
    [
        *("Nll", "Focal", "MultiMargin", "Dice", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
        *("BinaryFocal", "SoftMargin", "MultiLabelSoftMargin", "MultiLabelMargin", "InfoNce", "KlDiv"),
    ],
)
def test_a_loss_of_integers_is_refused(name: str) -> None:
    labels = torch.tensor([0, 1])
    one = {"Nll": labels, "Focal": labels, "MultiMargin": labels, "Dice": labels}
    target = one.get(name, torch.zeros(2, 3).long() if name == "MultiLabelMargin" else torch.zeros(2, 3))
    with pytest.raises(InputUnsupportedError) as caught:
        build(name)(torch.zeros(2, 3).long(), target)
    assert caught.value.where == name
    assert str(caught.value.hint).endswith(".float()")


@pytest.mark.parametrize(
    "name", ["BinaryCrossEntropyWithLogits", "BinaryFocal", "MultiLabelSoftMargin", "Dice", "KlDiv"]
)
def test_targets_that_are_no_probabilities(name: str) -> None:
    x, mask = torch.randn(2, 3), torch.tensor([[0.0, 255.0, 0.0]]).expand(2, 3)
    with pytest.raises(InputValueError) as caught:
        build(name)(x, mask)
    assert caught.value.where == name
    assert caught.value.found == "target from 0 to 255"
    assert caught.value.hint == "for a mask of 0 and 255: target / 255"
    build(name)(x, mask / 255)
    with pytest.raises(InputValueError, match="target from -1 to "):
        build(name)(x, -mask / 255)
    # No value is read where there is none, or where reading would wait for a GPU.
    assert build(name)(x.to("meta"), mask.to("meta")).is_meta


@pytest.mark.parametrize("name", ["SoftMargin", "HingeEmbedding", "CosineEmbedding"])
def test_targets_that_are_not_1_or_minus_1(name: str) -> None:
    inputs = [torch.randn(2, 3)] * 2 if name == "CosineEmbedding" else [torch.randn(2)]
    with pytest.raises(InputValueError) as caught:
        build(name)(*inputs, torch.tensor([0, 1]))
    assert caught.value.where == name
    assert caught.value.found == "target from 0 to 1"
    assert caught.value.hint == "for 1 and 0: 2 * target - 1"
    build(name)(*inputs, torch.tensor([-1, 1]))


@pytest.mark.parametrize(
    "name",
    ["CrossEntropy", "Nll", "Focal", "MultiMargin", "Dice", "LinearCrossEntropy", "MultiLabelSoftMargin"],
)
def test_a_weight_for_each_class(name: str) -> None:
    target = torch.ones(2, 3) if name == "MultiLabelSoftMargin" else torch.tensor([0, 1])
    with pytest.raises(ShapeError) as caught:
        build(name, weight=[1.0, 2.0])(torch.zeros(2, 3), target)
    assert caught.value.where == name
    assert caught.value.expected == "weight of shape (3,)"
    assert caught.value.found == (2,)


@pytest.mark.parametrize("name", ["MultiMargin", "MultiLabelMargin"])
def test_the_mean_of_no_elements_is_not_what_is_in_memory(name: str) -> None:
    x = torch.zeros(0, 3, requires_grad=True)
    target = torch.zeros(0, 3).long() if name == "MultiLabelMargin" else torch.zeros(0).long()
    assert build(name)(x, target).isnan()
    assert build(name, reduction="sum")(x, target) == 0
    assert build(name, reduction="none")(x, target).shape == (0,)
    build(name)(x, target).backward()


def test_a_label_that_is_ignored_counts_nowhere() -> None:
    x, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    for name in ("CrossEntropy", "Nll", "Focal"):
        close(build(name, ignore_index=2)(x, labels), build(name)(x[::2], labels[::2]))
        assert build(name, ignore_index=2)(x, torch.full((4,), 2)).isnan()


@pytest.mark.parametrize("name", ["CrossEntropy", "LinearCrossEntropy"])
def test_probabilities_have_no_label_to_ignore(name: str) -> None:
    x = torch.randn(2, 4) if name == "LinearCrossEntropy" else torch.randn(2, 3)
    target = torch.rand(2, 3).softmax(1)
    with pytest.raises(InputRuntimeError, match=r"expected  labels, or no ignore_index") as caught:
        build(name, ignore_index=0)(x, target)
    assert caught.value.where == name
    build(name)(x, target)


def test_weights_are_buffers_that_configs_hold() -> None:
    for name in (
        "Nll",
        "Focal",
        "MultiMargin",
        "BinaryCrossEntropyWithLogits",
        "Dice",
        "MultiLabelSoftMargin",
    ):
        loss = getattr(nn, name).Config(weight=[1.0, 2.0]).init(dtype=torch.float64)
        assert loss.state_dict()["weight"].tolist() == [1.0, 2.0]
        assert loss.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("input_shape", "target_shape", "hint"),
    [
        ((4, 1, 8, 8), (4, 8, 8), "input.squeeze(1), or target.unsqueeze(1)?"),
        ((4, 8, 8), (4, 1, 8, 8), "target.squeeze(1), or input.unsqueeze(1)?"),
        ((4, 1), (4,), "input.squeeze(-1), or target.unsqueeze(-1)?"),
        ((1, 1, 8, 8), (1, 8, 8), "input.squeeze(1), or target.unsqueeze(1)?"),
        ((4, 3, 8, 8), (4, 8, 8), None),
        ((4, 3), (4, 2), None),
    ],
)
@pytest.mark.parametrize("loss", [nn.Mse(), nn.BinaryCrossEntropyWithLogits(), nn.BinaryFocal()], ids=repr)
def test_which_axis_a_target_lacks(loss, input_shape, target_shape, hint):
    with pytest.raises(ShapeError) as caught:
        loss(torch.zeros(input_shape), torch.zeros(target_shape))
    assert caught.value.hint == hint
