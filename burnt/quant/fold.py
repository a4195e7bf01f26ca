"""Batch norms that follow a layer are folded into its weight and bias, as in evaluation; SmoothQuant.

SmoothQuant moves outliers of activations into the weights of the linear layers that read them. The norm
before linear layers is divided, channel by channel, by what their weights' columns are multiplied with. The
model computes the same, and its activations are easier to quantize. Xiao et al., 2023.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from burnt.errors import quantity
from burnt.nn.container import Sequential
from burnt.nn.norm import BatchNorm, SyncBatchNorm
from burnt.nn.quantized import (
    QuantizedConv,
    QuantizedEmbedding,
    QuantizedLinear,
    has_transposed_weight,
    quantized_class,
)
from burnt.quant.calibration import Calibration, Flow
from burnt.record.report import first_of


def with_parameters(layer: torch.nn.Module, **tensors: Tensor) -> torch.nn.Module:
    """Return a shallow copy of a layer with some parameters replaced, or added where they were None.

    >>> layer = torch.nn.Linear(2, 1, bias=False)
    >>> with_parameters(layer, bias=torch.ones(1))(torch.zeros(1, 2)), layer.bias
    (tensor([[1.]], grad_fn=<AddmmBackward0>), None)
    """
    new = copy.copy(layer)
    needs_grad = any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
    parameters = dict(layer._parameters)
    for name, tensor in tensors.items():
        old = parameters[name]
        trained = needs_grad if old is None else old.requires_grad
        parameters[name] = torch.nn.Parameter(tensor.detach(), requires_grad=trained)
    new.__dict__["_parameters"] = parameters
    return new


def is_plain(layer: torch.nn.Module) -> bool:
    """Whether a layer computes what its class says: no hooks, parametrizations or replaced forward."""
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or "forward" in layer.__dict__
        or torch.nn.utils.parametrize.is_parametrized(layer)
    )


def shared_parameters(model: torch.nn.Module) -> set[int]:
    """Return the ids of parameters that several modules, or one under two names, hold."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


_CLASSES = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    BatchNorm,
    SyncBatchNorm,
)


def batch_norms(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the batch norms that can be folded into the layer before them, by path.

    They have running statistics, no hooks, and share no parameter with others.
    """
    shared = shared_parameters(model)
    return {
        path: module
        for path, module in model.named_modules()
        if type(module) in _CLASSES
        and getattr(module, "running_mean", None) is not None
        and getattr(module, "running_var", None) is not None
        and is_plain(module)
        and not any(id(parameter) in shared for parameter in module.parameters())
    }


def find_batch_norms(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], flow: Flow | None
) -> dict[str, str]:
    """Return which batch norm can be folded into which layer: path of the layer -> path of the norm.

    A pair is found where `flow`, which followed the layers and the norms, says that only the norm reads the
    layer's output and nothing else. Without it, convolutions are found that are followed by the norm in a
    Sequential, where both have this one place.
    """
    norms, shared = batch_norms(model), shared_parameters(model)
    fitting = {
        path: layer
        for path, layer in layers.items()
        if not _is_embedding(layer) and id(layer.get_parameter("weight")) not in shared
    }
    found = _in_sequentials(model, fitting, norms) if flow is None else _in_flow(fitting, norms, flow)
    return {
        path: norm
        for path, norm in found.items()
        if getattr(norms[norm], "num_features", None) == _out_channels(fitting[path])
    }


def fold_batch_norm(layer: torch.nn.Module, norm: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a layer that computes what the layer and a batch norm after it compute in evaluation.

    Computed in float64, then rounded to the weight's dtype.

    >>> conv, norm = torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.BatchNorm2d(2).eval()
    >>> images = torch.randn(1, 1, 4, 4)
    >>> torch.allclose(fold_batch_norm(conv, norm)(images), norm(conv(images)), atol=1e-6)
    True
    """
    weight = layer.get_parameter("weight").detach()
    mean, var = norm.get_buffer("running_mean").double(), norm.get_buffer("running_var").double()
    factor = (var + norm.eps).rsqrt()  # type: ignore[operator]
    if (norm_weight := norm._parameters.get("weight")) is not None:
        factor = factor * norm_weight.detach().double()
    bias = layer._parameters.get("bias")
    offset = ((bias.detach().double() if bias is not None else 0.0) - mean) * factor
    if (norm_bias := norm._parameters.get("bias")) is not None:
        offset = offset + norm_bias.detach().double()
    # Hugging Face's Conv1D has its output channels on the last axis.
    axes = (1, -1) if has_transposed_weight(layer) else (-1, *[1] * (weight.dim() - 1))
    folded = (weight.double() * factor.view(axes)).to(weight.dtype)
    return with_parameters(layer, weight=folded, bias=offset.to(weight.dtype))


def _in_flow(
    layers: Mapping[str, torch.nn.Module], norms: Mapping[str, torch.nn.Module], flow: Flow
) -> dict[str, str]:
    found = {}
    for path, layer in layers.items():
        readers = flow.readers.get(path, set())
        norm = next(iter(readers), "")
        if len(readers) != 1 or norm not in norms or flow.sources[norm] != {path}:
            continue
        # With another number of axes, axis 1, which the norm takes for the channels, is not the layer's.
        rank = layer.get_parameter("weight").dim() if _is_conv(layer) else 2
        if flow.ranks[path] == {rank}:
            found[path] = norm
    return found


def _in_sequentials(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], norms: Mapping[str, torch.nn.Module]
) -> dict[str, str]:
    layer_paths = {id(layer): path for path, layer in layers.items() if _is_conv(layer)}
    norm_paths = {id(norm): path for path, norm in norms.items()}
    children = [child for module in model.modules() for child in module._modules.values()]
    places = [id(child) for child in children if child is not None]
    found = {}
    for module in model.modules():
        if type(module) not in (torch.nn.Sequential, Sequential):
            continue
        row = list(module._modules.values())
        for first, second in itertools.pairwise(row):
            is_pair = id(first) in layer_paths and id(second) in norm_paths
            if is_pair and places.count(id(first)) == 1 and places.count(id(second)) == 1:
                found[layer_paths[id(first)]] = norm_paths[id(second)]
    return found


def _is_conv(layer: torch.nn.Module) -> bool:
    cls = quantized_class(layer)
    return cls is not None and issubclass(cls, QuantizedConv)


def _is_embedding(layer: torch.nn.Module) -> bool:
    cls = quantized_class(layer)
    return cls is not None and issubclass(cls, QuantizedEmbedding)


def _out_channels(layer: torch.nn.Module) -> int:
    weight = layer.get_parameter("weight")
    return int(weight.shape[1] if has_transposed_weight(layer) else weight.shape[0])


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
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], calibration: Calibration, alpha: float
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
            return f"its output is read by {reader}, which is not a linear layer to quantize"
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
