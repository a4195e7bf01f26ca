"""`scripts/install-tools` with programs that only note how they are called."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = re.findall(
    r"[\w-]+", (ROOT / "scripts" / "install-tools").read_text().partition("packages=(")[2].partition(")")[0]
)


def install_tools(folder: Path, missing: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run the script where dpkg lacks a package, with these programs next to those of coreutils."""
    status = f'case "$3" in {missing or "none"}) ;; *) printf installed ;; esac'
    for name, text in {"dpkg-query": status, "id": "echo 0", **programs}.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    for name in ("dirname", "env"):
        if not (folder / name).exists():
            (folder / name).symlink_to(shutil.which(name) or name)
    bash = shutil.which("bash")
    return subprocess.run(
        [str(bash), ROOT / "scripts" / "install-tools"],
        capture_output=True,
        text=True,
        env={"PATH": str(folder)},
    )


def test_nothing_happens_where_all_are_there(tmp_path: Path) -> None:
    done = install_tools(tmp_path, "", apt_get="echo called")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_missing_is_installed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = install_tools(tmp_path, "qemu-user", apt_get=f'echo "$@" >> {log}')
    assert done.returncode == 0
    assert done.stdout == "==> installing qemu-user\n"
    assert log.read_text() == "update -qq\ninstall -qq --no-install-recommends qemu-user\n"


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "no apt-get here"),
        ({"apt_get": "exit 0", "id": "echo 1000"}, "no root here"),
        ({"apt_get": "exit 100"}, "apt-get update failed"),
        ({"apt_get": '[ "$1" = update ]'}, "apt-get install failed"),
    ],
)
def test_what_cannot_be_installed_stops_nothing(
    programs: dict[str, str], reason: str, tmp_path: Path
) -> None:
    done = install_tools(tmp_path, "chromium", **programs)
    assert done.returncode == 0
    assert done.stderr == f"warning: {reason}; the tests that need these are skipped: chromium\n"


def test_ci_calls_it() -> None:
    assert {"qemu-user", "gcc-arm-none-eabi", "chromium", "clang"} <= set(PACKAGES)
    assert '"$scripts/install-tools"' in (ROOT / ".ci" / "run").read_text()
