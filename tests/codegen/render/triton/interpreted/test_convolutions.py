"""Convolutions as matmuls that read through windows, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.render.triton.products import agree, always, runs_alike

pytestmark = pytest.mark.timeout(900)


class Case(NamedTuple):
    fn: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    forward: list[str]
    backward: list[str]


def folded(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor, r: Tensor) -> Tensor:
    """A convolution with folded batch norm in a residual block."""
    by_channel = (t.view(-1, 1, 1) for t in (scale, bias))
    return torch.relu(F.conv2d(x, w, padding=1) * next(by_channel) + next(by_channel) + r)


X, W = (2, 16, 9, 7), (24, 16, 3, 3)
ONE, TWO = ["matmul"], ["matmul"] * 2
CASES = {
    "1d": Case(lambda x, w, b: F.conv1d(x, w, b, padding=2), [(3, 16, 30), (17, 16, 5), (17,)], ONE,
               [*TWO, "reduction"]),
    "2d": Case(lambda x, w: F.conv2d(x, w, padding=1), [X, W], ONE, TWO),
    "3d": Case(
        lambda x, w: F.conv3d(x, w, padding=1, stride=(1, 2, 1)), [(1, 16, 4, 6, 6), (17, 16, 3, 3, 3)],
        ONE, TWO,
    ),
    "1x1": Case(lambda x, w: F.conv2d(x, w), [X, (24, 16, 1, 1)], ONE, TWO),
    "a stride that divides the size": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(2, 16, 8, 6), W], ONE, TWO
    ),
    "a stride that does not": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), [X, W], ONE, ["matmul", "elementwise", "matmul"]
    ),
    "a stride beyond the kernel": Case(
        lambda x, w: F.conv2d(x, w, stride=3), [(3, 16, 9, 6), (24, 16, 1, 1)], ONE, TWO
    ),
    "dilation": Case(lambda x, w: F.conv2d(x, w, padding=2, dilation=2), [X, W], ONE, TWO),
    "dilation and stride": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=3, dilation=3), [(2, 16, 12, 10), W], ONE, TWO
    ),
    "dilation and stride with a common divisor": Case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=2, dilation=2), [(2, 16, 12, 10), W], ONE, ["library"]
    ),
    "groups": Case(
        lambda x, w: F.conv2d(x, w, groups=2, padding=1), [(2, 32, 9, 7), (48, 16, 3, 3)], ONE, TWO
    ),
    "small groups": Case(
        lambda x, w: F.conv2d(x, w, groups=4, padding=1), [(2, 32, 5, 4), (32, 8, 3, 3)],
        ["library"], ["library"],
    ),
    "depthwise": Case(
        lambda x, w, b: F.conv2d(x, w, b, groups=20, padding=1, stride=2),
        [(2, 20, 9, 8), (20, 1, 3, 3), (20,)],
        ["elementwise"], ["elementwise", "reduction", "reduction"],
    ),
    "depthwise of several outputs": Case(
        lambda x, w: F.conv2d(x, w, groups=5, padding=2), [(2, 5, 6, 8), (10, 1, 5, 5)],
        ["elementwise"], ["library"],
    ),
    "depthwise of a large kernel": Case(
        lambda x, w: F.conv2d(x, w, groups=5, padding=4), [(2, 5, 9, 8), (5, 1, 9, 9)],
        ["reduction"], ["reduction", "reduction"],
    ),
    "depthwise twice": Case(
        lambda x, w, v: F.conv2d(F.conv2d(x, w, groups=5, padding=1), v, groups=5, padding=1),
        [(2, 5, 6, 8), (5, 1, 3, 3), (5, 1, 3, 3)],
        ["elementwise"] * 2, ["elementwise", "elementwise", "reduction", "reduction"],
    ),
    "unbatched": Case(lambda x, w: F.conv2d(x, w, padding=1), [X[1:], W], ONE, TWO),
    "residual block": Case(
        folded, [X, W, (24,), (24,), (2, 24, 9, 7)], ONE, ["elementwise", *TWO, "reduction"]
    ),
    "gelu of patches": Case(
        lambda x, w, b: F.gelu(F.conv2d(x, w, b, stride=4)), [(2, 3, 16, 16), (32, 3, 4, 4), (32,)],
        ONE, ["elementwise", "library"],
    ),
    "an input that is computed on the way": Case(
        lambda x, w, s: F.conv2d((x * s.view(-1, 1, 1)).relu(), w, padding=1), [X, W, (16,)],
        ["elementwise", "matmul"], ["elementwise", "matmul", "matmul", "reduction"],
    ),
    "an input that is computed once": Case(
        lambda x, w, s: F.conv2d((x * s.view(-1, 1, 1)).relu(), w), [X, (24, 16, 1, 1), (16,)], ONE,
        ["matmul", "matmul", "reduction"],
    ),
    "a gradient that is computed for two": Case(
        lambda x, w: F.conv2d(x, w).relu(), [X, (24, 16, 1, 1)], ONE, ["elementwise", *TWO],
    ),
    "a padded input": Case(
        lambda x, w: F.conv2d(F.pad(x, (1, 0, 2, 1)), w), [X, W], ONE, ["matmul", "elementwise", "matmul"],
    ),
    "an expensive input": Case(
        lambda x, w: F.conv2d(F.silu(x), w, padding=1), [X, W], ["elementwise", "matmul"],
        ["elementwise", *TWO],
    ),
    "pooled": Case(
        lambda x, w: F.avg_pool2d(F.conv2d(x, w, padding=1).relu(), 2), [(2, 16, 8, 6), W],
        ONE, ["elementwise", *TWO],
    ),
    "transposed": Case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1).relu(),
        [(2, 16, 5, 6), (16, 18, 3, 3), (18,)], ONE, ["elementwise", *TWO, "reduction"],
    ),
    "transposed in groups": Case(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2), [(2, 32, 5, 6), (32, 18, 4, 4)],
        ONE, TWO,
    ),
    "transposed, of other sizes than its stride": Case(
        lambda x, w: F.conv_transpose1d(x, w, stride=3, dilation=2), [(3, 16, 7), (16, 20, 4)],
        ["matmul", "elementwise"], TWO,
    ),
    "transposed in volumes": Case(
        lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 2)), [(1, 16, 3, 4, 4), (16, 16, 2, 2, 2)],
        ONE, TWO,
    ),
}  # fmt: skip


def check(
    name: str, dtype: torch.dtype, target: Target, *, last: bool = False, gradients: bool = True
) -> None:
    source = torch.Generator().manual_seed(7)
    args = [torch.randn(s, generator=source).div(max(s[-1], 3)).to(dtype) for s in CASES[name].shapes]
    if last:
        args = [a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in args]
    agree(name, CASES[name].fn, args, target, gradients=gradients)


OFTEN = (
    "2d",
    "a stride that divides the size",
    "depthwise",
    "residual block",
    "an expensive input",
    "pooled",
    "transposed in groups",
)


def often(names: Iterable[str]) -> list[Any]:
    return [n if n in OFTEN else pytest.param(n, marks=pytest.mark.full) for n in names]


@pytest.mark.sample(keep=("depthwise",), full=12)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    check(name, torch.float32, always())


@pytest.mark.sample(0, full=7)
@pytest.mark.full
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if len(case.shapes[0]) == 4])
def test_channels_last(name: str) -> None:
    check(name, torch.float32, always(), last=True)


@pytest.mark.full
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("name", ["2d", "groups", "depthwise", "residual block", "transposed"])
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, always(), last=True)


@pytest.mark.full
@pytest.mark.sample(1, full=10)
@pytest.mark.parametrize("name", often(CASES))
def test_which_functions_are_one_kernel(name: str) -> None:
    fn, shapes, forward, backward = CASES[name]
    args = [torch.randn(s, requires_grad=True) for s in shapes]
    shown = explain(Function(fn, target=always()), *args, timed=False)
    with torch.no_grad():
        alone = explain(Function(fn, target=always()), *args, timed=False)
    assert shown.backward is not None
    assert ([s.kind for s in alone.steps], [s.kind for s in shown.backward.steps]) == (forward, backward)


@pytest.mark.full
@pytest.mark.parametrize("text", ["16x32x16 w4 s2", "32x16x64 w4 s3 k3", "128x256x16 w8 s3"])
@pytest.mark.parametrize(
    "name", ["a stride that divides the size", pytest.param("residual block", marks=pytest.mark.full)]
)
def test_block_sizes(name: str, text: str) -> None:
    check(name, torch.float32, always(MatmulConfig.of(text)), last=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("2d", "64x64x16 w4 s2 k2", marks=pytest.mark.full),
        ("depthwise", None),
        pytest.param("2d", None, marks=pytest.mark.full),
        pytest.param("2d", "16x32x16 w4 s2 k3", marks=pytest.mark.full),
    ],
)
def test_weight_gradient_is_deterministic(
    name: str, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [torch.randn(s, generator=torch.Generator().manual_seed(7)) for s in CASES[name].shapes]
    target = always(None if text is None else MatmulConfig.of(text))
    runs_alike(CASES[name].fn, args, target, monkeypatch)


@pytest.mark.full
def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnt.codegen.render.triton import matmul as triton_matmul

    monkeypatch.setattr(triton_matmul, "INT32_INDEX_LIMIT", 10)
    check("residual block", torch.float32, always(MatmulConfig.of("16x32x16 w4 s2 k2")), gradients=False)


def test_when_the_library_is_called() -> None:
    """By default it is a kernel where channels lie side by side and something is computed next to."""
    x, w = torch.randn(X).bfloat16(), torch.randn(W).bfloat16()
    last = x.to(memory_format=torch.channels_last)
    for fn, given, why in (
        (lambda x, w: F.conv2d(x, w).relu(), last, ""),
        (lambda x, w: F.conv2d(x, w), last, "nothing to fuse with it"),
        (lambda x, w: F.conv2d(x, w).relu(), x, "input is not channels-last"),
        (lambda x, w: F.conv2d(x.float(), w.float()).relu(), last, "without tensor cores"),
    ):  # fmt: skip
        steps = explain(Function(fn, target=TRITON), given, w, timed=False).steps
        (found,) = (s for s in steps if s.kind in ("library", "matmul"))
        assert (found.kind, why in found.why) == ("library" if why else "matmul", True)
