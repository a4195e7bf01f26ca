"""The tables of kernels and plans that a training records."""

import time
from typing import Any

import pytest
import torch

from burnt import codegen, kernels
from burnt.codegen.function import functions
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.train import RunReader, RunWriter
from burnt.train.reporting.run_tables import KernelTables, record_model

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="nothing is planned without a C compiler")


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Records, and reads what is recorded under a name."""
    # There are rows of other tests too.
    monkeypatch.setattr("burnt.train.reporting.run_tables._MAX_ROWS", 1 << 20)
    with RunWriter.create(tmp_path / "run") as writer:
        result = KernelTables(writer)

        def read(name: str) -> list[dict[str, Any]]:
            writer.flush()
            with RunReader(tmp_path / "run") as reader:
                found = reader.artefacts("table", name)
            assert all(table.step is None for table in found)
            return [
                {row[0]: dict(zip(table.data["columns"], row, strict=True)) for row in table.data["rows"]}
                for table in found
            ]

        result.read = read  # type: ignore[attr-defined]
        yield result


@kernels.op
def shrunk(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def test_kernels_are_reported_with_who_chose_them(tables):
    shrunk(torch.ones(3))
    tables.record()
    row = tables.read("kernels")[-1]["shrunk"]
    assert row.keys() == {"op", "key", "candidate", "chosen by"}
    assert (row["candidate"], row["chosen by"]) == ("library", "heuristic")
    assert "float32" in row["key"]
    assert kernels.choices()[f"shrunk|{row['key']}"] == "library"


def test_what_has_not_changed_is_not_recorded_again_and_what_has_at_the_end_is(tables, monkeypatch):
    shrunk(torch.ones(3))
    tables.record()
    tables.record(last=True)
    assert len(tables.read("kernels")) == 1
    shrunk(torch.ones(3, requires_grad=True))
    tables.record()  # within the minute
    assert len(tables.read("kernels")) == 1
    later = time.monotonic() + 61
    monkeypatch.setattr("burnt.train.reporting.run_tables.time.monotonic", lambda: later)
    tables.record()
    assert len(tables.read("kernels")) == 2
    shrunk(torch.ones(3, dtype=torch.float64))
    tables.record(last=True)
    assert len(tables.read("kernels")) == 3


def test_functions_that_fall_back_are_reported_with_the_reason(tables):
    @codegen.fuse
    def turned(x):
        return x * 2

    turned(torch.ones(2, dtype=torch.complex64))
    turned(torch.ones(3, dtype=torch.complex64))
    tables.record()
    row = tables.read("plans")[-1]["turned"]
    assert row["fell back"].endswith("dtype torch.complex64")
    assert (row["kernels"], row["calls of torch's own"], row["signatures"]) == (None, None, 2)


@needs_compiler
def test_plans_are_reported_with_their_kernels(tables):
    @codegen.fuse
    def doubled_in_order(x):
        return (x * 2).sort().values + 1

    doubled_in_order(torch.rand(5))
    tables.record()
    row = tables.read("plans")[-1]["doubled_in_order"]
    assert (row["kernels"], row["calls of torch's own"], row["fell back"]) == (2, 1, None)


@needs_compiler
def test_backward_plans_are_reported_once_they_are_made(tables):
    @codegen.fuse
    def squared(x):
        return (x * x).sum()

    x = torch.rand(5, requires_grad=True)
    result = squared(x)
    tables.record()
    assert "squared, gradients" not in tables.read("plans")[-1]
    result.backward()
    tables.record(last=True)
    row = tables.read("plans")[-1]["squared, gradients"]
    assert (row["kernels"], row["calls of torch's own"], row["fell back"]) == (1, 0, None)


@needs_compiler
def test_gradients_that_cannot_be_planned_are_reported(tables, monkeypatch):
    @codegen.fuse
    def cubed(x):
        return (x * x * x).sum()

    monkeypatch.setattr("burnt.codegen.backward._trace_vjp", lambda *_: None)
    cubed(torch.rand(5, requires_grad=True)).backward()
    tables.record()
    row = tables.read("plans")[-1]["cubed, gradients"]
    assert (row["kernels"], row["fell back"]) == (None, "torch differentiates the eager function")


def test_functions_that_are_gone_are_forgotten():
    @codegen.fuse
    def passing(x):
        return x

    assert passing in functions()
    del passing
    assert "passing" not in [function.name for function in functions()]


def model_rows(folder, model, shapes):
    with RunWriter.create(folder / "run") as writer:
        record_model(writer, model, shapes)
    with RunReader(folder / "run") as reader:
        (table,) = reader.artefacts("table", "model")
    return table.data["rows"]


def test_tables_have_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("burnt.train.reporting.run_tables._MAX_ROWS", 3)
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(9)])
    assert [row[0] for row in model_rows(tmp_path, model, {})] == ["", "0", "1", "... 7 more"]


def test_shared_and_lazy_parameters_are_counted_as_they_are(tmp_path):
    shared = torch.nn.Linear(2, 2, bias=False)
    model = torch.nn.ModuleList([shared, torch.nn.Linear(2, 2, bias=False), torch.nn.LazyLinear(3)])
    model[1].weight = shared.weight
    rows = model_rows(tmp_path, model, {"0": "(1, 2)"})
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("", None, 0),
        ("0", "(1, 2)", 4),
        ("1", None, 0),
        ("2", None, None),
    ]
