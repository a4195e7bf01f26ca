"""`MonitorProcess`: runs the full-screen monitor in a child process that takes over the terminal.

The training is the parent and never waits for the monitor process: a daemon thread does. However the monitor
process ends (closed by a key, crashed, killed, hung, its terminal closed), that thread gives the terminal back
to the training, which continues. Output that the training prints meanwhile goes to ``logs/output.log`` in the
run folder; the monitor process's own errors go to ``logs/monitor.log``.

The monitor process is ``burnt monitor FOLDER --attached PID --pulse FD``. About once a second it writes a byte to
the pipe FD, from the thread that handles keys: a silent pipe means that it hangs. It does not receive the
terminal's SIGINT: it reads Ctrl-C as a key and sends SIGINT to PID, so that the training counts each press once.
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
SILENT_LOOKS = 60  # drawing is slow at the lowest priority beside a training that uses every core
STOPPED_LOOKS = 5
CLOSING_SECONDS = 15.0  # the monitor closes by itself 10 s after the end of the run
ENDING_SECONDS = 5.0
FREE_BYTES = 64 << 20  # disk space that must stay free: on a full disk, print would raise in the training
OUTPUT_BYTES = 256 << 20  # maximum output of the training while the monitor is open

_FORWARD_LINES = 200  # per poll
_FORWARD_BYTES = 1 << 20
_REPLAY_BYTES = 1 << 14
_PROMPT_BYTES = 2048
# If a process of a background process group reads from the terminal or changes its modes, the whole group, and
# so the training, is stopped, unless SIGTTIN and SIGTTOU are blocked.
_BLOCKED = (signal.SIGINT, signal.SIGTTIN, signal.SIGTTOU)


def app_command() -> list[str]:
    """Return the command of the monitor process, without its arguments."""
    # -P: do not import modules from the current folder.
    return [sys.executable, "-P", "-m", "burnt", "monitor"]


class MonitorProcess:
    """Opens the monitor on a run, in the terminal of this process. Create it on the main thread.

    Args:
        folder: the run folder, with its ``logs/``.
        on_line: called from a thread with each line that the training prints while the monitor is open.
        on_return: called once, from a thread, when the terminal is back or gone: with a message that says why,
            or with None after `close`.

    Attributes:
        output: the file that receives the training's output while the monitor is open.
        has_output: whether anything was printed; valid once the terminal is back.
        showing: whether the monitor process has the terminal.
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
        """Start the monitor process and lend it the terminal; errors are passed to `on_return`."""
        try:
            terminal = self._terminal = LentTerminal(self.output)
        except OSError as error:
            self._returned(f"Cannot open the monitor: {error}")
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
            self._returned(f"Cannot open the monitor: {error}")
            return
        finally:
            os.close(writer)
        self._stdin = sys.stdin
        # Keep a reference: in older Pythons `input` still uses the object after it was replaced as sys.stdin.
        self._keyboard = sys.stdin = _Keyboard(sys.stdin, self._give_way)
        self._thread = threading.Thread(
            target=self._attend, args=(terminal, reader), name="burnt-monitor", daemon=True
        )
        self._thread.start()

    def close(self, *, at_once: bool = False) -> None:
        """Wait up to 15 s for the user to close the monitor, then terminate the monitor process.

        Args:
            at_once: terminate it without waiting for the user.
        """
        if not self._open_here():
            return
        self._closing = True
        with self._impatient():
            assert self._thread is not None
            if self._beaten and not at_once:  # before the first pulse there is nothing on the screen
                self._thread.join(CLOSING_SECONDS)
            self._end()

    def hang_up(self) -> None:
        """Stop printing to the terminal, because it is being closed."""
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
        """Whether the monitor is open and this process, not a fork of it, started it."""
        return self._thread is not None and self._thread.is_alive() and os.getpid() == self._process

    def _give_way(self) -> None:
        """Close the monitor because the training, or a debugger in it, is about to read standard input."""
        if self._open_here():
            self._why = "The monitor was closed because the training asks for input. To open it again: "
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
        """Let signals close the monitor at once while the block runs; SIGTERM is raised again afterwards."""
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
        """Watch the monitor process until it ends, then give the terminal back."""
        tail, code, why = _Tail(self._tail, self.output), 1, None
        try:
            hung = self._watch(pulse, tail)
            if hung:
                self._child.kill()
            code = self._reap()
            why = self._why or self._explain(code, hung=hung)
            tail.forward(self._printed, last=True)
        finally:  # whatever fails above, the terminal must be given back
            self._child.kill()
            self._child.wait()
            os.close(pulse)
            sys.stdin = self._stdin
            back = terminal.take_back(tidy=code == 0)
            self.has_output = self._tail.seek(0, os.SEEK_END) > self._began
            self.showing = False
            if back and not (self._beaten or self._asked or self._closing):
                self._print_again(_REPLAY_BYTES)  # the monitor never drew, so the user has not seen this output
            self._returned(why)
            if back and self._asked:
                self._print_again(_PROMPT_BYTES)
            self._tail.close()

    def _watch(self, pulse: int, tail: _Tail) -> bool:
        """Wait until the monitor process ends or hangs; return whether it hangs."""
        silent = stopped = 0
        poll = select.poll()
        poll.register(pulse, select.POLLIN)
        while True:
            if poll.poll(LOOK_SECONDS * 1000):
                if not os.read(pulse, 4096):
                    return False
                silent = stopped = 0
                if not self._beaten:
                    # It starts at normal priority, so that it draws its first screen quickly.
                    self._beaten = True
                    give_way(self._child.pid)
            else:
                # Count polls, not seconds: both processes may have been stopped together for a while.
                silent += 1
                stopped = stopped + 1 if self._is_stopped() else 0
                if silent >= SILENT_LOOKS or stopped >= STOPPED_LOOKS:
                    return True
            tail.forward(self._printed)
            if (short := self._short()) is not None and not self._closing:
                self._why = f"The monitor was closed: {short}. The training continues and prints here again."
                self._child.terminate()
                return False

    def _short(self) -> str | None:
        """Return why the output file must not grow further (disk full, size limit), or None."""
        disk = os.fstatvfs(self._tail.fileno())
        free = disk.f_bavail * disk.f_frsize
        if disk.f_blocks and free < FREE_BYTES:  # some file systems report 0 blocks
            return f"only {free >> 20} MiB are free on the disk with {self.output}"
        if os.fstat(self._tail.fileno()).st_size - self._began > OUTPUT_BYTES:
            return f"the training printed more than {OUTPUT_BYTES >> 20} MiB to {self.output}"
        return None

    def _reap(self) -> int:
        try:
            return self._child.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the pipe but still runs
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
        again = f"The training continues. To open the monitor again: burnt monitor {self.folder}"
        if hung:
            return f"The monitor stopped responding and was killed. {again}"
        if code == 0:
            return f"Monitor closed. {again}"
        if code < 0:
            return f"The monitor was ended by {_signal_name(-code)}. {again}"
        failed = "failed" if self._beaten else "could not be opened"
        return f"The monitor {failed}{self._complaint()}, see {self._log}. {again}"

    def _complaint(self) -> str:
        """Return the last line of the monitor process's stderr: the exception, if it is a traceback."""
        with self._log.open("rb") as log:
            log.seek(self._log_began)
            lines = [text for line in log.read().split(b"\n") if (text := _as_text(line).strip())]
        return f" ({lines[-1][:300]})" if lines else ""

    def _print_again(self, count: int) -> None:
        """Print the last `count` bytes of the output since the monitor was opened."""
        end = self._tail.seek(0, os.SEEK_END)
        self._tail.seek(max(self._began, end - count))
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(1, self._tail.read())


