"""Calibration: a model is observed and is afterwards as before; what cannot be calibrated is said."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import burnt
from burnt.data import Batch
from burnt.errors import ConfigError, QuantError
from burnt.quant import QuantReport
from tests.messages import raises


def snapshot(model: nn.Module) -> Any:
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_pre_hooks_with_kwargs))
        for m in model.modules()
    ]
    tensors = {k: (id(v), v.detach().clone()) for k, v in model.state_dict(keep_vars=True).items()}
    return [(p, id(m), m.training) for p, m in model.named_modules()], hooks, tensors


def assert_unchanged(model: nn.Module, before: Any) -> None:
    modules, hooks, tensors = snapshot(model)
    assert modules == before[0]
    assert hooks == before[1]
    assert tensors.keys() == before[2].keys()
    for name, (key, value) in tensors.items():
        assert key == before[2][name][0], name
        torch.testing.assert_close(value, before[2][name][1], rtol=0, atol=0, equal_nan=True, msg=name)


def error_of(report: QuantReport, path: str) -> float:
    error = next(layer.output_error for layer in report.layers if layer.path == path)
    assert error is not None
    return error


def reason_of(report: QuantReport, path: str) -> str:
    return next(layer.why_skipped or "" for layer in report.layers if layer.path == path)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv(images)).relu().flatten(1)
        logits: Tensor = self.head(self.layer_norm(hidden))
        return logits


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    model(torch.randn(32, 1, 4, 4))  # running statistics that differ from the initial ones
    return model


def test_static_layers_equal_numpys_arithmetic():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    inputs = torch.randn(20, 6)
    weight = model[0].weight.detach().numpy()
    bias = model[0].bias.detach().numpy().astype(np.float64)
    burnt.quantize(model, "int8-static", calibrate=[inputs[:7], inputs[7:]])
    low, high = min(inputs.min().item(), 0.0), max(inputs.max().item(), 0.0)
    assert model[0].input_scale.item() == pytest.approx((high - low) / 255)
    x = inputs.numpy().astype(np.float64)
    scale, zero = float(model[0].input_scale), int(model[0].input_zero_point)
    codes = np.clip(np.rint(x / scale) + zero, -128, 127).astype(np.int64)
    values = model[0].values.numpy().astype(np.int64)
    expected = (codes - zero) @ values.T * scale * model[0].scale.numpy().T + bias
    np.testing.assert_allclose(model[0](inputs).detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(values * model[0].scale.numpy() - weight).max() <= model[0].scale.max() / 2 * 1.001


@pytest.mark.parametrize(
    "scheme", ["int8", "int4-block32", "fp8", "int8-dynamic", "int8-static", "fp8-static"]
)
def test_the_output_error_of_each_layer_is_measured(scheme: str, net: Net):
    original = copy.deepcopy(net).eval()
    images = torch.randn(40, 1, 4, 4)
    batches = [images[:30], images[30:]]
    report = burnt.quantize(net, scheme, calibrate=batches, fold_batch_norm=False, weights="minmax")
    net.eval()
    with torch.no_grad():
        hidden = original.layer_norm(original.norm(original.conv(images)).relu().flatten(1))
        for path, inputs in (("conv", images), ("head", hidden)):
            expected = original.get_submodule(path)(inputs)
            error = (net.get_submodule(path)(inputs) - expected).norm() / expected.norm()
            assert error_of(report, path) == pytest.approx(error.item(), rel=1e-3), path


def test_the_model_is_afterwards_as_before(net: Net):
    class Counter(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x

    model = nn.Sequential(Counter(), net, nn.Dropout(0.5)).train()
    net.norm.eval()
    before = snapshot(model)
    # Everything but the head is skipped, so that the rest can be compared.
    burnt.quantize(model, "int8-static", only="1.head", calibrate=[torch.randn(2, 1, 4, 4)])
    modules, hooks, tensors = snapshot(model)
    changed = {a[0] for a, b in zip(modules, before[0], strict=True) if a != b}
    assert changed == {"1.head"}
    assert not any(map(any, hooks))
    assert tensors["0.calls"][1].item() == 0
    assert model[1].head.training


def test_buffers_that_cannot_be_written():
    class Shifted(nn.Module):
        rows: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.register_buffer("rows", torch.randn(1, 4).expand(3, 4))
            with torch.inference_mode():
                self.register_buffer("shift", torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(x + self.rows + self.shift)
            return output

    model = Shifted()
    rows = model.rows
    burnt.quantize(model, "int8-static", calibrate=[torch.randn(3, 4)])
    assert model.rows is rows


@pytest.mark.parametrize("scheme", ["int8-static", "int4-block32"])
def test_calibration_under_autocast(scheme: str):
    """Layers see inputs of another dtype than that of their weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4))
    images = torch.randn(16, 32)

    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output: Tensor = model(batch)
            return output

    report = burnt.quantize(model, scheme, calibrate=[images], forward=forward)
    assert 0 < error_of(report, "2") < 0.2


