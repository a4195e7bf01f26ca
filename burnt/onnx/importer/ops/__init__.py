"""Handlers of ONNX's ops, a file per family; importing this package registers them."""

from burnt.onnx.importer.ops import (  # noqa: F401
    activations,
    casts,
    elementwise,
    linear,
    normalization,
    reductions,
    resizing,
    shapes,
    windows,
)
