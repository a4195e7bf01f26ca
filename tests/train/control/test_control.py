"""Run commands, sent to a training through files in its run folder, as another program would."""

import contextlib
import errno
import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import BurntError, NonFiniteError
from burnt.store import writer
from burnt.store.control import Acknowledgement, acknowledgement, send
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    Interrupted,
    KeepLast,
    Learner,
    RunReader,
    SupervisedTraining,
    loop,
)
from burnt.train.checkpoints.checkpoint import Checkpoints
from burnt.train.code.source import started_by
from burnt.train.control.control import TrainingClock
from burnt.train.control.end_reason import cause_of
from tests import forked
from tests.train.cases import assert_same_tensors

STEPS, PER_EPOCH = 12, 4


class Trial:
    """A training of 3 epochs with 4 steps each, and 5 validation batches after each epoch.

    `at` maps a step, or a validation batch as (step, batch), to what happens during it: commands as
    (kind, value), or a function of the trial.
    """

    def __init__(self, folder: Path, at: dict[Any, Any] | None = None, **settings: Any) -> None:
        torch.manual_seed(settings.pop("init_seed", 0))
        self.folder, self.at = folder, dict(at or {})
        self.ids: list[str] = []
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.done, self.validated = 0, 0
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.optimizer = optim.AdamW()
        self.schedule = settings.pop("schedule", None) or optim.Cosine(3e-2, STEPS)
        taken = self.optimizer.step

        def noted(rate, model, grads):
            self.done += 1
            self.rates[self.done] = rate
            self.validated = 0
            return taken(rate, model, grads)

        self.optimizer.step = noted  # type: ignore[method-assign]
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(20, 4, generator=generator)
        data = TensorDataset(x=x, y=(x.sum(1) > 0).long())
        self.training = SupervisedTraining(
            folder,
            **{
                "train": Loader(data, 5, shuffle=True, seed=3),
                "valid": Loader(data, 4),
                "duration": "3 epochs",
                "log_every": 1,
                "device": "cpu",
                "monitor": "off",
                "checkpoints": [KeepLast(20)],
                **settings,
            },
        )

    def run(self) -> "Trial":
        newest = sorted(self.folder.glob("checkpoints/step-*"))
        if self.training.resume and newest:
            self.done = int(newest[-1].name.removeprefix("step-"))
        self.result = self.training.run(Learner(self.model, self.optimizer, self.schedule, step=self.step))
        return self

    def step(self, model: nn.Module, batch: Batch) -> ClassificationOutput:
        logits = model(batch.x)
        loss = F.cross_entropy(logits, batch.y)
        if not loss.is_meta and (self.folder / "run.db").exists():  # not the look before the first step
            if model.training:
                self.losses[self.done + 1] = loss.item()
                self.happen(self.done + 1)
            else:
                loss = loss + 0.1 * torch.rand(())  # a validation has its part of the random numbers
                self.validated += 1
                self.happen((self.done, self.validated))
        return ClassificationOutput(loss, logits, batch.y)

    def happen(self, now: Any) -> None:
        todo = self.at.pop(now, ())
        if callable(todo):
            todo(self)
        else:
            for kind, value in todo:
                self.ids.append(send(self.folder, kind, value))

    def answers(self) -> list[Acknowledgement]:
        with RunReader(self.folder) as reader:
            found = [acknowledgement(reader, id) for id in self.ids]
        assert None not in found
        return [answer for answer in found if answer is not None]

    def events(self, kind: str) -> list[tuple[int | None, dict[str, Any]]]:
        with RunReader(self.folder) as reader:
            return [(event.step, event.data) for event in reader.events(kind)]

    def end(self) -> tuple[str | None, str | None]:
        with RunReader(self.folder) as reader:
            return reader.attempts()[-1].end_state, reader.attempts()[-1].end_reason

    def state(self) -> dict[str, torch.Tensor]:
        return {**self.model.state_dict(), **self.optimizer.into_record().tensors}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Trial:
    """A training that nobody steered."""
    return Trial(tmp_path_factory.mktemp("whole") / "run").run()


