"""ONNX: models as files that other programs run.

    export.py       export: a module becomes an ONNX file
    axes.py         which axes of a file are open, and how far
    comparison.py   the file in ONNX Runtime beside the module
    translations.py burnt's ops as ONNX's own; quantized weights as integers
    weights.py      checks of the weights; weights stored in 16 bits
    importer/       load: an ONNX model becomes a module, or a Python file
    functions/      what imported models call beside torch
    backend.py      ONNX's own backend interface: prepare(model).run(inputs)

The packages it needs come with ``pip install burnt[onnx]`` and are imported when they are used.
"""

from burnt.onnx.export import Exported, export
from burnt.onnx.importer.load import load

__all__ = ["Exported", "export", "load"]
