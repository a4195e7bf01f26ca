"""The engine of a sweep, with `trial.py` in place of `burnt train`: kills, stops, pruning, failures."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from burnt.store import RunReader, RunWriter
from burnt.store.sweeps import Sweep, Trial, read_trials
from burnt.sweep.engine import Engine
from burnt.sweep.sampling import propose
from tests.sweep.driver import SPACE

DRIVER = Path(__file__).with_name("driver.py")
TRIAL_COMMAND = (sys.executable, str(Path(__file__).with_name("trial.py")))
NUM_TRIALS = 3


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    """End what a failed test has left: trials that are held, and their sweep."""
    yield
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if f"{tmp_path}/" in line and ("trial.py" in line or "driver.py" in line):
            process.kill()


def start(folder, at=0, **options):
    words = [sys.executable, str(DRIVER), str(folder), json.dumps({"trials": NUM_TRIALS, **options}), str(at)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drive(folder, at=0, code=0, **options):
    process = start(folder, at, **options)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out + err


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_state(folder):
    try:
        with RunReader(folder) as reader:
            return reader.state(), [*map(int, reader.points("score", "valid").steps)]
    except Exception:
        return None, []


def processes_of(folder):
    """The trials that run below a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "trial.py" in line and f"{folder}/" in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def expected_params(number):
    sweep = Sweep(target="toy:main", space=SPACE, sampler="random")
    return propose(sweep, [], number)


def check_whole(folder, steps=3):
    """Each trial is there once, with its proposal, complete, and every step of it once; nothing else runs."""
    trials = read_trials(folder)
    assert [trial.number for trial in trials] == list(range(1, NUM_TRIALS + 1))
    for trial in trials:
        assert trial.params == expected_params(trial.number)
        assert trial.state == "complete", trial
        assert trial.value == pytest.approx(trial.params["lr"] + 1 / steps)
        assert run_state(folder / trial.name) == ("finished", list(range(1, steps + 1)))
    assert not (folder / "doubled").exists()
    assert not processes_of(folder)


# 34 things, each killed before or after: the first file, the first process, the middle, and near the end.
FAST_KILLS, ALL_KILLS = (8,), (1, 2, 3, 4, 5, 6, 10, 12, 16, 21, 26)


@pytest.mark.parametrize("at", [*FAST_KILLS, *(pytest.param(at, marks=pytest.mark.full) for at in ALL_KILLS)])
def test_a_killed_sweep_goes_on_without_loss(tmp_path, at):
    drive(tmp_path / "s", at, code=-signal.SIGKILL, jobs=2)
    drive(tmp_path / "s", jobs=2)
    check_whole(tmp_path / "s")


@pytest.mark.parametrize(
    "die", [3, *(pytest.param(place, marks=pytest.mark.full) for place in (1, 2, 4, 5, 6, 7, 8, 9))]
)
def test_a_killed_trial_is_started_again(tmp_path, die):
    drive(tmp_path / "s", fixed=[f"die={die}"], jobs=NUM_TRIALS)
    assert len(list((tmp_path / "s").glob(".*.died"))) == NUM_TRIALS
    check_whole(tmp_path / "s")


def test_a_trial_that_outlives_its_sweep_is_taken_up(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "hold").touch()
    sweep = start(folder)
    wait_for(lambda: run_state(folder / "0001")[1] == [1, 2])
    sweep.kill()
    sweep.communicate()
    (process,) = processes_of(folder)
    second = start(folder)
    assert second.stdout.readline() == "message 0001 still runs\n"
    (folder / "hold").unlink()
    second.communicate(timeout=60)
    check_whole(folder)
    with RunReader(folder / "0001") as reader:
        assert [attempt.pid for attempt in reader.attempts()] == [process.pid]


def test_two_sweeps_in_a_folder_are_refused(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "hold").touch()
    first = start(folder)
    wait_for(lambda: run_state(folder / "0001")[1] == [1, 2])
    printed = drive(folder, code=1)
    assert re.search(
        rf"another process runs this sweep\n.*{folder}\n.*found     pid {first.pid} on ", printed
    )
    # Ctrl-C: the trial saves and stops, and the next start goes on with it.
    first.send_signal(signal.SIGINT)
    assert "signals 1" in first.communicate(timeout=60)[0]
    assert run_state(folder / "0001") == ("stopped", [1, 2])
    assert read_trials(folder)[0].state == "running"
    assert not processes_of(folder)
    (folder / "hold").unlink()
    drive(folder)
    check_whole(folder)
    with RunReader(folder / "0001") as reader:
        assert [attempt.resumed_from_step for attempt in reader.attempts()] == [None, 2]


@pytest.mark.full
def test_a_second_interrupt_kills(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "hold").touch()
    sweep = start(folder)
    wait_for(lambda: run_state(folder / "0001")[1] == [1, 2])
    (process,) = processes_of(folder)
    process.suspend()  # it cannot obey
    sweep.send_signal(signal.SIGINT)
    wait_for(lambda: any((folder / "0001" / "control").glob("*.json")))
    sweep.send_signal(signal.SIGINT)
    assert "signals 2" in sweep.communicate(timeout=60)[0]
    assert not processes_of(folder)
    (folder / "hold").unlink()
    drive(folder)
    check_whole(folder)


