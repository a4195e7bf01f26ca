"""`linear`, `matmul` and `bmm`: candidates and cases that `test_families` does not cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from burnt import kernels
from burnt.kernels.autotune.accuracy import ReferenceResult
from tests.processors import BFLOAT16

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@needs_onednn
def test_a_packed_operand_follows_its_changes() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 6, 8), torch.nn.Parameter(torch.randn(8, 5), requires_grad=False)
    packed = kernels.matmul.candidates["onednn packed"]
    assert packed.why_not((a, b)) is None
    for _ in range(2):
        torch.testing.assert_close(packed(a, b), a @ b, rtol=1e-5, atol=1e-5)
        b.mul_(2)
    # `linear` packs the same parameter in another layout: it is transposed there.
    square = torch.nn.Parameter(torch.randn(8, 8), requires_grad=False)
    layer = kernels.linear.candidates["onednn packed"]
    for _ in range(2):
        torch.testing.assert_close(packed(a, square), a @ square, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer(a, square, None, None, None), a @ square.t(), rtol=1e-5, atol=1e-5)
    assert "a gradient is required" in (packed.why_not((a, b.requires_grad_())) or "")
    assert packed.why_not((a, torch.randn(2, 8, 5))) == "b is a batch or a vector"


@needs_onednn
def test_a_packed_weight_that_is_changed_in_part_by_data() -> None:
    packed = kernels.linear.candidates["onednn packed"]
    for rows, size in ((2, 64), (200, 256)):
        x, weight = torch.randn(rows, size), torch.randn(size, size)
        args = x, weight, None, None, None
        assert packed.why_not(args) is None
        packed(*args)
        weight.data[3, 1:] = 0
        torch.testing.assert_close(packed(*args), x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_float16_goes_through_bfloat16_where_the_policy_allows_it(processor: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(6, 32).half(), torch.randn(5, 32).half()
    bias, residual = torch.randn(5).half(), torch.randn(6, 5).half()
    cases: list[tuple[Any, tuple[Any, ...]]] = [
        (kernels.linear, (x.requires_grad_(), weight.requires_grad_(), bias, residual, "gelu")),
        (kernels.matmul, (x, weight.t())),
    ]
    for op, args in cases:
        candidate = op.candidates["bfloat16"]
        for policy in ("ieee", "tf32x3", "tf32"):
            with kernels.multiplying(policy):
                assert "'flex32' allows it" in (candidate.why_not(args) or "")
        with kernels.multiplying("flex32"):
            assert "only for float16" in (candidate.why_not([a.float() for a in args[:2]]) or "")
            without = None if processor in BFLOAT16 else "this processor has no bfloat16 instructions"
            assert candidate.why_not(args) == without
            assert op.chosen(*args).candidate is not candidate  # before any measurement
            # torch supports it on every machine, if slowly.
            assert ReferenceResult(op, args).find_error(candidate) is None


@pytest.mark.parametrize("op", [kernels.linear, kernels.matmul, kernels.bmm], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_are_multiplied_in_float32_where_there_are_no_instructions(
    op: Any, dtype: torch.dtype, processor: str
) -> None:
    torch.manual_seed(0)
    shape = (8, 64, 64) if op is kernels.bmm else (128, 128)
    a, b = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    has = processor in BFLOAT16 if dtype == torch.bfloat16 else processor == "Intel AMX"
    assert op.chosen(a, b).candidate.name == ("library" if has else "float32")
    exact = (a.double() @ (b.t() if op is kernels.linear else b).double()).to(dtype)
    torch.testing.assert_close(op(a, b), exact)
