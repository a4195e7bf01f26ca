"""Resize and Upsample."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build, Node
from burnt.onnx.importer.ops.shapes import sizes_of
from burnt.onnx.importer.registry import handler


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
        "sizes": sizes_of(build, node, 3),
        "scales": _numbers(build, node, 2) if node.has(2) else None,
        "axes": node.attr("axes"),
        "mode": node.text("mode", "nearest"),
        "coordinates": node.text("coordinate_transformation_mode", "half_pixel"),
    }
    if found["mode"] == "nearest":
        found["nearest"] = node.text("nearest_mode", "round_prefer_floor")
    if found["mode"] == "cubic":
        found["cubic"] = node.attr("cubic_coeff_a", -0.75)
    if found["coordinates"] == "tf_crop_and_resize":
        found |= {"roi": _numbers(build, node, 1), "extrapolation": node.attr("extrapolation_value", 0.0)}
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        found["aspect"] = node.text("keep_aspect_ratio_policy", "stretch")
    found |= {name: True for name in ("antialias", "exclude_outside") if node.attr(name, 0)}
    found = {key: value for key, value in found.items() if value is not None}
    return build.call("ops.resize", build.tensor(node, 0), hint="resized", **found)


@handler("Upsample")
def _upsample(build: Build, node: Node) -> Any:
    scales = node.attr("scales") or _numbers(build, node, 1)
    mode = node.text("mode", "nearest")
    nearest = "floor" if node.op == "Upsample" else "simple"  # ONNX Runtime's Resize of version 10
    extra = {"mode": mode, "coordinates": "asymmetric"} | ({"nearest": nearest} if mode == "nearest" else {})
    return build.call("ops.resize", build.tensor(node, 0), scales=scales, hint="resized", **extra)
