"""Damaged and malicious files of weights: a clear error, in bounded time and memory; nothing is executed."""

import ast
import collections
import json
import os
import random
import re
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import burnt
from burnt.errors import RecordError
from burnt.record import load_weights, read_weights
from burnt.record.formats.burnpack_file import write_burnpack
from burnt.record.stored import MemoryTensor


@pytest.fixture
def model():
    return torch.nn.Linear(2, 2)


def refused(match, *arguments):
    with pytest.raises(RecordError, match=match) as caught:
        load_weights(*arguments)
    return str(caught.value)


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(first, last, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


def small_files(folder, state):
    torch.save({"epoch": 3, "state_dict": state}, folder / "m.pt")
    torch.save(state, folder / "m.legacy", _use_new_zipfile_serialization=False)
    np.savez(folder / "m.npz", **{name: value.numpy() for name, value in state.items()})
    np.savez_compressed(folder / "c.npz", **{name: value.numpy() for name, value in state.items()})
    safetensors.torch.save_file(state, folder / "m.safetensors")
    write_burnpack(folder / "m.bpk", {name: MemoryTensor.of(value) for name, value in state.items()}, None)


KINDS = ["m.pt", "m.legacy", "m.npz", "c.npz", "m.safetensors", "m.bpk"]


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_off_anywhere(tmp_path, model, kind, step):
    small_files(tmp_path, model.state_dict())
    load_weights(model, tmp_path / kind)
    data = (tmp_path / kind).read_bytes()
    before = [p.tolist() for p in model.parameters()]
    for length in range(0, len(data), step):
        (tmp_path / kind).write_bytes(data[:length])
        message = refused(r"damaged|truncated|not a tensor file|did not write", model, tmp_path / kind)
        assert str(tmp_path / kind) in message
    assert [p.tolist() for p in model.parameters()] == before


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_bytes_anywhere_raise_nothing_else(tmp_path, model, kind):
    small_files(tmp_path, model.state_dict())
    data = (tmp_path / kind).read_bytes()
    draw = random.Random(0)
    refusals = 0
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 3])):
            damaged[draw.randrange(len(data))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        (tmp_path / kind).write_bytes(damaged)
        try:
            load_weights(model, tmp_path / kind)
        except RecordError:
            refusals += 1
    assert refusals > 25


class TestSafetensors:
    @pytest.mark.parametrize(
        ("header", "size", "message"),
        [
            ({"a": entry(0, 8), "b": entry(4, 8)}, 8, "header of a tensor file is damaged"),
            ({"a": entry(0, 4), "b": entry(0, 4)}, 4, "header of a tensor file is damaged"),
            ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "header of a tensor file is damaged"),
            ({"a": entry(4, 0)}, 0, "header of a tensor file is damaged"),
            ({"a": entry(-4, 0)}, 0, "header of a tensor file is damaged"),
            ({"a": entry(0, 4, (2,))}, 4, "header of a tensor file is damaged"),
            ({"a": entry(0, 4, (-1, -1))}, 4, "header of a tensor file is damaged"),
            ({"a": entry(0, 0, (0, 2**63))}, 0, "header of a tensor file is damaged"),
            ({"a": entry(0, 4, (1.5,))}, 4, "header of a tensor file is damaged"),
            ({"a": entry(0, 4, dtype="F4")}, 4, "dtype that torch lacks"),
            ({"a": entry(0, 8)}, 4, "truncated"),
            ({"a": entry(0, 4)}, 5, "bytes too many"),
            ({"a": entry(0, 2**70, (2**68,))}, 4, "truncated"),
            (b"[" * 100_000, 0, "header of a tensor file is damaged"),
            (b'{"a":' * 50_000, 0, "header of a tensor file is damaged"),
            (b"{} ", 0, "does not fit"),
        ],
    )
    def test_headers(self, tmp_path, model, header, size, message):
        text = refused(message, model, write(tmp_path / "m", header, bytes(size)))
        assert str(tmp_path / "m") in text

    @pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**8 + 8, 200, 0, 1])
    def test_lengths_of_the_header(self, tmp_path, model, length):
        (tmp_path / "m").write_bytes(struct.pack("<Q", length) + b"{}" + bytes(100))
        refused("not a tensor file, or only its beginning", model, tmp_path / "m")

    def test_too_many_tensors(self, tmp_path, model, monkeypatch):
        count = burnt.record.formats.safetensors_file.MOST_TENSORS + 1
        header = b'{"a":"' + b'"data_offsets"' * count + b'"}'
        start = time.process_time()
        text = refused("too many tensors", model, write(tmp_path / "m", header))
        assert "expected  at most 500,000" in text
        assert time.process_time() - start < 2
        monkeypatch.setattr("burnt.record.formats.safetensors_file.MOST_TENSORS", 2)
        state = {str(i): torch.ones(1) for i in range(3)}
        small_files(tmp_path, state)
        for kind in ("m.pt", "m.npz", "c.npz", "m.safetensors"):
            refused("too many tensors", model, tmp_path / kind)
        (tmp_path / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {str(i): "m" for i in range(3)}})
        )
        refused("too many tensors", model, tmp_path)

    @pytest.mark.full
    def test_a_hundred_thousand_tensors_that_do_not_fit(self, tmp_path, model):
        header = {f"layers.{i}.weight": entry(i, i + 1, dtype="U8") for i in range(99_000)}
        start = time.process_time()
        text = refused("99,001 of 99,002 tensors", model, write(tmp_path / "m", header, bytes(99_000)))
        assert time.process_time() - start < 12
        assert "and 98,989 more" in text

    def test_a_file_that_shrinks_while_it_is_read(self, tmp_path, model):
        small_files(tmp_path, model.state_dict())
        path = tmp_path / "m.safetensors"
        verify = burnt.record.formats.safetensors_file.FileTensor.verify
        try:
            burnt.record.formats.safetensors_file.FileTensor.verify = lambda *_: os.truncate(path, 100)
            assert "load a complete file" in refused("became shorter while it was read", model, path)
        finally:
            burnt.record.formats.safetensors_file.FileTensor.verify = verify


