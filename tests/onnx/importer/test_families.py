"""Blocks that the names of weights show, and one class for blocks that differ in numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
import torch
from onnx import helper

import burnt.onnx
from burnt.onnx.importer.module import Block, ImportedModule
from burnt.onnx.importer.program import Call, Name, Program, Repeat, Size, Statement
from burnt.onnx.importer.python import module_source
from burnt.onnx.importer.templates import Number, Structure, constructor, structure_of, with_attributes
from tests.onnx.importer.test_blocks import _check
from tests.onnx.importer_files import read, tensor


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


STAGES = ((6, 3, 8), (8, 4, 12), (12, 5, 10))


def _stages(net: Net, stages: tuple[tuple[int, int, int], ...] = STAGES, depth: int = 3) -> list[str]:
    """Add stages of layers, and return the result of each layer."""
    x, found = net.op("Sigmoid", "x"), []
    for i, (width, hidden, out) in enumerate(stages):
        found.append(x := net.first(x, f"net.stages.{i}.layers.0", width, hidden, out))
        for j in range(1, depth):
            found.append(x := net.layer(x, f"net.stages.{i}.layers.{j}", out, hidden))
    return found


def _classes(module: ImportedModule) -> str:
    """Return the text of the classes, without the docstrings and ``super().__init__()``."""
    source = module_source(module, "Net", "A net.")
    lines = source[source.index("class ") : source.index("def load")].splitlines()
    return "\n".join(line for line in lines if line and '"""' not in line and "super()" not in line) + "\n"


def _blocks(module: ImportedModule) -> list[Block]:
    return [child for child in module.modules() if isinstance(child, Block) and child is not module]


def test_stages_are_lists_of_two_classes(tmp_path):
    """The first layer of each has a shortcut; lists keep the numbers of the file."""
    net = Net()
    last = _stages(net, depth=4)[-1]
    module = _check(net.model(net.op("Tanh", last)), tmp_path)
    assert (
        _classes(module)
        == """\
class FirstLayer(burnt.Module):
    def __init__(self, in_features: int, hidden: int, out_features: int) -> None:
        self.up = nn.Linear(in_features, hidden, bias=False)
        self.down = nn.Linear(hidden, out_features, bias=False)
        self.shortcut = nn.Linear(in_features, out_features, bias=False)
    def forward(self, hidden: Tensor) -> Tensor:
        up = torch.relu(self.up(hidden))
        down = self.down(up)
        return torch.relu(self.shortcut(hidden) + down)
class Layer(burnt.Module):
    def __init__(self, features: int, hidden: int) -> None:
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
    def forward(self, hidden: Tensor) -> Tensor:
        up = torch.relu(self.up(hidden))
        return torch.relu(hidden + self.down(up))
class Net(burnt.Module):
    def __init__(self) -> None:
        self.stages_0_layers = torch.nn.ModuleList([FirstLayer(6, 3, 8), *(Layer(8, 3) for _ in range(3))])
        self.stages_1_layers = torch.nn.ModuleList([FirstLayer(8, 4, 12), *(Layer(12, 4) for _ in range(3))])
        self.stages_2_layers = torch.nn.ModuleList([FirstLayer(12, 5, 10), *(Layer(10, 5) for _ in range(3))])
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(x)
        for block in self.stages_0_layers:
            hidden = block(hidden)
        for block in self.stages_1_layers:
            hidden = block(hidden)
        for block in self.stages_2_layers:
            hidden = block(hidden)
        return torch.tanh(hidden)
"""
    )
    names = [re.sub(r"\.(\d+)\.layers", r"_\1_layers", name.removeprefix("net.")) for name in net.weights]
    assert sorted(module.state_dict()) == sorted(names)


def test_stages_whose_names_end_with_a_number(tmp_path):
    """As torchvision calls them: layer1, layer2 ... of two layers each, the first one without a shortcut."""
    net, x = Net(), "x"
    for i in range(2):
        x = net.layer(x, f"layer1.{i}", 6, 5)
    for i, (width, hidden, out) in enumerate(STAGES, 2):
        x = net.first(x, f"layer{i}.0", width, hidden, out)
        x = net.layer(x, f"layer{i}.1", out, hidden)
    source = _classes(_check(net.model(net.op("Tanh", x)), tmp_path))
    assert "self.layer2 = torch.nn.ModuleList([FirstLayer(6, 3, 8), Layer(8, 3)])\n" in source
    assert "self.layer4 = torch.nn.ModuleList([FirstLayer(12, 5, 10), Layer(10, 5)])\n" in source


