"""Sizes that blocks of an imported model take: their names, and which of them are taken at all."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx.parser
import onnxruntime
import torch
from onnx import numpy_helper

import burnt.onnx
from burnt.errors import ShapeError
from burnt.onnx.importer.package import module_source, write_package
from tests.onnx.test_import_files import import_package


def model_of(inputs: str, size: str, *, layers: int = 3) -> onnx.ModelProto:
    """Return a model of layers that read the sizes of axes: ``Shape(y)`` for `size` ``y``."""
    body = f"s = Shape<start=0,end=2>({size}) "
    rng, weights = np.random.default_rng(0), []
    x = "x"
    for i in range(layers):
        name = f"layers_DOT_{i}_DOT_up"
        body += f"a{i} = MatMul({x}, {name}) t{i} = Concat<axis=0>(s, rest) b{i} = Reshape(a{i}, t{i}) "
        body += f"r{i} = Reshape(b{i}, back) c{i} = Relu(r{i}) h{i} = Add({x}, c{i}) "
        x = f"h{i}"
        weights.append(
            numpy_helper.from_array(rng.standard_normal((6, 6)).astype("f"), name.replace("_DOT_", "."))
        )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m ({inputs}) => (float[] y) {{ {body} y = Tanh({x}) }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for node in model.graph.node:
        node.input[:] = [name.replace("_DOT_", ".") for name in node.input]
    weights.append(numpy_helper.from_array(np.array([2, 3]), "rest"))
    weights.append(numpy_helper.from_array(np.array([0, 0, 6]), "back"))
    model.graph.initializer.extend(weights)
    return model


def check(model: onnx.ModelProto, tmp_path: Path, *arrays: np.ndarray[Any, Any]) -> str:
    """Compare with ONNX Runtime, and the written Python with the module to the bit; return the Python."""
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = dict(zip((i.name for i in session.get_inputs()), arrays, strict=True))
    (expected,) = session.run(None, feeds)
    write_package(module, tmp_path / "package", name="Net", title="A net.")
    inputs = [torch.from_numpy(array) for array in arrays]
    with torch.no_grad():
        found = copy.deepcopy(module)(*inputs)
        assert torch.equal(import_package(tmp_path / "package").load()(*inputs), found)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return module_source(module, "Net", "A net.")


def forward_of(source: str) -> str:
    """Return the arguments of the first block."""
    found = re.search(r"def forward\(\s*self, ([^)]*?)\s*\)", source)
    assert found is not None
    return found[1]


def test_the_sizes_of_the_first_argument_are_read_from_it(tmp_path):
    model = model_of("float[batch,sequence,6] x", "x")
    source = check(model, tmp_path, np.random.default_rng(1).standard_normal((2, 5, 6)).astype("f"))
    assert forward_of(source) == "hidden: Tensor"
    assert ".unflatten(-1, (2, 3))" in source


def test_sizes_of_another_input_are_arguments(tmp_path):
    model = model_of("float[n,m,6] x, float[batch,sequence] mask", "mask")
    x = np.random.default_rng(1).standard_normal((2, 5, 6)).astype("f")
    source = check(model, tmp_path, x, np.ones((2, 5), "f"))
    assert forward_of(source) == "hidden: Tensor, batch: int, sequence: int"
    module = burnt.onnx.load(model)
    swapped = [torch.from_numpy(x), torch.ones(5, 2)]
    expected = onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(Exception, match=r"(?i)broadcast|dimension|axis|shape"):
        expected.run(None, {"x": x, "mask": np.ones((5, 2), "f")})
    with pytest.raises(RuntimeError):
        module(*swapped)


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        (("Batch Size", "seq-len"), "batch_size: int, seq_len: int"),
        (("s0", "s77"), "batch: int, length: int"),
        (("unk__0", "dim_1"), "batch: int, length: int"),
        (("Addaxis_dim_0", "Addaxis_dim_1"), "batch: int, length: int"),
        (("ids_dynamic_axes_1", "s0 + 3"), "batch: int, length: int"),
        (("torch", "hidden"), "torch_: int, hidden_2: int"),
        (("n", "n"), "n: int"),
    ],
)
def test_names_of_sizes(symbols, expected):
    model = model_of("float[a,b,6] x, int64[c,d] ids", "ids")
    for dimension, symbol in zip(model.graph.input[1].type.tensor_type.shape.dim, symbols, strict=True):
        dimension.dim_param = symbol
    source = module_source(burnt.onnx.load(model), "Net", "A net.")
    assert forward_of(source) == f"hidden: Tensor, {expected}"


def test_sizes_that_the_file_calls_the_same_have_to_be_equal():
    model = burnt.onnx.load(model_of("float[n,m,6] x, float[n,m] mask", "mask"))
    assert model(torch.ones(2, 5, 6), torch.ones(2, 5)).shape == (2, 5, 6)
    with pytest.raises(ShapeError, match="axes that the file calls 'n' have different sizes") as error:
        model(torch.ones(2, 5, 6), mask=torch.ones(1, 5))
    assert "found     2 (axis 0 of x), 1 (axis 0 of mask)" in str(error.value)
