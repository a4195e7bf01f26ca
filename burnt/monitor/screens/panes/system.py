"""Machine load: CPU, memory and GPUs as small charts with their latest values; and the ranks of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.data.runs import LIVE, RunView
from burnt.monitor.format import parse_number, rank_table, size_text
from burnt.monitor.plotting.chart_widget import Chart, ChartGrid
from burnt.monitor.plotting.curves import Curve, times_to_active_seconds
from burnt.monitor.plotting.text_chart import ChartView, Range
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.ui.keybar import update_if_changed
from burnt.monitor.ui.table import Column, Row, Table, cell
from burnt.plot.braille import PALETTE
from burnt.store import SystemSample
from burnt.store.ranks import RankLoad, read_ranks, slowest
from burnt.train.format import value_text

_CHART_WIDTH, _CHART_HEIGHT = 44, 8
_GIB = 2.0**30
_MAX_RANK_ROWS = 8  # more scroll
_RANK_SECONDS = 2.0  # between two looks at ranks that are alive
_RANK_STYLES = {"crashed": "$error", "unreadable": "$error", "stale": "$warning", "slowest": "$warning"}
_DROPPED = {"host": 3, "memory": 2, "step": 1}  # first in a narrow terminal


class Panel(NamedTuple):
    """A chart of system samples: the sample's value names by curve label, and the divisor of the values."""

    title: str
    names: dict[str, str]
    divisor: float = 1.0


class SystemPane(Pane):
    """Charts of the last hour; of a run that several processes train, also a table of them."""

    TITLE = "System"
    SHORT = "Sys"

    def __init__(self, view: RunView) -> None:
        super().__init__(view)
        self._num_columns = 1
        self._x_range: Range | None = None
        self._has_live_ranks = False

    def compose(self) -> ComposeResult:
        yield Static(classes="facts")
        yield ChartGrid()

    def on_resize(self, event: events.Resize) -> None:
        self._num_columns = max(event.size.width // _CHART_WIDTH, 1)
        self.request_read()

    def token(self) -> object:
        # A rank can crash while rank 0, whose samples are in the view, hangs.
        tick = time.monotonic() // _RANK_SECONDS if self._has_live_ranks else 0.0
        return self.view.newest.system_sample, self.view.state, self._num_requests, tick

    def read(self) -> Callable[[], Any]:
        samples = self.view.system_samples()
        xs = times_to_active_seconds([sample.time for sample in samples], self.view.attempt_spans)
        curves = {}
        for panel in panels(samples[-1].values if samples else {}):
            curves[panel.title] = [
                Curve(clean(label), PALETTE[i % len(PALETTE)], xs, _values_of(samples, name, panel.divisor))
                for i, (label, name) in enumerate(panel.names.items())
            ]
        ranks = read_ranks(self.view.folder)
        self._has_live_ranks = any(load.state in LIVE for load in ranks)
        return partial(self._show, curves, samples[-1].values if samples else None, ranks)

    async def _show(
        self, curves: dict[str, list[Curve]], last: dict[str, Any] | None, ranks: list[RankLoad]
    ) -> None:
        await self._show_ranks(rank_table(ranks, slowest(ranks)))
        facts = (
            latest_values(last) if last is not None else [("", "No system samples have been recorded yet.")]
        )
        parts = [part for name, text in facts for part in ((f" {name} ", "$dim"), (f"{text}  ", ""))]
        update_if_changed(self.query_one(Static), Content.assemble(*parts))
        grid = self.query_one(ChartGrid)
        views = [ChartView(lines, "time", title=title, markers=False) for title, lines in curves.items()]
        await grid.show(views, self._num_columns, self._x_range)

    async def _show_ranks(self, ranks: list[dict[str, str]]) -> None:
        tables = list(self.query(Table))
        if not ranks:
            for table in tables:
                await table.remove()
            return
        numbers = [name for name in ranks[0] if name not in ("state", "host", "")]
        columns = [Column(name, name in numbers, drop_priority=_DROPPED.get(name, 0)) for name in ranks[0]]
        if not tables:
            tables = [Table(columns)]
            await self.mount(*tables, after=self.query_one(Static))
        tables[0].styles.height = min(len(ranks), _MAX_RANK_ROWS) + 2  # the heading, and an empty line
        rows: list[Row] = [
            (row["rank"], [cell(text, _RANK_STYLES.get(text, "")) for text in row.values()]) for row in ranks
        ]
        tables[0].show(rows, columns=columns if columns != tables[0].columns else None)

    @on(Chart.Zoomed)
    def chart_zoomed(self, message: Chart.Zoomed) -> None:
        self._x_range = message.range


def panels(names: Sequence[str] | dict[str, Any]) -> list[Panel]:
    """Return the charts for the values that a sample holds.

    >>> [panel.title for panel in panels(["cpu.percent", "process.rss_bytes", "gpu0.watts", "gpu1.watts"])]
    ['CPU %', 'memory GiB', 'GPU watts']
    """
    gpus = sorted({name.partition(".")[0] for name in names if name.startswith("gpu")})

    def per_gpu(measure: str) -> dict[str, str]:
        return {gpu: f"{gpu}.{measure}" for gpu in gpus}

    all_panels = [
        Panel("CPU %", {"machine": "cpu.percent", "process": "process.cpu_percent"}),
        Panel("memory GiB", {"machine": "memory.used_bytes", "process": "process.rss_bytes"}, _GIB),
        Panel("GPU %", per_gpu("percent")),
        Panel("GPU memory GiB", per_gpu("memory_used_bytes"), _GIB),
        Panel("GPU °C", per_gpu("celsius")),
        Panel("GPU watts", per_gpu("watts")),
    ]
    available = [
        panel._replace(names={label: name for label, name in panel.names.items() if name in names})
        for panel in all_panels
    ]
    return [panel for panel in available if panel.names]


def _values_of(samples: Sequence[SystemSample], name: str, divisor: float) -> list[float]:
    values = [parse_number(sample.values.get(name)) for sample in samples]
    return [math.nan if value is None else value / divisor for value in values]


def latest_values(last: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts of the values of a sample."""

    def value(name: str, format_number: Callable[[float], str]) -> str | None:
        found = parse_number(last.get(name))
        return None if found is None else format_number(found) if math.isfinite(found) else value_text(found)

    cpu, process = value("cpu.percent", _percent), value("process.cpu_percent", _percent)
    used, total = value("memory.used_bytes", size_text), value("memory.total_bytes", size_text)
    texts = [
        ("CPU", ", ".join(filter(None, (cpu, process and f"process {process}")))),
        ("memory", f"{used} of {total}" if used and total else used),
        ("process", value("process.rss_bytes", size_text)),
    ]
    for gpu in sorted({name.partition(".")[0] for name in last if name.startswith("gpu")}):
        values = (
            value(f"{gpu}.percent", _percent),
            value(f"{gpu}.memory_used_bytes", size_text),
            value(f"{gpu}.celsius", lambda celsius: f"{celsius:.0f} °C"),
            value(f"{gpu}.watts", lambda watts: f"{watts:.0f} W"),
        )
        texts.append((clean(gpu), " ".join(text for text in values if text)))
    texts.append(("disk free", value("disk.free_bytes", size_text)))
    return [(name, text) for name, text in texts if text]


def _percent(value: float) -> str:
    return f"{value:.0f} %"
