"""Datasets, batches and loaders.

`dataset` provides items by index, `batch` is the input of a step, `loader` determines the order of batches.
Files and dataframes are datasets, such as `CsvDataset`; `operations` change them: ``data.split(rows, 0.9)``.
`image_folder` and `text_folder` read files, `standard` standard data sets; `transforms` changes images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.data import transforms
from burnt.data.batch import Batch, Mover, collate, move, pin
from burnt.data.dataset import Dataset, InMemoryDataset, TensorDataset
from burnt.data.decoding import read_image, read_mask
from burnt.data.files.csv_files import CsvDataset
from burnt.data.files.dataframe import DataframeDataset
from burnt.data.files.hugging_face import HuggingFaceDataset
from burnt.data.files.image_folder import ImageFolder, MultiLabelImageFolder, SegmentationFolder
from burnt.data.files.json_lines import JsonLinesDataset
from burnt.data.files.parquet import ParquetDataset
from burnt.data.files.sqlite import SqliteDataset
from burnt.data.files.text_folder import TextFolder
from burnt.data.limit import LimitedLoader, RepeatedLoader
from burnt.data.loading.buckets import Buckets
from burnt.data.loading.iterable_loader import IterableLoader, as_loader
from burnt.data.loading.loader import EpochLoader, Loader, ResumableIterator, ResumableLoader
from burnt.data.loading.pack import Pack, segment_mask, segment_starts
from burnt.data.loading.pad import Pad
from burnt.data.loading.samplers import ClassBalanced, Sampler, SubsetSampler, TorchSampler, WeightedSampler
from burnt.data.loading.shard_reader import Shards
from burnt.data.loading.stream import StreamLoader
from burnt.data.operations import cache, chunks, concat, filter, map, sample, select, shuffle, split, windows
from burnt.data.standard.ag_news import AgNews
from burnt.data.standard.cifar import Cifar10, Cifar100
from burnt.data.standard.mnist import Mnist

__all__ = [
    "AgNews",
    "Batch",
    "Buckets",
    "Cifar10",
    "Cifar100",
    "ClassBalanced",
    "CsvDataset",
    "DataframeDataset",
    "Dataset",
    "EpochLoader",
    "HuggingFaceDataset",
    "ImageFolder",
    "InMemoryDataset",
    "IterableLoader",
    "JsonLinesDataset",
    "LimitedLoader",
    "Loader",
    "Mnist",
    "Mover",
    "MultiLabelImageFolder",
    "Pack",
    "Pad",
    "ParquetDataset",
    "RepeatedLoader",
    "ResumableIterator",
    "ResumableLoader",
    "Sampler",
    "SegmentationFolder",
    "Shards",
    "SqliteDataset",
    "StreamLoader",
    "SubsetSampler",
    "TensorDataset",
    "TextFolder",
    "TorchSampler",
    "WeightedSampler",
    "as_loader",
    "cache",
    "chunks",
    "collate",
    "concat",
    "filter",
    "map",
    "move",
    "pin",
    "read_image",
    "read_mask",
    "sample",
    "segment_mask",
    "segment_starts",
    "select",
    "shuffle",
    "split",
    "transforms",
    "windows",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
