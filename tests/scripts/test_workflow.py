"""`.github/workflows/ci.yml`, which does not run here: its schema, and that it agrees with pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]  # type: ignore[no-any-return]


def test_it_fits_the_schema() -> None:
    pytest.importorskip("check_jsonschema")
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        WORKFLOW,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_runs_the_pythons_of_the_classifiers_and_newer_ones(jobs: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert project["requires-python"] == f">={pythons[0]}"
    matrices = [job["strategy"]["matrix"] for job in jobs.values() if "strategy" in job]
    assert len(matrices) == 2
    for matrix in matrices:
        assert matrix["python"] == [*pythons, "3.14"]
    systems = [system.partition("-")[0] for matrix in matrices for system in matrix["os"]]
    assert systems == ["ubuntu", "ubuntu", "macos", "windows"]


def test_jobs_have_a_time_limit_and_actions_are_pinned(jobs: dict[str, Any]) -> None:
    assert "permissions:\n  contents: read\n" in WORKFLOW.read_text(encoding="utf-8")
    for name, job in jobs.items():
        assert "timeout-minutes" in job, name
        assert "permissions" not in job, name
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}")), (
                name
            )


def test_the_files_that_its_steps_name_exist(jobs: dict[str, Any]) -> None:
    text = " ".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    paths = set(re.findall(r"(?<![\w$/])(?:\./)?((?:tests|scripts|\.ci)/[\w./]+)", text))
    assert {".ci/run", "scripts/release", "tests/nn"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
