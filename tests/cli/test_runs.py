"""`burnt runs list`, `show` and `export`."""

import csv
import io
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from burnt.cli import main
from burnt.cli.runs_show import sparkline
from burnt.store import Points, RunWriter
from burnt.store.tags import change_tags
from tests.cli.commands import ROOT, in_terminal
from tests.cli.commands import runs_printed as printed
from tests.cli.commands import runs_refused as refused


def kill_a_run(folder):
    """A run whose process is gone without a word."""
    program = (
        "import os, sys\nfrom burnt.store import RunWriter\nrun = RunWriter.create(sys.argv[1])\n"
        "run.log(1, None, {'wer': 3.0})\nrun.progress(1, None, total_steps=3)\nrun.flush()\nos._exit(9)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program, folder], env=env, timeout=120).returncode == 9


def on_terminal(monkeypatch, columns=80):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# --- list


def test_list_has_a_line_for_each_run(write, capsys):
    write("runs/done")
    write("runs/deep/er/ended", "stopped", "stopped early: as it was good")
    with RunWriter.create("runs/nan") as run:
        run.log(7, 1, {"loss": math.nan}, "valid")
    write("runs/broke", "crashed", "NonFiniteError: the loss is nan\n  in step 40")
    kill_a_run("runs/killed")
    rows = {line.split("  ")[0]: re.split(r"  +", line) for line in printed(capsys, "list").splitlines()}
    assert rows.pop("run")[1:] == ["state", "progress", "metric", "last", "best", "age", "took", "note"]
    assert rows["runs/done"][1:6] == ["finished", "epoch 4/8 50%", "valid/loss", "0.4500", "0.2500"]
    assert rows["runs/deep/er/ended"][1:3] == ["stopped early", "epoch 4/8"]
    assert rows["runs/deep/er/ended"][-1] == "stopped early: as it was good"
    assert (rows["runs/nan"][1], rows["runs/nan"][-1]) == ("finished", "valid/loss is nan at step 7")
    assert rows["runs/broke"][1] == "crashed"
    assert rows["runs/broke"][-1] == "NonFiniteError: the loss is nan"
    assert rows["runs/killed"][1:6] == ["crashed", "step 1/3 33%", "train/wer", "3.0000", "3.0000"]
    assert "ended without closing the run" in rows["runs/killed"][-1]
    assert len(rows) == 5


def test_list_as_json(write, capsys):
    write("runs/done")
    (run,) = json.loads(printed(capsys, "list", "--json"))
    assert (run["folder"], run["name"], run["state"]) == ("runs/done", "done", "finished")
    assert (run["progress"]["step"], run["progress"]["fraction"]) == (40, 0.5)
    assert (run["best"]["value"], run["best"]["step"], run["last"]["value"]) == (0.25, 20, 0.45)
    assert abs(run["created"] - time.time()) < 60
    assert 0 <= run["seconds"] < 60


def test_pauses_are_no_training_time(write, capsys):
    run = RunWriter.create("runs/paused")
    run.progress(1, 1, paused_seconds=3600.0)
    run.close("finished")
    for words in (["list"], ["show", "paused"]):
        found = json.loads(printed(capsys, *words, "--json"))
        assert (found[0] if words == ["list"] else found)["seconds"] == 0.0


def test_list_of_a_run_that_goes_on(capsys):
    with RunWriter.create("runs/now") as run:
        run.log(3, 1, {"reward": 2.0})
        run.flush()
        line = printed(capsys, "list").splitlines()[1]
    # Nobody knows whether a reward is good high or low: no best.
    assert re.match(r"runs/now  running  - +train/reward  2\.0000 +- +\ds", line)


@pytest.mark.sample
@pytest.mark.parametrize(
    "content",
    [b"", b"garbage" * 100, "cut", "headless", "newer", "folder"],
    ids=lambda content: str(content)[:8],
)
@pytest.mark.parametrize("fancy", [True, False])
def test_a_damaged_run_is_a_row(write, capsys, monkeypatch, content, fancy):
    write("runs/bad")
    path = Path("runs/bad/run.db")
    if content == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif content in ("headless", "newer"):
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE series" if content == "headless" else "PRAGMA user_version = 99")
        connection.close()
    elif content == "folder":
        path = Path("runs/bad/checkpoints/run.db")
        Path("runs/bad/run.db").rename(path)
        path.write_bytes(b"\xff")
    else:
        path.write_bytes(content)
    write("runs/good")
    if fancy:
        on_terminal(monkeypatch, 120)
    out = plain(printed(capsys, "list"))
    assert re.search(r"^runs/bad\S* +unreadable +-", out, re.MULTILINE)
    assert re.search(r"runs/bad.*(damaged: |database, or it was cut|newer burnt)", out)
    assert re.search(r"^runs/good +finished", out, re.MULTILINE)
    bad = next(run for run in json.loads(printed(capsys, "list", "--json")) if "bad" in run["folder"])
    assert bad["state"] == "unreadable"
    assert "run.db" in bad["error"]


def test_list_of_nothing(desk, capsys):
    (desk / "runs").mkdir()
    out = printed(capsys, "list")
    assert "no runs in runs" in out
    assert "burnt train" in out
    assert json.loads(printed(capsys, "list", "--json")) == []


def test_list_of_a_folder_that_is_not_there(desk, capsys):
    message = refused(capsys, 2, "list")
    assert "no folder 'runs'" in message
    assert "hint" in message
    (desk / "file").write_text("")
    assert "found     a file" in refused(capsys, 2, "list", "file")


def test_odd_names_do_not_reach_the_terminal(write, capsys, monkeypatch):
    write("runs/a  b\nc", name="\x1b[2Jx")
    write("runs/[red]ö日本\udcff")
    for fancy in (False, True):
        if fancy:
            on_terminal(monkeypatch, 120)
        out = plain(printed(capsys, "list"))
        assert r"runs/a  b\nc (\x1b[2Jx)" in out
        assert r"runs/[red]ö日本\udcff" in out
        assert "\x1b" not in out


def test_a_narrow_terminal_wraps_names_only(write, capsys, monkeypatch):
    name = "runs/" + "digits-" * 12 + "z"
    write(name)
    on_terminal(monkeypatch)
    out = plain(printed(capsys, "list"))
    assert max(map(len, out.splitlines())) <= 80
    assert "epoch 4/8 50%" in out
    assert "valid/loss" in out.splitlines()[0]
    assert "".join(line.split("  ")[0].strip() for line in out.splitlines()[1:]) == name


def test_a_narrow_terminal_does_without_the_less_important(capsys, monkeypatch):
    for name in ("runs/a-run-of-some-length", "runs/b"):
        run = RunWriter.create(name)
        run.log(1, 1, {f"accuracy_at_{name[-1]}": 0.5}, "valid")
        run.progress(1, 1, total_epochs=1000000)
        run.close("finished")
    on_terminal(monkeypatch)
    out = plain(printed(capsys, "list"))
    assert max(map(len, out.splitlines())) <= 80
    for whole in ("epoch 1/1000000 0%", "valid/accuracy_at_h", "valid/accuracy_at_b", "0.5000"):
        assert whole in out
    assert "took" not in out
    on_terminal(monkeypatch, 120)
    assert "age   took" in plain(printed(capsys, "list"))
    on_terminal(monkeypatch, 44)  # the names, whatever else there is
    for name in ("runs/a-run-of-some-length", "runs/b"):
        change_tags(name, add=[f"a-long-tag-{number}" for number in range(9)])
    out = plain(printed(capsys, "list"))
    assert max(map(len, out.splitlines())) <= 44
    assert "runs/a-run-of-some" in out
    assert "progress" not in out


def test_colours_go_to_terminals_that_want_them(write):
    write("runs/done")
    assert re.search(r"\x1b\[(\d+;)?32m", in_terminal("-m", "burnt", "runs", "list"))
    assert not re.search(r"\x1b\[(\d+;)?3\dm", in_terminal("-m", "burnt", "runs", "list", NO_COLOR="1"))
    assert "\x1b" not in in_terminal("-m", "burnt", "runs", "list", TERM="dumb")


# --- show


def fill(folder="runs/full"):
    run = RunWriter.create(folder)
    run.log(1, 1, {"loss": float("nan")})
    run.close("crashed", "the first")
    run = RunWriter.create(folder, resume=True, config={"a": {"b": [1, 2], "c": {}}, "lr": 1e-3, "text": "x"})
    for step in range(1, 2001):
        run.log(step, 1, {"loss": 1 / step})
    run.record_table("confusion", ["target", "0"], [["0", 1]], 10)
    run.record_table("confusion", ["target", "0", "1"], [["0", 90, 10], ["1", 5, float("nan")]], 20)
    run.record_table("wide", [f"column{i}" for i in range(40)], [list(range(40))] * 50)
    run.record_table("sample", ["text"], [["Once upon\n  a time\x1b"]], 20)
    run.log_line("\x1b[31mred\x1b[0m " + "long " * 40, "warning")
    run.event("checkpoint", 20, path="step-00000020", values={"valid/loss": 0.25, "x": float("inf")})
    run.close("stopped", "interrupted by SIGINT")
    for name in ("step-00000020", "step-00000030"):
        checkpoint = Path(folder, "checkpoints", name)
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"0" * 2048)


