"""Copies of layers with other parameters; the original stays as it is."""

from __future__ import annotations

import copy

import torch
from torch import Tensor


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
