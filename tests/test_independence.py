"""Items that are put into batches with others, and what shows that their outputs depend on these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from burnt._independence import TOLERANCE, BatchProbe, difference, pad

Function = Callable[[np.ndarray], np.ndarray]

WEIGHT = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)


def quantized(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max() / 127
    return np.round(x / scale) * scale


INDEPENDENT: dict[str, Function] = {
    "matmul": lambda x: x @ WEIGHT,
    "norm of each item": lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    "scale of each item": lambda x: np.concatenate([quantized(row[None]) for row in x]),
    "not finite in places": lambda x: np.log(x),
    "integers": lambda x: x.argmax(1),
    "booleans": lambda x: x > 0,
    "texts": lambda x: (x > 0).astype(str),
    "constant": lambda x: x * 0,
}
DEPENDENT: dict[str, Function] = {
    "mean": lambda x: x - x.mean(0),
    "running sum": lambda x: x.cumsum(0),
    "first item": lambda x: x - x[0],
    "last item": lambda x: x - x[-1],
    "order": lambda x: np.sort(x, 0),
    "reversed": lambda x: x[::-1],
    "rolled": lambda x: np.roll(x, 1, 0),
    "number of items": lambda x: x / len(x),
    "position": lambda x: x + np.arange(len(x))[:, None],
    "one scale": quantized,
    "other shape": lambda x: x @ x.T,
    "other number": lambda x: x[:1],
    "NaN of another": lambda x: x + 0 * np.exp(np.abs(x).max()),
    "integers": lambda x: x.argsort(0),
    "mean next to a mask": lambda x: np.hstack([x - x.mean(0), np.full_like(x, -1e9)]),
    "softmax next to timestamps": lambda x: np.hstack([np.exp(x - x.max(0)), 1.7e9 + x * 0]),
}


def probe_of(function: Function, sizes: tuple[int, ...] = (1, 2, 4, 8), **options: Any) -> BatchProbe:
    random = np.random.default_rng(0)
    items = [[random.standard_normal((1, 3)).astype(np.float32) * scale] for scale in (1, 1000, 1, 1000)]
    probe = BatchProbe(items, [0], [0], **options)
    with np.errstate(all="ignore"):
        for size in sizes:
            probe.add([function(*probe.batch(size))])
    return probe


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_items_are_the_same_in_every_batch(name: str) -> None:
    probe = probe_of(INDEPENDENT[name])
    assert probe.largest_difference <= TOLERANCE
    assert not probe.depends


@pytest.mark.parametrize("sizes", [(1, 2, 2), (1, 2, 4), (1, 4, 32)])
@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_items_are_found(name: str, sizes: tuple[int, ...]) -> None:
    assert probe_of(DEPENDENT[name], sizes).depends


def test_what_is_never_finite_shows_nothing() -> None:
    assert not probe_of(lambda x: x * np.nan).is_complete
    assert not probe_of(lambda x: np.exp(np.abs(x) + 1e9)).is_complete
    assert probe_of(lambda x: np.exp(x)).is_complete


def test_integers_are_not_compared_where_rounding_is_coarse() -> None:
    assert not probe_of(lambda x: x.argsort(0), tolerance=0.1).depends
    assert not probe_of(lambda x: x.argsort(0), tolerance=0.1).is_complete


def test_every_axis_may_be_the_batch_and_inputs_without_one_stay_the_same() -> None:
    random = np.random.default_rng(0)
    items = [[random.standard_normal((3, 1, 2)), np.full(2, 5.0)] for _ in range(3)]
    probe = BatchProbe(items, [1, None], [1, None])
    for size in (1, 3, 2):
        x, same = probe.batch(size)
        assert x.shape == (3, size, 2)
        assert np.array_equal(same, items[0][1])
        x_before = x.copy()
        probe.add([x.cumsum(0) + same, x.sum()])
        x -= 1e9  # a model may change its inputs in place
        assert not np.array_equal(x, x_before)
    assert probe.largest_difference < 1e-12
    assert not probe.depends


def test_the_difference_is_relative_and_infinite_where_the_places_of_nan_differ() -> None:
    inf, nan = np.inf, np.nan
    assert difference(np.array([0.0, 8.0]), np.array([0.0, 10.0])) == pytest.approx(0.2)
    assert difference(np.array([nan, inf, 1.0]), np.array([nan, inf, 1.0])) == 0
    assert difference(np.array([nan, 1.0]), np.array([1.0, 1.0])) == inf
    assert difference(np.array([inf]), np.array([-inf])) == inf
    assert difference(np.array([1 + 1j]), np.array([1 + 1j])) == 0
    assert difference(np.zeros(2), np.zeros(2)) == 0
    assert difference(np.zeros(2), np.zeros(3)) == inf
    assert difference(np.array([1.0, -1e9]), np.array([2.0, -1e9])) == pytest.approx(0.05)
    assert difference(np.float16([6e4]), np.float16([-6e4])) == 2


@pytest.mark.parametrize("order", [1, -1])
def test_two_items_are_run_by_themselves(order: int) -> None:
    """The one with the largest number shows no division by the largest number of a batch."""
    probe = BatchProbe([[np.array([[x]])] for x in (2.0, 1.9)[::order]], [0], [0])
    for size in (1, 1, 2):
        (x,) = probe.batch(size)
        probe.add([x / x.max()])
    assert probe.depends


def test_padding_ends_the_last_axis_that_is_not_the_batch() -> None:
    for shape, axis, expected in [
        ((1, 5), 0, [[1, 1, 1, 0, 0]]),
        ((2, 1), 1, [[1], [0]]),
        ((2,), None, [1, 0]),
        ((1,), 0, [1]),
        ((), None, 1),
    ]:
        array = np.ones(shape, np.int64)
        pad(array, axis)
        assert array.tolist() == expected
    numbers = np.ones((1, 4))
    pad(numbers, 0)
    assert numbers.all()
