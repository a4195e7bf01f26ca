"""`MonitorApp`: the Textual app. It owns the runs, the reader thread, the theme and the screen stack."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual._callback import invoke
from textual._wait import wait_for_idle
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.timer import Timer

from burnt.errors import clean
from burnt.monitor.data.preferences import Preferences
from burnt.monitor.data.refresher import DataScreen, Refresher
from burnt.monitor.data.runs import RunLibrary, RunView
from burnt.monitor.screens.run_list import RunsScreen
from burnt.monitor.ui.keymap import APP, Key, bindings, key_text
from burnt.monitor.ui.theme import DARK, LIGHT, PLAIN
from burnt.store.sweeps import is_sweep

if TYPE_CHECKING:
    from burnt.monitor.terminal_handoff import Attachment  # POSIX only

import re
from pathlib import Path

from textual.pilot import Pilot

from burnt.errors import RunError

# A key waits until the previous one is handled, but at most this long: if the widget that received the
# previous key was removed, and if it is still there. Keys are slow while a training keeps every core busy.
_CLOSED_TARGET_SECONDS, _KEY_TIMEOUT_SECONDS = 1.0, 30.0
_LOG = logging.getLogger(__name__)


class MonitorApp(App[None]):
    """The full-screen monitor.

    Args:
        library: the runs to show.
        fps: maximum number of disk reads and screen updates per second.
        training_pid: process id of the training that started this monitor. Ctrl-C is sent to it, and when its
            run ends the app closes after a key press or 10 seconds.
        attachment: the connection to that training, when the app runs in its terminal.
        preferences: what is remembered between sessions; by default nothing.
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

    class KeyHandled(Message):
        """A key was handled. Posted to the same widget after the key, so it arrives after it."""

    def __init__(
        self,
        library: RunLibrary,
        *,
        fps: float = 2.0,
        training_pid: int | None = None,
        attachment: Attachment | None = None,
        preferences: Preferences | None = None,
    ) -> None:
        super().__init__(
            driver_class=None if attachment is None else attachment.driver_class,
            # With NO_COLOR, use the terminal's default colours, so that no colour code is sent.
            ansi_color=True if "NO_COLOR" in os.environ else None,
        )
        for theme in (DARK, LIGHT, PLAIN):
            self.register_theme(theme)
        self.preferences = preferences or Preferences()
        is_light = self.preferences.theme == LIGHT.name
        self.theme = PLAIN.name if self.no_color else LIGHT.name if is_light else DARK.name
        self.library = library
        self.training_pid = training_pid
        self.attachment = attachment
        self.refresher = Refresher(
            library,
            1.0 / fps,
            partial(self.call_later, self._show_read),
            partial(self.call_later, self._report_read_error),
        )
        self._is_first_read_done = False
        self._reported_errors: set[str] = set()
        self._was_live = self._is_ending = False
        self._pending_keys: deque[events.Key] = deque()
        self._key_sent_at = -math.inf
        self._key_target: MessagePump = self
        self._key_timer: Timer | None = None

    # --- screens

    async def on_mount(self) -> None:
        await self.push_screen(RunsScreen(self.library))
        if self.training_pid is not None:
            self.library.refresh(rescan=True)  # read now, so that the list never flashes first
            self._open_only_run()
        self.refresher.start()
        if self.attachment is not None:
            self.attachment.start(self)

    def compare(self, views: Sequence[RunView]) -> None:
        from burnt.monitor.screens.compare import CompareScreen

        self.push_screen(CompareScreen(views))

    def on_unmount(self) -> None:
        self.refresher.stop()

    def read_for(self, screen: Screen[Any]) -> None:
        """Read the data of this screen from now on; waits until the screen is mounted."""
        if screen.is_mounted:
            self.refresher.screen = cast(DataScreen, screen)
            self.refresher.wake()
        else:
            screen.call_after_refresh(self.read_for, screen)

    def open_run(self, view: RunView) -> None:
        from burnt.monitor.screens.run import RunScreen  # imported late: the first screen does not need it

        self.push_screen(RunScreen(view, self.library))

    def open_sweep(self, folder: Path) -> None:
        from burnt.monitor.screens.sweep import SweepScreen

        self.push_screen(SweepScreen(folder, self.library))

    async def _show_read(self, screen: DataScreen, show: Callable[[], Any]) -> None:
        """Show what the reader thread has read for a screen."""
        try:
            # The screen may have been closed meanwhile, or the app may be exiting.
            if self.is_running and screen in cast(list[object], self.screen_stack):
                await invoke(show)
        except Exception as error:
            self._report_error(error, "cannot show data")
        finally:
            self.refresher.mark_shown()
        if not self._is_first_read_done:
            self._open_only_run()
            self._is_first_read_done = True
        views = self.library.views
        if self.training_pid is not None and len(views) == 1:
            self._check_run_ended(views[0])

    def _open_only_run(self) -> None:
        """Open the sweep or the run that the folder holds, or the run of an attached training."""
        if len(self.library.folders) == 1 and is_sweep(self.library.folders[0]):
            self.open_sweep(self.library.folders[0])
            return
        views = self.library.views
        if len(views) == 1 and (self.training_pid is not None or views[0].folder in self.library.folders):
            self._is_first_read_done = True
            self.open_run(views[0])

    def _report_read_error(self, error: Exception) -> None:
        if self.is_running:
            self._report_error(error, "cannot read data")

    def _report_error(self, error: Exception, what: str) -> None:
        """Notify of an error once per message; the rest of the app keeps working."""
        text = f"{what}: {type(error).__name__}: {error}"
        if text not in self._reported_errors:
            self._reported_errors.add(text)
            _LOG.error("%s", text, exc_info=error)
            self.notify(clean(text), severity="error", timeout=30, markup=False)

    def _check_run_ended(self, view: RunView) -> None:
        # A training may end before it was read for the first time.
        self._was_live |= view.is_live or any(
            attempt.pid == self.training_pid for attempt in view.attempts[-1:]
        )
        if self._was_live and not view.is_live and not self._is_ending:
            from burnt.monitor.ui.dialogs import EndScreen

            self._is_ending = True
            self.push_screen(EndScreen(view))

    async def wait_until_idle(self, timeout: float) -> None:
        """Wait until everything on the screen has been read and shown, or raise a TimeoutError."""
        async with asyncio.timeout(timeout):
            for _ in range(2):  # a request made during a read is served by the next one
                target_rounds = self.refresher.rounds + 1
                self.refresher.wake()
                while self.refresher.rounds < target_rounds:
                    await asyncio.sleep(0.002)
            await wait_for_idle(0)

    # --- keys

    async def on_event(self, event: events.Event) -> None:
        """Handle keys one at a time, so that a key goes to the dialog that the previous key opened."""
        if not isinstance(event, events.Key) or event.is_forwarded or not self.screen_stack:
            await super().on_event(event)
        else:
            self._pending_keys.append(event)
            await self._next_key()

    async def _send_key(self, key: events.Key) -> None:
        target = self._key_target = self.focused or self.screen
        self._key_sent_at = time.monotonic()
        # The widget may be removed before it handles the key.
        if self._key_timer is not None:
            self._key_timer.stop()
        self._key_timer = self.set_interval(_CLOSED_TARGET_SECONDS, self._next_key)
        await super().on_event(key)
        if not target.post_message(self.KeyHandled()):
            self.post_message(self.KeyHandled())

    async def on_monitor_app_key_handled(self) -> None:
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
        """Return the active keys with the nodes they belong to, innermost node first."""
        active: list[tuple[object, Key]] = []
        seen: set[str] = set()
        for node, _ in (screen or self.screen)._modal_binding_chain:
            for key in getattr(node, "KEYS", ()):
                if key.keys not in seen:
                    seen.add(key.keys)
                    active.append((node, key))
        return active

    def action_help(self) -> None:
        from burnt.monitor.ui.dialogs import HelpScreen

        self.push_screen(HelpScreen([key for _, key in self.active_keys()]))

    def action_leave(self) -> None:
        """Exit the monitor; trainings continue."""
        self.exit()

    def action_toggle_theme(self) -> None:
        if self.no_color:
            self.notify("Colours are off because NO_COLOR is set.")
        else:
            self.theme = LIGHT.name if self.theme == DARK.name else DARK.name
            try:
                self.preferences.set_theme(self.theme)
            except OSError as error:
                self._report_error(error, "cannot remember the theme")

    def action_rescan(self) -> None:
        self.refresher.wake(rescan=True)

    def action_interrupt(self) -> None:
        """Ctrl-C: send SIGINT to the training that started this monitor, if any."""
        if self.training_pid is None:
            self.notify("Press q to quit the monitor. To stop a training, open it and press X.")
            return
        try:
            os.kill(self.training_pid, signal.SIGINT)
        except OSError as error:
            self.notify(f"Cannot interrupt process {self.training_pid}: {error.strerror}", severity="error")
        else:
            self.notify("Stop requested: finishing this step, then saving. Press Ctrl-C again to stop now.")

    def action_suspend(self) -> None:
        """Ctrl-Z: suspend to the shell until `fg`."""
        if self.attachment is None:
            self.action_suspend_process()
        else:
            self.attachment.suspend(self)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield a palette entry for every active key of the screen below the palette."""
        for node, key in self.active_keys(screen):

            def run(node: object = node, key: Key = key) -> None:
                self.call_later(self.run_action, key.action, node)

            if key.keys != "1-9":
                # The palette searches titles only, so the title holds the whole help text.
                yield SystemCommand(f"{key.label}: {key.help}", f"key {key_text(key.keys)}", run)
        yield from getattr(screen, "palette", tuple)()


_TIMEOUT_SECONDS = 30.0


def write_screenshot(
    library: RunLibrary, path: str | os.PathLike[str], size: tuple[int, int], keys: tuple[str, ...] = ()
) -> None:
    """Run the app headless, press keys, and save a screenshot; raises a RunError if that takes over 30 s."""
    app = MonitorApp(library)
    screenshots: list[str] = []

    async def draw(pilot: Pilot[Any]) -> None:
        await app.wait_until_idle(_TIMEOUT_SECONDS)
        for key in keys:
            await pilot.press(key)
            await app.wait_until_idle(_TIMEOUT_SECONDS)
        screenshots.append(_without_font_downloads(app.export_screenshot(title="burnt monitor")))
        app.exit()

    app.run(headless=True, size=size, auto_pilot=draw)
    if not screenshots:
        raise RunError(
            "the screenshot was not drawn", where=str(path), hint="check that the disk with the runs responds"
        )
    try:
        Path(path).write_text(screenshots[0], encoding="utf-8")
    except OSError as error:
        raise RunError("the screenshot cannot be written", where=str(path), found=error.strerror) from error


def _without_font_downloads(svg: str) -> str:
    """Remove Textual's @font-face rules, which make browsers download a font."""
    return re.sub(r"\s*@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
