"""`explain` for GPUs that are not there: assembly, registers, spills and shared memory."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen import explain, explanation
from burnt.codegen.runtime import triton_ahead
from burnt.codegen.runtime.triton_backend import ARCHITECTURES
from burnt.errors import CompileError, ConfigError, UnsupportedError


def doubled_softmax(x):
    return torch.softmax(x * 2, -1)


def test_kernels_are_compiled_for_an_architecture():
    for target, first_line in (("sm_90", ".target sm_90"), ("gfx942", '.amdgcn_target "amdgcn')):
        found = explain(doubled_softmax, torch.ones(8, 500), target=target)
        (step,) = found.steps
        assert step.registers is not None
        assert 8 <= step.registers <= 255
        assert step.spilled == 0
        assert step.shared is not None
        assert 0 < step.shared <= ARCHITECTURES[target].shared_memory, "rows are reduced by several warps"
        assembly = found.source(step.name, assembly=True)
        assert first_line in assembly
        assert step.name in assembly
        assert "@triton.jit" in found.source(step.name)
        assert json.loads(json.dumps(found.as_dict()))["steps"][0]["registers"] == step.registers
        header, row = str(found).splitlines()
        assert header.split()[2:6] == ["bytes", "registers", "spilled", "shared"]
        assert row.split()[3:6] == [str(step.registers), "0", str(step.shared)]


def test_kernels_that_differ_in_name_are_compiled_once():
    def other(x):
        return doubled_softmax(x)

    x = torch.ones(8, 501)
    first = explain(doubled_softmax, x, target="gfx942")
    before = triton_ahead._compile_once.cache_info().misses
    second = explain(other, x, target="gfx942")
    assert triton_ahead._compile_once.cache_info().misses == before
    names = "doubled_softmax_0", "other_0"
    texts = [found.source(name, assembly=True) for found, name in zip((first, second), names, strict=True)]
    assert texts[1] == texts[0].replace(*names)


def test_what_does_not_compile_is_named(monkeypatch):
    def failing(job, architecture):
        raise ValueError("out of registers")

    monkeypatch.setattr(triton_ahead, "_compile_once", failing)
    with pytest.raises(CompileError, match=r"_softmax_0, for sm_80(.|\n)*ValueError: out of registers"):
        explain(doubled_softmax, torch.ones(8, 500), target="sm_80")


def test_without_triton_there_are_no_architectures(monkeypatch):
    monkeypatch.setattr(
        explanation, "TRITON", dataclasses.replace(explanation.TRITON, why_unavailable=lambda: "no Triton")
    )
    with pytest.raises(UnsupportedError, match=r"no kernels can be compiled for gfx90a(.|\n)*no Triton"):
        explain(doubled_softmax, torch.ones(8, 500), target="gfx90a")


def test_unknown_architectures_are_refused():
    with pytest.raises(ConfigError, match=r"no target 'sm_70'(.|\n)*c, triton, metal, sm_80, .*gfx1100"):
        explain(doubled_softmax, torch.ones(8, 500), target="sm_70")
