"""Layers and losses, a file per family.

Arguments, parameter names, memory layouts, defaults and initial values for a seed are torch's, and where
torch has the same layer, burnt's is a subclass of it. Every layer has a `Config`, derived from its signature.

Layers with parameters or buffers take `device`, where these live, and `dtype`, their dtype. Their docstrings
leave both out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import explain_arguments, no_attribute
from burnt.config import bound_signature, type_arguments
from burnt.nn import init as init
from burnt.nn import loss
from burnt.nn import quantized as quantized
from burnt.nn import rope_scaling as rope_scaling
from burnt.nn.activation import (
    ActivationConfig,
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
from burnt.nn.adapter import load_lora, lora, merge_lora, remove_lora, save_lora, unmerge_lora, without_lora
from burnt.nn.attention import CrossAttention, MultiHeadAttention
from burnt.nn.cache import KeyValueCache, TransformerCache
from burnt.nn.container import Sequential
from burnt.nn.conv import Conv1d, Conv2d, Conv3d
from burnt.nn.conv_transpose import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from burnt.nn.distance import CosineSimilarity, PairwiseDistance
from burnt.nn.dropout import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    FeatureAlphaDropout,
    GaussianNoise,
)
from burnt.nn.embedding import Embedding, EmbeddingBag
from burnt.nn.feed_forward import PositionWiseFeedForward
from burnt.nn.gated import GatedFeedForward, GeGlu, SwiGlu
from burnt.nn.lazy import (
    LazyBatchNorm,
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
    LazyInstanceNorm,
    LazyLinear,
)
from burnt.nn.linear import Bilinear, Linear
from burnt.nn.loss import *  # noqa: F403
from burnt.nn.masks import causal_mask, length_mask, padding_mask
from burnt.nn.moe import MoeFeedForward, record_routing
from burnt.nn.norm import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    NormalizationConfig,
    RmsNorm,
    SyncBatchNorm,
    build_normalization,
)
from burnt.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from burnt.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LpPool1d,
    LpPool2d,
    LpPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
)
from burnt.nn.position import LearnedPositionalEncoding, PositionalEncoding, RotaryEncoding
from burnt.nn.recurrent import Gru, GruCell, Lstm, LstmCell, Rnn, RnnCell
from burnt.nn.shape import (
    ChannelShuffle,
    Flatten,
    Fold,
    Identity,
    PixelShuffle,
    PixelUnshuffle,
    Unflatten,
    Unfold,
)
from burnt.nn.transformer import Transformer, TransformerDecoder, TransformerEncoder
from burnt.nn.transformer_layer import TransformerDecoderLayer, TransformerEncoderLayer
from burnt.nn.upsample import Upsample

__all__ = [
    "ActivationConfig",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AlphaDropout",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Bilinear",
    "Celu",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineSimilarity",
    "CrossAttention",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Elu",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "GatedFeedForward",
    "GaussianNoise",
    "GeGlu",
    "Gelu",
    "Glu",
    "GroupNorm",
    "Gru",
    "GruCell",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm",
    "KeyValueCache",
    "LayerNorm",
    "LazyBatchNorm",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm",
    "LazyLinear",
    "LeakyRelu",
    "LearnedPositionalEncoding",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "LpPool1d",
    "LpPool2d",
    "LpPool3d",
    "Lstm",
    "LstmCell",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Mish",
    "MoeFeedForward",
    "MultiHeadAttention",
    "NormalizationConfig",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "PositionWiseFeedForward",
    "PositionalEncoding",
    "Prelu",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "Relu",
    "Relu2",
    "Relu6",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "RmsNorm",
    "Rnn",
    "RnnCell",
    "RotaryEncoding",
    "Rrelu",
    "Selu",
    "Sequential",
    "Shrink",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SwiGlu",
    "SyncBatchNorm",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "ThresholdedRelu",
    "Transformer",
    "TransformerCache",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Unfold",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "build_activation",
    "build_normalization",
    "causal_mask",
    "length_mask",
    "load_lora",
    "lora",
    "merge_lora",
    "padding_mask",
    "record_routing",
    "remove_lora",
    "save_lora",
    "unmerge_lora",
    "without_lora",
    *loss.__all__,
]

_NOTES = {
    "batch_first": "not needed: the batch always comes first",
    "nonlinearity": "only Rnn has a choice",
    "proj_size": "only Lstm projects its states",
    "reduce": 'reduction="none" is False',
    "return_sequences": "every step is returned: output[:, -1] is the last one",
    "size_average": 'reduction="mean" is True, "sum" is False',
}

for _name in [name for name in __all__ if isinstance(globals()[name], type)]:
    _layer = globals()[_name]
    _layer.__init__ = explain_arguments(**_NOTES)(_layer.__init__)  # a derived layer inherits torch's
    _layer.__init__.__qualname__ = f"{_name}.__init__"
    if type_arguments(_layer):  # the `__init__` of all ranks, with the sizes of this one
        _layer.__init__.__signature__ = bound_signature(_layer)

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
