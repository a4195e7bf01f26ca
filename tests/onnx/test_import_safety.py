"""Damaged and hostile files: a clear error in bounded time and memory, and nothing is executed."""

from __future__ import annotations

import ast
import itertools
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import burnt
from burnt.errors import BurntError, RecordError, UnsupportedError
from burnt.onnx.importer.package import module_source
from burnt.onnx.importer.paths import unique_name
from burnt.onnx.importer.summary import summarize
from tests import forked

FLOAT = TensorProto.FLOAT
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


def _model(nodes: Any, weights: Any = (), inputs: Any = ("x",), outputs: Any = ("y",), **graph: Any) -> Any:
    made = helper.make_graph(
        nodes,
        graph.pop("name", "graph"),
        [helper.make_tensor_value_info(name, FLOAT, ["n", 4]) for name in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        list(weights),
        **graph,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _linear() -> Any:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"])], [numpy_helper.from_array(WEIGHT, "w")])


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x0a", b"PK\x03\x04" * 30, os.urandom(4096)])
def test_bytes_that_are_no_model(data):
    with pytest.raises(RecordError, match="this is not an ONNX model"):
        burnt.onnx.load(data)


def test_objects_that_are_no_model(tmp_path):
    with pytest.raises(RecordError, match=r"an onnx\.ModelProto"):
        burnt.onnx.load(3)
    with pytest.raises(OSError, match=r"none\.onnx"):
        burnt.onnx.load(tmp_path / "none.onnx")


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(_linear().SerializeToString()[:-10])
    with pytest.raises(RecordError, match="downloaded or copied as a whole") as caught:
        burnt.onnx.load(path)
    assert f"in {path.stat().st_size} bytes" in str(caught.value)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(RecordError, match="git lfs pull"):
        burnt.onnx.load(path)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\n<!DOCTYPE html><title>404</title>", "a web page"),
        (b"<html><title>404</title>", "a web page"),
        (b"PK\x03\x04" * 30, "a zip archive, as torch.save writes"),
    ],
)
def test_other_files_are_named(data, found):
    with pytest.raises(RecordError, match=f"found +{found}\n +hint "):
        burnt.onnx.load(data)


def test_a_truncated_file():
    data = _linear().SerializeToString()
    burnt.onnx.load(data)
    for end in range(0, len(data) - 1, 10):
        try:
            burnt.onnx.load(data[:end])
        except BurntError as error:
            assert len(str(error)) < 2000  # noqa: PT017  # a cut file may also be whole
        # What ends between two fields of protobuf is a whole message, if a smaller one.


def test_a_newer_ir_version():
    model = _linear()
    model.ir_version = onnx.IR_VERSION + 1
    with pytest.raises(
        RecordError, match="IR version is newer.*pip install --upgrade onnx".replace(".*", "(.|\n)*")
    ):
        burnt.onnx.load(model)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_newer_operator_set(domain):
    model = _linear()
    latest = onnx.defs.onnx_opset_version()
    del model.opset_import[:]
    model.opset_import.add(domain=domain, version=latest + 1)
    message = rf"operator set is newer(.|\n)*at most {latest}\n +found +{latest + 1}(.|\n)*--upgrade onnx"
    with pytest.raises(RecordError, match=message):
        burnt.onnx.load(model)
    model.opset_import[0].version = latest
    burnt.onnx.load(model)


def test_a_cycle():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(RecordError, match="damaged, or its nodes form a cycle"):
        burnt.onnx.load(_model([*nodes, helper.make_node("Relu", ["b"], ["y"])]))


def test_functions_that_call_each_other():
    def function(name: str, callee: str) -> Any:
        nodes = [helper.make_node(callee, ["x"], ["y"], domain="f")]
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
        return helper.make_function("f", name, ["x"], ["y"], nodes, opsets)

    model = _model([helper.make_node("A", ["x"], ["y"], domain="f")])
    model.opset_import.add(domain="f", version=1)
    model.functions.extend([function("A", "B"), function("B", "A")])
    with pytest.raises(RecordError, match="call each other in a circle"):
        burnt.onnx.load(model)


def test_functions_that_multiply():
    model = _model([helper.make_node("F0", ["x"], ["y"], domain="f")])
    model.opset_import.add(domain="f", version=1)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    for i in range(12):  # 10 ** 12 nodes
        name = "Relu" if i == 11 else f"F{i + 1}"
        nodes = [
            helper.make_node(name, [f"v{k}"], [f"v{k + 1}"], domain="" if i == 11 else "f") for k in range(10)
        ]
        model.functions.append(helper.make_function("f", f"F{i}", ["v0"], ["v10"], nodes, opsets))
    with pytest.raises(RecordError, match="too large to import"):
        burnt.onnx.load(model)


