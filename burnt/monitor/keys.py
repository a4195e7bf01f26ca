"""The keys: one table for each place, from which bindings, footer, help and command palette are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.binding import Binding

__all__ = ["APP", "FILTER", "LIST", "LOG", "PLOTS", "RUN", "RUNS", "Key", "bindings", "key_text"]


class Key(NamedTuple):
    """A key and what it does.

    Args:
        keys: as Textual names them, several with commas.
        action: the method ``action_...`` of the place that the table belongs to.
        label: a word or two, for footer and palette.
        help: what happens, for help and palette.
        footer: whether the footer shows it.
    """

    keys: str
    action: str
    label: str
    help: str
    footer: bool = False


APP = (
    Key("question_mark", "help", "Help", "show the keys that can be pressed here", True),
    Key("q", "leave", "Quit", "leave the monitor; trainings go on", True),
    Key("t", "toggle_theme", "Dark or light", "switch between the dark and the light theme"),
    Key("f5", "look_again", "Look again", "look for new runs, and forget deleted ones"),
)

# A table or list with a cursor.
LIST = (
    Key("up,k", "cursor_up", "Up", "move the cursor up"),
    Key("down,j", "cursor_down", "Down", "move the cursor down"),
    Key("pageup", "page_up", "Page up", "move the cursor up by a page"),
    Key("pagedown", "page_down", "Page down", "move the cursor down by a page"),
    Key("home,g", "first", "First", "move the cursor to the first line"),
    Key("end,G", "last", "Last", "move the cursor to the last line"),
)

RUNS = (
    Key("enter", "open", "Open", "open the run under the cursor", True),
    Key("slash", "filter", "Filter", "show only runs that match a text, or a /regular expression/", True),
    Key("s", "sort", "Sort", "sort by the next column", True),
    Key("S", "reverse", "Reverse", "sort the other way round"),
    Key("space", "mark", "Mark", "mark the run for comparing", True),
    Key("c", "compare", "Compare", "compare the marked runs, 2 to 8 of them", True),
    Key("escape", "clear", "Clear", "drop the filter, then the marks"),
)

RUN = (
    Key("escape", "back", "Back", "go back to the list of runs", True),
    Key("p", "pause", "Pause", "pause the training, or let it go on", True),
    Key("w", "save", "Checkpoint", "write a checkpoint now", True),
    Key("l", "learning_rate", "Rate", "change the learning rate, or give it back to the schedule", True),
    Key("n", "note", "Note", "add a note to the run"),
    Key("X", "stop", "Stop", "stop the training, with a checkpoint", True),
    Key("right_square_bracket", "next_pane", "Next pane", "show the next pane"),
    Key("left_square_bracket", "previous_pane", "Previous pane", "show the pane before"),
    *(
        Key(str(number), f"pane({number})", f"Pane {number}", f"show pane {number}")
        for number in range(1, 10)
    ),
)

PLOTS = (
    Key("x", "axis", "X axis", "horizontal axis: steps, epochs or time", True),
    Key("y", "log", "Log y", "vertical axis: linear or logarithmic", True),
    Key("s", "smooth", "Smooth", "smooth the curves more, in turn", True),
    Key("f", "focus_one", "Full size", "show the chart under the cursor alone, or all again", True),
    Key("slash", "filter", "Filter", "show only metrics that match a text, or a /regular expression/"),
    Key("pagedown", "page(1)", "Next page", "show the next charts"),
    Key("pageup", "page(-1)", "Previous page", "show the charts before"),
)

FILTER = (Key("slash", "filter", "Filter", "show only what matches a text, or a /regular expression/", True),)

LOG = (
    Key("slash", "search", "Search", "find a text in the log", True),
    Key("m", "match(-1)", "Earlier", "go to the match before"),
    Key("M", "match(1)", "Later", "go to the next match"),
    Key("F", "follow", "Follow", "keep the newest line in sight, or not", True),
)


def bindings(keys: Sequence[Key]) -> list[Binding]:
    """The table as Textual takes it."""
    return [Binding(key.keys, key.action, key.label, show=key.footer, tooltip=key.help) for key in keys]


_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "pageup": "page up",
    "pagedown": "page down",
    "plus": "+",
    "minus": "-",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def key_text(keys: str) -> str:
    """Keys as a person finds them on the keyboard.

    >>> key_text("up,k"), key_text("shift+tab"), key_text("slash")
    ('↑ k', 'shift tab', '/')
    """
    words = [" ".join(_NAMES.get(part, part) for part in key.split("+")) for key in keys.split(",")]
    return " ".join(words)