def failing(error: bool = True) -> Callable[[nn.Module, Tensor], Tensor]:
    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        output: Tensor = model(batch)
        if error and len(batch) == 3:
            raise RuntimeError("the third")
        return output

    return forward


@pytest.mark.parametrize(
    ("batches", "forward", "texts"),
    [
        ([], None, ["the calibration set is empty", "no batches"]),
        (iter(()), None, ["empty", "an iterator without further batches", "pass a list or a loader"]),
        (
            [torch.zeros(1, 1, 4, 4), torch.zeros(1, 2, 4, 4)],
            None,
            ["the model fails on batch 1", "RuntimeError", "2 channels"],
        ),
        ([torch.zeros(i, 1, 4, 4) for i in (1, 2, 3)], failing(), ["fails on batch 2", "the third"]),
        (
            [torch.zeros(1)],
            lambda model, batch: batch,
            ["called none of the layers", "conv, head", "1 batch w"],
        ),
        (torch.zeros(2, 1, 4, 4), None, ["not an iterable of batches", "a Tensor", "calibrate=[batch]"]),
        (3, None, ["not an iterable of batches", "a int"]),
        ([{"x": torch.zeros(1, 1, 4, 4)}], None, ["no entry of the batch", "'images'", "'x'", "forward="]),
    ],
)
def test_a_calibration_set_that_does_not_fit(batches: Any, forward: Any, texts: list[str], net: Net):
    before = snapshot(net)
    with raises(QuantError, *texts) as caught:
        burnt.quantize(net, "int8-static", calibrate=batches, forward=forward, smooth=0.5)
    assert_unchanged(net, before)
    if "fails on batch" in texts[0]:
        assert isinstance(caught.value.__cause__, Exception)


def test_a_generator_works_once(net: Net):
    batches = (torch.randn(2, 1, 4, 4) for _ in range(3))
    burnt.quantize(copy.deepcopy(net), "int8-static", calibrate=batches)
    with pytest.raises(QuantError, match="empty"):
        burnt.quantize(net, "int8-static", calibrate=batches)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"scheme": "int8-static"}, "a static scheme needs a calibration set"),
        ({"scheme": "auto"}, "'auto' needs a calibration set"),
        ({"smooth": 0.5}, "smooth= needs a calibration set"),
        ({"overrides": {"head": "auto"}}, "'auto' needs a calibration set"),
    ],
)
def test_what_needs_calibration_says_so(arguments: dict[str, Any], text: str, net: Net):
    with raises(QuantError, text, "calibrate="):
        burnt.quantize(net, **arguments)


@pytest.mark.parametrize("arguments", [{"smooth": 1.5}, {"bound": -1.0}, {"activations": "max"}])
def test_arguments_are_checked(arguments: dict[str, Any], net: Net):
    with pytest.raises(ConfigError):
        burnt.quantize(net, calibrate=[torch.zeros(1, 1, 4, 4)], **arguments)


@pytest.mark.parametrize(
    "batch",
    [
        torch.randn(2, 1, 4, 4),
        (torch.randn(2, 1, 4, 4), torch.zeros(2)),
        [torch.randn(2, 1, 4, 4)],
        {"images": torch.randn(2, 1, 4, 4), "labels": torch.zeros(2)},
        Batch(images=torch.randn(2, 1, 4, 4), labels=torch.zeros(2)),
    ],
)
def test_batches_of_every_kind(batch: Any, net: Net):
    assert len(burnt.quantize(net, "int8-static", calibrate=[batch]).quantized) == 2


def test_progress_counts_batches_and_layers(net: Net):
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(torch.zeros(6, 1, 4, 4))

    for batches, total in (([torch.zeros(1, 1, 4, 4)] * 2, 2), (DataLoader(Stream(), 4), 0)):
        seen: list[tuple[str, int, int]] = []
        model = copy.deepcopy(net)
        burnt.quantize(model, calibrate=batches, progress=lambda *what, seen=seen: seen.append(what))
        assert seen[:2] == [("calibrating", 0, total), ("calibrating", 1, total)]
        assert seen[2:] == [("quantizing conv", 0, 2), ("quantizing head", 1, 2)]


