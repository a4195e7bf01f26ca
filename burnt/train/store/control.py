"""Commands to a training that runs: small files in the run's `control/`, and the answers to them.

A sender (a viewer, `burnt ctl`, a script) writes a JSON file aside and renames it into `control/`; it never
opens `run.db` for writing. The training looks there once a step, carries out what it finds in the order of
the files' names, answers each by an event of kind ``command``, and removes the file. What it cannot take is
refused with the reason; a file that is no command is moved to `control/refused/` as well.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import secrets
import socket
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from burnt._json import parse_json
from burnt.errors import BurntError, RunError, UnsupportedError, nearest
from burnt.train.store.reader import RunReader
from burnt.train.store.schema import clean_text

__all__ = [
    "KINDS",
    "MAX_NOTE",
    "Acknowledgement",
    "Command",
    "Inbox",
    "Refused",
    "acknowledgement",
    "check",
    "send",
    "waiting",
]

KINDS = ("pause", "resume", "stop", "save", "lr", "note")
MAX_NOTE = 2_000  # characters

_VERSION = 1
_MAX_BYTES = 65_536
_MAX_ID = 100  # characters
_MAX_TIME = 1e11  # Unix seconds; calendars end before
_FOLDER, _REFUSED = "control", "refused"
_MAX_REFUSED = 100  # files kept in refused/, so that a program gone wild does not fill the disk
_MAX_AT_ONCE = 16  # files looked at in one poll

# A folder's modification time is that of the kernel's last tick: up to 10 ms on Linux, 2 s on some others'
# file systems, and a network file system may show an old one for longer. So what is renamed in right after
# a look may not show in it: for so long after a change the folder is listed whatever its time says, and
# once every second in any case.
_TICK_SECONDS = 0.05
_LOOK_SECONDS = 1.0


class Command(NamedTuple):
    """What somebody asks of a training.

    `value` is the learning rate (a float, or ``"auto"``) of `lr`, the text of `note`, None of the others;
    `sender` is who asked, for people; `time` is when, in Unix seconds of the sender's host.
    """

    id: str
    kind: str
    value: float | str | None
    sender: str
    time: float


class Refused(NamedTuple):
    """A file in `control/` that is no command which this training can take, and why not."""

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
    """The value of a command as it is sent.

    Args:
        kind: one of `KINDS`.
        value: of `lr` a finite number above 0, also as text, or ``"auto"``; of `note` a text of 1 to
            `MAX_NOTE` characters; None of the others.

    Raises:
        UnsupportedError: there is no such command.
        RunError: the value is none that the command takes.

    >>> check("lr", "1e-3"), check("lr", "auto"), check("note", " better data "), check("pause")
    (0.001, 'auto', 'better data', None)
    """
    if kind not in KINDS:
        close = nearest(kind, KINDS) if isinstance(kind, str) else None
        raise UnsupportedError(
            f"there is no command {kind!r}",
            expected=", ".join(KINDS),
            found=repr(kind)[:200],
            hint=f"did you mean {close!r}?" if close else None,
        )
    if kind == "lr":
        return _rate(value)
    if kind == "note":
        return _note(value)
    if value is not None:
        raise RunError(f"the command {kind} takes no value", expected="none", found=repr(value)[:200])
    return None


def _rate(value: object) -> float | str:
    if value is None:
        raise RunError(
            "lr needs a VALUE: a number, or auto", expected="a finite number above 0, or auto", found="none"
        )
    if value == "auto":
        return "auto"
    try:
        rate = float(value) if isinstance(value, int | float | str) and value is not True else math.nan
    except (ValueError, OverflowError):
        rate = math.nan
    if not 0 < rate < math.inf:
        raise RunError(
            "the learning rate cannot be set to that",
            expected="a finite number above 0, or auto: as the schedule says",
            found=repr(value)[:200],
        )
    return rate


def _note(value: object) -> str:
    text = clean_text(value).strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= MAX_NOTE:
        raise RunError(
            "the note cannot be added",
            expected=f"a text of 1 to {MAX_NOTE:,} characters",
            found=f"{len(text):,} characters" if isinstance(value, str) else repr(value)[:200],
        )
    return text


def send(folder: str | os.PathLike[str], kind: str, value: object = None) -> str:
    """Send a command to the training that writes a run.

    Args:
        folder: the run's folder.
        kind: one of `KINDS`.
        value: as `check` takes it.

    Returns:
        The command's id, for `acknowledgement`.

    Raises:
        UnsupportedError: there is no such command.
        RunError: the value cannot be; there is no run in the folder, or it is not running, or this user may
            not write to its `control/`.

    >>> import tempfile
    >>> from burnt.train.store import RunReader, RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> with RunWriter.create(folder) as run:
    ...     id = send(folder, "lr", 1e-4)
    ...     [command] = Inbox(run.folder, run.attempt).poll()
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
            expected="a training that runs",
            found=state + (f": {attempt.end_reason}" if attempt.end_reason not in (None, state) else ""),
            hint="to train it further, start its program again, if that takes these settings: "
            f"burnt train PROGRAM folder={os.fspath(folder)} resume=true",
        )
    now = time.time_ns()
    # Names in order of sending, so that the training needs no more than their order.
    id = f"{now:020d}-{secrets.token_hex(4)}"
    document = {
        "version": _VERSION,
        "id": id,
        "kind": kind,
        "value": value,
        "attempt": attempt.id,
        "sender": {"user": _user(), "host": socket.gethostname(), "pid": os.getpid()},
        "time": now / 1e9,
    }
    control = Path(folder, _FOLDER)
    aside = control / f".{id}"
    try:
        # Not synced to the disk: a command that a power cut loses was meant for a training that it ends.
        aside.write_text(json.dumps(document), encoding="utf-8")
        aside.rename(control / f"{id}.json")
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise RunError(
            "the command cannot be sent",
            where=str(control),
            found=error.strerror or str(error),
            hint="commands are files in that folder: this user must be able to write to it",
        ) from error
    return id


