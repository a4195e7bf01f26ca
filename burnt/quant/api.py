"""`quantize` and `dequantize`: layers of a model are replaced by quantized ones, and back, in place."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt._torch import without_autocast
from burnt.codegen.verification import Verification, compare, in_float64, interval_of
from burnt.errors import ConfigError, QuantError, quantity
from burnt.nn.quantized import (
    Folded,
    Quantized,
    QuantizedEmbedding,
    quantized_class,
    weight_key,
    weight_matrix,
)
from burnt.quant.calibration import Calibration, calibrate_layers, output_error
from burnt.quant.fold import (
    Smoothing,
    batch_norms,
    find_batch_norms,
    find_smoothings,
    smoothed_layer,
    smoothing_norms,
    smoothing_notes,
)
from burnt.quant.fold import fold_batch_norm as _folded_layer
from burnt.quant.observers import ACTIVATION_METHODS, ActivationMethod, InputObserver, activation_range
from burnt.quant.ranges import METHODS, RangeMethod, check_method, weight_range
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.sites import (
    Site,
    check_model,
    children,
    choose_schemes,
    find_sites,
    other_reason,
    refuse_single_layer,
)
from burnt.record.report import first_of
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


def quantize(
    model: torch.nn.Module,
    scheme: str | QuantScheme = "int8",
    *,
    calibrate: Iterable[Any] | None = None,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    overrides: Mapping[str, str | QuantScheme] | None = None,
    weights: RangeMethod | None = None,
    activations: ActivationMethod = "minmax",
    smooth: float | None = None,
    fold_batch_norm: bool | None = None,
    bound: float = 0.02,
    forward: Callable[[Any, Any], Any] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    verify: bool | float = False,
) -> QuantReport:
    """Quantize the Linear, Conv and Embedding layers of any torch module, in place.

    Args:
        model: the model. Layers that are quantized already stay as they are.
        scheme: a `QuantScheme` or its name: ``"int8"``, ``"int4-block32"``, ``"fp8"`` (weights);
            ``"int8-dynamic"``, ``"int8-static"`` (weights and activations); see `QuantScheme.parse`. Or
            ``"auto"``: for each layer the smallest weight-only scheme whose output error is at most `bound`.
        calibrate: batches of typical inputs, for static schemes, ``"auto"`` and `smooth`, and for the output
            errors in the report. A tensor is the model's argument; of a mapping or Batch, the model gets
            those entries that ``model.forward`` has as arguments; of a tuple or list as many as ``forward``
            takes, so that ``(inputs, targets)`` works for a model of one input. Iterated once.
        only: patterns on paths of modules (``"encoder|head"``); no other layer is quantized.
        skip: patterns on paths of modules that stay as they are.
        overrides: pattern on paths -> scheme of the layers that match; the first match counts.
        weights: how the range of weights is found: ``"minmax"``, ``"mse"``, ``"percentile"`` or
            ``"absmean"``; by default ``"mse"`` for values of less than 8 bits, else ``"minmax"``.
        activations: how the range of static activations is found: ``"minmax"``, ``"moving_average"``,
            ``"percentile"``, ``"mse"`` or ``"absmean"``; see `burnt.quant.observers.activation_range`.
        smooth: SmoothQuant's alpha, 0.5 for most models: outliers of activations move from layer norms and
            RMS norms into the weights of the linear layers after them, where only these read them.
        fold_batch_norm: batch norms are folded into the layers before them, as they are in evaluation; None:
            where activations are quantized. With `calibrate` they are found wherever they are, else in a
            Sequential only.
        bound: the limit for ``"auto"``: the norm of a layer's output error, relative to its output's norm.
        forward: ``forward(model, batch)``, for batches that do not fit ``model(batch)``.
        progress: called with what is done, and how much of how much; the last is 0 if unknown.
        verify: the share of each layer's calls, such as ``1/1000``, that are compared with the dequantized
            layer's, as in `burnt.compile`. Where inputs are quantized, that is a part of the errors.

    Returns:
        a report of every layer with parameters: what it became, bytes and errors, or why it was skipped.

    Raises:
        ArgumentError: `model` is not a module, or a pattern is not a string.
        ConfigError: there is no such scheme or method, or a number is out of range.
        QuantError: a pattern matches nothing, a calibration set is missing, empty or does not fit the model,
            or the model is a single layer. The model is unchanged.

    >>> import torch, burnt
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> print(burnt.quantize(model, "int8", skip="2"))
    1 layer quantized, 8.8 kB -> 2.8 kB (32.0%)
      layer  class   scheme  bytes             SQNR
      0      Linear  int8    8.3 kB -> 2.3 kB  4... dB
    1 layer skipped
      Linear: skip='2'  (2)
    """
    check_model(model, "burnt.quantize")
    interval = interval_of(verify, "burnt.quantize")
    chosen = scheme if scheme == "auto" else QuantScheme.parse(scheme)
    if weights is not None:
        check_method("weights", weights, METHODS)
    check_method("activations", activations, ACTIVATION_METHODS)
    _check_number("smooth", smooth, 0, 1)
    _check_number("bound", bound, 0, math.inf)
    sites, others = find_sites(model)
    choose_schemes(sites, chosen, only, skip, overrides)
    _check_calibration(sites, calibrate, smooth)
    # Nothing of the model changes before the last step, so that it is as before if anything raises.
    calibration = None
    if calibrate is not None:
        calibration = _calibrate(model, sites, calibrate, smooth, fold_batch_norm, forward, progress)
        _skip_uncalibrated(sites, calibration)
    notes = _fold(model, sites, fold_batch_norm, calibration)
    smoothings: list[Smoothing] = []
    if smooth is not None and calibration is not None:
        smoothings, more = _smooth(model, sites, calibration, smooth)
        notes += more
    quantize_sites = functools.partial(
        quantize_group, weights=weights, activations=activations, calibration=calibration, bound=bound
    )
    groups = group_sites(sites)
    for i, group in enumerate(groups):
        if progress is not None:
            progress(f"quantizing {group[0].path}", i, len(groups))
        quantize_sites(group)
    smoothings = _without_float_layers(sites, smoothings, quantize_sites, notes)
    if calibration is not None:
        notes += _unknown_errors(sites)
    folded = {site.folded: site.path for site in sites if site.new is not None and site.folded is not None}
    layers = {
        site.path: skipped_report(site.path, site.layer, site.why_skipped or "")
        if site.new is None
        else layer_report(site, site.new)
        for site in sites
    }
    for path, layer in others.items():
        report = skipped_report(path, layer, other_reason(layer))
        if path in folded:
            why = f"folded into {folded[path]}"
            report = dataclasses.replace(report, bytes_after=0, why_skipped=why)
        layers[path] = report
    order = {path: i for i, (path, _) in enumerate(model.named_modules())}
    notes += _fast_path_notes([site for site in sites if site.new is not None])
    _commit(model, sites, smoothings, list(folded))
    for site in sites:
        if site.new is not None and interval is not None:
            site.new.register_forward_hook(functools.partial(_verify, Verification(site.path, interval)))
    ordered = sorted(layers, key=lambda path: order.get(path, 0))
    return QuantReport(tuple(layers[path] for path in ordered), tuple(notes))


def dequantize(model: torch.nn.Module) -> torch.nn.Module:
    """Replace quantized layers by layers of their original classes, in place; return the model.

    Weights keep the values that quantization has rounded. Batch norms that were folded stay folded.

    Raises:
        ArgumentError: `model` is not a module.
        QuantError: the model is itself a quantized layer.

    >>> import torch, burnt
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> report = burnt.quantize(model, "int8")
    >>> burnt.dequantize(model)
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    check_model(model, "burnt.dequantize")
    if isinstance(model, Quantized):
        refuse_single_layer(model)
    restored: dict[int, torch.nn.Module] = {}
    weights: dict[int, torch.nn.Parameter] = {}
    for parent, name, child in children(model):
        if isinstance(child, Quantized):
            if id(child) not in restored:
                layer = child.restore()
                # Layers that shared their values share their weight again.
                layer.weight = weights.setdefault(id(child.values), layer.get_parameter("weight"))
                restored[id(child)] = layer
            setattr(parent, name, restored[id(child)])
    return model


