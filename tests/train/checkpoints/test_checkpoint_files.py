"""Checkpoints whose files were changed, swapped or removed while they are read; and power cuts."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.cli import main
from burnt.errors import CheckpointError, RecordError
from burnt.record import Record, read_document
from burnt.serve.run_model import RunModel
from burnt.store import opening
from burnt.store.tags import add_note, change_tags
from burnt.train import Checkpoints, KeepLast, Learner, StepOutput, SupervisedTraining
from burnt.train.after import loading
from burnt.train.after.loading import RunFiles
from burnt.train.checkpoints import checkpoint
from tests import faults
from tests.train.cases import refused

MODEL, TRAINING = "model.safetensors", "training.safetensors"


def step(model, batch):
    return StepOutput(model(batch).square().mean(), targets=batch)


def train(folder: Path, **settings):
    torch.manual_seed(0)
    options = {"duration": "8 steps", "checkpoint_every": "2 steps", "checkpoints": [KeepLast(9)]}
    model = nn.Linear.Config(in_features=2, out_features=1).init()
    batches = [torch.ones(4, 2) * (1 + i) for i in range(4)]
    return SupervisedTraining(
        folder, **{"train": batches, "monitor": "off", "device": "cpu", **options, **settings}
    ).run(Learner(model, optim.Sgd(), 0.01, step))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder)
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """Checkpoints 2, 4, 6 and 8."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def at(run: Path, number: int) -> Path:
    return run / "checkpoints" / f"step-{number:08d}"


def flip(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


# --- changed and swapped files


def every_reader(run: Path):
    """Read the newest checkpoint in all ways."""
    yield lambda: burnt.load(run, "last")
    yield lambda: burnt.load(run, "last", model=nn.Linear.Config(in_features=2, out_features=1).init())
    yield lambda: train(run, resume=True, duration="10 steps")
    yield lambda: RunModel(nn.Linear(2, 1), torch.ones(1, 2), folder=run, wanted="last").reloaded()
    yield lambda: Checkpoints(run.parent / "fork").adopt(at(run, 8))


def change_a_value(run: Path) -> None:
    flip(at(run, 8) / MODEL)


def take_another_model(run: Path) -> None:
    shutil.copy(at(run, 6) / MODEL, at(run, 8) / MODEL)


def move_another_step(run: Path) -> None:
    shutil.rmtree(at(run, 8))
    at(run, 4).rename(at(run, 8))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            change_a_value,
            RecordError,
            ["values of a tensor have changed since they were", "in        {run}/checkpoints/step-00000008/"],
        ),
        (take_another_model, RecordError, ["file is not that of this checkpoint", "CRC-32 {6}\n"]),
        (
            move_another_step,
            CheckpointError,
            ["in the folder of another one", "expected  that of step 8\n  found     that of step 4"],
        ),
    ],
)
def test_every_reader_finds_what_was_changed_or_swapped(run, change, error, words):
    crc32 = f"{read_document(at(run, 6) / TRAINING)['model_crc32']:08x}"
    change(run)
    words = [word.replace("{run}", str(run)).replace("{6}", crc32) for word in words]
    for read in every_reader(run):
        with refused(error, *words):
            read()
    if change is change_a_value:
        hint = f"remove the folder {at(run, 8)} to resume from step-00000006, or load that one"
        with refused(RecordError, f"{MODEL}: bias\n", hint):
            train(run, resume=True, duration="10 steps")
        assert burnt.load(run, 6).weight.isfinite().all()


def test_a_changed_value_of_the_rest(run):
    flip(at(run, 8) / TRAINING)
    with pytest.raises(
        CheckpointError, match=f"values of a tensor have changed[^\n]*\n  in        {at(run, 8) / TRAINING}: "
    ):
        train(run, resume=True, duration="10 steps")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("old", "new"),
    [(b'step\\": 8', b'step\\": 9'), (b"Constant(lr=0.01", b"Constant(lr=0.03"), (b"momentum", b"momentun")],
)
def test_a_changed_document(run, old, new):
    """JSON that still can be read."""
    path = at(run, 8) / TRAINING
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(CheckpointError, match="the header of a file has changed since it was written"):
        train(run, resume=True, duration="10 steps")
    with pytest.warns(UserWarning, match="chosen without step-00000008, which is damaged"):
        assert RunFiles.read(run).checkpoint("last").path == at(run, 6)


