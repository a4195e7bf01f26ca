"""Command files: sending them, reading them from an inbox, and refusing other files."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from burnt.errors import RunError, UnsupportedError
from burnt.store import RunReader, RunWriter, control
from burnt.store.control import Command, Inbox, Refused, acknowledgement, check, send, waiting


@pytest.fixture
def run(tmp_path):
    with RunWriter.create(tmp_path / "run") as writer:
        yield writer


@pytest.fixture
def folder(run) -> Path:
    return run.folder / "control"


def put(folder: Path, name: str = "one", **changes) -> None:
    """A command as a script writes it."""
    document = {"version": 1, "id": name, "kind": "pause"} | changes
    (folder / f".{name}").write_text(json.dumps(document))
    (folder / f".{name}").rename(folder / f"{name}.json")


# sending


def test_a_command_is_one_small_file_that_says_who_sent_it(run, folder):
    id = send(run.folder, "lr", "2e-4")
    assert os.listdir(folder) == [f"{id}.json"]
    document = json.loads((folder / f"{id}.json").read_text())
    assert document.keys() == {"version", "id", "kind", "value", "attempt", "sender", "time"}
    assert [document[key] for key in ("version", "id", "kind", "value", "attempt")] == [1, id, "lr", 2e-4, 1]
    assert document["sender"]["pid"] == os.getpid()
    assert abs(document["time"] - time.time()) < 60
    (command,) = waiting(run.folder)
    assert (command.kind, command.value) == ("lr", 2e-4)
    assert command.sender == f"{document['sender']['user']} on {document['sender']['host']}"


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("lr", 0, "0"),
        ("lr", -1.0, "-1.0"),
        ("lr", "nan", "'nan'"),
        ("lr", float("inf"), "inf"),
        ("lr", "1e999", "'1e999'"),
        ("lr", 10**400, "1000"),
        ("lr", "fast", "'fast'"),
        ("lr", True, "True"),
        ("lr", None, "none"),
        ("note", "", "0 characters"),
        ("note", " \n ", "0 characters"),
        ("note", "x" * 2001, "2,001 characters"),
        ("note", 3, "3"),
        ("pause", "now", "'now'"),
        ("stop", 0, "0"),
    ],
)
def test_bad_values_are_refused_before_anything_is_written(run, folder, kind, value, found):
    with pytest.raises(RunError) as caught:
        send(run.folder, kind, value)
    assert caught.value.expected
    assert str(caught.value.found).startswith(found)
    assert os.listdir(folder) == []


def test_a_mistyped_command_is_reported_with_the_nearest(run):
    with pytest.raises(UnsupportedError, match="did you mean 'pause'") as caught:
        send(run.folder, "pauze")
    assert caught.value.expected == "pause, resume, stop, save, lr, note"


def test_values_are_sent_as_they_are_meant():
    assert check("lr", 1) == 1.0
    assert check("note", " ä\ud800\n") == "ä?"
    assert check("note", "x" * 2000) == "x" * 2000


def test_what_is_no_run_or_does_not_run_takes_no_commands(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        send(tmp_path, "pause")
    with RunWriter.create(tmp_path / "run") as writer:
        writer.close("crashed", "ValueError: mine")
    with pytest.raises(RunError, match="is not running, so it takes no commands") as caught:
        send(tmp_path / "run", "pause")
    assert caught.value.found == "crashed: ValueError: mine"
    assert "burnt train --resume" in caught.value.hint
    assert os.listdir(tmp_path / "run" / "control") == []


def test_a_folder_that_cannot_be_written_is_reported_and_nothing_is_left(run, folder, monkeypatch):
    def fail(self, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(RunError, match="the command cannot be sent") as caught:
            send(run.folder, "pause")
    assert caught.value.found == "Read-only file system"
    assert caught.value.where == str(folder)
    assert os.listdir(folder) == []
    folder.rmdir()
    with pytest.raises(RunError, match="No such file or directory"):
        send(run.folder, "pause")


# receiving


def test_commands_are_taken_once_and_in_order_and_stay_until_they_are_answered(run, folder):
    inbox = Inbox(run.lease)
    assert list(inbox.poll()) == []
    ids = [send(run.folder, kind) for kind in ("pause", "save", "resume")]
    taken = inbox.poll()
    assert [(c.id, c.kind) for c in taken] == list(zip(ids, ("pause", "save", "resume"), strict=True))
    assert list(inbox.poll()) == []
    assert [c.id for c in waiting(run.folder)] == ids
    for id in ids:
        inbox.mark_answered(id)
        inbox.mark_answered(id)  # somebody else may have removed it
    assert os.listdir(folder) == []


def test_a_script_may_write_what_the_page_says(run, folder):
    inbox = Inbox(run.lease)
    put(folder, "a-name", kind="note", value="by hand")
    assert inbox.poll() == [Command("a-name", "note", "by hand", "an unknown sender", 0.0)]


GARBAGE = {
    "empty.json": (b"", "it is not JSON in UTF-8"),
    "half.json": (b'{"version": 1, "id": "half", "ki', "it is not JSON in UTF-8"),
    "bytes.json": (b"\xff\xfe\x00", "it is not JSON in UTF-8"),
    "deep.json": (b"[" * 60_000, "it is not JSON in UTF-8"),
    "digits.json": (b'{"kind": ' + b"1" * 60_000 + b"}", "it is not JSON in UTF-8"),
    "huge.json": (b" " * 70_000, "it cannot be read: it has 70,000 bytes, more than 65,536"),
    "list.json": (b"[]", "it is not a command"),
    "none.json": (b'{"version": 1, "id": "none"}', "it is not a command"),
    "newer.json": (b'{"version": 2, "id": "newer", "kind": "pause"}', "it has version 2, but this burnt"),
    "other.json": (b'{"version": 1, "id": "another", "kind": "pause"}', "its name must be its id"),
    "list-id.json": (b'{"version": 1, "id": ["x"], "kind": "pause"}', "its name must be its id"),
    "editor.swp": (b'{"version": 1, "id": "editor.swp", "kind": "pause"}', "its name must be its id"),
    "kind.json": (
        b'{"version": 1, "id": "kind", "kind": "explode"}',
        "there is no command 'explode': 'explode'",
    ),
    "rate.json": (
        b'{"version": 1, "id": "rate", "kind": "lr", "value": -1}',
        "the learning rate is not valid: -1, expected a finite number above 0",
    ),
    "nan.json": (
        b'{"version": 1, "id": "nan", "kind": "lr", "value": NaN}',
        "the learning rate is not valid",
    ),
    "nested.json": (
        b'{"version": 1, "id": "nested", "kind": "lr", "value": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        "it is not JSON in UTF-8",
    ),
    "note.json": (b'{"version": 1, "id": "note", "kind": "note", "value": [[]]}', "the note is not valid"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_command_is_refused_once_and_put_away(run, folder, name):
    content, reason = GARBAGE[name]
    inbox = Inbox(run.lease)
    (folder / name).write_bytes(content)
    put(folder, "zz")
    refused, command = inbox.poll()
    assert isinstance(refused, Refused)
    assert refused.id == name.removesuffix(".json")
    assert refused.reason.startswith(reason)
    assert len(refused.reason) < 1000
    assert command.id == "zz"  # what comes after it is taken
    assert list(inbox.poll()) == []
    assert sorted(os.listdir(folder)) == ["refused", "zz.json"]
    (kept,) = (folder / "refused").iterdir()
    assert kept.name.startswith(name)
    assert kept.read_bytes() == content


def test_pipes_links_and_folders_are_not_opened(run, folder, tmp_path):
    inbox = Inbox(run.lease)
    os.mkfifo(folder / "pipe.json")  # opening it would wait for a writer
    (folder / "device.json").symlink_to("/dev/zero")
    (tmp_path / "elsewhere").write_text('{"version": 1, "id": "link", "kind": "stop"}')
    (folder / "link.json").symlink_to(tmp_path / "elsewhere")
    (folder / "folder.json").mkdir()
    (folder / "folder.json" / "file").write_text("kept")
    refused = inbox.poll()
    assert [found.id for found in refused] == ["device", "folder", "link", "pipe"]
    assert all(isinstance(found, Refused) for found in refused)
    assert os.listdir(folder) == ["refused"]
    assert len(list((folder / "refused").glob("folder.json.*/file"))) == 1
    assert list(inbox.poll()) == []


def test_what_cannot_be_put_away_is_refused_once_all_the_same(run, folder, monkeypatch):
    def fail(*args):
        raise PermissionError

    inbox = Inbox(run.lease)
    (folder / "stays").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        assert len(inbox.poll()) == 1
    put(folder)
    assert [type(found) for found in inbox.poll()] == [Command]
    assert (folder / "stays").exists()


def test_a_program_gone_wild_is_taken_in_portions_and_kept_in_part(run, folder):
    inbox = Inbox(run.lease)
    for number in range(250):
        (folder / f"{number:03}").write_text("x")
    portions = []
    while found := inbox.poll():
        portions.append(len(found))
    assert max(portions) == 16
    assert sum(portions) == 250
    assert os.listdir(folder) == ["refused"]
    assert len(os.listdir(folder / "refused")) == 100


def test_a_name_may_be_used_again_once_it_is_answered(run, folder):
    inbox = Inbox(run.lease)
    for kind in ("pause", "resume"):
        put(folder, kind=kind)
        assert [command.kind for command in inbox.poll()] == [kind]
        assert list(inbox.poll()) == []
        inbox.mark_answered("one")
        (folder / "garbage").write_text("x")
        assert [found.kind for found in inbox.poll()] == [None]


@pytest.mark.parametrize("when", [10**400, -1, "now", None, float("nan"), 1e300])
def test_times_and_senders_of_strangers_are_not_trusted(run, folder, when):
    inbox = Inbox(run.lease)
    put(folder, time=when, attempt="?", sender={"user": 3, "host": "x" * 500})
    assert inbox.poll() == [Command("one", "pause", None, "x" * 100, 0.0)]


def test_half_written_files_of_senders_are_not_seen(run, folder):
    inbox = Inbox(run.lease)
    (folder / ".aside").write_text('{"ver')
    assert list(inbox.poll()) == []
    assert waiting(run.folder) == []
    assert os.listdir(folder) == [".aside"]


def test_what_was_sent_to_an_earlier_attempt_is_refused(tmp_path):
    with RunWriter.create(tmp_path / "run") as first:
        sent = send(first.folder, "stop")
        put(first.folder / "control", "by-hand")
    with RunWriter.create(tmp_path / "run", resume=True) as second:
        inbox = Inbox(second.lease)
        put(second.folder / "control", "late", attempt=1)
        put(second.folder / "control", "new")
        own = send(second.folder, "note", "mine")
        found = {found.id: found for found in inbox.poll()}
    stale = "it was sent before this attempt started"
    assert {id: f.reason for id, f in found.items() if isinstance(f, Refused)} == {
        sent: stale,
        "by-hand": stale,
        "late": stale,
    }
    assert found[sent].kind == "stop"
    assert found.keys() - {sent, "by-hand", "late"} == {"new", own}
    assert sorted(os.listdir(tmp_path / "run" / "control")) == sorted(["new.json", f"{own}.json"])


def test_a_command_sent_while_the_attempt_begins_is_its_own(run):
    id = send(run.folder, "pause")  # the inbox is made a moment after the attempt
    assert [command.id for command in Inbox(run.lease).poll()] == [id]


class Time:
    """A clock for the inbox, and how often it lists the folder."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.lists = 100.0, 0
        listdir = os.listdir

        def counted(path):
            self.lists += str(path).endswith("control")
            return listdir(path)

        monkeypatch.setattr(control.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(control.os, "listdir", counted)


def test_two_commands_within_a_tick_of_the_clock_are_both_taken(run, folder, monkeypatch):
    clock = Time(monkeypatch)
    inbox = Inbox(run.lease)
    put(folder, "a")
    assert [c.id for c in inbox.poll()] == ["a"]
    stamp = os.stat(folder).st_mtime_ns
    put(folder, "b")
    os.utime(folder, ns=(stamp, stamp))  # as a file system does whose clock has not ticked since
    clock.now += 0.5  # a long step
    assert [c.id for c in inbox.poll()] == ["b"]
    # Where even that is too coarse, as on some network file systems, a second is what it takes.
    put(folder, "c")
    os.utime(folder, ns=(stamp, stamp))
    assert list(inbox.poll()) == []
    clock.now += 1.0
    assert [c.id for c in inbox.poll()] == ["c"]


def test_an_inbox_in_which_nothing_happens_is_not_listed(run, folder, monkeypatch):
    clock = Time(monkeypatch)
    inbox = Inbox(run.lease)
    for _ in range(100):
        clock.now += 0.06
        inbox.poll()
    before = clock.lists
    for _ in range(1000):
        clock.now += 0.0009
        assert not inbox.poll()
    assert clock.lists - before <= 1


def test_a_folder_that_is_removed_is_empty_until_it_is_back(run, folder):
    inbox = Inbox(run.lease)
    inbox.poll()
    folder.rmdir()
    assert list(inbox.poll()) == []
    assert waiting(run.folder) == []
    folder.mkdir()
    send(run.folder, "pause")
    assert len(inbox.poll()) == 1


def test_an_answer_is_found_by_its_id(run):
    reader = RunReader(run.folder)
    id = send(run.folder, "lr", 1.0)
    assert acknowledgement(reader, id) is None
    run.event("command", 7, id="another", command="lr", value=1.0, status="done", reason=None)
    run.event("command", 8, id=id, command="lr", value=1.0, status="refused", reason="not now")
    run.flush()
    found = acknowledgement(reader, id)
    assert found is not None
    assert found[:6] == (id, "lr", 1.0, "refused", "not now", 8)
