"""The checkpoints on disk: metric values, size, age, and which is the best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from textual.app import ComposeResult

from burnt.errors import clean
from burnt.monitor.data.runs import Checkpoint
from burnt.monitor.format import age_text, better_direction, parse_number, size_text
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.table import Cell, Column, Table, cell
from burnt.train.format import value_text

_COLUMNS = (
    Column("checkpoint"),
    Column("step", align_right=True),
    Column("", drop_priority=0),
    Column("values", expands=True),
    Column("size", align_right=True),
    Column("age", align_right=True),
)
_RESCAN_SECONDS = 5


class CheckpointsPane(Pane):
    """The checkpoints from which the run can be resumed."""

    TITLE = "Checkpoints"
    SHORT = "Ckpts"

    def compose(self) -> ComposeResult:
        yield Table(_COLUMNS, empty_text="There are no checkpoints.")

    def token(self) -> object:
        """Change every few seconds, as checkpoints may be deleted by hand."""
        num_events = sum(event.kind == "checkpoint" for event in self.view.events)
        return num_events, self.view.is_live, int(time.monotonic() / _RESCAN_SECONDS)

    def read(self) -> Callable[[], Any]:
        checkpoints = self.view.checkpoints()
        best, key = best_checkpoint(checkpoints, self.view.config)
        now = time.time()
        rows: list[tuple[object, Sequence[Cell]]] = []
        for checkpoint in reversed(checkpoints):
            values = [
                (
                    f"{clean(name)} {_value_text(value)}  ",
                    "$success" if checkpoint is best and name == key else "",
                )
                for name, value in _sort_values(checkpoint.values, key)
            ]
            rows.append(
                (
                    checkpoint.name,
                    (
                        cell(checkpoint.name, "bold" if checkpoint is best else ""),
                        cell("" if checkpoint.step is None else f"{checkpoint.step:,}"),
                        cell("★ best" if checkpoint is best else "", "$success"),
                        tuple(values),
                        cell(size_text(checkpoint.bytes), "$dim"),
                        cell(age_text(now - checkpoint.written), "$dim"),
                    ),
                )
            )
        return partial(self._show, rows)

    def _show(self, rows: Sequence[tuple[object, Sequence[Cell]]]) -> None:
        self.query_one(Table).show(rows)


def best_checkpoint(
    checkpoints: Sequence[Checkpoint], config: Mapping[str, Any] | None = None
) -> tuple[Checkpoint | None, str]:
    """Find the best checkpoint.

    It is the best by the validation loss, else by the metric that ranks the run's checkpoints, else by the
    first value with a known better direction.

    Returns:
        The checkpoint (the oldest of equals, which is the one a training keeps) and the value's name, or None
        and an empty name if no checkpoint has such a value.
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


def _sort_values(values: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    """Sort values: the deciding one, other validation values, the rest; the last may be cut off."""
    return sorted(values.items(), key=lambda one: (one[0] != key, not one[0].startswith("valid/")))


def _value_text(value: object) -> str:
    parsed = parse_number(value)
    return clean(str(value)) if parsed is None else value_text(parsed)
