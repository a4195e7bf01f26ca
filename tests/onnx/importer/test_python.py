"""The Python that is written for an imported model: operators, methods, names, lines."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
import onnx.parser
import torch
from onnx import numpy_helper
from torch.nn import functional as F

import burnt
from burnt.onnx.importer.node import shortest_decimal
from burnt.onnx.importer.package import module_source, write_package
from burnt.onnx.importer.program import (
    Arithmetic,
    Call,
    Define,
    Device,
    Name,
    Program,
    Repeat,
    Size,
    Statement,
)
from burnt.onnx.importer.python.body import body_lines
from burnt.onnx.importer.python.expressions import METHODS, code_of
from burnt.onnx.importer.python.kinds import Kind
from tests.onnx.importer_files import inputs_of, read
from tests.onnx.test_import_files import import_package, outputs_of

X, Y, Z = Name("x"), Name("y"), Name("z")
MASK, UNKNOWN = Name("mask"), Name("unknown")
KINDS: dict[str, Kind] = {"x": "tensor", "y": "tensor", "z": "tensor", "mask": "bool"}
KINDS |= dict.fromkeys(("self.f", "self.g", "self.norm", "self.mlp", "self.query", "self.head"), "tensor")


def call(function: str, *args: object, **kwargs: object) -> Call:
    return Call(function, args, kwargs)


def lines(*statements: tuple[str, Call] | Define | Repeat, returns: object = None, **kinds: Kind) -> str:
    """Return the body of a program whose results are all tensors, but for what `kinds` says."""
    listed = [
        s if isinstance(s, Define | Repeat) else Statement(tuple(s[0].split()), s[1]) for s in statements
    ]
    made: dict[str, Kind] = {name: "tensor" for s in listed if isinstance(s, Statement) for name in s.outputs}
    program = Program(["x", "y", "mask"], returns if isinstance(returns, list) else [returns], listed)
    names = {name: name for name in program.inputs}
    return "\n".join(body_lines(program, {**KINDS, **made, **kinds}, 102, names))


def text(source: str) -> str:
    return textwrap.dedent(source).strip("\n")


ADD, NEG = call("torch.add", X, Y), call("torch.neg", X)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (ADD, "x + y"),
        (call("torch.mul", ADD, Z), "(x + y) * z"),
        (call("torch.add", call("torch.mul", X, Y), Z), "x * y + z"),
        (call("torch.add", X, call("torch.add", Y, Z)), "x + (y + z)"),
        (call("torch.sub", X, call("torch.sub", Y, Z)), "x - (y - z)"),
        (call("torch.div", X, call("torch.mul", Y, Z)), "x / (y * z)"),
        (call("torch.matmul", NEG, Y), "-x @ y"),
        (call("torch.neg", ADD), "-(x + y)"),
        (call("torch.pow", X, 2), "x**2"),
        (call("torch.pow", NEG, 2), "(-x) ** 2"),
        (call("torch.pow", X, -1.5), "x**-1.5"),
        (call("torch.neg", call("torch.pow", X, 2)), "-(x**2)"),
        (call("torch.pow", ADD, call("torch.pow", X, Y)), "(x + y) ** (x**y)"),
        (call("torch.mul", X, -2.0), "x * -2.0"),
        (call("torch.sub", 1.0, X), "1.0 - x"),
        (call("torch.add", X, Size(Y, 1)), "x + y.shape[1]"),
        (call("torch.mul", X, Arithmetic("+", Size(Y, 0), 1)), "x * (y.shape[0] + 1)"),
        (call("torch.eq", call("torch.le", X, Y), MASK), "(x <= y) == mask"),
        (call("torch.logical_and", MASK, call("torch.lt", X, Y)), "mask & (x < y)"),
        (call("torch.logical_or", call("torch.logical_and", MASK, MASK), MASK), "mask & mask | mask"),
        (call("torch.logical_not", MASK), "~mask"),
        # What is not the same, or not certainly: two numbers, booleans, options, truth values of numbers.
        (call("torch.div", 1.0, X), "torch.div(1.0, x)"),
        (call("torch.add", 1, 2), "torch.add(1, 2)"),
        (call("torch.add", UNKNOWN, 2), "torch.add(unknown, 2)"),
        (call("torch.add", UNKNOWN, X), "unknown + x"),
        (call("torch.eq", X, True), "torch.eq(x, True)"),
        (call("torch.add", X, Y, alpha=2), "torch.add(x, y, alpha=2)"),
        (call("torch.div", X, Y, rounding_mode="trunc"), 'torch.div(x, y, rounding_mode="trunc")'),
        (call("torch.logical_and", X, MASK), "torch.logical_and(x, mask)"),
        (call("torch.logical_not", X), "torch.logical_not(x)"),
    ],
)
def test_operators(tree, expected):
    """They have the parentheses that keep what is computed, and compute the same."""
    assert code_of(tree, {}, KINDS).text == expected
    scope = {
        "torch": torch,
        "x": torch.tensor([1.5, 2.0]),
        "y": torch.tensor([[0.5, 3.0], [2.0, 1.5]]),
        "z": torch.tensor([0.3, 0.7]),
        "mask": torch.tensor([True, False]),
        "unknown": torch.tensor([2.0, 1.0]),
    }

    def value(one: object) -> object:
        if isinstance(one, Call):
            kwargs = {key: value(v) for key, v in one.kwargs.items()}
            return getattr(torch, one.function.removeprefix("torch."))(*map(value, one.args), **kwargs)
        if isinstance(one, Name | Size | Arithmetic):
            return eval(code_of(one).text, scope)
        return one

    assert torch.equal(eval(expected, scope), value(tree))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (call("torch.reshape", X, (2, -1)), "x.reshape(2, -1)"),
        (call("torch.reshape", X, ()), "x.reshape(())"),
        (call("torch.reshape", X, (Size(Y, 0), Size(Y, 1), 4)), "x.reshape(*y.shape[:2], 4)"),
        (call("torch.reshape", X, (Size(Y, 0), Size(Y, 1))), "x.reshape(y.shape[:2])"),
        (call("torch.reshape", X, (Size(Y, 1), Size(Y, 0))), "x.reshape(y.shape[1], y.shape[0])"),
        (call("torch.reshape", X, (Size(Y, 0), Size(Z, 1))), "x.reshape(y.shape[0], z.shape[1])"),
        (call("torch.reshape", ADD, (-1,)), "(x + y).reshape(-1)"),
        (call("torch.permute", X, (1, 0, 2)), "x.permute(1, 0, 2)"),
        (call("torch.transpose", NEG, 1, 2), "(-x).transpose(1, 2)"),
        (call("torch.select", X, 1, 0), "x[:, 0]"),
        (call("torch.select", X, 0, -1), "x[-1]"),
        (call("torch.select", X, -1, 3), "x[..., 3]"),
        (call("torch.select", X, -2, 3), "x.select(-2, 3)"),
        (call("torch.softmax", X, -1), "x.softmax(dim=-1)"),
        (call("torch.mean", X, [1], False), "x.mean(1)"),
        (call("torch.mean", X, [1, 2], True), "x.mean([1, 2], keepdim=True)"),
        (call("torch.cat", [X, Y], 0), "torch.cat([x, y])"),
        (call("torch.tanh", X), "torch.tanh(x)"),
        (call("torch.arange", 0, Size(X, 0), 1), "torch.arange(x.shape[0])"),
        (call("torch.arange", 0, 4.0, 1), "torch.arange(0, 4.0)"),
        (call("ops.slice_", X, [0], [4], axes=[1]), "x[:, :4]"),
        (call("ops.slice_", X, [1, -2], [2**63 - 1, -1], axes=[0, 2], steps=[2, 1]), "x[1::2, :, -2:-1]"),
        (call("ops.slice_", X, [1], [Size(Y, 0)]), "x[1 : y.shape[0]]"),
        (
            call("ops.slice_", X, [3], [0], axes=[0], steps=[-1]),
            "ops.slice_(x, [3], [0], axes=[0], steps=[-1])",
        ),
        (call("ops.slice_", X, Y, Z), "ops.slice_(x, y, z)"),
        (call("ops.cast", X, torch.bool), "ops.cast(x, torch.bool)"),
        (call("ops.gather", X, Y, 0), "ops.gather(x, y)"),
        (call("ops.gather", X, Y, 1), "ops.gather(x, y, axis=1)"),
        (call("ops.layer_norm", X, Y, Z, -1, 1e-12), "ops.layer_norm(x, y, z, eps=1e-12)"),
        (call("F.gelu", X, approximate="none"), "F.gelu(x)"),
        (call("F.gelu", X, approximate="tanh"), 'F.gelu(x, approximate="tanh")'),
        (call("torch.clamp", X, float("-inf"), 1.0), 'x.clamp(float("-inf"), 1.0)'),
        (call("ops.strings", ["a'b", 'c"d'], [2]), """ops.strings(["a'b", 'c"d'], [2])"""),
    ],
)
def test_methods_and_arguments(tree, expected):
    assert code_of(tree, {}, KINDS).text == expected


def test_methods_are_the_functions():
    """They take what the functions take after the first argument."""
    x = torch.randn(2, 3, 4)
    arguments: dict[str, tuple[object, ...]] = {
        "transpose": (1, 2),
        "unsqueeze": (1,),
        "squeeze": (1,),
        "flatten": (1,),
        "narrow": (1, 0, 2),
        "select": (1, 0),
        "split": ([1, 2], 1),
        "chunk": (3, 1),
        "t": (),
        "unflatten": (2, (2, 2)),
        "clamp": (-0.5, 0.5),
        **dict.fromkeys(("softmax", "log_softmax", "mean", "sum", "amax", "amin", "argmax", "argmin"), (1,)),
    }
    for name in METHODS - {"reshape", "permute"}:
        given = x[0] if name == "t" else x
        expected = getattr(torch, name)(given, *arguments[name])
        torch.testing.assert_close(getattr(given, name)(*arguments[name]), expected, rtol=0, atol=0)


def test_slices_are_those_of_onnx():
    x = torch.arange(24).reshape(4, 6)
    for start in (-9, -2, 0, 1, 5, 2**62):
        for end in (-9, -1, 0, 3, 9, 2**63 - 1):
            tree = call("ops.slice_", X, [start], [end], axes=[1], steps=[2])
            found = eval(code_of(tree).text, {"x": x})
            assert torch.equal(found, burnt.onnx.functions.slice_(x, [start], [end], [1], [2]))


def test_results_are_written_in_place():
    """What the next statement reads, up to four calls in a line, and two within each other."""
    found = lines(
        ("a", call("self.norm", X)),
        ("b", call("self.mlp", Name("a"))),
        ("c", call("torch.add", X, Name("b"))),
        ("d", call("self.query", Name("c"))),
        ("e", call("torch.reshape", Name("d"), (2, 3, -1))),
        ("f", call("torch.transpose", Name("e"), 1, 2)),
        ("g", call("F.relu", Name("f"))),
        ("h", call("self.head", Name("g"))),
        ("i", call("self.drop", Name("h"))),
        returns=Name("i"),
    )
    assert found == text("""
        x = x + self.mlp(self.norm(x))
        d = F.relu(self.query(x).reshape(2, 3, -1).transpose(1, 2))
        return self.drop(self.head(d))
    """)


def test_results_are_kept_where_their_order_or_number_counts():
    twice = lines(("a", call("self.f", X)), ("b", call("torch.add", Name("a"), Name("a"))), returns=Name("b"))
    assert twice == "a = self.f(x)\nreturn a + a"
    in_order = lines(
        ("a", call("self.f", X)),
        ("b", call("self.g", Y)),
        ("c", call("torch.add", Name("a"), Name("b"))),
        returns=Name("c"),
    )
    assert in_order == "return self.f(x) + self.g(y)"
    swapped = lines(
        ("a", call("self.f", X)),
        ("b", call("self.g", Y)),
        ("c", call("torch.sub", Name("b"), Name("a"))),
        returns=Name("c"),
    )
    assert swapped == "a = self.f(x)\nreturn self.g(y) - a"
    sized = lines(
        ("a", call("self.f", X)), ("b", call("torch.reshape", Y, (Size(Name("a"), 0),))), returns=Name("b")
    )
    assert sized == "a = self.f(x)\nreturn y.reshape(a.shape[0])"
    several = lines(
        ("a b", call("torch.split", X, [1, 2], 1)), ("c", call("self.f", Name("b"))), returns=Name("c")
    )
    assert several == "_, part = x.split([1, 2], dim=1)\nreturn self.f(part)"
    long = lines(
        ("a", call(f"self.{'long_' * 8}", X)),
        ("b", call(f"self.{'name_' * 8}", Name("a"))),
        returns=[Name("b"), X],
    )
    assert long.splitlines()[0] == f"a = self.{'long_' * 8}(x)"


def test_names_are_taken_again_when_free():
    found = lines(
        ("and_", call("torch.logical_and", MASK, call("torch.lt", X, Y))),
        ("range__2", call("torch.arange", 0, Size(X, 0), 1, device=Device(X))),
        ("x_13", call("torch.unsqueeze", Name("range__2"), 0)),
        ("where", call("torch.where", Name("and_"), Name("x_13"), Name("range__2"))),
        ("a", call("torch.add", Name("where"), Name("and_"))),
        returns=[Name("a"), Name("x_13")],
        and_="bool",
    )
    assert found == text("""
        mask = mask & (x < y)
        positions = torch.arange(x.shape[0], device=x.device)
        positions_2 = positions.unsqueeze(0)
        return torch.where(mask, positions_2, positions) + mask, positions_2
    """)


def test_loops_carry_what_is_theirs():
    """The arguments of a loop keep their names in it, and so does a first value that is read later."""
    repeat = Repeat(("hidden",), "self.layers", (Name("a"),), (Name("b"),))
    before = (("a", call("self.f", X)), ("b", call("self.g", X)))
    found = lines(*before, repeat, returns=[Name("hidden"), Name("a")], hidden="tensor")
    assert found == text("""
        a = self.f(x)
        b = self.g(x)
        hidden = a
        for block in self.layers:
            hidden = block(hidden, b)
        return hidden, a
    """)
    both = Repeat(("b_2", "a_2"), "self.layers", (Name("a"), Name("b")))
    found = lines(*before, both, returns=[Name("a_2"), Name("b_2")], a_2="tensor", b_2="tensor")
    assert found == text("""
        hidden = self.f(x)
        hidden_2 = self.g(x)
        for block in self.layers:
            hidden, hidden_2 = block(hidden, hidden_2)
        return hidden_2, hidden
    """)


def test_nested_functions_read_what_they_did():
    """A name that they read is not given to another result before they are called."""
    body = Program(
        ["i", "a_2"], [(Name("b"),)], [Statement(("b",), call("torch.add", Name("a_2"), Name("a")))]
    )
    found = lines(
        ("a", call("F.relu", X)),
        Define("body", body),
        ("c", call("F.relu", Y)),
        ("d e", call("ops.loop", 3, None, Name("body"), [Name("c")])),
        returns=[Name("d"), Name("e")],
        b="tensor",
    )
    assert found == text("""
        x_2 = F.relu(x)

        def body(i, a):
            return (a + x_2,)

        d, e = ops.loop(3, None, body, [F.relu(y)])
        return d, e
    """)


def test_indices_are_written_where_they_are_read():
    """Nothing else is moved over calls."""
    found = lines(
        ("a", call("ops.slice_", X, [0], [2**63 - 1], axes=[1], steps=[2])),
        ("b", call("ops.slice_", Name("a"), [0], [4], axes=[2])),
        ("d", call("self.f", Y)),
        ("e", call("ops.slice_", Name("a"), [1], [3], axes=[2])),
        ("g", call("torch.cat", [Name("d"), Name("b"), Name("e")], 1)),
        returns=Name("g"),
    )
    assert found == text("""
        x = x[:, ::2]
        return torch.cat([self.f(y), x[:, :, :4], x[:, :, 1:3]], dim=1)
    """)


def test_an_attention_has_the_usual_names():
    """Rearrangements follow what they rearrange, and lines are as long as they may be."""
    heads = [("q", "self.query"), ("k", "self.query"), ("v", "self.query")]
    found = lines(
        *((name, call(layer, X)) for name, layer in heads),
        *((f"{name}1", call("torch.reshape", Name(name), (2, 3, -1, 8))) for name, _ in heads),
        *((f"{name}2", call("torch.transpose", Name(f"{name}1"), 1, 2)) for name, _ in heads),
        ("w", call("torch.where", MASK, 0.0, 1.0)),
        ("a", call("F.scaled_dot_product_attention", *(Name(f"{n}2") for n, _ in heads), Name("w"))),
        ("b", call("torch.transpose", Name("a"), 1, 2)),
        ("c", call("torch.reshape", Name("b"), (2, 3, -1))),
        returns=[Name("c"), Name("w")],
    )
    assert found == text("""
        query = self.query(x).reshape(2, 3, -1, 8).transpose(1, 2)
        key = self.query(x).reshape(2, 3, -1, 8).transpose(1, 2)
        value = self.query(x).reshape(2, 3, -1, 8).transpose(1, 2)
        mask = torch.where(mask, 0.0, 1.0)
        attention = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attention.transpose(1, 2).reshape(2, 3, -1), mask
    """)


def test_a_long_line_is_parted_at_a_call():
    layer = f"self.{'long_' * 10}"
    found = lines(
        ("a", call(layer, X)),
        ("b", call("torch.reshape", Name("a"), (2, 3, -1, 8))),
        ("c", call("torch.transpose", Name("b"), 1, 2)),
        ("d", call("torch.add", Name("c"), X)),
        returns=[Name("d"), Name("d")],
        **{layer: "tensor"},
    )
    first, second, *_ = found.splitlines()
    assert first.endswith(f" = {layer}(x)")
    assert ".reshape(2, 3, -1, 8).transpose(1, 2) + x" in second


def test_sizes_that_are_read_twice_are_variables():
    size, other = Size(X, 0), Size(X, 1)
    statements = [
        Statement(("a",), call("torch.reshape", Y, (size, other, -1))),
        Statement(("b",), call("torch.reshape", Name("a"), (other, -1))),
    ]
    program = Program(["x", "y"], [Name("a"), Name("b")], statements)
    kinds: dict[str, Kind] = dict.fromkeys(("x", "y", "a", "b"), "tensor")

    def body(**axes: tuple[str, ...]) -> list[str]:
        return list(body_lines(program, kinds, 102, {"x": "x", "y": "y"}, axes))

    assert body(x=("batch", "length"))[0] == "batch, length = x.shape"
    assert body(x=("batch", "length", ""))[:2] == [
        "batch, length = x.shape[:2]",
        "y = y.reshape(batch, length, -1)",
    ]
    assert body(x=("y", "torch"))[0] == "y_2, torch_ = x.shape"
    assert body(x=("batch", ""))[0] == "y = y.reshape(*x.shape[:2], -1)"
    assert body()[0] == "y = y.reshape(*x.shape[:2], -1)"


def test_floats_of_a_file_are_short():
    assert shortest_decimal(9.999999960041972e-13) == 1e-12
    rng = np.random.default_rng(0)
    for value in rng.standard_normal(100).astype(np.float32):
        assert np.float32(shortest_decimal(float(value))) == value
    largest = torch.finfo(torch.float32).max
    assert shortest_decimal(-largest) == -largest
    assert torch.full((1,), shortest_decimal(largest))[0] == largest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_limits_of_dtypes_have_their_names(dtype):
    limits = torch.finfo(dtype)
    for value, name in ((limits.min, "min"), (limits.max, "max")):
        source = code_of(call("torch.where", MASK, 0.0, value)).text
        assert source == f"torch.where(mask, 0.0, torch.finfo({dtype}).{name})"
        assert eval(code_of(value).text, {"torch": torch}) == value
    assert code_of(limits.min / 2).text == repr(limits.min / 2).replace("e+", "e")


def test_float32_constants_are_short():
    """Also where they are 0-dimensional; what is computed is the same to the bit."""
    numbers = np.array([1.0, 0.1, 0.01, -3e-7], np.float32)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        m (float[n,4] x, double[n] z) => (float[n,4] y, double[n] w) {
            a = Mul(x, numbers) b = Add(a, tenth) c = Max(b, limit) y = Div(c, tenth) w = Mul(z, wide)
        }"""
    )
    for name, value in {
        "numbers": numbers,
        "tenth": np.float32(0.1),
        "limit": np.finfo(np.float32).min,
        "wide": np.float64(np.float32(0.1)),
    }.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "inv_freq"
    module = burnt.onnx.load(model)
    x, z = torch.randn(50, 4), torch.randn(50, dtype=torch.float64)
    tenth = torch.tensor(0.1)
    expected = torch.maximum(
        x * torch.from_numpy(numbers) + tenth, torch.tensor(torch.finfo(torch.float32).min)
    )
    y, w = module(x, z)
    assert torch.equal(y, expected / tenth)
    assert torch.equal(w, z * float(np.float32(0.1)))
    source = module_source(module, "Net", "A net.")
    assert "torch.tensor([1.0, 0.1, 0.01, -3e-07])" in source
    assert "+ 0.1" in source
    assert "* 0.10000000149011612" in source


