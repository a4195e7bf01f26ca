"""CIFAR-10 and CIFAR-100, from the binary version of their files."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.dataset import TensorDataset
from burnt.data.standard.download import RemoteFile, fetch, remote_file
from burnt.data.standard.mnist import OTHER_ARGUMENTS, check_split
from burnt.errors import DataError, quantity

_HOME = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 3 * 32 * 32
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class _Cifar(TensorDataset):
    """Archives, the folders that they unpack to, and records of labels and pixels."""

    remote: RemoteFile
    unpacked: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_kinds: int
    """The number of labels, of a byte each, before the pixels of a record."""

    classes: list[str]

    def _read(self, folder: Path, split: str, download: bool, mirror: str | None) -> tuple[Tensor, Tensor]:
        """Return images, ``[n, 3, 32, 32]`` of uint8, and labels, ``[n, kinds]`` of int64."""
        check_split(split)
        files = self._find(folder, getattr(self, split))
        if files is None and download:
            fetch(self.remote, folder, mirror)
            files = self._find(folder, getattr(self, split))
        if files is None:
            raise DataError(
                f"there is no {type(self).__name__} in a folder",
                where=str(folder),
                expected=f"{self.remote.name}, or a folder {self.unpacked}: the binary version",
                hint="download=True downloads it",
            )
        size = self.label_kinds + _PIXELS
        for name, data in files.items():
            if not data or len(data) % size:
                raise DataError(
                    "a file of CIFAR has the wrong size",
                    where=name,
                    expected=f"a multiple of {size} bytes",
                    found=quantity(len(data), "byte"),
                    hint="download it again",
                )
        records = np.frombuffer(b"".join(files.values()), np.uint8).reshape(-1, size)
        pixels, labels = records[:, self.label_kinds :].copy(), records[:, : self.label_kinds]
        return torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels.astype(np.int64))

    def _find(self, folder: Path, names: Sequence[str]) -> dict[str, bytes] | None:
        """Read files from a folder, the unpacked one in it, or its archive; None if none of these has all."""
        for place in (folder / self.unpacked, folder):
            if all((place / name).is_file() for name in names):
                return {str(place / name): (place / name).read_bytes() for name in names}
        path = folder / self.remote.name
        return _unpack(path, names) if path.is_file() else None

    def _check_labels(self, labels: Tensor) -> Tensor:
        if int(labels.max()) >= len(self.classes):
            row = int(labels.argmax())
            raise DataError(
                "a label is out of range",
                where=f"image {row}",
                expected=f"0 to {len(self.classes) - 1}",
                found=int(labels[row]),
            )
        return labels


class Cifar10(_Cifar):
    """CIFAR-10: 50,000 and 10,000 images of 32 x 32 in 10 classes, in memory.

    Args:
        folder: where the binary version is: ``cifar-10-binary.tar.gz``, which need not be unpacked,
            ``cifar-10-batches-bin`` or its files.
        split: ``"train"`` or ``"test"``.
        download: download it, 170 MB, into `folder`, if it is not there; its checksum is compared.
        mirror: the address of a folder that has the archive, in place of its home.

    The columns are ``images``, ``[n, 3, 32, 32]`` of uint8, and ``labels``, ``[n]`` of int64.

    Raises:
        DataError: the files are missing or damaged, or cannot be downloaded.

    >>> images = Cifar10("data/cifar", download=True)  # doctest: +SKIP
    >>> images.classes[images[0].labels]  # doctest: +SKIP
    'frog'
    """

    remote = remote_file("cifar-10-binary.tar.gz", _HOME)
    unpacked = "cifar-10-batches-bin"
    train = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    test = ("test_batch.bin",)
    label_kinds = 1

    @explain_arguments(**OTHER_ARGUMENTS)
    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        download: bool = False,
        mirror: str | None = None,
    ) -> None:
        images, labels = self._read(Path(folder), split, download, mirror)
        self.classes = list(_CLASSES)
        super().__init__(images=images, labels=self._check_labels(labels[:, 0]))


class Cifar100(_Cifar):
    """CIFAR-100: 50,000 and 10,000 images of 32 x 32 in 100 classes and 20 superclasses, in memory.

    Args:
        folder: the folder that holds ``cifar-100-binary``, as in `Cifar10`.
        split: ``"train"`` or ``"test"``.
        coarse: the labels are the 20 superclasses.
        download, mirror: as in `Cifar10`; 169 MB.

    The columns are ``images``, ``[n, 3, 32, 32]`` of uint8, and ``labels``, ``[n]`` of int64.

    Raises:
        DataError: the files are missing or damaged, or cannot be downloaded.
    """

    remote = remote_file("cifar-100-binary.tar.gz", _HOME)
    unpacked = "cifar-100-binary"
    train, test = ("train.bin",), ("test.bin",)
    label_kinds = 2  # coarse, fine

    @explain_arguments(**OTHER_ARGUMENTS)
    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        coarse: bool = False,
        download: bool = False,
        mirror: str | None = None,
    ) -> None:
        images, labels = self._read(Path(folder), split, download, mirror)
        self.classes = self._class_names(Path(folder), "coarse" if coarse else "fine")
        super().__init__(images=images, labels=self._check_labels(labels[:, 0 if coarse else 1]))

    def _class_names(self, folder: Path, kind: str) -> list[str]:
        name = f"{kind}_label_names.txt"
        texts = self._find(folder, [name])
        if texts is None:
            raise DataError("the names of the classes are missing", where=str(folder), expected=name)
        return next(iter(texts.values())).decode().split()


def _unpack(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    found = {}
    try:
        with tarfile.open(path, "r|gz") as tar:  # as a stream: to look a name up would unpack all twice
            for member in tar:
                base = member.name.rsplit("/", 1)[-1]
                if base in names and (file := tar.extractfile(member)) is not None:
                    found[base] = file.read()
                if len(found) == len(names):
                    break
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(
            "an archive is damaged",
            where=str(path),
            found=str(error),
            hint="delete it, and download it again",
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError("an archive lacks files", where=str(path), found=f"no {', '.join(missing)}")
    return {f"{path}: {name}": found[name] for name in names}
