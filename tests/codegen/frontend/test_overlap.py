"""Overlap of tensors: the tests on addresses and strides, and fused functions that change such tensors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import burnt
from burnt.codegen.frontend.overlap import Footprint, has_internal_overlap, may_overlap
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def bytes_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, start: int = 0) -> list[int]:
    """The address of each byte of each element, in full."""
    indices = itertools.product(*map(range, shape))
    offsets = (sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices)
    return [start + offset * itemsize + byte for offset in offsets for byte in range(itemsize)]


def test_no_overlap_is_missed() -> None:
    draw = random.Random(0)

    def layout() -> tuple[tuple[int, ...], tuple[int, ...], int]:
        rank = draw.randrange(4)
        shape = tuple(draw.choice([0, 1, 2, 3, 3, 4]) for _ in range(rank))
        return shape, tuple(draw.choice([0, 1, 2, 3, 4, 6, 12]) for _ in range(rank)), draw.choice([1, 2, 4])

    apart_by_strides = 0
    for _ in range(3000):
        a, b, distance = layout(), layout(), draw.randrange(-30, 30)
        ours, theirs = bytes_of(*a), bytes_of(*b, distance)
        if len(set(ours)) < len(ours):
            assert has_internal_overlap(a[0], a[1]), a
        found = may_overlap(Footprint.of(*a), Footprint.of(*b), distance)
        if set(ours) & set(theirs):
            assert found, (a, b, distance)
        elif ours and theirs and not found:
            apart_by_strides += min(ours) < max(theirs) and min(theirs) < max(ours)
    assert apart_by_strides > 10


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: (x[::2], x[1::2]),
        lambda x: (x[:, :3], x[:, 3:]),
        lambda x: (x[:, ::2], x[:, 1::2]),
        lambda x: (x[1:, :, 1], x[1:, :, 0]),
        lambda x: (x[:, :2, 1:], x[:, 2:, 1:]),
        lambda x: (x.transpose(0, 2)[2:], x[..., :2]),
        lambda x: (x[:0], x),
    ],
)
def test_parts_of_a_tensor_that_are_apart(parts: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    for a, b in (parts(torch.zeros(4, 5, 3)), parts(torch.zeros(4, 5, 3))[::-1]):
        footprints = [Footprint.of(t.shape, t.stride(), t.itemsize) for t in (a, b)]
        assert not may_overlap(*footprints, b.data_ptr() - a.data_ptr())
        assert not has_internal_overlap(a.shape, a.stride())


def windows(x: Tensor) -> Tensor:
    return x.unfold(0, 3, 1)


def slices_of_one_array() -> list[Tensor]:
    array = np.arange(9, dtype=np.float32)
    return [torch.from_numpy(array[:-1]), torch.from_numpy(array[1:])]


def rows_of_an_overlapping_view(x: Tensor) -> Tensor:
    y = x * 1
    view = y.as_strided((4, 3), (1, 1))
    view[0].mul_(2.0)
    view[1].add_(1.0)
    return y


def rows_of_an_expanded_view(x: Tensor) -> Tensor:
    y = x * 1
    y.expand(3, 6)[1].mul_(2)
    return y + 1


CHANGES: dict[str, tuple[Callable[..., Any], Callable[[], list[Tensor]]]] = {
    "windows": (lambda x: x[0].mul_(3) + x[1], lambda: [windows(torch.arange(5.0))]),
    "windows, transposed": (lambda x: x.t()[:, 0].mul_(3) + x[1], lambda: [windows(torch.arange(5.0))]),
    "expanded": (lambda x: x[0].add_(1) + x[1], lambda: [torch.arange(3.0).expand(2, 3)]),
    "slices of an array": (lambda x, y: (x.mul_(2), x + y)[1], slices_of_one_array),
    "slices of an array, the second": (lambda x, y: (y.mul_(2), x + y)[1], slices_of_one_array),
    "slices of a tensor": (
        lambda x, y: (x.mul_(2), x + y)[1],
        lambda: (x := torch.arange(9.0), [x[1:], x[:-1]])[1],
    ),
    "one tensor twice": (lambda x, y: (x.mul_(2), x + y)[1], lambda: [torch.arange(4.0)] * 2),
    "another dtype": (
        lambda x, y: (x.fill_(2), x + y)[1],
        lambda: (x := torch.arange(4.0), [x, x.view(torch.int32)])[1],
    ),
    "an overlapping intermediate": (rows_of_an_overlapping_view, lambda: [torch.ones(6)]),
    "an expanded intermediate": (rows_of_an_expanded_view, lambda: [torch.tensor([1.0] * 5 + [torch.inf])]),
}


@needs_compiler
@pytest.mark.parametrize("name", CHANGES)
def test_a_fused_function_changes_overlapping_tensors_as_the_eager_one(name: str) -> None:
    fn, inputs = CHANGES[name]
    fused = burnt.fuse(fn)
    for _ in range(2):
        ours, theirs = inputs(), inputs()
        result, expected = fused(*ours), fn(*theirs)
        assert torch.equal(result, expected)
        assert all(map(torch.equal, ours, theirs))


@needs_compiler
def test_a_change_of_overlapping_elements_is_refused_as_by_torch() -> None:
    fused = burnt.fuse(lambda x: (x * 1).expand(3, 4).mul_(2))
    with pytest.raises(RuntimeError, match="single memory location"):
        fused(torch.ones(4))
    assert fused.fallback_reason(torch.ones(4)) == (
        "it modifies elements in place that share memory with others of the same tensor"
    )


@needs_compiler
def test_columns_of_one_tensor_are_changed_by_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x, y: x.mul_(2) + y)
    base = torch.arange(12.0).view(3, 4)
    fused(base[:, :2], base[:, 2:])
    base = torch.arange(12.0).view(3, 4)
    monkeypatch.setattr(fused, "fn", None)  # the eager function cannot run
    assert torch.equal(fused(base[:, :2], base[:, 2:]), torch.tensor([[2.0, 5], [14, 17], [26, 29]]))
    assert base[:, 0].tolist() == [0, 8, 16]


@needs_compiler
def test_views_without_overlap_inside_do_not_keep_a_change_from_being_fused() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 1
        left, right = y[:-1], y[1:]
        left.mul_(2)
        right.add_(1)
        return y + y.unfold(0, 3, 1).sum()

    fused = burnt.fuse(fn)
    assert torch.equal(fused(torch.arange(6.0)), fn(torch.arange(6.0)))
    assert fused.fallback_reason(torch.arange(6.0)) is None


@needs_compiler
def test_memory_that_is_read_by_strides_which_a_change_in_place_would_alter_is_left_to_torch() -> None:
    for op in (torch.as_strided_copy, lambda *args: torch.as_strided(*args).clone()):
        fused = burnt.fuse(lambda x, op=op: op(x.add_(1), (3,), (2,)))
        assert fused(torch.arange(10)[::2]).tolist() == [1, 3, 5]
        assert "other strides in a plan" in str(fused.fallback_reason(torch.arange(10)[::2]))
        assert fused(torch.arange(5)).tolist() == [1, 3, 5]
        assert fused.fallback_reason(torch.arange(5)) is None
    kept = torch.arange(5)
    fused = burnt.fuse(lambda x: x + torch.as_strided(kept, (3,), (2,)))
    assert fused(torch.ones(3)).tolist() == [1, 3, 5]
    assert fused.fallback_reason(torch.ones(3)) is None


@needs_compiler
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: (x * 2)[:-1].mul_((x * 2)[1:]) + (y := x * 2)[1:].sub_(y[:-1]),
        lambda x: (y := x * 2).add_(y[0]),
        lambda x: (y := x * 2).add_(y.t()),
    ],
)
def test_an_operand_that_overlaps_the_result_in_part_is_refused_as_by_torch(fn: Callable[..., Any]) -> None:
    fused = burnt.fuse(fn)
    errors = []
    for call in (fn, fused):
        with pytest.raises(RuntimeError, match="single memory location") as raised:
            call(torch.ones(3, 3))
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@needs_compiler
def test_the_reason_says_that_an_operand_overlaps_the_result() -> None:
    assert burnt.fuse(lambda x: x[1:].add_(x[:-1])).fallback_reason(torch.ones(4)) == (
        "it modifies a tensor in place that overlaps another argument of the same op"
    )


def add_crosswise(x: Tensor) -> Tensor:
    y, z = x * 1, x * 2
    torch._foreach_add_([y, z], [z, y])
    return y + 10 * z


def add_twice(x: Tensor) -> Tensor:
    torch._foreach_add_([x, x], 1.0)
    return x


def double(x: Tensor) -> Tensor:
    y = x * 1
    torch._foreach_add_([x, y], [x, y])
    return x + y


@needs_compiler
@pytest.mark.parametrize("fn", [add_crosswise, add_twice, double])
def test_a_list_of_tensors_is_changed_in_order(fn: Callable[[Tensor], Tensor]) -> None:
    fused = Function(fn, always_generate=True)
    assert torch.equal(fused(torch.arange(4.0)), fn(torch.arange(4.0)))
    assert (fused.fallback_reason(torch.arange(4.0)) is None) == (fn is double)


@needs_compiler
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x[::2].add_(x[1::2]), x)[1],
        lambda x: (x.add_(x), x)[1],
        lambda x: (x[0].sub_(x[1]), x)[1],
        lambda x: (x.sub_(x.mean(0)), x)[1],
    ],
)
def test_operands_that_do_not_overlap_in_part_are_left_to_a_plan(fn: Callable[[Tensor], Tensor]) -> None:
    fused = Function(fn, always_generate=True)
    x = torch.arange(8.0).reshape(4, 2)
    assert fused.fallback_reason(x) is None
    torch.testing.assert_close(fused(x.clone()), fn(x.clone()))
