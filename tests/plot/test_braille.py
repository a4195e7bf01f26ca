"""Lines in braille characters."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from burnt.plot.braille import CHARACTERS, DASH_PATTERNS, line_masks, line_sample

NAN = math.nan


def dots(masks: list[int]) -> set[tuple[int, int]]:
    return {(x, y) for x, mask in enumerate(masks) for y in range(mask.bit_length()) if mask >> y & 1}


points = st.lists(st.tuples(st.floats(-30, 70), st.floats(-30, 70)), min_size=2, max_size=12)


@given(points)
def test_a_line_is_where_its_points_are_and_has_no_holes(found: list[tuple[float, float]]) -> None:
    xs, ys = [x for x, _ in sorted(found)], [y for _, y in sorted(found)]
    drawn = dots(line_masks(xs, ys, 40, 40))
    for x, y in zip(xs, ys, strict=True):
        dot = (math.floor(x + 0.5), math.floor(y + 0.5))
        if 0 <= dot[0] < 40 and 0 <= dot[1] < 40:
            assert dot in drawn
    for x, y in drawn:
        assert 0 <= x < 40
        assert 0 <= y < 40
        # Of a column, nothing above or below the lines that cross it.
        assert any(
            min(ya, yb) - 1 <= y <= max(ya, yb) + 1
            for xa, ya, xb, yb in zip(xs, ys, xs[1:], ys[1:], strict=False)
            if math.floor(xa + 0.5) <= x <= math.floor(xb + 0.5)
        )
    columns = sorted({x for x, _ in drawn})
    for x in columns:
        if x + 1 in columns:
            here, there = [y for c, y in drawn if c == x], [y for c, y in drawn if c == x + 1]
            assert min(abs(a - b) for a in here for b in there) <= 1


def test_a_slope_is_one_dot_thick() -> None:
    masks = line_masks([0, 20], [0, 10], 21, 12)
    assert all(mask.bit_count() == 1 for mask in masks)


def test_lines_break_at_nan_and_single_points_are_seen() -> None:
    assert dots(line_masks([0, 2, 4, 6], [1, NAN, 5, 5], 8, 8)) == {
        (0, 1), (1, 1), (0, 2), (1, 2), (4, 5), (5, 5), (6, 5)
    }  # fmt: skip
    assert len(dots(line_masks([7], [7], 8, 8))) == 4
    assert not dots(line_masks([3], [50], 8, 8))
    assert not dots(line_masks([50], [3], 8, 8))


def test_dashes_go_along_the_line() -> None:
    assert line_masks([0, 7], [0, 0], 8, 4, (2, 2)) == [1, 1, 0, 0, 1, 1, 0, 0]
    assert line_masks([0, 0], [0, 7], 1, 8, (2, 2)) == [0b00110011]
    diagonal = dots(line_masks([0, 11], [0, 11], 12, 12, (2, 2)))
    assert 4 <= len(diagonal) <= 8
    # All styles differ in the legend as well.
    assert len({line_sample(dashes, 3) for dashes in DASH_PATTERNS.values()}) == len(DASH_PATTERNS)


def test_characters_are_those_of_unicode() -> None:
    assert CHARACTERS[0b0000_0001] == "⠁"
    assert CHARACTERS[0b1000_0000] == "⢀"
    assert CHARACTERS[0b1111_1111] == "⣿"
    assert len(set(CHARACTERS)) == 256
