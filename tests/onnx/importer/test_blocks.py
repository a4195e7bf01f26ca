"""What a model repeats becomes one class and a loop in written Python, which computes the same to the bit."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx.parser
import onnxruntime
import torch
from onnx import helper

import burnt.onnx
from burnt.onnx.importer.blocks.structure import Number, Structure, constructor, structure_of, with_attributes
from burnt.onnx.importer.package import module_source, write_package
from burnt.onnx.importer.program import Call, Name, Program, Size, Statement
from tests.onnx.importer_files import read, tensor
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


def _model(
    body: str,
    *,
    weights: int = 3,
    inputs: str = "float[n, 6] x",
    outputs: str = "float[n, 6] y",
    renamed: tuple[str, str] | None = None,
) -> onnx.ModelProto:
    """Return a model of nodes with the weights of several layers, whose names are text before and after."""

    def name_of(text: str) -> str:
        return text.replace("_DOT_", ".").replace(*(renamed or ("", "")))

    for path in [f"encoder.layers.{i}" for i in range(weights)]:
        for name in _NAMES.values():
            body = body.replace(f"{path}.{name}", f"{path}.{name}".replace(".", "_DOT_"))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m ({inputs}) => ({outputs}) {{{body}}}'
    )
    rng = np.random.default_rng(0)
    for node in model.graph.node:
        node.input[:] = [name_of(name) for name in node.input]
    for i in range(weights):
        for key, name in _NAMES.items():
            array = rng.standard_normal(_SIZES[key]).astype(np.float32) / 3
            model.graph.initializer.append(tensor(array, name=name_of(f"encoder.layers.{i}.{name}")))
    return model


def _check(model: onnx.ModelProto, tmp_path: Path, *shapes: tuple[int, ...]) -> str:
    """Compare with ONNX Runtime, and the written Python with the module to the bit; return the Python.

    Docstrings and ``super().__init__()`` are left out.
    """
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (shapes or ((4, 6),))]
    inputs = [torch.from_numpy(array) for array in arrays]
    expected = session.run(None, dict(zip((i.name for i in session.get_inputs()), arrays, strict=True)))
    write_package(module, tmp_path / "package", name="Net", title="A model.")
    written = import_package(tmp_path / "package").load()
    results = []
    for one in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), written):
        found = one(*inputs)
        results.append(found if isinstance(found, tuple) else (found,))
        for a, b, first in zip(results[-1], expected, results[0], strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b, atol=1e-5)
            assert torch.equal(a, first)
    source = module_source(module, "Net", "A net.")
    lines = source[source.index("class ") : source.index("def load")].splitlines()
    return "\n".join(line for line in lines if line and '"""' not in line and "super()" not in line) + "\n"


def _stack(count: int = 3, last: str = "y", extra: str = "") -> str:
    """Return layers that follow each other; `extra` has ``{i}`` for a number and ``{t}`` for a result."""
    body, x = "", "x"
    for i in range(count):
        y = last if i == count - 1 and not extra else f"h{i}"
        body += _layer(i, x, f"t{i}" if extra else y) + extra.format(i=i, t=f"t{i}", x=x)
        x = y if not extra else f"h{i}"
    return body


def test_layers_become_a_loop_and_keep_their_paths(tmp_path):
    model = _model(_stack(last="h2") + "y = Tanh(h2)")
    assert (
        _check(model, tmp_path)
        == """\
class Layer(burnt.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(6, 9)
        self.down = nn.Linear(9, 6)
    def forward(self, hidden: Tensor) -> Tensor:
        up = F.leaky_relu(self.up(hidden), negative_slope=0.1)
        return hidden + self.down(up)
class Net(burnt.Module):
    def __init__(self) -> None:
        self.encoder = torch.nn.Module()
        self.encoder.layers = torch.nn.ModuleList(Layer() for _ in range(3))
    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for block in self.encoder.layers:
            hidden = block(hidden)
        return torch.tanh(hidden)
"""
    )
    module, written = burnt.onnx.load(model), import_package(tmp_path / "package").load()
    names = [value.name for value in model.graph.initializer]
    assert list(module.state_dict()) == list(written.state_dict()) == names
    written(torch.randn(4, 6)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in written.parameters())


