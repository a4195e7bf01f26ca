"""Checksums in files of weights: what they are, and that no changed bit is loaded."""

from __future__ import annotations

import json
import os
import random
import re
import struct
import zlib

import pytest
import safetensors.torch
import torch

import burnt
from burnt import nn
from burnt.errors import RecordError
from burnt.record import Record, convert_weights, load_weights, read_tensors, read_weights, write_tensors
from tests.messages import raises


class Net(burnt.Module):
    layer: nn.Linear
    scale: float = 2.0


class NetConfig(burnt.Config):
    width: int = 3

    def init(self) -> Net:
        return Net(nn.Linear(2, self.width))


def saved(path) -> Net:
    torch.manual_seed(0)
    model = NetConfig().init()
    model.save(path)
    return model


def header_of(path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 : 8 + length]


def test_what_they_are(tmp_path):
    """CRC-32 of the bytes that safetensors itself reads, and of the header with zeros for its own."""
    path = tmp_path / "m.safetensors"
    tensors = {
        "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "empty": torch.empty(0, 2),
        "b": torch.tensor(-1, dtype=torch.int8),
        "flags": torch.tensor([True, False]),
        "strided": torch.arange(6.0).reshape(2, 3).mT,
        "ü": torch.ones(3, dtype=torch.complex64),
    }
    write_tensors(path, tensors, {"some": "document"}, metadata={"other": "program"})
    header, text = header_of(path)
    metadata = header.pop("__metadata__")
    assert metadata["other"] == "program"
    read = safetensors.torch.load_file(path)
    expected = [
        zlib.crc32(read[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()) for name in header
    ]
    assert metadata["burnt.crc32"] == " ".join(f"{crc:08x}" for crc in expected)
    own = metadata["burnt.crc32.json"]
    assert text.count(own.encode()) == 1
    assert own == f"{zlib.crc32(text.replace(own.encode(), b'0' * 8)):08x}"
    again, document = read_tensors(path)
    assert document == {"some": "document"}
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("suffix", [".safetensors", ".bpk"])
def test_every_changed_byte_is_noticed(tmp_path, suffix):
    path = tmp_path / f"m{suffix}"
    model = saved(path)
    data, rng = path.read_bytes(), random.Random(0)
    gaps: set[int] = set()
    if suffix == ".bpk":  # the zeros that align the header and the values say nothing
        (length,) = struct.unpack("<I", data[6:10])
        start = -(-(10 + length) // 256) * 256
        gaps = {*range(10 + length, start), *range(start + 24, start + 256)}
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for position in range(0, len(data), 3 if gaps else 1):
        changed = bytearray(data)
        changed[position] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        read = (Record.load, read_weights)[position // 3 % 2]
        if position not in gaps:
            with pytest.raises(RecordError):
                read(path)
        elif position % 12 == 0:
            assert all(torch.equal(read(path).tensors[name], value) for name, value in values.items())
    path.write_bytes(data)
    assert Net.load(path).scale == 2.0


def test_the_message(tmp_path):
    path = tmp_path / "m.safetensors"
    model = saved(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x40
    path.write_bytes(data)
    for load in (Net.load, Record.load, lambda p: load_weights(model, p), read_weights):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(
            RecordError, match="values of a tensor have changed since they were written"
        ) as caught:
            load(path)
        text = str(caught.value)
        assert f"in        {path}: layer.bias\n" in text
        found = zlib.crc32(bytes(data[-12:]))
        assert re.search(
            rf"expected  CRC-32 (?!{found:08x})[0-9a-f]{{8}}\n  found     CRC-32 {found:08x}\n", text
        )
        assert "take another copy, or of a run an older checkpoint" in text
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_programs_that_edit_a_file_leave_them_out(tmp_path):
    """Another program's header is another one: keeping the checksums would call each edit damage."""
    path = tmp_path / "m.safetensors"
    saved(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    edited = {name: tensor + 1 for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(edited, path, metadata)
    with pytest.raises(RecordError, match=r"must leave out burnt\.crc32 and burnt\."):
        Net.load(path)
    safetensors.torch.save_file(edited, path, {"burnt": metadata["burnt"]})
    assert torch.equal(Net.load(path).layer.bias, edited["layer.bias"])


def test_files_without(tmp_path):
    path, model = tmp_path / "m.safetensors", NetConfig().init()
    safetensors.torch.save_file(model.state_dict(), path)
    again = NetConfig().init()
    load_weights(again, path)
    assert torch.equal(again.layer.weight, model.layer.weight)
    convert_weights(path, tmp_path / "again.safetensors")
    assert "burnt.crc32" in header_of(tmp_path / "again.safetensors")[0]["__metadata__"]


@pytest.mark.parametrize("target", ["other.safetensors", "m.bpk", "m.npz", "folder/"])
def test_conversions_check_what_they_read_and_write_new_ones(tmp_path, target):
    path = tmp_path / "m.safetensors"
    model = saved(path)
    convert_weights(path, f"{tmp_path}/{target}", dtype=torch.float16)
    assert torch.equal(read_weights(tmp_path / target).tensors["layer.weight"], model.layer.weight.half())
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RecordError, match="have changed since they were written"):
        convert_weights(path, f"{tmp_path}/more.{target}")


def test_shards(tmp_path):
    first, second = (Record({"a": torch.full((30,), x), "b": torch.full((30,), x)}) for x in (1.0, 2.0))
    for name, record in (("one", first), ("two", second)):
        record.save_folder(tmp_path / name, shard_bytes=120)
    assert torch.equal(read_weights(tmp_path / "one").tensors["b"], torch.ones(30))
    index = tmp_path / "one" / "model.safetensors.index.json"
    text = index.read_bytes()
    assert json.loads(text)["metadata"]["total_size"] == 240
    for position in range(0, len(text), 7):
        changed = bytearray(text)
        changed[position] ^= 1 << position % 7
        index.write_bytes(changed)
        with pytest.raises(RecordError):
            read_weights(tmp_path / "one")
    index.write_bytes(text)
    shard = "model-00002-of-00002.safetensors"
    (tmp_path / "one" / shard).write_bytes((tmp_path / "two" / shard).read_bytes())
    with raises(
        RecordError,
        f"in        {tmp_path / 'one' / shard}\n",
        match="a shard belongs to other weights than the index",
    ):
        read_weights(tmp_path / "one")


def test_names_that_look_like_checksums(tmp_path):
    names = ['burnt.crc32.json":"00000000', "pburnt.crc32.jsonh00000000"]
    names += ["burnt.crc32", "burnt.crc32.json", "00000000"]
    record = Record({name: torch.tensor([float(i)]) for i, name in enumerate(names)})
    for suffix in (".safetensors", ".bpk"):
        record.save(tmp_path / f"m{suffix}")
        assert dict(Record.load(tmp_path / f"m{suffix}").tensors) == record.tensors
    record.save_folder(tmp_path / "folder", shard_bytes=4)
    assert dict(read_weights(tmp_path / "folder").tensors) == record.tensors


def test_a_header_with_a_false_checksum_of_its_own_values(tmp_path):
    """The header's checksum is right, those of the tensors are not numbers."""
    path = tmp_path / "m.safetensors"
    Record({"a": torch.ones(1)}).save(path)
    data = path.read_bytes()
    _, text = header_of(path)
    header = json.loads(text)["__metadata__"]
    text = text.replace(header["burnt.crc32"].encode(), b"zzzzzzzz", 1)
    text = text.replace(header["burnt.crc32.json"].encode(), b"0" * 8)
    seal = f"{zlib.crc32(text):08x}".encode()
    text = text.replace(b'json":"00000000', b'json":"' + seal)
    path.write_bytes(data[:8] + text + data[8 + len(text) :])
    with pytest.raises(RecordError, match="header of a file has changed"):
        Record.load(path)


def test_checking_takes_little_memory(tmp_path):
    """The values are read a MiB at a time."""
    from burnt.record.formats import safetensors_file

    path = tmp_path / "m.safetensors"
    Record({"a": torch.arange(3 << 18)}).save(path)
    model = torch.nn.Module()
    model.register_buffer("a", torch.zeros(3 << 18, dtype=torch.int64))
    reads: list[int] = []
    read = safetensors_file.FileTensor._read

    def counted(self, out, first):
        reads.append(out.nbytes)
        return read(self, out, first)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors_file.FileTensor, "_read", counted)
        load_weights(model, path)
    assert reads == [1 << 20] * 6 + [6 << 20]
    assert os.path.getsize(path) > 6 << 20
