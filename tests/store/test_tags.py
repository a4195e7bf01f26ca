"""Tags and notes of runs, their parents, and removing runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from burnt.errors import RunError
from burnt.store import Parent, RunReader, RunWriter, find_runs, removal
from burnt.store.tags import add_note, all_notes, change_tags, read_notes, read_tags, tags_stamp


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "run").close("finished")
    return tmp_path / "run"


def test_tags_are_added_and_removed_in_any_order(run: Path) -> None:
    before = tags_stamp(run)
    assert read_tags(run) == ()
    assert change_tags(run, add=["b", "a", "Ünï-1.0+x"]) == ("a", "b", "Ünï-1.0+x")
    assert change_tags(run, add=["a"], remove=["b", "never"]) == ("a", "Ünï-1.0+x")
    assert tags_stamp(run) != before
    (run / "tags" / ".hidden").touch()
    (run / "tags" / "not a tag").touch()
    assert read_tags(run) == ("a", "Ünï-1.0+x")


def test_no_tag_is_lost_between_writers(run: Path) -> None:
    names = [[f"t{writer}-{i}" for i in range(20)] for writer in range(4)]
    threads = [
        threading.Thread(target=lambda own=own: [change_tags(run, add=[tag]) for tag in own]) for own in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_tags(run)) == {tag for own in names for tag in own}


@pytest.mark.parametrize("tag", ["", "a b", "a/b", "../a", ".a", "-a", "a,b", "a" * 65, "a\n", 'a"'])
def test_what_is_no_tag_is_refused_before_anything_is_written(run: Path, tag: str) -> None:
    with pytest.raises(RunError, match="the tag is not valid") as error:
        change_tags(run, add=["fine", tag])
    assert "1 to 64 letters, digits" in str(error.value)
    assert read_tags(run) == ()


def test_notes_of_a_live_and_of_an_ended_run_are_in_one_list(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path) as writer:
        writer.event("note", 3, text="from the training", sender="jo")
        writer.flush()
        add_note(tmp_path, "  während it runs\n", step=7)
    add_note(tmp_path, "after")
    with RunReader(tmp_path) as reader:
        notes = all_notes(reader)
    assert [(note.step, note.text) for note in notes] == [
        (3, "from the training"),
        (7, "während it runs"),
        (None, "after"),
    ]
    assert notes[0].user == "jo"
    assert notes[1].user
    assert [note.time for note in notes] == sorted(note.time for note in notes)


def test_notes_of_others_do_not_hide_the_rest(run: Path) -> None:
    add_note(run, "good")
    for name, content in {"a": "no json", "b": "[1]", "c": '{"time": "x"}', "d": '{"text": "bare"}'}.items():
        (run / "notes" / f"{name}.json").write_text(content)
    texts = [note.text for note in read_notes(run)]
    assert "good" in texts
    assert "bare" in texts
    assert sum("cannot be read" in text for text in texts) == 3


@pytest.mark.parametrize("text", ["", "  \n", "x" * 2001])
def test_empty_and_endless_notes_are_refused(run: Path, text: str) -> None:
    with pytest.raises(RunError, match=r"note|text"):
        add_note(run, text)
    assert read_notes(run) == []


def test_where_nothing_can_be_written_and_where_no_run_is(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        change_tags(tmp_path, add=["a"])
    (run / "tags").write_text("a file")
    with pytest.raises(RunError, match="cannot be written") as error:
        change_tags(run, add=["a"])
    assert "tags" in str(error.value)


def test_a_fork_names_its_parent(tmp_path: Path) -> None:
    fork = {"fork": {"folder": "../digits", "step": 120}}
    RunWriter.create(tmp_path / "runs" / "b", config=fork).close("stopped")
    # A resumed fork is still a fork, also where the new attempt does not say so.
    RunWriter.create(tmp_path / "runs" / "b", resume=True, config={"lr": 1}).close("finished")
    with RunReader(tmp_path / "runs" / "b") as reader:
        assert reader.parent() == Parent(tmp_path / "runs" / "digits", 120)
    RunWriter.create(tmp_path / "c", config={"fork": {"folder": os.fspath(tmp_path / "x"), "step": 0}}).close(
        "finished"
    )
    with RunReader(tmp_path / "c") as reader:
        assert reader.parent() == Parent(tmp_path / "x", 0)


@pytest.mark.parametrize("fork", [None, 3, {}, {"folder": "x"}, {"folder": 1, "step": 2}, {"step": 2}])
def test_what_is_no_parent_is_none(tmp_path: Path, fork: object) -> None:
    RunWriter.create(tmp_path, config={"fork": fork}).close("finished")
    with RunReader(tmp_path) as reader:
        assert reader.parent() is None


# --- removing


def test_a_run_is_removed_and_says_what_that_frees(run: Path) -> None:
    (run / "checkpoints" / "step-1").mkdir()
    (run / "checkpoints" / "step-1" / "model").write_bytes(b"0" * 5000)
    (run / "thesis.txt").write_text("mine")
    change_tags(run, add=["old"])
    found = removal.examine(run)
    assert found.other_names == ["thesis.txt"]
    assert found.bytes == sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert removal.remove(run) == found
    assert list(run.parent.iterdir()) == []


def test_what_is_no_run_is_not_removed(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        removal.remove(tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        removal.remove(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(RunError, match="is a link"):
        removal.remove(tmp_path / "link")
    RunWriter.create(run / "exports" / "inner").close("finished")
    with pytest.raises(RunError, match="contains another run"):
        removal.remove(run)
    (run / "run.db").write_bytes(b"damaged")
    with pytest.raises(RunError, match="may be running"):
        removal.remove(run)
    assert (run / "run.db").exists()


def test_a_run_that_is_resumed_meanwhile_comes_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examine, calls = removal.examine, []

    def resumed(folder: Path) -> removal.Removable:
        calls.append(folder)
        if len(calls) == 2:
            raise RunError("it is running", found="process 7")
        return examine(folder)

    monkeypatch.setattr(removal, "examine", resumed)
    with pytest.raises(RunError, match="it was just resumed"):
        removal.remove(run)
    assert find_runs(run.parent) == [run]


def test_a_removal_that_was_interrupted_is_no_run(run: Path) -> None:
    run.rename(run.with_name(".run.removed-0123abcd"))
    assert find_runs(run.parent) == []
