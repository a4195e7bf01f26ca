"""Generated kernels with 64-bit indices, as for tensors of 2^31 elements, compute the same results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen.render.triton import expr as triton_expr
from burnt.codegen.render.triton import layout as triton_layout
from burnt.codegen.render.triton import matmul as triton_matmul
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import select_config
from burnt.codegen.render.triton.tile_config import TileConfig
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from tests.codegen.render.triton.products import agree, always


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


ELEMENTWISE: dict[str, tuple[Callable[..., Any], list[Tensor], bool]] = {
    "gelu": (lambda x: F.gelu(x), [drawn(37, 53)], True),
    "transposed": (lambda x, y: x.t() + y, [drawn(33, 20), drawn(20, 33)], False),
    "softmax": (lambda x: torch.softmax(x, -1), [drawn(5, 700)], True),
    "norm": (lambda x, w: F.layer_norm(x, (300,), w), [drawn(7, 300), drawn(300)], True),
    "columns": (lambda x: x.var(0), [drawn(300, 20)], True),
    "argmax": (lambda x: x.argmax(-1).to(x.dtype), [drawn(5, 700)], False),
    "argmax of all": (lambda x: x.argmax().to(x.dtype), [drawn(70, 70)], False),
    "cummax": (lambda x: torch.cummax(x, -1)[1].to(x.dtype), [drawn(4, 300)], False),
    "cumsum": (lambda x: x.cumsum(0), [drawn(300, 6)], True),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2, 1), [drawn(2, 3, 9, 11)], True),
}
PRODUCTS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [drawn(37, 70), drawn(45, 70), drawn(45)]),
    "batches": (lambda q, k: torch.tanh(q @ k.mT), [drawn(3, 20, 33), drawn(3, 41, 33)]),
    "convolution": (
        lambda x, w: torch.relu(F.conv2d(x, w, padding=1)), [drawn(2, 8, 9, 7), drawn(12, 8, 3, 3)]
    ),
    "pooled": (
        lambda x, w: F.max_pool2d(torch.relu(F.conv2d(x, w, padding=1)), 2),
        [drawn(2, 8, 8, 8), drawn(12, 8, 3, 3)],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every index count as beyond int32."""
    for module in (triton_layout, triton_expr, triton_matmul):
        monkeypatch.setattr(module, "INT32_INDEX_LIMIT", -1)


@pytest.mark.sample(2, full=10)
@pytest.mark.parametrize("blocks", [None, TileConfig(2, 64), TileConfig(1, 32, chunks=4)], ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_and_reductions(name: str, blocks: TileConfig | None) -> None:
    fn, args, gradients = ELEMENTWISE[name]
    choose = select_config if blocks is None else lambda form: blocks
    target = dataclasses.replace(TRITON, build=functools.partial(build, choose=choose))
    agree(name, fn, args, target, gradients=gradients)


@pytest.mark.sample(2, full=6)
@pytest.mark.parametrize("change", [{}, {"split": 2}, {"programs": 2}, {"descriptors": True}], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_matmuls(name: str, change: dict[str, Any]) -> None:
    fn, args = PRODUCTS[name]
    config = dataclasses.replace(MatmulConfig(32, 32, 16, 4, 2), **change)
    agree(name, fn, args, always(config))
