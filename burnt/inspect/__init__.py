"""Inspect models: count and freeze parameters, check shapes, tabulate costs.

Everything here works on any `torch.nn.Module`; layers are recognised by torch's classes and by the names of
their attributes, never by burnt's own.
"""

from burnt.inspect.checking import CheckReport, check
from burnt.inspect.costs import Row, Summary, summary
from burnt.inspect.crossings import Crossing
from burnt.inspect.params import freeze, map_params, num_params, unfreeze, visit
from burnt.inspect.signature import Signature, TensorInfo, signature_of
from burnt.inspect.specs import TensorSpec

__all__ = [
    "CheckReport",
    "Crossing",
    "Row",
    "Signature",
    "Summary",
    "TensorInfo",
    "TensorSpec",
    "check",
    "freeze",
    "map_params",
    "num_params",
    "signature_of",
    "summary",
    "unfreeze",
    "visit",
]
