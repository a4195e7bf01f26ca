"""Normalisations, each with an optional residual and activation in the same kernel.

The residual is where networks have it: `layer_norm` and `rms_norm` add it to their input and return the sum
as well (pre-norm transformers); `group_norm` and `batch_norm` add it to what they made, before the
activation (residual blocks of convolutional networks).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.device import processor
from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.interface.eager_rules import is_double, is_slow_to_widen
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation, check_activation

__all__ = [
    "batch_norm",
    "batch_norm_inference",
    "batch_norm_training",
    "group_norm",
    "layer_norm",
    "rms_norm",
]


def _standardised(x: Tensor, axes: list[int], eps: float) -> Tensor:
    """`x` less its mean, divided by its deviation, over axes, in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    return (wide - mean) * torch.rsqrt(var + eps)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`x` times a weight plus a bias that broadcast to it, in a dtype."""
    if weight is not None:
        x = x * weight.to(x.dtype)
    if bias is not None:
        x = x + bias.to(x.dtype)
    return x.to(dtype)


def _by_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """``[channels]`` as it broadcasts to ``[batch, channels, *]``."""
    return None if parameter is None else parameter.view(1, -1, *[1] * (x.dim() - 2))


# --- over the last axes -----------------------------------------------------------------------------------


def _check_last_axes(
    name: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    check_activation(name, activation)
    check_floating(name, x=x)
    check_one_device(name, x=x, weight=weight, bias=bias, residual=residual)
    if not _torch.is_autocast():
        check_one_dtype(name, x=x, residual=residual)
        _check_parameters(name, x, weight=weight, bias=bias)
    for what, tensor in ("weight", weight), ("bias", bias):
        if tensor is not None and (
            tensor.dim() == 0 or tensor.dim() > x.dim() or x.shape[-tensor.dim() :] != tensor.shape
        ):
            raise InputRuntimeError(
                f"the {what} of {name} does not fit the last axes of x",
                where=f"burnt.kernels.{name}",
                expected=f"{what} of shape {tuple(x.shape[-max(tensor.dim(), 1) :])}",
                found=tuple(tensor.shape),
                hint=f"the layer before makes {x.shape[-1] if x.dim() else 'no'} features",
            )
    if weight is not None and bias is not None and weight.shape != bias.shape:
        raise InputRuntimeError(
            f"weight and bias of {name} have different shapes",
            where=f"burnt.kernels.{name}",
            expected=f"bias of shape {tuple(weight.shape)}",
            found=tuple(bias.shape),
        )
    if x.dim() == 0:
        raise InputRuntimeError(
            f"{name} is over the last axes, and x has none", where=f"burnt.kernels.{name}", found="[]"
        )
    _check_residual(name, x, residual)


def _check_residual(name: str, x: Tensor, residual: Tensor | None) -> None:
    if residual is not None and residual.shape != x.shape:
        raise InputRuntimeError(
            f"the residual of {name} has another shape than x",
            where=f"burnt.kernels.{name}",
            expected=tuple(x.shape),
            found=tuple(residual.shape),
        )


def _check_parameters(name: str, x: Tensor, **parameters: Tensor | None) -> None:
    """The parameters of a norm are of one dtype: that of `x`, or float32 for `x` of 16 bits."""
    dtypes = {what: p.dtype for what, p in parameters.items() if p is not None}
    allowed = [x.dtype, torch.float32] if x.dtype.itemsize == 2 else [x.dtype]
    first = next(iter(dtypes.values()), x.dtype)
    for what, dtype in dtypes.items():
        if dtype not in allowed or dtype != first:
            raise InputRuntimeError(
                f"the arguments of {name} have different dtypes",
                where=f"burnt.kernels.{name}",
                expected=f"{what} of {first if first in allowed else x.dtype}, for x of {x.dtype}",
                found=f"{what} of {dtype}",
                hint=f"{what}.to({first if first in allowed else x.dtype})",
            )


def _is_mixed(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether 16 bits are to be scaled by float32."""
    return any(p is not None and p.dtype != x.dtype for p in parameters)


