"""Handlers, names of functions, tied weights, devices."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx.parser
import torch

import burnt.onnx
from burnt.errors import InputIndexError
from burnt.onnx import functions
from burnt.onnx.importer import node as node_module
from burnt.onnx.importer.build import build_program
from burnt.onnx.importer.source import read_model
from tests.onnx.importer_files import parse, read, tensor

_OPS = Path(node_module.__file__).with_name("ops")


def _load(body: str, **arrays: np.ndarray) -> torch.nn.Module:
    return burnt.onnx.load(parse(body, **arrays))


def test_handlers_call_functions_that_exist() -> None:
    """Each name is in one file of burnt.onnx.functions, whose star imports would hide the first of two."""
    called = {n for path in _OPS.glob("*.py") for n in re.findall(r'"ops\.(\w+)"', path.read_text())}
    assert len(called) > 100
    assert all(callable(getattr(functions, name)) for name in called)
    files = Path(functions.__file__).parent.glob("*.py")
    defined = [n for path in files for n in re.findall(r"^def ([a-z]\w*)", path.read_text(), flags=re.M)]
    assert called <= set(defined)
    assert len(defined) == len(set(defined))


def test_second_handler_of_an_op_is_refused() -> None:
    """The message names the op and the version."""
    with pytest.raises(ValueError, match=r"two handlers of Identity \(domain ai.onnx\) since version 1"):
        node_module.handler("Identity")(lambda build, node: None)


def test_weight_behind_identities_is_one_parameter() -> None:
    """Two layers of one file share it, so it gets the sum of the gradients."""
    body = "(float[n, 3] x) => (float[n, 3] y) { v = Identity(w) h = MatMul(x, w) y = MatMul(h, v) }"
    weight = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    module = _load(body, w=weight)
    assert sum(p.numel() for p in module.parameters()) == 9
    x = torch.ones(2, 3)
    torch.testing.assert_close(module(x), x @ torch.from_numpy(weight) @ torch.from_numpy(weight))


_TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


def test_computed_indices_of_a_table_count_from_the_end() -> None:
    """Negative ones do, also in the embedding layer."""
    body = "(int64[n] i) => (float[n, 2] y) { j = Add(i, minus_one) y = Gather(w, j) }"
    module = _load(body, w=_TABLE, minus_one=np.array(-1))
    assert [type(layer).__name__ for layer in module.children()] == ["Embedding"]
    assert module(torch.tensor([0, 1])).tolist() == [[6, 7], [0, 1]]


@pytest.mark.parametrize(
    "indices", ["j = Identity(i)", "j = Cast<to=7>(i)", "k = Cast<to=7>(i) j = Reshape(k, shape)"]
)
def test_negative_ids_of_the_input_are_refused(indices: str) -> None:
    """Ids are taken as they are; the message is that of the embedding layer."""
    module = _load(
        f"(int32[n] i) => (float[n, 2] y) {{ {indices} y = Gather(w, j) }}", w=_TABLE, shape=np.array([-1])
    )
    assert module(torch.tensor([3, 0], dtype=torch.int32)).tolist() == [[6, 7], [0, 1]]
    with pytest.raises(InputIndexError, match="an id has no embedding") as caught:
        module(torch.tensor([-1, 0], dtype=torch.int32))
    assert "ids from -1 to 0" in str(caught.value)


def test_created_tensors_are_on_the_device_of_the_input() -> None:
    """The meta device stands for an accelerator: an operand on the CPU would be refused."""
    body = """(float[n, m] x) => (float[n, m] y) {
        s = Shape(x) rows = Gather(s, zero) r = Range(zero, rows, one) f = Cast<to=1>(r)
        column = Unsqueeze(f, axis) filled = ConstantOfShape<value=float[1]{2.0}>(s)
        z = Add(x, column) y = Add(z, filled) }"""
    module = _load(body, zero=np.array(0), one=np.array(1), axis=np.array([1]))
    assert module(torch.zeros(2, 3)).tolist() == [[2, 2, 2], [3, 3, 3]]
    assert module.to("meta")(torch.zeros(2, 3, device="meta")).device.type == "meta"


def test_bias_as_a_row_is_that_of_a_layer() -> None:
    """scikit-learn writes it so; added to a vector it would make a matrix, and stays an addition there."""
    weight, bias = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[1.0, 2.0]], dtype=np.float32)
    body = "{ h = MatMul(x, w) y = Add(b, h) }"
    module = _load(f"(float[n, 3] x) => (float[n, 2] y) {body}", w=weight, b=bias)
    assert [statement.call.function for statement in module.program.statements] == ["self.linear"]
    np.testing.assert_allclose(module(torch.ones(4, 3)).detach().numpy(), np.ones((4, 3)) @ weight + bias)
    module = _load(f"(float[3] x) => (float[1, 2] y) {body}", w=weight, b=bias)
    np.testing.assert_allclose(module(torch.ones(3)).detach().numpy(), np.ones(3) @ weight + bias)


def test_bias_that_others_read_stays_a_parameter() -> None:
    weight, bias = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1.0, 2.0], dtype=np.float32)
    module = _load(
        "(float[n, 3] x) => (float[n, 2] y) { h = MatMul(x, w) z = Add(b, h) y = Mul(z, b) }",
        w=weight,
        b=bias,
    )
    assert sum(parameter.numel() for parameter in module.parameters()) == 8
    np.testing.assert_allclose(
        module(torch.ones(4, 3)).detach().numpy(), (np.ones((4, 3)) @ weight + bias) * bias
    )


def test_constants_that_are_no_weights_are_not_trained() -> None:
    """A mask is a Constant node, or what torch's exporter folded; a weight may be a Constant node too."""
    mask, weight = tensor(np.ones((2, 3), np.float32)), tensor(np.ones((3, 3), np.float32))
    nodes = [
        onnx.helper.make_node("Constant", [], ["mask"], value=mask),
        onnx.helper.make_node("Constant", [], ["weight"], value=weight),
        onnx.helper.make_node("Add", ["x", "mask"], ["a"]),
        onnx.helper.make_node("Add", ["a", "onnx::Add_7"], ["b"]),
        onnx.helper.make_node("Mul", ["b", "scale"], ["c"]),
        onnx.helper.make_node("MatMul", ["c", "weight"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "m",
        [value("x", onnx.TensorProto.FLOAT, [2, 3])],
        [value("y", onnx.TensorProto.FLOAT, [2, 3])],
        [tensor(np.ones((2, 3), np.float32), name=name) for name in ("onnx::Add_7", "scale")],
    )
    module = burnt.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)]))
    assert {name for name, _ in module.named_parameters()} == {"scale", "linear.weight"}
    assert {name for name, _ in module.named_buffers()} == {"mask", "onnx_Add_7"}