def acknowledgement(reader: RunReader, id: str) -> Acknowledgement | None:
    """The training's answer to a command; None as long as there is none.

    Args:
        reader: of the run.
        id: what `send` returned.
    """
    for event in reversed(reader.events("command")):
        if event.data.get("id") == id:
            data = event.data
            status: Literal["done", "refused"] = "done" if data.get("status") == "done" else "refused"
            return Acknowledgement(
                id, data.get("command"), data.get("value"), status, data.get("reason"), event.step, event.time
            )
    return None


def waiting(folder: str | os.PathLike[str]) -> list[Command]:
    """The commands in a run's `control/` that no training has answered yet, in order of sending."""
    control = os.path.join(folder, _FOLDER)
    try:
        names = _names(control)
    except OSError:
        return []
    read = (_read(control, name) for name in names)
    return [found.command for found in read if isinstance(found, _Sent)]


class Inbox:
    """The commands that arrive in a run's `control/`, as the training reads them.

    Args:
        folder: the run's folder.
        attempt: the id of the attempt that reads; what was sent to an earlier one is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], attempt: int) -> None:
        self._control = os.path.join(folder, _FOLDER)
        self._attempt = attempt
        self._modified = -1
        self._settled = self._look = 0.0
        self._taken: set[str] = set()
        try:
            self._early = frozenset(_names(self._control))
        except OSError:
            self._early = frozenset()

    def poll(self) -> Sequence[Command | Refused]:
        """What has arrived since the last call, in order of sending; never raises.

        A command's file stays until `answered`. When nothing has arrived, the call costs an `os.stat`.
        """
        try:
            modified = os.stat(self._control).st_mtime_ns
        except OSError:  # somebody removed the folder, and senders are told so
            return ()
        now = time.monotonic()
        if modified == self._modified and now < self._look:
            return ()
        if modified != self._modified:
            self._modified, self._settled = modified, now + _TICK_SECONDS
        self._look = now if now < self._settled else now + _LOOK_SECONDS
        try:
            names = [name for name in _names(self._control) if name not in self._taken]
        except OSError:
            return ()
        if len(names) > _MAX_AT_ONCE:
            self._look = now
        return [found for name in names[:_MAX_AT_ONCE] if (found := self._take(name)) is not None]

    def answered(self, id: str) -> None:
        """Remove the file of a command that the training has answered."""
        name = f"{id}.json"
        with contextlib.suppress(OSError):  # what stays is not taken again
            os.unlink(os.path.join(self._control, name))
            self._taken.discard(name)

    def _take(self, name: str) -> Command | Refused | None:
        self._taken.add(name)
        found = _read(self._control, name)
        if isinstance(found, _Sent):
            attempt = self._attempt if found.attempt is None else found.attempt
            if attempt != self._attempt or (found.attempt is None and name in self._early):
                self.answered(found.command.id)
                reason = "it was sent before this attempt at the run began"
                return Refused(found.command.id, found.command.kind, found.command.value, reason)
            return found.command
        if found is not None:
            self._put_away(name)
        return found

    def _put_away(self, name: str) -> None:
        """Move what is no command to `refused/`, where a person can look at it."""
        path, folder = os.path.join(self._control, name), os.path.join(self._control, _REFUSED)
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            if len(os.listdir(folder)) < _MAX_REFUSED:
                # A rename takes links, pipes and folders as they are, and opens none of them.
                os.rename(path, os.path.join(folder, f"{name[:150]}.{secrets.token_hex(4)}"))
            else:
                os.unlink(path)
            self._taken.discard(name)


class _Sent(NamedTuple):
    command: Command
    attempt: int | None


def _names(control: str) -> list[str]:
    return sorted(name for name in os.listdir(control) if name[0] != "." and name != _REFUSED)


def _read(control: str, name: str) -> _Sent | Refused | None:
    """The command in a file, or why it is none; None when the file is gone."""
    stem = name.removesuffix(".json")
    shown = clean_text(stem)[:_MAX_ID]
    try:
        text = _content(os.path.join(control, name))
        document = parse_json(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Refused(shown, None, None, f"it cannot be read: {error.strerror or error}")
    except ValueError:
        return Refused(shown, None, None, "it is not JSON in UTF-8")
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return Refused(shown, None, None, "it is no command")
    kind, value = clean_text(document["kind"])[:_MAX_ID], document.get("value")
    if document.get("version") != _VERSION:
        found = repr(document.get("version"))[:_MAX_ID]
        return Refused(
            shown, None, None, f"it is of version {found}, and this burnt reads version {_VERSION}"
        )
    if name == stem or document.get("id") != stem or len(stem) > _MAX_ID:
        return Refused(
            shown, None, None, f"its name is not its id with .json, of {_MAX_ID} characters at most"
        )
    try:
        value = check(kind, value)
    except RecursionError:
        return Refused(shown, kind, None, "its value is nested too deeply")
    except BurntError as error:
        found = f": {error.found}, expected {error.expected}" if error.found is not None else ""
        return Refused(shown, kind, repr(value)[:_MAX_ID], error.what + found)
    attempt, when = document.get("attempt"), document.get("time")
    command = Command(
        stem,
        kind,
        value,
        _sender(document.get("sender")),
        float(when) if isinstance(when, int | float) and 0 <= when < _MAX_TIME else 0.0,
    )
    return _Sent(command, attempt if isinstance(attempt, int) else None)


def _content(path: str) -> str:
    """The text of a regular file of moderate size; no pipe or device is waited for, no link followed."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if status.st_size > _MAX_BYTES:
            raise OSError(f"it has {status.st_size:,} bytes, more than {_MAX_BYTES:,}")
        return file.read(_MAX_BYTES + 1).decode("utf-8")


def _sender(sender: object) -> str:
    known = sender if isinstance(sender, dict) else {}
    user, host = (known.get(key) for key in ("user", "host"))
    parts = [clean_text(part)[:_MAX_ID] for part in (user, host) if isinstance(part, str) and part]
    return " on ".join(parts) or "somebody"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
