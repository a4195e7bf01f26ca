"""Observers of a layer's inputs during calibration, and the scale and zero point that follow from them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from burnt import kernels
from burnt.quant.ranges import check_method
from burnt.scheme import VALUES

ActivationMethod = Literal["minmax", "moving_average", "percentile", "mse", "absmean"]

ACTIVATION_METHODS: tuple[str, ...] = get_args(ActivationMethod)

_PERCENTILE = 0.9999
_AVERAGING = 0.01  # weight of a new call in the moving average, as in torch's MovingAverageMinMaxObserver
_SAMPLE_ELEMENTS = 1 << 19
_SAMPLE_ITEMS = 4096
_SEARCHED = 1 << 17  # values whose error is computed for each range that "mse" tries
# Parts of the whole range that "mse" tries: down to 1/32, where one outlier has stretched it that far.
_FACTORS = [2 ** (-i / 8) for i in range(41)]


class Reservoir:
    """A uniform random sample of all items that were added, of bounded size.

    Each item draws a random key, and those with the smallest keys stay. The sample depends only on the items
    and the seed; torch's global generator is not used. `max_elements` is for all items together; a single
    larger item is kept nevertheless.

    >>> sample = Reservoir(max_items=2)
    >>> sample.add(torch.arange(6.0).view(3, 2))
    >>> sample.add(torch.arange(12.0).view(4, 3))
    >>> sum(len(group) for group in sample.groups())
    2
    """

    def __init__(
        self, seed: int = 0, max_elements: int = _SAMPLE_ELEMENTS, max_items: int = _SAMPLE_ITEMS
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._max_elements, self._max_items = max_elements, max_items
        self._limit = math.inf  # items with larger keys were dropped before
        self._groups: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def add(self, items: Tensor) -> None:
        """Add items ``[count, *shape]``; their shape may differ from the others'."""
        keys = torch.rand(len(items), generator=self._generator)
        shape = tuple(items.shape[1:])
        most = max(1, min(self._max_items, self._max_elements // max(1, math.prod(shape))))
        if len(keys) > most:
            self._limit = min(self._limit, float(keys.kthvalue(most + 1).values))
        chosen = (keys < self._limit).nonzero().flatten()
        if not len(chosen):
            return
        new = keys[chosen], items.detach()[chosen.to(items.device)]
        old = self._groups.get(shape)
        self._groups[shape] = (
            new if old is None else (torch.cat((old[0], new[0])), torch.cat((old[1], new[1])))
        )
        self._trim()

    def groups(self) -> list[Tensor]:
        """Return the sample: items ``[count, *shape]`` for each shape."""
        return [items for _, items in self._groups.values()]

    def _trim(self) -> None:
        keys = torch.cat([keys for keys, _ in self._groups.values()])
        sizes = torch.cat(
            [torch.full((len(keys),), math.prod(shape)) for shape, (keys, _) in self._groups.items()]
        )
        order = keys.argsort()
        fits = sizes[order].cumsum(0) <= self._max_elements
        fits[0] = True
        fits[self._max_items :] = False
        if fits.all():
            return
        self._limit = min(self._limit, float(keys[order[~fits]].min()))
        for shape, (keys, items) in list(self._groups.items()):
            stays = (keys < self._limit).nonzero().flatten()
            if len(stays):
                self._groups[shape] = keys[stays], items[stays.to(items.device)]
            else:
                del self._groups[shape]


class InputObserver:
    """What a layer's inputs were: the number of calls, their range, and a sample.

    `low` and `high` are the extreme values, ``[channels]`` for inputs of linear layers, else ``[1]``;
    `mean_low` and `mean_high` the moving averages of each call's.
    """

    low: Tensor
    high: Tensor
    mean_low: Tensor
    mean_high: Tensor

    def __init__(self, seed: int = 0) -> None:
        self.calls = 0
        self.sample = Reservoir(seed)

    def add(self, items: Tensor) -> None:
        """Observe the input of one call, as `layer_items` gives it.

        Rows ``[count, channels]`` of a linear layer, samples ``[count, channels, *axes]`` of a convolution,
        or ids ``[count]``.
        """
        if not items.numel():
            return
        self.sample.add(items)
        if items.dim() > 1:
            per_channel = items.float() if items.dim() == 2 else items.float().reshape(-1, 1)
            low, high = torch.aminmax(per_channel, dim=0)
            if not self.calls:
                self.low, self.high, self.mean_low, self.mean_high = low, high, low, high
            else:
                weight = max(_AVERAGING, 1 / (self.calls + 1))
                self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
                self.mean_low = self.mean_low.lerp(low, weight)
                self.mean_high = self.mean_high.lerp(high, weight)
        self.calls += 1

    @property
    def is_finite(self) -> bool:
        """Whether there was neither NaN nor infinity."""
        return not hasattr(self, "low") or bool(self.low.isfinite().all() and self.high.isfinite().all())

    @property
    def largest(self) -> Tensor:
        """The largest absolute value of each channel."""
        return torch.maximum(self.low.abs(), self.high.abs())


def activation_range(
    observer: InputObserver, value: str, method: str = "minmax", divisor: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return scale and zero point of a layer's input, one for the whole tensor.

    Args:
        observer: has observed finite inputs.
        value: type of the quantized inputs: ``"int8"``, asymmetric, or a float8, symmetric.
        method: ``"minmax"``: all values observed are in range; ``"moving_average"``: the average over calls
            of the smallest and largest values; ``"percentile"``: 99.99 % of the values are in range;
            ``"mse"``: the range with the smallest squared error; ``"absmean"``: steps of
            ``2 * mean|x| / sqrt(largest code)``, the rule by which learned step sizes start (Esser et al.,
            2020), within the range observed. The last three are computed on the observer's sample.
        divisor: ``[channels]``, positive: what the inputs will be divided by.

    Returns:
        scale, float32 ``[1, 1]``, and the zero point, int8 ``[1, 1]``, or None for floats.

    >>> observer = InputObserver()
    >>> observer.add(torch.tensor([[0.0, 0.5], [2.55, 1.0]]))
    >>> activation_range(observer, "int8")
    (tensor([[0.0100]]), tensor([[-128]], dtype=torch.int8))
    """
    check_method("activations", method, ACTIVATION_METHODS)
    is_average = method == "moving_average"
    lows, highs = (observer.mean_low, observer.mean_high) if is_average else (observer.low, observer.high)
    if divisor is not None:
        lows, highs = lows / divisor, highs / divisor
    # Zero is always in range: it is what convolutions are padded with.
    low, high = float(lows.min().clamp(max=0)), float(highs.max().clamp(min=0))
    kind = VALUES[value]
    if method in ("percentile", "mse", "absmean"):
        groups = observer.sample.groups()
        values = torch.cat([(g if divisor is None else g / divisor).float().flatten() for g in groups])
        if method == "percentile":
            low, high = _percentiles(values, low, high, kind.is_float)
        elif method == "absmean":
            codes = 255 if low == 0 and not kind.is_float else 127
            limit = 2 * float(values.abs().mean()) * math.sqrt(codes)
            low, high = max(low, -limit), min(high, limit)
        else:
            low, high = _least_error(values, low, high, value)
    scale, zero_point = _parameters(low, high, value)
    device = observer.low.device
    scale_tensor = torch.full((1, 1), scale, device=device)
    if kind.is_float:
        return scale_tensor, None
    return scale_tensor, torch.full((1, 1), zero_point, dtype=torch.int8, device=device)


def _parameters(low: float, high: float, value: str) -> tuple[float, int]:
    """Return scale and zero point for a range that contains zero."""
    kind = VALUES[value]
    if kind.is_float:
        return (max(-low, high) / kind.largest or 1.0), 0
    scale = (high - low) / (kind.largest - kind.smallest)
    if scale < torch.finfo(torch.float32).tiny:  # only zeros were observed
        return 1.0, 0
    return scale, round(min(max(kind.smallest - low / scale, kind.smallest), kind.largest))


def _percentiles(values: Tensor, low: float, high: float, is_symmetric: bool) -> tuple[float, float]:
    count = len(values)
    rank = min(count, math.ceil(_PERCENTILE * count))
    if is_symmetric:
        limit = float(values.abs().kthvalue(rank).values)
        return -limit, limit
    # Nothing is cut off where the values end at zero, as after ReLU.
    least = float(-(-values).kthvalue(rank).values)
    most = float(values.kthvalue(rank).values)
    return max(low, min(least, 0.0)), min(high, max(most, 0.0))


def _least_error(values: Tensor, low: float, high: float, value: str) -> tuple[float, float]:
    step = -(-len(values) // _SEARCHED)
    row = values[::step].unsqueeze(0)
    best, least = (low, high), math.inf
    for factor in _FACTORS:
        scale, zero_point = _parameters(low * factor, high * factor, value)
        scales = torch.full((1, 1), scale, device=row.device)
        zeros = None
        if not VALUES[value].is_float:
            zeros = torch.full((1, 1), zero_point, dtype=torch.int8, device=row.device)
        codes = kernels.quantize(row, scales, zeros, value)
        error = float((kernels.dequantize(codes, scales, zeros, value) - row).square().sum())
        if error < least:
            best, least = (low * factor, high * factor), error
    return best
