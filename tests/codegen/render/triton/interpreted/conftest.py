"""Set up tests that run in their own process with TRITON_INTERPRET=1; `../test_interpreted.py` starts it."""

from __future__ import annotations

import os

import pytest

# Triton 3.6's interpreter takes arrays of one element for numbers.
_OF_TRITON_36 = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/interpreted/" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings(_OF_TRITON_36))


if os.environ.get("TRITON_INTERPRET") == "1":
    import numpy as np
    import torch

    from tests.codegen.render.triton.interpreter import correct

    correct()
    np.seterr(all="ignore")  # a GPU says nothing of 0 / 0
    # Memory that is not written yet holds NaN, or the largest integer.
    torch.use_deterministic_algorithms(True, warn_only=True)
else:
    collect_ignore_glob = ["test_*.py"]