def test_checkpoints_of_earlier_versions(run):
    """They have no checksums, and do not name that of the model."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for name in (MODEL, TRAINING):
        path = at(run, 8) / name
        with safe_open(path, "pt") as file:
            document = json.loads(file.metadata()["burnt"])
        document.pop("model_crc32", None)
        save_file(load_file(path), path, {"burnt": json.dumps(document)})
    assert torch.equal(burnt.load(run, "last").weight, Record.load(at(run, 8) / MODEL).tensors["weight"])
    train(run, resume=True, duration="10 steps")


# --- checkpoints that the training removes while they are read


@pytest.fixture
def rotated(monkeypatch):
    """Removes each checkpoint after it was chosen, as often as `left` says; as the training does."""
    left = [1]
    choose = RunFiles.checkpoint

    def choose_late(self, wanted="best"):
        saved = choose(self, wanted)
        if left[0]:
            left[0] -= 1
            shutil.rmtree(saved.path)
        return saved

    monkeypatch.setattr(RunFiles, "checkpoint", choose_late)
    return left


def test_the_newest_one_that_is_left_is_chosen(run, rotated):
    expected = {number: Record.load(at(run, number) / MODEL).tensors["bias"] for number in (2, 4, 6)}
    assert torch.equal(burnt.load(run).bias, expected[6])
    rotated[0] = 1
    model = nn.Linear.Config(in_features=2, out_features=1).init()
    assert torch.equal(burnt.load(run, "last", model=model).bias, expected[4])
    rotated[0] = 1
    served = RunModel(model, torch.ones(1, 2), folder=run, wanted="last")
    assert torch.equal(served.reloaded().module.bias, expected[2])
    with pytest.raises(CheckpointError, match="has no checkpoint 4"):
        burnt.load(run, 4)


def test_one_after_the_other(run, rotated):
    rotated[0] = 99
    with pytest.raises(CheckpointError, match="the run has no checkpoint"):
        burnt.load(run)


@pytest.mark.full
def test_not_without_end(run, monkeypatch):
    monkeypatch.setattr(loading, "stamp", lambda path: None)
    monkeypatch.setattr(loading, "model_file", lambda path: Path("nowhere"))
    with refused(
        CheckpointError, "removed 10 checkpoints before they were read", "checkpoints=[KeepLast(3), ...]"
    ):
        burnt.load(run, model=nn.Linear(2, 1))


def test_other_errors_are_raised_at_once(run, monkeypatch):
    calls: list[str] = []
    choose = RunFiles.checkpoint
    monkeypatch.setattr(RunFiles, "checkpoint", lambda *a: calls.append("") or choose(*a))
    with pytest.raises(RecordError, match="shape"):
        burnt.load(run, model=nn.Linear(3, 1))
    assert len(calls) == 1


@pytest.mark.full
def test_a_checkpoint_that_is_replaced_while_it_is_read(run, rotated, monkeypatch):
    """A new one of the same step: the header is that of the old file, the values are those of the new one."""
    rotated[0] = 0
    read = Record.load.__func__
    new = run.parent / "new"
    train(new, duration="8 steps", train=[torch.zeros(4, 2)] * 4)

    def replaced(cls, path):
        if new.exists():
            shutil.rmtree(at(run, 8))
            at(new, 8).rename(at(run, 8))
            shutil.rmtree(new)
            raise FileNotFoundError(path)  # what was open is gone
        return read(cls, path)

    monkeypatch.setattr(Record, "load", classmethod(replaced))
    expected = torch.nn.init.zeros_(torch.empty(1))
    model = burnt.load(run, "last")
    assert model.bias.shape == expected.shape
    assert torch.equal(model.bias, read(Record, at(run, 8) / MODEL).tensors["bias"])


def test_the_list_is_read_again_when_one_vanishes(run, monkeypatch):
    """With KeepLast(1), the list may name none but the one that is removed meanwhile."""
    for number in (2, 4, 6):
        shutil.rmtree(at(run, number))
    folders, calls = Checkpoints.folders, []

    def folders_late(self):
        calls.append("")
        return [at(run, 6)] if len(calls) == 1 else folders(self)

    monkeypatch.setattr(Checkpoints, "folders", folders_late)
    assert [saved.position.step for saved in Checkpoints(run / "checkpoints").saved()] == [8]


def test_a_new_one_is_not_called_damaged(run, monkeypatch):
    """It is written after the list of the readable ones was made."""
    newest, aside = at(run, 8), run / "new"
    newest.rename(aside)
    saved = Checkpoints.saved

    def saved_early(self):
        found = saved(self)
        if aside.exists():
            aside.rename(newest)
        return found

    monkeypatch.setattr(Checkpoints, "saved", saved_early)
    assert Checkpoints(run / "checkpoints").unreadable() == []
    assert newest.exists()


def test_the_moment_between_two_renames(run):
    """Of an old and a new checkpoint of the same step; a process that was killed then leaves it like that."""
    for number in (2, 4, 6):
        shutil.rmtree(at(run, number))
    at(run, 8).rename(run / "checkpoints" / ".tmp-moved-step-00000008")
    assert burnt.load(run).bias.isfinite().all()


# --- power cuts


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("journal", ["log", "rollback journal"])
def test_rows_are_there_before_their_checkpoint(tmp_path, monkeypatch, is_async, journal):
    """run.db alone, without the log that a power cut may lose, when a checkpoint gets its name."""
    monkeypatch.setattr(opening, "_is_on_network", lambda path: journal != "log")
    sync, found = checkpoint.sync_folder, {}

    def copy_at_rename(folder):
        for path in folder.glob("step-*"):
            if path.name not in found:
                shutil.copy(tmp_path / "run" / "run.db", tmp_path / "copy.db")
                with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
                    query = "SELECT step FROM metrics WHERE name = 'loss' ORDER BY step"
                    found[path.name] = [row[0] for row in connection.execute(query)]
        sync(folder)

    monkeypatch.setattr(checkpoint, "sync_folder", copy_at_rename)
    train(tmp_path / "run", log_every=1, async_checkpoints=is_async)
    assert sorted(found) == [f"step-{number:08d}" for number in (2, 4, 6, 8)]
    for name, steps in found.items():
        assert steps[: int(name[5:])] == list(range(1, int(name[5:]) + 1))


@pytest.mark.full
def test_the_run_can_be_written_while_checkpoints_are_removed(tmp_path, monkeypatch):
    """It may take seconds, on a slow disk."""
    rmtree, removed = shutil.rmtree, []

    def remove(path, *args, **kwargs):
        with closing(sqlite3.connect(tmp_path / "run" / "run.db", timeout=2)) as connection:
            connection.execute("BEGIN IMMEDIATE")
        removed.append(path.name)
        rmtree(path, *args, **kwargs)

    (tmp_path / "run" / "checkpoints" / ".tmp-0-step-00000001").mkdir(parents=True)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", remove)
    train(tmp_path / "run", checkpoints=[KeepLast(1)])
    assert removed == [".tmp-0-step-00000001", *(f".tmp-old-step-0000000{number}" for number in (2, 4, 6))]


def test_the_log_is_synced_once_for_a_checkpoint(tmp_path, monkeypatch):
    """Before it gets its name, and without the lock of a transaction, which keeps others from the run."""
    run, fsync, log = tmp_path / "run", os.fsync, []

    def unlocked(number):
        wal = run / "run.db-wal"
        if wal.exists() and os.path.samestat(os.fstat(number), wal.stat()):
            # The training's own thread may have the lock for a moment.
            with closing(sqlite3.connect(run / "run.db", timeout=5, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
            log.append("log")
        fsync(number)

    rename = Path.rename
    monkeypatch.setattr(os, "fsync", unlocked)
    monkeypatch.setattr(Path, "rename", lambda *both: log.append(both[1].name) or rename(*both))
    train(run, log_every=1)
    assert log == [name for number in (2, 4, 6, 8) for name in ("log", f"step-{number:08d}")]


def test_a_database_that_fails_does_not_keep_checkpoints_back(tmp_path, monkeypatch):
    monkeypatch.setattr("burnt.store.writer._FAILING_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(
        "burnt.store.pyramid.Batch.insert",
        lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk full")),
    )

    class Waits:
        def on_step(self, event) -> None:
            while not event.training.writer.warnings:
                event.training.writer.flush(0.01)

        def on_end(self, event) -> None:
            event.training.writer._deadline = 0.0
            monkeypatch.undo()

    train(tmp_path / "run", callbacks=[Waits()])
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 4


def test_names_survive_as_well(tmp_path):
    """A folder is synced after something in it got its name: a run's, a tag's, a note's."""
    from burnt.store import RunWriter

    with faults.operations() as done:
        RunWriter.create(tmp_path / "runs" / "deep" / "run", config={"lr": 1}).close("finished")
    synced = {path for kind, path in done.log if kind == "fsync"}
    assert {str(tmp_path), str(tmp_path / "runs"), str(tmp_path / "runs" / "deep")} <= synced
    run = tmp_path / "runs" / "deep" / "run"
    assert str(run) in synced
    with faults.operations() as done:
        change_tags(run, add=["best"])
        add_note(run, "a note")
    synced = {path for kind, path in done.log if kind == "fsync"}
    assert {str(run), str(run / "tags"), str(run / "notes")} <= synced


