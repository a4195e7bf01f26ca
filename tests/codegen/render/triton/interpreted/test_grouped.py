"""`grouped_matmul` in Triton, run by the interpreter: next to a loop of products, in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulConfig
from burnt.kernels.ops import grouped_triton
from burnt.kernels.ops.matmul_gpu import run_launches


def by_loop(a: Tensor, b: Tensor, ends: list[int]) -> Tensor:
    bounds = [0, *ends]
    parts = [
        a[start:end] @ matrix for start, end, matrix in zip(bounds, bounds[1:], b.unbind(0), strict=False)
    ]
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[2])])


CASES: list[tuple[int, int, int, list[int], str]] = [
    # rows, terms, columns, ends, config
    (50, 70, 40, [7, 7, 31], "16x16x32 w4 s2"),  # an empty group, rows after the last end, an unaligned K
    (50, 64, 33, [1, 2, 2, 3, 50], "32x16x16 w4 s2 p3"),  # groups of one row, persistent
    (5, 16, 16, [0, 0], "16x16x16 w4 s2"),  # all rows are after the last end
    (48, 5, 3, [0, 0, 41, 41], "16x16x16 w4 s2 g1 p2"),  # a block of terms that ends inside of a group
    (50, 64, 48, [7, 7, 31], "16x16x32 w4 s2 p3 d"),  # by descriptor, beyond the ends of groups
    (3, 8, 8, [1, 2], "16x32x16 w4 s2 k2"),  # splits are for other products
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("rows", "terms", "columns", "ends", "config"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_are_multiplied_by_the_matrix_of_their_group(
    rows: int, terms: int, columns: int, ends: list[int], config: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    a, matrices = torch.randn(rows, terms).to(dtype), torch.randn(len(ends), terms, columns).to(dtype)
    exact = by_loop(a.double(), matrices.double(), ends)
    limit = 4 * torch.finfo(dtype).eps * by_loop(a.double().abs(), matrices.double().abs(), ends).max()
    for b, kind in ((matrices, torch.int64), (matrices.mT.contiguous().mT, torch.int32)):
        given = a, b, torch.tensor(ends, dtype=kind), MatmulConfig.of(config)
        ours = run_launches(*grouped_triton.rows_launches(*given))
        assert ours.dtype == dtype
        assert (ours.double() - exact).abs().max() <= limit
        assert not ours[ends[-1] :].any()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("rows", "terms", "columns", "ends", "config"), CASES, ids=str)
def test_gradients(rows: int, terms: int, columns: int, ends: list[int], config: str) -> None:
    torch.manual_seed(rows)
    a = torch.randn(rows, terms, requires_grad=True)
    b, grad_out = torch.randn(len(ends), terms, columns, requires_grad=True), torch.randn(rows, columns)
    wide = [t.detach().double().requires_grad_() for t in (a, b)]
    expected = torch.autograd.grad(by_loop(*wide, ends), wide, grad_out.double())
    small = dataclasses.replace(HOPPER, shared_memory=16 << 10)
    for limits in (HOPPER, small):
        *found, nothing = grouped_triton.gradients(grad_out, a, b, torch.tensor(ends), limits)
        assert nothing is None
        for ours, exact in zip(found, expected, strict=True):
            assert ours is not None
            torch.testing.assert_close(ours.double(), exact, atol=1e-4, rtol=1e-5)
    config_of_b = MatmulConfig.of(config)
    ours = run_launches(*grouped_triton.terms_launches(a.detach(), grad_out, torch.tensor(ends), config_of_b))
    torch.testing.assert_close(ours.double(), expected[1], atol=1e-4, rtol=1e-5)
    frozen = grouped_triton.gradients(grad_out, a.detach(), b, torch.tensor(ends), small)
    assert frozen[0] is None


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_operands_that_are_stored_by_columns(transposed: bool) -> None:
    """No descriptor has such a left operand."""
    torch.manual_seed(0)
    a, b, ends = torch.randn(32, 64).t(), torch.randn(3, 32, 16), [20, 20, 50]
    b = b.mT.contiguous().mT if transposed else b
    launches = grouped_triton.rows_launches(a, b, torch.tensor(ends), MatmulConfig.of("16x16x16 w4 s2 p3 d"))
    torch.testing.assert_close(run_launches(*launches), by_loop(a, b, ends), rtol=1e-5, atol=1e-4)


def test_ends_that_are_wrong_reach_no_memory_outside() -> None:
    """A GPU does not check them."""
    a, b = torch.ones(6, 4), torch.ones(3, 4, 4)
    for ends in ([5, 3, 6], [-2, 4, 6], [2, 9, 1 << 20]):
        ours = run_launches(
            *grouped_triton.rows_launches(a, b, torch.tensor(ends), MatmulConfig.of("16x16x16 w4 s2"))
        )
        assert ours.shape == (6, 4)
