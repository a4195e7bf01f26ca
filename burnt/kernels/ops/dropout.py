"""The op `dropout`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating


def _check_dropout(x: Tensor, p: float, training: bool) -> None:
    if training:
        check_floating("dropout", x=x)
    if not 0 <= p <= 1:
        raise InputValueError(
            "the probability of dropout is out of range",
            where="burnt.kernels.dropout",
            expected="a number from 0 to 1",
            found=p,
        )


@op(
    check=_check_dropout,
    random=True,
    examples=lambda device: [(torch.randn(s, device=device), 0.1, True) for s in [(2048, 2048), (37, 53)]],
)
def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    r"""Set elements to zero with probability `p`, and scale the others by :math:`1 / (1 - p)`.

    Args:
        x: ``[*]``, floating-point; of any dtype if `training` is False.
        p: probability of a zero, from 0 to 1.
        training: if False, `x` is returned.

    Returns:
        ``[*]``, the shape and dtype of `x`.

    Raises:
        InputValueError: `p` is not in ``[0, 1]``.
        InputUnsupportedError: `x` is not floating-point, in training.

    Like `torch.nn.functional.dropout`, but for the same seed generated kernels draw other random numbers than
    torch's. Srivastava et al., 2014.

    >>> dropout(torch.ones(3), training=False)
    tensor([1., 1., 1.])
    """
    return F.dropout(x, p, training)
