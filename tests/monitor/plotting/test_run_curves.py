"""A run's metrics as curves: what stands for a long series, with smoothing, zoom, and on other axes."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from burnt.monitor.data.runs import RunView
from burnt.monitor.plotting.curves import Curve, smooth
from burnt.monitor.plotting.run_curves import curves_of, history_curve
from burnt.monitor.plotting.text_chart import ChartView, TextChart
from burnt.store import RunWriter, Series

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
    plot = TextChart(ChartView((spread,), smoothing=0.5, markers=False), 40, 14)
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
    assert view.points("loss", means=True).values == [1.0] * 49
    run.log(50, 1, {"loss": 5.0})
    run.flush()
    assert view.points("loss", means=True).values[-1] == 5.0
    assert view.points("loss", steps=(49, 50)).values == [1.0, 5.0]
    run.close("finished")
    view.close()


def fork(root: Path, name: str, first: int, parent: str | None = None, **splits: float) -> Path:
    config = {"fork": {"folder": f"../{parent}", "step": first - 1}} if parent else {}
    with RunWriter.create(root / name, config=config) as run:
        for step in range(first, 31):
            for split, value in splits.items():
                run.log(step, 1, {"loss": value}, split)
            if step % 10 == 0:
                run.event("epoch", step, epoch=step // 10)
    return root / name


def read(folder: Path) -> RunView:
    view = RunView(folder)
    view.follow()
    view.refresh()
    return view


def test_the_curves_of_a_fork_lie_on_its_parents(tmp_path: Path) -> None:
    fork(tmp_path, "first", 1, train=1.0, valid=1.5)
    fork(tmp_path, "second", 11, "first", train=2.0)
    view = read(fork(tmp_path, "third", 21, "second", train=3.0, valid=3.5))
    of_train, of_valid, train, valid = curves_of(view, "loss")
    assert [curve.faint for curve in (of_train, of_valid, train, valid)] == [True, True, False, False]
    assert (of_train.label, of_train.color) == ("parent", train.color)
    # The parent goes on beyond the fork, its own parent ends where it begins.
    assert (of_train.xs, of_train.ys) == (list(range(1, 31)), [1.0] * 10 + [2.0] * 20)
    assert train.xs == list(range(21, 31))
    # The parent has no validation, so its own parent's is what there is; up to its end at step 10.
    assert of_valid.xs == list(range(1, 11))
    assert valid.ys == [3.5] * 10
    assert list(curves_of(view, "loss", "epoch")[0].xs) == pytest.approx([step / 10 for step in range(1, 31)])
    history = history_curve(view, Series("loss", "train"), "step")
    assert history is not None
    assert history.xs == list(range(1, 21))


def test_on_an_axis_of_time_a_fork_begins_where_its_parent_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    def train(name: str, steps: range, seconds: float, parent: str, every: int) -> RunView:
        now[0] += 500.0
        config = {"fork": {"folder": f"../{parent}", "step": steps.start - 1}} if parent else {}
        with RunWriter.create(tmp_path / name, config=config) as run:
            for step in steps:
                now[0] += seconds
                if step % every == 0:
                    run.log(step, 1, {"loss": 1.0})
        return read(tmp_path / name)

    train("first", range(1, 31), 2.0, "", every=4)
    second = train("second", range(11, 31), 1.0, "first", every=1)
    of_parent, own = curves_of(second, "loss", "time")
    assert list(of_parent.xs) == [8.0 * number for number in range(1, 8)]  # beyond the fork too
    assert list(own.xs) == [20.0 + step for step in range(1, 21)]  # between steps 8 and 12 of the parent
    third = train("third", range(26, 31), 3.0, "second", every=1)
    assert list(curves_of(third, "loss", "time")[-1].xs) == [35.0 + 3 * step for step in range(1, 6)]
    history = history_curve(third, Series("loss", "train"), "time")
    assert history is not None
    assert list(history.xs) == [8.0, 16.0, *(20.0 + step for step in range(1, 16))]


def test_a_missing_parent_and_one_that_is_its_own_child_are_no_trouble(tmp_path: Path) -> None:
    lost = read(fork(tmp_path, "lost", 11, "gone", train=1.0))
    assert [curve.faint for curve in curves_of(lost, "loss")] == [False]
    assert lost.parentage == "fork of gone@10 (missing)"
    circular = read(fork(tmp_path, "circular", 11, "circular", train=1.0))
    assert [curve.faint for curve in curves_of(circular, "loss")] == [False]
    assert len(curves_of(circular, "loss", "time")) == 1
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.db").write_bytes(b"x")
    assert len(curves_of(read(fork(tmp_path, "b", 11, "damaged", train=1.0)), "loss")) == 1


def test_a_split_has_one_colour_in_all_charts(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run") as run:
        run.log(1, 1, {"loss": 1.0}, "train")
        for split in ("shifted", "clean", "valid"):
            run.log(1, 1, {"loss": 1.0}, split)
        run.log(1, 1, {"bleu": 1.0}, "shifted")
    view = read(tmp_path / "run")
    loss = {curve.label: curve for curve in curves_of(view, "loss")}
    assert list(loss) == ["train", "valid", "clean", "shifted"]
    (bleu,) = curves_of(view, "bleu")
    assert (bleu.color, bleu.style) == (loss["shifted"].color, loss["shifted"].style)
    assert len({curve.color for curve in loss.values()}) == 4


def test_a_faint_curve_is_drawn_faintly_and_without_markers() -> None:
    curves = (
        Curve("parent", "blue", [0, 9], [5.0, 9.0], faint=True),
        Curve("fork", "red", [5, 9], [6.0, 1.0], tag="1"),
    )
    for smoothing in (0.0, 0.5):
        plot = TextChart(ChartView(curves, smoothing=smoothing), 60, 16)
        styles = {span.style for line in plot.lines for span in line}
        assert "-0" in styles
        assert "0" not in styles
        assert "▲9" not in plot.text()
        assert "▲6" in plot.text()
    short = TextChart(ChartView(curves, short_legend=True, title="loss"), 60, 16).text().splitlines()[0]
    assert short.split() == ["loss", "1", "1"]
