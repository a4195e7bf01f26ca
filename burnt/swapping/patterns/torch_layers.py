"""Kinds for the layers of `torch.nn`, most of which get the forward of their subclass in `burnt.nn`.

A kind matches a torch class and subclasses that inherit its ``forward``. A subclass that overrides it may
compute anything, and is not swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

import burnt.nn as burnt_nn
from burnt import kernels
from burnt.nn.conv import convolve
from burnt.nn.norm import batch_norm
from burnt.nn.pool import adaptive_size, avg_pool, max_pool
from burnt.swapping.kind import Kind

Method = Callable[..., Any]


def computing_as(*classes: type[nn.Module]) -> Callable[[nn.Module], bool]:
    """Return a predicate: whether a module's ``forward`` is that of one of these classes."""
    forwards = {cls.forward for cls in classes}
    return lambda module: isinstance(module, classes) and type(module).forward in forwards


def _kind(
    name: str,
    by: str,
    classes: type[nn.Module] | tuple[type[nn.Module], ...],
    forward: Method,
    fallback_reason: Callable[[Any], str | None] = lambda module: None,
    settings: Callable[[Any], str | None] | None = None,
    **more: Any,
) -> None:
    """Register a kind; `settings` checks the part of `fallback_reason` that may change between calls."""
    all_classes = classes if isinstance(classes, tuple) else (classes,)
    per_call = None if settings is None else _at_each_call(settings)
    Kind(
        name,
        by,
        computing_as(*all_classes),
        lambda cls: forward,
        fallback_reason,
        call_fallback_reason=per_call,
        **more,
    )


def _at_each_call(settings: Callable[[Any], str | None]) -> Callable[..., str | None]:
    return lambda module, *args, **kwargs: settings(module)


def _inplace_reason(module: Any) -> str | None:
    return "works in place" if module.inplace else None


# --- matmuls, convolutions and gathers --------------------------------------------------------------------


def _linear_reason(module: nn.Linear) -> str | None:
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "is never called: torch.nn.MultiheadAttention reads its parameters"
    return "is lazy: call the model once before" if is_lazy(module) else None


def is_lazy(module: nn.Module) -> bool:
    """Whether a module does not know its parameters' shapes yet."""
    return any(isinstance(p, nn.UninitializedParameter) for p in module._parameters.values())


_kind("linear", "kernels.linear", nn.Linear, burnt_nn.Linear.forward, _linear_reason)


def conv_reason(module: nn.Conv2d) -> str | None:
    """Return why burnt's kernel cannot compute a convolution, or None."""
    return "is lazy: call the model once before" if is_lazy(module) else _conv_setting_reason(module)


def _conv_setting_reason(module: nn.Conv2d) -> str | None:
    if module.padding_mode != "zeros":
        return f"padding_mode={module.padding_mode!r}"
    if "_conv_forward" in vars(module):
        return "user code replaced its _conv_forward"
    if module.padding == "same" and any(span % 2 for span in _total_padding_of(module)):
        return "padding='same' is asymmetric for this kernel size"
    return None


def _total_padding_of(module: Any) -> list[int]:
    """Return, per axis, how much shorter the output is than the input without padding, at stride 1."""
    return [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]


