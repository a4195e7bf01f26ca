"""Quantized layers in records: what a file says of them, and giving a model the same layers before it is
loaded.

`burnt.nn.quantized` has the layers; it registers how they are built, since it is above this package.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from burnt.errors import RecordError, nearest

__all__ = ["quantized_layers", "register_builder", "scale_paths", "with_quantized_layers"]

Builder = Callable[[torch.nn.Module, Mapping[str, Any], dict[tuple[object, ...], Any]], torch.nn.Module]

_builders: list[Builder] = []


def register_builder(build: Builder) -> Builder:
    """Register the function that builds a quantized layer: from the original one, its entry in a record, and
    a dictionary in which it keeps the layers that share their weight."""
    _builders[:] = [build]
    return build


def quantized_layers(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return what a record says of a model's quantized layers, by path: what ``layer.quantization()``
    returns."""
    found: dict[str, dict[str, Any]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        describe = getattr(child, "quantization", None)
        if callable(describe):
            found[path] = describe()
    return found


def scale_paths(layers: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the paths of quantized layers' scales, which keep their dtype when weights are converted."""
    names = ("scale", "input_scale")
    return {f"{path}.{name}" for path in layers for name in names}


@contextlib.contextmanager
def with_quantized_layers(
    model: torch.nn.Module, layers: Mapping[str, Mapping[str, Any]], where: str | None
) -> Iterator[None]:
    """Replace layers of a model by quantized ones, as a record has them, to load it within the context.

    Layers that are quantized by the same scheme already stay. If the context raises, the model gets its old
    layers back.

    Args:
        model: the model.
        layers: what `quantized_layers` returned for the model that was saved.
        where: the file, for messages.

    Raises:
        RecordError: the model has no such layer, or one that is quantized by another scheme.
    """
    replaced: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    if layers and not _builders:
        # By name: this package may not import the layers, which register themselves.
        importlib.import_module("burnt.nn.quantized")
    modules = dict(model.named_modules(remove_duplicate=False))
    built: dict[int, torch.nn.Module] = {}
    shared: dict[tuple[object, ...], Any] = {}
    try:
        for path, entry in layers.items():
            old = modules.get(path)
            if old is None:
                close = nearest(path, modules)
                raise RecordError(
                    "the model lacks a layer that the file has quantized",
                    where=f"{where}: {path}" if where else path,
                    expected=f"a layer {path!r}, as in the model that was saved",
                    found="none of this path",
                    hint=f"did you mean {close!r}?" if close else None,
                )
            new = built.get(id(old)) or _builders[0](old, entry, shared)
            built[id(old)] = new
            if new is old:
                continue
            if not path:
                raise RecordError(
                    "a single layer cannot be replaced by a quantized one",
                    where=where,
                    expected="a model that holds the layer",
                    found=type(model).__name__,
                    hint="burnt.quantize(torch.nn.Sequential(layer)), then save and load that",
                )
            parent, _, name = path.rpartition(".")
            holder = modules[parent]
            replaced.append((holder, name, old))
            setattr(holder, name, new)
        yield
    except BaseException:
        for holder, name, old in replaced:
            setattr(holder, name, old)
        raise


def quantized_hint(own: Collection[str], found: Collection[str]) -> str | None:
    """Return what to do when only one of model and source is quantized, judged by their tensors' paths."""
    own_layers = {path.rpartition(".")[0] for path in own if path.endswith(".values")}
    found_layers = {path.rpartition(".")[0] for path in found if path.endswith(".values")}
    if any(f"{layer}.weight" in found for layer in own_layers - found_layers):
        return "the model is quantized and the weights are not: load them first, then call burnt.quantize"
    if any(f"{layer}.weight" in own for layer in found_layers - own_layers):
        return "the weights are quantized, but do not say how: save burnt.record.record_of(model) instead"
    return None
