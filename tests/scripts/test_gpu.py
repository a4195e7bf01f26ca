"""`scripts/gpu`: its plans, its time limits, what it keeps; rehearsed without a GPU."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch

from tests.gpu import first

ROOT = Path(__file__).parents[2]


def gpu(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    out, file = folder / "out", folder / "results.json"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu"), *options, "--json", str(file)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OUT": str(out)},
    )
    return done, json.loads(file.read_text())


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, whose cache of kernels and prepared files are this test's own."""
    loader = importlib.machinery.SourceFileLoader("scripts_gpu", str(ROOT / "scripts" / "gpu"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path / "kernels")
    monkeypatch.setattr(module, "PREPARED", tmp_path / "prepared")
    return module


def session(script: ModuleType, folder: Path, **changes: Any) -> Any:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    given = {"command": "correctness", "device": "cpu", "dry": False, "target": folder / "results.json"}
    return script.Session(**given | {"environment": environment, "scratch": folder} | changes)


# --- the plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "most"), [("correctness", 300), ("figures", 280)])
def test_the_limits_of_a_short_call_add_up(script: ModuleType, command: str, most: float) -> None:
    _, stages = script.PLANS[command]
    assert sum(stage.seconds for stage in stages) <= most
    assert len(stages) + 2 <= 8  # files that come back, with the document and the tuned table


def test_help_lists_subcommands_with_their_stages_and_limits(script: ModuleType) -> None:
    done = subprocess.run([ROOT / "scripts" / "gpu", "--help"], capture_output=True, text=True, check=True)
    for command, (about, stages) in script.PLANS.items():
        assert f"\n{command}: {about}" in done.stdout
        for stage in stages:
            assert re.search(rf"^  {stage.name} +{stage.seconds:g} s  ", done.stdout, re.M), stage.name
    assert list(script.PLANS) == ["correctness", "figures", "prepare", "all"]


def test_a_stage_that_does_not_exist_is_named(tmp_path: Path) -> None:
    command = [ROOT / "scripts" / "gpu", "figures", "--stages", "race", "speed"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--stages: no speed; figures has facts, race, changed, host, not_run, refit" in done.stderr


def test_without_a_gpu_the_error_names_the_rehearsals(script: ModuleType) -> None:
    if script.has_gpu():
        pytest.skip("there is a GPU here")
    for command in ("correctness", "figures", "all"):
        done = subprocess.run([ROOT / "scripts" / "gpu", command], capture_output=True, text=True)
        assert done.returncode == 2
        assert "there is no GPU here: --dry-run launches kernels" in done.stderr
        assert "--device cpu" in done.stderr


# --- stages that stop, die or hang ------------------------------------------------------------------------


TESTS = """
import time
from pathlib import Path

import pytest

def test_quick():
    pass

def test_wrong():
    assert 1 == 2, "what is printed at once"

@pytest.mark.parametrize("number", range(1000))
def test_slow(number):
    Path(__file__).with_name("begun").touch()
    time.sleep(0.5)
"""


def ask_when(file: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage is asked to stop when it has made a file, whenever that is."""
    wait_showing, asked = script.wait_showing, []

    def wait(child: subprocess.Popen[bytes], log: Path, seconds: float) -> int:
        if asked:
            return int(wait_showing(child, log, seconds))
        asked.append(child)
        while not file.exists() and child.poll() is None:
            time.sleep(0.02)
        raise subprocess.TimeoutExpired(child.args, seconds)

    monkeypatch.setattr(script, "wait_showing", wait)


@pytest.mark.full  # waits for pytest to end its workers: more than a minute on a busy machine
def test_tests_that_are_stopped_keep_what_they_had(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ends when it is done with that, which takes a while on a machine that is busy.
    monkeypatch.setattr(script, "GRACE", 75.0)
    monkeypatch.setattr(script, "GRACE_SHARE", 1.0)
    ask_when(tmp_path / "begun", script, monkeypatch)
    (tmp_path / "test_some.py").write_text(TESTS)
    running = session(script, tmp_path)
    stage = script.Stage("tests", 90, "", None)
    running.pytest(stage, [str(tmp_path / "test_some.py"), "-c", os.devnull], jobs=1)
    result = running.stages["tests"]
    assert not result["ok"]
    assert result["error"] == "stopped at its limit of 90 s"
    assert result["passed"] >= 1
    assert any("what is printed at once" in failure["message"] for failure in result["failed"])


STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("what it had", flush=True)
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def test_a_stage_that_will_not_stop_is_killed_and_costs_only_itself(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(script, "GRACE", 1.0)
    ask_when(tmp_path / "begun", script, monkeypatch)
    running = session(script, tmp_path)
    stages = [script.Stage(name, 8, "", None) for name in ("stubborn", "quick")]
    running.process(stages[0], ["-c", STUBBORN, str(tmp_path / "begun")])
    running.write(stages[0])
    running.process(stages[1], ["-c", "print('fine')"])
    running.write(stages[1])
    stubborn = json.loads((tmp_path / "out" / "stubborn.json").read_text())
    assert stubborn["error"] == "killed at its limit of 8 s"
    assert stubborn["output"] == "what it had\n"
    assert json.loads((tmp_path / "out" / "quick.json").read_text())["ok"]
    document = json.loads((tmp_path / "results.json").read_text())
    assert [result["ok"] for result in document["stages"].values()] == [False, True]
    assert not document["ok"]


def test_processes_that_a_stage_leaves_are_ended(script: ModuleType, tmp_path: Path) -> None:
    command = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    code = f"import subprocess, sys; print(subprocess.Popen({command}).pid)"
    prepared = session(script, tmp_path).process(script.Stage("parent", 20, "", None), ["-c", code])
    assert prepared["ok"]
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(prepared["output"])).wait(10)


@pytest.mark.full
def test_a_device_that_does_not_exist_fails_but_is_written(script: ModuleType, tmp_path: Path) -> None:
    """torch's `meta` device has a name, but trains nothing."""
    done, results = gpu(tmp_path, "all", "--device", "meta", "--stages", "learner", "facts")
    assert done.returncode == 1
    assert not results["ok"]
    assert not results["stages"]["learner"]["ok"]
    assert results["stages"]["learner"]["exit_code"] == 1
    assert "\nfailed: learner\n" in done.stdout
    assert results["stages"]["facts"]["ok"]
    for name in ("facts", "learner"):
        whole = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert whole | {"output": whole["output"][-script.TAIL :]} == results["stages"][name]


# --- cases with processes of their own --------------------------------------------------------------------


def fine(device: torch.device) -> first.Case:
    value = torch.ones(3)
    return first.Case(lambda: [value], lambda: [value], lambda: [value.double()])


def wrong(device: torch.device) -> first.Case:
    return fine(device)._replace(ours=lambda: [torch.tensor([1.0, float("nan"), 1.0])])


def crashes(device: torch.device) -> first.Case:
    os._exit(77)


def hangs(device: torch.device) -> first.Case:
    while True:
        signal.pause()


def without(device: torch.device) -> first.Case:
    raise first.NotApplicableError("there are no such tiles")


def test_a_case_that_crashes_or_hangs_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {f.__name__: f for f in (crashes, hangs, wrong, without, fine)}
    monkeypatch.setattr(first, "CASES", cases)
    # The first call imports much of torch, which each case would do within its limit.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    found = {r.name: r for r in first.run(list(cases), "cpu", jobs=2, seconds=4)}
    assert {name: r.outcome for name, r in found.items()} == {
        "crashes": "failed", "hangs": "failed", "wrong": "failed", "without": "not applicable",
        "fine": "passed",
    }  # fmt: skip
    assert found["crashes"].detail == "the process ended with exit code 77"
    assert found["hangs"].detail == "longer than 4 s"
    assert "error nan" in found["wrong"].detail
    assert "1 of 3 elements" in found["wrong"].detail
    assert found["without"].detail == "there are no such tiles"


def test_no_case_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "CASES", {"fine": fine})
    (late,) = first.run(["fine"], "cpu", until=0.0)
    assert (late.outcome, late.detail) == ("not begun", "no time was left")


# --- what is carried along --------------------------------------------------------------------------------


def test_the_cache_is_packed_without_what_no_launch_reads(script: ModuleType, tmp_path: Path) -> None:
    entry = script.CACHE / "entry"
    entry.mkdir(parents=True)
    for name in ("k.cubin", "k.json", "__grp__k.json", "k.ttir", "k.ptx", "launcher.so", "cuda_utils.cp.so"):
        (entry / name).write_text(name)
    prepared = session(script, tmp_path, command="prepare")
    script.pack(prepared, script.Stage("pack", 9, "", None))
    assert prepared.stages["pack"]["ok"]
    assert prepared.stages["pack"]["kernels"] == 1
    archive = script.PREPARED / script.ARCHIVE
    with tarfile.open(archive) as tar:
        names = sorted(Path(name).name for name in tar.getnames())
    assert names == ["__grp__k.json", "k.cubin", "k.json", "launcher.so"]
    for path in entry.iterdir():
        path.unlink()
    script.unpack(archive)
    assert script.count_kernels() == 1
    assert (entry / "launcher.so").read_text() == "launcher.so"


def test_an_archive_that_is_empty_or_too_large_fails(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, stage = session(script, tmp_path, command="prepare"), script.Stage("pack", 9, "", None)
    script.pack(prepared, stage)
    assert "found 0" in prepared.stages["pack"]["error"]
    (script.CACHE / "entry").mkdir(parents=True)
    (script.CACHE / "entry" / "k.cubin").write_bytes(os.urandom(5000))
    monkeypatch.setattr(script, "MOST_ARCHIVED", 4096)
    script.pack(prepared, stage)
    assert not prepared.stages["pack"]["ok"]


def test_a_cache_that_others_may_write_is_refused(script: ModuleType, tmp_path: Path) -> None:
    script.make_private(tmp_path / "mine")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o777)
    with pytest.raises(PermissionError, match="may be written by them"):
        script.make_private(tmp_path / "ours")


def test_wheels_are_taken_where_a_package_is_missing(script: ModuleType, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "surely_missing-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    (wheels / "numpy-1.0-py3-none-any.whl").write_bytes(b"not looked at, as numpy is here")
    prepared = session(script, tmp_path)
    assert script.install(wheels, tmp_path / "site", prepared) == [str(tmp_path / "site")]
    assert prepared.stages["wheels"]["packages"] == ["surely_missing-1.0-py3-none-any.whl"]
    assert not prepared.stages["wheels"]["ok"]


def test_what_an_earlier_call_has_tuned_is_kept(script: ModuleType) -> None:
    before = {"rows": [{"key": "a", "ms": 1}, {"key": "b", "ms": 2}]}
    now = {"version": 1, "rows": [{"key": "b", "ms": 3}]}
    both = {"version": 1, "rows": [{"key": "a", "ms": 1}, {"key": "b", "ms": 3}]}
    assert script.merged(before, now) == both
    assert script.merged({}, now) == now


# --- what is run again ------------------------------------------------------------------------------------


def test_cases_run_again_whose_machine_code_changed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "DIGESTS", tmp_path / "digests.json")
    running, asked = session(script, tmp_path, target=None), []

    def first(running: Any, stage: Any, pattern: str) -> None:
        asked.append(pattern)
        running.stages[stage.name] = {"digests": {"b": "new", "c (d)": None}}

    monkeypatch.setattr(script, "first", first)
    stage = script.Stage("changed", 9, "", None)
    for command, time_, digests in (
        ("correctness", "2026-01-01", {"a": "1", "b": "old", "c (d)": "3"}),
        ("figures", "2026-01-02", {"c (d)": None}),
    ):
        document = {"time": time_, "stages": {"first": {"digests": digests}}}
        (tmp_path / f"cpu-{command}.json").write_text(json.dumps(document))
    script.DIGESTS.write_text(json.dumps({"a": "1", "b": "new", "c (d)": "3"}))
    script.changed(running, stage)
    assert asked == [r"^(b|c\ \(d\))$"]
    assert running.stages["changed"]["digests"] == {"a": "1", "b": "new", "c (d)": None}
    script.DIGESTS.write_text(json.dumps({"a": "1"}))
    script.changed(running, stage)
    assert len(asked) == 1
    assert "skipped" in running.stages["changed"]
    script.DIGESTS.unlink()  # nothing was prepared
    script.changed(running, stage)
    assert asked[1:] == [""]


def test_what_an_earlier_call_has_measured_is_kept(script: ModuleType, tmp_path: Path) -> None:
    stages = {"memory": {"ok": True, "results": {"rows": {"gelu": {}}}}, "facts": {"ok": True}}
    (tmp_path / "results.json").write_text(json.dumps({"time": "earlier", "stages": stages}))
    running = session(script, tmp_path)
    running.stages["race"] = {"ok": True}
    running.write()
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["stages"] == {"memory": {"time": "earlier", **stages["memory"]}, "race": {"ok": True}}


# --- rehearsals -------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("command", "most"), [("correctness", 300), ("figures", 280)])
def test_a_dry_run_passes_within_the_limits(tmp_path: Path, command: str, most: float) -> None:
    done, results = gpu(tmp_path, command, "--dry-run")
    assert done.returncode == 0, done.stdout[-8000:]
    assert results["ok"]
    assert results["dry_run"]
    assert sum(result.get("seconds", 0) for result in results["stages"].values()) <= most
    assert results["stages"]["facts"]["device"]["kind"] == "cpu"
    if command == "correctness":
        assert results["stages"]["first"]["cases"] > 10
        for name, least in {"tests": 20, "products": 20, "tuning": 1}.items():
            assert results["stages"][name]["passed"] >= least, name
            assert results["stages"][name]["failed"] == [], name
    else:
        stages = results["stages"]
        assert list(stages) == ["facts", "race", "changed", "host", "not_run", "refit"]
        assert stages["facts"]["constants"]["matmul_tflops"] > 0
        assert re.search(r"launched  matmul 4096: .*\n +\d+\.\d+ ms  null\n", stages["race"]["output"])
        assert any(stages["changed"]["digests"].values())
        assert "launched  layer_norm" in stages["host"]["output"]
        assert "launched  gelu fwd+bwd" in stages["not_run"]["output"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_rehearsal_on_the_cpu_runs_the_device_tests(tmp_path: Path) -> None:
    stages = ["tests", "learner", "tune"]
    done, results = gpu(tmp_path, "all", "--device", "cpu", "--stages", *stages)
    assert done.returncode == 0, done.stdout
    tests = results["stages"]["tests"]
    assert tests["failed"] == []
    assert tests["passed"] > 30
    rows = next(iter(results["stages"]["learner"]["results"]["tasks"].values()))["rows"]
    assert rows["burnt"]["microseconds"] > 0
    assert results["stages"]["tune"]["tuned_rows"] > 0
    assert "best: " in results["stages"]["tune"]["output"]
    assert not list((ROOT / "burnt" / "kernels" / "tuned").glob("*cpu*.json"))
