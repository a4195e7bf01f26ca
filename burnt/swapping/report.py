"""The report of `swap`: which modules were swapped, with which kernel, and why others were not."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from burnt._files import parse_json, replacing
from burnt._text import table_lines
from burnt.errors import SwapError
from burnt.swapping.kind import KINDS
from burnt.swapping.measure import Finding, ModelTiming, Source, Timing
from burnt.swapping.site import Site, SwapPlan

_FORMAT, _VERSION = "burnt swap report", 1

_MAX_PATH_LENGTH = 30  # characters of paths in a line
_WAITING_TEXT = "waits for its first call"
_SHARED = ("path", "layer", "state", "shape", "error", "reference", "like", "signature", "source")
"""What a `Row` has of a `Site` unchanged."""


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
        signature: a hash of what the measurement depends on: the module's settings, and the shapes, strides
            and dtypes of its parameters and inputs; empty before its first call.
        source: ``"measured"`` by this swap, ``"kept"`` from another process's, or ``"given"`` as `decisions`.
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
    signature: str
    source: Source | None

    @classmethod
    def of(cls, site: Site) -> Row:
        """Build a row from a site's present state."""
        finding = site.finding or Finding()
        timing = finding.timing
        times = {}
        if timing is not None:
            pairs = {"forward": timing.forward, "whole": timing.whole}
            times = {name: (1e3 * a, 1e3 * b) for name, (a, b) in pairs.items()}
        return cls(
            kind=site.kind.name,
            by=site.kind.by,
            why=site.why or (_WAITING_TEXT if site.state == "waiting" else None),
            original_error=finding.original_error if site.like is None else None,
            speed=None if timing is None else timing.speed,
            speed_range=None if timing is None else timing.speed_range,
            samples=0 if timing is None else timing.samples,
            milliseconds=times,
            **{name: getattr(site, name) for name in _SHARED},
        )

    def to_site(self, plan: SwapPlan) -> Site:
        """Build a site of this state.

        Raises:
            KeyError: burnt has no such kind.
        """
        finding = None
        if self.speed is not None and self.speed_range is not None:
            forward, whole = (
                (1e-3 * a, 1e-3 * b) for a, b in (self.milliseconds["forward"], self.milliseconds["whole"])
            )
            timing = Timing(forward, whole, self.speed, self.speed_range, self.samples)
            why = self.why if self.state == "left" else None
            finding = Finding(why, self.error, self.original_error, self.reference, timing)
        return Site(
            kind=KINDS[self.kind],
            plan=plan,
            why=None if self.state == "waiting" else self.why,
            finding=finding,
            **{name: getattr(self, name) for name in _SHARED},
        )


