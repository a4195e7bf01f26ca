"""Quantized layers in records: what a file says of them, and giving a model the same layers before it is
loaded.

`burnt.nn.quantized` has the layers. It stands above this package, so `burnt` hands in how they are built.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from burnt import _lazy
from burnt._patterns import matches
from burnt.errors import RecordError, did_you_mean, quantity
from burnt.record.arranging.layout import WRAPPERS, without_wrappers
from burnt.record.stored import DTYPES
from burnt.scheme import QuantScheme


def quantized_layers(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return what a record says of a model's quantized layers: what ``layer.quantization()`` returns, by
    path without the names of wrappers."""
    found: dict[str, dict[str, Any]] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        describe = getattr(child, "quantization", None)
        if callable(describe):
            found[without_wrappers(path)] = describe()
    return found


def scale_paths(layers: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the paths of quantized layers' scales, which keep their dtype when weights are converted."""
    names = ("scale", "input_scale")
    return {f"{path}.{name}" for path in layers for name in names}


def with_weight_dtype(
    layers: Mapping[str, dict[str, Any]], dtype: torch.dtype | None, keep: str | Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """Return what a record says of quantized layers after its tensors were converted by `cast_tensors`."""
    patterns = [] if keep is None else [keep] if isinstance(keep, str) else list(keep)
    return {
        path: entry
        if dtype is None or "dtype" not in entry or any(matches(pattern, path) for pattern in patterns)
        else {**entry, "dtype": str(dtype).removeprefix("torch.")}
        for path, entry in layers.items()
    }


def renamed_layers(
    layers: Mapping[str, dict[str, Any]], origins: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """Return what a record says of quantized layers, by the paths that their tensors have now.

    `origins` are the names in the source by those of today, where they are others. A layer that was made of
    several, such as queries, keys and values, has the scheme of all of them.
    """
    entries = {f"{path}.values": entry for path, entry in layers.items()}
    old = {name for names in origins.values() for name in names}
    kept = {path: entry for path, entry in layers.items() if f"{path}.values" not in old}
    for name, parts in origins.items():
        found = [entries[part] for part in parts if part in entries]
        if len(found) == len(parts) and all(e.get("scheme") == found[0].get("scheme") for e in found):
            kept[name.removesuffix(".values")] = found[0]
    return kept


def tied_layers(
    model: torch.nn.Module, layers: Mapping[str, dict[str, Any]], names: Collection[str]
) -> dict[str, str]:
    """Return the layers of a model that a source lacks, since their weights are tied -> those it has."""
    places = _places(model)
    first: dict[int, str] = {}
    for path in layers:
        weight = _weight(places[path][2]) if path in places else None
        if weight is not None:
            first.setdefault(id(weight), path)
    return {
        path: first[id(_weight(layer))]
        for path, (_, _, layer) in places.items()
        if id(_weight(layer)) in first
        and path not in layers
        and f"{path}.weight" not in names
        and f"{path}.values" not in names
    }


def set_weight_dtypes(
    model: torch.nn.Module, layers: Mapping[str, Mapping[str, Any]], dtype: torch.dtype | None
) -> None:
    """Set the dtype of quantized layers' weights, as it is set for other weights when they are loaded."""
    by_name = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    for path, child in model.named_modules(remove_duplicate=False):
        entry = layers.get(without_wrappers(path))
        if entry is None or not hasattr(child, "weight_dtype"):
            continue
        wanted = by_name.get(str(entry.get("dtype"))) if dtype is None else dtype
        if wanted is not None:
            child.weight_dtype = wanted


@contextlib.contextmanager
def with_quantized_layers(
    model: torch.nn.Module,
    layers: Mapping[str, Mapping[str, Any]],
    where: str | None,
    aliases: Mapping[str, str] = MappingProxyType({}),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Iterator[None]:
    """Replace layers of a model by quantized ones, as a record has them, to load it within the context.

    Layers that are quantized by the same scheme already stay. Layers whose weights are tied in the model, and
    whose values are tied in the record, share their values. If the context raises, the model gets its old
    layers back.
    """
    replaced: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []
    places = _places(model)
    built: dict[int, torch.nn.Module] = {}
    by_path: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {}
    try:
        for path, entry in layers.items():
            if path not in places:
                raise _lacks_layer(path, places, where)
            holder, name, old = places[path]
            new = built.get(id(old)) or _build(old, entry, shapes.get(f"{path}.values"), path, where)
            built[id(old)] = new
            by_path[path] = old, new
            if new is old:
                continue
            if holder is None:
                raise RecordError(
                    "a single layer cannot be replaced by a quantized one",
                    where=where,
                    expected="a model that holds the layer",
                    found=type(model).__name__,
                    hint="burnt.quantize(torch.nn.Sequential(layer)), then save and load that",
                )
            twin = by_path.get(aliases.get(f"{path}.values", "").rpartition(".")[0])
            if twin is not None and _weight(twin[0]) is _weight(old) is not None:
                new.tie(twin[1])  # type: ignore[operator]
            replaced.append((holder, name, old))
            setattr(holder, name, new)
        yield
    except BaseException:
        for holder, name, old in replaced:
            setattr(holder, name, old)
        raise


def _build(
    old: torch.nn.Module,
    entry: Mapping[str, Any],
    shape: tuple[int, ...] | None,
    path: str,
    where: str | None,
) -> torch.nn.Module:
    try:
        new: torch.nn.Module = _lazy.build_quantized(old, entry, shape)
        return new
    except RecordError as error:
        if error.where is None:
            error.where = f"{where}: {path}" if where else path
        raise


def _weight(layer: torch.nn.Module) -> torch.nn.Parameter | None:
    return layer._parameters.get("weight")


def _places(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module | None, str, torch.nn.Module]]:
    """Return the holder, the name in it and the module, by the paths that a record has."""
    places: dict[str, tuple[torch.nn.Module | None, str, torch.nn.Module]] = {"": (None, "", model)}
    for path, holder in model.named_modules(remove_duplicate=False):
        for name, child in holder._modules.items():
            if child is not None:
                whole = ".".join(p for p in (*path.split("."), name) if p and p not in WRAPPERS)
                places[whole] = (holder, name, child)
    return places


def _lacks_layer(path: str, known: Collection[str], where: str | None) -> RecordError:
    return RecordError(
        "the model lacks a layer that the file has quantized",
        where=f"{where}: {path}" if where else path,
        expected=f"a layer {path!r}, as in the model that was saved",
        found="none of this path",
        hint=did_you_mean(
            path,
            known,
            "build the model as it was before burnt.quantize; partial=True loads the layers that it has",
        ),
    )


def module_paths(model: torch.nn.Module) -> Collection[str]:
    """Return the paths that a record has of a model's modules, without wrappers."""
    return _places(model).keys()


def quantized_note(layers: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a note on how many layers are quantized, and how, from what a record says of them.

    >>> quantized_note([{"scheme": QuantScheme.parse(name).to_dict()} for name in ("int8", "int4", "int8")])
    ('3 layers quantized: 2 int8, 1 int4-block32',)
    """
    entries = [entry["scheme"] for entry in layers if "scheme" in entry]
    counts = Counter(QuantScheme.from_dict(entry).name for entry in entries)
    if not counts:
        return ()
    schemes = [f"{count:,} {name}" for name, count in counts.most_common()]
    return (f"{quantity(len(entries), 'layer')} quantized: {', '.join(schemes)}",)


def quantized_hint(own: Collection[str], found: Collection[str]) -> str | None:
    """Return what to do when only one of model and source is quantized, judged by their tensors' paths."""
    own_layers = {path.rpartition(".")[0] for path in own if path.endswith(".values")}
    found_layers = {path.rpartition(".")[0] for path in found if path.endswith(".values")}
    if any(f"{layer}.weight" in found for layer in own_layers - found_layers):
        return "the model is quantized and the weights are not: load them first, then call burnt.quantize"
    if any(f"{layer}.weight" in own for layer in found_layers - own_layers):
        return "the weights are quantized, but do not say how: save burnt.record.record_of(model) instead"
    return None
