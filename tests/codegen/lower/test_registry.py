"""Custom lowerings: registering them, the operations of `pointwise`, and lowerings that fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.codegen.lower import LOWERINGS, pointwise, register_lowering
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import DefinitionError

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


@torch.library.custom_op("burnt_tests::word", mutates_args=())
def word(x: Tensor, dtype: torch.dtype) -> Tensor:
    """An op without a lowering."""
    return torch.zeros_like(x, dtype=dtype)


word.register_fake(lambda x, dtype: torch.zeros_like(x, dtype=dtype))


@pytest.fixture
def op() -> Iterator[Any]:
    yield torch.ops.burnt_tests.word
    LOWERINGS.pop(torch.ops.burnt_tests.word.default, None)


@needs_compiler
def test_a_lowering_is_used_from_then_on(op: Any) -> None:
    x = torch.randn(5, 7)

    def fn(x: Tensor) -> Tensor:
        return torch.ops.burnt_tests.word(x, torch.float32) + 1

    before = burnt.fuse(fn)
    assert torch.equal(before(x), torch.ones(5, 7))
    assert "library" in {step.kind for step in burnt.explain(fn, x, timed=False).steps}
    register_lowering(op.default)(lambda meta, x, dtype: pointwise("mul", meta, [x, x], meta.dtype))
    assert [step.kind for step in burnt.explain(fn, x, timed=False).steps] == ["elementwise"]
    torch.testing.assert_close(burnt.fuse(fn)(x), x * x + 1)
    assert torch.equal(before(x), torch.ones(5, 7)), "a function that has its plan keeps it"


def test_all_overloads_at_once_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"aten\.deg2rad, which has several overloads") as error:
        register_lowering(torch.ops.aten.deg2rad)
    assert "torch.ops.aten.deg2rad.default" in str(error.value.hint)
    assert torch.ops.aten.deg2rad not in LOWERINGS


@needs_compiler
def test_a_lowering_that_raises_is_named(op: Any) -> None:
    @register_lowering(op.default)
    def of_mine(meta: Tensor, x: Any, dtype: torch.dtype) -> Any:
        raise KeyError("kaboom")

    fused = burnt.fuse(lambda x: torch.ops.burnt_tests.word(x, torch.float32) + 1)
    with pytest.warns(
        RuntimeWarning, match=r"the lowering of burnt_tests.word.default raises KeyError"
    ) as seen:
        assert torch.equal(fused(torch.ones(3)), torch.ones(3))
    assert "test_registry" in str(seen[0].message)
    assert "of_mine" in str(seen[0].message)


@pytest.mark.parametrize("given", [("aten.i0",), (torch.i0,), (), (lambda meta, x: x,)])
def test_what_is_no_op_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(DefinitionError, match="register_lowering\\(\\) takes op overloads"):
        register_lowering(*given)


@needs_compiler
@pytest.mark.parametrize(
    ("lowering", "message"),
    [
        (lambda meta, x, dtype: None, "returns another shape or dtype than the op"),
        (lambda meta, x, dtype: 3.0, "returns another shape or dtype than the op"),
        (lambda meta, x, dtype: meta, "returns another shape or dtype than the op"),
        (lambda meta, x, dtype: pointwise("lt", meta.bool(), [x, 0], torch.float32), "torch.bool"),
        (lambda meta, x, dtype: pointwise("neg", meta[:1], [x], meta.dtype), r"\(1,\) of torch.float32"),
        (lambda meta, x, dtype: pointwise("expp", meta, [x], meta.dtype), "did you mean 'exp'"),
        (lambda meta, x, dtype: pointwise("add", meta, [x], meta.dtype), "wrong number of inputs for 'add'"),
    ],
)
def test_a_lowering_that_returns_something_else_is_named(op: Any, lowering: Any, message: str) -> None:
    register_lowering(op.default)(lowering)
    fused = burnt.fuse(lambda x: torch.ops.burnt_tests.word(x, torch.float32) + 1)
    with pytest.warns(RuntimeWarning, match=message) as seen:
        assert torch.equal(fused(torch.ones(3)), torch.ones(3))
    assert "burnt_tests.word" in str(seen[0].message) or "pointwise" in str(seen[0].message)


WORDS = [
    word for words in re.findall(r"``([a-z0-9_ \n]+)``", str(pointwise.__doc__)) for word in words.split()
]
INTEGERS = {"and", "or", "xor", "not"}
TESTS = {"eq", "ne", "lt", "le", "gt", "ge"}
OF_TWO = TESTS | {
    "add", "sub", "mul", "div", "maximum", "minimum", "and", "or", "xor", "atan2", "copysign", "fmax", "fmin",
    "fmod", "pow",
}  # fmt: skip


@pytest.mark.sample(1)
@needs_compiler
@pytest.mark.parametrize("target", ["c", "triton", "metal"])
def test_every_target_has_the_operations_in_the_docstring(op: Any, target: str) -> None:
    assert len(WORDS) > 50
    lowered: list[str] = []

    @register_lowering(op.default)
    def lower(meta: Tensor, x: Any, dtype: torch.dtype) -> Any:
        lowered.append(WORDS[len(lowered)])
        return pointwise(lowered[-1], meta, [x, x] if lowered[-1] in OF_TWO else [x], x.dtype)

    for first in range(0, len(WORDS), 12):  # a kernel for Metal has some 30 tensors
        words = WORDS[first : first + 12]
        inputs = [torch.ones(5, dtype=torch.int32 if w in INTEGERS else torch.float32) for w in words]
        are_tests = tuple(word in TESTS for word in words)

        def results(*inputs: Tensor, are_tests: tuple[bool, ...] = are_tests) -> list[Tensor]:
            dtypes = [torch.bool if test else x.dtype for x, test in zip(inputs, are_tests, strict=True)]
            return [torch.ops.burnt_tests.word(*each) for each in zip(inputs, dtypes, strict=True)]

        explanation = burnt.explain(results, *inputs, timed=False, target=target)
        assert explanation.fallback_reason is None, (words, explanation.fallback_reason)
        assert {step.kind for step in explanation.steps} == {"elementwise"}
    assert lowered == WORDS