def test_results_of_layers_that_are_read_elsewhere(tmp_path):
    """There are calls in the place of the loop whose layers others read."""
    net = Net()
    found = _stages(net)
    module = _check(net.model(found[1], net.op("Tanh", found[-1])), tmp_path)
    calls = [s.call.function for s in module.program.statements if isinstance(s, Statement)]
    assert [call for call in calls if "layers" in call] == [f"self.stages_0_layers[{i}]" for i in range(3)]
    assert sum(isinstance(s, Repeat) for s in module.program.statements) == 2


@pytest.mark.parametrize("where", ["inside", "weight"])
def test_a_layer_that_others_read_into_stays_outside(where, tmp_path):
    """A result inside of a layer, or its weight, is read elsewhere: the layer is not a block."""
    net = Net()
    last = _stages(net)[-1]
    inside = next(node.output[0] for node in net.nodes if "net.stages.1.layers.0.up.weight" in node.input)
    if where == "weight":
        inside = net.op("MatMul", net.op("Sin", _stages_input(net, 1)), "net.stages.1.layers.0.up.weight")
    module = _check(net.model(net.op("Tanh", last), net.op("Cos", inside)), tmp_path)
    assert "stages_1_layers_0_up" in dict(module.named_children())
    assert {"stages_0_layers", "stages_2_layers"} <= dict(module.named_children()).keys()


def _stages_input(net: Net, stage: int) -> str:
    """Return what the first layer of a stage reads."""
    weight = f"net.stages.{stage}.layers.0.up.weight"
    return next(str(node.input[0]) for node in net.nodes if weight in node.input)


def test_layers_with_and_without_a_residual_share_a_loop(tmp_path):
    """As inverted residuals do: where the widths differ there is no sum."""
    net, x = Net(), "x"
    widths = (6, 6, 8, 8, 8, 4, 4)
    for i, (width, out) in enumerate(itertools.pairwise(widths)):
        inner = net.op("Relu", net.linear(x, f"net.blocks.{i}.up", width, 3 * width))
        inner = net.op("Relu", net.linear(inner, f"net.blocks.{i}.mid", 3 * width, 3 * width))
        inner = net.linear(inner, f"net.blocks.{i}.down", 3 * width, out)
        x = net.op("Add", x, inner) if width == out else inner
    module = _check(net.model(net.op("Tanh", x)), tmp_path)
    source = _classes(module)
    for call in ("Block(6, 18)", "Block2(6, 18, 8)", "Block(8, 24)", "Block2(8, 24, 4)", "Block(4, 12)"):
        assert f"{call}, " in source or f"{call}]" in source
    assert source.count("for block in self.blocks:") == 1


def test_blocks_between_loops_are_one_class(tmp_path):
    """What their first layer reads is computed in them, as all of them compute it."""
    net, x, width = Net(), "x", 6
    for i in range(4):
        if i:
            y = net.op("Transpose", net.op("Sin", x), perm=[1, 0])
            y = net.op("Transpose", net.op("Cos", y), perm=[1, 0])
            y = net.linear(y, f"net.stages.{i}.reduce.norm", width, 5)
            x, width = net.linear(net.op("Relu", y), f"net.stages.{i}.reduce.conv", 5, width + i), width + i
        for j in range(2):
            x = net.layer(x, f"net.stages.{i}.layers.{j}", width, 3)
    module = _check(net.model(x), tmp_path)
    source = _classes(module)
    assert (
        "class Reduce(burnt.Module):\n    def __init__(self, in_features: int, out_features: int)" in source
    )
    assert "        self.norm = nn.Linear(in_features, 5, bias=False)\n" in source
    assert "self.stages_2_reduce = Reduce(7, 9)\n" in source
    assert "torch.sin" not in source[source.index("class Net") :]


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
    module = _check(net.model(x), tmp_path)
    source = _classes(module)
    assert "def __init__(self, features: int, size: int, size_2: int) -> None:" in source
    assert "self.features = features\n" in source
    assert ".unflatten(-1, (self.size, self.size_2)).softmax(dim=-1)" in source
    assert ".reshape(-1, self.features)" in source
    assert "ModuleList(Block(12, size=3, size_2=4) for _ in range(2))" in source


