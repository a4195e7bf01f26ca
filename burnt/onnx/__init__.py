"""ONNX: models as files that other programs run.

    export.py       export: a module becomes an ONNX file
    comparison.py   the file in ONNX Runtime beside the module
    weights.py      checks of the weights; weights stored in 16 bits

The packages it needs come with ``pip install burnt[onnx]`` and are imported when they are used.
"""

from burnt.onnx.export import Exported, export

__all__ = ["Exported", "export"]
