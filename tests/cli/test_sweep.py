"""`burnt sweep`: checks before the first trial, going on, output; `runs list --sort`."""

import shlex

import pytest

from burnt.cli import main
from burnt.store import RunWriter
from burnt.store.sweeps import Sweep, Trial, read_trials
from burnt.sweep import engine
from tests.cli.commands import printed, refused
from tests.sweep.test_engine import TRIAL_COMMAND

PROGRAM = """
from burnt import Config

class Settings(Config):
    folder: str = "runs/x"
    lr: float = 0.1
    layers: int = 1
    steps: int = 2

class Bare(Config):
    lr: float = 0.1

def main(config: Settings): ...
def bare(config: Bare): ...
"""


@pytest.fixture(autouse=True)
def program(desk, monkeypatch):
    (desk / "toy.py").write_text(PROGRAM)
    monkeypatch.setattr(engine.Engine, "COMMAND", TRIAL_COMMAND)
    monkeypatch.setattr(engine, "POLL_SECONDS", 0.02)
    return desk


def sweep(capsys, *words):
    return printed(capsys, "sweep", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy.py:main", "lrr=1..2"], "did you mean 'lr'?"),
        (["toy.py:main", "lr=1..2", "layer=2"], "did you mean 'layers'?"),
        (["toy.py:main", "layers=2"], "no setting is searched"),
        (["toy.py:main", "lr=1..2", "--sampler", "grid"], "a grid has no values for the range of lr"),
        (["toy.py:main", "lr=1..2", "folder=runs/mine"], "--name names the sweep"),
        (["toy.py:bare", "lr=1..2"], "its Config has no field for it"),
        (["toy.py:main", "lr=1..2", "--metric", "loss:best"], "NAME:higher or NAME:lower"),
        (["nothing"], "there is no sweep 'nothing'"),
        (["toy.py:main", "lr=1..2", "--jobs", "0"], "at least 1"),
    ],
)
def test_mistakes_are_found_before_the_first_trial(capsys, desk, words, message):
    assert message in refused(capsys, "sweep", *words)
    assert not (desk / "runs").exists()


def test_a_missing_optuna_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    message = refused(capsys, "sweep", "toy.py:main", "lr=1..2")
    assert 'pip install "burnt[sweep]", or --sampler random' in message


def test_a_sweep_is_run_gone_on_with_and_shown(capsys, desk):
    words = ["toy.py:main", "lr=0.01|0.1", "layers=1..2", "steps=2", "--sampler", "grid", "--jobs", "2"]
    out = sweep(capsys, *words, "--trials", "2")
    assert out.startswith("runs/toy-sweep: 2 trials, grid; burnt monitor runs/toy-sweep\n")
    assert "0001  complete     0.5100  lr=0.01 layers=1" in out
    rows = [line.split() for line in out.split("\n\n")[1].splitlines()]
    assert rows[0] == ["trial", "state", "valid/score", "lr", "layers", "took"]
    assert [row[0] for row in rows[1:]] == ["0001", "0002"]
    best = "burnt train toy.py:main steps=2 lr=0.01 layers=1 folder=runs/toy-sweep-best\n"
    assert out.endswith(f"the best again: {best}")
    assert sweep(capsys, "toy-sweep", "--best") == best
    # By its name, for longer, and by the same command: finished trials stay.
    before = read_trials("runs/toy-sweep")
    out = sweep(capsys, "toy-sweep", "--trials", "9")
    assert out.startswith("runs/toy-sweep: 4 trials")
    assert "0001  complete" not in out.split("\n\n")[0]
    assert read_trials("runs/toy-sweep")[:2] == before
    sweep(capsys, *words)
    assert len(read_trials("runs/toy-sweep")) == 4
    assert Sweep.load("runs/toy-sweep/sweep.json").jobs == 2
    message = refused(capsys, "sweep", "toy.py:main", "lr=0.01|0.2", "--sampler", "grid")
    assert "holds a sweep of something else" in message
    assert "expected  toy.py:main 'lr=0.01|0.1' layers=1..2 steps=2" in message
    assert "keeps its settings" in refused(capsys, "sweep", "toy-sweep", "lr=1..2")
    assert "did you mean runs/toy-sweep?" in refused(capsys, "sweep", "toy-swep")
    (desk / "toy.py").unlink()
    assert "there is no file 'toy.py'" in refused(capsys, "sweep", "toy-sweep")


def test_part_of_a_grid_stays_a_part(capsys):
    words = ["toy.py:main", "layers=1..4", "--sampler", "grid", "--trials", "1"]
    sweep(capsys, *words)
    sweep(capsys, "toy-sweep")
    assert len(read_trials("runs/toy-sweep")) == 1


def test_best_without_a_complete_trial(capsys):
    words = ["toy.py:main", "lr=1..2", "--best"]
    assert "no trial is complete yet" in refused(capsys, "sweep", *words)
    space = [{"key": "lr", "kind": "float", "low": 0.1, "high": 1.0}]
    RunWriter.create("runs/s/0001").close("finished")
    Sweep.from_dict({"target": "toy.py:main", "space": space}).save("runs/s/sweep.json")
    Trial(number=1, params={"lr": 0.2}, state="failed").save("runs/s/0001/trial.json")
    assert "no trial is complete yet" in refused(capsys, "sweep", "s", "--best")


def test_runs_are_listed_by_a_key(capsys, write):
    for name, lr, score in (("a", 0.1, 0.3), ("b", 0.01, 0.9), ("c", "auto", 0.5)):
        with RunWriter.create(f"runs/{name}", config={"lr": lr, "metrics": {"score": "higher"}}) as run:
            run.log(1, 1, {"score": score, "loss": score}, "valid")
            run.log(2, 1, {"score": 0.0}, "valid")
    RunWriter.create("runs/d").close("finished")

    def order(key):
        return "".join(
            line.split()[0].rpartition("/")[2]
            for line in printed(capsys, "runs", "list", "--sort", key).splitlines()[1:]
        )

    assert order("best:valid/score") == "bcad"
    assert order("metric") == "acbd"
    assert order("lr") == "bacd"
    assert "did you mean valid/score?" in refused(capsys, "runs", "list", "--sort", "valid/scor")


@pytest.mark.full
def test_quoting_in_commands(capsys):
    folder = "runs/a b"
    out = sweep(capsys, "toy.py:main", "lr=0.1|0.2", "--sampler", "grid", "--name", folder)
    words = shlex.split(out.rpartition(": ")[2])
    assert words[-1] == f"folder={folder}-best"
    assert main(["train", *words[2:], "--show"]) == 0


def test_a_narrow_terminal_omits_settings(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    out = sweep(capsys, "toy.py:main", "lr=0.01|0.1", "layers=1..2", "--sampler", "grid", "--trials", "1")
    header = next(line for line in out.splitlines() if "state" in line)
    assert "valid/score" in header
    assert "took" not in header
