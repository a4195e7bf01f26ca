"""A terminal for tests: a program runs in it, pyte emulates its screen, keys are typed, it can be closed.

Everything is waited for by what is to be seen, never by time.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyte

ROOT = Path(__file__).parent.parent
PATIENCE = 90.0

# Opening a terminal makes it that of the session, and the process its foreground. Under nohup, SIGHUP would
# stay ignored.
_ENTER = """\
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in 0, 1, 2:
    os.dup2(terminal, number)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_ALTERNATE = 1049
_KEYBOARD = re.compile(rb"\x1b\[[<>=][0-9;]*u")  # which pyte takes for text
_CUT_OFF = re.compile(rb"(\x1b(\[[<>=]?[0-9;]*)?)?\Z")
_MODES = {1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1049, 2004, 2026, 2048}


class Screen(pyte.Screen):
    """pyte's screen, with the alternate one that it lacks."""

    normal: tuple[Any, Any] | None = None

    def set_mode(self, *modes: int, **options: Any) -> None:
        if options.get("private") and _ALTERNATE in modes and self.normal is None:
            self.normal = copy.deepcopy(self.buffer), copy.copy(self.cursor)
            self.erase_in_display(2)
        super().set_mode(*modes, **options)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if options.get("private") and _ALTERNATE in modes and self.normal is not None:
            self.buffer, self.cursor = self.normal
            self.normal = None
            self.dirty.update(range(self.lines))

    def report_device_attributes(self, *args: Any, **options: Any) -> None:
        """No answers: nobody reads them where a program asks and ends."""


class Emulator:
    """A program in a terminal of its own, as the leader of its session.

    Args:
        command: the program and its arguments.
        columns, rows: the size.
        env: added to the environment; None removes a variable.
        cwd: the program's folder.
        launch: starts the command, given the terminal, the environment and the folder; a new interpreter
            by default.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        columns: int = 100,
        rows: int = 30,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        launch: Callable[..., Any] | None = None,
    ) -> None:
        self.screen = Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._changed = threading.Condition()
        self._raw, self._unfed = bytearray(), bytearray()
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.attributes = termios.tcgetattr(slave)
        self.process = (launch or _launch)(
            os.ttyname(slave), [os.fspath(word) for word in command], environment(env), cwd
        )
        self._slave = slave  # kept, so that the terminal can be looked at when the program is gone
        self._closed = False
        self._wake, self._wake_up = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed:
            error.add_note(f"the screen was\n{self.text()}\nand all that was written\n{self.written()}")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.close()

    def resize(self, columns: int, rows: int) -> None:
        """Make the terminal larger or smaller."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with self._changed:
            self.screen.resize(rows, columns)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def text(self) -> str:
        """The screen, without trailing spaces and empty lines at the end."""
        with self._changed:  # pyte's `display` takes milliseconds
            lines = [self.screen.buffer[y] for y in range(self.screen.lines)]
            texts = ["".join(line[x].data for x in range(max(line, default=-1) + 1)) for line in lines]
            return "\n".join(text.rstrip() for text in texts).rstrip()

    def raw(self) -> bytes:
        """Everything that was ever written to the terminal."""
        with self._changed:
            return bytes(self._raw)

    def written(self) -> str:
        """Everything that was ever written to the terminal, without escape sequences."""
        with self._changed:
            text = bytes(self._raw).decode(errors="replace").replace(f"\x1b[?{_ALTERNATE}l", "\n")
        return re.sub(r"\x1b(\][^\x07\x1b]*(\x07|\x1b\\)?|\[[0-9;?<>=]*[ -/]*[@-~]|[@-Z\\-_])|\r", "", text)

    def wait_for(self, what: str | Callable[[], bool], *, patience: float = PATIENCE) -> None:
        """Until a text was written or is on the screen, or a function is true."""
        seen = what if callable(what) else lambda: what in self.text() or what in self.written()
        deadline = time.monotonic() + patience
        while not seen():
            with self._changed:
                self._changed.wait(0.05)
            assert time.monotonic() < deadline, f"{what!r} did not come"

    def wait_for_screen(self, *texts: str) -> None:
        """Until all the texts are on the screen now."""
        self.wait_for(lambda: all(text in self.text() for text in texts))

    def wait_for_end(self) -> int:
        """The program's exit code, once all that it wrote was read."""
        self.wait_for(lambda: self.process.poll() is not None)
        self.wait_until_read()
        return self.process.returncode

    def wait_until_read(self) -> None:
        """Until everything that is written by now was read."""
        mark = f"\x1b]0;{time.monotonic_ns()}\x07".encode()  # a window's title is seen by nobody
        os.write(self._slave, mark)
        self.wait_for(lambda: mark in self._raw)

    def leftovers(self) -> list[str]:
        """What a program that is gone left as it should not be."""
        self.wait_until_read()
        found = [str(mode) for mode in sorted(_MODES) if mode << 5 in self.screen.mode]
        if self.screen.cursor.hidden:
            found.append("no cursor")
        if termios.tcgetattr(self._slave) != self.attributes:
            found.append("termios")
        return found

    def close(self) -> None:
        """Take the terminal away from the program, as a window that is closed does."""
        if not self._closed:
            self._closed = True
            os.close(self._wake_up)  # the terminal lives on while somebody reads from it
            self._reader.join(PATIENCE)
            os.close(self._wake)
            os.close(self.master)
            os.close(self._slave)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self.master, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while all(number != self._wake for number, _ in poll.poll()):
            chunk = os.read(self.master, 65536)
            with self._changed:
                self._raw += chunk
                self._unfed += chunk
                complete = len(self._unfed) - len(_CUT_OFF.search(self._unfed)[0])  # type: ignore[index]
                self._stream.feed(_KEYBOARD.sub(b"", self._unfed[:complete]))
                del self._unfed[:complete]
                self._changed.notify_all()


