"""The monitor in real terminals: under tmux and in an emulated one, with trainings that run next to it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from burnt.store import RunReader, RunWriter
from burnt.store.control import send
from tests.emulator import PATIENCE, ROOT, Emulator, environment

BURNT = [sys.executable, "-m", "burnt"]
DIGITS = [*BURNT, "train", str(ROOT / "examples" / "digits" / "train.py") + ":main"]

TRAINING = """\
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.train.metrics import Loss

torch.set_num_threads(1)
folder, here = Path(sys.argv[1]), Path(sys.argv[2])
steps = 0


def step(model, batch):
    global steps
    steps += 1
    (here / "step").write_text(str(steps))
    while steps == 100 and not (here / "go").exists():
        time.sleep(0.01)
    if steps == 120 and (here / "fail").exists():
        raise ZeroDivisionError("of the user")
    loss = (model(batch.x) - batch.y).square().mean()
    return StepOutput(loss, targets=batch.y)


torch.manual_seed(0)
x = torch.randn(640, 8)
data = Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), 32, shuffle=True, seed=1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
learner = Learner(model, optim.AdamW(), 1e-2, step=step)
settings = dict(train=data, valid=data, duration="10 epochs", log_every=1, seed=0, device="cpu")
SupervisedTraining(folder, **settings, check=False).run(learner)
print("the program ends")
"""


class Tmux:
    """A server of tmux of its own; each window is a shell."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")
        self.shell = "exec env PS1='ready> ' bash --norc --noprofile"

    def command(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self.socket, "-f", os.devnull, *words],
            capture_output=True,
            text=True,
            env=environment({"TMUX": None}),
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def open(self, name: str, columns: int = 120, rows: int = 40) -> Window:
        size = ["-x", str(columns), "-y", str(rows)]
        self.command("new-session", "-d", "-s", name, *size, self.shell)
        return Window(self, name)

    def end(self) -> None:
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False)


class Window:
    def __init__(self, tmux: Tmux, name: str) -> None:
        self.tmux = tmux
        self.name = name

    def text(self) -> str:
        return self.tmux.command("capture-pane", "-p", "-J", "-t", self.name).rstrip()

    def history(self) -> str:
        return self.tmux.command("capture-pane", "-p", "-J", "-S", "-", "-t", self.name)

    def type(self, *keys: str) -> None:
        self.tmux.command("send-keys", "-t", self.name, *keys)

    def run(self, words: Sequence[str]) -> None:
        self.tmux.command("send-keys", "-t", self.name, "-l", shlex.join(words))
        self.type("Enter")

    def wait_for(self, *texts: str) -> None:
        """Until all of the texts are on the screen."""
        deadline = time.monotonic() + PATIENCE
        while not all(text in self.text() for text in texts):
            assert time.monotonic() < deadline, f"{texts} did not come; the screen is\n{self.text()}"
            time.sleep(0.1)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    server = Tmux(tmp_path)
    yield server
    server.end()


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def monitor_of(folder: Path) -> psutil.Process:
    """The process that `monitor` is: the child of the run's process."""
    with RunReader(folder) as reader:
        trainer = psutil.Process(reader.summary().pid)
    return next(child for child in trainer.children() if "--attached" in child.cmdline())


def state(folder: Path) -> str:
    with RunReader(folder) as reader:
        return reader.state()


def losses(folder: Path) -> list[tuple[int, bytes]]:
    """Every loss that was logged, to the bit."""
    with RunReader(folder) as reader:
        points = [*zip(*reader.points("loss", "train")[::2], strict=True)]
        points += zip(*reader.points("loss", "valid")[::2], strict=True)
    return [(step, struct.pack("d", value)) for step, value in points]