def test_a_bert_keeps_all_paths_of_its_source():
    """torch's exporter writes most of the matrices under numbers, and says in nodes where they belong."""
    for name in ("bert.dynamo", "bert.legacy"):
        module = burnt.onnx.load(read(name))
        layer = [
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ]
        layer += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
        expected = {f"bert.encoder.layer.{i}.{path}" for i in range(3) for path in layer}
        expected |= {f"bert.embeddings.{kind}_embeddings" for kind in ("word", "token_type", "position")}
        expected |= {"bert.embeddings.LayerNorm", "bert.pooler.dense", "classifier"}
        paths = {
            path.removeprefix("model.") for path, one in module.named_modules() if list(one.parameters(False))
        }
        assert paths == expected
        assert "for block in self.model.bert.encoder.layer:" in module_source(module, "Net", "A net.")


def test_weights_of_an_import_with_flat_names_are_renamed():
    module = burnt.onnx.load(read("bert.dynamo"))
    old = {}
    for path, value in module.state_dict().items():
        parts = path.removeprefix("model.").split(".")
        if parts[1:3] == ["encoder", "layer"]:
            parts = ["bert_encoder_layer", parts[3], "_".join(parts[4:-1]).lower(), parts[-1]]
        elif len(parts) > 1:
            parts = ["_".join(parts[:-1]).lower(), parts[-1]]
        old[".".join(parts)] = torch.zeros_like(value)
    assert "bert_encoder_layer.0.attention_output_layernorm.weight" in old
    with pytest.raises(burnt.errors.RecordError, match="is 'bert_encoder_layer"):
        burnt.load_weights(module, old)
    burnt.load_weights(module, old, rename=module.flat_names)
    assert not any(value.any() for value in module.state_dict().values())


@pytest.mark.parametrize(
    ("extra", "end", "inputs", "outputs", "expected"),
    [
        ("", "", "x", "h0 h1 y", "h0 = self.encoder.layers[0](x)"),  # hidden states: calls
        (
            "s{i} = Mul(p{i}, {t}) h{i} = Add({t}, s{i})",
            "",
            "x p0 p1 p2",
            "h2 s0 s1 s2",
            "self.encoder.layers[2](",
        ),
        ("s = Sigmoid(x)| h{i} = Add({t}, s)", "y = Mul(h2, s)", "x", "y", "hidden = block(hidden, mask)"),
        ("a = Sin(z)| h{i} = Mul({t}, a)", "y = Relu(h2)", "x z", "y", "hidden = block(hidden, a)"),
        ("h{i} = Mul({t}, z)", "y = Relu(h2)", "x z", "y", "hidden = block(hidden, z)"),
    ],
    ids=["hidden states", "caches", "read in all and after", "computed before", "an input"],
)
def test_what_blocks_read_and_return(extra, end, inputs, outputs, expected, tmp_path):
    before, _, extra = extra.rpartition("|")
    names = inputs.split()
    model = _model(
        before + _stack(extra=extra) + end,
        inputs=", ".join(f"float[n, 6] {name}" for name in names),
        outputs=", ".join(f"float[n, 6] {name}" for name in outputs.split()),
    )
    source = _check(model, tmp_path, *[(4, 6)] * len(names))
    if "block(" in expected:
        assert _own(source).count("= block(hidden") == 1
    else:
        assert _own(source).count("self.encoder.layers[") == 3
    assert source.count("class ") == 2


def _own(source: str) -> str:
    """Return the lines of the model's own class."""
    return source[source.index("class Net") :]


