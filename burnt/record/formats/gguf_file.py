"""Tensors of GGUF files of llama.cpp: floats, and the quantized types Q4_0 and Q8_0 as they are.

A file is a header, metadata, descriptions of the tensors and their values, all little-endian::

    b"GGUF"   version: u32   number of tensors: u64   number of metadata entries: u64
    for each entry:   key: string   type: u32   value
    for each tensor:  name: string   axes: u32   sizes, the last axis first: u64 ...   type: u32   offset: u64
    zeros up to a multiple of the alignment (32, or the entry general.alignment)
    the tensors' values, each at its offset from here

A string is its length (u64) and its bytes. Q4_0 and Q8_0 store 32 adjacent values of a row as one block: a
float16 scale and 16 bytes with two values each, or 32 int8 values. They become the ``values`` and ``scale``
of quantized layers, ``int4-block32`` and ``int8-block32``, without being rounded again. In files of Llama
models the tensors get the names that Hugging Face uses, and the rows of queries and keys its order.

The package gguf reads these files too, but builds an object for each element of the metadata's arrays (16 s
for a tokenizer of 128,000 tokens, 0.4 s here), as many as a damaged file asks for.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt.errors import RecordError
from burnt.record.arranging.layout import Drop, Layout, RearrangedTensor
from burnt.record.formats.safetensors_file import CUT, FileTensor, check_count, wrong_size
from burnt.record.stored import StoredTensor
from burnt.scheme import QuantScheme

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_HEADS = ("llama.attention.head_count", "llama.attention.head_count_kv")
"""Each a number, or an array with one a layer."""
_MOST_AXES = 4
_DEEPEST = 8  # arrays in arrays
_CHUNK = 32 << 20
_BLOCK = 32

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_DTYPES = {
    0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
    28: torch.float64, 30: torch.bfloat16,
}  # fmt: skip
_Q4_0, _Q8_0 = 2, 8
_BLOCK_BYTES = {_Q4_0: 18, _Q8_0: 34}
_SCHEMES = {_Q4_0: QuantScheme.parse("int4-block32"), _Q8_0: QuantScheme.parse("int8-block32")}
_OTHER_TYPES = {
    3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

llama = Layout(
    [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
        Drop("rope_freqs"),  # which transformers computes from the config
        ("blk.*.attn_norm", "model.layers.*.input_layernorm"),
        ("blk.*.attn_q", "model.layers.*.self_attn.q_proj"),
        ("blk.*.attn_k", "model.layers.*.self_attn.k_proj"),
        ("blk.*.attn_v", "model.layers.*.self_attn.v_proj"),
        ("blk.*.attn_output", "model.layers.*.self_attn.o_proj"),
        ("blk.*.ffn_norm", "model.layers.*.post_attention_layernorm"),
        ("blk.*.ffn_gate", "model.layers.*.mlp.gate_proj"),
        ("blk.*.ffn_up", "model.layers.*.mlp.up_proj"),
        ("blk.*.ffn_down", "model.layers.*.mlp.down_proj"),
    ]
)
"""From llama.cpp's names of a Llama to Hugging Face's; the order of rows is not part of it.

