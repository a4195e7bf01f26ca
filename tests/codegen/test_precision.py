"""How float32 is multiplied: the setting, and what depends on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from burnt import errors, kernels
from burnt.codegen.precision import rounding
from burnt.kernels.choice import tuning_key

NAMES = {"ieee": "highest", "tf32x3": "highest", "tf32": "high", "flex32": "medium"}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = kernels.precision()
    yield
    kernels.set_precision(before)


@pytest.mark.parametrize("name", NAMES)
def test_torchs_setting_goes_along(name: str) -> None:
    with kernels.multiplying(name):
        assert kernels.precision() == name
        assert torch.get_float32_matmul_precision() == NAMES[name]
    assert kernels.precision() == "ieee"


def test_torchs_setting_is_ours() -> None:
    kernels.set_precision("tf32x3")
    torch.set_float32_matmul_precision("high")
    assert kernels.precision() == "tf32"
    torch.set_float32_matmul_precision("medium")
    assert kernels.precision() == "flex32"


def test_another_name_is_refused_and_nothing_set() -> None:
    kernels.set_precision("tf32")
    with pytest.raises(errors.InputValueError, match="no precision is named 'tf32x2'") as told:
        kernels.set_precision("tf32x2")
    assert "'ieee' or 'tf32x3' or 'tf32' or 'flex32'" in str(told.value)
    assert kernels.precision() == "tf32"


def test_choices_are_made_for_each() -> None:
    a = torch.randn(32, 32)
    keys = set()
    for name in NAMES:
        with kernels.multiplying(name):
            keys.add(tuning_key(kernels.matmul, (a, a)))
            before = set(kernels.choices())
            kernels.matmul(a, a)
            key = tuning_key(kernels.matmul, (a, a))
            assert key in kernels.choices()
            assert name in ("ieee",) or key not in before
    assert len(keys) == len(NAMES)


def test_candidates_may_round_as_products_do() -> None:
    found = {}
    for name in NAMES:
        with kernels.multiplying(name):
            found[name] = rounding(torch.float32)
            assert rounding(torch.bfloat16) == torch.finfo(torch.bfloat16).eps
    eps = torch.finfo(torch.float32).eps
    assert found == {"ieee": eps, "tf32x3": eps, "tf32": 2.0**-10, "flex32": 2.0**-7}