def assert_ends_as(trial: Trial, whole: Trial) -> None:
    assert_same_tensors(trial.state(), whole.state())
    assert dict(trial.result.values) == dict(whole.result.values)


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a condition gives once it holds."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.01)
    return found


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def activity(folder: Path) -> str | None:
    with RunReader(folder) as reader:
        progress = reader.progress()
    return progress and progress.activity


def pausing(during: Callable[[Trial], None]) -> Callable[[Trial], None]:
    """Pause; once the training is paused something is done by another thread, and the training goes on."""

    def meanwhile(trial: Trial) -> None:
        try:
            wait_for(lambda: activity(trial.folder) == "paused")
            during(trial)
            trial.ids.append(send(trial.folder, "resume"))
        except BaseException:
            with contextlib.suppress(BurntError):
                send(trial.folder, "stop")  # so that the test ends
            raise

    def happen(trial: Trial) -> None:
        trial.ids.append(send(trial.folder, "pause"))
        trial.helper = in_background(lambda: meanwhile(trial))  # type: ignore[attr-defined]

    return happen


# pause and resume


def test_a_paused_training_waits_and_goes_on_as_if_nothing_had_been(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(writer, "HEARTBEAT_SECONDS", 0.4)
    monkeypatch.setattr(writer, "_FLUSH_SECONDS", 0.1)
    seen: list[Any] = []

    def look(trial: Trial) -> None:
        with RunReader(trial.folder) as reader:
            before = reader.attempts()[-1].heartbeat
            # The heartbeat goes on without a step.
            wait_for(lambda: reader.attempts()[-1].heartbeat > before)
            seen.extend([trial.done, reader.state(), reader.progress().step])

    trial = Trial(tmp_path / "run", {5: pausing(look)}).run()
    assert seen == [5, "running", 5]
    assert trial.losses == whole.losses
    assert_ends_as(trial, whole)
    assert [(a.command, a.status, a.reason, a.step) for a in trial.answers()] == [
        ("pause", "done", None, 5),
        ("resume", "done", None, 5),
    ]
    assert [trial.events(kind)[0][0] for kind in ("paused", "resumed")] == [5, 5]
    with RunReader(trial.folder) as reader:
        (paused,), (resumed,) = reader.events("paused"), reader.events("resumed")
        assert resumed.time - paused.time > 0.2
        # The step after the pause took no longer than others.
        speeds = reader.points("steps_per_second").values
        assert speeds[5] > 5 / (resumed.time - paused.time)
        assert reader.progress().activity == "training"
        paused_seconds = reader.progress().data["paused_seconds"]
        assert paused_seconds == pytest.approx(resumed.time - paused.time, abs=0.2)


def test_a_pause_in_a_validation_waits_between_its_batches(tmp_path, whole):
    seen: list[Any] = []

    def look(trial: Trial) -> None:
        seen.extend([trial.done, trial.validated])

    trial = Trial(tmp_path / "run", {(8, 2): pausing(look)}).run()
    assert seen == [8, 2]
    assert trial.losses == whole.losses
    assert_ends_as(trial, whole)
    assert [a.status for a in trial.answers()] == ["done", "done"]


def test_commands_are_carried_out_while_paused(tmp_path):
    def work(trial: Trial) -> None:
        for kind, value in (("note", "look here"), ("save", None), ("lr", 0.5), ("pause", None)):
            trial.ids.append(send(trial.folder, kind, value))
        with RunReader(trial.folder) as reader:
            for id in trial.ids:
                wait_for(lambda id=id: acknowledgement(reader, id))
        assert (trial.folder / "checkpoints" / "step-00000002").is_dir()

    trial = Trial(tmp_path / "run", {2: pausing(work)}).run()
    assert [(a.command, a.status, a.reason) for a in trial.answers()] == [
        ("pause", "done", None),
        ("note", "done", None),
        ("save", "done", None),
        ("lr", "done", None),
        ("pause", "refused", "the training is already paused"),
        ("resume", "done", None),
    ]
    assert (trial.rates[2] == optim.Cosine(3e-2, STEPS)(1), trial.rates[3]) == (True, 0.5)


def test_a_stop_ends_a_pause(tmp_path):
    def stop(trial: Trial) -> None:
        trial.ids.append(send(trial.folder, "stop"))

    trial = Trial(tmp_path / "run", {5: pausing(stop)}).run()
    assert (trial.result.reason, trial.done) == ("stopped", 5)
    trial.helper.join()  # type: ignore[attr-defined]
    # The resume came when it was too late, or as the training ended.
    assert [a.status for a in trial.answers()[:2]] == ["done", "done"]
    assert trial.result.checkpoints[-1].path.name == "step-00000005"


def test_resume_without_a_pause_is_refused(tmp_path, whole):
    trial = Trial(tmp_path / "run", {3: [("resume", None)]}).run()
    assert trial.answers()[0][3:6] == ("refused", "the training is not paused", 3)
    assert trial.losses == whole.losses


# stop


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", [1, 4, 6, 12])
def test_a_stopped_training_is_saved_and_resumes_as_if_it_had_never_stopped(tmp_path, whole, step):
    first = Trial(tmp_path / "run", {step: [("stop", None)]}).run()
    assert first.result.reason == "stopped"
    assert first.result.checkpoints[-1].position.step == step
    (answer,) = first.answers()
    assert (answer.status, answer.reason, answer.step) == ("done", "saving a checkpoint", step)
    state, reason = first.end()
    assert state == "stopped"
    assert reason is not None
    assert reason.startswith("stopped by ")
    assert " on " in reason
    second = Trial(tmp_path / "run", resume=True, init_seed=9).run()
    assert {**first.losses, **second.losses} == whole.losses
    assert_ends_as(second, whole)
    assert os.listdir(tmp_path / "run" / "control") == []


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_stopped_in_a_validation_it_leaves_it_and_validates_anew_when_resumed(tmp_path, whole, batch):
    first = Trial(tmp_path / "run", {(4, batch): [("stop", None)]}).run()
    assert (first.result.reason, first.validated) == ("stopped", batch)
    assert first.answers()[0].status == "done"
    second = Trial(tmp_path / "run", resume=True, init_seed=9).run()
    assert {**first.losses, **second.losses} == whole.losses
    assert_ends_as(second, whole)


def test_a_training_without_checkpoints_is_stopped_too(tmp_path, capsys):
    trial = Trial(
        tmp_path / "run",
        {2: [("save", None), ("stop", None), ("lr", 1.0)]},
        checkpoints=None,
        monitor="plain",
    ).run()
    save, stop, late = trial.answers()
    assert save[3:6] == ("refused", "checkpoints are off for this run", 2)
    assert (stop.status, stop.reason) == (
        "done",
        "nothing is saved, because checkpoints are off for this run",
    )
    assert late.status == "refused"
    assert str(late.reason).endswith(" is stopping the training")
    assert "Nothing is saved: checkpoints are off for this run." in capsys.readouterr().out


# save


def test_a_checkpoint_is_saved_when_it_is_asked_for(tmp_path, whole):
    trial = Trial(tmp_path / "run", {6: [("save", None), ("save", None)]}).run()
    assert [(a.status, a.step) for a in trial.answers()] == [("done", 6)] * 2
    assert [s.position.step for s in trial.result.checkpoints] == [4, 6, 8, 12]
    saved = [data for step, data in trial.events("checkpoint") if step == 6]
    size = sum(file.stat().st_size for file in (tmp_path / "run/checkpoints/step-00000006").iterdir())
    assert [(data["path"], data["bytes"]) for data in saved] == [("step-00000006", size)]
    assert trial.losses == whole.losses


@pytest.mark.full
def test_a_checkpoint_that_was_asked_for_stays_whatever_the_keepers_want(tmp_path, whole, capsys):
    # Asked for between two steps, where an automatic one is due too, and in a validation.
    at = {2: [("save", None)], 4: [("save", None)], (8, 2): [("save", None)], 10: [("stop", None)]}
    settings = {"checkpoints": [KeepLast(1)], "checkpoint_every": "4 steps", "monitor": "plain"}
    first = Trial(tmp_path / "run", at, **settings).run()
    assert [(s.position.step, s.kept) for s in first.result.checkpoints] == [
        *((2, True), (4, True), (8, True), (10, False))
    ]
    assert "step-00000002 (kept for good)" in capsys.readouterr().out
    second = Trial(tmp_path / "run", resume=True, init_seed=9, **settings).run()
    assert [s.position.step for s in second.result.checkpoints] == [2, 4, 8, 12]
    assert_ends_as(second, whole)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"checkpoint_every": "3 steps", "validate_every": "2 steps"}])
