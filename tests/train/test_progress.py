"""Reporters: plain lines, the live view, no output, and the choice between them."""

import io
import re
import sys
import threading
import types
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import UnsupportedError
from burnt.train import Learner, Position, RunReader, StepOutput, SupervisedTraining
from burnt.train.events import Logged, Started, Validated
from burnt.train.format import duration_text, value_text
from burnt.train.reporting import progress as module
from burnt.train.reporting import terminal
from burnt.train.reporting.progress import (
    LiveReporter,
    MonitorReporter,
    PlainReporter,
    Reporter,
    check_monitor,
    choose_reporter,
)

SPEED = {
    "samples_per_second": 1234.5,
    "steps_per_second": 2.0,
    "learning_rate": 1e-3,
    "data_wait_share": 0.25,
}


def training(position: Position) -> Any:
    """A training, as far as reporters look at it."""
    return types.SimpleNamespace(position=position)


def run(folder, **settings):
    data = Loader(TensorDataset(x=torch.randn(10, 3)), 4)

    def step(model, batch):
        return StepOutput(model(batch.x).square().mean(), targets=batch.x)

    learner = Learner(nn.Linear(3, 1), optim.Sgd(), 0.01, step=step)
    return SupervisedTraining(folder, train=data, valid=data, device="cpu", **settings).run(learner)


def test_plain_lines_of_a_run(tmp_path, capsys):
    run(tmp_path / "run", duration="10 epochs", monitor="plain")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (f"Linear, 4 parameters, 10 epochs on cpu in float32, run folder {tmp_path / 'run'}")
    number = r"[0-9.e+-]+"
    for epoch in range(1, 11):
        assert re.fullmatch(rf"epoch {epoch:>2}/10  train  loss {number}", lines[2 * epoch - 1])
        assert re.fullmatch(rf"epoch {epoch:>2}/10  valid  loss {number}", lines[2 * epoch])
    assert re.fullmatch(rf"Training finished: 10 epochs, 30 steps, {number} s", lines[-5])
    assert lines[-4].split() == ["train", "valid", "best", "valid"]
    assert re.fullmatch(rf"loss +{number} +{number}  {number} at step 30", lines[-3])
    folder = tmp_path / "run"
    kept = "step-00000027, step-00000030 (newest, best valid/loss)"
    assert lines[-2] == f"Checkpoints in {folder / 'checkpoints'}: {kept}"
    assert lines[-1] == f"To view the run: burnt runs show {folder}, burnt monitor {folder}"
    assert len(lines) == 26
    with RunReader(folder) as reader:
        kept_lines = [line.text for line in reader.log_lines()]
    assert kept_lines == [lines[0], *(re.sub(r"^epoch +(\d+)/10", r"epoch \1", line) for line in lines[1:-5])]
    run(tmp_path / "run", duration="11 epochs", monitor="plain", resume=True)
    assert "resuming after step 30" in capsys.readouterr().out.splitlines()[0].replace("run folder", "")


def test_off_prints_nothing(tmp_path, capfd):
    run(tmp_path / "run", duration="2 epochs", monitor="off")
    assert capfd.readouterr() == ("", "")


def test_plain_lines_in_between_come_every_few_seconds(clock):
    out = io.StringIO()
    reporter = PlainReporter(out)
    reporter.on_start(Started(training(Position()), "title", 12, 1200))
    reporter.on_log(Logged(training(Position(10, 0, 10)), {"loss": 0.5}, SPEED))
    clock[0] += 6
    reporter.on_log(Logged(training(Position(200, 2, 0)), {"loss": 0.25}, SPEED))
    reporter.on_log(Logged(training(Position(201, 2, 1)), {"loss": 0.2}, SPEED))
    reporter.activity("validating")
    reporter.on_validation(Validated(training(Position(300, 3, 0)), "valid", {"loss": 1e-7, "accuracy": 0.5}))
    reporter.message("a word")
    reporter.close()
    assert out.getvalue().splitlines() == [
        "title",
        "epoch  2/12  step 200/1200  loss 0.2500  1,234 samples/s  eta 30.0 s",
        "epoch  3/12  valid  loss 1e-07  accuracy 0.5000",
        "a word",
    ]


