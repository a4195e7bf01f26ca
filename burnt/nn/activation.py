"""Activations: elementwise functions as layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnt import kernels
from burnt.module import Module

__all__ = ["Gelu", "Relu", "Silu"]


class Relu(Module, torch.nn.ReLU, init=False):
    r"""The positive part: :math:`y = \max(x, 0)`, of any shape.

    Args:
        inplace: overwrite the input.

    >>> import torch
    >>> Relu()(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """


class Gelu(Module, torch.nn.GELU):
    r"""The Gaussian error linear unit: :math:`y = x\,\Phi(x)`, of any shape.

    Args:
        approximate: ``"none"`` for the error function, ``"tanh"`` for its approximation.

    Hendrycks and Gimpel, 2016.

    >>> import torch
    >>> Gelu()(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """

    approximate: str

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__(approximate)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        return kernels.gelu(input, self.approximate)


class Silu(Module, torch.nn.SiLU):
    r"""The sigmoid linear unit, or swish: :math:`y = x\,\sigma(x)`, of any shape.

    Args:
        inplace: overwrite the input.

    Elfwing et al., 2017.

    >>> import torch
    >>> Silu()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """

    inplace: bool

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace)

    def forward(self, input: Tensor) -> Tensor:
        """`input` ``[*]``, activated."""
        if torch.compiler.is_compiling() or self.inplace:
            return super().forward(input)
        return kernels.silu(input)
