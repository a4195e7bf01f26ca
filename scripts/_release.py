"""What `scripts/release` runs in the repository's environment: build, check, try and list a release."""

from __future__ import annotations

import argparse
import email.parser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 1 << 20  # of a file in the wheel or the sdist
LICENSES = ("LICENSE-APACHE", "LICENSE-MIT")
DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", *(f"licenses/{name}" for name in LICENSES))

IMPORT = """
import importlib.metadata, sys, burnt
from burnt import nn, optim, data, record, inspect, train, codegen, kernels
assert burnt.__file__.startswith(sys.prefix), f"burnt was imported from {burnt.__file__}"
assert importlib.metadata.version("burnt") == burnt.__version__ == sys.argv[1], burnt.__version__
"""
LOAD = """
import sys, burnt, torch
model = burnt.load(sys.argv[1], import_code=True)
assert not model.training
assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
"""


class ReleaseError(Exception):
    """Why there is no release, with what to do."""


# --- building ---------------------------------------------------------------------------------------------


def run(command: Sequence[str | Path], what: str, **settings: Any) -> str:
    """Run a command; return what it printed, and raise a `ReleaseError` with that if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    )
    if done.returncode:
        raise ReleaseError(f"{what} failed (exit code {done.returncode}):\n{done.stdout.rstrip()}")
    return str(done.stdout)


def git(*arguments: str) -> str:
    return run(["git", "-C", ROOT, *arguments], f"git {arguments[0]} (a release needs a git clone)")


def build(source: Path, target: Path, epoch: str, umask: int = -1) -> tuple[Path, Path]:
    """Build from a folder with the installed hatchling; return the wheel and the sdist.

    Not isolated: the version of hatchling is the one of constraints.txt, nothing is downloaded, and the
    same commit gives the same bytes. pip's isolated build is what the empty environment tries.

    Args:
        source: the folder with pyproject.toml.
        target: the folder for both.
        epoch: SOURCE_DATE_EPOCH, the time of all files in both.
        umask: of the process; -1 leaves it.
    """
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-d", target]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run(command, "the build", cwd=source, env=environment, umask=umask)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def read(archive: Path) -> dict[str, bytes]:
    """The files of a wheel or an sdist, by name; names of an sdist without its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as zipped:
            return {name: zipped.read(name) for name in zipped.namelist()}
    with tarfile.open(archive) as tar:
        return {
            member.name.partition("/")[2]: file.read()
            for member in tar.getmembers()
            if (file := tar.extractfile(member)) is not None
        }


# --- checks -----------------------------------------------------------------------------------------------


def version() -> str:
    """The version in burnt/_version.py, from which pyproject.toml takes it."""
    namespace: dict[str, str] = {}
    exec((ROOT / "burnt" / "_version.py").read_text(encoding="utf-8"), namespace)
    return namespace["__version__"]


def check_ready(version: str) -> None:
    """Everything is committed, and the newest section of CHANGELOG.md is that of the version."""
    if changed := git("status", "--porcelain"):
        raise ReleaseError(f"there are uncommitted changes; commit them, or use --draft:\n{changed.rstrip()}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    named = [name for name, text in sections if name != "Unreleased" or text.strip()]
    if not named or named[0] != version:
        raise ReleaseError(
            f"CHANGELOG.md: expected {version} as its newest section, found {named[0] if named else 'none'}; "
            "name the section Unreleased after the version in burnt/_version.py, or use --draft"
        )


def check_metadata(archives: Sequence[Path], version: str) -> None:
    """PyPI accepts both, README renders there, and the fields are those of the project."""
    run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *archives], "twine check")
    for archive in archives:
        files = read(archive)
        name = f"burnt-{version}.dist-info/METADATA" if archive.suffix == ".whl" else "PKG-INFO"
        if name not in files:
            raise ReleaseError(f"{archive.name}: expected {name}: a wrong version?")
        metadata = email.parser.BytesParser().parsebytes(files[name])
        for field, expected in {
            "Name": ["burnt"],
            "Version": [version],
            "License-Expression": ["MIT OR Apache-2.0"],
            "License-File": list(LICENSES),
            "Requires-Python": [">=3.11"],
            "Description-Content-Type": ["text/markdown"],
        }.items():
            found = sorted(metadata.get_all(field, []))
            if found != sorted(expected):
                raise ReleaseError(f"{archive.name}: {field}: expected {expected}, found {found}")
        if "Typing :: Typed" not in metadata.get_all("Classifier", []):
            raise ReleaseError(f"{archive.name}: the classifier Typing :: Typed is missing")


def repository_files(*, draft: bool) -> list[str]:
    """The files that git tracks; for a draft, also those that are new and not ignored."""
    new = ("--others", "--exclude-standard") if draft else ()
    names = git("ls-files", "-z", "--cached", *new).rstrip("\0").split("\0")
    return [name for name in names if (ROOT / name).exists()]  # one may be deleted, but not yet in git


