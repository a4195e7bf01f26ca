"""The tables and views of `run.db`; opening and checking a connection.

docs/run-store.md describes every column, for those who read the file with their own tools. A change of a
table's meaning increments `SCHEMA_VERSION`; readers reject newer versions.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from burnt.errors import RunError

APPLICATION_ID = 0x6275726E  # "burn"
SCHEMA_VERSION = 1
DATABASE = "run.db"
RUN_FILE = "BURNT_RUN_FILE"
"""The environment variable that names a file, for a launcher to learn the folder of the run."""
RANKS = "ranks"  # the folder with the stores of ranks other than 0
TRIAL = "trial.json"  # what a sweep says of a run that is one of its trials
REMOVED = re.compile(r"\..+\.removed-[0-9a-f]{8}")  # folders of runs that are being removed
MAX_INTEGER = 2**63 - 1  # the largest integer SQLite holds; as `visible_until` it means "all rows"

# How long a connection waits for a lock held by another one. Transactions of readers take milliseconds.
BUSY_SECONDS = 5.0

SCHEMA = f"""
CREATE TABLE run (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  name TEXT NOT NULL,
  created REAL NOT NULL
);
CREATE TABLE attempt (
  id INTEGER PRIMARY KEY,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  process_started REAL NOT NULL,
  started REAL NOT NULL,
  heartbeat REAL NOT NULL,
  ended REAL,
  end_state TEXT CHECK (end_state IN ('finished', 'stopped', 'crashed')),
  end_reason TEXT,
  resumed_from_step INTEGER,
  visible_until INTEGER NOT NULL DEFAULT {MAX_INTEGER},
  dropped INTEGER NOT NULL DEFAULT 0,
  config TEXT
);
CREATE TABLE progress (
  attempt INTEGER PRIMARY KEY REFERENCES attempt,
  time REAL NOT NULL,
  step INTEGER NOT NULL,
  epoch INTEGER,
  total_steps INTEGER,
  total_epochs INTEGER,
  activity TEXT NOT NULL,
  data TEXT NOT NULL
);
CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  split TEXT NOT NULL,
  UNIQUE (name, split)
);
CREATE TABLE point (
  series INTEGER NOT NULL REFERENCES series,
  attempt INTEGER NOT NULL REFERENCES attempt,
  position INTEGER NOT NULL,
  step INTEGER NOT NULL,
  epoch INTEGER,
  time REAL NOT NULL,
  value REAL,
  PRIMARY KEY (series, attempt, position)
) WITHOUT ROWID;
CREATE TABLE bucket (
  series INTEGER NOT NULL REFERENCES series,
  attempt INTEGER NOT NULL REFERENCES attempt,
  level INTEGER NOT NULL,
  position INTEGER NOT NULL,
  points INTEGER NOT NULL,
  finite INTEGER NOT NULL,
  first_step INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  sum REAL,
  min REAL, min_step INTEGER, min_time REAL,
  max REAL, max_step INTEGER, max_time REAL,
  nonfinite REAL, nonfinite_step INTEGER, nonfinite_time REAL,
  PRIMARY KEY (series, attempt, level, position)
) WITHOUT ROWID;
CREATE TABLE event (
  id INTEGER PRIMARY KEY,
  attempt INTEGER NOT NULL REFERENCES attempt,
  time REAL NOT NULL,
  step INTEGER,
  kind TEXT NOT NULL,
  data TEXT NOT NULL
);
CREATE TABLE log_line (
  id INTEGER PRIMARY KEY,
  attempt INTEGER NOT NULL REFERENCES attempt,
  time REAL NOT NULL,
  level TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE TABLE system_sample (
  id INTEGER PRIMARY KEY,
  attempt INTEGER NOT NULL REFERENCES attempt,
  time REAL NOT NULL,
  data TEXT NOT NULL
);
CREATE TABLE artefact (
  id INTEGER PRIMARY KEY,
  attempt INTEGER NOT NULL REFERENCES attempt,
  time REAL NOT NULL,
  step INTEGER,
  kind TEXT NOT NULL CHECK (kind IN ('table', 'histogram', 'image')),
  name TEXT NOT NULL,
  data BLOB NOT NULL
);
CREATE VIEW metrics AS
  SELECT s.name, s.split, p.step, p.epoch, p.value, p.time, p.attempt
  FROM point AS p JOIN series AS s ON s.id = p.series JOIN attempt AS a ON a.id = p.attempt
  WHERE p.step <= a.visible_until;
CREATE VIEW artefacts AS
  SELECT f.id, f.kind, f.name, f.step, f.data, f.time, f.attempt
  FROM artefact AS f JOIN attempt AS a ON a.id = f.attempt
  WHERE f.step IS NULL OR f.step <= a.visible_until;
CREATE VIEW system AS
  SELECT m.time, j.key AS name, j.value, m.attempt
  FROM system_sample AS m, json_each(m.data) AS j;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open an existing database file; mode ``"ro"`` or ``"rw"``, neither of which creates one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    # A damaged file may contain text that is not UTF-8; invalid bytes are replaced.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a RunError unless a file is a run's database, of a schema version that this burnt reads.

    If the file cannot be read, it raises a `sqlite3.DatabaseError`; pass that to `unreadable`.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise RunError(
            "the file is not a run's database, or it was cut short",
            where=str(path),
            expected=f"application id {APPLICATION_ID:#x}",
            found=f"{application:#x}, {path.stat().st_size} bytes",
            hint="restore run.db from a copy; checkpoints/ next to it can still be loaded",
        )
    if version > SCHEMA_VERSION:
        raise RunError(
            "a newer burnt wrote this run",
            where=str(path),
            expected=f"schema version {SCHEMA_VERSION} or older",
            found=f"schema version {version}",
            hint="upgrade burnt",
        )


def unreadable(path: Path, error: Exception) -> RunError:
    """Return the error for a `run.db` that cannot be read: no permission, locked, or damaged."""
    if isinstance(error, PermissionError):
        return RunError(
            "no permission to read the run",
            where=str(path),
            found=error.strerror,
            hint=f"its owner can allow it: chmod -R a+rX {shlex.quote(str(path.parent))}",
        )
    if _is_locked(error):
        return RunError(
            "the run's database is locked",
            where=str(path),
            found=f"{error} for {BUSY_SECONDS:.0f} s",
            hint="another program holds it open for writing; close that program",
        )
    return RunError(
        "the run's database is damaged",
        where=str(path),
        found=str(error),
        hint=f"recover rows with `sqlite3 {path.name} .recover | sqlite3 rescued.db`, or train in a new "
        "folder from the checkpoints; checkpoints/ does not depend on run.db",
    )


def unwritable(path: Path, error: sqlite3.Error) -> RunError:
    """Return the error for a `run.db` that cannot be written: locked, no permission, or a full disk."""
    found, hint = str(error), "choose a folder that this user can write to, on a disk with space left"
    if _is_locked(error):
        found += f" for {BUSY_SECONDS:.0f} s"
        hint = "another process is writing it, maybe a suspended training: end that process first"
    return RunError("the run's database cannot be written", where=str(path), found=found, hint=hint)


def _is_locked(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


@contextlib.contextmanager
def write_errors(
    what: str, where: Path, hint: str = "its owner can allow it, or free space on the disk"
) -> Iterator[None]:
    """Raise a `RunError` for an `OSError` in the block."""
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        found = error.strerror or str(error)
        raise RunError(what, where=str(error.filename or where), found=found, hint=hint) from error


def to_json(value: object) -> str:
    """Return JSON that SQLite and strict parsers can read: numbers that are not finite become strings.

    NumPy arrays and scalars become lists and numbers; other types that JSON lacks are converted with `str`.

    >>> to_json({"lr": 0.1, "best": float("-inf")})
    '{"lr": 0.1, "best": "-Infinity"}'
    """
    try:
        return json.dumps(value, allow_nan=False, default=_to_jsonable)
    except ValueError:  # a number is not finite; rare, so only then convert the value recursively
        return json.dumps(
            _replace_non_finite(json.loads(json.dumps(value, default=_to_jsonable))), allow_nan=False
        )


def clean_text(text: str) -> str:
    """Replace what UTF-8 cannot encode, such as a lone surrogate from an undecodable file name."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _to_jsonable(value: object) -> object:
    to_list: Callable[[], object] | None = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(item) for item in value]
    return value
