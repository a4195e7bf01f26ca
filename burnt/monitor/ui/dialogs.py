"""Small windows over a screen: help, questions before a command is sent, the end of a training, no room."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from burnt.errors import BurntError
from burnt.monitor.data.runs import RunView
from burnt.monitor.format import clean
from burnt.monitor.ui.keymap import Key, key_text
from burnt.monitor.ui.theme import state_cell

__all__ = ["ConfirmScreen", "EndScreen", "HelpScreen", "PromptScreen", "TextScreen", "TooSmallScreen"]

_CLOSE_SECONDS = 10
_WINDOW_LINES = 7  # border, padding and title of a window, and a line above it
_MOUSE_HELP = (
    "the mouse works too: click, double click, drag and wheel; ctrl+p finds what can be done by name"
)


class _TextDialog(ModalScreen[None]):
    """Something to read, which scrolls; closed by a key, or by a click beside it.

    Args:
        title: what it is.
        wide: whether it takes all the room there is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close", show=False)]

    def __init__(self, title: str, *, wide: bool = False) -> None:
        super().__init__()
        self._title, self._wide = title, wide

    @abstractmethod
    def text(self) -> Content:
        """What is to be read."""

    def compose(self) -> ComposeResult:
        """The title and the text; in the border, how to get on and away."""
        with Vertical(classes="window wide" if self._wide else "window"):
            yield Static(clean(self._title), classes="window-title", markup=False)
            with VerticalScroll():
                yield Static(self.text())

    def on_mount(self) -> None:
        """The keys scroll."""
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        self.watch(scroll, "scroll_y", self._show_scroll_hint)
        self.watch(scroll, "virtual_size", self._show_scroll_hint)

    def on_resize(self) -> None:
        """The text has the room that the rest of the window leaves."""
        self.query_one(VerticalScroll).styles.max_height = max(self.size.height - _WINDOW_LINES, 1)
        self.call_after_refresh(self._show_scroll_hint)

    def _show_scroll_hint(self) -> None:
        """Whether there is more than can be seen: a thin scrollbar is easily overlooked."""
        scroll = self.query_one(VerticalScroll)
        lines_below = math.ceil(scroll.max_scroll_y - scroll.scroll_y)
        hint = (
            f"{lines_below:,} more line{'s' * (lines_below != 1)} below: ↓ or page down   "
            if lines_below > 0
            else ""
        )
        self.query_one(".window", Vertical).border_subtitle = f"{hint}esc closes"

    def action_close(self) -> None:
        """Back."""
        self.dismiss()

    def on_click(self, event: events.Click) -> None:
        """A click beside the window closes it."""
        if event.widget is self:
            self.dismiss()


class HelpScreen(_TextDialog):
    """The keys that can be pressed, from the table that dispatches them.

    Args:
        keys: nearest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "close", "Close", show=False)]

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__("Keys")
        self._keys = keys

    def text(self) -> Content:
        """A line for each key."""
        width = max(len(key_text(key.keys)) for key in self._keys)
        lines = [
            Content.assemble((f"{key_text(key.keys):>{width}}", "bold $primary"), f"  {key.help}")
            for key in self._keys
        ]
        lines += [Content(""), Content.assemble((_MOUSE_HELP, "$dim"))]
        return Content("\n").join(lines)


class TextScreen(_TextDialog):
    """A text in full, of which a line of a table shows the beginning.

    Args:
        title: what it is.
        text: control characters are escaped, lines stay.
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__(title, wide=True)
        self._text = text

    def text(self) -> Content:
        """The text."""
        return Content("\n".join(clean(line) for line in self._text.expandtabs(4).splitlines()))


