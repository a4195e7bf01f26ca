"""Modal screens: help, texts, confirmation and input of commands, end of a training."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from burnt.errors import BurntError, clean
from burnt.monitor.data.runs import RunView
from burnt.monitor.ui.keymap import Key, key_text
from burnt.monitor.ui.theme import state_cell

T = TypeVar("T")

_CLOSE_SECONDS = 10
_WINDOW_LINES = 7  # border, padding and title of the window, and one line above it
_MOUSE_HELP = "The mouse works too: click, double click, drag, wheel. ctrl+p searches all actions by name."


class _TextDialog(ModalScreen[None]):
    """A scrollable text; closed by a key or by a click outside of the window."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close", show=False)]

    def __init__(self, title: str, *, wide: bool = False) -> None:
        super().__init__()
        self._title, self._wide = title, wide

    @abstractmethod
    def text(self) -> Content:
        """Return the text to show."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="window wide" if self._wide else "window"):
            yield Static(clean(self._title), classes="window-title", markup=False)
            with VerticalScroll():
                yield Static(self.text())

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        self.watch(scroll, "scroll_y", self._show_scroll_hint)
        self.watch(scroll, "virtual_size", self._show_scroll_hint)

    def on_resize(self) -> None:
        self.query_one(VerticalScroll).styles.max_height = max(self.size.height - _WINDOW_LINES, 1)
        self.call_after_refresh(self._show_scroll_hint)

    def _show_scroll_hint(self) -> None:
        """Say in the border how many lines are below; the thin scrollbar is easily overlooked."""
        scroll = self.query_one(VerticalScroll)
        lines_below = math.ceil(scroll.max_scroll_y - scroll.scroll_y)
        hint = (
            f"{lines_below:,} more line{'s' * (lines_below != 1)} below: ↓ or page down   "
            if lines_below > 0
            else ""
        )
        self.query_one(".window", Vertical).border_subtitle = f"{hint}esc closes"

    def action_close(self) -> None:
        self.dismiss()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:
            self.dismiss()


class HelpScreen(_TextDialog):
    """The list of active keys, from the same table as their bindings."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "close", "Close", show=False)]

    def __init__(self, keys: Sequence[Key]) -> None:
        super().__init__("Keys")
        self._keys = keys

    def text(self) -> Content:
        width = max(len(key_text(key.keys)) for key in self._keys)
        lines = [
            Content.assemble((f"{key_text(key.keys):>{width}}", "bold $primary"), f"  {key.help}")
            for key in self._keys
        ]
        lines += [Content(""), Content.assemble((_MOUSE_HELP, "$dim"))]
        return Content("\n").join(lines)


class TextScreen(_TextDialog):
    """The full text of a table row that shows only its beginning."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__(title, wide=True)
        self._text = text

    def text(self) -> Content:
        return Content("\n".join(clean(line) for line in self._text.expandtabs(4).splitlines()))


class _Question(ModalScreen[T]):
    """A question with a button that confirms and one that cancels."""

    def __init__(self, question: str, detail: str, confirm_label: str, *, dangerous: bool = False) -> None:
        super().__init__()
        self._question, self._detail = clean(question), clean(detail)
        self._confirm_label, self._dangerous = confirm_label, dangerous

    def compose(self) -> ComposeResult:
        with Vertical(classes="window narrow"):
            yield Static(self._question, classes="window-title", markup=False)
            yield Static(self._detail, markup=False)
            yield from self.inputs()
            with Horizontal(classes="buttons"):
                variant = "error" if self._dangerous else "primary"
                yield Button(self._confirm_label, id="yes", compact=True, variant=variant)  # type: ignore[arg-type]
                yield Button("Cancel (esc)", id="no", compact=True)

    def inputs(self) -> ComposeResult:
        yield from ()


class ConfirmScreen(_Question[bool]):
    """Asks for confirmation; if it is dangerous, the button that cancels has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "No", show=False),
        Binding("y", "answer(True)", "Yes", show=False),
        Binding("left,right,up,down", "switch_button", "Other", show=False),
    ]

    def __init__(self, question: str, detail: str, confirm_label: str, *, dangerous: bool = False) -> None:
        super().__init__(question, detail, f"{confirm_label} (y)", dangerous=dangerous)

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#no" if self._dangerous else "#yes"))  # before the next key

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    def action_switch_button(self) -> None:
        self.focus_next()

    @on(Button.Pressed)
    def button_pressed(self, message: Button.Pressed) -> None:
        self.dismiss(message.button.id == "yes")


class PromptScreen(_Question[str | None]):
    """Asks for a text until `check` raises no `BurntError`; the result is None if it is cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def __init__(
        self, question: str, detail: str, placeholder: str, confirm_label: str, check: Callable[[str], object]
    ) -> None:
        super().__init__(question, detail, f"{confirm_label} (enter)")
        self._placeholder, self._check = placeholder, check

    def inputs(self) -> ComposeResult:
        yield Input(placeholder=self._placeholder, compact=True)
        yield Static(id="fault", markup=False)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))  # before the next key

    def action_cancel(self) -> None:
        self.dismiss(None)

    @on(Input.Submitted)
    def input_submitted(self, message: Input.Submitted) -> None:
        """Submit the text at the time of the enter key, as more may have been typed since."""
        self._submit(message.value)

    @on(Button.Pressed)
    def button_pressed(self, message: Button.Pressed) -> None:
        if message.button.id == "yes":
            self._submit(self.query_one(Input).value)
        else:
            self.dismiss(None)

    def _submit(self, text: str) -> None:
        text = text.strip()
        if not text or not self.is_current:  # the second: already submitted
            return
        try:
            self._check(text)
        except BurntError as error:
            expected = f"\nexpected {error.expected}" if error.expected else ""
            self.query_one("#fault", Static).update(error.what + expected)
        else:
            self.dismiss(text)


class EndScreen(ModalScreen[None]):
    """Says that the attached training has ended; a key press or 10 seconds close the app."""

    def __init__(self, view: RunView) -> None:
        super().__init__()
        self._view = view
        self._seconds_left = _CLOSE_SECONDS

    def compose(self) -> ComposeResult:
        text, style = state_cell(self._view)
        with Vertical(classes="window narrow"):
            yield Static(
                Content.assemble(("The training has ended: ", ""), (text, style)), classes="window-title"
            )
            if self._view.problem:
                yield Static(clean(self._view.problem), markup=False)
            yield Static(id="countdown", classes="hint")

    def on_mount(self) -> None:
        self._update_countdown()
        self.set_interval(1.0, self._update_countdown)

    def _update_countdown(self) -> None:
        if self._seconds_left <= 0:
            self.app.exit()
        self.query_one("#countdown", Static).update(
            f"Press any key to close the monitor (closes in {self._seconds_left} s)."
        )
        self._seconds_left -= 1

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.app.exit()

    def on_click(self) -> None:
        self.app.exit()
