"""Rotary position embedding, the op `rope`."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device


def _check_rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    check_floating("rope", x=x, cos=cos, sin=sin)
    check_one_device("rope", x=x, cos=cos, sin=sin)
    is_matching = (
        x.dim() > 0 and cos.dim() > 0 and cos.shape == sin.shape and 2 * cos.shape[-1] <= x.shape[-1]
    )
    if is_matching:
        try:
            is_matching = torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) == x.shape[:-1]  # type: ignore[no-untyped-call]
        except RuntimeError:  # they do not broadcast
            is_matching = False
    if not is_matching:
        raise InputRuntimeError(
            "the shapes of cos, sin and x of rope do not match",
            where="burnt.kernels.rope",
            expected="cos and sin [*, length, r] with r <= d / 2, broadcastable to x [*, length, d]",
            found=f"x {tuple(x.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}",
            hint="pass one column per pair of features; do not repeat the halves",
        )


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for shape in [(2, 16, 1024, 128), (1, 2, 7, 10)]:
        angles = torch.randn(shape[-2], shape[-1] // 2, device=device)
        examples += [
            (torch.randn(shape, device=device), angles.cos(), angles.sin(), i) for i in (False, True)
        ]
    return examples


@op(check=_check_rope, examples=_examples)
def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    r"""Rotate pairs of features by angles that depend on the position.

    .. math:: (a, b) \mapsto (a \cos\theta - b \sin\theta, \; b \cos\theta + a \sin\theta)

    Args:
        x: ``[*, length, d]``, floating-point.
        cos: cosines of the angles, ``[*, length, r]`` with ``r <= d / 2``, broadcast to the leading axes of
            `x`; features from ``2 r`` on are not changed.
        sin: sines of the angles, in the shape of `cos`.
        interleaved: pair the adjacent features ``2 i`` and ``2 i + 1`` (GPT-J) instead of the features ``i``
            and ``i + r`` (GPT-NeoX, Llama).

    Returns:
        ``[*, length, d]`` in the dtype of `x`; computed in the wider of the dtypes of the arguments.

    Raises:
        InputRuntimeError: shapes or devices do not match.
        InputUnsupportedError: an argument is not floating-point.

    Su et al., 2021.

    >>> rope(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    tensor([[0., 1.]])
    """
    # Split instead of slicing: the gradient of a split is a concatenation, of slices a sum of padded
    # tensors.
    half = cos.shape[-1]
    to_rotate, rest = torch.split(x, [2 * half, x.shape[-1] - 2 * half], -1)
    if interleaved:
        a, b = to_rotate.reshape(*to_rotate.shape[:-1], half, 2).unbind(-1)
        rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = torch.split(to_rotate, [half, half], -1)
        rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    rotated = rotated.to(x.dtype)
    return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated
