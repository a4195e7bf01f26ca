"""`burnt tune`, on a table of its own."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from burnt import kernels
from burnt.cli import main
from burnt.kernels.autotune import tuner
from burnt.kernels.autotune.database import Row, TuningDatabase, read_table
from burnt.kernels.interface.candidate import Alternative
from burnt.kernels.interface.tuning_key import machine_name, source_hash
from tests.cli.commands import printed, refused


@pytest.fixture(autouse=True)
def table(desk, monkeypatch):
    monkeypatch.setenv("BURNT_CACHE", str(desk / "cache"))
    return desk / "cache" / "tuned.sqlite"


@pytest.fixture
def example():
    """An op with one small example."""

    @kernels.op(examples=lambda device: [(torch.ones(100, device=device),)])
    def negated(x: torch.Tensor) -> torch.Tensor:
        return -x

    return negated


SILU = f"silu|{source_hash(kernels.silu)}|cpu|inference|x=float32 1d row 1x64"
ROWS = [
    Row(SILU, "library", "ok", 2.0),
    Row(SILU, "generated", "ok", 1.0),
    Row("gelu|a|cpu|inference|x=float32 1d row 1x64", "mine", "wrong", None, "result 0: off by 1"),
]


def test_run_measures_and_keeps(capsys, example):
    before = time.time()
    rows = json.loads(printed(capsys, "tune", "run", "negated", "--json"))
    assert all(row["at"] >= before for row in rows)
    assert {row["config"] for row in rows} <= {"library", "generated"}
    assert all(row["status"] == "ok" and row["ms"] > 0 for row in rows)
    assert {row["key"].split("|")[3] for row in rows} == {"inference", "training"}
    assert len(TuningDatabase().rows()) == len(rows)


def test_without_a_folder_the_variable_is_named(capsys, desk, monkeypatch):
    (desk / "file").write_text("")
    monkeypatch.setenv("BURNT_CACHE", str(desk / "file"))
    err = refused(capsys, "tune", "show", code=1)
    assert "there is no folder for the table of tuned kernels" in err
    assert "set BURNT_CACHE to a folder" in err


def test_run_says_why_there_was_nothing_to_measure(capsys, example, monkeypatch):
    assert "the device meta cannot be measured" in refused(
        capsys, "tune", "run", "negated", "--device", "meta"
    )

    def refusing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("never")

    for reference, examples, code, why, problem in (
        (None, lambda device: [], 0, "no examples of negated on cpu", ""),
        (None, lambda device: 1 // 0, 1, "see the errors below", "creating its examples: ZeroDivision"),
        (None, lambda device: [torch.ones(1)], 1, "see the errors below", "is not a tuple of arguments"),
        (
            refusing,
            lambda device: [(torch.ones(1),)],
            1,
            "see the errors below",
            "negated: ValueError: never",
        ),
    ):
        monkeypatch.setattr(example, "examples", examples)
        monkeypatch.setattr(example, "reference", reference or example.reference)
        assert main(["tune", "run", "negated"]) == code
        out, err = capsys.readouterr()
        assert f"no measurements: {why}" in out
        assert problem in err


def test_run_says_what_is_wrong_with_a_module(capsys, desk):
    (desk / "without_ops.py").write_text("x = 1\n")
    assert "without_ops.py registers no op" in refused(
        capsys, "tune", "run", "nowhere_at_all", "--import", "without_ops.py"
    )
    for i, (text, found) in enumerate((("def f(:\n", "SyntaxError"), ("\nraise ValueError('boo')\n", "boo"))):
        (desk / f"broken{i}.py").write_text(text)
        err = refused(capsys, "tune", "run", "silu", "--import", f"broken{i}.py")
        assert f"broken{i}.py cannot be imported" in err
        assert f"broken{i}.py:{i + 1}" in err
        assert found in err
        assert "Traceback" not in err


def test_rows_of_sources_that_are_no_more_are_marked(capsys, example):
    now = source_hash(example)
    keys = {name: f"negated|{name}|m|inference|x" for name in (now, "before", "theirs", "longago")}
    TuningDatabase().add(
        [
            Row(keys["longago"], "mine", "ok", 2.0, at=1.0),
            Row(keys["before"], "library", "ok", 2.0, at=2.0),
            Row(keys[now], "library", "ok", 2.0, at=3.0),
            Row(keys["theirs"], "mine", "ok", 1.0, at=4.0),  # a candidate that is not imported here
            *(
                Row(f"elsewhere|{s}|m|inference|x", "library", "ok", 1.0, at=at)
                for s, at in (("a", 1.0), ("b", 2.0))
            ),
        ]
    )
    assert main(["tune", "show", "--json"]) == 0
    found = {tuple(row["key"].split("|")[:2]): row["old"] for row in json.loads(capsys.readouterr().out)}
    assert found == {
        ("negated", now): False,
        ("negated", "before"): True,
        ("negated", "theirs"): False,
        ("negated", "longago"): True,
        ("elsewhere", "a"): True,
        ("elsewhere", "b"): False,
    }
    lines = printed(capsys, "tune", "show", "negated").splitlines()
    assert sum(" old " in line for line in lines) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sofmax"], "there is no op 'sofmax'"),
        (["sofmax"], "did you mean 'softmax'?"),
        (["silu", "--device", "toaster"], "torch cannot use the device 'toaster'"),
        (["silu", "--seconds", "-1"], "--seconds is invalid"),
        (["silu", "--seconds", "nan"], "--seconds is invalid"),
    ],
)
def test_run_refuses_what_it_does_not_know(capsys, words, message):
    assert message in refused(capsys, "tune", "run", *words)


def test_run_in_other_dtypes_and_in_a_limited_time(capsys, example):
    assert main(["tune", "run", "negated", "--json", "--dtype", "bfloat16", "--dtype", "float64"]) == 0
    out, err = capsys.readouterr()
    assert {row["key"].split("x=")[1].split()[0] for row in json.loads(out)} == {"bfloat16", "float64"}
    assert [line.split(":")[0] for line in err.splitlines()] == ["negated bfloat16", "negated float64"]
    assert "2 timed; best: " in err or "4 timed; best: " in err
    assert main(["tune", "run", "negated", "--seconds", "0"]) == 0
    out, err = capsys.readouterr()
    assert "no measurements: the time limit was reached" in out
    assert "skipped because of the time limit: negated" in err
    assert "no floating-point dtype 'int8'" in refused(capsys, "tune", "run", "negated", "--dtype", "int8")


@pytest.fixture
def clocked(monkeypatch):
    """Three ops of 8, 2 and 2 examples; `run` for some seconds gives what was measured, in order."""
    takes = {"greedy": 10.0, "second": 10.0, "third": 10.0}
    order: list[str] = []
    now = [1000.0]

    def measured(op, args, kind, effort, store):
        now[0] += takes[op.name]
        order.append(op.name)
        return [], None

    def run(seconds, **other):
        takes.update(other)
        order.clear()
        assert main(["tune", "run", *takes, *(() if seconds is None else ("--seconds", str(seconds)))]) == 0
        return list(order)

    for name, count in (("greedy", 8), ("second", 2), ("third", 2)):

        def doubled(x: torch.Tensor) -> torch.Tensor:
            return x + x

        doubled.__name__ = doubled.__qualname__ = name
        kernels.op(doubled, examples=lambda device, count=count: [(torch.ones(3),)] * count)
    monkeypatch.setattr("burnt.cli.tune.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr("burnt.cli.tune._measure_example", measured)
    return run


def test_an_op_has_no_more_than_its_share_of_the_time(capsys, clocked):
    # 20 seconds each; nobody has time left over.
    assert clocked(60) == ["greedy"] * 2 + ["second"] * 2 + ["third"] * 2
    assert "skipped because of the time limit: greedy" in capsys.readouterr().err
    # What the others do not need goes back to the first.
    assert clocked(90) == ["greedy"] * 3 + ["second"] * 2 + ["third"] * 2 + ["greedy"] * 2
    assert clocked(None) == ["greedy"] * 8 + ["second"] * 2 + ["third"] * 2
    assert "skipped" not in capsys.readouterr().err.splitlines()[-1]
    # One that takes all of it has begun before, and one example of each is begun while there is time.
    assert clocked(60, greedy=50.0) == ["greedy", "second"]
    assert "skipped because of the time limit: greedy, second, third" in capsys.readouterr().err
    assert clocked(29, greedy=10.0) == ["greedy", "second", "third"]
    assert clocked(0) == []


def test_run_goes_on_when_an_op_cannot_be_measured(capsys, example, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(tuner, "ReferenceResult", fails)
        assert main(["tune", "run", "negated"]) == 1
    assert "could not be measured: negated: RuntimeError: out of memory" in capsys.readouterr().err


def test_run_lists_what_was_left_out(capsys, example, monkeypatch):
    candidate = example.candidates["library"]
    found = [Alternative(None), Alternative({"k": 1}, "300 registers a thread, where there are 255")]
    monkeypatch.setattr(candidate, "alternatives", lambda args: found)
    assert main(["tune", "run", "negated"]) == 0
    out, err = capsys.readouterr()
    assert 'library {"k": 1}: 300 registers a thread, where there are 255' in out
    assert "2 pruned" in err
    assert "pruned" not in {row.status for row in TuningDatabase().rows()}


def test_export_of_a_device(capsys, desk):
    here = machine_name("cpu")
    TuningDatabase().add([*ROWS, ROWS[0]._replace(key=f"silu|a|{here}|inference|x=float32 1d row 1x64")])
    assert main(["tune", "export", "out.json", "--device", "cpu"]) == 0
    assert [row.machine for row in read_table(desk / "out.json")] == [here]


def test_export_says_what_is_not_there(capsys, desk):
    TuningDatabase().add(ROWS)
    assert "there is no folder for the file" in refused(capsys, "tune", "export", "nowhere/out.json")
    assert "torch cannot use the device 'toaster'" in (
        err := refused(capsys, "tune", "export", "out.json", "--device", "toaster")
    )
    assert "burnt info" in err
    if not torch.cuda.is_available():
        assert "there are no measurements on cuda yet" in refused(
            capsys, "tune", "export", "out.json", "--device", "cuda"
        )
        TuningDatabase().add([ROWS[0]._replace(key="silu|a|cuda H200 sm_90, triton 3.4|inference|x=float32")])
        assert main(["tune", "export", "cuda.json", "--device", "cuda"]) == 0
        assert [row.machine for row in read_table(desk / "cuda.json")] == ["cuda H200 sm_90, triton 3.4"]
        capsys.readouterr()
    assert "there are no measurements of softmax yet" in refused(
        capsys, "tune", "export", "out.json", "softmax"
    )
    assert "there are no measurements on cpu yet" in refused(
        capsys, "tune", "export", "out.json", "--device", "cpu"
    )


@pytest.mark.parametrize("command", [["export", "out.json"], ["clear"], ["show"]])
def test_an_unknown_op_is_named_with_the_nearest(capsys, command):
    TuningDatabase().add([*ROWS, ROWS[0]._replace(key="of_mine|a|cpu|inference|x=float32 1d row 1x64")])
    assert "there is no op 'sofmax'" in (err := refused(capsys, "tune", *command, "sofmax"))
    assert "did you mean 'softmax'?" in err
    assert main(["tune", *command, "of_min"]) == 2
    assert "'of_mine'?" in capsys.readouterr().err  # it was measured, and is not imported now
    assert main(["tune", *command, "of_mine"]) == 0


def test_examples_that_cannot_be_used_are_reported_and_the_others_measured(capsys, example):
    @kernels.op(examples=lambda device: [(torch.ones(10), torch.ones(10)), (torch.ones(10),)])
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    assert main(["tune", "run", "added", "negated", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "example 1 of the op added" in err
    assert "missing a required argument: 'y'" in err
    assert {row["key"].split("|")[0] for row in json.loads(out)} == {"negated"}


def test_what_was_disturbed_is_marked(capsys):
    TuningDatabase().add([ROWS[0], ROWS[1]._replace(note="disturbed: samples differ by 80%")])
    lines = printed(capsys, "tune", "show").splitlines()
    assert "ok (disturbed)" in lines[1]
    assert "float32 1d row 1x64" in lines[1]
    assert "disturbed" not in lines[2]


def test_run_imports_ops_of_ones_own(capsys, desk):
    (desk / "ops_of_mine.py").write_text(
        "import torch\nfrom burnt import kernels\n\n"
        "@kernels.op(examples=lambda device: [(torch.ones(100, device=device),)])\n"
        "def of_mine(x: torch.Tensor) -> torch.Tensor:\n    return x * 3\n\n"
        "@kernels.op\ndef without(x: torch.Tensor) -> torch.Tensor:\n    return x * 5\n"
    )
    assert "add --import MODULE for an op of your own" in refused(capsys, "tune", "run", "of_mine")
    assert (
        len(json.loads(printed(capsys, "tune", "run", "of_mine", "--import", "ops_of_mine.py", "--json")))
        >= 2
    )
    assert "the op without has no examples" in (
        err := refused(capsys, "tune", "run", "without", "--import", "ops_of_mine.py")
    )
    assert "@kernels.op(examples=lambda device: [...])" in err
    assert "ops_of_nobody.py" in refused(capsys, "tune", "run", "--import", "ops_of_nobody.py")


def test_show(capsys):
    assert "no measurements yet" in printed(capsys, "tune", "show")
    TuningDatabase().add(ROWS)
    lines = printed(capsys, "tune", "show").splitlines()
    assert lines[0].split() == ["op", "candidate", "state", "ms", "of", "best", "age", "for"]
    assert lines[1].split()[:3] == ["gelu", "mine", "wrong"]
    assert "off by 1" in lines[1]
    assert [line.split()[:5] for line in lines[2:]] == [
        ["silu", "generated", "ok", "1", "1.00"],
        ["silu", "library", "ok", "2", "2.00"],
    ]
    assert [row["config"] for row in json.loads(printed(capsys, "tune", "show", "gelu", "--json"))] == [
        "mine"
    ]


def test_export_and_import(capsys, desk, table):
    assert "there are no measurements yet" in refused(capsys, "tune", "export", "out.json")
    TuningDatabase().add(ROWS)
    before = TuningDatabase().rows()
    assert main(["tune", "export", "out.json"]) == 0
    assert main(["tune", "clear", "silu"]) == 0
    assert {row.op for row in TuningDatabase().rows()} == {"gelu"}
    assert main(["tune", "clear"]) == 0
    assert TuningDatabase().rows() == []
    assert main(["tune", "import", "out.json"]) == 0
    assert TuningDatabase().rows() == before
    (desk / "other.json").write_text('{"rows": []}')
    assert "not a table of tuned kernels" in refused(capsys, "tune", "import", "other.json", code=1)
    assert main(["tune", "import", "missing.json"]) == 1


def test_kept_decisions_of_swap_are_shown_and_cleared(capsys, table):
    folder = table.parent / "swap"
    assert "burnt.swap" not in printed(capsys, "tune", "show")
    folder.mkdir(mode=0o700)
    for name in "ab":
        (folder / f"{name}.json").write_text("{}")
    out = printed(capsys, "tune", "show")
    assert f"burnt.swap: decisions for 2 models in {folder}, the newest " in out
    TuningDatabase().add(ROWS)
    assert main(["tune", "clear", "silu"]) == 0
    assert len(list(folder.iterdir())) == 2
    capsys.readouterr()
    assert printed(capsys, "tune", "clear") == "1 row deleted\nburnt.swap: decisions for 2 models deleted\n"
    assert list(folder.iterdir()) == []


def test_a_damaged_table_is_moved_aside(capsys, table):
    table.parent.mkdir(mode=0o700)
    table.write_bytes(b"this was no database, ever" * 400)
    assert "is damaged" in (err := refused(capsys, "tune", "show", code=1))
    assert "`burnt tune clear` renames it" in err
    assert main(["tune", "clear"]) == 0
    (kept,) = table.parent.glob("tuned.sqlite.damaged-*")
    assert kept.read_bytes().startswith(b"this was no database")
    assert main(["tune", "show"]) == 0