def test_a_checkpoint_of_the_middle_of_a_validation_is_from_before_it(tmp_path, settings):
    whole = Trial(tmp_path / "whole", **settings).run()
    copied = tmp_path / "copied" / "checkpoints" / "step-00000004"

    def copy(trial: Trial) -> None:
        assert trial.answers()[0].status == "done"
        shutil.copytree(trial.folder / "checkpoints" / "step-00000004", copied)

    def saved(trial: Trial) -> bool:
        with RunReader(trial.folder) as reader:
            return acknowledgement(reader, trial.ids[0]) is not None

    def wait_and_copy(trial: Trial) -> None:
        wait_for(lambda: saved(trial))
        copy(trial)

    trial = Trial(tmp_path / "run", {(4, 2): [("save", None)], (4, 3): wait_and_copy}, **settings).run()
    assert trial.losses == whole.losses
    assert_ends_as(trial, whole)
    # With what the validation found, the checkpoint that was due is written all the same.
    newest = {s.position.step: s for s in trial.result.checkpoints}
    if not settings:
        assert "valid/loss" in newest[4].values
    resumed = Trial(tmp_path / "copied", resume=True, init_seed=9, **settings).run()
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 4}
    assert_ends_as(resumed, whole)
    with RunReader(resumed.folder) as ours, RunReader(whole.folder) as theirs:
        # The validation is done anew.
        assert dict(zip(*ours.points("loss", "valid")[::2], strict=True)) == {
            step: loss for step, loss in zip(*theirs.points("loss", "valid")[::2], strict=True) if step >= 4
        }


