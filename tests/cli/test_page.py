"""`burnt page`: what it writes and prints, and the messages where a run or a name is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnt.export
from burnt.cli import export, main
from burnt.cli.run_model import RunModel
from burnt.export import Page
from burnt.inspect import signature_of
from tests.cli.commands import refused
from tests.fixtures import Patch

for package in ("emx_onnx_cgen", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="not installed: pip install 'burnt[c]'")


def shipped(classes: list[str] | None = None) -> RunModel:
    model = nn.Linear(3, 2).eval()
    return RunModel(
        model, signature_of(model, torch.rand(4, 3)), Path("runs/net"), "step-00000003", classes, {}
    )


@pytest.fixture
def given(monkeypatch: Patch) -> dict[str, Any]:
    """What `write_page` is called with, for a run with names of two classes; it writes nothing."""
    given: dict[str, Any] = {}

    def write(model: nn.Module, example: Any, path: str, **settings: Any) -> Page:
        given.update(settings)
        return Page(Path(path), 1234, example, "onnxruntime-web 1.30.0", "the C generator lacks ops: Scan")

    monkeypatch.setattr(burnt.export, "write_page", write)
    monkeypatch.setattr(export, "load_run_model", lambda args: shipped(["cat", "dog"]))
    return given


@pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason="no clang: apt install clang lld"
)
def test_it_writes_the_page(desk: Path, capsys: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(export, "load_run_model", lambda args: shipped())
    assert main(["page", "runs/net", "-o", "net.html", "--weights", "float16", "--fields", 'a,"b, c",d']) == 0
    size = (desk / "net.html").stat().st_size
    assert capsys.readouterr().out.splitlines() == [
        "runs/net, step-00000003",
        f"net.html, {size:,} bytes: open it in a browser",
    ]
    text = (desk / "net.html").read_text()
    assert "<title>net</title>" in text
    assert '"fields": ["a", "b, c", "d"]' in text


def test_it_says_when_onnxruntime_web_runs_the_model(given: dict[str, Any], capsys: Any) -> None:
    assert main(["page", "runs/net", "-o", "net.html", "--onnxruntime-web", "ort.tgz"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "onnxruntime-web 1.30.0 in the page runs the model; the C generator lacks ops: Scan"
    )
    assert given["onnxruntime_web"] == "ort.tgz"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"title": "net", "classes": ["cat", "dog"], "fields": None, "table": False}),
        (["--classes", "a, b"], {"classes": ["a", "b"]}),
        (["--table"], {"classes": None, "table": True}),
        (["--title", "Pets"], {"title": "Pets"}),
    ],
)
def test_options(options: list[str], expected: dict[str, Any], given: dict[str, Any]) -> None:
    assert main(["page", "runs/net", "-o", "net.html", *options]) == 0
    assert {name: given[name] for name in expected} == expected


def test_names_of_another_number_of_classes_are_left_out(given: dict[str, Any], monkeypatch: Patch) -> None:
    monkeypatch.setattr(export, "load_run_model", lambda args: shipped(["a", "b", "c"]))
    assert main(["page", "runs/net", "-o", "net.html"]) == 0
    assert given["classes"] is None


def test_an_unknown_run(desk: Path, capsys: Any) -> None:
    (desk / "runs").mkdir()
    assert "digits" in refused(capsys, "page", "digits", "-o", "digits.html")
    assert not (desk / "digits.html").exists()
