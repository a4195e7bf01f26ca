"""`burnt runs compare`, `search`, `tag`, `note` and `rm`."""

import json
import re
from pathlib import Path

from burnt.cli import main
from burnt.store import RunReader, RunWriter
from burnt.store.tags import all_notes, read_tags
from tests.cli.commands import runs_printed as printed
from tests.cli.commands import runs_refused as refused


def make(name, lr=0.1, loss=1.0, state="finished", fork=None, **extra):
    config = {"config": {"lr": lr, "model": {"hidden": 64}}, "optimizer": "AdamW()", "load": {"lr": 3}}
    if fork is not None:
        config["fork"] = fork
    run = RunWriter.create(f"runs/{name}", config=config)
    for step in range(1, 31):
        run.log(step, 1, {"loss": loss / step, "grad_norm/layer1": step})
        if step % 10 == 0:
            # Best in the middle, so that best and last differ.
            run.log(step, 1, {"loss": loss + abs(step - 20) / 100, **extra}, "valid")
            run.log(step, 1, {"loss": 2 * loss}, "shifted")
    run.progress(30, 1, total_steps=30)
    run.close(state, None if state == "finished" else state)


# --- compare


def rows_of(out, heading):
    part = out.partition(f"{heading}\n")[2].partition("\n\n")[0]
    return [re.split(r"  +", line.strip()) for line in part.splitlines() if line[0] != "."]


def test_compare_shows_what_differs_and_marks_the_better(capsys):
    make("a", lr=0.1, loss=1.0, accuracy=0.5)
    make("b", lr=0.01, loss=0.5, accuracy=0.75)
    make("c", lr=0.01, loss=2.0, state="crashed")
    out = printed(capsys, "compare", "a", "runs/b", "c")
    runs = [re.split(r"  +", line) for line in out.splitlines()[1:4]]
    assert [row[:3] for row in runs] == [
        ["1", "runs/a", "finished"],
        ["2", "runs/b", "finished"],
        ["3", "runs/c", "crashed"],
    ]
    assert [row[3] for row in runs] == ["30", "30", "30"]
    assert rows_of(out, "settings that differ") == [
        ["setting", "1", "2", "3"],
        ["lr", "0.1", "0.01", "0.01"],
    ]
    metrics = {(row[0], row[1]): row[2:] for row in rows_of(out, "metrics")}
    assert metrics["valid/loss", "best"] == ["1.0000", "0.5000*", "2.0000"]
    assert metrics["valid/loss", "at step"] == ["20", "20", "20"]
    assert metrics["valid/loss", "last"] == ["1.1000", "0.6000*", "2.1000"]
    assert metrics["valid/accuracy", "best"] == ["0.5000", "0.7500*", "-"]
    assert metrics["shifted/loss", "last"] == ["2.0000", "1.0000*", "4.0000"]
    assert ("train/grad_norm/layer1", "last") not in metrics
    assert "... 1 more metric without a known better direction: --metric PATTERN or --json" in out


def test_compare_draws_curves_and_overlays_a_fork_on_its_parent(capsys):
    make("parent", loss=1.0)
    make("fork", loss=0.5, fork={"folder": "../parent", "step": 10})
    make("gone", loss=0.7, fork={"folder": "../deleted", "step": 3})
    out = printed(capsys, "compare", "fork", "gone", "--metric", "*/loss", "--metric", "train/grad*")
    assert "runs/fork  fork of parent@10" in out
    assert "runs/gone  fork of deleted@3 (missing)" in out
    titles = [line.split()[0] for line in out.splitlines() if re.search(r"/\S+  1 \S+  2 ", line)]
    assert titles == ["valid/loss", "shifted/loss", "train/loss", "train/grad_norm/layer1"]
    assert out.count("dimmed: parent of 1, up to the step of the fork\n") == 4
    assert sum(0x2800 < ord(c) < 0x2900 for c in out) > 100
    # With the parent among the runs, its own curve is what the fork lies on.
    out = printed(capsys, "compare", "parent", "fork", "--metric", "valid/loss")
    assert "dimmed" not in out


