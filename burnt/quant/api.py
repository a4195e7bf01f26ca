"""`quantize` and `dequantize`: layers of a model are replaced by quantized ones, and back, in place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from burnt._patterns import matches, near, warn_unmatched
from burnt.config import qualified_name
from burnt.errors import ConfigError, QuantError, quantity
from burnt.nn.quantized import (
    LAYERS,
    Folded,
    Quantized,
    QuantizedEmbedding,
    quantized_class,
    weight_key,
    weight_matrix,
)
from burnt.quant.calibration import Calibration, calibrate_layers, output_error
from burnt.quant.fold import batch_norms, find_batch_norms
from burnt.quant.fold import fold_batch_norm as _folded_layer
from burnt.quant.observers import (
    ActivationMethod,
    InputObserver,
    activation_range,
    check_activation_method,
)
from burnt.quant.ranges import RangeMethod, check_method, weight_range
from burnt.quant.report import LayerReport, QuantReport
from burnt.quant.smooth import Smoothing, find_smoothings, smoothed_layer, smoothing_norms, smoothing_notes
from burnt.scheme import QuantScheme

__all__ = ["dequantize", "quantize"]

_AUTO = tuple(
    QuantScheme.parse(name)
    for name in (
        "int2-block32",
        "int4-block128",
        "int4-block64",
        "int4-block32",
        "int4-block32-asymmetric",
        "int4-block16",
        "int8",
        "int8-block32",
    )
)
"""What ``"auto"`` tries. float8 is as large as int8, and its error on most weights is larger."""


@dataclasses.dataclass
class Site:
    """A layer that may be quantized.

    Args:
        path: its first path in the model.
        layer: the layer.
        places: every parent and name under which the model holds it.
        schemes: what it may become; the first that is good enough is taken. Empty if it stays.
        is_auto: whether the schemes are those of ``"auto"``.
        why_skipped: why it stays, or None.
        folded: path of the batch norm that is folded into it, or None.
        float_layer: what is quantized: the layer, or a copy with another weight and bias.
        divisor: what its inputs will be divided by, or None.
        new: the quantized layer.
        scheme: its scheme.
        output_error: of the quantized layer, or None.
    """

    path: str
    layer: torch.nn.Module
    places: list[tuple[torch.nn.Module, str]]
    schemes: tuple[QuantScheme, ...] = ()
    is_auto: bool = False
    why_skipped: str | None = None
    folded: str | None = None
    float_layer: torch.nn.Module = None  # type: ignore[assignment]
    divisor: Tensor | None = None
    new: Quantized | None = None
    scheme: QuantScheme | None = None
    output_error: float | None = None

    def __post_init__(self) -> None:
        self.float_layer = self.layer

    @property
    def is_static(self) -> bool:
        """Whether a scheme needs the range of its input."""
        cls = quantized_class(self.layer)
        is_embedding = cls is not None and issubclass(cls, QuantizedEmbedding)
        return not is_embedding and any(scheme.activations == "static" for scheme in self.schemes)

    def skip(self, reason: str) -> None:
        """Leave the layer as it is."""
        self.schemes, self.new, self.why_skipped, self.output_error = (), None, reason, None


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
            RMS norms into the weights of the linear layers after them, where these alone read them.
        fold_batch_norm: batch norms are folded into the layers before them, as they are in evaluation; None:
            where activations are quantized. With `calibrate` they are found wherever they are, else in a
            Sequential only.
        bound: of ``"auto"``: the norm of a layer's output error, relative to that of its output.
        forward: ``forward(model, batch)``, for batches that do not fit ``model(batch)``.
        progress: called with what is done, and how much of how much; the last is 0 if unknown.

    Returns:
        a report of every layer with parameters: what it became, bytes and errors, or why it was skipped.

    Raises:
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
    chosen = scheme if scheme == "auto" else QuantScheme.parse(scheme)
    if weights is not None:
        check_method(weights)
    check_activation_method(activations)
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
    groups = _groups(sites)
    for i, group in enumerate(groups):
        if progress is not None:
            progress(f"quantizing {group[0].path}", i, len(groups))
        _quantize_group(group, weights, activations, calibration, bound)
    smoothings = _without_float_layers(sites, smoothings, weights, activations, calibration, bound, notes)
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
    notes += fast_path_notes([site for site in sites if site.new is not None])
    _commit(model, sites, smoothings, list(folded))
    ordered = sorted(layers, key=lambda path: order.get(path, 0))
    return QuantReport(tuple(layers[path] for path in ordered), tuple(notes))


def dequantize(model: torch.nn.Module) -> torch.nn.Module:
    """Replace quantized layers by layers of their original classes, in place; return the model.

    Weights keep the values that quantization has rounded. Batch norms that were folded stay folded.

    >>> import torch, burnt
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> report = burnt.quantize(model, "int8")
    >>> burnt.dequantize(model)
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    restored: dict[int, torch.nn.Module] = {}
    weights: dict[int, torch.nn.Parameter] = {}
    for parent, name, child in _children(model):
        if isinstance(child, Quantized):
            if id(child) not in restored:
                layer = child.restore()
                # Layers that shared their values share their weight again.
                layer.weight = weights.setdefault(id(child.values), layer.get_parameter("weight"))
                restored[id(child)] = layer
            setattr(parent, name, restored[id(child)])
    return model


