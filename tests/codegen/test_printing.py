"""What BURNT_DEBUG prints of plans."""

from __future__ import annotations

import re

import pytest
import torch

from burnt.codegen import explain, fuse
from burnt.codegen.schedule import placement


def sorted_sines(x):
    return torch.sort(x.sin() * 2)[0] + 1


def printed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], parts: str) -> str:
    monkeypatch.setenv("BURNT_DEBUG", parts)
    x = torch.randn(4, 6)
    assert torch.allclose(fuse(sorted_sines)(x), sorted_sines(x))
    return capfd.readouterr().err


def test_ir_is_the_graph_with_shapes(monkeypatch, capfd):
    text = printed(monkeypatch, capfd, "ir")
    assert text.startswith(
        "burnt: sorted_sines: 3 steps\n  arg0_1: float32[4, 6]\n  sin: float32[4, 6] = aten.sin"
    )
    assert "void" not in text


def test_groups_are_loops_and_calls_with_bytes_and_reasons(monkeypatch, capfd):
    text = printed(monkeypatch, capfd, "groups")
    assert "  sorted_sines_0, 192 bytes; aten.sort.default reads its result from memory\n" in text
    assert "    kernel, elementwise: for i0 < 24\n      t1[i0] = mul(sin(x0[i0]), 2.0)\n" in text
    assert "  aten.sort.default, 384 bytes; torch's call is used: " in text


def test_what_is_stored_for_kernels_after_a_call_says_so(monkeypatch):
    def exponentials(segments):
        return [node for node in segments.nodes if node.target is torch.ops.aten.exp.default]

    def gate(x, weight):
        grown = x.exp()
        return torch.sigmoid(grown) @ weight * grown

    monkeypatch.setattr(placement, "RULES", (*placement.RULES, exponentials))
    x = torch.ones(8, 8)
    stored, operand, _, last = explain(gate, x, x, timed=False).steps
    assert (stored.ops, stored.why) == (("exp",), "kernels after a library call load its result")
    assert (operand.ops, operand.why) == (("sigmoid",), "aten.mm.default reads its result from memory")
    assert last.ops == ("mul",)


def test_timing_is_of_each_step_and_leaves_the_random_state(monkeypatch, capfd):
    torch.manual_seed(0)
    torch.randn(4, 6)
    expected = torch.rand(3)
    torch.manual_seed(0)
    text = printed(monkeypatch, capfd, "timing")
    assert torch.equal(torch.rand(3), expected)
    steps = re.findall(r"^ +[\d,.]+ us  (\S+)$", text, re.M)
    assert steps == ["sorted_sines_0", "aten.sort.default", "sorted_sines_1"]


def test_several_parts_have_headings(monkeypatch, capfd):
    text = printed(monkeypatch, capfd, "source, ir")
    assert re.findall(r"^ \w+$", text, re.M) == [" ir", " source"]
    assert "void sorted_sines_0(" in text


def test_steps_that_cannot_be_timed_are_named(monkeypatch, capfd):
    monkeypatch.setenv("BURNT_DEBUG", "timing")
    x = torch.tensor([3, 4])
    assert torch.equal(fuse(lambda x: 12 // x)(x), torch.tensor([4, 3]))
    assert "  not timed: InputDivisionError: " in capfd.readouterr().err


def test_a_wrong_word_is_warned_of(monkeypatch, capfd):
    with pytest.warns(
        RuntimeWarning, match="'loops' is ignored; it takes 1, or any of ir, groups, source, timing"
    ):
        assert "arg0_1" in printed(monkeypatch, capfd, "loops,ir")