def test_missing_initializers_and_inputs():
    with pytest.raises(RecordError, match=r"nothing computes(.|\n)*nowhere"):
        burnt.onnx.load(_model([helper.make_node("Add", ["x", "nowhere"], ["y"])]))
    with pytest.raises(BurntError):
        burnt.onnx.load(_model([helper.make_node("Relu", ["x"], ["z"])], outputs=("nowhere",)))


def test_every_unsupported_node_is_listed():
    nodes = [
        helper.make_node("Secret", ["x"], ["a"], name="first", domain="com.example"),
        helper.make_node("Secret", ["a"], ["b"], name="second", domain="com.example"),
        helper.make_node("Mystery", ["b"], ["y"]),
    ]
    model = _model(nodes)
    model.opset_import.add(domain="com.example", version=3)
    with pytest.raises(UnsupportedError) as caught:
        burnt.onnx.load(model)
    text = str(caught.value)
    assert "Secret (domain com.example, version 3): first, second" in text
    assert "Mystery (domain ai.onnx, version 20): the node of 'y'" in text
    assert "the model has 2 ops that burnt does not support" in text


def test_shapes_that_lie():
    weight = numpy_helper.from_array(WEIGHT, "w")
    for dims in ([4, 300], [2**40, 2**40], [-4, 3], [4]):
        del weight.dims[:]
        weight.dims.extend(dims)
        with pytest.raises(BurntError):
            burnt.onnx.load(_model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight]))


def test_a_declared_shape_that_lies_is_not_believed():
    model = _linear()
    model.graph.value_info.append(helper.make_tensor_value_info("w", FLOAT, [7, 7, 7]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [5, 5, 5]))
    try:
        found = burnt.onnx.load(model)(torch.ones(2, 4))
    except BurntError:
        return
    assert torch.equal(found, torch.ones(2, 4) @ torch.from_numpy(WEIGHT))


def test_a_constant_that_would_be_huge():
    """Constants are folded only when the result is small."""
    size = numpy_helper.from_array(np.array([2**20, 2**20]), "size")
    module = burnt.onnx.load(_model([helper.make_node("ConstantOfShape", ["size"], ["y"])], [size]))
    with pytest.raises((RuntimeError, BurntError)):
        module(torch.ones(1, 4))


def test_many_nodes():
    one = onnx.GraphProto(node=[onnx.NodeProto(op_type="Relu", input=["x"], output=["y"])])
    model = _model([])
    model.graph.MergeFromString(one.SerializeToString() * 1_000_000)
    assert len(model.graph.node) == 1_000_000
    start = time.perf_counter()
    with pytest.raises(RecordError, match="at most 200,000 nodes"):
        burnt.onnx.load(model)
    assert time.perf_counter() - start < 10


def test_a_long_sum_before_a_softmax():
    """The pattern of attention, with a thousand masks."""
    names = ["s", *(f"a{i}" for i in range(1200))]
    adds = [helper.make_node("Add", [before, "x"], [name]) for before, name in itertools.pairwise(names)]
    ends = [helper.make_node("Softmax", [names[-1]], ["p"]), helper.make_node("MatMul", ["p", "x"], ["y"])]
    model = _model([helper.make_node("MatMul", ["x", "x"], ["s"]), *adds, *ends])
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, [1, 1, 4, 4]))
    x = torch.eye(4).reshape(1, 1, 4, 4) * 0.01
    torch.testing.assert_close(burnt.onnx.load(model)(x), torch.softmax(x @ x + 1200 * x, -1) @ x)


def test_many_names_that_are_alike():
    """Each is found in constant time: the numbers before it are not tried again."""
    used: dict[str, int] = {}
    start = time.perf_counter()
    names = [unique_name("mul", used) for _ in range(50_000)]
    assert time.perf_counter() - start < 10
    assert names[:3] == ["mul", "mul_2", "mul_3"]
    assert names[-1] == "mul_50000"
    assert [unique_name(hint, used) for hint in ("mul_3", "mul", "add")] == ["mul_3_2", "mul_50001", "add"]