def find_sites(model: torch.nn.Module) -> tuple[list[Site], dict[str, torch.nn.Module]]:
    """Return the layers that can be quantized, and by path other modules with parameters of their own.

    Raises:
        QuantError: the model is itself such a layer.
    """
    if quantized_class(model) is not None:
        raise QuantError(
            "a single layer cannot be replaced in place",
            where=type(model).__name__,
            expected="a model that holds the layer",
            found=f"a {type(model).__name__}",
            hint="burnt.quantize(torch.nn.Sequential(layer))",
        )
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for parent, name, child in _children(model):
        places.setdefault(id(child), []).append((parent, name))
    sites, others = [], {}
    for path, module in model.named_modules():
        if quantized_class(module) is not None:
            is_adapter = any(part.startswith("lora_") for part in path.split("."))
            why = "it belongs to a LoRA adapter" if is_adapter else None
            sites.append(Site(path, module, places[id(module)], why_skipped=why))
        elif isinstance(module, Quantized) or next(module.parameters(recurse=False), None) is not None:
            others[path] = module
    return sites, others


def choose_schemes(
    sites: Sequence[Site],
    scheme: str | QuantScheme,
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
    overrides: Mapping[str, str | QuantScheme] | None,
) -> None:
    """Set the schemes of each site, or why it is skipped.

    Raises:
        ConfigError: a scheme of `overrides` does not exist.
        QuantError: a pattern matches no layer.
    """
    paths = [site.path for site in sites]
    selected = None if only is None else [only] if isinstance(only, str) else list(only)
    skipped = [] if skip is None else [skip] if isinstance(skip, str) else list(skip)
    special = {
        pattern: name if name == "auto" else QuantScheme.parse(name)
        for pattern, name in (overrides or {}).items()
    }
    for argument, patterns in (("only", selected or []), ("skip", skipped), ("overrides", list(special))):
        for pattern in patterns:
            if not any(matches(pattern, path) for path in paths):
                raise QuantError(
                    f"the pattern {pattern!r} of {argument}= matches no layer that can be quantized",
                    expected="a pattern on paths of Linear, Conv or Embedding layers, or modules above them",
                    found=repr(pattern),
                    hint=near(pattern, paths),
                )
            warn_unmatched(pattern, paths, "layer")
    for site in sites:
        if site.why_skipped is not None:
            continue
        by_skip = next((pattern for pattern in skipped if matches(pattern, site.path)), None)
        if by_skip is not None:
            site.why_skipped = f"skip={by_skip!r}"
            continue
        if selected is not None and not any(matches(pattern, site.path) for pattern in selected):
            site.why_skipped = "not in only="
            continue
        own = next((s for pattern, s in special.items() if matches(pattern, site.path)), scheme)
        site.is_auto = own == "auto"
        reasons = {
            s: skip_reason(site.layer, s) for s in (_AUTO if site.is_auto else [QuantScheme.parse(own)])
        }
        site.schemes = tuple(
            sorted((s for s, why in reasons.items() if why is None), key=_size_on(site.layer))
        )
        if not site.schemes:
            site.why_skipped = next(iter(reasons.values()))