# --- burnt show --check


def test_the_check_of_a_run(run, capsys):
    assert main(["show", "--check", str(run)]) == 0
    text = capsys.readouterr().out
    assert "SQLite keeps no checksums of the values" in text
    assert text.count("ok") == 9
    flip(at(run, 4) / MODEL)
    flip(at(run, 6) / TRAINING)
    shutil.copy(at(run, 2) / MODEL, at(run, 8) / MODEL)
    assert main(["show", "--check", str(run), "--json"]) == 1
    found = {entry["file"]: entry for entry in json.loads(capsys.readouterr().out)["files"]}
    damaged = {file: entry["detail"] for file, entry in found.items() if entry["state"] == "damaged"}
    assert set(damaged) == {str(at(run, 4) / MODEL), str(at(run, 6) / TRAINING), str(at(run, 8) / MODEL)}
    assert f"in {at(run, 4) / MODEL}: bias: expected CRC-32 " in damaged[str(at(run, 4) / MODEL)]
    assert "is not that of this checkpoint" in damaged[str(at(run, 8) / MODEL)]
    (run / "config.json").write_text((run / "config.json").read_text()[:-3])
    assert main(["show", "--check", str(run), "--json"]) == 1
    (_, document, *_) = json.loads(capsys.readouterr().out)["files"]
    assert document["state"] == "damaged"
    assert main(["show", "--check", str(at(run, 2))]) == 0
    assert main(["show", "--check", str(at(run, 8))]) == 1