class _Tail:
    """Forwards the lines that are appended to a file."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._rest = b""

    def forward(self, take: Callable[[str], None], *, last: bool = False) -> None:
        """Forward at most 200 new lines; with `last`, also an incomplete last line."""
        content = self._rest + self._file.read(_FORWARD_BYTES)
        lines = content.split(b"\n")
        self._rest = b"" if last else lines.pop()[-_REPLAY_BYTES:]
        texts = [text for line in lines if (text := _as_text(line))]
        for text in texts[:_FORWARD_LINES]:
            take(text)
        if len(texts) > _FORWARD_LINES or (last and self._file.read(1)):
            take(f"... and more in {self._path}")


class _Keyboard:
    """Wraps standard input and calls `before` before each read, so that the terminal can be taken back."""

    def __init__(self, stream: Any, before: Callable[[], None]) -> None:
        self._stream = stream
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def fileno(self) -> int:
        """Return the descriptor; `input` and debuggers call this before they read from it."""
        self._before()
        return int(self._stream.fileno())

    def read(self, size: int = -1) -> str:
        """Read like a text stream."""
        self._before()
        return str(self._stream.read(size))

    def readline(self, size: int = -1) -> str:
        """Read like a text stream."""
        self._before()
        return str(self._stream.readline(size))

    def readlines(self, hint: int = -1) -> Sequence[str]:
        """Read like a text stream."""
        self._before()
        lines: list[str] = self._stream.readlines(hint)
        return lines

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._before()
        return str(next(self._stream))


def _as_text(line: bytes) -> str:
    """Return a line as a terminal would show it: only the last state of a progress bar, without colours."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).rstrip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
