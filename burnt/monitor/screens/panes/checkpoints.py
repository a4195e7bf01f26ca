"""The checkpoints on disk: metric values, size, age, and which is the best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textual.app import ComposeResult

from burnt.errors import clean
from burnt.monitor.data.runs import Checkpoint
from burnt.monitor.format import age_text, better_direction, parse_number, size_text
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.train.format import value_text

_RESCAN_SECONDS = 5


class CheckpointsPane(Pane):
    """The checkpoints from which the run can be resumed."""

    TITLE = "Checkpoints"
    SHORT = "Ckpts"

    def compose(self) -> ComposeResult:
        columns = (
            Column("checkpoint"),
            Column("step", align_right=True),
            Column("", drop_priority=0),
            Column("values", expands=True),
            Column("size", align_right=True),
            Column("age", align_right=True),
        )
        yield Table(columns, empty_text="There are no checkpoints.")

    def token(self) -> object:
        """Change every few seconds, as checkpoints may be deleted by hand."""
        num_events = sum(event.kind == "checkpoint" for event in self.view.events)
        return num_events, self.view.is_live, int(time.monotonic() / _RESCAN_SECONDS)

    def read(self) -> Callable[[], Any]:
        checkpoints = self.view.checkpoints()
        best, key = best_checkpoint(checkpoints, self.view.config)
        rows = [_row(checkpoint, key, is_best=checkpoint is best) for checkpoint in reversed(checkpoints)]
        return lambda: self.query_one(Table).show(rows)


def _row(checkpoint: Checkpoint, key: str, *, is_best: bool) -> Row:
    """Return a checkpoint's row; `key` is the value that decides which one is the best."""
    # The deciding value, other validation values, the rest; the last may be cut off.
    values = sorted(
        checkpoint.values.items(), key=lambda one: (one[0] != key, not one[0].startswith("valid/"))
    )
    return checkpoint.name, (
        cell(checkpoint.name, "bold" if is_best else ""),
        cell("" if checkpoint.step is None else f"{checkpoint.step:,}"),
        cell("★ best" if is_best else "", "$success"),
        tuple(
            (f"{clean(name)} {_value_text(value)}  ", "$success" if is_best and name == key else "")
            for name, value in values
        ),
        cell(size_text(checkpoint.bytes), "$dim"),
        cell(age_text(time.time() - checkpoint.written), "$dim"),
    )


def best_checkpoint(
    checkpoints: Sequence[Checkpoint], config: Mapping[str, Any] | None = None
) -> tuple[Checkpoint | None, str]:
    """Return the best checkpoint, the oldest of equals as a training keeps it, and the name of its value.

    It is the best by the validation loss, else by the metric that ranks the run's checkpoints, else by the
    first value with a known better direction; None and an empty name if no checkpoint has such a value.
    """
    names = list(dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.values))
    comparable = [name for name in names if better_direction(name, config) is not None]
    ranked_by = config.get("ranked_by") if isinstance(config, Mapping) else None
    for name in (
        "valid/loss",
        *[n for n in comparable if n == ranked_by],
        *[n for n in comparable if n.startswith("valid/")],
        *comparable,
    ):
        candidates = [
            (value, checkpoint)
            for checkpoint in checkpoints
            if (value := parse_number(checkpoint.values.get(name))) is not None and not math.isnan(value)
        ]
        if candidates:
            sign = -1 if better_direction(name, config) == "lower" else 1
            return max(candidates, key=lambda candidate: sign * candidate[0])[1], name
    return None, ""


def _value_text(value: object) -> str:
    parsed = parse_number(value)
    return clean(str(value)) if parsed is None else value_text(parsed)
