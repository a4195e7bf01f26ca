"""What tests of compiled models begin with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from burnt.errors import FusionWarning


@pytest.fixture
def afresh() -> Iterator[None]:
    """Nothing is compiled yet, and a graph that torch runs is an error."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        yield