def _launch(
    terminal: str, command: Sequence[str], env: Mapping[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _ENTER, terminal, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=env,
        cwd=cwd,
    )


_SERVER = """
import json, os, select, signal, sys
{imports}
answers = os.fdopen(os.dup(1), "w", buffering=1)
requests = os.fdopen(os.dup(0), "rb", buffering=0)
given = None
while given is None and (line := requests.readline()):
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)
    else:
        given = json.loads(line)
if given is not None:
    os.setsid()
    print(os.getpid(), file=answers)  # only now, when its session can be killed
    answers.close()
    requests.close()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    terminal = os.open(given["terminal"], os.O_RDWR)
    for number in 0, 1, 2:
        os.dup2(terminal, number)
    os.close(terminal)
    sys.stdin = sys.__stdin__ = open(0)
    sys.stdout = sys.__stdout__ = open(1, "w")
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(given["env"])
    sys.argv = given["command"]
    __file__, sys.path[0] = sys.argv[0], os.path.dirname(sys.argv[0])
    exec(compile(open(__file__).read(), __file__, "exec"), globals())
"""


class Preloaded:
    """Programs of Python, one after the other, in forks of a process that has done imports.

    Args:
        imports: the lines that it begins with.
    """

    pid: int
    returncode: int | None

    def __init__(self, imports: str) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-c", _SERVER.replace("{imports}", imports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment(),
        )

    def launch(
        self, terminal: str, command: Sequence[str], env: Mapping[str, str], cwd: Path | None
    ) -> Preloaded:
        """Start a program, a file with arguments; what is returned waits for it as a Popen does."""
        assert cwd is None
        self.returncode = None
        request = {"terminal": terminal, "command": command[1:], "env": env}
        self.server.stdin.write(json.dumps(request).encode() + b"\n")  # type: ignore[union-attr]
        self.pid = int(self.server.stdout.readline())  # type: ignore[union-attr]
        return self

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.wait(0)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it still runs after so many seconds."""
        if self.returncode is None and select.select([self.server.stdout], [], [], seconds)[0]:
            self.returncode = int(self.server.stdout.readline())  # type: ignore[union-attr]
        return self.returncode

    def end(self) -> None:
        """End the process that has done the imports."""
        self.server.communicate()


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """That of a person at a terminal, and not of a test."""
    base: dict[str, str | None] = {
        **os.environ,
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
        **dict.fromkeys(("PYTEST_CURRENT_TEST", "CI", "NO_COLOR", "BURNT_MONITOR", "COLUMNS", "LINES")),
        **(changes or {}),
    }
    return {name: value for name, value in base.items() if value is not None}
