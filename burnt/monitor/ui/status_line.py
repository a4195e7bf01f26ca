"""Lines of styled facts that drop the least important parts when the width is too small."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean

Part = tuple[str, str]
"""A text and its Textual style; control sequences are escaped when the line is built."""


def update_if_changed(widget: Static, content: Content) -> None:
    """Update a widget's content; does not repaint if it is the same."""
    current = widget.content
    if not (isinstance(current, Content) and current.is_same(content)):
        widget.update(content)


def facts_line(pairs: Sequence[tuple[str, Part]], width: int) -> Content:
    """Join names and values, the most important first, as far as they fit; an empty name shows the value."""
    shown, width_left = [], width - 2
    for name, (text, style) in pairs:
        fact = Content.assemble((f"{clean(name)} ", "$dim") if name else "", (clean(text), style))
        if fact.cell_length <= width_left:
            shown.append(fact)
            width_left -= fact.cell_length + 3
    return Content.assemble(" ", Content("   ").join(shown))


def two_sided_line(left: Sequence[Part], right: Sequence[Sequence[Part]], width: int) -> Content:
    """Build a line with parts at both ends.

    If it is too narrow, the last groups of `right` are left out and the first part of `left` is truncated.
    """
    left = _clean_parts(left)
    first = Content.assemble(*left)
    groups = [Content.assemble(*_clean_parts(group)) for group in right]
    while groups and first.cell_length + sum(group.cell_length for group in groups) + 2 > width:
        groups.pop()
    left_width = width - sum(group.cell_length for group in groups) - 1
    if first.cell_length > left_width:
        text, style = left[0]
        shortened = Content.assemble((text, style)).truncate(
            max(left_width - first.cell_length + len(text), 4), ellipsis=True
        )
        first = shortened.append(Content.assemble(*left[1:]))
    gap = " " * max(left_width - first.cell_length, 1)
    return Content("").join([first, Content(gap), *groups, Content(" ")])


def _clean_parts(parts: Sequence[Part]) -> list[Part]:
    return [(clean(text), style) for text, style in parts]
