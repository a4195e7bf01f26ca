"""Matmuls with computed operands and epilogues, run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen import explain
from burnt.codegen.function import Function
from burnt.codegen.precision import multiplying
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.compare import Verdict, compare
from tests.codegen.philox_reference import Drawn
from tests.codegen.render.triton.products import agree, always, runs_alike

pytestmark = pytest.mark.timeout(900)


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def both(product: Tensor) -> tuple[Tensor, ...]:
    return product.relu(), product.t() + 1, product.sum(0)


def heads_of(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, w[0]), F.linear(x, w[1]), F.linear(x, w[2])


A, B, C = (37, 50), (50, 70), (70, 16)
CASES: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], list[str], list[str] | None]] = {
    "plain": (lambda a, b: a @ b, [A, B], ["matmul"], ["matmul", "matmul"]),
    "bias and gelu": (
        lambda x, w, b: gelu(F.linear(x, w, b)),
        [(4, 16, 48), (33, 48), (33,)],
        ["matmul"],
        ["elementwise", "matmul", "matmul", "reduction"],
    ),
    "residual": (lambda a, b, r: torch.relu(a @ b) + r, [A, B, (37, 70)], ["matmul"], None),
    "batches": (
        lambda a, b: (a @ b.transpose(1, 2)) * 0.5,
        [(3, 20, 32), (3, 17, 32)],
        ["matmul"],
        ["matmul", "matmul"],
    ),
    "heads": (
        lambda q, k: q.view(2, 20, 4, 16).transpose(1, 2) @ k.view(2, 20, 4, 16).permute(0, 2, 3, 1),
        [(2, 20, 64), (2, 20, 64)],
        ["matmul"],
        None,
    ),
    "columns first": (lambda a, b: torch.tanh(a.t() @ b.t()), [(50, 37), (70, 50)], ["matmul"], None),
    "one after another": (
        lambda a, b, c: torch.relu(a @ b) @ c, [A, B, C], ["matmul", "matmul"], ["matmul"] * 4
    ),
    "of which one is a factor of the other's element": (
        lambda x, a, b: F.silu(x @ a) * (x @ b), [A, B, B], ["matmul", "matmul"], None
    ),
    "read by a row's folds": (
        lambda a, b: torch.softmax(a @ b, -1),
        [A, B],
        ["matmul", "reduction"],
        ["reduction", "matmul", "matmul"],
    ),
    "read in three ways": (lambda a, b: both(a @ b), [A, B], ["matmul", "reduction"], None),
    "and its transpose": (
        lambda a, b: (a @ b) + (a @ b).t(), [(37, 50), (50, 37)], ["matmul", "matmul"], None
    ),
    "and itself turned around": (
        lambda a, b: (lambda p: p + p.t())(a @ b), [(37, 50), (50, 37)], ["matmul", "elementwise"], None
    ),
    "a factor computed on the way": (
        lambda a, b, s: (a * s.relu()) @ b, [A, B, (50,)], ["matmul"], None
    ),
    "a factor that is a result": (
        lambda a, b: (lambda x: (x, x @ b))(a.relu()), [A, B], ["elementwise", "matmul"], None
    ),
    "a factor that is one beyond its edge": (lambda a, b: (1 - a) @ (b + 1), [A, B], ["matmul"], None),
    "a factor that is dear": (lambda a, b: torch.exp(a) @ b, [A, B], ["elementwise", "matmul"], None),
    "a factor that is folded": (
        lambda a, b: F.rms_norm(a, (50,)) @ b, [A, B], ["reduction", "matmul"], None
    ),
    "a factor that is normalised": (
        lambda a, w, c, b: torch.relu(F.layer_norm(a, (48,), w, c) @ b), [(4, 9, 48), (48,), (48,), (48, 33)],
        ["reduction", "matmul"], None
    ),
    "a factor that is normalised for three": (
        lambda a, w, b: heads_of(F.rms_norm(a, (48,), w), b), [(4, 9, 48), (48,), (3, 33, 48)],
        ["reduction", "matmul", "matmul", "matmul"], None
    ),
    "a factor that is normalised and padded": (
        lambda a, b: F.pad(F.rms_norm(a, (50,)), (0, 0, 2, 3)) @ b, [A, B],
        ["reduction", "elementwise", "matmul"], None
    ),
    "both factors are weighted by their rows": (
        lambda a, b: F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t(), [A, (70, 50)],
        ["reduction", "reduction", "matmul"], None
    ),
    "a padded factor": (lambda a, b: F.pad(a, (0, 2, 3, 0)) @ b, [A, (52, 70)], ["matmul"], None),
    "an expanded factor": (
        lambda a, b: a.expand(50, 50) @ b, [(1, 50), B], ["matmul"], None
    ),
    "weighted": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(70,), A, B], ["matmul"], None
    ),
    "a number": (lambda a, b: (a @ b) * 0.3 + 1, [A, B], ["matmul"], None),
    "einsum": (
        lambda x, w: torch.einsum("bsd,nd->bsn", x, w), [(4, 8, 32), (64, 32)], ["matmul"], None
    ),
    "too thin": (lambda a, b: a @ b, [(37, 50), (50, 7)], ["library"], None),
}  # fmt: skip


def late(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """The last result reads what is made for the second, after the product's kernel."""
    product, rows = a @ b, c.sum(1)
    return product.relu(), c - rows.flip(0).unsqueeze(1), product + rows.unsqueeze(1)


