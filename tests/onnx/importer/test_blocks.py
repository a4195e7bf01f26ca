"""What a model repeats becomes blocks, in a loop where one hands on to the next: equal to ONNX Runtime."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx.parser
import onnxruntime
import torch
from onnx import helper, numpy_helper

import burnt.onnx
from burnt.onnx.importer.module import Block, ImportedModule
from burnt.onnx.importer.program import Repeat
from burnt.onnx.importer.python import module_source, write_package
from tests.onnx.importer_files import tensor
from tests.onnx.test_import_files import import_package

_SIZES = {"up": (6, 9), "up_bias": (9,), "down": (9, 6), "down_bias": (6,)}
_NAMES = {"up": "up.weight", "up_bias": "up.bias", "down": "down.weight", "down_bias": "down.bias"}


def _layer(i: int, x: str, y: str, *, weights: int | None = None, slope: float = 0.1) -> str:
    """Return the nodes of one layer: ``y = x + down(leaky_relu(up(x)))``."""
    w = i if weights is None else weights
    names = {key: f"encoder.layers.{w}.{name}" for key, name in _NAMES.items()}
    return f"""
        a{i} = MatMul({x}, "{names["up"]}")
        b{i} = Add(a{i}, "{names["up_bias"]}")
        c{i} = LeakyRelu<alpha = {slope}>(b{i})
        d{i} = MatMul(c{i}, "{names["down"]}")
        e{i} = Add(d{i}, "{names["down_bias"]}")
        {y} = Add({x}, e{i})
    """.replace('"', "")


def _model(body: str, *, weights: int = 3, inputs: str = "float[n, 6] x", outputs: str = "float[n, 6] y"):
    """Return a model of nodes with the weights of several layers."""
    for path in [f"encoder.layers.{i}" for i in range(weights)]:
        for name in _NAMES.values():
            body = body.replace(f"{path}.{name}", f"{path}.{name}".replace(".", "_DOT_"))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m ({inputs}) => ({outputs}) {{{body}}}'
    )
    rng = np.random.default_rng(0)
    for node in model.graph.node:
        node.input[:] = [name.replace("_DOT_", ".") for name in node.input]
    for i in range(weights):
        for key, name in _NAMES.items():
            array = rng.standard_normal(_SIZES[key]).astype(np.float32) / 3
            model.graph.initializer.append(tensor(array, name=f"encoder.layers.{i}.{name}"))
    return model


def _check(model: onnx.ModelProto, tmp_path: Path, *shapes: tuple[int, ...]) -> ImportedModule:
    """Compare with ONNX Runtime, and the written Python with the module; return it."""
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (shapes or ((4, 6),))]
    inputs = [torch.from_numpy(array) for array in arrays]
    expected = session.run(None, dict(zip((i.name for i in session.get_inputs()), arrays, strict=True)))
    write_package(module, tmp_path / "package", name="Imported", title="A model.")
    written = import_package(tmp_path / "package").load()
    for one in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), written):
        found = one(*inputs)
        found = found if isinstance(found, tuple) else (found,)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b, atol=1e-5)
    assert list(written.state_dict()) == list(module.state_dict())
    return module


def _blocks(module: ImportedModule) -> list[Block]:
    return [child for child in module.modules() if isinstance(child, Block) and child is not module]


def test_layers_become_a_loop_over_blocks(tmp_path):
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1") + _layer(2, "h1", "h2") + "y = Tanh(h2)"
    module = _check(_model(body), tmp_path)
    assert len(_blocks(module)) == 3
    assert [name for name, _ in module.named_parameters()][:2] == [
        "layers.0.up.weight",
        "layers.0.up.bias",
    ]
    assert len({id(block.program) for block in _blocks(module)}) == 1
    source = module_source(module, "Net", "A net.")
    assert "class Layer(burnt.Module):" in source
    assert "self.layers = torch.nn.ModuleList(Layer() for _ in range(3))" in source
    loop = "for block in self.layers:\n            hidden = block(hidden)\n"
    assert loop in source


def test_a_block_trains(tmp_path):
    """Every weight of every block gets a gradient."""
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1") + _layer(2, "h1", "y")
    module = _check(_model(body), tmp_path)
    module(torch.randn(4, 6)).square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    assert len(gradients) == 12
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


def test_results_of_all_layers_are_returned(tmp_path):
    """Hidden states are read outside of their layer: each block is called by itself."""
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1") + _layer(2, "h1", "y")
    model = _model(body, outputs="float[n, 6] h0, float[n, 6] h1, float[n, 6] y")
    module = _check(model, tmp_path)
    assert len(_blocks(module)) == 3
    assert [s.call.function for s in module.program.statements] == [f"self.layers[{i}]" for i in range(3)]


def test_each_layer_has_an_input_and_an_output_of_its_own(tmp_path):
    """Caches of keys and values are such."""
    body = ""
    for i, x in enumerate(["x", "h0", "h1"]):
        body += _layer(i, x, f"t{i}") + f"s{i} = Mul(p{i}, t{i}) h{i} = Add(t{i}, s{i})"
    inputs = ", ".join(f"float[n, 6] {name}" for name in ("x", "p0", "p1", "p2"))
    outputs = ", ".join(f"float[n, 6] {name}" for name in ("h2", "s0", "s1", "s2"))
    module = _check(_model(body, inputs=inputs, outputs=outputs), tmp_path, *[(4, 6)] * 4)
    assert len(_blocks(module)) == 3
    assert not any(isinstance(s, Repeat) for s in module.program.statements)


def test_one_layer_called_again_is_one_block(tmp_path):
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1", weights=0) + _layer(2, "h1", "y", weights=0)
    module = _check(_model(body, weights=1), tmp_path)
    (block,) = _blocks(module)
    assert len(block.program.statements) == 4  # the biases are in the layers
    assert sum(1 for _ in module.parameters()) == 4
    assert "for _ in range(3):" in module_source(module, "Net", "A net.")


def test_a_layer_that_others_use_too_stays_outside(tmp_path):
    """Its weights would be in two places."""
    body = ""
    for i, x in enumerate(["x", "h0", "h1"]):
        path = f"encoder.layers.{i}"
        body += (
            f"a{i} = MatMul({x}, {path}.up.weight) b{i} = Relu(a{i}) c{i} = MatMul(b{i}, {path}.down.weight)"
        )
        body += f" h{i} = Add({x}, c{i}) "
    body += "p = MatMul(h2, encoder.layers.1.up.weight) y = Sigmoid(p)"
    module = _check(_model(body, outputs="float[n, 9] y"), tmp_path)
    calls = [s.call.function for s in module.program.statements]
    assert calls.count("self.layers_1_up") == 2
    assert _blocks(module) == []


def test_the_same_value_enters_the_loop_and_stays(tmp_path):
    """The input of the first layer is also added in every layer, and read after the loop."""
    body = "s = Sigmoid(x)"
    for i, x in enumerate(["s", "h0", "h1"]):
        body += _layer(i, x, f"t{i}") + f"h{i} = Add(t{i}, s)"
    module = _check(_model(body + "y = Mul(h2, s)"), tmp_path)
    assert len(_blocks(module)) == 3
    (repeat,) = (s for s in module.program.statements if isinstance(s, Repeat))
    assert len(repeat.initial) == len(repeat.args) == 1


def test_two_values_are_handed_on(tmp_path):
    body = ""
    for i, (x, z) in enumerate([("x", "z"), ("h0", "z0"), ("h1", "z1")]):
        body += _layer(i, x, f"t{i}") + f"z{i} = Mul({z}, t{i}) h{i} = Sub(t{i}, z{i})"
    inputs = "float[n, 6] x, float[n, 6] z"
    module = _check(_model(body + "y = Add(h2, z2)", inputs=inputs), tmp_path, (4, 6), (4, 6))
    (repeat,) = (s for s in module.program.statements if isinstance(s, Repeat))
    assert len(repeat.outputs) == 2


def test_sizes_of_an_outer_tensor_are_arguments(tmp_path):
    body = "s = Shape(z) "
    for i, x in enumerate(["x", "h0", "h1"]):
        body += _layer(i, x, f"t{i}") + f"h{i} = Expand(t{i}, s)"
    inputs = "float[n, 6] x, float[k, 6] z"
    module = _check(_model(body + "y = Relu(h2)", inputs=inputs), tmp_path, (1, 6), (5, 6))
    assert len(_blocks(module)) == 3


def test_layers_that_differ_are_left_alone(tmp_path):
    """The activation of the second is another."""
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1").replace("LeakyRelu", "Elu") + _layer(2, "h1", "y")
    assert _blocks(_check(_model(body), tmp_path)) == []


def test_layers_that_differ_in_a_number_are_one_class(tmp_path):
    """The slope of the second is another."""
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1", slope=0.3) + _layer(2, "h1", "y")
    module = _check(_model(body), tmp_path)
    source = module_source(module, "Net", "A net.")
    layers = ", ".join(f"Layer(negative_slope={slope})" for slope in (0.1, 0.3, 0.1))
    assert f"torch.nn.ModuleList(\n            [{layers}]\n        )" in source
    assert "F.leaky_relu(self.up(hidden), negative_slope=self.negative_slope)" in source


def test_a_value_of_two_turns_before_is_not_a_block(tmp_path):
    """A block hands its results to the next one alone."""
    body = _layer(0, "x", "t0") + "h0 = Add(t0, x)"
    body += _layer(1, "h0", "t1") + "h1 = Add(t1, x)"
    body += _layer(2, "h1", "t2") + "h2 = Add(t2, h0)"
    body += _layer(3, "h2", "t3") + "h3 = Add(t3, h1)"
    _check(_model(body + "y = Relu(h3)", weights=4), tmp_path)


def test_what_all_layers_read_is_computed_before_the_loop(tmp_path):
    """It stands among the nodes of the first layer, as exporters write rotary embeddings."""
    body = (
        _layer(0, "x", "t0").replace("c0 =", "angle = Sin(z) scaled = Sqrt(angle) c0 =")
        + "h0 = Mul(t0, scaled)"
    )
    for i, x in ((1, "h0"), (2, "h1")):
        body += _layer(i, x, f"t{i}") + f"h{i} = Mul(t{i}, scaled)"
    inputs = "float[n, 6] x, float[n, 6] z"
    module = _check(_model(body + "y = Relu(h2)", inputs=inputs), tmp_path, (4, 6), (4, 6))
    assert len(_blocks(module)) == 3


def test_others_among_the_nodes_of_the_last_layer_come_after_it(tmp_path):
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1")
    body += _layer(2, "h1", "h2").replace("c2 =", "gate = Sigmoid(x) c2 =") + "y = Mul(h2, gate)"
    module = _check(_model(body), tmp_path)
    assert len(_blocks(module)) == 3


def test_a_result_inside_of_the_last_layer_is_returned_by_all(tmp_path):
    """The blocks are those of the names, though a loop over parts of them would read less."""
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1")
    body += (
        _layer(2, "h1", "h2").replace("c2 =", "gate = Sigmoid(b2) c2 =") + "y = ReduceSum(gate) z = Relu(h2)"
    )
    module = _check(_model(body, outputs="float[1, 1] y, float[n, 6] z"), tmp_path)
    assert [len(s.outputs) for s in module.program.statements] == [2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("is_same", [True, False])
@pytest.mark.parametrize("lists", [("encoder.layers", "decoder.layers"), ("left.stack", "right.stack")])
def test_classes_of_two_lists_have_names_that_differ(lists, is_same, tmp_path):
    """Where they differ in numbers alone, they are one class, and the slope is its argument."""
    body, x = "", "x"
    for i in range(6):
        layer = _layer(i, x, f"h{i}", slope=0.1 if i < 3 else 0.2)
        body += layer if is_same or i < 3 else layer.replace("LeakyRelu", "Elu")
        x = f"h{i}"
    model = _model(body + f"y = Tanh({x})", weights=6)
    for i in range(6):
        for value in (*model.graph.initializer, *(node for node in model.graph.node)):
            old, new = f"encoder.layers.{i}.", f"{lists[i // 3]}.{i % 3}."
            if isinstance(value, onnx.TensorProto):
                value.name = value.name.replace(old, new)
            else:
                value.input[:] = [name.replace(old, new) for name in value.input]
    module = _check(model, tmp_path)
    kinds = [block.kind for block in _blocks(module)]
    first, second = (name.title().replace(".", "").removesuffix("s") for name in lists)
    assert kinds == [first] * 3 + [second] * 3
    source = module_source(module, "Net", "A net.")
    assert (f"class {second}(burnt.Module):" in source) != is_same
    common = second.removeprefix("Decoder").removeprefix("Right")
    assert (f"ModuleList({common}(negative_slope=0.2) for _ in range(3))" in source) == is_same


def test_what_the_first_layer_computes_of_its_own_stays_in_it(tmp_path):
    """All layers read it, but it cannot be computed before them."""
    body = (
        _layer(0, "x", "t0").replace("c0 =", "gate = Sin(b0) total = ReduceSum(gate) c0 =")
        + "h0 = Mul(t0, total)"
    )
    for i, x in ((1, "h0"), (2, "h1")):
        body += _layer(i, x, f"t{i}") + f"h{i} = Mul(t{i}, total)"
    module = _check(_model(body + "y = Relu(h2)"), tmp_path)
    assert len(_blocks(module)) == 2


def test_operands_in_another_order_are_another_layer(tmp_path):
    body = ""
    for i, x in enumerate(["x", "h0", "h1"]):
        body += _layer(i, x, f"t{i}") + (f"h{i} = Sub(t{i}, e{i})" if i < 2 else f"h{i} = Sub(e{i}, t{i})")
    module = _check(_model(body + "y = Relu(h2)"), tmp_path)
    assert len(_blocks(module)) == 2


def test_the_first_layer_may_read_two_values_where_others_read_one(tmp_path):
    """In the first turn they are two arguments, in the others one."""
    body = _layer(0, "x", "h0").replace("Add(x, e0)", "Add(z, e0)") + _layer(1, "h0", "y")
    module = _check(_model(body, weights=2, inputs="float[n, 6] x, float[n, 6] z"), tmp_path, (4, 6), (4, 6))
    assert _blocks(module) == []


def test_names_of_a_sequential_are_not_doubled():
    nodes, weights = [], []
    for i, name in enumerate(("/stem/stem.0/Conv", "/stem/stem.1/Conv", "/head/Conv")):
        weights.append(numpy_helper.from_array(np.full((2, 2, 1, 1), i + 1, np.float32), f"onnx::Conv_{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", weights[-1].name], [f"x{i + 1}"], name=name))
    value = [helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, ["n", 2, 4, 4]) for i in (0, 3)]
    graph = helper.make_graph(nodes, "graph", value[:1], value[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    names = [name for name, _ in burnt.onnx.load(model).named_children()]
    assert names == ["stem_0", "stem_1", "head"]
