"""Plot: curves as text and as SVG."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from burnt.plot import Line, Plot

SVG = "{http://www.w3.org/2000/svg}"


def points_of(svg: str, color: str) -> list[list[tuple[float, float]]]:
    """The points of the polylines of a colour, without its sample in the legend."""
    found = [
        [tuple(map(float, pair.split(","))) for pair in element.attrib["points"].split()]
        for element in ElementTree.fromstring(svg).iter(f"{SVG}polyline")
        if element.attrib["stroke"] == color
    ]
    return found[:-1]


def test_as_text_it_fits_and_its_labels_stand_at_their_values():
    lines = Plot([Line("up", range(101), range(101)), Line("down", range(101), range(100, -1, -1))])
    shown = lines.text(50, 14).splitlines()
    assert len(shown) == 14
    assert max(map(len, shown)) <= 50
    assert [line.split()[1] for line in shown[:2]] == ["up", "down"]
    assert shown[2].startswith("100┤")
    assert shown[-3].startswith("  0┤")
    assert re.fullmatch(r" +└[┬─]{46}", shown[-2])
    assert shown[-1].split() == ["0", "50", "step"]
    assert shown[-2][shown[-1].index("50") + 1] == "┬"
    assert shown[-2].count("┬") == 3  # the label of the last one would not fit next to "step"
    assert repr(lines) == lines.text()


def test_a_long_name_is_cut():
    plot = Plot([Line("x" * 200, [0, 1], [0, 1])])
    assert plot.text(40).splitlines()[0].endswith("x…")
    assert len(plot.text(40).splitlines()[0]) == 40
    assert "x…</text>" in plot.svg(300)


def test_svg_shows_every_value_where_it_belongs():
    ys = [0.0, 3.0, 1.0, 4.0]
    plot = Plot([Line("a < b & c", range(4), ys), Line("second", range(4), [2.0] * 4)], x="epoch")
    svg = plot.svg(400, 200)
    root = ElementTree.fromstring(svg)
    assert (root.attrib["width"], root.attrib["height"]) == ("400", "200")
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"a < b & c", "second", "epoch", "0", "2", "4"} <= set(texts)
    (first,), (second,) = points_of(svg, "#4477aa"), points_of(svg, "#ee7733")
    ticks = {e.text: float(e.attrib["y"]) - 4 for e in root.iter(f"{SVG}text") if e.attrib["x"] == "15"}
    at = {value: y for text, y in ticks.items() for value in [float(text)]}
    assert len(first) == 4
    for (x, y), value in zip(first, ys, strict=True):
        assert 0 < x <= 400
        assert y == pytest.approx(at[0.0] + (at[4.0] - at[0.0]) * value / 4, abs=0.1)
    assert [y for _, y in second] == pytest.approx([at[2.0]] * 2, abs=0.1)
    assert plot._repr_svg_() == plot.svg()
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded


def test_points_on_a_line_are_left_out():
    ys = [min(x, 500) / 500 for x in range(1001)]
    ((*points,),) = points_of(Plot([Line("bend", range(1001), ys)]).svg(), "#4477aa")
    assert len(points) == 3
    wave = [math.sin(x / 50) + 1 for x in range(1001)]
    ((*points,),) = points_of(Plot([Line("wave", range(1001), wave)]).svg(640, 320), "#4477aa")
    assert len(points) < 200
    (x0, y0), (x1, y1) = points[0], points[-1]
    top, bottom = min(y for _, y in points), max(y for _, y in points)
    for x, y in points:  # where the curve is, to a fraction of a pixel
        value = math.sin((x - x0) / (x1 - x0) * 20) + 1
        assert y == pytest.approx(bottom + (top - bottom) * value / 2, abs=0.6)
    assert y1 != y0


@pytest.mark.parametrize("ys", [[1.0, math.nan, 2.0, 2.0], [1.0, math.inf, 2.0, 2.0]])
def test_a_gap_stays_a_gap(ys):
    plot = Plot([Line("gap", range(4), ys)])
    assert [len(part) for part in points_of(plot.svg(), "#4477aa")] == [1, 2]
    assert "nan" not in plot.svg()
    assert plot.text().splitlines()


@pytest.mark.parametrize("ys", [[0.0, 0.0], [5.0, 5.0], [-1.0, -2.0], [1e-9, 2e-9], [math.nan, math.nan]])
def test_any_values_can_be_drawn(ys):
    plot = Plot([Line("any", [0, 1], ys)])
    assert len(plot.text(30, 9).splitlines()) == 9
    ElementTree.fromstring(plot.svg())
    assert len(Plot([Line("one", [3], [1.0])]).text(30, 9).splitlines()) == 9
