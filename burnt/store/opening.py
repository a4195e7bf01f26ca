"""Open a run for writing: choose its folder, create the database or add an attempt to it.

All problems with the folder are raised here, on the calling thread, before the training starts.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnt._files import replacing
from burnt.errors import BurntError, ConfigError, RunError, did_you_mean
from burnt.store.pyramid import INTO_EVENT, insert
from burnt.store.schema import (
    DATABASE,
    RANKS,
    SCHEMA,
    TRIAL,
    check_schema,
    clean_text,
    connect,
    to_json,
    unreadable,
    unwritable,
)
from burnt.store.write_lease import ProcessName, writing_state

_NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.ceph"),
    *("fuse.sshfs", "glusterfs", "fuse.glusterfs", "lustre", "beegfs", "gpfs"),
)


EXISTS = ("error", "number", "resume")

# What burnt writes into a run's folder. Notes and tags are the user's.
OWN_NAMES = (
    *("config.json", "checkpoints", "control", "logs", "notes", "profile", "tags", "tensorboard"),
    *(RANKS, TRIAL),
)

# Each is 0 or NULL in a run that has nothing worth keeping.
_WORTH = """SELECT (SELECT max(step) FROM point), (SELECT max(step) FROM progress),
  (SELECT max(step) FROM event), (SELECT max(resumed_from_step) FROM attempt),
  (SELECT count(*) FROM attempt WHERE end_state = 'finished'),
  (SELECT count(*) FROM event WHERE kind = 'note')"""
_LAST_ATTEMPT = (
    "SELECT id, host, pid, process_started, heartbeat, ended FROM attempt ORDER BY id DESC LIMIT 1"
)


def choose_exists(exists: str | None, resume: bool, default: str = "error") -> str:
    """Return what to do if the folder holds a run, from two settings of which at most one is given.

    Raises:
        ConfigError: both are given, or one is invalid.
    """
    what = "a training setting is invalid"
    if resume not in (True, False):
        expected = "True: the run in the folder goes on from its newest checkpoint"
        raise ConfigError(what, where="resume", expected=expected, found=repr(resume))
    if exists is not None and exists not in EXISTS:
        expected = " or ".join(map(repr, EXISTS))
        hint = did_you_mean(exists, EXISTS) if isinstance(exists, str) else None
        raise ConfigError(what, where="exists", expected=expected, found=repr(exists), hint=hint)
    if exists is not None and resume:
        raise ConfigError(
            'resume=True is exists="resume"',
            where="exists",
            expected="one of the two",
            found=f"exists={exists!r} and resume=True",
            hint=f'exists="resume" if resume else {exists!r}' if exists != "resume" else None,
        )
    return "resume" if resume else exists or default


def is_own(name: str) -> bool:
    """Whether burnt writes a file of this name into a run's folder; also a hidden one."""
    return name in OWN_NAMES or name.startswith((DATABASE, "."))


def numbered_folders(base: Path) -> Iterator[Path]:
    """Yield a folder, then the same with a number after its name, from 2 on."""
    return itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))


def folder_taken(what: str, **parts: Any) -> RunError:
    """Return the error that a folder is used by something else: its `errno` is EEXIST."""
    error = RunError(what, **parts)
    error.errno = errno.EEXIST
    return error


def holds_nothing(folder: Path) -> bool:
    """Whether a folder's run can be replaced: it has neither a finished step nor a checkpoint.

    Nor is there a file, tag or note of the user, and no living process writes the run.
    """
    try:
        names = {name for name in os.listdir(folder) if not name.startswith(".")}
        checkpoints = os.listdir(folder / "checkpoints") if "checkpoints" in names else []
        if not all(map(is_own, names)) or names & {"notes", "tags"}:
            return False
        if not all(name.startswith(".") for name in checkpoints):
            return False
        path = folder / DATABASE
        with contextlib.closing(connect(path, "ro")) as connection:
            check_schema(connection, path)
            (worth,) = connection.execute(_WORTH).fetchall()
            last = connection.execute(_LAST_ATTEMPT).fetchone()
    except (OSError, sqlite3.Error, BurntError, UnicodeDecodeError):
        return False  # what cannot be read may be worth something
    return not any(worth) and (last is None or last[5] is not None or _state(last, time.time()) == "crashed")


