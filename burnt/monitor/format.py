"""How numbers, sizes, ages and runs are put into words, in the monitor and by the commands on runs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from burnt.train.format import duration_text, value_text

if TYPE_CHECKING:
    from burnt.train.store import Progress, RunSummary, Series

__all__ = [
    "age_text",
    "better_direction",
    "clean",
    "clock_text",
    "duration_text",
    "fraction",
    "full_number_text",
    "highest_scheduled_rate",
    "main_metric",
    "one_line",
    "parse_number",
    "problem_text",
    "progress_text",
    "rate_change_warning",
    "series_label",
    "size_text",
    "value_text",
]

# The run store does not say which way a metric is better, so its name must.
_LOWER_IS_BETTER = {
    "loss",
    "error",
    "perplexity",
    "nll",
    "mse",
    "rmse",
    "mae",
    "wer",
    "cer",
    "fid",
    "bpc",
    "bpb",
}
_HIGHER_IS_BETTER = {"accuracy", "precision", "recall", "f1", "fbeta", "auc", "auroc", "iou", "dice", "bleu", "rouge",
           "map", "psnr", "ssim", "r2"}  # fmt: skip

# By so much people change a learning rate; beyond they may have mistyped it.
_MIN_RATE_RATIO, _MAX_RATE_RATIO = 1e-4, 10.001
_RATE_PATTERN = re.compile(r"\b(?:lr|start|end)=(\d+(?:\.\d*)?(?:e[+-]?\d+)?)", re.ASCII)


def clean(text: str) -> str:
    r"""The text with what a terminal would obey, or cannot show, escaped.

    >>> print(clean("red \x1b[31m\n"))
    red \x1b[31m\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    r"""A text of several lines in one.

    >>> one_line("the loss became nan\n  expected    a finite number\n")
    'the loss became nan; expected a finite number'
    """
    return "; ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def parse_number(value: object) -> float | None:
    """A number out of the run store's JSON, which has words for those that JSON lacks; None for all else.

    >>> parse_number(1.5), parse_number("NaN"), parse_number("-Infinity"), parse_number("many"), parse_number(True)
    (1.5, nan, -inf, None, None)
    """
    if isinstance(value, str):
        return float(value) if value in ("NaN", "Infinity", "-Infinity") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def clock_text(seconds: float, date_format: str = "%H:%M:%S") -> str:
    """A time of the clock; ``"?"`` for what is none.

    >>> clock_text(1e20), clock_text(float("nan"))
    ('?', '?')
    """
    try:
        return datetime.fromtimestamp(seconds).strftime(date_format)
    except (OverflowError, OSError, TypeError, ValueError):
        return "?"


def full_number_text(value: float) -> str:
    """As `value_text`, with large numbers in full.

    >>> full_number_text(0.12345), full_number_text(13559.2), full_number_text(2e12)
    ('0.1235', '13,559', '2e+12')
    """
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else value_text(value)


def size_text(size: float) -> str:
    """Bytes as people read them.

    >>> size_text(12), size_text(1536), size_text(3 * 2**30)
    ('12 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def age_text(seconds: float) -> str:
    """How long ago, in one unit.

    >>> age_text(4), age_text(300), age_text(8000), age_text(3e5)
    ('4s', '5m', '2h', '3d')
    """
    seconds = max(seconds, 0)
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:.0f}s"


def rate_change_warning(rate: float, current: float | None, highest_scheduled: float | None = None) -> str:
    """How a learning rate differs from the present one, if it does so by orders of magnitude; else empty.

    Args:
        rate: one that somebody wants.
        now: the present one; None where it is not known.
        highest: of the schedule's; what lies between it and the present one is no leap.

    >>> rate_change_warning(1e9, 1e-3), rate_change_warning(1e-3, 1e-2), rate_change_warning(1e-3, None)
    ('1e+12 times the present 0.001', '', '')
    >>> rate_change_warning(2e-3, 1e-5, 1e-3), rate_change_warning(2e-2, 1e-5, 1e-3)
    ('', '2e+03 times the present 1e-05')
    """
    if not current:
        return ""
    nearest = min(max(rate, current), max(current, highest_scheduled or 0.0))
    ratio = rate / nearest
    return (
        ""
        if _MIN_RATE_RATIO <= ratio <= _MAX_RATE_RATIO
        else f"{rate / current:.3g} times the present {current:.3g}"
    )


def highest_scheduled_rate(config: Mapping[str, Any] | None) -> float | None:
    """The highest learning rate that a run's schedule names; None where it names none.

    Args:
        config: of the run, which has the schedule as text.

    >>> highest_scheduled_rate({"schedule": "Warmup(steps=200, then=Cosine(lr=0.003, steps=5000, end=0.0), start=0.0)"})
    0.003
    >>> highest_scheduled_rate({"schedule": "a function"}), highest_scheduled_rate(None)
    (None, None)
    """
    schedule = config.get("schedule") if isinstance(config, Mapping) else None
    return (
        max(map(float, _RATE_PATTERN.findall(schedule)), default=None) if isinstance(schedule, str) else None
    )


def series_label(series: Series) -> str:
    """A series as checkpoints and logs call it, ``"valid/loss"``."""
    return f"{series.split}/{series.name}"


def better_direction(name: str, config: Mapping[str, Any] | None = None) -> str | None:
    """Which end of a metric is the better one, ``"lower"`` or ``"higher"``.

    Args:
        name: of the metric, also with its split.
        config: of the run, which says so of the metrics that it was given; of others the name tells, or
            nothing does.

    >>> better_direction("loss"), better_direction("accuracy_top5"), better_direction("learning_rate")
    ('lower', 'higher', None)
    >>> better_direction("valid/words", {"metrics": {"words": "higher"}})
    'higher'
    """
    directions = config.get("metrics") if isinstance(config, Mapping) else None
    declared = directions.get(name.rpartition("/")[2]) if isinstance(directions, Mapping) else None
    if declared in ("lower", "higher"):
        return str(declared)
    words = set("".join(c if c.isalnum() else " " for c in name.lower()).split())
    return "lower" if words & _LOWER_IS_BETTER else "higher" if words & _HIGHER_IS_BETTER else None


def main_metric(series_list: Sequence[Series], config: Mapping[str, Any] | None = None) -> Series | None:
    """The validation loss; else the loss; else the first metric, of those whose better end is known."""

    def rank(series: Series) -> int:
        if series.name == "loss" and series.split in ("valid", "train"):
            return 0 if series.split == "valid" else 1
        return 3 if better_direction(series.name, config) is None else 2

    return min(series_list, key=rank, default=None)


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
    done = fraction(progress)
    # Rounded down: what is not done is not shown as 100%.
    return text if done is None else f"{text} {math.floor(done * 100)}%"


def problem_text(summary: RunSummary) -> str:
    """Why a run ended otherwise than it should, on one line; empty for the others."""
    if summary.state in ("finished", "running"):
        return ""
    if summary.reason is not None:
        return summary.reason.partition("\n")[0]
    if summary.state == "stale":
        silence = age_text(time.time() - summary.heartbeat)
        return f"process {summary.pid} lives, but wrote nothing for {silence}"
    return f"process {summary.pid} on {summary.host} ended without a word"
