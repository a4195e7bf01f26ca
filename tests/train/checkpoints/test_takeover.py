"""A training that stood still while another process resumed its run: it ends, and changes nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch

from burnt import optim
from burnt.cli import main
from burnt.errors import RunError, TakenOverError
from burnt.record import Record
from burnt.store import RunWriter, control, opening, schema
from burnt.store import writer as writer_module
from burnt.store.control import Inbox, send
from burnt.train import (
    KeepLast,
    Learner,
    Profiler,
    RunReader,
    StepOutput,
    SupervisedTraining,
    TensorBoard,
    training,
)
from burnt.train.checkpoints import checkpoint
from tests.train.cases import AtStep


def step(model, batch):
    return StepOutput(model(batch).square().mean(), targets=batch)


def train(folder: Path, *, mark: float, steps: int = 8, **settings) -> None:
    """Train, with checkpoints in which a buffer says who wrote them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    model.register_buffer("mark", torch.tensor(mark))

    class Mark:
        def on_start(self, event) -> None:
            model.mark.fill_(mark)

    options = {"checkpoint_every": "2 steps", "checkpoints": [KeepLast(9)], "train": [torch.ones(4, 2)] * 4}
    callbacks = [Mark(), *settings.pop("callbacks", ())]
    SupervisedTraining(
        folder, **{**options, **settings}, duration=f"{steps} steps", callbacks=callbacks, monitor="off",
        device="cpu", check=False,
    ).run(Learner(model, optim.Sgd(), 0.1, step))  # fmt: skip


class Resumes:
    """Has the run resumed by another training after a step, as if this one had been silent for long."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, at: int = 3, **settings) -> None:
        self.folder, self.patch, self.at, self.settings = folder, patch, at, settings
        self.before: dict[str, tuple[int, bytes]] | None = None
        self.rows: list[tuple[object, ...]] = []

    def on_step(self, event) -> None:
        if event.training.position.step == self.at and self.before is None:
            event.training.saving.newest()  # waits for the one in the background
            self.resume()

    def resume(self) -> None:
        self.before = {}
        with self.patch.context() as patch:
            patch.setattr(opening, "writing_state", lambda *_: "stale")
            patch.setattr(training, "time", lambda: 1e12)  # the other one's thread goes on meanwhile
            train(self.folder, mark=2.0, **{"resume": True, "steps": 6, **self.settings})
        self.before, self.rows = files(self.folder), rows(self.folder)


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Return how many rows of each kind the attempts have, and how they ended."""
    tables = ("point", "event", "log_line", "artefact", "progress")
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        counts = [
            row
            for table in tables
            for row in connection.execute(
                f"SELECT '{table}', attempt, count(*) FROM {table} GROUP BY attempt"
            )
        ]
        return counts + connection.execute("SELECT id, end_state FROM attempt").fetchall()


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return inode and content of all files but run.db's, which both processes keep open."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("run.db")
    }


def writers(folder: Path) -> dict[int, float]:
    return {
        int(path.name[5:]): float(Record.load(path / "model.safetensors").tensors["mark"])
        for path in sorted((folder / "checkpoints").glob("step-*"))
    }


def ends_by(folder: Path, resumes: Resumes, callbacks=(), **settings) -> str:
    """Train until the other one takes over; return the message."""
    with pytest.raises(TakenOverError) as caught:
        train(folder, mark=1.0, callbacks=[resumes, *callbacks], **settings)
    assert files(folder) == resumes.before
    assert rows(folder) == resumes.rows
    assert resumes.rows[-2:] == [(1, None), (2, "finished")]
    return str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_async", [False, True])
