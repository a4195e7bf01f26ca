"""TensorBoard: mirrors a run to TensorBoard's event files. The package tensorboard is not needed for that."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import BinaryIO, ClassVar

from burnt.store import tensorboard as encoding
from burnt.store.reader import Artefact, Event, text_of
from burnt.train.sinks.base import How, Names, Records, Run, Sink

_MAX_TABLE_ROWS = 200


class TensorBoard(Sink):
    """Writes a run's metrics, images, histograms, tables, events and settings for TensorBoard, as it trains.

    Each split has its own folder, so that TensorBoard overlays the splits, as in `burnt runs export`. A
    resumed training writes new files, and TensorBoard forgets the steps that it repeats.

    Args:
        folder: where to write; by default ``tensorboard`` in the run folder. In a folder that several runs
            share, each run writes to a subfolder of its name.

    >>> from burnt.train import TensorBoard
    >>> sinks = [TensorBoard()]  # for SupervisedTraining(..., callbacks=sinks)
    """

    name: ClassVar[str] = "tensorboard"
    drops_superseded: ClassVar[bool] = True

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._given = None if folder is None else Path(folder)
        self._files: dict[str, BinaryIO] = {}

    def open(self, run: Run) -> str:
        """Cut off what an earlier process wrote last without knowing whether it was written."""
        self._folder = run.folder / "tensorboard" if self._given is None else self._given / run.name
        self._run, self._files = run, {}
        self._names = Names(run.state.setdefault("splits", {}), encoding.file_name, report=self.report)
        self._sizes: dict[str, int] = run.state.setdefault("files", {})
        for name, size in self._sizes.items():
            path = Path(name)
            if path.is_file() and path.stat().st_size > size:
                os.truncate(path, size)
        if run.attempt == 1 or not self._sizes:
            text = f"```json\n{json.dumps(run.config, indent=2)}\n```"
            self._file("").write(encoding.text("config", 0, run.created, text))
        return f"tensorboard --logdir {self._folder}"

    def send(self, records: Records) -> None:
        """Append to the files."""
        for series, point in records.points:
            record = encoding.scalar(series.name, point.step, point.time, point.value)
            self._file(series.split).write(record)
        for event in records.events:
            self._file("").write(_event_record(event))
        for artefact in records.artefacts:
            self._file("").write(_artefact_record(artefact))
        for file in self._files.values():
            file.flush()
            self._sizes[file.name] = file.tell()

    def close(self, how: How) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _file(self, split: str) -> BinaryIO:
        """Return the file of a split in this attempt; of "" for what belongs to none."""
        if split not in self._files:
            folder = self._folder / (self._names(split) if split else "")
            folder.mkdir(parents=True, exist_ok=True)
            now, run = time.time(), self._run
            # TensorBoard reads the files of a folder in the order of their names.
            path = folder / f"events.out.tfevents.{int(now)}.{run.host}.burnt-{run.attempt:04d}"
            file = self._files[split] = path.open("wb")
            file.write(encoding.file_header(now))
            if run.attempt > 1:
                first = 0 if run.resumed_from_step is None else run.resumed_from_step + 1
                file.write(encoding.session_start(first, now))
        return self._files[split]


def _event_record(event: Event) -> bytes:
    text = f"`{json.dumps(event.data)}`"
    return encoding.text(f"events/{event.kind}", event.step or 0, event.time, text)


def _artefact_record(artefact: Artefact) -> bytes:
    name, step, data = artefact.name, artefact.step or 0, artefact.data
    if artefact.kind == "image":
        width, height = struct.unpack(">II", data[16:24])  # of the chunk IHDR, which begins a PNG file
        return encoding.image(name, step, artefact.time, data, width, height)
    if artefact.kind == "histogram":
        return encoding.histogram(name, step, artefact.time, data["counts"], data["edges"])
    if (only_text := text_of(data)) is not None:
        return encoding.text(name, step, artefact.time, only_text)
    rows = [data["columns"], ["---"] * len(data["columns"]), *data["rows"][:_MAX_TABLE_ROWS]]
    lines = (" | ".join("" if cell is None else str(cell) for cell in row) for row in rows)
    text = "\n".join(f"| {line} |" for line in lines)
    return encoding.text(name, step, artefact.time, text)
