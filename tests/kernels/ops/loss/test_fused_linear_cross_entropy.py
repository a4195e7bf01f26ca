"""`linear_cross_entropy` by chunks: many of them, used twice, without gradients, and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from burnt.kernels import cross_entropy, linear_cross_entropy
from burnt.kernels.ops.loss import fused_linear_cross_entropy

ROOT = Path(__file__).parents[4]
CHUNKED = linear_cross_entropy.candidates["chunked"]


def given(rows: int = 150, width: int = 12, classes: int = 40) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(rows, width, generator=source, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(classes, width, generator=source, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(classes, generator=source, dtype=torch.float64, requires_grad=True)
    target = torch.randint(classes, (rows,), generator=source)
    target[::7] = 3
    return x, weight, target, bias


def chunked(*args: Tensor, reduction: str = "mean", smoothing: float = 0.0) -> Tensor:
    result: Tensor = CHUNKED(*args, 3, reduction, smoothing, 0.0, False)
    return result


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear_cross_entropy, "_CHUNK_BYTES", {"cpu": 1 << 12})
    monkeypatch.setattr(fused_linear_cross_entropy, "_MIN_ROWS", 8)
    monkeypatch.setattr(fused_linear_cross_entropy, "_PART_BYTES", 1 << 9)  # eight classes


@pytest.mark.sample
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_chunks(reduction: str, smoothing: float, processor: str) -> None:
    x, weight, target, bias = args = given()
    wanted = [x, weight, bias]
    expected = F.cross_entropy(
        x @ weight.t() + bias, target, ignore_index=3, reduction=reduction, label_smoothing=smoothing
    )
    found = chunked(*args, reduction=reduction, smoothing=smoothing)
    torch.testing.assert_close(found, expected)
    pull = (
        torch.linspace(-1, 2, 150, dtype=torch.float64) if reduction == "none" else torch.tensor(0.7).double()
    )
    for ours, right in zip(
        torch.autograd.grad(found, wanted, pull), torch.autograd.grad(expected, wanted, pull), strict=True
    ):
        torch.testing.assert_close(ours, right)


def test_gradients_are_multiplied_where_that_is_fast(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By MKL where they belong, or by `matmul`, which takes oneDNN where MKL is slow, and copied."""
    shapes = set()

    def noted(left: Tensor, right: Tensor) -> Tensor:
        result = left @ right
        shapes.add((result.shape[1], result.dtype))
        return result

    monkeypatch.setattr(fused_linear_cross_entropy, "matmul", noted)
    x, weight, target, _ = given()
    for dtype in (torch.float64, torch.float32):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight)]
        torch.autograd.grad(CHUNKED(*leaves, target, None, 3, "mean", 0.0, 0.0, False), leaves)
        # Gradients have 12 features; logits fewer classes.
        assert ((12, dtype) in shapes) == (processor == "AMD AVX-512"), shapes


def test_the_loss_is_used_twice_and_the_graph_is_gone_through_twice() -> None:
    x, weight, target, bias = args = given()
    loss = chunked(*args)
    expected = F.cross_entropy(x @ weight.t() + bias, target, ignore_index=3)
    total, right = loss * 2 + loss**2, expected * 2 + expected**2
    wanted = [x, weight, bias]
    first = torch.autograd.grad(total, wanted, retain_graph=True)
    again = torch.autograd.grad(total, wanted)
    for one, two, exact in zip(first, again, torch.autograd.grad(right, wanted), strict=True):
        torch.testing.assert_close(one, exact)
        torch.testing.assert_close(two, exact)


def test_gradients_for_some_of_the_arguments() -> None:
    x, weight, target, bias = given()
    loss = chunked(x.detach(), weight, target, bias.detach())
    (found,) = torch.autograd.grad(loss, [weight])
    expected = F.cross_entropy(x @ weight.t() + bias, target, ignore_index=3)
    torch.testing.assert_close(found, torch.autograd.grad(expected, [weight])[0])


def test_without_gradients_none_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_linear_cross_entropy, "partial_gradient", None)
    x, weight, target, bias = given()
    with torch.no_grad():
        loss = chunked(x, weight, target, bias)
    torch.testing.assert_close(loss, F.cross_entropy(x @ weight.t() + bias, target, ignore_index=3).detach())


def test_no_row_counts() -> None:
    x, weight, _, bias = given()
    target = torch.full((150,), 3)
    assert chunked(x, weight, target, bias).isnan(), "as torch has it"
    assert chunked(x, weight, target, bias, reduction="sum") == 0


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_are_zeros_where_no_row_counts(reduction: str, dtype: torch.dtype) -> None:
    """Whoever computes them, and whatever the loss is scaled by, as torch has it."""
    x, weight, bias, logits = (torch.randn(*size).to(dtype) for size in ((20, 8), (30, 8), (30,), (20, 30)))
    target = torch.full((20,), -100)
    rest = -100, reduction, 0.1, 1e-2
    for op, tensors, args in (
        (linear_cross_entropy, [x, weight, bias], lambda x, w, bias: (x, w, target, bias, *rest, False)),
        (cross_entropy, [logits], lambda logits: (logits, target, None, *rest)),
    ):
        for call in (op, *op.candidates.values()):
            for factor in (1.0, 65536.0):
                leaves = [t.clone().requires_grad_() for t in tensors]
                if call is not op and call.why_not(args(*leaves)) is not None:
                    continue
                loss = call(*args(*leaves))
                assert loss.isnan() if reduction == "mean" else loss == 0
                (loss * factor).backward()
                assert all(t.grad is not None and t.grad.eq(0).all() for t in leaves), call