@pytest.mark.parametrize("name", ["bert.dynamo", "lstm.legacy", "pca_neighbors.sklearn"])
def test_files_pass_ruff(name, tmp_path: Path):
    """They are formatted, and import what they use; the docstring says what the file does."""
    model = read(name)
    module = burnt.onnx.load(model)
    write_package(module, tmp_path / "package", name="Imported", title=f"Imported from {name}.onnx.")
    for command in (["check", "--select", "E,F,I,W,B,UP,SIM,C4"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", "110"]
        done = subprocess.run([*ruff, "package"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    feeds = inputs_of(model, 3)
    again = outputs_of(import_package(tmp_path / "package").load(), feeds)
    for one, other in zip(outputs_of(module, feeds), again, strict=True):
        assert torch.equal(one, other)


def test_the_docstring_and_the_types():
    source = module_source(burnt.onnx.load(read("bert.dynamo")), "Imported", "Imported from bert.onnx.")
    assert source.startswith(
        text('''
            """Imported from bert.onnx.

            Inputs:
                input_ids: int64 [batch, sequence]
                attention_mask: int64 [batch, sequence]

            Outputs:
                logits: float32 [batch, 2]

            Written by pytorch 2.13.0+cpu, operator set 20.
            """
        ''')
    )
    assert "def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:" in source
    assert "from typing import Any" not in source


def test_nested_functions_of_a_model(tmp_path: Path):
    """A loop that reads results around it, and branches."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        graph (float[n, 3] x) => (float[a, b] y, float[c, d, e] z) <int64 count = {3}, float zero = {0}> {
            squared = Mul(x, x)
            y0, z = Loop(count, , x) <body = body (int64 i, bool c, float s) => (bool c2, float s2, float e) {
                t = Mul(s, squared) s2 = Add(t, x) c2 = Identity(c) e = Neg(s2)
            }>
            sum = ReduceSum<keepdims = 0>(y0)
            positive = Greater(sum, zero)
            y = If(positive) <
                then_branch = t () => (float a) { a = Relu(y0) },
                else_branch = o () => (float a2) { a2 = Neg(y0) }
            >
        }"""
    )
    module = burnt.onnx.load(model)
    path = write_package(module, tmp_path / "package", name="Net", title="A loop.")
    source = path.read_text()
    assert "    x_3 = s * x_2 + x\n            return (c, x_3, -x_3)" in source
    again = import_package(tmp_path / "package").load()
    for x in (torch.randn(2, 3), -torch.rand(2, 3)):
        for one, other in zip(module(x), again(x), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(again(x)[0], (F.relu if x_sum(x) > 0 else torch.neg)(x_looped(x)))


def x_looped(x: torch.Tensor) -> torch.Tensor:
    s = x
    for _ in range(3):
        s = s * (x * x) + x
    return s


def x_sum(x: torch.Tensor) -> float:
    return float(x_looped(x).sum())
