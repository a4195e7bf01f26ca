"""`Preferences`: what the monitor remembers between sessions, in a small JSON file. Without Textual.

It holds the theme, and for each set of folders the columns and the order of the list of runs. A file that
cannot be read is ignored and replaced by the next change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnt._files import replacing, state_folder
from burnt._json import parse_json

_VERSION = 1
_MAX_LISTS = 100  # the most recently changed are kept
_MAX_BYTES = 1_000_000


class ListPreferences(NamedTuple):
    """How a list of runs is shown."""

    columns: tuple[str, ...] | None = None  # keys after the run's name; None shows the usual ones
    sort: str = "age"  # the key of a column
    descending: bool = False


class Preferences:
    """The remembered settings; each change is written at once.

    Args:
        path: the file; None remembers nothing beyond this object.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._data: dict[str, Any] = {} if path is None else _read(path)

    @property
    def theme(self) -> str | None:
        """The name of the theme; None if none was chosen."""
        theme = self._data.get("theme")
        return theme if isinstance(theme, str) else None

    def set_theme(self, name: str) -> None:
        """Remember the theme.

        Raises:
            OSError: the file cannot be written; this object remembers it nevertheless.
        """
        self._data["theme"] = name
        self._write()

    def list_of(self, folders: Sequence[os.PathLike[str]]) -> ListPreferences:
        """Return how the list of the runs in these folders is shown."""
        entry = self._lists().get(_key(folders))
        if not isinstance(entry, dict):
            return ListPreferences()
        columns, sort = entry.get("columns"), entry.get("sort")
        return ListPreferences(
            None if columns is None else _texts(columns),
            sort if isinstance(sort, str) else "age",
            entry.get("descending") is True,
        )

    def set_list(self, folders: Sequence[os.PathLike[str]], shown: ListPreferences) -> None:
        """Remember how a list is shown.

        Raises:
            OSError: the file cannot be written; this object remembers it nevertheless.
        """
        lists = {key: entry for key, entry in self._lists().items() if key != _key(folders)}
        lists[_key(folders)] = shown._asdict()
        self._data["lists"] = dict(list(lists.items())[-_MAX_LISTS:])
        self._write()

    def _lists(self) -> dict[str, Any]:
        lists = self._data.get("lists")
        return lists if isinstance(lists, dict) else {}

    def _write(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._path) as file:
            file.write_text(json.dumps({"version": _VERSION, **self._data}, indent=1), encoding="utf-8")


def default_path() -> Path:
    """Return the usual place of the file, below ``$XDG_STATE_HOME`` or else ``~/.local/state``."""
    return state_folder() / "monitor.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = parse_json(file.read(_MAX_BYTES))
    except (OSError, ValueError):  # none yet, or damaged: only the look of the list is lost
        return {}
    return data if isinstance(data, dict) and data.get("version") == _VERSION else {}


def _key(folders: Sequence[os.PathLike[str]]) -> str:
    return os.pathsep.join(map(os.path.abspath, folders))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
