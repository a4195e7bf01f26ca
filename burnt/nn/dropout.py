"""Dropout of elements and of channels, and noise: random while training, and nothing in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.module import Module
from burnt.nn.checks import require


def check_probability(layer: str, p: float) -> None:
    """Check the probability of a layer's dropout."""
    require(0 <= p <= 1, layer, "p", "a probability from 0 to 1", p)


class _Dropout(Module):
    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability(type(self).__name__, p)
        super().__init__(p, inplace)


class Dropout(_Dropout, torch.nn.Dropout, init=False):
    r"""Zeroes elements with probability `p` while training, and scales the rest by :math:`1 / (1 - p)`.

    Args:
        p: probability of a zero, 0 to 1 (Burn's ``prob``, which has no default).
        inplace: whether to overwrite the input.

    Shapes:
        any; the output has the input's shape.

    Raises:
        InputValueError: `p` is not a probability.

    As :class:`torch.nn.Dropout`. Where kernels are generated, a seed gives other zeros than torch's.
    Srivastava et al., 2014.

    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """In training mode, zero a random part of `input` ``[*]`` and scale the rest."""
        if self.inplace or not self.training:
            return F.dropout(input, self.p, self.training, self.inplace)
        return kernels.dropout.in_layer(input, self.p, True)


class Dropout1d(_Dropout, torch.nn.Dropout1d, init=False):
    r"""Zeroes whole channels of sequences with probability `p` while training; scales the rest as `Dropout`.

    Neighbours in a sequence are similar, so that dropping single elements would change little.

    As `Dropout2d`, for ``[batch, channels, length]`` or ``[channels, length]``. Tompson et al., 2014.

    >>> Dropout1d(0.5)(torch.ones(2, 3, 8)).sum(-1).unique().tolist() in ([0.0, 16.0], [0.0], [16.0])
    True
    """


class Dropout2d(_Dropout, torch.nn.Dropout2d, init=False):
    r"""Zeroes whole channels of images with probability `p` while training; scales the rest as `Dropout`.

    Args:
        p: probability of dropping a channel, 0 to 1.
        inplace: whether to overwrite the input.

    Shapes:
        input ``[batch, channels, height, width]``, output the same. As in torch, inputs of other ranks are
        taken as ``[batch, channels, *]``, with a warning.

    Raises:
        InputValueError: `p` is not a probability.

    Tompson et al., 2014.

    >>> Dropout2d(0.5)(torch.ones(2, 3, 4, 4)).sum((2, 3)).unique().tolist() in ([0.0, 32.0], [0.0], [32.0])
    True
    """


class Dropout3d(_Dropout, torch.nn.Dropout3d, init=False):
    r"""Zeroes whole channels of volumes with probability `p` while training; scales the rest as `Dropout`.

    As `Dropout2d`, for ``[batch, channels, depth, height, width]`` or without batch. As in torch, inputs of
    other ranks are taken as ``[channels, *]``, with a warning. Tompson et al., 2014.

    >>> Dropout3d(0.5).eval()(torch.ones(1, 2, 1, 1, 1)).shape
    torch.Size([1, 2, 1, 1, 1])
    """


class AlphaDropout(_Dropout, torch.nn.AlphaDropout, init=False):
    r"""Dropout for networks of `Selu`: keeps mean 0 and variance 1.

    While training, elements become the limit of Selu for small values with probability `p`; all are then
    scaled and shifted.

    Arguments, shapes and errors are as in `Dropout`. Klambauer et al., 2017.

    >>> AlphaDropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """


class FeatureAlphaDropout(_Dropout, torch.nn.FeatureAlphaDropout, init=False):
    r"""`AlphaDropout` of whole channels.

    As `Dropout2d`, for ``[batch, channels, *]``.

    >>> FeatureAlphaDropout(0.5).eval()(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """


class GaussianNoise(Module):
    r"""Adds noise while training: :math:`y = x + \epsilon` with :math:`\epsilon \sim N(0, \sigma^2)`.

    Args:
        std: standard deviation :math:`\sigma` of the noise, not negative.

    Shapes:
        any; the output has the input's shape.

    Raises:
        InputValueError: a negative `std`.

    As in Burn.

    >>> noise = GaussianNoise(0.1)
    >>> round(float(noise(torch.zeros(10_000)).std()), 2)
    0.1
    >>> noise.eval()(torch.zeros(2))
    tensor([0., 0.])
    """

    std: float

    def __init__(self, std: float) -> None:
        require(std >= 0, "GaussianNoise", "std", "a deviation of at least 0", std)
        super().__init__()
        self.std = std

    def forward(self, input: Tensor) -> Tensor:
        """In training mode, add noise to `input` ``[*]``."""
        if not self.training or self.std == 0:
            return input
        return input + self.std * torch.randn_like(input)
