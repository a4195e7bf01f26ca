"""The run store: a folder with a SQLite file that one training writes and any number of viewers read.

=================  ==========================================================================
`schema.py`        the tables and views; opening and checking a connection
`pyramid.py`       min/max pyramid: a plot of a million points reads only a few thousand
`liveness.py`      which process writes a run, and whether it is alive
`opening.py`       create a run or add an attempt; reject folders that cannot be used
`write_lease.py`   which process may change the folder, until another one resumes the run
`rows.py`          batched INSERT statements
`writer.py`        `RunWriter`
`reader.py`        `RunReader`, `find_runs`
`control.py`       commands to the training, as files
`tags.py`          tags and notes, as files
`search.py`        search runs by settings, metrics, tags, notes, names and state
`removal.py`       remove the folder of a run that has ended
`export.py`        CSV, JSON lines (also live), TensorBoard
`tensorboard.py`   the TensorBoard file format
=================  ==========================================================================

Nothing here imports torch, and each module is imported on first use, so that viewers start fast. The schema
is documented in docs/run-store.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.store.export import export_csv, export_jsonl, export_tensorboard, iter_records
    from burnt.store.reader import (
        Artefact,
        ArtefactName,
        Attempt,
        Event,
        Extreme,
        LogLine,
        Parent,
        Point,
        Points,
        Progress,
        RunReader,
        RunSummary,
        Series,
        SystemSample,
        find_runs,
    )
    from burnt.store.schema import SCHEMA_VERSION
    from burnt.store.writer import RunWriter

_HOMES = {
    "SCHEMA_VERSION": "burnt.store.schema",
    "Artefact": "burnt.store.reader",
    "ArtefactName": "burnt.store.reader",
    "Attempt": "burnt.store.reader",
    "Event": "burnt.store.reader",
    "Extreme": "burnt.store.reader",
    "LogLine": "burnt.store.reader",
    "Parent": "burnt.store.reader",
    "Point": "burnt.store.reader",
    "Points": "burnt.store.reader",
    "Progress": "burnt.store.reader",
    "RunReader": "burnt.store.reader",
    "RunSummary": "burnt.store.reader",
    "RunWriter": "burnt.store.writer",
    "Series": "burnt.store.reader",
    "SystemSample": "burnt.store.reader",
    "export_csv": "burnt.store.export",
    "export_jsonl": "burnt.store.export",
    "export_tensorboard": "burnt.store.export",
    "find_runs": "burnt.store.reader",
    "iter_records": "burnt.store.export",
}
if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = [
    "SCHEMA_VERSION",
    "Artefact",
    "ArtefactName",
    "Attempt",
    "Event",
    "Extreme",
    "LogLine",
    "Parent",
    "Point",
    "Points",
    "Progress",
    "RunReader",
    "RunSummary",
    "RunWriter",
    "Series",
    "SystemSample",
    "export_csv",
    "export_jsonl",
    "export_tensorboard",
    "find_runs",
    "iter_records",
]
