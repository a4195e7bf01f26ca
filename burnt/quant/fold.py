"""Batch norms that follow a layer are folded into its weight and bias, as in evaluation; copies of layers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from burnt.nn.container import Sequential
from burnt.nn.norm import BatchNorm, SyncBatchNorm
from burnt.nn.quantized import (
    QuantizedConv,
    QuantizedEmbedding,
    has_transposed_weight,
    quantized_class,
)
from burnt.quant.flow import Flow


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

    A pair is found where `flow`, which followed the layers and the norms, says that the norm alone reads the
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