_LEAST_FLOAT16 = 2.0**-18  # below, scales are rounded by more than 0.8 %: steps are 2^-24
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OTHER = "only Linear, Conv and Embedding are quantized"


def fast_path_notes(quantized: Sequence[Site]) -> tuple[str, ...]:
    """Return what a user should know of the layers that were quantized."""
    parents = [parent for site in quantized for parent, _ in site.places]
    if not any(isinstance(parent, torch.nn.TransformerEncoderLayer) for parent in parents):
        return ()
    return (
        "in eval mode without gradients, TransformerEncoderLayer dequantizes weights and multiplies these; "
        "torch.backends.mha.set_fastpath_enabled(False) avoids that",
    )


def other_reason(layer: torch.nn.Module) -> str:
    """Return why a layer of a class that has no quantized one stays."""
    if isinstance(layer, Quantized):
        return f"it is quantized already: {layer.scheme.name}"
    if torch.nn.utils.parametrize.is_parametrized(layer):
        return "it has parametrizations: remove them first"
    if any(torch.nn.parameter.is_lazy(p) for p in layer.parameters(recurse=False)):
        return "it is lazy: call the model once first"
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "MultiheadAttention reads its weight itself"
    base = next((cls for cls in type(layer).__mro__[1:] if qualified_name(cls) in LAYERS), None)
    return _OTHER if base is None else f"a subclass of {base.__name__} may compute something else"


def skip_reason(layer: torch.nn.Module, scheme: QuantScheme) -> str | None:
    """Return why a layer cannot be quantized by a scheme, or None."""
    adapter = getattr(layer, "lora_adapter", None)
    if adapter is not None and adapter.merged is None:
        return "it has a LoRA adapter: call burnt.nn.merge_lora first"
    if any(getattr(layer, name) for name in _HOOKS):
        return "it has hooks, which a new layer would lose"
    if "forward" in layer.__dict__:
        return "its forward was replaced (by burnt.swap? then call burnt.unswap first)"
    if getattr(layer, "max_norm", None) is not None or getattr(layer, "sparse", False):
        return "max_norm and sparse gradients need a table that changes"
    weight = weight_matrix(layer)
    if weight.is_meta:
        return "its weight has no values yet"
    if not weight.is_floating_point():
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
    if not weight.numel():
        return "its weight is empty"
    if not weight.isfinite().all():
        return "its weight has NaN or infinite values"
    columns = weight.shape[1]
    if scheme.block is not None and columns % scheme.block and scheme.uneven == "refuse":
        return f"its {columns} columns are no multiple of the block {scheme.block}"
    if scheme.scale == "float16" and (largest := float(weight.abs().max())):
        if largest / scheme.largest > 65504:
            return "its scales are too large for float16"
        if largest / min(scheme.largest, 127) < _LEAST_FLOAT16:
            return "its scales are too small for float16"
    return None


def quantize_layer(
    layer: torch.nn.Module,
    scheme: QuantScheme,
    method: RangeMethod | None = None,
    shared: dict[tuple[object, ...], Quantized] | None = None,
) -> Quantized:
    """Return a quantized copy of a layer.

    Args:
        layer: of a class in `burnt.nn.quantized.LAYERS`.
        scheme: of the weight.
        method: how its range is found.
        shared: layers made so far, by weight and scheme: those of tied weights share their values.
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


def layer_report(site: Site, new: Quantized) -> LayerReport:
    """Return the report of a layer that was quantized."""
    assert site.scheme is not None
    weight = weight_matrix(site.float_layer).float()
    noise = (new.weight.t() if new.is_transposed else new.weight).detach().flatten(1).float() - weight
    power, error = float(weight.square().sum()), float(noise.square().sum())
    sqnr = math.inf if error == 0 else 10 * math.log10(power / error) if power else -math.inf
    bias = tensor_bytes(new._parameters.values())
    return LayerReport(
        path=site.path,
        layer=type(site.layer).__name__,
        shape=new.weight_shape,
        scheme=(site.scheme if not isinstance(new, QuantizedEmbedding) else new.scheme).name,
        bytes_before=tensor_bytes(site.layer.parameters(recurse=False)),
        bytes_after=tensor_bytes(new._buffers.values()) + bias,
        sqnr=sqnr,
        output_error=site.output_error,
    )


def skipped_report(path: str, layer: torch.nn.Module, why: str) -> LayerReport:
    """Return the report of a layer that stays."""
    size = tensor_bytes(layer._parameters.values())
    size += tensor_bytes(layer._buffers.values()) if isinstance(layer, Quantized) else 0
    weight = layer._parameters.get("weight")
    shape = (
        getattr(layer, "weight_shape", ())
        if weight is None or torch.nn.parameter.is_lazy(weight)
        else tuple(weight.shape)
    )
    return LayerReport(path, type(layer).__name__, shape, None, size, size, why_skipped=why)


def tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Return the bytes of some tensors."""
    return sum(t.nbytes for t in tensors if t is not None and not torch.nn.parameter.is_lazy(t))


