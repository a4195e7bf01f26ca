"""`burnt c`: what it prints and writes, and the messages where a limit or a name is wrong."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from burnt.cli import export, main
from burnt.cli.run_model import RunModel
from burnt.export import CSource
from burnt.export.c_source import c_source
from burnt.inspect import signature_of
from tests.cli.commands import printed, refused
from tests.export.templates import templates_compiled_once
from tests.fixtures import Patch
from tests.onnx.translations import translations_parsed_once

__all__ = ["templates_compiled_once", "translations_parsed_once"]

for package in ("emx_onnx_cgen", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="not installed: pip install 'burnt[c]'")


@functools.cache
def shipped() -> RunModel:
    model = nn.Linear(3, 2).eval()
    signature = signature_of(model, torch.rand(4, 3))
    return RunModel(model, signature, Path("runs/net"), "step-00000003", None, {})


@functools.cache
def source(name: str) -> CSource:
    return c_source(shipped().model, shipped().signature, name)


@pytest.fixture(autouse=True)
def loaded(monkeypatch: Patch) -> None:
    """The model of the run net is loaded, and exported once."""
    monkeypatch.setattr(export, "load_run_model", lambda args: shipped())
    monkeypatch.setattr("burnt.export.firmware.c_source", lambda model, signature, name: source(name))


def test_it_writes_a_program_and_says_what_it_needs(desk: Path, capsys: Any) -> None:
    lines = printed(capsys, "c", "runs/net", "-o", "firmware", "--ram", "64k", "--flash", "1 MB").splitlines()
    assert lines[0] == "runs/net, step-00000003"
    assert lines[1].startswith("needs flash ")
    assert lines[2] == "firmware: model.c, model.h, test_model.c, Makefile"
    if shutil.which("cc") and shutil.which("make"):
        assert lines[3] == "compared with the model on random inputs: the outputs agree"
    assert (
        "void model(const float input[1][3], float output[1][2]);" in (desk / "firmware/model.h").read_text()
    )


def test_a_model_that_does_not_fit(desk: Path, capsys: Any) -> None:
    error = refused(capsys, "c", "runs/net", "-o", "firmware", "--flash", "10", code=1)
    assert "the model does not fit into the flash" in error
    assert "expected  at most 10 bytes" in error
    assert "from      model: 32 bytes" in error
    assert not (desk / "firmware").exists()


@pytest.mark.parametrize("text", ["64q", "-1", "", "64 kB extra", "0"])
def test_a_limit_that_is_no_size(text: str, desk: Path, capsys: Any) -> None:
    assert "--ram is invalid" in refused(capsys, "c", "runs/net", "-o", "firmware", f"--ram={text}")
    assert not (desk / "firmware").exists()


def test_a_name_that_is_no_identifier(desk: Path, capsys: Any) -> None:
    assert "the name is not a C identifier" in refused(
        capsys, "c", "runs/net", "-o", "firmware", "--name", "my-net", code=1
    )


def test_a_file_in_place_of_the_folder(desk: Path, capfd: Any) -> None:
    (desk / "firmware").write_text("mine")
    assert main(["c", "runs/net", "-o", "firmware"]) == 1
    assert "File exists: 'firmware'" in capfd.readouterr().err
    assert (desk / "firmware").read_text() == "mine"


def test_an_unknown_run(monkeypatch: Patch, capsys: Any) -> None:
    monkeypatch.undo()
    assert "nothing" in refused(capsys, "c", "nothing", "-o", "firmware")
