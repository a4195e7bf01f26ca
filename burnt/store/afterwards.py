"""Add results to a run that has ended, such as an evaluation's.

While a run is trained, only its training writes `run.db`. Afterwards nobody does, and a short transaction
adds the rows to the newest attempt; it excludes a training that resumes the run at the same moment.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from burnt.errors import RunError
from burnt.store.pyramid import INTO_ARTEFACT, INTO_EVENT, insert
from burnt.store.reader import RunReader, state_of
from burnt.store.schema import DATABASE, clean_text, connect, to_json, unreadable, unwritable

Table = tuple[str, Sequence[str], Iterable[Sequence[object]]]
"""Name, columns and rows."""


def check_ended(folder: str | os.PathLike[str]) -> None:
    """Raise a RunError unless a run has ended, so that results can be added to it."""
    with RunReader(folder) as reader:
        newest = reader.attempts()[-1]
        if state_of(newest) in ("running", "stale"):
            raise RunError(
                f"{os.fspath(folder)} is being trained: pid {newest.pid} on {newest.host}",
                expected="a run that has ended",
                hint="wait until it ends; its training writes the run",
            )


def add_results(
    folder: str | os.PathLike[str],
    kind: str,
    step: int | None,
    data: Mapping[str, object],
    tables: Iterable[Table] = (),
) -> None:
    """Add an event, such as ``"evaluation"`` with its `data`, and tables to a run that has ended.

    Raises a RunError if the run is being trained, cannot be read, or cannot be written.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> RunWriter.create(folder).close("finished")
    >>> add_results(folder, "evaluation", 3, {"values": {"loss": 0.5}})
    >>> RunReader(folder).events("evaluation")[0].data
    {'values': {'loss': 0.5}}
    """
    check_ended(folder)
    path, now = Path(folder, DATABASE), time.time()
    documents = [
        (name, to_json({"columns": list(columns), "rows": list(rows)})) for name, columns, rows in tables
    ]
    try:
        with contextlib.closing(connect(path, "rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            check_ended(folder)  # a training may have resumed it since
            (attempt,) = connection.execute("SELECT max(id) FROM attempt").fetchone()
            rows: list[tuple[Any, ...]] = [(attempt, now, step, clean_text(kind), to_json(dict(data)))]
            insert(connection, INTO_EVENT, rows)
            for name, text in documents:
                insert(connection, INTO_ARTEFACT, [(attempt, now, step, "table", clean_text(name), text)])
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise unwritable(path, error) from error
    except sqlite3.DatabaseError as error:
        raise unreadable(path, error) from error
