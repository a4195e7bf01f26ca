"""Inspect models: count and freeze parameters, check shapes, tabulate costs.

Everything here works on any `torch.nn.Module`; layers are recognised by torch's classes and by the names of
their attributes, never by burnt's own.

    params.py    parameters by path: num_params, visit, map_params, freeze, unfreeze
    patterns.py  globs on these paths
    specs.py     TensorSpec, and traversal of nested inputs and outputs
    layers.py    the short description of a layer, and which inputs it accepts
    call_trace.py  record module calls, and find the module where a failure occurred
    meta.py      run a model on meta tensors
    isolated.py  call a function in a forked process, so that it leaves nothing behind
    checking.py  check: do the shapes fit?
    signature.py Signature: what a model takes and returns, as JSON
    costs.py     summary: output shapes, parameters, FLOPs, activation bytes
"""

from burnt.inspect.checking import CheckReport, check
from burnt.inspect.costs import Row, Summary, summary
from burnt.inspect.params import freeze, map_params, num_params, unfreeze, visit
from burnt.inspect.signature import Signature, TensorInfo, signature_of
from burnt.inspect.specs import TensorSpec

__all__ = [
    "CheckReport",
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
