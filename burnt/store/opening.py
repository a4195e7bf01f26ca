"""Open a run for writing: create the database or add an attempt to it.

All problems with the folder are raised here, on the calling thread, before the training starts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from burnt._files import replacing
from burnt.errors import RunError
from burnt.store.pyramid import INTO_EVENT, insert
from burnt.store.schema import (
    DATABASE,
    SCHEMA,
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


def create_database(path: Path, name: str) -> None:
    """Create the database under a temporary name, then link it, so that no reader sees a partial schema."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
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
            os.link(draft, path)  # unlike a rename, this fails if another process was faster
        except FileExistsError:
            raise RunError(
                f"{path.parent} already holds a run", where=str(path), hint="another process just created it"
            ) from None
        except OSError:  # a file system without hard links
            draft.replace(path)
    except sqlite3.Error as error:
        raise unwritable(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


def begin_attempt(
    path: Path, resume: bool, resumed_from_step: int | None, config: str | None, since: float | None = None
) -> tuple[sqlite3.Connection, int]:
    """Open the database for writing and add an attempt; raise if a live process is writing the run."""
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
        last = connection.execute(
            "SELECT id, host, pid, process_started, heartbeat, ended FROM attempt ORDER BY id DESC LIMIT 1"
        ).fetchone()
        if last is not None:
            _raise_if_running(path.parent, last, now)
            if since is not None and last[4] > since:
                raise RunError(
                    f"pid {last[2]} on {last[1]} has written {path.parent} since its checkpoint was chosen",
                    where=str(path),
                    hint="resume it again, from what is its newest checkpoint now",
                )
            # None means a start from the beginning: then rows of step 0 are superseded too.
            until = -1 if resumed_from_step is None else resumed_from_step
            connection.execute("UPDATE attempt SET visible_until = min(visible_until, ?)", (until,))
        attempt = 1 if last is None else last[0] + 1
        connection.execute(
            "INSERT INTO attempt (id, host, pid, process_started, started, heartbeat,"
            " resumed_from_step, config) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (attempt, *process, now, now, resumed_from_step, config),
        )
        kind = "start" if last is None else "resume"
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


def _raise_if_running(folder: Path, last: tuple[Any, ...], now: float) -> None:
    _, host, pid, started, heartbeat, ended = last
    if ended is None and writing_state(ProcessName(host, pid, started), heartbeat, now) == "running":
        raise RunError(
            f"{folder} is running: pid {pid} on {host}",
            where=str(folder / DATABASE),
            found=f"last heartbeat {max(now - heartbeat, 0.0):.1f} s ago",
            hint="stop that process first, or choose another folder",
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
