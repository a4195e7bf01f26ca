"""Tests that run in a process of their own, with TRITON_INTERPRET=1; `../test_interpreted.py` starts it."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    import numpy as np
    import torch

    from tests.codegen.triton.interpreter import correct

    correct()
    np.seterr(all="ignore")  # a GPU says nothing of 0 / 0
    # Memory that is not written yet holds NaN, or the largest integer.
    torch.use_deterministic_algorithms(True, warn_only=True)
else:
    collect_ignore_glob = ["test_*.py"]
