"""Which of a test's cases a run takes, by the mark `sample`.

`@pytest.mark.sample(8)` above a test's `parametrize`: the fast run takes 8 of its cases, chosen so that each
value of each axis is among them if 8 suffice; `@pytest.mark.sample()`: as many as that needs. Where cases are
a list of behaviours, `@pytest.mark.sample(keep=("mask", "packed"))` takes those with one of these texts as a
value. The others get the mark `full`. With `full=50`, `scripts/test --full` takes 50 cases, those of the fast
run among them, and the rest get the mark `beyond` too. Which ones is fixed by their names, and for `--full`
by `$BURNT_SEED` as well (0 by default): another seed draws others. Whoever names a case, or gives no `-m`,
gets it in any case.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence

import pytest

Value = tuple[str, str]


def mark(items: Iterable[pytest.Item]) -> None:
    """Give the cases that a run leaves out the marks by which it does."""
    for _, cases in itertools.groupby(items, _test):
        sampled = [c for c in cases if isinstance(c, pytest.Function) and c.get_closest_marker("sample")]
        if sampled:
            _mark(sampled)


def _test(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def _mark(cases: Sequence[pytest.Function]) -> None:
    wanted = cases[0].get_closest_marker("sample")
    assert wanted is not None
    often = [c for c in cases if not c.get_closest_marker("full")]
    if keep := wanted.kwargs.get("keep"):
        fast = {c for c in often if any(v in keep for v in c.callspec.params.values() if isinstance(v, str))}
        named = {v for c in fast for v in c.callspec.params.values() if isinstance(v, str)}
        assert named.issuperset(keep), f"{_test(cases[0])} has no {', '.join(set(keep) - named)}"
    else:
        fast = set(covering(often, wanted.args[0] if wanted.args else None, ""))
    taken = set(cases)
    if full := wanted.kwargs.get("full"):
        more = [c for c in cases if c not in fast]
        taken = fast.union(covering(more, full - len(fast), os.environ.get("BURNT_SEED", "0")))
    for case in cases:
        if case not in fast:
            case.add_marker(pytest.mark.full)
        if case not in taken:
            case.add_marker(pytest.mark.beyond)


def covering(cases: Sequence[pytest.Function], most: int | None, seed: str) -> list[pytest.Function]:
    """The cases, `most` at most, that have the values of the axes which no case before them has."""
    left = sorted(cases, key=lambda c: hashlib.sha256(f"{seed}{c.name}".encode()).digest())
    values = {c: set(_values(c)) for c in left}
    missing = set[Value]().union(*values.values())
    taken: list[pytest.Function] = []
    while left and (missing if most is None else len(taken) < most):
        best = max(left, key=lambda c: len(values[c] & missing)) if missing else left[0]
        left.remove(best)
        taken.append(best)
        missing -= values[best]
    return taken


def _values(case: pytest.Function) -> Iterable[Value]:
    for axis, value in case.callspec.params.items():
        # Known by what it says where that is short, and else as the object, of which all cases have the same.
        known = value is None or isinstance(value, str | int | float) or type(value).__name__ == "dtype"
        yield axis, repr(value) if known else str(id(value))
