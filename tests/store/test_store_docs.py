"""docs/run-store.md is correct: its SQL runs, and it describes every column."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sqlite3
from pathlib import Path

import pytest

import burnt
from burnt.store import RunWriter, control, search, tags
from burnt.store.schema import APPLICATION_ID, SCHEMA_VERSION
from burnt.store.write_lease import WriteLease

PAGE = (Path(__file__).parents[2] / "docs" / "run-store.md").read_text(encoding="utf-8")
TRAIN = Path(burnt.__file__).parent / "train"
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def connection(tmp_path):
    folder = tmp_path / "run"
    config = {"metrics": {"loss": "lower", "accuracy": "higher"}}
    with RunWriter.create(folder, config=config) as run:
        for step in range(1, 9001):
            run.log(step, 1, {"loss": math.nan if step == 5000 else 1 / step})
        for epoch in (1, 2, 3):
            values = {"loss": abs(epoch - 2.0), "accuracy": 0.25 * epoch, "mine": 1 / epoch, "lost": math.nan}
            run.log(epoch * 100, epoch, values, split="valid")
        run.event("checkpoint", 8192, path="checkpoints/8192")
        run.system({"process.rss_bytes": 7 * 2**29})
        run.system({"process.rss_bytes": 2**30})
    with RunWriter.create(folder, config=config, resume=True, resumed_from_step=8192) as run:
        run.log(8193, 2, {"loss": 7.0})
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True)) as connection:
        yield connection


def test_the_examples_find_what_they_promise(connection):
    curve, best, broken, memory, checkpoints, attempts, band, ends = (
        connection.execute(example).fetchall() for example in EXAMPLES
    )
    assert curve == [(s, None if s == 5000 else 1 / s) for s in range(1, 8193)] + [(8193, 7.0)]
    assert best == [("accuracy", 3, 0.75), ("loss", 2, 0.0), ("mine", 3, 1 / 3)]
    assert broken == [(5000,)]
    assert memory == [(3.5,)]
    assert [row[1:] for row in checkpoints] == [(8192, "checkpoints/8192")]
    assert [row[2:4] for row in attempts] == [(None, "finished"), (8192, "finished")]
    assert [(row[0], row[1], row[3]) for row in band] == [(1, 1 / 4096, 1.0), (4097, 1 / 8192, 1 / 4097)]
    assert ends == [(1, "end", None), (2, "end", None)]
    assert band[1][2] == pytest.approx(sum(1 / s for s in range(4097, 8193) if s != 5000) / 4095)


def test_every_column_is_described(connection):
    names = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    assert len(names) == 13
    for (name,) in names:
        assert f"`{name}`" in PAGE
        for column in connection.execute(f"PRAGMA table_info({name})").fetchall():
            assert f"`{column[1]}`" in PAGE, f"{name}.{column[1]}"
    assert f"`{APPLICATION_ID:#x}`" in PAGE
    assert f"schema version, {SCHEMA_VERSION}." in PAGE


def test_the_command_that_is_shown_is_taken(tmp_path):
    example, _ = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL))
    with RunWriter.create(tmp_path / "run") as run:
        inbox = control.Inbox(WriteLease(run.folder, example["attempt"]))
        (run.folder / "control" / f"{example['id']}.json").write_text(json.dumps(example))
        (command,) = inbox.poll()
        sent = control.send(run.folder, "pause")
        written = json.loads((run.folder / "control" / f"{sent}.json").read_text())
    assert command == control.Command("ID", "lr", 1e-4, "jo on desk", 1.79e9, attempt=2)
    assert written.keys() == example.keys()
    assert written["sender"].keys() == example["sender"].keys()


def test_the_note_that_is_shown_is_read_and_one_like_it_is_written(tmp_path):
    _, example = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL))
    RunWriter.create(tmp_path / "run").close("finished")
    tags.add_note(tmp_path / "run", "later", 4)
    (written,) = (json.loads(path.read_text()) for path in (tmp_path / "run" / "notes").iterdir())
    assert written.keys() == example.keys()
    assert written["sender"].keys() == example["sender"].keys()
    (tmp_path / "run" / "notes" / "ID.json").write_text(json.dumps(example))
    assert tags.Note(1.79e9, 300, "the rate was too high", "jo") in tags.read_notes(tmp_path / "run")


def test_every_term_of_a_search_that_is_described_can_be_parsed():
    table = PAGE.partition("| term | matches runs |")[2].partition("\n\n")[0]
    terms = [term for row in table.splitlines()[2:] for term in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(terms) > 12
    for term in terms:
        search.parse_query(term)


def test_commands_and_their_limits_are_described():
    for kind in control.KINDS:
        assert f"`{kind}`" in PAGE
    assert f"{control.MAX_NOTE:,} characters" in PAGE
    assert "`control/refused/`" in PAGE


def test_every_event_that_a_training_writes_is_described():
    known = {
        kind
        for row in re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", row)
    }
    written = set()
    for file in TRAIN.rglob("*.py"):
        written |= set(re.findall(r"\.event\(\s*\"(\w+)\"", file.read_text(encoding="utf-8")))
    assert {"command", "stopping", "note", "error"} <= written <= known
