"""SmoothQuant changes nothing in float, and helps where channels have outliers."""

import copy

import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.quant.calibration import calibrate_layers
from burnt.quant.fold import find_smoothings, smoothed_layer, smoothing_norms


class Block(nn.Module):
    def __init__(self, norm: nn.Module, size: int = 16) -> None:
        super().__init__()
        self.norm, self.q, self.k = norm, nn.Linear(size, 8), nn.Linear(size, 8, bias=False)
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        output: Tensor = self.out(self.q(hidden).tanh() * self.k(hidden))
        return output


class AddsOneRmsNorm(nn.Module):
    """As Gemma's: what is learned is the difference to one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size))

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = x / x.square().mean(-1, keepdim=True).sqrt() * (1 + self.weight)
        return normalized


class OtherRMSNorm(AddsOneRmsNorm):
    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = x / x.square().mean(-1, keepdim=True).sqrt() * self.weight
        return normalized


def with_outliers(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight[3] = 40.0  # type: ignore[index]
        norm.weight[5] = 0.05  # type: ignore[index]
    return norm


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(16), nn.RMSNorm(16), burnt.nn.LayerNorm(16), burnt.nn.RmsNorm(16), OtherRMSNorm(16)],
    ids=lambda norm: f"{type(norm).__module__}.{type(norm).__name__}",
)
def test_float_outputs_stay_and_integers_get_better(norm: nn.Module):
    torch.manual_seed(0)
    model = Block(with_outliers(norm)).eval()
    inputs = torch.randn(3, 20, 16)
    expected = copy.deepcopy(model).double()(inputs.double())

    # In float: the copies with multiplied columns behind the divided norm.
    changed = copy.deepcopy(model)
    layers = {name: changed.get_submodule(name) for name in ("q", "k", "out")}
    calibration = calibrate_layers(changed, layers, [inputs], followed={**layers, **smoothing_norms(changed)})
    (smoothing,), refused = find_smoothings(changed, layers, calibration, 0.5)
    assert smoothing.layers == ("k", "q")
    assert not refused
    for path in smoothing.layers:
        setattr(changed, path, smoothed_layer(layers[path], smoothing.divisor))
    smoothing.apply(changed)
    torch.testing.assert_close(changed(inputs).double(), expected, rtol=1e-5, atol=1e-4)
    weights = torch.cat([model.q.weight, model.k.weight]).abs().amax(0)
    largest = model.norm(inputs).abs().amax((0, 1))
    torch.testing.assert_close(smoothing.divisor, (largest / weights).sqrt())

    plain, smoothed = copy.deepcopy(model), model
    burnt.quantize(plain, "int8-static", calibrate=[inputs])
    report = burnt.quantize(smoothed, "int8-static", calibrate=[inputs], smooth=0.5)
    errors = [(m(inputs) - expected).norm().item() for m in (plain, smoothed)]
    assert errors[1] < 0.75 * errors[0], errors
    assert report.notes == ("SmoothQuant with alpha=0.5 applied to 1 norm (norm) before 2 linear layers",)
    torch.testing.assert_close(burnt.dequantize(smoothed)(inputs).double(), expected, rtol=0.1, atol=1.0)


class Residual(Block):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        output: Tensor = self.q(hidden) + self.k(hidden) + hidden[..., :8]
        return output


class Mixed(Block):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.q(self.norm(x)) + self.k(self.norm(x)) + self.k(x)
        return output


@pytest.mark.parametrize(
    ("model", "skip", "reason"),
    [
        (Residual(nn.LayerNorm(16)), None, "its output is read by aten.slice"),
        (Mixed(nn.LayerNorm(16)), None, "k, which reads its output, reads others too"),
        (Block(nn.LayerNorm(16)), "q", "its output is read by q, which is not a linear layer to quantize"),
        (Block(nn.LayerNorm(16, elementwise_affine=False)), None, "it has no weight"),
        (Block(AddsOneRmsNorm(16)), None, "its output is not proportional to its weight"),
        (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), None, "read by the output of the model"),
    ],
)
def test_norms_that_stay_say_why(model: nn.Module, skip: str | None, reason: str):
    norms = {k: v.clone() for k, v in model.state_dict().items() if "norm" in k}
    report = burnt.quantize(model, "int8-dynamic", calibrate=[torch.randn(4, 16)], smooth=0.5, skip=skip)
    assert "applied to no norm" in report.notes[0]
    assert reason in report.notes[1]
    for name, value in norms.items():
        assert torch.equal(model.state_dict()[name], value)


def test_tied_heads_are_not_smoothed():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
            self.head = nn.Linear(8, 9, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.head(self.norm(self.embedding(ids)))
            return logits

    report = burnt.quantize(Tied(), "int8-dynamic", calibrate=[torch.arange(9)], smooth=0.5)
    assert "the weight of head, which reads its output, is shared" in report.notes[1]


def test_a_norm_stays_if_auto_leaves_a_reader_in_float():
    torch.manual_seed(0)
    model = Block(with_outliers(nn.LayerNorm(16))).eval()
    inputs = torch.randn(30, 16)
    expected = model(inputs)
    report = burnt.quantize(
        model, "int8", calibrate=[inputs], smooth=0.5, overrides={"q": "auto"}, bound=0.0, weights="minmax"
    )
    assert type(model.q) is nn.Linear
    assert "not smoothed after all: norm: q stays as it is" in report.notes
    assert model.norm.weight[3] == 40
    assert (model(inputs) - expected).norm() < 0.03 * expected.norm()
