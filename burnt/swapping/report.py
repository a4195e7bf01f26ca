"""What `swap` did: what was swapped with what, where, and why not; as a table and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from burnt.swapping.site import Site, SwapPlan

__all__ = ["Report", "Row", "in_ms"]

_LONGEST = 30  # characters of paths in a line
_WAITS = "waits for its first call"


@dataclass(frozen=True)
class Row:
    """A place of a model.

    Args:
        path: the module's.
        layer: its class, by which `swap` takes it in `only` and `skip`, too.
        kind: as `swap` takes it in `only` and `skip`.
        by: what is called instead.
        state: ``"swapped"``, ``"part"`` of a place that is swapped, ``"left"`` as it was, or ``"waiting"``
            for its first call.
        why: why it was left, or still waits, or of what it is part.
        shape: of the inputs that it was measured with.
        error: the largest, of results and gradients, relative to the largest number among them.
        original_error: the original's, where `reference` is not it.
        reference: what errors are against: ``"float64"``, or the original in a dtype.
        speed: how many times as fast as the original, with the backward in ``mode="train"``.
        milliseconds: of the quickest call of both, original first, by ``"forward"`` and ``"whole"``.
        like: the place with the same shapes that was measured, if it was not this one.
    """

    path: str
    layer: str
    kind: str
    by: str
    state: Literal["waiting", "swapped", "part", "left"]
    why: str | None
    shape: str
    error: float | None
    original_error: float | None
    reference: str | None
    speed: float | None
    milliseconds: dict[str, tuple[float, float]]
    like: str | None

    @classmethod
    def of(cls, site: Site) -> Row:
        """What is known of a place now."""
        finding = site.finding
        times = {}
        if finding is not None and finding.forward is not None and finding.whole is not None:
            pairs = {"forward": finding.forward, "whole": finding.whole}
            times = {name: (1e3 * a, 1e3 * b) for name, (a, b) in pairs.items()}
        return cls(
            site.path,
            site.layer,
            site.kind.name,
            site.kind.by,
            site.state,
            site.why or (_WAITS if site.state == "waiting" else None),
            site.shape,
            site.error,
            finding.original_error if finding is not None and site.like is None else None,
            site.reference,
            None if finding is None else finding.speed,
            times,
            site.like,
        )


class Report:
    """What was swapped with what, where, and why not.

    It is of the present: places that wait for their first call show what came of it afterwards. Printed, it
    is a table; places that differ in numbers of their paths alone share a line.

    Args:
        plan: the places, and what they share.
        others: layers that burnt has nothing for, by class, with their number.
        excluded: how many places `only` and `skip` of `swap` have left out.
    """

    def __init__(self, plan: SwapPlan, others: dict[str, int], excluded: int = 0) -> None:
        self.mode = plan.mode
        self.others = others
        self._excluded = excluded
        self._sites = plan.sites

    @property
    def rows(self) -> list[Row]:
        """A row for each place, in the model's order."""
        return [Row.of(site) for site in self._sites]

    @property
    def swapped(self) -> list[str]:
        """The paths of what is swapped."""
        return [row.path for row in self.rows if row.state == "swapped"]

    @property
    def left(self) -> dict[str, str]:
        """The paths of what was left as it was, and why."""
        return {row.path: str(row.why) for row in self.rows if row.state == "left"}

    @property
    def waiting(self) -> list[str]:
        """The paths of what waits for its first call."""
        return [row.path for row in self.rows if row.state == "waiting"]

    def to_json(self) -> str:
        """All of it as JSON."""
        found: dict[str, Any] = {"mode": self.mode, "rows": [asdict(row) for row in self.rows]}
        return json.dumps({**found, "others": self.others}, indent=2)

    def __str__(self) -> str:
        rows = self.rows
        lines = [self._summary(rows)]
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            why = re.sub(r"[\d.]+ times" if row.state != "part" else r"\d+", "*", row.why or "")
            key = re.sub(r"\d+", "*", row.path), row.layer, row.kind, row.state, row.shape, why
            groups.setdefault(key, []).append(row)
        titles = ("swapped", "swapped"), ("part", "part"), ("left", "left as it was"), ("waiting", "waiting")
        for state, title in titles:
            shown = [group for group in groups.values() if group[0].state == state]
            if shown:
                head = ["", "with", "inputs", "error", "speed" if state == "swapped" else "why"]
                lines += ["", f"{title}:", *_aligned([head, *(_cells(group) for group in shown)])]
        if self.others:
            named = ", ".join(f"{name} ({count})" for name, count in self.others.items())
            lines += ["", f"burnt has nothing for: {named}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self, rows: Sequence[Row]) -> str:
        counts = [f"{len(rows)} places, mode={self.mode!r}"]
        told = ("swapped", "swapped"), ("part", "part of these"), ("left", "left as they were")
        for state, words in (*told, ("waiting", "waiting")):
            count = sum(row.state == state for row in rows)
            counts += [f"{count} {words}"] if count else []
        nothing = "nothing that burnt has kernels for"
        if self._excluded:
            nothing = f"only= and skip= leave out all {self._excluded} that burnt has kernels for"
        return ": ".join([counts[0], ", ".join(counts[1:]) or nothing])


def _cells(group: Sequence[Row]) -> list[str]:
    first = group[0]
    path = ", ".join(row.path or "(the model)" for row in group)
    if len(group) > 1 and len(path) > _LONGEST:
        path = f"{re.sub(r'[0-9]+', '*', first.path)} ({len(group)})"
    errors = [row.error for row in group if row.error is not None]
    error = f"{max(errors):.0e}" if errors else "-"
    why = str(first.why)
    if first.state == "part" and len(group) > 1:
        why = re.sub(r"\d+", "*", why)
    if first.state != "swapped":
        return [f"{path}  {first.layer}", first.by, first.shape or "-", error, why]
    return [f"{path}  {first.layer}", first.by, first.shape, error, _speed(first)]


def _speed(row: Row) -> str:
    if row.speed is None:
        return "-"
    before, after = row.milliseconds["whole"]
    return f"{row.speed:.2f}x  {in_ms(before)} -> {in_ms(after)} ms"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return [f"  {line}" for line in padded]


def in_ms(value: float) -> str:
    """Milliseconds to three digits, without an exponent.

    >>> in_ms(0.12345), in_ms(1135.6)
    ('0.123', '1136')
    """
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
