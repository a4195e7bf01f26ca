"""The run store: a folder with a SQLite file that one training writes and any number of viewers read.

=================  ==========================================================================
`schema.py`        the tables and views, and how a connection to them is opened and checked
`pyramid.py`       the min/max pyramid that lets a plot of a million points read a few thousand
`liveness.py`      which process writes a run, and whether it lives
`opening.py`       a new run, a further attempt, and who is refused
`rows.py`          the statements that insert, in batches
`writer.py`        `RunWriter`
`reader.py`        `RunReader`, `find_runs`
`control.py`       commands to the training, as files
`export.py`        CSV, JSON lines (also followed live), TensorBoard
`tensorboard.py`   the TensorBoard file format
=================  ==========================================================================

Nothing here imports torch. The schema is documented in docs/run-store.md.
"""

from __future__ import annotations

from burnt.train.store.export import export_csv, export_jsonl, export_tensorboard, iter_records
from burnt.train.store.reader import (
    Artefact,
    ArtefactName,
    Attempt,
    Event,
    Extreme,
    LogLine,
    Point,
    Points,
    Progress,
    RunReader,
    RunSummary,
    Series,
    SystemSample,
    find_runs,
)
from burnt.train.store.schema import SCHEMA_VERSION
from burnt.train.store.writer import RunWriter

__all__ = [
    "SCHEMA_VERSION",
    "Artefact",
    "ArtefactName",
    "Attempt",
    "Event",
    "Extreme",
    "LogLine",
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
