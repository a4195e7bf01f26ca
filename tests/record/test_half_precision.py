"""Weights in 16 bits: what stays in float32, and values that float16 cannot hold."""

import pytest
import torch

import burnt
from burnt import nn
from burnt.errors import RecordError
from burnt.record import Record, load_weights, read_tensors, read_weights
from tests.messages import raises

HALF, FULL = torch.float16, torch.float32


class Net(burnt.Module):
    conv: nn.Conv2d
    norm: nn.BatchNorm
    group: nn.GroupNorm
    head: nn.Linear

    def forward(self, images):
        return self.head(self.group(self.norm(self.conv(images))).mean((2, 3)))


class NetConfig(burnt.Config):
    def init(self) -> Net:
        return Net(nn.Conv2d(3, 4, 3), nn.BatchNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 2))


def trained():
    model = NetConfig().init()
    for _ in range(3):
        model(torch.randn(8, 3, 6, 6))
    with torch.no_grad():
        model.norm.running_var[0] = 3e-8  # 0 in float16
    return model.eval()


KEPT = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("folder", [False, True])
def test_a_saved_record_keeps_batch_norm_in_float32(tmp_path, dtype, folder):
    model = trained()
    if folder:
        model.into_record().save_folder(tmp_path / "m", dtype=dtype, shard_bytes=100)
        tensors = read_weights(tmp_path / "m").tensors
    else:
        model.save(tmp_path / "m", dtype=dtype)
        tensors, _ = read_tensors(tmp_path / "m")
    for path, value in model.state_dict().items():
        kept = path in KEPT or path == "norm.num_batches_tracked"
        assert tensors[path].dtype == (value.dtype if kept else dtype), path
        assert torch.equal(tensors[path], value.to(tensors[path].dtype))
    assert all(value.dtype in (FULL, torch.int64) for value in model.state_dict().values())  # unchanged
    other = Net.load(tmp_path / "m") if not folder else NetConfig().init()
    load_weights(other, tmp_path / "m")
    images = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(other.eval()(images), model(images), rtol=0.02, atol=0.02)


def test_a_model_loaded_in_float16_runs(tmp_path):
    model, other = trained(), NetConfig().init()
    report = load_weights(other, model.into_record(), dtype=HALF)
    found = {path: value.dtype for path, value in other.state_dict().items()}
    assert {path for path, dtype in found.items() if dtype == FULL} == KEPT
    assert set(report.cast) == {path for path, dtype in found.items() if dtype == HALF}
    assert other.norm.running_var[0] == model.norm.running_var[0] > 0
    images = torch.randn(2, 3, 6, 6)
    half = other.eval()(images.to(HALF))
    assert half.dtype == HALF
    torch.testing.assert_close(half.float(), model(images), rtol=0.05, atol=0.05)


def test_a_model_in_float64_is_converted_whole():
    model = trained().double()
    load_weights(model, trained().into_record(), dtype=FULL)
    assert {value.dtype for value in model.state_dict().values()} == {FULL, torch.int64}
    meta = NetConfig().init().to("meta")
    load_weights(meta, trained().into_record(), dtype=HALF)
    assert meta.norm.weight.dtype == FULL
    assert meta.head.weight.dtype == HALF


def test_patterns_keep_tensors(tmp_path):
    trained().into_record().save(tmp_path / "m", dtype=HALF, keep=["group", "head.bias"])
    tensors, _ = read_tensors(tmp_path / "m")
    assert {path for path, value in tensors.items() if value.dtype == FULL} == KEPT | {
        "group.weight",
        "group.bias",
        "head.bias",
    }
    with raises(RecordError, "did you mean 'group'?", match=r"the pattern 'grup' of keep= matches nothing"):
        trained().into_record().save(tmp_path / "other", dtype=HALF, keep="grup")
    assert not (tmp_path / "other").exists()


def test_what_is_not_converted(tmp_path):
    tensors = {
        "mask": torch.tensor([True, False]),
        "ids": torch.arange(3),
        "fft": torch.randn(2, dtype=torch.complex64),
        "small": torch.ones(2).to(torch.float8_e4m3fn),
        "scale": torch.tensor(0.1),
    }
    Record(tensors).save(tmp_path / "m", dtype=HALF)
    found, _ = read_tensors(tmp_path / "m")
    assert {path for path in tensors if found[path].dtype != tensors[path].dtype} == {"scale"}
    with raises(
        RecordError,
        "expected  torch.float64, torch.float32, torch.float16, torch.bfloat16",
        match=r"weights are not saved in torch\.int8",
    ):
        Record(tensors).save(tmp_path / "m", dtype=torch.int8)


def large(count=1):
    values = {f"{i}.weight": torch.full((2,), 7e4 * (i + 1)) for i in range(count)}
    return Record({"mask": torch.tensor([-torch.inf, 0.0]), "edge": torch.tensor([65519.0]), **values})


def test_values_that_float16_cannot_hold(tmp_path):
    (tmp_path / "m").write_text("old")
    with pytest.raises(
        RecordError, match=r"values of 7 of 9 tensors are too large for torch\.float16"
    ) as caught:
        large(7).save(tmp_path / "m", dtype=HALF)
    text = str(caught.value)
    assert "expected  magnitudes up to 65504" in text
    assert "found     0.weight: 7e+04\n            1.weight: 1.4e+05" in text
    assert "and 2 more" in text
    assert "bfloat16 has the range of float32, and keep='0.weight' (--keep) leaves a tensor as it is" in text
    assert (tmp_path / "m").read_text() == "old"
    large().save(tmp_path / "m", dtype=HALF, keep="0.weight")
    large().save(tmp_path / "m", dtype=torch.bfloat16)
    assert read_tensors(tmp_path / "m")[0]["mask"].tolist() == [-torch.inf, 0.0]


@pytest.mark.parametrize("already", [False, True])
def test_a_model_is_not_loaded_with_infinities(already):
    model = torch.nn.Linear(2, 1, bias=False)
    model = model.half() if already else model
    before = model.weight.clone()
    with raises(RecordError, "weight: 1e+05", match=r"values of 1 of 1 tensors are too large") as caught:
        load_weights(model, {"weight": torch.tensor([[1.0, -1e5]])}, dtype=None if already else HALF)
    assert "dtype=torch.bfloat16 has the range of float32; skip='weight' leaves a tensor out" in str(
        caught.value
    )
    assert torch.equal(model.weight, before)
    assert model.weight.dtype == before.dtype
