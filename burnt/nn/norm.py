"""Normalisations of channels or of the last axes, and `build_normalization`, which finds them by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch, kernels
from burnt._torch import BatchNormBase, InstanceNormBase
from burnt.config import Config, suggest_value
from burnt.errors import ConfigError, InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.shape import Identity


class BatchNorm(Module, BatchNormBase):
    r"""Normalises each channel over the batch and all other axes, of any rank.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    While training, :math:`\mu` and :math:`\sigma^2` (biased) are the batch's, and running averages are kept
    (of the unbiased variance); in evaluation those are used.

    Args:
        num_features: number of channels.
        eps: added to the variance.
        momentum: weight of the new batch in the running averages; None weights all batches equally.
        affine: whether there are ``weight`` and ``bias``.
        track_running_stats: whether there are running averages; else the batch's statistics always serve.
        bias: whether there is a ``bias`` next to the ``weight``.

    Shapes:
        input ``[batch, num_features, *]``, output the same; ``weight``, ``bias``, ``running_mean``,
        ``running_var`` are ``[num_features]``, ``num_batches_tracked`` ``[]``.

    Raises:
        ShapeError: fewer than two axes, or another number of channels.
        ValueError: training with a single value for each channel.

    One class for BatchNorm1d, 2d and 3d of torch, whose state loads unchanged. With ``momentum=None`` nothing
    waits for the device, where torch reads the count of batches. (Burn names the parameters gamma and beta.)
    For the statistics of a batch that is spread over GPUs, `SyncBatchNorm` replaces these layers.

    Ioffe and Szegedy, 2015.

    >>> BatchNorm(3)(torch.randn(4, 3, 8, 8)).shape
    torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:  # torch has the argument from 2.13 on
            self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` ``[batch, num_features, *]``."""
        if self.momentum is not None or not (self.training and self.track_running_stats):
            return batch_norm(self, input)
        self._check_input_dim(input)
        mean, var, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None
        assert var is not None
        assert batches is not None
        batches.add_(1)
        # With a momentum of 1 these are the batch's statistics.
        batch_mean, batch_var = torch.empty_like(mean).zero_(), torch.empty_like(var).zero_()
        output = F.batch_norm(
            input, batch_mean, batch_var, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        share = batches.to(mean.dtype).reciprocal()
        mean.lerp_(batch_mean, share)
        var.lerp_(batch_var, share)
        return output

    def _check_input_dim(self, input: Tensor) -> None:
        _check_channels("BatchNorm({})", input, self.num_features, 2)


def batch_norm(layer: Any, input: Tensor) -> Tensor:
    """Compute the forward of a batch norm, burnt's or torch's; in training it has a momentum."""
    layer._check_input_dim(input)
    # In evaluation, the running averages are used and not updated; without them, the batch's statistics.
    by_batch = layer.training or layer.running_mean is None
    keeps = not layer.training or layer.track_running_stats
    normalise = F.batch_norm if _torch.is_recorded() else kernels.batch_norm
    output = normalise(
        input,
        layer.running_mean if keeps else None,
        layer.running_var if keeps else None,
        layer.weight,
        layer.bias,
        by_batch,
        0.0 if layer.momentum is None else layer.momentum,
        layer.eps,
    )
    if layer.training and layer.track_running_stats and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    return output


def _check_channels(layer: str, input: Tensor, channels: int, least: int) -> None:
    """Check the axes and channels of an input; `layer` is a text, with braces for the number of channels."""
    if input.dim() < least or input.shape[1] != channels:
        raise ShapeError(
            "the input does not fit a normalisation",
            where=layer.format(channels),
            expected=f"(batch, {channels}, {'axis, ' * (least - 2)}...)",
            found=tuple(input.shape),
            hint=_channels_hint(layer, tuple(input.shape), channels, least),
        )


def _channels_hint(layer: str, shape: tuple[int, ...], channels: int, least: int) -> str:
    if len(shape) < 2 or (len(shape) < least and shape[0] == channels):
        return "add a batch axis: input.unsqueeze(0)"
    if len(shape) < least:
        return "BatchNorm takes features without further axes"
    if shape[-1] == channels:
        return "the channels are last: input.movedim(-1, 1)"
    if shape[0] == channels:
        return "the channels are first: add a batch axis with input.unsqueeze(0)"
    return f"the layer before makes {shape[1]} channels: {layer.format(shape[1])}?"


class GroupNorm(Module, torch.nn.GroupNorm):
    r"""Normalises groups of channels, each sample by itself.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    Args:
        num_groups: number of groups, a divisor of `num_channels`; as many as channels is an `InstanceNorm`.
        num_channels: number of channels.
        eps: added to the variance (biased).
        affine: whether there are ``weight`` and ``bias``, one number for each channel.
        bias: whether there is a ``bias`` next to the ``weight``.

    Shapes:
        input ``[batch, num_channels, *]``, output the same; ``weight`` and ``bias`` are ``[num_channels]``.

    Raises:
        InputValueError: `num_channels` cannot be split into `num_groups`.
        ShapeError: fewer than two axes, or another number of channels.

    As :class:`torch.nn.GroupNorm` (Burn names the parameters gamma and beta). Wu and He, 2018.

    >>> GroupNorm(2, 4)(torch.tensor([[1.0, 3.0, 2.0, 6.0]]))
    tensor([[-1.0000,  1.0000, -1.0000,  1.0000]], grad_fn=<NativeGroupNormBackward0>)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        is_divisor = num_groups >= 1 and num_channels % num_groups == 0
        require(is_divisor, "GroupNorm", "num_groups", f"a divisor of {num_channels} channels", num_groups)
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[batch, num_channels, *]``, normalised."""
        _check_channels(f"GroupNorm({self.num_groups}, {{}})", input, self.num_channels, 2)
        return kernels.group_norm.in_layer(input, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(Module, InstanceNormBase):
    r"""Normalises each channel of each sample over its other axes, of any rank.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    Args:
        track_running_stats: whether running averages of the samples' statistics are kept in training, and
            used in evaluation; else the sample's own always serve.

    Other arguments are as in `BatchNorm`; by default there is no ``weight`` and no ``bias`` (Burn: both).

    Shapes:
        input ``[batch, num_features, *axes]`` with at least one axis, output the same. A sample without batch
        axis is not accepted, since the rank is free. ``weight``, ``bias``, ``running_mean``, ``running_var``
        are ``[num_features]``, ``num_batches_tracked`` ``[]``.

    Raises:
        ShapeError: fewer than three axes, or another number of channels.
        ValueError: a single value for each channel of a sample.

    One class for InstanceNorm1d, 2d and 3d of torch, whose state loads unchanged. (Burn has no running
    averages.) Ulyanov, Vedaldi and Lempitsky, 2016.

    >>> InstanceNorm(1)(torch.tensor([[[1.0, 3.0]], [[2.0, 6.0]]])).flatten()
    tensor([-1.0000,  1.0000, -1.0000,  1.0000])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:
            self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` ``[batch, num_features, *axes]``."""
        _check_channels("InstanceNorm({})", input, self.num_features, 3)
        mean, var = self.running_mean, self.running_var
        by_sample = self.training or not self.track_running_stats
        if _torch.is_recorded() or (by_sample and mean is not None):
            return F.instance_norm(
                input, mean, var, self.weight, self.bias, by_sample, self.momentum or 0.0, self.eps
            )
        if not by_sample:
            return kernels.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        if input.shape[2:].numel() == 1:
            raise InputValueError(
                "a single value for each channel of a sample has no variance",
                where=f"InstanceNorm({self.num_features})",
                expected="more than 1 value",
                found=tuple(input.shape),
            )
        return kernels.group_norm(input, self.num_features, self.weight, self.bias, self.eps)


class LocalResponseNorm(Module, torch.nn.LocalResponseNorm):
    r"""Divides by a norm over neighbouring channels.

    .. math:: y_c = x_c \left(k + \frac{\alpha}{n} \sum_{i = c - n / 2}^{c + n / 2} x_i^2\right)^{-\beta}

    Args:
        size: number :math:`n` of channels in a sum.
        alpha: factor of the mean square.
        beta: exponent of the divisor.
        k: added to the mean square.

    Shapes:
        input ``[batch, channels, *axes]`` with at least one axis, output the same.

    Raises:
        InputValueError: `size` is below 1.

    As :class:`torch.nn.LocalResponseNorm`, and with the defaults of Burn. Krizhevsky et al., 2012, where the
    sum is not divided by :math:`n`.

    >>> LocalResponseNorm(1, alpha=1.0)(torch.full((1, 1, 1), 2.0))
    tensor([[[0.5981]]])
    """

    size: int
    alpha: float
    beta: float
    k: float

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        require(size >= 1, "LocalResponseNorm", "size", "at least 1 channel in a sum", size)
        super().__init__(size, alpha, beta, k)


class LayerNorm(Module, torch.nn.LayerNorm):
    r"""Normalises over the last axes, each sample by itself.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \, w + b

    Args:
        normalized_shape: sizes of the last axes that are normalised together.
        eps: added to the variance (biased).
        elementwise_affine: whether there is a ``weight``, and with `bias` a ``bias``.
        bias: whether there is a ``bias``.

    Shapes:
        input ``[*, *normalized_shape]``, output the same; ``weight`` and ``bias`` are `normalized_shape`.

    As :class:`torch.nn.LayerNorm` (Burn normalises the last axis only). Ba, Kiros and Hinton, 2016.

    >>> LayerNorm(3)(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247], grad_fn=<NativeLayerNormBackward0>)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        # torch's annotation allows only lists, torch.Size and int.
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, *normalized_shape]``, normalised."""
        if not _op_knows_axes(self, input):
            return F.layer_norm(input, self.normalized_shape, None, None, self.eps)
        return kernels.layer_norm.in_layer(input, self.weight, self.bias, self.eps)  # type: ignore[return-value]


class RmsNorm(Module, torch.nn.RMSNorm):
    r"""Divides by the root of the mean square over the last axes.

    .. math:: y = \frac{x}{\sqrt{\frac{1}{d} \sum_i x_i^2 + \epsilon}} \, w

    Args:
        normalized_shape: sizes of the last axes that are normalised together.
        eps: added to the mean square; None is the machine epsilon of the input's dtype, as in
            torch (Burn: 1e-5).
        elementwise_affine: whether there is a ``weight``.

    Shapes:
        input ``[*, *normalized_shape]``, output the same; ``weight`` is `normalized_shape`.

    As :class:`torch.nn.RMSNorm`. Zhang and Sennrich, 2019.

    >>> RmsNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*, *normalized_shape]``, normalised."""
        if not _op_knows_axes(self, input):
            return F.rms_norm(input, self.normalized_shape, None, self.eps)
        return kernels.rms_norm.in_layer(input, self.weight, self.eps)  # type: ignore[return-value]


def _op_knows_axes(layer: LayerNorm | RmsNorm, input: Tensor) -> bool:
    """Whether an op normalises the axes that a layer does: its weight's axes, without one the last axis."""
    return layer.elementwise_affine or input.shape[-1:] == tuple(layer.normalized_shape)


