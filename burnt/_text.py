"""Tables as lines of text, whose columns are aligned; numbers with a unit."""

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


def bytes_text(number: int) -> str:
    """Format a number of bytes.

    >>> bytes_text(12), bytes_text(1536)
    ('12 B', '1.50 KiB')
    """
    return scaled_text(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def scaled_text(number: float, step: int, units: tuple[str, ...]) -> str:
    """Format a number with three significant digits and a unit."""
    for unit in units:
        if number < step or unit == units[-1]:
            break
        number /= step
    digits = 0 if number >= 100 or number == int(number) else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {unit}".rstrip()