@pytest.mark.full
def test_killed_attached_again_stopped_and_resumed(tmux: Tmux, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    window, other = tmux.open("training", rows=60), tmux.open("other", 80, 24)
    window.run([*DIGITS, "epochs=100000", f"folder={folder}"])
    window.wait_for("● running", "q quit")
    monitor_of(folder).kill()
    window.wait_for("The monitor was ended by SIGKILL. The training continues.", "train  loss")
    other.run([*BURNT, "monitor", str(folder)])
    other.wait_for("● running", "loss", "q quit")
    other.type("q")
    other.wait_for("ready>")
    assert state(folder) == "running"
    window.type("C-c")
    window.wait_for("Stop requested: finishing this step", "To resume, run the same program", "ready>")
    assert state(folder) == "stopped"
    window.run([*DIGITS, "epochs=100000", f"folder={folder}", "resume=true"])
    window.wait_for("● running", "q quit")
    window.type("C-c")
    window.wait_for("The training has ended")
    window.type("Space")
    wait_until(lambda: window.history().count("Stop requested: finishing this step") == 2)
    wait_until(lambda: window.history().count("To resume, run the same program") == 2)
    with RunReader(folder) as reader:
        assert [attempt.end_state for attempt in reader.attempts()] == ["stopped", "stopped"]


@pytest.mark.full
def test_suspended_and_in_the_background(tmux: Tmux, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    window = tmux.open("training")
    program = tmp_path / "writer.py"
    program.write_text(TRAINING)
    window.run([sys.executable, str(program), str(folder), str(tmp_path)])
    window.wait_for("● running", "q quit")
    window.type("C-z")
    window.wait_for("Stopped", "ready>")
    assert "● running" not in window.text()
    window.run(["fg"])
    window.wait_for("● running", "q quit")
    window.type("C-z")
    window.wait_for("Stopped", "ready>")
    window.run(["bg"])
    window.wait_for("Monitor closed. The training continues.")
    window.run(["stty", "-a", "|", "grep", "-o", "' icanon'"])  # the shell's own settings hold
    window.wait_for(" icanon")
    (tmp_path / "go").touch()
    window.wait_for("Training finished: 10 epochs", "the program ends")


@pytest.fixture
def training(tmp_path: Path) -> Callable[..., Emulator]:
    """Starts the small training, in a terminal of a size."""
    program = tmp_path / "training.py"
    program.write_text(TRAINING)

    def start(name: str = "run", **settings: object) -> Emulator:
        words = [sys.executable, program, tmp_path / name, tmp_path]
        return Emulator(words, **settings)  # type: ignore[arg-type]

    return start


def at_step(folder: Path, step: int) -> bool:
    file = folder / "step"
    return file.exists() and int(file.read_text() or 0) >= step


def plain(tmp_path: Path, name: str = "plain") -> Path:
    """The losses of the same training without a monitor, over a pipe."""
    (tmp_path / "go").touch()
    done = subprocess.run(
        [sys.executable, tmp_path / "training.py", tmp_path / name, tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "Training finished: 10 epochs" in done.stdout
    (tmp_path / "go").unlink()
    return tmp_path / name


def left(terminal: Emulator, folder: Path) -> None:
    terminal.type("q")


def killed(terminal: Emulator, folder: Path) -> None:
    monitor_of(folder).kill()


def frozen(terminal: Emulator, folder: Path) -> None:
    monitor_of(folder).send_signal(signal.SIGSTOP)


def closed(terminal: Emulator, folder: Path) -> None:
    terminal.close()


@pytest.mark.parametrize(
    ("disturb", "said"),
    [
        pytest.param(left, "Monitor closed", marks=pytest.mark.full),
        pytest.param(killed, "The monitor was ended by SIGKILL", marks=pytest.mark.full),
        pytest.param(frozen, "The monitor stopped responding and was killed", marks=pytest.mark.full),
        pytest.param(closed, None, marks=pytest.mark.full),
    ],
)
def test_losses_are_the_same_to_the_bit(training, tmp_path: Path, disturb, said: str | None) -> None:
    folder = tmp_path / "run"
    expected = losses(plain(tmp_path))
    assert len(expected) == 210
    with training() as terminal:
        terminal.wait_for_screen("● running", "loss")
        terminal.wait_for(lambda: at_step(tmp_path, 100))
        disturb(terminal, folder)
        if said is not None:
            terminal.wait_for(said)
        (tmp_path / "go").touch()
        if said is None:
            assert terminal.process.wait(PATIENCE) == 0
            assert (folder / "logs" / "output.log").read_text().splitlines()[-1] == "the program ends"
        else:
            assert terminal.wait_for_end() == 0
            assert terminal.leftovers() == []
            assert terminal.text().splitlines()[-1] == "the program ends"
            assert "best valid" in terminal.text()
    assert losses(folder) == expected


def test_the_users_exception_is_shown(training, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    with training() as terminal:
        terminal.wait_for_screen("● running", "loss")
        (tmp_path / "go").touch()
        terminal.wait_for_screen("The training has ended", "crashed")
        terminal.type(" ")
        assert terminal.wait_for_end() == 1
        assert terminal.leftovers() == []
        error, line = terminal.text().splitlines()[-2:]
        assert error == "ZeroDivisionError: of the user"
        assert line.startswith("at training.py:")


@pytest.mark.full
def test_a_killed_training_gives_the_terminal_back(training, tmp_path: Path) -> None:
    """By its monitor, which is all that is left of it."""
    folder = tmp_path / "run"
    words = map(str, [sys.executable, tmp_path / "training.py", folder, tmp_path])
    script = f"{shlex.join(words)}; echo the code is $?; read x"
    with Emulator(["sh", "-c", script]) as terminal:
        terminal.wait_for_screen("● running", "loss")
        with RunReader(folder) as reader:
            trainer = psutil.Process(reader.summary().pid)
        monitor = monitor_of(folder)
        trainer.kill()
        terminal.wait_for("has died: it was killed or it crashed.")
        terminal.wait_for(lambda: not monitor.is_running())
        assert terminal.leftovers() == []
        assert "the code is 137" in terminal.written()
        terminal.type("\n")
        assert terminal.wait_for_end() == 0
    assert state(folder) == "crashed"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    with RunWriter.create(tmp_path / "digits") as run:
        for step in range(1, 101):
            run.log(step, 1, {"loss": 1 / step, "accuracy": 1 - 1 / step})
        run.progress(100, 1, total_steps=100, total_epochs=1)
    return tmp_path / "digits"


@pytest.mark.full
def test_sizes(finished: Path) -> None:
    with Emulator([*BURNT, "monitor", finished], columns=80, rows=24) as terminal:
        terminal.wait_for_screen("digits", "✓ finished", "loss", "accuracy", "q quit")
        assert len(terminal.text().splitlines()) == 24
        terminal.resize(60, 20)
        terminal.wait_for_screen("✓ finished", "loss", "q quit")
        terminal.wait_for(lambda: len(terminal.text().splitlines()) == 20)
        terminal.resize(150, 50)
        terminal.wait_for_screen("digits", "✓ finished", "loss", "q quit")
        terminal.wait_for(lambda: len(terminal.text().splitlines()) == 50)
        terminal.type("q")
        assert terminal.wait_for_end() == 0
        assert terminal.leftovers() == []


COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


@pytest.mark.full
def test_no_colour(finished: Path) -> None:
    for value, coloured in ((None, True), ("1", False)):
        with Emulator([*BURNT, "monitor", finished], env={"NO_COLOR": value}) as terminal:
            terminal.wait_for_screen("✓ finished", "loss", "q quit")
            terminal.type("q")
            assert terminal.wait_for_end() == 0
            assert bool(COLOUR.search(terminal.raw())) == coloured


@pytest.mark.full  # tests/train/test_monitor_process.py closes a terminal too
def test_a_session_that_is_closed(tmux: Tmux, tmp_path: Path) -> None:
    """As when the connection to a server breaks: the training goes on, and can be watched and stopped."""
    folder = tmp_path / "run"
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    window = tmux.open("training")
    window.run([sys.executable, str(program), str(folder), str(tmp_path)])
    window.wait_for("● running", "loss")
    monitor = monitor_of(folder)
    tmux.command("kill-session", "-t", "training")
    wait_until(lambda: not monitor.is_running() or monitor.status() == psutil.STATUS_ZOMBIE)
    assert state(folder) == "running"
    send(folder, "stop")
    (tmp_path / "go").touch()
    wait_until(lambda: state(folder) == "stopped")
    with RunReader(folder) as reader:
        assert "SIGHUP: the terminal was closed; the training continues without it." in [
            line.text for line in reader.log_lines()
        ]
