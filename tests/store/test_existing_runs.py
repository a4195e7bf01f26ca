"""What a new run does with a folder that holds one: it replaces nothing that was worth a checkpoint."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burnt.errors import ConfigError, RunError, TakenOverError
from burnt.store import RunReader, RunWriter, opening, tags


def crashed(folder: Path, *, end: str = "crashed") -> RunWriter:
    """A run that has recorded itself, and died before its first step was done."""
    run = RunWriter.create(folder, name="old", config={"lr": 0.1})
    run.log(0, None, {"loss": 1.0}, "valid")
    run.log_line("old line")
    run.record_table("model", ["layer"], [["head"]])
    run.progress(0, None)
    run.event("error", 0)
    run.close(end)
    (folder / ".DS_Store").write_text("the user's")
    return run


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("exists", ["error", "number"])
@pytest.mark.parametrize("end", ["crashed", "stopped"])
def test_a_run_without_a_step_is_replaced(tmp_path: Path, exists: str, end: str) -> None:
    folder = tmp_path / "net"
    old = crashed(folder, end=end)
    viewer = RunReader(folder)
    assert viewer.log_lines()[0].text == "old line"
    with RunWriter.create(folder, exists=exists, config={"lr": 0.2}) as run:
        assert run.folder == folder
        run.log(1, 1, {"accuracy": 0.5})
    for reader in (viewer, RunReader(folder)):
        assert (reader.name, reader.state(), reader.config()) == ("net", "finished", {"lr": 0.2})
        assert [series.name for series in reader.series()] == ["accuracy"]
        assert [event.kind for event in reader.events()] == ["start", "end"]
        assert (reader.log_lines(), reader.artefacts(), reader.summary().attempts) == ([], [], 1)
    assert (folder / ".DS_Store").read_text() == "the user's"
    with pytest.raises(TakenOverError), old.lease.hold():  # had it only stood still, it would notice
        pass


def note(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection, connection:
        connection.execute("INSERT INTO event VALUES (NULL, 1, 0.0, 0, 'note', '{}')")


def write(name: str):
    def prepare(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("precious")

    return prepare


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: None,
        note,
        lambda folder: tags.change_tags(folder, add=["keep"]),
        write("notes.txt"),
        write("train.py"),
        write("notes/1.json"),
        write("checkpoints/step-00000001"),
        write("checkpoints/mine.pt"),
        write("run.db"),  # not a database
    ],
    ids=["step", "note", "tag", "notes.txt", "script", "notes", "checkpoint", "weights", "damaged"],
)
def test_a_run_worth_keeping_is_not_touched(tmp_path: Path, prepare, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "net"
    crashed(folder)
    if "step" in request.node.callspec.id.split("-"):
        with RunWriter.create(folder, resume=True) as run:
            run.log(1, 1, {"loss": 1.0})
        RunWriter.create(folder, resume=True).close("crashed")  # hides that row, from the beginning
    prepare(folder)
    before = tree(folder)
    with pytest.raises(RunError, match="already holds a run") as caught:
        RunWriter.create(folder)
    assert (
        caught.value.hint == 'continue it with resume=True, or choose another folder (exists="number" does)'
    )
    with RunWriter.create(folder, exists="number") as run:
        assert run.folder == tmp_path / "net-2"
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("values", "worth"),
    [
        ({"end_state": None, "ended": None}, True),  # this process
        ({"end_state": None, "ended": None, "heartbeat": 0.0}, True),  # silent, but alive
        ({"end_state": None, "ended": None, "pid": -1}, False),  # killed
        ({"resumed_from_step": 7}, True),  # a fork that crashed at once
        ({"end_state": "finished"}, True),  # a log without steps, written on purpose
    ],
    ids=["running", "stale", "killed", "fork", "finished"],
)
def test_the_last_attempt_decides(tmp_path: Path, values: dict[str, object], worth: bool) -> None:
    folder = tmp_path / "net"
    crashed(folder)
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection, connection:
        for name, value in values.items():
            connection.execute(f"UPDATE attempt SET {name} = ?", (value,))
    assert opening.holds_nothing(folder) is not worth
    with RunWriter.create(folder, exists="number") as run:
        assert run.folder.name == ("net-2" if worth else "net")


def test_numbers_skip_what_others_hold(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "thesis.tex").write_text("x")
    RunWriter.create(tmp_path / "net-2").close("finished")
    crashed(tmp_path / "net-3")
    (tmp_path / "net-5").mkdir()
    found = [RunWriter.create(tmp_path / "net", exists="number") for _ in range(4)]
    for run in found:
        run.close("finished")
    assert [run.folder.name for run in found] == ["net-3", "net-4", "net-5", "net-6"]
    assert sorted(os.listdir(tmp_path / "net")) == ["thesis.tex"]


@pytest.mark.parametrize("before", ["nothing", "crashed"])
def test_each_of_several_at_once_gets_its_own_folder(tmp_path: Path, before: str) -> None:
    if before == "crashed":
        crashed(tmp_path / "net")
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunWriter.create(tmp_path / "net", exists="number"), range(8)))
    try:
        assert sorted(run.folder.name for run in runs) == ["net", *(f"net-{n}" for n in range(2, 9))]
        assert all(len(RunReader(run.folder).attempts()) == 1 for run in runs)
    finally:
        for run in runs:
            run.close("finished")


@pytest.mark.parametrize("moment", ["examined", "created"])
def test_another_process_is_faster_by_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = tmp_path / "net"
    if moment == "examined":
        crashed(folder)
    then = opening.ProcessName.own
    other: list[RunWriter] = []

    def own() -> opening.ProcessName:  # between the look at the folder and the transaction
        if not other:
            other.append(None)
            other[0] = RunWriter.create(folder, resume=True)
            other[0].log(1, 1, {"loss": 1.0})
            other[0].close("finished")
        return then()

    monkeypatch.setattr(opening.ProcessName, "own", own)
    with RunWriter.create(folder, exists="number") as run:
        assert run.folder.name == "net-2"
    assert RunReader(folder).last("loss").step == 1


def test_an_unwritable_place_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the run folder cannot be written"):
        RunWriter.create(tmp_path / "file" / "net", exists="number")


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        ({"exists": "numbr"}, "'numbr'", "did you mean 'number'?"),
        ({"exists": True}, "True", None),
        ({"resume": "yes"}, "'yes'", None),
        (
            {"exists": "number", "resume": True},
            "exists='number' and resume=True",
            "exists=\"resume\" if resume else 'number'",
        ),
        ({"exists": "resume", "resume": True}, "exists='resume' and resume=True", None),
    ],
)
def test_settings_that_say_nothing_or_too_much(tmp_path: Path, given, found: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        RunWriter.create(tmp_path / "net", **given)
    assert (caught.value.found, caught.value.hint) == (found, hint)
    assert not (tmp_path / "net").exists()
