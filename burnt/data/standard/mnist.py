"""MNIST, and the IDX format of its files."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.dataset import TensorDataset
from burnt.data.standard.download import RemoteFile, fetch, remote_file
from burnt.errors import DataError, quantity

_HOMES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


OTHER_ARGUMENTS = {
    "root": "it is called folder",
    "train": 'pass split="train" or "test"',
    "transform": "pass it as item_transform= or transform= of the loader, which gives it a generator",
}
"""What is said of arguments that torchvision's data sets have."""


FILES = {
    split: [remote_file(f"{start}-{kind}-ubyte.gz", *_HOMES) for kind in ("images-idx3", "labels-idx1")]
    for split, start in (("train", "train"), ("test", "t10k"))
}

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Mnist(TensorDataset):
    """MNIST: 60,000 and 10,000 digits of 28 x 28 grey values, in memory.

    Files of the same format, such as Fashion-MNIST's and KMNIST's, are read, too.

    Args:
        folder: where the files are, ``train-images-idx3-ubyte`` and so on, with or without ``.gz``; or the
            root that torchvision was given, which has them in ``MNIST/raw``.
        split: ``"train"`` or ``"test"``.
        download: download the files that are missing, 12 MB in all, into `folder`; their checksums are
            compared.
        mirror: the address of a folder that has the files, in place of their home.

    The columns are ``images``, ``[n, 1, 28, 28]`` of uint8, and ``labels``, ``[n]`` of int64.

    Raises:
        DataError: a file is missing or damaged, or cannot be downloaded.

    >>> digits = Mnist("data/mnist", download=True)  # doctest: +SKIP
    >>> digits[0].images.shape  # doctest: +SKIP
    torch.Size([1, 28, 28])
    """

    @explain_arguments(**OTHER_ARGUMENTS)
    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        download: bool = False,
        mirror: str | None = None,
    ) -> None:
        check_split(split)
        images, labels = (read_idx(_find(Path(folder), file, download, mirror)) for file in FILES[split])
        if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
            raise DataError(
                "images and labels do not fit together",
                where=str(folder),
                expected="[n, height, width] and [n]",
                found=f"{tuple(images.shape)} and {tuple(labels.shape)}",
            )
        super().__init__(images=images.unsqueeze(1), labels=labels.long())
        self.classes = [str(digit) for digit in range(10)]


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """Read a file of the IDX format, compressed by gzip or not."""
    path = Path(path)
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("a file cannot be read", where=str(path), found=str(error)) from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _DTYPES:
        raise DataError(
            "this is not an IDX file", where=str(path), found=f"it starts with {data[:4].hex() or 'nothing'}"
        )
    dtype, start = np.dtype(_DTYPES[data[2]]), 4 + 4 * data[3]
    shape = np.frombuffer(data[4:start], ">u4").tolist() if len(data) >= start else []
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected or len(shape) != data[3]:
        raise DataError(
            "an IDX file has the wrong size",
            where=str(path),
            expected=f"{quantity(expected, 'byte')} for the shape {tuple(shape)}",
            found=quantity(len(data), "byte"),
            hint="download it again",
        )
    array = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return torch.from_numpy(array.astype(dtype.newbyteorder("=")))


def check_split(split: str) -> None:
    """Refuse a split that is neither train nor test."""
    if split not in ("train", "test"):
        raise DataError("unknown split", expected='"train" or "test"', found=repr(split))


def _find(folder: Path, file: RemoteFile, download: bool, mirror: str | None) -> Path:
    plain = file.name.removesuffix(".gz")
    # Some copies of MNIST have a dot in place of the second dash.
    names = (plain, file.name, plain.replace("-idx", ".idx"))
    for place in (folder, folder / "MNIST" / "raw"):
        for name in names:
            if (place / name).is_file():
                return place / name
    if download:
        return fetch(file, folder, mirror)
    raise DataError(
        "a file of MNIST is missing",
        where=str(folder),
        expected=f"{plain} or {file.name}",
        hint="download=True downloads it",
    )
