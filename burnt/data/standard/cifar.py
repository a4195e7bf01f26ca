"""CIFAR-10 and CIFAR-100, from the binary and the Python version of their files."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.dataset import TensorDataset
from burnt.data.standard.array_pickle import read_arrays
from burnt.data.standard.download import RemoteFile, fetch
from burnt.data.standard.mnist import OTHER_ARGUMENTS, check_split
from burnt.errors import DataError, quantity

_HOME = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 3 * 32 * 32
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class _Version:
    """The files of one version: in an archive, which unpacks to a folder."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]


class _Cifar(TensorDataset):
    """What both have in common: archives, their folders, and records of labels and pixels."""

    remote: RemoteFile
    binary: _Version
    python: _Version
    label_keys: tuple[bytes, ...]
    """The labels of a record, in the order of its bytes; the names are those of the Python version."""

    classes: list[str]

    def _read(self, folder: Path, split: str, download: bool, mirror: str | None) -> tuple[Tensor, Tensor]:
        """Return images, ``[n, 3, 32, 32]`` of uint8, and labels, ``[n, kinds]`` of int64."""
        check_split(split)
        binary, python = (getattr(version, split) for version in (self.binary, self.python))
        files = _find(folder, self.binary, binary)
        if files is None and (pickles := _find(folder, self.python, python)) is not None:
            return _join([self._from_pickle(name, data) for name, data in pickles.items()])
        if files is None and download:
            fetch(self.remote, folder, mirror)
            files = _find(folder, self.binary, binary)
        if files is None:
            raise DataError(
                f"there is no {type(self).__name__} in a folder",
                where=str(folder),
                expected=f"{self.remote.name}, or a folder {self.binary.folder} or {self.python.folder}",
                hint="download=True downloads it",
            )
        return _join([self._from_binary(name, data) for name, data in files.items()])

    def _from_binary(self, name: str, data: bytes) -> tuple[Any, Any]:
        kinds = len(self.label_keys)
        if not data or len(data) % (kinds + _PIXELS):
            raise DataError(
                "a file of CIFAR has the wrong size",
                where=name,
                expected=f"a multiple of {kinds + _PIXELS} bytes",
                found=quantity(len(data), "byte"),
                hint="download it again",
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, kinds + _PIXELS)
        return records[:, kinds:], records[:, :kinds]

    def _from_pickle(self, name: str, data: bytes) -> tuple[Any, Any]:
        content = read_arrays(data, name)
        try:
            pixels, labels = content[b"data"], [content[key] for key in self.label_keys]
            records = np.stack([np.asarray(kind, np.int64) for kind in labels], axis=1)
            if pixels.shape != (len(records), _PIXELS):
                raise ValueError(f"shapes {pixels.shape} and {records.shape}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            keys = ", ".join(key.decode() for key in (b"data", *self.label_keys))
            raise DataError(
                "a file of CIFAR lacks something", where=name, expected=keys, found=repr(error)
            ) from error
        return pixels, records

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
        folder: where the binary or the Python version is: ``cifar-10-binary.tar.gz``, which need not be
            unpacked, ``cifar-10-batches-bin`` or its files; or ``cifar-10-python.tar.gz``,
            ``cifar-10-batches-py`` or its files, which are pickles and are read without running them.
        split: ``"train"`` or ``"test"``.
        download: download the binary version, 170 MB, into `folder`, if neither is there; its checksum is
            compared.
        mirror: the address of a folder that has the archive, in place of its home.

    The columns are ``images``, ``[n, 3, 32, 32]`` of uint8, and ``labels``, ``[n]`` of int64.

    Raises:
        DataError: the files are missing or damaged, or cannot be downloaded.

    >>> images = Cifar10("data/cifar", download=True)  # doctest: +SKIP
    >>> images.classes[images[0].labels]  # doctest: +SKIP
    'frog'
    """

    remote = RemoteFile(
        "cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        (_HOME + "cifar-10-binary.tar.gz",),
    )
    binary = _Version(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test=("test_batch.bin",),
    )
    python = _Version(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test=("test_batch",),
    )
    label_keys = (b"labels",)

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
        self.classes = [
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ]
        super().__init__(images=images, labels=self._check_labels(labels[:, 0]))


class Cifar100(_Cifar):
    """CIFAR-100: 50,000 and 10,000 images of 32 x 32 in 100 classes and 20 superclasses, in memory.

    Args:
        folder: as of `Cifar10`, with ``cifar-100-binary`` and ``cifar-100-python``.
        split: ``"train"`` or ``"test"``.
        coarse: the labels are the 20 superclasses.
        download, mirror: as of `Cifar10`; 169 MB.

    The columns are ``images``, ``[n, 3, 32, 32]`` of uint8, and ``labels``, ``[n]`` of int64.

    Raises:
        DataError: the files are missing or damaged, or cannot be downloaded.
    """

    remote = RemoteFile(
        "cifar-100-binary.tar.gz",
        168513733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        (_HOME + "cifar-100-binary.tar.gz",),
    )
    binary = _Version("cifar-100-binary.tar.gz", "cifar-100-binary", train=("train.bin",), test=("test.bin",))
    python = _Version("cifar-100-python.tar.gz", "cifar-100-python", train=("train",), test=("test",))
    label_keys = (b"coarse_labels", b"fine_labels")

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
        name = f"{kind}_label_names"
        if (texts := _find(folder, self.binary, [f"{name}.txt"])) is not None:
            return next(iter(texts.values())).decode().split()
        if (pickles := _find(folder, self.python, ["meta"])) is not None:
            where, data = next(iter(pickles.items()))
            return [label.decode() for label in read_arrays(data, where)[name.encode()]]
        raise DataError(
            "the names of the classes are missing",
            where=str(folder),
            expected=f"{name}.txt of the binary version, or meta of the Python version",
        )


def _find(folder: Path, version: _Version, names: Sequence[str]) -> dict[str, bytes] | None:
    """Read files from a folder, that of the version in it, or its archive; None if none of these has all."""
    for place in (folder / version.folder, folder):
        if all((place / name).is_file() for name in names):
            return {str(place / name): (place / name).read_bytes() for name in names}
    path = folder / version.archive
    if not path.is_file():
        return None
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


def _join(parts: Sequence[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
    pixels = np.concatenate([pixels for pixels, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    return torch.from_numpy(pixels).reshape(-1, 3, 32, 32), torch.from_numpy(labels.astype(np.int64))
