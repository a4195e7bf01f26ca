"""What earlier versions of burnt wrote stays readable; see fixtures/README.md."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import burnt
from burnt import nn
from burnt.errors import CheckpointError, RecordError
from burnt.optim import OptimizerRecord
from burnt.record import FORMAT, Record, load_weights, read_weights
from burnt.train import EarlyStopping, SupervisedTraining
from burnt.train.checkpoints.checkpoint import FORMAT as CHECKPOINT_FORMAT
from burnt.train.checkpoints.checkpoint import Checkpoints
from burnt.train.metrics import Loss
from tests.messages import raises
from tests.record.fixtures.make import Inner, batches, make_learner

FIXTURES = Path(__file__).parent / "fixtures"
CHECKPOINT = "step-00000005"


def versions(name):
    paths = sorted(FIXTURES.glob(f"*/{name}"))
    assert paths
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.parent.name)


def newer(path):
    """Return a copy of the contents of a file, of the format after this one."""
    contents = path.read_bytes()
    assert contents.count(rb"\"format\": 1,") == 1
    return contents.replace(rb"\"format\": 1,", rb"\"format\": 2,")


def test_each_version_is_here():
    """A new format needs fixtures of the one before."""
    assert FORMAT == CHECKPOINT_FORMAT == 1


def check_record(record):
    values = {name: tensor.flatten().tolist() for name, tensor in record.tensors.items()}
    assert values == {
        "first.weight": [0.25, 0.5, 0.75, 1.0],
        "first.bias": [1.25, 1.5],
        "second.bias": [1.75, 2.0],
    }
    assert record.aliases == {"second.weight": "first.weight"}
    assert record.model.endswith(".Inner")
    assert record.config_type.endswith(".Inner.Config")
    assert record.config == {"size": 2, "scale": 3.0}
    assert record.static == {"": {"scale": 3.0}}


@versions("record.safetensors")
def test_records(path):
    check_record(Record.load(path))
    check_record(read_weights(path))
    model = Inner.load(path)
    assert model.scale == 3.0
    assert model.second.weight is model.first.weight
    assert model.second.weight.tolist() == [[0.25, 0.5], [0.75, 1.0]]
    report = load_weights(Inner.Config().init(), path)
    assert report.static == {"scale": (3.0, 2.0)}


@versions("shards")
def test_folders_of_shards(path):
    check_record(read_weights(path))


@versions("lora.safetensors")
def test_adapters(path):
    model = torch.nn.Sequential(nn.Linear(2, 2))
    assert nn.load_lora(model, path) == ["0"]
    trained = {name: p.flatten().tolist() for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"0.lora_A.weight": [1.75, 2.0], "0.lora_B.weight": [2.25, 2.5]}


@versions("optimizer.safetensors")
def test_optimizers(path):
    record = OptimizerRecord.load(path)
    assert record.optimizer == "AdamW"
    assert record.options["weight_decay"] == 0.5
    assert {name: tuple(tensor.shape) for name, tensor in record.tensors.items()} == {
        f"{path}/{name}": () if name == "step" else shape
        for path, shape in {"weight": (1, 2), "bias": (1,)}.items()
        for name in ("step", "exp_avg", "exp_avg_sq")
    }
    optimizer = make_learner().optimizer
    optimizer.load_record(record)
    assert optimizer.into_record().tensors["bias/step"].item() == 8


def resume(folder):
    learner = make_learner()
    SupervisedTraining(
        folder,
        train=batches(),
        valid=batches()[:1],
        duration="2 epochs",
        stopping=EarlyStopping("loss", patience="9 epochs"),
        monitor="off",
        device="cpu",
        check=False,
        resume=True,
    ).run(learner)
    return learner


@versions("checkpoint.zip")
class TestCheckpoints:
    @pytest.fixture
    def folder(self, path, tmp_path):
        shutil.unpack_archive(path, tmp_path / "checkpoints")
        return tmp_path

    def test_the_parts(self, folder):
        checkpoints = Checkpoints(folder / "checkpoints")
        (saved,) = checkpoints.saved()
        assert saved.values["valid/loss"] == pytest.approx(0.14374234)
        model, loss = nn.Linear(2, 1), Loss()
        loaded = checkpoints.load(saved.path, model, [loss])
        assert (loaded.position.step, loaded.position.epoch, loaded.position.batch) == (5, 1, 1)
        assert not loaded.position.pending
        assert loaded.optimizer.optimizer == "AdamW"
        assert loaded.optimizer.options["weight_decay"] == 0.5
        assert loaded.optimizer.tensors["weight/step"].item() == 5
        assert loaded.last_values().keys() == {"train/loss", "valid/loss"}
        assert loss.count == 2
        state, states = torch.get_rng_state(), (random.getstate(), np.random.get_state())
        try:
            for rng in (loaded.rng, loaded.epoch_rng):
                rng.restore()
                assert torch.get_rng_state()[24:28].tolist() == [1, 1, 1, 1]
                assert random.getstate() == (3, (1,) * 624 + (624,), None)
                assert np.random.get_state()[1].tolist() == [1] * 624
        finally:
            torch.set_rng_state(state)
            random.setstate(states[0])
            np.random.set_state(states[1])

    def test_a_resumed_training_ends_as_it_would_have(self, folder, path):
        learner = resume(folder)
        # What each version printed for the same training without a break.
        expected = {"weight": torch.tensor([[0.46778408, 0.61696392]]), "bias": torch.tensor([0.39344122])}
        torch.testing.assert_close(dict(learner.model.named_parameters()), expected, rtol=0, atol=1e-6)
        if path.parent.name in ("8c484130", "7f04d5d6"):  # with a Plateau, and the loss that it saw
            assert learner.schedule.best == pytest.approx(0.14374234)

    def test_a_checkpoint_of_a_newer_version(self, folder):
        file = folder / "checkpoints" / CHECKPOINT / "training.safetensors"
        file.write_bytes(newer(file))
        with raises(
            CheckpointError,
            "found     format 2",
            "upgrade burnt",
            match="newer format than this burnt can read",
        ):
            resume(folder)


@versions("[rl]*.safetensors")  # records and adapters
def test_files_of_a_newer_version(path, tmp_path):
    file = tmp_path / path.name
    file.write_bytes(newer(path))
    model = torch.nn.Sequential(nn.Linear(2, 2))
    readers = [Record.load, read_weights, Inner.load, lambda file: load_weights(model, file)]
    if path.stem == "lora":
        readers.append(lambda file: nn.load_lora(model, file))
    for read in readers:
        with raises(
            RecordError,
            f"in        {file}\n  expected  format 1\n  found     format 2",
            "a newer burnt wrote this file: upgrade burnt",
            match="a record of a newer format cannot be read",
        ):
            read(file)


@versions("shards")
def test_folders_of_a_newer_version(path, tmp_path):
    shutil.copytree(path, tmp_path / "shards")
    index = tmp_path / "shards" / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(RecordError, match="a record of a newer format cannot be read"):
        burnt.load_weights(Inner.Config().init(), tmp_path / "shards")
