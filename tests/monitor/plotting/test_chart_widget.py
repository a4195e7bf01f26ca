"""Plots as text, and the chart widget: what is drawn, zoom, pan, crosshair, and when it is drawn again."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.color import Color
from textual.events import MouseScrollUp
from textual.pilot import Pilot

from burnt.monitor.plotting.chart_widget import Chart, ensure_contrast
from burnt.monitor.plotting.curves import Curve, smooth
from burnt.monitor.plotting.text_chart import ChartView, TextChart
from burnt.plot.braille import PALETTE
from tests.monitor.driving import text_of

NAN, INF = math.nan, math.inf


def curve(ys: list[float], xs: list[float] | None = None, label: str = "train", **fields: Any) -> Curve:
    return Curve(label, PALETTE[0], xs if xs is not None else list(range(len(ys))), ys, **fields)


def text(ys: list[float], width: int = 40, height: int = 12, **fields: Any) -> str:
    return TextChart(ChartView((curve(ys),), markers=False, **fields), width, height).text()


# --- plots

numbers = st.one_of(st.floats(), st.sampled_from([NAN, INF, -INF, 1e308, -1e308, 5e-324, 0.0]))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 10**9), numbers), max_size=30),
    st.integers(0, 70),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([0.0, 0.6]),
    st.sampled_from(["step", "epoch", "time"]),
    st.none() | st.floats(0, 1e9),
)
@example([(0, 1e308), (1, -1e308)], 60, 20, False, 0.0, "step", None)
@example([(0, 1e308), (1, 1e308)], 60, 20, False, 0.0, "step", 1.0)
@example([(0, 5e-324), (1, 1e-323)], 60, 20, True, 0.0, "step", 1.0)
@example([(0, 0.0), (1, 5e-324)], 60, 20, False, 0.0, "step", None)
@example([(5, 5e-324)], 60, 20, False, 0.6, "time", 5.0)
@example([(10**18, 3.0)], 60, 20, False, 0.0, "step", None)
@example([(5, 3.0)], 60, 20, False, 0.6, "time", 5.0)
def test_any_values_fit_any_size(
    found: list[tuple[int, float]],
    width: int,
    height: int,
    log: bool,
    weight: float,
    x: Any,
    at: float | None,
) -> None:
    found.sort(key=lambda point: point[0])
    one = curve([y for _, y in found], [float(x) for x, _ in found], tag="t")
    other = curve([1.0, 2.0], [0.0, 5.0], "valid", style="dashed")
    for curves in ((one,), (one, other), (one, other, one)):
        plot = TextChart(ChartView(curves, x, log, weight, "loss", crosshair=at), width, height)
        assert len(plot.lines) <= height
        for line in plot.text().splitlines():
            assert cell_len(line) <= width
        if height >= 8 and width >= 40:
            assert any(0x2800 < ord(c) < 0x2900 for c in plot.text())


def test_nothing_to_show_is_said() -> None:
    assert "no values yet" in TextChart(ChartView((), title="loss"), 40, 10).text()
    assert "no values yet" in text([])
    assert "NaN at 0" in text([NAN, NAN])
    assert "no values above 0" in text([0.0, -1.0], log_y=True)
    assert "no values in this range" in text([1.0, 2.0, 3.0], range_y=(5.0, 6.0))


def test_values_that_are_not_finite_are_seen_and_reported() -> None:
    shown = text([1.0, NAN, 1.0, INF, 1.0, -INF, 2.0], width=60)
    assert "NaN at 1" in shown
    body = shown.splitlines()[1:-2]
    assert "∞" in body[0]
    assert "∞" in body[-1]
    assert "!" in body[-1]
    # A gap: the line does not go through.
    assert "⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒" not in text([1.0, NAN, 1.0]).split("\n", 1)[1]


def test_a_logarithmic_axis() -> None:
    shown = text([1e-4, 1e-2, 1.0], log_y=True)
    assert [line.split()[0] for line in shown.splitlines()[1:-2] if "┤" in line] == [
        "1",
        "0.1",
        "0.01",
        "0.001",
        "1e-4",
    ]
    assert "log" in shown.splitlines()[0]
    assert "≤ 0" not in shown
    assert "≤ 0 not shown" in text([1.0, 0.0, 2.0], log_y=True)
    # A straight line: the same number of dots in each half.
    rows = [row[8:] for row in shown.splitlines()[1:-2]]
    assert rows[0].strip()
    assert rows[-1].strip() or rows[-2].strip()


def test_a_constant_and_a_single_value_stand_in_the_middle() -> None:
    for ys in ([0.5] * 9, [0.5]):
        rows = text(ys, height=12).splitlines()[1:-2]
        inked = [i for i, row in enumerate(rows) if any(0x2800 < ord(c) < 0x2900 for c in row)]
        assert inked == [len(rows) // 2] or inked == [len(rows) // 2 - 1]
    assert "0.5" in text([0.5])
    assert "1e300" in text([1e300])
    assert "⠒" in text([0.0, 0.0])


def test_extremes_are_marked_with_their_values() -> None:
    ys = [1.0, 0.25, 3.5, 2.0, 1.5, 1.75]
    shown = TextChart(ChartView((curve(ys),)), 50, 14).text()
    assert "▲3.5" in shown
    assert "▼0.25" in shown
    assert "▲" not in text(ys)
    assert "▲" not in TextChart(ChartView((curve([2.0, 2.0]),)), 50, 14).text()
    # Where there is no room for the value, the place is marked all the same.
    cramped = TextChart(ChartView((curve([float(i * 7 % 11) for i in range(200)]),)), 30, 7).text()
    assert cramped.count("▲") == cramped.count("▼") == 1
    # Of many curves only the ends of all.
    many = tuple(curve([i + 0.5, i + 1.0], label=str(i)) for i in range(5))
    shown = TextChart(ChartView(many), 60, 20).text()
    assert "▲5" in shown
    assert "▼0.5" in shown
    assert shown.count("▲") == shown.count("▼") == 1


def test_what_is_smoothed_is_drawn_over_what_is_not() -> None:
    noisy = [math.sin(i / 9) + (i * 7919 % 13) / 9 for i in range(300)]
    plot = TextChart(ChartView((curve(noisy),), smoothing=0.9, markers=False), 60, 20)
    alone = TextChart(ChartView((curve(smooth(noisy, 0.9)),), range_y=plot.range_y, markers=False), 60, 20)

    def cells(plot: TextChart) -> dict[tuple[int, int], tuple[str, str]]:
        found, rows = {}, plot.lines[plot.top : plot.top + plot.rows]
        for y, line in enumerate(rows):
            styled = [(c, span.style) for span in line for c in span.text]
            found |= {(x, y): cell for x, cell in enumerate(styled) if cell[1] in ("0", "-0")}
        return found

    assert " raw " in plot.text().splitlines()[0]
    assert " raw " not in alone.text()
    both, smoothed = cells(plot), cells(alone)
    assert {place: cell for place, cell in both.items() if cell[1] == "0"} == smoothed
    assert sum(style == "-0" for _, style in both.values()) > 50


def test_the_crosshair_reads_the_nearest_values() -> None:
    view = ChartView(
        (curve([1.0, 2.0, 4.0, 8.0]), curve([5.0, 7.0], [0.0, 3.0], "valid")), crosshair=2.2, markers=False
    )
    shown = TextChart(view, 60, 14).text()
    head = shown.splitlines()[0]
    assert "train 4" in head
    assert "valid 7" in head
    assert "│" in shown.splitlines()[5][10:]
    assert " 2 " in shown.splitlines()[-1]
    assert shown.count("●") == 2
    # Without one, the last values.
    assert "train 8" in TextChart(view._replace(crosshair=None), 60, 14).text().splitlines()[0]


def test_tags_stand_beside_the_ends_of_their_curves_and_do_not_meet() -> None:
    curves = tuple(
        curve([1.0, y], tag=tag, label=f"run {tag}") for tag, y in zip("abc", (5.0, 5.0, 1.0), strict=True)
    )
    rows = TextChart(ChartView(curves, markers=False), 50, 14).text().splitlines()
    found = {row[-1]: i for i, row in enumerate(rows) if row[-1:] in "abc" and row[-2:-1] == " "}
    assert set(found) == set("abc")
    assert abs(found["a"] - found["b"]) == 1
    assert found["c"] > found["b"] + 3


def test_legends_wrap_and_say_when_they_are_cut() -> None:
    curves = tuple(curve([1.0, 2.0], label=f"a run of name {i}") for i in range(8))
    wide = TextChart(ChartView(curves), 120, 24).text()
    assert all(f"a run of name {i}" in wide for i in range(8))
    narrow = TextChart(ChartView(curves, title="loss"), 40, 8).text()
    assert "…" in narrow.splitlines()[1] or "…" in narrow.splitlines()[0]


def test_names_cannot_steer_the_terminal_and_wide_ones_fit() -> None:
    shown = TextChart(ChartView((curve([1.0, 2.0], label="a\x1b[2Jb"),), title="\x07loss"), 60, 10).text()
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "a\\x1b[2Jb" in shown
    for width in range(4, 40):
        wide = TextChart(ChartView((curve([1.0, 2.0], label="学習"),), title="損失関数"), width, 10)
        assert all(cell_len(line) <= width for line in wide.text().splitlines())


def test_what_is_outside_of_the_zoom_is_not_drawn_but_lines_run_on() -> None:
    shown = TextChart(
        ChartView((curve([0.0, 100.0, 0.0, 100.0]),), range_x=(0.9, 1.1), markers=False), 40, 12
    ).text()
    low = [float(line.split("┤")[0]) for line in shown.splitlines() if "┤" in line]
    assert min(low) >= 85  # the range fits what is seen, which is the peak alone


# --- the widget


class Charts(App[None]):
    CSS = "Chart { height: 16; }"

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[float | None] = []
        self.zooms: list[Any] = []

    def compose(self) -> ComposeResult:
        yield Chart(id="one")
        yield Chart(id="two")

    def on_chart_crosshair_moved(self, message: Chart.CrosshairMoved) -> None:
        self.moves.append(message.x)
        for chart in self.query(Chart):
            chart.move_crosshair(message.x)

    def on_chart_zoomed(self, message: Chart.Zoomed) -> None:
        self.zooms.append(message.range)
        for chart in self.query(Chart):
            chart.zoom(message.range)


@asynccontextmanager
async def charts(size: tuple[int, int] = (80, 32)) -> AsyncIterator[tuple[Charts, Pilot[None], Chart, Chart]]:
    app = Charts()
    async with app.run_test(size=size) as pilot:
        one, two = app.query_one("#one", Chart), app.query_one("#two", Chart)
        one.show(ChartView([curve([math.cos(i / 9) for i in range(201)])], title="loss"))
        two.show(ChartView([curve([i * 2.0 for i in range(201)])], title="accuracy"))
        one.focus()
        await pilot.pause()
        yield app, pilot, one, two


async def test_keys_zoom_pan_and_reset_all_charts() -> None:
    async with charts() as (app, pilot, one, two):
        await pilot.press("plus")
        await pilot.pause()
        assert one.view.range_x == two.view.range_x
        low, high = one.view.range_x or (0, 0)
        assert high - low == pytest.approx(200 / 1.25**2)
        assert (low + high) / 2 == pytest.approx(100)
        await pilot.press("shift+right")
        await pilot.pause()
        moved = one.view.range_x or (0, 0)
        assert moved[0] > low
        assert moved[1] - moved[0] == pytest.approx(high - low)
        for _ in range(9):
            await pilot.press("shift+right")
        assert (one.view.range_x or (0, 0))[1] == 200
        await pilot.press("shift+up")
        assert one.view.range_y is not None
        assert two.view.range_y is None
        await pilot.press("0")
        await pilot.pause()
        assert one.view.range_x is two.view.range_x is one.view.range_y is None
        await pilot.press("minus")
        assert one.view.range_x is None, "there is nothing more to see"
        assert app.zooms[-1] is None


def test_the_label_of_the_crosshair_cuts_no_tick() -> None:
    view = ChartView((curve([float(i) for i in range(101)]),), markers=False)
    whole = set(TextChart(view, 80, 14).text().splitlines()[-1].split())
    for x in range(101):
        labels = TextChart(view._replace(crosshair=float(x)), 80, 14).text().splitlines()[-1].split()
        assert str(x) in labels
        assert set(labels) - {str(x)} <= whole, labels


async def test_keys_move_the_crosshair_of_all_charts() -> None:
    async with charts() as (app, pilot, one, two):
        await pilot.press("left")
        await pilot.pause()
        assert one.view.crosshair == two.view.crosshair == 200
        await pilot.press("left", "left")
        await pilot.pause()
        assert 190 < (two.view.crosshair or 0) < 200
        assert "●" in text_of(one)
        assert "●" in text_of(two)
        assert f"train {2 * round(two.view.crosshair or 0)}" in text_of(two)
        # At the edge of what is seen, it takes the view along.
        await pilot.press("plus", "plus", "plus", "plus")
        await pilot.press(*["left"] * 12)
        await pilot.pause()
        low, high = one.view.range_x or (0, 0)
        assert low <= (one.view.crosshair or 0) <= high
        assert high < 200
        await pilot.press("escape")
        await pilot.pause()
        assert one.view.crosshair is two.view.crosshair is None
        assert app.moves[-1] is None


async def test_the_mouse_reads_zooms_and_drags() -> None:
    async with charts() as (_, pilot, one, two):
        await pilot.hover("#one", offset=(40, 6))
        await pilot.pause()
        x = one.view.crosshair
        assert x is not None
        assert 80 < x < 120
        assert two.view.crosshair == x
        await pilot._post_mouse_events([MouseScrollUp], "#one", offset=(40, 6), times=3)
        await pilot.pause()
        low, high = one.view.range_x or (0, 0)
        assert high - low == pytest.approx(200 / 1.25**3)
        assert low < x < high
        assert two.view.range_x == (low, high)
        # What lay under the pointer still does.
        plot = one._plot
        assert plot is not None
        assert plot.x_at(40) == pytest.approx(x)
        await pilot.mouse_down("#one", offset=(40, 6))
        await pilot.hover("#one", offset=(50, 6))
        await pilot.mouse_up("#one", offset=(50, 6))
        await pilot.pause()
        dragged = one.view.range_x or (0, 0)
        assert dragged[1] - dragged[0] == pytest.approx(high - low)
        assert dragged[0] == pytest.approx(low - (high - low) * 10 / plot.columns)
        await pilot.click("#one", offset=(40, 6), times=2)
        await pilot.pause()
        assert one.view.range_x is None
        # Next to the plot, nothing is read.
        await pilot.hover("#one", offset=(1, 15))
        await pilot.pause()
        assert one.view.crosshair is None


async def test_nothing_is_drawn_again_when_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[Chart] = []
    paint = Chart._paint
    monkeypatch.setattr(Chart, "_paint", lambda self: (painted.append(self), paint(self))[1])
    async with charts() as (_, pilot, one, _):
        painted.clear()
        same = [math.cos(i / 9) for i in range(201)]
        one.show(ChartView([curve(same)], title="loss"))
        await pilot.pause()
        assert painted == []
        one.show(ChartView([curve([*same, NAN])], title="loss"))
        await pilot.pause()
        assert painted == [one]
        one.show(ChartView([curve([*same, NAN])], title="loss"))
        await pilot.pause()
        assert painted == [one]


async def test_only_lines_that_changed_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with charts() as (_, pilot, one, _):
        sent: list[Any] = []
        refresh = one.refresh
        monkeypatch.setattr(
            one, "refresh", lambda *lines, **options: (sent.extend(lines), refresh(*lines, **options))
        )
        ys = [math.cos(i / 9) for i in range(201)]
        ys[100] -= 0.1
        one.show(ChartView([curve(ys)], title="loss"))
        await pilot.pause()
        assert 1 <= len(sent) <= 4


async def test_a_hidden_chart_costs_nothing_and_is_right_when_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[Chart] = []
    paint = Chart._paint
    async with charts() as (_, pilot, _, two):
        two.display = False
        await pilot.pause()
        monkeypatch.setattr(Chart, "_paint", lambda self: (painted.append(self), paint(self))[1])
        two.show(ChartView([curve([5.0, 7.0])], title="hidden"))
        await pilot.pause()
        assert painted == []
        two.display = True
        await pilot.pause()
        assert "hidden" in text_of(two)


async def test_charts_follow_the_size_and_the_theme() -> None:
    async with charts() as (app, pilot, one, _):
        before = one._new_style("0")
        app.theme = "textual-light"
        await pilot.pause()
        text_of(one)
        assert one._new_style("0") != before
        await pilot.resize_terminal(40, 12)
        await pilot.pause()
        assert all(one.render_line(y).cell_length == one.size.width < 80 for y in range(one.size.height))
        one.styles.height = 2
        await pilot.pause()
        assert one.size.height >= 2
        assert text_of(one)


async def test_a_new_axis_gives_zoom_and_crosshair_up() -> None:
    async with charts() as (_, pilot, one, _):
        await pilot.press("plus", "left", "shift+up")
        one.show(ChartView(one.view.curves, x="epoch", title="loss"))
        assert one.view.range_x is one.view.crosshair is None
        assert one.view.range_y is not None
        one.show(ChartView(one.view.curves, x="epoch", log_y=True))
        assert one.view.range_y is None


def test_colours_are_readable_on_any_background() -> None:
    from burnt.monitor.plotting.chart_widget import _contrast_ratio

    for background in ("#000000", "#121212", "#e0e0e0", "#ffffff", "#002b36", "#fdf6e3"):
        for color in (*PALETTE, "nonsense"):
            assert (
                _contrast_ratio(ensure_contrast(color, Color.parse(background)), Color.parse(background)) >= 3
            )
