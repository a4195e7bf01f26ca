"""The quantize example, in short: the text classifier on two packages, and the comparison of two runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from burnt.cli import main

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "quantize"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the digits, and one of the lines of two packages."""
    folder = tmp_path_factory.mktemp("quantize")
    program = (FOLDER / "lines.py").read_text()
    few = re.sub(r"PACKAGES = \(.*\)", 'PACKAGES = ("http", "logging")', program)
    assert few != program
    (folder / "lines.py").write_text(few)
    digits = ROOT / "examples" / "digits" / "train.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = ["epochs=3", "monitor=off"]
        assert main(["train", f"{digits}:main", "model.hidden=8", "folder=runs/digits", *small]) == 0
        assert main(["train", "lines.py:main", "model.hidden=16", "folder=runs/lines", *small]) == 0
    return folder


def test_size_speed_and_accuracy_are_compared(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    compare = runpy.run_path(str(FOLDER / "compare.py"))["main"]
    found = compare(["runs/digits", "runs/lines", "--schemes", "int8", "--rounds", "3"])
    printed = capsys.readouterr().out
    for name in ("digits", "lines"):
        float32, int8 = found[name]
        assert int8.file.stat().st_size < 0.5 * float32.file.stat().st_size
        assert float32.accuracy > (0.8 if name == "digits" else 0.7)
        assert abs(int8.accuracy - float32.accuracy) < 0.02
        assert re.search(rf"^int8 .*{int8.seconds * 1e3:.2f} .*x +{int8.accuracy:.4f}$", printed, re.M)
    assert (runs / "quantized" / "quantized.svg").read_text().startswith("<svg")


def test_the_lines_are_split_without_overlap() -> None:
    program = runpy.run_path(str(FOLDER / "lines.py"))
    assert sum(number == 0 for _, number in program["read_lines"]()) > 1000
    tokens = program["tokens_of"]("def f(x): return x", 4096)
    assert len(tokens) == program["LENGTH"]
    assert tokens[1:7] == program["tokens_of"]("f(x): return", 4096)[:6]
    assert tokens[8:] == [program["PADDING"]] * 16
    splits = program["load_splits"]()
    assert len(splits["test"]) >= 2000
    labels = splits["test"].columns["labels"]
    assert torch.unique(labels).tolist() == list(range(len(program["PACKAGES"])))
