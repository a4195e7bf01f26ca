"""Scales of weights against numpy, and by their errors."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnt import kernels
from burnt.errors import ConfigError
from burnt.quant.ranges import default_method, weight_range
from burnt.scheme import QuantScheme

SCALES = itertools.cycle(("float32", "float16", "bfloat16", "float32"))
NAMES = [
    f"{value}-{level}{zero}-{next(SCALES)}"
    for value, level, zero in itertools.product(
        ("int8", "int4", "int2", "fp8", "e5m2", "fp4"),
        ("tensor", "channel", "block12"),
        ("", "-asymmetric", "-narrow"),
    )
    if not zero or value.startswith("int")
]


def groups_of(matrix: np.ndarray, scheme: QuantScheme) -> np.ndarray:
    if scheme.level == "tensor":
        return matrix.reshape(1, -1)
    if scheme.block is None:
        return matrix
    padded = np.zeros((len(matrix), scheme.padded_columns(matrix.shape[1])), matrix.dtype)
    padded[:, : matrix.shape[1]] = matrix
    return padded.reshape(-1, scheme.block)


def squared_error(matrix: Tensor, scheme: QuantScheme, method: Any) -> Tensor:
    """Return the squared error of each row, or of the matrix."""
    scale, zero_point = weight_range(matrix, scheme, method)
    padded = torch.nn.functional.pad(matrix, (0, scheme.padded_columns(matrix.shape[1]) - matrix.shape[1]))
    block = scheme.block or 0
    values = kernels.quantize(padded, scale, zero_point, scheme.value, block, scheme.narrow)
    back = kernels.dequantize(values, scale, zero_point, scheme.value, block, matrix.shape[1])
    errors = (back - matrix).double().square()
    return errors.sum() if scheme.level == "tensor" else errors.sum(1)


def matrix_of(kind: str, columns: int = 19) -> Tensor:
    matrix = torch.randn(7, columns) * 0.1
    if kind == "outlier":
        matrix[2, 3] = 50.0
    elif kind == "positive":
        matrix = matrix.abs() + 0.5
    elif kind == "constant":
        matrix.fill_(-0.3)
    elif kind == "zeros":
        matrix[1:4] = 0
    return matrix


@pytest.mark.parametrize("name", NAMES)
def test_minmax_covers_all_values(name: str) -> None:
    scheme = QuantScheme.parse(name)
    for kind in ("normal", "outlier", "positive", "zeros"):
        matrix = matrix_of(kind)
        groups = groups_of(matrix.numpy(), scheme)
        scale, zero_point = weight_range(matrix, scheme, "minmax")
        dtype: torch.dtype = getattr(torch, scheme.scale)
        assert scale.dtype == dtype
        assert scale.shape == scheme.scale_shape(*matrix.shape)
        if scheme.symmetric:
            assert zero_point is None
            expected = np.abs(groups).max(1) / np.float32((scheme.largest - scheme.smallest) / 2)
            if scheme.value.startswith("float8") and scheme.scale == "float16":
                expected = np.where(expected > 0, np.maximum(expected, np.float32(2**-14)), expected)
        else:
            low, high = groups.min(1).clip(max=0), groups.max(1).clip(min=0)
            expected = (high - low) / np.float32(scheme.largest - scheme.smallest)
            rounded = torch.from_numpy(expected).to(dtype).float().numpy()
            zero = np.rint(scheme.smallest - low / np.where(rounded == 0, 1, rounded))
            assert zero_point is not None
            assert zero_point.dtype == torch.int8
            np.testing.assert_array_equal(
                zero_point.flatten().numpy(), zero.clip(scheme.smallest, scheme.largest)
            )
        assert torch.equal(scale.flatten(), torch.from_numpy(expected).to(dtype))


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", NAMES)
def test_mse_is_never_worse_than_minmax(name: str) -> None:
    scheme = QuantScheme.parse(name)
    for kind in ("normal", "outlier", "positive", "constant", "zeros"):
        matrix = matrix_of(kind)
        least, plain = (squared_error(matrix, scheme, method) for method in ("mse", "minmax"))
        assert bool((least <= plain * (1 + 1e-6) + 1e-12).all()), kind


@pytest.mark.parametrize("name", ["int4-channel", "int2-block16-float32", "int4-channel-narrow"])
def test_mse_is_near_the_best_of_a_fine_search(name: str) -> None:
    scheme = QuantScheme.parse(name)
    matrix = torch.randn(5, 64)
    groups = groups_of(matrix.numpy(), scheme).astype(np.float64)
    best = np.full(len(groups), np.inf)
    for factor in np.linspace(0.3, 1.2, 900):
        scale = np.abs(groups).max(1, keepdims=True) * factor / scheme.largest
        codes = np.clip(np.rint(groups / scale), scheme.smallest, scheme.largest)
        best = np.minimum(best, ((codes * scale - groups) ** 2).sum(1))
    assert float(squared_error(matrix, scheme, "mse").sum()) <= 1.03 * best.sum()


@settings(deadline=None, max_examples=20)  # the first call of an op compiles
@given(st.integers(1, 40), st.sampled_from(["", "-asymmetric"]))
def test_percentile_and_absmean(columns: int, zero: str) -> None:
    matrix = torch.randn(3, columns)
    scheme = QuantScheme.parse(f"int8{zero}")
    scale, _ = weight_range(matrix, scheme, "percentile")
    ordered = np.sort(np.abs(matrix.numpy()), 1)
    if not zero:
        place = max(1, min(columns, round(0.999 * columns))) - 1
        np.testing.assert_array_equal(scale.flatten().numpy(), ordered[:, place] / np.float32(127.5))
        mean, _ = weight_range(matrix, scheme, "absmean")
        np.testing.assert_allclose(mean.flatten().numpy(), np.abs(matrix.numpy()).mean(1), rtol=1e-6)


def test_percentile_leaves_out_outliers() -> None:
    matrix = torch.linspace(-1, 1, 4000)[None].clone()
    matrix[0, 7] = 100.0
    for name, span in (("int8", 127.5), ("int8-asymmetric", 255)):
        scale, _ = weight_range(matrix, QuantScheme.parse(name), "percentile")
        assert 0.99 < float(scale) * span / (1 if name == "int8" else 2) < 1.01


def test_default_methods_and_unknown_ones() -> None:
    for name, method in (("int8", "minmax"), ("fp8", "minmax"), ("int4", "mse"), ("fp4", "mse")):
        assert default_method(QuantScheme.parse(name)) == method
    with pytest.raises(ConfigError, match="did you mean 'minmax'"):
        weight_range(torch.ones(2, 2), QuantScheme(), "minmx")  # type: ignore[arg-type]


@pytest.mark.full
def test_large_tables_take_seconds() -> None:
    """50,000 x 768 in int4 blocks take 0.6 s on one thread; the bound leaves room for a busy machine."""
    start = time.perf_counter()
    weight_range(torch.randn(50_000, 768), QuantScheme.parse("int4-block32"))
    assert time.perf_counter() - start < 20