def test_show_tells_all(capsys):
    fill()
    out = printed(capsys, "show", "runs/full")
    for line in (
        r"runs/full  stopped",
        r"reason +interrupted by SIGINT",
        r"1  \S+ \S+  [\d.]+ s  +-  crashed: the first",
        r"2  \S+ \S+  [\d.]+ s  +-  stopped: interrupted by SIGINT",
        r"a\.b +\[1, 2\]",
        r"a\.c +\{\}",
        r"lr +0\.001",
        r"train/loss +0\.0005 +2000 +0\.0005 +2000  █[▁▂]▁{18}",
        r"step-00000020  2\.0 KiB   \ds  valid/loss 0\.2500  x Infinity",
        r"step-00000030  2\.0 KiB   \ds  -",
        r"confusion at step 20",
        r"0       90   10",
        r"1        5  NaN",
        r"sample at step 20\nOnce upon\n  a time\\x1b",
        r"\S+  20  checkpoint  step-00000020  valid/loss 0\.2500  x Infinity",
        r"\S+  warning  \\x1b\[31mred\\x1b\[0m (long )+long",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), f"{line}\n{out}"
    assert "confusion at step 10" not in out
    # A pipe gets every row and column.
    assert "column39" in out
    assert len(re.findall(r"^ +0 .* 39$", out, re.MULTILINE)) == 50


