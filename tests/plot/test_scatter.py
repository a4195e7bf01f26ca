"""Scatter: points as text and as SVG."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from burnt.plot import Points, Scatter

SVG = "{http://www.w3.org/2000/svg}"


def circles(svg: str) -> dict[str, list[tuple[float, float]]]:
    """Centres of the circles by title; of a group the first is that of the legend."""
    found: dict[str, list[tuple[float, float]]] = {}
    for element in ElementTree.fromstring(svg).iter(f"{SVG}circle"):
        title = element.find(f"{SVG}title")
        assert title is not None
        centre = (float(element.attrib["cx"]), float(element.attrib["cy"]))
        found.setdefault(str(title.text), []).append(centre)
    return found


def test_svg_has_every_point_where_it_belongs() -> None:
    drawing = Scatter(
        [Points("a < b", [1, 10, 100], [0.1, 0.01, 0.001], ["p", "q", "r & s"])], "x & y", "error"
    )
    svg = drawing.svg(500, 300)
    found = circles(svg)
    (p,), (q,), (r,) = found["p"], found["q"], found["r & s"]
    assert math.isclose(q[0] - p[0], r[0] - q[0], abs_tol=0.1)
    assert math.isclose(q[1] - p[1], r[1] - q[1], abs_tol=0.1)
    assert p[0] < q[0] < r[0]
    assert p[1] < q[1] < r[1]
    ticks = {
        element.text: float(element.attrib["x"])
        for element in ElementTree.fromstring(svg).iter(f"{SVG}text")
        if element.attrib.get("text-anchor") == "middle"
    }
    assert {"1", "10", "100", "x & y"} <= set(ticks)
    assert math.isclose(ticks["10"], q[0], abs_tol=0.1)


def test_the_largest_are_labelled_without_overlaps_and_within_the_drawing() -> None:
    names = [f"encoder.layers.{i}.attention.query" for i in range(30)]
    ys = [0.001 * (1 + i % 7) for i in range(30)]
    drawing = Scatter([Points("int8", [100.0 + i % 3 for i in range(30)], ys, names)], "x", "y", labelled=4)
    boxes = []
    for element in ElementTree.fromstring(drawing.svg(640, 300)).iter(f"{SVG}text"):
        if element.attrib.get("class") == "point":
            x, y, length = (
                float(element.attrib["x"]),
                float(element.attrib["y"]),
                6.6 * len(element.text or ""),
            )
            x -= length * (element.attrib.get("text-anchor") == "end")
            assert x >= 0
            assert x + length <= 640
            boxes.append((x, y, x + length))
    assert 1 <= len(boxes) <= 4
    for i, (left, y, right) in enumerate(boxes):
        for other_left, other_y, other_right in boxes[:i]:
            assert abs(y - other_y) >= 13 or right <= other_left or other_right <= left


def test_a_label_to_the_left_ends_at_its_point() -> None:
    drawing = Scatter([Points("int8", [100.0, 101.0], [0.1, 0.1], ["left", "right"])], "x", "y").svg()
    found = {
        e.text: e.attrib for e in ElementTree.fromstring(drawing).iter(f"{SVG}text") if "class" in e.attrib
    }
    ((left, _),), ((right, _),) = (circles(drawing)[name] for name in ("left", "right"))
    assert float(found["left"]["x"]) == pytest.approx(left - 7, abs=0.1)
    assert found["left"]["text-anchor"] == "end"
    assert float(found["right"]["x"]) == pytest.approx(right + 7, abs=0.1)
    assert "text-anchor" not in found["right"]


def test_text_fits_and_keeps_a_marker_for_each_group() -> None:
    groups = [Points("int8", [1.0, 5.0], [0.01, 0.02], ["a", "b"]), Points("int4", [2.0], [0.2], ["c" * 90])]
    shown = Scatter(groups, "size", "error").text(50, 15).splitlines()
    assert len(shown) == 15
    assert max(map(len, shown)) <= 50
    assert shown[:2] == ["  ● int8", "  ○ int4"]
    assert sum(line.count("●") for line in shown[2:]) == 2
    assert sum(line.count("○") for line in shown[2:]) == 1
    assert "c" * 90 not in "\n".join(shown)


def test_zero_is_drawn_at_the_lower_edge_and_what_is_not_finite_is_left_out() -> None:
    drawing = Scatter([Points("g", [1, 2, 3], [0.0, math.nan, 0.5], ["zero", "nan", "half"])], "x", "y")
    found = circles(drawing.svg(400, 300))
    assert "nan" not in found
    assert found["zero"][0][1] == 300 - 42
    assert found["half"][0][1] < found["zero"][0][1]


def test_one_point_and_none_are_drawn() -> None:
    assert "●a" in Scatter([Points("g", [3], [0.1], ["a"])], "x", "y").text()
    assert "└" in Scatter([], "x", "y").text()
    assert Scatter([], "x", "y")._repr_svg_().startswith("<svg")
