"""What users have in hand as datasets: `datasets.Dataset`, dataframes, tensors and arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.data.files.dataframe import DataframeDataset
from burnt.data.files.hugging_face import HuggingFaceDataset
from burnt.errors import DataError


def as_dataset(source: Any) -> Any:
    """Return a dataset with items by index, and `take` only if that means a batch of the items at indices.

    `datasets.Dataset`, dataframes, tensors and arrays have a `take`, or an index, that means something else,
    so they are wrapped; a series becomes a list. Everything else with a length and items by index is returned
    as it is.

    >>> as_dataset(torch.arange(6).view(3, 2)).take(torch.tensor([2, 0]))
    tensor([[4, 5],
            [0, 1]])
    """
    if isinstance(source, np.ndarray) and source.dtype.kind not in "biufc":
        return list(source)  # of texts or objects, which no tensor holds
    if isinstance(source, Tensor | np.ndarray):
        return Rows(source)
    if hasattr(source, "to_frame") and hasattr(source, "to_list"):  # a series of pandas or polars
        return source.to_list()
    if hasattr(source, "select_columns") and hasattr(source, "with_format"):
        return HuggingFaceDataset(source)
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "__getitems__"):
        return DataframeDataset(source)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            "this is not a dataset",
            expected="a length and items by index",
            found=type(source).__name__,
            hint="list(...) makes one of an iterable" if hasattr(source, "__iter__") else None,
        )
    return source


class Rows:
    """The entries of a tensor or array along its first axis."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]

    def take(self, indices: Tensor) -> Tensor:
        """The values at these places, in one step."""
        if isinstance(self._values, Tensor):
            return self._values[indices.to(self._values.device)]
        return torch.from_numpy(self._values[indices.numpy()])