def test_compare_as_json(capsys):
    make("a", lr=0.1, loss=1.0)
    make("b", lr=0.01, loss=0.5)
    data = json.loads(printed(capsys, "compare", "runs/a", "--json", "--metric", "valid/loss", "b"))
    assert [run["folder"] for run in data["runs"]] == ["runs/a", "runs/b"]
    assert data["settings"] == {"config.lr": ["0.1", "0.01"]}
    metrics = {(one["split"], one["name"]): one for one in data["metrics"]}
    assert metrics["valid", "loss"]["better"] == "lower"
    assert [best["step"] for best in metrics["valid", "loss"]["best"]] == [20, 20]
    assert metrics["train", "grad_norm/layer1"]["best"] == [None, None]
    assert [run["values"] for run in data["curves"][0]["runs"]] == [[1.1, 1.0, 1.1], [0.6, 0.5, 0.6]]


def test_compare_fits_a_terminal(capsys, monkeypatch):
    for i in range(6):
        make(f"a-name-that-is-not-short-{i}", lr=0.1 / (i + 1), loss=1.0 + i)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    out = printed(capsys, "compare", "runs/*", "--metric", "valid/loss")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"\x1b\[1;32m1\.0000\*", out)


def test_compare_of_one_run_of_none_and_of_a_metric_that_is_not_there(capsys):
    make("a")
    make("b")
    assert "two runs or more" in refused(capsys, 2, "compare", "a", "runs/a")
    assert "did you mean runs/a?" in refused(capsys, 2, "compare", "a", "aa")
    message = refused(capsys, 2, "compare", "a", "b", "--metric", "valid/los")
    assert "did you mean valid/loss?" in message
    assert "did you mean valid/loss?" in refused(capsys, 2, "compare", "a", "b", "--metric", "losss")
    assert "no run matches 'zz*'" in refused(capsys, 2, "compare", "zz*")
    Path("runs/b/run.db").write_bytes(b"garbage")
    assert "damaged" in refused(capsys, 1, "compare", "a", "b")


# --- search


