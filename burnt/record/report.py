"""LoadReport: what `load_weights` did, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from burnt.errors import quantity
from burnt.record.fit import MOST_LINES, question


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading weights into a module.

    Args:
        applied: paths that were loaded.
        missing: paths of the module that the source lacks.
        unexpected: names in the source, after renaming, that the module lacks.
        cast: path -> (dtype in the source, dtype in the module).
        static: path of a static field -> (value in the record, value in the module), where they differ.
        tied: paths that the source lacks -> the loaded path that has the same tensor.
        skipped: what `only=` and `skip=` left out, in the module or the source.
        meta: paths of parameters and buffers that are still on the meta device.
        notes: what was found out about the source: a nested key, a prefix.
        source: the file or folder, or the kind of object.
        guesses: missing path -> the unexpected name that it may be.
        absent: missing path -> the names in the source that it would come from, where a layout was used.
    """

    applied: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    cast: Mapping[str, tuple[torch.dtype, torch.dtype]] = dataclasses.field(default_factory=dict)
    static: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    guesses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{quantity(len(self.applied), 'tensor')} loaded"
        head += f" from {self.source}" if self.source else ""
        head += f", {len(self.skipped):,} skipped" if self.skipped else ""
        rows = [("note", note) for note in self.notes]
        rows += _rows("tied", (f"{path} is {source}" for path, source in self.tied.items()), len(self.tied))
        rows += _rows("missing", map(self.describe_missing, self.missing), len(self.missing))
        rows += _rows("unexpected", self.unexpected, len(self.unexpected))
        rows += cast_rows(self.cast)
        rows += [
            ("static", f"{path}: {old!r} in the record, {new!r} here")
            for path, (old, new) in self.static.items()
        ]
        rows += _rows("on meta", self.meta, len(self.meta))
        return as_table(head, rows)

    def describe_missing(self, path: str) -> str:
        """Return a missing path with the names that the source would have for it, and with a guess."""
        absent = f": no {', '.join(map(repr, self.absent[path]))}" if path in self.absent else ""
        return path + absent + question(self.guesses.get(path))


def _rows(kind: str, texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    rows = [(kind, text) for text in islice(texts, MOST_LINES)]
    return rows + ([(kind, f"and {count - MOST_LINES:,} more")] if count > MOST_LINES else [])


def cast_rows(cast: Mapping[str, tuple[torch.dtype, torch.dtype]]) -> list[tuple[str, str]]:
    """Return a row for each pair of dtypes that tensors were converted from and to."""
    names: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for name, dtypes in cast.items():
        names.setdefault(dtypes, []).append(name)
    return [("cast", f"{first_of(found)}: from {old} to {new}") for (old, new), found in names.items()]


def first_of(names: Sequence[str]) -> str:
    """Return the first name, and how many more there are."""
    return names[0] + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


def as_table(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return a line and, below it, rows of a kind and a text."""
    width = max((len(kind) for kind, _ in rows), default=0)
    return "\n".join([head, *(f"  {kind:<{width}}  {text}" for kind, text in rows)])