@pytest.mark.full
def test_failures_are_recorded_and_stop_the_sweep(tmp_path):
    printed = drive(tmp_path / "s", code=1, fixed=["fail=1"], trials=9, jobs=3)
    assert "3 trials in a row have failed" in printed
    assert "found     ValueError: no data" in printed
    assert sum(trial.state == "failed" for trial in read_trials(tmp_path / "s")) >= 3
    # Nothing was trained, so they are tried again.
    assert "failed" in drive(tmp_path / "s", code=1, fixed=["nan=1"], trials=9, jobs=3)
    errors = [trial.error for trial in read_trials(tmp_path / "s") if trial.state == "failed"]
    assert errors[:3] == ["FloatingPointError: the loss became nan"] * 3


def test_a_metric_that_a_validation_lacks_is_a_warning(tmp_path):
    messages = []
    for metric in (None, "valid/scores"):
        sweep = Sweep(target="toy:main", space=SPACE, metric=metric)
        engine = Engine(tmp_path, sweep, messages.append, print, print)
        folder = tmp_path / f"run-{metric is None}"
        with RunWriter.create(folder) as run:
            for split in ("train", "valid"):
                assert not messages
                run.log(1, 1, {"score": 1.0}, split)
                run.flush()
                for _ in range(2):
                    assert engine._read_values(folder) == ([], [])
    assert messages == [
        "warning: the trials have no metric 'valid/scores' so far; they have train/score, valid/score"
    ]


@pytest.mark.full
def test_a_metric_that_the_runs_lack_is_named(tmp_path):
    printed = drive(tmp_path / "s", code=1, metric="valid/scores")
    assert "the trials have no metric 'valid/scores'" in printed
    assert "expected  valid/score\n" in printed
    assert "did you mean 'valid/score'?" in printed
    # With another metric it goes on, and the trained trial is not trained again.
    drive(tmp_path / "s", metric="valid/score")
    check_whole(tmp_path / "s")


@pytest.mark.full
def test_early_stopping_is_complete(tmp_path):
    drive(tmp_path / "s", fixed=["stopped=1"], trials=1)
    (trial,) = read_trials(tmp_path / "s")
    assert (trial.state, trial.step) == ("complete", 1)


def test_pruned_trials_are_stopped(tmp_path):
    folder = tmp_path / "s"
    sweep = Sweep(target="toy:main", space=SPACE, sampler="random")
    (best, worst) = (pick(range(1, 4), key=lambda n: expected_params(n)["lr"]) for pick in (min, max))
    assert sweep.seed == 0
    assert best != worst
    folder.mkdir()
    (folder / "hold").touch()
    process = start(folder, prune="halving", jobs=NUM_TRIALS)
    wait_for(lambda: run_state(folder / f"{worst:04d}")[0] == "stopped")
    (folder / "hold").unlink()
    process.communicate(timeout=60)
    states = {trial.number: trial for trial in read_trials(folder)}
    assert states[worst].state == "pruned"
    assert states[worst].value == pytest.approx(states[worst].params["lr"] + 1 / 2)
    assert states[worst].pruned_at == 2
    with RunReader(folder / f"{worst:04d}") as reader:
        assert reader.attempts()[-1].end_reason.startswith("stopped by the sweep's pruning on ")
    assert states[best].state == "complete"


def test_the_environment_divides_cores_and_gpus(monkeypatch):
    from burnt.sweep.engine import _environment

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert _environment(1, 3)["OMP_NUM_THREADS"] == "2"
    assert [_environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["4", "5", "4"]
    assert _environment(0, 1)["CUDA_VISIBLE_DEVICES"] == "4,5"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert _environment(0, 2)["OMP_NUM_THREADS"] == "3"


def test_threads_are_shared_where_there_is_no_affinity(monkeypatch):
    from burnt.sweep.engine import _environment

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert _environment(0, 2)["OMP_NUM_THREADS"] == "4"


def test_an_error_in_a_log_begins_with_what_failed(tmp_path):
    from burnt.sweep.engine import _last_lines

    log = tmp_path / "0001" / "logs" / "trial.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "step 1\nerror: the step failed\n  in        Net\n  found     ValueError: boom\n  from      a.py:1\n"
        "  hint      nothing was written\n(set BURNT_DEBUG=1 to see the traceback)\n"
    )
    assert _last_lines(log, 1) == "error: the step failed; in Net; found ValueError: boom; from a.py:1"
    log.write_text("a\nb\nc\nd\nValueError: boom\n")
    assert _last_lines(log, 1) == "b; c; d; ValueError: boom"


def test_a_trial_names_its_folder_and_settings():
    trial = Trial(number=7, params={"lr": 1e-05, "n": 2, "kind": "relu"})
    assert (trial.name, trial.assignments()) == ("0007", ["lr=1e-05", "n=2", "kind=relu"])
