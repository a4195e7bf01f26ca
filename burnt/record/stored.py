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

    def read_rows_into(self, first: int, out: Tensor) -> None:
        """Write to `out` as many rows as it has, from the one numbered `first` on.

        Raises:
            RecordError, OSError: as in `read_into`.
        """
        whole = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read_into(whole)
        out.copy_(whole[first : first + out.shape[0]])

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that the values come from; a layout arranges some of several."""
        return (self,)

    def verify(self, where: str) -> None:
        """Raise a RecordError if the values are damaged, where the format allows to tell."""
