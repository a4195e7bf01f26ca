"""Tags and notes of a run: small files that any process may add during the run and after it.

Only the training writes run.db, so they lie next to it: a tag is an empty file ``tags/NAME``, a note a JSON
file in ``notes/``. To add or remove one is a single operation of the file system, so that several processes
need no lock, and copying or merging folders keeps all of them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from burnt._files import parse_json, replacing, sync_folder
from burnt.errors import RunError
from burnt.store.control import check, user_name
from burnt.store.reader import Event, RunReader
from burnt.store.schema import DATABASE, write_errors

_TAGS, _NOTES = "tags", "notes"
_VERSION = 1
_MAX_NOTE_BYTES = 65_536
_TAG = re.compile(r"\w[\w.+-]{0,63}")


class Note(NamedTuple):
    """A note on a run; `step` is the newest step when it was added, `time` in Unix seconds."""

    time: float
    step: int | None
    text: str
    user: str


def check_tag(tag: str) -> str:
    """Return a tag, if it is valid: up to 64 letters, digits, ``_``, ``.``, ``+`` and ``-``.

    >>> check_tag("baseline-2")
    'baseline-2'
    """
    if not _TAG.fullmatch(tag):
        raise RunError(
            "the tag is not valid",
            expected="1 to 64 letters, digits, _ . + -, the first a letter or digit",
            found=repr(tag),
        )
    return tag


def read_tags(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the tags of a run, sorted; hidden files and invalid tags are ignored."""
    try:
        names = os.listdir(Path(folder, _TAGS))
    except OSError:  # no tags yet, or the run was deleted
        return ()
    return tuple(sorted(name for name in names if _TAG.fullmatch(name)))


def change_tags(
    folder: str | os.PathLike[str], add: Iterable[str] = (), remove: Iterable[str] = ()
) -> tuple[str, ...]:
    """Add and remove tags of a run, and return its tags afterwards.

    Tags that it has, or lacks, already cause no error; an invalid one, or no run in the folder, a RunError.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> RunWriter.create(folder).close("finished")
    >>> change_tags(folder, add=["baseline", "paper"]), change_tags(folder, remove=["paper"])
    (('baseline', 'paper'), ('baseline',))
    """
    to_add, to_remove = [check_tag(tag) for tag in add], [check_tag(tag) for tag in remove]
    tags = _subfolder(folder, _TAGS)
    with write_errors("the run folder cannot be written", Path(folder)):
        if to_add:
            tags.mkdir(exist_ok=True)
        for tag in to_add:
            (tags / tag).touch()
        for tag in to_remove:
            (tags / tag).unlink(missing_ok=True)
        if tags.exists():
            sync_folder(tags)
            sync_folder(tags.parent)
    return read_tags(folder)


def add_note(folder: str | os.PathLike[str], text: str, step: int | None = None) -> None:
    """Add a note of 1 to 2,000 characters to a run, which may be running or have ended.

    Raises a RunError if the text is not valid, or the folder holds no run or cannot be written.
    """
    text, notes, now = str(check("note", text)), _subfolder(folder, _NOTES), time.time_ns()
    document = {
        "version": _VERSION,
        "time": now / 1e9,
        "step": step,
        "text": text,
        "sender": {"user": user_name(), "host": socket.gethostname()},
    }
    with write_errors("the run folder cannot be written", Path(folder)):
        notes.mkdir(exist_ok=True)
        # The names sort in the order of writing.
        with replacing(notes / f"{now:020d}-{secrets.token_hex(4)}.json") as file:
            file.write_text(json.dumps(document), encoding="utf-8")
        sync_folder(notes.parent)


def read_notes(folder: str | os.PathLike[str]) -> list[Note]:
    """Return the notes in a run's ``notes/``, oldest first; a damaged one says so in its text."""
    try:
        paths = sorted(Path(folder, _NOTES).glob("[!.]*.json"))
    except OSError:  # the run was deleted
        return []
    notes = [_read_note(path) for path in paths]
    return sorted(notes, key=lambda note: note.time)


def event_notes(events: Iterable[Event]) -> list[Note]:
    """Return the notes among a run's events, which `burnt ctl RUN note` adds to a running training."""
    return [
        Note(event.time, event.step, str(event.data.get("text")), _sender_user(event.data))
        for event in events
        if event.kind == "note"
    ]


def all_notes(reader: RunReader) -> list[Note]:
    """Return the notes of a run, from its events and its ``notes/``, oldest first."""
    notes = [*event_notes(reader.events("note")), *read_notes(reader.folder)]
    return sorted(notes, key=lambda note: note.time)


def tags_stamp(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Return a value that changes when tags or notes are added or removed; costs two ``stat`` calls."""
    stamps = []
    for name in (_TAGS, _NOTES):
        try:
            stamps.append(os.stat(os.path.join(folder, name)).st_mtime_ns)
        except OSError:
            stamps.append(0)
    return stamps[0], stamps[1]


def _read_note(path: Path) -> Note:
    written = 0.0
    try:
        written = path.stat().st_mtime
        with path.open("rb") as file:
            document = parse_json(file.read(_MAX_NOTE_BYTES))
        step, when = document.get("step"), document.get("time")
        return Note(
            float(when) if isinstance(when, int | float) else written,
            step if isinstance(step, int) else None,
            str(document["text"]),
            _sender_user(document),
        )
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return Note(written, None, f"({path.parent.name}/{path.name} cannot be read: {error!r})", "")


def _sender_user(data: Mapping[str, Any]) -> str:
    sender = data.get("sender")
    return str(sender.get("user") or "") if isinstance(sender, dict) else str(sender or "")


def _subfolder(folder: str | os.PathLike[str], name: str) -> Path:
    if not Path(folder, DATABASE).is_file():
        raise RunError(f"{os.fspath(folder)} holds no run", expected=os.path.join(folder, DATABASE))
    return Path(folder, name)
