"""Quantized ops in Triton, run by the interpreter: every value type, packing, scales, zero points, tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.kernels.ops.matmul_gpu import run_launches
from burnt.kernels.ops.quantized import scaled_triton, weight_only_triton
from burnt.kernels.ops.quantized.quantize import (
    FLOAT8,
    dequantize,
    quantize,
    quantize_rows,
    quantize_tensor,
    quantized_example,
)
from burnt.kernels.ops.quantized.scaled import ConvCall, LinearCall, scaled_conv, scaled_linear
from burnt.kernels.ops.quantized.weight_only import LinearArguments, quantized_embedding, quantized_linear
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


VECTOR, TILES = {"vector": "4x32 w4"}, {"tiles": "16x32x32 w4 s2"}
LINEAR: list[tuple[Any, ...]] = [
    # rows, terms, columns, value, block, zero, dtype, activation, config
    (1, 130, 7, "int8", 0, False, torch.float32, None, VECTOR),
    (1, 129, 5, "int4", 0, True, torch.bfloat16, "silu", VECTOR),
    (1, 160, 9, "int4", 32, True, torch.float32, "gelu", {"vector": "4x16 w4 c2"}),
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


@pytest.mark.sample(2)
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
    ours = run_launches(*weight_only_triton.launches(LinearArguments(x, *rest), config))
    exact = quantized_linear.reference(
        x.double(), parts[0], parts[1].double(), parts[2], bias.double(), activation, value, block
    )
    weight = dequantize.reference(*parts, value, block, terms, torch.float64)
    size = (x.double().abs() @ weight.abs().t()).max()
    close(ours, quantized_linear.reference(x, *rest), exact, size)


def codes(*shape: int, value: str = "int8", seed: int = 0) -> Tensor:
    """Codes of 8 bits, the extreme ones among them; of float8 none that is NaN or infinite."""
    source = torch.Generator().manual_seed(seed)
    if value == "int8":
        return torch.randint(-128, 128, shape, generator=source, dtype=torch.int8)
    return torch.randn(shape, generator=source).to(FLOAT8[value]).view(torch.uint8)


def equal(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def multiplied(arguments: tuple[Any, ...], config: str, float8: bool = False) -> Tensor:
    call = LinearCall(*arguments)
    return run_launches(*scaled_triton.linear_launches(call, MatmulConfig.of(config), float8=float8))


SCALED: list[tuple[Any, ...]] = [
    # rows, terms, columns, rows of x_scale, columns of scale, zero point, config
    (5, 70, 9, 5, 9, None, "16x16x32 w4 s2"),
    (33, 64, 40, 1, 40, 3, "16x32x64 w4 s2"),
    (3, 200, 17, 1, 1, -128, "16x16x32 w4 s2 k3"),
    (1, 33, 1, 1, 1, None, "16x16x32 w4 s2"),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("rows", "terms", "columns", "row_scales", "scales", "zero", "config"), SCALED)
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, "quantized", "zero point"], ids=str)
def test_scaled_linear_int8(
    rows: int, terms: int, columns: int, row_scales: int, scales: int, zero: int | None, config: str, out: Any
) -> None:
    """Equal to the reference to the bit: integers are added exactly, and then the operations are the same."""
    torch.manual_seed(rows)
    x_zero = None if zero is None else torch.tensor(zero, dtype=torch.int8)
    x_scale, scale = torch.rand(row_scales, 1) * 0.02, torch.rand(scales, 1) * 0.02
    out_scale = torch.tensor(0.11) if isinstance(out, str) else None
    out_zero = torch.tensor(-7, dtype=torch.int8) if out == "zero point" else None
    dtype = out if out_scale is None else torch.float32
    arguments = (
        codes(rows, terms, seed=1), codes(columns, terms, seed=2), x_scale, scale, x_zero,
        torch.randn(columns), "relu", out_scale, out_zero, "int8", dtype,
    )  # fmt: skip
    ours = multiplied(arguments, config)
    equal(ours, scaled_linear.reference(*arguments))


def test_the_largest_sums_of_integers_are_exact() -> None:
    x, values = torch.full((2, 8192), -128, dtype=torch.int8), torch.full((3, 8192), -128, dtype=torch.int8)
    x[0, 5], one = -127, torch.ones(1, 1)
    arguments = (x, values, one, one, None, None, None, None, None, "int8", torch.float32)
    ours = run_launches(
        *scaled_triton.linear_launches(LinearCall(*arguments), MatmulConfig.of("16x16x128 w4 s2"))
    )
    assert ours[:, 0].tolist() == [8192 * 128 * 128 - 128, 8192 * 128 * 128]


@pytest.mark.sample(2)
@pytest.mark.parametrize("value", FLOAT8)
@pytest.mark.parametrize("float8", [True, False], ids=["float8 units", "as float16"])
@pytest.mark.parametrize("config", ["16x16x32 w4 s2", "16x16x32 w4 s2 k2"])
def test_scaled_linear_float8(value: str, float8: bool, config: str) -> None:
    x, values, bias = codes(19, 90, value=value), codes(21, 90, value=value, seed=1), torch.randn(21)
    x_scale, scale = torch.rand(19, 1), torch.rand(21, 1)
    arguments = (x, values, x_scale, scale, None, bias, "gelu", None, None, value, torch.float32)
    ours = run_launches(
        *scaled_triton.linear_launches(LinearCall(*arguments), MatmulConfig.of(config), float8=float8)
    )
    theirs = scaled_linear.reference(*arguments)
    wide = [t.double() for t in (x_scale, scale, bias)]
    exact = scaled_linear.reference(
        x, values, *wide[:2], None, wide[2], "gelu", None, None, value, torch.float64
    )
    close(ours, theirs, exact, exact.abs().max() * 4)
    arguments = (*arguments[:7], torch.tensor(0.5), None, value, None)
    ours = run_launches(
        *scaled_triton.linear_launches(LinearCall(*arguments), MatmulConfig.of(config), float8=float8)
    )
    assert ours.dtype == torch.uint8
    decoded = ours.view(FLOAT8[value]).double() * 0.5
    assert ((decoded - exact).abs() <= exact.abs() * 0.13 + 0.01).all()


CONV: list[tuple[Any, ...]] = [
    # x, values, stride, padding, dilation, groups, zero point
    ((2, 8, 9, 7), (12, 4, 3, 3), [2, 1], [1, 2], [1, 1], 2, 5),
    ((2, 3, 11), (5, 3, 3), [1], [2], [2], 1, -128),
    ((1, 2, 5, 4, 5), (3, 2, 2, 2, 2), [1, 2, 1], [0, 1, 0], [1, 1, 1], 1, None),
    ((2, 6, 5, 5), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], 6, None),
    ((2, 40, 4, 4), (8, 40, 1, 1), [1, 1], [0, 0], [1, 1], 1, 1),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("shape", "weight", "stride", "padding", "dilation", "groups", "zero"), CONV)
@pytest.mark.parametrize("out", [torch.float32, "quantized"], ids=str)
def test_scaled_conv(
    shape: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, zero: int | None, out: Any
) -> None:
    torch.manual_seed(0)
    x = codes(*shape)
    if len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x_scale, scale = torch.rand(shape[0], 1) * 0.02, torch.rand(weight[0], 1) * 0.02
    x_zero = None if zero is None else torch.tensor(zero, dtype=torch.int8)
    out_scale = torch.tensor(0.07) if out == "quantized" else None
    out_zero = torch.tensor(3, dtype=torch.int8) if out == "quantized" else None
    arguments = (
        x, codes(*weight, seed=1), x_scale, scale, x_zero, torch.randn(weight[0]), "relu6",
        stride, padding, dilation, groups, out_scale, out_zero, torch.float32,
    )  # fmt: skip
    ours = run_launches(*scaled_triton.conv_launches(ConvCall(*arguments), MatmulConfig.of("16x16x32 w4 s2")))
    equal(ours, scaled_conv.reference(*arguments))


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


@pytest.mark.parametrize("special", [None, torch.nan, torch.inf, -torch.inf])
def test_quantize_tensor(special: float | None) -> None:
    x = torch.randn(3, 40)
    if special is not None:
        x[1, 2] = special
    found, expected = triton(quantize_tensor.reference)(x), quantize_tensor.reference(x)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("float8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_conversions(float8: torch.dtype) -> None:
    from tests.codegen.lower.test_float8 import CODES, around_ties, same_bits

    x = around_ties(float8)
    same_bits(triton(lambda codes: codes.view(float8).float())(CODES), CODES.view(float8).float())
    ours = triton(lambda x: x.to(float8).view(torch.uint8))(x)
    same_bits(ours.view(float8).float(), x.to(float8).float())
