"""Datasets, batches and loaders.

`dataset` provides items by index, `batch` is the input of a step, `loader` determines the order of batches.
Files and dataframes are datasets, such as `CsvDataset`; `operations` change them: ``data.split(rows, 0.9)``.
`image_folder` and `text_folder` read files, `standard` standard data sets; `transforms` changes images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.data.batch import Batch, Mover, collate, move, pin
from burnt.data.buckets import Buckets
from burnt.data.dataset import Dataset, InMemoryDataset, TensorDataset
from burnt.data.loader import (
    EpochLoader,
    IterableLoader,
    Loader,
    ResumableIterator,
    ResumableLoader,
    as_loader,
)
from burnt.data.pack import Pack, segment_mask, segment_starts
from burnt.data.pad import Pad
from burnt.data.samplers import ClassBalanced, Sampler, SubsetSampler, TorchSampler, WeightedSampler
from burnt.data.stream import Shards, StreamLoader
from burnt.data.limit import LimitedLoader, RepeatedLoader
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
from burnt.data import transforms
from burnt.data.batch import Batch, collate, move
from burnt.data.dataset import Dataset, InMemoryDataset, TensorDataset
from burnt.data.decoding import read_image, read_mask
from burnt.data.image_folder import ImageFolder, MultiLabelImageFolder, SegmentationFolder
from burnt.data.loader import IterableLoader, Loader, as_loader
from burnt.data.standard.ag_news import AgNews
from burnt.data.standard.cifar import Cifar10, Cifar100
from burnt.data.standard.mnist import Mnist
from burnt.data.text_folder import TextFolder

__all__ = [
    "AgNews",
    "Batch",
    "Buckets",
    "ClassBalanced",
    "Dataset",
    "EpochLoader",
    "Cifar10",
    "Cifar100",
    "Dataset",
    "ImageFolder",
    "InMemoryDataset",
    "IterableLoader",
    "LimitedLoader",
    "Loader",
    "Mover",
    "Pack",
    "Pad",
    "ResumableIterator",
    "ResumableLoader",
    "Sampler",
    "Shards",
    "StreamLoader",
    "SubsetSampler",
    "RepeatedLoader",
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
    "TorchSampler",
    "WeightedSampler",
    "Mnist",
    "MultiLabelImageFolder",
    "SegmentationFolder",
    "TensorDataset",
    "TextFolder",
    "as_loader",
    "cache",
    "chunks",
    "collate",
    "concat",
    "filter",
    "map",
    "move",
    "pin",
    "segment_mask",
    "segment_starts",
    "sample",
    "select",
    "shuffle",
    "split",
    "windows",
    "read_image",
    "read_mask",
    "transforms",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
