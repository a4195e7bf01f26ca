"""Plans of whole models, by `burnt.compile`, in Triton, run by the interpreter."""

from __future__ import annotations

import pytest
import torch

from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.render.triton.encoder import train_step


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_of_an_encoder(dtype: torch.dtype) -> None:
    for ours, eager, exact in zip(*train_step(TRITON, dtype), strict=True):
        scale = float(exact.abs().max())
        error, theirs = (float((t - exact).abs().max()) for t in (ours, eager))
        assert error <= 4 * theirs + 4 * torch.finfo(dtype).eps * scale