def _fast_path_notes(quantized: Sequence[Site]) -> tuple[str, ...]:
    """Return what a user should know of the layers that were quantized."""
    parents = [parent for site in quantized for parent, _ in site.places]
    if not any(isinstance(parent, torch.nn.TransformerEncoderLayer) for parent in parents):
        return ()
    return (
        "in eval mode without gradients, TransformerEncoderLayer dequantizes weights and multiplies these; "
        "torch.backends.mha.set_fastpath_enabled(False) avoids that",
    )


def _check_number(name: str, number: float | None, low: float, high: float) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
        raise ConfigError(
            f"{name}= of burnt.quantize is not valid",
            expected=f"a number from {low} to {high}" if high < math.inf else f"a number of at least {low}",
            found=repr(number),
        )


def _check_calibration(sites: Sequence[Site], calibrate: Iterable[Any] | None, smooth: float | None) -> None:
    if calibrate is not None:
        return
    static = next((site.path for site in sites if site.is_static), None)
    auto = next((site.path for site in sites if site.is_auto and site.schemes), None)
    if static is not None:
        what, scheme, hint = "a static scheme", "'int8-static'", "; 'int8-dynamic' needs none"
    elif auto is not None:
        what, scheme, hint = "'auto'", "'auto'", ""
    elif smooth is not None:
        what, scheme, hint = "smooth=", f"..., smooth={smooth:g}", ""
    else:
        return
    raise QuantError(
        f"{what} needs a calibration set",
        where=static or auto,
        expected="calibrate=, some batches of typical inputs",
        found="calibrate=None",
        hint=f"burnt.quantize(model, {scheme}, calibrate=loader){hint}",
    )