def test_search_lists_what_matches(capsys):
    make("a", lr=0.1, loss=1.0)
    make("b", lr=0.01, loss=0.5)
    make("c", lr=0.01, loss=2.0, state="crashed")
    main(["runs", "tag", "b", "+baseline"])
    capsys.readouterr()
    for query, found in (
        (["lr<0.05"], "bc"),
        (["lr<0.05", "-state:crashed"], "b"),
        (["tag:baseline valid/loss<0.7"], "b"),
        (["best:valid/loss<1.05", "-tag:baseline"], "a"),
        (["shifted/loss>3"], "c"),
    ):
        paths = printed(capsys, "search", *query, "--paths").split()
        assert sorted(path[-1] for path in paths) == list(found), query
    out = printed(capsys, "search", "lr<0.05")
    assert out.splitlines()[0].split()[-2:] == ["tags", "note"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["runs/c", "runs/b"]
    (run,) = json.loads(printed(capsys, "search", "tag:base*", "--json"))
    assert (run["folder"], run["tags"]) == ("runs/b", ["baseline"])


def test_search_that_finds_nothing_exits_with_1_and_names_a_mistyped_key(capsys):
    make("a")
    assert printed(capsys, "search", "lr>5", code=1) == "none of the 1 runs in runs matches\n"
    assert printed(capsys, "search", "lr>5", "--paths", code=1) == ""
    assert main(["runs", "search", "hiden=64"]) == 1
    assert capsys.readouterr().err == "no run has a setting or metric hiden: did you mean hidden?\n"
    assert main(["runs", "search", "loss<1", "--json"]) == 1
    assert "did you mean valid/loss?" in capsys.readouterr().err


def test_an_invalid_search_is_a_usage_error_that_points_at_its_place(capsys):
    make("a")
    message = refused(capsys, 2, "search", "digits", "lr>fast")
    assert "in        digits lr>fast\n                      ^\n" in message
    assert "no folder 'elsewhere'" in refused(capsys, 2, "search", "x", "--in", "elsewhere")


def test_search_of_a_folder_with_a_damaged_run(capsys):
    make("a")
    make("b")
    Path("runs/b/run.db").write_bytes(b"garbage")
    assert printed(capsys, "search", "state:unreadable", "--paths") == "runs/b\n"
    assert printed(capsys, "search", "-hidden=63", "--paths").split() == ["runs/b", "runs/a"]


# --- tags and notes


def test_tags_are_added_and_removed_and_shown(capsys):
    make("a")
    make("b")
    assert printed(capsys, "tag", "a", "+new", "+old") == "runs/a: new old\n"
    assert printed(capsys, "tag", "runs/*", "-old", "+x") == "runs/a: new x\nruns/b: x\n"
    assert printed(capsys, "tag", "b") == "runs/b: x\n"
    assert json.loads(printed(capsys, "tag", "b", "-x", "--json")) == [{"folder": "runs/b", "tags": []}]
    assert "new x" in printed(capsys, "list")
    assert re.search(r"^tags +new x$", printed(capsys, "show", "a"), re.MULTILINE)
    assert json.loads(printed(capsys, "show", "a", "--json"))["tags"] == ["new", "x"]


def test_wrong_tags_change_nothing(capsys):
    make("a")
    assert "the tag is not valid" in refused(capsys, 2, "tag", "a", "+fine", "+not/fine")
    assert "both added and removed" in refused(capsys, 2, "tag", "a", "+x", "-x")
    assert "no run is named" in refused(capsys, 2, "tag", "+x")
    assert "there is no folder" in refused(capsys, 2, "tag", "elsewhere/a", "+x")
    assert read_tags("runs/a") == ()


def test_notes_of_runs_that_ended_and_that_go_on(capsys):
    make("a")
    assert printed(capsys, "note", "a", "too", "high") == "runs/a: note added at step 30\n"
    with RunWriter.create("runs/live"):
        assert printed(capsys, "note", "live", "it runs") == "runs/live: note added\n"
    with RunReader("runs/live") as reader:
        assert [note.text for note in all_notes(reader)] == ["it runs"]
    assert re.search(r"^\S+ \S+  30  too high$", printed(capsys, "show", "a"), re.MULTILINE)
    (note,) = json.loads(printed(capsys, "show", "a", "--json"))["notes"]
    assert (note["step"], note["text"]) == (30, "too high")
    assert "note" in refused(capsys, 2, "note", "a", "x" * 3000)


# --- rm


def answer(monkeypatch, text):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question="": print(question) or text)


def test_rm_asks_and_says_what_is_freed(capsys, monkeypatch):
    make("a")
    make("b")
    Path("runs/b/thesis.txt").write_text("mine")
    answer(monkeypatch, "")
    assert main(["runs", "rm", "a", "b"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "nothing was removed\n"
    assert re.search(r"^runs/b  finished  [\d.]+ KiB, with thesis\.txt$", captured.out, re.MULTILINE)
    assert "Remove 2 runs" in captured.out
    assert Path("runs/a/run.db").exists()
    answer(monkeypatch, "y")
    assert re.search(r"removed 2 runs: [\d.]+ KiB freed", printed(capsys, "rm", "a", "b"))
    assert list(Path("runs").iterdir()) == []


def test_rm_without_a_terminal_needs_yes(capsys):
    make("a")
    assert "--yes" in refused(capsys, 2, "rm", "a")
    assert re.fullmatch(r"removed runs/a: [\d.]+ KiB freed\n", printed(capsys, "rm", "a", "--yes"))


def test_rm_removes_nothing_if_one_run_is_live_or_none(capsys):
    make("a")
    with RunWriter.create("runs/live"):
        assert "runs/live is running" in refused(capsys, 1, "rm", "a", "live", "--yes")
    assert "contains no run" in refused(capsys, 2, "rm", "a", "runs", "--yes")
    assert Path("runs/a/run.db").exists()
    Path("runs/a/run.db").write_bytes(b"garbage")
    assert "may be running" in refused(capsys, 1, "rm", "a", "--yes")
    assert Path("runs/a/run.db").exists()
