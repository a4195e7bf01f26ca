"""The monitor's chart next to plot widgets that others made: what a redraw costs, and an import.

    python benchmarks/chart_widgets.py [--quick] [--points 160]

A screen of 160 x 45 cells with six plots, each of a noisy curve and one of 20 points, all in braille; one
point is added to each curve and all are drawn again. Processor time of the whole application for that, from
the change to rest, without a terminal; each widget in a process of its own, in turn, several times; the
lowest median counts. Imports are what comes on top of Textual itself.

textual-plot, textual-plotext and plotext (its text in a Static) are measured where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PLOTS, COLUMNS, LINES = 6, 160, 45
RIVALS = {
    "burnt.monitor.plotting.chart_widget": "burnt",
    "textual_plot": "textual_plot",
    "textual_plotext": "textual_plotext",
    "plotext": "plotext",
}

Draw = Callable[[Any, list[float], list[float], list[float], list[float]], None]


def ours() -> tuple[type, Draw]:
    from burnt.monitor.plotting.chart_widget import Chart
    from burnt.monitor.plotting.curves import Curve
    from burnt.monitor.plotting.text_chart import ChartView
    from burnt.plot.braille import PALETTE

    def draw(plot: Any, xs: list[float], ys: list[float], vx: list[float], vy: list[float]) -> None:
        plot.show(
            ChartView([Curve("train", PALETTE[0], xs, ys), Curve("valid", PALETTE[1], vx, vy)], title="loss")
        )

    return Chart, draw


def textual_plot() -> tuple[type, Draw]:
    from textual_plot import HiResMode, PlotWidget

    def draw(plot: Any, xs: list[float], ys: list[float], vx: list[float], vy: list[float]) -> None:
        plot.clear()
        plot.plot(xs, ys, line_style="blue", hires_mode=HiResMode.BRAILLE, label="train")
        plot.plot(vx, vy, line_style="red", hires_mode=HiResMode.BRAILLE, label="valid")
        plot.show_legend()

    return PlotWidget, draw


def textual_plotext() -> tuple[type, Draw]:
    from textual_plotext import PlotextPlot

    def draw(plot: Any, xs: list[float], ys: list[float], vx: list[float], vy: list[float]) -> None:
        plot.plt.clear_data()
        plot.plt.title("loss")
        plot.plt.plot(xs, ys, marker="braille", label="train")
        plot.plt.plot(vx, vy, marker="braille", label="valid")
        plot.refresh()

    return PlotextPlot, draw


def plotext() -> tuple[type, Draw]:
    import plotext as plt
    from rich.text import Text
    from textual.widgets import Static

    def draw(plot: Any, xs: list[float], ys: list[float], vx: list[float], vy: list[float]) -> None:
        plt.clear_figure()
        plt.plotsize(*plot.size)
        plt.title("loss")
        plt.plot(xs, ys, marker="braille", label="train")
        plt.plot(vx, vy, marker="braille", label="valid")
        plot.update(Text.from_ansi(plt.build()))

    return Static, draw


WIDGETS: dict[str, Callable[[], tuple[type, Draw]]] = {
    "burnt.monitor.plotting.chart_widget": ours,
    "textual_plot": textual_plot,
    "textual_plotext": textual_plotext,
    "plotext": plotext,
}


def measure(name: str, points: int, redraws: int) -> float:
    """The median of the processor's milliseconds for a redraw of all plots."""
    from textual.app import App, ComposeResult
    from textual.containers import Grid

    widget, draw = WIDGETS[name]()
    generator = random.Random(0)
    total = points + redraws
    xs = [float(5 * i) for i in range(total)]
    curves = [
        [(2 + plot) * math.exp(-3 * i / total) + generator.gauss(0, 0.05) for i in range(total)]
        for plot in range(PLOTS)
    ]
    few = range(total // 20, total, total // 20)

    class Plots(App[None]):
        CSS = "Grid { grid-size: 3 2; } Grid > * { height: 1fr; }"

        def compose(self) -> ComposeResult:
            with Grid():
                for _ in range(PLOTS):
                    yield widget()

    async def run() -> list[float]:
        app, times = Plots(), []
        async with app.run_test(size=(COLUMNS, LINES)) as pilot:
            plots = list(app.query_one(Grid).children)
            for count in range(points, total):
                start = time.process_time()
                for plot, ys in zip(plots, curves, strict=True):
                    draw(plot, xs[:count], ys[:count], [xs[i] for i in few], [ys[i] for i in few])
                await pilot.pause(0.15)
                times.append(time.process_time() - start)
        return sorted(times)

    times = asyncio.run(run())
    return 1e3 * times[len(times) // 2]


def child(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def imported(module: str) -> float:
    code = (
        "import time, textual.app, textual.widget, textual.scroll_view; t = time.process_time();"
        f" import {module}; print(1e3 * (time.process_time() - t))"
    )
    return child("-c", code)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what a redraw of six plots costs")
    parser.add_argument("--quick", action="store_true", help="a few redraws: shows that it runs, no more")
    parser.add_argument("--points", type=int, default=160, help="of the longer curve")
    parser.add_argument("--widget", choices=WIDGETS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    redraws, rounds = (3, 1) if options.quick else (25, 5)
    if options.widget:
        print(measure(options.widget, options.points, redraws))
        return
    names = [name for name in WIDGETS if importlib.util.find_spec(RIVALS[name])]
    found: dict[str, list[float]] = {name: [] for name in names}
    imports: dict[str, list[float]] = {name: [] for name in names}
    again = ["--points", str(options.points), *["--quick"] * options.quick]
    for _ in range(rounds):
        for name in names:
            found[name].append(child(__file__, "--widget", name, *again))
            imports[name].append(imported(name))
    print(f"{PLOTS} plots of {options.points} and 20 points, {COLUMNS} x {LINES} cells")
    print(f"{'':<22} {'a redraw, ms':>13} {'ratio':>6} {'at 2 a second':>14} {'import, ms':>11}")
    for name in WIDGETS:
        if name not in found:
            print(f"{name:<22} is not installed")
            continue
        redraw, ratio = min(found[name]), min(found[name]) / min(found[names[0]])
        print(f"{name:<22} {redraw:>13.1f} {ratio:>6.1f} {redraw / 5:>12.1f} % {min(imports[name]):>11.0f}")


if __name__ == "__main__":
    main()
