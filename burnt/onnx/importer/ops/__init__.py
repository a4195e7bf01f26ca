"""Handlers of ONNX's ops, a file per family; importing this package registers them."""

from burnt.onnx.importer.ops import elementwise, linear, normalization, resizing, shapes, windows  # noqa: F401
