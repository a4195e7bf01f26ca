"""SmoothQuant: outliers of activations move into the weights of the linear layers that read them.

The norm before linear layers is divided, channel by channel, by what their weights' columns are multiplied
with. The model computes the same, and its activations are easier to quantize. Xiao et al., 2023.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from burnt.errors import quantity
from burnt.nn.quantized import QuantizedLinear, has_transposed_weight, quantized_class
from burnt.quant.calibration import Calibration
from burnt.quant.fold import is_plain, shared_parameters, with_parameters
from burnt.record.report import first_of

_SMALLEST = 1e-5
_TOLERANCE = 1e-2  # of a norm's output; one that adds 1 to its weight is off by far more


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """A norm to divide and the linear layers to multiply, by path; the divisor is float32 ``[channels]``."""

    norm: str
    layers: tuple[str, ...]
    divisor: Tensor

    def apply(self, model: torch.nn.Module) -> None:
        """Divide the norm's weight and bias, in place."""
        norm = model.get_submodule(self.norm)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(parameter.float() / self.divisor)


def smoothing_norms(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the layer norms and RMS norms of a model, torch's, burnt's or others', by path.

    Others are those whose class is named like that and has a weight ``[channels]`` and perhaps a bias, such
    as Hugging Face's; `find_smoothings` tests that they multiply with the weight.
    """
    return {path: module for path, module in model.named_modules() if _is_norm(module)}


def find_smoothings(
    model: torch.nn.Module,
    layers: Mapping[str, torch.nn.Module],
    calibration: Calibration,
    alpha: float,
) -> tuple[list[Smoothing], dict[str, str]]:
    """Return which norms can be smoothed, and why others cannot: path -> reason.

    The calibration has followed the norms and `layers`, which will be quantized. An `alpha` of 0 leaves the
    difficulty in the activations, 1 moves it into the weights.
    """
    flow = calibration.flow
    assert flow is not None
    shared = shared_parameters(model)
    found: list[Smoothing] = []
    refused: dict[str, str] = {}
    for path, norm in smoothing_norms(model).items():
        readers = flow.readers.get(path, set())
        reason = _why_not(path, norm, readers, layers, calibration, shared)
        if reason is not None:
            refused[path] = reason
            continue
        names = tuple(sorted(readers))
        if not _divides(norm, *flow.examples[path]):
            refused[path] = "its output is not proportional to its weight"
            continue
        divisor = _divisor([layers[name] for name in names], calibration.inputs[names[0]].largest, alpha)
        found.append(Smoothing(path, names, divisor))
    return found, refused


def smoothed_layer(layer: torch.nn.Module, divisor: Tensor) -> torch.nn.Module:
    """Return a copy of a linear layer for inputs that are divided by `divisor` ``[in_features]``."""
    weight = layer.get_parameter("weight").detach()
    factor = divisor.unsqueeze(1) if has_transposed_weight(layer) else divisor
    return with_parameters(layer, weight=(weight.float() * factor).to(weight.dtype))


def smoothing_notes(found: Sequence[Smoothing], refused: Mapping[str, str], alpha: float) -> list[str]:
    """Return the lines about smoothing in a report."""
    count = sum(len(smoothing.layers) for smoothing in found)
    names = ", ".join(smoothing.norm for smoothing in found[:3]) + ", ..." * (len(found) > 3)
    where = "no norm"
    if found:
        where = f"{quantity(len(found), 'norm')} ({names}) before {quantity(count, 'linear layer')}"
    notes = [f"SmoothQuant with alpha={alpha:g} applied to {where}"]
    for reason in dict.fromkeys(refused.values()):
        named = first_of([path for path, why in refused.items() if why == reason])
        notes.append(f"not smoothed: {named}: {reason}")
    return notes


def _is_norm(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm):
        return True
    is_named_so = re.search(r"(?i)(layer|rms)_?norm", type(module).__name__) is not None
    names = {name for name, parameter in module._parameters.items() if parameter is not None}
    return is_named_so and names in ({"weight"}, {"weight", "bias"}) and not module._modules


def _why_not(
    path: str,
    norm: torch.nn.Module,
    readers: set[str],
    layers: Mapping[str, torch.nn.Module],
    calibration: Calibration,
    shared: set[int],
) -> str | None:
    flow = calibration.flow
    assert flow is not None
    weight = norm._parameters.get("weight")
    if weight is None:
        return "it has no weight"
    if weight.dim() != 1:
        return "it normalizes several axes"
    if not is_plain(norm):
        return "it has hooks, parametrizations or a forward of its own"
    if any(id(parameter) in shared for parameter in norm.parameters()):
        return "its parameters are shared with another module"
    if path not in flow.sources:
        return "it was not called in calibration"
    if not readers:
        return "nobody reads its output"
    if path not in flow.examples:
        return "it has several arguments"
    others = sorted(reader for reader in readers if reader.startswith(" "))
    if others:
        return f"its output is read by {others[0].strip()}"
    for reader in sorted(readers):
        layer = layers.get(reader)
        if layer is None or not issubclass(quantized_class(layer) or object, QuantizedLinear):
            return f"its output is read by {reader}, which is no linear layer to quantize"
        if flow.sources[reader] != {path}:
            return f"{reader}, which reads its output, reads others too"
        if id(layer.get_parameter("weight")) in shared:
            return f"the weight of {reader}, which reads its output, is shared with another layer"
        if not calibration.inputs[reader].is_finite:
            return "its output has NaN or infinite values"
        if calibration.inputs[reader].low.shape != weight.shape:
            return "its output is reshaped"
    return None


def _divisor(layers: Sequence[torch.nn.Module], largest: Tensor, alpha: float) -> Tensor:
    columns = []
    for layer in layers:
        weight = layer.get_parameter("weight").detach().float().abs()
        columns.append(weight.amax(1) if has_transposed_weight(layer) else weight.amax(0))
    weights = torch.stack(columns).amax(0)
    divisor = largest.float() ** alpha / weights ** (1 - alpha)
    # A channel that is always zero, or that nobody reads, stays as it is.
    is_used = (largest > 0) & (weights > 0)
    return torch.where(is_used, divisor.clamp(min=_SMALLEST), 1.0)


def _divides(norm: torch.nn.Module, input: Tensor, output: Tensor) -> bool:
    """Whether a norm's output is divided by what its weight and bias are divided by."""
    # Powers of two, so that nothing is rounded.
    powers = torch.exp2(torch.arange(output.shape[-1], device=output.device) % 5 - 2)
    divided = {
        name: (parameter.detach() / powers).to(parameter.dtype)
        for name, parameter in norm._parameters.items()
        if parameter is not None
    }
    with torch.no_grad():
        found = with_parameters(norm, **divided)(input).float()
    expected = output.float() / powers
    return bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())
