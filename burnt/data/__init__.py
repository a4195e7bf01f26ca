"""Datasets, batches and loaders.

`dataset` provides items by index, `batch` is the input of a step, `loader` determines the order of batches.
Files and dataframes are datasets, such as `CsvDataset`; `operations` change them: ``data.split(rows, 0.9)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.data.arrow import DataframeDataset, ParquetDataset
from burnt.data.batch import Batch, collate, move
from burnt.data.csv_files import CsvDataset
from burnt.data.dataset import Dataset, InMemoryDataset, TensorDataset
from burnt.data.hugging_face import HuggingFaceDataset
from burnt.data.json_lines import JsonLinesDataset
from burnt.data.loader import IterableLoader, Loader, as_loader
from burnt.data.operations import (
    cache,
    chunks,
    concat,
    filter,
    map,
    sample,
    select,
    shuffle,
    split,
    windows,
)
from burnt.data.sqlite import SqliteDataset

__all__ = [
    "Batch",
    "CsvDataset",
    "DataframeDataset",
    "Dataset",
    "HuggingFaceDataset",
    "InMemoryDataset",
    "IterableLoader",
    "JsonLinesDataset",
    "Loader",
    "ParquetDataset",
    "SqliteDataset",
    "TensorDataset",
    "as_loader",
    "cache",
    "chunks",
    "collate",
    "concat",
    "filter",
    "map",
    "move",
    "sample",
    "select",
    "shuffle",
    "split",
    "windows",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
