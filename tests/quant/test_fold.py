"""Batch norms are folded where that changes nothing, and only there."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.nn.quantized import Folded
from burnt.quant.fold import fold_batch_norm
from burnt.record import record_of


def trained(norm: nn.Module) -> nn.Module:
    """Return the norm in evaluation, with values that differ from the initial ones."""
    with torch.no_grad():
        for tensor in (*norm.parameters(), *norm.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return norm.eval()


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Linear(3, 4), nn.BatchNorm1d(4), (5, 3)),
        (nn.Linear(3, 4, bias=False), burnt.nn.BatchNorm(4), (5, 3)),
        (nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, affine=False), (2, 2, 6)),
        (burnt.nn.Conv2d(2, 4, 3, groups=2, bias=False), burnt.nn.BatchNorm(4, bias=False), (2, 2, 6, 5)),
        (nn.Conv3d(1, 2, 2), nn.SyncBatchNorm(2), (2, 1, 3, 4, 3)),
    ],
)
def test_the_folded_layer_computes_both(layer: nn.Module, norm: nn.Module, shape: tuple[int, ...]):
    torch.manual_seed(0)
    norm, inputs = trained(norm), torch.randn(shape)
    before = layer.get_parameter("weight").clone()
    expected = copy.deepcopy(norm).double()(copy.deepcopy(layer).double()(inputs.double()))
    torch.testing.assert_close(fold_batch_norm(layer, norm)(inputs).double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(layer.get_parameter("weight"), before)


class Model(nn.Module):
    """A convolution and a batch norm, between which a function says what happens."""

    def __init__(self, between: Callable[["Model", Tensor], Tensor | tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), trained(nn.BatchNorm2d(4))
        self.between = between

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return self.between(self, self.conv(x))


@pytest.mark.parametrize(
    ("between", "is_folded"),
    [
        (lambda m, y: m.bn(y).relu(), True),
        (lambda m, y: m.bn(nn.functional.dropout(y, training=m.training)), True),
        (lambda m, y: m.bn(y) + y, False),
        (lambda m, y: m.bn(y.relu()), False),
        (lambda m, y: m.bn(y.relu_()), False),
        (lambda m, y: m.bn(y) + m.bn(y * 2), False),
        (lambda m, y: m.bn(y[:, :, :1]), False),
        (lambda m, y: y, False),
        (lambda m, y: (m.bn(y), y), False),
    ],
)
def test_a_norm_is_folded_where_it_alone_reads_the_output(between: Callable[..., Tensor], is_folded: bool):
    torch.manual_seed(0)
    model, images = Model(between).eval(), torch.randn(6, 1, 5, 5)
    expected = model(images)
    report = burnt.quantize(model, "int8-static", calibrate=[images])
    assert isinstance(model.bn, Folded) == is_folded
    notes = [note for note in report.notes if "1 batch norm folded" in note and "for evaluation" in note]
    assert len(notes) == is_folded
    norm = next(layer for layer in report.layers if layer.path == "bn")
    assert (norm.why_skipped == "folded into conv") == is_folded
    assert (norm.bytes_after == 0) == is_folded
    for found, right in zip(model(images), expected, strict=True):
        assert (found - right).norm() < 0.02 * right.norm()


def test_linears_with_further_axes_are_not_folded():
    # The norm's axis 1 is the sequence, which happens to be as long as there are features.
    model = nn.Sequential(nn.Linear(4, 4), trained(nn.BatchNorm1d(4)))
    burnt.quantize(copy.deepcopy(model), "int8-dynamic", calibrate=[torch.randn(2, 4, 4)])
    three, two = copy.deepcopy(model), copy.deepcopy(model)
    burnt.quantize(three, "int8-dynamic", calibrate=[torch.randn(2, 4, 4)])
    burnt.quantize(two, "int8-dynamic", calibrate=[torch.randn(2, 4)])
    assert type(three[1]) is nn.BatchNorm1d
    assert isinstance(two[1], Folded)
    burnt.quantize(model, "int8-dynamic")  # without calibration the rank is unknown
    assert type(model[1]) is nn.BatchNorm1d


def test_without_calibration_pairs_are_those_of_a_sequential():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), trained(nn.BatchNorm2d(4)), nn.ReLU()).eval()
    images = torch.randn(3, 1, 5, 5)
    expected = model(images)
    floats, integers = copy.deepcopy(model), model
    burnt.quantize(floats, "int8")  # by default where activations are quantized
    burnt.quantize(integers, "int8", fold_batch_norm=True)
    assert type(floats[1]) is nn.BatchNorm2d
    assert isinstance(integers[1], Folded)
    assert (integers(images) - expected).norm() < 0.02 * expected.norm()


def test_a_convolution_in_two_places_is_not_folded():
    conv = nn.Conv2d(1, 1, 3, padding=1)
    norms = trained(nn.BatchNorm2d(1)), trained(nn.BatchNorm2d(1))
    model = nn.Sequential(conv, norms[0], conv, norms[1])
    for calibrate in (None, [torch.randn(2, 1, 4, 4)]):
        quantized = copy.deepcopy(model)
        burnt.quantize(quantized, "int8-dynamic", calibrate=calibrate)
        assert type(quantized[1]) is nn.BatchNorm2d
        assert type(quantized[3]) is nn.BatchNorm2d


def test_skipped_layers_keep_their_norms():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), trained(nn.BatchNorm2d(4)))
    burnt.quantize(model, "int8-static", calibrate=[torch.randn(2, 1, 5, 5)], skip="0", overrides={})
    assert type(model[1]) is nn.BatchNorm2d


@pytest.mark.parametrize("bias", [False, True])
def test_files_say_what_was_folded(tmp_path: Path, bias: bool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=bias), trained(nn.BatchNorm2d(4)), nn.ReLU()).eval()
    fresh, images = copy.deepcopy(model), torch.randn(3, 1, 5, 5)
    burnt.quantize(model, "int8-static", calibrate=[images])
    record_of(model).save(tmp_path / "m.safetensors")
    burnt.load_weights(fresh, tmp_path / "m.safetensors")
    assert torch.equal(fresh(images), model(images))
    record_of(fresh).save(tmp_path / "again.safetensors")
    assert record_of(fresh).quantized == record_of(model).quantized
    restored = burnt.dequantize(fresh)
    assert (restored(images) - model(images)).norm() < 0.02 * restored(images).norm()
