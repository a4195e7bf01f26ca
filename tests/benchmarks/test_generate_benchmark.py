"""benchmarks/generate.py runs, and both models generate the same tokens."""

import importlib
from typing import Any

import pytest
import torch

from tests.benchmarks.running import ROOT


@pytest.mark.full
def test_generations_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    generate: Any = importlib.import_module("generate")
    theirs, ours = generate.models(quick=True)
    for row in generate.ROWS:
        both = generate.runs(row, theirs, ours)
        expected, found = both["transformers"](), both["burnt"]()
        assert torch.equal(found.tokens, expected[:, row.prompt :])
    assert generate.main(["--quick", "--rows", "one prompt"]) == 0
    assert "\none prompt " in capsys.readouterr().out
