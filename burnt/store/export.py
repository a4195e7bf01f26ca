"""Export a run as CSV, as JSON lines (also live) or as TensorBoard event files.

Only visible points are exported, not those that a resumed attempt superseded.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from burnt._files import replacing
from burnt.store import tensorboard
from burnt.store.reader import Point, RunReader, Series
from burnt.store.schema import to_json, write_errors

_PAGE = 10_000
_POLL_SECONDS = 0.5

Target = str | os.PathLike[str] | IO[str]


def export_csv(folder: str | os.PathLike[str], out: Target) -> int:
    """Write the metrics as CSV, sorted by series: name, split, step, epoch, value, time, attempt.

    Args:
        folder: the run folder.
        out: an open text file, or a path, which is replaced when the export is complete; a path to a pipe or
            a device is written to directly.

    Returns:
        The number of points.

    Raises:
        RunError: the run cannot be read, or the file cannot be written.
    """
    count = 0
    with RunReader(folder) as reader, _open_target(out) as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["name", "split", "step", "epoch", "value", "time", "attempt"])
        for series, points in _pages(reader, {}):
            for p in points:
                epoch = "" if p.epoch is None else p.epoch
                lines.writerow([*series, p.step, epoch, repr(p.value), repr(p.time), p.attempt])
            count += len(points)
    return count


def export_jsonl(folder: str | os.PathLike[str], out: Target, *, follow: bool = False) -> int:
    """Write the records of `iter_records`, one JSON object per line.

    Args:
        folder: the run folder.
        out: a path or an open text file. A path is replaced when the export is complete; with `follow` it is
            written line by line.
        follow: continue until the run ends.

    Returns:
        The number of lines.

    Raises:
        RunError: the run cannot be read, or the file cannot be written.
    """
    count = 0
    with _open_target(out, directly=follow) as file:
        for record in iter_records(folder, follow=follow):
            file.write(to_json(record) + "\n")
            count += 1
            if follow:
                file.flush()
    return count


def iter_records(
    folder: str | os.PathLike[str], *, follow: bool = False, poll: float = _POLL_SECONDS
) -> Iterator[dict[str, Any]]:
    """Iterate over the run as dicts with a ``"type"``.

    The types are attempt, metric, event, log, system, table, histogram and end. Within a type and series,
    records come in the order of writing. Images are left out.

    Args:
        folder: the run folder.
        follow: continue until the run ends. A new attempt is announced by a record of type ``"attempt"``:
            earlier metrics past its ``resumed_from_step`` are superseded.
        poll: seconds between two reads.

    Yields:
        The last record has type ``"end"`` and holds the run's state and reason.

    Raises:
        RunError: the run cannot be read.
    """
    after = {"attempt": 0, "event": 0, "log": 0, "system": 0, "artefact": 0}
    seen: dict[tuple[Series, int], int] = {}
    with RunReader(folder) as reader:
        appended: dict[str, Callable[..., Iterable[Any]]] = {
            "event": reader.events, "log": reader.log_lines, "system": reader.system_samples,
        }  # fmt: skip
        while True:
            # Read the state before the rows: if the run has ended, no rows are added after this.
            state = reader.state()
            for attempt in reader.attempts():
                if attempt.id > after["attempt"]:
                    after["attempt"] = attempt.id
                    fields = ("id", "host", "pid", "started", "resumed_from_step")
                    yield {"type": "attempt", **{name: getattr(attempt, name) for name in fields}}
            for series, points in _pages(reader, seen):
                for point in points:
                    yield {"type": "metric", **series._asdict(), **point._asdict()}
            for kind, read in appended.items():
                for row in read(after=after[kind]):
                    after[kind] = row.id
                    yield {"type": kind, **row._asdict()}
            for artefact in reader.artefacts():
                if artefact.id > after["artefact"]:
                    after["artefact"] = artefact.id
                    if artefact.kind != "image":
                        yield {"type": artefact.kind, **artefact._replace(kind="")._asdict()}
            if not follow or state in ("finished", "stopped", "crashed"):
                yield {"type": "end", "state": state, "reason": reader.attempts()[-1].end_reason}
                return
            time.sleep(poll)


def export_tensorboard(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[Path]:
    """Write the metrics as TensorBoard event files.

    Each split has its own folder, so that TensorBoard overlays the splits. Values are stored as float32.

    Args:
        folder: the run folder.
        out: a folder, created if it is missing.

    Returns:
        The files written; a file from an earlier export of the run is replaced.

    Raises:
        RunError: the run cannot be read, or a file cannot be written.
    """
    files = []
    with RunReader(folder) as reader:
        created = reader.created
        name = f"events.out.tfevents.{int(created)}.{tensorboard.file_name(reader.attempts()[0].host)}.burnt"
        splits: dict[str, list[Series]] = {}
        for series in reader.series():
            splits.setdefault(series.split, []).append(series)
        for split, in_split in sorted(splits.items()):
            path = Path(out) / tensorboard.file_name(split) / name
            if path in files:  # "valid/a" and "valid_a"
                path = path.parent.with_name(f"{path.parent.name}-{zlib.crc32(split.encode()):08x}") / name
            with _open_target(path, "wb") as file:
                file.write(tensorboard.file_header(created))
                for series, points in _pages(reader, {}, in_split):
                    for p in points:
                        file.write(tensorboard.scalar(series.name, p.step, p.time, p.value))
            files.append(path)
    return files


def _pages(
    reader: RunReader, seen: dict[tuple[Series, int], int], chosen: Sequence[Series] | None = None
) -> Iterator[tuple[Series, list[Point]]]:
    """Iterate over the unseen visible points in pages, so that no read blocks the writer for long.

    `seen` holds the next position of each series and attempt, and is updated.
    """
    for series in reader.series() if chosen is None else chosen:
        for attempt in reader.attempts():
            key = series, attempt.id
            while page := reader.raw_points(*series, attempt.id, seen.get(key, 0), _PAGE):
                seen[key] = page[-1][0] + 1
                yield series, [point for _, point in page]


@contextlib.contextmanager
def _open_target(out: Target, mode: str = "w", *, directly: bool = False) -> Iterator[IO[Any]]:
    """Open a file that takes the place of an earlier one when the block completes, or return an open one."""
    if not isinstance(out, str | os.PathLike):
        yield out
        return
    path = Path(out)
    options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with write_errors("the export cannot be written", path), contextlib.ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A pipe or a device such as /dev/stdout is written to, not replaced by a file.
        if not directly and (path.is_file() or not path.exists()):
            path = stack.enter_context(replacing(path))
        yield stack.enter_context(open(path, mode, **options))
