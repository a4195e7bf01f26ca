"""Handlers of ONNX's ops, a file per family; importing this package registers them."""

from burnt.onnx.importer.ops import attention, elementwise, linear, normalization, quantization, recurrent, resizing, shapes, windows  # noqa: F401
