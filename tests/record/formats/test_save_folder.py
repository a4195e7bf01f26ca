"""`Record.save_folder`: Hugging Face's layout, in one file or in shards."""

import json
import threading

import pytest
import safetensors
import torch

import burnt
from burnt import nn
from burnt.errors import RecordError
from burnt.record import Record, load_weights, read_weights, sources
from burnt.record.formats import folder
from tests import forked
from tests.messages import raises


class Tied(burnt.Module):
    embed: nn.Embedding
    inner: nn.Linear
    head: nn.Linear
    scale: float = 2.0


def tied():
    model = Tied(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6))
    model.head.weight = model.embed.weight
    return model


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_one_file(tmp_path):
    model, other = tied(), tied()
    model.into_record().save_folder(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.safetensors"]
    with safetensors.safe_open(tmp_path / "new" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == {"embed.weight", "inner.weight", "inner.bias", "head.bias"}
        assert file.metadata()["format"] == "pt"
    other.scale = 3.0
    report = load_weights(other, tmp_path / "new")
    assert report.static == {"scale": (2.0, 3.0)}
    assert torch.equal(other.head.weight, model.head.weight)
    other.into_record().save_folder(tmp_path / "new")  # one file replaces the other at once
    assert read_weights(tmp_path / "new").static == {"": {"scale": 3.0}}


def test_shards(tmp_path):
    model, untied = tied(), Tied(nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6))
    (tmp_path / "config.json").write_text("{}")
    model.into_record().save_folder(tmp_path, shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "embed.weight": "model-00001-of-00003.safetensors",
        "inner.weight": "model-00002-of-00003.safetensors",
        "inner.bias": "model-00002-of-00003.safetensors",
        "head.bias": "model-00003-of-00003.safetensors",
    }
    assert index["metadata"]["total_size"] == 4 * (24 + 16 + 4 + 6)
    for path, name in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / name, "pt") as file:
            assert torch.equal(file.get_tensor(path), model.state_dict()[path])
            metadata = file.metadata()
            assert metadata.pop("format") == "pt"
            assert set(metadata) == {"burnt.crc32", "burnt.crc32.json"}
    load_weights(untied, tmp_path)
    assert all(torch.equal(value, model.state_dict()[path]) for path, value in untied.state_dict().items())
    record = read_weights(tmp_path)
    assert record.aliases == {"head.weight": "embed.weight"}
    assert record.model == model.into_record().model
    assert record.static == model.into_record().static


def test_weights_of_this_layout_are_replaced(tmp_path):
    one, other = tied(), tied()
    sizes = [100, 10**9, 150, 150, 150]
    for i, size in enumerate(sizes):
        model = (one, other)[i % 2]
        model.into_record().save_folder(tmp_path, shard_bytes=size)
        report = load_weights(tied(), tmp_path)
        assert len(report.applied) == 5
        loaded = read_weights(tmp_path).tensors
        assert all(torch.equal(value, model.state_dict()[path]) for path, value in loaded.items())
        with_index = {"model.safetensors.index.json"} if size < 10**9 else set()
        named = (
            set(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"].values())
            if with_index
            else {"model.safetensors"}
        )
        assert set(contents(tmp_path)) == named | with_index
        first = sorted(named)[0]
    assert first == "model-00001-of-00002.safetensors"  # not -2-: these names were free again


@pytest.mark.parametrize("name", ["pytorch_model.bin", "other.safetensors", "pytorch_model.bin.index.json"])
def test_weights_of_another_layout_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    with raises(
        RecordError,
        f"found     {name}",
        "delete them: other programs might load these",
        match="the folder has weights of another layout",
    ):
        tied().into_record().save_folder(tmp_path)
    assert contents(tmp_path) == {name: b"weights"}


def test_a_file_cannot_have_no_bytes(tmp_path):
    with pytest.raises(RecordError, match="files cannot be that small"):
        tied().into_record().save_folder(tmp_path / "new", shard_bytes=0)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("saves", [1, 2, 3])
@pytest.mark.parametrize("size", [16, 1000])
def test_a_folder_that_is_replaced_while_it_is_opened(tmp_path, monkeypatch, saves, size):
    values = iter(range(1, 9))
    left = [saves]
    open_file = sources._open_file

    def save():
        value = float(next(values))
        Record({name: torch.full((4,), value) for name in "abc"}).save_folder(tmp_path, shard_bytes=size)

    def and_replace(path, stack):
        opened = open_file(path, stack)
        while left[0]:  # a second one has names of shards that the reader knows
            left[0] -= 1
            save()
        return opened

    Record({name: torch.zeros(4) for name in "abc"}).save_folder(tmp_path, shard_bytes=16)
    monkeypatch.setattr(sources, "_open_file", and_replace)
    loaded = read_weights(tmp_path).tensors
    assert {name: value.unique().tolist() for name, value in loaded.items()} == {
        name: [float(saves)] for name in "abc"
    }


def test_a_folder_that_is_replaced_all_the_time(tmp_path, monkeypatch):
    record = Record({name: torch.zeros(4) for name in "abc"})
    record.save_folder(tmp_path, shard_bytes=16)
    open_file = sources._open_file

    def and_replace(path, stack):
        record.save_folder(tmp_path, shard_bytes=16)
        return open_file(path, stack)

    monkeypatch.setattr(sources, "_open_file", and_replace)
    with pytest.raises(RecordError, match="replaced again and again"):
        read_weights(tmp_path)


def test_an_interrupt_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tied().into_record().save_folder(tmp_path, shard_bytes=100)
    assert list(contents(tmp_path)) == ["config.json"]


def record_of(value):
    return Record({f"w{i}": torch.full((50,), float(value)) for i in range(6)})


def test_a_save_waits_for_another_one(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    waiting = threading.Event()
    second = threading.Thread(target=lambda: record_of(2).save_folder(tmp_path, shard_bytes=300))
    lock, write = fcntl.flock, folder.write_stored

    def flock(handle, kind):
        if threading.current_thread() is second:
            waiting.set()
        lock(handle, kind)

    def write_stored(*arguments):
        if threading.current_thread() is not second and second.ident is None:
            second.start()
            assert waiting.wait(20)
        return write(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(folder, "write_stored", write_stored)
    record_of(1).save_folder(tmp_path, shard_bytes=300)
    second.join()
    assert {float(tensor.mean()) for tensor in read_weights(tmp_path).tensors.values()} == {2.0}
    assert len(list(tmp_path.glob("model*.safetensors"))) == 6


_ALL_SAVE = """
import os, sys, torch
from burnt.record import Record, read_weights

for trial in range(30):
    folder, children = f"{sys.argv[1]}/{trial}", []
    begin, go = os.pipe()
    for rank in range(2):
        if not (child := os.fork()):
            record = Record({f"w{i}": torch.full((50,), float(rank)) for i in range(6)})
            os.read(begin, 1)
            for _ in range(3):
                record.save_folder(folder, shard_bytes=300)
                record.save(f"{folder}.safetensors")
            os._exit(0)
        children.append(child)
    os.write(go, b"xx")
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    for path in (folder, f"{folder}.safetensors"):
        tensors = read_weights(path).tensors
        assert len(tensors) == 6 and len({float(tensor.mean()) for tensor in tensors.values()}) == 1
"""


@pytest.mark.full
def test_all_processes_of_a_training_save_to_one_place(tmp_path):
    done = forked.run(_ALL_SAVE, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