CASES["read again next to what is made later"] = (
    late, [A, B, (37, 70)], ["matmul", "reduction", "elementwise"], None
)  # fmt: skip


def check(name: str, dtype: torch.dtype, target: Target, *, gradients: bool = True) -> None:
    fn, shapes, *_ = CASES[name]
    source = torch.Generator().manual_seed(7)
    args = [(torch.randn(s, generator=source) / s[-1] ** 0.5).to(dtype) for s in shapes]
    agree(name, fn, args, target, gradients=gradients)


@pytest.mark.sample(3, full=30)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, always())


@pytest.mark.sample(4, full=12)
@pytest.mark.parametrize("name", CASES)
def test_which_functions_are_one_kernel(name: str) -> None:
    fn, shapes, forward, backward = CASES[name]
    args = [torch.randn(s, requires_grad=True) for s in shapes]
    shown = explain(Function(fn, target=always()), *args, timed=False)
    with torch.no_grad():
        alone = explain(Function(fn, target=always()), *args, timed=False)
    assert [s.kind for s in alone.steps] == forward
    if backward is not None:
        assert shown.backward is not None
        assert [s.kind for s in shown.backward.steps] == backward


def test_an_operand_that_is_a_result_is_read_back() -> None:
    fn, shapes, *_ = CASES["a factor that is a result"]
    shown = explain(Function(fn, target=always()), *(torch.randn(s) for s in shapes), timed=False)
    assert ["relu" in shown.source(step.name) for step in shown.steps] == [True, False]


@pytest.mark.sample
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "statistics"),
    [
        ("a factor that is folded", 1),
        ("a factor that is normalised", 2),
        ("a factor that is normalised for three", 1),
    ],
)
def test_norms_are_fused_into_operands(name: str, statistics: int, dtype: torch.dtype) -> None:
    """Only a statistic per row goes through memory."""
    fn, shapes, *_ = CASES[name]
    args = [torch.randn(s).to(dtype) for s in shapes]
    shown = explain(Function(fn, target=always()), *args, timed=False)
    first = shown.source(shown.steps[0].name)
    stores = [line for line in first.splitlines() if "tl.store" in line]
    assert len(stores) == statistics
    assert all(line.endswith("mask=in_row)") or "mask=in_i0)" in line for line in stores), first


@pytest.mark.sample(2, full=12)
@pytest.mark.parametrize(
    "text",
    [
        "16x32x16 w4 s2",
        "32x16x64 w4 s3 k3",
        "64x64x16 w4 s1 k2",
        "128x256x16 w8 s3",
        "16x16x16 w4 s2 p3",
        "32x16x32 w4 s2 k2 p5",
        "32x64x16 w4 s2 d",
        "16x32x32 w4 s2 k2 p3 d",
    ],
)
@pytest.mark.parametrize("name", ["bias and gelu", "batches", "read in three ways", "a padded factor"])
def test_block_sizes(name: str, text: str) -> None:
    """Tiles beyond the edges, split-K, and epilogues of parts of a tile."""
    check(name, torch.float32, always(MatmulConfig.of(text)), gradients=False)


