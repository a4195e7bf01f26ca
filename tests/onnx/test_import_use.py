"""An imported module trains, swaps, quantizes and exports like one written by hand."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch.nn import functional as F

import burnt
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import InputTypeError, InputValueError, RecordError, ShapeError, UnsupportedError
from burnt.inspect import signature_of
from burnt.onnx.functions.ml import one_hot_of
from burnt.onnx.importer.package import write_package
from burnt.onnx.importer.program import Statement
from burnt.train import ClassificationOutput, Learner, SupervisedTraining, predict
from tests.onnx.importer_files import inputs_of, names, read
from tests.onnx.test_import_files import check, import_package


def _ids(name: str, batch: int = 2) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in inputs_of(read(name), batch).values()]


def _calls(module: torch.nn.Module) -> list[str]:
    """Return the functions that the program of a module calls."""
    return [s.call.function for s in module.program.statements if isinstance(s, Statement)]


def test_layers_are_those_of_burnt():
    """Patterns become layers and single calls, named after the weights in the file."""
    module = burnt.onnx.load(read("gpt_neox.legacy"))
    calls = _calls(module)
    assert calls.count("F.scaled_dot_product_attention") == 3
    assert calls.count("ops.rotate") == 6
    assert calls.count("F.gelu") == 3
    assert not {"torch.softmax", "torch.erf", "torch.tanh"} & set(calls)
    names = [
        name.replace(".", "_") for name, layer in module.named_modules() if isinstance(layer, burnt.nn.Linear)
    ]
    assert sum(name.endswith("_attention_query_key_value") for name in names) == 3
    assert sum(name.endswith("_mlp_dense_h_to_4h") for name in names) == 3
    assert not any("norm" in name for name in names)
    assert sum(isinstance(layer, burnt.nn.LayerNorm) for layer in module.modules()) == 7


def test_layers_of_the_same_weights_are_one():
    """ALBERT calls the same layer three times."""
    module = burnt.onnx.load(read("albert.legacy"))
    assert sum(isinstance(layer, burnt.nn.LayerNorm) for layer in module.modules()) == 3
    assert sum(isinstance(layer, burnt.nn.Linear) for layer in module.modules()) == 7


class _FineTuned(burnt.Module, init=False):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids, torch.ones_like(ids))

    def training_step(self, batch: object) -> ClassificationOutput:
        logits = self(batch.ids)
        return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def test_it_trains_with_the_learner(tmp_path: Path):
    model = _FineTuned(burnt.onnx.load(read("bert.legacy")))
    ids = torch.randint(3, 40, (32, 5))
    data = TensorDataset(ids=ids, y=(ids[:, 0] > 20).long())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss() -> float:
        with torch.no_grad():
            return F.cross_entropy(model.eval()(ids), (ids[:, 0] > 20).long()).item()

    first = loss()
    training = SupervisedTraining(tmp_path / "run", train=Loader(data, batch_size=16), duration="8 epochs")
    training.run(Learner(model, optim.AdamW(), 1e-2))
    assert loss() < 0.8 * first
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert any("query" in name for name in changed)
    assert any("word_embeddings" in name for name in changed)


def test_it_swaps():
    module = burnt.onnx.load(read("vit.legacy"))
    inputs = _ids("vit.legacy")
    with torch.no_grad():
        expected = module(*inputs)
        report = burnt.swap(module, mode="infer")
        torch.testing.assert_close(module(*inputs), expected, rtol=1e-4, atol=1e-5)
    assert str(report)


def test_it_quantizes():
    module = burnt.onnx.load(read("roberta.dynamo"))
    inputs = _ids("roberta.dynamo")
    with torch.no_grad():
        expected = module(*inputs)
        quantized = copy.deepcopy(module)
        burnt.quantize(quantized, "int8")
        found = quantized(*inputs)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


_MODELS = [name for name in names() if name.endswith((".dynamo", ".legacy"))]


FIXED = {
    **dict.fromkeys(
        ("gru.dynamo", "gru.legacy", "lstm.dynamo", "lstm.legacy"), "code that fixes its size to 5"
    )
}
"""Files with an open length that the export fixes, with the reason."""


@pytest.mark.sample(keep=("mlp.sklearn",))
@pytest.mark.parametrize("name", ["mlp.sklearn", *_MODELS])
def test_it_is_exported_again(name, tmp_path):
    """The batch and the length stay open, and the file is imported again."""
    module = burnt.onnx.load(read(name)).eval()
    if name == "mlp.sklearn":  # labels and probabilities
        module = _Probabilities(module)
    inputs = _ids(name)
    for i, input_name in enumerate(module.input_names if name != "mlp.sklearn" else ()):
        if "mask" in input_name:  # where one hides all, burnt returns zeros and the file NaN
            inputs[i] = torch.ones_like(inputs[i])
    exported = burnt.onnx.export(module, tuple(inputs), tmp_path / "again.onnx")
    session = onnxruntime.InferenceSession(str(exported.path))
    again = burnt.onnx.load(exported.path)
    if name != "mlp.sklearn":
        assert [value.name for value in session.get_inputs()] == module.input_names
        assert [value.name for value in session.get_outputs()] == module.output_names
        assert list(exported.fixed) == (["sequence"] if name in FIXED else [])
        assert FIXED.get(name, "") in exported.fixed.get("sequence", "")
        sizes = enumerate(inputs[0].shape[:2])
        kept = [module.signature.axes[0].get(axis, size) for axis, size in sizes]
        kept = ["batch", inputs[0].shape[1]] if name in FIXED else kept
        assert session.get_inputs()[0].shape[:2] == kept
    for batch in (1, 2, 4):
        inputs = _ids(name, batch)
        if name in FIXED:
            inputs = [x.repeat(1, 2, 1)[:, :5] for x in inputs]
        feeds = zip((value.name for value in session.get_inputs()), inputs, strict=True)
        found = session.run(None, {key: x.numpy() for key, x in feeds})
        with torch.no_grad():
            for again_or_first in (module, again):
                results = again_or_first(*inputs)
                results = results if isinstance(results, tuple) else (results,)
                for result, expected in zip(results, found, strict=True):
                    check(result, expected)


class _Probabilities(burnt.Module, init=False):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[1]


def test_a_written_package_is_edited_and_trained(tmp_path: Path):
    module = burnt.onnx.load(read("resnet.dynamo"))
    write_package(module, tmp_path / "package", name="Net", title="Imported from resnet.onnx.")
    net = import_package(tmp_path / "package").load()
    assert {name: p.shape for name, p in net.named_parameters()} == {
        name: p.shape for name, p in module.named_parameters()
    }
    images = _ids("resnet.dynamo")
    net.train()(*images).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.parametrize(("row", "function"), [("row", "torch.Tensor.expand"), ("z", "ops.expand")])
def test_sizes_of_an_expand_stay_open(row, function):
    """Where the size of the axis is known to be 1, and where it is not."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], end=1),
        helper.make_node("Concat", ["size", "three"], ["shape"], axis=0),
        helper.make_node("Expand", [row, "shape"], ["wide"]),
        helper.make_node("Add", ["x", "wide"], ["y"]),
    ]
    x, z, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size, 3])
        for name, size in (("x", "n"), ("z", "m"), ("y", "n"))
    )
    weights = [
        numpy_helper.from_array(np.array([3]), "three"),
        numpy_helper.from_array(np.ones((1, 3), np.float32), "row"),
    ]
    graph = helper.make_graph(nodes, "graph", [x, z], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    module = burnt.onnx.load(model)
    assert function in _calls(module)
    dims = ({0: torch.export.Dim("batch")}, None)
    one = torch.ones(1, 3)
    program = torch.export.export(module, (torch.ones(3, 3), one), dynamic_shapes=(dims,), strict=False)
    assert torch.equal(program.module()(torch.ones(5, 3), one), torch.full((5, 3), 2.0))


def test_dictionaries_are_not_exported(tmp_path):
    module = burnt.onnx.load(read("logistic_zipmap.sklearn"))
    with pytest.raises(UnsupportedError, match="zipmap=False"):
        burnt.onnx.export(module, _ids("logistic_zipmap.sklearn")[0], tmp_path / "again.onnx")


def test_inputs_that_do_not_fit():
    module = burnt.onnx.load(read("bert.legacy"))
    ids = _ids("bert.legacy")
    with pytest.raises(InputTypeError, match=f"{len(ids)}: {', '.join(module.input_names)}"):
        module(*ids, ids[0])
    with pytest.raises(ShapeError, match="axes that the file calls 'sequence' have different sizes"):
        module(*(x[:, :2] if i else x for i, x in enumerate(ids)))
    with pytest.raises((RuntimeError, TypeError)) as caught:
        module(*(x.bool()[..., None, None] if i else x for i, x in enumerate(ids)))
    (note,) = caught.value.__notes__
    assert module.input_names[0] + ": int64 [" in note
    assert f"given: int64 {list(ids[0].shape)}, bool {[*ids[1].shape, 1, 1]}" in note


def test_inputs_by_name():
    """In any order, by the file's names or those of the arguments in written Python."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        m (float[n] first, float[n] second_dot, float[n] Third) => (float[n] y) {
            a = Sub(first, second_dot) b = Sub(a, Third) y = Sub(b, scale)
        }"""
    )
    model.graph.input[1].name = model.graph.node[0].input[1] = "second.1"
    model.graph.input.append(helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, []))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(8), "scale"))
    module = burnt.onnx.load(model)
    x, y, z = (torch.tensor([value]) for value in (1.0, 20.0, 300.0))
    expected = torch.tensor([1.0 - 20 - 300 - 8])
    assert str(inspect.signature(module)) == "(first, second_1, Third)"
    for second in ("second.1", "second_1"):
        for third in ("Third", "third"):
            assert torch.equal(module(**{third: z, "first": x, second: y}), expected)
            assert torch.equal(module(x, **{third: z, second: y}), expected)
    wrong: list[tuple[list[torch.Tensor], list[str], str, str]] = [
        ([x], ["second_1"], "the model lacks 1 input: Third", "1 positional, second_1"),
        ([], [], "the model lacks 3 inputs: first, second.1, Third", "none"),
        ([x, y, z], ["first"], "the input 'first' is given twice", "3 positional, first"),
        ([x], ["second.1", "second_1"], "the input 'second.1' is given twice", "second.1, second_1"),
        ([x, y], ["thrid"], "no input 'thrid'", "did you mean 'third'?"),
        ([x, y, z], ["scale"], "no input 'scale'", "3: first, second.1, Third"),
        ([x, y, z, x], [], "the model takes fewer inputs", "4 positional"),
    ]
    for args, named, problem, more in wrong:
        with pytest.raises(InputTypeError) as caught:
            module(*args, **dict.fromkeys(named, z))
        assert problem in str(caught.value)
        assert more in str(caught.value)