def test_two_values_are_handed_on(tmp_path):
    body = ""
    for i, (x, z) in enumerate([("x", "z"), ("h0", "z0"), ("h1", "z1")]):
        body += _layer(i, x, f"t{i}") + f"z{i} = Mul({z}, t{i}) h{i} = Sub(t{i}, z{i})"
    model = _model(body + "y = Add(h2, z2)", inputs="float[n, 6] x, float[n, 6] z")
    source = _own(_check(model, tmp_path, (4, 6), (4, 6)))
    assert re.search(r"(hidden\w*), (hidden\w*) = block\(\1, \2\)", source)


def test_one_layer_called_again_is_one_block(tmp_path):
    body = _layer(0, "x", "h0") + _layer(1, "h0", "h1", weights=0) + _layer(2, "h1", "y", weights=0)
    source = _check(_model(body, weights=1), tmp_path)
    assert "for _ in range(3):\n            hidden = self.encoder.layers[0](hidden)\n" in source


@pytest.mark.parametrize("place", ["first", "last", "own"])
def test_others_among_the_nodes_of_a_layer(place, tmp_path):
    """What all layers read comes before the loop, as does what others read, unless it is a layer's own."""
    count = 6
    body = _stack(count, last="h5")
    if place == "first":
        body = body.replace("c0 =", "angle = Sin(z) scaled = Abs(angle) c0 =")
        for i in range(count):
            body = body.replace(f"e{i} = Add(d{i}", f"g{i} = Mul(d{i}, scaled) e{i} = Add(g{i}")
    else:
        body = body.replace("c5 =", f"scaled = Sigmoid({'x' if place == 'last' else 'b5'}) c5 =")
    end = "y = Relu(h5)" if place == "first" else "s = ReduceSum(scaled) y = Mul(h5, s)"
    model = _model(body + end, weights=count, inputs="float[n, 6] x, float[n, 6] z")
    source = _check(model, tmp_path, (4, 6), (4, 6))
    assert ("for block in self.encoder.layers:" in source) == (place != "own")
    assert ("for block in self.encoder.layers[:5]:" in source) == (place == "own")


@pytest.mark.parametrize(
    ("old", "new", "classes"),
    [
        ("c1 = LeakyRelu<alpha = 0.1>", "c1 = Elu", 3),  # another activation: a class of its own
        ("c1 = LeakyRelu<alpha = 0.1>", "c1 = LeakyRelu<alpha = 0.3>", 2),  # an argument of the class
        ("Add(x, e0)", "Add(z, e0)", 3),  # the first reads two values
        ("h2 = Add(h1, e2)", "h2 = Sub(e2, h1)", 3),
    ],
    ids=["activation", "number", "inputs", "operands"],
)
def test_layers_that_differ(old, new, classes, tmp_path):
    body = _stack(6, last="h5") + "y = Tanh(h5)"
    assert old in body
    model = _model(body.replace(old, new), weights=6, inputs="float[n, 6] x, float[n, 6] z")
    source = _check(model, tmp_path, (4, 6), (4, 6))
    assert source.count("class ") == classes
    if classes == 2:
        assert "Layer(negative_slope=0.3),\n" in source
        assert "F.leaky_relu(self.up(hidden), negative_slope=self.negative_slope)" in source


def test_a_layer_that_others_use_too_stays_outside(tmp_path):
    """Its weights would be in two places."""
    model = _model(_stack(last="h2") + "y = MatMul(h2, encoder.layers.1.up.weight)", outputs="float[n, 9] y")
    source = _check(model, tmp_path)
    assert "self.encoder.layers[1].up = torch.nn.Parameter" in source or "layers[1].up(" in source


