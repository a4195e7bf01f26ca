"""ONNX's conformance tests: shapes, dtypes, and values to the tests' own tolerances.

Expected failures are listed one by one in `onnx_expected_failures.txt`, and fail when they start to pass.
"""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from tests.conformance import onnx_suite


@pytest.mark.sample(16)
@pytest.mark.parametrize("group", onnx_suite.groups())
@pytest.mark.filterwarnings("ignore")
def test_group(group: str) -> None:
    """All tests of a file of node tests, or of a kind that is stored as files."""
    expected = onnx_suite.expected_failures()
    found = {case.name: onnx_suite.failure(case) for case in onnx_suite.cases(group)}
    failures = {name: reason for name, reason in found.items() if reason and name not in expected}
    assert not failures, "\n".join(f"{name}: {reason}" for name, reason in failures.items())
    passing = [name for name, reason in found.items() if reason is None and name in expected]
    assert not passing, f"pass now: remove them from {onnx_suite.FAILURES.name}: {', '.join(passing)}"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_counts(record_property: pytest.RecordProperty) -> None:
    """The figures that README states, and that no expected failure is the name of a test that is gone."""
    names: dict[str, list[str]] = {"node": []}
    for group in onnx_suite.groups():
        kind = group if group in onnx_suite.STORED else "node"
        names.setdefault(kind, []).extend(case.name for case in onnx_suite.cases(group))
    expected = onnx_suite.expected_failures()
    passing = {kind: sum(name not in expected for name in found) for kind, found in names.items()}
    print({kind: f"{passing[kind]} of {len(found)}" for kind, found in names.items()})
    assert set(expected) <= {name for found in names.values() for name in found}
    assert passing["node"] >= 1750
    assert sum(passing[kind] for kind in onnx_suite.STORED) >= 135
