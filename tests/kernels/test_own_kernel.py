"""The example in docs/kernels.md: an op with a Triton kernel of one's own, as a new user would write it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
(EXAMPLE,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs" / "kernels.md").read_text(), re.M | re.S)

CHECKS = """
y = torch.randn(300, 17, requires_grad=True)
made, right = softcap(y, 2.0), 2 * torch.tanh(y / 2)
torch.testing.assert_close(made, right)
for a, b in zip(*(torch.autograd.grad(r.sin().sum(), y) for r in (made, right))):
    torch.testing.assert_close(a, b)
assert softcap.chosen(y.t(), 2.0).candidate.name != "triton"
torch.library.opcheck(torch.ops.burnt.softcap.default, (y, 2.0))
from burnt.kernels.tuner import tune
print({row.config: (row.status, row.note) for row in tune(softcap, (y, 2.0))})
"""


def test_it_is_short() -> None:
    assert len(EXAMPLE.splitlines()) <= 60


def test_it_runs_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    (tmp_path / "softcap.py").write_text(EXAMPLE + CHECKS)
    done = subprocess.run(
        [sys.executable, "softcap.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRITON_INTERPRET": "1",
            "BURNT_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert '-> triton {"BLOCK": 1024}' in done.stdout
    for config in ('triton {"BLOCK": 1024}', 'triton {"BLOCK": 4096}', "vendor"):
        assert f"'{config}': ('ok', '')" in done.stdout