@pytest.mark.full
@pytest.mark.parametrize("text", ["16x32x16 w4 s2 k3", "32x16x16 w4 s2 k2 p3"])
def test_split_k_order_is_fixed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, shapes, *_ = CASES["bias and gelu"]
    args = [torch.randn(s, generator=torch.Generator().manual_seed(7)) for s in shapes]
    runs_alike(fn, args, always(MatmulConfig.of(text)), monkeypatch)


COPIED: dict[str, tuple[Callable[..., Tensor], Sequence[tuple[int, ...]], int]] = {
    "rows and columns": (lambda a, b: torch.relu(a @ b) + 1, [(37, 56), (56, 72)], 2),
    "turned": (lambda a, b: torch.relu(a.t() @ b.t()), [(56, 40), (72, 56)], 2),
    "a part of a tensor": (lambda a, b: a[3:, 16:48] @ b[8:40] * 2, [(40, 64), (64, 24)], 2),
    "batches": (lambda a, b: (a @ b.transpose(1, 2)) * 0.5, [(3, 20, 32), (3, 17, 32)], 2),
    "heads": (
        lambda q, k: q.view(2, 20, 4, 16).transpose(1, 2) @ k.view(2, 24, 4, 16).permute(0, 2, 3, 1) + 1,
        [(2, 20, 64), (2, 24, 64)],
        2,
    ),
    "one for all batches": (lambda a, b: torch.relu(a @ b.expand(3, 32, 24)), [(3, 20, 32), (32, 24)], 2),
    "one that is computed": (lambda a, b: (a * 2) @ b, [(37, 56), (56, 72)], 1),
    "rows of odd lengths": (lambda a, b: torch.relu(a @ b), [(37, 50), (50, 72)], 1),
    "columns apart": (lambda a, b: torch.relu(a[:, ::2] @ b), [(37, 64), (32, 72)], 1),
}


@pytest.mark.sample(3, full=18)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("text", ["32x16x32 w4 s2 d", "16x32x16 w4 s2 k2 p3 d"])
@pytest.mark.parametrize("name", COPIED)
def test_tma_operands(name: str, text: str, dtype: torch.dtype) -> None:
    """Tiles beyond the edges; operands in every layout that a descriptor can address, and others."""
    fn, shapes, many = COPIED[name]
    target = always(MatmulConfig.of(text))
    source = torch.Generator().manual_seed(7)
    args = [(torch.randn(s, generator=source) / s[-1] ** 0.5).to(dtype) for s in shapes]
    agree(name, fn, args, target, gradients=False)
    with torch.no_grad():
        shown = explain(Function(fn, target=target), *args, timed=False)
    (step,) = (s for s in shown.steps if s.kind == "matmul")
    assert shown.source(step.name).count("make_tensor_descriptor") == many


def test_unaligned_operands_use_pointers() -> None:
    """Descriptors need addresses that are multiples of 16 bytes; others are read through pointers."""
    source = torch.Generator().manual_seed(7)
    held = torch.randn(33 * 64, generator=source)
    target = always(MatmulConfig.of("32x16x32 w4 s2 d"))
    fused = Function(lambda a, b: torch.relu(a @ b), target=target)
    b = torch.randn(64, 32, generator=source)
    for start in (0, 1, 4, 0):  # in elements
        a = held[start : start + 32 * 64].view(32, 64)
        assert (a.data_ptr() % 16 == 0) == (start != 1)
        torch.testing.assert_close(fused(a, b), torch.relu(a @ b))


def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnt.codegen.render.triton import matmul as triton_matmul

    monkeypatch.setattr(triton_matmul, "INT32_INDEX_LIMIT", 10)
    check("bias and gelu", torch.float32, always(MatmulConfig.of("16x32x16 w4 s2 k2")), gradients=False)


@pytest.mark.parametrize(
    ("name", "loss"), [("ieee", 1e-6), ("tf32x3", 1e-6), ("tf32", 1e-2), ("flex32", 2e-2)]
)
def test_precision(name: str, loss: float) -> None:
    a, b = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(3))
    function = Function(lambda a, b: (a @ b).relu(), target=always())
    function(a, b)
    with multiplying(name):
        result = function(a, b)
        text = "\n".join(explain(function, a, b, timed=False).texts.values())
    assert f'"{name}"' in text
    off = (result.double() - (a.double() @ b.double()).relu()).abs().max() / 64**0.5
    assert off < loss
    assert (off > 1e-5) == (name == "flex32"), "the interpreter multiplies float32 as it is"


