"""`MonitorProcess`: runs the full-screen monitor in a child process that takes over the terminal.

The training is the parent and never waits for the monitor process: a daemon thread does. However the monitor
process ends (closed by a key, crashed, killed, hung, its terminal closed), that thread gives the terminal
back to the training, which continues. Output that the training prints meanwhile goes to ``logs/output.log``
in the run folder; the monitor process's own errors go to ``logs/monitor.log``.

The monitor process is ``burnt monitor FOLDER --attached PID --pulse FD``. About once a second it writes a
byte to the pipe FD, from the thread that handles keys: a silent pipe means that it hangs. It does not receive
the terminal's SIGINT: it reads Ctrl-C as a key and sends SIGINT to PID, so each press is counted once.

This needs POSIX terminals, signals and pipes: `no_full_screen_reason` excludes Windows.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

import burnt
from burnt.train.reporting.terminal import LentTerminal

LOWER_BY = 3  # in nice values


def lower_priority(pid: int = 0) -> None:
    """Lower the priority of a process, with all its threads, by 3 nice values; 0 is this process.

    A third of a core stays available next to a training thread that keeps it busy: Linux shares a core by
    weight, 526 to 1,024. It compares weights within a session (by its autogroup) or a container, so that in
    the training's terminal nice 19 (weight 15) or SCHED_IDLE (3) would answer keys after seconds. What the
    monitor takes from a training is limited by how often it reads (`burnt.monitor.data.refresher`).
    This cannot be undone. On Windows it sets the priority class BELOW_NORMAL.
    """
    if sys.platform == "win32":
        with contextlib.suppress(psutil.Error):  # the process has ended
            psutil.Process(pid or os.getpid()).nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        return
    # On Linux each thread has its own priority.
    tasks = Path(f"/proc/{pid or os.getpid()}/task")
    threads: list[int] = [pid]
    with contextlib.suppress(OSError):  # no /proc, or the process has ended
        threads = [int(task.name) for task in tasks.iterdir()]
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread has ended
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + LOWER_BY
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


POLL_SECONDS = 1.0
MAX_SILENT_POLLS = 60  # drawing is slow next to a training that uses every core
MAX_STOPPED_POLLS = 5
CLOSE_SECONDS = 15.0  # the monitor closes by itself 10 s after the end of the run
TERMINATE_SECONDS = 5.0
MIN_FREE_BYTES = 64 << 20  # disk space that must stay free: on a full disk, print would raise in the training
MAX_OUTPUT_BYTES = 256 << 20  # maximum output of the training while the monitor is open

_MAX_FORWARD_LINES = 200  # per poll
_MAX_FORWARD_BYTES = 1 << 20
_REPLAY_BYTES = 1 << 14
_PROMPT_BYTES = 2048
# If a process of a background process group reads from the terminal or changes its modes, the whole group,
# and so the training, is stopped, unless SIGTTIN and SIGTTOU are blocked.
if sys.platform != "win32":
    _BLOCKED_SIGNALS = (signal.SIGINT, signal.SIGTTIN, signal.SIGTTOU)


def monitor_command() -> list[str]:
    """Return the command of the monitor process, without its arguments."""
    # -P: do not import modules from the current folder.
    return [sys.executable, "-P", "-m", "burnt", "monitor"]


class MonitorProcess:
    """Opens the monitor on a run, in the terminal of this process. Create it on the main thread.

    `on_line` is called from a thread with each line that the training prints while the monitor is open;
    `output` is the file that receives them, and `has_output` says, once the terminal is back, whether there
    were any. `on_return` is called once, from a thread, when the terminal is back or gone: with a message
    that says why, or with None after `close`.
    """

    def __init__(
        self, folder: Path, *, on_line: Callable[[str], None], on_return: Callable[[str | None], None]
    ) -> None:
        self.folder = folder
        self.output = folder / "logs" / "output.log"
        self.showing = self.has_output = False
        self._log = folder / "logs" / "monitor.log"
        self._on_line = on_line
        self._on_return = on_return
        self._owner_pid = os.getpid()
        self._terminal: LentTerminal | None = None
        self._thread: threading.Thread | None = None
        self._close_reason: str | None = None
        self._is_closing = self._input_requested = self._has_pulse = False

    def open(self) -> None:
        """Start the monitor process and lend it the terminal; errors are passed to `on_return`."""
        try:
            terminal = self._terminal = LentTerminal(self.output)
        except OSError as error:
            self._on_return(f"Cannot open the monitor: {error}")
            return
        self.showing = True
        reader, writer = os.pipe()
        self._output_file = self.output.open("rb")
        self._output_start = self._output_file.seek(0, os.SEEK_END)
        limit_reason = self._output_limit_reason()
        try:
            if limit_reason is not None:
                raise OSError(limit_reason)
            self._child = self._start(terminal.descriptor, writer)
        except OSError as error:
            os.close(reader)
            self._output_file.close()
            terminal.take_back(tidy=True)
            self.showing = False
            self._on_return(f"Cannot open the monitor: {error}")
            return
        finally:
            os.close(writer)
        self._stdin = sys.stdin
        # Keep a reference: in older Pythons `input` still uses the object after it was replaced as sys.stdin.
        self._stdin_hook = sys.stdin = _StdinHook(sys.stdin, self._close_for_input)
        self._thread = threading.Thread(
            target=self._supervise, args=(terminal, reader), name="burnt-monitor", daemon=True
        )
        self._thread.start()

    def close(self, *, at_once: bool = False) -> None:
        """Wait up to 15 s for the user to close the monitor (not `at_once`), then terminate its process."""
        if not self._is_open():
            return
        self._is_closing = True
        with self._close_on_signal():
            assert self._thread is not None
            if self._has_pulse and not at_once:  # before the first pulse there is nothing on the screen
                self._thread.join(CLOSE_SECONDS)
            self._terminate()

    def hang_up(self) -> None:
        """Stop printing to the terminal, because it is being closed."""
        if self._terminal is not None:
            self._terminal.give_up()

    # --- on the threads of the training

    def _start(self, terminal: int, pulse_writer: int) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder), "--attached", str(os.getpid()), "--pulse", str(pulse_writer)]
        package = str(Path(burnt.__file__).parents[1])
        path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)  # the child inherits it
        try:
            with self._log.open("ab") as log:
                self._log_start = log.tell()
                return subprocess.Popen(
                    monitor_command() + arguments,
                    stdin=terminal,
                    stdout=terminal,
                    stderr=log,
                    pass_fds=[pulse_writer],
                    env={**os.environ, "PYTHONPATH": path},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _is_open(self) -> bool:
        """Whether the monitor is open and this process, not a fork of it, started it."""
        return self._thread is not None and self._thread.is_alive() and os.getpid() == self._owner_pid

    def _close_for_input(self) -> None:
        """Close the monitor because the training, or a debugger in it, is about to read standard input."""
        if self._is_open():
            self._close_reason = (
                "The monitor was closed because the training asks for input. To open it again: "
                f"burnt monitor {self.folder}"
            )
            self._input_requested = True
            self._terminate()

    def _terminate(self) -> None:
        assert self._thread is not None
        for end in (self._child.terminate, self._child.kill):
            if self._thread.is_alive():
                end()
                self._thread.join(TERMINATE_SECONDS)

    @contextlib.contextmanager
    def _close_on_signal(self) -> Iterator[None]:
        """Let signals close the monitor at once while the block runs; SIGTERM is raised again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        received: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            received.append(number)
            self._child.terminate()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if signal.SIGTERM in received:
            signal.raise_signal(signal.SIGTERM)

    # --- on the daemon thread

    def _supervise(self, terminal: LentTerminal, pulse: int) -> None:
        """Watch the monitor process until it ends, then give the terminal back."""
        forwarder, code, why = _LineForwarder(self._output_file, self.output), 1, None
        try:
            hung = self._watch(pulse, forwarder)
            if hung:
                self._child.kill()
            code = self._reap()
            why = self._close_reason or self._explain(code, hung=hung)
            forwarder.forward(self._on_line, last=True)
        finally:  # whatever fails above, the terminal must be given back
            self._child.kill()
            self._child.wait()
            os.close(pulse)
            sys.stdin = self._stdin
            back = terminal.take_back(tidy=code == 0)
            self.has_output = self._output_file.seek(0, os.SEEK_END) > self._output_start
            self.showing = False
            if back and not (self._has_pulse or self._input_requested or self._is_closing):
                self._replay_output(_REPLAY_BYTES)  # the monitor never drew, so nobody has seen this
            self._on_return(why)
            if back and self._input_requested:
                self._replay_output(_PROMPT_BYTES)
            self._output_file.close()

    def _watch(self, pulse: int, forwarder: _LineForwarder) -> bool:
        """Wait until the monitor process ends or hangs; return whether it hangs."""
        silent = stopped = 0
        poll = select.poll()
        poll.register(pulse, select.POLLIN)
        while True:
            if poll.poll(POLL_SECONDS * 1000):
                if not os.read(pulse, 4096):
                    return False
                silent = stopped = 0
                if not self._has_pulse:
                    # It starts at normal priority, so that it draws its first screen quickly.
                    self._has_pulse = True
                    lower_priority(self._child.pid)
            else:
                # Count polls, not seconds: both processes may have been stopped together for a while.
                silent += 1
                stopped = stopped + 1 if self._is_stopped() else 0
                if silent >= MAX_SILENT_POLLS or stopped >= MAX_STOPPED_POLLS:
                    return True
            forwarder.forward(self._on_line)
            if (limit_reason := self._output_limit_reason()) is not None and not self._is_closing:
                self._close_reason = (
                    f"The monitor was closed: {limit_reason}. The training continues and prints here again."
                )
                self._child.terminate()
                return False

    def _output_limit_reason(self) -> str | None:
        """Return why the output file must not grow further (disk full, size limit), or None."""
        disk = os.fstatvfs(self._output_file.fileno())
        free = disk.f_bavail * disk.f_frsize
        if disk.f_blocks and free < MIN_FREE_BYTES:  # some file systems report 0 blocks
            return f"only {free >> 20} MiB are free on the disk with {self.output}"
        if os.fstat(self._output_file.fileno()).st_size - self._output_start > MAX_OUTPUT_BYTES:
            return f"the training printed more than {MAX_OUTPUT_BYTES >> 20} MiB to {self.output}"
        return None

    def _reap(self) -> int:
        try:
            return self._child.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:  # it closed the pipe but still runs
            self._child.kill()
            return self._child.wait()

    def _is_stopped(self) -> bool:
        try:
            return bool(psutil.Process(self._child.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def _explain(self, code: int, *, hung: bool) -> str | None:
        if self._is_closing:
            return None
        hint = f"The training continues. To open the monitor again: burnt monitor {self.folder}"
        if hung:
            return f"The monitor stopped responding and was killed. {hint}"
        if code == 0:
            return f"Monitor closed. {hint}"
        if code < 0:
            return f"The monitor was ended by {_signal_name(-code)}. {hint}"
        failed = "failed" if self._has_pulse else "could not be opened"
        return f"The monitor {failed}{self._last_error_line()}, see {self._log}. {hint}"

    def _last_error_line(self) -> str:
        """Return the last line of the monitor process's stderr: the exception, if it is a traceback."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = [text for line in log.read().split(b"\n") if (text := _visible_text(line).strip())]
        return f" ({lines[-1][:300]})" if lines else ""

    def _replay_output(self, count: int) -> None:
        """Print the last `count` bytes of the output since the monitor was opened."""
        end = self._output_file.seek(0, os.SEEK_END)
        self._output_file.seek(max(self._output_start, end - count))
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(1, self._output_file.read())


class _LineForwarder:
    """Forwards the lines that are appended to a file."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._incomplete_line = b""

    def forward(self, take: Callable[[str], None], *, last: bool = False) -> None:
        """Forward at most 200 new lines; with `last`, also an incomplete last line."""
        content = self._incomplete_line + self._file.read(_MAX_FORWARD_BYTES)
        lines = content.split(b"\n")
        self._incomplete_line = b"" if last else lines.pop()[-_REPLAY_BYTES:]
        texts = [text for line in lines if (text := _visible_text(line))]
        for text in texts[:_MAX_FORWARD_LINES]:
            take(text)
        if len(texts) > _MAX_FORWARD_LINES or (last and self._file.read(1)):
            take(f"... and more in {self._path}")


class _StdinHook:
    """Wraps standard input and calls `before` before each read, so that the terminal can be taken back."""

    def __init__(self, stream: Any, before: Callable[[], None]) -> None:
        self._stream = stream
        self._before = before

    def __getattr__(self, name: str) -> Any:
        # `input` and debuggers ask for the descriptor before they read from it.
        if name in ("fileno", "read", "readline", "readlines"):
            self._before()
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._before()
        return str(next(self._stream))


def _visible_text(line: bytes) -> str:
    """Return a line as a terminal would show it: only the last state of a progress bar, without colours."""
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).rstrip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
