"""Plans of whole models, by `burnt.compile`, in Triton, run by the interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.render.triton.encoder import expected, sent_to, step


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_of_an_encoder(dtype: torch.dtype) -> None:
    built: list[Any] = []

    def build(kernels: Any, *rest: Any) -> Any:
        built.extend(kernels)
        return TRITON.build(kernels, *rest)

    with sent_to(dataclasses.replace(TRITON, build=build)):
        model, x, found = step(dtype)
    assert len(built) > 10
    for ours, eager, exact in zip(found, *expected(model, x), strict=True):
        error, theirs = (float((t - exact).abs().max()) for t in (ours, eager))
        assert error <= 4 * theirs + 4 * torch.finfo(dtype).eps * float(exact.abs().max())
