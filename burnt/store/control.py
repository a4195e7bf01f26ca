"""Run commands: small files in a run's `control/` folder that control a running training, and their answers.

A sender (a viewer, `burnt ctl`, a script) writes a JSON file under a temporary name and renames it into
`control/`; it never opens `run.db` for writing. After each step the training reads the files in the order of
their names, executes the commands, answers each by an event of kind ``command``, and removes the file. A
command that it cannot execute is refused with the reason; a file that is not a command is also moved to
`control/refused/`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import secrets
import shlex
import socket
import stat
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from burnt._files import parse_json
from burnt.errors import BurntError, RunError, UnsupportedError, did_you_mean
from burnt.store.reader import RunReader
from burnt.store.schema import clean_text, write_errors
from burnt.store.write_lease import WriteLease

KINDS = ("pause", "resume", "stop", "save", "lr", "note")
MAX_NOTE = 2_000  # characters

_VERSION = 1
_MAX_BYTES = 65_536
_MAX_ID = 100  # characters
_MAX_TIME = 1e11  # Unix seconds; datetime cannot represent later times
_FOLDER, _REFUSED = "control", "refused"
_MAX_REFUSED = 100  # files kept in refused/, so that a faulty sender cannot fill the disk
_MAX_FILES_PER_POLL = 16  # files read in one poll

# A folder's modification time has the resolution of the kernel's tick: up to 10 ms on Linux, 2 s on some
# other file systems, and a network file system may report an old time for longer. A file renamed into the
# folder right after it was listed may thus not change the time. So the folder is listed at every poll for
# _UNSTABLE_SECONDS after a change, and at least once every _LISTING_SECONDS.
_UNSTABLE_SECONDS = 0.05
_LISTING_SECONDS = 1.0


class Command(NamedTuple):
    """A command to a training.

    `value` is the learning rate (a float, or ``"auto"``) of `lr`, the text of `note`, and None for the
    others. `sender` names the sender, for people. `time` is when it was sent, in Unix seconds of the sender's
    host. `attempt` is the one that it was sent to, if it says so.
    """

    id: str
    kind: str
    value: float | str | None
    sender: str
    time: float
    attempt: int | None = None


class Refused(NamedTuple):
    """A file in `control/` that this training cannot execute, and the reason."""

    id: str
    kind: str | None
    value: object
    reason: str


class Acknowledgement(NamedTuple):
    """A training's answer to a command."""

    id: str
    command: str | None
    value: object
    status: Literal["done", "refused"]
    reason: str | None
    step: int | None
    time: float


def check(kind: str, value: object = None) -> float | str | None:
    """Check a command and return its value as it is sent; raise an UnsupportedError or a RunError.

    The value of `lr` is a finite number above 0 (also as text) or ``"auto"``, the value of `note` a text of 1
    to `MAX_NOTE` characters; other commands have none.

    >>> check("lr", "1e-3"), check("lr", "auto"), check("note", " better data "), check("pause")
    (0.001, 'auto', 'better data', None)
    """
    if kind not in KINDS:
        raise UnsupportedError(
            f"there is no command {kind!r}",
            expected=", ".join(KINDS),
            found=repr(kind)[:200],
            hint=did_you_mean(kind, KINDS),
        )
    if kind == "lr":
        return _check_rate(value)
    if kind == "note":
        return _check_note(value)
    if value is not None:
        raise RunError(f"the command {kind} takes no value", expected="none", found=repr(value)[:200])
    return None