class Report:
    """Which modules were swapped, with which kernels, and why others were not.

    It shows the present state: sites that wait for their first call are updated by it. Printed, it is a
    table; sites whose paths differ only in numbers share a line. Saved, it can be given to another process's
    ``swap(model, decisions=...)``.

    Args:
        plan: the sites and their shared state.
        others: the number of layers that burnt has no kernels for, by class.
        excluded: the number of sites that `only` and `skip` of `swap` excluded.
    """

    def __init__(self, plan: SwapPlan, others: dict[str, int], excluded: int = 0) -> None:
        self.mode = plan.mode
        self.others = others
        self.plan = plan
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

    @property
    def whole(self) -> ModelTiming | None:
        """The time of the whole model; None before its first call, or if nothing was swapped."""
        return self.plan.whole

    def to_json(self) -> str:
        """Return the whole report as JSON text."""
        plan = self.plan
        content: dict[str, Any] = {
            "format": _FORMAT,
            "version": _VERSION,
            "at": plan.at or time.time(),
            "mode": self.mode,
            "model": plan.model,
            "inputs": plan.inputs,
            "context": plan.context,
            "whole": None if plan.whole is None else asdict(plan.whole),
            "rows": [asdict(row) for row in self.rows],
            "others": self.others,
            "excluded": self._excluded,
        }
        return json.dumps(content, indent=2)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; a reader sees the old file or the new one.

        Raises:
            OSError: the file cannot be written.
        """
        with replacing(path) as temporary:
            temporary.write_text(self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that `save` has written.

        Raises:
            SwapError: the file cannot be read, or is not a report of this version.
        """
        try:
            content = parse_json(Path(path).read_text())
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError(f"format {content['format']!r}, version {content['version']}")
            plan = SwapPlan(content["mode"], model=content["model"], inputs=content["inputs"])
            plan.at, plan.context = float(content["at"]), dict(content["context"])
            if (whole := content["whole"]) is not None:
                plan.whole = msgspec.convert(whole, ModelTiming)
            plan.sites += [row.to_site(plan) for row in msgspec.convert(content["rows"], list[Row])]
            return cls(plan, content["others"], content["excluded"])
        except OSError as error:
            raise SwapError("a report of swap cannot be read", where=str(path), found=error) from error
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError) as error:
            raise SwapError(
                "the file is not a report of swap, or of another version",
                where=str(path),
                expected=f"JSON with the format {_FORMAT!r}, version {_VERSION}, as Report.save writes it",
                found=f"{type(error).__name__}: {error}",
                hint="swap the model without decisions=, and save the report again",
            ) from error

    def __str__(self) -> str:
        rows = self.rows
        lines = [self._summary(rows), *self._remarks(rows)]
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            why = re.sub(r"[\d.]+ times" if row.state != "part" else r"\d+", "*", row.why or "")
            key = re.sub(r"\d+", "*", row.path), row.layer, row.kind, row.state, row.shape, why, row.source
            groups.setdefault(key, []).append(row)
        titles = ("swapped", "swapped"), ("part", "part"), ("left", "unchanged"), ("waiting", "waiting")
        shows_source = any(row.source in ("kept", "given") for row in rows)
        for state, title in titles:
            shown = [group for group in groups.values() if group[0].state == state]
            if shown:
                table = [["", "with", "inputs", "error", "from", "speed" if state == "swapped" else "why"]]
                table += [_cells(group) for group in shown]
                if not shows_source or not any(group[0].source for group in shown):
                    table = [[*cells[:4], cells[5]] for cells in table]
                lines += ["", f"{title}:", *(f"  {line}" for line in table_lines(table))]
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

    def _remarks(self, rows: Sequence[Row]) -> list[str]:
        """Return lines about the whole model, and about where decisions are from."""
        lines = []
        if (whole := self.whole) is not None and whole.timing is None:
            lines.append(f"the whole model was not timed: {whole.why}")
        elif whole is not None and whole.timing is not None:
            before, after = (1e3 * seconds for seconds in whole.timing.whole)
            figures = _figures(whole.timing.speed_range, whole.timing.samples)
            speed = f"{whole.timing.speed:.2f}x {figures}  {in_ms(before)} -> {in_ms(after)} ms"
            source = "" if whole.source == "measured" else f"; {whole.source}"
            lines.append(f"the whole model: {speed}, {whole.how}{source}")
            lines += [f"  {whole.why}"] if whole.why is not None else []
        for source in "kept", "given":
            count = sum(row.source == source for row in rows)
            if count:
                at = self.plan.earlier_at
                lines.append(f"decisions of {count} sites {source}" + (f", from {_date(at)}" if at else ""))
        return lines + self.plan.notes


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
    figures = "" if first.speed_range is None else _figures(first.speed_range, first.samples)
    if first.state != "swapped":
        last = f"{why} {figures}".rstrip()
    elif first.speed is None:
        last = "-"
    else:
        before, after = first.milliseconds["whole"]
        last = f"{first.speed:.2f}x {figures}  {in_ms(before)} -> {in_ms(after)} ms"
    return [f"{path}  {first.layer}", first.by, first.shape or "-", error, first.source or "-", last]


def _figures(speed_range: Sequence[float], samples: int) -> str:
    """Format how certain a speed is: the interval of the median, and the number of samples."""
    return f"({speed_range[0]:.2f}-{speed_range[1]:.2f}, {samples} samples)"


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def in_ms(value: float) -> str:
    """Format milliseconds with three digits, without an exponent.

    >>> in_ms(0.12345), in_ms(1135.6)
    ('0.123', '1136')
    """
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
