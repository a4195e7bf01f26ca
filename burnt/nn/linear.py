"""Linear, the fully connected layer, and Bilinear, of two inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import kernels
from burnt.module import Module


class Linear(Module, torch.nn.Linear):
    r"""A linear map with a bias: :math:`y = x W^\top + b`.

    Args:
        in_features: size of the input's last axis.
        out_features: size of the output's last axis.
        bias: whether to add ``b``.

    Shapes:
        input ``[..., in_features]``, output ``[..., out_features]``; ``weight`` is
        ``[out_features, in_features]``, ``bias`` ``[out_features]``.

    Layout, names and initial values are as in :class:`torch.nn.Linear` (Burn keeps the weight transposed).
    The product is `burnt.kernels.linear`'s, torch's own where calls are recorded instead of run (compilers,
    transforms, `burnt.summary`).

    >>> Linear(3, 2)(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        return kernels.linear.in_layer(input, self.weight, self.bias)


class Bilinear(Module, torch.nn.Bilinear):
    r"""A map that is linear in each of two inputs: :math:`y_k = a^\top W_k\, b + c_k`.

    Args:
        in1_features: size of the first input's last axis.
        in2_features: size of the second input's last axis.
        out_features: size of the output's last axis.
        bias: whether to add ``c``.

    Shapes:
        inputs ``[*, in1_features]`` and ``[*, in2_features]`` with equal axes ``*``, output
        ``[*, out_features]``; ``weight`` is ``[out_features, in1_features, in2_features]``, ``bias``
        ``[out_features]``.

    >>> Bilinear(3, 4, 2)(torch.zeros(5, 3), torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in1_features, in2_features, out_features, bias, device, dtype)
