"""`KeyBar`: the last line of a screen, with the most useful keys that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.keymap import Key, key_text

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
