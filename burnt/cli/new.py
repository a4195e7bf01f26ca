"""`burnt new NAME`: write a project that trains, from the templates in `new_project/`. Imports no torch."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import re
from pathlib import Path

from burnt._version import __version__
from burnt.cli.output import UsageError

_TEMPLATES = Path(__file__).with_name("new_project")
_SUFFIX = ".template"  # hides the files from pytest, mypy, ruff and git


def run(args: argparse.Namespace) -> int:
    """Write the project and print what to do next."""
    name = args.name
    _check_name(name)
    for template in sorted(_TEMPLATES.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(_TEMPLATES).as_posix().removesuffix(_SUFFIX)
        target = Path(name, path.replace("NAME", name))
        target.parent.mkdir(parents=True, exist_ok=True)
        text = template.read_text(encoding="utf-8").replace("NAME", name).replace("VERSION", __version__)
        target.write_text(text, encoding="utf-8")
    print(f"made {name}/. Next:\n\n  cd {name}\n  burnt train {name}.train:main\n  pytest")
    return 0


def _check_name(name: str) -> None:
    """Raise a UsageError unless a project and its package can have this name."""
    if not re.fullmatch(r"[a-zA-Z]([a-zA-Z0-9_]*[a-zA-Z0-9])?", name):
        guess = re.sub(r"\W+", "_", Path(name).name, flags=re.ASCII).strip("_0123456789")
        raise UsageError(
            "invalid name of a project",
            expected="a Python package's name: letters, digits and _, such as my_model",
            found=repr(name),
            hint=f"burnt new {guess}" if guess else None,
        )
    if os.path.lexists(name):
        raise UsageError(f"{name!r} exists already", where=str(Path.cwd()), hint="choose another name")
    if keyword.iskeyword(name) or name in ("runs", "tests") or importlib.util.find_spec(name):
        raise UsageError(
            f"{name!r} is taken",
            found="a keyword, an installed module, or another folder of the project",
            hint=f"burnt new my_{name}",
        )