@pytest.fixture
def clock(monkeypatch):
    """The time that reporters see, in its only element."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_where_no_end_is_known(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0)
    out = io.StringIO()
    reporter = PlainReporter(out)
    reporter.on_start(Started(training(Position()), "title", None, None))
    reporter.on_log(Logged(training(Position(10, 0, 10)), {"loss": float("nan")}, SPEED))
    assert out.getvalue().splitlines()[1] == "epoch 1  step 10  loss nan  1,234 samples/s"


def test_plain_lines_of_a_duration_in_time(clock, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0)
    out = io.StringIO()
    reporter = PlainReporter(out)
    reporter.on_start(Started(training(Position()), "title", None, None, 7200.0))
    reporter.on_log(Logged(training(Position(10, 0, 10, seconds=3600.0)), {"loss": 0.5}, SPEED))
    reporter.on_log(Logged(training(Position(10, 0, 10, seconds=7201.0)), {"loss": 0.5}, SPEED))
    reporter.on_start(Started(training(Position()), "title", None, 1200, 7200.0))
    clock[0] += 100.0  # at two steps a second
    reporter.on_log(Logged(training(Position(200, 0, 10, seconds=100.0)), {"loss": 0.5}, SPEED))
    ends = [line.rpartition("eta ")[2] for line in out.getvalue().splitlines() if "eta" in line]
    assert ends == ["1:00:00", "0.0 s", "8:20"]


def test_the_live_view_of_a_duration_in_time():
    reporter, _ = live()
    reporter.on_start(Started(training(Position()), "title", None, None, 7200.0))
    reporter.on_log(Logged(training(Position(50, 0, 50, seconds=1800.0)), {"loss": 0.5}, SPEED))
    picture = drawn(reporter)
    (line,) = [line for line in picture.splitlines() if "eta" in line]
    assert "eta 1:30:00" in line
    assert len(re.search("━+", line)[0]) == 7  # of 28


def live(width=110) -> tuple[LiveReporter, Console]:
    reporter = LiveReporter()
    console = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
    reporter._console = console
    reporter._live.console = console
    return reporter, console


def drawn(reporter: LiveReporter, width: int = 110) -> str:
    picture = io.StringIO()
    Console(file=picture, width=width).print(reporter)
    reporter.close()
    return picture.getvalue()


def test_the_live_view_shows_where_it_stands():
    reporter, console = live()
    reporter.on_start(Started(training(Position(10, 1, 0)), "Linear, 4 parameters [not markup]", 12, 1200))
    reporter.on_log(Logged(training(Position(50, 1, 40)), {"loss": 0.5, "accuracy": 0.75}, SPEED))
    reporter.on_validation(Validated(training(Position(60, 2, 0)), "valid", {"loss": 0.25}))
    reporter.activity("validating")
    reporter.message("[bold] is text here")
    picture = drawn(reporter)
    for words in ("epoch 2/12", "step 60/1,200", "eta", "validating", "loss", "accuracy", "0.5000", "0.2500"):
        assert words in picture
    assert "1,234 samples/s, learning rate 0.001, waiting for data 25%" in picture
    output = console.export_text()
    assert "Linear, 4 parameters [not markup]" in output
    assert "[bold] is text here" in output
    assert "done" in output


def test_the_live_view_shows_every_validation_set_and_the_first_of_many_metrics():
    reporter, _ = live()
    reporter.on_start(Started(training(Position()), "title", 1, 10))
    reporter.on_log(
        Logged(
            training(Position(5, 1, 5)), {"loss": 0.5, **{f"norm/[layer]{i}": 1.0 for i in range(20)}}, SPEED
        )
    )
    for split, loss in (("[shifted]", 0.75), ("train", 0.5), ("valid", 0.25)):
        reporter.on_validation(Validated(training(Position(5, 1, 5)), split, {"loss": loss}))
    picture = drawn(reporter, 200)
    heading, *rows = (line.split() for line in picture.splitlines()[1:6])
    assert heading == ["loss", *(f"norm/[layer]{i}" for i in range(7)), "+13"]
    assert [row[:2] for row in rows[1:]] == [
        ["train", "0.5000"],
        ["valid", "0.2500"],
        ["[shifted]", "0.7500"],
    ]


def test_a_pause_does_not_make_the_live_view_expect_a_later_end(clock):
    reporter, _ = live()
    reporter.on_start(Started(training(Position()), "title", None, 100))
    clock[0] += 10.0
    reporter.on_log(Logged(training(Position(50, 0, 50)), {"loss": 0.5}, SPEED))
    reporter.activity("paused")
    clock[0] += 1000.0
    reporter.activity("saving")
    reporter.activity("paused")
    clock[0] += 1000.0
    reporter.activity("training")
    picture = drawn(reporter)
    assert "eta 10.0 s" in picture


def test_the_live_view_before_anything_is_known():
    reporter, _ = live()
    reporter.on_start(Started(training(Position()), "title", None, None))
    picture = drawn(reporter, 80)
    assert "epoch 1" in picture
    assert "step 0" in picture
    assert "eta" not in picture


def test_a_live_run(tmp_path, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    run(tmp_path / "run", duration="2 epochs", monitor="live")
    assert "epoch 2/2" in out.getvalue()
    assert "Training finished: 2 epochs, 6 steps" in out.getvalue()
    run(tmp_path / "short", duration="1 step", monitor="live")
    assert "Training finished: 0 epochs, 1 step," in out.getvalue()


@pytest.mark.parametrize(
    ("monitor", "place", "kind"),
    [
        ("auto", {}, MonitorReporter),
        ("auto", {"stdin": False}, LiveReporter),
        ("auto", {"textual": False}, LiveReporter),
        ("auto", {"stdout": False}, PlainReporter),
        ("auto", {"TERM": "dumb"}, PlainReporter),
        ("auto", {"TERM": ""}, PlainReporter),
        ("auto", {"CI": "true"}, PlainReporter),
        ("auto", {"CI": "false"}, MonitorReporter),
        ("auto", {"PYTEST_CURRENT_TEST": "this"}, PlainReporter),
        ("auto", {"foreground": False}, PlainReporter),
        ("auto", {"BURNT_MONITOR": "plain"}, PlainReporter),
        ("auto", {"BURNT_MONITOR": "live", "stdout": False}, LiveReporter),
        ("tui", {"BURNT_MONITOR": "plain"}, MonitorReporter),
        ("plain", {}, PlainReporter),
        ("live", {"stdout": False}, LiveReporter),
        ("off", {}, Reporter),
    ],
)
def test_the_reporter_fits_the_place(at, monitor, place, kind):
    at(**place)
    assert type(choose_reporter(monitor)) is kind


@pytest.fixture
def at(monkeypatch):
    """A terminal in which everything can be done, but for what is said."""

    def at(stdin=True, stdout=True, textual=True, foreground=True, **env):
        for name in ("CI", "PYTEST_CURRENT_TEST", "BURNT_MONITOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", **env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout, raising=False)
        monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
        monkeypatch.setattr(terminal.os, "isatty", lambda number: stdin)
        monkeypatch.setattr(terminal, "in_foreground", lambda number: foreground)
        monkeypatch.setattr(terminal.importlib.util, "find_spec", lambda name: textual or None)

    return at


@pytest.mark.parametrize(
    ("place", "found", "hint"),
    [
        ({"stdout": False}, "standard output is not a terminal", "use monitor='auto' or 'plain'"),
        ({"stdin": False}, "standard input is not a terminal", "'auto'"),
        ({"TERM": "dumb"}, "TERM is unset, dumb or unknown", "'auto'"),
        ({"foreground": False}, "the process runs in the background", "'auto'"),
        ({"textual": False}, "textual is not installed", "pip install 'burnt[tui]'"),
    ],
)
def test_a_monitor_that_was_asked_for_and_cannot_be(at, place, found, hint):
    at(**place)
    with pytest.raises(UnsupportedError) as caught:
        check_monitor("tui")
    assert "monitor='tui' cannot be shown here" in str(caught.value)
    assert caught.value.found == found
    assert hint in caught.value.hint


def test_no_such_monitor(at, tmp_path):
    at(BURNT_MONITOR="telly")
    with pytest.raises(UnsupportedError, match="monitor='telly' does not exist") as caught:
        run(tmp_path, duration="1 step")
    assert caught.value.where == "the environment variable BURNT_MONITOR"
    assert caught.value.expected == "auto, tui, live, notebook, plain or off"
    with pytest.raises(UnsupportedError, match="monitor='radio' does not exist") as caught:
        run(tmp_path, duration="1 step", monitor="radio")
    assert caught.value.where is None


def test_a_thread_is_no_place_for_a_full_screen(at):
    at()
    found = []
    thread = threading.Thread(target=lambda: found.append(type(choose_reporter("auto"))))
    thread.start()
    thread.join()
    assert found == [LiveReporter]


def test_a_message_while_the_terminal_comes_back_is_not_lost(capsys):
    reporter = MonitorReporter()

    class Closing:
        has_output = False

        def __init__(self):
            self.looks = 0

        @property
        def showing(self):
            """The monitor's thread gives the terminal back just after the first look."""
            self.looks += 1
            if self.looks > 1:
                return False
            reporter._on_return("Monitor closed")
            return True

    reporter._monitor = Closing()
    reporter.message("by the way")
    assert capsys.readouterr().out == "by the way\nMonitor closed\n"


def test_numbers_as_people_read_them():
    assert [value_text(v) for v in (0.0, 0.5, 12.34567, 1e-5, 123456.0, -0.25, float("nan"))] == [
        "0.0000", "0.5000", "12.3457", "1e-05", "1.23e+05", "-0.2500", "nan",
    ]  # fmt: skip
    assert [duration_text(s) for s in (0, 59.94, 59.96, 60, 3599.6, 86400)] == [
        "0.0 s", "59.9 s", "1:00", "1:00", "1:00:00", "24:00:00",
    ]  # fmt: skip
