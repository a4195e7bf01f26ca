"""Describe a layer for messages and tables, and check which shapes and dtypes it accepts.

Layers are recognised by the names of their attributes, which are torch's, so that layers of other
libraries with the same names are recognised too; those whose attributes do not tell (pools, softmax), by
their class. Other layers of torch raise errors of their own on meta tensors, which say what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from burnt._torch import InstanceNormBase
from burnt.inspect.specs import shape_text

_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_BATCH_NORM_RANKS = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
_SAME_INPUTS = (nn.EmbeddingBag, nn.LogSoftmax, nn.Softmax, nn.Softmin, nn.Upsample)
"""Layers whose subclasses accept the same inputs, also those with a ``forward`` of their own."""

_UPSAMPLE_MODES = {1: ("linear", "cubic"), 2: ("bilinear", "bicubic", "lanczos"), 3: ("trilinear",)}
_POOLS = {
    axes: tuple(
        getattr(nn, f"{name}{axes}d")
        for name in ("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "MaxUnpool")
    )
    for axes in _AXES
}
_MEANS = (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


_INPUTS = {3: "sequences", 4: "images", 5: "volumes"}


def rank_hint(name: str, rank: int) -> str | None:
    """Name the layer like ``Conv3d`` for inputs of another number of axes, batch and channels included.

    >>> rank_hint("Conv3d", 4)
    '4 axes: Conv2d is for images'
    """
    if rank not in _INPUTS or name[-2:] not in ("1d", "2d", "3d") or name.endswith(f"{rank - 2}d"):
        return None
    return f"{rank} axes: {name[:-2]}{rank - 2}d is for {_INPUTS[rank]}"


def is_rank_hint(hint: str | None) -> bool:
    """Whether a hint is, or ends with, one of `rank_hint`."""
    return hint is not None and hint.endswith(tuple(f"d is for {inputs}" for inputs in _INPUTS.values()))


@dataclass(frozen=True)
class ShapeMismatch:
    """An input that a layer does not accept: `expected` and `found` as text.

    `size` and `dtype` are the input's where they do not fit; `unit` is "features" or "channels". `instead` is
    the layer that would fit, as Python code; `hint` what to do, if it is known without other layers.
    """

    expected: str
    found: str
    size: int | None = None
    unit: str = "features"
    instead: str | None = None
    hint: str | None = None
    dtype: torch.dtype | None = None


def describe(module: nn.Module) -> str:
    """Describe a layer in a few characters.

    >>> describe(nn.Linear(128, 64)), describe(nn.Conv2d(3, 16, 5)), describe(nn.ReLU())
    ('Linear(128 -> 64)', 'Conv2d(3 -> 16, 5x5)', 'ReLU')
    """
    name = type(module).__name__
    match _attributes(module):
        case {"in_features": int(a), "out_features": int(b)}:
            return f"{name}({a} -> {b})"
        case {"in1_features": int(a), "in2_features": int(b), "out_features": int(c)}:
            return f"{name}({a}, {b} -> {c})"
        case {"in_channels": int(a), "out_channels": int(b), "kernel_size": kernel}:
            sizes = kernel if isinstance(kernel, tuple) else (kernel,)
            return f"{name}({a} -> {b}, {'x'.join(map(str, sizes))})"
        case {"num_embeddings": int(a), "embedding_dim": int(b)}:
            return f"{name}({a} -> {b})"
        case {"embed_dim": int(a), "num_heads": int(b)}:
            return f"{name}({a}, {b} heads)"
        case {"input_size": int(a), "hidden_size": int(b)}:
            return f"{name}({a} -> {b})"
        case {"num_groups": int(a), "num_channels": int(b)}:
            return f"{name}({b}, {a} groups)"
        case {"normalized_shape": shape}:
            return f"{name}({_sizes(shape)})"
        case {"num_features": int(a)}:
            return f"{name}({a})"
    return name


def output_features(module: nn.Module) -> int | None:
    """Return the number of features or channels of a layer's output, if the layer determines it."""
    for name in ("out_features", "out_channels", "embedding_dim", "embed_dim", "hidden_size"):
        value = getattr(module, name, None)
        if isinstance(value, int):
            return value
    return None


