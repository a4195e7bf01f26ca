"""`burnt ctl`: what it sends, what it says, its exit codes."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import burnt
from burnt import nn, optim
from burnt.cli import main
from burnt.data import Loader, TensorDataset
from burnt.store import RunWriter
from burnt.store.control import Command, Inbox, waiting
from burnt.train import ClassificationOutput, Learner, SupervisedTraining


class Answering:
    """A run whose training answers each command by what a function says: (status, reason)."""

    def __init__(self, folder, answer, config):
        self.writer = RunWriter.create(folder, config=config)
        self.got = []
        self._answer, self._over = answer, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        inbox = Inbox(self.writer.lease)
        while not self._over.wait(0.01):
            for command in inbox.poll():
                self.got.append((command.kind, command.value))
                data = command._asdict() | {"command": command.kind}
                status, reason = self._answer(command)
                if status == "crash":
                    self.writer.close("crashed", reason)
                    return
                del data["kind"], data["time"]
                self.writer.event("command", 7, **data, status=status, reason=reason)
                self.writer.flush(0)

    def close(self):
        self._over.set()
        self._thread.join()
        self.writer.close("stopped", "enough")


@pytest.fixture
def answering():
    with contextlib.ExitStack() as stack:

        def begin(folder, answer=lambda command: ("done", None), config=None):
            run = Answering(folder, answer, config)
            stack.callback(run.close)
            return run

        yield begin


def ctl(capsys, *words):
    """Exit code, standard output and standard error."""
    code = main(["ctl", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "sent", "said"),
    [
        (["pause"], ("pause", None), "paused after step 7"),
        (["resume"], ("resume", None), "resumed after step 7"),
        (["stop"], ("stop", None), "stopping after step 7"),
        (["save"], ("save", None), "checkpoint saved after step 7"),
        (["lr", "1e-4"], ("lr", 1e-4), "learning rate 0.0001 after step 7"),
        (["lr", "auto"], ("lr", "auto"), "learning rate follows the schedule after step 7"),
        (["note", "two", "words"], ("note", "two words"), "note added at step 7"),
        (["note", "--", "-v is better"], ("note", "-v is better"), "note added at step 7"),
    ],
)
def test_a_command_is_sent_and_its_answer_printed(answering, capsys, words, sent, said):
    run = answering("runs/digits")
    assert ctl(capsys, "runs/digits", *words) == (0, f"runs/digits: {said}\n", "")
    assert run.got == [sent]


def test_a_learning_rate_far_from_the_former_one_is_remarked_on(answering, capsys):
    run = answering("runs/digits")
    run.writer.log(1, 1, {"learning_rate": 0.001})
    run.writer.flush()
    message = "learning rate 1e+09 after step 7: 1e+12 times the previous 0.001"
    assert ctl(capsys, "runs/digits", "lr", "1e9") == (0, f"runs/digits: {message}\n", "")
    assert ctl(capsys, "runs/digits", "lr", "2e-3")[1] == "runs/digits: learning rate 0.002 after step 7\n"
    warming_up = answering(
        "runs/warm", config={"schedule": "Warmup(steps=9, then=Constant(lr=0.003), start=0.0)"}
    )
    warming_up.writer.log(1, 1, {"learning_rate": 1e-5})
    warming_up.writer.flush()
    assert ctl(capsys, "warm", "lr", "2e-3")[1] == "runs/warm: learning rate 0.002 after step 7\n"


@pytest.mark.parametrize(
    ("word", "answer", "result"),
    [
        (
            "save",
            ("refused", "checkpoints are off"),
            (1, "", "runs/digits: save refused: checkpoints are off\n"),
        ),
        (
            "stop",
            ("done", "saving a checkpoint"),
            (0, "runs/digits: stopping after step 7, saving a checkpoint\n", ""),
        ),
        (
            "pause",
            ("crash", "ValueError: mine"),
            (1, "", "runs/digits: pause was not executed: the run has ended (crashed)\n"),
        ),
    ],
)
def test_the_reason_of_an_answer_is_reported(answering, capsys, word, answer, result):
    answering("runs/digits", lambda command: answer)
    assert ctl(capsys, "runs/digits", word, "--timeout", "60") == result


def test_no_answer_in_time_is_code_3_and_the_command_stays_as_when_none_is_waited_for(capsys):
    with RunWriter.create("runs/digits"):
        code, out, err = ctl(capsys, "runs/digits", "pause", "--timeout", "0.2")
        assert (code, out) == (3, "")
        assert (
            "runs/digits: pause was not answered within 0.2 s; it takes effect after the current step" in err
        )
        assert [type(left) for left in waiting("runs/digits")] == [Command]
        assert ctl(capsys, "runs/digits", "stop", "--no-wait") == (0, "runs/digits: stop was sent\n", "")
        assert [command.kind for command in waiting("runs/digits")] == ["pause", "stop"]


def test_a_run_is_found_by_its_name_below_runs(answering, capsys):
    for name in ("deep/digits-20260131-0915", "digits-large", "digits-large-20260131", "letters-1"):
        answering(f"runs/{name}").writer.flush()
    later = time.time() + 5
    os.utime("runs/digits-large-20260131/run.db", (later, later))
    stamped = "runs/deep/digits-20260131-0915"
    assert ctl(capsys, "digits", "pause")[:2] == (0, f"{stamped}: paused after step 7\n")
    assert ctl(capsys, "letters", "pause")[:2] == (0, "runs/letters-1: paused after step 7\n")
    answering("runs/digits").writer.flush()
    assert ctl(capsys, "digits", "pause")[:2] == (0, "runs/digits: paused after step 7\n")
    answering("digits")
    assert ctl(capsys, "digits", "pause")[:2] == (0, "digits: paused after step 7\n")


def test_of_several_runs_of_a_name_the_running_one_is_meant(answering, capsys):
    answering("runs/digits-1")
    later = time.time() + 5
    for name in ("runs/digits-2", "runs/digits-3"):
        RunWriter.create(name).close("finished")
        os.utime(f"{name}/run.db", (later, later))
    Path("runs/digits-3/run.db").write_bytes(b"damaged")
    assert ctl(capsys, "digits", "pause")[:2] == (0, "runs/digits-1: paused after step 7\n")
    fourth = answering("runs/digits-4")
    code, out, err = ctl(capsys, "digits", "stop")
    assert (code, out, fourth.got) == (2, "", [])
    assert "2 trainings named 'digits' are running" in err
    assert "runs/digits-1, runs/digits-4" in err


def test_a_run_that_is_not_there_is_reported_with_the_nearest(answering, capsys):
    answering("runs/digits")
    for word in ("runs/digit", "digit"):
        code, out, err = ctl(capsys, word, "pause")
        assert (code, out) == (2, "")
        assert "did you mean runs/digits?" in err


def test_what_is_missing_is_named_and_no_more(capsys):
    with pytest.raises(SystemExit):
        main(["ctl"])
    assert "required: RUN, COMMAND\n" in capsys.readouterr().err
    with RunWriter.create("runs/digits"):
        err = ctl(capsys, "digits", "lr")[2]
        assert "lr needs a VALUE: a number or auto" in err
        assert "None" not in err


def test_what_takes_no_commands_says_where_to_look_and_how_to_go_on(capsys):
    RunWriter.create("runs/digits").close("finished")
    message = ctl(capsys, "digits", "pause")[2]
    assert "start the same program again with the folder runs/digits and resume=True" in message
    assert "or: burnt train --resume runs/digits" in message
    os.mkdir("runs/empty")
    assert "`burnt runs list runs`" in ctl(capsys, "runs/empty", "pause")[2]


@pytest.mark.parametrize(
    ("words", "expected", "hint"),
    [
        (["lr"], "a finite number above 0", "burnt ctl RUN lr 1e-4, or burnt ctl RUN lr auto"),
        (["lr", "-1"], "a finite number above 0", "burnt ctl RUN lr 1e-4"),
        (["lr", "1", "2"], "a finite number above 0", "burnt ctl RUN lr 1e-4"),
        (["note"], "a text of 1 to 2,000 characters", "burnt ctl RUN note TEXT"),
        (["pause", "now"], "none", None),
        (["pauze"], "pause, resume, stop, save, lr, note", "did you mean 'pause'?"),
    ],
)
def test_what_cannot_be_sent_is_code_2_and_leaves_nothing(capsys, words, expected, hint):
    with RunWriter.create("runs/digits"):
        code, out, err = ctl(capsys, "runs/digits", *words)
        assert (code, out) == (2, "")
        assert f"expected  {expected}" in err
        assert hint is None or f"hint      {hint}" in err
        assert os.listdir("runs/digits/control") == []


def test_names_are_shown_as_a_terminal_takes_them(answering, capsys):
    answering("runs/red\x1b[31m")
    assert ctl(capsys, "runs/red\x1b[31m", "pause")[1] == "runs/red\\x1b[31m: paused after step 7\n"


def test_help_tells_the_commands_and_the_codes(capsys):
    with pytest.raises(SystemExit):
        main(["ctl", "--help"])
    text = capsys.readouterr().out
    for kind in ("pause", "resume", "stop", "save", "lr VALUE", "lr auto", "note TEXT"):
        assert f"\n  {kind} " in text
    assert "3 not answered yet" in text
    assert max(map(len, text.splitlines())) <= 80
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "control a running training: pause, resume, stop, save, lr, note" in capsys.readouterr().out


class Slow(burnt.Module):
    """A classifier that takes its time."""

    layer: nn.Linear

    def training_step(self, batch):
        time.sleep(0.005)
        logits = self.layer(batch.x)
        return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def test_a_real_training_is_steered(capsys):
    data = TensorDataset(x=torch.randn(64, 4), y=torch.zeros(64, dtype=torch.int64))
    training = SupervisedTraining(
        "runs/slow", train=Loader(data, 4), duration="10000 epochs", monitor="off", device="cpu", log_every=1
    )
    results = []
    learner = Learner(Slow(nn.Linear(4, 2)), optim.AdamW(), 0.01)
    thread = threading.Thread(target=lambda: results.append(training.run(learner)), daemon=True)
    thread.start()
    while main(["runs", "show", "runs/slow"]) != 0:
        time.sleep(0.05)
    capsys.readouterr()
    for words, answer in (
        (["pause"], "paused after step"),
        (["save"], "checkpoint saved after step"),
        (["lr", "0.5"], "learning rate 0.5 after step"),
        (["resume"], "resumed after step"),
        (["note", "hello"], "note added at step"),
        (["stop"], "stopping after step"),
    ):
        code, out, err = ctl(capsys, "slow", *words, "--timeout", "60")
        assert (code, err) == (0, "")
        assert out.startswith(f"runs/slow: {answer} ")
    thread.join(60)
    assert results[0].reason == "stopped"
    assert learner.optimizer is not None
    assert ctl(capsys, "slow", "pause")[0] == 1