def test_batches_of_inputs_by_name(tmp_path: Path):
    """Calibration and predictions take them, and an export names the inputs right in any order."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        m (float[n, 4] first, float[n, 3] second) => (float[n, 3] y) {
            a = MatMul(first, w) y = Sub(a, second)
        }"""
    )
    rng = np.random.default_rng(0)
    model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((4, 3)).astype("f"), "w"))
    first, second = torch.randn(4, 4), torch.randn(4, 3)
    batch = {"second": second, "first": first}
    outputs = []
    for calibrate in ([{**batch, "labels": second}], [(first, second)]):
        module = burnt.onnx.load(model)
        burnt.quantize(module, "int8-static", calibrate=calibrate)
        outputs.append(module(first, second))
    assert torch.equal(*outputs)

    module = burnt.onnx.load(model)
    expected = module(first, second)
    assert not torch.equal(outputs[0], expected)
    rows = [{name: value[i] for name, value in batch.items()} for i in range(4)]
    torch.testing.assert_close(predict(module, rows, progress=False), expected)
    signature = signature_of(module, **batch)
    assert [info.name for info in signature.inputs] == list(batch)
    assert torch.equal(signature.call(module, [second, first])[0], expected)
    exported = burnt.onnx.export(module, batch, tmp_path / "again.onnx")
    assert [info.name for info in exported.signature.inputs] == list(batch)
    again = burnt.onnx.load(tmp_path / "again.onnx")
    assert again.input_names == list(batch)
    torch.testing.assert_close(again(**batch), expected)


