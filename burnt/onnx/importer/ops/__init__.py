"""Handlers of ONNX's ops, a file per family; importing this package registers them."""

from burnt.onnx.importer.ops import (  # noqa: F401
    control,
    elementwise,
    fused,
    linear,
    ml,
    normalization,
    plain,
    quantization,
    recurrent,
    reshaping,
    resizing,
    selection,
    shapes,
    signal,
    training,
    windows,
)
