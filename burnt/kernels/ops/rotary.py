"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device

__all__ = ["rope"]


def _check(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    check_floating("rope", x=x, cos=cos, sin=sin)
    check_one_device("rope", x=x, cos=cos, sin=sin)
    fits = x.dim() > 0 and cos.dim() > 0 and cos.shape == sin.shape and 2 * cos.shape[-1] <= x.shape[-1]
    if fits:
        try:
            fits = torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) == x.shape[:-1]  # type: ignore[no-untyped-call]
        except RuntimeError:  # they do not broadcast
            fits = False
    if not fits:
        raise InputRuntimeError(
            "the angles do not fit x",
            where="burnt.kernels.rope",
            expected="cos and sin [*, length, d / 2] or less, broadcast to x [*, length, d]",
            found=f"x {tuple(x.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}",
            hint="one column for each pair of features: halves are not repeated",
        )


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for shape in [(2, 16, 1024, 128), (1, 2, 7, 10)]:
        angles = torch.randn(shape[-2], shape[-1] // 2, device=device)
        made += [(torch.randn(shape, device=device), angles.cos(), angles.sin(), i) for i in (False, True)]
    return made


@op(check=_check, examples=_examples)
def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    r"""Turns pairs of features by angles that grow with the position.

    .. math:: (a, b) \mapsto (a \cos\theta - b \sin\theta, \; b \cos\theta + a \sin\theta)

    Args:
        x: ``[*, length, d]``, of a floating-point dtype.
        cos: ``[*, length, r]`` with ``r <= d / 2``, broadcast to the leading axes of `x`; features from
            ``2 r`` on are left alone.
        sin: as `cos`.
        interleaved: the pairs are neighbours, features ``2 i`` and ``2 i + 1`` (GPT-J); else features ``i``
            and ``i + r`` (GPT-NeoX, Llama).

    Returns:
        as `x`; computed in the wider of the dtypes.

    Raises:
        InputRuntimeError: shapes or devices do not fit each other.

    Su et al., 2021.

    >>> rope(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    tensor([[0., 1.]])
    """
    # Splits, not slices: the gradient of a split is a concatenation, of slices a sum of padded tensors.
    half = cos.shape[-1]
    turned, rest = torch.split(x, [2 * half, x.shape[-1] - 2 * half], -1)
    if interleaved:
        a, b = turned.reshape(*turned.shape[:-1], half, 2).unbind(-1)
        made = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = torch.split(turned, [half, half], -1)
        made = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    made = made.to(x.dtype)
    return torch.cat([made, rest], -1) if rest.shape[-1] else made
