"""Tables as lines of text, whose columns are aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table with two spaces between columns; those in `right` are aligned to the right.

    >>> table_lines([["", "ms"], ["softmax", "12.5"]], right={1})
    ['           ms', 'softmax  12.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