def has_known_inputs(module: nn.Module) -> bool:
    """Whether a module's attributes determine what it accepts, because its ``forward`` is torch's.

    Subclasses with their own ``forward`` may accept other layouts, as a LayerNorm over channels does.
    Transposed convolutions and `_SAME_INPUTS` are the exception: their subclasses do not.
    """
    home = getattr(type(module).forward, "__module__", "")
    return home.startswith("torch.nn.modules.") or isinstance(module, (*_TRANSPOSED, *_SAME_INPUTS))


def find_mismatch(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ShapeMismatch | None:
    """Return why a layer does not accept these inputs; None if they fit or the layer is unknown.

    >>> find_mismatch(nn.Linear(128, 64), [torch.empty(2, 7, 256)], {}).expected
    '(..., 128)'
    """
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return None
    inputs = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor)]
    if not inputs:
        return None
    x = inputs[0]
    name = type(module).__name__
    if (problem := dtype_mismatch(module, x)) is not None:
        return problem
    match _attributes(module):
        case {"in_features": int(a), "out_features": int(b)}:
            return _last_axis(x, a, f"{name}({{}}, {b})")
        case {"in_channels": int(a), "out_channels": int(b), "kernel_size": tuple(kernel)}:
            return _channels(x, a, (len(kernel) + 2,), f"{name}({{}}, {b}, ...)", unbatched=True)
        case {"num_embeddings": int(), "embedding_dim": int()}:
            return _indices(module, x, args, kwargs)
        case {"embed_dim": int(a), "num_heads": int(b)}:
            return _attention(module, a, args, kwargs) or _last_axis(x, a, f"{name}({{}}, {b})")
        case {"input_size": int(a), "hidden_size": int(b)}:
            if hasattr(module, "num_layers") and x.dim() not in (2, 3):
                steps_first = not getattr(module, "batch_first", True)  # torch's default
                return ShapeMismatch(f"(T, N, {a})" if steps_first else f"(N, T, {a})", shape_text(x))
            return _last_axis(x, a, f"{name}({{}}, {b})")
        case {"num_groups": int(a), "num_channels": int(b)}:
            return _channels(x, b, None, f"{name}({a}, {{}})")
        case {"normalized_shape": shape}:
            return _trailing(x, shape, f"{name}({{}})")
        case {"num_features": int(a)}:
            return _features_norm(module, x, a)
    return _mismatch_by_class(module, inputs)


def dtype_mismatch(module: nn.Module, x: Any) -> ShapeMismatch | None:
    """Return why a layer's parameters do not fit the dtype of its first input; None if they may fit.

    Only integers and float64 are found, which nothing converts: autocast converts the smaller floating-point
    dtypes, and some layers mix them. Embeddings, which take integers, are left to `find_mismatch`.

    >>> dtype_mismatch(nn.Linear(2, 2), torch.ones(3, 2, dtype=torch.float64)).found
    'float64 (3, 2)'
    """
    weight = next(module.parameters(recurse=False), None)
    if weight is None or not isinstance(x, torch.Tensor) or hasattr(module, "num_embeddings"):
        return None
    if not weight.is_floating_point() or x.dtype == weight.dtype or x.is_complex() or not _attributes(module):
        return None
    if x.is_floating_point() and torch.float64 not in (x.dtype, weight.dtype):
        return None
    expected, found = (str(dtype).removeprefix("torch.") for dtype in (weight.dtype, x.dtype))
    cast = {"float32": ".float()", "float64": ".double()"}.get(expected, f".to(torch.{expected})")
    return ShapeMismatch(
        f"{expected}, the dtype of its parameters", f"{found} {shape_text(x)}", hint=cast, dtype=x.dtype
    )


