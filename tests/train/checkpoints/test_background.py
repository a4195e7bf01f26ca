"""Checkpoints written in the background: the same files, and no error or checkpoint is lost."""

import errno
import os
import threading
from types import SimpleNamespace

import pytest
import torch

from burnt import optim
from burnt.gradients import Gradients
from burnt.record import Record
from burnt.store.control import send
from burnt.train import Checkpoints, KeepBest, KeepLast, Position, RunReader, TrainingState
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checkpoints.saving import CheckpointWriter
from burnt.train.control import control
from burnt.train.metrics import Accuracy, Loss
from tests.faults import operations
from tests.train.cases import AtStep
from tests.train.exact import assert_equal_runs, differences, run


@pytest.fixture
def still_clock(monkeypatch):
    """Checkpoints hold the time trained, which is the same in two runs only if it stands still."""
    monkeypatch.setattr(control, "time", SimpleNamespace(perf_counter=lambda: 0.0, sleep=lambda _: None))


def files(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "checkpoints").rglob("*"))
        if path.is_file()
    }


class SlowDisk:
    """Holds the writer's thread until the training waits for it."""

    def __init__(self, monkeypatch) -> None:
        self.event = threading.Event()
        write, wait = Checkpoints._write, CheckpointWriter.wait

        def write_late(*arguments):
            if threading.current_thread() is not threading.main_thread():
                assert self.event.wait(10)
                self.event.clear()
            return write(*arguments)

        def awaited(writer):
            if writer._thread is not None:
                self.event.set()
            wait(writer)

        monkeypatch.setattr(Checkpoints, "_write", write_late)
        monkeypatch.setattr(CheckpointWriter, "wait", awaited)


def in_background(checkpoints: Checkpoints, written: list) -> CheckpointWriter:
    run = SimpleNamespace(gone=False, sync=lambda: None, event=lambda *_, **__: None)
    return CheckpointWriter(checkpoints, run, written.append, in_background=True)


def failing(monkeypatch, steps, error=OSError) -> None:
    """Make the writing of the checkpoints of some steps fail."""
    write = Checkpoints._write

    def write_or_fail(self, new, *arguments):
        if new.position.step in steps:
            raise error(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(new.path))
        return write(self, new, *arguments)

    monkeypatch.setattr(Checkpoints, "_write", write_or_fail)