@pytest.mark.full
def test_16_bit_gradients_are_summed_in_32() -> None:
    """Of many chunks, each rounded: the error is that of one product."""
    x, weight, target, bias = (t.detach() for t in given(rows=4000))
    args = [x.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_(), target, bias.bfloat16()]
    exact = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in args]
    (right,) = torch.autograd.grad(
        F.cross_entropy(exact[0] @ exact[1].t() + exact[3], target, ignore_index=3, reduction="sum"), exact[1]
    )
    (ours,) = torch.autograd.grad(chunked(*args, reduction="sum"), args[1])
    (theirs,) = torch.autograd.grad(
        F.cross_entropy(F.linear(args[0], args[1], args[3]).float(), target, ignore_index=3, reduction="sum"),
        args[1],
    )
    assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max()


PEAK = """
import ctypes, sys, torch
from pathlib import Path
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from burnt.kernels import linear_cross_entropy
import burnt
burnt.memory.disable()
torch.set_num_threads(1)
rows, width, classes = 1024, 64, 32000
x, weight = torch.randn(rows, width, requires_grad=True), torch.randn(classes, width, requires_grad=True)
target = torch.randint(classes, (rows,))
def memory(what):
    text = Path("/proc/self/status").read_text()
    return int(text.split(what + ":")[1].split()[0])
def run(fn, *args):
    fn(*args).backward()
way = linear_cross_entropy.candidates[sys.argv[1]]
rest = None, -100, "mean", 0.0, 0.0, False
run(way, x, weight, target, *rest)  # what is imported, traced and compiled does not count
x.grad = weight.grad = None
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
before = memory("VmRSS")
run(way, x, weight, target, *rest)
print(memory("VmHWM") - before)
"""


NEEDS_PROC = pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak of a process's memory")


def peak_in_logits(candidate: str) -> float:
    """The peak memory of a forward and backward beyond its gradients, as a multiple of all logits."""
    # What is freed goes back to the system at once: how the heap is cut up does not count.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    command = [sys.executable, "-c", PEAK, candidate]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    gradients = 4 * (1024 * 64 + 32000 * 64)
    logits = 4 * 1024 * 32000
    return ((int(done.stdout) << 10) - gradients) / logits


@NEEDS_PROC
def test_the_logits_are_never_there_as_a_whole() -> None:
    assert peak_in_logits("chunked") < 0.3


@pytest.mark.full
@NEEDS_PROC
def test_what_is_measured_sees_the_logits_of_the_library() -> None:
    assert peak_in_logits("library") > 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_logits_that_are_not_finite(reduction: str) -> None:
    """Parts that are -inf as a whole, next to others that are not; rows that are; NaN and inf."""
    x, weight, target, bias = (t.detach() for t in given(rows=40, classes=60))
    bias[8:24] = -torch.inf
    target[:] = 30
    x[3:6] = torch.tensor([torch.nan, torch.inf, 1e300], dtype=torch.float64).unsqueeze(1)
    target[4::10] = 9  # impossible
    x, bias = x.requires_grad_(), bias.requires_grad_()
    found = chunked(x, weight, target, bias, reduction=reduction)
    expected = F.cross_entropy(x @ weight.t() + bias, target, ignore_index=3, reduction=reduction)
    torch.testing.assert_close(found, expected, equal_nan=True)
    pull = torch.ones_like(found)
    for ours, right in zip(
        torch.autograd.grad(found, [x, bias], pull),
        torch.autograd.grad(expected, [x, bias], pull),
        strict=True,
    ):
        torch.testing.assert_close(ours, right, equal_nan=True)


@pytest.mark.full
def test_scaled_losses_in_float16() -> None:
    """As a gradient scaler wants it: what is small next to the number of rows is not lost before that."""
    source = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(n, 16, generator=source).half() for n in (512, 2000))
    target = torch.randint(2000, (512,), generator=source)

    def gradients(run: Any, *given: Tensor) -> tuple[Tensor, ...]:
        given = tuple(t.detach().requires_grad_() for t in given)
        return torch.autograd.grad(run(*given).float() * 65536, given)

    found = gradients(lambda x, w: CHUNKED(x, w, target, None, -100, "mean", 0.0, 0.0, True), x, weight)
    exact = gradients(lambda x, w: F.cross_entropy(x @ w.t(), target), x.double(), weight.double())
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype == torch.float16
        assert (ours.double() - right).norm() <= 2e-3 * right.norm()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_labels_of_uint8_are_counted_as_int64(reduction: str) -> None:
    x, weight, _, bias = given(classes=200)
    target = torch.randint(200, (150,), generator=torch.Generator().manual_seed(2))
    target[::5] = 156  # in uint8 it equals the ignore_index -100
    expected = F.cross_entropy(x @ weight.t() + bias, target, reduction=reduction)
    for candidate in linear_cross_entropy.candidates.values():
        found = candidate(x, weight, target.to(torch.uint8), bias, -100, reduction, 0.0, 0.0, False)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("into", "operand", "product", "sum_"),
    [
        (torch.float32, torch.bfloat16, "mm.dtype_out", "addmm.dtype_out"),  # the gradient of the weight
        (torch.bfloat16, torch.bfloat16, "mm.out", "addmm.out"),  # of x
    ],
    ids=str,
)
def test_a_gpu_adds_products_without_temporaries(
    into: torch.dtype, operand: torch.dtype, product: str, sum_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_linear_cross_entropy, "_writes_in_place", lambda into, operand: True)
    left, right = (torch.empty(*shape, dtype=operand, device="meta") for shape in ((8, 5), (5, 3)))
    total = torch.empty(8, 3, dtype=into, device="meta")
    calls: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(func).removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    with Calls():
        fused_linear_cross_entropy._matmul_into(total, left, right, adds=False)
        fused_linear_cross_entropy._matmul_into(total, left, right, adds=True)
    assert calls == [product, sum_]