@pytest.mark.full
def test_many_results_at_once():
    """Written Python tells them apart by numbers, and uses the names again afterwards."""
    nodes = [helper.make_node("Mul", ["x", "x"], [f"m{i}"]) for i in range(300)]
    nodes += [
        helper.make_node("Sum", [f"m{i}" for i in range(300)], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    module = burnt.onnx.load(_model(nodes))
    text = module_source(module, "Wide", "Wide.")
    names: dict[str, Any] = {}
    exec(compile(text, "wide", "exec"), names)
    x = torch.rand(2, 4)
    assert torch.equal(names["Wide"]()(x), module(x))
    assert re.search(r"\bx_299 = x_?\w* \* x", text)


def test_deep_nesting():
    model = _model([])
    graph = model.graph
    for _ in range(300):
        node = graph.node.add(op_type="If", input=["x"], output=["y"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    with pytest.raises(RecordError, match="nested 32 deep"):
        burnt.onnx.load(model)
    with pytest.raises((RecordError, onnx.onnx_cpp2py_export.checker.ValidationError, ValueError)):
        burnt.onnx.load(model.SerializeToString())


def test_a_long_chain_of_functions_does_not_recurse():
    nodes = [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(3000)]
    module = burnt.onnx.load(_model([*nodes, helper.make_node("Neg", ["v3000"], ["y"])]))
    assert torch.equal(module(-torch.ones(1, 4)), torch.zeros(1, 4))


def _external(folder: Path, location: str, **entries: str) -> Path:
    model = _linear()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_beside_the_model(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"1234" + WEIGHT.tobytes())
    path = _external(tmp_path, "weights.bin", offset="4", length="48")
    assert torch.equal(burnt.onnx.load(path)(torch.ones(1, 4)), torch.ones(1, 4) @ torch.from_numpy(WEIGHT))
    with pytest.raises(RecordError, match="has no folder"):
        burnt.onnx.load(path.read_bytes())


@pytest.mark.parametrize(
    "kind", ["parent", "absolute", "backslash", "link", "linked folder", "missing", "empty"]
)
def test_external_data_outside_the_folder(kind, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    location = {
        "parent": "../secret.bin",
        "absolute": str(tmp_path / "secret.bin"),
        "backslash": "..\\secret.bin",
        "link": "link.bin",
        "linked folder": "linked/secret.bin",
        "missing": "none.bin",
        "empty": "",
    }[kind]
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(RecordError, match="external data of the model cannot be read"):
        burnt.onnx.load(_external(folder, location))


def test_missing_external_data_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"no file 'none\.bin'\n +hint +copy it to ") as caught:
        burnt.onnx.load(_external(tmp_path, "none.bin"))
    assert str(tmp_path / "none.bin") in str(caught.value)


@pytest.mark.parametrize(
    "entries", [{"offset": "40"}, {"offset": "-4"}, {"length": "4000"}, {"offset": "four"}, {"length": "1e3"}]
)
def test_external_data_of_wrong_size(entries, tmp_path):
    (tmp_path / "weights.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(RecordError):
        burnt.onnx.load(_external(tmp_path, "weights.bin", **{"length": "48", **entries}))


HOSTILE = [
    "x'); import os; os.system('false'); ('",
    'a"""\nimport os\nraise SystemExit\n"""',
    "class",
    "self",
    "torch",
    "__init__",
    "forward",
    "é\u202e\u0000\n",
    "{}{name}%s",
    "\\",
    "",
    " ",
    "0",
    "a" * 5000,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_cannot_inject_code(name):
    weight, bias = f"{name}.weight", f"{name}.bias"
    nodes = [
        helper.make_node("MatMul", [f"{name}in", weight], [f"{name}m"], name=f"/{name}/MatMul"),
        helper.make_node("Add", [f"{name}m", bias], [f"{name}a"], name=name),
        helper.make_node("Mul", [f"{name}a", f"{name}scale"], [f"{name}out"], name=name),
    ]
    weights = [
        numpy_helper.from_array(WEIGHT, weight),
        numpy_helper.from_array(WEIGHT[0], bias),
        numpy_helper.from_array(WEIGHT[1:2], f"{name}scale"),
    ]
    model = _model(nodes, weights, [f"{name}in"], [f"{name}out"], name=name or "g", doc_string=name)
    module = burnt.onnx.load(model)
    text = module_source(module, "Imported", f"Imported from {name}.onnx.")
    tree = ast.parse(text)
    assert {type(node) for node in tree.body} == {
        ast.Expr,
        ast.ImportFrom,
        ast.Import,
        ast.Assign,
        ast.ClassDef,
        ast.FunctionDef,
    }
    imported = {a.name for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    assert imported == {"annotations", "Path", "burnt", "torch", "nn", "Tensor"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    roots = {name.split("(")[0].split(".")[0] for name in called}
    by_number = {"getattr", "setattr"} if name == "0" else set()
    known = {"super", "self", "torch", "F", "ops", "nn", "burnt", "Imported", "Path", "model"}
    assert roots <= known | by_number
    assert not any(name.endswith(".system") for name in called)
    scope: dict[str, Any] = {"__name__": "imported", "__file__": "imported.py"}
    exec(compile(tree, "imported.py", "exec"), scope)
    again = scope["Imported"]()
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.eval()(torch.ones(2, 4)), module(torch.ones(2, 4)))


def test_strings_of_a_model_are_literals():
    """Texts that programs hold, such as labels, are quoted."""
    text = "'\"); import os; ('\n\\"
    nodes = [helper.make_node("StringConcat", ["s", "labels"], ["y"])]
    model = _model(nodes, [helper.make_tensor("labels", TensorProto.STRING, [1], [text.encode()])], ("s",))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    module = burnt.onnx.load(model)
    tree = ast.parse(module_source(module, "Imported", "title"))
    assert text in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


# --- attributes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attributes", "found"),
    [
        ("Relu", {"slope": 0.5}, "slope=0.5"),
        ("Softmax", {"axes": [1]}, "axes="),
        ("Identity", {"kernel_shape": [2]}, "kernel_shape="),
    ],
)
def test_an_attribute_that_the_op_does_not_have(op, attributes, found):
    with pytest.raises(UnsupportedError, match=f"the attribute {next(iter(attributes))} of {op}") as caught:
        burnt.onnx.load(_model([helper.make_node(op, ["x"], ["y"], name="first", **attributes)]))
    assert "in        first" in str(caught.value)
    assert f"found     {found}" in str(caught.value)


def _norm(**attributes: Any) -> Any:
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")]
    return _model([helper.make_node("LayerNormalization", ["x", "w"], ["y"], **attributes)], weights)


def test_an_attribute_that_would_be_ignored():
    """ONNX's default is no more than what the op does without the attribute."""
    with pytest.raises(UnsupportedError, match="the attribute stash_type of LayerNormalization") as caught:
        burnt.onnx.load(_norm(stash_type=11))
    assert "no stash_type, or 1" in str(caught.value)
    assert "the node of 'y'" in str(caught.value)
    x = torch.arange(8.0).reshape(2, 4)
    assert torch.equal(burnt.onnx.load(_norm(stash_type=1))(x), burnt.onnx.load(_norm())(x))


def test_an_attribute_of_onnx_runtime_that_would_be_ignored():
    for value in (0, 1):
        node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", other=value)
        model = _model([node], [numpy_helper.from_array(WEIGHT, "w")])
        model.opset_import.add(domain="com.microsoft", version=1)
        if value == 0:
            burnt.onnx.load(model)
            continue
        with pytest.raises(UnsupportedError, match="the attribute other of FusedMatMul"):
            burnt.onnx.load(model)


def test_an_attribute_that_a_function_does_not_have():
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
    model = _model([helper.make_node("F", ["x"], ["y"], domain="own", alpha=2.0)])
    model.functions.append(function)
    model.opset_import.add(domain="own", version=1)
    with pytest.raises(UnsupportedError, match="the attribute alpha of F"):
        burnt.onnx.load(model)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "nearest_mode": "floor", "cubic_coeff_a": -0.5},  # as torch.onnx writes
        {"mode": "nearest", "nearest_mode": "floor", "extrapolation_value": 3.0},
    ],
)
def test_attributes_of_other_modes_are_ignored(attributes):
    scales = numpy_helper.from_array(np.array([1, 2], np.float32), "s")
    burnt.onnx.load(_model([helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)], [scales]))


# --- constants --------------------------------------------------------------------------------------------


_CHILD = """
import resource, sys
import onnx, burnt, burnt.onnx.importer.load
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (600 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
burnt.onnx.load(sys.argv[1])
"""


# Constants and nodes that make the large tensor `b` of them.
_ALLOCATING = {
    "concat": (
        "int64[1] s = {16}",
        "c0 = ConstantOfShape(s) "
        + " ".join(f"c{i + 1} = Concat<axis = 0>({', '.join([f'c{i}'] * 16)})" for i in range(7))
        + " b = Identity(c7)",
    ),
    "pad": ("float[4] a = {1, 1, 1, 1}, int64[2] p = {0, 1099511627776}", "b = Pad(a, p)"),
    "window": ("int64 n = {8589934592}", "b = HannWindow(n)"),
    "range": (
        "int64 a = {0}, int64 e = {17179869184}, int64 i = {1}",
        "r = Range(a, e, i) b = Cast<to = 1>(r)",
    ),
    "product": ("int64[1] s = {65536}", "p = Mul(s, s) a = ConstantOfShape(p) b = Add(a, a)"),
}


@pytest.mark.sample(keep=("concat",))
@pytest.mark.parametrize("kind", _ALLOCATING)
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the limit of a process's memory is Linux's"
)
def test_small_files_of_large_constants_take_little_memory(kind, tmp_path):
    constants, nodes = _ALLOCATING[kind]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]>
        m (float[n, 4] x) => (float[n, 4] y) <{constants}> {{
            {nodes} t = ReduceSum<keepdims = 0>(b) y = Add(x, t)
        }}"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    done = forked.run(_CHILD, tmp_path / "m.onnx")
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize("in_body", [False, True])
def test_folded_constants_are_limited(in_body):
    """Each of 64 nodes makes 32 KiB of a few numbers."""
    names = [f"e{i}" for i in range(64)]
    nodes = [helper.make_node("Expand", ["one", "shape"], [name]) for name in names]
    nodes += [helper.make_node("Max", ["zero", *names], ["all"])]
    nodes += [helper.make_node("ReduceMax", ["all"], ["m"], keepdims=0)]
    nodes += [helper.make_node("Cast", ["m"], ["f"], to=FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    weights = [
        numpy_helper.from_array(np.array(values), name)
        for name, values in (("one", [1]), ("zero", [0]), ("shape", [4096]))
    ]
    if in_body:
        output = [helper.make_tensor_value_info("y", FLOAT, None)]
        body = helper.make_graph(nodes, "body", [], output)
        nodes = [helper.make_node("If", ["yes"], ["z"], then_branch=body, else_branch=body)]
        weights.append(numpy_helper.from_array(np.array(True), "yes"))
    model = _model(nodes, weights, outputs=("z",) if in_body else ("y",))
    with pytest.raises(RecordError, match="the constants of the model are too large") as caught:
        burnt.onnx.load(model, max_constant_bytes=2**20)
    assert "at most 1,048,576 bytes" in str(caught.value)
    assert "max_constant_bytes=" in str(caught.value)
    x = torch.arange(4.0)[None]
    assert torch.equal(burnt.onnx.load(model)(x), x + 1)


# --- sparse tensors ---------------------------------------------------------------------------------------


def _sparse(where: str, indices: Any, dims: Any = (2, 4), values: Any = (1.0, 2.0), shape: Any = None) -> Any:
    flat = np.array(indices, np.int64)
    inner = helper.make_tensor("d", FLOAT, [len(values)], values)
    places = helper.make_tensor("i", TensorProto.INT64, flat.shape, flat.reshape(-1))
    places.dims[:] = shape or flat.shape
    sparse = helper.make_sparse_tensor(inner, places, dims)
    add = helper.make_node("Add", ["x", "d"], ["y"])
    if where == "initializer":
        return _model([add], sparse_initializer=[sparse])
    nodes = [helper.make_node("Constant", [], ["d"], sparse_value=sparse), add]
    if where == "constant":
        return _model(nodes)
    output = [helper.make_tensor_value_info("y", FLOAT, None)]
    body = helper.make_graph(nodes if where == "constant of a body" else [add], "body", [], output)
    if where == "initializer of a body":
        body.sparse_initializer.append(sparse)
    node = helper.make_node("If", ["yes"], ["z"], then_branch=body, else_branch=body)
    return _model([node], [numpy_helper.from_array(np.array(True), "yes")], outputs=("z",))


_PLACES = ["initializer", "constant", "initializer of a body", "constant of a body"]


@pytest.mark.parametrize("where", _PLACES)
@pytest.mark.parametrize("indices", [[1, 6], [[0, 1], [1, 2]]])
def test_sparse_tensors_are_imported_as_dense_ones(where, indices):
    model = _sparse(where, indices)
    before = model.SerializeToString()
    want = np.ones((2, 4), np.float32)
    want.reshape(-1)[[1, 6]] += [1, 2]
    found = burnt.onnx.load(model)(torch.ones(2, 4))
    np.testing.assert_array_equal(found.detach().numpy(), want)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"indices": [1, 8]}, "indices from 1 to 8 for 8 elements"),
        ({"indices": [-1, 6]}, "indices from -1 to 6 for 8 elements"),
        ({"indices": [[0, 1], [2, 2]]}, "invalid entry in coordinates array"),
        ({"indices": [6, 1]}, "indices that are not in ascending order"),
        ({"indices": [1, 1]}, "indices that are not in ascending order"),
        ({"indices": [1, 2, 3]}, r"int64 indices of shape \(3,\) for 2 values"),
        ({"indices": [1, 6], "dims": (2, -4)}, r"the shape \(2, -4\)"),
        ({"indices": [1, 6], "shape": [3]}, "reshape"),
    ],
)
def test_sparse_tensors_that_are_damaged(change, found):
    with pytest.raises(RecordError, match=f"a sparse tensor is damaged\n(.*\n)* *found +.*{found}"):
        burnt.onnx.load(_sparse("constant", **change))