class ConfirmScreen(ModalScreen[bool]):
    """A question before something is sent to a training.

    Args:
        question: what is about to happen.
        detail: what follows from it.
        yes: what the button says that does it.
        grave: whether it cannot be undone; then the other button has the focus.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "No", show=False),
        Binding("y", "answer(True)", "Yes", show=False),
        Binding("left,right,up,down", "switch_button", "Other", show=False),
    ]

    def __init__(self, question: str, detail: str, confirm_label: str, *, dangerous: bool = False) -> None:
        super().__init__()
        self._question, self._detail, self._confirm_label, self._dangerous = (
            question,
            detail,
            confirm_label,
            dangerous,
        )

    def compose(self) -> ComposeResult:
        """The question and two buttons."""
        with Vertical(classes="window narrow"):
            yield Static(clean(self._question), classes="window-title", markup=False)
            yield Static(clean(self._detail), markup=False)
            with Horizontal(classes="buttons"):
                yield Button(
                    f"{self._confirm_label} (y)",
                    id="yes",
                    compact=True,
                    variant="error" if self._dangerous else "primary",
                )
                yield Button("Cancel (esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """The button that enter presses."""
        self.set_focus(self.query_one("#no" if self._dangerous else "#yes"))  # now: the next key goes there

    def action_answer(self, answer: bool) -> None:
        """Close with an answer."""
        self.dismiss(answer)

    def action_switch_button(self) -> None:
        """The other button."""
        self.focus_next()

    @on(Button.Pressed)
    def button_pressed(self, message: Button.Pressed) -> None:
        """A button."""
        self.dismiss(message.button.id == "yes")


class PromptScreen(ModalScreen[str | None]):
    """A question that is answered by a text; None when it is not answered.

    Args:
        question: what is asked.
        detail: what can be entered.
        placeholder: what the empty line says.
        yes: what the button says that sends it.
        check: raises `BurntError` if the text cannot be sent; the window then says so and stays.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def __init__(
        self, question: str, detail: str, placeholder: str, confirm_label: str, check: Callable[[str], object]
    ) -> None:
        super().__init__()
        self._check = check
        self._question, self._detail, self._placeholder, self._confirm_label = (
            question,
            detail,
            placeholder,
            confirm_label,
        )

    def compose(self) -> ComposeResult:
        """The question, a line to type in, and two buttons."""
        with Vertical(classes="window narrow"):
            yield Static(clean(self._question), classes="window-title", markup=False)
            yield Static(clean(self._detail), markup=False)
            yield Input(placeholder=self._placeholder, compact=True)
            yield Static(id="fault", markup=False)
            with Horizontal(classes="buttons"):
                yield Button(f"{self._confirm_label} (enter)", id="yes", compact=True, variant="primary")
                yield Button("Cancel (esc)", id="no", compact=True)

    def on_mount(self) -> None:
        """Type at once."""
        self.set_focus(self.query_one(Input))  # now: the next key goes there

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    @on(Input.Submitted)
    def input_submitted(self, message: Input.Submitted) -> None:
        """Enter: what stood there then, as more may have been typed since."""
        self._submit(message.value)

    @on(Button.Pressed)
    def button_pressed(self, message: Button.Pressed) -> None:
        """A button."""
        if message.button.id == "yes":
            self._submit(self.query_one(Input).value)
        else:
            self.dismiss(None)

    def _submit(self, text: str) -> None:
        text = text.strip()
        if not text or not self.is_current:  # it is sent already
            return
        try:
            self._check(text)
        except BurntError as error:
            expected = f"\nexpected {error.expected}" if error.expected else ""
            self.query_one("#fault", Static).update(error.what + expected)
        else:
            self.dismiss(text)


class EndScreen(ModalScreen[None]):
    """The training whose monitor this is has ended: a key, or some seconds, close the app.

    Args:
        view: its run.
    """

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self._view = view
        self._seconds_left = _CLOSE_SECONDS

    def compose(self) -> ComposeResult:
        """How it ended."""
        text, style = state_cell(self._view)
        with Vertical(classes="window narrow"):
            yield Static(
                Content.assemble(("The training has ended: ", ""), (text, style)), classes="window-title"
            )
            if self._view.problem:
                yield Static(clean(self._view.problem), markup=False)
            yield Static(id="countdown", classes="hint")

    def on_mount(self) -> None:
        """Count down."""
        self._update_countdown()
        self.set_interval(1.0, self._update_countdown)

    def _update_countdown(self) -> None:
        if self._seconds_left <= 0:
            self.app.exit()
        self.query_one("#countdown", Static).update(f"any key closes the monitor, or {self._seconds_left} s")
        self._seconds_left -= 1

    def on_key(self, event: events.Key) -> None:
        """Any key."""
        event.stop()
        self.app.exit()

    def on_click(self) -> None:
        """And a click."""
        self.app.exit()


class TooSmallScreen(ModalScreen[None]):
    """There is no room; what was on the screen comes back when there is."""

    # A modal screen keeps the app's own keys from the app.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.leave", "Leave", show=False),
        Binding("ctrl+c", "app.interrupt", "Interrupt", show=False),
        Binding("ctrl+z", "app.suspend", "Suspend", show=False),
    ]

    def compose(self) -> ComposeResult:
        """What is needed."""
        yield Static(
            "burnt monitor needs a terminal of 80x24 at least:\nmake it larger, or press q to leave",
            id="small",
        )