def test_no_checkpoint_of_a_loss_that_is_not_finite(tmp_path):
    def nan(trial: Trial) -> None:
        trial.ids.append(send(trial.folder, "save"))
        with torch.no_grad():
            trial.model[0].weight.fill_(math.nan)

    trial = Trial(tmp_path / "run", {2: nan}, log_every=100)
    with pytest.raises(NonFiniteError, match="the loss became nan"):
        trial.run()
    (answer,) = trial.answers()
    assert (answer.status, answer.step) == ("refused", 2)
    assert "after a finite loss, became nan" in str(answer.reason)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    ((step, data),) = trial.events("error")
    assert (step, data["cause"], data["first_step"], data["last_step"]) == (4, "nan", 3, 3)


def test_a_full_disk_refuses_a_save_and_the_training_goes_on(tmp_path, whole, monkeypatch):
    save = Checkpoints.save

    def full_once(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(Checkpoints, "save", save)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Checkpoints, "save", full_once)
    trial = Trial(tmp_path / "run", {2: [("save", None)]}).run()
    (answer,) = trial.answers()
    assert (answer.status, answer.reason) == ("refused", "OSError: [Errno 28] No space left on device")
    assert [s.position.step for s in trial.result.checkpoints] == [4, 8, 12]
    assert trial.losses == whole.losses


# learning rate


def test_a_learning_rate_that_is_set_holds_until_auto(tmp_path):
    schedule = optim.Cosine(3e-2, STEPS)
    trial = Trial(tmp_path / "run", {3: [("lr", 0.5)], 5: [("lr", 0.25)], 7: [("lr", "auto")]}).run()
    expected = {step: schedule(step - 1) for step in range(1, STEPS + 1)} | {4: 0.5, 5: 0.5, 6: 0.25, 7: 0.25}
    assert trial.rates == expected
    with RunReader(trial.folder) as reader:
        assert reader.points("learning_rate").values == list(expected.values())
    assert trial.events("learning_rate") == [(3, {"value": 0.5}), (5, {"value": 0.25}), (7, {"value": None})]
    assert [(a.value, a.status, a.step) for a in trial.answers()] == [
        (0.5, "done", 3),
        (0.25, "done", 5),
        ("auto", "done", 7),
    ]