SETTINGS = {"checkpoint_every": "2 steps", "validate_every": "3 steps"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("setting", ["plain", "groups"])  # these with averages
def test_the_files_are_those_of_a_training_that_waits(tmp_path, still_clock, setting):
    waited = run(tmp_path / "waited", setting, **SETTINGS)
    ours = run(tmp_path / "ours", setting, async_checkpoints=True, **SETTINGS)
    assert differences(ours.state, waited.state) == []
    assert_equal_runs(tmp_path / "ours", tmp_path / "waited")
    expected = files(tmp_path / "waited")
    assert len(expected) == 2 * len(list((tmp_path / "waited" / "checkpoints").iterdir())) >= 4
    assert files(tmp_path / "ours") == expected


def test_the_state_is_that_of_the_moment_whatever_the_training_does_meanwhile(tmp_path, monkeypatch):
    SlowDisk(monkeypatch)
    model, optimizer = torch.nn.Linear(3, 2), optim.AdamW()
    params = dict(model.named_parameters())
    gradients = Gradients({path: torch.ones_like(p) for path, p in params.items()})
    optimizer.step(0.1, params, gradients)
    expected = {path: p.detach().clone() for path, p in params.items()}
    moments = {name: t.clone() for name, t in optimizer.into_record().tensors.items()}
    document, metric = {"callbacks": {"Mine": {"seen": [1]}}}, Accuracy()
    metric.total, metric.count = torch.tensor(3.0), 4
    checkpoints, written = Checkpoints(tmp_path, [KeepLast(2)]), []
    background = in_background(checkpoints, written)
    rng = RandomStates.capture()
    state = optimizer.into_record()
    training = TrainingState(model, state, [metric], Position(1), {}, rng, document=document)
    background.save(training, None, wait=False)
    background.report()
    assert not written
    optimizer.step(0.1, params, gradients)
    document["callbacks"]["Mine"]["seen"].append(2)
    metric.total += 1
    background.report(wait=True)
    background.report(wait=True)
    (saved,) = written
    other, again = torch.nn.Linear(3, 2), Accuracy()
    loaded = checkpoints.load(saved.path, other, [again])
    for path, p in other.named_parameters():
        assert torch.equal(p, expected[path])
    assert {name: t.tolist() for name, t in loaded.optimizer.tensors.items()} == {
        name: t.tolist() for name, t in moments.items()
    }
    assert loaded.document["callbacks"] == {"Mine": {"seen": [1]}}
    assert (again.total.item(), again.count) == (3.0, 4)


def test_one_is_written_at_a_time_and_reported_when_it_is_written(tmp_path, monkeypatch):
    SlowDisk(monkeypatch)
    seen: list[tuple[str, int]] = []

    class Watch:
        def on_step(self, event):
            step = event.training.position.step
            if step == 3:
                saved = Checkpoints(event.training.writer.folder / "checkpoints").saved()
                seen.append(("on disk", len(saved)))  # that of step 2 is not
                event.training.saving.newest()  # waits

        def on_checkpoint(self, event):
            assert event.saved.path.is_dir()
            seen.append(("saved", event.saved.position.step))

    run(tmp_path / "run", "plain", async_checkpoints=True, callbacks=[Watch()], checkpoint_every="2 steps",
        duration="4 steps", validate_every="9 epochs")  # fmt: skip
    assert seen == [("on disk", 0), ("saved", 2), ("saved", 4)]
    with RunReader(tmp_path / "run") as reader:
        events = reader.events("checkpoint")
    assert [(event.step, event.data["path"]) for event in events] == [
        (2, "step-00000002"), (4, "step-00000004"),
    ]  # fmt: skip
    assert all(event.data["bytes"] > 1000 for event in events)


def test_a_full_disk_ends_the_training_at_the_next_step(tmp_path, monkeypatch):
    failing(monkeypatch, {4})

    wait = AtStep({5: lambda training: training.saving.newest()})
    with pytest.raises(OSError, match="No space left") as caught:
        run(tmp_path / "run", "plain", async_checkpoints=True, callbacks=[wait], **SETTINGS)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.endswith("step-00000004")
    assert caught.value.__notes__[0] == "while the checkpoint step-00000004 was written in the background"
    with RunReader(tmp_path / "run") as reader:
        (event,) = reader.events("error")
        assert (reader.state(), event.step) == ("crashed", 5)
        assert [e.step for e in reader.events("checkpoint")] == [2, 3]
    monkeypatch.undo()
    assert run(tmp_path / "run", "plain", resume=True, duration="5 steps", **SETTINGS).finished
    with RunReader(tmp_path / "run") as reader:
        assert reader.attempts()[-1].resumed_from_step == 3
        assert reader.points("loss").steps == [1, 2, 3, 4, 5]


def test_an_error_of_the_last_checkpoint_is_raised_at_the_end(tmp_path, monkeypatch):
    failing(monkeypatch, {5})
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "run", "plain", async_checkpoints=True, duration="5 steps")
    with RunReader(tmp_path / "run") as reader:
        assert reader.state() == "crashed"


def crash(_) -> None:
    raise KeyError("mine")


def test_an_exception_waits_for_the_checkpoint(tmp_path, monkeypatch):
    SlowDisk(monkeypatch)
    with pytest.raises(KeyError, match="mine"):
        run(tmp_path / "run", "plain", async_checkpoints=True, callbacks=[AtStep({3: crash})])
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    with RunReader(tmp_path / "run") as reader:
        assert [event.step for event in reader.events("checkpoint")] == [2]


