"""ONNX's own conformance tests (`onnx.backend.test`), run through `burnt.onnx.backend`.

``python -m tests.conformance.onnx_suite [group ...]`` prints how many tests of each group pass, and why
others do not. A group is a file of onnx's node tests (``conv``, ``ai_onnx_ml.tree_ensemble``) or one of
``simple``, ``pytorch-converted`` and ``pytorch-operator``. The models that are downloaded (``real``) are left
out.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.backend.test.case.node as node_tests
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from burnt.onnx import backend

STORED = ("simple", "pytorch-converted", "pytorch-operator")
FAILURES = Path(__file__).with_name("onnx_expected_failures.txt")


class Case(NamedTuple):
    """A test: a model, its data sets (inputs and outputs), and tolerances."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def groups() -> list[str]:
    """The files of the node tests, and the kinds of tests that are stored as files."""
    names = [module.name for module in pkgutil.iter_modules(node_tests.__path__) if not module.ispkg]
    names += [f"ai_onnx_ml.{m.name}" for m in pkgutil.iter_modules([f"{node_tests.__path__[0]}/ai_onnx_ml"])]
    return [*names, *STORED]


@functools.cache
def cases(group: str) -> list[Case]:
    """The tests of a group. Importing a file of node tests computes its inputs and outputs."""
    if group in STORED:
        return [_stored(test) for test in sorted(load_model_tests(kind=group), key=lambda t: t.name)]
    before = len(node_tests._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{node_tests.__name__}.{group}")
    found = []
    for test in node_tests._NodeTestCases[before:]:
        data = [
            ([_normalize_tensor(value) for value in inputs], [_normalize_tensor(value) for value in outputs])
            for inputs, outputs in test.data_sets
        ]
        found.append(Case(test.name, test.model, data, test.rtol, test.atol))
    return found


def _stored(test: Any) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    data = []
    for place in sorted(folder.glob("test_data_set*")):
        sides: list[list[Any]] = []
        for side, values in (("input", model.graph.input), ("output", model.graph.output)):
            found: list[Any] = []
            for i in range(len(list(place.glob(f"{side}_*.pb")))):
                Runner._load_proto(None, str(place / f"{side}_{i}.pb"), found, values[i].type)
            sides.append(found)
        data.append((sides[0], sides[1]))
    return Case(test.name, model, data, test.rtol, test.atol)


def check(case: Case) -> None:
    """Compare shapes, dtypes and values, with the test's own tolerances."""
    prepared = backend.prepare(case.model)
    for inputs, expected in case.data:
        _compare(expected, prepared.run(inputs), case)


def _compare(expected: Sequence[Any], found: Sequence[Any], case: Case) -> None:
    assert len(found) == len(expected), f"{len(found)} values instead of {len(expected)}"
    for want, have in zip(expected, found, strict=True):
        if isinstance(want, list | tuple):
            assert isinstance(have, list | tuple), f"{type(have)} instead of a sequence"
            _compare(want, have, case)
        elif want is None:
            assert have is None
        else:
            Runner.assert_similar_outputs([want], [have], case.rtol, case.atol)


def failure(case: Case) -> str | None:
    """Why a test fails, in one line; None if it passes."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            check(case)
    except Exception as error:  # of any kind: what the suite is about
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def expected_failures() -> dict[str, str]:
    """The tests that are known to fail, each with the reason."""
    found = {}
    for line in FAILURES.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, reason = line.split(":", 1)
            found[name.strip()] = reason.strip()
    return found


def readme_row(counts: Mapping[str, tuple[int, int]]) -> str:
    """The table of README: how many tests of each kind pass, of how many."""
    kinds = ("node", *STORED)
    cells = (f"{counts[kind][0]} of {counts[kind][1]}" for kind in kinds if kind in counts)
    return "\n".join([f"| {' | '.join(kinds)} |", "|---" * len(kinds) + "|", f"| {' | '.join(cells)} |"])


def _report(names: Sequence[str]) -> Iterator[str]:
    passed: dict[str, list[bool]] = {"node": []}
    for name in names:
        results = {case.name: failure(case) for case in cases(name)}
        passed.setdefault(name if name in STORED else "node", []).extend(r is None for r in results.values())
        bad = {test: reason for test, reason in results.items() if reason}
        yield f"{name}: {len(results) - len(bad)} of {len(results)}"
        yield from (f"    {test}: {reason[:150]}" for test, reason in bad.items())
    yield from (f"{kind}: {sum(r)} of {len(r)} pass" for kind, r in passed.items() if r)


if __name__ == "__main__":
    for line in _report(sys.argv[1:] or groups()):
        print(line, flush=True)
