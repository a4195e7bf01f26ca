"""The layers of a model that may be quantized: what each may become, or why it stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from burnt._patterns import matches, near, warn_unmatched
from burnt.config import qualified_name
from burnt.errors import ArgumentError, QuantError
from burnt.nn.quantized import LAYERS, Quantized, QuantizedEmbedding, quantized_class, weight_matrix
from burnt.scheme import QuantScheme

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
_LEAST_FLOAT16 = 2.0**-18  # below, scales are rounded by more than 0.8 %: steps are 2^-24
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OTHER = "only Linear, Conv and Embedding are quantized"


@dataclasses.dataclass
class Site:
    """A layer that may be quantized.

    `path` is its first path, `places` are all parents and names under which the model holds it. Of `schemes`,
    the first that is good enough is taken; there is none if the layer stays, for the reason `why_skipped`.
    `folded` is the path of the batch norm that is folded into it, `float_layer` what is quantized: the layer,
    or a copy with another weight and bias, whose inputs will be divided by `divisor`. `new`, `scheme` and
    `output_error` are the result.
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


def refuse_single_layer(model: torch.nn.Module) -> None:
    """Refuse a model that is itself a layer that would have to be replaced."""
    if quantized_class(model) is None and not isinstance(model, Quantized):
        return
    function = "dequantize" if isinstance(model, Quantized) else "quantize"
    raise QuantError(
        "a single layer cannot be replaced in place",
        where=type(model).__name__,
        expected="a model that holds the layer",
        found=f"a {type(model).__name__}",
        hint=f"burnt.{function}(torch.nn.Sequential(layer))",
    )


def find_sites(model: torch.nn.Module) -> tuple[list[Site], dict[str, torch.nn.Module]]:
    """Return the layers that can be quantized, and by path other modules with parameters of their own."""
    refuse_single_layer(model)
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for parent, name, child in children(model):
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
    """Set the schemes of each site, or why it is skipped."""
    paths = [site.path for site in sites]
    selected = None if only is None else _as_patterns("only", only)
    skipped = [] if skip is None else _as_patterns("skip", skip)
    special: dict[str, str | QuantScheme] = {}
    if overrides is not None:
        if not isinstance(overrides, Mapping):
            raise ArgumentError(
                "overrides= of burnt.quantize is not a mapping",
                expected="patterns and their schemes, such as {'head': 'int8'}",
                found=repr(overrides),
            )
        patterns = _as_patterns("overrides", list(overrides))
        schemes = [s if s == "auto" else QuantScheme.parse(s) for s in overrides.values()]
        special = dict(zip(patterns, schemes, strict=True))
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
            s: _skip_reason(site.layer, s) for s in (_AUTO if site.is_auto else [QuantScheme.parse(own)])
        }
        possible = [s for s, why in reasons.items() if why is None]
        if not possible:
            site.why_skipped = next(iter(reasons.values()))
            continue
        rows, columns = weight_matrix(site.layer).shape
        site.schemes = tuple(sorted(possible, key=lambda s: s.num_bytes(rows, columns)))


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


def _skip_reason(layer: torch.nn.Module, scheme: QuantScheme) -> str | None:
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
    if weight.dtype == torch.float64 and not weight.float().isfinite().all():
        return "its weight has values that float32 does not hold"
    columns = weight.shape[1]
    if scheme.block is not None and columns % scheme.block and scheme.uneven == "refuse":
        return f"its {columns} columns are not a multiple of the block {scheme.block}"
    if scheme.scale == "float16" and (largest := float(weight.abs().max())):
        if largest / scheme.largest > 65504:
            return "its scales are too large for float16"
        if largest / min(scheme.largest, 127) < _LEAST_FLOAT16:
            return "its scales are too small for float16"
    return None


def children(model: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Return (parent, name, child) of all modules; a child once for every place that holds it."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None
    ]


def check_model(model: object, function: str) -> None:
    """Check that an argument is a module."""
    if isinstance(model, torch.nn.Module):
        return
    hint = None
    if isinstance(model, str | Path):
        hint = "build the model, call burnt.load_weights(model, path), and pass it; or run `burnt quantize`"
    elif isinstance(model, Mapping):
        hint = "build the model, call burnt.load_weights(model, state_dict), and pass it"
    elif isinstance(model, type) and issubclass(model, torch.nn.Module):
        hint = f"an instance: {model.__name__}(...)"
    raise ArgumentError(
        f"{function} takes a model", expected="a torch.nn.Module", found=_described(model), hint=hint
    )


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of {type(value).__name__}"


def _as_patterns(argument: str, patterns: Any) -> list[str]:
    """Return one pattern or several as a list."""
    found = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    if wrong := [pattern for pattern in found if not isinstance(pattern, str)]:
        raise ArgumentError(
            f"{argument}= of burnt.quantize takes patterns on paths of modules",
            expected="strings such as 'head' or 'encoder.*.ff'",
            found=", ".join(map(repr, wrong)),
            hint=f"{str(wrong[0])!r} instead of {wrong[0]}" if isinstance(wrong[0], int) else None,
        )
    return found
