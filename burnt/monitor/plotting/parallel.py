"""Parallel coordinates: an upright axis per parameter and for the value, and a line for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import set_cell_size

from burnt.errors import clean
from burnt.plot.braille import CHARACTERS, line_masks
from burnt.store.search import setting_text
from burnt.store.sweeps import Parameter, Trial
from burnt.train.format import value_text

Line = list[tuple[str, str]]
"""Texts with the names of their styles."""

_MIN_GAP = 6
_STYLES = ("best", "good", "middle", "bad")


def parallel_coordinates(
    space: Sequence[Parameter],
    trials: Sequence[Trial],
    metric: str,
    width: int,
    height: int,
    selected: int | None = None,
) -> list[Line]:
    """Draw trials that have a value, the best first, in a size in cells.

    The styles are ``best``, ``good``, ``middle`` and ``bad`` (thirds of the trials), ``selected`` for the
    trial with that number, ``axis`` and ``label``. What has no room, the last parameters, is left out.
    """
    shown = list(space[: max((width - 2) // _MIN_GAP - 1, 1)])
    count, rows = len(shown) + 1, height - 3
    if rows < 2 or width < 2 * _MIN_GAP or not trials:
        return []
    gap = width // count
    columns = [gap * i + gap // 2 for i in range(count)]
    values = [trial.value or 0.0 for trial in trials]
    top, bottom = values[0], max(values, key=lambda value: abs(value - values[0]))  # the best is above
    bits, styles = [[0] * width for _ in range(rows)], [[""] * width for _ in range(rows)]
    order = sorted(range(len(trials)), key=lambda i: (trials[i].number == selected, -i))
    for i in order:
        trial = trials[i]
        shares = [parameter.share(trial.params[parameter.key]) for parameter in shown]
        shares.append((values[i] - bottom) / (top - bottom) if top != bottom else 0.5)
        ys = [(1 - share) * (4 * rows - 1) for share in shares]
        masks = line_masks([2.0 * column for column in columns], ys, 2 * width, 4 * rows)
        style = "best" if i == 0 else _STYLES[1 + 3 * i // len(trials)]
        for column in range(width):
            left, right = masks[2 * column], masks[2 * column + 1]
            for row in range(rows):
                if dots := left >> 4 * row & 15 | (right >> 4 * row & 15) << 4:
                    bits[row][column] |= dots
                    styles[row][column] = "selected" if trial.number == selected else style
    cells = [
        [
            (CHARACTERS[b], s) if b else ("│", "axis") if x in columns else (" ", "")
            for x, (b, s) in enumerate(pairs)
        ]
        for pairs in (zip(*lines, strict=True) for lines in zip(bits, styles, strict=True))
    ]
    body = [
        [
            ("".join(text for text, _ in group), style)
            for style, group in groupby(row, key=lambda cell: cell[1])
        ]
        for row in cells
    ]
    highs = [*(setting_text(p.choices[-1] if p.choices else p.high) for p in shown), value_text(top)]
    lows = [*(setting_text(p.choices[0] if p.choices else p.low) for p in shown), value_text(bottom)]
    names = [*(parameter.key for parameter in shown), metric]
    return [
        [(_labels(names, gap), "name")],
        [(_labels(highs, gap), "label")],
        *body,
        [(_labels(lows, gap), "label")],
    ]


def _labels(texts: Sequence[str], gap: int) -> str:
    """Return texts centred in columns of a width; a long one keeps its end."""
    return "".join(set_cell_size(clean(text)[-(gap - 1) :].center(gap), gap) for text in texts)
