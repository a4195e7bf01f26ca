"""`KeyBar`: the last line of a screen, with the most useful keys that there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.widgets import Static

from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.keymap import Key, key_text

__all__ = ["KeyBar"]

_GAP = 2


class KeyBar(Static):
    """Keys and what they do; a click does it too."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $surface; text-wrap: nowrap; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._here: list[tuple[object, Key]] = []
        self._places: list[tuple[int, int, object, Key]] = []

    def on_mount(self) -> None:
        """What can be pressed depends on what has the keys."""
        self.screen.bindings_updated_signal.subscribe(self, self.renew)
        self.renew()

    def renew(self, _: Any = None) -> None:
        """Show the keys that can be pressed now, as the screen calls them."""
        if self.screen.is_current:
            here = [(node, self._named(key)) for node, key in app_of(self).keys_here()]
            self._here = [(node, key) for node, key in here if key.footer]
            self._arrange()

    def _named(self, key: Key) -> Key:
        named: Callable[[Key], Key] | None = getattr(self.screen, "key_now", None)
        return key if named is None else named(key)

    def on_resize(self) -> None:
        """More room, more keys."""
        self._arrange()

    def _arrange(self) -> None:
        kept = _keys_that_fit([key for _, key in self._here], self.size.width)
        parts: list[tuple[str, str]] = [(" ", "")]
        self._places = []
        x = 1
        for node, key in self._here:
            if key in kept:
                name, label = key_text(key.keys.partition(",")[0]), key.label.lower()
                parts += [(name, "bold $primary"), (f" {label}", "$dim"), (" " * _GAP, "")]
                wide = cell_len(name) + 1 + cell_len(label)
                self._places.append((x, x + wide, node, key))
                x += wide + _GAP
        self.update(Content.assemble(*parts))

    async def on_click(self, event: events.Click) -> None:
        """As if the key were pressed."""
        for start, stop, node, key in self._places:
            if start <= event.x < stop:
                await self.app.run_action(key.action, node)  # type: ignore[arg-type]


def _keys_that_fit(keys: Sequence[Key], width: int) -> list[Key]:
    """The keys, without those of the highest numbers where there is no room for all."""
    kept = list(keys)
    while kept:
        used = 1 + sum(
            cell_len(key_text(key.keys.partition(",")[0])) + 1 + cell_len(key.label) + _GAP for key in kept
        )
        if used - _GAP <= width:
            break
        last = max(key.footer for key in kept)
        kept.remove(next(key for key in reversed(kept) if key.footer == last))
    return kept
