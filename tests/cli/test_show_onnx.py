"""`burnt show model.onnx`."""

import json

import onnx
import pytest
from onnx import TensorProto, helper

from burnt.cli import main
from tests.cli.commands import printed


@pytest.fixture
def path(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Secret", ["c"], ["y"], name="last", domain="com.example"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [2, 3], [1.0] * 6)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.example", 2)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="a maker", ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_text(path, capsys):
    assert main(["show", path]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ONNX, IR version 9, opset ai.onnx 18, com.example 2 written by a maker" in text
    assert "6 parameters in 1 tensor, 24 B" in text
    assert "inputs x float32[batch, 2] outputs y float64" in text
    assert "4 nodes Relu 2 MatMul 1 com.example.Secret 1" in text
    assert "not supported by `burnt import` com.example.Secret (version 2) last" in text


def test_json(path, capsys):
    found = json.loads(printed(capsys, "show", path, "--json"))
    assert found["inputs"] == {"x": "float32[batch, 2]"}
    assert found["ops"] == {"Relu": 2, "MatMul": 1, "com.example.Secret": 1}
    assert found["opsets"] == {"ai.onnx": 18, "com.example": 2}
    assert found["unsupported"] == {"com.example.Secret (version 2)": "last"}
    assert (found["parameters"], found["tensors"], found["nbytes"]) == (6, 1, 24)


def test_errors(path, capsys):
    assert main(["show", path, "--values"]) != 0
    assert "--only and --values are for files of weights" in capsys.readouterr().err
    with open(path, "wb") as file:
        file.write(b"no model")
    assert main(["show", path]) != 0
    assert "this is not an ONNX model" in capsys.readouterr().err