def _calibrate(
    model: torch.nn.Module,
    sites: Sequence[Site],
    batches: Iterable[Any],
    smooth: float | None,
    fold: bool | None,
    forward: Callable[[Any, Any], Any] | None,
    progress: Callable[[str, int, int], None] | None,
) -> Calibration:
    """Run the calibration; follow tensors only where batch norms or layer norms may change."""
    layers = {site.path: site.layer for site in sites if site.schemes}
    followed: dict[str, torch.nn.Module] = {}
    if any(_folds(site, fold) for site in sites):
        followed |= batch_norms(model)
    if smooth is not None:
        followed |= {**layers, **smoothing_norms(model)}
    return calibrate_layers(
        model,
        layers,
        batches,
        forward=forward,
        followed={**{site.path: site.layer for site in sites}, **followed} if followed else None,
        progress=progress,
    )


def _skip_uncalibrated(sites: Sequence[Site], calibration: Calibration) -> None:
    """Skip layers whose scheme needs inputs that were not there."""
    for site in sites:
        if not (site.is_static or (site.is_auto and site.schemes)):
            continue
        observer = calibration.inputs.get(site.path)
        if observer is None or not observer.calls:
            site.skip("it was not called in calibration")
        elif not observer.is_finite:
            site.skip("its input has NaN or infinite values in calibration")


def _folds(site: Site, fold: bool | None) -> bool:
    if fold is None:
        return any(scheme.activations is not None for scheme in site.schemes)
    return fold and bool(site.schemes)


def _fold(
    model: torch.nn.Module, sites: Sequence[Site], fold: bool | None, calibration: Calibration | None
) -> list[str]:
    """Find batch norms that follow the layers, and fold them into copies; return notes."""
    by_path = {site.path: site for site in sites if _folds(site, fold)}
    flow = None if calibration is None else calibration.flow
    if not by_path or (calibration is not None and flow is None):
        return []
    pairs = find_batch_norms(model, {path: site.layer for path, site in by_path.items()}, flow)
    for path, norm in pairs.items():
        site = by_path[path]
        site.folded = norm
        site.float_layer = _folded_layer(site.layer, model.get_submodule(norm))
    if not pairs:
        return []
    return [
        f"{quantity(len(pairs), 'batch norm')} folded into the layers before, with the running statistics: "
        "the model is now for evaluation"
    ]


def _smooth(
    model: torch.nn.Module, sites: Sequence[Site], calibration: Calibration, alpha: float
) -> tuple[list[Smoothing], list[str]]:
    """Find what SmoothQuant changes, and multiply copies of the linear layers; return notes too."""
    by_path = {site.path: site for site in sites if site.schemes and site.folded is None}
    layers = {path: site.layer for path, site in by_path.items()}
    found, refused = find_smoothings(model, layers, calibration, alpha)
    for smoothing in found:
        for path in smoothing.layers:
            site = by_path[path]
            site.divisor = smoothing.divisor
            site.float_layer = smoothed_layer(site.layer, smoothing.divisor)
    return found, smoothing_notes(found, refused, alpha)


def _without_float_layers(
    sites: Sequence[Site],
    smoothings: Sequence[Smoothing],
    quantize_sites: Callable[[Sequence[Site]], None],
    notes: list[str],
) -> list[Smoothing]:
    """Return the smoothings whose layers are all quantized; quantize the layers of others unsmoothed."""
    by_path = {site.path: site for site in sites}
    kept = []
    for smoothing in smoothings:
        members = [by_path[path] for path in smoothing.layers]
        stays = next((site.path for site in members if site.new is None), None)
        if stays is None:
            kept.append(smoothing)
            continue
        notes.append(f"not smoothed after all: {smoothing.norm}: {stays} stays as it is")
        for site in members:
            site.divisor, site.float_layer = None, site.layer
            if site.new is not None:
                quantize_sites([site])
    return kept


def _unknown_errors(sites: Sequence[Site]) -> list[str]:
    unknown = [site.path for site in sites if site.new is not None and site.output_error is None]
    if not unknown:
        return []
    named = first_of(unknown)
    return [f"output error unknown: {named}: not called in calibration, or with NaN or infinite values"]


def _verify(verification: Verification, layer: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Compare a call of a quantized layer with the layer of the dequantized weight."""
    if torch.compiler.is_compiling() or not verification.is_due():
        return
    with torch.no_grad():
        same = copy.deepcopy(layer.restore())
        theirs = same(*inputs)
        with without_autocast():
            found = compare([output], [theirs], [same.double()(*in_float64(inputs))])
    is_same = layer.scheme.activations is None
    verification.report(found.error, type(layer).__name__, found.fault if is_same else None)


def _commit(
    model: torch.nn.Module, sites: Sequence[Site], smoothings: Sequence[Smoothing], folded: Sequence[str]
) -> None:
    """Change the model."""
    for smoothing in smoothings:
        smoothing.apply(model)
    new = {id(site.layer): site.new for site in sites if site.new is not None}
    gone = {id(model.get_submodule(path)) for path in folded}
    identity = {module: Folded() for module in gone}
    for parent, name, child in children(model):
        if id(child) in new:
            setattr(parent, name, new[id(child)])
        elif id(child) in identity:
            setattr(parent, name, identity[id(child)])
