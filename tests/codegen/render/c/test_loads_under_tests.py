"""Loads under tests whose neighbours are stored together, which gcc before 14 packs in a wrong order.

Shapes are small, and known to the compiler: only then does it see which elements are neighbours.
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
from burnt.codegen.runtime import targets
from burnt.codegen.runtime.c_compiler import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def twice(x: Tensor) -> Tensor:
    return torch.cat([x, x], 0)


def padded(x: Tensor, before: int = 2, after: int = 3) -> Tensor:
    return F.pad(x, (0, 0, before, after))


def neighbours(x: Tensor) -> tuple[Tensor, ...]:
    """Elements that are there or not, read and stored every second to fourth."""
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


def wrong(shapes: list[tuple[int, int]], dtype: torch.dtype, patch: pytest.MonkeyPatch) -> list[str]:
    """Which results differ from eager torch's, of which shape."""
    found = []
    for rows, columns in shapes:
        x = (torch.arange(rows * columns) % 60 + 1).to(dtype).reshape(rows, columns)
        patch.setattr(
            targets, "_forms", SizeTemplates()
        )  # a form that is met again has parameters for its sizes
        fused = fuse(neighbours)
        pairs = zip(fused(x), neighbours(x), strict=True)
        found += [f"{i} of {rows}x{columns}" for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
        assert not fused.fallback_reason(x)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_neighbours(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong([(8, 3), (16, 2)], dtype, monkeypatch) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8], ids=str
)
@pytest.mark.parametrize("words", ["", "-mno-avx512f", "-mprefer-vector-width=256"])
def test_more_neighbours(dtype: torch.dtype, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = find_compiler()
    assert compiler
    if words and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("flags of a compiler for x86")
    monkeypatch.setenv("BURNT_CC", f"{compiler.path} {words}")
    assert wrong(SHAPES, dtype, monkeypatch) == []


@pytest.mark.parametrize(
    ("width", "by_vectors"), [(4, False), (64, True)], ids=["unrolled within another", "of vectors"]
)
def test_which_loops_have_the_statement(width: int, by_vectors: bool) -> None:
    """A loop of few turns becomes part of the loop around it; one of vectors with one store is safe."""

    def ends(x: Tensor) -> Tensor:
        return F.pad(x, (width, width, 1, 1)) + 1

    x = torch.arange(16.0 * width).reshape(16, width)
    fused = fuse(ends)
    assert torch.equal(fused(x), ends(x))
    (text,) = explain(fused, x).texts.values()
    body = text[text.index("void ends") :]
    assert " : 0)" in body
    assert ("LOADS_UNDER_TESTS;" in body) is not by_vectors
