"""Search runs by their settings, metrics, tags, notes, names and state.

A query is a list of terms, all of which must match:

=====================  ====================================================================================
``words``              name, folder, state, a tag or a note contain it
``tag:a,b``            the run has one of the tags; ``*`` and ``?`` stand for other characters, as in a shell
``state:crashed``      running, finished, stopped, crashed, stale or unreadable
``name:x`` ``note:x``  the name or folder, or a note, contains it
``config:x``           a setting, written ``key=value``, contains it
``lr>=1e-3``           a setting: ``= != < <= > >=``, and ``~`` for "contains". ``lr`` is short for any key
                       that ends in ``.lr``
``valid/loss<0.3``     the last value of a metric; ``best:valid/loss<0.3`` the best one
``step>1000``          steps, epochs (``epoch``), training time (``took>2h``), time since start (``age<7d``)
``-term``              the term does not match
=====================  ====================================================================================

Texts are compared without case. Quotes hold spaces: ``note:"too high"``. A run without a setting or metric
matches none of its comparisons, ``!=`` neither.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from burnt.errors import QueryError, did_you_mean, nearest
from burnt.store.reader import Series

_Value = TypeVar("_Value")
_Number = Callable[[float, float], bool]

_FIELDS = ("tag", "state", "name", "note", "config")
_NUMBERS = ("step", "epoch", "took", "age")
_STATES = ("running", "finished", "stopped", "crashed", "stale", "unreadable", "deleted")
_BEST, _BEST_OF = "best", "best:"
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_COMPARISONS: dict[str, _Number] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NOT_SHOWN = ("load", "fork")  # of a training's configuration: for programs, not for people
# Of a program's own settings: where the run is and how it was started, which its name and its events say.
_NO_SETTINGS = ("config.folder", "config.resume", "config.exists")

_SPACE, _MINUS, _COMMA = re.compile(r"\s+"), re.compile("-"), re.compile(",")
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|=|<|>|~)\s*")
_KEY = re.compile(r"""[^\s"=<>!~,]+""")
_FIELD = re.compile(r"([A-Za-z]+):")
_BARE, _BARE_IN_LIST = re.compile(r'[^\s"]+'), re.compile(r'[^\s",]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DURATION = re.compile(r"(.*?)([a-z]+)", re.IGNORECASE)


class RunFacts(NamedTuple):
    """What a query is compared with."""

    names: Sequence[str]  # the run's name, label and folder
    state: str
    tags: Sequence[str]
    notes: Sequence[str]
    settings: Mapping[str, Any]  # `settings_of` its configuration
    last: Mapping[Series, float]
    best: Callable[[Series], float | None]  # None: the better direction is unknown
    numbers: Mapping[str, float]  # step, epoch, took and age in seconds, as far as they are known


_Test = Callable[[RunFacts], bool]


class _Term(NamedTuple):
    test: _Test
    is_negated: bool
    key: str | None  # of a comparison


class Query:
    """A parsed query; `parse_query` creates it."""

    def __init__(self, text: str, terms: Sequence[_Term]) -> None:
        self.text = text
        self._terms = terms

    def matches(self, facts: RunFacts) -> bool:
        """Whether every term matches a run."""
        return all(term.test(facts) != term.is_negated for term in self._terms)

    def unknown_key(self, runs: Iterable[RunFacts]) -> tuple[str, str | None] | None:
        """Return the first key that no run has, with the closest key that one has; None if all are known."""
        runs = list(runs)
        for term in self._terms:
            if term.key is None or any(_has(facts, term.key) for facts in runs):
                continue
            known = dict.fromkeys(_NUMBERS)
            for facts in runs:
                known |= dict.fromkeys(facts.settings)
                known |= dict.fromkeys(key.rpartition(".")[2] for key in facts.settings)
                known |= dict.fromkeys(f"{series.split}/{series.name}" for series in facts.last)
            # `loss` is written `valid/loss`, or `train/loss` where there is no validation.
            series = sorted(key for key in known if key.endswith(f"/{term.key}"))
            return term.key, series[-1] if series else nearest(term.key, known)
        return None


def parse_query(text: str) -> Query:
    """Parse a query; an empty one matches every run. The message of a QueryError points at the position.

    >>> facts = RunFacts(["digits-a"], "crashed", ["baseline"], [], {"model.hidden": 128, "lr": 0.01},
    ...                  {Series("loss", "valid"): 0.25}, lambda series: None, {"step": 500})
    >>> parse_query("hidden=128 lr>1e-3 valid/loss<0.3 tag:base* -state:finished dig").matches(facts)
    True
    >>> parse_query("lr>fast")
    Traceback (most recent call last):
    burnt.errors.QueryError: the search cannot be read: > compares with a number
      in        lr>fast
                   ^
      expected  a number, such as 1e-3
      found     fast
    """
    parser, terms = _Parser(text), []
    while not parser.is_at_end():
        terms.append(parser.term())
    return Query(text, terms)


def settings_of(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run's settings by dotted key, without the parts of its configuration that are for programs.

    >>> settings_of({"config": {"lr": 0.1, "model": {"hidden": 64}, "folder": "runs/a"}, "load": {}})
    {'config.lr': 0.1, 'config.model.hidden': 64}
    """
    shown = flatten({key: value for key, value in (config or {}).items() if key not in _NOT_SHOWN})
    return {key: value for key, value in shown.items() if key not in _NO_SETTINGS}


def without_repeats(settings: Mapping[str, _Value]) -> dict[str, _Value]:
    """Leave out settings that repeat an earlier one: with the same last part of the key, and an equal value.

    >>> without_repeats({"config.seed": 3, "seed": 3, "loader.seed": 4})
    {'config.seed': 3, 'loader.seed': 4}
    """
    kept: dict[str, _Value] = {}
    by_end: dict[str, list[_Value]] = {}
    for key, value in settings.items():
        values = by_end.setdefault(key.rpartition(".")[2], [])
        if value not in values:
            values.append(value)
            kept[key] = value
    return kept


def short_names(keys: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Return a short name of each setting: the last parts of its key, as few as no other known key ends in.

    >>> short_names(["config.model.hidden", "config.lr", "config.seed"], known=["seed"])
    {'config.model.hidden': 'hidden', 'config.lr': 'lr', 'config.seed': 'config.seed'}
    """
    keys = list(keys)
    endings = Counter(ending for key in {*keys, *known} for ending in _endings(key))
    return {key: next((ending for ending in _endings(key) if endings[ending] == 1), key) for key in keys}


def _endings(key: str) -> list[str]:
    """Return the last part of a dotted key, the last two, and so on."""
    parts = key.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings by dotted key, as the command line writes them."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


# --- parsing


class _Parser:
    """The text of a query, and how far it is parsed."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def is_at_end(self) -> bool:
        """Whether nothing but spaces is left, which are skipped."""
        self._take(_SPACE)
        return self._at == len(self._text)

    def term(self) -> _Term:
        """Parse a term."""
        is_negated = self._take(_MINUS) is not None
        if self._text[self._at : self._at + 1].strip() == "":
            raise self._error("a - stands before a term", "a term, such as -tag:old")
        if field := _FIELD.match(self._text, self._at):
            name, known = field[1].lower(), (*_FIELDS, _BEST)
            if name in _FIELDS:
                self._at = field.end()
                return _Term(self._field(name), is_negated, None)
            if name not in known:
                word = self._text[self._at :].split()[0]
                raise self._error(
                    f"there is no field {field[1]!r}",
                    ", ".join(f"{field}:" for field in known),
                    hint=did_you_mean(name, known, f'"{word}" finds this text'),
                )
        start = self._at
        if key := self._take(_KEY):
            if symbol := self._take(_OPERATOR):
                return _Term(self._comparison(key[0], symbol[1]), is_negated, key[0].removeprefix(_BEST_OF))
            if key[0].startswith(_BEST_OF):
                expected = "an operator and a number: best:valid/loss<0.3"
                raise self._error("best: compares a metric", expected)
        elif _OPERATOR.match(self._text, self._at):
            expected = "such as lr>1e-3 or valid/loss<0.3"
            raise self._error("an operator stands after a setting or metric", expected)
        self._at = start
        contains = _contains(self._value(_BARE, "a word"))
        return _Term(
            lambda facts: any(map(contains, (facts.state, *facts.names, *facts.tags, *facts.notes))),
            is_negated,
            None,
        )

    def _field(self, name: str) -> _Test:
        """Parse the values of a field, of which one must match."""
        tests: list[Callable[[str], bool]] = []
        while not tests or self._take(_COMMA):
            start, value = self._at, self._value(_BARE_IN_LIST, f"a value after {name}:")
            if name == "state" and not any(map(_equals(value), _STATES)):
                self._at, hint = start, did_you_mean(value, _STATES)
                raise self._error("there is no such state", ", ".join(_STATES[:-1]), value, hint)
            tests.append(_equals(value) if name in ("tag", "state") else _contains(value))
        texts: Callable[[RunFacts], Iterable[str]] = {
            "tag": lambda facts: facts.tags,
            "state": lambda facts: (facts.state,),
            "name": lambda facts: facts.names,
            "note": lambda facts: facts.notes,
            "config": lambda facts: [f"{key}={setting_text(value)}" for key, value in facts.settings.items()],
        }[name]
        return lambda facts: any(test(value) for value in texts(facts) for test in tests)

    def _comparison(self, key: str, symbol: str) -> _Test:
        """Parse what a setting, a metric or a number of the run is compared with."""
        is_time = key in ("took", "age")
        start, value = self._at, self._value(_BARE, f"a value after {symbol}")
        number = _parse_number(value, has_unit=is_time)
        compare, contains, equals = _COMPARISONS.get(symbol), _contains(value), _equals(value)
        if number is None and (compare is not None or key.startswith(_BEST_OF) or key in _NUMBERS):
            self._at = start
            expected = "a time, such as 90s, 20m, 2h or 7d" if is_time else "a number, such as 1e-3"
            raise self._error(f"{symbol} compares with a {'time' if is_time else 'number'}", expected, value)

        def test(facts: RunFacts) -> bool:
            values = values_of(facts, key)
            if compare is not None and number is not None:
                return any(compare(float(v), number) for v in values if _is_number(v))
            if symbol == "~":
                return any(contains(setting_text(v)) for v in values)
            is_equal = any(_is_same_number(v, number) or equals(setting_text(v)) for v in values)
            return bool(values) and not is_equal if symbol == "!=" else is_equal

        return test

    def _value(self, bare: re.Pattern[str], expected: str) -> str:
        if quoted := self._take(_QUOTED):
            return re.sub(r"\\(.)", r"\1", quoted[1])
        if self._text.startswith('"', self._at):
            raise self._error("the quotes are not closed", 'a second "')
        if word := self._take(bare):
            return word[0]
        raise self._error("a value is missing", expected)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what a pattern matches here, and return it."""
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return found

    def _error(
        self, what: str, expected: str, found: str | None = None, hint: str | None = None
    ) -> QueryError:
        # One character for each, so that the mark is below what it points at.
        shown = "".join(c if c.isprintable() else " " for c in self._text)
        where = f"{shown}\n{' ' * self._at}^"
        error = QueryError(
            f"the search cannot be read: {what}", where=where, expected=expected, found=found, hint=hint
        )
        error.position = self._at
        return error


def _parse_number(value: str, *, has_unit: bool) -> float | None:
    factor = 1.0
    if has_unit and (parts := _DURATION.fullmatch(value)) and parts[2].lower() in _UNITS:
        value, factor = parts[1], _UNITS[parts[2].lower()]
    try:
        return float(value) * factor
    except ValueError:
        return None


# --- comparing


def _contains(text: str) -> Callable[[str], bool]:
    return _pattern(text, r".*{}.*")


def _equals(text: str) -> Callable[[str], bool]:
    return _pattern(text, "{}")


def _pattern(text: str, form: str) -> Callable[[str], bool]:
    """Return a test without case, in which ``*`` and ``?`` stand for any characters."""
    escaped = re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
    pattern = re.compile(form.replace("{}", escaped), re.IGNORECASE | re.DOTALL)
    return lambda value: pattern.fullmatch(value) is not None


def _has(facts: RunFacts, key: str) -> bool:
    return key in _NUMBERS or bool(_settings(facts, key)) or _series(facts, key) is not None


def values_of(facts: RunFacts, key: str) -> list[Any]:
    """Return the values that a key stands for: a number of the run, settings, or a metric."""
    if key.startswith(_BEST_OF):
        series = _series(facts, key.removeprefix(_BEST_OF))
        best = None if series is None else facts.best(series)
        return [] if best is None else [best]
    if key in _NUMBERS:
        return [facts.numbers[key]] if key in facts.numbers else []
    if settings := _settings(facts, key):
        return settings
    series = _series(facts, key)
    return [] if series is None else [facts.last[series]]


def _settings(facts: RunFacts, key: str) -> list[Any]:
    if key in facts.settings:
        return [facts.settings[key]]
    ending = f".{key}"
    return [value for name, value in facts.settings.items() if name.endswith(ending)]


def _series(facts: RunFacts, key: str) -> Series | None:
    split, _, name = key.partition("/")
    series = Series(name, split)
    return series if series in facts.last else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same_number(value: Any, number: float | None) -> bool:
    if number is None or not _is_number(value):
        return False
    return value == number or (math.isnan(number) and math.isnan(value))


def setting_text(value: Any) -> str:
    """Return a setting's value as a text: a text as it is, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
