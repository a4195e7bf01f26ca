"""The four scripts of examples/ship, on one short run of the digits."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parent.parent.parent
SHIP = ROOT / "examples" / "ship"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the digits, trained in short."""
    folder = tmp_path_factory.mktemp("ship")
    command = "import runpy; runpy.run_module('burnt', run_name='__main__', alter_sys=True)"
    target = f"{ROOT / 'examples' / 'digits' / 'train.py'}:main"
    done = forked.run(
        command, "train", target, "epochs=5", "model.hidden=16", "folder=runs/digits", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "digits"


@pytest.mark.parametrize("name", ["to_file", "to_server", "to_page", "to_c"])
def test_a_script_ships_the_digits(name: str, run: Path) -> None:
    if name == "to_page" and not all(map(shutil.which, ("clang", "wasm-ld", "node"))):
        pytest.skip("needs clang for wasm32 and Node: scripts/install-tools")
    file = SHIP / f"{name}.py"
    done = forked.run(file.read_text(), "runs/digits", file=file, cwd=run.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"^(\d+) of 360 test images are read right$", done.stdout, re.MULTILINE)
    assert match is not None
    assert int(match[1]) > 324