def test_the_check_of_a_damaged_database(run, capsys):
    data = bytearray((run / "run.db").read_bytes())
    data[4096:8192] = bytes(range(256)) * 16
    (run / "run.db").write_bytes(data)
    assert main(["show", "--check", str(run)]) == 1
    assert "damaged" in capsys.readouterr().out


def test_the_check_of_files(tmp_path, monkeypatch, capsys):
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    record = Record({"a": torch.ones(3), "b": torch.ones(5)})
    record.save("m.safetensors")
    record.save("m.bpk")
    record.save_folder("shards", shard_bytes=16)
    assert main(["convert", "m.safetensors", "m.npz"]) == 0
    assert main(["convert", "m.safetensors", "m.pt"]) == 0
    save_file({"a": torch.ones(3)}, "foreign.safetensors")
    for path in ("m.safetensors", "m.bpk", "shards", "m.npz", "m.pt", "foreign.safetensors"):
        capsys.readouterr()
        assert main(["show", "--check", path]) == 0
        assert ("not checked" if path == "foreign.safetensors" else "ok") in capsys.readouterr().out
    for path in ("m.safetensors", "m.bpk", "m.npz", "m.pt", "shards/model-00001-of-00002.safetensors"):
        data = Path(path).read_bytes()
        value = torch.ones(3).numpy().tobytes()
        Path(path).write_bytes(data.replace(value, b"\1" + value[1:], 1))
    for path in ("m.safetensors", "m.bpk", "m.npz", "m.pt", "shards"):
        capsys.readouterr()
        assert main(["show", "--check", path]) == 1
        assert "damaged" in capsys.readouterr().out
    assert main(["show", "--check", "nowhere"]) == 2
    assert main(["show", "--check", "--values", "m.npz"]) == 2
    Path("m.onnx").touch()
    assert main(["show", "--check", "m.onnx"]) == 2
    assert "ONNX models have no checksums" in capsys.readouterr().err
