"""The engine onnx2torch next to burnt's, on files that both import, and its errors without the package."""

from __future__ import annotations

import importlib.util

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import burnt
from burnt.errors import InputValueError, UnsupportedError
from burnt.onnx.importer.dtypes import from_numpy
from burnt.onnx.importer.load import _onnx2torch
from tests.onnx.importer_files import inputs_of, names, read

MISSING = [name for name in ("onnx2torch", "torchvision") if importlib.util.find_spec(name) is None]
installed = pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)}: burnt[onnx2torch]")


def linear() -> bytes:
    info = helper.make_tensor_value_info
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    weight = helper.make_tensor("w", TensorProto.FLOAT, (2, 3), [1.0, 2, 3, 4, 5, 6])
    shapes = [info("x", TensorProto.FLOAT, (1, 3))], [info("y", TensorProto.FLOAT, (1, 2))]
    graph = helper.make_graph([node], "linear", *shapes, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()


def test_there_is_no_other_engine() -> None:
    with pytest.raises(InputValueError, match=r"(?s)engine= is invalid.*'burnt' or 'onnx2torch'.*'tvm'"):
        burnt.onnx.load(linear(), engine="tvm")


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _onnx2torch.cache_clear()
    with pytest.raises(UnsupportedError, match=r"(?s)no onnx2torch, no torchvision.*burnt\[onnx2torch\]"):
        burnt.onnx.load(linear(), engine="onnx2torch")


@installed
def test_a_linear_layer() -> None:
    module = burnt.onnx.load(linear(), engine="onnx2torch")
    assert (module.input_names, module.output_names) == (["x"], ["y"])
    assert not module.training
    assert module(torch.tensor([[1.0, 0, -1]])).tolist() == [[-2.0, -2.0]]


@installed
def test_a_model_that_it_does_not_support() -> None:
    model = onnx.load_from_string(linear())
    model.graph.node[0].op_type = "Unknown"
    with pytest.raises(UnsupportedError, match=r"(?s)onnx2torch does not support.*Unknown"):
        burnt.onnx.load(model, engine="onnx2torch")


@installed
@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", names())
def test_both_engines_agree(name: str) -> None:
    model = read(name)
    inputs = [from_numpy(array, torch.device("cpu")) for array in inputs_of(model).values()]
    try:
        other = burnt.onnx.load(model, engine="onnx2torch")
    except UnsupportedError as error:
        pytest.skip(f"onnx2torch: {error.found}")
    ours = burnt.onnx.load(model)(*inputs)
    try:
        theirs = other(*inputs)
    except Exception as error:
        pytest.skip(f"onnx2torch's module fails: {type(error).__name__}: {str(error)[:80]}")
    ours, theirs = (value if isinstance(value, tuple) else (value,) for value in (ours, theirs))
    for one, two in zip(ours, theirs, strict=True):
        assert (one - two).abs().max() <= 1e-4 * one.abs().max().clamp(min=1e-6)