def check_contents(wheel: Path, sdist: Path, version: str, names: Sequence[str]) -> None:
    """The wheel holds the repository's files in burnt/, the sdist all of them, and nothing else."""
    dist_info = f"burnt-{version}.dist-info"
    for archive, sources, generated in (
        (wheel, [n for n in names if n.startswith("burnt/")], [f"{dist_info}/{n}" for n in DIST_INFO]),
        (sdist, names, ["PKG-INFO"]),
    ):
        files = read(archive)
        expected = {*sources, *generated}
        problems = [f"missing: {name}" for name in sorted(expected - files.keys())]
        problems += [f"does not belong there: {name}" for name in sorted(files.keys() - expected)]
        problems += [
            f"differs from the repository's: {name}"
            for name in sources
            if name in files and files[name] != (ROOT / name).read_bytes()
        ]
        problems += [
            f"has {len(text):,} bytes, more than {MAX_BYTES:,}: {name}"
            for name, text in files.items()
            if len(text) > MAX_BYTES
        ]
        if problems:
            raise ReleaseError("\n  ".join([f"{archive.name} has the wrong files:", *problems]))
    if "burnt/py.typed" not in read(wheel):
        raise ReleaseError(
            f"{wheel.name}: burnt/py.typed is missing, so type checkers ignore its annotations"
        )


def check_reproducible(wheel: Path, sdist: Path, epoch: str, scratch: Path) -> None:
    """The unpacked sdist, in another folder and under another umask, builds both again, byte for byte."""
    with tarfile.open(sdist) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        tar.extractall(scratch / "source")
    (source,) = (scratch / "source").iterdir()
    (scratch / "again").mkdir()
    for first, again in zip(
        (wheel, sdist), build(source, scratch / "again", epoch, umask=0o077), strict=True
    ):
        if first.read_bytes() == again.read_bytes():
            continue
        one, other = read(first), read(again)
        different = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        where = ", ".join(different) or "order or attributes of its files"
        raise ReleaseError(f"{first.name}: built again from the sdist, it differs: {where}")


# --- the empty environment --------------------------------------------------------------------------------


def try_in_empty_environment(wheel: Path, sdist: Path, version: str, scratch: Path) -> None:
    """Install the wheel in a new venv outside of the repository, train, load and export; then the sdist."""
    python, programs = scratch / "venv" / "bin" / "python", scratch / "venv" / "bin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BURNT_", "PYTHON"))}
    environment = kept | {"BURNT_CACHE": str(scratch / "cache"), "PYTHONNOUSERSITE": "1"}
    environment.pop("VIRTUAL_ENV", None)
    shutil.copytree(ROOT / "examples" / "digits", scratch / "digits")

    def step(what: str, *command: str | Path) -> str:
        say(f"  {what}")
        return run(command, what, cwd=scratch, env=environment)

    def install(what: str, *arguments: str | Path) -> None:
        constraints = ("--constraint", ROOT / "constraints.txt")
        step(
            what,
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *constraints,
            *arguments,
        )

    step("python -m venv", sys.executable, "-m", "venv", scratch / "venv")
    # torch first and by its exact version: an open range would take the newest build and its CUDA libraries.
    torch = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert torch is not None
    install(f"pip install {torch[0]}", torch[0])
    install(f"pip install {wheel.name}", wheel)
    step("import burnt", python, "-c", IMPORT, version)
    step("burnt --help", programs / "burnt", "--help")
    print(step("burnt info", programs / "burnt", "info"), end="")
    install(f"pip install {wheel.name}[examples,onnx]", f"{wheel}[examples,onnx]")
    target = "digits/train.py:main"
    step("burnt train, 1 epoch", programs / "burnt", "train", target, "epochs=1", "folder=run")
    step("burnt runs show", programs / "burnt", "runs", "show", "run")
    step("burnt.load", python, "-c", LOAD, "run")
    print(step("burnt export", programs / "burnt", "export", "run", "-o", "digits.onnx"), end="")
    install(f"pip install {sdist.name}", "--force-reinstall", "--no-deps", sdist)  # pip builds it, isolated
    step("import burnt", python, "-c", IMPORT, version)


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def release(out: Path, *, draft: bool, environment: bool, scratch: Path) -> None:
    """Build into a scratch folder, check, and move both files to `out` if all is well."""
    number = version()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct").strip()
    say(f"burnt {number}, files dated {epoch} (SOURCE_DATE_EPOCH)")
    if not draft:
        check_ready(number)
    say("build")
    (scratch / "dist").mkdir()
    wheel, sdist = build(ROOT, scratch / "dist", epoch)
    say("metadata")
    check_metadata([wheel, sdist], number)
    say("contents")
    check_contents(wheel, sdist, number, repository_files(draft=draft))
    say("the same bytes from the sdist")
    check_reproducible(wheel, sdist, epoch, scratch)
    if environment:
        say("an empty environment")
        try_in_empty_environment(wheel, sdist, number, scratch)
    out.mkdir(parents=True, exist_ok=True)
    say("made")
    for archive in (wheel, sdist):
        made = Path(shutil.copy(archive, out))
        content = made.read_bytes()
        print(f"{made}  {len(content) / 1e6:.2f} MB\n  sha256 {hashlib.sha256(content).hexdigest()}")
    print(f"Nothing was uploaded. To do that: twine upload {out}/{wheel.name} {out}/{sdist.name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument(
        "--draft", action="store_true", help="allow uncommitted changes and no changelog entry"
    )
    parser.add_argument("--no-environment", action="store_true", help="do not try an empty environment")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the two files")
    args = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="burnt-release-") as scratch:
            release(args.out, draft=args.draft, environment=not args.no_environment, scratch=Path(scratch))
    except (ReleaseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