@pytest.mark.parametrize("path", ["up_{}", "{}.up"])
def test_repeats_without_paths_are_numbered(path, tmp_path):
    """A list of blocks, found by what its statements do; ``load`` keeps the names of the file."""
    body = ""
    for i, x in enumerate(("x", "h0", "h1")):
        body += f"a{i} = MatMul({x}, w{i}) b{i} = Tanh(a{i}) c{i} = MatMul(b{i}, v{i}) h{i} = Add({x}, c{i}) "
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> m (float[n, 6] x) => (float[n, 6] h2) {{{body}}}'
    )
    rng, names = np.random.default_rng(0), {}
    for i, (old, end) in itertools.product(range(3), (("w", ""), ("v", "b"))):
        names[f"{old}{i}"] = path.format(i) + end + (".weight" if "." in path else "")
        array = rng.standard_normal((6, 6)).astype(np.float32)
        model.graph.initializer.append(tensor(array, name=names[f"{old}{i}"]))
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    source = _check(model, tmp_path)
    if "." in path:
        assert 'setattr(self, "0", torch.nn.Module())' in source
        assert 'getattr(self, "0").up(x)' in source
        assert next(iter(burnt.onnx.load(model).state_dict())) == "0.up.weight"
    else:
        assert "self.blocks = torch.nn.ModuleList(Block() for _ in range(3))\n" in source
        assert "for block in self.blocks:\n            hidden = block(hidden)\n" in source


