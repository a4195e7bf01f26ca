"""cuBLASLt's candidate of `scaled_linear`: its calls, which exist on a CPU too, and when it is selected."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from burnt import kernels
from burnt.kernels.ops.quantized.quantize import quantized_example
from burnt.kernels.ops.quantized.scaled_gpu import scaled_linear_library, shape_unsupported_reason

CPU = torch.device("cpu")


def arguments(value: str, **changes: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    values, scale, _ = quantized_example(CPU, 32, 48, value)
    x, x_scale, _ = quantized_example(CPU, 20, 48, value)
    call = {
        "x": x, "values": values, "x_scale": x_scale, "scale": scale, "x_zero_point": None, "bias": None,
        "activation": None, "out_scale": None, "out_zero_point": None, "value": value,
        "dtype": torch.bfloat16, "zero_point": None,
    }  # fmt: skip
    return tuple((call | changes).values())


@pytest.mark.full
def test_int8_is_the_reference_to_the_bit() -> None:
    zero, bias = torch.tensor(-9, dtype=torch.int8), torch.randn(32)
    zeros = torch.arange(-16, 16, dtype=torch.int8).view(32, 1)
    choices = (None, zero), (None, torch.tensor(0.2)), (None, zeros)
    for x_zero, out_scale, zero_point in itertools.product(*choices):
        call = arguments(
            "int8",
            x_zero_point=x_zero,
            bias=bias,
            activation="relu",
            out_scale=out_scale,
            zero_point=zero_point,
        )
        ours, theirs = scaled_linear_library(*call), kernels.scaled_linear.reference(*call)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("changes", [{}, {"activation": "relu", "bias": torch.randn(32)}], ids=["one", "two"])
def test_float8(changes: dict[str, Any]) -> None:
    """One call, or float32 sums with an epilogue."""
    call = arguments("float8_e4m3", **changes)
    ours, theirs = scaled_linear_library(*call), kernels.scaled_linear.reference(*call)
    torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=0.02)
    single = arguments("float8_e4m3", x_scale=torch.tensor(0.5), scale=torch.ones(1, 1), **changes)
    torch.testing.assert_close(
        scaled_linear_library(*single), kernels.scaled_linear.reference(*single), rtol=2**-7, atol=2.0
    )


def test_when_it_runs() -> None:
    x, values = arguments("int8")[:2]
    assert shape_unsupported_reason(x, values, "int8") is None
    assert "16 rows" in str(shape_unsupported_reason(x[:16], values, "int8"))
    assert "40 terms" in str(shape_unsupported_reason(x[:, :40], values[:, :40], "int8"))
    assert "e5m2" in str(shape_unsupported_reason(x, values, "float8_e5m2"))
    assert shape_unsupported_reason(x[:0], values, "int8") == "an empty tensor"


def test_it_is_selected_where_it_is_one_call() -> None:
    candidate = kernels.scaled_linear.candidates["torch"]
    assert candidate.is_best(arguments("float8_e4m3"))
    for changes in ({"dtype": torch.float32}, {"activation": "silu"}, {"out_scale": torch.ones(1)}):
        assert not candidate.is_best(arguments("float8_e4m3", **changes))
    assert not candidate.is_best(arguments("int8"))
