"""`Record.save_folder`: Hugging Face's layout, in one file or in shards."""

import json
import os

import pytest
import safetensors
import torch

import burnt
from burnt import nn
from burnt.errors import RecordError
from burnt.record import load_weights, read_weights, record_of


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
            assert file.metadata() == {"format": "pt"}
    load_weights(untied, tmp_path)
    assert all(torch.equal(value, model.state_dict()[path]) for path, value in untied.state_dict().items())
    record = read_weights(tmp_path)
    assert record.aliases == {"head.weight": "embed.weight"}
    assert record.model == model.into_record().model
    assert record.static == model.into_record().static


def test_wrappers_leave_no_prefix(tmp_path):
    inner = torch.nn.Linear(2, 2)
    compiled = torch.nn.Module()
    compiled._orig_mod = inner
    record = record_of(torch.nn.DataParallel(compiled))
    assert list(record.tensors) == ["weight", "bias"]
    assert record.model == "torch.nn.modules.linear.Linear"


def test_weights_that_are_there(tmp_path):
    record = tied().into_record()
    record.save_folder(tmp_path, shard_bytes=100)
    before = contents(tmp_path)
    for shard_bytes in (100, 10**9):
        with pytest.raises(RecordError, match="the folder has weights already") as caught:
            record.save_folder(tmp_path, shard_bytes=shard_bytes)
        assert "delete them" in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_or_an_interrupt_leaves_no_part(tmp_path, monkeypatch, name, call):
    (tmp_path / "config.json").write_text("{}")
    calls = 0
    home, real = (os, os.fsync) if name == "fsync" else (type(tmp_path), type(tmp_path).replace)

    def fails(*arguments):
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(28, "No space left on device") if name == "fsync" else KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(home, name, fails)
    try:
        tied().into_record().save_folder(tmp_path, shard_bytes=100)
    except (OSError, KeyboardInterrupt):
        assert list(contents(tmp_path)) == ["config.json"]
    else:
        assert calls < call
