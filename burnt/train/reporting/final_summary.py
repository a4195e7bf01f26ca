"""The summary printed at the end of a training: metric values, checkpoints, and commands to view the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from burnt._text import table_lines
from burnt.errors import BurntError
from burnt.store import RunReader
from burnt.train.checkpoints.checkpoint import Every, KeepBest, Keeper, Saved
from burnt.train.format import value_text
from burnt.train.metrics.base import Metric


def format_summary(
    folder: Path,
    values: Mapping[str, float],
    metrics: Sequence[Metric],
    saved: Sequence[Saved],
    keepers: Sequence[Keeper],
) -> str:
    """Return the summary as text for a terminal or a log; the best values are read from the run store."""
    lines = _format_table(folder, values, metrics)
    if saved:
        lines.append(f"Checkpoints in {saved[0].path.parent}: {_format_checkpoints(saved, keepers)}")
    where = shlex.quote(str(folder))
    lines.append(f"To view the run: burnt runs show {where}, burnt monitor {where}")
    return "\n".join(lines)


def _format_table(folder: Path, values: Mapping[str, float], metrics: Sequence[Metric]) -> list[str]:
    found = dict.fromkeys(key.partition("/")[0] for key in values)
    # The training's, the validation's, and those of further validation sets.
    splits: list[str] = [split for split in ("train", "valid") if split in found]
    splits += [split for split in found if split not in splits]
    if not splits:
        return []
    judged = [split for split in splits if split != "train"] or splits
    best = {split: _best_values(folder, split, metrics) for split in judged}
    best = {split: bests for split, bests in best.items() if bests}
    rows = [["", *splits, *(f"best {split}" for split in best)]]
    for name in _names_of(metrics, [key.partition("/")[2] for key in values]):
        keys = [f"{split}/{name}" for split in splits]
        row = [name, *(value_text(values[key]) if key in values else "" for key in keys)]
        rows.append([*row, *(bests.get(name, "") for bests in best.values())])
    return table_lines(rows, right=range(1, len(splits) + 1))


def _names_of(metrics: Sequence[Metric], names: Iterable[str]) -> dict[str, Metric]:
    """Return the names that metrics have, in their order: ``"f1"``, or ``"f1/cat"`` for each class."""
    unique = dict.fromkeys(names)
    return {
        name: metric
        for metric in metrics
        for name in unique
        if name == metric.name or name.startswith(f"{metric.name}/")
    }


def _best_values(folder: Path, split: str, metrics: Sequence[Metric]) -> dict[str, str]:
    """Return the best value of each metric on a split with its step, as text; skip unreadable ones."""
    best = {}
    try:
        with RunReader(folder) as reader:
            known = [series.name for series in reader.series() if series.split == split]
            for name, metric in _names_of(metrics, known).items():
                if (higher := metric.higher_is_better) is None:
                    continue
                if split == "train":  # its rows are of a few batches, and the values shown of epochs
                    epochs = _epoch_values(reader, name)
                    found = (max if higher else min)(epochs, key=lambda one: one[0], default=None)
                else:
                    extreme = reader.best(name, split, higher=higher)
                    found = None if extreme is None else (extreme.value, extreme.step)
                if found is not None:
                    best[name] = f"{value_text(found[0])} at step {found[1]}"
    except BurntError:  # a store that could not be written was already reported
        return {}
    return best


def _epoch_values(reader: RunReader, name: str) -> list[tuple[float, int]]:
    """Return the finite values of a training metric over each epoch, with the step at the epoch's end."""
    visible = {attempt.id: attempt.visible_until for attempt in reader.attempts()}
    found = []
    for event in reader.events("epoch"):
        value = event.data.get("values", {}).get(name)
        if event.step is not None and event.step <= visible[event.attempt] and isinstance(value, int | float):
            found.append((float(value), event.step))
    return found


def _format_checkpoints(saved: Sequence[Saved], keepers: Sequence[Keeper]) -> str:
    """Return the checkpoints' names, each with the reasons why it is kept."""
    reasons: dict[Path, list[str]] = {entry.path: [] for entry in saved}
    reasons[saved[-1].path].append("newest")
    for entry in saved:
        if entry.kept:
            reasons[entry.path].append("kept for good")
    for keeper in keepers:
        match keeper:
            case KeepBest():
                reason = f"best {keeper.monitored.key}"
            case Every():
                reason = f"every {keeper.interval}"
            case _:
                continue
        for entry in keeper.keep(saved):
            reasons[entry.path].append(reason)
    return ", ".join(
        f"{path.name} ({', '.join(words)})" if words else path.name for path, words in reasons.items()
    )
