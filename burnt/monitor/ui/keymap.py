"""All keys, in one table per screen or widget; bindings, key bar, help and command palette derive from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.binding import Binding
from textual.keys import format_key


class Key(NamedTuple):
    """A key and its action."""

    keys: str  # Textual's names, separated by commas; 1-9 is nine keys whose digit is passed to the action
    action: str  # of the method `action_...` of the screen or widget
    label: str  # one or two words for the key bar and the palette
    help: str  # for the help screen and the palette
    bar_priority: int = 0  # in the key bar: 0 is never shown, the highest numbers are dropped first


APP = (
    Key("question_mark", "help", "Help", "show the keys available here", 1),
    Key("q", "leave", "Quit", "quit the monitor; trainings continue", 1),
    Key("ctrl+p", "command_palette", "Find", "search the actions available here by name"),
    Key("t", "toggle_theme", "Dark/light", "switch between the dark and the light theme"),
    Key("f5", "rescan", "Rescan", "search for new runs and remove deleted ones"),
)

# Tables with a cursor.
LIST = (
    Key("up,k", "cursor_up", "Up", "move up one line"),
    Key("down,j", "cursor_down", "Down", "move down one line"),
    Key("pageup", "page_up", "Page up", "move up one page"),
    Key("pagedown", "page_down", "Page down", "move down one page"),
    Key("home,g", "first", "First", "go to the first line"),
    Key("end,G", "last", "Last", "go to the last line"),
)

RUNS = (
    Key("enter", "open", "Open", "open the run under the cursor", 1),
    Key("slash", "filter", "Filter", "show only runs that match, such as: digits lr>0.01 tag:a", 2),
    Key("s", "sort", "Sort", "sort by the next column", 3),
    Key("S", "reverse", "Reverse", "reverse the sort order"),
    Key("o", "columns", "Columns", "choose the columns: settings, metrics and others", 5),
    Key("space", "mark", "Mark", "mark or unmark the run for comparison, tags or removal", 4),
    Key("c", "compare", "Compare", "compare the 2 to 8 marked runs", 4),
    Key("plus", "tag", "Tag", "add tags to the run, or to the marked runs", 6),
    Key("minus", "untag", "Untag", "remove tags from the run, or from the marked runs"),
    Key("D,delete", "remove", "Remove", "remove the run, or the marked runs, after a question", 7),
    Key("escape", "clear", "Clear", "clear the filter, then the marks"),
)

CHOOSE_COLUMNS = (
    Key("space", "toggle_column", "Show/hide", "show or hide the column under the cursor", 1),
    Key("less_than_sign", "move(-1)", "Left", "move the column to the left", 2),
    Key("greater_than_sign", "move(1)", "Right", "move the column to the right", 2),
    Key("slash", "filter", "Filter", "show only columns that match words or a /regular expression/", 2),
    Key("r", "reset", "Reset", "return to the usual columns", 3),
    Key("escape,o,q", "close", "Close", "close the window", 1),
)

_BACK = Key("escape", "back", "Back", "back to the list of runs", 1)

RUN = (
    _BACK,
    Key("1-9", "pane", "Pane", "show the pane with that number"),
    Key("K", "pane(10)", "Kernels", "show the kernels pane"),
    Key("right_square_bracket", "next_pane", "Next pane", "go to the next pane"),
    Key("left_square_bracket", "previous_pane", "Previous pane", "go to the previous pane"),
    Key("p", "pause", "Pause", "pause or resume the training", 2),
    Key("X", "stop", "Stop", "stop the training with a checkpoint", 2),
    Key("w", "save", "Checkpoint", "write a checkpoint now", 4),
    Key("l", "learning_rate", "Rate", "change the learning rate, or follow the schedule again", 4),
    Key("n", "note", "Note", "add a note to the run", 6),
    Key("i", "panel", "Panel", "show or hide progress, values, system and settings next to the plots", 5),
)

SWEEP = (
    _BACK,
    Key("enter", "open", "Open", "open the run of the trial under the cursor", 1),
    Key("v", "next_plot", "Plot", "show the next plot, where there is room for one only", 2),
)

# Screens with charts.
_AXES = (
    Key("x", "axis", "X axis", "switch the x axis: steps, epochs or training time", 3),
    Key("y", "log", "Log y", "switch the y axis: linear or logarithmic", 3),
)

PLOTS = (
    *_AXES,
    Key("s", "smooth", "Smooth", "switch the smoothing strength", 5),
    Key("f", "focus_one", "Full size", "show only the chart with the underlined title, or all again", 3),
    Key("slash", "filter", "Filter", "show only metrics that match words or a /regular expression/", 6),
    Key("up,k", "next_chart(-1)", "Previous chart", "go to the previous chart"),
    Key("down,j", "next_chart(1)", "Next chart", "go to the next chart"),
    Key("pagedown", "page(1)", "Next charts", "go to the next page of charts"),
    Key("pageup", "page(-1)", "Previous charts", "go to the previous page of charts"),
)

# A focused chart.
CHART = (
    Key("plus,equals_sign", "zoom_x(1)", "Zoom in", "zoom in on the x axis (also: mouse wheel)"),
    Key("minus", "zoom_x(-1)", "Zoom out", "zoom out on the x axis"),
    Key("0", "reset", "Show all", "reset the zoom of both axes (also: double click)"),
    Key(
        "left",
        "crosshair(-1)",
        "Crosshair left",
        "move the crosshair left; it shows the values of all charts",
    ),
    Key("right", "crosshair(1)", "Crosshair right", "move the crosshair right"),
    Key("shift+left", "pan(-1)", "Pan left", "move left along the x axis (also: drag)"),
    Key("shift+right", "pan(1)", "Pan right", "move right along the x axis (also: drag)"),
    Key("shift+up", "zoom_y(1)", "Zoom y in", "zoom in on the y axis"),
    Key("shift+down", "zoom_y(-1)", "Zoom y out", "zoom out on the y axis"),
)

COMPARE = (
    _BACK,
    Key("m", "metric(1)", "Metric", "select the next metric", 2),
    Key("M", "metric(-1)", "Previous metric", "select the previous metric"),
    Key("slash", "choose", "Find metric", "select a metric by part of its name", 3),
    *_AXES,
    Key("s", "smooth", "Smooth", "switch the smoothing strength", 4),
    Key("f", "full", "Full size", "show only the selected chart, or all with the tables", 2),
    Key("v", "several", "One/several", "show several metrics at once, or only the selected one", 3),
    Key("pagedown", "page(1)", "Next charts", "go to the next page of charts"),
    Key("pageup", "page(-1)", "Previous charts", "go to the previous page of charts"),
    Key("tab", "focus_next", "Next part", "move the focus to the next chart or table"),
    Key("shift+tab", "focus_previous", "Previous part", "move the focus to the previous chart or table"),
)

ARTEFACTS = (
    Key("left", "step(-1)", "Previous step", "show the previous recorded step", 2),
    Key("right", "step(1)", "Next step", "show the next recorded step", 2),
    Key("comma", "jump(-1)", "Back", "go back by a tenth of the recorded steps", 4),
    Key("full_stop", "jump(1)", "Forward", "go forward by a tenth of the recorded steps", 4),
    Key("slash", "filter", "Filter", "show only names that match words or a /regular expression/", 3),
    Key("shift+left", "end(0)", "First step", "show the first recorded step"),
    Key("shift+right", "end(-1)", "Last step", "show the last recorded step and follow new ones"),
    Key("shift+up", "scroll(-1)", "Scroll up", "scroll the artefact up"),
    Key("shift+down", "scroll(1)", "Scroll down", "scroll the artefact down"),
)

FILTER = (Key("slash", "filter", "Filter", "show only rows that match words or a /regular expression/", 2),)

LOG = (
    Key("slash", "search", "Search", "search the log for a text", 2),
    Key("m", "match(-1)", "Previous match", "go to the previous match"),
    Key("M", "match(1)", "Next match", "go to the next match"),
    Key("F", "follow", "Follow", "switch following of new lines on or off", 3),
)


def bindings(keys: Sequence[Key]) -> list[Binding]:
    """Convert a table of keys to Textual bindings."""
    result = []
    for key in keys:
        for name, action in (
            [(digit, f"{key.action}({digit})") for digit in "123456789"]
            if key.keys == "1-9"
            else [(key.keys, key.action)]
        ):
            result.append(Binding(name, action, key.label, show=key.bar_priority > 0, tooltip=key.help))
    return result


_NAMES = {"pageup": "page up", "pagedown": "page down", "enter": "enter", "delete": "delete"}


def key_text(keys: str) -> str:
    """Format keys as they are labelled on the keyboard.

    >>> key_text("up,k"), key_text("shift+left"), key_text("slash")
    ('↑ k', 'shift ←', '/')
    """
    keyboard = [[_NAMES.get(part) or format_key(part) for part in key.split("+")] for key in keys.split(",")]
    return " ".join(" ".join(parts) for parts in keyboard)
