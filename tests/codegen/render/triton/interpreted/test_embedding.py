"""The gradient of an embedding table: equal keys within a chunk, across chunks, and across chunk levels."""

import pytest
import torch

from burnt.kernels.ops.embedding import backward_triton
from burnt.kernels.ops.embedding.backward_triton import sum_rows_by_key


def runs(kind: str, count: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(rows, (count,), generator=generator)
    if kind == "one":
        return torch.full_like(drawn, rows - 1)
    if kind == "half":
        drawn[torch.rand(count, generator=generator) < 0.5] = rows // 2
    return drawn


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("count", "rows", "columns", "kind", "dtype"),
    [
        (1, 1, 1, "one", torch.float32),
        (5, 3, 7, "uniform", torch.float64),
        (8, 40, 3, "uniform", torch.bfloat16),
        (9, 2, 3, "uniform", torch.float32),
        (61, 9, 600, "half", torch.bfloat16),
        (61, 9, 5, "one", torch.float16),
        (131, 300, 2, "uniform", torch.float32),
        (131, 300, 2, "half", torch.float32),
        (128, 5, 1, "one", torch.float32),
    ],
    ids=str,
)
def test_rows_are_added_up_by_key(
    count: int, rows: int, columns: int, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backward_triton, "_PART_LENGTH", 8)  # rounds, without many indices
    indices = runs(kind, count, rows)
    g = torch.randn(count, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    keys, order = torch.sort(indices, stable=True)
    for padding in (-1, rows // 2):
        exact = torch.zeros(rows, columns, dtype=torch.float64).index_add_(0, indices, g.double())
        size = torch.zeros(rows, columns, dtype=torch.float64).index_add_(0, indices, g.double().abs())
        if padding >= 0:
            exact[padding] = 0
        result = sum_rows_by_key(g, keys.int() if padding < 0 else keys, order, rows, padding)
        assert result.dtype == dtype
        # Float32 inside: rounded once to a dtype that has fewer bits.
        inside = max(torch.finfo(dtype).eps, 0.0) * exact.abs()
        along = torch.finfo(torch.promote_types(dtype, torch.float32)).eps * size * 4
        assert bool(((result.double() - exact).abs() <= inside + along).all())


def test_nothing_to_add_up() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert sum_rows_by_key(torch.ones(0, 3), none, none, 2, -1).tolist() == [[0.0] * 3] * 2
    assert sum_rows_by_key(torch.ones(2, 0), torch.tensor([0, 1]), torch.tensor([1, 0]), 2, -1).shape == (
        2,
        0,
    )