class Net:
    """A model of linear layers, built node after node; each method returns the name of a result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, tuple[int, ...]] = {}

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def linear(self, x: str, path: str, in_features: int, out_features: int) -> str:
        self.weights[f"{path}.weight"] = (in_features, out_features)
        return self.op("MatMul", x, f"{path}.weight")

    def sizes(self, *sizes: int) -> str:
        return self.op("Constant", value_ints=sizes)

    def first(self, x: str, path: str, width: int, hidden: int, out: int) -> str:
        """A layer with a shortcut: ``relu(shortcut(x) + down(relu(up(x))))``."""
        inner = self.op("Relu", self.linear(x, f"{path}.up", width, hidden))
        inner = self.linear(inner, f"{path}.down", hidden, out)
        return self.op("Relu", self.op("Add", self.linear(x, f"{path}.shortcut", width, out), inner))

    def layer(self, x: str, path: str, width: int, hidden: int) -> str:
        """``relu(x + down(relu(up(x))))``."""
        inner = self.op("Relu", self.linear(x, f"{path}.up", width, hidden))
        return self.op("Relu", self.op("Add", x, self.linear(inner, f"{path}.down", hidden, width)))

    def model(self, *outputs: str) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 6])]
        found = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
        weights = [
            tensor(rng.standard_normal(shape).astype(np.float32) / 3, name=name)
            for name, shape in self.weights.items()
        ]
        graph = helper.make_graph(self.nodes, "graph", given, found, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _stages(net: Net) -> list[str]:
    """Add stages of layers, the first of each with a shortcut, and return the result of each layer."""
    x, found = net.op("Sigmoid", "x"), []
    for i, (width, hidden, out) in enumerate(((6, 3, 8), (8, 4, 12), (12, 5, 10))):
        found.append(x := net.first(x, f"net.stages.{i}.layers.0", width, hidden, out))
        for j in range(1, 4):
            found.append(x := net.layer(x, f"net.stages.{i}.layers.{j}", out, hidden))
    return found


def test_stages_are_lists_of_two_classes(tmp_path):
    net = Net()
    model = net.model(net.op("Tanh", _stages(net)[-1]))
    source = _check(model, tmp_path)
    for line in (
        "def __init__(self, in_features: int, hidden: int, out_features: int) -> None:",
        "self.shortcut = nn.Linear(in_features, out_features, bias=False)",
        "return torch.relu(self.shortcut(hidden) + down)",
        "def __init__(self, features: int, hidden: int) -> None:",
        "self.net.stages = torch.nn.ModuleList(torch.nn.Module() for _ in range(3))",
        "[FirstLayer(8, 4, 12), *(Layer(12, 4) for _ in range(3))]",
        "for block in self.net.stages[2].layers:",
    ):
        assert f"{line}\n" in source
    assert sorted(burnt.onnx.load(model).state_dict()) == sorted(net.weights)


@pytest.mark.parametrize("where", ["after", "inside"])
def test_results_of_layers_that_are_read_elsewhere(where, tmp_path):
    net = Net()
    found = _stages(net)
    inside = next(node.output[0] for node in net.nodes if "net.stages.1.layers.1.up.weight" in node.input)
    other = found[5] if where == "after" else net.op("Cos", inside)
    source = _check(net.model(net.op("Tanh", found[-1]), other), tmp_path)
    assert ("for block in self.net.stages[1].layers[:2]:" in source) == (where == "after")
    assert ("= self.net.stages[1].layers[1](" in source) == (where == "inside")


def test_layers_with_and_without_a_residual_share_a_loop(tmp_path):
    """As inverted residuals do: where the widths differ there is no sum."""
    net, x = Net(), "x"
    for i, (width, out) in enumerate(itertools.pairwise((6, 6, 8, 8, 8, 4, 4))):
        inner = net.op("Relu", net.linear(x, f"net.blocks.{i}.up", width, 3 * width))
        inner = net.op("Relu", net.linear(inner, f"net.blocks.{i}.mid", 3 * width, 3 * width))
        inner = net.linear(inner, f"net.blocks.{i}.down", 3 * width, out)
        x = net.op("Add", x, inner) if width == out else inner
    source = _check(net.model(net.op("Tanh", x)), tmp_path)
    for call in ("Block(6, 18)", "Block2(6, 18, 8)", "Block(8, 24)", "Block2(8, 24, 4)", "Block(4, 12)"):
        assert f"{call}, " in source or f"{call}]" in source
    assert source.count("for block in self.net.blocks:") == 1


def test_sizes_in_forward_are_attributes(tmp_path):
    """Heads and lengths of reshapes; a width that is one of a layer's, too, is the same argument."""
    net, x = Net(), "x"
    for i, (width, heads) in enumerate([(6, 2), (6, 2), (12, 3), (12, 3)]):
        path = f"net.blocks.{i}"
        q = net.op("Reshape", net.linear(x, f"{path}.q", width, width), net.sizes(-1, heads, width // heads))
        q = net.op("Transpose", net.op("Softmax", q, axis=-1), perm=[1, 0, 2])
        q = net.op("Reshape", q, net.sizes(-1, width))
        x = net.op("Add", x, net.linear(net.op("Tanh", q), f"{path}.o", width, width))
        if i == 1:
            x = net.linear(x, "net.between", width, 12)
    source = _check(net.model(x), tmp_path)
    assert "def __init__(self, features: int, size: int, size_2: int) -> None:" in source
    assert "self.features = features\n" in source
    assert ".unflatten(-1, (self.size, self.size_2)).softmax(dim=-1)" in source
    assert ".reshape(-1, self.features)" in source
    assert source.count("Block(12, size=3, size_2=4),\n") == 2


def test_lists_in_blocks(tmp_path):
    """Experts of a layer are a class of their own, called one by one."""
    net, x = Net(), "x"
    for i in range(3):
        parts = [net.layer(x, f"net.layers.{i}.experts.{j}", 6, 5) for j in range(4)]
        total = parts[0]
        for part in parts[1:]:
            total = net.op("Add", total, part)
        x = net.op("Tanh", net.linear(total, f"net.layers.{i}.out", 6, 6))
    source = _check(net.model(x), tmp_path)
    assert "self.experts = torch.nn.ModuleList(Expert() for _ in range(4))\n" in source
    assert "self.net.layers = torch.nn.ModuleList(Layer() for _ in range(3))\n" in source


def _structure(*numbers: Number) -> Structure:
    return Structure("key", numbers)


def test_arguments_of_constructors():
    """Equal numbers share an argument, those of tuples too; those that never differ have none."""
    blocks = [
        _structure(
            Number("conv", "in_channels", 0, n),
            Number("conv", "out_channels", 0, 2 * n),
            Number("conv", "kernel_size", 0, (k, k)),
            Number("conv", "padding", 0, (k // 2, 1)),
            Number("conv", "groups", 0, n),
            Number("other", "in_channels", 0, 2 * n),
            Number("other", "out_channels", 0, n),
            Number("other", "groups", 0, k),
            Number("other", "kernel_size", 0, (1, 1)),
        )
        for n, k in ((4, 3), (8, 5))
    ]
    found = constructor(blocks, {"conv", "other"})
    assert found is not None
    assert [(p.name, p.hint, p.values) for p in found.parameters] == [
        ("channels", "int", [4, 8]),
        ("hidden", "int", [8, 16]),
        ("kernel_size", "int", [3, 5]),
        ("padding", "tuple[int, int]", [(1, 1), (2, 1)]),
        ("groups", "int", [3, 5]),
    ]
    names = {"in_channels": "channels", "out_channels": "hidden", "groups": "channels"}
    assert found.of_member("conv") == {**names, "kernel_size": "kernel_size", "padding": "padding"}
    for count, is_found in ((9, True), (10, False)):  # of nine numbers, the first is 0 in both
        many = [
            _structure(*(Number(f"layer{i}", "in_features", 0, i * n) for i in range(count))) for n in (1, 2)
        ]
        assert (constructor(many, set()) is not None) == is_found


def test_structures():
    """Names of variables do not count and numbers do not; wiring, negative axes and operands do."""
    layers: dict[str, torch.nn.Module | torch.Tensor] = {"a": burnt.nn.Linear(2, 3)}
    wide: dict[str, torch.nn.Module | torch.Tensor] = {"a": burnt.nn.Linear(4, 5)}
    without: dict[str, torch.nn.Module | torch.Tensor] = {"a": burnt.nn.Linear(4, 5, bias=False)}

    def key(members: dict, x: str, shape: tuple[int, ...], axis: int, *operands: str) -> object:
        statements = [
            Statement(("y",), Call("self.a", (Name(x),))),
            Statement(("z",), Call("torch.reshape", (Name("y"), (Size(Name(x), 0), *shape)))),
            Statement(("w",), Call("torch.softmax", (Name("z"), axis))),
            Statement(("v",), Call("torch.sub", tuple(map(Name, operands)))),
        ]
        return structure_of([Name(x)], statements, members).key

    assert key(layers, "x", (3, 4), -1, "w", "y") == key(wide, "h", (6, 8), -1, "w", "y")
    different = [
        key(without, "x", (3, 4), -1, "w", "y"),
        key(layers, "x", (3, 4), -2, "w", "y"),
        key(layers, "x", (3, -1), -1, "w", "y"),
        key(layers, "x", (3, 4), -1, "y", "w"),
        key(layers, "x", (3, 4), -1, "w", "x"),
    ]
    assert len({key(layers, "x", (3, 4), -1, "w", "y"), *different}) == 6


def test_numbers_of_forward_become_attributes():
    """They count the same where keyword arguments stand in another order."""
    x = Name("x")
    one = Statement(("y",), Call("ops.layer_norm", (x,), {"eps": 0.5, "beta": 0.25}))
    other = Statement(("y",), Call("ops.layer_norm", (x,), {"beta": 0.125, "eps": 0.75}))
    found = [structure_of([x], [statement], {}) for statement in (one, other)]
    assert found[0].key == found[1].key
    assert [(n.parameter, n.value) for n in found[1].numbers] == [("beta", 0.125), ("eps", 0.75)]
    program = with_attributes(Program(["x"], [Name("y")], [one]), {1: "eps"})
    expected = Call("ops.layer_norm", (x,), {"eps": Name("self.eps"), "beta": 0.25})
    assert program.statements == [Statement(("y",), expected)]
