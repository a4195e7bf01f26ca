"""Normalization ops, each with an optional residual and activation fused into the kernel.

`layer_norm` and `rms_norm` add the residual to their input and return the sum as well, as in pre-norm
transformers. `group_norm` and `batch_norm` add it to the normalized values, before the activation, as in the
residual blocks of convolutional networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, check_shape
from burnt.kernels.ops.activation import apply_activation, check_activation


def _standardize(x: Tensor, axes: list[int], eps: float) -> Tensor:
    """Subtract the mean over the axes and divide by the standard deviation, in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    return (wide - mean) * torch.rsqrt(var + eps)


def _scale_and_shift(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply by the weight and add the bias, both broadcast to `x`; convert the result to `dtype`."""
    if weight is not None:
        x = x * weight.to(x.dtype)
    if bias is not None:
        x = x + bias.to(x.dtype)
    return x.to(dtype)


def _by_channel(parameter: Any, x: Tensor) -> Any:
    """View ``[channels]`` so that it broadcasts to ``[batch, channels, *]``; None stays None."""
    return None if parameter is None else parameter.view(1, -1, *[1] * (x.dim() - 2))


# --- layer_norm, rms_norm ---------------------------------------------------------------------------------


def _check_last_axis_norm(
    name: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
) -> None:
    residual, activation = rest
    check_activation(name, activation)
    check_floating(name, x=x)
    check_one_device(name, x=x, weight=weight, bias=bias, residual=residual)
    if not _torch.is_autocast():
        check_one_dtype(name, x=x, residual=residual)
        _check_parameters(name, x, weight=weight, bias=bias)
    for parameter_name, tensor in ("weight", weight), ("bias", bias):
        if tensor is not None and (
            tensor.dim() == 0 or tensor.dim() > x.dim() or x.shape[-tensor.dim() :] != tensor.shape
        ):
            raise InputRuntimeError(
                f"the {parameter_name} of {name} does not match the last axes of x",
                where=f"burnt.kernels.{name}",
                expected=f"{parameter_name} of shape {tuple(x.shape[-max(tensor.dim(), 1) :])}",
                found=tuple(tensor.shape),
                hint=f"the preceding layer returns {x.shape[-1] if x.dim() else 'no'} features",
            )
    if weight is not None:
        check_shape(name, "bias", bias, weight.shape)
    if x.dim() == 0:
        raise InputRuntimeError(
            f"{name} normalizes the last axes, but x has none", where=f"burnt.kernels.{name}", found="[]"
        )
    check_shape(name, "residual", residual, x.shape)


def _check_parameters(name: str, x: Tensor, **parameters: Tensor | None) -> None:
    """Check that the parameters have one dtype: the dtype of `x`, or float32 if `x` has 16 bits."""
    dtypes = {parameter_name: p.dtype for parameter_name, p in parameters.items() if p is not None}
    allowed = [x.dtype, torch.float32] if x.dtype.itemsize == 2 else [x.dtype]
    first = next(iter(dtypes.values()), x.dtype)
    for parameter_name, dtype in dtypes.items():
        if dtype not in allowed or dtype != first:
            raise InputRuntimeError(
                f"the arguments of {name} have different dtypes",
                where=f"burnt.kernels.{name}",
                expected=f"{parameter_name} of {first if first in allowed else x.dtype}, for x of {x.dtype}",
                found=f"{parameter_name} of {dtype}",
                hint=f"{parameter_name}.to({first if first in allowed else x.dtype})",
            )


def _has_wider_parameters(x: Tensor, *parameters: Tensor | None) -> bool:
    """Whether a parameter has another dtype than `x`: float32 parameters of a 16-bit `x`."""
    return any(p is not None and p.dtype != x.dtype for p in parameters)


def _normalized_shape(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[int, ...]:
    if weight is not None:
        return tuple(weight.shape)
    return tuple(bias.shape) if bias is not None else tuple(x.shape[-1:])


def _examples(
    shapes: Sequence[tuple[int, ...]], activation: str | None
) -> Callable[[torch.device], list[tuple[object, ...]]]:
    """Return examples of an input, weight and bias: alone, and with a residual and an activation."""

    def examples(device: torch.device) -> list[tuple[object, ...]]:
        cases: list[tuple[object, ...]] = []
        for shape in shapes:
            x, weight, bias = (torch.randn(s, device=device) for s in (shape, shape[1], shape[1]))
            cases += [(x, weight, bias, 1e-5, None, None), (x, weight, bias, 1e-5, x.cos(), activation)]
        return cases

    return examples


_layer_norm_examples = _examples([(4096, 1024), (512, 768), (37, 53)], None)
_batch_norm_examples = _examples([(8, 64, 56, 56), (32, 128), (3, 5, 7, 2)], "relu")


def _torch_layer_norm(*args: Any) -> Tensor | tuple[Tensor, Tensor]:
    x, weight, bias, eps, residual, activation = args
    if _has_wider_parameters(x, weight, bias) and (not x.is_cpu or weight is None):  # torch rejects these
        return layer_norm.reference(*args)
    total = x if residual is None else x + residual
    output = F.layer_norm(total, _normalized_shape(x, weight, bias), weight, bias, eps)
    output = apply_activation(output, activation)
    return output if residual is None else (output, total)


@op(
    check=lambda x, weight, bias, eps, *rest: _check_last_axis_norm("layer_norm", x, weight, bias, *rest),
    library=_torch_layer_norm,
    pair="residual",
    examples=_layer_norm_examples,
    features=lambda x, weight, bias, *_: {"wider parameters": _has_wider_parameters(x, weight, bias)},
)
def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Apply layer normalization over the last axes, optionally after adding a residual.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    Args:
        x: ``[*, *d]``, floating-point.
        weight: ``[*d]``, the shape of the last axes of `x`, which are normalized; without weight and bias
            the last axis is. In the dtype of `x`, or float32 if `x` has 16 bits.
        bias: ``[*d]``, in the dtype of `weight`.
        eps: added to the (biased) variance.
        residual: ``[*, *d]``, added to `x` first; the sum is returned too.
        activation: activation applied to the result, a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        ``[*, *d]`` in the dtype of `x`, or the pair ``(normalized, sum)`` if a residual is passed.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not match.
        InputValueError: `activation` is not a key of `burnt.kernels.ACTIVATIONS`.

    Like `torch.nn.functional.layer_norm`, which takes the normalized shape as an argument. Statistics are
    accumulated in float32. Ba, Kiros and Hinton, 2016.

    >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247])
    """
    total = x if residual is None else x + residual
    axes = list(range(-len(_normalized_shape(x, weight, bias)), 0))
    output = _scale_and_shift(_standardize(total, axes, eps), weight, bias, x.dtype)
    output = apply_activation(output, activation)
    return output if residual is None else (output, total)


def _rms_norm_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(x, w, 1e-6, residual, None) for x, w, _, _, residual, _ in _layer_norm_examples(device)]


