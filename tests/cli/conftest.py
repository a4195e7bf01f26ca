import os
import sys

import pytest

from burnt.store import RunWriter


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """An empty current folder; what a command imports or puts on the path is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Bytecode of a module that a test rewrites within a second, in the same size, would be taken for the new
    # module's.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("NO_COLOR", "FORCE_COLOR", "BURNT_DEBUG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(os.fspath(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write():
    """Writes a run of 40 steps in 4 epochs, of 8 planned."""

    def write(folder, state="finished", reason=None, **settings):
        run = RunWriter.create(folder, config={"model": {"hidden": 64}, "lr": 1e-3}, **settings)
        for step in range(1, 41):
            run.log(step, 1 + (step - 1) // 10, {"loss": 1 / step})
            if step % 10 == 0:
                # Best in the middle, so that best and last differ.
                values = {"loss": abs(step - 20) / 100 + 0.25, "accuracy": 0.9 - abs(step - 30) / 100}
                run.log(step, step // 10, values, "valid")
        run.progress(40, 4, total_steps=80, total_epochs=8)
        run.close(state, reason)

    return write
