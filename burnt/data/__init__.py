"""Datasets, batches and loaders.

`dataset` provides items by index, `batch` is the input of a step, `loader` determines the order of batches.
`image_folder` and `text_folder` read files, `standard` standard data sets; `transforms` changes images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
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
    "Cifar10",
    "Cifar100",
    "Dataset",
    "ImageFolder",
    "InMemoryDataset",
    "IterableLoader",
    "Loader",
    "Mnist",
    "MultiLabelImageFolder",
    "SegmentationFolder",
    "TensorDataset",
    "TextFolder",
    "as_loader",
    "collate",
    "move",
    "read_image",
    "read_mask",
    "transforms",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
