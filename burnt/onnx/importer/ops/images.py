"""Image files, where Pillow is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler


def _decode(build: Build, node: Node) -> Any:
    pixel_format = node.attr("pixel_format", "RGB")
    return build.call("ops.decode_image", build.tensor(node, 0), pixel_format, hint="image")


if importlib.util.find_spec("PIL") is not None:
    handler("ImageDecoder")(_decode)