@pytest.mark.parametrize("command", ["live.py:main", None])
def test_a_stopped_training_tells_how_to_go_on(tmp_path, capsys, command):
    with started_by(command, []) if command else contextlib.nullcontext():
        Trial(tmp_path / "the run", {2: [("stop", None)]}, monitor="plain").run()
    output = capsys.readouterr().out
    assert f"run the same program with the folder {tmp_path / 'the run'} and resume=True" in output
    assert (f"From the shell: burnt train --resume '{tmp_path / 'the run'}'" in output) == bool(command)


@pytest.mark.full
def test_a_checkpoint_keeps_the_learning_rate_that_was_set(tmp_path, capsys):
    Trial(tmp_path / "run", {3: [("lr", 0.5)], 6: [("stop", None)]}).run()
    resumed = Trial(
        tmp_path / "run", {9: [("lr", "auto"), ("stop", None)]}, resume=True, monitor="plain"
    ).run()
    assert resumed.rates == {7: 0.5, 8: 0.5, 9: 0.5}
    output = capsys.readouterr().out
    assert "The learning rate stays at 0.5, set by an earlier command." in output
    assert f"To return to the schedule: burnt ctl {tmp_path / 'run'} lr auto" in output
    assert (6, {"value": 0.5}) in resumed.events("learning_rate")[1:]
    last = Trial(tmp_path / "run", resume=True, monitor="plain").run()
    assert last.rates == {step: optim.Cosine(3e-2, STEPS)(step - 1) for step in (10, 11, 12)}
    assert "set by an earlier command" not in capsys.readouterr().out


@pytest.mark.full
def test_a_changed_schedule_ends_the_learning_rate_that_was_set(tmp_path, capsys):
    Trial(tmp_path / "run", {3: [("lr", 0.5)], 6: [("stop", None)]}).run()
    resumed = Trial(
        tmp_path / "run", {7: [("stop", None)]}, resume=True, monitor="plain", schedule=optim.Constant(0.25)
    ).run()
    assert resumed.rates == {7: 0.25}
    output = capsys.readouterr().out
    assert "the learning rate 0.5 that a command had set no longer holds" in output
    assert "set by an earlier command" not in output


@pytest.mark.full
def test_a_checkpoint_from_before_there_was_such_a_thing_is_resumed(tmp_path, whole, monkeypatch):
    document = loop.checkpoint_document
    with monkeypatch.context() as patch:
        patch.setattr(
            loop,
            "checkpoint_document",
            lambda *args: {k: v for k, v in document(*args).items() if k != "learning_rate"},
        )
        Trial(tmp_path / "run", {6: [("stop", None)]}).run()
    assert_ends_as(Trial(tmp_path / "run", resume=True, init_seed=9).run(), whole)


# notes, and what is wrong


def test_a_note_is_an_event(tmp_path, capsys):
    trial = Trial(tmp_path / "run", {3: [("note", "new data\nfrom here")]}, monitor="plain").run()
    assert "note new data\\nfrom here from " in capsys.readouterr().out  # no terminal obeys it
    ((step, data),) = trial.events("note")
    assert (step, data["text"]) == (3, "new data\nfrom here")
    assert " on " in data["sender"]
    assert trial.answers()[0][1:6] == ("note", "new data\nfrom here", "done", None, 3)


