"""`burnt runs list`: the runs below a folder, one a line."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from burnt.cli.output import Cell, Page, UsageError, age_text, print_json
from burnt.errors import RunError
from burnt.train.progress import duration_text, value_text
from burnt.train.store import Extreme, Point, Progress, RunReader, RunSummary, Series, find_runs

__all__ = [
    "STATE_STYLES",
    "best",
    "better",
    "fraction",
    "label",
    "note",
    "progress_json",
    "progress_text",
    "run",
    "seconds_of",
]

STATE_STYLES = {
    "running": "bold green",
    "finished": "green",
    "stopped": "yellow",
    "stale": "bold yellow",
    "crashed": "bold red",
    "damaged": "bold magenta",
}

# The run store does not say which way a metric is better, so its name must.
_LOWER = {"loss", "error", "perplexity", "nll", "mse", "rmse", "mae", "wer", "cer", "fid", "bpc", "bpb"}
_HIGHER = {"accuracy", "precision", "recall", "f1", "fbeta", "auc", "auroc", "iou", "dice", "bleu", "rouge",
           "map", "psnr", "ssim", "r2"}  # fmt: skip


class _Row(NamedTuple):
    folder: Path
    summary: RunSummary | None
    error: RunError | None
    metric: Series | None
    best: Extreme | None
    seconds: float

    @property
    def last(self) -> Point | None:
        return None if self.summary is None or self.metric is None else self.summary.last.get(self.metric)


def run(folder: str, as_json: bool) -> int:
    """Print the runs at and below a folder, the most recently written first.

    Raises:
        UsageError: there is no such folder.
    """
    if not os.path.isdir(folder):
        raise UsageError(
            f"there is no folder {folder!r}",
            where=os.getcwd(),
            found="a file" if os.path.exists(folder) else None,
            hint="runs are made by `burnt train`; those of another folder: burnt runs list FOLDER",
        )
    rows = [_read(found) for found in find_runs(folder)]
    if as_json:
        print_json([_json(row) for row in rows])
    elif rows:
        _print(rows)
    else:
        page = Page()
        page.line(f"no runs in {folder}")
        page.line("`burnt train module:function` makes one; or look elsewhere: burnt runs list FOLDER")
    return 0


def _read(folder: Path) -> _Row:
    try:
        with RunReader(folder) as reader:
            summary = reader.summary()
            metric = _main_metric(list(summary.last))
            reached = None if metric is None else best(reader, metric)
            return _Row(folder, summary, None, metric, reached, seconds_of(reader))
    except RunError as error:  # the other runs are listed all the same
        return _Row(folder, None, error, None, None, math.nan)


def _main_metric(known: list[Series]) -> Series | None:
    """The validation loss; else the loss; else the first metric, of those whose better end is known."""
    wanted = [Series("loss", "valid"), Series("loss", "train")]
    judged = [series for series in known if better(series.name) is not None]
    return next((series for series in [*wanted, *judged, *known] if series in known), None)


def _print(rows: list[_Row]) -> None:
    page = Page()
    columns = ["run", "state", "progress", "metric", "last", "best", "age", "took"]
    # In a terminal the reasons go below the table, where there is room for them.
    notes = not page.fancy and any(_note(row) for row in rows)
    cells = [_cells(row)[: len(columns) + notes] for row in rows]
    metrics = {row.metric for row in rows if row.metric is not None}
    if page.fancy and len(metrics) == 1:
        # Said once, it leaves room for the names of the runs.
        i = columns.index("metric")
        for row_cells in cells:
            del row_cells[i]
        columns[i : i + 2] = [label(*metrics)]
    page.table(
        [*columns, "note"] if notes else columns,
        cells,
        right=[columns[-4], "best", "age", "took"],
        fold="run",
        spare=["took", "age"],
    )
    for row in rows if page.fancy else ():
        if note := _note(row):
            page.line(Cell(f"{row.folder}: ", "bold"), note)


def _cells(row: _Row) -> list[str | Cell]:
    summary = row.summary
    if summary is None:
        return [str(row.folder), Cell("damaged", STATE_STYLES["damaged"]), *[""] * 6, _note(row)]
    name = str(row.folder)
    if summary.name not in (row.folder.name, row.folder.resolve().name):
        name += f" ({summary.name})"
    return [
        name,
        Cell(summary.state, STATE_STYLES[summary.state]),
        progress_text(summary.progress),
        "" if row.metric is None else label(row.metric),
        "" if row.last is None else value_text(row.last.value),
        "" if row.best is None else value_text(row.best.value),
        age_text(time.time() - summary.created),
        duration_text(row.seconds),
        _note(row),
    ]


def _note(row: _Row) -> str:
    if row.error is not None:
        return f"{row.error.what}: {row.error.found}" if row.error.found else row.error.what
    return "" if row.summary is None else note(row.summary)


def note(summary: RunSummary) -> str:
    """Why a run ended otherwise than it should, on one line; empty for the others."""
    if summary.state in ("finished", "running"):
        return ""
    if summary.reason is not None:
        return summary.reason.partition("\n")[0]
    if summary.state == "stale":
        silent = age_text(time.time() - summary.heartbeat)
        return f"process {summary.pid} lives, but wrote nothing for {silent}"
    return f"process {summary.pid} on {summary.host} ended without a word"


def _json(row: _Row) -> dict[str, Any]:
    summary = row.summary
    if summary is None:
        assert row.error is not None
        return {"folder": row.folder, "state": "damaged", "error": str(row.error)}
    return {
        "folder": row.folder,
        "name": summary.name,
        "state": summary.state,
        "reason": summary.reason,
        "created": summary.created,
        "seconds": row.seconds,
        "attempts": summary.attempts,
        "progress": progress_json(summary.progress),
        "metric": row.metric and row.metric._asdict(),
        "best": row.best and row.best._asdict(),
        "last": row.last and row.last._asdict(),
    }


def better(name: str) -> str | None:
    """Which end of a metric is the better one, ``"lower"`` or ``"higher"``, as far as its name tells.

    >>> better("loss"), better("accuracy_top5"), better("learning_rate")
    ('lower', 'higher', None)
    """
    words = set("".join(c if c.isalnum() else " " for c in name.lower()).split())
    return "lower" if words & _LOWER else "higher" if words & _HIGHER else None


def best(reader: RunReader, series: Series) -> Extreme | None:
    """The best value of a series; None where nobody knows which way is better."""
    way = better(series.name)
    return None if way is None else reader.best(*series, higher=way == "higher")


def label(series: Series) -> str:
    """A series as checkpoints and logs call it, ``"valid/loss"``."""
    return f"{series.split}/{series.name}"


def seconds_of(reader: RunReader) -> float:
    """How long a run was worked on, over all its attempts."""
    return sum(max((a.ended or a.heartbeat) - a.started, 0.0) for a in reader.attempts())


def fraction(progress: Progress | None) -> float | None:
    """The share of a run that is done, 0 to 1; None where its end is not known."""
    if progress is None:
        return None
    if progress.total_steps:
        return min(progress.step / progress.total_steps, 1.0)
    if progress.total_epochs and progress.epoch is not None:
        return min(max(progress.epoch - 1, 0) / progress.total_epochs, 1.0)
    return None


def progress_text(progress: Progress | None) -> str:
    """Where a run stands: ``"epoch 3/10 25%"``, ``"step 120"``."""
    if progress is None:
        return ""
    if progress.total_epochs and progress.epoch is not None:
        text = f"epoch {progress.epoch}/{progress.total_epochs}"
    elif progress.total_steps:
        text = f"step {progress.step}/{progress.total_steps}"
    else:
        text = f"step {progress.step}"
    share = fraction(progress)
    # Rounded down: what is not done is not shown as 100%.
    return text if share is None else f"{text} {math.floor(share * 100)}%"


def progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """Where a run stands, with the share that is done."""
    return progress and {**progress._asdict(), "fraction": fraction(progress)}
