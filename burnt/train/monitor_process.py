"""`MonitorProcess`: the full-screen monitor beside a training, as a process of its own that has the terminal.

The training is the parent and never waits for its child: a daemon thread does. However the child ends (left
by a key, crashed, killed, hung, its terminal closed), that thread gives the terminal back to the training,
which goes on. What the training prints meanwhile goes to ``logs/output.log`` of the run's folder; what the
monitor has to say about its own failure to ``logs/monitor.log``.

The child is ``burnt monitor FOLDER --attached PID --pulse FD``. It writes a byte to the pipe FD about once a
second, from where it handles keys, so that a silent pipe tells of a program that hangs. It does not get the
terminal's SIGINT: a Ctrl-C that it reads as a key it sends on to PID, so that the training counts each once.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

import burnt
from burnt.train.priority import give_way
from burnt.train.terminal import LentTerminal

__all__ = ["MonitorProcess"]

LOOK_SECONDS = 1.0
SILENT_LOOKS = (
    60  # at the lowest priority, beside a training that keeps every core busy, a picture takes long
)
STOPPED_LOOKS = 5
CLOSING_SECONDS = 15.0  # the monitor closes by itself 10 s after the end of the run
ENDING_SECONDS = 5.0
FREE_BYTES = 64 << 20  # of the disk with the file for what is printed: on a full one, print would raise
OUTPUT_BYTES = 256 << 20  # that a training may print there while the monitor shows

_FORWARD_LINES = 200  # at a look
_FORWARD_BYTES = 1 << 20
_REPLAY_BYTES = 1 << 14
_PROMPT_BYTES = 2048
# A process group in the background is stopped as a whole, the training with it, when one of it reads from
# the terminal or sets it up, unless these are blocked.
_BLOCKED = (signal.SIGINT, signal.SIGTTIN, signal.SIGTTOU)


def app_command() -> list[str]:
    """The program, before its arguments."""
    # -P: a file of the current folder must not be taken for a module of the monitor.
    return [sys.executable, "-P", "-m", "burnt", "monitor"]


class MonitorProcess:
    """Opens the monitor on a run, in the terminal of this process; made on the main thread.

    Args:
        folder: the run's folder, with its ``logs/``.
        printed: takes each line that is printed meanwhile; called from a thread.
        returned: told once, from a thread, when the terminal is back or gone: with a sentence that says why,
            or with None when that is because of `close`.

    Attributes:
        output: the file that what is printed meanwhile goes to.
        has_output: whether anything was, known when the terminal is back.
        showing: whether the monitor has the terminal.
    """

    def __init__(
        self,
        folder: Path,
        *,
        printed: Callable[[str], None],
        returned: Callable[[str | None], None],
    ) -> None:
        self.folder = folder
        self.output = folder / "logs" / "output.log"
        self.showing = self.has_output = False
        self._log = folder / "logs" / "monitor.log"
        self._printed = printed
        self._returned = returned
        self._process = os.getpid()
        self._terminal: LentTerminal | None = None
        self._thread: threading.Thread | None = None
        self._why: str | None = None
        self._closing = self._asked = self._beaten = False

    def open(self) -> None:
        """Hand the terminal over. What goes wrong is told to `returned`."""
        try:
            terminal = self._terminal = LentTerminal(self.output)
        except OSError as error:
            self._returned(f"the monitor cannot be opened: {error}")
            return
        self.showing = True
        reader, writer = os.pipe()
        self._tail = self.output.open("rb")
        self._began = self._tail.seek(0, os.SEEK_END)
        short = self._short()
        try:
            if short is not None:
                raise OSError(short)
            self._child = self._start(terminal.descriptor, writer)
        except OSError as error:
            os.close(reader)
            self._tail.close()
            terminal.take_back(tidy=True)
            self.showing = False
            self._returned(f"the monitor cannot be opened: {error}")
            return
        finally:
            os.close(writer)
        self._stdin = sys.stdin
        # Kept here as well: `input` of older Pythons goes on using it when it is no longer sys.stdin.
        self._keyboard = sys.stdin = _Keyboard(sys.stdin, self._give_way)
        self._thread = threading.Thread(
            target=self._attend, args=(terminal, reader), name="burnt-monitor", daemon=True
        )
        self._thread.start()

    def close(self, *, at_once: bool = False) -> None:
        """The run is over: wait until the monitor has closed, and close it if it does not.

        Args:
            at_once: do not give a person the time to look at it.
        """
        if not self._open_here():
            return
        self._closing = True
        with self._impatient():
            assert self._thread is not None
            if self._beaten and not at_once:  # else there is nothing to look at
                self._thread.join(CLOSING_SECONDS)
            self._end()

    def hang_up(self) -> None:
        """The terminal goes away: nothing is to be printed there any more."""
        if self._terminal is not None:
            self._terminal.give_up()

    # --- on the threads of the training

    def _start(self, terminal: int, pulsing: int) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder), "--attached", str(os.getpid()), "--pulse", str(pulsing)]
        package = str(Path(burnt.__file__).parents[1])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)  # the child inherits it
        try:
            with self._log.open("ab") as log:
                self._log_began = log.tell()
                return subprocess.Popen(
                    app_command() + arguments,
                    stdin=terminal,
                    stdout=terminal,
                    stderr=log,
                    pass_fds=[pulsing],
                    env={**os.environ, "PYTHONPATH": path},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _open_here(self) -> bool:
        """Whether the monitor is open, and this is its parent and no fork of it."""
        return self._thread is not None and self._thread.is_alive() and os.getpid() == self._process

    def _give_way(self) -> None:
        """Somebody is about to read from standard input, a debugger perhaps."""
        if self._open_here():
            self._why = "the training asks for input, so the monitor is closed. To watch it again: "
            self._why += f"burnt monitor {self.folder}"
            self._asked = True
            self._end()

    def _end(self) -> None:
        assert self._thread is not None
        for end in (self._child.terminate, self._child.kill):
            if self._thread.is_alive():
                end()
                self._thread.join(ENDING_SECONDS)

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """A signal closes the monitor at once; SIGTERM does then what it did before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        came: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            came.append(number)
            self._child.terminate()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if signal.SIGTERM in came:
            signal.raise_signal(signal.SIGTERM)

    # --- on the daemon thread

    def _attend(self, terminal: LentTerminal, pulse: int) -> None:
        """From the start of the child to its end, whatever that is."""
        tail, code, why = _Tail(self._tail, self.output), 1, None
        try:
            hung = self._watch(pulse, tail)
            if hung:
                self._child.kill()
            code = self._reap()
            why = self._why or self._explain(code, hung=hung)
            tail.forward(self._printed, last=True)
        finally:  # whatever fails here, the terminal must come back
            self._child.kill()
            self._child.wait()
            os.close(pulse)
            sys.stdin = self._stdin
            back = terminal.take_back(tidy=code == 0)
            self.has_output = self._tail.seek(0, os.SEEK_END) > self._began
            self.showing = False
            if back and not (self._beaten or self._asked or self._closing):
                self._print_again(_REPLAY_BYTES)  # nothing else was seen meanwhile
            self._returned(why)
            if back and self._asked:
                self._print_again(_PROMPT_BYTES)
            self._tail.close()

    def _watch(self, pulse: int, tail: _Tail) -> bool:
        """Until the child ends or hangs; returns whether it hangs."""
        silent = stopped = 0
        poll = select.poll()
        poll.register(pulse, select.POLLIN)
        while True:
            if poll.poll(LOOK_SECONDS * 1000):
                if not os.read(pulse, 4096):
                    return False
                silent = stopped = 0
                if not self._beaten:
                    # Until its first picture it has the priority that it needs to get there.
                    self._beaten = True
                    give_way(self._child.pid)
            else:
                # Looks are counted, not seconds: this process may have been stopped together with the child.
                silent += 1
                stopped = stopped + 1 if self._is_stopped() else 0
                if silent >= SILENT_LOOKS or stopped >= STOPPED_LOOKS:
                    return True
            tail.forward(self._printed)
            if (short := self._short()) is not None and not self._closing:
                self._why = f"the monitor is closed: {short}; the training goes on, and prints here again"
                self._child.terminate()
                return False

    def _short(self) -> str | None:
        """Why no more can be printed to the file; None if it can."""
        disk = os.fstatvfs(self._tail.fileno())
        free = disk.f_bavail * disk.f_frsize
        if disk.f_blocks and free < FREE_BYTES:  # some file systems tell nothing
            return f"{free >> 20} MiB are left on the disk with {self.output}"
        if os.fstat(self._tail.fileno()).st_size - self._began > OUTPUT_BYTES:
            return f"{OUTPUT_BYTES >> 20} MiB were printed to {self.output}"
        return None

    def _reap(self) -> int:
        try:
            return self._child.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed the pipe, and goes on
            self._child.kill()
            return self._child.wait()

    def _is_stopped(self) -> bool:
        try:
            return bool(psutil.Process(self._child.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def _explain(self, code: int, *, hung: bool) -> str | None:
        if self._closing:
            return None
        again = f"the training goes on. To watch it again: burnt monitor {self.folder}"
        if hung:
            return f"the monitor did not answer and was ended; {again}"
        if code == 0:
            return f"the monitor is closed, {again}"
        if code < 0:
            return f"the monitor was ended by {_signal_name(-code)}; {again}"
        failed = "failed" if self._beaten else "could not be opened"
        return f"the monitor {failed}{self._complaint()}, see {self._log}; {again}"

    def _complaint(self) -> str:
        """The last line that the child wrote to its standard error: of a traceback, the exception."""
        with self._log.open("rb") as log:
            log.seek(self._log_began)
            lines = [text for line in log.read().split(b"\n") if (text := _as_text(line).strip())]
        return f" ({lines[-1][:300]})" if lines else ""

    def _print_again(self, count: int) -> None:
        """Show the end of what was printed since the monitor was opened."""
        end = self._tail.seek(0, os.SEEK_END)
        self._tail.seek(max(self._began, end - count))
        with contextlib.suppress(OSError):  # the terminal is gone after all
            os.write(1, self._tail.read())


class _Tail:
    """Hands on the lines that are added to a file."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._rest = b""

    def forward(self, take: Callable[[str], None], *, last: bool = False) -> None:
        """The lines since the last call, or the first of very many; `last`: also one without an end."""
        content = self._rest + self._file.read(_FORWARD_BYTES)
        lines = content.split(b"\n")
        self._rest = b"" if last else lines.pop()[-_REPLAY_BYTES:]
        texts = [text for line in lines if (text := _as_text(line))]
        for text in texts[:_FORWARD_LINES]:
            take(text)
        if len(texts) > _FORWARD_LINES or (last and self._file.read(1)):
            take(f"... and more in {self._path}")


class _Keyboard:
    """Standard input that takes the terminal back before it is read from."""

    def __init__(self, stream: Any, before: Callable[[], None]) -> None:
        self._stream = stream
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def fileno(self) -> int:
        """Asked for by `input`, debuggers and whoever reads from the descriptor itself."""
        self._before()
        return int(self._stream.fileno())

    def read(self, size: int = -1) -> str:
        """As of a text stream."""
        self._before()
        return str(self._stream.read(size))

    def readline(self, size: int = -1) -> str:
        """As of a text stream."""
        self._before()
        return str(self._stream.readline(size))

    def readlines(self, hint: int = -1) -> Sequence[str]:
        """As of a text stream."""
        self._before()
        lines: list[str] = self._stream.readlines(hint)
        return lines

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._before()
        return str(next(self._stream))


def _as_text(line: bytes) -> str:
    """A line as a terminal would have left it: the last state of a progress bar, without colours."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).rstrip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
