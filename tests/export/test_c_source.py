"""Modules as C: where results lie in memory, names, several models in a program, and what is refused."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import nn

import burnt.export.c_source as module
from burnt.errors import UnsupportedError
from burnt.export.c_source import CSource, _pack, c_name, c_source
from burnt.inspect.signature import Signature, TensorInfo
from tests.export.models import residual
from tests.export.ownership import check_arena
from tests.fixtures import Patch

SPANS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 20)), max_size=20)


@given(SPANS)
def test_results_that_are_needed_together_share_no_memory(drawn: list[tuple[int, int, int]]) -> None:
    spans = {str(i): (length, min(a, b), max(a, b)) for i, (length, a, b) in enumerate(drawn)}
    offsets, total = _pack(spans)
    assert offsets.keys() == spans.keys()
    for time in range(21):
        used = [
            element
            for name, (length, first, last) in spans.items()
            if first <= time <= last
            for element in range(offsets[name], offsets[name] + length)
        ]
        assert len(used) == len(set(used))
        assert max(used, default=-1) < total
    assert total <= sum(length for length, *_ in spans.values())


@functools.cache
def residual_source() -> CSource:
    torch.manual_seed(0)
    return c_source(residual(), torch.zeros(1, 1, 8, 8), "residual")


def test_residual_connections_keep_their_inputs() -> None:
    """The stem's result is read last; a block needs its input, and SiLU three results."""
    source = residual_source()
    assert check_arena(source) == source.arena // 4
    assert source.arena == 5 * 4 * (8 * 8 * 8)
    assert "[restrict 1][1][8][8]" in source.text


def test_what_the_layers_need() -> None:
    layers = {layer.path: layer for layer in residual_source().layers}
    assert layers["head"].weights == 4 * (128 * 10 + 10)
    assert layers["blocks.1.0"].weights == 4 * (8 * 8 * 9 + 8)
    assert layers["blocks.1.1"].result == 4 * 8 * 8 * 8  # the norm, folded into the convolution
    # A shape of 2 integers and the head apart.
    assert residual_source().weights == 4 * (3 * (8 * 8 * 9 + 8) + 8 * 9 + 8 + 1290) + 16


def test_names() -> None:
    names = ["x", "batch.images", "float", "class", "main", "NAN", "size_t", "node0_x", "1", "", "größe"]
    assert [c_name(name) for name in names] == [
        *("x", "batch_images", "float_", "class_", "main_", "NAN_", "size_t_", "node0_x_", "_1", "_"),
        "gr__e",
    ]


@pytest.mark.parametrize(
    ("name", "hint"), [("float", "float_"), ("my-net", "my_net"), ("2d", "_2d"), ("", "_")]
)
def test_a_name_that_is_no_identifier(name: str, hint: str) -> None:
    with pytest.raises(
        UnsupportedError, match=f"not a C identifier\n  found     {name!r}\n  hint      {hint!r}"
    ):
        c_source(nn.Linear(3, 2), torch.zeros(1, 3), name)


def test_without_the_generator(monkeypatch: Patch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "emx_onnx_cgen" else found(name)
    )
    with pytest.raises(UnsupportedError, match=r"pip install burnt\[c\]"):
        c_source(nn.Linear(3, 2), torch.zeros(1, 3))


# --- what the generator refuses: graphs in place of what the exporter writes ------------------------------


def source_of(graph: onnx.GraphProto, monkeypatch: Patch) -> CSource:
    """Return the C of a graph."""

    def export(model: Any, example: Any, file: Path, **settings: Any) -> SimpleNamespace:
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), file)
        return SimpleNamespace(signature=signature)

    def infos(values: Any) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(value.name, (1, 4), "float32") for value in values)

    signature = Signature(infos(graph.input), infos(graph.output))
    monkeypatch.setattr(module, "export", export)
    return c_source(nn.Identity(), None)


def value(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [1, 4])


def test_all_missing_ops_are_named(monkeypatch: Patch) -> None:
    nodes = [
        helper.make_node("Zeta", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Alpha", ["b"], ["y"]),
        helper.make_node("Zeta", ["y"], ["z"]),
    ]
    with pytest.raises(UnsupportedError, match=r"lacks ops of the model[\s\S]*found     Alpha, Zeta\n"):
        source_of(helper.make_graph(nodes, "g", [value("x")], [value("z")]), monkeypatch)


def test_a_dtype_that_fails(monkeypatch: Patch) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    with pytest.raises(
        UnsupportedError, match=r"cannot print an op of the model\n  found     .*(?i:bf16|bfloat16)"
    ):
        source_of(helper.make_graph(nodes, "g", [value("x")], [value("y")]), monkeypatch)


def test_an_attribute_that_fails(monkeypatch: Patch) -> None:
    limits = [
        helper.make_tensor(name, TensorProto.INT64, [1], [n])
        for name, n in zip("abcd", (3, -9, 1, -1), strict=True)
    ]
    node = helper.make_node("Slice", ["x", *"abcd"], ["y"], "flip")
    graph = helper.make_graph([node], "g", [value("x")], [value("y")], limits)
    with pytest.raises(UnsupportedError) as caught:
        source_of(graph, monkeypatch)
    assert "  found     Slice only supports positive steps (Slice of float, flip)\n" in str(caught.value)


def test_an_output_that_is_a_constant_is_written(monkeypatch: Patch) -> None:
    constant = helper.make_tensor("y", TensorProto.FLOAT, [1, 4], [1.0, 2.0, 3.0, 4.0])
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("z"), value("y")], [constant])
    source = source_of(graph, monkeypatch)
    assert source.declaration() == "void model(const float x[1][4], float z[1][4], float y[1][4])"
    assert "(x, weight1_y_constant, (void *)z);" in source.text
    assert "(weight1_y_constant, (void *)y);" in source.text


def test_texts_of_a_model_do_not_end_comments(monkeypatch: Patch) -> None:
    bias = helper.make_tensor("*/ größe", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    nodes = [helper.make_node("Add", ["x*/", "*/ größe"], ["*/"], "*/")]
    graph = helper.make_graph(nodes, "*/", [value("x*/")], [value("*/")], [bias])
    text = source_of(graph, monkeypatch).text
    assert text.isascii()
    assert text.count("/*") == text.count("*/")
    assert "void model(const float x__[restrict 1][4], float __[restrict 1][4]) {" in text
