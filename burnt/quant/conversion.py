"""Quantizing the layers that were chosen: weights, ranges of static activations, errors, report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from burnt.nn.quantized import Quantized, QuantizedEmbedding, quantized_class, weight_key, weight_matrix
from burnt.quant.calibration import Calibration, output_error
from burnt.quant.observers import InputObserver, activation_range
from burnt.quant.ranges import RangeMethod, weight_range
from burnt.quant.report import LayerReport
from burnt.quant.sites import Site
from burnt.scheme import QuantScheme


def group_sites(sites: Sequence[Site]) -> list[list[Site]]:
    """Return the sites to quantize; those with tied weights together, since they share their values."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        if site.schemes:
            groups.setdefault((id(site.float_layer.get_parameter("weight")), site.schemes), []).append(site)
    return list(groups.values())


def quantize_group(
    group: Sequence[Site],
    weights: RangeMethod | None,
    activations: str,
    calibration: Calibration | None,
    bound: float,
) -> None:
    """Quantize layers with the first of their schemes whose output errors are small enough."""
    errors: list[float | None] = []
    for scheme in group[0].schemes:
        shared: dict[tuple[object, ...], Quantized] = {}
        errors = []
        for site in group:
            observer = None if calibration is None else calibration.inputs.get(site.path)
            site.scheme = scheme
            site.new = _quantize_layer(site.float_layer, scheme, weights, shared)
            if site.new.input_scale is not None and observer is not None:
                _set_input_range(site.new, observer, activations, site.divisor)
            site.output_error = None
            if observer is not None and observer.calls and observer.is_finite:
                site.output_error = output_error(site.float_layer, site.new, observer, site.divisor)
            errors.append(site.output_error)
        if not group[0].is_auto or all(error is not None and error <= bound for error in errors):
            return
    largest = max(error for error in errors if error is not None)
    for site in group:
        last = "" if site.scheme is None else site.scheme.name
        site.skip(f"even {last} has an output error of {largest:.2%}, more than bound={bound:g}")


def _quantize_layer(
    layer: torch.nn.Module,
    scheme: QuantScheme,
    method: RangeMethod | None = None,
    shared: dict[tuple[object, ...], Quantized] | None = None,
) -> Quantized:
    """Return a quantized copy of a layer of a class in `burnt.nn.quantized.LAYERS`.

    `shared` holds the layers made so far, by weight and scheme: those of tied weights share their values.
    """
    cls = quantized_class(layer)
    assert cls is not None
    with torch.no_grad():
        new = cls(layer, scheme)
        twin = None if shared is None else shared.setdefault(weight_key(layer, scheme), new)
        if twin is None or twin is new:
            matrix = weight_matrix(layer)
            new.set_weight(matrix.float(), *weight_range(matrix, scheme, method))
        else:
            new.tie(twin)
    return new


def _set_input_range(new: Quantized, observer: InputObserver, method: str, divisor: Tensor | None) -> None:
    assert new.input_scale is not None
    scale, zero_point = activation_range(observer, new.input_value, method, divisor)
    new.input_scale.copy_(scale)
    if new.input_zero_point is not None and zero_point is not None:
        new.input_zero_point.copy_(zero_point)


def layer_report(site: Site, new: Quantized) -> LayerReport:
    """Return the report of a layer that was quantized."""
    assert site.scheme is not None
    weight = weight_matrix(site.float_layer).float()
    noise = (new.weight.t() if new.is_transposed else new.weight).detach().flatten(1).float() - weight
    power, error = float(weight.square().sum()), float(noise.square().sum())
    sqnr = math.inf if error == 0 else 10 * math.log10(power / error) if power else -math.inf
    bias = _tensor_bytes(new._parameters.values())
    return LayerReport(
        path=site.path,
        layer=type(site.layer).__name__,
        shape=new.weight_shape,
        scheme=(site.scheme if not isinstance(new, QuantizedEmbedding) else new.scheme).name,
        bytes_before=_tensor_bytes(site.layer.parameters(recurse=False)),
        bytes_after=_tensor_bytes(new._buffers.values()) + bias,
        sqnr=sqnr,
        output_error=site.output_error,
    )


def skipped_report(path: str, layer: torch.nn.Module, why: str) -> LayerReport:
    """Return the report of a layer that stays."""
    size = _tensor_bytes(layer._parameters.values())
    size += _tensor_bytes(layer._buffers.values()) if isinstance(layer, Quantized) else 0
    weight = layer._parameters.get("weight")
    shape = (
        getattr(layer, "weight_shape", ())
        if weight is None or torch.nn.parameter.is_lazy(weight)
        else tuple(weight.shape)
    )
    return LayerReport(path, type(layer).__name__, shape, None, size, size, why_skipped=why)


def _tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of some tensors."""
    return sum(t.nbytes for t in tensors if t is not None and not torch.nn.parameter.is_lazy(t))
