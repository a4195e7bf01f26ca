"""Finds the user's line in a traceback."""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from traceback import walk_tb

_BURNT = str(Path(__file__).parent) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PYTHON = str(Path(os.__file__).parent) + os.sep
_OURS = tuple(f"{folder}{name}{os.sep}" for folder in _PACKAGES for name in ("burnt", "torch"))


def user_line(error: BaseException) -> str | None:
    """Return the innermost line of the user that an error passed: ``"train.py:12   loss = mse(x, y)"``.

    That is one outside of packages and of Python's own library; if there is none, the innermost of a package
    other than burnt and torch. None if they have raised the error themselves.
    """
    users = others = None
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith((_BURNT, "<")) and not file.startswith("<ipython-input"):
            continue
        if any(part in file for part in _OURS):
            continue
        if any(part in file for part in _PACKAGES):
            others = file, number
        elif not file.startswith(_PYTHON):
            users = file, number
    if (found := users or others) is None:
        return None
    file, number = found
    return f"{Path(file).name}:{number}   {linecache.getline(file, number).strip()}".rstrip()
