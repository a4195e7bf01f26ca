"""Patterns are replaced where they compute a layer, and left where they only look like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import burnt


def _gelu(half: float = 0.5, root: float = 2.0**0.5) -> tuple[list[Any], dict[str, Any]]:
    steps = [("Div", "x", "root", "a"), ("Erf", "a", "b"), ("Add", "one", "b", "c"), ("Mul", "c", "x", "d")]
    return [*steps, ("Mul", "half", "d", "y")], {"root": root, "one": 1.0, "half": half}


def _layer_norm(other: str = "x", eps: Any = 1e-3) -> tuple[list[Any], dict[str, Any]]:
    steps = [
        ("ReduceMean", other, "axes", "m"),
        ("Sub", "x", "m", "d"),
        ("Pow", "d", "two", "p"),
        ("ReduceMean", "p", "axes", "v"),
        ("Add", "v", "eps", "e"),
        ("Sqrt", "e", "s"),
        ("Div", "d", "s", "n"),
        ("Mul", "n", "w", "q"),
        ("Add", "q", "bias", "y"),
    ]
    ramp = np.linspace(-1, 1, 6, dtype=np.float32)
    return steps, {"axes": np.array([-1]), "two": 2.0, "eps": eps, "w": ramp, "bias": ramp**2}


def _rotary(end: int = 3) -> tuple[list[Any], dict[str, Any]]:
    steps = [
        ("Slice", "x", "zero", "middle", "last", "f"),
        ("Slice", "x", "middle", "most", "last", "g"),
        ("Neg", "g", "h"),
        ("Concat", "h", "f", "r"),
        ("Mul", "r", "sin", "i"),
        ("Mul", "x", "cos", "j"),
        ("Add", "j", "i", "y"),
    ]
    ints = {"zero": [0], "middle": [end], "most": [2**63 - 1], "last": [-1]}
    arrays = {name: np.array(value) for name, value in ints.items()}
    return steps, {**arrays, "sin": np.full(6, 0.6, np.float32), "cos": np.full(6, 0.8, np.float32)}


CASES = [
    ("gelu", _gelu(), "F.gelu"),
    ("gelu of another half", _gelu(half=0.4), None),
    ("gelu of another root", _gelu(root=1.5), None),
    ("layer norm", _layer_norm(), "self.norm"),
    ("layer norm around another mean", _layer_norm(other="z"), None),
    ("layer norm with several eps", _layer_norm(eps=np.full(6, 1e-3, np.float32)), None),
    ("rotary", _rotary(), "ops.rotate"),
    ("rotary in unequal parts", _rotary(end=2), None),
    ("silu", ([("Sigmoid", "x", "s"), ("Mul", "s", "x", "y")], {}), "F.silu"),
    ("a gate of another", ([("Sigmoid", "z", "s"), ("Mul", "s", "x", "y")], {}), None),
]


@pytest.mark.parametrize(("name", "graph", "function"), CASES, ids=[case[0] for case in CASES])
def test_a_pattern(name, graph, function):
    steps, constants = graph
    nodes = [
        helper.make_node(op, list(rest[:-1]), [rest[-1]], **({"axis": -1} if op == "Concat" else {}))
        for op, *rest in steps
    ]
    values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["n", 6]) for v in ("x", "z", "y")]
    arrays = {
        k: np.asarray(v, None if isinstance(v, np.ndarray) else np.float32) for k, v in constants.items()
    }
    weights = [numpy_helper.from_array(array, key) for key, array in arrays.items()]
    made = helper.make_graph(nodes, "graph", values[:2], values[2:], weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    module = burnt.onnx.load(model)
    calls = [statement.call.function for statement in module.program.statements]
    assert calls == [function] if function else len(calls) > 1, calls
    x, z = torch.randn(5, 6), torch.randn(5, 6)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": x.numpy(), "z": z.numpy()})
    torch.testing.assert_close(module(x, z).detach(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
