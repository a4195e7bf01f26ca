"""`MonitorApp`: the app itself. It holds the runs, the thread that reads them, the theme and the screens."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

from textual import events
from textual._callback import invoke
from textual._wait import wait_for_idle
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.timer import Timer

from burnt.monitor.data.refresher import DataScreen, Refresher
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.format import clean
from burnt.monitor.screens.run_list import RunsScreen
from burnt.monitor.terminal_handoff import Attachment, StdoutDriver
from burnt.monitor.ui.keymap import APP, Key, bindings, key_text
from burnt.monitor.ui.theme import DARK, LIGHT, PLAIN

__all__ = ["MIN_HEIGHT", "MIN_WIDTH", "MonitorApp"]

MIN_WIDTH, MIN_HEIGHT = 80, 24

# After so long the next key is let through: if the widget that had the one before is gone, and in any case.
# Beside a training that keeps every core busy a key takes long.
_CLOSED_TARGET_SECONDS, _KEY_TIMEOUT_SECONDS = 1.0, 30.0
_LOG = logging.getLogger(__name__)


class MonitorApp(App[None]):
    """The full-screen monitor.

    Args:
        library: the runs.
        fps: looks at the disk a second, and pictures at most.
        attached: the process id of the training whose monitor this is: Ctrl-C goes to it, and when its run
            ends the app closes after a key or some seconds.
        attachment: the ties to that training, in whose terminal the app shows.
    """

    TITLE = "burnt monitor"
    AUTO_FOCUS = None
    CSS_PATH = "monitor.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(APP),
        Binding("ctrl+c", "interrupt", "Interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend", "Suspend", show=False, priority=True),
    ]
    KEYS = APP

    class Loaded(Message):
        """Something was read, and is to be shown."""

        def __init__(self, screen: DataScreen, show: Callable[[], Any]) -> None:
            self.screen, self.show = screen, show
            super().__init__()

    class KeyHandled(Message):
        """A key was handled: posted after it, this comes back from the widget that got it."""

    class ReadFailed(Message):
        """The reading thread met an error that nothing expected."""

        def __init__(self, error: Exception) -> None:
            self.error = error
            super().__init__()

    def __init__(
        self,
        library: RunLibrary,
        *,
        fps: float = 2.0,
        training_pid: int | None = None,
        attachment: Attachment | None = None,
    ) -> None:
        super().__init__(
            driver_class=None if attachment is None else StdoutDriver,
            # Without colours the terminal's own are taken, so that no colour is sent at all.
            ansi_color=True if "NO_COLOR" in os.environ else None,
        )
        for theme in (DARK, LIGHT, PLAIN):
            self.register_theme(theme)
        self.theme = PLAIN.name if self.no_color else DARK.name
        self.library = library
        self.training_pid = training_pid
        self.attachment = attachment
        self.min_size = Size(MIN_WIDTH, MIN_HEIGHT)  # below this it says that there is no room
        self.refresher = Refresher(
            library,
            1.0 / fps,
            lambda source, show: self.post_message(self.Loaded(source, show)),
            lambda error: self.post_message(self.ReadFailed(error)),
        )
        self._is_first_read_done = False
        self._reported_errors: set[str] = set()
        self._was_live = self._is_ending = False
        self._too_small_screen: Screen[None] | None = None
        self._pending_keys: deque[events.Key] = deque()
        self._key_sent_at = -math.inf
        self._key_target: MessagePump = self
        self._key_timer: Timer | None = None

    # --- what is on the screen

    async def on_mount(self) -> None:
        """Show the list, or the run of the training whose monitor this is; and begin to read."""
        await self.push_screen(RunsScreen(self.library))
        if self.training_pid is not None:
            self.library.refresh(rescan=True)  # here: it is one run, and the list is not to be seen before it
            self._open_only_run()
        self._check_size(self.size)
        self.refresher.start()
        if self.attachment is not None:
            self.attachment.start(self)

    def compare(self, views: Sequence[RunView]) -> None:
        """Show some runs in one chart."""
        from burnt.monitor.screens.compare import CompareScreen

        self.push_screen(CompareScreen(views))

    def on_unmount(self) -> None:
        """Stop reading."""
        self.refresher.stop()

    def read_for(self, screen: Screen[Any]) -> None:
        """From now on read what this needs, as soon as its parts are there: it has come on the screen."""
        if screen.is_mounted:
            self.refresher.screen = cast(DataScreen, screen)
            self.refresher.wake()
        else:
            screen.call_after_refresh(self.read_for, screen)

    def open_run(self, view: RunView) -> None:
        """Show a run."""
        from burnt.monitor.screens.run import (
            RunScreen,  # not needed for the first screen, which must show at once
        )

        self.push_screen(RunScreen(view, self.library))

    async def on_monitor_app_loaded(self, message: Loaded) -> None:
        """Show what was read."""
        try:
            # Else the screen was left meanwhile, or the app is about to end.
            if self.is_running and message.screen in cast(list[object], self.screen_stack):
                await invoke(message.show)
        except Exception as error:
            self._report_error(error, "cannot be shown")
        finally:
            self.refresher.mark_shown()
        # Below the smallest size nothing is put over the message; the list is read again when there is room.
        if not self._is_first_read_done and self._too_small_screen is None:
            self._open_only_run()
            self._is_first_read_done = True
        views = self.library.views
        if self.training_pid is not None and len(views) == 1:
            self._check_run_ended(views[0])

    def _open_only_run(self) -> None:
        """A folder that is a run itself, or a training's own monitor: there is nothing to choose from."""
        views = self.library.views
        if len(views) == 1 and (self.training_pid is not None or views[0].folder in self.library.folders):
            self._is_first_read_done = True
            self.open_run(views[0])

    def on_monitor_app_read_failed(self, message: ReadFailed) -> None:
        """Something could not be read."""
        if self.is_running:
            self._report_error(message.error, "cannot be read")

    def _report_error(self, error: Exception, what: str) -> None:
        """Say once what is the matter with something; all else is shown as before."""
        text = f"something {what}: {type(error).__name__}: {error}"
        if text not in self._reported_errors:
            self._reported_errors.add(text)
            _LOG.error("%s", text, exc_info=error)
            self.notify(clean(text), severity="error", timeout=30, markup=False)

    def _check_run_ended(self, view: RunView) -> None:
        # A training may end before the first look at it.
        self._was_live |= view.is_live or any(
            attempt.pid == self.training_pid for attempt in view.attempts[-1:]
        )
        if self._was_live and not view.is_live and not self._is_ending:
            from burnt.monitor.ui.dialogs import EndScreen

            self._is_ending = True
            self._close_too_small_screen()
            self.push_screen(EndScreen(view))  # which needs little room

    def on_resize(self, event: events.Resize) -> None:
        """Below the smallest size say so; show what was there again when there is room."""
        # The first size comes before the first screen, which a message must not be put under.
        if any(isinstance(screen, RunsScreen) for screen in self.screen_stack):
            self._check_size(event.size)

    def _check_size(self, size: Size) -> None:
        if size.width >= self.min_size.width and size.height >= self.min_size.height:
            self._close_too_small_screen()
        elif self._too_small_screen is None and not self._is_ending:
            from burnt.monitor.ui.dialogs import TooSmallScreen

            self._too_small_screen = TooSmallScreen()
            self.push_screen(self._too_small_screen)

    def _close_too_small_screen(self) -> None:
        """Take the message away that there is no room; nothing is shown over it, so it is what shows."""
        if self._too_small_screen is not None:
            self._too_small_screen = None
            self.pop_screen()

    async def wait_until_idle(self, timeout: float) -> None:
        """Wait until what is on the screen has been read and shown; for pictures and tests.

        Raises:
            TimeoutError: it took longer than so many seconds.
        """
        async with asyncio.timeout(timeout):
            for _ in range(2):  # what was asked for while something else was read comes after that
                target_rounds = self.refresher.rounds + 1
                self.refresher.wake()
                while self.refresher.rounds < target_rounds:
                    await asyncio.sleep(0.01)
            await wait_for_idle(0)

    # --- keys

    async def on_event(self, event: events.Event) -> None:
        """Keys one after another: each goes where the one before has set the focus, in a dialog it opened."""
        if not isinstance(event, events.Key) or event.is_forwarded or not self.screen_stack:
            await super().on_event(event)
        else:
            self._pending_keys.append(event)
            await self._next_key()

    async def _send_key(self, key: events.Key) -> None:
        target = self._key_target = self.focused or self.screen
        self._key_sent_at = time.monotonic()
        # The widget that has the key may go before it answers.
        if self._key_timer is not None:
            self._key_timer.stop()
        self._key_timer = self.set_interval(_CLOSED_TARGET_SECONDS, self._next_key)
        await super().on_event(key)
        if not target.post_message(self.KeyHandled()):
            self.post_message(self.KeyHandled())

    async def on_monitor_app_key_handled(self) -> None:
        """The next key."""
        self._key_sent_at = -math.inf
        await self._next_key()

    async def _next_key(self) -> None:
        timeout = _KEY_TIMEOUT_SECONDS if self._key_target.is_running else _CLOSED_TARGET_SECONDS
        if time.monotonic() - self._key_sent_at < timeout:
            return
        if self._pending_keys:
            await self._send_key(self._pending_keys.popleft())
        elif self._key_timer is not None:
            self._key_timer.stop()

    def active_keys(self, screen: Screen[Any] | None = None) -> list[tuple[object, Key]]:
        """The keys that do something now, nearest first, with whom they belong to.

        Args:
            screen: on which they are pressed; by default the one that is shown.
        """
        active: list[tuple[object, Key]] = []
        seen: set[str] = set()
        for node, _ in (screen or self.screen)._modal_binding_chain:
            for key in getattr(node, "KEYS", ()):
                if key.keys not in seen:
                    seen.add(key.keys)
                    active.append((node, key))
        return active

    def action_help(self) -> None:
        """Show the keys."""
        from burnt.monitor.ui.dialogs import HelpScreen

        self.push_screen(HelpScreen([key for _, key in self.active_keys()]))

    def action_leave(self) -> None:
        """Leave; trainings go on."""
        self.exit()

    def action_toggle_theme(self) -> None:
        """Switch between dark and light."""
        if self.no_color:
            self.notify("no colours are shown, as NO_COLOR is set")
        else:
            self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_rescan(self) -> None:
        """Look for new runs, forget deleted ones."""
        self.refresher.wake(rescan=True)

    def action_interrupt(self) -> None:
        """Ctrl-C: what it means is the training's affair, if this is its monitor."""
        if self.training_pid is None:
            self.notify("q leaves the monitor; a training is stopped from its screen")
            return
        try:
            os.kill(self.training_pid, signal.SIGINT)
        except OSError as error:
            self.notify(
                f"process {self.training_pid} cannot be interrupted: {error.strerror}", severity="error"
            )
        else:
            self.notify("told the training: it finishes the step, saves and stops; again: at once")

    def action_suspend(self) -> None:
        """Ctrl-Z: back to the shell, until its `fg`."""
        if self.attachment is None:
            self.action_suspend_process()
        else:
            self.attachment.suspend(self)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette: every key that does something on the screen that it covers."""
        for node, key in self.active_keys(screen):

            def run(node: object = node, key: Key = key) -> None:
                self.call_later(self.run_action, key.action, node)

            if key.keys != "1-9":
                # The palette looks at titles alone, which must have every word that a person may think of.
                yield SystemCommand(f"{key.label}: {key.help}", f"key {key_text(key.keys)}", run)
        yield from getattr(screen, "palette", tuple)()
