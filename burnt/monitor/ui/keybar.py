"""`KeyBar`: the keys that fit in the last line of a screen; lines of styled facts that fit a width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widgets import Static

from burnt.errors import clean
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.keymap import Key, key_text

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


_GAP = 2


class KeyBar(Static):
    """Shows keys and their labels; clicking one runs its action."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $surface; text-wrap: nowrap; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._active_keys: list[tuple[object, Key]] = []
        self._click_ranges: list[tuple[int, int, object, Key]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.update_keys)
        self.update_keys()

    def update_keys(self, _: Any = None) -> None:
        """Show the active keys, with the labels that the screen gives them."""
        if self.screen.is_current:
            active = [(node, self._displayed(key)) for node, key in app_of(self).active_keys()]
            self._active_keys = [(node, key) for node, key in active if key.bar_priority]
            self._draw_keys()

    def _displayed(self, key: Key) -> Key:
        displayed_key: Callable[[Key], Key] | None = getattr(self.screen, "displayed_key", None)
        return key if displayed_key is None else displayed_key(key)

    def on_resize(self) -> None:
        self._draw_keys()

    def _draw_keys(self) -> None:
        shown_keys = _keys_that_fit([key for _, key in self._active_keys], self.size.width)
        parts: list[tuple[str, str]] = [(" ", "")]
        self._click_ranges = []
        x = 1
        for node, key in self._active_keys:
            if key in shown_keys:
                name, label = key_text(key.keys.partition(",")[0]), key.label.lower()
                parts += [(name, "bold $primary"), (f" {label}", "$dim"), (" " * _GAP, "")]
                length = cell_len(name) + 1 + cell_len(label)
                self._click_ranges.append((x, x + length, node, key))
                x += length + _GAP
        self.update(Content.assemble(*parts))

    async def on_click(self, event: events.Click) -> None:
        for start, stop, node, key in self._click_ranges:
            if start <= event.x < stop:
                await self.app.run_action(key.action, node)  # type: ignore[arg-type]


def _keys_that_fit(keys: Sequence[Key], width: int) -> list[Key]:
    """Return the keys that fit the width, dropping those with the highest `bar_priority` first."""
    shown = list(keys)
    while shown:
        used = 1 + sum(
            cell_len(key_text(key.keys.partition(",")[0])) + 1 + cell_len(key.label) + _GAP for key in shown
        )
        if used - _GAP <= width:
            break
        lowest = max(key.bar_priority for key in shown)
        shown.remove(next(key for key in reversed(shown) if key.bar_priority == lowest))
    return shown
