"""The screen of one run: its progress, why it ended, its panes, and commands to its training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Static

from burnt.errors import BurntError, clean
from burnt.monitor.data.commands import CommandSender, Request, request_text, unavailable_reason
from burnt.monitor.data.event_text import early_stopping_text, end_reason_text, manual_learning_rate
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.format import (
    age_text,
    error_text,
    highest_scheduled_rate,
    rate_change_warning,
    series_label,
)
from burnt.monitor.screens.panel import MIN_SCREEN_WIDTH, Panel, panel_width, progress_facts
from burnt.monitor.screens.panes.artefacts import ArtefactsPane
from burnt.monitor.screens.panes.log import EventsPane, LogPane
from burnt.monitor.screens.panes.numbers import ConfigPane, NumbersPane
from burnt.monitor.screens.panes.pane import Pane
from burnt.monitor.screens.panes.plots import PlotsPane
from burnt.monitor.screens.panes.system import SystemPane
from burnt.monitor.screens.panes.tables import CheckpointsPane, KernelsPane, ModelPane
from burnt.monitor.ui.app_protocol import app_of
from burnt.monitor.ui.dialogs import ConfirmScreen, PromptScreen
from burnt.monitor.ui.keybar import KeyBar, Part, facts_line, two_sided_line, update_if_changed
from burnt.monitor.ui.keymap import RUN, Key, bindings
from burnt.monitor.ui.theme import progress_bar, state_cell
from burnt.store import Series
from burnt.store.control import check
from burnt.store.tags import add_note
from burnt.train.format import duration_text, value_text

_PANES: tuple[type[Pane], ...] = (
    PlotsPane,
    NumbersPane,
    SystemPane,
    LogPane,
    CheckpointsPane,
    EventsPane,
    ConfigPane,
    ModelPane,
    ArtefactsPane,
    KernelsPane,
)
_PANE_KEYS = "123456789K"  # as in `keymap.RUN`
_SHORT_TITLES_WIDTH = 108  # below this width, the tabs use short titles
_SHOW_ANSWER_SECONDS = 10.0  # how long an answered command is shown
_COMMAND_ACTIONS = ("pause", "stop", "save", "learning_rate")  # actions
_TICK_SECONDS = 1.0  # how often the remaining time is updated


class Tabs(Static):
    """The titles of the panes on one line; a click opens one."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, number: int) -> None:
            self.number = number
            super().__init__()

    def __init__(self) -> None:
        super().__init__(id="tabs")
        self._title_ends: list[int] = []
        self._current = 0

    def show(self, current: int) -> None:
        self._current = current
        is_narrow = self.size.width < _SHORT_TITLES_WIDTH
        parts: list[tuple[str, str]] = []
        self._title_ends = []
        for number, pane in enumerate(_PANES):
            is_current = number == current
            parts.append((f" {_PANE_KEYS[number]} ", "bold $primary" if is_current else "$dim"))
            title = pane.SHORT or pane.TITLE if is_narrow else pane.TITLE
            parts.append((title, "bold underline" if is_current else "$dim"))
            if not is_narrow:
                parts.append((" ", ""))
            self._title_ends.append(sum(len(text) for text, _ in parts))
        update_if_changed(self, Content.assemble(*parts))

    def on_resize(self) -> None:
        self.show(self._current)

    def on_click(self, event: events.Click) -> None:
        number = next((i for i, end in enumerate(self._title_ends) if event.x < end), None)
        if number is not None:
            self.post_message(self.Chosen(number))


