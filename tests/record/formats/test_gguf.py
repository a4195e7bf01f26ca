"""GGUF files, written by llama.cpp's own package `gguf`, against its reader and its dequantization."""

import contextlib
import copy
import struct

import gguf
import numpy as np
import pytest
import torch
from torch import nn

import burnt
from burnt.errors import RecordError
from burnt.nn.quantized import Quantized, QuantizedEmbedding
from burnt.record import read_weights, record_of

Q4_0, Q8_0, F32, F16 = (getattr(gguf.GGMLQuantizationType, n) for n in ("Q4_0", "Q8_0", "F32", "F16"))
HEADS, KV_HEADS, WIDTH = 4, 2, 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 96, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(96, WIDTH, bias=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(WIDTH) for _ in range(2))
        self.self_attn, self.mlp = Attention(), Mlp()


class Llama(nn.Module):
    """The paths of transformers' LlamaForCausalLM."""

    def __init__(self, tied=False):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(40, WIDTH)
        self.model.layers = nn.ModuleList([Layer(), Layer()])
        self.model.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, 40, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{short}_proj": f"attn_{short}" for short in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}


def permute(weight, heads):
    """As convert_hf_to_gguf.py of llama.cpp does."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write(path, model, kind, heads=HEADS, kv_heads=KV_HEADS):
    """Write a Llama as llama.cpp's converter does, and return what its layers hold afterwards.

    `heads` and `kv_heads` are what the header says: numbers, lists with one a layer, or None.
    """
    writer = gguf.GGUFWriter(str(path), "llama")
    if heads is not None:
        writer.add_head_count(heads)
    if kv_heads is not None:
        writer.add_head_count_kv(kv_heads)
    writer.add_string("general.name", "tiny")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "cd"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    expected = {}
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        layer = name.removesuffix(".weight")
        prefix = ""
        if layer.startswith("model.layers."):
            number, layer = layer.removeprefix("model.layers.").split(".", 1)
            prefix = f"blk.{number}."
        value = tensor.detach().numpy()
        count = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(layer)
        stored = value if count is None else permute(value, count)
        own = kind if value.ndim == 2 else F32
        data = gguf.quants.quantize(stored, own)
        writer.add_tensor(f"{prefix}{NAMES[layer]}.weight", data, raw_dtype=own)
        expected[name] = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(value, own), own))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("kind", [Q4_0, Q8_0, F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_llama_of_llama_cpp_becomes_one_of_hugging_face(kind, tied, tmp_path):
    torch.manual_seed(0)
    expected = write(tmp_path / "m.gguf", Llama(tied), kind)
    model = Llama(tied)
    report = burnt.load_weights(model, tmp_path / "m.gguf")
    assert "Hugging Face's names" in str(report)
    for path, weight in expected.items():
        layer = model.get_submodule(path.removesuffix(".weight"))
        assert torch.equal(layer.weight, weight), path
    quantized = [layer for layer in model.modules() if isinstance(layer, Quantized)]
    if kind == F16:
        assert not quantized
        return
    assert len(quantized) == 16
    assert {layer.scheme.name for layer in quantized} == {
        {"Q4_0": "int4-block32", "Q8_0": "int8-block32"}[kind.name]
    }
    assert isinstance(model.model.embed_tokens, QuantizedEmbedding)
    assert (model.lm_head.values is model.model.embed_tokens.values) == tied
    record_of(model).save(tmp_path / "m.safetensors")
    other = Llama(tied)
    burnt.load_weights(other, tmp_path / "m.safetensors")
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)
    burnt.dequantize(model)
    assert torch.equal(
        model.lm_head.weight, expected["model.embed_tokens.weight" if tied else "lm_head.weight"]
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(HEADS, [KV_HEADS] * 2), ([HEADS] * 2, [KV_HEADS] * 3)])
def test_numbers_of_heads_may_be_arrays_with_one_a_layer(heads, kv_heads, tmp_path):
    torch.manual_seed(0)
    expected = write(tmp_path / "m.gguf", Llama(False), F16, heads, kv_heads)
    model = Llama(False)
    burnt.load_weights(model, tmp_path / "m.gguf")
    for path, weight in expected.items():
        assert torch.equal(model.get_submodule(path.removesuffix(".weight")).weight, weight), path


@pytest.mark.parametrize(
    ("heads", "kv_heads", "name", "found"),
    [
        (HEADS, [KV_HEADS], "blk.1.attn_k", "no number"),
        (HEADS, [0, KV_HEADS], "blk.0.attn_k", "0, for shape"),
        ([HEADS, 5], KV_HEADS, "blk.1.attn_q", "5, for shape"),
        (HEADS, [2.0, 2.0], "blk.0.attn_k", "2.0, for shape"),
        (None, None, "blk.0.attn_q", "no number"),
        (HEADS, None, "blk.0.attn_", f"{HEADS}, for shape"),  # keys have fewer heads than queries
        (HEADS, HEADS, "blk.0.attn_", f"{HEADS}, for shape"),
        (HEADS // 2, KV_HEADS, "blk.0.attn_", "for shape"),
    ],
)
def test_a_number_of_heads_that_is_missing_or_does_not_fit_is_refused(heads, kv_heads, name, found, tmp_path):
    write(tmp_path / "m.gguf", Llama(False), F16, heads, kv_heads)
    with pytest.raises(RecordError, match="how the rows of queries or keys are arranged") as caught:
        burnt.load_weights(Llama(False), tmp_path / "m.gguf")
    assert name in str(caught.value.where)
    assert found in str(caught.value.found)


def write_tensor(path, name, data, kind):
    writer = gguf.GGUFWriter(str(path), "other")
    writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(data, kind)


def other_model(path, kind, name="0.weight"):
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    return write_tensor(path, name, gguf.quants.quantize(values, kind), kind)


def test_other_models_keep_their_names(tmp_path):
    expected = other_model(tmp_path / "m.gguf", Q8_0)
    model = nn.Sequential(nn.Linear(64, 6, bias=False))
    burnt.load_weights(model, tmp_path / "m.gguf", dtype=torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    assert torch.equal(model.float()[0].weight, torch.from_numpy(expected))
    holder = nn.ModuleDict({"body": nn.Linear(64, 6, bias=False)})
    burnt.load_weights(holder, tmp_path / "m.gguf", rename=[("^0", "body")])
    assert torch.equal(holder["body"].weight, torch.from_numpy(expected))
    assert set(read_weights(tmp_path / "m.gguf").tensors) == {"0.values", "0.scale"}


def test_extreme_codes_and_scales_are_kept(tmp_path):
    # Every nibble, negative and subnormal scales: bytes that no quantizer would write are read like others.
    generator = np.random.default_rng(1)
    for kind, size in ((Q4_0, 18), (Q8_0, 34)):
        raw = generator.integers(0, 256, (8, 2, size), dtype=np.uint8)
        raw[..., 1] &= 0xBF  # no infinite or NaN scales
        expected = write_tensor(tmp_path / "m.gguf", "0.weight", raw.reshape(8, -1), kind)
        model = nn.Sequential(nn.Linear(64, 8, bias=False))
        burnt.load_weights(model, tmp_path / "m.gguf")
        assert torch.equal(model[0].weight, torch.from_numpy(expected))


def refused(match, path, model=None):
    with pytest.raises(RecordError, match=match) as caught:
        burnt.load_weights(model or nn.Sequential(nn.Linear(64, 6, bias=False)), path)
    return str(caught.value)


def test_other_types_are_refused_by_name(tmp_path):
    other_model(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q5_0)
    message = refused("a type that is not read", tmp_path / "m.gguf")
    assert "m.gguf: 0.weight" in message
    assert "found     Q5_0" in message
    assert "expected  F32, F16, BF16, Q4_0 or Q8_0" in message


def test_a_model_of_other_sizes_is_unchanged(tmp_path):
    other_model(tmp_path / "m.gguf", Q4_0)
    model = nn.Sequential(nn.Linear(32, 6, bias=False))
    before = copy.deepcopy(model.state_dict())
    assert "values (6, 32) of int4-block32" in refused("another size", tmp_path / "m.gguf", model)
    assert torch.equal(model[0].weight, before["0.weight"])
    other_model(tmp_path / "b.gguf", Q4_0, name="0.bias_table")
    refused("not the weight of a linear layer", tmp_path / "b.gguf")


@pytest.mark.parametrize("kind", [Q4_0, F32], ids=lambda kind: kind.name)
def test_every_cut_and_every_changed_byte_of_the_header_is_an_error_or_harmless(kind, tmp_path):
    other_model(tmp_path / "m.gguf", kind)
    whole = (tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(4, 200, 7), len(whole) - 32]:
        cut.write_bytes(whole[:length])
        with pytest.raises(RecordError):
            burnt.load_weights(nn.Sequential(nn.Linear(64, 6, bias=False)), cut)
    header = len(whole) - 6 * 2 * 18 if kind == Q4_0 else len(whole) - 6 * 64 * 4
    for position in range(4, header, 3):
        for value in (0x00, 0x7F, 0xFF):
            changed = bytearray(whole)
            changed[position] = value
            cut.write_bytes(changed)
            with contextlib.suppress(RecordError):
                burnt.load_weights(nn.Sequential(nn.Linear(64, 6, bias=False)), cut)


def header(num_tensors=0, num_entries=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries)


def text(value):
    return struct.pack("<Q", len(value)) + value


def tensor(name, shape, kind, offset):
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (header(2**60), "too many tensors"),
        (header(0, 2**60), "truncated, or its header is damaged"),
        (header(0, 1) + struct.pack("<Q", 2**63), "truncated, or its header is damaged"),
        (header(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**61), "truncated, or its header is damaged"),
        (header(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 0, 2**63), "truncated, or its header is damaged"),
        (header(0, 1) + text(b"k") + struct.pack("<I", 77), "header of a GGUF file is damaged"),
        (header(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1) * 99 + bytes(99), "damaged"),
        (header(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 0), "general.alignment 0"),
        (header(1) + tensor(b"w", (2**40, 2**40), 0, 0) + bytes(99), "truncated"),
        (header(1) + tensor(b"w", (4, 4), 0, 2**62) + bytes(99), "truncated"),
        (header(1) + tensor(b"w", (33, 4), 2, 0) + bytes(99), "blocks of 32"),
        (header(1) + text(b"w") + struct.pack("<I", 2**31) + bytes(99), "axes"),
        (header(2) + tensor(b"w", (4,), 0, 0) + tensor(b"v", (4,), 0, 8) + bytes(99), "overlaps"),
        (header(2) + tensor(b"w", (4,), 0, 0) + tensor(b"w", (4,), 0, 32) + bytes(99), "two tensors"),
        (header(version=1), "another version"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    ],
)
def test_lying_headers_are_refused(content, match, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refused(match, path)