def test_show_fits_a_terminal(capsys, monkeypatch):
    fill()
    on_terminal(monkeypatch)
    raw = printed(capsys, "show", "runs/full")
    out = plain(raw)
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b[31mred" not in raw
    assert re.search(r"^\.\.\. 30 rows and \d+ columns more", out, re.MULTILINE)
    assert "column0" in out
    assert "column39" not in out


@pytest.mark.parametrize(("columns", "is_folded"), [(400, False), (200, True), (80, True), (20, None)])
def test_a_table_with_a_very_wide_column_shows_the_others(capsys, monkeypatch, columns, is_folded):
    key = "cpu Some Processor, gcc 12.2.0|x=float32 4d row 24576x8|" * 4 + "end"
    with RunWriter.create("runs/wide") as run:
        run.record_table("kernels", ["op", "text", "candidate", "count"], [["softmax", key, "generated", 7]])
    on_terminal(monkeypatch, columns)
    out = plain(printed(capsys, "show", "runs/wide"))
    assert max(map(len, out.splitlines())) <= columns
    rows = out.partition("kernels\n")[2].splitlines()
    if is_folded is None:  # too narrow for a readable key
        assert rows[0].split() == ["op"]
        assert "3 columns more" in out
    else:
        assert rows[0].split() == ["op", "text", "candidate", "count"]
        assert rows[1].split()[-2:] == ["generated", "7"]
        assert (key in rows[1]) != is_folded
        words = "".join(" ".join(rows[1:]).split()).replace("generated7", "")
        assert "".join(key.split()) in words


def test_the_machine_of_the_kernels_is_shown_once(capsys):
    machine = "cpu Some Processor with a Long Name, AVX512, 2 threads, torch 2.13, gcc 12.2.0"
    rows = [
        ["softmax", f"v3|{machine}|grad|x=float32 4x8", "generated"],
        ["silu", f"v3|{machine}|plain|x=float32 4x9", "library"],
        ["... 5 more", None, None],
    ]
    with RunWriter.create("runs/kernels") as run:
        run.record_table("kernels", ["op", "key", "candidate"], rows)
    out = printed(capsys, "show", "runs/kernels")
    assert out.count(machine) == 1
    assert f"kernels, on {machine}\n" in out
    assert re.search(r"softmax\s+grad  x=float32 4x8\s+generated\n", out)
    assert json.loads(printed(capsys, "show", "runs/kernels", "--json"))["tables"][0]["rows"] == rows


def test_show_as_json(write, capsys):
    fill()
    run = json.loads(printed(capsys, "show", "runs/full", "--json"))
    assert (run["state"], run["reason"]) == ("stopped", "interrupted by SIGINT")
    assert [attempt["end_reason"] for attempt in run["attempts"]] == ["the first", "interrupted by SIGINT"]
    assert run["config"] == {"a": {"b": [1, 2], "c": {}}, "lr": 1e-3, "text": "x"}
    (series,) = run["series"]
    assert series["best"] == series["lowest"] == {k: series["last"][k] for k in ("step", "time", "value")}
    assert (series["highest"]["step"], series["highest"]["value"]) == (1, 1.0)
    assert [table["name"] for table in run["tables"]] == ["confusion", "wide", "sample"]
    assert run["tables"][0]["rows"] == [["0", 90, 10], ["1", 5, "NaN"]]
    assert [checkpoint["bytes"] for checkpoint in run["checkpoints"]] == [2048, 2048]
    assert run["log"][0]["level"] == "warning"


def test_the_best_is_the_highest_where_higher_is_better(write, capsys):
    write("r")
    out = printed(capsys, "show", "r")
    assert re.search(r"^valid/accuracy +0\.8000 +40 +0\.9000 +30 ", out, re.MULTILINE)
    assert re.search(r"^valid/loss +0\.4500 +40 +0\.2500 +20 ", out, re.MULTILINE)


def test_show_of_an_empty_run(capsys):
    RunWriter.create("runs/empty").close("finished")
    out = printed(capsys, "show", "runs/empty")
    assert out.startswith("runs/empty  finished\n")
    assert "metrics" not in out


@pytest.mark.parametrize("command", [["show"], ["export", "--format", "csv"]])
@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("runs/digts", "did you mean runs/digits?"),
        ("digts", "did you mean runs/digits?"),
        ("elsewhere/digits", "there is no folder 'elsewhere'"),
        ("runs", "`burnt runs list runs`"),
    ],
)
def test_a_mistyped_run(write, capsys, command, typed, hint):
    write("runs/digits")
    message = refused(capsys, 2, *command, typed)
    assert hint in message
    assert f"expected  {typed}/run.db" in message


