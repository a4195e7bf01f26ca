"""`scripts/release`: what it checks, on the real wheel and sdist and on broken ones."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import burnt

ROOT = Path(__file__).parent.parent.parent
EPOCH = "1700000000"
HEADER = "burnt/codegen/render/c/headers/math.h"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripts_release", ROOT / "scripts" / "_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    for package in ("hatchling", "twine"):
        pytest.importorskip(package)
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git clone")
    return script.build(ROOT, tmp_path_factory.mktemp("dist"), EPOCH)  # type: ignore[no-any-return]


def changed(wheel: Path, folder: Path, **files: bytes | None) -> Path:
    """A copy of a wheel with other files; None leaves one out."""
    target = folder / wheel.name
    content = {**script.read(wheel), **files}
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in content.items():
            if text is not None:
                archive.writestr(name, text)
    return target


@pytest.mark.full
def test_the_wheel_and_the_sdist_of_this_tree_pass(archives: tuple[Path, Path], tmp_path: Path) -> None:
    script.check_metadata(archives, burnt.__version__)
    script.check_contents(*archives, burnt.__version__, script.repository_files(draft=True))
    script.check_reproducible(*archives, EPOCH, tmp_path)
    wheel = script.read(archives[0])
    for name in ("py.typed", "codegen/render/metal/headers/math.metal", "monitor/monitor.tcss"):
        assert f"burnt/{name}" in wheel
    assert b"burnt = burnt.cli:main" in wheel[f"burnt-{burnt.__version__}.dist-info/entry_points.txt"]
    # Enough to run the tests and to build another release.
    assert {"tests/conftest.py", "constraints.txt", "scripts/release", ".ci/run"} <= script.read(
        archives[1]
    ).keys()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({HEADER: None}, f"missing: {HEADER}"),
        ({HEADER: b"// empty"}, f"differs from the repository's: {HEADER}"),
        ({"burnt/__pycache__/x.pyc": b""}, "does not belong there: burnt/__pycache__/x.pyc"),
        ({"tests/test_files.py": b""}, "does not belong there: tests/test_files.py"),
        ({HEADER: bytes(2 << 20)}, f"has 2,097,152 bytes, more than 1,048,576: {HEADER}"),
    ],
)
def test_wrong_files_are_listed(
    archives: tuple[Path, Path], tmp_path: Path, files: dict[str, bytes | None], message: str
) -> None:
    wheel = changed(archives[0], tmp_path, **files)
    with pytest.raises(script.ReleaseError) as caught:
        script.check_contents(wheel, archives[1], burnt.__version__, script.repository_files(draft=True))
    assert str(caught.value).startswith(f"{wheel.name} has the wrong files:\n  ")
    assert message in str(caught.value)


@pytest.mark.full
def test_a_wheel_that_the_sdist_does_not_build_is_reported(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel = changed(archives[0], tmp_path, **{HEADER: b"// empty"})
    with pytest.raises(
        script.ReleaseError, match=r"built again from the sdist, it differs: burnt/codegen/\S*$"
    ):
        script.check_reproducible(wheel, archives[1], EPOCH, tmp_path)


def test_a_wrong_version_is_reported(archives: tuple[Path, Path]) -> None:
    with pytest.raises(
        script.ReleaseError, match=r"whl: expected burnt-9\.9\.dist-info/METADATA: a wrong version"
    ):
        script.check_metadata(archives, "9.9")


def test_wrong_metadata_is_reported(archives: tuple[Path, Path], tmp_path: Path) -> None:
    name = f"burnt-{burnt.__version__}.dist-info/METADATA"
    text = script.read(archives[0])[name]
    for old, new, message in (
        (
            b"Requires-Python: >=3.11",
            b"Requires-Python: >=3.8",
            r"Requires-Python: expected .*3\.11.*found .*3\.8",
        ),
        (b"License-File: LICENSE-MIT\n", b"", r"License-File: expected"),
        (
            b"Description-Content-Type: text/markdown",
            b"Description-Content-Type: text/x-rst",
            "twine check failed",
        ),
    ):
        assert old in text
        wheel = changed(archives[0], tmp_path, **{name: text.replace(old, new)})
        with pytest.raises(script.ReleaseError, match=message):
            script.check_metadata([wheel], burnt.__version__)


@pytest.mark.parametrize(
    ("changelog", "found"),
    [
        ("# Changelog\n\n## Unreleased\n\n## 0.2.0\n- x\n\n## 0.1.0\n- y\n", None),
        ("# Changelog\n\n## 0.2.0 - 2026-01-01\n- x\n", None),
        ("# Changelog\n\n## Unreleased\n- new\n\n## 0.2.0\n- x\n", "Unreleased"),
        ("# Changelog\n\n## 0.1.0\n- y\n", "0.1.0"),
        ("# Changelog\n", "none"),
    ],
)
def test_the_changelog_names_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changelog: str, found: str | None
) -> None:
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "git", lambda *arguments: "")
    if found is None:
        script.check_ready("0.2.0")
    else:
        with pytest.raises(
            script.ReleaseError, match=rf"expected 0\.2\.0 as its newest section, found {found};"
        ):
            script.check_ready("0.2.0")


def test_a_release_has_no_uncommitted_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "git", lambda *arguments: " M burnt/config.py\n")
    with pytest.raises(script.ReleaseError, match=r"uncommitted changes; .*\n M burnt/config\.py$"):
        script.check_ready("0.2.0")


def test_help() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "release", "--help"], capture_output=True, text=True, check=True
    )
    for option in ("--draft", "--no-environment", "--out"):
        assert option in done.stdout


def test_the_script_runs_in_the_environment_of_the_repository(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    # What the script notes when it has installed burnt, so that it does not try.
    command = 'cat pyproject.toml constraints.txt | cksum | tr -d "\\n"'
    note = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True).stdout
    (tmp_path / ".venv" / ".installed-dev").write_text(f"{note} {tmp_path}")
    script = tmp_path / "scripts" / "release"
    done = subprocess.run([script, "--drafts-of"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unrecognized arguments: --drafts-of" in done.stderr


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_release_works_in_an_empty_environment(archives: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "_release.py", "--draft", "--out", tmp_path / "dist"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"burnt       {burnt.__version__}" in done.stdout
    assert "largest error" in done.stdout  # of ONNX Runtime, next to eager
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == sorted(p.name for p in archives)
    assert list(tmp_path.iterdir()) == [tmp_path / "dist"]
