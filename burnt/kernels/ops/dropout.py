"""Dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating

__all__ = ["dropout"]


def _check(x: Tensor, p: float, training: bool) -> None:
    if training:
        check_floating("dropout", x=x)
    if not 0 <= p <= 1:
        raise InputValueError(
            "the probability of dropout is none",
            where="burnt.kernels.dropout",
            expected="a number from 0 to 1",
            found=p,
        )


@op(
    check=_check,
    random=True,
    examples=lambda device: [(torch.randn(s, device=device), 0.1, True) for s in [(2048, 2048), (37, 53)]],
)
def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    r"""Zeroes elements with probability `p`, and scales the rest by :math:`1 / (1 - p)`.

    Args:
        x: ``[*]``, of a floating-point dtype; without `training`, of any.
        p: the probability of a zero, 0 to 1.
        training: otherwise `x` is returned.

    Returns:
        as `x`.

    Raises:
        InputValueError: `p` is no probability.
        InputUnsupportedError: `x` is not of a floating-point dtype, while training.

    As `torch.nn.functional.dropout`. Generated kernels draw other numbers than torch's for a seed.
    Srivastava et al., 2014.

    >>> dropout(torch.ones(3), training=False)
    tensor([1., 1., 1.])
    """
    return F.dropout(x, p, training)
