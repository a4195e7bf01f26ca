"""Statistics of a stored tensor's values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from burnt.record.stored import StoredTensor

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Statistics:
    """The extremes and the mean of a tensor's values that are no NaN, and the number of NaNs.

    None stands for no such values, and for complex numbers.
    """

    min: float | None
    max: float | None
    mean: float | None
    nans: int


def statistics_of(stored: StoredTensor) -> Statistics:
    """Read a tensor and return the statistics of its values.

    >>> from burnt.record.stored import MemoryTensor
    >>> statistics_of(MemoryTensor.of(torch.tensor([1.0, torch.nan, 4.0])))
    Statistics(min=1.0, max=4.0, mean=2.5, nans=1)
    """
    values = stored.read().reshape(-1)
    lows, highs, total, nans = [], [], 0.0, 0
    for part in torch.split(values, _CHUNK):  # in float64, which takes twice the memory or more
        if part.is_complex():
            nans += int(part.isnan().sum())
        elif part.numel():
            wide = part.double() if part.is_floating_point() or part.dtype == torch.bool else part
            known = wide[~wide.isnan()] if wide.is_floating_point() else wide
            nans += part.numel() - known.numel()
            if known.numel():
                low, high = known.aminmax() if known.dtype not in _UNSIGNED else known.long().aminmax()
                lows.append(low.item())
                highs.append(high.item())
                total += known.double().sum().item()
    if not lows:
        return Statistics(None, None, None, nans)
    return Statistics(min(lows), max(highs), total / (values.numel() - nans), nans)


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""dtypes that torch cannot compare; of uint64, values from 2**63 on are shown as negative."""