class RunScreen(Screen[None]):
    """Everything about one run."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(RUN)]
    KEYS = RUN

    def __init__(self, view: RunView, library: RunLibrary) -> None:
        super().__init__()
        self.view = view
        self.library = library
        self.commands = CommandSender(view)
        self.current = 0
        self._panes: dict[int, Pane] = {}
        self._header_shown_at = -math.inf
        self._shown_command_state: object = None
        self._shows_command = False
        view.follow()

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="about")
        yield Tabs()
        with Horizontal(id="body"):
            yield Container(id="panes")
            yield Panel(self.view)
        yield Static(id="commands")
        yield KeyBar()

    async def on_mount(self) -> None:
        await self._show_pane(0)
        self._show_header()

    def on_unmount(self) -> None:
        self.view.unfollow()

    def on_screen_resume(self) -> None:
        app_of(self).read_for(self)

    # --- showing

    def load(self, changed: bool) -> Callable[[], Any] | None:
        """In the reader thread: read the current pane; return what updates it and the header."""
        pane = self._panes.get(self.current)
        loads = [] if pane is None else [pane.load(changed)]
        if self._shows_panel:
            loads.append(self.query_one(Panel).load(changed))
        shows = [show for show in loads if show is not None]
        needs_ticks = (
            self.view.is_live or self._shows_command
        )  # the status of an answered command disappears after a while
        is_due = needs_ticks and time.monotonic() - self._header_shown_at > _TICK_SECONDS
        if not shows and not changed and not is_due:
            return None
        self._header_shown_at = time.monotonic()

        async def shown() -> None:
            self._show_header()
            for show in shows:
                if (awaitable := show()) is not None:
                    await awaitable

        return shown

    def _show_header(self) -> None:
        view = self.view
        text, style = state_cell(view)
        left: list[Part] = [(f" {clean(view.label)}", "bold"), (f"  {text}", style)]
        if view.activity not in ("", "training", "paused"):
            left.append((f" {clean(view.activity)}", "$dim"))
        right: list[list[Part]] = []
        if not self._shows_panel:
            right = [[(f"  {name} ", "$dim"), (text, "")] for name, text in progress_facts(view)]
        if (share := view.fraction) is not None and right:
            done, rest = progress_bar(share, 8 if self.size.width < 100 else 16)
            bar = [("  " + done, "$primary"), (rest, "$faint"), (f" {math.floor(share * 100)} %", "")]
            right.insert(len(right) - (view.eta is not None), bar)
        update_if_changed(self.query_one("#title", Static), two_sided_line(left, right, self.size.width))
        update_if_changed(self.query_one("#about", Static), self._header_facts())
        self._show_commands()
        if self._shown_command_state != (view.is_live, self._paused()):
            self._shown_command_state = view.is_live, self._paused()
            self.query_one(KeyBar).update_keys()

    def displayed_key(self, key: Key) -> Key:
        """Return the key as the key bar shows it; commands are hidden while the training is not running."""
        if key.action in _COMMAND_ACTIONS and not self.view.is_live:
            return key._replace(bar_priority=0)
        if key.action == "panel" and not (self.size.width >= MIN_SCREEN_WIDTH and self.current == 0):
            return key._replace(bar_priority=0)
        return key._replace(label="Resume") if key.action == "pause" and self._paused() else key

    def _paused(self) -> bool:
        return self.view.activity == "paused"

    def _header_facts(self) -> Content:
        view = self.view
        if view.error is not None:
            return Content.assemble((f" {clean(view.problem)}", "$error"))
        if reason := end_reason_text(view):
            return Content.assemble((f" {clean(reason)}", state_cell(view)[1]))
        pairs: list[tuple[str, Part]] = [("", (view.warning, "bold $error"))] if view.warning else []
        if view.metric is not None and not self._shows_panel:
            pairs.append(
                (series_label(view.metric), (value_text(view.heads[view.metric].point.value), "bold"))
            )
            if view.metric_best is not None:
                best = f"{value_text(view.metric_best.value)} at step {view.metric_best.step:,}"
                pairs.append(("best", (best, "$success")))
        if view.parentage:
            pairs.append(("", (view.parentage, "")))
        if view.tags:
            pairs.append(("tags", (" ".join(view.tags), "$accent")))
        if view.is_live and (stopping := early_stopping_text(view.events)):
            pairs.append(("", (stopping, "")))
        manual_rate = manual_learning_rate(view) if view.is_live else None
        if manual_rate is not None:
            pairs.append(("learning rate", (f"{manual_rate:.3g}, set by hand", "$warning")))
        for name, text, form in (
            ("samples_per_second", "samples/s", "{:,.0f}"),
            ("learning_rate", "learning rate", "{:.3g}"),
            ("data_wait_share", "waiting for data", "{:.0%}"),
        ):
            if name == "learning_rate" and manual_rate is not None:
                continue
            head = view.heads.get(Series(name, "train"))
            if head is not None:
                pairs.append((text, (form.format(head.point.value), "")))
        if not self._shows_panel:
            pairs.append(("trained for", (duration_text(view.active_seconds), "")))
        if not math.isnan(view.created):
            pairs.append(("started", (f"{age_text(time.time() - view.created)} ago", "")))
        return facts_line(pairs, self.size.width)

    async def _show_pane(self, number: int) -> None:
        container = self.query_one("#panes")
        pane = self._panes.get(number)
        if pane is None:
            pane = _PANES[number](self.view)
            # Mounted before the reader thread sees it, so that its data can be displayed.
            await container.mount(pane)
            self._panes[number] = pane
        for other, shown in self._panes.items():
            shown.display = other == number
        self.current = number
        self._fit_panel()
        self.query_one(Tabs).show(number)
        pane.take_focus()
        app_of(self).read_for(self)

    # --- panel and panes

    @property
    def _shows_panel(self) -> bool:
        is_wide = self.size.width >= MIN_SCREEN_WIDTH
        return is_wide and _PANES[self.current] is PlotsPane and app_of(self).preferences.panel

    def _fit_panel(self) -> None:
        """Show or hide the panel, by the width, the pane and what is preferred."""
        panel = self.query_one(Panel)
        panel.display = self._shows_panel
        panel.styles.width = panel_width(self.size.width)
        panel.request_read()

    def on_resize(self) -> None:
        self._fit_panel()
        self._show_header()

    def action_panel(self) -> None:
        if self.size.width < MIN_SCREEN_WIDTH or _PANES[self.current] is not PlotsPane:
            self.notify(f"The panel is shown next to the plots, from {MIN_SCREEN_WIDTH} columns.")
            return
        preferences = app_of(self).preferences
        try:
            preferences.set_panel(not preferences.panel)
        except OSError as error:
            self.notify(clean(f"The panel is not remembered: {error}"), severity="warning", markup=False)
        self._fit_panel()
        self._show_header()

    async def action_pane(self, number: int) -> None:
        if number <= len(_PANES):
            await self._show_pane(number - 1)

    async def action_next_pane(self) -> None:
        await self._show_pane((self.current + 1) % len(_PANES))

    async def action_previous_pane(self) -> None:
        await self._show_pane((self.current - 1) % len(_PANES))

    @on(Tabs.Chosen)
    async def tab_chosen(self, message: Tabs.Chosen) -> None:
        await self._show_pane(message.number)

    def palette(self) -> Iterator[SystemCommand]:
        for number, pane in enumerate(_PANES):
            show = partial(self.call_later, self._show_pane, number)
            yield SystemCommand(pane.TITLE, f"show the {pane.TITLE.lower()} pane", show)

    def action_back(self) -> None:
        self.app.pop_screen()

    # --- commands

    def _can_send_commands(self) -> bool:
        reason = unavailable_reason(self.view)
        if reason is not None:
            self.notify(reason, severity="warning", markup=False)
        return reason is None

    async def _confirm(self, screen: ConfirmScreen, kind: str, value: str | None = None) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._send(kind, value)

        # Awaited, so that the next key goes to the dialog.
        await self.app.push_screen(screen, answered)

    async def _ask(self, screen: PromptScreen, kind: str) -> None:
        async def answered(text: str | None) -> None:
            if text is None:
                return
            warning = self._rate_warning(text) if kind == "lr" else ""
            if warning:
                question = f"Set the learning rate to {text}?"
                await self._confirm(
                    ConfirmScreen(question, f"It is {warning}.", "Set", dangerous=True), kind, text
                )
            else:
                self._send(kind, text)

        await self.app.push_screen(screen, answered)

    def _rate_warning(self, text: str) -> str:
        """Return a warning if the typed learning rate is far from the current one; else an empty string."""
        rate = check("lr", text)
        if not isinstance(rate, float):
            return ""
        return rate_change_warning(rate, self._current_rate(), highest_scheduled_rate(self.view.config))

    def _current_rate(self) -> float | None:
        head = self.view.heads.get(Series("learning_rate", "train"))
        return None if head is None else head.point.value

    async def action_pause(self) -> None:
        if not self._can_send_commands():
            return
        if self._paused():
            question, detail, kind = "Resume the training?", "It continues with the next step.", "resume"
        else:
            question, kind = "Pause the training?", "pause"
            detail = "It stops after the current step, keeps its memory, and waits until you resume it."
        await self._confirm(ConfirmScreen(question, detail, kind.capitalize()), kind)

    async def action_save(self) -> None:
        if self._can_send_commands():
            detail = "It is written after the current step; the training continues."
            await self._confirm(ConfirmScreen("Write a checkpoint now?", detail, "Write"), "save")

    async def action_stop(self) -> None:
        if self._can_send_commands():
            detail = (
                "The training finishes the current step, writes a checkpoint and exits. "
                "The run can be resumed from that checkpoint."
            )
            await self._confirm(
                ConfirmScreen(f"Stop {self.view.label}?", detail, "Stop", dangerous=True), "stop"
            )

    async def action_learning_rate(self) -> None:
        if not self._can_send_commands():
            return
        current, manual_rate = self._current_rate(), manual_learning_rate(self.view)
        detail = "Enter a number to override the schedule, or auto to follow the schedule again."
        if current is not None:
            detail += f" It is now {current:.3g}{'' if manual_rate is None else ', set by hand'}."
        await self._ask(
            PromptScreen(
                "Change the learning rate to", detail, "a number or auto", "Change", partial(check, "lr")
            ),
            "lr",
        )

    async def action_note(self) -> None:
        """Ask for a note; if the run has ended, it is written to the run's folder."""
        if self.view.error is not None:
            self._can_send_commands()  # says why not
            return
        detail = "The note is stored with the run's events."
        prompt = PromptScreen("Add a note", detail, "text of the note", "Add", partial(check, "note"))
        if self.view.is_live:
            await self._ask(prompt, "note")
            return

        def answered(text: str | None) -> None:
            if text is not None:
                self._add_note(text)

        await self.app.push_screen(prompt, answered)

    @work(thread=True)
    def _add_note(self, text: str) -> None:
        progress = self.view.progress
        try:
            add_note(self.view.folder, text, None if progress is None else progress.step)
        except BurntError as error:
            self.app.call_from_thread(self.notify, error_text(error), severity="error", markup=False)
        self.view.refresh()
        app_of(self).refresher.wake()

    @work(thread=True)
    def _send(self, kind: str, value: str | None = None) -> None:
        request = self.commands.send(kind, value)
        self.app.call_from_thread(self._show_request, request)
        app_of(self).refresher.wake()

    def _show_request(self, request: Request) -> None:
        if request.status == "refused":  # a completed command is shown in the command line only
            self.notify(clean(request_text(request)), severity="error", markup=False)
        self._show_commands()

    def _show_commands(self) -> None:
        for request in self.commands.newly_answered():
            self._show_request(request)
        line = self.query_one("#commands", Static)
        newest = self.commands.requests[-1] if self.commands.requests else None
        is_answered = newest is not None and newest.status in ("done", "refused")
        self._shows_command = newest is not None and not (
            is_answered and time.time() - newest.time > _SHOW_ANSWER_SECONDS
        )
        line.display = self._shows_command
        if newest is None or not self._shows_command:
            return
        style = {"refused": "$error", "done": "$success"}.get(newest.status, "$warning")
        symbol = {"refused": "✗", "done": "✓"}.get(newest.status, "…")
        update_if_changed(line, Content.assemble((f" {symbol} {clean(request_text(newest))}", style)))
