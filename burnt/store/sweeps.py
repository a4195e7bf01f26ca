"""A sweep on disk: `sweep.json` in its folder, and a `trial.json` in the run folder of each trial.

Both are Configs and replaced as a whole. `burnt.sweep` writes them; viewers read them at any time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from burnt.config import Config
from burnt.store.schema import TRIAL
from burnt.store.search import setting_text
from burnt.store.write_lease import ProcessName

SWEEP, LOG = "sweep.json", "logs/trial.log"

Value = int | float | str

_MIN_FOR_SHARES = 8
_MAX_GROUPS = 4


class Parameter(Config):
    """A setting that a sweep varies: a range of numbers, or choices."""

    key: str
    kind: Literal["float", "int", "choice"]
    low: int | float = 0
    high: int | float = 0
    log: bool = False
    choices: tuple[Value, ...] = ()

    def at(self, share: float) -> Value:
        """Return the value at a share of the range, from 0 to less than 1.

        >>> lr = Parameter(key="lr", kind="float", low=1e-4, high=1e-1, log=True)
        >>> lr.at(0.5), Parameter(key="n", kind="int", low=1, high=4).at(0.99)
        (0.003162, 4)
        """
        if self.kind == "choice":
            return self.choices[int(share * len(self.choices))]
        half = 0.5 if self.kind == "int" else 0.0  # the ends are as likely as the others
        low, high = self.low - half, self.high + half
        return self.fit(low * (high / low) ** share if self.log else low + (high - low) * share)

    def fit(self, value: float) -> int | float:
        """Return a number rounded as commands show it, within the range."""
        if self.kind == "int":
            rounded: float = round(value)
        else:  # 4 digits, and more where the ends of a narrow range have the first ones in common
            ends = max(abs(self.low), abs(self.high))
            digits = 4 + math.floor(math.log10(ends / (self.high - self.low)))
            rounded = float(f"{value:.{max(digits, 4)}g}")
        return min(max(rounded, self.low), self.high)

    def share(self, value: Value) -> float:
        """Return where a value lies in the range, from 0 to 1; the inverse of `at` for drawings."""
        if self.kind == "choice":
            known = value in self.choices and len(self.choices) > 1
            return self.choices.index(value) / (len(self.choices) - 1) if known else 0.5
        assert not isinstance(value, str)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Sweep(Config):
    """What a sweep searches, and how; `direction` and `metric` are None until the first run has told them."""

    target: str
    space: tuple[Parameter, ...]
    fixed: tuple[str, ...] = ()
    trials: int = 20
    metric: str | None = None  # such as "valid/loss"
    direction: Literal["higher", "lower"] | None = None
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    prune: Literal["median", "halving", "none"] = "none"
    jobs: int = 1
    seed: int = 0
    id: str = ""  # random, so that a folder from another user can be told from one's own
    process: tuple[str, int, float] | None = None  # host, pid and start time of the newest one

    def is_running(self) -> bool:
        """Whether a process of this host runs the sweep."""
        return _is_alive(self.process)


class Trial(Config):
    """A trial: its parameters, its process, and how it ended. Its run is the folder that holds it."""

    number: int
    params: dict[str, Value]
    state: Literal["running", "complete", "pruned", "failed"] = "running"
    value: float | None = None  # the best of the metric so far
    step: int | None = None  # of its newest value
    pruned_at: int | None = None  # the step at which it was decided, before the run has stopped
    error: str | None = None
    seconds: float = 0.0
    process: tuple[str, int, float] | None = None

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return f"{self.number:04d}"

    def assignments(self) -> list[str]:
        """Return the parameters as `burnt train` takes them."""
        return [assignment(key, value) for key, value in self.params.items()]

    def is_alive(self) -> bool:
        """Whether the process that was started for the trial runs on this host."""
        return _is_alive(self.process)


def _is_alive(process: tuple[str, int, float] | None) -> bool:
    name = None if process is None else ProcessName(*process)
    return name is not None and name.is_local and name.is_alive()


def assignment(key: str, value: Value) -> str:
    """Return a setting as the command line has it: ``lr=0.01``."""
    return f"{key}={setting_text(value)}"


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a sweep."""
    return Path(folder, SWEEP).is_file()


def read_trials(folder: str | os.PathLike[str]) -> list[Trial]:
    """Return the trials of a sweep by number.

    Raises:
        ConfigError: the file of a trial is damaged.
    """
    names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"\d{4,}", name))
    files = (Path(folder, name, TRIAL) for name in names)
    return [Trial.load(file) for file in files if file.is_file()]


def ranked(trials: Iterable[Trial], direction: str | None) -> list[Trial]:
    """Return trials by value, the best first; complete ones, pruned ones, and those without a value.

    >>> a, b, c = (Trial(number=n, params={}, value=n, state="complete") for n in (1, 2, 3))
    >>> [trial.number for trial in ranked([a, b, c.replace(state="pruned")], "higher")]
    [2, 1, 3]
    """
    sign = -1.0 if direction == "higher" else 1.0
    order = {"complete": 0, "pruned": 1, "running": 1, "failed": 2}
    return sorted(
        trials,
        key=lambda t: (t.value is None, order[t.state], sign * (t.value or 0.0), t.number),
    )


def importance(space: Sequence[Parameter], trials: Sequence[Trial]) -> dict[str, float] | None:
    """Return the share of the variance of the trials' ranks that each parameter explains on its own.

    The trials are ranked by value; a parameter's choices, or up to four ranges with about as many trials
    each, are the groups of a one-way analysis of variance. Returned is its epsilon squared, which is 0 on
    average for a parameter without effect. Effects that parameters have only together are not seen.

    Returns:
        0 to 1 by key, the most important first; None below 8 trials with a value.
    """
    known = [
        trial for trial in trials if trial.value is not None and trial.params.keys() >= {p.key for p in space}
    ]
    if len(known) < _MIN_FOR_SHARES:
        return None
    ranks = _ranks([trial.value or 0.0 for trial in known])
    shares = {}
    for parameter in space:
        places = [parameter.share(trial.params[parameter.key]) for trial in known]
        if len(set(places)) > _MAX_GROUPS and parameter.kind != "choice":
            places = [float(int(rank * _MAX_GROUPS / len(known))) for rank in _ranks(places)]
        shares[parameter.key] = _explained(places, ranks)
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 0; equal ones get their mean."""
    order = sorted(values)
    return [(order.index(value) + len(order) - 1 - order[::-1].index(value)) / 2 for value in values]


def _explained(groups: Sequence[float], values: Sequence[float]) -> float:
    """Return the epsilon squared of a one-way analysis of variance (Kelley, 1935)."""
    count, num_groups = len(values), len(set(groups))
    mean = sum(values) / count
    total = sum((value - mean) ** 2 for value in values)
    within = 0.0
    for group in set(groups):
        members = [value for value, one in zip(values, groups, strict=True) if one == group]
        center = sum(members) / len(members)
        within += sum((value - center) ** 2 for value in members)
    if not total or num_groups in (1, count):
        return 0.0
    error = within / (count - num_groups)
    return max(0.0, (total - within - (num_groups - 1) * error) / total)