def test_sparse_tensors_are_limited():
    for where in _PLACES[:2]:
        with pytest.raises(RecordError, match="the constants of the model are too large"):
            burnt.onnx.load(_sparse(where, [1, 6], (2**20, 2**20)))


# --- size -------------------------------------------------------------------------------------------------


def _functions(count: int) -> Any:
    """Functions that are called once, in a chain, whose values have the same names."""
    functions, nodes = [], []
    for i in range(count):
        body = [helper.make_node("Sigmoid", ["a"], ["c"]), helper.make_node("Neg", ["c"], ["b"])]
        functions.append(
            helper.make_function("own", f"F{i}", ["a"], ["b"], body, [helper.make_opsetid("", 20)])
        )
        ends = f"v{i}" if i else "x", f"v{i + 1}" if i < count - 1 else "y"
        nodes.append(helper.make_node(f"F{i}", [ends[0]], [ends[1]], domain="own"))
    model = _model(nodes)
    model.functions.extend(functions)
    model.opset_import.add(domain="own", version=1)
    return model


def _weights(count: int) -> Any:
    names = [f"w{i}" for i in range(count)]
    nodes = [
        helper.make_node("Add", [f"v{i}" if i else "x", name], [f"v{i + 1}" if i < count - 1 else "y"])
        for i, name in enumerate(names)
    ]
    return _model(nodes, [numpy_helper.from_array(np.full(4, i, np.float32), n) for i, n in enumerate(names)])


