"""`burnt.quantize` on any module: what is skipped and why, sizes of files, and models that were changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import burnt
from burnt.errors import QuantError
from burnt.record import record_of


def reasons(model: nn.Module, scheme: str = "int8", **settings: Any) -> dict[str, str | None]:
    return {layer.path: layer.why_skipped for layer in burnt.quantize(model, scheme, **settings).skipped}


def test_layers_that_are_skipped_say_why() -> None:
    hooked, broken, beyond = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).double()
    hooked.register_full_backward_pre_hook(lambda *_: None)
    nn.init.constant_(broken.weight, float("nan"))
    nn.init.constant_(beyond.weight, 1e60)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    limited = "max_norm and sparse gradients need a table that changes"
    layers: dict[str, tuple[nn.Module, str]] = {
        "lazy": (nn.LazyLinear(4), "it is lazy: call the model once first"),
        "meta": (nn.Linear(4, 4, device="meta"), "its weight has no values yet"),
        "normed": (normed, "it has parametrizations: remove them first"),
        "hooked": (hooked, "it has hooks, which a new layer would lose"),
        "nan": (broken, "its weight has NaN or infinite values"),
        "beyond": (beyond, "its weight has values that float32 does not hold"),
        "empty": (nn.Embedding(4, 0), "its weight is empty"),
        "limited": (nn.Embedding(4, 4, max_norm=1.0), limited),
        "norm": (nn.LayerNorm(4), "only Linear, Conv and Embedding are quantized"),
        "mine": (type("Mine", (nn.Linear,), {})(4, 4), "a subclass of Linear may compute something else"),
    }
    model = nn.ModuleDict({name: layer for name, (layer, _) in layers.items()})
    found = reasons(model)
    assert {name: found[name] for name in layers} == {name: why for name, (_, why) in layers.items()}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_hooks_compute() -> None:
    """As torch's older normalizations and pruning do: `weight` is then no parameter."""
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4), nn.Linear(4, 4))
    prune.l1_unstructured(model[1], "weight", 0.5)  # type: ignore[no-untyped-call]
    found = reasons(model, "int8-static", calibrate=[torch.randn(2, 4)], smooth=0.5, fold_batch_norm=True)
    assert found == dict.fromkeys("01", "it has hooks, which a new layer would lose")


def test_a_single_layer_is_not_replaced() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(QuantError, match=r"burnt\.quantize\(torch\.nn\.Sequential\(layer\)\)"):
        burnt.quantize(layer)
    model = nn.Sequential(layer)
    burnt.quantize(model)
    with pytest.raises(QuantError, match=r"burnt\.dequantize\(torch\.nn\.Sequential\(layer\)\)"):
        burnt.dequantize(model[0])


def test_attention_reads_the_weight_of_its_output_layer_itself() -> None:
    model = nn.Sequential(nn.MultiheadAttention(32, 4, batch_first=True))
    x = torch.randn(2, 5, 32)
    expected = model[0](x, x, x)[0]
    assert reasons(model)["0.out_proj"] == "MultiheadAttention reads its weight itself"
    assert torch.equal(model[0](x, x, x)[0], expected)


def test_blocks_that_do_not_divide_and_scales_out_of_range() -> None:
    tiny, huge = nn.Linear(40, 4), nn.Linear(40, 4)
    nn.init.uniform_(tiny.weight, -1e-5, 1e-5)
    nn.init.constant_(huge.weight, 1e9)
    model = nn.ModuleList([nn.Linear(40, 4), tiny, huge])
    refused = copy.deepcopy(model)
    assert reasons(refused, "int8-block32-refuse")["0"] == "its 40 columns are not a multiple of the block 32"
    assert reasons(model, "int8-block32") == {
        "1": "its scales are too small for float16",
        "2": "its scales are too large for float16",
    }
    assert model[0].values.shape == (4, 64)


@pytest.mark.parametrize("name", ["int8-float16", "fp8-float16", "e5m2-float16", "int4-block32"])
def test_no_size_of_weights_is_quantized_to_nothing(name: str) -> None:
    for size in (1e-30, 1e-7, 1e-5, 1e-4, 1e-3, 0.02, 1.0, 1e5):
        model = nn.Sequential(nn.Linear(64, 4, bias=False))
        weight = torch.randn(4, 64).clamp(-1, 1) * size
        model[0].weight.data = weight
        if burnt.quantize(model, name).quantized:
            error = (model[0].weight.double() - weight.double()).norm() / weight.double().norm()
            assert float(error) < 0.13, size


