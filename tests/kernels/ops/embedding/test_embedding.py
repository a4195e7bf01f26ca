"""Embedding: which candidate serves, and the gradient by sorting, next to sums in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.ops.embedding.embedding import embedding_gradient

pytestmark = pytest.mark.skipif(
    find_compiler() is None, reason="no C compiler works here: the library serves"
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def drawn(kind: str, count: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    indices = torch.randint(rows, (count,), generator=generator)
    if kind == "one":
        return torch.full_like(indices, rows - 1)
    if kind == "half":
        indices[torch.rand(count, generator=generator) < 0.5] = rows // 2
    return indices


def cotangent_of(count: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(1)).to(dtype)


# Parts begin at 64 indices, have more of them from 16,384 on, and 256 columns at a time.
@pytest.mark.parametrize("kind", ["uniform", "half", "one"])
@pytest.mark.parametrize(
    ("count", "rows", "columns"),
    [(1, 1, 1), (7, 11, 3), (64, 2, 5), (65, 300, 257), (193, 1, 256), (997, 5000, 31), (20011, 37, 3)],
)
def test_rows_are_added_up_by_index(count: int, rows: int, columns: int, kind: str) -> None:
    indices = drawn(kind, count, rows)
    for dtype in DTYPES:
        given = cotangent_of(count, columns, dtype)
        exact, size = (
            torch.zeros(rows, columns, dtype=torch.float64).index_add_(0, indices, g)
            for g in (given.double(), given.double().abs())
        )
        for padding in (None, rows // 2, -1):
            right = exact.clone()
            if padding is not None:
                right[padding] = 0
            result = embedding_gradient(given, indices.int() if padding else indices, rows, padding)
            assert result.dtype == dtype
            # Sums are in double and rounded once, by half an ulp.
            tolerance = torch.finfo(dtype).eps / 2 * right.abs() + 1e-13 * size
            assert bool(((result.double() - right).abs() <= tolerance).all()), (dtype, padding)


def test_nothing_is_looked_up_or_there_is_nothing_to_look_up() -> None:
    none = torch.empty(0, 3, dtype=torch.int64)
    assert embedding_gradient(torch.ones(0, 3, 2), none, 4, None).tolist() == [[0.0, 0.0]] * 4
    assert embedding_gradient(torch.ones(0, 3, 2), none, 0, None).shape == (0, 2)
    assert embedding_gradient(torch.ones(5, 0), torch.zeros(5, dtype=torch.int64), 4, None).shape == (4, 0)
    assert embedding_gradient(torch.ones(2), torch.tensor(1), 3, None).tolist() == [[0, 0], [1, 1], [0, 0]]


def test_special_values_and_strides_come_through() -> None:
    nan, inf = float("nan"), float("inf")
    given = torch.tensor([[1.0, inf, nan, 1e-42], [inf, -inf, 1.0, 1e-42], [-2.0, 5.0, inf, 1e-42]])
    indices = torch.tensor([0, 0, 2])
    right = torch.zeros(3, 4).index_add_(0, indices, given)
    for laid_out in (
        given,
        given.t().contiguous().t(),
        given.repeat(2, 2)[:3, ::2].copy_(given[:, [0, 2, 0, 2]]),
    ):
        right = torch.zeros(3, 4).index_add_(0, indices, laid_out)
        assert torch.equal(embedding_gradient(laid_out, indices, 3, None).nan_to_num(7), right.nan_to_num(7))
    one = torch.ones(()).expand(6, 5)
    assert torch.equal(
        embedding_gradient(one, torch.zeros(6, dtype=torch.int64), 1, None), torch.full((1, 5), 6.0)
    )


def test_threads_do_not_change_a_bit() -> None:
    indices, given = drawn("half", 5000, 400), cotangent_of(5000, 33, torch.float32)
    before = torch.get_num_threads()
    result = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            result += [embedding_gradient(given, indices, 400, None) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(m, result[0]) for m in result)


def test_a_row_that_half_of_the_batch_looks_up_is_as_exact_as_the_others() -> None:
    indices, given = drawn("half", 1 << 15, 1000), cotangent_of(1 << 15, 8, torch.bfloat16)
    exact = torch.zeros(1000, 8, dtype=torch.float64).index_add_(0, indices, given.double())
    result = embedding_gradient(given, indices, 1000, None)
    assert bool(((result.double() - exact).abs() <= torch.finfo(torch.bfloat16).eps / 2 * exact.abs()).all())
    theirs = torch.ops.aten.embedding_dense_backward(given, indices, 1000, -1, False)
    assert float((theirs.double() - exact).abs().max()) > 10 * float((result.double() - exact).abs().max())


@pytest.mark.parametrize(
    ("count", "rows", "columns", "dtype", "training", "name"),
    [
        (4096, 32000, 256, torch.float32, False, "generated"),
        (100, 32000, 256, torch.float32, False, "library"),
        (4096, 32000, 256, torch.bfloat16, False, "library"),
        (4096, 32000, 256, torch.float32, True, "library"),
        (4096, 32000, 256, torch.bfloat16, True, "sorted"),
        (4096, 2000, 256, torch.bfloat16, True, "library"),
        (100, 32000, 256, torch.float16, True, "library"),
    ],
)
def test_which_candidate_serves(
    count: int, rows: int, columns: int, dtype: torch.dtype, training: bool, name: str
) -> None:
    weight = torch.empty(rows, columns, dtype=dtype, requires_grad=training)
    with kernels.tuning("off"):
        assert kernels.embedding.chosen(torch.zeros(count, dtype=torch.int64), weight).candidate.name == name


def test_the_sorted_gradient_keeps_nothing_but_the_indices() -> None:
    """The table may change before the gradient is taken, as with torch's own."""
    call = kernels.embedding.candidates["sorted"]
    indices, weight = torch.tensor([[2, 0], [2, 2]]), torch.randn(3, 4, requires_grad=True)
    result = call(indices, weight, 0)
    assert torch.equal(result, weight[indices])
    assert [t.shape for t in result.grad_fn.saved_tensors] == [indices.shape]
    with torch.no_grad():
        weight.zero_()
    (gradient,) = torch.autograd.grad(result.sum(), weight)
    assert gradient.tolist() == [[0.0] * 4, [0.0] * 4, [3.0] * 4]


def test_the_sorted_candidate_says_where_it_makes_no_difference() -> None:
    why_not = kernels.embedding.candidates["sorted"].why_not
    indices, weight = torch.tensor([1]), torch.randn(3, 4)
    assert "no gradient is needed" in str(why_not((indices, weight, None)))
    assert why_not((indices, weight.requires_grad_(), None)) is None
    assert "complex64" in str(why_not((indices, weight.detach().to(torch.complex64).requires_grad_(), None)))
