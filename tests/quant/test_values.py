"""quantize and dequantize against numpy and ml_dtypes, on numbers of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt import kernels
from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.ops.quantized import quantize as packing
from tests.quant.numbers_by_numpy import BITS, DTYPES, dequantize, pack, quantize

SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-39, 1e-20, 0.5, -1.5, 2.5, 127.5, 1e4, -3.4e38]


@st.composite
def cases(draw: Any) -> tuple[str, int, np.ndarray, np.ndarray, np.ndarray | None, bool]:
    value = draw(st.sampled_from(sorted(DTYPES)))
    per_byte = 8 // BITS[value]
    level = draw(st.sampled_from(["tensor", "rows", 2, 6, 8]))
    block = level if isinstance(level, int) else 0
    rows = draw(st.integers(0, 4))
    columns = draw(st.integers(0, 13)) * per_byte
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["normal", "constant", "special", "ties", "outlier"]))
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    if kind == "constant":
        x[:] = np.float32(draw(st.sampled_from([0.0, 1.0, -0.3, 1e-40])))
    elif kind == "special":
        x = rng.choice(np.array(SPECIAL, np.float32), (rows, columns))
    elif kind == "ties":
        x = (rng.integers(-40, 40, (rows, columns)) / 4).astype(np.float32)
    elif kind == "outlier" and x.size:
        x.flat[0] = 1e6
    shape = (1, 1) if level == "tensor" else (rows, -(-columns // block) if block else 1)
    scale = rng.choice(np.array([0, 1, 0.5, 0.017, 3.1, 1e-30, 1e-42], np.float32), shape)
    if kind == "ties":
        scale = np.ones(shape, np.float32)
    has_zero = draw(st.booleans()) and "float" not in value
    zero_point = rng.integers(-8, 8, shape).astype(np.int8) if has_zero else None
    narrow = draw(st.booleans()) and "float" not in value
    return value, block, x, scale, zero_point, narrow


def expand(scale: np.ndarray | None, block: int, shape: tuple[int, ...]) -> np.ndarray | None:
    if scale is None:
        return None
    wide = np.repeat(scale, block, 1)[:, : shape[1]] if block else scale
    return np.broadcast_to(wide, shape)


def tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(np.array(array))


@settings(deadline=None)
@given(cases())
def test_against_numpy(case: tuple[str, int, np.ndarray, np.ndarray, np.ndarray | None, bool]) -> None:
    value, block, x, scale, zero_point, narrow = case
    wide, zero = expand(scale, block, x.shape), expand(zero_point, block, x.shape)
    assert wide is not None
    codes = quantize(x, wide, zero, value, narrow)
    expected = codes if value == "int8" else pack(codes, value)
    ours = kernels.quantize(tensor(x), tensor(scale), tensor(zero_point), value, block, narrow)
    if value == "float8_e5m2" or value == "float8_e4m3":  # NaN has several codes
        is_nan = np.isnan(codes.astype(np.float32))
        np.testing.assert_array_equal(packing.decode(ours, value, torch.float32).isnan().numpy(), is_nan)
        np.testing.assert_array_equal(ours.numpy()[~is_nan], expected[~is_nan])
    else:
        np.testing.assert_array_equal(ours.numpy(), expected)
    numbers = dequantize(codes, wide, zero)
    back = kernels.dequantize(ours, tensor(scale), tensor(zero_point), value, block)
    np.testing.assert_array_equal(back.numpy(), numbers)
    columns = max(x.shape[1] - 1, 0)
    if not block or -(-columns // block) == scale.shape[1]:
        part = kernels.dequantize(
            ours, tensor(scale), tensor(zero_point), value, block, columns, torch.float16
        )
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(part.numpy(), numbers[:, :columns].astype(np.float16))


@pytest.mark.parametrize("value", DTYPES)
def test_all_codes_are_packed_and_unpacked(value: str) -> None:
    """Every byte is unpacked into codes and packed into itself; codes stand for ml_dtypes' numbers."""
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    stored = every.view(torch.int8) if value == "int8" else every
    codes = packing.unpack(stored, value)
    assert codes.shape == (16, 16 * 8 // BITS[value])
    assert torch.equal(packing.pack(codes, value), stored)
    raw = codes.contiguous().numpy().view(np.uint8)
    if value == "float4_e2m1":
        expected = raw.view(DTYPES[value]).astype(np.float32)
    else:
        expected = raw.view(DTYPES[value]).astype(np.float32) if "float" in value else codes.numpy()
    np.testing.assert_array_equal(packing.decode(stored, value, torch.float32).numpy(), expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.sampled_from(["int8", "float8_e4m3", "float8_e5m2"]),
)
def test_rows_against_numpy(numbers: list[float], value: str) -> None:
    x = np.array([numbers, [0.0] * len(numbers)], np.float32)
    largest = np.float32({"int8": 127, "float8_e4m3": 448, "float8_e5m2": 57344}[value])
    with np.errstate(all="ignore"):
        expected = np.abs(x).max(1, keepdims=True) / largest
    values, scale = kernels.quantize_rows(torch.from_numpy(x), value)
    np.testing.assert_array_equal(scale.numpy(), expected)
    if np.isfinite(expected).all():
        codes = quantize(x, np.broadcast_to(expected, x.shape), None, value, narrow=True)
        np.testing.assert_array_equal(values.numpy().view(np.uint8), codes.view(np.uint8))


def test_what_is_refused() -> None:
    x, scale = torch.ones(2, 3), torch.ones(2, 1)
    with pytest.raises(InputRuntimeError, match="columns a multiple of 2"):
        kernels.quantize(x, scale, None, "int4")
    with pytest.raises(InputValueError, match="neither zero points nor a narrow range"):
        kernels.quantize(x, scale, torch.zeros(2, 1, dtype=torch.int8), "float8_e4m3")
    with pytest.raises(InputValueError, match="does not know this type"):
        kernels.quantize(x, scale, None, "int5")
    with pytest.raises(InputRuntimeError, match=r"\[2, 2\] for 2 rows of 3 in blocks of 2"):
        kernels.quantize(x, scale, None, "int8", 2)
    with pytest.raises(InputRuntimeError, match=r"expected  torch\.int8"):
        kernels.quantize(x, scale, torch.zeros(2, 1), "int8")
    with pytest.raises(InputRuntimeError, match=r"torch\.uint8 for int4"):
        kernels.dequantize(torch.ones(2, 3, dtype=torch.int8), scale, None, "int4")
    with pytest.raises(InputRuntimeError, match="at most 3 columns"):
        kernels.dequantize(torch.ones(2, 3, dtype=torch.int8), scale, None, "int8", 0, 4)
