"""Datasets, batches and loaders.

`dataset` holds what is served, `batch` what a step receives, `loader` the order in which it comes.
"""

from __future__ import annotations

from burnt.data.batch import Batch, collate, move
from burnt.data.dataset import Dataset, InMemoryDataset, TensorDataset
from burnt.data.loader import IterableLoader, Loader, as_loader

__all__ = [
    "Batch",
    "Dataset",
    "InMemoryDataset",
    "IterableLoader",
    "Loader",
    "TensorDataset",
    "as_loader",
    "collate",
    "move",
]
