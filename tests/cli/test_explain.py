"""`burnt explain`: tables, sources and pages of functions and models, for GPUs that are not here."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.cli.explain import align
from burnt.codegen.explanation import Explanation
from burnt.codegen.printing import Step
from tests.cli.commands import printed, refused

CODE = """
import torch
from torch import nn

def doubled_softmax(x, bias):
    return torch.softmax(x * 2 + bias, -1)

def model():
    return nn.Sequential(nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)

def on_numbers(x):
    return {"mean": x.mean(), "count": {len(x)}}

number = 3

layer = nn.Linear(4, 4)
"""


@pytest.fixture(autouse=True)
def code(desk):
    (desk / "my.py").write_text(CODE)
    return desk


def step(name, *ops, kind="elementwise", **figures):
    return Step(name, kind, ops, 8, "", **figures)


def test_a_table_has_a_column_for_each_target(capsys):
    text = printed(capsys, "explain", "my.py:doubled_softmax", "--input", "8x500", "--input", "500")
    header, row, *rest = text.splitlines()
    assert header.split() == ["kernel", "bytes", "c", "triton", "metal", "ops"]
    assert row.split()[:6] == [
        "doubled_softmax_0",
        "forward",
        "34,000",
        "reduction",
        "reduction",
        "reduction",
    ]
    assert rest == []


def test_sources_are_printed(capsys):
    words = ["explain", "my:doubled_softmax", "--input", "8x500", "--input", "500", "--backward", "--source"]
    text = printed(capsys, *words)
    assert re.findall(r"^doubled_softmax_0: (\w+)$", text, re.M) == ["C", "Triton", "Metal"]
    assert re.findall(r"^doubled_softmax_backward_0: (\w+)$", text, re.M) == ["C", "Triton", "Metal"]
    for start in ("void doubled_softmax_0(", "def doubled_softmax_0(", "kernel void doubled_softmax_0("):
        assert f"\n{start}" in text


def test_a_page_has_figures_and_sources_and_needs_nothing_else(capsys, code):
    words = ["--input", "8x500", "--input", "500", "--target", "sm_90,gfx942,metal", "--html", "page.html"]
    assert "page.html: open it in a browser" in printed(capsys, "explain", "my.py:doubled_softmax", *words)
    page = (code / "page.html").read_text()
    assert not re.search(r"\{\{|https?:|src=|@import|url\(", page)
    columns = re.findall(r"<h3>(.*?)</h3>", page)
    assert columns == ["C", "Triton", "PTX, sm_90", "AMDGCN, gfx942", "Metal"]
    assert re.findall(r"<th>(sm_90 \w+)", page) == ["sm_90 registers", "sm_90 spilled", "sm_90 shared"]
    assert re.search(r"<td>reduction<td>\d+<td>0<td>[\d,]+<td>\d+<td>0<td>[\d,]+<td>reduction<td>mul ", page)
    assert {*re.findall(r"href='#(\w+)'", page)} == {*re.findall(r"<section id='(\w+)'", page)} != set()
    assert ".target sm_90" in page
    assert "amdgcn-amd-amdhsa--gfx942" in page
    assert "&lt;" in page, "sources are escaped"
    assert ".debug_" not in page
    assert "\n\t.loc" not in page


@pytest.mark.full
def test_equal_kernels_of_a_model_are_shown_once(capsys, code):
    printed(capsys, "explain", "my.py:model", "--target", "c", "--html", "page.html")
    page = (code / "page.html").read_text()
    forward = re.findall(r"<tr><td><a href='#(\w+)'>(\w+_forward_\d)</a>", page)
    assert len(forward) == 3
    assert [section for section, _ in forward[1:]] == [forward[1][1]] * 2, "they write where they read"
    assert page.count("<td>aten.addmm.default<td>forward<td>") == 2
    assert f"<p>the same: {forward[2][1]}</p>" in page


def test_an_op_is_its_reference(capsys):
    found = printed(capsys, "explain", "burnt.kernels:softmax", "--input", "8x64", "--target", "c", "--json")
    (kernel,) = json.loads(found)["c"]["steps"]
    assert "exp" in kernel["ops"]


def test_what_cannot_be_generated_is_said(capsys):
    text = printed(capsys, "explain", "my.py:on_numbers", "--input", "8", "--target", "c")
    assert "c: the eager function runs: " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my.py:doubled_softmax"], "there are no inputs for my.py:doubled_softmax"),
        (["my.py:doubled_softmax", "--target", "sm_91"], r"no target 'sm_91'(.|\n)*in +--target(.|\n)*sm_90"),
        (["my.py:number", "--input", "3"], "my.py:number is not a model"),
        (["my.py:other", "--input", "3"], "has no name 'other'"),
        (["my.py:doubled_softmax", "--input", "3"], "cannot be called with these inputs(.|\\n)*'bias'"),
        (
            ["my.py:layer", "--input", "2x3"],
            "cannot be called with these inputs(.|\\n)*RuntimeError: mat1 and",
        ),
        (["my.py:model", "--html", "none/page.html"], "there is no folder for the file"),
    ],
)
def test_mistakes_are_told(words, message, capsys):
    assert re.search(message, refused(capsys, "explain", *words))


def test_steps_with_the_same_ops_are_in_the_same_row():
    first = Explanation((step("a_0", "mul"), step("aten.mm", "mm", kind="library"), step("a_1", "exp")))
    second = Explanation((step("b_0", "cast", "mm"), step("b_1", "exp"), step("b_2", "sum")))
    rows = align({"c": first, "triton": second})
    names = [{target: found.name for target, found in row.steps.items()} for row in rows]
    assert names == [
        {"c": "a_0", "triton": "b_0"}, {"c": "aten.mm"}, {"c": "a_1", "triton": "b_1"}, {"triton": "b_2"}
    ]  # fmt: skip
    assert [row.name for row in rows] == ["a_0", "aten.mm", "a_1", "b_2"]


def test_kernels_of_a_model_have_names_of_their_own():
    first = Explanation((step("graph3_forward_0", "mul", graph="graph3_forward"),))
    forward = (step("graph5_forward_0", "mul", graph="graph5_forward"),)
    backward = (step("graph4_backward_0", "exp", graph="graph4_backward"),)
    second = Explanation(forward, backward=Explanation(backward))
    second = Explanation(
        (step("graph4_forward_0", "sum", graph="graph4_forward"), *forward), backward=second.backward
    )
    rows = align({"c": first, "triton": second})
    assert [row.name for row in rows] == ["graph0_forward_0", "graph0_forward_0_c", "graph0_backward_0"]
