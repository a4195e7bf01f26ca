"""Layers and losses, a file per family.

Arguments, parameter names, memory layouts, defaults and initial values for a seed are torch's, and where
torch has the same layer, burnt's is a subclass of it. Every layer has a `Config`, derived from its signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import explain_arguments, no_attribute
from burnt.nn import init as init
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
from burnt.nn.conv import Conv2d
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
from burnt.nn.linear import Bilinear, Linear
from burnt.nn.masks import causal_mask, padding_mask
from burnt.nn.moe import MoeFeedForward, record_routing
from burnt.nn.norm import BatchNorm, LayerNorm, RmsNorm, SyncBatchNorm
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
from burnt.nn.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from burnt.nn.position import LearnedPositionalEncoding, PositionalEncoding, RotaryEncoding
from burnt.nn.recurrent import Gru, Lstm
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
    "L1",
    "ActivationConfig",
    "AdaptiveAvgPool2d",
    "AdaptiveLogSoftmax",
    "AlphaDropout",
    "AvgPool2d",
    "BatchNorm",
    "Bilinear",
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "BinaryFocal",
    "Celu",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv2d",
    "CosineEmbedding",
    "CosineSimilarity",
    "CrossAttention",
    "CrossEntropy",
    "Ctc",
    "Dice",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Elu",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "Focal",
    "Fold",
    "GatedFeedForward",
    "GaussianNll",
    "GaussianNoise",
    "GeGlu",
    "Gelu",
    "Glu",
    "Gru",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbedding",
    "Huber",
    "Identity",
    "InfoNce",
    "KeyValueCache",
    "KlDiv",
    "LayerNorm",
    "LeakyRelu",
    "LearnedPositionalEncoding",
    "Linear",
    "LinearCrossEntropy",
    "LogSigmoid",
    "LogSoftmax",
    "Lp",
    "Lstm",
    "MarginRanking",
    "MaxPool2d",
    "Mish",
    "MoeFeedForward",
    "Mse",
    "MultiHeadAttention",
    "MultiLabelMargin",
    "MultiLabelSoftMargin",
    "MultiMargin",
    "Nll",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNll",
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
    "RotaryEncoding",
    "Rrelu",
    "Selu",
    "Sequential",
    "Shrink",
    "Sigmoid",
    "Silu",
    "SmoothL1",
    "SoftMargin",
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
    "TripletMargin",
    "TripletMarginWithDistance",
    "Unflatten",
    "Unfold",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "build_activation",
    "causal_mask",
    "load_lora",
    "lora",
    "merge_lora",
    "padding_mask",
    "record_routing",
    "remove_lora",
    "save_lora",
    "unmerge_lora",
    "without_lora",
]

for _name in [name for name in __all__ if isinstance(globals()[name], type)]:
    _layer = globals()[_name]
    _layer.__init__ = explain_arguments()(_layer.__init__)  # a derived layer inherits torch's
    _layer.__init__.__qualname__ = f"{_name}.__init__"

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
