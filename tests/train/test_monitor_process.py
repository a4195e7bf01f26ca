"""The monitor process: it takes over the terminal, and the training gets it back however the process ends.

Two small programs without torch stand in for the training and the monitor.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from burnt.store import RunReader
from tests.emulator import Emulator, Preloaded

TRAINING = """\
import ctypes, json, os, subprocess, sys, time, warnings
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from burnt.train.reporting import monitor_process
from burnt.train.duration import Position
from burnt.train.events import EpochEnded, Logged, Started
from burnt.train.control.end_reason import Interruption
from burnt.train.reporting.progress import choose_reporter
from burnt.store import RunWriter

folder = Path(sys.argv[1])
monitor_process.monitor_command = lambda: json.loads(os.environ["APP"])
for name, value in json.loads(os.environ.get("LIMITS", "{}")).items():
    setattr(monitor_process, name, value)


@contextmanager
def close_on_signal(self, original=monitor_process.MonitorProcess._close_on_signal):
    with original(self):
        (folder / "closing").touch()
        yield


monitor_process.MonitorProcess._close_on_signal = close_on_signal


class Counted(Interruption):
    def _handle(self, number, frame):
        (folder / "signals").open("a").write(f"{number}\\n")
        super()._handle(number, frame)


def work(interruption):
    step = 0
    while not (folder / "end").exists():
        step += 1
        writer.log(step, 1, {"loss": 1 / step})
        reporter.on_log(Logged(at(step, 0, step), {"loss": 1 / step}, SPEED))
        if step % 50 == 0:
            reporter.on_epoch(EpochEnded(at(step, step // 50 - 1, 0), {"loss": 1 / step}))
        with suppress(OSError):  # a terminal that hangs up refuses what is written before it tells us so
            print("step", step)
        (folder / "step").write_text(str(step))
        for order in sorted(folder.glob("do-*")):
            order.rename(folder / order.name.replace("do", "done"))
            exec(order.with_name(order.name.replace("do", "done")).read_text())
        if interruption.signal is not None:
            return "stopped"
        time.sleep(0.005)
    return "finished"


SPEED = dict(samples_per_second=1.0, steps_per_second=1.0, learning_rate=1.0, data_wait_share=0.0)


def at(*position):
    return SimpleNamespace(position=Position(*position))


reporter = choose_reporter("tui")
writer = RunWriter.create(folder)
print("before")
reporter.open(writer)
with ExitStack() as stack:
    stack.callback(reporter.close)
    ending = stack.enter_context(writer)
    interruption = stack.enter_context(Counted(reporter.message, reporter.handle_signal))
    reporter.on_start(Started(at(), "the title", 1))
    writer.close(work(interruption), "as it was asked")
reporter.message("the last message")
print("after")
if interruption.signal is not None:
    sys.exit(128 + interruption.signal)
"""

APP = """\
import os, select, signal, sys, termios, time, tty
from pathlib import Path

folder, attached, pid, pulse, fd = sys.argv[-5:]
assert (attached, pulse) == ("--attached", "--pulse")
folder, pid, fd = Path(folder), int(pid), int(fd)
mode = sys.argv[1]
if mode == "cannot":
    raise ImportError("no module for that, on purpose")
if mode == "at once":
    os._exit(3)
before = termios.tcgetattr(0)


def draw(text):
    os.write(1, text.encode())


def restore():
    draw("\\x1b[?1000l\\x1b[?1003l\\x1b[?1006l\\x1b[?2004l\\x1b[?1004l\\x1b[?1049l\\x1b[?25h")
    termios.tcsetattr(0, termios.TCSANOW, before)


if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
draw("\\x1b[?1049h\\x1b[?1000h\\x1b[?1003h\\x1b[?1006h\\x1b[?2004h\\x1b[?1004h\\x1b[?25l\\x1b[2J\\x1b[H")
tty.setraw(0)
draw("MONITOR of " + folder.name)
(folder / "app").write_text(str(os.getpid()))
count = 0
while True:
    if mode != "silent":
        os.write(fd, b".")
    count += 1
    draw(f"\\x1b[3;1Hpicture {count}")
    if mode == "painting":
        draw("\\x1b[5;1H\\x1b[31m" + "#" * 500 + "\\x1b]0;a title that has no en")
        continue
    if (folder / "closing").exists() and mode not in ("deaf", "silent"):
        draw("\\x1b[4;1Hover")
    if select.select([0], [], [], 0.02)[0]:
        key = os.read(0, 1)
        if key == b"q":
            restore()
            sys.exit()
        if key == b"\\x03":
            os.kill(pid, signal.SIGINT)
        if key == b"x":
            raise RuntimeError("broken on purpose")
        if key == b"h":
            draw("\\x1b[4;1Hhanging")
            while True:
                time.sleep(1)
"""


class Desk:
    """A training in a terminal, and what it left in its folder."""

    def __init__(self, terminal: Emulator, folder: Path) -> None:
        self.terminal = terminal
        self.folder = folder
        self.orders = 0

    def step(self) -> int:
        file = self.folder / "step"
        return int(file.read_text() or 0) if file.exists() else 0

    def app(self) -> psutil.Process:
        return psutil.Process(int((self.folder / "app").read_text()))

    def leave(self) -> None:
        self.terminal.type("q")
        self.terminal.wait_for("Monitor closed. The training continues.")

    def goes_on(self) -> None:
        now = self.step()
        self.terminal.wait_for(lambda: self.step() > now + 3 or self.terminal.process.poll() is not None)
        assert self.terminal.process.poll() is None, self.terminal.written()[-3000:]

    def do(self, code: str) -> None:
        """Let the training run code, and wait until it has begun to."""
        self.orders += 1
        draft = self.folder / "draft"
        draft.write_text(code)
        draft.rename(self.folder / f"do-{self.orders}")
        self.terminal.wait_for((self.folder / f"done-{self.orders}").exists)

    def end(self) -> None:
        (self.folder / "end").touch()

    def finish(self) -> None:
        """Let the training end, which leaves the terminal as it was."""
        self.end()
        self.ends()

    def ends(self, code: int = 0) -> None:
        assert self.terminal.wait_for_end() == code
        assert self.terminal.leftovers() == []

    def signals(self) -> list[int]:
        file = self.folder / "signals"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def output(self) -> str:
        return (self.folder / "logs" / "output.log").read_text()

    def log(self) -> list[str]:
        with RunReader(self.folder) as reader:
            return [line.text for line in reader.log_lines()]

    def steps_printed(self) -> list[int]:
        """In the terminal and in the file together."""
        lines = [*self.output().splitlines(), *self.terminal.written().splitlines()]
        return sorted(int(line.removeprefix("step ")) for line in lines if line.startswith("step "))


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    server = Preloaded(TRAINING[: TRAINING.index("\nfolder = ")])
    yield server
    server.end()


@pytest.fixture
def training(tmp_path, preloaded):  # type: ignore[no-untyped-def]
    """Starts the training with a monitor that behaves in some way, and waits until it shows."""
    program, app = tmp_path / "training.py", tmp_path / "app.py"
    program.write_text(TRAINING)
    app.write_text(APP)

    @contextmanager
    def start(mode: str = "well", *, shows: bool = True, **limits: float) -> Iterator[Desk]:
        command = [str(tmp_path / "nothing")] if mode == "nowhere" else [sys.executable, "-S", str(app), mode]
        env = {"APP": json.dumps(command), "LIMITS": json.dumps(limits), "PYTHONUNBUFFERED": None}
        command = [sys.executable, program, tmp_path / "run"]
        with Emulator(command, env=env, launch=preloaded.launch) as terminal:
            if shows:
                terminal.wait_for_screen("MONITOR of run", "picture")
            yield Desk(terminal, tmp_path / "run")

    return start


def keeps_a_share_of_the_cores(desk: Desk) -> None:
    """Linux shares a core by weight within a session: SCHED_IDLE has 3, nice 19 has 15, a training 1,024.

    With 526, of nice 3, keys are answered next to a training that keeps every core busy.
    """
    trainer, monitor = psutil.Process(desk.terminal.process.pid), desk.app()
    assert os.getsid(monitor.pid) == os.getsid(trainer.pid)
    lower = min(trainer.nice() + 3, 19)
    desk.terminal.wait_for(lambda: monitor.nice() == lower)
    for task in monitor.threads():
        assert os.getpriority(os.PRIO_PROCESS, task.id) == lower
        if hasattr(os, "SCHED_IDLE"):
            assert os.sched_getscheduler(task.id) == os.sched_getscheduler(trainer.pid)


def test_it_is_left_and_the_training_goes_on(training) -> None:
    with training() as desk:
        assert desk.app().ppid() == desk.terminal.process.pid
        keeps_a_share_of_the_cores(desk)
        desk.do("reporter.message('by the way')")
        desk.goes_on()
        assert "step" not in desk.terminal.text()
        assert "by the way" not in desk.terminal.written()  # it is shown after the monitor
        desk.terminal.wait_for(lambda: desk.step() > 60)
        desk.terminal.type("q")
        desk.terminal.wait_for("by the way\n")
        desk.terminal.wait_for(
            "Monitor closed. The training continues. To open the monitor again: burnt monitor "
        )
        desk.goes_on()
        desk.finish()
        lines = desk.terminal.written().splitlines()
        last = desk.step()
    assert lines[:2] == ["before", "the title"]
    assert lines[-3:] == [f"step {last}", "the last message", "after"]
    assert f"Output printed while the monitor was open: {desk.folder / 'logs' / 'output.log'}" in lines
    assert desk.steps_printed() == list(range(1, last + 1))
    assert desk.log()[0] == "the title"
    assert {"by the way", "epoch 1  train  loss 0.0200"} <= set(desk.log())
    assert "epoch" not in desk.output()
    assert not psutil.pid_exists(int((desk.folder / "app").read_text()))
    with RunReader(desk.folder) as reader:
        assert reader.points("loss").steps == list(range(1, last + 1))
        assert reader.state() == "finished"


def test_when_the_run_ends_it_waits_for_a_key(training) -> None:
    with training() as desk:
        desk.end()
        desk.terminal.wait_for_screen("over")
        assert "the last message" not in desk.terminal.written()
        desk.terminal.type("q")
        desk.ends()
        lines = desk.terminal.text().splitlines()
    assert lines[0:2] == ["before", "the title"]  # the alternate screen is gone with what was on it
    assert lines[-2:] == ["the last message", "after"]
    assert "The training continues" not in desk.terminal.written()


@pytest.mark.sample(keep=("deaf",))
@pytest.mark.parametrize(
    ("mode", "limit"),
    [("well", 0.5), ("deaf", 0.5), ("silent", 10_000)],  # this one does not show yet, and is not waited for
)
def test_when_the_run_ends_and_nobody_is_there_it_is_ended(training, mode: str, limit: float) -> None:
    with training(mode, CLOSE_SECONDS=limit, TERMINATE_SECONDS=0.5) as desk:
        desk.finish()
        assert desk.terminal.text().splitlines()[-2:] == ["the last message", "after"]


HANGING = {"POLL_SECONDS": 0.05, "MAX_SILENT_POLLS": 40, "MAX_STOPPED_POLLS": 1000}


@pytest.mark.sample(keep=("painting", "deaf"))
@pytest.mark.parametrize(
    ("mode", "end", "said", "limits"),
    [
        ("well", lambda desk: desk.app().kill(), "was ended by SIGKILL", {}),
        ("painting", lambda desk: desk.app().kill(), "was ended by SIGKILL", {}),
        (
            "well",
            lambda desk: desk.terminal.type("x"),
            "failed (RuntimeError: broken on purpose), see {log}",
            {},
        ),
        (
            "well",
            lambda desk: desk.app().send_signal(signal.SIGSTOP),
            "stopped responding and was killed",
            {"POLL_SECONDS": 0.05},
        ),
        ("deaf", lambda desk: desk.terminal.type("h"), "stopped responding and was killed", HANGING),
        ("silent", lambda desk: None, "stopped responding and was killed", HANGING),
    ],
)
def test_however_the_monitor_ends_the_training_goes_on(training, mode: str, end, said: str, limits) -> None:
    with training(mode, shows=mode != "silent", **limits) as desk:
        end(desk)
        log = desk.folder / "logs" / "monitor.log"
        desk.terminal.wait_for(f"The monitor {said.format(log=log)}. The training continues.")
        desk.goes_on()
        desk.finish()
        assert "MONITOR" not in desk.terminal.text()
        assert "#" not in desk.terminal.text()
        printed = desk.steps_printed()
        if mode == "silent":  # nobody has seen them, so they are shown again
            printed = sorted(set(printed))
        assert printed == list(range(1, desk.step() + 1))
    assert log.read_text().startswith("Traceback") == ("RuntimeError" in said)


@pytest.mark.sample(keep=("cannot",))
@pytest.mark.parametrize(
    ("mode", "said", "limits"),
    [
        ("cannot", "The monitor could not be opened (ImportError: no module for that, on purpose), see ", {}),
        ("at once", "The monitor could not be opened, see ", {}),
        ("nowhere", "Cannot open the monitor: [Errno 2] No such file or directory", {}),
        ("well", "Cannot open the monitor: ", {"MIN_FREE_BYTES": 1 << 62}),
    ],
)
def test_it_cannot_start(training, mode: str, said: str, limits: dict[str, int]) -> None:
    with training(mode, shows=False, **limits) as desk:
        desk.terminal.wait_for(said)
        desk.goes_on()
        desk.finish()
        assert desk.terminal.written().count(said) == 1
        assert "MONITOR" not in desk.terminal.written()
        # What was printed while it was tried is shown.
        lines = desk.terminal.written().splitlines()
    shown = [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]
    assert shown == list(range(1, desk.step() + 1))


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_raw", [True, False])
def test_control_c_counts_once(training, is_raw: bool) -> None:
    with training() as desk:
        if is_raw:
            desk.terminal.type("\x03")
        else:  # it reaches every process of the foreground; the monitor must not die of it
            os.killpg(desk.terminal.process.pid, signal.SIGINT)
        desk.terminal.wait_for(lambda: desk.signals() == [signal.SIGINT])
        desk.terminal.wait_for_screen("over")
        assert desk.app().is_running()
        desk.terminal.type("q")
        desk.ends(130)
    assert desk.signals() == [signal.SIGINT]
    message = "Stop requested: finishing this step, then saving. Press Ctrl-C again to stop now."
    assert message in desk.terminal.written().splitlines()
    assert message in desk.log()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("number", "is_over", "code"),
    [
        (signal.SIGINT, True, 0),
        (signal.SIGTERM, True, -signal.SIGTERM),
        (signal.SIGHUP, True, 0),
        (signal.SIGTERM, False, 143),
    ],
)
def test_a_signal_does_not_wait_for_a_key(training, number: signal.Signals, is_over: bool, code: int) -> None:
    with training(CLOSE_SECONDS=10_000) as desk:
        if is_over:
            desk.end()
            desk.terminal.wait_for_screen("over")
        os.kill(desk.terminal.process.pid, number)
        desk.ends(code)
        assert ("after" in desk.terminal.text()) == (code >= 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("left", [False, True])
def test_the_terminal_is_closed(training, left: bool) -> None:
    with training() as desk:
        if left:
            desk.leave()
        app = desk.app() if not left else None
        desk.terminal.close()
        desk.terminal.wait_for(lambda: signal.SIGHUP in desk.signals())
        desk.goes_on()
        desk.do("print('to nobody'); print('an error for nobody', file=sys.stderr)")
        desk.goes_on()
        if app is not None:
            desk.terminal.wait_for(lambda: not app.is_running())
        desk.end()
        assert desk.terminal.process.wait(60) == 0
    assert "SIGHUP: the terminal was closed; the training continues without it." in desk.log()
    assert "to nobody\n" in desk.output()
    assert "an error for nobody\n" in desk.output()
    assert desk.output().splitlines()[-1] == "after"
    assert "the last message" in desk.output()
    with RunReader(desk.folder) as reader:
        assert reader.state() == "finished"
        assert reader.points("loss").steps == list(range(1, desk.step() + 1))


def test_whatever_prints_goes_to_the_log(training) -> None:
    with training() as desk:
        desk.do(
            "print('one'); print('two', file=sys.stderr); os.write(1, b'three\\n')\n"
            "ctypes.CDLL(None).puts(b'four'); os.system('echo five'); warnings.warn('six')\n"
            "subprocess.run([sys.executable, '-c', 'import sys; print(sys.stdin.read() + \"seven\")'])\n"
            "pid = os.fork()\n"
            "if pid == 0: os.write(2, b'eight\\n'); os._exit(0)\n"
            "os.waitpid(pid, 0); os.write(1, b'bar 1%\\rbar 2%\\rbar \\x1b[31m100%\\x1b[0m\\r\\n')\n"
        )
        desk.goes_on()
        desk.leave()
        desk.do("ctypes.CDLL(None).puts(b'nine'); ctypes.CDLL(None).fflush(None)")
        desk.finish()
    for word in ("one", "two", "three", "five", "seven", "eight"):
        assert f"{word}\n" in desk.output()
        assert f"{word}\n" not in desk.terminal.written()
        assert word in desk.log()
    assert "UserWarning: six" in desk.output()
    assert "four\n" in desk.output()
    assert "nine\n" in desk.terminal.written()
    assert "bar 100%" in desk.log()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("monitor_process.MIN_FREE_BYTES = 1 << 62", "MiB are free on the disk with"),
        ("monitor_process.MAX_OUTPUT_BYTES = 0; print('much')", "the training printed more than 0 MiB to"),
    ],
)
def test_no_room_for_what_is_printed_closes_the_monitor(training, order: str, said: str) -> None:
    with training() as desk:
        app = desk.app()
        desk.do(order)
        desk.terminal.wait_for("prints here again.\n")
        written = desk.terminal.written()
        assert "The monitor was closed: " in written
        assert said in written
        assert not app.is_running()
        desk.do("print('on the terminal')")
        desk.terminal.wait_for("on the terminal\n")
        desk.finish()
    assert desk.steps_printed() == list(range(1, desk.step() + 1))


@pytest.mark.full
def test_very_much_is_printed(training) -> None:
    with training() as desk:
        desk.do("print('\\n'.join(f'number {i}' for i in range(100_000)))")
        desk.goes_on()
        desk.leave()
        desk.finish()
    assert desk.output().count("number ") == 100_000
    assert sum(line.startswith("number ") for line in desk.log()) < 2_000
    assert f"... and more in {desk.folder / 'logs' / 'output.log'}" in desk.log()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "prompt", "answer", "seen"),
    [
        ("print('got', input('how much? '))", "how much? ", "five\n", "got five"),
        ("print('got', sys.stdin.readline())", "asks for input", "six\n", "got six"),
        ("breakpoint(); x = 1", "(Pdb) ", "p 'got ' + str(6 * 7)\nc\n", "'got 42'"),
    ],
)
def test_a_training_that_asks_gets_the_keyboard(
    training, code: str, prompt: str, answer: str, seen: str
) -> None:
    with training() as desk:
        desk.do(code)
        desk.terminal.wait_for(
            "The monitor was closed because the training asks for input. To open it again: "
        )
        desk.terminal.wait_for(prompt)
        # An editor of lines, as pdb has one, sets the terminal up as it likes.
        desk.terminal.wait_for(lambda: set(desk.terminal.leftovers()) <= {"termios"})
        desk.terminal.type(answer)
        desk.terminal.wait_for(seen)
        desk.goes_on()
        desk.end()
        assert desk.terminal.wait_for_end() == 0


def test_an_exception_is_shown_where_the_user_is(training) -> None:
    with training() as desk:
        desk.do("(folder / 'end').touch(); raise ZeroDivisionError('of the user')")
        desk.terminal.wait_for_screen("over")
        desk.terminal.type("q")
        desk.ends(1)
        assert "ZeroDivisionError: of the user" in desk.terminal.text()
        assert "Traceback (most recent call last)" in desk.terminal.text()
    assert "Traceback" not in desk.output()
    with RunReader(desk.folder) as reader:
        assert reader.state() == "crashed"


def test_whatever_fails_the_terminal_comes_back(training) -> None:
    with training() as desk:
        app = desk.app()
        desk.do("reporter._monitor._on_line = None; print('this cannot be forwarded')")
        desk.terminal.wait_for("TypeError: 'NoneType' object is not callable")
        desk.goes_on()
        assert not app.is_running()
        desk.finish()


@pytest.mark.full
def test_standard_error_that_leads_elsewhere_stays_there(training, tmp_path: Path) -> None:
    with training(shows=False):
        pass
    words = shlex.join(map(str, [sys.executable, tmp_path / "training.py", tmp_path / "other"]))
    script = f"exec {words} 2>{shlex.quote(str(tmp_path / 'errors'))}"
    env = {"APP": json.dumps([sys.executable, "-S", str(tmp_path / "app.py"), "well"])}
    with Emulator(["sh", "-c", script], env=env) as terminal:
        desk = Desk(terminal, tmp_path / "other")
        terminal.wait_for_screen("MONITOR of other", "picture")
        desk.do("print('an error', file=sys.stderr)")
        desk.goes_on()
        terminal.type("q")
        terminal.wait_for("Monitor closed")
        desk.end()
        assert terminal.wait_for_end() == 0
    assert (tmp_path / "errors").read_text() == "an error\n"


@pytest.mark.full
def test_suspended_and_continued(training, tmp_path: Path) -> None:
    """Both processes stop and go on together, and the monitor is not taken for one that hangs."""
    with training(POLL_SECONDS=0.05, MAX_SILENT_POLLS=40, MAX_STOPPED_POLLS=10) as desk:
        group = desk.terminal.process.pid
        os.killpg(group, signal.SIGSTOP)
        trainer = psutil.Process(group)
        desk.terminal.wait_for(lambda: trainer.status() == desk.app().status() == psutil.STATUS_STOPPED)
        os.killpg(group, signal.SIGCONT)
        desk.goes_on()
        desk.leave()
        desk.finish()
