"""`burnt new`: its project trains, passes its tests and is seen by other commands; refused names."""

import subprocess
import sys
from pathlib import Path

import pytest

import burnt
from tests import forked
from tests.cli.commands import printed, refused

PROGRAM = """
import contextlib, io, sys, pytest
from burnt.cli import main

for line in sys.argv[1:]:
    assert main(line.split()) == 0, line
with contextlib.redirect_stdout(io.StringIO()) as told:  # what pytest prints names the machine's folders
    assert pytest.main(["-q", "-p", "no:cacheprovider"]) == 0, told.getvalue()
print(told.getvalue().splitlines()[-1])
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_new_project_trains_tests_and_monitors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "burnt train spirals.train:main" in printed(capsys, "new", "spirals")
    project = Path("spirals").resolve()
    files = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    package = {f"spirals/{name}.py" for name in ("__init__", "model", "train")}
    assert files == {".gitignore", "README.md", "pyproject.toml", "tests/test_spirals.py", *package}
    texts = [(project / name).read_text() for name in files]
    assert not any("NAME" in text or "VERSION" in text for text in texts)
    assert f'"burnt>={burnt.__version__}"' in (project / "pyproject.toml").read_text()
    style = [sys.executable, "-m", "ruff", "--isolated", "--config", "line-length = 110"]
    for check in (["format", "--check"], ["check", "--extend-select", "I"]):
        subprocess.run([*style, *check, "."], cwd=project, check=True, stdout=subprocess.DEVNULL)
    target = "spirals.train:main"
    lines = [
        f"check {target}",
        f"train {target} epochs=2 model.hidden=8",
        "train --resume runs/spirals epochs=3",
        f"train {target} epochs=1 model.hidden=8",
        "evaluate spirals --data spirals.train:held_out",
        "monitor --once",
    ]
    done = forked.run(PROGRAM, *lines, cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("3 passed")
    assert "epoch 3/3" in done.stdout
    assert "runs/spirals-2" in done.stdout.split("held_out")[1]  # the monitor's list


@pytest.mark.full
def test_its_settings_learn_the_spirals(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "new", "spirals")
    code = "from spirals.train import *; print(main(TrainConfig()).values['valid/accuracy'])"
    done = forked.run(code, cwd=Path("spirals").resolve())
    assert float(done.stdout.splitlines()[-1]) > 0.97


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "my-net",
            ["invalid name", "letters, digits and _", "found     'my-net'", "hint      burnt new my_net"],
        ),
        ("../net", ["invalid name", "hint      burnt new net"]),
        ("1st", ["invalid name", "burnt new st"]),
        ("net_", ["invalid name", "burnt new net"]),
        ("\x1b[31m", [r"found     '\x1b[31m'"]),
        (
            "class",
            ["'class' is taken", "found     a keyword, an installed module", "hint      burnt new my_class"],
        ),
        ("numpy", ["'numpy' is taken"]),
        ("json", ["burnt new my_json"]),
        ("runs", ["or another folder of the project"]),
        ("mine", ["'mine' exists", "hint      choose another name"]),
    ],
)
def test_what_cannot_be_a_project(name: str, message: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    error = refused(capsys, "new", name)
    assert all(part in error for part in message), error
    assert [path.name for path in Path().iterdir()] == ["mine"]


def test_a_link_that_leads_nowhere_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net").symlink_to("gone")
    assert "'net' exists" in refused(capsys, "new", "net")
    assert not Path("gone").exists()
