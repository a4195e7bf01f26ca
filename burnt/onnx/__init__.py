"""ONNX: models as files that other programs run.

The packages it needs come with ``pip install burnt[onnx]`` and are imported when they are used.
"""

from burnt.onnx.export import Exported, export
from burnt.onnx.importer.load import load

__all__ = ["Exported", "export", "load"]