def padding_of(module: Any) -> Any:
    """Return a convolution's padding as numbers; ``"same"`` must be symmetric."""
    if isinstance(module.padding, str):
        return [span // 2 if module.padding == "same" else 0 for span in _total_padding_of(module)]
    return module.padding


_kind("conv", "kernels.conv", (nn.Conv1d, nn.Conv2d, nn.Conv3d), convolve, conv_reason, _conv_setting_reason)


def _conv_transpose(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    axes = self.weight.dim() - 2
    sizes = self.stride, self.padding, self.kernel_size
    more = self._output_padding(input, output_size, *sizes, axes, self.dilation)
    return kernels.conv_transpose(
        input,
        self.weight,
        self.bias,
        stride=self.stride,
        padding=self.padding,
        output_padding=more,
        groups=self.groups,
        dilation=self.dilation,
    )


_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_kind(
    "conv_transpose",
    "kernels.conv_transpose",
    _TRANSPOSED,
    _conv_transpose,
    conv_reason,
    _conv_setting_reason,
)


def _embedding_reason(module: nn.Embedding) -> str | None:
    if module.max_norm is not None:
        return "max_norm= changes the table while it is read"
    if module.scale_grad_by_freq or module.sparse:
        return "scale_grad_by_freq= or sparse="
    return None


_kind(
    "embedding",
    "kernels.embedding",
    nn.Embedding,
    burnt_nn.Embedding.forward,
    _embedding_reason,
    _embedding_reason,
)


# --- normalisations ---------------------------------------------------------------------------------------


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    return burnt_nn.RmsNorm.forward(self, x)


def _no_weight_reason(module: Any) -> str | None:
    # The ops infer the normalised axes from the weight's shape.
    return "normalises several axes without a weight" if _axes_unknown(module) else None


def _axes_unknown(module: Any) -> bool:
    return len(module.normalized_shape) > 1 and module.weight is None


_kind(
    "layer_norm",
    "kernels.layer_norm",
    nn.LayerNorm,
    burnt_nn.LayerNorm.forward,
    _no_weight_reason,
    _no_weight_reason,
)
_kind("rms_norm", "kernels.rms_norm", nn.RMSNorm, _rms_norm, _no_weight_reason, _no_weight_reason)


def _group_norm(self: nn.GroupNorm, input: Tensor) -> Tensor:
    return kernels.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


_kind("group_norm", "kernels.group_norm", nn.GroupNorm, _group_norm)


def _batch_norm_reason(module: nn.BatchNorm2d) -> str | None:
    if is_lazy(module):
        return "is lazy: call the model once before"
    return _momentum_reason(module)


def _momentum_reason(module: nn.BatchNorm2d) -> str | None:
    return "momentum=None averages all batches" if module.momentum is None else None


_kind(
    "batch_norm",
    "kernels.batch_norm",
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    batch_norm,
    _batch_norm_reason,
    _momentum_reason,
)


# --- elementwise ------------------------------------------------------------------------------------------


_kind("gelu", "kernels.gelu", nn.GELU, burnt_nn.Gelu.forward)
_kind("silu", "kernels.silu", nn.SiLU, burnt_nn.Silu.forward, _inplace_reason, _inplace_reason)
_kind(
    "dropout",
    "kernels.dropout",
    nn.Dropout,
    burnt_nn.Dropout.forward,
    _inplace_reason,
    _inplace_reason,
    random=True,
    training_only=True,
)


# --- along an axis, and losses ----------------------------------------------------------------------------


def _axis_reason(module: Any) -> str | None:
    return "has no dim=" if module.dim is None else None


_kind("softmax", "kernels.softmax", nn.Softmax, burnt_nn.Softmax.forward, _axis_reason, _axis_reason)
_kind(
    "log_softmax",
    "kernels.log_softmax",
    nn.LogSoftmax,
    burnt_nn.LogSoftmax.forward,
    _axis_reason,
    _axis_reason,
)


def _cross_entropy(self: nn.CrossEntropyLoss, input: Tensor, target: Tensor) -> Tensor:
    return kernels.cross_entropy(
        input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
    )


_kind("cross_entropy", "kernels.cross_entropy", nn.CrossEntropyLoss, _cross_entropy)


# --- pools ------------------------------------------------------------------------------------------------


def _max_pool(cls: type) -> Method:
    axes = _axes(cls)
    return lambda self, input: max_pool(self, input, axes)


def _avg_pool(cls: type) -> Method:
    axes = _axes(cls)
    return lambda self, input: avg_pool(self, input, axes)


def _adaptive_avg_pool(cls: type) -> Method:
    axes = _axes(cls)
    return lambda self, input: kernels.adaptive_avg_pool(input, adaptive_size(self, input, axes))


def _adaptive_max_pool(cls: type) -> Method:
    axes = _axes(cls)
    return lambda self, input: kernels.adaptive_max_pool(input, adaptive_size(self, input, axes))


def _axes(cls: type) -> int:
    return next(axes for axes, pools in _POOLS.items() for pool in pools if issubclass(cls, pool))


_POOLS: dict[int, tuple[type[nn.Module], ...]] = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}


def _adaptive_reason(module: Any) -> str | None:
    size = module.output_size
    if getattr(module, "return_indices", False):
        return "return_indices=True needs the positions of the maxima"
    return "output_size= of None" if None in (size if isinstance(size, list | tuple) else [size]) else None


def _pools(column: int) -> Callable[[nn.Module], bool]:
    return computing_as(*(pools[column] for pools in _POOLS.values()))


Kind("max_pool", "kernels.max_pool", _pools(0), _max_pool)
Kind("avg_pool", "kernels.avg_pool", _pools(1), _avg_pool)
for _name, _column, _forward in (
    ("adaptive_avg_pool", 2, _adaptive_avg_pool),
    ("adaptive_max_pool", 3, _adaptive_max_pool),
):
    _per_call = _at_each_call(_adaptive_reason)
    _matches = _pools(_column)
    Kind(_name, f"kernels.{_name}", _matches, _forward, _adaptive_reason, call_fallback_reason=_per_call)
