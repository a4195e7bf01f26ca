"""The benchmarks of the monitor run and print every row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.running import output_of, run


@pytest.mark.parametrize(
    ("part", "rows"),
    [
        pytest.param("opening", 8, marks=pytest.mark.full),
        pytest.param("load", 3, marks=pytest.mark.full),
        pytest.param("training", 6, marks=pytest.mark.full),
    ],
)
def test_the_monitors_figures(tmp_path: Path, part: str, rows: int) -> None:
    file = tmp_path / "results.json"
    printed = output_of("monitor.py", "--quick", "--only", part, "--json", str(file))
    results = json.loads(file.read_text())
    assert results["machine"]["cores"] >= 1
    assert len(results["rows"]) == rows
    for name, row in results["rows"].items():
        assert name.removesuffix(", s") in printed
        assert row["low"] <= row["median"] <= row["high"]
        if "target" in row:
            assert row["met"] == (row["median"] <= row["target"])
        if part == "opening":
            assert 0 < row["median"] < 60
        if part == "load":
            assert 0 <= row["median"] < 2


def test_what_says_nothing_is_refused() -> None:
    assert "figures of --quick say nothing" in run("monitor.py", "--quick", "--save").stderr
    assert (
        "there is no part closing, but opening, load, keys, training"
        in run("monitor.py", "--only", "closing").stderr
    )


@pytest.mark.full
def test_every_widget_has_a_row() -> None:
    printed = output_of("chart_widgets.py", "--quick", "--points", "40")
    for name in ("burnt.monitor.plotting.chart_widget", "textual_plot", "textual_plotext", "plotext"):
        assert f"\n{name} " in printed