def test_it_ends_before_the_next_checkpoint(tmp_path, monkeypatch, capsys, is_async):
    text = ends_by(tmp_path / "run", Resumes(tmp_path / "run", monkeypatch), async_checkpoints=is_async)
    assert text.startswith("attempt 2 took over the run, which this process no longer writes\n")
    assert f"in        {tmp_path / 'run'}\n" in text
    assert f"expected  attempt 1: pid {os.getpid()}\n" in text
    assert f"found     attempt 2: pid {os.getpid()} on " in text
    assert ", from step 2 on\n" in text
    assert "nothing is left to do here" in text
    assert text in capsys.readouterr().err
    assert writers(tmp_path / "run") == {2: 1.0, 4: 2.0, 6: 2.0}


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("place", ["files", "name", "removal"])
def test_it_stood_still_while_it_wrote_a_checkpoint(tmp_path, monkeypatch, place, is_async):
    """The other one removes what it takes for the leftovers of a killed process."""
    folder = tmp_path / "run"
    resumes = Resumes(folder, monkeypatch, at=-1, checkpoints=[KeepLast(1)])
    owner, name = {"files": (Record, "save"), "name": (checkpoint, "write_tensors")}.get(
        place, (checkpoint.Checkpoints, "prune")
    )
    then = getattr(owner, name)

    def stand_still(*arguments, **options):
        if resumes.before is None and (folder / "checkpoints" / "step-00000002").exists():
            resumes.resume()
        return then(*arguments, **options)

    monkeypatch.setattr(owner, name, stand_still)
    ends_by(folder, resumes, async_checkpoints=is_async, checkpoints=[KeepLast(1)])
    assert writers(folder) == {6: 2.0}


def test_it_would_only_end(tmp_path, monkeypatch):
    """After its last step and its last checkpoint, at once."""
    ends_by(
        tmp_path / "run", Resumes(tmp_path / "run", monkeypatch, at=3, steps=4), steps=3, checkpoints=None
    )


