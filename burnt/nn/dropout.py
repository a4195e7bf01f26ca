"""Dropout of elements and of channels, and noise: random while training, and nothing in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import InputValueError
from burnt.module import Module


def check_probability(layer: str, p: float) -> None:
    """Check the probability of a layer's dropout.

    Raises:
        InputValueError: it is not from 0 to 1.
    """
    if not 0 <= p <= 1:
        raise InputValueError(
            f"{layer} has no such probability", expected="p from 0 to 1, the part that is dropped", found=p
        )


class Dropout(Module, torch.nn.Dropout):
    r"""Zeroes elements with probability `p` while training, and scales the rest by :math:`1 / (1 - p)`.

    Args:
        p: probability of a zero, 0 to 1 (Burn's ``prob``, which has no default).
        inplace: overwrite the input.

    Shapes:
        any; the output has the input's shape.

    Raises:
        InputValueError: `p` is no probability.

    As :class:`torch.nn.Dropout`. Where kernels are generated, a seed gives other zeros than torch's.
    Srivastava et al., 2014.

    >>> import torch
    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("Dropout", p)
        super().__init__(p, inplace)

    def forward(self, input: Tensor) -> Tensor:
        """In training mode, zero a random part of `input` ``[*]`` and scale the rest."""
        if torch.compiler.is_compiling() or self.inplace or not self.training:
            return super().forward(input)
        return kernels.dropout(input, self.p, True)


class Dropout1d(Module, torch.nn.Dropout1d):
    r"""Zeroes whole channels of sequences with probability `p` while training; scales the rest as `Dropout`.

    Neighbours in a sequence are similar, so that dropping single elements would change little.

    Args:
        p: probability of dropping a channel, 0 to 1.
        inplace: overwrite the input.

    Shapes:
        input ``[batch, channels, length]`` or ``[channels, length]``, output the same.

    Raises:
        InputValueError: `p` is no probability.

    Tompson et al., 2014.

    >>> import torch
    >>> Dropout1d(0.5)(torch.ones(2, 3, 8)).sum(-1).unique().tolist() in ([0.0, 16.0], [0.0], [16.0])
    True
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("Dropout1d", p)
        super().__init__(p, inplace)


class Dropout2d(Module, torch.nn.Dropout2d):
    r"""Zeroes whole channels of images with probability `p` while training; scales the rest as `Dropout`.

    Args:
        p: probability of dropping a channel, 0 to 1.
        inplace: overwrite the input.

    Shapes:
        input ``[batch, channels, height, width]``, output the same. As in torch, inputs of other ranks are
        taken as ``[batch, channels, *]``, with a warning.

    Raises:
        InputValueError: `p` is no probability.

    Tompson et al., 2014.

    >>> import torch
    >>> Dropout2d(0.5)(torch.ones(2, 3, 4, 4)).sum((2, 3)).unique().tolist() in ([0.0, 32.0], [0.0], [32.0])
    True
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("Dropout2d", p)
        super().__init__(p, inplace)


class Dropout3d(Module, torch.nn.Dropout3d):
    r"""Zeroes whole channels of volumes with probability `p` while training; scales the rest as `Dropout`.

    Args:
        p: probability of dropping a channel, 0 to 1.
        inplace: overwrite the input.

    Shapes:
        input ``[batch, channels, depth, height, width]`` or without batch, output the same. As in torch,
        inputs of other ranks are taken as ``[channels, *]``, with a warning.

    Raises:
        InputValueError: `p` is no probability.

    Tompson et al., 2014.

    >>> import torch
    >>> Dropout3d(0.5).eval()(torch.ones(1, 2, 1, 1, 1)).shape
    torch.Size([1, 2, 1, 1, 1])
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("Dropout3d", p)
        super().__init__(p, inplace)


class AlphaDropout(Module, torch.nn.AlphaDropout):
    r"""Dropout for networks of `Selu`: keeps mean 0 and variance 1.

    While training, elements become the limit of Selu for small values with probability `p`; all are then
    scaled and shifted.

    Args:
        p: probability of dropping an element, 0 to 1.
        inplace: overwrite the input.

    Shapes:
        any; the output has the input's shape.

    Raises:
        InputValueError: `p` is no probability.

    Klambauer et al., 2017.

    >>> import torch
    >>> AlphaDropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("AlphaDropout", p)
        super().__init__(p, inplace)


class FeatureAlphaDropout(Module, torch.nn.FeatureAlphaDropout):
    r"""`AlphaDropout` of whole channels.

    Args:
        p: probability of dropping a channel, 0 to 1.
        inplace: overwrite the input.

    Shapes:
        input ``[batch, channels, *]``, output the same.

    Raises:
        InputValueError: `p` is no probability.

    >>> import torch
    >>> FeatureAlphaDropout(0.5).eval()(torch.ones(1, 2, 3)).shape
    torch.Size([1, 2, 3])
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability("FeatureAlphaDropout", p)
        super().__init__(p, inplace)


class GaussianNoise(Module):
    r"""Adds noise while training: :math:`y = x + \epsilon` with :math:`\epsilon \sim N(0, \sigma^2)`.

    Args:
        std: :math:`\sigma`, not negative.

    Shapes:
        any; the output has the input's shape.

    Raises:
        InputValueError: a negative `std`.

    As in Burn.

    >>> import torch
    >>> noise = GaussianNoise(0.1)
    >>> round(float(noise(torch.zeros(10_000)).std()), 2)
    0.1
    >>> noise.eval()(torch.zeros(2))
    tensor([0., 0.])
    """

    std: float

    def __init__(self, std: float) -> None:
        if std < 0:
            raise InputValueError("GaussianNoise has a negative deviation", expected="std >= 0", found=std)
        super().__init__()
        self.std = std

    def forward(self, input: Tensor) -> Tensor:
        """In training mode, add noise to `input` ``[*]``."""
        if not self.training or self.std == 0:
            return input
        return input + self.std * torch.randn_like(input)