class Reduces:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.parts = function, arguments

    def __reduce__(self):
        return self.parts


class Whole(torch.nn.Module):
    pass


@pytest.mark.parametrize("zipped", [True, False])
class TestTorch:
    def save(self, value, path, zipped):
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
        return path

    def test_nothing_is_executed(self, tmp_path, model, zipped):
        for function, arguments, name in [
            (os.system, (f"touch {tmp_path}/executed",), "posix.system"),
            (eval, (f"open('{tmp_path}/executed', 'w')",), r"builtin\w*.eval"),
            (bytearray, (10**12,), r"builtin\w*.bytearray"),
            (torch.load, ("x",), r"torch.serialization.load|Unsupported global|damaged"),
            (torch.hub.load, ("x",), "torch.hub.load"),
        ]:
            path = self.save({"weight": Reduces(function, *arguments)}, tmp_path / "m.pt", zipped)
            text = refused("besides tensors|damaged", model, path)
            assert re.search(name, text), text
        assert not (tmp_path / "executed").exists()

    @pytest.mark.parametrize("make", [Whole, lambda: torch.nn.Linear(2, 2)])
    def test_a_whole_model_is_refused_with_how_to_convert_it(self, tmp_path, model, zipped, make):
        text = refused(
            "or a whole model; they are not unpickled", model, self.save(make(), tmp_path / "m.pt", zipped)
        )
        assert "torch.save(torch.load(path, weights_only=False).state_dict(), 'w.pt')" in text
        assert "Whole" in text or "torch.nn.modules.linear.Linear" in text

    def test_the_conversion_in_the_hint(self, tmp_path, model, zipped):
        path = self.save(torch.nn.Linear(2, 2), tmp_path / "m.pt", zipped)
        torch.save(torch.load(path, weights_only=False).state_dict(), tmp_path / "w.pt")
        load_weights(model, tmp_path / "w.pt")

    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.zeros(1).expand(10**9),
            lambda: torch.eye(3).to_sparse(),
            lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
            lambda: torch.ones(3, device="meta"),
        ],
    )
    def test_tensors_without_a_value_for_each_element(self, tmp_path, model, zipped, make):
        path = self.save({"weight": make()}, tmp_path / "m.pt", zipped)
        assert path.stat().st_size < 3000
        start = time.process_time()
        text = refused("not stored as plain values", model, path)
        assert "m.pt: weight" in text
        assert time.process_time() - start < 2

    @pytest.mark.parametrize("size", [8, 10**6, 10**13])
    def test_elements_beyond_the_storage(self, tmp_path, model, zipped, size):
        storage = torch.storage.TypedStorage(
            wrap_storage=torch.ones(4).untyped_storage(), dtype=torch.float32, _internal=True
        )
        rebuilt = Reduces(
            torch._utils._rebuild_tensor_v2, storage, 0, (size,), (1,), False, collections.OrderedDict()
        )
        refused("a PyTorch file is damaged", model, self.save({"weight": rebuilt}, tmp_path / "m.pt", zipped))

    def test_arguments_that_take_years_to_hash(self, tmp_path, model, zipped):
        nested = ()
        for _ in range(60):
            nested = (nested, nested)
        for value in (
            {"weight": Reduces(torch.Size, nested)},
            Reduces(collections.OrderedDict, [[nested, 1]]),
        ):
            start = time.process_time()
            refused("a PyTorch file is damaged", model, self.save(value, tmp_path / "m.pt", zipped))
            assert time.process_time() - start < 2

    def test_other_protocols(self, tmp_path, model, zipped):
        torch.save(
            model.state_dict(), tmp_path / "m.pt", pickle_protocol=4, _use_new_zipfile_serialization=zipped
        )
        text = refused("objects besides tensors|did not write", model, tmp_path / "m.pt")
        assert "STACK_GLOBAL" in text or "torch.save its tensors" in text