def test_garbage_never_hurts_and_is_refused_once(tmp_path, whole, capsys):
    def garbage(trial: Trial) -> None:
        control = trial.folder / "control"
        (control / "half.json").write_text('{"version": 1, "id"')
        (control / "huge.json").write_bytes(b"0" * 10_000_000)
        (control / "newer.json").write_text('{"version": 7, "id": "newer", "kind": "dance"}')
        (control / "bad.json").write_text('{"version": 1, "id": "bad", "kind": "lr", "value": -1}')
        os.mkfifo(control / "pipe")
        (control / "folder").mkdir()

    trial = Trial(tmp_path / "run", {2: garbage, (4, 1): garbage_again}, monitor="plain").run()
    assert trial.losses == whole.losses
    assert_ends_as(trial, whole)
    refused = {data["id"]: (step, data["status"], data["command"]) for step, data in trial.events("command")}
    assert refused == {
        **dict.fromkeys(["half", "huge", "newer", "pipe", "folder"], (2, "refused", None)),
        "bad": (2, "refused", "lr"),
        "again": (4, "refused", None),
    }
    assert os.listdir(trial.folder / "control") == ["refused"]
    output = capsys.readouterr().out
    assert output.count("control/half refused: it is not JSON in UTF-8") == 1
    assert "control/newer refused: it has version 7" in output


def garbage_again(trial: Trial) -> None:
    (trial.folder / "control" / "again").write_text("x")


def test_what_comes_in_the_last_step_is_answered(tmp_path):
    trial = Trial(tmp_path / "run", {(12, 5): [("note", "late")]}).run()
    assert trial.answers()[0].status == "done"  # the validation of the last step is part of the training


def test_what_arrives_as_a_training_fails_is_refused(tmp_path):
    def fail(trial: Trial) -> None:
        trial.ids.append(send(trial.folder, "save"))
        raise ValueError("mine")

    trial = Trial(tmp_path / "run", {3: fail})
    with pytest.raises(ValueError, match="mine"):
        trial.run()
    assert trial.answers()[0][3:6] == ("refused", "the training has ended", 2)
    assert os.listdir(trial.folder / "control") == []


# in a process of its own, with signals

SCRIPT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("trial", sys.argv[1])
trial = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trial)
from pathlib import Path
trial.Trial(Path(sys.argv[2]), {5: [("pause", None)]}, monitor="plain").run()
"""


@contextlib.contextmanager
def paused_process(folder: Path):
    """A training in a process, paused after step 5, and the future of what it leaves."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(forked.run, SCRIPT, __file__, folder, timeout=120)
        wait_for(lambda: (folder / "run.db").exists() or ended.done(), 60)
        wait_for(lambda: ended.done() or activity(folder) == "paused", 60)
        assert not ended.done(), ended.result()
        with RunReader(folder) as reader:
            process = psutil.Process(reader.attempts()[-1].pid)
        try:
            yield process, ended
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.mark.full
def test_killed_while_paused_it_resumes_unpaused(tmp_path, whole):
    folder = tmp_path / "run"
    with paused_process(folder) as (process, _):
        process.kill()
        process.wait(30)
        with RunReader(folder) as reader:
            wait_for(lambda: reader.state() == "crashed")
    # One that the process has not seen any more, as by a sender that was faster than its look.
    late = {"version": 1, "id": "late", "kind": "stop", "attempt": 1}
    (folder / "control" / "late.json").write_text(json.dumps(late))
    resumed = Trial(folder, resume=True, init_seed=9).run()
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 4}
    assert_ends_as(resumed, whole)
    assert resumed.events("command")[-1][1]["reason"] == "it was sent before this attempt started"


def test_commands_reach_a_training_in_another_process(tmp_path):
    folder = tmp_path / "run"
    with paused_process(folder) as (_, ended), RunReader(folder) as reader:
        ids = [send(folder, "note", "from outside"), send(folder, "stop")]
        answers = [wait_for(lambda id=id: acknowledgement(reader, id)) for id in ids]
        done = ended.result(30)
    assert [a.status for a in answers] == ["done", "done"]
    assert done.returncode == 0, done
    assert "note from outside from " in done.stdout
    assert "with the folder" in done.stdout


# what is recorded for viewers


@pytest.mark.full
def test_why_a_training_failed_is_an_event(tmp_path):
    def fail(trial: Trial) -> None:
        raise ValueError("mine")

    trial = Trial(tmp_path / "run", {3: fail})
    with pytest.raises(ValueError, match="mine"):
        trial.run()
    ((step, data),) = trial.events("error")
    expected = (2, "ValueError", "mine", "exception")
    assert (step, data["error"], data["message"], data["cause"]) == expected
    assert data["traceback"].startswith("Traceback (most recent call last):")
    assert "in fail" in data["traceback"]
    assert trial.end() == ("crashed", "ValueError: mine")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("no space in memory of mine"), "exception"),
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "out of memory"),
    ],
)
def test_what_is_out_of_memory(error, cause):
    assert cause_of(error) == cause


