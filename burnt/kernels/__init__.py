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
`autocast.py`         what autocast makes of an op's arguments
`gradient.py`         the derivative of a reference
`checks.py`           what is checked before any candidate runs
the others            a family each
====================  ==========================================================================
"""

from __future__ import annotations

from burnt.codegen.precision import multiplying, precision, set_precision
from burnt.kernels.dispatch.explain import explain
from burnt.kernels.dispatch.op import Op, op
from burnt.kernels.dispatch.selection import choices, pin
from burnt.kernels.dispatch.torch_library import decompositions
from burnt.kernels.interface.candidate import Candidate
from burnt.kernels.interface.registry import OPS
from burnt.kernels.ops.activation import ACTIVATIONS, geglu, gelu, relu2, silu, swiglu
from burnt.kernels.ops.attention.attention import attention
from burnt.kernels.ops.attention.reference import dot_product_attention
from burnt.kernels.ops.conv.conv import conv, conv_transpose, folded_norm
from burnt.kernels.ops.dropout import dropout
from burnt.kernels.ops.embedding.embedding import embedding
from burnt.kernels.ops.loss.fused_linear_cross_entropy import linear_cross_entropy
from burnt.kernels.ops.loss.loss import cross_entropy
from burnt.kernels.ops.matmul import bmm, linear, matmul
from burnt.kernels.ops.normalization import (
    batch_norm,
    batch_norm_inference,
    batch_norm_training,
    group_norm,
    layer_norm,
    rms_norm,
)
from burnt.kernels.ops.pooling import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from burnt.kernels.ops.reduction import (
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
from burnt.kernels.ops.rnn.rnn import gru, gru_layer, lstm, lstm_layer
from burnt.kernels.ops.rotary import rope
from burnt.kernels.ops.scan import cumprod, cumsum
from burnt.kernels.ops.softmax import log_softmax, softmax
from burnt.kernels.optim.muon import muon_step, orthogonalized
from burnt.kernels.optim.steps import StepResult, adam_step, adamw_step, sgd_step
from burnt.kernels.tuning.tuner import tune, tuning

__all__ = [
    "ACTIVATIONS",
    "OPS",
    "Candidate",
    "Op",
    "StepResult",
    "adam_step",
    "adamw_step",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "attention",
    "avg_pool",
    "batch_norm",
    "batch_norm_inference",
    "batch_norm_training",
    "bmm",
    "choices",
    "conv",
    "conv_transpose",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "decompositions",
    "dot_product_attention",
    "dropout",
    "embedding",
    "explain",
    "folded_norm",
    "geglu",
    "gelu",
    "group_norm",
    "gru",
    "gru_layer",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "lstm",
    "lstm_layer",
    "matmul",
    "max_pool",
    "multiplying",
    "muon_step",
    "op",
    "orthogonalized",
    "pin",
    "precision",
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
    "set_precision",
    "sgd_step",
    "silu",
    "softmax",
    "swiglu",
    "tune",
    "tuning",
]
