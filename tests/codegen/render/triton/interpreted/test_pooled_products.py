"""Pooling of a convolution's or matmul's result in the same kernel, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from tests.codegen.render.triton.products import agree, always

pytestmark = pytest.mark.timeout(900)


def block(x: Tensor, w: Tensor, s: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """A convolution, batch norm with fixed statistics, residual, activation and pool."""
    result = F.conv2d(x, w, padding=1) * s[:, None, None] + b[:, None, None] + r
    return F.max_pool2d(result.relu(), 2)


def averages(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.avg_pool2d(F.conv2d(x, w, b, padding=1).tanh(), 2) * 3


def strips(x: Tensor, w: Tensor) -> Tensor:
    """Windows of eight, of which one axis is left as it is."""
    return F.max_pool2d(F.conv2d(x, w, padding=1), (8, 1))


def adaptive(x: Tensor, w: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(F.conv2d(x, w).sigmoid(), (3, 2))


def series(x: Tensor, w: Tensor) -> Tensor:
    return F.max_pool1d(F.conv1d(x, w, padding=2).abs(), 4)


def volumes(x: Tensor, w: Tensor) -> Tensor:
    return F.max_pool3d(F.conv3d(x, w, padding=1), 2)


def features(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Windows of a product's rows, and what is added afterwards."""
    return F.avg_pool1d((a @ b).relu().t(), 2).t() + c


def also_as_it_is(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The product is wanted, too."""
    result = F.conv2d(x, w, padding=1)
    return F.max_pool2d(result.relu(), 2), result


def next_layer(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """What is pooled is multiplied."""
    return F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2), v).relu()


IMAGES = [(2, 16, 8, 12), (32, 16, 3, 3)]
CASES: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], int]] = {
    "block": (block, [*IMAGES, (32,), (32,), (2, 32, 8, 12)], 1),
    "averages": (averages, [*IMAGES, (32,)], 1),
    "strips": (strips, IMAGES, 1),
    "adaptive": (adaptive, [(2, 16, 6, 8), (17, 16, 1, 1)], 1),
    "series": (series, [(3, 16, 24), (20, 16, 5)], 1),
    "volumes": (volumes, [(1, 16, 4, 4, 6), (16, 16, 3, 3, 3)], 1),
    "features": (features, [(50, 24), (24, 33), (25, 33)], 1),
    "also as it is": (also_as_it_is, IMAGES, 2),
    "next layer": (next_layer, [*IMAGES, (16, 32, 1, 1)], 2),
}


def arguments(name: str, dtype: torch.dtype) -> list[Tensor]:
    source = torch.Generator().manual_seed(5)
    result = [torch.randn(s, generator=source) / max(s[-1], 9) ** 0.5 for s in CASES[name][1]]
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    return [t.to(dtype, memory_format=forms.get(t.dim(), torch.contiguous_format)) for t in result]


@pytest.mark.sample(1, full=10)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(d, marks=pytest.mark.full) for d in (torch.bfloat16, torch.float16))],
    ids=str,
)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: torch.dtype) -> None:
    agree(name, CASES[name][0], arguments(name, dtype), always(), gradients=False)


@pytest.mark.sample(keep=("series",))
@pytest.mark.parametrize("name", ["block", "averages", "series"])
def test_gradients(name: str) -> None:
    agree(name, CASES[name][0], arguments(name, torch.float32), always())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_pooling_is_fused(name: str) -> None:
    fn, _, kernels = CASES[name]
    shown = explain(Function(fn, target=always()), *arguments(name, torch.float32), timed=False)
    kinds = [step.kind for step in shown.steps]
    assert len(kinds) == kernels, kinds
    assert "group_rows(" in shown.source(shown.steps[0].name)


@pytest.mark.sample(0, full=4)
@pytest.mark.parametrize(
    "text",
    ["16x16x16 w4 s2", "64x32x16 w4 s2 k2", "128x16x32 w4 s2", "64x16x16 w4 s2 p3", "128x256x16 w4 s2 d"],
)
@pytest.mark.parametrize("name", ["block", "strips"])
def test_block_sizes(name: str, text: str) -> None:
    """Tiles of one pooling window and of many, some beyond the end of the matmul."""
    target = always(MatmulConfig.of(text))
    agree(name, CASES[name][0], arguments(name, torch.float32), target, gradients=False)


def test_nan_propagates() -> None:
    x, w = arguments("strips", torch.float32)
    x[0, 3, 2, 5] = float("nan")
    ours, theirs = (fn(x, w) for fn in (Function(strips, target=always()), strips))
    assert theirs.isnan().any()
    assert not theirs.isnan().all()
    assert torch.equal(ours.isnan(), theirs.isnan())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "pool",
    [
        lambda t: F.max_pool2d(t, 3, 2, 1),  # windows overlap
        lambda t: F.max_pool2d(t, 3),  # are not a power of two
        lambda t: F.max_pool2d(t, 2, padding=1),  # begin outside
        lambda t: F.avg_pool2d(t[:, :, :7], 2),  # leave a row over
    ],
)
def test_unsupported_pooling_is_not_fused(pool: Callable[[Tensor], Tensor]) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return pool(F.conv2d(x, w, padding=1).relu())

    args = arguments("strips", torch.float32)
    agree("other", fn, args, always(), gradients=False)
    shown = explain(Function(fn, target=always()), *args, timed=False)
    assert not any("group_rows(" in shown.source(step.name) for step in shown.steps)
