"""Quantized ops in Triton, run by the interpreter: every value type, packing, scales, zero points, tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.kernels.ops.quantized import weight_only_triton
from burnt.kernels.ops.quantized.quantize import dequantize, quantize, quantize_rows, quantized_example
from burnt.kernels.ops.quantized.weight_only import quantized_embedding, quantized_linear
from burnt.scheme import VALUES

CPU = torch.device("cpu")


def triton(fn: Callable[..., Any]) -> Function:
    return Function(fn, target=TRITON)


def close(ours: Tensor, theirs: Tensor, exact: Tensor, size: Tensor) -> None:
    """The error is at most 4 times eager torch's, and 4 roundings of the largest intermediate."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    limit = 4 * (theirs.double() - exact).abs().max() + 4 * torch.finfo(ours.dtype).eps * size
    assert (ours.double() - exact).abs().max() <= limit


VECTOR, TILES = {"vector": "4x32 w4 k1"}, {"tiles": "16x32x32 w4 s2"}
LINEAR: list[tuple[Any, ...]] = [
    # rows, terms, columns, value, block, zero, dtype, activation, config
    (1, 130, 7, "int8", 0, False, torch.float32, None, VECTOR),
    (1, 129, 5, "int4", 0, True, torch.bfloat16, "silu", VECTOR),
    (1, 160, 9, "int4", 32, True, torch.float32, "gelu", {"vector": "4x16 w4 k2"}),
    (2, 128, 6, "int2", 16, False, torch.float16, "relu2", VECTOR),
    (1, 96, 6, "float4_e2m1", 32, False, torch.float32, "hardswish", VECTOR),
    (1, 70, 6, "float8_e4m3", 0, False, torch.float32, "relu6", VECTOR),
    (19, 130, 37, "int8", 0, True, torch.float32, "relu", TILES),
    (17, 160, 33, "int4", 16, True, torch.bfloat16, "gelu_tanh", {"tiles": "16x32x64 w4 s2"}),
    (3, 130, 40, "int4", 64, False, torch.float32, None, TILES),
    (20, 128, 36, "int2", 8, True, torch.float32, None, {"tiles": "16x32x32 w4 s2 k3"}),
    (5, 99, 18, "float8_e5m2", 0, False, torch.float16, None, TILES),
    (5, 96, 18, "float4_e2m1", 32, False, torch.bfloat16, None, {"tiles": "16x16x32 w4 s2 k2"}),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("rows", "terms", "columns", "value", "block", "zero", "dtype", "activation", "config"), LINEAR, ids=str
)
def test_linear(
    rows: int, terms: int, columns: int, value: str, block: int, zero: bool, dtype: torch.dtype,
    activation: str | None, config: dict[str, str],
) -> None:  # fmt: skip
    torch.manual_seed(0)
    parts = quantized_example(CPU, columns, terms, value, block, zero)
    x, bias = torch.randn(rows, terms).to(dtype), torch.randn(columns).to(dtype)
    rest = (*parts, bias, activation, value, block)
    ours = weight_only_triton.quantized_linear_triton(x, *rest, config)
    exact = quantized_linear.reference(
        x.double(), parts[0], parts[1].double(), parts[2], bias.double(), activation, value, block
    )
    weight = dequantize.reference(*parts, value, block, terms, torch.float64)
    size = (x.double().abs() @ weight.abs().t()).max()
    close(ours, quantized_linear.reference(x, *rest), exact, size)


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", VALUES)
def test_generated_kernels(value: str) -> None:
    torch.manual_seed(0)
    block = 8 if VALUES[value].bits < 8 else 0
    parts = quantized_example(CPU, 5, 24, value, block)
    plain = value, block, None, torch.float32

    def run(op: Any, *args: Any) -> Any:
        fused = triton(op.reference)
        assert fused.fallback_reason(*args) is None
        return fused(*args), op.reference(*args)

    pairs = [run(dequantize, *parts[:2], None, *plain)]
    pairs.append(run(quantized_embedding, torch.tensor([[4, 0], [1, 1]]), *parts[:2], None, *plain))
    x = torch.randn(5, 24) * 3
    x[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    pairs.append(run(quantize, x, parts[1] + 0.3, None, value, block, False))
    if VALUES[value].bits == 8:
        (values, scale), expected = run(quantize_rows, torch.randn(3, 40), value)
        pairs += [(values, expected[0]), (scale, expected[1])]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_conversions(float8: torch.dtype) -> None:
    from tests.codegen.lower.test_float8 import CODES, around_ties, same_bits

    x = around_ties(float8)
    same_bits(triton(lambda codes: codes.view(float8).float())(CODES), CODES.view(float8).float())
    ours = triton(lambda x: x.to(float8).view(torch.uint8))(x)
    same_bits(ours.view(float8).float(), x.to(float8).float())