def test_it_writes_no_checkpoints_at_all(tmp_path, monkeypatch):
    """The thread that writes run.db finds out, and the training hears of it within a step."""
    monkeypatch.setattr(writer_module, "_FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(writer_module, "HEARTBEAT_SECONDS", 0.01)
    resumes = Resumes(tmp_path / "run", monkeypatch)
    later: list[int] = []

    class Waits:
        def on_step(self, event) -> None:
            if resumes.before is not None:
                later.append(event.training.position.step)
                event.training.writer._thread.join(10)  # it ends when it finds out

    ends_by(tmp_path / "run", resumes, [Waits()], steps=1000, checkpoints=None)
    assert len(later) <= 2


def test_ctrl_c_after_it(tmp_path, monkeypatch):
    stops = AtStep({3: lambda _: os.kill(os.getpid(), signal.SIGINT)})
    ends_by(tmp_path / "run", Resumes(tmp_path / "run", monkeypatch), [stops])


def test_an_error_after_it(tmp_path, monkeypatch, capsys):
    class Batches:
        def __iter__(self):
            yield from [torch.ones(4, 2)] * 3
            raise OSError("the data is gone")

        def __len__(self):
            return 4

    resumes = Resumes(tmp_path / "run", monkeypatch)
    with pytest.raises((OSError, TakenOverError)):  # its thread may have seen that it is taken over
        train(tmp_path / "run", mark=1.0, callbacks=[resumes], train=Batches())
    assert files(tmp_path / "run") == resumes.before


def test_commands_for_the_other_one_stay(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def ask(_) -> None:
        with RunReader(folder) as reader:  # as if the other one were still running
            attempt = reader.attempts()[-1]
        monkeypatch.setattr(control.RunReader, "state", lambda _: "running")
        send(folder, "save")
        (folder / "control" / "junk").write_text("no command")
        assert attempt.id == 2
        resumes.before = files(folder)

    resumes = Resumes(folder, monkeypatch)
    ends_by(folder, resumes, [AtStep({3: ask})])
    assert [path.suffix for path in sorted((folder / "control").glob("[!.]*"))] == [".json", ""]


def test_sinks_and_profiles(tmp_path, monkeypatch):
    sink = TensorBoard()
    closed: list[str] = []
    monkeypatch.setattr(sink, "close", closed.append)
    resumes = Resumes(tmp_path / "run", monkeypatch, callbacks=[TensorBoard()])
    ends_by(tmp_path / "run", resumes, [sink, Profiler(skip=2, steps=3)])
    TensorBoard.close(sink, "failed")
    assert not closed  # the run of the tracker goes on
    assert not list((tmp_path / "run").rglob("profile/*"))


PROGRAM = """
import burnt, torch
from burnt import optim
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.store import RunWriter, opening
class Run(burnt.Config):
    folder: str = "run"
class TakesOver:
    def on_step(self, event):
        state, opening.writing_state = opening.writing_state, lambda *_: "stale"
        RunWriter.create("run", resume=True).close("finished")
        opening.writing_state = state
def main(config: Run):
    learner = Learner(
        torch.nn.Linear(2, 1), optim.Sgd(), 0.1, lambda m, b: StepOutput(m(b).square().mean(), targets=b)
    )
    SupervisedTraining(
        config.folder, train=[torch.ones(4, 2)], duration="9 steps", monitor="off", callbacks=[TakesOver()]
    ).run(learner)
"""


def test_it_ends_with_an_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    assert main(["train", "program.py:main"]) == 4
    assert capsys.readouterr().err.count("attempt 2 took over the run") == 1
    assert issubclass(TakenOverError, SystemExit)  # so a script ends with this code as well
    assert TakenOverError("it").code == 4


# --- the guard, and processes that come too early


def test_nobody_resumes_while_files_are_changed(tmp_path, monkeypatch):
    """A process that is stopped just then keeps the lock, until it is killed."""
    monkeypatch.setattr(opening, "writing_state", lambda *_: "stale")
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.01)
    with RunWriter.create(tmp_path / "run") as run:
        with run.lease.hold(), pytest.raises(RunError, match="cannot be written") as caught:
            RunWriter.create(tmp_path / "run", resume=True)
        assert "maybe a suspended training: end that process first" in str(caught.value)
        RunWriter.create(tmp_path / "run", resume=True).close("finished")
        with pytest.raises(TakenOverError), run.lease.hold():
            raise AssertionError("the block must not run")


def test_another_run_in_the_same_place(tmp_path):
    """Its first attempt has the same number."""
    first = RunWriter.create(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    with RunWriter.create(tmp_path / "run"):
        send(tmp_path / "run", "pause")
        with pytest.raises(RunError, match="deleted or moved"), first.lease.hold():
            raise AssertionError("the block must not run")
        inbox = Inbox(first.lease)
        assert inbox.poll() == ()
        assert len(list((tmp_path / "run" / "control").iterdir())) == 1
    first.close("crashed", timeout=0.1)


@pytest.mark.parametrize("problem", ["locked", "damaged"])
def test_a_database_that_cannot_be_asked_keeps_no_checkpoint_back(tmp_path, monkeypatch, problem):
    monkeypatch.setattr("burnt.store.write_lease._LOCK_MILLISECONDS", 10)
    with RunWriter.create(tmp_path / "run") as run:
        path = tmp_path / "run" / "run.db"
        other = sqlite3.connect(path, isolation_level=None)
        if problem == "locked":
            other.execute("BEGIN IMMEDIATE")
        else:
            other.close()
            monkeypatch.setattr(
                "burnt.store.write_lease.connect",
                lambda *_: (_ for _ in ()).throw(sqlite3.DatabaseError("damaged")),
            )
        with run.lease.hold():
            (tmp_path / "run" / "written").touch()
        other.close()
    assert (tmp_path / "run" / "written").exists()


def test_a_resume_that_is_refused_changes_nothing(tmp_path):
    """Not even a checkpoint that the other process has just moved aside."""
    folder = tmp_path / "run"
    train(folder, mark=1.0, steps=4)
    (folder / "checkpoints" / "step-00000004").rename(folder / "checkpoints" / ".tmp-moved-step-00000004")
    with RunWriter.create(folder, resume=True, resumed_from_step=4):
        before = files(folder)
        with pytest.raises(RunError, match="is running"):
            train(folder, mark=2.0, resume=True)
        assert files(folder) == before
    train(folder, mark=2.0, steps=6, resume=True)
    assert writers(folder) == {2: 1.0, 4: 1.0, 6: 2.0}


def test_a_run_that_was_written_after_its_checkpoint_was_chosen(tmp_path, monkeypatch):
    """The first process went on, and ended, while the second one got ready."""
    folder = tmp_path / "run"
    train(folder, mark=1.0, steps=4)
    restore = training.restore_checkpoint

    def meanwhile(*arguments):
        loaded = restore(*arguments)
        RunWriter.create(folder, resume=True, resumed_from_step=4).close("finished")
        return loaded

    monkeypatch.setattr(training, "restore_checkpoint", meanwhile)
    with pytest.raises(RunError, match=r"has written .* since its checkpoint was chosen") as caught:
        train(folder, mark=2.0, steps=6, resume=True)
    assert "resume it again" in str(caught.value)
    assert len(RunReader(folder).attempts()) == 2