def _attributes(module: nn.Module) -> dict[str, Any]:
    # vars(), since this runs at every call of a layer, and Module.__getattr__ raises for each missing name.
    own = vars(module)
    return {name: own[name] for name in _SHAPE_ATTRIBUTES if name in own}


_SHAPE_ATTRIBUTES = (
    *("in_features", "in1_features", "in2_features", "out_features", "in_channels", "out_channels"),
    *("kernel_size", "num_embeddings", "embedding_dim", "embed_dim", "num_heads", "input_size"),
    *("hidden_size", "num_groups", "num_channels", "normalized_shape", "num_features"),
)


def _last_axis(x: torch.Tensor, size: int, instead: str) -> ShapeMismatch | None:
    expected = f"(..., {size})"
    if x.dim() == 0:
        return ShapeMismatch(expected, shape_text(x))
    if x.shape[-1] == size:
        return None
    hint = None
    if x.dim() > 2 and math.prod(x.shape[1:]) == size:
        hint = "the axes after the batch have that many elements together: x.flatten(1)?"
    return ShapeMismatch(
        expected, shape_text(x), size=x.shape[-1], instead=instead.format(x.shape[-1]), hint=hint
    )


def _channels(
    x: torch.Tensor, size: int, ranks: tuple[int, ...] | None, instead: str, *, unbatched: bool = False
) -> ShapeMismatch | None:
    """Check the channels on axis 1 of an input of these ranks; if `unbatched`, the batch may be missing."""
    axis = 1
    if ranks is None:
        expected, right_rank = f"(N, {size}, ...)", x.dim() >= 2
    else:
        shapes = {2: f"(N, {size})"} | {n + 2: f"(N, {size}, {axes})" for n, axes in _AXES.items()}
        expected, right_rank = " or ".join(shapes[rank] for rank in ranks), x.dim() in ranks
        if unbatched and x.dim() == ranks[0] - 1:
            axis, right_rank = 0, True
    of_rank = rank_hint(instead.partition("(")[0], x.dim())
    if not right_rank:
        return ShapeMismatch(expected, shape_text(x), hint=of_rank)
    actual = x.shape[axis]
    if actual == size:
        return None
    hint = None
    if axis == 0 and x.shape[1] == size:  # a batch was taken for the channels
        return ShapeMismatch(expected, shape_text(x), hint=of_rank)
    if x.dim() > axis + 1 and x.shape[-1] == size:
        hint = f"the last axis has {size}, and channels come before the other axes: x.movedim(-1, {axis})?"
    return ShapeMismatch(
        expected, shape_text(x), size=actual, unit="channels", instead=instead.format(actual), hint=hint
    )


def _trailing(x: torch.Tensor, shape: Any, instead: str) -> ShapeMismatch | None:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if tuple(x.shape[max(x.dim() - len(sizes), 0) :]) == sizes:
        return None
    expected = f"(..., {_sizes(sizes)})"
    if len(sizes) > 1 or x.dim() == 0:
        return ShapeMismatch(expected, shape_text(x))
    return ShapeMismatch(expected, shape_text(x), size=x.shape[-1], instead=instead.format(x.shape[-1]))