def test_memory_that_the_allocator_does_not_give_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert cause_of(caught.value) == "out of memory"
    wrapped = BurntError("a step fails")
    wrapped.__cause__ = caught.value
    assert cause_of(wrapped) == "out of memory"


def test_a_traceback_is_kept_in_bounds(tmp_path):
    def deep(trial: Trial, left: int = 900) -> None:
        if left:
            exec(f"deep(trial, left - 1)  # {left}", {"deep": deep, "trial": trial, "left": left})
        raise ValueError("x" * 50_000)

    trial = Trial(tmp_path / "run", {3: deep})
    with pytest.raises((ValueError, RecursionError)):
        trial.run()
    text = trial.events("error")[0][1]["traceback"]
    assert 15_000 < len(text) < 21_000


def test_the_countdown_of_early_stopping_is_reported_after_each_validation(tmp_path):
    stopping = EarlyStopping("loss", patience="2 epochs", min_delta=100.0)
    trial = Trial(tmp_path / "run", stopping=stopping, duration="9 epochs").run()
    assert trial.result.reason == "stopped early"
    reported = trial.events("stopping")
    assert [(step, data["waited"], data["left"]) for step, data in reported] == [
        (4, 0, 2),
        (8, 1, 1),
        (12, 2, 0),
    ]
    assert reported[0][1].keys() == {"metric", "best", "waited", "left", "patience"}
    assert (reported[0][1]["metric"], reported[0][1]["patience"]) == ("valid/loss", "2 epochs")
    state = {k: reported[0][1][k] for k in ("metric", "best", "patience")}
    reason = f"valid/loss has not improved on {stopping.best:.4f} for 2 epochs"
    assert trial.events("early_stopping") == [(12, {**state, "reason": reason})]


def test_the_model_is_a_table(whole):
    with RunReader(whole.folder) as reader:
        (table,) = reader.artefacts("table", "model")
    assert table.data["columns"] == ["path", "layer", "output shape", "parameters"]
    assert table.data["rows"] == [
        ["", "Sequential", "(5, 2)", 0],
        ["0", "Linear(4 -> 8)", "(5, 8)", 40],
        ["1", "Dropout", "(5, 8)", 0],
        ["2", "Linear(8 -> 2)", "(5, 2)", 18],
    ]


def test_what_cannot_be_recorded_is_a_line_in_the_log(tmp_path, whole, monkeypatch):
    def fail(module: nn.Module) -> str:
        raise ZeroDivisionError("its own")

    monkeypatch.setattr("burnt.train.reporting.run_tables.describe", fail)
    trial = Trial(tmp_path / "run").run()
    assert trial.losses == whole.losses
    with RunReader(trial.folder) as reader:
        assert reader.artefacts("table", "model") == []
        lines = [line.text for line in reader.log_lines() if line.level == "warning"]
    assert lines == ["Cannot record the table 'model': ZeroDivisionError: its own"]


def test_the_clock_of_a_training_stands_still_meanwhile(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = TrainingClock()
    now[0] = 12.0
    with clock.stopped():
        now[0] = 20.0
        assert clock.seconds() == 2.0
        with clock.stopped():
            now[0] = 30.0
        now[0] = 31.0
        assert clock.seconds() == 2.0
    now[0] = 32.5
    assert clock.seconds() == 3.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_pause_and_saves(tmp_path, whole, number):
    def interrupt(trial: Trial) -> None:
        os.kill(os.getpid(), number)

    trial = Trial(tmp_path / "run", {5: pausing(interrupt)})
    with pytest.raises(Interrupted):
        trial.run()
    assert trial.end() == ("stopped", f"interrupted by {number.name}")
    assert trial.events("signal") == [(5, {"signal": number.name})]
    resumed = Trial(tmp_path / "run", resume=True, init_seed=9).run()
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 5}
    assert_ends_as(resumed, whole)