>>> list(llama.read({"blk.3.attn_q.weight": torch.ones(2, 2)}))
['model.layers.3.self_attn.q_proj.weight']
"""


class Gguf(NamedTuple):
    """An open GGUF file; a quantized weight has two tensors, its values and scales.

    `quantized` is what a record would say of the quantized layers, by path; `metadata` the entries that are
    not arrays, and the numbers of heads; `notes` say what was renamed.
    """

    tensors: dict[str, StoredTensor]
    quantized: dict[str, dict[str, Any]]
    metadata: dict[str, Any]
    notes: tuple[str, ...]


class _Description(NamedTuple):
    """A tensor in the header."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class _BlockTensor(StoredTensor):
    """The values or the scales (`part`) of a weight in blocks, uint8 ``[rows, blocks, bytes of a block]``."""

    blocks: FileTensor = field(repr=False)
    part: str
    kind: int

    def read_into(self, out: Tensor) -> None:
        """Read some rows at a time."""
        rows, *block = self.blocks.shape
        count = max(1, _CHUNK // max(1, math.prod(block)))
        for first in range(0, rows, count):
            part = out[first : first + count]
            part.copy_(self._read(first, part.shape[0]))

    def read_rows_into(self, first: int, out: Tensor) -> None:
        """Read only these rows."""
        out.copy_(self._read(first, out.shape[0]))

    def _read(self, first: int, rows: int) -> Tensor:
        raw = torch.empty((rows, *self.blocks.shape[1:]), dtype=torch.uint8)
        self.blocks.read_rows_into(first, raw)
        if self.part == "scale":
            return raw[..., :2].contiguous().view(torch.float16).flatten(1)
        codes = raw[..., 2:]
        if self.kind == _Q8_0:
            return codes.contiguous().view(torch.int8).flatten(1)
        # Byte i has the values i and i + 16, plus 8; burnt's has 2i and 2i + 1, in two's complement.
        flat = torch.cat([codes & 15, codes >> 4], -1) ^ 8
        return (flat[..., 0::2] | flat[..., 1::2] << 4).flatten(1)


def _halves_of_heads(stored: StoredTensor, heads: int) -> StoredTensor:
    """Return rows of queries or keys in Hugging Face's order: of each head, first the even ones.

    Rotary embeddings turn pairs of rows: adjacent ones in llama.cpp, rows of two halves in transformers.
    """

    def rearrange(value: Tensor) -> Tensor:
        pairs = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
        return pairs.transpose(1, 2).reshape(value.shape)

    return RearrangedTensor(stored.shape, stored.dtype, (stored,), rearrange)


class _Header:
    """Reads the header; never beyond the end of the file, which damaged lengths ask for."""

    def __init__(self, file: io.FileIO, path: Path) -> None:
        self.file = io.BufferedReader(file)
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def take(self, count: int) -> bytes:
        self.check(count)
        self.position += count
        return self.file.read(count)

    def skip(self, count: int) -> None:
        self.check(count)
        self.position += count
        self.file.seek(count, io.SEEK_CUR)

    def check(self, count: int) -> None:
        if count > self.size - self.position:
            raise RecordError(
                "a GGUF file is truncated, or its header is damaged",
                where=str(self.path),
                expected=f"{count:,} bytes from byte {self.position:,} on",
                found=f"{self.size:,} bytes in all",
                hint=CUT,
            )

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int, keeps: bool = False, depth: int = 0) -> Any:
        """Read a value of the metadata; arrays are skipped, and None, unless `keeps` wants numbers."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY or depth > _DEEPEST:
            raise _damaged(self.path, f"metadata of type {kind}" + (" in arrays of arrays" * bool(depth)))
        item, count = self.number("I"), self.number("Q")
        if item in _SCALARS and keeps:
            self.check(count)
            return [self.number(_SCALARS[item]) for _ in range(count)]
        if item in _SCALARS:
            self.skip(count * struct.calcsize("<" + _SCALARS[item]))
            return None
        self.check(count * 8)  # before a loop of as many steps as a damaged number says
        for _ in range(count):
            if item == _STRING:
                self.skip(self.number("Q"))
            else:
                self.value(item, depth=depth + 1)
        return None


def open_gguf(path: Path, stack: ExitStack) -> Gguf:
    """Open a GGUF file to read its tensors one at a time."""
    file = stack.enter_context(path.open("rb", buffering=0))
    header = _Header(stack.enter_context(path.open("rb", buffering=0)), path)
    stack.callback(header.file.detach)
    metadata, descriptions = _read_header(header)
    start = _align(header.position, metadata, path)
    _check_places(descriptions, start, header)
    tensors: dict[str, StoredTensor] = {}
    quantized: dict[str, dict[str, Any]] = {}
    for description in descriptions:
        tensors |= _open_tensor(description, start, file, path, quantized)
    notes: tuple[str, ...] = ()
    if metadata.get("general.architecture") == "llama":
        tensors, quantized = _as_hugging_face(tensors, quantized, metadata, path)
        notes = ("with Hugging Face's names of Llama, and its order of rows",)
    return Gguf(tensors, quantized, metadata, notes)


def _read_header(header: _Header) -> tuple[dict[str, Any], list[_Description]]:
    header.take(len(MAGIC))
    version = header.number("I")
    if version not in _VERSIONS:
        is_big = version & 0xFFFF == 0 and version != 0
        raise RecordError(
            "a GGUF file of another version cannot be read",
            where=str(header.path),
            expected="version 2 or 3, little-endian",
            found="a big-endian file" if is_big else f"version {version}",
            hint="convert the model again with a recent llama.cpp",
        )
    num_tensors, num_entries = header.number("Q"), header.number("Q")
    check_count(num_tensors, str(header.path))
    header.check(num_tensors * 24 + num_entries * 12)
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = header.text()
        value = header.value(header.number("I"), keeps=key in _HEADS)
        if value is not None:
            metadata[key] = value
    descriptions = []
    for _ in range(num_tensors):
        name, axes = header.text(), header.number("I")
        if axes > _MOST_AXES:
            raise _damaged(header.path, f"{name[:200]!r} with {axes} axes")
        shape = tuple(reversed([header.number("Q") for _ in range(axes)]))
        descriptions.append(_Description(name, shape, header.number("I"), header.number("Q")))
    if len({description.name for description in descriptions}) < num_tensors:
        raise _damaged(header.path, "two tensors of one name")
    return metadata, descriptions


def _align(position: int, metadata: Mapping[str, Any], path: Path) -> int:
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise _damaged(path, f"{_ALIGNMENT} {alignment!r}")
    return -(-position // alignment) * alignment


def _num_bytes(description: _Description, path: Path) -> int:
    count = math.prod(description.shape)
    if description.kind in _DTYPES:
        return count * _DTYPES[description.kind].itemsize
    if description.kind in _BLOCK_BYTES:
        if not description.shape or description.shape[-1] % _BLOCK:
            raise _damaged(
                path, f"{description.name[:200]!r}: rows of shape {description.shape} in blocks of 32"
            )
        return count // _BLOCK * _BLOCK_BYTES[description.kind]
    name = _OTHER_TYPES.get(description.kind, f"number {description.kind}")
    raise RecordError(
        "a tensor of a GGUF file has a type that is not read",
        where=f"{path}: {description.name[:200]}",
        expected="F32, F16, BF16, Q4_0 or Q8_0",
        found=name,
        hint="llama.cpp's llama-quantize --allow-requantize in.gguf out.gguf Q8_0 converts it; or "
        "transformers' from_pretrained(folder, gguf_file=...) dequantizes it",
    )


def _check_places(descriptions: list[_Description], start: int, header: _Header) -> None:
    end = 0
    for description in sorted(descriptions, key=lambda d: d.offset):
        size = _num_bytes(description, header.path)
        # Without overlaps, the tensors take no more memory than the file has bytes.
        if description.offset < end:
            raise _damaged(header.path, f"{description.name[:200]!r} overlaps the tensor before it")
        end = description.offset + size
    if start + end > header.size:
        raise wrong_size("a GGUF file", header.path, start + end, header.size)


def _open_tensor(
    description: _Description, start: int, file: io.FileIO, path: Path, quantized: dict[str, dict[str, Any]]
) -> dict[str, StoredTensor]:
    name, shape, kind, offset = description
    if kind in _DTYPES:
        return {name: FileTensor(shape, _DTYPES[kind], file, start + offset)}
    layer, _, last = name.rpartition(".")
    if last != "weight" or len(shape) != 2:
        raise RecordError(
            "a quantized tensor of a GGUF file is not the weight of a linear layer or embedding",
            where=f"{path}: {name[:200]}",
            expected="the name of a layer, '.weight', and two axes",
            found=f"{shape}",
        )
    scheme = _SCHEMES[kind]
    rows, columns = shape
    blocks = FileTensor((rows, columns // _BLOCK, _BLOCK_BYTES[kind]), torch.uint8, file, start + offset)
    values_dtype = torch.int8 if kind == _Q8_0 else torch.uint8
    quantized[layer] = {"scheme": scheme.to_dict(), "bias": False}
    values_shape = (rows, columns // scheme.type.per_byte)
    return {
        f"{layer}.values": _BlockTensor(values_shape, values_dtype, blocks, "values", kind),
        f"{layer}.scale": _BlockTensor((rows, columns // _BLOCK), torch.float16, blocks, "scale", kind),
    }


def _as_hugging_face(
    tensors: dict[str, StoredTensor],
    quantized: dict[str, dict[str, Any]],
    metadata: Mapping[str, Any],
    path: Path,
) -> tuple[dict[str, StoredTensor], dict[str, dict[str, Any]]]:
    heads, kv_heads = (metadata.get(key) for key in _HEADS)
    counts = {"attn_q": heads, "attn_k": heads if kv_heads is None else kv_heads}
    sizes: dict[str, int] = {}  # of a head, which is that of queries and keys, by layer
    for name, stored in tensors.items():
        parts = name.split(".")
        if len(parts) < 2 or parts[-2] not in counts:
            continue
        count = counts[parts[-2]]
        if isinstance(count, list):  # one number for each layer
            layer = int(parts[1]) if parts[0] == "blk" and parts[1].isdecimal() else -1
            count = count[layer] if 0 <= layer < len(count) else None
        rows = stored.shape[0] if stored.shape else 0
        size = rows // count if type(count) is int and count > 0 else 0
        if (
            type(count) is not int
            or size == 0
            or rows % (2 * count)
            or sizes.setdefault(".".join(parts[:-2]), size) != size
        ):
            raise RecordError(
                "a GGUF file does not say how the rows of queries or keys are arranged",
                where=f"{path}: {name[:200]}",
                expected=f"a number of heads in {' and '.join(_HEADS)} that divides the rows by pairs, "
                "with heads of one size for queries and keys",
                found=f"{'no number' if count is None else repr(count)}, for shape {stored.shape}",
                hint="convert the model again with a recent llama.cpp",
            )
        tensors[name] = _halves_of_heads(stored, count)
    arranged = llama.arrange(tensors).tensors
    names = llama.arrange({layer: next(iter(tensors.values())) for layer in quantized}).origins
    return arranged, {new: quantized[old] for new, (old,) in names.items()}


def _damaged(path: Path, found: str) -> RecordError:
    return RecordError("the header of a GGUF file is damaged", where=str(path), found=found, hint=CUT)
