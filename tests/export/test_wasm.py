import json
import shutil
import subprocess

import pytest
import torch
from torch import nn

from burnt.errors import UnsupportedError
from burnt.export.c_source import c_source
from burnt.export.wasm import compile_wasm
from burnt.inspect.signature import TensorInfo
from burnt.onnx.comparison import rounded_copy
from tests.export.toolchains import needs_clang

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node: apt install nodejs")

# Reads {"inputs": [[...], ...]} for each call, and prints the outputs of each.
RUN = """
const fs = require("fs");
const { inputs, outputs, calls } = JSON.parse(fs.readFileSync(0));
const module = new WebAssembly.Module(fs.readFileSync(process.argv[1]));
const arrays = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  uint8: Uint8Array, bool: Uint8Array };
const exports = new WebAssembly.Instance(module, {}).exports;
exports.init();
const view = (role, [dtype, count], i) =>
  new arrays[dtype](exports.memory.buffer, exports[role + i](), count);
const results = calls.map(values => {
  inputs.forEach((kind, i) => {
    view("input_", kind, i).set(kind[0] === "int64" ? values[i].map(BigInt) : values[i]);
  });
  exports.run();
  return outputs.map((kind, i) => Array.from(view("output_", kind, i), Number).map(String));
});
console.log(JSON.stringify({ imports: WebAssembly.Module.imports(module), results }));
"""


def run_in_node(folder, source, code, calls):
    """Run a module on flat lists of inputs; return flat lists of outputs."""
    file = folder / "model.wasm"
    file.write_bytes(code)

    def kinds(infos: tuple[TensorInfo, ...]):
        return [[info.dtype, torch.Size(info.shape).numel()] for info in infos]

    given = {
        "inputs": kinds(source.signature.inputs),
        "outputs": kinds(source.signature.outputs),
        "calls": [[tensor.flatten().tolist() for tensor in call] for call in calls],
    }
    done = subprocess.run(
        ["node", "-e", RUN, str(file)], input=json.dumps(given), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["imports"] == []
    return [
        [torch.tensor([float(v) for v in values], dtype=torch.float64) for values in result]
        for result in answer["results"]
    ]


def assert_equals_eager(folder, model, example, calls, weights="float32"):
    model.eval()
    shown = model if weights == "float32" else rounded_copy(model, getattr(torch, weights))
    source = c_source(shown, example, "model", fold=weights == "float32")
    code = compile_wasm(source, weights)
    for call, found in zip(calls, run_in_node(folder, source, code, calls), strict=True):
        with torch.no_grad():
            expected = source.signature.call(shown, call)
        for a, b in zip(found, expected, strict=True):
            b = b.flatten().double()
            torch.testing.assert_close(
                a, b, rtol=0, atol=1e-4 * max(1.0, float(b.abs().max())), equal_nan=True
            )
    return code


class Pixels(nn.Module):
    """A convolution with a norm, so that folding would change the weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(144, 10)
        nn.init.uniform_(self.norm.running_var, 0.1, 2)

    def forward(self, image):
        return self.head(torch.relu(self.norm(self.conv(image))).flatten(1))


class Words(nn.Module):
    """Tokens as int64, a mask as bool and a shift as uint8; a scalar for each item next to the logits."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, keep, shift):
        hidden = self.encoder(self.embedding(tokens)) * keep[..., None] + shift[..., None].float()
        return self.head(hidden.mean(1)), tokens.sum(1), keep.any(1)


class Given(nn.Module):
    """A linear layer with these weights."""

    def __init__(self, weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))

    def forward(self, x):
        return x @ self.weight


@pytest.fixture(scope="module")
def linear():
    return c_source(rounded_copy(nn.Linear(64, 64), torch.float16), torch.rand(2, 64))


@needs_clang
@needs_node
class TestCompileWasm:
    @pytest.mark.full
    @pytest.mark.parametrize(
        "weights",
        [
            pytest.param("float32", marks=pytest.mark.full),  # test_page.py computes 50 images so
            "float16",
            pytest.param("bfloat16", marks=pytest.mark.full),
        ],
    )
    def test_equals_eager_on_50_images(self, tmp_path, weights):
        images = [[torch.rand(1, 1, 8, 8)] for _ in range(50)]
        assert_equals_eager(tmp_path, Pixels(), torch.rand(2, 1, 8, 8), images, weights)

    def test_tokens_masks_and_several_outputs(self, tmp_path):
        calls = [
            [torch.randint(0, 20, (1, 6)), torch.rand(1, 6) < 0.5, torch.randint(0, 200, (1, 6)).byte()]
            for _ in range(5)
        ]
        example = tuple(tensor.repeat(2, 1) for tensor in calls[0])
        assert_equals_eager(tmp_path, Words(), example, calls, "float16")

    def test_16_bit_numbers_of_every_kind(self, tmp_path):
        # Subnormal numbers, both zeros, the largest number and the smallest normal one, each read by itself.
        column = [2**-24, -3 * 2**-24, 1023 * 2**-24, -0.0, 0.0, 65504.0, -65504.0, 2**-14, 0.333251953125]
        model = Given([column, column[::-1]])
        calls = [[torch.tensor([[1.0, 0.0]])], [torch.tensor([[0.0, 1.0]])]]
        source = c_source(model, torch.rand(2, 2), "model", fold=False)
        code = compile_wasm(source, "float16")
        found = run_in_node(tmp_path, source, code, calls)
        exact = torch.tensor(column, dtype=torch.float64)
        assert torch.equal(found[0][0], exact)
        assert torch.equal(found[1][0], exact.flip(0))

    @pytest.mark.full
    def test_infinite_weights_stay_in_float32(self, tmp_path):
        model = Given([[float("inf"), 1.0], [1.0, float("-inf")]])
        calls = [[torch.tensor([[1.0, 2.0]])]]
        source = c_source(model, torch.rand(2, 2), "model", fold=False)
        for weights in ("float32", "float16"):
            ((found,),) = run_in_node(tmp_path, source, compile_wasm(source, weights), calls)
            assert str(found.tolist()) == "[inf, -inf]"

    @pytest.mark.full
    def test_16_bits_halve_the_module(self, linear):
        assert len(compile_wasm(linear)) - len(compile_wasm(linear, "float16")) > 0.9 * 2 * 64 * 64

    @pytest.mark.full
    def test_an_input_that_is_not_used_and_names_beyond_ascii(self, tmp_path):
        class Größe(nn.Module):
            def __init__(self):
                super().__init__()
                self.maß = nn.Linear(3, 2)

            def forward(self, x, unused):
                return self.maß(x)

        calls = [[torch.rand(1, 3), torch.rand(1, 2)]]
        assert_equals_eager(tmp_path, Größe(), (torch.rand(2, 3), torch.rand(2, 2)), calls, "float16")


@pytest.mark.parametrize("missing", ["clang", "wasm-ld"])
def test_says_what_to_install(linear, missing, monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else which(name) or "/bin/true")
    with pytest.raises(UnsupportedError) as caught:
        compile_wasm(linear)
    assert caught.value.found == f"no {missing}"
    assert "apt install clang lld wasi-libc" in str(caught.value)


def test_missing_headers_say_what_to_install(linear, tmp_path, monkeypatch):
    for name, text in {
        "clang": "echo \"'stdint.h' file not found\" >&2; exit 1",
        "wasm-ld": "exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(UnsupportedError, match="clang cannot compile") as caught:
        compile_wasm(linear)
    assert "stdint.h" in str(caught.value)
    assert "wasi-libc" in str(caught.value)
