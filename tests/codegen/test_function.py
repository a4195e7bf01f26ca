"""`Function` as an object: copies and pickles of fused functions, and of models that hold them."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen import Function, fuse
from burnt.codegen.frontend.trace import InlinedWhenTraced
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.targets import find_target

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def activation(x: Tensor) -> Tensor:
    return torch.tanh(x) * x.sum(-1, keepdim=True)


@fuse
def decorated(x: Tensor) -> Tensor:
    return torch.tanh(x) * x.sum(-1, keepdim=True)


class Holder:
    @fuse
    def method(self, x: Tensor) -> Tensor:
        return x


class Net(torch.nn.Module):
    def __init__(self, fused: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.activation = fused

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.linear(x))
        return result


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved_by_torch(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("make", [pickled, saved_by_torch, copy.deepcopy])
@pytest.mark.parametrize(
    "fused",
    [fuse(activation), decorated, functools.partial(decorated), kernels.softmax],
    ids=lambda f: type(f),
)
def test_a_model_with_a_fused_function_is_copied_after_its_first_call(
    make: Callable[[Any], Any], fused: Callable[..., Any]
) -> None:
    net, x = Net(fused), torch.linspace(-1, 1, 6).view(2, 3)
    net(x).sum().backward()
    other = make(net)
    assert other.linear is not net.linear
    assert torch.equal(other(x), net(x))


def test_a_function_that_a_name_leads_to_is_pickled_by_that_name() -> None:
    for fused in (decorated, Holder.method, kernels.softmax):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(fused, protocol)) is fused
        assert copy.deepcopy(fused) is fused


def test_a_pickled_function_keeps_its_options_and_builds_its_plans_anew() -> None:
    x = torch.ones(2, 3)
    for fused in (fuse(activation, single=True), Function(activation, always_generate=True)):
        fused(x)
        other = pickled(fused)
        assert (other.fn, other.single, other.always_generate) == (activation, fused.single, True)
        assert other.cache_entries() == []
        assert torch.equal(other(x), fused(x))
        assert other.fallback_reason(x) is None


def test_copies_keep_the_target_and_the_bound_tensors_are_their_own() -> None:
    weight = torch.ones(3)
    fused = fuse(functools.partial(torch.mul, weight)).on(find_target("c"))
    other = copy.deepcopy(fused)
    assert other.target == fused.target
    weight.zero_()
    assert other(torch.ones(3)).tolist() == [1.0] * 3


def test_what_no_name_leads_to_is_not_pickled() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"local object|<lambda>"):
        pickle.dumps(fuse(lambda x: x + 1))
    unnamed = InlinedWhenTraced()
    unnamed.__qualname__ = "unnamed"
    with pytest.raises(
        TypeError, match=r"cannot pickle .*: it is not burnt\.codegen\.frontend\.trace\.unnamed"
    ):
        pickle.dumps(unnamed)


ELSEWHERE = torch.zeros(2, dtype=torch.int64, device="meta")


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (
            lambda x: (x.exp() * 2, torch.arange(3, device="meta")),
            "aten.arange.default makes a tensor on meta",
        ),
        (lambda x: (x.exp() * 2)[torch.zeros(2, dtype=torch.int64, device="meta")], "on meta"),
        (lambda x: (x.exp() * 2)[ELSEWHERE], "tensors on cpu and meta"),
    ],
)
def test_tensors_of_another_device_are_left_to_torch(fn: Callable[[Tensor], Any], reason: str) -> None:
    """torch indexes a tensor on a GPU by one on the CPU, whose memory no kernel may read."""
    assert reason in str(Function(fn).fallback_reason(torch.ones(3)))
