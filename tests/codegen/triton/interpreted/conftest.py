"""Tests that run in a process of their own, with TRITON_INTERPRET=1; `../test_interpreted.py` starts it."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.codegen.triton.interpreter import correct

    correct()
else:
    collect_ignore_glob = ["test_*.py"]
