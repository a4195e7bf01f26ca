"""Resize and Upsample: F.interpolate where it computes the same places, else `ops.resize`."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node, handler, shortest_decimal
from burnt.onnx.importer.program import Arithmetic, Name, Size

_MODES = {
    ("linear", 1): "linear",
    ("linear", 2): "bilinear",
    ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}


_COORDINATES = (
    *("half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"),
    "tf_crop_and_resize",
)
_NEAREST = "round_prefer_ceil", "floor", "ceil"


def _numbers(build: Build, node: Node, index: int) -> Any:
    constant = build.constant(node, index)
    if constant is not None:
        return [float(v) for v in constant.reshape(-1)] or None
    return build.tensor(node, index)


@handler("Resize")
def _resize(build: Build, node: Node) -> Any:
    if node.version < 11:
        return _upsample(build, node)
    found: dict[str, Any] = {
        "sizes": build.integers(node, 3),
        "scales": _numbers(build, node, 2) if node.has(2) else None,
        "axes": node.attr("axes"),
        "mode": node.choice("mode", "nearest", "linear", "cubic"),
        "coordinates": node.choice("coordinate_transformation_mode", "half_pixel", *_COORDINATES),
    }
    node.ignore("nearest_mode", "cubic_coeff_a", "extrapolation_value")  # of other modes
    if found["mode"] == "nearest":
        found["nearest"] = node.choice("nearest_mode", "round_prefer_floor", *_NEAREST)
    if found["mode"] == "cubic":
        found["cubic"] = node.attr("cubic_coeff_a", -0.75)
    if found["coordinates"] == "tf_crop_and_resize":
        found |= {"roi": _numbers(build, node, 1), "extrapolation": node.attr("extrapolation_value", 0.0)}
    aspect = node.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    if aspect != "stretch":
        found["aspect"] = aspect
    found |= {name: True for name in ("antialias", "exclude_outside") if node.attr(name, 0)}
    return _call(build, node, found)


@handler("Upsample", since=7)
def _upsample(build: Build, node: Node) -> Any:
    found: dict[str, Any] = {
        "scales": node.attr("scales") or _numbers(build, node, 1),
        "mode": node.choice("mode", "nearest", "linear"),
        "coordinates": "asymmetric",
    }
    if found["mode"] == "nearest":
        # ONNX Runtime's Resize of version 10 is that of its own.
        found["nearest"] = "floor" if node.op == "Upsample" else "simple"
    return _call(build, node, found)


def _call(build: Build, node: Node, found: dict[str, Any]) -> Any:
    found = {key: value for key, value in found.items() if value is not None}
    x = build.tensor(node, 0)
    options = _for_torch(build, node, x, found)
    if options is not None:
        return build.call("F.interpolate", x, hint="resized", **options)
    return build.call("ops.resize", x, hint="resized", **found)


def _for_torch(build: Build, node: Node, x: Any, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments with which F.interpolate computes the same; None if there are none.

    torch's places differ from ONNX's in rounding, which moves the nearest element for some scales, and where
    a result has a single element.
    """
    rank, dtype = build.rank(node, 0), build.dtype(node, 0)
    if rank not in (3, 4, 5) or dtype is None or not dtype.is_floating_point or not isinstance(x, Name):
        return None
    if {"antialias", "exclude_outside", "aspect", "roi"} & set(found):
        return None
    value = node.node.inputs[0]
    assert value is not None
    shape = [None] * rank if value.shape is None else [s if isinstance(s, int) else None for s in value.shape]
    factors, sizes = _spatial(x, shape, found)
    if factors is None and sizes is None:
        return None
    kind, coordinates = found["mode"], found["coordinates"]
    if kind == "nearest":
        pairs = zip(sizes or [], shape[2:], strict=True) if factors is None else ((f, 1) for f in factors)
        is_multiple = all(
            type(old) is int and isinstance(new, int | float) and new % old == 0 for new, old in pairs
        )
        if (coordinates, found["nearest"]) != ("asymmetric", "floor") or not is_multiple:
            return None
        mode = "nearest"
    else:
        mode = _MODES.get((kind, rank - 2), "")
        if not mode or found.get("cubic", -0.75) != -0.75:
            return None
        least = factors or [size if type(size) is int else 1 for size in sizes or []]
        if coordinates == "pytorch_half_pixel" and min(least) <= 1:
            return None
        if coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
            return None
    options: dict[str, Any] = {} if factors is None else {"scale_factor": factors}
    options = options or {"size": sizes}
    if factors is not None and len(set(factors)) == 1:
        options["scale_factor"] = factors[0]
    options["mode"] = mode
    return options | ({"align_corners": True} if coordinates == "align_corners" else {})


def _spatial(x: Name, shape: list[Any], found: dict[str, Any]) -> tuple[list[float] | None, list[Any] | None]:
    """Return scales or sizes of the spatial axes, if the first two axes stay as they are."""
    axes, rank = found.get("axes"), len(shape)
    named = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    if named not in (list(range(rank)), list(range(2, rank))):
        return None, None
    sizes, scales = found.get("sizes"), found.get("scales")
    if isinstance(sizes, list) and len(sizes) == len(named):
        for axis, size in zip(named, sizes, strict=True):
            is_kept = _multiple_of(size, Size(x, axis)) == 1 or (type(size) is int and size == shape[axis])
            if axis < 2 and not is_kept:
                return None, None
        sizes = sizes[-(rank - 2) :]
        multiples = [_multiple_of(size, Size(x, axis)) for axis, size in enumerate(sizes, 2)]
        return (None, sizes) if None in multiples else ([float(n) for n in multiples if n is not None], None)
    if not sizes and isinstance(scales, list) and len(scales) == len(named):
        factors = [shortest_decimal(scale) for scale in scales]  # such as 1.4
        lengths = np.arange(1, 1025)
        is_same = factors[: len(named) - rank + 2] in ([], [1.0, 1.0]) and all(
            np.array_equal(
                np.floor(lengths * factor), np.floor(lengths.astype(np.float32) * np.float32(factor))
            )
            for factor in factors
        )
        return (factors[-(rank - 2) :], None) if is_same else (None, None)
    return None, None


def _multiple_of(size: Any, own: Size) -> int | None:
    """Return by how much an axis grows, if its new size is a multiple of its own."""
    if isinstance(size, Arithmetic) and size.symbol == "*":
        for one, other in ((size.left, size.right), (size.right, size.left)):
            if one == own and type(other) is int and other > 0:
                return other
    return 1 if size == own else None
