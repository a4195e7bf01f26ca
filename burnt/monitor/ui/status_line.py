"""Lines of facts: parts in styles, set at both ends of a line, and left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from burnt.monitor.format import clean

__all__ = ["Part", "facts_line", "two_sided_line", "update_if_changed"]

Part = tuple[str, str]
"""A text and its style, as Textual writes it; what a terminal would obey is escaped when it is set."""


def update_if_changed(widget: Static, content: Content) -> None:
    """Show something else; nothing is painted when it is the same."""
    current = widget.content
    if not (isinstance(current, Content) and current.is_same(content)):
        widget.update(content)


def facts_line(pairs: Sequence[tuple[str, Part]], width: int) -> Content:
    """Names and values, as many as there is room for.

    Args:
        pairs: the most important first; what has no name is a value alone.
        width: of the line.
    """
    shown, width_left = [], width - 2
    for name, (text, style) in pairs:
        fact = Content.assemble((f"{clean(name)} ", "$dim") if name else "", (clean(text), style))
        if fact.cell_length <= width_left:
            shown.append(fact)
            width_left -= fact.cell_length + 3
    return Content.assemble(" ", Content("   ").join(shown))


def two_sided_line(left: Sequence[Part], right: Sequence[Sequence[Part]], width: int) -> Content:
    """Two parts of a line, one at each end.

    Args:
        left: the first of them is cut where there is no room.
        right: groups; the last ones are left out where there is no room.
        width: of the line.
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