def _check_rate(value: object) -> float | str:
    if value is None:
        raise RunError(
            "lr needs a VALUE: a number or auto", expected="a finite number above 0, or auto", found="none"
        )
    if value == "auto":
        return "auto"
    try:
        rate = float(value) if isinstance(value, int | float | str) and value is not True else math.nan
    except (ValueError, OverflowError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise RunError(
            "the learning rate is not valid",
            expected="a finite number above 0, or auto to follow the schedule",
            found=repr(value)[:200],
        )
    return rate


def _check_note(value: object) -> str:
    text = clean_text(value).strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= MAX_NOTE:
        raise RunError(
            "the note is not valid",
            expected=f"a text of 1 to {MAX_NOTE:,} characters",
            found=f"{len(text):,} characters" if isinstance(value, str) else repr(value)[:200],
        )
    return text


def send(folder: str | os.PathLike[str], kind: str, value: object = None, user: str | None = None) -> str:
    """Send a command to the training that writes a run; return the command's id, for `acknowledgement`.

    `user` names the sender in messages, by default this user.

    Besides what `check` raises, a RunError says that the folder holds no run, that the run is not running, or
    that this user cannot write to its `control/`.

    >>> import tempfile
    >>> from burnt.store import RunReader, RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder) as run:
    ...     id = send(folder, "lr", 1e-4)
    ...     [command] = Inbox(run.lease).poll()
    >>> command.kind, command.value, acknowledgement(RunReader(folder), id)
    ('lr', 0.0001, None)
    >>> send(folder, "pause")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    burnt.errors.RunError: ... is not running, so it takes no commands
      ...
    """
    value = check(kind, value)
    with RunReader(folder) as reader:
        state, attempt = reader.state(), reader.attempts()[-1]
    if state not in ("running", "stale"):
        raise RunError(
            f"{os.fspath(folder)} is not running, so it takes no commands",
            where=os.fspath(folder),
            expected="a running training",
            found=state + (f": {attempt.end_reason}" if attempt.end_reason not in (None, state) else ""),
            hint="to continue the run, start the same program again with the folder "
            f"{os.fspath(folder)} and resume=True, or: burnt train --resume {shlex.quote(os.fspath(folder))}",
        )
    now = time.time_ns()
    # The names sort in the order of sending.
    id = f"{now:020d}-{secrets.token_hex(4)}"
    document = {
        "version": _VERSION,
        "id": id,
        "kind": kind,
        "value": value,
        "attempt": attempt.id,
        "sender": {"user": user or user_name(), "host": socket.gethostname(), "pid": os.getpid()},
        "time": now / 1e9,
    }
    control = Path(folder, _FOLDER)
    temporary = control / f".{id}"
    with write_errors(
        "the command cannot be sent",
        control,
        "commands are files in that folder; this user needs write permission for it",
    ):
        try:
            # No fsync: a power cut that loses the command also ends the training.
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.rename(control / f"{id}.json")
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    return id


def acknowledgement(reader: RunReader, id: str) -> Acknowledgement | None:
    """Return the training's answer to the command whose id `send` returned; None if there is none yet."""
    for event in reversed(reader.events("command")):
        if event.data.get("id") == id:
            data = event.data
            status: Literal["done", "refused"] = "done" if data.get("status") == "done" else "refused"
            return Acknowledgement(
                id, data.get("command"), data.get("value"), status, data.get("reason"), event.step, event.time
            )
    return None


def waiting(folder: str | os.PathLike[str]) -> list[Command]:
    """Return the commands in a run's `control/` that are not answered yet, in the order of sending."""
    control = os.path.join(folder, _FOLDER)
    try:
        names = _names(control)
    except OSError:
        return []
    return [found for name in names if isinstance(found := _read(control, name), Command)]


class Inbox:
    """Reads the commands that arrive in a run's `control/`; used by the training.

    Commands sent to an earlier attempt are refused. Once another process has resumed the run, no file is
    touched.
    """

    def __init__(self, lease: WriteLease) -> None:
        self._lease = lease
        self._control = os.path.join(lease.folder, _FOLDER)
        self._modified = -1
        self._stable_at = self._next_listing = 0.0
        self._seen: set[str] = set()
        try:
            self._earlier_files = frozenset(_names(self._control))
        except OSError:
            self._earlier_files = frozenset()

    def poll(self) -> Sequence[Command | Refused]:
        """Return the commands that arrived since the last call, in the order of sending.

        A command's file stays until `mark_answered`. If nothing has arrived, the call costs one `os.stat`.
        Raises a TakenOverError if there are new files, and another process trains the run.
        """
        try:
            modified = os.stat(self._control).st_mtime_ns
        except OSError:  # the folder was removed; `send` then raises for the senders
            return ()
        now = time.monotonic()
        if modified == self._modified and now < self._next_listing:
            return ()
        if modified != self._modified:
            self._modified, self._stable_at = modified, now + _UNSTABLE_SECONDS
        self._next_listing = now if now < self._stable_at else now + _LISTING_SECONDS
        try:
            names = [name for name in _names(self._control) if name not in self._seen]
            if names:
                with self._lease.hold():
                    pass
        except OSError:  # or a RunError: the folder is another run's by now
            return ()
        if len(names) > _MAX_FILES_PER_POLL:
            self._next_listing = now
        return [found for name in names[:_MAX_FILES_PER_POLL] if (found := self._read_new(name)) is not None]

    def mark_answered(self, id: str) -> None:
        """Remove the file of a command that the training has answered, unless it was taken over."""
        name = f"{id}.json"
        with contextlib.suppress(OSError), self._lease.hold():  # a file that stays is not read again
            os.unlink(os.path.join(self._control, name))
            self._seen.discard(name)

    def _read_new(self, name: str) -> Command | Refused | None:
        self._seen.add(name)
        found = _read(self._control, name)
        if isinstance(found, Refused):
            self._move_to_refused(name)
        elif found is not None and (
            name in self._earlier_files if found.attempt is None else found.attempt != self._lease.attempt
        ):
            self.mark_answered(found.id)
            return Refused(found.id, found.kind, found.value, "it was sent before this attempt started")
        return found

    def _move_to_refused(self, name: str) -> None:
        """Move a file that is not a command to `refused/`, so that the user can inspect it."""
        path, folder = os.path.join(self._control, name), os.path.join(self._control, _REFUSED)
        with contextlib.suppress(OSError), self._lease.hold():
            os.makedirs(folder, exist_ok=True)
            if len(os.listdir(folder)) < _MAX_REFUSED:
                # A rename also works for links, pipes and folders, without opening them.
                os.rename(path, os.path.join(folder, f"{name[:150]}.{secrets.token_hex(4)}"))
            else:
                os.unlink(path)
            self._seen.discard(name)


def _names(control: str) -> list[str]:
    return sorted(name for name in os.listdir(control) if name[0] != "." and name != _REFUSED)


def _read(control: str, name: str) -> Command | Refused | None:
    """Return the command in a file, or why it is refused; None if the file is gone."""
    stem = name.removesuffix(".json")
    safe_id = clean_text(stem)[:_MAX_ID]
    refused = partial(Refused, safe_id, None, None)
    try:
        text = _read_text(os.path.join(control, name))
        document = parse_json(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        return refused(f"it cannot be read: {error.strerror or error}")
    except ValueError:
        return refused("it is not JSON in UTF-8")
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return refused("it is not a command")
    kind, value = clean_text(document["kind"])[:_MAX_ID], document.get("value")
    if document.get("version") != _VERSION:
        found = repr(document.get("version"))[:_MAX_ID]
        return refused(f"it has version {found}, but this burnt reads version {_VERSION}")
    if name == stem or document.get("id") != stem or len(stem) > _MAX_ID:
        return refused(f"its name must be its id plus .json, the id at most {_MAX_ID} characters long")
    try:
        value = check(kind, value)
    except RecursionError:
        return Refused(safe_id, kind, None, "its value is nested too deeply")
    except BurntError as error:
        found = f": {error.found}, expected {error.expected}" if error.found is not None else ""
        return Refused(safe_id, kind, repr(value)[:_MAX_ID], error.what + found)
    attempt, when = document.get("attempt"), document.get("time")
    return Command(
        stem,
        kind,
        value,
        _sender_text(document.get("sender")),
        float(when) if isinstance(when, int | float) and 0 <= when < _MAX_TIME else 0.0,
        attempt if isinstance(attempt, int) else None,
    )


def _read_text(path: str) -> str:
    """Return the text of a regular file of at most 64 KiB; follow no link, wait for no pipe or device."""
    if sys.platform == "win32":  # pipes and devices are not in folders; only administrators make links
        flags = os.O_RDONLY | os.O_BINARY | os.O_NOINHERIT
    else:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > _MAX_BYTES:
            raise OSError(f"it has {status.st_size:,} bytes, more than {_MAX_BYTES:,}")
        return file.read(_MAX_BYTES + 1).decode("utf-8")


def _sender_text(sender: object) -> str:
    known = sender if isinstance(sender, dict) else {}
    user, host = (known.get(key) for key in ("user", "host"))
    parts = [clean_text(part)[:_MAX_ID] for part in (user, host) if isinstance(part, str) and part]
    return " on ".join(parts) or "an unknown sender"


def user_name() -> str:
    """Return the name of the user of this process, for people."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container, the user may have no name
        return "unknown" if sys.platform == "win32" else str(os.getuid())
