"""Layers and losses, a file per family.

Arguments, parameter names, memory layouts, defaults and initial values for a seed are torch's, and where
torch has the same layer, burnt's is a subclass of it. Every layer has a `Config`, derived from its signature.

Layers with parameters or buffers take `device`, where these live, and `dtype`, their dtype. Their docstrings
leave both out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import explain_arguments, no_attribute
from burnt._lazy import own_names
from burnt.config import bound_signature, type_arguments
from burnt.nn import init as init
from burnt.nn import quantized as quantized
from burnt.nn import rope_scaling as rope_scaling
from burnt.nn.activation import ActivationConfig as ActivationConfig
from burnt.nn.activation import Celu as Celu
from burnt.nn.activation import Elu as Elu
from burnt.nn.activation import Gelu as Gelu
from burnt.nn.activation import Glu as Glu
from burnt.nn.activation import Hardshrink as Hardshrink
from burnt.nn.activation import Hardsigmoid as Hardsigmoid
from burnt.nn.activation import Hardswish as Hardswish
from burnt.nn.activation import Hardtanh as Hardtanh
from burnt.nn.activation import LeakyRelu as LeakyRelu
from burnt.nn.activation import LogSigmoid as LogSigmoid
from burnt.nn.activation import LogSoftmax as LogSoftmax
from burnt.nn.activation import Mish as Mish
from burnt.nn.activation import Prelu as Prelu
from burnt.nn.activation import Relu as Relu
from burnt.nn.activation import Relu2 as Relu2
from burnt.nn.activation import Relu6 as Relu6
from burnt.nn.activation import Rrelu as Rrelu
from burnt.nn.activation import Selu as Selu
from burnt.nn.activation import Shrink as Shrink
from burnt.nn.activation import Sigmoid as Sigmoid
from burnt.nn.activation import Silu as Silu
from burnt.nn.activation import Softmax as Softmax
from burnt.nn.activation import Softmax2d as Softmax2d
from burnt.nn.activation import Softmin as Softmin
from burnt.nn.activation import Softplus as Softplus
from burnt.nn.activation import Softshrink as Softshrink
from burnt.nn.activation import Softsign as Softsign
from burnt.nn.activation import Tanh as Tanh
from burnt.nn.activation import Tanhshrink as Tanhshrink
from burnt.nn.activation import Threshold as Threshold
from burnt.nn.activation import ThresholdedRelu as ThresholdedRelu
from burnt.nn.activation import build_activation as build_activation
from burnt.nn.adapter import load_lora as load_lora
from burnt.nn.adapter import lora as lora
from burnt.nn.adapter import merge_lora as merge_lora
from burnt.nn.adapter import remove_lora as remove_lora
from burnt.nn.adapter import save_lora as save_lora
from burnt.nn.adapter import unmerge_lora as unmerge_lora
from burnt.nn.adapter import without_lora as without_lora
from burnt.nn.attention import CrossAttention as CrossAttention
from burnt.nn.attention import MultiHeadAttention as MultiHeadAttention
from burnt.nn.attention import causal_mask as causal_mask
from burnt.nn.attention import length_mask as length_mask
from burnt.nn.attention import padding_mask as padding_mask
from burnt.nn.cache import KeyValueCache as KeyValueCache
from burnt.nn.cache import TransformerCache as TransformerCache
from burnt.nn.container import Sequential as Sequential
from burnt.nn.conv import Conv1d as Conv1d
from burnt.nn.conv import Conv2d as Conv2d
from burnt.nn.conv import Conv3d as Conv3d
from burnt.nn.conv import ConvTranspose1d as ConvTranspose1d
from burnt.nn.conv import ConvTranspose2d as ConvTranspose2d
from burnt.nn.conv import ConvTranspose3d as ConvTranspose3d
from burnt.nn.dropout import AlphaDropout as AlphaDropout
from burnt.nn.dropout import Dropout as Dropout
from burnt.nn.dropout import Dropout1d as Dropout1d
from burnt.nn.dropout import Dropout2d as Dropout2d
from burnt.nn.dropout import Dropout3d as Dropout3d
from burnt.nn.dropout import FeatureAlphaDropout as FeatureAlphaDropout
from burnt.nn.dropout import GaussianNoise as GaussianNoise
from burnt.nn.embedding import Embedding as Embedding
from burnt.nn.embedding import EmbeddingBag as EmbeddingBag
from burnt.nn.feed_forward import GatedFeedForward as GatedFeedForward
from burnt.nn.feed_forward import GeGlu as GeGlu
from burnt.nn.feed_forward import PositionWiseFeedForward as PositionWiseFeedForward
from burnt.nn.feed_forward import SwiGlu as SwiGlu
from burnt.nn.lazy import LazyBatchNorm as LazyBatchNorm
from burnt.nn.lazy import LazyConv1d as LazyConv1d
from burnt.nn.lazy import LazyConv2d as LazyConv2d
from burnt.nn.lazy import LazyConv3d as LazyConv3d
from burnt.nn.lazy import LazyConvTranspose1d as LazyConvTranspose1d
from burnt.nn.lazy import LazyConvTranspose2d as LazyConvTranspose2d
from burnt.nn.lazy import LazyConvTranspose3d as LazyConvTranspose3d
from burnt.nn.lazy import LazyInstanceNorm as LazyInstanceNorm
from burnt.nn.lazy import LazyLinear as LazyLinear
from burnt.nn.linear import Bilinear as Bilinear
from burnt.nn.linear import Linear as Linear
from burnt.nn.loss import *  # noqa: F403
from burnt.nn.loss.similarity import CosineSimilarity as CosineSimilarity
from burnt.nn.loss.similarity import PairwiseDistance as PairwiseDistance
from burnt.nn.moe import MoeFeedForward as MoeFeedForward
from burnt.nn.moe import record_routing as record_routing
from burnt.nn.norm import BatchNorm as BatchNorm
from burnt.nn.norm import GroupNorm as GroupNorm
from burnt.nn.norm import InstanceNorm as InstanceNorm
from burnt.nn.norm import LayerNorm as LayerNorm
from burnt.nn.norm import LocalResponseNorm as LocalResponseNorm
from burnt.nn.norm import NormalizationConfig as NormalizationConfig
from burnt.nn.norm import RmsNorm as RmsNorm
from burnt.nn.norm import SyncBatchNorm as SyncBatchNorm
from burnt.nn.norm import build_normalization as build_normalization
from burnt.nn.padding import CircularPad1d as CircularPad1d
from burnt.nn.padding import CircularPad2d as CircularPad2d
from burnt.nn.padding import CircularPad3d as CircularPad3d
from burnt.nn.padding import ConstantPad1d as ConstantPad1d
from burnt.nn.padding import ConstantPad2d as ConstantPad2d
from burnt.nn.padding import ConstantPad3d as ConstantPad3d
from burnt.nn.padding import ReflectionPad1d as ReflectionPad1d
from burnt.nn.padding import ReflectionPad2d as ReflectionPad2d
from burnt.nn.padding import ReflectionPad3d as ReflectionPad3d
from burnt.nn.padding import ReplicationPad1d as ReplicationPad1d
from burnt.nn.padding import ReplicationPad2d as ReplicationPad2d
from burnt.nn.padding import ReplicationPad3d as ReplicationPad3d
from burnt.nn.padding import ZeroPad1d as ZeroPad1d
from burnt.nn.padding import ZeroPad2d as ZeroPad2d
from burnt.nn.padding import ZeroPad3d as ZeroPad3d
from burnt.nn.pool import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from burnt.nn.pool import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from burnt.nn.pool import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from burnt.nn.pool import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from burnt.nn.pool import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from burnt.nn.pool import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from burnt.nn.pool import AvgPool1d as AvgPool1d
from burnt.nn.pool import AvgPool2d as AvgPool2d
from burnt.nn.pool import AvgPool3d as AvgPool3d
from burnt.nn.pool import LpPool1d as LpPool1d
from burnt.nn.pool import LpPool2d as LpPool2d
from burnt.nn.pool import LpPool3d as LpPool3d
from burnt.nn.pool import MaxPool1d as MaxPool1d
from burnt.nn.pool import MaxPool2d as MaxPool2d
from burnt.nn.pool import MaxPool3d as MaxPool3d
from burnt.nn.pool import MaxUnpool1d as MaxUnpool1d
from burnt.nn.pool import MaxUnpool2d as MaxUnpool2d
from burnt.nn.pool import MaxUnpool3d as MaxUnpool3d
from burnt.nn.position import LearnedPositionalEncoding as LearnedPositionalEncoding
from burnt.nn.position import PositionalEncoding as PositionalEncoding
from burnt.nn.position import RotaryEncoding as RotaryEncoding
from burnt.nn.preprocess import FillMissing as FillMissing
from burnt.nn.preprocess import Standardize as Standardize
from burnt.nn.recurrent import Gru as Gru
from burnt.nn.recurrent import GruCell as GruCell
from burnt.nn.recurrent import Lstm as Lstm
from burnt.nn.recurrent import LstmCell as LstmCell
from burnt.nn.recurrent import Rnn as Rnn
from burnt.nn.recurrent import RnnCell as RnnCell
from burnt.nn.shape import ChannelShuffle as ChannelShuffle
from burnt.nn.shape import Flatten as Flatten
from burnt.nn.shape import Fold as Fold
from burnt.nn.shape import Identity as Identity
from burnt.nn.shape import PixelShuffle as PixelShuffle
from burnt.nn.shape import PixelUnshuffle as PixelUnshuffle
from burnt.nn.shape import Unflatten as Unflatten
from burnt.nn.shape import Unfold as Unfold
from burnt.nn.shape import Upsample as Upsample
from burnt.nn.transformer import Transformer as Transformer
from burnt.nn.transformer import TransformerDecoder as TransformerDecoder
from burnt.nn.transformer import TransformerDecoderLayer as TransformerDecoderLayer
from burnt.nn.transformer import TransformerEncoder as TransformerEncoder
from burnt.nn.transformer import TransformerEncoderLayer as TransformerEncoderLayer

_NOTES = {
    "batch_first": "not needed: the batch always comes first",
    "nonlinearity": "only Rnn has a choice",
    "proj_size": "only Lstm projects its states",
    "reduce": 'reduction="none" is False',
    "return_sequences": "every step is returned: output[:, -1] is the last one",
    "size_average": 'reduction="mean" is True, "sum" is False',
}

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __all__ = ["ActivationConfig", "NormalizationConfig", *own_names(globals())]

    for _layer in [globals()[name] for name in __all__]:
        if isinstance(_layer, type):  # a derived layer inherits torch's `__init__`
            _layer.__init__ = explain_arguments(**_NOTES)(_layer.__init__)
            _layer.__init__.__qualname__ = f"{_layer.__name__}.__init__"
            if type_arguments(_layer):  # the `__init__` of all ranks, with the sizes of this one
                _layer.__init__.__signature__ = bound_signature(_layer)

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
