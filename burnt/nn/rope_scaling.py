"""Frequency scaling of rotary encodings, which extends a model to longer texts than it was trained with.

Each class is a frozen Config for the argument ``scaling`` of `burnt.nn.RotaryEncoding`; the names of its
values are as in Hugging Face's ``rope_scaling``, with ``original_max_len`` for
``original_max_position_embeddings``. Below, :math:`\\theta_i = b^{-2i/d}` are the frequencies without
scaling, :math:`b` the base, :math:`d` the number of rotated features, :math:`s` the factor and :math:`L` the
length of training.
"""

from __future__ import annotations

import math

from burnt.config import Config, field_values
from burnt.errors import ConfigError


class _Scaling(Config):
    """What the scalings share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in field_values(self).items():
            if value is not None and not isinstance(value, bool):
                self._require(value > 0, name, "a positive number")

    def _require(self, holds: bool, field: str, expected: str) -> None:
        if not holds:
            raise ConfigError(
                f"{type(self).__name__} cannot scale frequencies so",
                where=field,
                expected=expected,
                found=getattr(self, field),
            )

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Return the scaled frequencies; `frequencies` are the powers of `base`, the highest first."""
        return frequencies

    def amplitude(self) -> float:
        """Return the factor of sines and cosines."""
        return 1.0


class Linear(_Scaling, tag=True):
    r"""Position interpolation: :math:`\theta_i / s`.

    Args:
        factor: how many times longer sequences become, :math:`s`.

    Chen et al., 2023.
    """

    factor: float

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Divide all by the factor."""
        return [frequency / self.factor for frequency in frequencies]


class Ntk(_Scaling, tag=True):
    r"""A larger base: :math:`b' = b\,s^{d/(d-2)}`, which divides only the lowest frequency by the factor.

    Args:
        factor: how many times longer sequences become, :math:`s`.

    Known as NTK-aware scaling (bloc97, 2023).
    """

    factor: float

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Divide the lowest by the factor, the highest by 1, the others by powers between."""
        last = max(len(frequencies) - 1, 1)
        return [frequency * self.factor ** (-i / last) for i, frequency in enumerate(frequencies)]


class DynamicNtk(_Scaling, tag=True):
    r"""`Ntk` with a factor that grows with the length :math:`l` of a sequence: :math:`s\,l/L - s + 1`.

    Args:
        factor: how many times longer sequences become, :math:`s`.
        original_max_len: length :math:`L` of the training's sequences; up to it, nothing is scaled.

    The length is counted with the positions before `offset`. Keys that were rotated for a shorter sequence
    keep their frequencies, as in Hugging Face's models.
    """

    factor: float
    original_max_len: int


class Yarn(_Scaling, tag=True):
    r"""Interpolate low frequencies and keep high ones, by how often they turn within the training length.

    .. math:: \theta_i' = (1 - \gamma_i)\,\theta_i / s + \gamma_i\,\theta_i

    where :math:`\gamma_i` falls linearly in :math:`i` from 1 to 0 between the frequencies that turn
    `beta_fast` and `beta_slow` times within :math:`L`. Sines and cosines are multiplied by a constant.

    Args:
        factor: how many times longer sequences become, :math:`s`.
        original_max_len: length of the training's sequences, :math:`L`.
        beta_fast: turns from which on a frequency is kept.
        beta_slow: turns below which a frequency is divided by :math:`s`.
        attention_factor: the constant; None is :math:`0.1 \ln s + 1`.
        truncate: whether the limits are rounded outwards to whole indices.

    Peng et al., 2023.
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.beta_fast > self.beta_slow, "beta_fast", f"more than beta_slow = {self.beta_slow}")

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Blend each frequency with the one divided by the factor."""
        d = 2 * len(frequencies)
        low, high = (
            d * math.log(self.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        high = high + 0.001 if low == high else high
        kept = [1 - min(max((i - low) / (high - low), 0), 1) for i in range(len(frequencies))]
        return [(1 - k) * f / self.factor + k * f for f, k in zip(frequencies, kept, strict=True)]

    def amplitude(self) -> float:
        """Return the constant."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(max(self.factor, 1.0)) + 1.0


class Llama3(_Scaling, tag=True):
    r"""Divide long waves by the factor, keep short ones, and blend between, as Llama 3.1 does.

    Args:
        factor: how many times longer sequences become, :math:`s`.
        original_max_len: length of the training's sequences, :math:`L`.
        low_freq_factor: waves longer than :math:`L` divided by this are divided by :math:`s`.
        high_freq_factor: waves shorter than :math:`L` divided by this are kept.

    Grattafiori et al., 2024; defaults are Llama 3.1's.
    """

    factor: float = 8.0
    original_max_len: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        low = self.low_freq_factor
        self._require(self.high_freq_factor > low, "high_freq_factor", f"more than low_freq_factor = {low}")

    def scale(self, frequencies: list[float], base: float) -> list[float]:
        """Blend each frequency with the one divided by the factor."""
        low, high = self.low_freq_factor, self.high_freq_factor
        scaled = []
        for frequency in frequencies:
            turns = self.original_max_len * frequency / (2 * math.pi)
            kept = min(max((turns - low) / (high - low), 0), 1)
            scaled.append((1 - kept) * frequency / self.factor + kept * frequency)
        return scaled


Scaling = Linear | Ntk | DynamicNtk | Yarn | Llama3
