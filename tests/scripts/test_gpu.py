"""`scripts/gpu`, rehearsed on the CPU: every stage runs, and the JSON says what happened."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from burnt import nn
from tests.gpu.test_device import LAYERS

ROOT = Path(__file__).parents[2]
STAGES = ["facts", "gpu-tests", "codegen", "cpu-tests", "digits"]
STAGES += ["learner", "tune", "kernels", "products", "swap"]


def gpu(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    out, file = folder / "out", folder / "results.json"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu"), "--json", str(file), *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OUT": str(out)},
    )
    assert (out / file.name).read_text() == file.read_text()
    return done, json.loads(file.read_text())


def test_every_layer_has_a_case() -> None:
    assert sorted(LAYERS) == sorted(nn.__all__)


def test_it_can_be_executed() -> None:
    assert os.access(ROOT / "scripts" / "gpu", os.X_OK)


@pytest.mark.full
def test_a_rehearsal_on_the_cpu_goes_through_every_stage(tmp_path: Path) -> None:
    done, results = gpu(tmp_path, "--device", "cpu", "--dry-run")
    assert done.returncode == 0, done.stdout
    assert results["ok"]
    assert results["dry_run"]
    assert list(results["stages"]) == STAGES
    facts = results["stages"]["facts"]
    assert facts["device"]["kind"] == "cpu"
    assert facts["versions"]["torch"]
    assert "test_layers_forward_and_backward" in results["stages"]["gpu-tests"]["output"]
    rows = next(iter(results["stages"]["learner"]["results"]["tasks"].values()))["rows"]
    assert rows["burnt"]["microseconds"] > 0
    kernels = results["stages"]["kernels"]["results"]["rows"]
    assert list(kernels) == ["softmax", "softmax fwd+bwd", "log_softmax", "log_softmax fwd+bwd"]
    assert all(row["rivals"]["torch"] > 0 for row in kernels.values())
    assert all(row["tuned"]["best_ms"] <= row["tuned"]["picked_ms"] for row in kernels.values())
    products = results["stages"]["products"]["results"]["rows"]
    attention, steps = products["attention, causal fwd+bwd"], [n for n in products if " + clip" in n]
    assert attention["aims"] == {"own": 0.8}
    assert attention["own"]["ratio"] > 0
    for name in ("bmm", "conv1d", "conv3d", "depthwise", "conv_transpose", "lstm", "gru"):
        forward, backward = (row for n, row in products.items() if n.startswith(name))
        assert not forward["errors"] | backward["errors"]
        assert forward["own"]["candidate"] == ("steps" if name in ("lstm", "gru") else "generated")
    assert [name.split()[0] for name in steps] == ["adamw", "sgd,", "muon"]
    assert all(products[name]["rivals"]["torch"] > 0 for name in steps)
    # What the ops' examples and the rows gave; the package's tables are a GPU's matter.
    tuned = results["stages"]["tune"]["tuned_rows"]
    assert 0 < tuned < results["stages"]["kernels"]["tuned_rows"]
    assert "best: " in results["stages"]["tune"]["output"]
    assert not list((ROOT / "burnt" / "kernels" / "tuned").glob("*cpu*.json"))


def test_what_an_earlier_call_has_tuned_is_kept() -> None:
    loader = importlib.machinery.SourceFileLoader("scripts_gpu", str(ROOT / "scripts" / "gpu"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    merged = script.merged
    before = {"rows": [{"key": "a", "ms": 1}, {"key": "b", "ms": 2}]}
    now = {"version": 1, "rows": [{"key": "b", "ms": 3}]}
    assert merged(before, now) == {"version": 1, "rows": [{"key": "a", "ms": 1}, {"key": "b", "ms": 3}]}
    assert merged({}, now) == now


def test_time_is_limited(tmp_path: Path) -> None:
    done, results = gpu(tmp_path, "--device", "cpu", "--dry-run", "--limit", "0", "--stages", "learner")
    assert done.returncode == 1
    assert {stage["error"] for stage in results["stages"].values()} == {"no time was left"}
    assert list(results["stages"]) == ["facts", "learner"]


def test_a_device_that_does_not_exist_fails_but_is_written(tmp_path: Path) -> None:
    """torch's `meta` device has a name, but trains nothing."""
    done, results = gpu(tmp_path, "--device", "meta", "--stages", "learner", "facts")
    assert done.returncode == 1
    assert not results["ok"]
    assert not results["stages"]["learner"]["ok"]
    assert results["stages"]["learner"]["exit_code"] == 1
    assert "\nfailed: learner\n" in done.stdout
    assert results["stages"]["facts"]["ok"]  # and what comes later runs still


def test_wheels_are_taken_where_a_package_is_missing(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "surely_missing-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    (wheels / "numpy-1.0-py3-none-any.whl").write_bytes(b"not looked at, as numpy is here")
    done, results = gpu(tmp_path, "--device", "cpu", "--wheels", str(wheels), "--stages", "facts")
    assert done.returncode == 1
    assert results["stages"]["wheels"]["packages"] == ["surely_missing-1.0-py3-none-any.whl"]
    assert not results["stages"]["wheels"]["ok"]
    assert results["stages"]["facts"]["ok"]


@pytest.mark.full
def test_a_whole_rehearsal_runs_the_device_tests(tmp_path: Path) -> None:
    done, results = gpu(tmp_path, "--device", "cpu")
    assert done.returncode == 0, done.stdout
    tests = results["stages"]["gpu-tests"]
    assert tests["failed"] == []
    assert tests["passed"] > 30
    assert {skip["reason"] for skip in tests["skipped_tests"]} == {
        "torch watches synchronisation on CUDA devices alone"
    }