def test_a_real_file_keeps_the_names_of_its_weights():
    module = burnt.onnx.load(read("regnet.dynamo"))
    assert "encoder_stages_1_layers.2.layer_1_convolution.weight" in module.state_dict()
    source = module_source(module, "Net", "A net.")
    assert "[FirstLayer(16, groups=4), Layer(16, 4, groups=4), Layer(16, 4, groups=4)]" in source


def _structure(*numbers: Number) -> Structure:
    return Structure("key", numbers, ("conv", "other"))


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
    found = constructor(blocks, ("conv", "other"))
    assert found is not None
    assert [(p.name, p.hint, p.values) for p in found.parameters] == [
        ("channels", "int", [4, 8]),
        ("hidden", "int", [8, 16]),
        ("kernel_size", "int", [3, 5]),
        ("padding", "tuple[int, int]", [(1, 1), (2, 1)]),
        ("groups", "int", [3, 5]),
    ]
    assert found.of_layer("conv") == {
        "in_channels": "channels",
        "out_channels": "hidden",
        "kernel_size": "kernel_size",
        "padding": "padding",
        "groups": "channels",
    }


def test_a_class_does_not_take_too_many_arguments():
    blocks = [_structure(*(Number(f"layer{i}", "in_features", 0, i * n) for i in range(9))) for n in (1, 2)]
    assert constructor(blocks, ()) is not None
    blocks = [_structure(*(Number(f"layer{i}", "in_features", 0, i * n) for i in range(10))) for n in (1, 2)]
    assert constructor(blocks, ()) is None


def test_structures():
    """Names do not count and numbers do not; wiring, axes and the order of operands do."""
    layers: dict[str, torch.nn.Module | torch.Tensor] = {
        "a": burnt.nn.Linear(2, 3),
        "b": burnt.nn.Linear(4, 5),
        "c": burnt.nn.Linear(4, 5, bias=False),
    }

    def key(layer: str, x: str, shape: tuple[int, ...], axis: int, *operands: str) -> object:
        statements = [
            Statement(("y",), Call(f"self.{layer}", (Name(x),))),
            Statement(("z",), Call("torch.reshape", (Name("y"), (Size(Name(x), 0), *shape)))),
            Statement(("w",), Call("torch.softmax", (Name("z"), axis))),
            Statement(("v",), Call("torch.sub", tuple(map(Name, operands)))),
        ]
        return structure_of([Name(x)], statements, [Name("v")], layers).key

    assert key("a", "x", (3, 4), -1, "w", "y") == key("b", "h", (6, 8), -1, "w", "y")
    different = [
        key("c", "x", (3, 4), -1, "w", "y"),
        key("a", "x", (3, 4), -2, "w", "y"),
        key("a", "x", (3, -1), -1, "w", "y"),
        key("a", "x", (3, 4), -1, "y", "w"),
        key("a", "x", (3, 4), -1, "w", "x"),
    ]
    assert len({key("a", "x", (3, 4), -1, "w", "y"), *different}) == 6


def test_numbers_of_forward_become_attributes():
    """They count the same where keyword arguments stand in another order."""
    x = Name("x")
    one = Statement(("y",), Call("ops.layer_norm", (x,), {"eps": 0.5, "beta": 0.25}))
    other = Statement(("y",), Call("ops.layer_norm", (x,), {"beta": 0.125, "eps": 0.75}))
    found = [structure_of([x], [statement], [Name("y")], {}) for statement in (one, other)]
    assert found[0].key == found[1].key
    assert [(n.parameter, n.value) for n in found[1].numbers] == [("beta", 0.125), ("eps", 0.75)]
    program = with_attributes(Program(["x"], [Name("y")], [one]), {1: "eps"})
    expected = Call("ops.layer_norm", (x,), {"eps": Name("self.eps"), "beta": 0.25})
    assert program.statements == [Statement(("y",), expected)]
