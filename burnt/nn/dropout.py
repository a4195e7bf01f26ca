"""Dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import kernels
from burnt.module import Module

__all__ = ["Dropout"]


class Dropout(Module, torch.nn.Dropout):
    r"""Zeroes elements with probability `p` while training, and scales the rest by :math:`1 / (1 - p)`.

    Args:
        p: probability of a zero, 0 to 1 (Burn's ``prob``, which has no default).
        inplace: overwrite the input.

    Shapes:
        any; the output has the input's shape.

    As :class:`torch.nn.Dropout`. Where kernels are generated, a seed gives other zeros than torch's.
    Srivastava et al., 2014.

    >>> import torch
    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    p: float
    inplace: bool

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p, inplace)

    def forward(self, input: Tensor) -> Tensor:
        """In training mode, zero a random part of `input` ``[*]`` and scale the rest."""
        if torch.compiler.is_compiling() or self.inplace or not self.training:
            return super().forward(input)
        return kernels.dropout(input, self.p, True)
