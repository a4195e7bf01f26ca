"""Functions of ONNX ops that torch has no single call for. Files that `burnt import` writes import them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.attention import (
    attention,
    attention_details,
    flex_attention,
    geglu,
    linear_attention,
    merge_heads,
    rotary_embedding,
    split_heads,
    swiglu,
    tensor_scatter,
)
from burnt.onnx.functions.casts import (
    bitcast,
    cast,
    cast_like,
)
from burnt.onnx.functions.control import (
    batched_scan,
    concat_sequence,
    erase,
    get_element,
    has_element,
    insert,
    item,
    loop,
    scan,
    sequence,
    sequence_length,
    sequence_map,
    split_sequence,
)
from burnt.onnx.functions.fused import (
    dynamic_quantize_matmul,
    embed_layer_norm,
    fused_matmul,
    group_query_attention,
    matmul_integer_to_float,
    matmul_nbits,
    multi_head_attention,
    nbits_codes,
    nbits_weight,
    packed_attention,
    quick_gelu,
    rotary,
    skip_layer_norm,
    skip_rms_norm,
)
from burnt.onnx.functions.images import (
    decode_image,
)
from burnt.onnx.functions.math import (
    align,
    argmax,
    argmin,
    cumprod,
    cumsum,
    divide,
    equal,
    hard_sigmoid,
    hardmax,
    log_softmax_2d,
    matmul_integer,
    power,
    power_unsigned,
    prelu,
    reduce,
    selu,
    shrink,
    sign,
    softmax_2d,
    swish,
    where,
)
from burnt.onnx.functions.ml import (
    binary_scores,
    classify,
    feature_vector,
    impute,
    kernel_scores,
    linear_scores,
    lookup,
    normalize_rows,
    one_hot_of,
    pair_probabilities,
    pair_votes,
    pick,
    post_transform,
    tree_ensemble,
    vectorize,
    zip_map,
)
from burnt.onnx.functions.normalization import (
    batch_norm_training,
    dropout,
    group_norm,
    layer_norm,
    layer_norm_statistics,
    local_response_norm,
    lp_normalize,
    mean_variance_normalize,
    negative_log_likelihood,
    rms_norm,
    softmax_cross_entropy,
)
from burnt.onnx.functions.patterns import (
    rotate,
)
from burnt.onnx.functions.quantization import (
    conv_integer,
    dequantize_linear,
    dynamic_quantize_linear,
    qlinear_conv,
    qlinear_matmul,
    quantize_linear,
)
from burnt.onnx.functions.recurrent import (
    gru,
    lstm,
    rnn,
)
from burnt.onnx.functions.resizing import (
    affine_grid,
    resize,
)
from burnt.onnx.functions.selection import (
    arange,
    bernoulli,
    compress,
    eye_like,
    full,
    multinomial,
    nonzero,
    one_hot,
    random_normal,
    random_uniform,
    topk,
    unique,
)
from burnt.onnx.functions.signal import (
    dft,
    mel_weights,
    stft,
    window,
)
from burnt.onnx.functions.tensors import (
    center_crop_pad,
    col2im,
    concat,
    depth_to_space,
    expand,
    flatten,
    gather,
    gather_elements,
    gather_nd,
    numel,
    pad,
    permute,
    reverse_sequence,
    scatter_elements,
    scatter_nd,
    shape,
    slice_,
    space_to_depth,
    split,
    squeeze,
    tile,
    trilu,
    unpack,
    unsqueeze,
    wrap_indices,
)
from burnt.onnx.functions.text import (
    normalize_strings,
    positions,
    regex_full_match,
    string_concat,
    string_split,
    take_strings,
    tfidf,
)
from burnt.onnx.functions.tokens import (
    tokenize,
)
from burnt.onnx.functions.training import (
    adagrad_step,
    adam_step,
    momentum_step,
)
from burnt.onnx.functions.unsigned import (
    unsigned,
)
from burnt.onnx.functions.windows import (
    average_pool,
    causal_conv_with_state,
    conv,
    conv_transpose,
    deform_conv,
    global_pool,
    lp_pool,
    max_pool,
    max_roi_pool,
    max_unpool,
    non_max_suppression,
    pad_same,
    roi_align,
)

__all__ = [
    "adagrad_step",
    "adam_step",
    "affine_grid",
    "align",
    "arange",
    "argmax",
    "argmin",
    "attention",
    "attention_details",
    "average_pool",
    "batch_norm_training",
    "batched_scan",
    "bernoulli",
    "binary_scores",
    "bitcast",
    "cast",
    "cast_like",
    "causal_conv_with_state",
    "center_crop_pad",
    "classify",
    "col2im",
    "compress",
    "concat",
    "concat_sequence",
    "conv",
    "conv_integer",
    "conv_transpose",
    "cumprod",
    "cumsum",
    "decode_image",
    "deform_conv",
    "depth_to_space",
    "dequantize_linear",
    "dft",
    "divide",
    "dropout",
    "dynamic_quantize_linear",
    "dynamic_quantize_matmul",
    "embed_layer_norm",
    "equal",
    "erase",
    "expand",
    "eye_like",
    "feature_vector",
    "flatten",
    "flex_attention",
    "full",
    "fused_matmul",
    "gather",
    "gather_elements",
    "gather_nd",
    "geglu",
    "get_element",
    "global_pool",
    "group_norm",
    "group_query_attention",
    "gru",
    "hard_sigmoid",
    "hardmax",
    "has_element",
    "if_",
    "impute",
    "insert",
    "integers",
    "item",
    "kernel_scores",
    "layer_norm",
    "layer_norm_statistics",
    "linear_attention",
    "linear_scores",
    "local_response_norm",
    "log_softmax_2d",
    "lookup",
    "loop",
    "lp_normalize",
    "lp_pool",
    "lstm",
    "matmul_integer",
    "matmul_integer_to_float",
    "matmul_nbits",
    "max_pool",
    "max_roi_pool",
    "max_unpool",
    "mean_variance_normalize",
    "mel_weights",
    "merge_heads",
    "momentum_step",
    "multi_head_attention",
    "multinomial",
    "nbits_codes",
    "nbits_weight",
    "negative_log_likelihood",
    "non_max_suppression",
    "nonzero",
    "normalize_rows",
    "normalize_strings",
    "numel",
    "one_hot",
    "one_hot_of",
    "packed_attention",
    "pad",
    "pad_same",
    "pair_probabilities",
    "pair_votes",
    "permute",
    "pick",
    "positions",
    "post_transform",
    "power",
    "power_unsigned",
    "prelu",
    "qlinear_conv",
    "qlinear_matmul",
    "quantize_linear",
    "quick_gelu",
    "random_normal",
    "random_uniform",
    "reduce",
    "regex_full_match",
    "reshape",
    "resize",
    "reverse_sequence",
    "rms_norm",
    "rnn",
    "roi_align",
    "rotary",
    "rotary_embedding",
    "rotate",
    "scan",
    "scatter_elements",
    "scatter_nd",
    "selu",
    "sequence",
    "sequence_length",
    "sequence_map",
    "shape",
    "shrink",
    "sign",
    "skip_layer_norm",
    "skip_rms_norm",
    "slice_",
    "softmax_2d",
    "softmax_cross_entropy",
    "space_to_depth",
    "split",
    "split_heads",
    "split_sequence",
    "squeeze",
    "stft",
    "string_concat",
    "string_split",
    "strings",
    "swiglu",
    "swish",
    "take_strings",
    "tensor_scatter",
    "tfidf",
    "tile",
    "tokenize",
    "topk",
    "tree_ensemble",
    "trilu",
    "truncated_div",
    "unique",
    "unpack",
    "unsigned",
    "unsqueeze",
    "vectorize",
    "where",
    "window",
    "wrap_indices",
    "zip_map",
]


def integers(values: int | Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return integers, such as sizes, as an int64 tensor."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def truncated_div(a: int, b: int) -> int:
    """Return a quotient of integers, rounded towards zero.

    >>> truncated_div(-7, 2), -7 // 2
    (-3, -4)
    """
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def strings(values: Any, shape: Sequence[int]) -> Any:
    """Return nested lists of strings as a numpy array, since torch has no strings."""
    return np.array(values, dtype=object).reshape(shape)


def if_(condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return the results of one of two branches."""
    return then() if bool(condition) else otherwise()


def reshape(x: Any, shape: Tensor | Sequence[int], allow_zero: bool = False) -> Any:
    """Reshape a tensor or strings; a size of 0 is that of the input's axis, unless `allow_zero`."""
    sizes = shape.tolist() if isinstance(shape, Tensor) else list(shape)
    if not allow_zero:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)