def test_adapters_stay() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    burnt.nn.lora(model, 2, targets="0")
    found = reasons(model)
    assert found["0"] == "it has a LoRA adapter: call burnt.nn.merge_lora first"
    assert found["0.lora_A"] == found["0.lora_B"] == "it belongs to a LoRA adapter"
    burnt.nn.merge_lora(model)
    assert [layer.path for layer in burnt.quantize(model, "int8").quantized] == ["0"]


def test_what_is_quantized_stays_and_is_named() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8))
    burnt.quantize(model, "int8", only="0")
    values = model[0].values
    report = burnt.quantize(model, "int4-block32")
    assert report.skipped[0].why_skipped == "it is quantized already: int8"
    assert report.skipped[0].bytes_after == 64 * 8 + 8 * 4 + 8 * 4
    assert model[0].values is values


def test_a_layer_in_two_places_is_quantized_once(tmp_path: Any) -> None:
    def build() -> nn.Module:
        layer = nn.Linear(32, 32)
        return nn.ModuleList([layer, nn.ModuleDict({"x": layer}), nn.Linear(32, 4)])

    model, loaded = build(), build()
    assert len(burnt.quantize(model, "int8").quantized) == 2
    record_of(model).save(tmp_path / "a.safetensors")
    burnt.load_weights(loaded, tmp_path / "a.safetensors")
    for other in (model, loaded, burnt.dequantize(copy.deepcopy(model))):
        first, second = other[0], other[1]["x"]  # type: ignore[index]
        assert first is second


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_encoder_layers() -> None:
    """Its fast path reads weights: the same numbers, dequantized, which the report says."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 32)
    report = burnt.quantize(model, "int8-dynamic")
    assert "set_fastpath_enabled(False)" in report.notes[0]
    plain = burnt.dequantize(copy.deepcopy(model))
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        torch.testing.assert_close(model(x, src_key_padding_mask=mask), plain(x, src_key_padding_mask=mask))
        expected = plain(x)
        assert float((model(x) - expected).norm() / expected.norm()) < 0.01
    assert burnt.quantize(nn.Sequential(nn.Linear(4, 4)), "int8").notes == ()


def test_readers_of_weights_see_the_quantized_one() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 32)
            self.loss = burnt.nn.LinearCrossEntropy(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            return self.loss(self.embedding(ids), ids)  # type: ignore[no-any-return]

    model, ids = Head(), torch.randint(50, (3, 4))
    burnt.quantize(model, "int8")
    torch.testing.assert_close(model(ids), burnt.dequantize(copy.deepcopy(model))(ids))


@torch.no_grad()
def test_swapped_models_are_quantized_and_quantized_ones_swapped() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).eval()

    x = torch.randn(3, 64)
    for first in ("swap", "quantize"):
        model = build()
        expected = model(x)
        if first == "swap":
            burnt.swap(model)
        burnt.quantize(model, "int8-dynamic")
        if first == "quantize":
            burnt.swap(model)
        error = float((model(x) - expected).norm() / expected.norm())
        burnt.unswap(model)
        assert 0 < error < 0.03
        assert float((model(x) - expected).norm() / expected.norm()) < 0.03


def test_norms_and_biases_of_quantized_models_are_trained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    burnt.quantize(model, "int8-dynamic")
    values = model[0].values.clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    x = torch.randn(64, 16)
    target = x[:, :3].argmax(1)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]
    assert torch.equal(model[0].values, values)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("scheme", "part"), [("int8-float16", 0.26), ("int4-block32", 0.15)])
def test_size_of_files(scheme: str, part: float, tmp_path: Any) -> None:
    """With 99 % of the parameters in quantized layers and scales of 16 bits."""
    linears = [nn.Linear(256, 256) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(1000, 256), *linears, nn.LayerNorm(256), nn.Linear(256, 512))
    record_of(model).save(tmp_path / "plain.safetensors")
    count = sum(p.numel() for p in model.parameters())
    burnt.quantize(model, scheme)
    kept = sum(p.numel() for p in model.parameters())
    assert 0.99 <= 1 - kept / count < 0.999
    record_of(model).save(tmp_path / "small.safetensors")
    sizes = [(tmp_path / name).stat().st_size for name in ("small.safetensors", "plain.safetensors")]
    assert sizes[0] <= part * sizes[1]
