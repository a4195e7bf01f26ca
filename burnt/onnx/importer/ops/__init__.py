"""Handlers of ONNX's ops, a file per family; importing this package registers them."""

from burnt.onnx.importer.ops import (  # noqa: F401
    activations,
    attention,
    casts,
    control,
    elementwise,
    fused,
    images,
    linear,
    normalization,
    quantization,
    recurrent,
    reductions,
    resizing,
    selection,
    shapes,
    signal,
    text,
    windows,
)