def test_when_the_library_is_called() -> None:
    """By default a matmul is a kernel if something is fused into it and the device has matrix units."""
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    for fn, kinds, why in (
        (lambda a, b: a @ b, ["library"], "nothing to fuse with it"),
        (lambda a, b: (a @ b.t()).view(8, -1), ["view", "library", "view"], "nothing to fuse with it"),
        (lambda a, b: (a @ b).relu(), ["matmul"], ""),
        (lambda a, b: (a * 2) @ b, ["matmul"], ""),
        (lambda a, b: (a.float() @ b.float()).relu(), ["elementwise"] * 2 + ["library", "elementwise"],
         "float32 is multiplied without tensor cores unless burnt.kernels.set_precision allows them"),
    ):  # fmt: skip
        steps = explain(Function(fn, target=TRITON), a, b, timed=False).steps
        assert [s.kind for s in steps] == kinds
        assert why in next(s.why for s in steps if s.kind in ("library", "matmul"))


def dropped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.dropout(F.linear(x, w, b), 0.3)


@pytest.mark.full
@pytest.mark.sample(1, full=4)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("text", ["16x32x16 w4 s2", "32x16x16 w4 s2 k2", "16x16x16 w4 s2 p3"])
def test_dropout_of_a_matmul(text: str, dtype: torch.dtype) -> None:
    """One kernel, whose mask depends on the seed alone, not on the tiles; also in the backward."""
    source = torch.Generator().manual_seed(7)
    args = [(torch.randn(s, generator=source) / s[-1] ** 0.5).to(dtype) for s in ((37, 50), (33, 50), (33,))]
    fused = Function(dropped, target=always(MatmulConfig.of(text)))
    with torch.no_grad():
        assert [s.kind for s in explain(fused, *args, timed=False).steps] == ["matmul"]
    torch.manual_seed(5)
    drawn = Drawn(int(torch.empty(1, dtype=torch.int64).random_()))

    def run(fn: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = [a.to(dtype).requires_grad_() for a in args]
        result = fn(*given)
        pull = (torch.arange(result.numel()) % 7 - 2.5).div(4).view(result.shape).to(dtype)
        return [result.detach(), *torch.autograd.grad(result, given, pull)]

    torch.manual_seed(5)
    ours = run(fused, dtype)
    with drawn:
        eager = run(dropped, dtype)
    with drawn.again():
        exact = run(dropped, torch.float64)
    assert torch.equal(ours[0] == 0, exact[0] == 0)
    assert 0.25 < float((ours[0] == 0).float().mean()) < 0.35
    for i, (found, theirs, right) in enumerate(zip(ours, eager, exact, strict=True)):
        slack = 4 * torch.finfo(dtype).eps * max(float(right.abs().max()), 1.0)
        compare(f"dropout {i}", found, theirs, right, [], slack, Verdict())


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bias and gelu", torch.float32),
        *(
            (name, dtype)
            for name in ("plain", "batches", "read in three ways")
            for dtype in (torch.float32, torch.bfloat16)
        ),
    ],
)
def test_split_k_is_deterministic(name: str, dtype: torch.dtype) -> None:
    """The parts are added in order: no bit depends on which program finishes first."""
    fn, shapes, *_ = CASES[name]
    source = torch.Generator().manual_seed(7)
    args = [torch.randn(s, generator=source).to(dtype).requires_grad_() for s in shapes]
    runs = []
    for _ in range(2):
        function = Function(fn, target=always(MatmulConfig.of("32x32x16 w4 s2 k3")))
        result = function(*args)
        result = result if isinstance(result, tuple) else (result,)
        grads = torch.autograd.grad([m.float().sin().sum() for m in result], args)
        runs.append([*result, *grads])
        texts = explain(function, *args, timed=False).texts.values()
        assert any("_part0" in text for text in texts)
        assert not any("atomic" in text for text in texts)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
