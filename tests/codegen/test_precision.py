"""How float32 is multiplied: the setting, and what depends on it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch

from burnt import errors, kernels
from burnt.codegen.precision import matmul_eps
from burnt.kernels.autotune.accuracy import ReferenceResult
from burnt.kernels.interface.tuning_key import tuning_key
from tests import forked

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
    with pytest.raises(errors.InputValueError, match="there is no precision 'tf32x2'") as error:
        kernels.set_precision("tf32x2")
    assert "'ieee' or 'tf32x3' or 'tf32' or 'flex32'" in str(error.value)
    assert kernels.precision() == "tf32"


def test_choices_are_made_for_each() -> None:
    a = torch.randn(37, 37)  # of a size that nothing else has multiplied
    keys = []
    for name in NAMES:
        with kernels.multiplying(name):
            keys.append(tuning_key(kernels.matmul, (a, a)))
            assert keys[-1] not in kernels.choices()
            kernels.matmul(a, a)
            assert keys[-1] in kernels.choices()
    assert len(set(keys)) == len(NAMES)


def test_candidates_may_round_as_products_do() -> None:
    found = {}
    for name in NAMES:
        with kernels.multiplying(name):
            found[name] = matmul_eps(torch.float32)
            assert matmul_eps(torch.bfloat16) == torch.finfo(torch.bfloat16).eps
    eps = torch.finfo(torch.float32).eps
    assert found == {"ieee": eps, "tf32x3": eps, "tf32": 2.0**-10, "flex32": 2.0**-7}


def test_cudnns_switch_goes_along_and_comes_back() -> None:
    importlib.import_module("torch.testing._internal.common_utils")  # torch's own attribute is refused then
    before = torch.backends.cudnn.allow_tf32
    with kernels.multiplying("ieee"):
        assert not torch.backends.cudnn.allow_tf32
        kernels.set_precision("tf32")
        assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before


NEWER = """
import torch
from burnt import kernels
torch.backends.cuda.matmul.fp32_precision = "tf32"
kernels.softmax(torch.randn(3, 4), -1)
print(kernels.precision())
"""


def test_torchs_newer_switches_are_read_too() -> None:
    done = forked.run(NEWER, timeout=120)
    assert done.stdout.split() == ["tf32"], done.stderr


def test_only_what_multiplies_may_be_coarse() -> None:
    """A candidate of a sum that is off by a thousandth is wrong, however float32 is multiplied."""
    x, w = torch.randn(16, 64), torch.randn(64, 64)
    with kernels.multiplying("flex32"):
        off = ReferenceResult(kernels.softmax, (x, -1, None)).find_error(
            lambda x, *_: torch.softmax(x, -1) * 1.001
        )
        assert off is not None
        assert ReferenceResult(kernels.matmul, (x, w)).find_error(lambda a, b: (a @ b) * 1.001) is None


def test_torchs_older_switch_can_be_read_afterwards() -> None:
    """Reading it raises if the settings contradict each other."""
    for name in ("ieee", "tf32"):
        with kernels.multiplying(name):
            pass
        assert isinstance(torch.backends.cudnn.allow_tf32, bool)
