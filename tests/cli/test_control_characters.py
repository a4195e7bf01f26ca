"""What somebody writes into a run or a file cannot control the terminal of who looks at it."""

import contextlib
import json
import re
import shutil
import sqlite3
import sys
import unicodedata

import numpy as np
import pytest
import safetensors.numpy

from burnt.cli import main
from burnt.errors import RunError
from burnt.store import RunWriter, export_tensorboard
from tests.cli.commands import printed

OSC = "\x1b]0;owned\x07\x9b31m\r\u202e"  # a title, a colour, the beginning of the line, right to left


def hostile(value):
    """Return JSON data with control characters in each text, also in the keys that nothing looks for."""
    if isinstance(value, str):
        return value + OSC
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()} | {f"key{OSC}": OSC}
    return value


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("somebody") / f"gift{OSC}"
    png = bytes.fromhex("89504e470d0a1a0a")
    with RunWriter.create(
        folder, config={"config": {"a": {"b": "x"}}, "model": "Net", "optimizer": "Sgd"}
    ) as run:
        for step in (1, 2):
            run.log(step, 1, {"loss": 1 / step, "accuracy": 0.5, "learning_rate": 0.1})
            run.log(step, 1, {"loss": 1.0, "x": 1.0}, "valid")
        run.event("checkpoint", 2, path="step-00000002", values={"valid/loss": 1.0})
        run.event("odd", 2, words=["a", {"b": "c"}])
        run.event("note", 2, text="text")
        run.event("evaluation", 2, data="file.py:data", split="test", values={"loss": 1.0})
        run.log_line("line", "warning")
        run.system({"cpu": 1.0, "gpu0.name": 3.0})
        run.record_table("table", ["a", "b"], [["x", 1], ["y", 2]], step=1)
        run.record_table("confusion/valid", ["", "cat", "dog"], [["cat", 1, 2], ["dog", 3, 4]], step=1)
        run.record_table("kernels", ["op", "key"], [["softmax", "k"]])
        run.record_table("text", ["text"], [["line"]])
        run.record_histogram("histogram", [1, 2], [0.0, 1.0, 2.0], step=1)
        run.record_image("image", png, step=1)
        run.progress(2, 1, total_steps=4)
        run.close("crashed", "reason")
    with contextlib.closing(sqlite3.connect(folder / "run.db")) as connection, connection:
        columns = {
            "run": ["name"], "attempt": ["end_reason", "config", "host"], "progress": ["activity", "data"],
            "series": ["name", "split"], "event": ["kind", "data"], "log_line": ["level", "text"],
            "system_sample": ["data"], "artefact": ["name", "data"],
        }  # fmt: skip
        for table, names in columns.items():
            key = "attempt" if table == "progress" else "id"
            for name in names:
                for row, value in connection.execute(f"SELECT {key}, {name} FROM {table}").fetchall():
                    if isinstance(value, bytes) or (name == "kind" and value in ("note", "evaluation")):
                        continue
                    is_json = name in ("data", "config")
                    new = json.dumps(hostile(json.loads(value))) if is_json else f"{value}{OSC}"
                    connection.execute(f"UPDATE {table} SET {name} = ? WHERE {key} = ?", (new, row))
        connection.execute("INSERT INTO series (id, name, split) VALUES (900, 'loss', 'train')")
        connection.execute("INSERT INTO point VALUES (900, 1, 0, 1, 1, 0, 1.0)")
    (folder / "config.json").write_text(json.dumps({"config": {f"a{OSC}": OSC}, "model": OSC}))
    (folder / "checkpoints" / f"step-00000002{OSC}").mkdir(parents=True)
    (folder / "checkpoints" / f"step-00000002{OSC}" / f"file{OSC}").touch()
    (folder / "tags").mkdir()
    (folder / "tags" / f"tag{OSC}").touch()
    (folder / "notes").mkdir()
    note = {"version": 1, "time": 1.0, "step": 1, "text": f"note{OSC}", "user": OSC}
    (folder / "notes" / "0.json").write_text(json.dumps(note))
    return folder


@pytest.fixture
def gift(made, desk):
    shutil.copytree(made, desk / "runs" / made.name)
    shutil.copytree(made, desk / "runs" / f"other{OSC}")
    return desk / "runs" / made.name


def unsafe_lines(text):
    """Return the lines that a terminal would not only show, but for burnt's own colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    return [line for line in lines if any(unicodedata.category(c) in ("Cc", "Cf") for c in line)]


PRINTING = [
    "runs list", "runs list runs", "runs show GIFT", "runs show missing", "runs compare GIFT OTHER",
    "runs compare GIFT OTHER --metric *", "runs search state:crashed", "runs search nothing>1",
    "runs tag GIFT",
    "runs export GIFT --format tensorboard", "runs note GIFT words", "runs rm GIFT", "monitor runs --once",
    "monitor GIFT --once", "ctl GIFT stop", "train --resume GIFT", "fork GIFT@9", "replay GIFT --step 1",
    "export GIFT -o x.onnx", "quantize GIFT", "runs reproduce GIFT", "show x.safetensors",
    "show x.safetensors --only y", "convert x.safetensors x.npz", "show GIFT/checkpoints",
    "tune import x.json", "runs list --json", "runs show GIFT --json", "runs export GIFT --format jsonl",
    "monitor runs --json", "runs compare GIFT OTHER --json",
]  # fmt: skip


@pytest.mark.parametrize("is_styled", [False, True])
def test_commands_escape_what_they_print(is_styled, gift, capsys, monkeypatch):
    if is_styled:
        monkeypatch.setenv("FORCE_COLOR", "1")
    safetensors.numpy.save_file({f"x{OSC}": np.zeros(2)}, "x.safetensors", {f"key{OSC}": OSC})
    with open("x.json", "w") as file:
        json.dump(hostile({"format": "x", "rows": [{"op": "a"}]}), file)
    for command in PRINTING:
        words = [
            word.replace("GIFT", str(gift)).replace("OTHER", f"runs/other{OSC}") for word in command.split()
        ]
        main(words)
        for text in capsys.readouterr():
            assert not unsafe_lines(text), command


def test_data_are_raw_in_a_pipe_and_escaped_in_a_terminal(gift, capsys, monkeypatch):
    for words in (
        ["runs", "export", str(gift), "--format", "csv"],
        ["runs", "search", "state:crashed", "--paths"],
    ):
        assert OSC in printed(capsys, *words)
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: True)
            patch.setenv("TERM", "dumb")
            assert main(words) == 0
        text = capsys.readouterr().out
        assert "\\x1b]0;owned" in text
        assert not unsafe_lines(text)


def test_errors_are_escaped_in_tracebacks_too():
    error = RunError(
        f"no run{OSC}", where=OSC, expected=OSC, found=f"two\nlines{OSC}", origin=[OSC], hint=OSC
    )
    assert not unsafe_lines(str(error))
    assert "\n            lines\\x1b]0;owned" in str(error)


def test_an_export_stays_in_its_folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "run.db")) as connection, connection:
        connection.execute("UPDATE attempt SET host = '/../../../up'")
        connection.execute("UPDATE series SET split = '..' WHERE id = 900")
    files = export_tensorboard(tmp_path / "run", tmp_path / "out" / "board")
    assert files
    assert all(file.resolve().is_relative_to(tmp_path / "out" / "board") for file in files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