def test_an_exception_tells_of_a_checkpoint_that_failed_too(tmp_path, monkeypatch):
    failing(monkeypatch, {2})
    SlowDisk(monkeypatch)
    with pytest.raises(KeyError, match="mine") as caught:
        run(tmp_path / "run", "plain", async_checkpoints=True, callbacks=[AtStep({3: crash})])
    note, line = caught.value.__notes__
    assert 'raise KeyError("mine")' in line
    assert note.startswith("OSError: [Errno 28] No space left on device")
    assert note.endswith("while the checkpoint step-00000002 was written in the background")


def test_a_command_is_answered_when_the_checkpoint_is_written(tmp_path):
    folder, seen = tmp_path / "run", []

    class Ask:
        def on_step(self, event):
            if event.training.position.step == 4:
                send(folder, "save")

        def on_checkpoint(self, event):
            if event.saved.kept:
                seen.append(event.saved.path.is_dir())

    run(folder, "plain", async_checkpoints=True, callbacks=[Ask()], checkpoint_every="1 epoch")
    assert seen == [True]
    with RunReader(folder) as reader:
        kinds = [e.kind for e in reader.events() if e.step == 4 and e.kind in ("checkpoint", "command")]
        (answer,) = reader.events("command")
    assert kinds == ["checkpoint", "command"]
    assert answer.data["status"] == "done"


def test_a_command_does_not_hide_the_error_of_an_earlier_checkpoint(tmp_path, monkeypatch):
    failing(monkeypatch, {4})
    SlowDisk(monkeypatch)
    folder = tmp_path / "run"
    ask = AtStep({5: lambda _: send(folder, "save")})
    with pytest.raises(OSError, match="No space left"):
        run(folder, "plain", async_checkpoints=True, callbacks=[ask], checkpoint_every="4 steps",
            validate_every="9 epochs")  # fmt: skip
    with RunReader(folder) as reader:
        (answer,) = reader.events("command")
        assert (answer.data["status"], answer.step) == ("refused", 5)
        assert "No space left" in answer.data["reason"]
        assert reader.events("error")[0].step == 6


def test_the_best_are_saved_and_kept_as_by_a_training_that_waits(tmp_path, monkeypatch):
    SlowDisk(monkeypatch)
    settings = {"validate_every": "1 step", "checkpoint_every": "9 epochs", "duration": "9 steps",
                "checkpoints": [KeepLast(1), KeepBest(Loss())]}  # fmt: skip
    seen = []
    for name, is_async in (("waited", False), ("ours", True)):
        run(tmp_path / name, "plain", async_checkpoints=is_async, schedule=optim.Constant(1.0), **settings)
        with RunReader(tmp_path / name) as reader:
            saved = [event.step for event in reader.events("checkpoint")]
        seen.append((saved, sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir())))
    assert seen[0] == seen[1]
    assert 3 <= len(seen[0][0]) < 9


def test_every_operation_on_files_may_fail(tmp_path):
    """With a full disk: the error is raised, and the checkpoint before can be loaded."""
    model, optimizer = torch.nn.Linear(2, 2), optim.Sgd()
    for at in range(1, 99):
        folder = tmp_path / str(at)
        checkpoints, written = Checkpoints(folder, [KeepLast(1)]), []
        background = in_background(checkpoints, written)
        rng = RandomStates.capture()
        first, second = (
            TrainingState(model, optimizer.into_record(), [], Position(step), {}, rng) for step in (1, 2)
        )
        checkpoints.save(first)
        with operations(at, "full") as done:
            background.save(second, None, wait=False)
            background.wait()
        if not done.failed:
            break
        with pytest.raises(OSError, match=r"No space left|is full"):
            background.report()
        Record.load(checkpoints.newest() / "model.safetensors")
    background.report()
    assert [saved.position.step for saved in written] == [2]
    assert at > 6


def test_without_checkpoints_nothing_is_written_in_the_background(tmp_path):
    run(tmp_path / "run", "plain", async_checkpoints=True, checkpoints=None, duration="2 steps")
    assert not list((tmp_path / "run").glob("checkpoints/*"))