def _last_axes(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[int, ...]:
    if weight is not None:
        return tuple(weight.shape)
    return tuple(bias.shape) if bias is not None else tuple(x.shape[-1:])


def _check_layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    _check_last_axes("layer_norm", x, weight, bias, residual, activation)


def _layer_examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for rows, columns in [(4096, 1024), (512, 768), (37, 53)]:
        x, weight, bias = (torch.randn(s, device=device) for s in [(rows, columns), (columns,), (columns,)])
        made += [(x, weight, bias, 1e-5, None, None), (x, weight, bias, 1e-5, torch.randn_like(x), None)]
    return made


def _library_layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    if _is_mixed(x, weight, bias) and (not x.is_cpu or weight is None):  # torch takes others alone
        return layer_norm.reference(x, weight, bias, eps, residual, activation)
    total = x if residual is None else x + residual
    made = apply_activation(F.layer_norm(total, _last_axes(x, weight, bias), weight, bias, eps), activation)
    return made if residual is None else (made, total)


def _alone(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> bool:
    """Neither residual nor activation, or with gradients: where torch's own layer norm is as fast.

    Generated, 0.8 to 1.1 times as fast there, 1.1 to 1.5 times with a residual and no gradients. With vectors
    of 512 bits (Zen 5) 0.95 to 1.9 times without gradients in float32 and bfloat16.
    """
    if wants_gradient(x, weight, bias, residual):
        return True
    if residual is not None or activation is not None:
        return x.dtype == torch.float16 or is_slow_to_widen(x)  # 0.5 to 0.9 times as fast
    wide = processor().has_wide_vectors and x.dtype in (torch.float32, torch.bfloat16)
    return not wide or _is_mixed(x, weight, bias)


@op(
    check=_check_layer_norm,
    library=_library_layer_norm,
    pair="residual",
    examples=_layer_examples,
    library_best=_alone,
)
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Layer normalisation over the last axes, optionally after adding a residual.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    Args:
        x: ``[*, *d]``, of a floating-point dtype.
        weight: ``[*d]``, one or more of the last axes of `x`; without it (and the bias) the last one is
            normalised. Of the same dtype, or of float32 where `x` has 16 bits.
        bias: ``[*d]``, as the weight.
        eps: added to the variance (biased).
        residual: ``[*, *d]``, added to `x` first; the sum is returned too.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        ``[*, *d]`` in the dtype of `x`, or the pair ``(normalised, sum)`` when a residual is given.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.layer_norm`, which is told the normalised shape. Statistics are accumulated in
    float32. Ba, Kiros and Hinton, 2016.

    >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247])
    """
    total = x if residual is None else x + residual
    axes = list(range(-len(_last_axes(x, weight, bias)), 0))
    made = apply_activation(_scaled(_standardised(total, axes, eps), weight, bias, x.dtype), activation)
    return made if residual is None else (made, total)


def _check_rms_norm(
    x: Tensor, weight: Tensor | None, eps: float | None, residual: Tensor | None, activation: str | None
) -> None:
    _check_last_axes("rms_norm", x, weight, None, residual, activation)


def _rms_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(x, w, 1e-6, residual, None) for x, w, _, _, residual, _ in _layer_examples(device)]


def _library_rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    if _is_mixed(x, weight):  # torch warns that it has no kernel for that
        return rms_norm.reference(x, weight, eps, residual, activation)
    total = x if residual is None else x + residual
    made = apply_activation(F.rms_norm(total, _last_axes(x, weight, None), weight, eps), activation)
    return made if residual is None else (made, total)


@op(check=_check_rms_norm, library=_library_rms_norm, pair="residual", examples=_rms_examples)
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Root-mean-square normalisation over the last axes, optionally after adding a residual.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{d} \sum_i x_i^2 + \epsilon}} \, w

    Args:
        x: ``[*, *d]``, of a floating-point dtype.
        weight: ``[*d]``, one or more of the last axes of `x`; without it the last one is normalised. Of the
            same dtype, or of float32 where `x` has 16 bits.
        eps: added to the mean square; None is the machine epsilon that torch takes for the dtype of `x`.
        residual: ``[*, *d]``, added to `x` first; the sum is returned too.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        ``[*, *d]`` in the dtype of `x`, or the pair ``(normalised, sum)`` when a residual is given.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.rms_norm`, which is told the normalised shape. Statistics are accumulated in
    float32. Zhang and Sennrich, 2019.

    >>> rms_norm(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314])
    """
    total = x if residual is None else x + residual
    axes = list(range(-len(_last_axes(x, weight, None)), 0))
    wide = total.to(torch.promote_types(x.dtype, torch.float32))
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    made = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
    made = apply_activation(_scaled(made, weight, None, x.dtype), activation)
    return made if residual is None else (made, total)


# --- by channel -------------------------------------------------------------------------------------------


def _check_channels(
    name: str, x: Tensor, activation: str | None, residual: Tensor | None, **others: Tensor | None
) -> None:
    check_activation(name, activation)
    check_floating(name, x=x)
    check_one_device(name, x=x, residual=residual, **others)
    _check_residual(name, x, residual)
    if x.dim() < 2:
        raise InputRuntimeError(
            f"{name} needs a batch and channels",
            where=f"burnt.kernels.{name}",
            expected="[batch, channels, *]",
            found=tuple(x.shape),
            hint="add a batch axis: x.unsqueeze(0)",
        )
    for what, tensor in others.items():
        if tensor is not None and tuple(tensor.shape) != (x.shape[1],):
            raise InputRuntimeError(
                f"the {what} of {name} does not fit the channels of x",
                where=f"burnt.kernels.{name}",
                expected=f"[{x.shape[1]}], for x of shape {tuple(x.shape)}",
                found=tuple(tensor.shape),
                hint="channels are the second axis; x.movedim(-1, 1) where they are last",
            )


def _check_group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    _check_channels("group_norm", x, activation, residual, weight=weight, bias=bias)
    if not _torch.is_autocast():
        check_one_dtype("group_norm", x=x, residual=residual)
        _check_parameters("group_norm", x, weight=weight, bias=bias)
    if num_groups < 1 or x.shape[1] % num_groups:
        raise InputRuntimeError(
            "the channels cannot be split into as many groups",
            where="burnt.kernels.group_norm",
            expected=f"a divisor of {x.shape[1]} channels",
            found=f"{num_groups} groups",
        )


def _group_examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for shape, groups in [((8, 64, 56, 56), 32), ((4, 320, 32, 32), 32), ((3, 6, 7, 5), 3)]:
        x, weight, bias = (torch.randn(s, device=device) for s in [shape, (shape[1],), (shape[1],)])
        made += [
            (x, groups, weight, bias, 1e-5, None, None),
            (x, groups, weight, bias, 1e-5, torch.randn_like(x), "silu"),
        ]
    return made


def _library_group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    if _is_mixed(x, weight, bias) and (not x.is_cpu or weight is None):  # torch takes others alone
        return group_norm.reference(x, num_groups, weight, bias, eps, residual, activation)
    made = F.group_norm(x, num_groups, weight, bias, eps)
    return apply_activation(made if residual is None else made + residual, activation)


def _group_library_best(x: Tensor, *args: object) -> bool:
    """Generated, 0.9 times as fast with gradients, and 1.1 to 1.6 times without.

    In bfloat16 by vectors of 256 bits 0.8 times, and 0.3 times with exponentials of float64.
    """
    slow = is_slow_to_widen(x) and x.dtype == torch.bfloat16
    return wants_gradient(x, *args) or slow or (args[-1] is not None and is_double(x))


@op(
    check=_check_group_norm,
    library=_library_group_norm,
    examples=_group_examples,
    library_best=_group_library_best,
)
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    r"""Normalises groups of channels, each sample by itself.

    Args:
        x: ``[batch, channels, *]``, of a floating-point dtype.
        num_groups: how many groups the channels are split into.
        weight: ``[channels]``, of the same dtype, or of float32 where `x` has 16 bits.
        bias: ``[channels]``, as the weight.
        eps: added to the variance (biased).
        residual: as `x`; added to the normalised values, before the activation.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        as `x`.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.group_norm`. Wu and He, 2018.

    >>> group_norm(torch.tensor([[1.0, 3.0, 2.0, 6.0]]), 2)
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    # Split by groups until the end: what is folded and what is stored has the same rows, and is one kernel.
    shape = len(x), num_groups, x.shape[1] // num_groups, *x.shape[2:]
    channels = num_groups, x.shape[1] // num_groups, *[1] * (x.dim() - 2)
    scale, shift = (None if p is None else p.view(channels) for p in (weight, bias))
    made = _scaled(_standardised(x.reshape(shape), list(range(2, len(shape))), eps), scale, shift, x.dtype)
    made = apply_activation(made if residual is None else made + residual.reshape(shape), activation)
    return made.reshape(x.shape)


def _batch_examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for shape in [(8, 64, 56, 56), (32, 128), (3, 5, 7, 2)]:
        x, weight, bias = (torch.randn(s, device=device) for s in [shape, (shape[1],), (shape[1],)])
        made += [(x, weight, bias, 1e-5, None, None), (x, weight, bias, 1e-5, torch.randn_like(x), "relu")]
    return made


def _check_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    _check_channels("batch_norm", x, activation, residual, weight=weight, bias=bias)
    _check_parameters("batch_norm", x, weight=weight, bias=bias)
    if x.numel() // max(x.shape[1], 1) == 1:
        raise InputValueError(
            "a batch normalisation trains on more than 1 value per channel",
            where="burnt.kernels.batch_norm",
            expected="a batch of at least 2, or more than one pixel",
            found=tuple(x.shape),
            hint="drop the last small batch, or call eval()",
        )


def _library_training(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = weight.dtype if weight is not None else x.dtype
    mean = torch.zeros(x.shape[1], dtype=dtype, device=x.device)
    var = torch.zeros_like(mean)
    # With a momentum of 1 the running averages are the batch's statistics.
    made = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=eps)
    return apply_activation(made if residual is None else made + residual, activation), mean, var


def _is_plain(x: Tensor, *args: object) -> bool:
    """Neither residual nor activation: generated, 0.7 to 1.0 times as fast by kept averages.

    In 16 bits by vectors of 256 bits 0.8 to 0.9 times, whatever is added.
    """
    *_, residual, activation = args
    return (residual is None and activation is None) or is_slow_to_widen(x)


def _is_plain_and_innermost(x: Tensor, *args: object) -> bool:
    """Channels are next to each other, and nothing is added: with gradients 0.6 to 0.8 times as fast.

    Elsewhere 1.0 to 1.7 times, and with an activation 1.0 to 2.0, but for 0.85 to 0.96 of matrices, and 0.6
    to 0.9 in float16 and, by vectors of 256 bits, in bfloat16.
    """
    if x.dtype == torch.float16 or is_slow_to_widen(x):
        return True
    *_, residual, activation = args
    innermost = x.dim() > 1 and x.stride(1) == 1
    return (
        innermost and residual is None and (activation is None or (x.dim() == 2 and wants_gradient(x, *args)))
    )


@op(
    check=_check_training,
    library=_library_training,
    examples=_batch_examples,
    library_best=_is_plain_and_innermost,
)
def batch_norm_training(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation by the batch's own statistics, of which `batch_norm` keeps averages.

    Args:
        x: ``[batch, channels, *]``, of a floating-point dtype.
        weight: ``[channels]``.
        bias: ``[channels]``.
        eps: added to the variance (biased).
        residual: as `x`; added to the normalised values, before the activation.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        the normalised values as `x`; the mean and the unbiased variance, ``[channels]``, which have no
        gradients.

    Raises:
        InputRuntimeError: shapes or devices do not fit each other.
        InputValueError: one value for each channel, or an activation that is not known.

    >>> batch_norm_training(torch.tensor([[1.0], [3.0]]))
    (tensor([[-1.0000],
            [ 1.0000]]), tensor([2.]), tensor([2.]))
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    made = (wide - mean) * torch.rsqrt(var + eps)
    made = _scaled(made, _by_channel(weight, x), _by_channel(bias, x), x.dtype)
    count = x.numel() // max(x.shape[1], 1)
    dtype = weight.dtype if weight is not None else x.dtype
    kept_mean, kept_var = mean.detach().view(-1), var.detach().view(-1) * (count / max(count - 1, 1))
    return (
        apply_activation(made if residual is None else made + residual, activation),
        kept_mean.to(dtype),
        kept_var.to(dtype),
    )


def _check_inference(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    _check_channels("batch_norm", x, activation, residual, **given)
    _check_parameters("batch_norm", x, **given)


def _inference_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [
        (x, torch.randn_like(w), torch.rand_like(w) + 0.5, w, b, eps, residual, activation)  # type: ignore[call-overload]
        for x, w, b, eps, residual, activation in _batch_examples(device)
    ]


def _library_inference(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    mean, var = running_mean.detach(), running_var.detach()
    made = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
    return apply_activation(made if residual is None else made + residual, activation)


@op(
    check=_check_inference,
    library=_library_inference,
    examples=_inference_examples,
    library_best=_is_plain,
)
def batch_norm_inference(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Batch normalisation by averages that were kept while training.

    Args:
        x: ``[batch, channels, *]``, of a floating-point dtype.
        running_mean: ``[channels]``.
        running_var: ``[channels]``.
        weight: ``[channels]``.
        bias: ``[channels]``.
        eps: added to the variance.
        residual: as `x`; added to the normalised values, before the activation.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        as `x`.

    Raises:
        InputRuntimeError: shapes or devices do not fit each other.
        InputValueError: an activation that is not known.

    >>> batch_norm_inference(torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.ones(1))
    tensor([[0.0000],
            [2.0000]])
    """
    inside = torch.promote_types(x.dtype, torch.float32)
    mean = running_mean.detach().to(inside).view(1, -1, *[1] * (x.dim() - 2))
    var = running_var.detach().to(inside).view(1, -1, *[1] * (x.dim() - 2))
    made = (x.to(inside) - mean) * torch.rsqrt(var + eps)
    made = _scaled(made, _by_channel(weight, x), _by_channel(bias, x), x.dtype)
    return apply_activation(made if residual is None else made + residual, activation)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    r"""Normalises each channel over the batch and all other axes, of any rank.

    Args:
        x: ``[batch, channels, *]``, of a floating-point dtype.
        running_mean: ``[channels]``, updated in place while training; None keeps no average.
        running_var: ``[channels]``, of the unbiased variance, likewise.
        weight: ``[channels]``.
        bias: ``[channels]``.
        training: normalise by the batch's own statistics (`batch_norm_training`), and not by the running ones
            (`batch_norm_inference`).
        momentum: weight of the new batch in the running averages.
        eps: added to the variance.
        residual: as `x`; added to the normalised values, before the activation.
        activation: what the result goes through: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        as `x`.

    Raises:
        InputRuntimeError: shapes or devices do not fit each other, or there are no averages to use.
        InputValueError: training with one value for each channel, or an activation that is not known.

    As `torch.nn.functional.batch_norm`. Ioffe and Szegedy, 2015.

    >>> mean, var = torch.zeros(1), torch.ones(1)
    >>> batch_norm(torch.tensor([[1.0], [3.0]]), mean, var, training=True), mean, var
    (tensor([[-1.0000],
            [ 1.0000]]), tensor([0.2000]), tensor([1.1000]))
    """
    if not training:
        if running_mean is None or running_var is None:
            raise InputRuntimeError(
                "a batch normalisation that does not train needs running averages",
                where="burnt.kernels.batch_norm",
                expected="running_mean and running_var",
                found=None,
                hint="training=True normalises by the batch",
            )
        return batch_norm_inference(x, running_mean, running_var, weight, bias, eps, residual, activation)
    made, mean, var = batch_norm_training(x, weight, bias, eps, residual, activation)
    if x.numel() == 0:
        return made  # there is nothing to average
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_(var.to(running_var.dtype), momentum)
    return made
