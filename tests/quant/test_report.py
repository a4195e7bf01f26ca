"""QuantReport: the table at widths, collapsed rows, JSON and the drawing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import burnt
from burnt.quant import LayerReport, QuantReport


def layer(path: str, **settings: object) -> LayerReport:
    known = {"scheme": "int8", "sqnr": 40.0, "bytes_before": 4000, "bytes_after": 1000, "shape": (10, 100)}
    return LayerReport(path=path, layer="Linear", **{**known, **settings})  # type: ignore[arg-type]


def transformer(blocks: int = 12) -> QuantReport:
    layers = [
        layer(f"encoder.layer.{i}.{name}", sqnr=40.0 + i, output_error=0.01 + i / 1000)
        for i in range(blocks)
        for name in ("attention.self.query", "attention.output.dense", "output.dense")
    ]
    skipped = [
        layer(
            f"encoder.layer.{i}.norm{k}", scheme=None, sqnr=None, bytes_after=4000, why_skipped="it is small"
        )
        for i in range(blocks)
        for k in "abcd"
    ]
    return QuantReport((*layers, *skipped), ("a note",))


def test_many_layers_are_collapsed_to_the_worst_of_each_kind() -> None:
    lines = transformer().text().splitlines()
    row = next(line.split() for line in lines if "self.query" in line)
    assert row[0] == "encoder.layer.[0-11].attention.self.query"
    assert row[1:] == ["12", "Linear", "int8", "48.0", "kB", "->", "12.0", "kB", "40.0", "dB", "2.10%"]
    assert sum("Linear  int8" in line for line in lines) == 3
    (why,) = (line for line in lines if "it is small" in line)
    assert why.endswith(
        "(encoder.layer.[0-11].norma, encoder.layer.[0-11].normb, encoder.layer.[0-11].normc and 1 more)"
    )
    assert lines[-1] == "note: a note"


def test_every_layer_can_be_shown_and_few_layers_are() -> None:
    lines = transformer().text(every_layer=True).splitlines()
    assert sum("  int8  " in line for line in lines) == 36
    assert any("encoder.layer.[0-11].normd" in line for line in lines)
    few = transformer(2).text()
    assert "encoder.layer.1.output.dense" in few
    assert "[0-1].output" not in few


def test_layers_of_other_schemes_or_shapes_have_rows_of_their_own() -> None:
    layers = [layer(f"blocks.{i}.ff", scheme="fp8" if i in (3, 9) else "int8") for i in range(26)]
    layers[5] = layer("blocks.5.ff", shape=(7, 7))
    shown = QuantReport(tuple(layers)).text()
    rows = [line.split() for line in shown.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [
        ("blocks.*.ff", "23"),
        ("blocks.*.ff", "2"),
        ("blocks.5.ff", "Linear"),
    ]


@pytest.mark.parametrize("width", [120, 80, 60, 52])
def test_a_narrow_terminal_gets_lines_that_fit(width: int) -> None:
    lines = transformer().text(width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    # Paths are cut where they say least, and stay distinct.
    ends = [line.split()[0] for line in lines if "dense" in line]
    assert len(set(ends)) == 2
    assert all(end.endswith("output.dense") for end in ends)
    assert ("class" in text) == (width >= 120)
    assert "output error" in text


def test_the_terminal_decides_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert str(transformer()) == transformer().text(70)
    monkeypatch.setenv("COLUMNS", "0")
    assert str(transformer()) == transformer().text(None)  # tests have no terminal


def test_it_is_saved_as_json(tmp_path: Path) -> None:
    report = transformer(1)
    assert report.save(tmp_path / "r.json") == tmp_path / "r.json"
    read = json.loads((tmp_path / "r.json").read_text())
    assert read == json.loads(report.to_json())
    assert read["layers"][0]["scheme"] == "int8"
    assert read["layers"][-1]["why_skipped"] == "it is small"
    assert read["bytes_after"] == 3 * 1000 + 4 * 4000


def test_the_drawing_has_each_quantized_layer_by_scheme(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 8))
    weight = model[0].weight.detach().clone()
    report = burnt.quantize(model, "int8", overrides={"2": "int8-tensor"})
    drawing = report.plot(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == drawing.svg()
    ElementTree.parse(tmp_path / "a.svg")
    assert [group.name for group in drawing.groups] == ["int8", "int8-tensor"]
    assert drawing.y == "error of the weight"
    error = (model[0].weight - weight).norm() / weight.norm()
    assert drawing.groups[0].ys[0] == pytest.approx(error.item(), rel=1e-4)
    assert drawing.groups[0].xs[0] == report.quantized[0].bytes_after / 1e3


def test_with_calibration_the_drawing_shows_errors_of_outputs() -> None:
    exact = layer("exact", output_error=0.0, sqnr=math.inf)
    zero = layer("zero", output_error=None, sqnr=-math.inf)
    drawing = QuantReport((layer("a", output_error=0.25), exact, zero)).plot()
    assert drawing.y == "error of the output"
    assert list(drawing.groups[0].ys) == [0.25, 0.0]
    weights = QuantReport((layer("a", sqnr=20.0), exact, zero)).plot()
    assert "exact" in weights.svg()
    assert QuantReport(()).plot().groups == []


def test_a_report_without_quantized_layers_has_no_table() -> None:
    shown = QuantReport((layer("a", scheme=None, why_skipped="no"),)).text()
    assert shown.splitlines() == [
        "0 layers quantized, 4.0 kB -> 1.0 kB (25.0%)",
        "1 layer skipped",
        "  Linear: no  (a)",
    ]
