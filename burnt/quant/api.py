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
from burnt.errors import QuantError
from burnt.nn.quantized import (
    LAYERS,
    Quantized,
    QuantizedEmbedding,
    quantized_class,
    weight_key,
    weight_matrix,
)
from burnt.quant.ranges import RangeMethod, weight_range
from burnt.quant.report import LayerReport, QuantReport
from burnt.scheme import QuantScheme

__all__ = ["dequantize", "quantize"]


@dataclasses.dataclass
class Site:
    """A layer that may be quantized.

    Args:
        path: its first path in the model.
        layer: the layer.
        places: every parent and name under which the model holds it.
        scheme: what it becomes, or None.
        why_skipped: why it stays, or None.
    """

    path: str
    layer: torch.nn.Module
    places: list[tuple[torch.nn.Module, str]]
    scheme: QuantScheme | None = None
    why_skipped: str | None = None


def quantize(
    model: torch.nn.Module,
    scheme: str | QuantScheme = "int8",
    *,
    calibrate: Iterable[Any] | None = None,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    overrides: Mapping[str, str | QuantScheme] | None = None,
    weights: RangeMethod | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> QuantReport:
    """Quantize the Linear, Conv and Embedding layers of any torch module, in place.

    Args:
        model: the model. Layers that are quantized already stay as they are.
        scheme: a `QuantScheme` or its name: ``"int8"``, ``"int4-block32"``, ``"fp8"`` (weights);
            ``"int8-dynamic"``, ``"int8-static"`` (weights and activations); see `QuantScheme.parse`.
        calibrate: batches of the model's inputs, for ``"static"`` schemes and the report's output errors.
        only: patterns on paths of modules (``"encoder|head"``); no other layer is quantized.
        skip: patterns on paths of modules that stay as they are.
        overrides: pattern on paths -> scheme of the layers that match; the first match counts.
        weights: how the range of weights is found: ``"minmax"``, ``"mse"``, ``"percentile"`` or
            ``"absmean"``; by default ``"mse"`` for values of less than 8 bits, else ``"minmax"``.
        progress: called with what is done, and how many layers of how many.

    Returns:
        a report of every layer with parameters: what it became, bytes and errors, or why it was skipped.

    Raises:
        ConfigError: there is no such scheme or method.
        QuantError: a pattern matches nothing, a static scheme has no calibration set, or the model is a
            single layer. The model is unchanged.

    >>> import torch, burnt
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    >>> print(burnt.quantize(model, "int8", skip="2"))
    1 layer quantized, 8.8 kB -> 2.8 kB (32.0%)
      layer  class   scheme  bytes             SQNR
      0      Linear  int8    8.3 kB -> 2.3 kB  4... dB
    1 layer skipped
      Linear: skip='2'  (2)
    """
    chosen = QuantScheme.parse(scheme)
    sites, others = find_sites(model)
    choose_schemes(sites, chosen, only, skip, overrides)
    _check_calibration(sites, calibrate)
    layers: dict[str, LayerReport] = {}
    shared: dict[tuple[object, ...], Quantized] = {}
    wanted = [site for site in sites if site.scheme is not None]
    replacements: list[tuple[Site, Quantized]] = []
    for site in sites:
        if site.scheme is None:
            layers[site.path] = skipped_report(site.path, site.layer, site.why_skipped or "")
            continue
        if progress is not None:
            progress(f"quantizing {site.path}", len(replacements), len(wanted))
        new = quantize_layer(site.layer, site.scheme, weights, shared)
        replacements.append((site, new))
        layers[site.path] = layer_report(site, new)
    for site, new in replacements:
        for parent, name in site.places:
            setattr(parent, name, new)
    for path, layer in others.items():
        layers[path] = skipped_report(path, layer, other_reason(layer))
    order = {path: i for i, (path, _) in enumerate(model.named_modules())}
    ordered = tuple(layers[path] for path in sorted(layers, key=lambda p: order.get(p, 0)))
    return QuantReport(ordered, notes(wanted))


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
    scheme: QuantScheme,
    only: str | Sequence[str] | None,
    skip: str | Sequence[str] | None,
    overrides: Mapping[str, str | QuantScheme] | None,
) -> None:
    """Set the scheme of each site, or why it is skipped.

    Raises:
        ConfigError: a scheme of `overrides` does not exist.
        QuantError: a pattern matches no layer.
    """
    paths = [site.path for site in sites]
    selected = None if only is None else [only] if isinstance(only, str) else list(only)
    skipped = [] if skip is None else [skip] if isinstance(skip, str) else list(skip)
    special = {pattern: QuantScheme.parse(name) for pattern, name in (overrides or {}).items()}
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
        site.why_skipped = skip_reason(site.layer, own)
        site.scheme = own if site.why_skipped is None else None


_LEAST_FLOAT16 = 2.0**-18  # below, scales are rounded by more than 0.8 %: steps are 2^-24
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OTHER = "only Linear, Conv and Embedding are quantized"


def notes(quantized: Sequence[Site]) -> tuple[str, ...]:
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


def layer_report(site: Site, new: Quantized, output_error: float | None = None) -> LayerReport:
    """Return the report of a layer that was quantized."""
    assert site.scheme is not None
    weight = weight_matrix(site.layer).float()
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
        output_error=output_error,
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


def _check_calibration(sites: Sequence[Site], calibrate: Iterable[Any] | None) -> None:
    static = [site.path for site in sites if site.scheme is not None and site.scheme.activations == "static"]
    if static and calibrate is None:
        raise QuantError(
            "a static scheme needs a calibration set, to find the range of activations",
            where=static[0],
            expected="calibrate=, some batches of typical inputs",
            found="calibrate=None",
            hint="burnt.quantize(model, 'int8-static', calibrate=loader); 'int8-dynamic' needs none",
        )


def _children(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Return (parent, name, child) of all modules; a child once for every place that holds it."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None
    ]
