"""Fourier transforms, windows, mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def dft(
    x: Tensor, length: Tensor | int | None, axis: Tensor | int, inverse: bool = False, onesided: bool = False
) -> Tensor:
    """Return the discrete Fourier transform along an axis: ``[..., 2]``, real and imaginary parts.

    `x` is ``[..., 1]`` (real) or ``[..., 2]``, and cut or filled up with zeros to a `length`. Negative axes
    count from the last one, the axis of the parts. A onesided transform is the first half and one of a real
    signal's; inverted, it is back from that to a real signal ``[..., 1]``.
    """
    dim = int(axis) % x.dim()
    count = None if length is None else int(length)
    if inverse and onesided:
        signal: Tensor = torch.fft.irfft(_complex(x), count, dim)
        return signal.unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], count, dim))
    spectrum = torch.fft.ifft(_complex(x), count, dim) if inverse else torch.fft.fft(_complex(x), count, dim)
    parts: Tensor = torch.view_as_real(spectrum)
    return parts


def _complex(x: Tensor) -> Tensor:
    if x.shape[-1] == 1:
        return torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
    return torch.view_as_complex(x.contiguous())


def stft(
    x: Tensor, step: Tensor | int, window: Tensor | None, length: Tensor | int | None, onesided: bool = True
) -> Tensor:
    """Return Fourier transforms of frames of a signal: ``[batch, frames, bins, 2]``.

    `x` is ``[batch, samples, 1]`` (real) or ``[batch, samples, 2]``; ``[batch, samples]`` is real, too, as
    torch's exporter writes it and ONNX Runtime reads it. Frames begin `step` samples apart, have a `length`,
    None for the `window`'s length, and are multiplied by the window.
    """
    size = int(length) if length is not None else x.shape[1] if window is None else window.shape[0]
    signal = x if x.dim() == 2 else x[..., 0] if x.shape[-1] == 1 else _complex(x)
    frames = signal.unfold(1, size, int(step))
    if window is not None:
        frames = frames * window
    if onesided and not frames.is_complex():
        return torch.view_as_real(torch.fft.rfft(frames))
    spectrum = torch.fft.fft(frames)
    return torch.view_as_real(spectrum[..., : size // 2 + 1] if onesided else spectrum)


def mel_weights(
    num_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lowest: Any,
    highest: Any,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> Tensor:
    """Return triangular filters ``[dft_length // 2 + 1, num_bins]``, evenly spaced on the mel scale.

    `lowest` and `highest` are frequencies of the first filter's lower and the last one's upper edge, and
    `sample_rate` is theirs, in Hz.
    """
    bins, length, rate = int(num_bins), int(dft_length), int(sample_rate)
    low, high = (2595 * np.log10(1 + float(edge) / 700) for edge in (lowest, highest))
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    edges = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(np.int64)
    weights = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, center, right = edges[i : i + 3]
        if center == left:
            weights[center, i] = 1
        else:
            rising = np.arange(left, center + 1)
            weights[rising, i] = (rising - left) / (center - left)
        if right > center:
            falling = np.arange(center, right)
            weights[falling, i] = (right - falling) / (right - center)
    return torch.from_numpy(weights).to(device, dtype)
