"""Results that share memory with each other, as those of the eager function do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from burnt.codegen import fuse
from burnt.codegen.frontend.overlap import find_aliases
from burnt.codegen.runtime.c_compiler import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")

KEPT = torch.linspace(0, 1, 2)

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "twice the same": lambda x: (y := x * 2, y),
    "a row": lambda x: (y := x * 2, y[0]),
    "a row first": lambda x: ((y := x * 2)[0], y),
    "reshaped and transposed": lambda x: (y := x * 2, y.view(-1), y.t()),
    "expanded": lambda x: ((y := x * 2).expand(3, 4, 2), y),
    "detached": lambda x: ((y := x * 2).detach(), y),
    "in a dict": lambda x: {"a": (y := x.sum(0)), "b": [y, 3, y.view(1, -1)]},
    "of a call": lambda x: (*x.sort(0), x.sort(0).values[0], (y := x.sort(0).values), y[1:]),
    "of an argument that is returned": lambda x: (x, x[0], x * 2),
    "of a captured tensor": lambda x: (KEPT, KEPT, x * 2),
    "changed in place": lambda x: ((y := x * 2).add_(1), y.mul_(3), y[0]),
}


def tensors_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def argument(requires_grad: bool = False) -> Tensor:
    return torch.linspace(-1, 1, 8).view(4, 2).requires_grad_(requires_grad)


@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_change_of_one_result_is_seen_in_the_others_as_in_torch(name: str) -> None:
    fn = FUNCTIONS[name]
    fused = fuse(fn)
    count = len(tensors_of(fn(argument())))
    for changed in range(count):
        expected, results = tensors_of(fn(argument())), tensors_of(fused(argument()))
        for tensors in (expected, results):
            if name != "expanded" or changed:  # torch refuses to change an expanded tensor
                tensors[changed][..., 0].fill_(7)
        assert_close(results, expected)
        same = [[a is b for a, b in itertools.combinations(r, 2)] for r in (results, expected)]
        assert same[0] == same[1]
        KEPT.copy_(torch.linspace(0, 1, 2))
    assert fused.fallback_reason(argument()) is None


@pytest.mark.sample(5)
@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_through_results_that_share_memory(name: str) -> None:
    grads = []
    fused = fuse(FUNCTIONS[name])
    for f in (FUNCTIONS[name], fused):
        x = argument(requires_grad=True)
        results = tensors_of(f(x))
        terms = [(i + 1) * t.square().sum() for i, t in enumerate(results) if t.requires_grad]
        grads.append((torch.autograd.grad(sum(terms), x)[0], [t.requires_grad for t in results]))
    assert_close(grads[1], grads[0])
    assert fused.fallback_reason(argument(requires_grad=True)) is None


@needs_compiler
def test_a_view_that_is_changed_changes_the_gradient_of_its_base() -> None:
    fn = FUNCTIONS["a row"]
    grads = []
    for f in (fn, fuse(fn)):
        x = argument(requires_grad=True)
        base, row = f(x)
        row.mul_(5)
        base.sum().backward()
        grads.append(x.grad)
    assert_close(grads[1], grads[0])
    assert grads[1][0].tolist() == [10.0, 10.0]


@needs_compiler
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (y := x * 2, y.view(torch.int32)),
        lambda x: ((y := x * 2)[:-1], y[1:], y.sum(0)),
        lambda x: (x[:-1], x[1:], x * 2),
    ],
)
def test_results_that_overlap_in_part_are_left_to_torch(fn: Callable[[Tensor], Any]) -> None:
    fused = fuse(fn)
    first, second, *_ = fused(argument())
    second.zero_()
    assert not first[-1].any()
    assert fused.fallback_reason(argument()) == "its results overlap in part, and none is a view of another"


@needs_compiler
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.t(), x, x * 2),
        lambda x: (x[1::2], x, x * 2),
        lambda x: (x[:, 1:], x.t()[2:], x, x * 2),
        lambda x: (x[1:, :-1].expand(2, 3, 2), x * 2, x),
    ],
)
def test_views_of_an_argument_with_gaps(fn: Callable[[Tensor], Any]) -> None:
    fused = fuse(fn)
    found = []
    for f in (fn, fused):
        results = f(torch.arange(48.0).view(8, 6)[::2, ::2])
        results[0 if results[0].numel() == len(results[0].unique()) else -1].add_(100)
        found.append(results)
    assert_close(found[1], found[0])
    assert fused.fallback_reason(torch.arange(48.0).view(8, 6)[::2, ::2]) is None


def test_what_lies_in_the_gaps_of_a_result_is_no_view_of_it() -> None:
    x = torch.zeros(4, 6)
    evens = x[:, ::2]
    for other in (x[:, 1:3], x.view(-1)[2:9], x.as_strided((2, 2), (3, 1))):
        assert find_aliases([evens, other]).unsupported_reason
    flat = torch.zeros(9)
    assert find_aliases([flat.as_strided((2, 2), (3, 0)), flat[:2]]).unsupported_reason
    assert find_aliases([flat[:6].view(2, 3)[:, :2], flat.as_strided((2, 2), (1, 1))]).unsupported_reason


def test_parts_that_lie_apart_are_no_aliases() -> None:
    x = torch.zeros(4, 6)
    assert not find_aliases([*x.chunk(2), *x.new_zeros(4, 6).chunk(3, 1), 3, None]).by_position
    columns = x[:, ::2], x[:, 1::2], x[:, ::2]
    assert list(find_aliases(columns).by_position) == [2]