def _size_on(layer: torch.nn.Module) -> Callable[[QuantScheme], int]:
    rows, columns = weight_matrix(layer).shape
    return lambda scheme: scheme.num_bytes(rows, columns)


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
        what, where = "a static scheme needs a calibration set, to find the range of activations", static
        hint = "burnt.quantize(model, 'int8-static', calibrate=loader); 'int8-dynamic' needs none"
    elif auto is not None:
        what, where = "'auto' needs a calibration set, to compute output errors", auto
        hint = "burnt.quantize(model, 'auto', calibrate=loader)"
    elif smooth is not None:
        what, where = "smooth= needs a calibration set, to find outliers of activations", None
        hint = f"burnt.quantize(model, ..., smooth={smooth:g}, calibrate=loader)"
    else:
        return
    raise QuantError(
        what,
        where=where,
        expected="calibrate=, some batches of typical inputs",
        found="calibrate=None",
        hint=hint,
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


def _groups(sites: Sequence[Site]) -> list[list[Site]]:
    """Return the sites to quantize; those with tied weights together, since they share their values."""
    groups: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        if site.schemes:
            groups.setdefault((id(site.float_layer.get_parameter("weight")), site.schemes), []).append(site)
    return list(groups.values())


def _quantize_group(
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
            site.new = quantize_layer(site.float_layer, scheme, weights, shared)
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


def _set_input_range(new: Quantized, observer: InputObserver, method: str, divisor: Tensor | None) -> None:
    assert new.input_scale is not None
    scale, zero_point = activation_range(observer, new.input_value, method, divisor)
    new.input_scale.copy_(scale)
    if new.input_zero_point is not None and zero_point is not None:
        new.input_zero_point.copy_(zero_point)


def _without_float_layers(
    sites: Sequence[Site],
    smoothings: Sequence[Smoothing],
    weights: RangeMethod | None,
    activations: str,
    calibration: Calibration | None,
    bound: float,
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
                _quantize_group([site], weights, activations, calibration, bound)
    return kept


def _unknown_errors(sites: Sequence[Site]) -> list[str]:
    unknown = [site.path for site in sites if site.new is not None and site.output_error is None]
    if not unknown:
        return []
    named = unknown[0] if len(unknown) == 1 else f"{unknown[0]} and {len(unknown) - 1} more"
    return [f"output error unknown: {named}: not called in calibration, or with NaN or infinite values"]


def _commit(
    model: torch.nn.Module, sites: Sequence[Site], smoothings: Sequence[Smoothing], folded: Sequence[str]
) -> None:
    """Change the model."""
    for smoothing in smoothings:
        smoothing.apply(model)
    new = {id(site.layer): site.new for site in sites if site.new is not None}
    gone = {id(model.get_submodule(path)) for path in folded}
    identity = {module: Folded() for module in gone}
    for parent, name, child in _children(model):
        if id(child) in new:
            setattr(parent, name, new[id(child)])
        elif id(child) in identity:
            setattr(parent, name, identity[id(child)])


def _children(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Return (parent, name, child) of all modules; a child once for every place that holds it."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None
    ]
