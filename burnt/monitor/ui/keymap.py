"""The keys: one table for each place, from which bindings, key bar, help and command palette are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.binding import Binding

__all__ = [
    "APP",
    "ARTEFACTS",
    "CHART",
    "COMPARE",
    "FILTER",
    "LIST",
    "LOG",
    "PLOTS",
    "RUN",
    "RUNS",
    "Key",
    "bindings",
    "key_text",
]


class Key(NamedTuple):
    """A key and what it does.

    Args:
        keys: as Textual names them, several with commas; ``1-9`` are nine keys, whose digits are handed to
            the action.
        action: the method ``action_...`` of the place that the table belongs to.
        label: a word or two, for key bar and palette.
        help: what happens, for help and palette.
        footer: 0 is not in the key bar; keys of higher numbers make way first.
    """

    keys: str
    action: str
    label: str
    help: str
    bar_priority: int = 0


APP = (
    Key("question_mark", "help", "Help", "show the keys that can be pressed here", 1),
    Key("q", "leave", "Quit", "leave the monitor; trainings go on", 1),
    Key("ctrl+p", "command_palette", "Find", "find by name what can be done here"),
    Key("t", "toggle_theme", "Dark or light", "switch between the dark and the light theme"),
    Key("f5", "rescan", "Look again", "look for new runs, and forget deleted ones"),
)

# A table or list with a cursor.
LIST = (
    Key("up,k", "cursor_up", "Up", "one line up"),
    Key("down,j", "cursor_down", "Down", "one line down"),
    Key("pageup", "page_up", "Page up", "a page up"),
    Key("pagedown", "page_down", "Page down", "a page down"),
    Key("home,g", "first", "First", "the first line"),
    Key("end,G", "last", "Last", "the last line"),
)

RUNS = (
    Key("enter", "open", "Open", "open the run under the cursor", 1),
    Key("slash", "filter", "Filter", "show only runs that match words or /an expression/", 2),
    Key("s", "sort", "Sort", "sort by the next column", 3),
    Key("S", "reverse", "Reverse", "sort the other way round"),
    Key("space", "mark", "Mark", "mark the run for comparing, or unmark it", 4),
    Key("c", "compare", "Compare", "compare the marked runs, 2 to 8 of them", 4),
    Key("escape", "clear", "Clear", "drop the filter, then the marks"),
)

_BACK = Key("escape", "back", "Back", "back to the list of runs", 1)

RUN = (
    _BACK,
    Key("1-9", "pane", "Pane", "show the pane of that number"),
    Key("K", "pane(10)", "Kernels", "show the pane of kernels"),
    Key("right_square_bracket", "next_pane", "Next pane", "show the next pane"),
    Key("left_square_bracket", "previous_pane", "Previous pane", "show the pane before"),
    Key("p", "pause", "Pause", "pause the training, or let it go on", 2),
    Key("X", "stop", "Stop", "stop the training, with a checkpoint", 2),
    Key("w", "save", "Checkpoint", "write a checkpoint now", 4),
    Key("l", "learning_rate", "Rate", "change the learning rate, or follow the schedule again", 4),
    Key("n", "note", "Note", "add a note to the run", 6),
)

# Where there are curves.
_AXES = (
    Key("x", "axis", "X axis", "horizontal axis: steps, epochs or time", 3),
    Key("y", "log", "Log y", "vertical axis: linear or logarithmic", 3),
)

PLOTS = (
    *_AXES,
    Key("s", "smooth", "Smooth", "smooth the curves more, in turn", 5),
    Key("f", "focus_one", "Full size", "the chart with the underlined name alone, or all again", 3),
    Key("slash", "filter", "Filter", "show only metrics that match words or /an expression/", 6),
    Key("up,k", "next_chart(-1)", "Chart before", "go to the chart before"),
    Key("down,j", "next_chart(1)", "Next chart", "go to the next chart"),
    Key("pagedown", "page(1)", "Next charts", "the next page of charts"),
    Key("pageup", "page(-1)", "Charts before", "the page of charts before"),
)

# A chart that has the keys.
CHART = (
    Key(
        "plus,equals_sign", "zoom_x(1)", "Zoom in", "show less of the horizontal axis; the wheel does it too"
    ),
    Key("minus", "zoom_x(-1)", "Zoom out", "show more of the horizontal axis"),
    Key("0", "reset", "Show all", "show all of both axes again; so does a double click"),
    Key("left", "crosshair(-1)", "Read left", "move the crosshair, which reads all charts"),
    Key("right", "crosshair(1)", "Read right", "move the crosshair to the right"),
    Key("shift+left", "pan(-1)", "Pan left", "move along the horizontal axis; dragging does it too"),
    Key("shift+right", "pan(1)", "Pan right", "move along the horizontal axis to the right"),
    Key("shift+up", "zoom_y(1)", "Zoom y in", "show less of the vertical axis"),
    Key("shift+down", "zoom_y(-1)", "Zoom y out", "show more of the vertical axis"),
)

COMPARE = (
    _BACK,
    Key("m", "metric(1)", "Metric", "show the next metric", 2),
    Key("M", "metric(-1)", "Metric before", "show the metric before"),
    Key("slash", "choose", "Find metric", "type a part of a metric's name", 3),
    *_AXES,
    Key("s", "smooth", "Smooth", "smooth the curves more, in turn", 4),
    Key("f", "full", "Full size", "show the chart alone, or the tables too", 2),
    Key("tab", "focus_next", "Next part", "give the keys to the next part of the screen"),
)

ARTEFACTS = (
    Key("left", "step(-1)", "Step before", "show what was recorded before", 2),
    Key("right", "step(1)", "Next step", "show what was recorded next", 2),
    Key("shift+left", "end(0)", "First step", "show what was recorded first"),
    Key("shift+right", "end(-1)", "Last step", "show what was recorded last, and follow"),
    Key("shift+up", "scroll(-1)", "Scroll up", "move what is shown"),
    Key("shift+down", "scroll(1)", "Scroll down", "move what is shown"),
)

FILTER = (Key("slash", "filter", "Filter", "show only what matches words or /an expression/", 2),)

LOG = (
    Key("slash", "search", "Search", "find a text in the log", 2),
    Key("m", "match(-1)", "Match before", "go to the match before"),
    Key("M", "match(1)", "Next match", "go to the next match"),
    Key("F", "follow", "Follow", "keep the newest line in sight, or not", 3),
)


def bindings(keys: Sequence[Key]) -> list[Binding]:
    """The table as Textual takes it."""
    result = []
    for key in keys:
        for name, action in (
            [(digit, f"{key.action}({digit})") for digit in "123456789"]
            if key.keys == "1-9"
            else [(key.keys, key.action)]
        ):
            result.append(Binding(name, action, key.label, show=key.bar_priority > 0, tooltip=key.help))
    return result


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
    "equals_sign": "=",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def key_text(keys: str) -> str:
    """Keys as a person finds them on the keyboard.

    >>> key_text("up,k"), key_text("shift+left"), key_text("slash")
    ('↑ k', 'shift ←', '/')
    """
    return " ".join(" ".join(_NAMES.get(part, part) for part in key.split("+")) for key in keys.split(","))
