"""`cross_entropy` whose gradient is made with the loss: scaled, asked for twice, differentiated again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt import kernels
from burnt.kernels import cross_entropy

WITH = cross_entropy.candidates["with gradient"]
REST = (None, 3, "mean", 0.0, 0.0)


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    target = torch.randint(11, (40,), generator=source)
    assert 0 < (target == 3).sum() < 40
    return torch.randn(40, 11, generator=source).to(dtype).requires_grad_(), target


def exactly(logits: Tensor, target: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    exact = logits.detach().double().requires_grad_()
    (result,) = torch.autograd.grad(fn(F.cross_entropy(exact, target, ignore_index=3)), [exact])
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.25, 65536.0])
def test_a_loss_that_is_scaled_has_scaled_gradients(factor: float, dtype: torch.dtype) -> None:
    logits, target = example(dtype)
    (result,) = torch.autograd.grad(WITH(logits, target, *REST) * factor, [logits])
    expected = exactly(logits, target, lambda loss: loss * factor)
    torch.testing.assert_close(result.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6 * factor)


@pytest.mark.sample(2)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.2, 1e-2)])
def test_settings(reduction: str, smoothing: float, z: float) -> None:
    logits, target = example()
    loss = WITH(logits, target, None, 3, reduction, smoothing, z)
    exact = logits.detach().double().requires_grad_()
    theirs = F.cross_entropy(exact, target, ignore_index=3, reduction=reduction, label_smoothing=smoothing)
    squares = exact.logsumexp(1)[target != 3].square()
    theirs = theirs + z * (squares.mean() if reduction == "mean" else squares.sum())
    torch.testing.assert_close(loss.double(), theirs, rtol=1e-6, atol=1e-6)
    ours, wanted = (
        torch.autograd.grad(result, [x])[0].double() for result, x in ((loss, logits), (theirs, exact))
    )
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", list(cross_entropy.candidates))
@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 1e-2)])
def test_labels_of_uint8_are_counted_as_int64(name: str, smoothing: float, z: float) -> None:
    # In uint8, 156 equals the ignore_index -100, and 44 equals 300.
    logits, target = torch.randn(6, 200, requires_grad=True), torch.tensor([156, 3, 44, 199, 156, 0])
    for ignore_index in (-100, 300, 156):
        results = []
        for dtype in (torch.uint8, torch.int64):
            loss = cross_entropy.candidates[name](
                logits, target.to(dtype), None, ignore_index, "mean", smoothing, z
            )
            results.append((loss, *torch.autograd.grad(loss, [logits])))
        torch.testing.assert_close(*results)
        if not z:
            expected = F.cross_entropy(
                logits.double(), target, ignore_index=ignore_index, label_smoothing=smoothing
            )
            torch.testing.assert_close(results[0][0].double(), expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_can_be_asked_for_twice() -> None:
    logits, target = example()
    loss = WITH(logits, target, *REST)
    first = torch.autograd.grad(loss, [logits], torch.tensor(2.0), retain_graph=True)[0].clone()
    (second,) = torch.autograd.grad(loss, [logits], torch.tensor(2.0), retain_graph=True)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first.double(), exactly(logits, target, lambda x: 2 * x), rtol=1e-5, atol=1e-7)


def test_a_second_derivative() -> None:
    logits, target = example(torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: WITH(x, target, *REST), [logits])
    (result,) = torch.autograd.grad(WITH(logits, target, *REST), [logits], create_graph=True)
    (again,) = torch.autograd.grad(result.square().sum(), [logits])
    exact = logits.detach().clone().requires_grad_()
    (theirs,) = torch.autograd.grad(
        F.cross_entropy(exact, target, ignore_index=3), [exact], create_graph=True
    )
    torch.testing.assert_close(again, torch.autograd.grad(theirs.square().sum(), [exact])[0])


def test_of_no_label_that_counts() -> None:
    logits, _ = example()
    nothing = torch.full((40,), 3)
    loss, theirs = WITH(logits, nothing, *REST), F.cross_entropy(logits, nothing, ignore_index=3)
    assert loss.isnan()
    assert theirs.isnan()
    (result,) = torch.autograd.grad(loss, [logits])
    assert torch.equal(result, torch.autograd.grad(theirs, [logits])[0])


def test_where_it_is_taken() -> None:
    """Where a gradient is wanted of a mean or a sum, and torch's calls take longer than finding it."""

    def chosen(*sizes: int, wanted: bool = True, reduction: str = "mean", smooth: float = 0.0) -> str:
        logits, target = torch.randn(sizes, requires_grad=wanted), torch.zeros(sizes[0], dtype=torch.long)
        choice = cross_entropy.chosen(logits, target, None, -100, reduction, smooth, 0.0)
        return str(choice.candidate.name)

    with kernels.tuning("off"):
        assert chosen(512, 1024) == chosen(512, 1024, reduction="sum", smooth=0.1) == "with gradient"
        assert chosen(512, 1024, wanted=False) == "generated"
        assert chosen(512, 1024, reduction="none") == "generated"
        assert chosen(16, 10) == "library"
