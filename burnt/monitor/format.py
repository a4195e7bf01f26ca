"""Format numbers, sizes, ages and run states as text, for the monitor and the commands on runs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from burnt.errors import BurntError, clean
from burnt.store.ranking import better_direction as better_direction
from burnt.store.schema import DATABASE
from burnt.train.format import duration_text, value_text

if TYPE_CHECKING:
    from burnt.store import Attempt, Parent, Progress, RunSummary, Series
    from burnt.store.ranks import RankLoad


# Learning-rate changes by a factor outside of this range may be typing errors.
_MIN_RATE_RATIO, _MAX_RATE_RATIO = 1e-4, 10.001
_RATE_PATTERN = re.compile(r"\b(?:lr|max_lr|start|end)=(\d+(?:\.\d*)?(?:e[+-]?\d+)?)", re.ASCII)


def one_line(text: str) -> str:
    r"""Join the lines of a text with semicolons.

    >>> one_line("the loss became nan\n  expected    a finite number\n")
    'the loss became nan; expected a finite number'
    """
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def parse_number(value: object) -> float | None:
    """Parse a number of the run store's JSON, where NaN and infinities are strings; None for anything else.

    >>> [parse_number(value) for value in (1.5, "NaN", "-Infinity", "many", True)]
    [1.5, nan, -inf, None, None]
    """
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def error_text(error: BurntError) -> str:
    """Return what happened and what was found, on one printable line."""
    return clean(f"{error.what}: {error.found}" if error.found else error.what)


def truncate(text: str, width: int) -> str:
    """Cut a text to a number of cells, with an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def clock_text(seconds: float, date_format: str = "%H:%M:%S") -> str:
    """Format a Unix time in local time; ``"?"`` if it is out of range.

    >>> clock_text(1e20), clock_text(float("nan"))
    ('?', '?')
    """
    try:
        return datetime.fromtimestamp(seconds).strftime(date_format)
    except (OverflowError, OSError, TypeError, ValueError):
        return "?"


