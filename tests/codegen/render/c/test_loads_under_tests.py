"""Guarded loads whose values are stored next to each other, which gcc before 14 packs in a wrong order.

Shapes are small and constant: only then does the compiler see which elements are adjacent.
"""

from __future__ import annotations

import itertools
import platform

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain, fuse
from burnt.codegen.render.shape_params import SizeTemplates
from burnt.codegen.runtime import c_backend
from burnt.codegen.runtime.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def twice(x: Tensor) -> Tensor:
    return torch.cat([x, x], 0)


def padded(x: Tensor, before: int = 2, after: int = 3) -> Tensor:
    return F.pad(x, (0, 0, before, after))


def adjacent_stores(x: Tensor) -> tuple[Tensor, ...]:
    """Results with guarded elements, with strided or interleaved loads and stores."""
    return (
        twice(x).reshape(-1).repeat(2).reshape(2, -1),
        twice(x).flip(1).reshape(-1).repeat(3).reshape(3, -1),
        torch.cat([x.roll(1, 1), x], 0).reshape(-1).repeat(5).reshape(5, -1),
        torch.where(twice(x) > 3, twice(x).flip(1), 0).reshape(-1).repeat(6).reshape(6, -1),
        twice(x).reshape(-1)[1::2].repeat_interleave(2),
        padded(x.flip(1)).flip(0).reshape(-1),
        F.pad(x, (1, 2)).repeat_interleave(2, -1),
        torch.stack([padded(x, 3, 0).flip(0), padded(x, 0, 3)], -1).reshape(-1),
    )


SHAPES = list(itertools.product((8, 16, 37), (2, 3, 4)))


def find_wrong(shapes: list[tuple[int, int]], dtype: torch.dtype, patch: pytest.MonkeyPatch) -> list[str]:
    """Return which results differ from eager torch's, and for which shapes."""
    wrong = []
    for rows, columns in shapes:
        x = (torch.arange(rows * columns) % 60 + 1).to(dtype).reshape(rows, columns)
        # With the templates of earlier shapes, sizes would become parameters.
        patch.setattr(c_backend, "size_templates", SizeTemplates())
        fused = fuse(adjacent_stores)
        pairs = zip(fused(x), adjacent_stores(x), strict=True)
        wrong += [f"{i} of {rows}x{columns}" for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
        assert not fused.fallback_reason(x)
    return wrong


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_adjacent_stores(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_wrong([(8, 3), (16, 2)], dtype, monkeypatch) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8], ids=str
)
@pytest.mark.parametrize("words", ["", "-mno-avx512f", "-mprefer-vector-width=256"])
def test_more_adjacent_stores(dtype: torch.dtype, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = find_compiler()
    assert compiler
    if words and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("flags of a compiler for x86")
    monkeypatch.setenv("BURNT_CC", f"{compiler.path} {words}")
    assert find_wrong(SHAPES, dtype, monkeypatch) == []


@pytest.mark.parametrize(
    ("width", "is_vectorized"), [(4, False), (64, True)], ids=["unrolled into another", "vectorized"]
)
def test_which_loops_have_the_statement(width: int, is_vectorized: bool) -> None:
    """A loop of few iterations is unrolled into the outer loop; a SIMD loop with one store is safe."""

    def ends(x: Tensor) -> Tensor:
        return F.pad(x, (width, width, 1, 1)) + 1

    x = torch.arange(16.0 * width).reshape(16, width)
    fused = fuse(ends)
    assert torch.equal(fused(x), ends(x))
    (text,) = explain(fused, x).texts.values()
    body = text[text.index("void ends") :]
    assert " : 0)" in body
    assert ("GUARDED_LOADS;" in body) is not is_vectorized
