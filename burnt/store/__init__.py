"""The run store: a folder with a SQLite file that one training writes and any number of viewers read.

Nothing here imports torch, and each module is imported on first use, so that viewers start fast. The schema
is documented in docs/run-store.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.store.export import export_csv as export_csv
    from burnt.store.export import export_jsonl as export_jsonl
    from burnt.store.export import export_tensorboard as export_tensorboard
    from burnt.store.export import iter_records as iter_records
    from burnt.store.reader import Artefact as Artefact
    from burnt.store.reader import ArtefactName as ArtefactName
    from burnt.store.reader import Attempt as Attempt
    from burnt.store.reader import Event as Event
    from burnt.store.reader import Extreme as Extreme
    from burnt.store.reader import LogLine as LogLine
    from burnt.store.reader import Parent as Parent
    from burnt.store.reader import Point as Point
    from burnt.store.reader import Points as Points
    from burnt.store.reader import Progress as Progress
    from burnt.store.reader import RunReader as RunReader
    from burnt.store.reader import RunSummary as RunSummary
    from burnt.store.reader import Series as Series
    from burnt.store.reader import SystemSample as SystemSample
    from burnt.store.reader import find_runs as find_runs
    from burnt.store.schema import SCHEMA_VERSION as SCHEMA_VERSION
    from burnt.store.writer import RunWriter as RunWriter

_NAMES = {
    "burnt.store.export": "export_csv export_jsonl export_tensorboard iter_records",
    "burnt.store.reader": "Artefact ArtefactName Attempt Event Extreme LogLine Parent Point Points Progress "
    "RunReader RunSummary Series SystemSample find_runs",
    "burnt.store.schema": "SCHEMA_VERSION",
    "burnt.store.writer": "RunWriter",
}
if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __getattr__, __dir__, __all__ = attach(globals(), _NAMES)
