"""Positional encodings for transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor
from torch.nn import Parameter

from burnt import kernels
from burnt.errors import InputIndexError, ShapeError
from burnt.module import Module
from burnt.nn import rope_scaling


class PositionalEncoding(Module):
    r"""Adds sines and cosines of the position to a sequence of vectors.

    .. math:: \mathrm{PE}_{t, 2i} = \sin(t\,b^{-2i/d}), \quad \mathrm{PE}_{t, 2i+1} = \cos(t\,b^{-2i/d})

    Args:
        d_model: size of a vector; where it is odd, the last column is a sine.
        max_len: the longest sequence (Burn's ``max_sequence_size``).
        base: the longest wavelength is :math:`2\pi` times this (Burn's ``max_timescale``).
        dtype: dtype of the table, which is computed in float64.

    Shapes:
        input ``[*, length, d_model]``, output the same, in the input's dtype; the buffer ``encoding`` is
        ``[max_len, d_model]`` and no part of the state, since the sizes determine it.

    Raises:
        ShapeError: a sequence longer than `max_len`, or vectors of another size.
        InputIndexError: a negative offset.

    Vaswani et al., 2017; torch has no such layer.

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

    def forward(self, input: Tensor, offset: int = 0) -> Tensor:
        """Add the encoding of its position to each vector.

        Args:
            input: ``[*, length, d_model]``.
            offset: position of the first vector, such as the length of a key-value cache.
        """
        _check(self, input, offset, "make max_len larger: it is no part of the saved state")
        return input + self.encoding[offset : offset + input.shape[-2]].to(input.dtype)


class LearnedPositionalEncoding(Module):
    r"""Adds a learned vector for the position to a sequence of vectors.

    Args:
        d_model: size of a vector.
        max_len: length of the longest sequence.
        std: standard deviation of the initial values, which have a mean of 0.

    Shapes:
        input ``[*, length, d_model]``, output the same; ``weight`` is ``[max_len, d_model]``, as in the
        Embedding of positions in GPT-2 and BERT.

    Raises:
        ShapeError: a sequence longer than `max_len`, or vectors of another size.
        InputIndexError: a negative offset.

    Gehring et al., 2017; torch and Burn have no such layer.

    >>> LearnedPositionalEncoding(4, max_len=16)(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    d_model: int
    max_len: int
    std: float
    weight: Parameter

    def __init__(
        self,
        d_model: int,
        max_len: int,
        *,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_len = max_len
        self.std = std
        self.weight = Parameter(torch.empty(max_len, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the vectors."""
        torch.nn.init.normal_(self.weight, std=self.std)

    def forward(self, input: Tensor, offset: int = 0) -> Tensor:
        """Add its position's vector to each vector; arguments as in `PositionalEncoding.forward`."""
        _check(
            self, input, offset, f"there are {self.max_len} learned positions: train with a larger max_len"
        )
        return input + self.weight[offset : offset + input.shape[-2]]


class RotaryEncoding(Module):
    r"""Rotates pairs of features of queries and keys by angles that grow with the position.

    .. math:: (a_i, b_i) \mapsto (a_i \cos t\theta_i - b_i \sin t\theta_i, \;
              b_i \cos t\theta_i + a_i \sin t\theta_i), \quad
              \theta_i = \mathrm{base}^{-2i/\mathrm{rotary\_dim}}

    so that the product of a query and a key depends on the distance of their positions :math:`t`.

    Args:
        head_dim: size D of a head (Burn's ``d_model``).
        base: the longest wavelength is :math:`2\pi` times about this (``rope_theta``; Burn's ``theta``).
        rotary_dim: number of features that are rotated, the first ones; None is all.
        interleaved: pair the features :math:`2i` and :math:`2i + 1` (GPT-J, Burn) instead of :math:`i` and
            :math:`i + \mathrm{rotary\_dim} / 2` (GPT-NeoX, Llama).
        scaling: how frequencies change for longer sequences, one of `burnt.nn.rope_scaling`.
        device: where the frequencies live.

    Shapes:
        input ``[..., L, head_dim]``, such as ``[B, H, L, D]``, output the same, in the input's dtype. The
        buffer ``inv_freq`` ``[rotary_dim / 2]`` is float32, whatever the model is cast to, and no part of the
        state.

    Raises:
        ShapeError: vectors of another size; or a `rotary_dim` that is odd or larger than `head_dim`.

    There is no longest sequence. Su et al., 2021; torch has no such layer.

    >>> RotaryEncoding(2)(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    head_dim: int
    base: float
    rotary_dim: int
    interleaved: bool
    scaling: rope_scaling.Scaling | None
    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: rope_scaling.Scaling | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.base = base
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling
        if not 0 < self.rotary_dim <= head_dim or self.rotary_dim % 2:
            raise ShapeError(
                "features cannot be rotated in pairs",
                where=self._name(),
                expected=f"rotary_dim, even and at most {head_dim}",
                found=self.rotary_dim,
            )
        self.register_buffer("inv_freq", self._frequencies(device), persistent=False)

    def reset_parameters(self) -> None:
        """Recompute the frequencies; needed after `to_empty`, as for torch's layers."""
        self.inv_freq = self._frequencies(self.inv_freq.device)

    def forward(self, input: Tensor, offset: int | Tensor | tuple[Tensor, Tensor] = 0) -> Tensor:
        """Rotate `input` ``[..., L, head_dim]``.

        Args:
            input: queries or keys.
            offset: the position of the first vector, as when keys before it are cached; or one for each
                sequence of a batch, integers ``[B]`` for an input ``[B, H, L, head_dim]``; or what `cos_sin`
                returned for these.
        """
        if isinstance(offset, Tensor) and offset.dim() == 1:
            batch = offset.shape[0]
            fits, expected = input.dim() == 4 and input.shape[0] == batch, f"({batch}, H, L, "
        else:
            fits, expected = input.dim() >= 2, "(..., L, "
        if not fits or input.shape[-1] != self.head_dim:
            raise ShapeError(
                "the vectors do not fit the rotary encoding",
                where=self._name(),
                expected=f"{expected}{self.head_dim})",
                found=tuple(input.shape),
            )
        cos, sin = offset if isinstance(offset, tuple) else self.cos_sin(input.shape[-2], offset)
        return kernels.rope(input, cos, sin, self.interleaved)

    def cos_sin(self, length: int, offset: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the angles, to share them between queries, keys and layers.

        Args:
            length: number L of positions.
            offset: the position of the first vector, or one for each sequence, as in `forward`.

        Returns:
            two float32 tensors ``[L, rotary_dim / 2]``, or ``[B, 1, L, rotary_dim / 2]`` for an offset of
            each sequence: arguments of `burnt.kernels.rope`.
        """
        if isinstance(offset, Tensor) and offset.dim() == 1:
            offset = offset[:, None, None, None]
        positions = torch.arange(length, device=self.inv_freq.device)[:, None] + offset
        frequencies = self.inv_freq
        if isinstance(self.scaling, rope_scaling.DynamicNtk):
            factor, trained = self.scaling.factor, self.scaling.original_max_len
            count = (positions[..., -1:, :] + 1).clamp(min=trained)
            steps = torch.arange(len(frequencies), device=frequencies.device) / max(len(frequencies) - 1, 1)
            frequencies = frequencies * (factor * count / trained - factor + 1) ** -steps
        angles = positions * frequencies
        amplitude = 1.0 if self.scaling is None else self.scaling.amplitude()
        if amplitude == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * amplitude, angles.sin() * amplitude

    def _frequencies(self, device: torch.device | str | None) -> Tensor:
        d = self.rotary_dim
        frequencies = [float(self.base) ** (-i / d) for i in range(0, d, 2)]
        if self.scaling is not None:
            frequencies = self.scaling.scale(frequencies, self.base)
        return torch.tensor(frequencies, dtype=torch.float32, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # A model in 16 bits needs exact angles: the frequencies follow the device, not the dtype, and are
        # right after `to_empty`.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.inv_freq = self._frequencies(self.inv_freq.device)
        return self

    def _name(self) -> str:
        return f"RotaryEncoding({self.head_dim})"


def _check(
    layer: PositionalEncoding | LearnedPositionalEncoding, input: Tensor, offset: int, hint: str
) -> None:
    if offset < 0:
        raise InputIndexError(
            "a position is before the first one",
            where=f"{type(layer).__name__}({layer.d_model}, max_len={layer.max_len})",
            expected="an offset of 0 or more",
            found=offset,
        )
    left = layer.max_len - offset
    if input.dim() < 2 or input.shape[-1] != layer.d_model or input.shape[-2] > left:
        after = f" after {offset} others" if offset else ""
        raise ShapeError(
            "the sequence does not fit the positional encoding",
            where=f"{type(layer).__name__}({layer.d_model}, max_len={layer.max_len})",
            expected=f"(..., at most {max(left, 0)}, {layer.d_model}){after}",
            found=tuple(input.shape),
            hint=hint if input.dim() >= 2 and input.shape[-1] == layer.d_model else None,
        )
