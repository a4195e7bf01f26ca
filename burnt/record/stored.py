"""A tensor in a file or in memory, that is read when it is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a source: its shape and dtype, and a way to read its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def read_into(self, out: Tensor) -> None:
        """Write the values to a tensor of the same shape, of any dtype and device.

        Raises:
            RecordError: the values are damaged.
            OSError: the file cannot be read.
        """
        raise NotImplementedError

    def verify(self, where: str) -> None:
        """Raise a RecordError if the values are damaged, where the format allows to tell."""