def create_database(path: Path, name: str) -> None:
    """Create the database under a temporary name, then link it, so that no reader sees a partial schema."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    draft.unlink(missing_ok=True)
    try:
        draft.touch()
        connection = connect(draft, "rw")
        try:
            connection.executescript(f"BEGIN; {SCHEMA} COMMIT;")
            connection.execute("INSERT INTO run VALUES (1, ?, ?)", (clean_text(name), time.time()))
        finally:
            connection.close()
        try:
            try:
                os.link(draft, path)  # unlike a rename, this fails if another process was faster
            except FileExistsError:
                raise
            except OSError:  # a file system without hard links
                path.touch(exist_ok=False)
                draft.replace(path)
        except FileExistsError:
            raise folder_taken(
                f"{path.parent} already holds a run",
                where=str(path),
                hint=f"another process just created it{_TOGETHER}",
            ) from None
    except sqlite3.Error as error:
        raise unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


_TOGETHER = (
    '\nprocesses that train one model together need a launcher and not strategy="single": '
    "burnt train --nproc 2, or torchrun"
)


def begin_attempt(
    path: Path,
    resume: bool,
    resumed_from_step: int | None,
    config: str | None,
    since: float | None = None,
    *,
    replaced_by: str | None = None,
) -> tuple[sqlite3.Connection, int]:
    """Open the database for writing and add an attempt; raise if a live process is writing the run.

    With `replaced_by`, the name of a new run, it becomes the only attempt: what earlier ones have written is
    removed. Its number is not theirs, so that their processes notice if they only stood still.
    """
    try:
        connection = connect(path, "rw")
    except sqlite3.Error as error:
        raise unwritable(path, error) from error
    try:
        check_schema(connection, path)
        if resume:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
        _set_journal(connection, path)
        process, now = ProcessName.own(), time.time()
        connection.execute("BEGIN IMMEDIATE")
        last = connection.execute(_LAST_ATTEMPT).fetchone()
        if last is not None:
            _raise_if_running(path.parent, last, now)
            if since is not None and last[4] > since:
                raise folder_taken(
                    f"pid {last[2]} on {last[1]} has written {path.parent} since its checkpoint was chosen",
                    where=str(path),
                    hint="resume it again, from what is its newest checkpoint now",
                )
            if replaced_by is not None:
                _remove_rows(connection)
            elif not resume:
                raise folder_taken(f"{path.parent} already holds a run", where=str(path))
            # None means a start from the beginning: then rows of step 0 are superseded too.
            until = -1 if resumed_from_step is None else resumed_from_step
            connection.execute("UPDATE attempt SET visible_until = min(visible_until, ?)", (until,))
        if replaced_by is not None:
            connection.execute("UPDATE run SET name = ?, created = ?", (clean_text(replaced_by), now))
        attempt = 1 if last is None else last[0] + 1
        connection.execute(
            "INSERT INTO attempt (id, host, pid, process_started, started, heartbeat,"
            " resumed_from_step, config) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (attempt, *process, now, now, resumed_from_step, config),
        )
        kind = "start" if last is None or replaced_by is not None else "resume"
        data = to_json({"host": process.host, "pid": process.pid})
        insert(connection, INTO_EVENT, [(attempt, now, resumed_from_step, kind, data)])
        if config is not None:
            with replacing(path.with_name("config.json")) as file:
                file.write_text(config, encoding="utf-8")
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        connection.close()
        raise unwritable(path, error) from error
    # A UnicodeDecodeError comes from an error message that contains damaged SQL.
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        connection.close()
        raise unreadable(path, error) from error
    except OSError:  # includes RunError
        connection.close()
        raise
    return connection, attempt


def _remove_rows(connection: sqlite3.Connection) -> None:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'run'")
    for (table,) in tables.fetchall():
        connection.execute(f"DELETE FROM {table}")


def _state(last: tuple[Any, ...], now: float) -> str:
    _, host, pid, started, heartbeat, _ = last
    return writing_state(ProcessName(host, pid, started), heartbeat, now)


def _raise_if_running(folder: Path, last: tuple[Any, ...], now: float) -> None:
    _, host, pid, _, heartbeat, ended = last
    if ended is None and _state(last, now) == "running":
        raise folder_taken(
            f"{folder} is running: pid {pid} on {host}",
            where=str(folder / DATABASE),
            found=f"last heartbeat {max(now - heartbeat, 0.0):.1f} s ago",
            hint=f"stop that process first, or choose another folder{_TOGETHER}",
        )


def _set_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Use the write-ahead log, or the rollback journal where that does not work."""
    # The write-ahead log's index is in shared memory, which hosts on a network file system do not share.
    if not _is_on_network(path):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            mode = "refused"
        if mode == "wal":
            # Safe if the process is killed; a power cut may lose only the last seconds.
            connection.execute("PRAGMA synchronous = NORMAL")
            return
    connection.execute("PRAGMA journal_mode = DELETE")


def _is_on_network(path: Path) -> bool:
    import psutil

    resolved = path.resolve()
    partitions = [p for p in psutil.disk_partitions(all=True) if resolved.is_relative_to(p.mountpoint)]
    kind: str = max(partitions, key=lambda p: len(p.mountpoint)).fstype if partitions else ""
    return kind.lower() in _NETWORK_FILE_SYSTEMS
