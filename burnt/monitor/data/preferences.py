"""`Preferences`: what the monitor remembers between sessions, in a small JSON file. Without Textual.

It holds the theme, whether a run's panel is shown, and for each set of folders the columns and the order of
the list of runs. A file that cannot be read is ignored and replaced by the next change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from burnt._files import replacing, state_folder

_MAX_LISTS = 100  # the most recently changed are kept


class ListPreferences(msgspec.Struct, frozen=True):
    """How a list of runs is shown."""

    columns: tuple[str, ...] | None = None  # keys after the run's name; None shows the usual ones
    sort: str = "age"  # the key of a column
    descending: bool = False


class _Document(msgspec.Struct):
    version: Literal[1] = 1
    theme: str | None = None
    panel: bool = True
    lists: dict[str, ListPreferences] = {}


class Preferences:
    """The remembered settings; without a path, only as long as this object.

    Each change is written at once; an OSError says that the file cannot be written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._document = _Document() if path is None else _read(path)

    @property
    def theme(self) -> str | None:
        return self._document.theme

    def set_theme(self, name: str) -> None:
        self._document.theme = name
        self._write()

    @property
    def panel(self) -> bool:
        """Whether a panel is shown next to a run's plots."""
        return self._document.panel

    def set_panel(self, is_shown: bool) -> None:
        self._document.panel = is_shown
        self._write()

    def list_of(self, folders: Sequence[os.PathLike[str]]) -> ListPreferences:
        return self._document.lists.get(_key(folders), ListPreferences())

    def set_list(self, folders: Sequence[os.PathLike[str]], shown: ListPreferences) -> None:
        lists = self._document.lists
        lists.pop(_key(folders), None)
        lists[_key(folders)] = shown
        self._document.lists = dict(list(lists.items())[-_MAX_LISTS:])
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._path) as file:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(self._document), indent=1))


def default_path() -> Path:
    """Return the usual place of the file, below ``$XDG_STATE_HOME`` or else ``~/.local/state``."""
    return state_folder() / "monitor.json"


def _read(path: Path) -> _Document:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document)
    except (OSError, msgspec.DecodeError):  # none yet, or damaged: only the look of the list is lost
        return _Document()


def _key(folders: Sequence[os.PathLike[str]]) -> str:
    return os.pathsep.join(map(os.path.abspath, folders))
