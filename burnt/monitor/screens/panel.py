"""`Panel`: a run at a glance in one column next to its plots: progress, last values, machine, settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.data.runs import RunView
from burnt.monitor.data.series_order import TRAINING_METRICS, series_in_order
from burnt.monitor.format import count_text, full_number_text, series_label
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.screens.panes.system import latest_values
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.table import Cell, cell, fit_cell
from burnt.monitor.ui.theme import progress_bar
from burnt.store.search import setting_text, short_names, without_repeats
from burnt.train.format import duration_text

MIN_SCREEN_WIDTH = 120
_WIDTHS = (38, 50)  # at 120 columns, and of the widest screens
_NUMBER_WIDTH = 9
_SHARE_CELLS = 6  # for the percentage after the bar
_MIN_ROWS = 3  # of a section that is shortened


class Section(NamedTuple):
    """A titled part of the panel; its rows have as many cells as `widths`, of which 0 is the rest."""

    title: Cell
    rows: Sequence[Sequence[Cell]]
    widths: Sequence[int]
    pane: str = ""  # the key and title of the pane that shows all of it


def panel_width(screen_width: int) -> int:
    """Return the panel's width: three tenths of the screen, within bounds."""
    return min(max(screen_width * 3 // 10, _WIDTHS[0]), _WIDTHS[1])


def progress_facts(view: RunView) -> list[tuple[str, str]]:
    """Return epoch, step and remaining time, as far as they are known."""
    facts = []
    if (progress := view.progress) is not None:
        if progress.epoch is not None:
            facts.append(("epoch", count_text(progress.epoch, progress.total_epochs)))
        facts.append(("step", count_text(progress.step, progress.total_steps)))
    if (eta := view.eta) is not None:
        facts.append(("eta", duration_text(eta)))
    return facts


def fit_sections(sizes: Sequence[int], height: int) -> list[int]:
    """Return how many rows of each section fit, below a title each and with a blank line between two.

    The longest section, and of equal ones the last, is shortened first, down to 3 rows; the first never.
    If that is not enough, the last sections are left out.

    >>> fit_sections([4, 30, 3, 40], 28), fit_sections([4, 30, 3, 40], 16)
    ([4, 7, 3, 7], [4, 4, 3, 0])
    """
    for num_shown in range(len(sizes), 0, -1):
        shown = list(sizes[:num_shown])
        excess = sum(shown) + 2 * num_shown - 1 - height
        while excess > 0 and max(shown[1:], default=0) > _MIN_ROWS:
            shown[max(range(1, num_shown), key=lambda i: (shown[i], i))] -= 1
            excess -= 1
        if excess <= 0:
            return shown + [0] * (len(sizes) - num_shown)
    return [*sizes[:1], *[0] * (len(sizes) - 1)]


class Panel(Pane):
    """What a run's panes show in full, in as many lines as there are; its screen decides when it shows."""

    TITLE = "Panel"
    DEFAULT_CSS = """
    Panel { border-left: solid $faint; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        yield Static()

    def on_resize(self) -> None:
        self.request_read()

    # --- in the reader thread

    def read(self) -> Callable[[], Any]:
        samples = self.view.system_samples()
        facts, system = self._progress(), latest_values(samples[-1].values if samples else {})
        width = max((cell_len(name) for name, _ in (*facts, *system)), default=0)
        sections = [
            self._section(self._progress_title(), facts, width),
            self._values(),
            self._section(cell("system"), system, width, "3 System"),
            self._section(cell("settings"), self._setting_texts(), 0, "7 Config"),
        ]
        return partial(self._show, [section for section in sections if section.rows])

    def _section(self, title: Cell, facts: Sequence[tuple[str, str]], width: int, pane: str = "") -> Section:
        """Return names and values as a section whose names have at least a width."""
        width = max(width, *(cell_len(name) for name, _ in facts), 0)
        rows = [(cell(name, "$dim"), cell(text)) for name, text in facts]
        return Section(title, rows, (min(width, max(self.size.width // 2 - 2, 8)), 0), pane)

    def _progress(self) -> list[tuple[str, str]]:
        view = self.view
        facts = progress_facts(view)
        if view.activity:
            facts.append(("activity", view.activity))
        facts.append(("trained", duration_text(view.active_seconds)))
        if len(view.attempts) > 1 and (step := view.attempts[-1].resumed_from_step) is not None:
            facts.append(("attempt", f"{len(view.attempts)}, from step {step:,}"))
        return facts

    def _progress_title(self) -> Cell:
        share = self.view.fraction
        if share is None:
            return cell("progress")
        done, rest = progress_bar(share, max(self.size.width - len("progress ") - _SHARE_CELLS, 4))
        # Rounded down, so that an unfinished run never shows 100 %.
        text = f" {math.floor(share * 100):>3} %"
        return (("progress ", ""), (done, "not bold $primary"), (rest, "not bold $faint"), (text, "not bold"))

    def _values(self) -> Section:
        view = self.view
        series = [
            one for one in series_in_order(view.heads) if one.name.partition("/")[0] not in TRAINING_METRICS
        ]
        rows = []
        for one in series[: max(self.size.height, 1)]:  # reading a best value takes time
            value, best = view.heads[one].point.value, view.best(one)
            style = "" if math.isfinite(value) else "bold $error"
            rows.append(
                (
                    cell(series_label(one), "bold" if one == view.metric else "$dim"),
                    cell(full_number_text(value), style),
                    cell("" if best is None else full_number_text(best.value), "$success"),
                )
            )
        rows += rows[-1:] * (len(series) - len(rows))  # not shown, only counted
        return Section(cell("values"), rows, (0, _NUMBER_WIDTH, _NUMBER_WIDTH), "2 Numbers")

    def _setting_texts(self) -> list[tuple[str, str]]:
        settings = without_repeats(self.view.settings)
        names = short_names(settings)
        return [(names[key], setting_text(value)) for key, value in settings.items()]

    # --- in the app's thread

    def _show(self, sections: Sequence[Section]) -> None:
        counts = fit_sections([len(section.rows) for section in sections], self.size.height)
        lines: list[Content] = []
        for section, count in zip(sections, counts, strict=True):
            if count:
                lines += [Content("")] if lines else []
                lines += self._lines(section, count)
        update_if_changed(self.query_one(Static), Content("\n").join(lines))

    def _lines(self, section: Section, count: int) -> Iterator[Content]:
        yield self._title_line(section)
        hidden = len(section.rows) - count
        for row in section.rows[: count - bool(hidden)]:
            yield self._line(row, section.widths)
        if hidden:
            yield Content.assemble((f"{hidden + 1} more in {section.pane}", "italic $dim"))

    def _title_line(self, section: Section) -> Content:
        parts = tuple((text, style or "bold") for text, style in section.title)
        if len(section.widths) == 2:
            return Content.assemble(*parts)
        heads = (parts, cell("last", "$dim"), cell("best", "$dim"))
        return self._line(heads, section.widths)

    def _line(self, cells: Sequence[Cell], widths: Sequence[int]) -> Content:
        rest = self.size.width - sum(widths) - len(widths) + 1
        parts: list[tuple[str, str]] = []
        for number, (one, width) in enumerate(zip(cells, widths, strict=True)):
            parts += [(" ", "")] if number else []
            parts += fit_cell(one, width or max(rest, 1), len(widths) > 2 and number > 0)
        return Content.assemble(*parts)
