"""Columns of the list of runs that are settings or metrics: their keys, headings and values. No Textual."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from burnt.monitor.data.runs import RunView
from burnt.monitor.format import natural_key, series_label
from burnt.monitor.plotting.comparison import all_metrics
from burnt.store import Series
from burnt.store.search import setting_text
from burnt.train.format import value_text

_SETTING, _METRIC = "setting:", "metric:"
_MAX_AUTOMATIC = 4
_MAX_AUTOMATIC_LENGTH = 16  # characters of a value in a column that nobody has chosen
_MAX_LENGTH = 28
_NEVER_AUTOMATIC = ("folder", "resume")  # the run's name says the one, its events the other
_OWN_PREFIX = "config."  # of the user's own settings; the others describe the training


class Candidate(NamedTuple):
    """A column that can be shown: its key, and what it is for people."""

    key: str
    name: str
    kind: str
    example: str


def is_column(key: str) -> bool:
    """Whether a column shows a setting or a metric."""
    return key.startswith((_SETTING, _METRIC))


def candidates(views: Sequence[RunView]) -> list[Candidate]:
    """Return the columns that can be added: settings that differ, metrics, settings that are all the same."""
    values = _values_by_setting(views)
    differing = [key for key in values if len(values[key]) > 1]
    found = [Candidate(_SETTING + key, key, "differs", _examples(values[key])) for key in differing]
    found += [
        Candidate(_METRIC + series_label(series), series_label(series), "metric", "")
        for series in all_metrics(views)
    ]
    found += [
        Candidate(_SETTING + key, key, "same in all", _examples(values[key]))
        for key in values
        if key not in differing
    ]
    return found


def automatic_columns(views: Sequence[RunView]) -> list[str]:
    """Return the keys of a few settings that differ and have short values, the user's own settings first."""
    differing = [
        key
        for key, values in _values_by_setting(views).items()
        if len(values) > 1
        and max(map(len, values)) <= _MAX_AUTOMATIC_LENGTH
        and key.rpartition(".")[2] not in _NEVER_AUTOMATIC
    ]
    # `seed` and the like differ in nearly all runs and rarely matter; those below config. come first.
    differing.sort(key=lambda key: not key.startswith(_OWN_PREFIX))
    return [_SETTING + key for key in differing[:_MAX_AUTOMATIC]]


def headings(keys: Sequence[str], views: Iterable[RunView]) -> list[str]:
    """Return a short heading for each column: of a setting the last parts of its key, as few as are unique.

    >>> headings(["setting:config.model.hidden", "setting:config.lr", "metric:valid/loss"], [])
    ['hidden', 'lr', 'valid/loss']
    """
    known = {key: None for view in views for key in view.settings}
    known |= {key.removeprefix(_SETTING): None for key in keys if key.startswith(_SETTING)}
    return [
        key.removeprefix(_METRIC) if key.startswith(_METRIC) else _shortest(key.removeprefix(_SETTING), known)
        for key in keys
    ]


def column_text(view: RunView, key: str) -> str:
    """Return a run's value in a column; empty if it has none."""
    value = _value(view, key)
    if value is None:
        return ""
    return _text(value) if key.startswith(_SETTING) else value_text(value)


def sort_value(view: RunView, key: str) -> Any:
    """Return what a column is sorted by: numbers before texts; NaN for a run without a value."""
    value = _value(view, key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, value) if is_number else (1, natural_key(_text(value)))


def _value(view: RunView, key: str) -> Any:
    if key.startswith(_SETTING):
        return view.settings.get(key.removeprefix(_SETTING))
    split, _, name = key.removeprefix(_METRIC).partition("/")
    head = view.heads.get(Series(name, split))
    return None if head is None else head.point.value


def _values_by_setting(views: Sequence[RunView]) -> dict[str, set[str]]:
    """Return the texts that each setting has in the runs; a run without it has the empty text."""
    with_settings = [view for view in views if view.settings]
    texts: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for view in with_settings:
        for key, value in view.settings.items():
            texts.setdefault(key, set()).add(_text(value))
            counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        if count < len(with_settings):
            texts[key].add("")
    return texts


def _shortest(key: str, known: Iterable[str]) -> str:
    parts = key.split(".")
    for count in range(1, len(parts)):
        ending = ".".join(parts[-count:])
        if not any(other != key and f".{other}".endswith(f".{ending}") for other in known):
            return ending
    return key


def _examples(values: set[str]) -> str:
    return ", ".join(sorted(value or "-" for value in values)[:4])


def _text(value: Any) -> str:
    text = setting_text(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
