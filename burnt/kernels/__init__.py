"""Hot-path ops: torch's own, faster, and ones that torch lacks, all under ``torch.ops.burnt`` as well.

====================  ==========================================================================
`op.py`               an op: its reference, its candidates, the Python front
`candidate.py`        a way to compute an op: its limits, configurations, gradient
`choice.py`           which candidate runs, and the tuning key
`tuner.py, store.py`  measuring candidates, and the table of what was measured
`clock.py`            taking the time of calls: by the host, by events, by replaying graphs
`agreement.py`        whether a candidate computes what the op means
`explanation.py`      what would run, and why
`library.py`          ops as ``torch.ops.burnt``: schema, fake, gradients, vmap, autocast
`gradient.py`         the derivative of a reference
`checks.py`           what is checked before any candidate runs
the others            a family each
====================  ==========================================================================
"""

from __future__ import annotations

from burnt.kernels.activation import ACTIVATIONS, geglu, gelu, relu2, silu, swiglu
from burnt.kernels.candidate import Candidate
from burnt.kernels.choice import choices, pin
from burnt.kernels.dropout import dropout
from burnt.kernels.embedding import embedding
from burnt.kernels.explanation import explain
from burnt.kernels.library import decompositions
from burnt.kernels.loss import cross_entropy
from burnt.kernels.normalization import (
    batch_norm,
    batch_norm_inference,
    batch_norm_training,
    group_norm,
    layer_norm,
    rms_norm,
)
from burnt.kernels.op import OPS, Op, op
from burnt.kernels.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from burnt.kernels.reduction import (
    reduce_all,
    reduce_any,
    reduce_argmax,
    reduce_argmin,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_std,
    reduce_sum,
    reduce_var,
)
from burnt.kernels.rotary import rope
from burnt.kernels.scan import cumprod, cumsum
from burnt.kernels.softmax import log_softmax, softmax
from burnt.kernels.tuner import tune, tuning

__all__ = [
    "ACTIVATIONS",
    "OPS",
    "Candidate",
    "Op",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "batch_norm",
    "batch_norm_inference",
    "batch_norm_training",
    "choices",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "decompositions",
    "dropout",
    "embedding",
    "explain",
    "geglu",
    "gelu",
    "group_norm",
    "layer_norm",
    "log_softmax",
    "max_pool",
    "op",
    "pin",
    "reduce_all",
    "reduce_any",
    "reduce_argmax",
    "reduce_argmin",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_var",
    "relu2",
    "rms_norm",
    "rope",
    "silu",
    "softmax",
    "swiglu",
    "tune",
    "tuning",
]
