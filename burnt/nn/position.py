"""Positional encodings for transformers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnt.errors import ShapeError
from burnt.module import Module

__all__ = ["PositionalEncoding"]


class PositionalEncoding(Module):
    r"""Adds sines and cosines of the position to a sequence of vectors.

    .. math:: \mathrm{PE}_{t, 2i} = \sin(t\,b^{-2i/d}), \quad \mathrm{PE}_{t, 2i+1} = \cos(t\,b^{-2i/d})

    Args:
        d_model: size of a vector; where it is odd, the last column is a sine.
        max_len: the longest sequence (Burn's ``max_sequence_size``).
        base: the longest wavelength is :math:`2\pi` times this (Burn's ``max_timescale``).
        device: where the table lives.
        dtype: dtype of the table, which is computed in float64.

    Shapes:
        input ``[*, length, d_model]``, output the same, in the input's dtype; the buffer ``encoding`` is
        ``[max_len, d_model]`` and no part of the state, since the sizes determine it.

    Raises:
        ShapeError: a sequence longer than `max_len`, or vectors of another size.

    Vaswani et al., 2017; torch has no such layer.

    >>> import torch
    >>> PositionalEncoding(4)(torch.zeros(2, 4))
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    d_model: int
    max_len: int
    base: float
    encoding: Tensor

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        base: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_len = max_len
        self.base = base
        self.register_buffer(
            "encoding", torch.empty(max_len, d_model, device=device, dtype=dtype), persistent=False
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Recompute the table; needed after `to_empty`, as for torch's layers."""
        position = torch.arange(self.max_len, dtype=torch.float64, device=self.encoding.device)
        even = torch.arange(0, self.d_model, 2, dtype=torch.float64, device=self.encoding.device)
        angle = position[:, None] * torch.exp(even * (-math.log(self.base) / self.d_model))
        with torch.no_grad():
            self.encoding[:, 0::2] = angle.sin()
            self.encoding[:, 1::2] = angle[:, : self.d_model // 2].cos()

    def forward(self, input: Tensor) -> Tensor:
        """Add the encoding of positions 0 to ``length - 1`` to `input` ``[*, length, d_model]``."""
        if input.dim() < 2 or input.shape[-1] != self.d_model or input.shape[-2] > self.max_len:
            raise ShapeError(
                "the sequence does not fit the positional encoding",
                where=f"PositionalEncoding({self.d_model}, max_len={self.max_len})",
                expected=f"(..., at most {self.max_len}, {self.d_model})",
                found=tuple(input.shape),
                hint="make max_len larger: it is no part of the saved state"
                if input.shape[-1:] == (self.d_model,) and input.dim() >= 2
                else None,
            )
        return input + self.encoding[: input.shape[-2]].to(input.dtype)
