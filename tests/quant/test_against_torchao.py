"""The error of quantized models against torchao's by the same scheme: at most 1.02 times as large.

The error of a model is the root of the mean, over its Linears, of the squared relative error of the output,
for the inputs that the layer has in the unquantized model. It does not hang on how errors of single weights
happen to add up in the layers behind, as that of the model's own output does: with eight seeds, this scatters
by several percent. Its mean over the architectures is compared too.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from tests.quant import architectures

pytest.importorskip("torchao")
pytest.importorskip("transformers")

SCHEMES = {
    "int8": ("Int8WeightOnlyConfig", {}),
    "int8-dynamic": ("Int8DynamicActivationInt8WeightConfig", {}),
    "fp8": ("Float8WeightOnlyConfig", {}),
    "int4-block32": ("IntxWeightOnlyConfig", {"group": 32}),
    "int4-block32-asymmetric": ("IntxWeightOnlyConfig", {"group": 32, "mapping": "ASYMMETRIC"}),
    "int4-channel": ("IntxWeightOnlyConfig", {}),
    "int4-channel-asymmetric": ("IntxWeightOnlyConfig", {"mapping": "ASYMMETRIC"}),
}
SEEDS = 2


def torchao_quantized(model: torch.nn.Module, scheme: str, layers: list[str]) -> torch.nn.Module:
    import torchao.quantization as ao

    name, settings = SCHEMES[scheme]
    arguments: dict[str, Any] = {}
    if name == "IntxWeightOnlyConfig":
        group: Any = settings.get("group")
        arguments["weight_dtype"] = torch.int4
        arguments["granularity"] = ao.PerGroup(group) if group else ao.PerAxis(0)
        arguments["mapping_type"] = getattr(ao.MappingType, str(settings.get("mapping", "SYMMETRIC")))
    model = copy.deepcopy(model)
    ao.quantize_(model, getattr(ao, name)(**arguments), filter_fn=lambda _, path: path in layers)
    return model


@functools.cache
def unquantized(name: str, seed: int) -> tuple[torch.nn.Module, dict[str, Tensor], Tensor, dict[str, Any]]:
    """Return a model, its inputs, its outputs, and inputs and outputs of each of its Linears."""
    model, inputs = architectures.build(name, seed)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        layer.register_forward_hook(lambda _, args, out, path=path: seen.update({path: (args[0], out)}))
        for path, layer in model.named_modules()
        if type(layer) is torch.nn.Linear
    ]
    expected = architectures.outputs(model, inputs)
    for handle in handles:
        handle.remove()
    return model, inputs, expected, seen


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@functools.cache
def errors(name: str, scheme: str) -> dict[str, tuple[float, float]]:
    """Return the errors of the layers and of the outputs, each (burnt's, torchao's)."""
    squares: list[list[float]] = [[], []]
    whole: list[list[float]] = [[], []]
    for seed in range(SEEDS):
        model, inputs, expected, seen = unquantized(name, seed)
        ours = copy.deepcopy(model)
        report = burnt.quantize(ours, scheme, only=list(seen))
        assert len(report.quantized) == len(seen)
        theirs = torchao_quantized(model, scheme, list(seen))
        for i, quantized in enumerate((ours, theirs)):
            with torch.no_grad():
                for path, (x, y) in seen.items():
                    squares[i].append(relative(quantized.get_submodule(path)(x), y) ** 2)
            whole[i].append(relative(architectures.outputs(quantized, inputs), expected))
    layers = [math.sqrt(sum(s) / len(s)) for s in squares]
    means = [math.exp(sum(map(math.log, w)) / len(w)) for w in whole]
    return {"layers": (layers[0], layers[1]), "outputs": (means[0], means[1])}


@pytest.mark.full
@pytest.mark.parametrize("name", architectures.NAMES)
def test_layers(name: str) -> None:
    ratios = {}
    for scheme in SCHEMES:
        ours, theirs = errors(name, scheme)["layers"]
        ratios[scheme] = ours / theirs
    print(name, {scheme: round(ratio, 3) for scheme, ratio in ratios.items()})
    assert max(ratios.values()) <= 1.02, ratios


@pytest.mark.full
@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_of_all_architectures(scheme: str) -> None:
    ratios = {}
    for name in architectures.NAMES:
        ours, theirs = errors(name, scheme)["outputs"]
        ratios[name] = ours / theirs
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    print(scheme, round(mean, 3), {name: round(ratio, 3) for name, ratio in ratios.items()})
    assert mean <= 1.02, ratios
