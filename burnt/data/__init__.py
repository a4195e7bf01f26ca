"""Datasets, batches and loaders.

`dataset` provides items by index, `batch` is the input of a step, `loader` determines the order of batches.
Files and dataframes are datasets, such as `CsvDataset`; `operations` change them: ``data.split(rows, 0.9)``.
`image_folder` and `text_folder` read files, `standard` standard data sets; `transforms` changes images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt._lazy import own_names
from burnt.data import transforms as transforms
from burnt.data.batch import Batch as Batch
from burnt.data.batch import Mover as Mover
from burnt.data.batch import collate as collate
from burnt.data.batch import move as move
from burnt.data.batch import pin as pin
from burnt.data.dataset import Dataset as Dataset
from burnt.data.dataset import InMemoryDataset as InMemoryDataset
from burnt.data.dataset import TensorDataset as TensorDataset
from burnt.data.decoding import read_image as read_image
from burnt.data.decoding import read_mask as read_mask
from burnt.data.files.csv_files import CsvDataset as CsvDataset
from burnt.data.files.dataframe import DataframeDataset as DataframeDataset
from burnt.data.files.folders import TextFolder as TextFolder
from burnt.data.files.hugging_face import HuggingFaceDataset as HuggingFaceDataset
from burnt.data.files.image_files import ImageFiles as ImageFiles
from burnt.data.files.image_folder import ImageFolder as ImageFolder
from burnt.data.files.image_folder import MultiLabelImageFolder as MultiLabelImageFolder
from burnt.data.files.image_folder import SegmentationFolder as SegmentationFolder
from burnt.data.files.json_lines import JsonLinesDataset as JsonLinesDataset
from burnt.data.files.parquet import ParquetDataset as ParquetDataset
from burnt.data.files.sqlite import SqliteDataset as SqliteDataset
from burnt.data.loading.iterable_loader import IterableLoader as IterableLoader
from burnt.data.loading.iterable_loader import as_loader as as_loader
from burnt.data.loading.loader import EpochLoader as EpochLoader
from burnt.data.loading.loader import LimitedLoader as LimitedLoader
from burnt.data.loading.loader import Loader as Loader
from burnt.data.loading.loader import Part as Part
from burnt.data.loading.loader import RepeatedLoader as RepeatedLoader
from burnt.data.loading.loader import ResumableIterator as ResumableIterator
from burnt.data.loading.loader import ResumableLoader as ResumableLoader
from burnt.data.loading.pack import Pack as Pack
from burnt.data.loading.pack import Pad as Pad
from burnt.data.loading.pack import segment_mask as segment_mask
from burnt.data.loading.pack import segment_starts as segment_starts
from burnt.data.loading.samplers import Buckets as Buckets
from burnt.data.loading.samplers import ClassBalanced as ClassBalanced
from burnt.data.loading.samplers import Sampler as Sampler
from burnt.data.loading.samplers import SubsetSampler as SubsetSampler
from burnt.data.loading.samplers import TorchSampler as TorchSampler
from burnt.data.loading.samplers import WeightedSampler as WeightedSampler
from burnt.data.loading.stream import Shards as Shards
from burnt.data.loading.stream import StreamLoader as StreamLoader
from burnt.data.operations import cache as cache
from burnt.data.operations import chunks as chunks
from burnt.data.operations import concat as concat
from burnt.data.operations import filter as filter
from burnt.data.operations import map as map
from burnt.data.operations import sample as sample
from burnt.data.operations import select as select
from burnt.data.operations import shuffle as shuffle
from burnt.data.operations import split as split
from burnt.data.operations import windows as windows
from burnt.data.standard.ag_news import AgNews as AgNews
from burnt.data.standard.cifar import Cifar10 as Cifar10
from burnt.data.standard.cifar import Cifar100 as Cifar100
from burnt.data.standard.mnist import Mnist as Mnist

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __all__ = ["transforms", *own_names(globals())]

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