def test_layers_of_a_sequence_keep_their_numbers() -> None:
    """torch names the weights of a Sequential by numbers alone."""
    body = "(float[n, 3] x) => (float[n, 3] y) { a = MatMul(x, u) b = Relu(a) y = MatMul(b, v) }"
    model = parse(body)
    for node in model.graph.node:
        node.input[:] = [{"u": "0.weight", "v": "2.weight"}.get(name, name) for name in node.input]
    model.graph.initializer.extend(
        tensor(np.eye(3, dtype=np.float32) * i, name=f"{i}.weight") for i in (0, 2)
    )
    assert list(burnt.onnx.load(model).state_dict()) == ["0.weight", "2.weight"]


def test_biases_behind_a_scaler_are_in_the_layers() -> None:
    """ONNX infers no shapes behind ops of scikit-learn's."""
    module = burnt.onnx.load(read("digits_mlp.sklearn"))
    assert [name for name, _ in module.named_parameters()] == [
        f"{layer}.{kind}" for layer in ("linear", "linear_2", "linear_3") for kind in ("weight", "bias")
    ]


def test_weights_are_freed_once_they_are_read() -> None:
    """What a later node reads, or the body of a branch, stays until then; values are those of numpy."""
    body = """(float[n, 32] x, bool c) => (float[32, 32] y) {
        h = MatMul(x, w) k = MatMul(h, v) s = ReduceSum(k) a = Add(s, v) b = Mul(a, u)
        y = If(c) <then_branch = t () => (float[32, 32] t1) { t1 = Add(b, u) },
                   else_branch = e () => (float[32, 32] e1) { e1 = Sub(b, z) }> }"""
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-2, 3, (32, 32)).astype(np.float32) for name in "wvuz"}  # exact sums
    proto = parse(body, **arrays)
    parsed, where, limit = read_model(proto)
    build = build_program(parsed, where, limit)
    assert {value.name for value in build.constants if build.constants[value].nbytes >= 4096} == {"u", "z"}
    assert parsed.graph.initializers["w"].const_value is None
    w, v, u, z = arrays.values()
    x = np.ones((2, 32), np.float32)
    module = burnt.onnx.load(proto)
    for condition, last in ((True, u), (False, -z)):
        found = module(torch.from_numpy(x), torch.tensor(condition))
        assert torch.equal(found, torch.from_numpy(((x @ w @ v).sum() + v) * u + last))


def test_a_module_that_has_run_is_copied_and_pickled() -> None:
    body = """(float[n, 3] x, bool c) => (float[m, 3] y) { h = MatMul(x, w)
        y = If(c) <then_branch = t () => (float[n, 3] t1) { t1 = Add(h, x) },
                   else_branch = e () => (float[n, 3] e1) { e1 = Identity(h) }> }"""
    module = _load(body, w=np.eye(3, dtype=np.float32))
    inputs = torch.ones(2, 3), torch.tensor(True)
    expected = module(*inputs)
    assert expected.tolist() == [[2.0] * 3] * 2
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(*inputs), expected)
        with torch.no_grad():
            next(twin.parameters()).zero_()
        assert torch.equal(twin(*inputs), inputs[0])
    assert torch.equal(module(*inputs), expected)
