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

Classes = tuple[type[nn.Module], ...]
Reason = Callable[[Any], str | None]


def computing_as(*classes: type[nn.Module]) -> Callable[[nn.Module], bool]:
    """Return a predicate: whether a module's ``forward`` is from one of these classes."""
    forwards = {cls.forward for cls in classes}
    return lambda module: isinstance(module, classes) and type(module).forward in forwards


def _kind(
    name: str,
    classes: type[nn.Module] | Classes,
    forward: Callable[..., Any],
    reason: Reason | None = None,
    **more: Any,
) -> None:
    """Register a kind; `reason` says why a module's settings, which may change, do not allow it."""
    all_classes = classes if isinstance(classes, tuple) else (classes,)
    _register(name, all_classes, lambda cls: forward, reason, **more)


def _register(
    name: str,
    classes: Classes,
    forward: Callable[[type], Callable[..., Any]],
    reason: Reason | None,
    **more: Any,
) -> None:
    if reason is not None:
        more["fallback_reason"] = reason
        more["call_fallback_reason"] = lambda module, *args, **kwargs: reason(module)
    Kind(name, f"kernels.{name}", computing_as(*classes), forward, **more)


def _inplace_reason(module: Any) -> str | None:
    return "works in place" if module.inplace else None


# --- matmuls, convolutions and gathers --------------------------------------------------------------------


def _linear_reason(module: nn.Module) -> str | None:
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "is never called: torch.nn.MultiheadAttention reads its parameters"
    return None


_kind("linear", nn.Linear, burnt_nn.Linear.forward, fallback_reason=_linear_reason)


def conv_reason(module: nn.Conv2d) -> str | None:
    """Return why burnt's kernel cannot compute a convolution, or None."""
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


def _conv_transpose(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
    axes = self.weight.dim() - 2
    sizes = self.stride, self.padding, self.kernel_size
    more = self._output_padding(input, output_size, *sizes, axes, self.dilation)
    settings = self.stride, self.padding, more, self.groups, self.dilation
    return kernels.conv_transpose(input, self.weight, self.bias, None, *settings)


_kind("conv", (nn.Conv1d, nn.Conv2d, nn.Conv3d), convolve, conv_reason)
_TRANSPOSED = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_kind("conv_transpose", _TRANSPOSED, _conv_transpose, conv_reason)


def _embedding_reason(module: nn.Embedding) -> str | None:
    if module.max_norm is not None:
        return "max_norm= changes the table while it is read"
    return "scale_grad_by_freq= or sparse=" if module.scale_grad_by_freq or module.sparse else None


_kind("embedding", nn.Embedding, burnt_nn.Embedding.forward, _embedding_reason)


# --- normalisations ---------------------------------------------------------------------------------------


def _no_weight_reason(module: Any) -> str | None:
    # The ops infer the normalised axes from the weight's shape.
    is_unknown = len(module.normalized_shape) > 1 and module.weight is None
    return "normalises several axes without a weight" if is_unknown else None


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    return burnt_nn.RmsNorm.forward(self, x)


def _group_norm(self: nn.GroupNorm, input: Tensor) -> Tensor:
    return kernels.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def _momentum_reason(module: nn.BatchNorm2d) -> str | None:
    return "momentum=None averages all batches" if module.momentum is None else None


_kind("layer_norm", nn.LayerNorm, burnt_nn.LayerNorm.forward, _no_weight_reason)
_kind("rms_norm", nn.RMSNorm, _rms_norm, _no_weight_reason)
_kind("group_norm", nn.GroupNorm, _group_norm)
_kind("batch_norm", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), batch_norm, _momentum_reason)


# --- elementwise, along an axis, and losses ---------------------------------------------------------------


def _axis_reason(module: Any) -> str | None:
    return "has no dim=" if module.dim is None else None


def cross_entropy(self: nn.CrossEntropyLoss, input: Tensor, target: Tensor) -> Tensor:
    """Compute a loss by burnt's kernel."""
    settings = self.weight, self.ignore_index, self.reduction, self.label_smoothing
    return kernels.cross_entropy(input, target, *settings)


_kind("gelu", nn.GELU, burnt_nn.Gelu.forward)
_kind("silu", nn.SiLU, burnt_nn.Silu.forward, _inplace_reason)
_kind("dropout", nn.Dropout, burnt_nn.Dropout.forward, _inplace_reason, random=True, training_only=True)
_kind("softmax", nn.Softmax, burnt_nn.Softmax.forward, _axis_reason)
_kind("log_softmax", nn.LogSoftmax, burnt_nn.LogSoftmax.forward, _axis_reason)
_kind("cross_entropy", nn.CrossEntropyLoss, cross_entropy)


# --- pools ------------------------------------------------------------------------------------------------


def _adaptive_reason(module: Any) -> str | None:
    size = module.output_size
    if getattr(module, "return_indices", False):
        return "return_indices=True needs the positions of the maxima"
    return "output_size= of None" if None in (size if isinstance(size, list | tuple) else [size]) else None


def _pool(name: str, classes: Classes, pool: Callable[..., Tensor], reason: Reason | None = None) -> None:
    """Register a kind for classes that pool one, two and three axes."""

    def forward(cls: type) -> Callable[..., Tensor]:
        axes = next(i for i, each in enumerate(classes, 1) if issubclass(cls, each))
        return lambda self, input: pool(self, input, axes)

    _register(name, classes, forward, reason)


def _adaptive_avg_pool(self: Any, input: Tensor, axes: int) -> Tensor:
    return kernels.adaptive_avg_pool(input, adaptive_size(self, input, axes))


def _adaptive_max_pool(self: Any, input: Tensor, axes: int) -> Tensor:
    return kernels.adaptive_max_pool(input, adaptive_size(self, input, axes))  # type: ignore[return-value]


_pool("max_pool", (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), max_pool)
_pool("avg_pool", (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), avg_pool)
_ADAPTIVE_AVG = nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d
_pool("adaptive_avg_pool", _ADAPTIVE_AVG, _adaptive_avg_pool, _adaptive_reason)
_ADAPTIVE_MAX = nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d
_pool("adaptive_max_pool", _ADAPTIVE_MAX, _adaptive_max_pool, _adaptive_reason)
