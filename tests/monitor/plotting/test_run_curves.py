"""A run's metrics as curves: what stands for a long series, with smoothing, zoom, and on other axes."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from burnt.monitor.data.runs import RunView
from burnt.monitor.plotting.curves import Curve, smooth
from burnt.monitor.plotting.plot import Plot, PlotView
from burnt.monitor.plotting.run_curves import curves_of
from burnt.train.store import RunWriter, Series

LENGTH = 20_000


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A long series of mean 1 whose noise goes up only, and a short one."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    generator = random.Random(0)
    with RunWriter.create(folder) as run:
        for step in range(1, LENGTH + 1):
            value = generator.expovariate(1.0)
            run.log(step, 1, {"loss": math.nan if step == 9_999 else value})
            if step % 5_000 == 0:
                run.flush(60)
        run.log(1, 1, {"loss": 3.0}, split="valid")
        run.log(9, 1, {"loss": 2.0}, split="valid")
    view = RunView(folder)
    view.refresh()
    return view


def test_smoothing_goes_through_the_means_and_not_between_the_extremes(view: RunView) -> None:
    train, valid = curves_of(view, "loss", with_means=True)
    assert train.means is not None
    xs, means = train.means
    assert list(xs) == sorted(xs)
    assert len(xs) <= 1024
    finite = [y for y in means if math.isfinite(y)]
    assert sum(finite) / len(finite) == pytest.approx(1.0, abs=0.05)
    assert smooth(means, 0.97)[-1] == pytest.approx(1.0, abs=0.25)
    assert smooth(train.ys, 0.97)[-1] > 1.5, "the extremes' own average is elsewhere"
    # Of a short series every point is its own mean.
    assert valid.means == (valid.xs, valid.ys) == ([1, 9], [3.0, 2.0])


def test_means_are_read_only_where_they_are_needed(view: RunView) -> None:
    assert all(curve.means is None for curve in curves_of(view, "loss"))


def test_the_plot_draws_smoothed_means() -> None:
    spread = Curve("loss", "blue", [0, 0, 9, 9], [0.0, 10.0, 0.0, 10.0], means=([0, 9], [1.0, 1.0]))
    plot = Plot(PlotView((spread,), smoothing=0.5, markers=False), 40, 14)
    rows = [i for i, line in enumerate(plot.lines[plot.top :]) for span in line if span.style == "0"]
    assert rows
    assert min(rows) > plot.rows * 0.7


def test_what_is_zoomed_into_is_read_in_detail(view: RunView) -> None:
    whole = curves_of(view, "loss", with_means=True)[0]
    zoomed = curves_of(view, "loss", x_range=(5000.0, 5100.0), with_means=True)[0]

    def inside(curve: Curve) -> int:
        return sum(5000 <= x <= 5100 for x in curve.xs)

    assert inside(zoomed) == 101
    assert inside(whole) < 20
    assert zoomed.means is not None
    assert sum(5000 <= x <= 5100 for x in zoomed.means[0]) == 101
    for curve in (whole, zoomed):
        assert list(curve.xs) == sorted(curve.xs)
        assert curve.xs[-1] == LENGTH
        assert any(math.isnan(y) for y in curve.ys)


def test_the_growing_end_is_in_the_means(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    for step in range(1, 50):
        run.log(step, 1, {"loss": 1.0})
    run.flush()
    view = RunView(tmp_path / "run")
    view.refresh()
    assert view.means("loss").values == [1.0] * 49
    run.log(50, 1, {"loss": 5.0})
    run.flush()
    assert view.means("loss").values[-1] == 5.0
    assert view.points_between(Series("loss", "train"), 49, 50, 8).values == [1.0, 5.0]
    run.close("finished")
    view.close()
