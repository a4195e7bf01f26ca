"""ONNX's conformance tests: shapes, dtypes, and values to the tests' own tolerances.

Expected failures are listed one by one in `onnx_expected_failures.txt`, and fail when they start to pass.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from tests.conformance import onnx_suite

README = Path(__file__).parent.parent.parent / "README.md"


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


def test_readme_counts_the_expected_failures() -> None:
    """What can be said without making all tests: the figures leave out as many as are listed."""
    title = onnx_suite.readme_row({}).splitlines()[0]
    row = README.read_text().split(title)[1].splitlines()[2]
    figures = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+)", row)]
    assert len(figures) == 4
    print(row)
    assert sum(total - passing for passing, total in figures) == len(onnx_suite.expected_failures())


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
    text = onnx_suite.readme_row({kind: (passing[kind], len(found)) for kind, found in names.items()})
    assert text in README.read_text(), f"README should say\n{text}"
    assert set(expected) <= {name for found in names.values() for name in found}
    assert passing["node"] >= 1750
    assert sum(passing[kind] for kind in onnx_suite.STORED) >= 135