def full_number_text(value: float) -> str:
    """Format a number like `value_text`, but write numbers from 10,000 to 1e9 in full.

    >>> full_number_text(0.12345), full_number_text(13559.2), full_number_text(2e12)
    ('0.1235', '13,559', '2e+12')
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else value_text(value)


def count_text(number: int | None, total: int | None) -> str:
    """Format a count of a total, which may be unknown.

    >>> count_text(1200, 5000), count_text(3, None), count_text(None, 5)
    ('1,200/5,000', '3', '')
    """
    if number is None:
        return ""
    return f"{number:,}/{total:,}" if total else f"{number:,}"


def size_text(size: float) -> str:
    """Format a number of bytes with a binary unit.

    >>> size_text(12), size_text(1536), size_text(3 * 2**30)
    ('12 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(seconds: float) -> str:
    """Format an age in its largest unit.

    >>> age_text(4), age_text(300), age_text(8000), age_text(3e5)
    ('4s', '5m', '2h', '3d')
    """
    seconds = max(seconds, 0)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def rate_change_warning(rate: float, current: float | None, highest_scheduled: float | None = None) -> str:
    """Return a warning if a new learning rate differs from the current one by orders of magnitude; else "".

    A rate between the current one and the highest of the schedule gives no warning.

    >>> rate_change_warning(1e9, 1e-3), rate_change_warning(1e-3, 1e-2), rate_change_warning(1e-3, None)
    ('1e+12 times the current 0.001', '', '')
    >>> rate_change_warning(2e-3, 1e-5, 1e-3), rate_change_warning(2e-2, 1e-5, 1e-3)
    ('', '2e+03 times the current 1e-05')
    """
    if not current:
        return ""
    nearest = min(max(rate, current), max(current, highest_scheduled or 0.0))
    ratio = rate / nearest
    return (
        ""
        if _MIN_RATE_RATIO <= ratio <= _MAX_RATE_RATIO
        else f"{rate / current:.3g} times the current {current:.3g}"
    )


def highest_scheduled_rate(config: Mapping[str, Any] | None) -> float | None:
    """Return the highest rate in the schedule, a text in a run's configuration; None if it names none.

    >>> schedule = "Warmup(steps=200, then=Cosine(lr=0.003, steps=5000, end=0.0), start=0.0)"
    >>> highest_scheduled_rate({"schedule": schedule})
    0.003
    >>> highest_scheduled_rate({"schedule": "a function"}), highest_scheduled_rate(None)
    (None, None)
    """
    schedule = config.get("schedule") if isinstance(config, Mapping) else None
    return (
        max(map(float, _RATE_PATTERN.findall(schedule)), default=None) if isinstance(schedule, str) else None
    )


def series_label(series: Series) -> str:
    """Return the name of a series as checkpoints and logs write it, such as ``"valid/loss"``."""
    return f"{series.split}/{series.name}"


def main_metric(series_list: Sequence[Series], config: Mapping[str, Any] | None = None) -> Series | None:
    """Return the metric to show first, or None if there is no metric.

    It is the metric that ranks the run's checkpoints, else the validation loss, else the loss, else the first
    metric with a known better direction. Of several validation sets, that is ``valid``, or else the first in
    `series_list`.

    >>> from burnt.store import Series
    >>> names = [("accuracy", "clean"), ("loss", "train"), ("loss", "clean"), ("loss", "shifted")]
    >>> main_metric([Series(*pair) for pair in names])
    Series(name='loss', split='clean')
    """
    ranked_by = config.get("ranked_by") if isinstance(config, Mapping) else None

    def rank(series: Series) -> int:
        label = series_label(series)
        if label in (ranked_by, "valid/loss"):
            return 0 if label == ranked_by else 1
        if series.name == "loss":
            return 3 if series.split == "train" else 2
        return 5 if better_direction(series.name, config) is None else 4

    return min(series_list, key=rank, default=None)


def fork_text(parent: Parent) -> str:
    """Return where a fork comes from, such as ``"fork of digits@120"``; says if the parent is gone."""
    is_there = (parent.folder / DATABASE).is_file()
    return f"fork of {parent.folder.name}@{parent.step}" + ("" if is_there else " (missing)")


def fraction(progress: Progress | None) -> float | None:
    """Return the fraction of a run that is done, 0 to 1; None if its total is unknown."""
    if progress is None:
        return None
    shares = []
    if progress.total_steps:
        shares.append(progress.step / progress.total_steps)
    elif progress.total_epochs and progress.epoch is not None:
        shares.append(max(progress.epoch - 1, 0) / progress.total_epochs)
    if (seconds := seconds_of(progress)) is not None:
        shares.append(seconds[0] / seconds[1])
    return min(max(shares), 1.0) if shares else None


def seconds_of(progress: Progress) -> tuple[float, float] | None:
    """Return the seconds trained and their total; None unless the run's duration is a time."""
    done, total = (parse_number(progress.data.get(key)) for key in ("seconds", "total_seconds"))
    if done is None or total is None or not (math.isfinite(done) and math.isfinite(total) and total > 0):
        return None
    return done, total


def progress_text(progress: Progress | None, *, with_share: bool = True) -> str:
    """Format a run's progress, such as ``"epoch 3/10 25%"`` or ``"step 120"``."""
    if progress is None:
        return ""
    if progress.total_epochs and progress.epoch is not None:
        text = f"epoch {progress.epoch}/{progress.total_epochs}"
    elif progress.total_steps:
        text = f"step {progress.step}/{progress.total_steps}"
    elif (seconds := seconds_of(progress)) is not None:
        text = f"{duration_text(seconds[0])}/{duration_text(seconds[1])}"
    else:
        text = f"step {progress.step}"
    done = fraction(progress) if with_share else None
    # Rounded down, so that an unfinished run never shows 100%.
    return text if done is None else f"{text} {math.floor(done * 100)}%"


def rank_table(loads: Sequence[RankLoad], slowest: int | None) -> list[dict[str, str]]:
    """Return the cells of a table of ranks by column; a column that is empty in all rows is left out.

    >>> from burnt.store.ranks import RankLoad
    >>> ranks = [RankLoad(0, "running", "a", 9, 0.02, 0.005), RankLoad(1, "stale", "a", 9, 0.02, 0.02)]
    >>> rank_table(ranks, 1)[1]
    {'rank': '1', 'state': 'stale', 'step': '9', 'step ms': '20', 'own ms': '20', '': 'slowest'}
    """

    def text(value: float | None, form: str = "{:.3g}", factor: float = 1.0) -> str:
        return "" if value is None else form.format(value * factor)

    several_hosts = len({load.host for load in loads if load.host}) > 1
    rows = [
        {
            "rank": str(load.rank),
            "state": load.state,
            "step": text(load.step, "{:,.0f}"),
            "step ms": text(load.step_seconds, factor=1000.0),
            "own ms": text(load.own_seconds, factor=1000.0),
            "data wait": text(load.data_wait_share, "{:.0%}"),
            "rank wait": text(load.rank_wait_share, "{:.0%}"),
            "memory": "" if load.memory_bytes is None else size_text(load.memory_bytes),
            "GPU memory": "" if load.gpu_memory_bytes is None else size_text(load.gpu_memory_bytes),
            "host": load.host if several_hosts else "",
            "": "slowest" if load.rank == slowest else "" if slowest is None else " ",
        }
        for load in loads
    ]
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts run-2 before run-10."""
    return [(0, int(part)) if part.isdecimal() else (1, part.lower()) for part in re.split(r"(\d+)", text)]


def problem_text(state: str, reason: str | None, process: Attempt | RunSummary) -> str:
    """Return one line on why a run did not finish normally or is silent; empty if neither."""
    if state in ("finished", "running"):
        return ""
    if reason is not None:
        return reason.partition("\n")[0]
    if state == "stale":
        silence = age_text(time.time() - process.heartbeat)
        return f"process {process.pid} is alive but has written nothing for {silence}"
    return f"process {process.pid} on {process.host} ended without closing the run"


def split_tuning_keys(table: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Replace the tuning keys of the table of kernels by their arguments; also return the machine.

    A tuning key is ``version|machine|mode|argument|...``; its first parts are the same in all rows. A row of
    one of several machines keeps it. Other tables are returned unchanged.

    >>> split_tuning_keys({"columns": ["op", "key"], "rows": [["silu", "v1|cpu Xeon|grad|x=float32 4x8"]]})
    ({'columns': ['op', 'arguments'], 'rows': [['silu', 'grad  x=float32 4x8']]}, 'cpu Xeon')
    """
    if table["columns"][:2] != ["op", "key"]:
        return table, ""
    keys = [str(key or "").split("|", 2) for _, key, *_ in table["rows"]]
    machines = list(dict.fromkeys(key[1] for key in keys if len(key) == 3))
    rows = []
    for (op, _, *others), key in zip(table["rows"], keys, strict=True):
        arguments = key[-1].split("|")
        if len(key) == 3 and len(machines) > 1:
            arguments.append(key[1])
        rows.append([op, "  ".join(arguments), *others])
    columns = [table["columns"][0], "arguments", *table["columns"][2:]]
    return {"columns": columns, "rows": rows}, "; ".join(machines)
