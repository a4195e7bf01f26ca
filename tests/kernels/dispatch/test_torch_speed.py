"""The table of measured facts: what it decides, and that it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import burnt
from burnt import device, kernels, torch_speed
from burnt.codegen.eager_policy import eager_calls, why_torch_is_faster
from burnt.codegen.frontend.trace import trace
from burnt.kernels.dispatch.selection import find_op_fact
from tests import processors
from tests.kernels.dispatch.torch_speed_cases import fused_calls, op_calls, pooling_calls

# For each kind of machine and op, whether torch's kernel is used: a bit for each case, after a leading 1.
DECISIONS = json.loads((Path(__file__).parent / "torch_speed_decisions.json").read_text(encoding="utf-8"))
KINDS = ("Intel AVX-512", "AMD AVX-512", "AMD AVX2", "GPU")


def differing(decided: Iterable[tuple[str, bool]], wanted: str) -> list[str]:
    """Labels of the cases whose decision is another one."""
    return [
        label
        for (label, uses_torch), bit in zip(decided, f"{int(wanted, 16):b}"[1:], strict=True)
        if uses_torch != (bit == "1")
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_which_ops_use_torchs_kernel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_override", None if kind == "GPU" else processors.named(kind))
    decided: dict[str, list[tuple[str, bool]]] = {}
    for label, op, args in op_calls():
        fact = find_op_fact(op, args, kind != "GPU")
        decided.setdefault(op.name, []).append((label, fact is not None and fact.use == "torch"))
    assert set(decided) == set(DECISIONS[kind])
    assert [
        label for name, cases in decided.items() for label in differing(cases, DECISIONS[kind][name])
    ] == []


def test_which_fused_functions_are_torchs_calls() -> None:
    with torch.no_grad():
        decided = [
            (label, eager_calls(fn, args, trace(fn, args)[0]) is not None)
            for label, fn, args in fused_calls()
        ]
    assert differing(decided, DECISIONS["fused functions"]["all"]) == []


@pytest.mark.full
def test_which_pooling_nodes_are_torchs_calls() -> None:
    decided = []
    for label, fn, args in pooling_calls():
        nodes = make_fx(fn, tracing_mode="fake")(*args).graph.nodes
        decided.append((label, any(why_torch_is_faster(n) for n in nodes if n.op == "call_function")))
    assert differing(decided, DECISIONS["pooling nodes"]["all"]) == []


def test_facts_are_complete() -> None:
    ops = {op.name for op in kernels.OPS.values()} | {"*"}
    facts = [fact for facts in torch_speed.read_table().values() for fact in facts]
    assert {f.op for f in facts if not f.op.startswith("aten::")} <= ops
    for fact in facts:
        assert fact.use in ("torch", "generated", "float32")
        assert fact.processor in ("cpu", "gpu", "cpu wide", "cpu narrow", "cpu Intel", "cpu AMD", "cpu ARM")
        assert all(isinstance(getattr(torch, name), torch.dtype) for name in fact.dtypes)
        assert fact.measured
        assert fact.date.startswith("20")
        assert fact.ratio is not None or fact.why or fact.use == "generated"


def test_the_reason_names_the_measurement() -> None:
    explained = str(burnt.explain(torch.nn.functional.gelu, torch.zeros(1 << 16, dtype=torch.bfloat16)))
    assert "torch takes 0.6 to 0.7 times as long (Zen 4, one thread, 2026-11-21)" in explained


def test_the_table_is_in_the_package_and_read_when_first_asked() -> None:
    assert torch_speed.TABLE.parent == Path(burnt.__file__).parent
    assert torch_speed.TABLE.exists()