class TestZip:
    def test_a_bomb(self, tmp_path, model):
        with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("m/data.pkl", b"\x80\x02" + b"N" * 10**7)
        assert "'m/data.pkl', compressed" in refused("a PyTorch file is damaged", model, tmp_path / "m.pt")

    def test_a_key_that_takes_years_to_hash(self, tmp_path, model):
        # {t: 1}, where t is (t, t) sixty times over.
        pickled = b"\x80\x02})q\0" + b"h\0\x86q\0" * 60 + b"K\1s."
        with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
            archive.writestr("m/data.pkl", pickled)
        assert "keys that are tuples of tuples" in refused(
            "PyTorch file is damaged", model, tmp_path / "m.pt"
        )

    def test_a_pickle_without_end(self, tmp_path, model, monkeypatch):
        monkeypatch.setattr("burnt.record.formats.torch_file._MOST_INSTRUCTIONS", 20_000)
        for pickled in (b"N" * 30_000, b"N" * 10_000 + b"(t0" * 10_000):
            with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
                archive.writestr("m/data.pkl", b"\x80\x02" + pickled)
            start = time.process_time()
            assert "20,000 instructions" in refused("PyTorch file is damaged", model, tmp_path / "m.pt")
            assert time.process_time() - start < 1

    def test_a_zip_of_something_else(self, tmp_path, model):
        with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
            archive.writestr("readme.txt", b"")
        assert "torch does not write" in refused("a PyTorch file is damaged", model, tmp_path / "m.pt")

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_torchscript_program(self, tmp_path, model):
        torch.jit.save(torch.jit.script(model), tmp_path / "m.pt")
        assert "torch.jit.load(path).state_dict()" in refused("TorchScript program", model, tmp_path / "m.pt")

    def test_the_name_of_a_safetensors_file(self, tmp_path, model):
        torch.save(model.state_dict(), tmp_path / "m.safetensors")
        assert "rename it" in refused("has the name of a safetensors file", model, tmp_path / "m.safetensors")

    def test_a_wrong_checksum_is_found_before_anything_is_loaded(self, tmp_path, model):
        small_files(tmp_path, {"weight": torch.randn(2, 2), "bias": torch.tensor([1.5, 2.5])})
        data = bytearray((tmp_path / "m.npz").read_bytes())
        with zipfile.ZipFile(tmp_path / "m.npz") as archive:
            member = archive.getinfo("bias.npy")
        data[member.header_offset + 30 + len("bias.npy") + 20 + member.compress_size - 1] ^= 1
        (tmp_path / "m.npz").write_bytes(data)
        before = [p.tolist() for p in model.parameters()]
        assert "bias.npy" in refused("array of a .npz file is damaged", model, tmp_path / "m.npz")
        assert [p.tolist() for p in model.parameters()] == before

    def test_an_array_larger_than_its_member(self, tmp_path, model):
        np.savez(tmp_path / "m.npz", weight=np.ones((2, 2), np.float32), bias=np.ones(2, np.float32))
        data = (tmp_path / "m.npz").read_bytes().replace(b"(2, 2)", b"(2e9,)", 1)
        (tmp_path / "m.npz").write_bytes(data)
        refused("array of a .npz file is damaged", model, tmp_path / "m.npz")
        with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive, archive.open("weight.npy", "w") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
            )
        assert "a header of shape" in refused("array of a .npz file is damaged", model, tmp_path / "m.npz")


def test_nothing_but_tensors_is_unpickled():
    """`torch.load` is called in one place, with its restricted unpickler, and nothing else unpickles."""
    calls = [
        (file.name, name, {argument.arg: ast.unparse(argument.value) for argument in node.keywords})
        for file in Path(burnt.__file__).parent.rglob("*.py")
        if re.search(
            r"\b(torch|pickle|np|numpy|joblib|dill)\.loads?\b|allow_pickle", text := file.read_text()
        )
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and re.search(r"load", name := ast.unparse(node.func))
    ]
    unpickling = [call for call in calls if re.search(r"^(torch|pickle|np|numpy|joblib|dill)\.", call[1])]
    # What worker processes of a loader and the child of a check send comes from the same program, through a
    # socket or pipe of its own. Workers try with an exception of theirs whether it can be sent.
    own = {(f"{name}.py", "pickle.loads") for name in ("workers", "meta")}
    own.add(("iterable_loader.py", "np.load"))
    (restricted,) = [call for call in unpickling if call[:2] not in own]
    assert restricted[:2] == ("torch_file.py", "torch.load")
    assert restricted[2]["weights_only"] == "True"
    assert all(arguments.get("allow_pickle", "False") == "False" for _, _, arguments in calls)


def test_read_weights_makes_the_same_checks(tmp_path):
    torch.save({"weight": torch.zeros(1).expand(10**9)}, tmp_path / "m.pt")
    with pytest.raises(RecordError, match="not stored as plain values"):
        read_weights(tmp_path / "m.pt")