def _lines(function: Any, model: Any) -> int:
    """Count the lines that Python runs of the importer and of onnx_ir."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        if not re.search(r"onnx_ir|burnt.onnx", frame.f_code.co_filename):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(model)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.sample(1)
@pytest.mark.parametrize(("function", "make"), [(burnt.onnx.load, _weights), (summarize, _functions)])
def test_twice_the_size_is_twice_the_work(function, make):
    function(make(1))
    assert _lines(function, make(200)) < 2.2 * _lines(function, make(100))


# --- sizes in attributes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attributes", "found"),
    [
        ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0], "targets": 2}, "attribute coefficients"),
        ("LinearRegressor", {"coefficients": [1.0, 2.0], "targets": 0}, "attribute coefficients"),
        ("LinearRegressor", {"targets": 1}, "attribute coefficients"),
        ("LinearRegressor", {"coefficients": [1.0] * 4, "intercepts": [1.0, 2.0]}, "attribute intercepts"),
    ],
)
def test_linear_models_whose_sizes_do_not_fit(op, attributes, found):
    model = _model([helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attributes)])
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    with pytest.raises(UnsupportedError, match=found):
        burnt.onnx.load(model)


@pytest.mark.parametrize(("k", "n"), [(4, 4), (64, 3), (0, 3), (32, -3)])
def test_blocks_of_bits_whose_sizes_do_not_fit(k, n):
    weights = [
        numpy_helper.from_array(np.zeros((3, 1, 8), np.uint8), "w"),
        numpy_helper.from_array(np.ones(3, np.float32), "s"),
    ]
    sizes = {"K": k, "N": n, "bits": 4, "block_size": 16}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **sizes)
    model = _model([node], weights)
    model.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(UnsupportedError, match=r"weight \(3, 1, 8\), scales \(3,\)"):
        burnt.onnx.load(model)