@pytest.mark.parametrize("name", ["digits", "letters", "deep/digits-b", "linked"])
def test_a_run_is_found_by_its_name_below_runs(write, capsys, name):
    write("runs/digits")
    write("runs/deep/digits-b")
    Path("runs/linked").symlink_to("digits")
    write("runs/letters-20260131-0915")
    assert printed(capsys, "show", name).startswith(f"runs/{name}")
    assert "valid,loss" in printed(capsys, "export", "--format", "csv", name).replace(
        "loss,valid", "valid,loss"
    )


def test_a_damaged_run_is_an_error(write, capsys):
    write("runs/bad")
    Path("runs/bad/run.db").write_bytes(b"garbage")
    assert "damaged" in refused(capsys, 1, "show", "runs/bad")
    assert "damaged" in refused(capsys, 1, "export", "runs/bad", "--format", "jsonl")


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([1.0], "▄"),
        ([2.0, 2.0], "▄▄"),
        ([0.0, 7.0, 3.0], "▁█▄"),
        ([float("inf"), 0.0, 1.0, float("nan")], "!▁█!"),
        ([float("nan")], "!"),
        ([-1.7e308, 1.7e308], "▁█"),
        ([1.7e308] * 30 + [0.0] * 10, "███▁"),
        (list(range(8000)), "▁▃▆█"),
    ],
)
def test_sparklines(values, drawn):
    points = Points(list(range(len(values))), [0.0] * len(values), [float(value) for value in values])
    assert sparkline(points, 4) == drawn


