"""`grouped_matmul`: what `test_families` does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import InputIndexError, InputRuntimeError

A, B, ENDS = torch.ones(5, 4), torch.ones(3, 4, 2), torch.tensor([1, 1, 5])


@pytest.mark.parametrize(
    ("a", "b", "ends", "hint"),
    [
        (A[0], B, ENDS, None),
        (A, B[0], ENDS, None),
        (A, B.mT, ENDS, "weights [groups, n, k] of Linears are passed as weight.mT"),
        (A, B, ENDS[:2], None),
        (A, B, ENDS.float(), None),
        (A, B[:0], ENDS[:0], None),
        (A, B.double(), ENDS, None),
    ],
)
def test_what_does_not_match_is_refused(a: Tensor, b: Tensor, ends: Tensor, hint: str | None) -> None:
    with pytest.raises(InputRuntimeError) as caught:
        kernels.grouped_matmul(a, b, ends)
    assert caught.value.where == "burnt.kernels.grouped_matmul"
    if b.dtype == a.dtype:
        assert caught.value.hint == hint
        assert "ends [groups], int64 or int32" in str(caught.value)


@pytest.mark.parametrize("ends", [[2, 1, 5], [-1, 2, 5], [1, 2, 6]])
def test_ends_out_of_order_are_refused(ends: list[int]) -> None:
    with pytest.raises(InputIndexError, match="from 0 to 5, the number of rows") as caught:
        kernels.grouped_matmul(A, B, torch.tensor(ends))
    assert caught.value.found == ends


@pytest.mark.parametrize(("rows", "groups"), [(0, 3), (4, 1), (0, 1)])
def test_no_rows_and_one_group(rows: int, groups: int) -> None:
    a = torch.randn(rows, 4, requires_grad=True)
    b = torch.randn(groups, 4, 2, requires_grad=True)
    ends = torch.full((groups,), rows)
    output = kernels.grouped_matmul(a, b, ends)
    torch.testing.assert_close(output, a @ b[0])
    grads: Any = torch.autograd.grad(output.sum(), (a, b))
    torch.testing.assert_close(grads[1][0], a.detach().t() @ torch.ones(rows, 2))


def test_the_loop_is_chosen_on_a_cpu_and_large_groups_are_right() -> None:
    a, b = torch.randn(300, 128), torch.randn(3, 64, 128).mT
    ends = torch.tensor([200, 200, 299])
    entry = kernels.grouped_matmul.chosen(a, b, ends)
    assert entry.candidate.name == "loop"
    expected = torch.cat([a[:200] @ b[0], a[200:299] @ b[2], torch.zeros(1, 64)])
    torch.testing.assert_close(kernels.grouped_matmul(a, b, ends), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="torch has no grouped_mm")
def test_torch_s_kernel_has_no_gradient_after_the_last_group() -> None:
    a, b, ends = torch.randn(10, 8, requires_grad=True), torch.randn(3, 8, 8), torch.tensor([2, 2, 7])
    for _ in range(5):  # what is not written is what was in memory
        output = kernels.grouped_matmul.candidates["torch"].call(a, b, ends)
        (gradient,) = torch.autograd.grad(output.sum(), a)
        assert torch.equal(gradient[7:], torch.zeros(3, 8))
        torch.testing.assert_close(gradient[2:7], b[2].sum(1).expand(5, 8))


@pytest.mark.full
def test_compiles_without_reading_the_ends() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(kernels.grouped_matmul, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(A, B, ENDS), kernels.grouped_matmul(A, B, ENDS))
