"""Layers and losses, a file per family.

Arguments, parameter names, memory layouts, defaults and initial values for a seed are torch's, and where
torch has the same layer, burnt's is a subclass of it. Every layer has a `Config`, derived from its signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import explain_arguments, no_attribute
from burnt.nn.activation import (
    ActivationConfig,
    ActivationName,
    Celu,
    Elu,
    Gelu,
    Glu,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    LogSigmoid,
    LogSoftmax,
    Mish,
    Prelu,
    Relu,
    Relu2,
    Relu6,
    Rrelu,
    Selu,
    Shrink,
    Sigmoid,
    Silu,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
    ThresholdedRelu,
    build_activation,
)
from burnt.nn.attention import MultiHeadAttention
from burnt.nn.conv import Conv2d
from burnt.nn.dropout import Dropout
from burnt.nn.embedding import Embedding
from burnt.nn.flatten import Flatten
from burnt.nn.linear import Linear
from burnt.nn.loss import CrossEntropy, Mse
from burnt.nn.norm import BatchNorm, LayerNorm, RmsNorm
from burnt.nn.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from burnt.nn.position import PositionalEncoding
from burnt.nn.recurrent import Gru, Lstm
from burnt.nn.transformer import TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "ActivationConfig",
    "ActivationName",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNorm",
    "Celu",
    "Conv2d",
    "CrossEntropy",
    "Dropout",
    "Elu",
    "Embedding",
    "Flatten",
    "Gelu",
    "Glu",
    "Gru",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LayerNorm",
    "LeakyRelu",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "Lstm",
    "MaxPool2d",
    "Mish",
    "Mse",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Prelu",
    "Relu",
    "Relu2",
    "Relu6",
    "RmsNorm",
    "Rrelu",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "ThresholdedRelu",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "build_activation",
]

for _name in [name for name in __all__ if isinstance(globals()[name], type)]:
    _layer = globals()[_name]
    _layer.__init__ = explain_arguments()(_layer.__init__)  # a derived layer inherits torch's
    _layer.__init__.__qualname__ = f"{_name}.__init__"

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
