"""The report of `swap`: which modules were swapped, with which kernel, and why others were not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from burnt.swapping.site import Site, SwapPlan

__all__ = ["Report", "Row", "in_ms"]

_MAX_PATH_LENGTH = 30  # characters of paths in a line
_WAITING_TEXT = "waits for its first call"


@dataclass(frozen=True)
class Row:
    """One site: a module that burnt has kernels for.

    Args:
        path: the module's path.
        layer: its class, a name that `only` and `skip` of `swap` accept.
        kind: its kind, which `only` and `skip` accept too.
        by: the kernel that is called instead.
        state: ``"swapped"``, ``"part"`` (of a swapped site), ``"left"`` (unchanged), or ``"waiting"`` for its
            first call.
        why: why it is unchanged or still waits, or which site it is part of.
        shape: the shapes of the inputs that it was measured with.
        error: the largest error of results and gradients, relative to the largest number among them.
        original_error: the original's error, if `reference` is not the original.
        reference: what errors are relative to: ``"float64"``, or the dtype of the original.
        speed: the original's time divided by the swapped one's, with the backward in ``mode="train"``: the
            median of the samples.
        speed_range: the interval in which the median lies with a probability of 95 %.
        samples: how often both were timed.
        milliseconds: the median call of the original and of the swapped, by ``"forward"`` and ``"whole"``.
        like: the path of the site with the same shapes that was measured, if it was not this one.
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
    speed_range: tuple[float, float] | None
    samples: int
    milliseconds: dict[str, tuple[float, float]]
    like: str | None

    @classmethod
    def of(cls, site: Site) -> Row:
        """Build a row from a site's present state."""
        finding = site.finding
        timing = None if finding is None else finding.timing
        times = {}
        if timing is not None:
            pairs = {"forward": timing.forward, "whole": timing.whole}
            times = {name: (1e3 * a, 1e3 * b) for name, (a, b) in pairs.items()}
        return cls(
            site.path,
            site.layer,
            site.kind.name,
            site.kind.by,
            site.state,
            site.why or (_WAITING_TEXT if site.state == "waiting" else None),
            site.shape,
            site.error,
            finding.original_error if finding is not None and site.like is None else None,
            site.reference,
            None if timing is None else timing.speed,
            None if timing is None else timing.speed_range,
            0 if timing is None else timing.samples,
            times,
            site.like,
        )


class Report:
    """Which modules were swapped, with which kernels, and why others were not.

    It shows the present state: sites that wait for their first call are updated by it. Printed, it is a
    table; sites whose paths differ only in numbers share a line.

    Args:
        plan: the sites and their shared state.
        others: the number of layers that burnt has no kernels for, by class.
        excluded: the number of sites that `only` and `skip` of `swap` excluded.
    """

    def __init__(self, plan: SwapPlan, others: dict[str, int], excluded: int = 0) -> None:
        self.mode = plan.mode
        self.others = others
        self._excluded = excluded
        self._sites = plan.sites

    @property
    def rows(self) -> list[Row]:
        """One row per site, in the model's order."""
        return [Row.of(site) for site in self._sites]

    @property
    def swapped(self) -> list[str]:
        """The paths of the swapped sites."""
        return [row.path for row in self.rows if row.state == "swapped"]

    @property
    def left(self) -> dict[str, str]:
        """The paths of the sites that are unchanged, and why."""
        return {row.path: str(row.why) for row in self.rows if row.state == "left"}

    @property
    def waiting(self) -> list[str]:
        """The paths of the sites that wait for their first call."""
        return [row.path for row in self.rows if row.state == "waiting"]

    def to_json(self) -> str:
        """Return the whole report as JSON text."""
        content: dict[str, Any] = {"mode": self.mode, "rows": [asdict(row) for row in self.rows]}
        return json.dumps({**content, "others": self.others}, indent=2)

    def __str__(self) -> str:
        rows = self.rows
        lines = [self._summary(rows)]
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            why = re.sub(r"[\d.]+ times" if row.state != "part" else r"\d+", "*", row.why or "")
            key = re.sub(r"\d+", "*", row.path), row.layer, row.kind, row.state, row.shape, why
            groups.setdefault(key, []).append(row)
        titles = ("swapped", "swapped"), ("part", "part"), ("left", "unchanged"), ("waiting", "waiting")
        for state, title in titles:
            shown = [group for group in groups.values() if group[0].state == state]
            if shown:
                head = ["", "with", "inputs", "error", "speed" if state == "swapped" else "why"]
                lines += ["", f"{title}:", *_aligned([head, *(_cells(group) for group in shown)])]
        if self.others:
            named = ", ".join(f"{name} ({count})" for name, count in self.others.items())
            lines += ["", f"burnt has no kernels for: {named}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self, rows: Sequence[Row]) -> str:
        counts = [f"{len(rows)} sites, mode={self.mode!r}"]
        titles = ("swapped", "swapped"), ("part", "part of these"), ("left", "unchanged")
        for state, words in (*titles, ("waiting", "waiting")):
            count = sum(row.state == state for row in rows)
            counts += [f"{count} {words}"] if count else []
        nothing = "no layers that burnt has kernels for"
        if self._excluded:
            nothing = f"only= and skip= exclude all {self._excluded} layers that burnt has kernels for"
        return ": ".join([counts[0], ", ".join(counts[1:]) or nothing])


def _cells(group: Sequence[Row]) -> list[str]:
    first = group[0]
    path = ", ".join(row.path or "(the model)" for row in group)
    if len(group) > 1 and len(path) > _MAX_PATH_LENGTH:
        path = f"{re.sub(r'[0-9]+', '*', first.path)} ({len(group)})"
    errors = [row.error for row in group if row.error is not None]
    error = f"{max(errors):.0e}" if errors else "-"
    why = str(first.why)
    if first.state == "part" and len(group) > 1:
        why = re.sub(r"\d+", "*", why)
    figures = _figures(first)
    if first.state != "swapped":
        why = f"{why} {figures}".rstrip()
        return [f"{path}  {first.layer}", first.by, first.shape or "-", error, why]
    if first.speed is None:
        return [f"{path}  {first.layer}", first.by, first.shape, error, "-"]
    before, after = first.milliseconds["whole"]
    speed = f"{first.speed:.2f}x {figures}  {in_ms(before)} -> {in_ms(after)} ms"
    return [f"{path}  {first.layer}", first.by, first.shape, error, speed]


def _figures(row: Row) -> str:
    """Return how certain a row's speed is: the interval of the median, and the number of samples."""
    if row.speed_range is None:
        return ""
    low, high = row.speed_range
    return f"({low:.2f}-{high:.2f}, {row.samples} samples)"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return [f"  {line}" for line in padded]


def in_ms(value: float) -> str:
    """Format milliseconds with three digits, without an exponent.

    >>> in_ms(0.12345), in_ms(1135.6)
    ('0.123', '1136')
    """
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
