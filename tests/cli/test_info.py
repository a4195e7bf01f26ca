"""`burnt info`, compared with what the packages themselves say."""

import importlib.metadata
import json
import os
import platform
import shutil
import sys
import types

import numpy
import psutil
import pytest
import torch

from burnt import device
from burnt.cli import main
from tests.cli.commands import printed


def facts(capsys):
    assert main(["info", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_versions_and_sizes(capsys):
    found = facts(capsys)
    assert found["torch"] == torch.__version__
    assert found["numpy"] == numpy.__version__
    assert found["python"].startswith(platform.python_version())
    assert found["cpu"]["torch_threads"] == torch.get_num_threads()
    assert found["cpu"]["usable"] <= found["cpu"]["logical"] == os.cpu_count()
    assert found["memory"]["total"] == psutil.virtual_memory().total
    assert len(found["gpus"]) == torch.cuda.device_count() + torch.backends.mps.is_available()


def test_a_table_for_people(capsys):
    assert main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["torch"].startswith(torch.__version__)
    names = "burnt Python numpy Triton NVML system CPU cores memory host C"
    assert set(names.split()) <= set(lines)


def test_an_extra_is_there_with_all_its_packages(capsys, monkeypatch):
    import onnxruntime

    assert f"onnxruntime {onnxruntime.__version__}" in facts(capsys)["onnx"]["version"]
    found = importlib.metadata.version

    def version(name):
        if name == "onnxscript":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert facts(capsys)["onnx"] == {"available": False, "why": "no onnxscript: pip install 'burnt[onnx]'"}
    assert "emx-onnx-cgen " in facts(capsys)["c_export"]["version"]


def test_gpus(capsys, monkeypatch):
    known = {
        "cuda:0": device.DeviceInfo("cuda:0", "cuda", "Some GPU", 80 * 2**30, "sm_90", True),
        "mps": device.DeviceInfo("mps", "mps", "Other GPU", None, "arm64", False),
        "cpu": device.device_info("cpu"),
    }
    monkeypatch.setattr("burnt.device.accelerators", lambda: ["cuda:0", "mps"])
    monkeypatch.setattr(device, "device_info", known.__getitem__)
    assert [gpu["memory"] for gpu in facts(capsys)["gpus"]] == [80 * 2**30, None]
    out = printed(capsys, "info")
    assert "cuda:0      Some GPU, 80.0 GiB, sm_90 (cuda), bfloat16\n" in out
    assert "mps         Other GPU, arm64 (mps), no bfloat16\n" in out


def test_packages_that_are_missing_or_broken(capsys, monkeypatch, desk):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert facts(capsys)["triton"] == {
        "available": False,
        "why": "not installed: pip install 'burnt[triton]'",
    }
    monkeypatch.delitem(sys.modules, "triton")
    (desk / "triton.py").write_text("raise OSError('libtriton.so: cannot open shared object')")
    monkeypatch.syspath_prepend(desk)
    assert facts(capsys)["triton"]["why"] == "OSError: libtriton.so: cannot open shared object"


def test_nvml(capsys, monkeypatch):
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})

    def init():
        raise nvml.NVMLError("Driver Not Loaded")

    nvml.nvmlInit = init
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert facts(capsys)["nvml"] == {"available": False, "why": "installed, but: Driver Not Loaded"}
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlSystemGetDriverVersion = lambda: "580.1"
    monkeypatch.setattr("importlib.metadata.version", lambda name: "13.0")
    assert facts(capsys)["nvml"] == {"available": True, "version": "13.0", "driver": "580.1"}
    assert "NVML        13.0, driver 580.1\n" in printed(capsys, "info")


def works(name):
    """A compiler under another name."""
    return f'if [ "$1" = --version ]; then echo "{name}"; else exec "{shutil.which("gcc")}" "$@"; fi'


@pytest.mark.sample(2)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here to stand in for the others")
@pytest.mark.parametrize(
    ("scripts", "cc", "expected"),
    [
        ({}, "", None),
        ({"gcc": works("gcc 12")}, "", "gcc 12"),
        ({"gcc": "exit 1", "clang": works("clang 18")}, "", "clang 18"),
        ({"gcc": works("gcc 12"), "mine": works("mine 3")}, "mine", "mine 3"),
        ({"cc": works("cc 1")}, "nothing-like-it", "cc 1"),
    ],
)
def test_compilers(capsys, monkeypatch, desk, scripts, cc, expected):
    (desk / "bin").mkdir()
    for name, body in scripts.items():
        path = desk / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    # What gcc itself starts must be found, but no other compiler.
    for tool in ("as", "ld", "sh"):
        if found := shutil.which(tool):
            (desk / "bin" / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(desk / "bin"))
    monkeypatch.setenv("CC", cc)
    monkeypatch.delenv("BURNT_CC", raising=False)
    facts_here = facts(capsys)
    found = facts_here["compiler"]
    assert (None if found is None else found["version"]) == expected
    assert facts_here["kernels"]["generated"] == (expected is not None)
    if expected is None:
        out = printed(capsys, "info")
        assert "none found: install gcc or clang" in out
        assert "PyTorch only: no working C compiler" in out


def test_kernels(capsys, monkeypatch, desk):
    monkeypatch.setenv("BURNT_CACHE", str(desk / "cache"))
    found = facts(capsys)["kernels"]
    assert found["tuned"] == 0
    assert found["table"] == str(desk / "cache" / "tuned.sqlite")
    (desk / "cache" / "tuned.sqlite").write_text("no database, but long enough to be looked at" * 100)
    out = printed(capsys, "info")
    assert "the tuning table cannot be read" in out
    assert "the table of tuned kernels is damaged" in out