def test_a_layer_that_is_not_called_is_skipped(net: Net):
    net.unused = nn.Linear(2, 2)
    report = burnt.quantize(net, "int8-static", calibrate=[torch.zeros(1, 1, 4, 4)])
    assert reason_of(report, "unused") == "it was not called in calibration"
    assert type(net.unused) is nn.Linear


def test_nan_is_a_reason_for_static_schemes_and_a_note_for_others(net: Net):
    batches = [torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), float("nan"))]
    static, weights = copy.deepcopy(net), net
    report = burnt.quantize(static, "int8-static", calibrate=batches)
    assert reason_of(report, "conv") == "its input has NaN or infinite values in calibration"
    assert type(static.norm) is nn.BatchNorm2d
    report = burnt.quantize(weights, "int8", calibrate=batches)
    assert len(report.quantized) == 2
    assert report.quantized[0].output_error is None
    assert "output error unknown: conv and 1 more" in report.notes[0]


def test_a_layer_in_two_places_is_calibrated_over_both():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Hardtanh(-100, 100), shared)
    with torch.no_grad():
        shared.weight.copy_(torch.eye(3) * 10)
        shared.bias.zero_()
    burnt.quantize(model, "int8-static", calibrate=[torch.tensor([[0.0, 1.0, -1.0]])])
    assert model[0] is model[2]
    assert model[0].input_scale.item() == pytest.approx(20 / 255)  # of -10 to 10, the second call


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.head = nn.Linear(16, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(ids).tanh())
        return logits


@pytest.mark.parametrize("scheme", ["int8-static", "auto"])
def test_tied_weights_stay_tied(scheme: str):
    torch.manual_seed(0)
    model = Tied()
    report = burnt.quantize(model, scheme, calibrate=[torch.arange(10)], weights="minmax")
    assert model.head.values.data_ptr() == model.embedding.values.data_ptr()
    assert len({layer.scheme for layer in report.quantized}) == 1
    assert all(layer.output_error is not None and layer.output_error < 0.02 for layer in report.quantized)


def test_compiled_models_are_calibrated(net: Net):
    compiled = torch.compile(net, backend="eager")
    images = torch.randn(2, 1, 4, 4)
    compiled(images)
    report = burnt.quantize(compiled, "int8-static", calibrate=[images])
    assert len(report.quantized) == 2


# --- auto -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "schemes"), [(0.95, {"int2-block32"}), (0.2, {"int4"}), (0.02, {"int8"}), (0.0, {None})]
)
def test_auto_takes_the_smallest_scheme_within_the_bound(bound: float, schemes: set[str | None]):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64))
    report = burnt.quantize(model, "auto", calibrate=[torch.randn(64, 256)], bound=bound, weights="minmax")
    linears = [layer for layer in report.layers if layer.layer == "Linear"]
    assert {
        layer.scheme if bound > 0.5 or not layer.scheme else layer.scheme[:4] for layer in linears
    } == schemes
    for layer in linears:
        if layer.scheme is None:
            assert "has an output error of 0." in (layer.why_skipped or "")
            assert "more than bound=0" in (layer.why_skipped or "")
        else:
            assert layer.output_error is not None
            assert layer.output_error <= bound


def test_auto_tries_smaller_schemes_first():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64))
    inputs = torch.randn(64, 256)
    sizes, errors = {}, {}
    for name in ("int4-block128", "int4-block64", "int4-block32", "int4-block16", "int8"):
        report = burnt.quantize(copy.deepcopy(model), name, calibrate=[inputs], weights="minmax")
        sizes[name], errors[name] = report.quantized[0].bytes_after, error_of(report, "0")
    bound = errors["int4-block32"] * 1.0001
    report = burnt.quantize(model, "auto", calibrate=[inputs], bound=bound, weights="minmax")
    chosen = report.quantized[0]
    assert chosen.bytes_after <= min(size for name, size in sizes.items() if errors[name] <= bound)


def test_overrides_may_mix_auto_and_schemes(net: Net):
    report = burnt.quantize(
        net,
        "fp8",
        calibrate=[torch.randn(8, 1, 4, 4)],
        overrides={"head": "auto"},
        bound=0.95,
        weights="minmax",
    )
    assert [layer.scheme for layer in report.quantized] == ["fp8", "int2-block32"]
