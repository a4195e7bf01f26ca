"""Gathers: values, gradients, kernels; indices out of range raise as in torch and are never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import fuse
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputIndexError

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(50, 7, generator=SOURCE)
ROWS = torch.randint(0, 50, (11,), generator=SOURCE)
CLASSES = torch.randint(0, 7, (50,), generator=SOURCE)
IGNORED = torch.where(torch.arange(50) % 3 == 0, -100, CLASSES)
SIGNED = torch.randint(-50, 50, (4, 1), generator=SOURCE)
COLUMNS = torch.randint(-7, 7, (3,), generator=SOURCE)
WEIGHT = torch.rand(7, generator=SOURCE)

# fn, arguments, and the number of kernels of the backward; None if it calls torch's scatter.
GATHERS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int | None]] = {
    "gather": (lambda x, i: x.gather(1, i[:, None]) * 2, (X, CLASSES), 1),
    "gather of several": (lambda x, i: x.gather(0, i.repeat(1, 5)), (X, SIGNED.abs() % 50), None),
    "gather, no axes": (lambda x, i: x.gather(0, i), (X[0, 0], torch.tensor(0)), None),
    "index_select": (lambda x, i: x.index_select(-2, i) * 2, (X, ROWS.int()), None),
    "embedding": (lambda x, i: F.embedding(i, x).exp(), (X, ROWS.reshape(11, 1)), None),
    "rows": (lambda x, i: x[i] + 1, (X, ROWS), None),
    "two axes": (lambda x, i, j: x[i, j] + 1, (X, SIGNED, COLUMNS), None),
    "neighbours in the middle": (
        lambda x, i, j: x.reshape(5, 50, 7)[:, i, j], (X.repeat(5, 1), SIGNED, COLUMNS), None
    ),
    "axes apart": (lambda x, i, j: x.reshape(50, 1, 7, 1)[i, :, j] * 2, (X, SIGNED, COLUMNS), None),
    "short indices": (lambda x, i: x[i.to(torch.uint8).long(), i], (X, COLUMNS.abs()), None),
    "take": (lambda x, i: x.take(i * 3) + 1, (X, SIGNED), None),
    "what is computed": (lambda x, i: torch.softmax(x * 2, 0)[i], (X, ROWS), None),
    "its own largest": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), (X,), 1),
    "expanded": (lambda x, i: x[:1].expand(50, 7)[i], (X, ROWS), None),
    "a part of a place in what is expanded": (
        lambda x: (lambda rows: rows.flatten()[(rows > 0).long() % rows.numel()])(
            x[:3, None].expand(3, 5, 7)[(x[:3, None].expand(3, 5, 7) > 0).long().argmax(0)]
        ),
        (X,),
        None,
    ),
    "one of one": (lambda x, i: x[:1][i], (X, torch.tensor([0, -1])), None),
    "cross entropy": (F.cross_entropy, (X, CLASSES), 2),
    "cross entropy, ignored": (F.cross_entropy, (X, IGNORED), 2),
    "cross entropy, weights": (lambda x, y: F.cross_entropy(x, y, WEIGHT), (X, IGNORED), 2),
    "cross entropy, no mean": (lambda x, y: F.cross_entropy(x, y, WEIGHT, reduction="none"), (X, IGNORED), 1),
    "cross entropy, sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), (X, IGNORED), 1),
    "cross entropy of one": (lambda x, y: F.cross_entropy(x[3], y[3]), (X, CLASSES), 1),
    "cross entropy in space": (
        lambda x, y: F.cross_entropy(x.reshape(5, 10, 7).transpose(1, 2), y.reshape(5, 10)),
        (X, CLASSES),
        None,
    ),
    "nothing counts": (lambda x, y: F.cross_entropy(x, y * 0 - 100), (X, CLASSES), 2),
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", GATHERS)
def test_gathers(name: str) -> None:
    fn, args, kernels = GATHERS[name]
    fused = fuse(fn)
    plan = fused.plan(*args)
    assert plan is not None, fused.fallback_reason(*args)
    assert all(isinstance(s, Kernel) for s in plan.plan.steps)
    results = []
    for run in (fn, fused):
        wanted = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
        result = run(*wanted)
        result.backward(torch.arange(result.numel()).reshape(result.shape) / 4)
        results.append((result, [a.grad for a in wanted]))
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
    if kernels is not None:
        ((result,),) = [
            e.forward.backward_plans.values() for e in fused._entries.values() if e.forward.backward_plans
        ]
        assert [isinstance(s, Kernel) for s in result.plan.plan.steps] == [True] * kernels


FAILING: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "gather": (lambda x, i: x.gather(0, i[:, None]), "0 <= index < 50, the size of axis 0"),
    "index_select": (lambda x, i: x.index_select(0, i), "0 <= index < 50, the size of axis 0"),
    "embedding": (lambda x, i: F.embedding(i, x), "0 <= index < 50, the size of axis 0"),
    "index": (lambda x, i: x.t()[:, i], "-50 <= index < 50, the size of axis 1"),
    "take": (lambda x, i: x.take(i), "-350 <= index < 350, the size of axis 0"),
    "nll_loss": (
        lambda x, i: F.nll_loss(x.t()[: len(i)], i, reduction="none"), "0 <= index < 50, the size of axis 1"
    ),
    "index of what is expanded": (lambda x, i: x[:1].expand(9, 7)[i], "-9 <= index < 9, the size of axis 0"),
    "scatter": (lambda x, i: x[:2].t().scatter(0, i[None], 1.0), "0 <= index < 7, the size of axis 0"),
}  # fmt: skip
ROWS_EACH = ("nll_loss", "scatter")  # one index for each of a few rows


@pytest.mark.sample
@pytest.mark.parametrize("bad", [355, -360, 2**61, -(2**61)])
@pytest.mark.parametrize(
    ("name", "length"),
    [(name, n) for name in FAILING for n in (2, 70_000) if n == 2 or name not in ROWS_EACH],
)
def test_an_index_out_of_range(name: str, bad: int, length: int) -> None:
    fn, expected = FAILING[name]
    index = torch.zeros(length, dtype=torch.int64)
    index[length // 2] = bad
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        fn(X, index)
    fused = fuse(fn)
    fused(X, torch.zeros_like(index))  # the same plan serves what is legal, before and after
    with pytest.raises(type(theirs.value)) as ours:
        fused(X, index)
    assert isinstance(ours.value, InputIndexError)
    assert ours.value.expected == expected
    assert str(ours.value).startswith(f"{name.split(' ')[0]}: index {bad} is out of range\n")
    assert fused.fallback_reason(X, torch.zeros_like(index)) is None


def test_the_first_and_the_last_place_and_those_beside_them() -> None:
    fused = fuse(lambda x, i: x[i])
    assert fused(X, torch.tensor([-50, 49])).equal(X[[0, 49]])
    for bad in (-51, 50):
        with pytest.raises(InputIndexError, match=f"index {bad} is out of range"):
            fused(X, torch.tensor([bad, 49]))


def test_an_index_that_is_not_used_is_not_checked() -> None:
    """An ignored target may be out of range, and so may an index whose result is not used."""
    y = torch.tensor([2, -100, 6])
    assert fuse(F.cross_entropy)(X[:3], y).isfinite()
    with pytest.raises(InputIndexError, match="nll_loss: index -1 "):
        fuse(F.cross_entropy)(X[:3], y.clamp(min=-1))


def test_two_checks_in_one_kernel() -> None:
    fused = fuse(lambda x, i, j: x[i] * x.index_select(0, j))
    i = torch.tensor([1, 2])
    assert fused(X, i, i).equal(X[i] * X[i])
    with pytest.raises(InputIndexError, match="index_select: index 50 is"):
        fused(X, i, torch.tensor([0, 50]))
    with pytest.raises(InputIndexError, match="index: index 51 is"):
        fused(X, torch.tensor([51, 0]), i)


def test_places_past_32_bits() -> None:
    """Indices are 64 bits wide, in `arange`, in expanded tensors and in gathers from them."""
    most = 2**31 + 5

    def fn(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        wide = x.expand(most)
        far = torch.arange(most)
        return far[-3:], far.reshape(-1, 7)[-1].flip(0), wide[i], (far[-9:] * 2).sum(), (wide + far)[i]

    x, i = torch.tensor([2.5], dtype=torch.float64), torch.tensor([most - 1, -most, 3])
    fused = fuse(fn)
    ends, row, looked, total, added = fused(x, i)
    assert fused.fallback_reason(x, i) is None
    assert ends.tolist() == [most - 3, most - 2, most - 1]
    assert row.tolist() == list(range(most - 1, most - 8, -1))
    assert looked.tolist() == [2.5] * 3
    assert total.item() == 2 * sum(range(most - 9, most))
    assert added.tolist() == [most + 1.5, 2.5, 5.5]
    with pytest.raises(InputIndexError, match=f"index {most} is out of range"):
        fused(x, i + 1)


def test_a_class_out_of_range_is_no_row_of_zeros() -> None:
    fused = fuse(lambda i: F.one_hot(i, 5) * 2)
    for good in (torch.tensor([[1, 4, 0]]), torch.tensor(3), torch.empty(0, 2, dtype=torch.int64)):
        assert fused.fallback_reason(good) is None
        assert torch.equal(fused(good), fused.fn(good))
    for bad in (5, -1):
        with pytest.raises(RuntimeError, match="Class values"):
            fused.fn(torch.tensor([1, bad]))
        with pytest.raises(RuntimeError, match=f"index {bad} is out of range") as caught:
            fused(torch.tensor([1, bad]))
        assert isinstance(caught.value, InputIndexError)
        assert caught.value.hint is not None
    unknown = fuse(lambda i: F.one_hot(i))
    assert torch.equal(unknown(torch.tensor([1, 3])), F.one_hot(torch.tensor([1, 3])))


def test_an_index_whose_row_is_dropped_is_not_checked() -> None:
    """As docs/kernels.md says; torch checks all indices."""
    w = torch.randn(5, 3)
    fused = fuse(lambda w, i: F.embedding(i, w)[:1] * 2)
    assert torch.equal(fused(w, torch.tensor([1, 7])), w[1:2] * 2)
    with pytest.raises(InputIndexError, match="index 7 is out of range"):
        fused(w, torch.tensor([7, 1]))
