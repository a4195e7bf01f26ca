"""Models that torchao has quantized, with equal values in burnt's layers."""

import copy

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup

import burnt
from burnt.errors import QuantError
from burnt.quant import from_torchao
from burnt.record import record_of

CONFIGS = {
    "int8": Int8WeightOnlyConfig(),
    "int8-block32": Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "int8-dynamic": Int8DynamicActivationInt8WeightConfig(),
    "int4-block32": IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    "int2-channel": IntxWeightOnlyConfig(torch.int2, PerAxis(0)),
}


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8, bias=False))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_those_of_torchao(name, dtype, tmp_path):
    model, x = build().to(dtype), torch.randn(5, 64, dtype=dtype)
    quantize_(model, copy.deepcopy(CONFIGS[name]))
    weights = [model[i].weight.dequantize() for i in (0, 2)]
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "ao.pt")
    assert from_torchao(model) == ("0", "2")
    assert model[0].scheme.name.removesuffix("-bfloat16").removesuffix("-float32") == name
    for i, weight in zip((0, 2), weights, strict=True):
        if dtype == torch.float32:
            assert torch.equal(model[i].weight, weight)
        else:  # torchao rounds after the subtraction, too
            torch.testing.assert_close(model[i].weight, weight, rtol=1e-2, atol=1e-3)
    # With dynamic inputs, torchao's scales are those of another range.
    tolerance = 1e-5 if dtype == torch.float32 and "dynamic" not in name else 2e-2
    assert ((model(x) - expected).norm() / expected.norm()).item() < tolerance
    fresh = build().to(dtype)
    record_of(model).save(tmp_path / "m.safetensors")
    burnt.load_weights(fresh, tmp_path / "m.safetensors")
    assert torch.equal(fresh(x), model(x))
    read = build().to(dtype)
    # Before Python 3.11.4 torchao's enums pickle as getattr, which torch.load refuses by default.
    read.load_state_dict(torch.load(tmp_path / "ao.pt", weights_only=False), assign=True)
    from_torchao(read)
    assert torch.equal(read(x), model(x))


def test_what_cannot_be_converted_is_refused_and_the_model_unchanged():
    with pytest.raises(QuantError, match="no weights that torchao has quantized"):
        from_torchao(build())
    model = build()
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda _, path: path == "0")
    other = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
    quantize_(model, other, filter_fn=lambda _, path: path == "2")
    with pytest.raises(QuantError, match="cannot be converted") as caught:
        from_torchao(model)
    assert caught.value.where == "2"
    assert type(model[0]) is nn.Linear
    model = build()
    quantize_(model, IntxWeightOnlyConfig(torch.int3, PerGroup(32)))
    with pytest.raises(QuantError, match="values of int3"):
        from_torchao(model)