class SyncBatchNorm(Module, torch.nn.SyncBatchNorm):
    """A `BatchNorm` whose statistics cover all processes of a distributed training.

    Args:
        process_group: the processes, None for all. A Config leaves it out.

    Other arguments, shapes, parameters and buffers are as in `BatchNorm`.

    Raises:
        ValueError: fewer than two axes.
        InputValueError: in training, a single value for each channel.

    As :class:`torch.nn.SyncBatchNorm`, but on the CPU too; without a distributed training, a BatchNorm. Its
    ``convert_sync_batchnorm(model)`` replaces every BatchNorm of a model, also burnt's; parameters, averages
    and their names stay.

    >>> SyncBatchNorm(3)(torch.randn(4, 3, 8, 8)).shape
    torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: torch.distributed.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, process_group, device, dtype
        )
        if not bias:
            self.register_parameter("bias", None)

    counts: ClassVar[bool] = True
    """Whether the input counts; a training in several processes sets it where one of them has no items."""
    all_count: ClassVar[bool] = True
    """Whether it counts in all processes, which run the same code: torch's only then."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input` ``[batch, num_features, *]``."""
        has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not (self.training and has_group) or (input.is_cuda and SyncBatchNorm.all_count):
            return super().forward(input) if self.training and has_group else batch_norm(self, input)
        _check_channels("SyncBatchNorm({})", input, self.num_features, 2)
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        axes, shape = [0, *range(2, input.dim())], (1, -1, *(1,) * (input.dim() - 2))
        weight, items = float(SyncBatchNorm.counts), input.numel() // self.num_features
        group = self.process_group
        sums: Tensor = torch.cat([wide.sum(axes) * weight, wide.new_full((1,), items * weight)])
        sums = _SumOverProcesses.apply(sums, group)  # type: ignore[no-untyped-call]
        count = sums[-1].detach()
        if not count.is_meta and count <= 1:
            raise InputValueError(
                "a single value for each channel over all processes has no variance",
                where=f"SyncBatchNorm({self.num_features})",
                expected="more than 1 value",
                found=tuple(input.shape),
                hint="drop the last small batch, or call eval()",
            )
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        squares: Tensor = _SumOverProcesses.apply(  # type: ignore[no-untyped-call]
            centred.square().sum(axes) * weight, group
        )
        var = squares / count
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:
                share = 1 / float(self.num_batches_tracked)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                unbiased = var * (count / (count - 1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        output: Tensor = centred * (var + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)


class _SumOverProcesses(torch.autograd.Function):
    """The sum over all processes, with its gradient: the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: torch.distributed.ProcessGroup | None) -> Tensor:
        """Return the sum of the processes' values."""
        ctx.group = group
        total = values.clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the processes' gradients."""
        total = gradients[0].clone()
        torch.distributed.all_reduce(total, group=ctx.group)
        return total, None


# --- by name ----------------------------------------------------------------------------------------------

NormalizationName: TypeAlias = Literal["batch", "group", "identity", "instance", "layer", "rms"]

NormalizationConfig: TypeAlias = (
    NormalizationName
    | BatchNorm.Config
    | GroupNorm.Config
    | Identity.Config
    | InstanceNorm.Config
    | LayerNorm.Config
    | RmsNorm.Config
)
"""A normalisation in a Config or as an argument: its name, for the defaults, or its Config.

A Config writes its class as ``"type"``. `build_normalization` replaces its number of features:

>>> class NetConfig(Config):
...     norm: NormalizationConfig = "batch"
>>> config = NetConfig.from_json('{"norm": {"type": "GroupNorm", "num_groups": 4, "num_channels": 4}}')
>>> build_normalization(config.norm, 64)
GroupNorm(4, 64, eps=1e-05, affine=True, bias=True)
"""

_BY_NAME: dict[str, Config] = {
    "batch": BatchNorm.Config(num_features=1),
    "group": GroupNorm.Config(num_groups=1, num_channels=1),
    "identity": Identity.Config(),
    "instance": InstanceNorm.Config(num_features=1),
    "layer": LayerNorm.Config(normalized_shape=1),
    "rms": RmsNorm.Config(normalized_shape=1),
}
"""By name; the numbers of features and of groups are replaced."""

_BY_TAG = {str(config.__struct_config__.tag): config for config in _BY_NAME.values()}
_SIZES = {"num_features", "num_channels", "normalized_shape"}
"""What the layers call the number of features."""


def build_normalization(
    normalization: NormalizationConfig | Mapping[str, Any] | torch.nn.Module,
    num_features: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.nn.Module:
    """Build a normalisation from its name or Config, for a number of features.

    Args:
        normalization: ``"batch"``, ``"instance"`` or ``"group"``, which normalise channels on axis 1;
            ``"layer"`` or ``"rms"``, which normalise the last axis; or ``"identity"``. Or the Config of such
            a layer, or a dict of it; or a layer, which is returned as it is.
        num_features: number of channels, or size of the last axis; replaces a Config's.
        device: where new parameters live; a given layer's stay where they are.
        dtype: dtype of parameters.

    Raises:
        ConfigError: there is no such normalisation, or it has no such argument.
        InputValueError: the channels cannot be split into the groups.

    ``"group"`` has 32 groups, or the largest power of two below that divides the channels: 16 groups for 48
    channels, as many as channels for 8. (Burn's ``NormalizationConfig`` and ``with_num_features``.)

    >>> build_normalization("rms", 64)
    RmsNorm((64,), eps=None, elementwise_affine=True)
    >>> build_normalization({"type": "GroupNorm", "num_groups": 4}, 64)
    GroupNorm(4, 64, eps=1e-05, affine=True, bias=True)
    """
    if isinstance(normalization, torch.nn.Module):
        return normalization
    config: Any = normalization
    if isinstance(normalization, str):
        config = _BY_NAME.get(normalization)
    elif isinstance(normalization, Mapping):
        # The number of features may be missing, since it is replaced.
        known = _BY_TAG.get(normalization.get("type", ""))
        data = {**normalization, **({} if known is None else _size_of(known, num_features))}
        config = Normalization.from_dict({"normalization": data}).normalization
    if not isinstance(config, Config) or str(config.__struct_config__.tag) not in _BY_TAG:
        raise ConfigError(
            "there is no such normalisation",
            expected=f"{', '.join(_BY_NAME)}; or the Config of one, or a layer",
            found=repr(normalization),
            hint=suggest_value(normalization, _BY_NAME, _BY_TAG),
        )
    config = config.replace(**_size_of(config, num_features))
    if normalization == "group":
        config = config.replace(num_groups=math.gcd(32, num_features))
    layer: torch.nn.Module = config.init(device=device, dtype=dtype)
    return layer


def _size_of(config: Config, num_features: int) -> dict[str, int]:
    """Return the number of features by the name that a layer has for it; nothing if it has none."""
    return dict.fromkeys(_SIZES.intersection(config.__struct_fields__), num_features)


class Normalization(Config):
    """Holds any normalization's Config; its name is in messages."""

    normalization: NormalizationConfig