def _indices(
    module: nn.Module, x: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ShapeMismatch | None:
    if x.dtype not in (torch.int64, torch.int32):
        dtype = str(x.dtype).removeprefix("torch.")
        return ShapeMismatch(
            "indices of dtype int64 or int32",
            f"{dtype} {shape_text(x)}",
            hint=f"indices.long(), or TensorSpec({tuple(x.shape)}, torch.int64)?",
        )
    if isinstance(module, nn.EmbeddingBag):
        offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
        if x.dim() != (2 if offsets is None else 1):
            found = shape_text(x) + (" without offsets" if offsets is None else " and offsets")
            return ShapeMismatch("indices (N, L), or (L) and offsets (N)", found)
    return None


def _attention(
    module: nn.Module, embed_dim: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ShapeMismatch | None:
    """Check key and value, or the context; the query is checked as the layer's first input."""
    roles = [("key", "kdim"), ("value", "vdim")]
    if hasattr(module, "context_dim"):
        roles = [("context", "context_dim")]
    given = dict(zip(("query", *dict(roles)), args, strict=False)) | dict(kwargs)
    for role, size_name in roles:
        x, size = given.get(role), getattr(module, size_name, None) or embed_dim
        query = given.get("query")
        if x is None or not isinstance(x, torch.Tensor) or not isinstance(query, torch.Tensor):
            continue
        if query.shape[-1:] == (embed_dim,) and x.shape[-1:] != (size,):
            hint = f"{size_name}={x.shape[-1]}?" if x.dim() else None
            return ShapeMismatch(f"{role} (..., {size})", f"{role} {shape_text(x)}", hint=hint)
    return None


def _features_norm(module: nn.Module, x: torch.Tensor, size: int) -> ShapeMismatch | None:
    if isinstance(module, InstanceNormBase):  # takes inputs without a batch, too: torch says what is wrong
        return None
    ranks = next((r for norm, r in _BATCH_NORM_RANKS.items() if isinstance(module, norm)), None)
    return _channels(x, size, ranks, f"{type(module).__name__}({{}})")


def _sizes(shape: Any) -> str:
    return ", ".join(map(str, (shape,) if isinstance(shape, int) else tuple(shape)))


def _mismatch_by_class(module: nn.Module, inputs: Sequence[torch.Tensor]) -> ShapeMismatch | None:
    x = inputs[0]
    pooled = _pooled_axes(module)
    match module:
        case nn.Softmax(dim=int(dim)) | nn.LogSoftmax(dim=int(dim)) | nn.Softmin(dim=int(dim)):
            # torch's meta kernel accepts any axis. A scalar has the axes 0 and -1.
            rank = max(x.dim(), 1)
            return None if -rank <= dim < rank else ShapeMismatch(f"an axis {dim}", shape_text(x))
        case nn.Upsample():
            axes = _upsample_axes(module)
            fits = x.dim() - 2 in axes
        case _ if pooled:
            axes = (pooled,)
            fits = x.dim() - pooled in (1, 2)
            if isinstance(module, _MEANS) and x.dim() >= pooled:
                size = module.output_size
                fits = fits or set(size if isinstance(size, tuple) else (size,)) == {1}  # torch's mean
        case _:
            return None
    expected = " or ".join(f"(N, C, {_AXES[n]})" for n in axes)
    hint = rank_hint(type(module).__name__, x.dim())
    return None if fits else ShapeMismatch(expected, shape_text(x), hint=hint)


def pooled_channels_hint(module: nn.Module, x: object) -> str | None:
    """Say that a pool may have taken a batch for a sample without batch axis, and pooled its channels."""
    axes = _pooled_axes(module)
    if axes < 2 or not isinstance(x, torch.Tensor) or x.dim() != axes + 1:
        return None
    # burnt's pools are torch's, with their names.
    return f"pooled the channels of {shape_text(x)}, {rank_hint(type(module).__name__, x.dim())}"


def _pooled_axes(module: nn.Module) -> int:
    """Return how many axes a pooling layer pools; 0 for other layers."""
    return next((n for n, pools in _POOLS.items() if isinstance(module, pools)), 0)


def _upsample_axes(module: nn.Upsample) -> tuple[int, ...]:
    """Return the numbers of axes after the channels that an Upsample accepts."""
    # The other modes are for all ranks.
    axes = tuple(n for n, modes in _UPSAMPLE_MODES.items() if module.mode in modes) or (1, 2, 3)
    given = module.size if module.size is not None else module.scale_factor
    return (len(given),) if isinstance(given, tuple) and len(given) in axes else axes