def _torch_rms_norm(*args: Any) -> Tensor | tuple[Tensor, Tensor]:
    x, weight, eps, residual, activation = args
    if _has_wider_parameters(x, weight):  # torch warns that it has no fused kernel for this
        return rms_norm.reference(*args)
    total = x if residual is None else x + residual
    output = apply_activation(F.rms_norm(total, _normalized_shape(x, weight, None), weight, eps), activation)
    return output if residual is None else (output, total)


@op(
    check=lambda x, weight, eps, *rest: _check_last_axis_norm("rms_norm", x, weight, None, *rest),
    library=_torch_rms_norm,
    pair="residual",
    examples=_rms_norm_examples,
)
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Apply root-mean-square normalization over the last axes, optionally after adding a residual.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{d} \sum_i x_i^2 + \epsilon}} \, w

    `eps` is added to the mean square; None is the machine epsilon that torch uses for the dtype of `x`. The
    other arguments, result and errors are those of `layer_norm`.

    Like `torch.nn.functional.rms_norm`, which takes the normalized shape as an argument. Statistics are
    accumulated in float32. Zhang and Sennrich, 2019.

    >>> rms_norm(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314])
    """
    total = x if residual is None else x + residual
    axes = list(range(-len(_normalized_shape(x, weight, None)), 0))
    wide = total.to(torch.promote_types(x.dtype, torch.float32))
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    output = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + eps)
    output = apply_activation(_scale_and_shift(output, weight, None, x.dtype), activation)
    return output if residual is None else (output, total)


# --- group_norm, batch_norm -------------------------------------------------------------------------------


def _finish(output: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    return apply_activation(output if residual is None else output + residual, activation)


def _check_channel_norm(
    name: str, x: Tensor, activation: str | None, residual: Tensor | None, **others: Tensor | None
) -> None:
    check_activation(name, activation)
    check_floating(name, x=x)
    check_one_device(name, x=x, residual=residual, **others)
    check_shape(name, "residual", residual, x.shape)
    if x.dim() < 2:
        raise InputRuntimeError(
            f"{name} needs a batch axis and a channel axis",
            where=f"burnt.kernels.{name}",
            expected="[batch, channels, *]",
            found=tuple(x.shape),
            hint="add a batch axis: x.unsqueeze(0)",
        )
    for parameter_name, tensor in others.items():
        if tensor is not None and tuple(tensor.shape) != (x.shape[1],):
            raise InputRuntimeError(
                f"the {parameter_name} of {name} does not match the channels of x",
                where=f"burnt.kernels.{name}",
                expected=f"[{x.shape[1]}], for x of shape {tuple(x.shape)}",
                found=tuple(tensor.shape),
                hint="channels are the second axis; use x.movedim(-1, 1) if they are last",
            )


def _check_group_norm(*args: Any) -> None:
    x, num_groups, weight, bias, _, residual, activation = args
    _check_channel_norm("group_norm", x, activation, residual, weight=weight, bias=bias)
    if not _torch.is_autocast():
        check_one_dtype("group_norm", x=x, residual=residual)
        _check_parameters("group_norm", x, weight=weight, bias=bias)
    if num_groups < 1 or x.shape[1] % num_groups:
        raise InputRuntimeError(
            "the channels of group_norm cannot be split into equal groups",
            where="burnt.kernels.group_norm",
            expected=f"num_groups that divides {x.shape[1]} channels",
            found=f"{num_groups} groups",
        )


def _group_norm_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples = _examples([(8, 64, 56, 56), (4, 320, 32, 32), (3, 6, 7, 5)], "silu")(device)
    return [(x, groups, *rest) for (x, *rest), groups in zip(examples, [32, 32, 32, 32, 3, 3], strict=True)]


def _torch_group_norm(*args: Any) -> Tensor:
    x, num_groups, weight, bias, eps, residual, activation = args
    if _has_wider_parameters(x, weight, bias) and (not x.is_cpu or weight is None):  # torch rejects these
        return group_norm.reference(*args)
    return _finish(F.group_norm(x, num_groups, weight, bias, eps), residual, activation)


@op(check=_check_group_norm, library=_torch_group_norm, examples=_group_norm_examples)
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Apply group normalization: normalize each group of channels of each sample.

    Args:
        x: ``[batch, channels, *]``, floating-point.
        num_groups: number of groups; it divides the number of channels.
        weight: ``[channels]``, in the dtype of `x`, or float32 if `x` has 16 bits.
        bias: ``[channels]``, in the dtype of `weight`.
        eps, residual, activation: the same arguments as in `batch_norm`.

    Returns:
        A tensor of the shape and dtype of `x`.

    Like `torch.nn.functional.group_norm`. Wu and He, 2018.

    >>> group_norm(torch.tensor([[1.0, 3.0, 2.0, 6.0]]), 2)
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    # Keep the grouped shape until the end: reduction and output then have the same rows and share one kernel.
    shape = len(x), num_groups, x.shape[1] // num_groups, *x.shape[2:]
    channels = num_groups, x.shape[1] // num_groups, *[1] * (x.dim() - 2)
    scale, shift = (None if p is None else p.view(channels) for p in (weight, bias))
    output = _scale_and_shift(
        _standardize(x.reshape(shape), list(range(2, len(shape))), eps), scale, shift, x.dtype
    )
    output = _finish(output, None if residual is None else residual.reshape(shape), activation)
    return output.reshape(x.shape)


def _check_batch_norm_training(*args: Any) -> None:
    x, weight, bias, _, residual, activation = args
    _check_channel_norm("batch_norm", x, activation, residual, weight=weight, bias=bias)
    _check_parameters("batch_norm", x, weight=weight, bias=bias)
    if x.numel() // max(x.shape[1], 1) == 1:
        raise InputValueError(
            "batch_norm in training needs more than 1 value per channel",
            where="burnt.kernels.batch_norm",
            expected="a batch of at least 2, or more than one pixel",
            found=tuple(x.shape),
            hint="drop the last small batch, or call eval()",
        )


def _torch_batch_norm_training(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias, eps, residual, activation = args
    dtype = weight.dtype if weight is not None else x.dtype
    mean = torch.zeros(x.shape[1], dtype=dtype, device=x.device)
    var = torch.zeros_like(mean)
    # With a momentum of 1 torch's running averages become the batch's statistics.
    output = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=eps)
    return _finish(output, residual, activation), mean, var


@op(
    check=_check_batch_norm_training,
    library=_torch_batch_norm_training,
    examples=_batch_norm_examples,
    features=lambda x, *_: {"channels last": x.dim() > 1 and x.stride(1) == 1, "axes": x.dim()},
)
def batch_norm_training(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply batch normalization with the batch's own statistics, and return these too.

    `batch_norm` updates its running averages with them; arguments and errors are as in `batch_norm`.

    Returns:
        The normalized values in the shape and dtype of `x`, and the mean and unbiased variance,
        ``[channels]``, without gradients.

    >>> batch_norm_training(torch.tensor([[1.0], [3.0]]))
    (tensor([[-1.0000],
            [ 1.0000]]), tensor([2.]), tensor([2.]))
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    output = (wide - mean) * torch.rsqrt(var + eps)
    output = _scale_and_shift(output, _by_channel(weight, x), _by_channel(bias, x), x.dtype)
    count = x.numel() // max(x.shape[1], 1)
    dtype = weight.dtype if weight is not None else x.dtype
    batch_mean, batch_var = mean.detach().view(-1), var.detach().view(-1) * (count / max(count - 1, 1))
    return _finish(output, residual, activation), batch_mean.to(dtype), batch_var.to(dtype)


def _check_batch_norm_inference(*args: Any) -> None:
    x, running_mean, running_var, weight, bias, _, residual, activation = args
    tensors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    _check_channel_norm("batch_norm", x, activation, residual, **tensors)
    _check_parameters("batch_norm", x, **tensors)


def _batch_norm_inference_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [
        (x, torch.randn_like(w), torch.rand_like(w) + 0.5, w, b, eps, residual, activation)  # type: ignore[call-overload]
        for x, w, b, eps, residual, activation in _batch_norm_examples(device)
    ]


def _torch_batch_norm_inference(*args: Any) -> Tensor:
    x, running_mean, running_var, weight, bias, eps, residual, activation = args
    mean, var = running_mean.detach(), running_var.detach()
    output = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
    return _finish(output, residual, activation)


@op(
    check=_check_batch_norm_inference,
    library=_torch_batch_norm_inference,
    examples=_batch_norm_inference_examples,
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
    """Apply batch normalization with the running averages of training.

    Arguments, result and errors are as in `batch_norm`, which calls it outside of training.

    >>> batch_norm_inference(torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.ones(1))
    tensor([[0.0000],
            [2.0000]])
    """
    compute_dtype = torch.promote_types(x.dtype, torch.float32)
    mean, var = (t.detach().to(compute_dtype) for t in (running_mean, running_var))
    output = x.to(compute_dtype) - _by_channel(mean, x)
    output = output * torch.rsqrt(_by_channel(var, x) + eps)
    output = _scale_and_shift(output, _by_channel(weight, x), _by_channel(bias, x), x.dtype)
    return _finish(output, residual, activation)


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
    r"""Apply batch normalization: normalize each channel over the batch and all other axes, of any number.

    Args:
        x: ``[batch, channels, *]``, floating-point.
        running_mean: ``[channels]``, updated in place in training; None keeps no running average.
        running_var: ``[channels]``, average of the unbiased variance; updated likewise.
        weight: ``[channels]``, factor of the normalized values.
        bias: ``[channels]``, added after the weight.
        training: normalize with the batch's own statistics (`batch_norm_training`) instead of the running
            averages (`batch_norm_inference`).
        momentum: weight of the new batch in the running averages.
        eps: added to the (biased) variance.
        residual: shape and dtype of `x`; added to the normalized values, before the activation.
        activation: activation applied to the result, a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        InputRuntimeError: shapes or devices do not match, or the running averages are missing outside of
            training.
        InputValueError: training with only one value per channel, or `activation` is not a key of
            `burnt.kernels.ACTIVATIONS`.

    Like `torch.nn.functional.batch_norm`. Ioffe and Szegedy, 2015.

    >>> mean, var = torch.zeros(1), torch.ones(1)
    >>> batch_norm(torch.tensor([[1.0], [3.0]]), mean, var, training=True), mean, var
    (tensor([[-1.0000],
            [ 1.0000]]), tensor([0.2000]), tensor([1.1000]))
    """
    if not training:
        if running_mean is None or running_var is None:
            raise InputRuntimeError(
                "batch_norm outside of training needs running averages",
                where="burnt.kernels.batch_norm",
                expected="running_mean and running_var",
                found=None,
                hint="training=True uses the batch's own statistics",
            )
        return batch_norm_inference(x, running_mean, running_var, weight, bias, eps, residual, activation)
    output, mean, var = batch_norm_training(x, weight, bias, eps, residual, activation)
    if x.numel() == 0:
        return output  # an empty batch has no statistics
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_(var.to(running_var.dtype), momentum)
    return output
