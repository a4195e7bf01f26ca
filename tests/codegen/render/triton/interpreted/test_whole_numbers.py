"""Integer division, shifts and powers in Triton, run by the interpreter."""

from __future__ import annotations

import pytest
import torch

from burnt.codegen.function import Function
from burnt.codegen.runtime.triton_backend import TRITON
from tests.codegen.lower.test_integers import DTYPES, WIDE, as_torch_has_them, unsigned_as_torch_has_them


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signed(dtype: torch.dtype) -> None:
    as_torch_has_them(lambda fn: Function(fn, target=TRITON), dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_unsigned(dtype: torch.dtype) -> None:
    unsigned_as_torch_has_them(lambda fn: Function(fn, target=TRITON), dtype)