def test_a_category_that_is_not_known():
    with pytest.raises(InputValueError, match="one of 'b', 'a'") as caught:
        one_hot_of(np.array([["a"], ["c"]], dtype=object), ["b", "a"], allow_unknown=False)
    assert "found     'c'" in str(caught.value)


def _normalized(training: int) -> onnx.ModelProto:
    """Two norms whose weights differ, each with a sigmoid after it."""
    rng, nodes, weights = np.random.default_rng(0), [], []
    for i in range(2):
        parts = ("weight", "bias", "running_mean", "running_var")
        names = [f"layers.{i}.norm.{part}" for part in parts]
        weights += [numpy_helper.from_array(rng.uniform(0.5, 1, 3).astype("f"), name) for name in names]
        outputs = [f"n{i}", f"m{i}", f"v{i}"] if training else [f"n{i}"]
        nodes += [
            helper.make_node("BatchNormalization", [f"x{i}", *names], outputs, training_mode=training),
            helper.make_node("Sigmoid", [f"n{i}"], [f"x{i + 1}"]),
        ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3, 4])] for name in ("x0", "x2")
    )
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_norms_of_a_training_file_are_trained():
    module, x = burnt.onnx.load(_normalized(1)), torch.randn(5, 3, 4, requires_grad=True)
    assert {name.split("_")[-1] for name, _ in module.named_buffers()} == {"mean", "var"}
    norm = torch.nn.BatchNorm1d(3)
    y = x
    for i in range(2):
        weights = [numpy_helper.to_array(w) for w in _normalized(1).graph.initializer[4 * i : 4 * i + 2]]
        y = F.batch_norm(y, None, None, *map(torch.tensor, weights), training=True, eps=norm.eps).sigmoid()
    torch.testing.assert_close(module(x), y)
    (expected,) = torch.autograd.grad(y.square().sum(), x)
    (found,) = torch.autograd.grad(module(x).square().sum(), x)
    torch.testing.assert_close(found, expected)
    module(x).square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_block_that_is_added_has_the_constants(tmp_path: Path):
    nodes = ""
    for i in range(3):
        nodes += f"c{i} = Constant<value_floats=[1.0, 0.5, 2.0]>() h{i} = MatMul(x{i}, layers_{i}_up) "
        nodes += f"m{i} = Mul(h{i}, c{i}) r{i} = Relu(m{i}) x{i + 1} = Add(x{i}, r{i}) "
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> m (float[n,3] x0) => (float[n,3] x3) {{ {nodes} }}'
    )
    weights = [numpy_helper.from_array(np.full((3, 3), i, np.float32), f"layers_{i}_up") for i in range(3)]
    model.graph.initializer.extend(weights)
    path = write_package(burnt.onnx.load(model), tmp_path / "package", name="Net", title="Imported.")
    text = path.read_text()
    assert "Buffer(torch.tensor([1.0, 0.5, 2.0]))" in text
    path.write_text(text.replace("in range(3)", "in range(4)"))
    package = import_package(tmp_path / "package")
    with pytest.raises(RecordError, match="nothing in the file"):
        package.load()
    net = package.Net()
    burnt.load_weights(net, tmp_path / "package" / "weights.safetensors", skip="blocks.3*")
    first, fourth = (dict(net.blocks[i].named_buffers()) for i in (0, 3))
    assert first
    assert all(torch.equal(fourth[name], buffer) for name, buffer in first.items())
    with torch.no_grad():
        assert net.eval()(torch.randn(4, 3)).isfinite().all()
