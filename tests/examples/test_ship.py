"""The four scripts of examples/ship, on one short run of the digits."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from burnt.cli import main
from tests.onnx.translations import translations_parsed_once

__all__ = ["translations_parsed_once"]

ROOT = Path(__file__).parent.parent.parent
SHIP = ROOT / "examples" / "ship"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ship")
    target = f"{ROOT / 'examples' / 'digits' / 'train.py'}:main"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", target, "epochs=5", "model.hidden=16", "folder=runs/digits"]) == 0
    return folder / "runs" / "digits"


@pytest.fixture
def commands_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what a script runs as `python -m burnt` in this process, which has imported torch.onnx."""
    run, python = subprocess.run, [sys.executable, "-m", "burnt"]

    def run_here(command: list[Any], **settings: Any) -> object:
        if command[:3] != python:
            return run(command, **settings)
        assert settings == {"check": True}
        return main(command[3:]) and pytest.fail(f"{command} failed")

    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setattr(sys, "path", [str(SHIP), *sys.path])


@pytest.mark.usefixtures("commands_here")
@pytest.mark.sample(keep=("to_server",))
@pytest.mark.parametrize("name", ["to_file", "to_server", "to_page", "to_c"])
def test_a_script_ships_the_digits(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "to_page" and not all(map(shutil.which, ("clang", "wasm-ld", "node"))):
        pytest.skip("needs clang for wasm32 and Node: scripts/install-tools")
    file = SHIP / f"{name}.py"
    monkeypatch.chdir(run.parent.parent)
    monkeypatch.setattr(sys, "argv", [str(file), "runs/digits"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    assert not ended.value.code
    match = re.search(r"^(\d+) of 360 test images are read right$", capsys.readouterr().out, re.MULTILINE)
    assert match is not None
    assert int(match[1]) > 324