# --- export


def test_export_csv(write, capsys):
    write("r")
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "export", "r", "--format", "csv"))))
    found = {int(row["step"]): float(row["value"]) for row in rows if row["split"] == "train"}
    assert found == {step: 1 / step for step in range(1, 41)}
    assert main(["runs", "export", "r", "--format", "csv", "--out", "new/r.csv"]) == 0
    assert capsys.readouterr().err == "wrote 48 points to new/r.csv\n"
    assert list(csv.DictReader(io.StringIO(Path("new/r.csv").read_text()))) == rows


def test_export_jsonl(write, capsys):
    write("r", "stopped", "enough")
    lines = printed(capsys, "export", "r", "--format", "jsonl", "--follow").splitlines()
    assert json.loads(lines[-1]) == {"type": "end", "state": "stopped", "reason": "enough"}
    assert printed(capsys, "export", "r", "--format", "jsonl").splitlines() == lines
    assert main(["runs", "export", "r", "--format", "jsonl", "--out", "r.jsonl"]) == 0
    assert capsys.readouterr().err == f"wrote {len(lines)} lines to r.jsonl\n"
    assert Path("r.jsonl").read_text().splitlines() == lines


def test_export_tensorboard(write, capsys):
    write("r")
    assert main(["runs", "export", "r", "--format", "tensorboard"]) == 0
    reported = capsys.readouterr().err.splitlines()
    files = sorted(Path("r/tensorboard").rglob("events.out.tfevents.*"))
    assert [file.parent.name for file in files] == ["train", "valid"]
    assert reported == [f"wrote {file}" for file in files]
    assert main(["runs", "export", "r", "--format", "tensorboard", "--out", "boards"]) == 0
    assert len(list(Path("boards").rglob("events.*"))) == 2
    RunWriter.create("empty").close("finished")
    capsys.readouterr()
    assert main(["runs", "export", "empty", "--format", "tensorboard"]) == 0
    assert "nothing was written" in capsys.readouterr().err


def test_export_to_a_pipe_by_name(write):
    write("r")
    os.mkfifo("named")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("named").read_text()), daemon=True)
    reader.start()
    assert main(["runs", "export", "r", "--format", "csv", "--out", "named"]) == 0
    assert Path("named").is_fifo()
    reader.join(30)
    assert len(read[0].splitlines()) == 49


def test_export_where_nothing_can_be_written(write, capsys, desk):
    write("r")
    (desk / "file").write_text("")
    message = refused(capsys, 1, "export", "r", "--format", "csv", "--out", "file/r.csv")
    assert "cannot be written" in message
