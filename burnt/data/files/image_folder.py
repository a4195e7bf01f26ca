"""Datasets of pictures in folders: for classification, with several labels each, and with masks."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.data.decoding import ImageMode, import_pillow, read_image, read_mask
from burnt.data.files.folders import check_splits, find_files, find_labelled
from burnt.errors import DataError, did_you_mean, quantity

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
"""Files that are pictures, in lower or upper case; every other file is in `others`."""

PathLike = str | os.PathLike[str]


class _Images:
    """What the datasets of this file share: paths, and how their pictures are read."""

    def __init__(
        self,
        folder: PathLike,
        mode: ImageMode,
        dtype: torch.dtype,
        background: int | tuple[int, int, int] | None,
    ) -> None:
        self.folder = Path(folder)
        self.mode = mode
        self.dtype = dtype
        self.background = background
        self.paths: list[str] = []
        import_pillow(str(folder))  # at the start, rather than at the first item

    def __len__(self) -> int:
        return len(self.paths)

    def _read(self, index: int) -> Tensor:
        path = self.folder / self.paths[index]
        return read_image(path, mode=self.mode, dtype=self.dtype, background=self.background)


class ImageFolder(_Images):
    """Pictures for classification, in a folder for each class.

    ::

        flowers/daisy/1.jpg
        flowers/daisy/more/2.png
        flowers/tulip/1.jpg

    Classes, and the files of each, are sorted by name. Hidden files are left out, links are followed.
    Pictures are read when they are asked for, and may differ in size: `burnt.data.transforms` resizes them.

    Args:
        folder: the folder that holds the folders of the classes.
        classes: the classes in the order of their labels, which other folders are no part of; None takes all
            folders, sorted. Pass ``train.classes`` to the validation data.
        mode: ``"RGB"``, ``"L"`` or ``"RGBA"``, as in `read_image`.
        dtype: ``torch.uint8``, or ``torch.float32`` from 0 to 1, as in `read_image`. Bytes are a quarter to
            copy and to keep, and `transforms.ToFloat` makes them floats last.
        background: the colour behind transparent pixels; None drops the alpha channel.
        allow_empty: whether a class may have no pictures.

    Items are ``{"images": [C, H, W], "labels": int}``: the names that the fields of a batch have, since
    `collate` keeps them.

    Attributes:
        classes: the names of the classes; ``labels`` index them.
        paths: the pictures' paths, relative to `folder`.
        labels: the pictures' labels.
        others: files that are not pictures by their suffix, relative to `folder`.

    Raises:
        DataError: there is no such folder, it has no classes, or a class has no pictures; of an item, that
            its file cannot be decoded, with its path.
        UnsupportedError: Pillow is not installed.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("daisy", "tulip"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (8, 6)).save(folder / name / "1.png")
    >>> flowers = ImageFolder(folder)
    >>> flowers
    ImageFolder(2 images, 2 classes)
    >>> flowers.classes, flowers.paths, flowers[1]["images"].shape, flowers[1]["labels"]
    (['daisy', 'tulip'], ['daisy/1.png', 'tulip/1.png'], torch.Size([3, 6, 8]), 1)
    """

    @explain_arguments(
        root="it is called folder",
        transform="pass it as item_transform= of the loader, which gives it a generator",
        target_transform="labels index classes=, which gives their order",
        loader="pictures are read by burnt.data.read_image; mode=, dtype= and background= are passed to it",
        is_valid_file="files are pictures by their suffix; others are listed in the attribute others",
    )
    def __init__(
        self,
        folder: PathLike,
        *,
        classes: Sequence[str] | None = None,
        mode: ImageMode = "RGB",
        dtype: torch.dtype = torch.uint8,
        background: int | tuple[int, int, int] | None = None,
        allow_empty: bool = False,
    ) -> None:
        super().__init__(folder, mode, dtype, background)
        self.classes, self.paths, self.labels, self.others = find_labelled(
            self.folder, classes, IMAGE_SUFFIXES, "images", allow_empty
        )

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"images": self._read(index), "labels": self.labels[index]}

    def __repr__(self) -> str:
        ignored = f", {quantity(len(self.others), 'other file')}" if self.others else ""
        classes = f"{len(self.classes)} class{'es' if len(self.classes) != 1 else ''}"
        return f"ImageFolder({quantity(len(self), 'image')}, {classes}{ignored})"


class MultiLabelImageFolder(_Images):
    """Pictures with any number of labels each, which a mapping or a file has.

    Args:
        folder: the folder that holds the pictures.
        labels: the classes of each picture, by its path relative to `folder`:

            - a mapping, ``{"1.jpg": ["cat", "dog"], "2.jpg": []}``
            - a ``.json`` file with such an object
            - a ``.csv`` file with a header and two columns, the path and the classes with `separator` between
              them; or with a column of 0 or 1 for each class, whose name is in the header.

        classes: the classes in the order of their columns; None takes all that occur, sorted, or the
            header's.
        separator: the text between the classes in a CSV file of two columns.
        mode, dtype, background: how pictures are decoded, as in `ImageFolder`.

    Items are ``{"images": [C, H, W], "labels": [classes]}``; the labels are 1 or 0 in float32, as
    `nn.BinaryCrossEntropyWithLogits` takes them. They have the order of the mapping or file.

    Attributes:
        classes: the names of the classes.
        paths: the pictures' paths, relative to `folder`.

    Raises:
        DataError: a file does not exist, a class is not in `classes`, or a line cannot be read, with its
            number; of an item, that its file cannot be decoded.
        UnsupportedError: Pillow is not installed.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (8, 6)).save(folder / "1.png")
    >>> pets = MultiLabelImageFolder(folder, {"1.png": ["dog"]}, classes=["cat", "dog"])
    >>> pets[0]["labels"]
    tensor([0., 1.])
    """

    def __init__(
        self,
        folder: PathLike,
        labels: Mapping[str, Sequence[str]] | PathLike,
        *,
        classes: Sequence[str] | None = None,
        separator: str = " ",
        mode: ImageMode = "RGB",
        dtype: torch.dtype = torch.uint8,
        background: int | tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(folder, mode, dtype, background)
        where = "labels=" if isinstance(labels, Mapping) else str(labels)
        header: list[str] | None = None
        if not isinstance(labels, Mapping):
            labels, header = _read_labels(Path(labels), separator)
        names = classes if classes is not None else header
        self.classes = (
            list(names) if names is not None else sorted({n for row in labels.values() for n in row})
        )
        self.paths = list(labels)
        columns = {name: column for column, name in enumerate(self.classes)}
        self._columns: list[list[int]] = []
        for path, row in labels.items():
            if isinstance(row, str) or not all(isinstance(name, str) for name in row):
                raise DataError(
                    "the labels of a picture must be a list of names",
                    where=f"{where}: {path}",
                    expected='["cat", "dog"]',
                    found=repr(row),
                )
            unknown = next((name for name in row if name not in columns), None)
            if unknown is not None:
                raise DataError(
                    f"a picture has an unknown class: {unknown!r}",
                    where=f"{where}: {path}",
                    expected=", ".join(self.classes[:20]),
                    hint=did_you_mean(unknown, self.classes),
                )
            self._columns.append([columns[name] for name in row])
            if not (self.folder / path).is_file():
                raise DataError(
                    "a picture does not exist", where=str(self.folder / path), found=f"in {where}"
                )

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = torch.zeros(len(self.classes))
        labels[self._columns[index]] = 1
        return {"images": self._read(index), "labels": labels}

    def __repr__(self) -> str:
        return f"MultiLabelImageFolder({quantity(len(self), 'image')}, {len(self.classes)} classes)"


class SegmentationFolder(_Images):
    """Pictures, each with a mask of the same name in another folder.

    ::

        street/images/a/1.jpg      street/masks/a/1.png
        street/images/a/2.jpg      street/masks/a/2.png

    Args:
        images: the folder of the pictures.
        masks: the folder of their masks, which may have other suffixes: grey values or palette indices are
            the classes.
        mask_suffix: what the names of the masks have after the pictures', such as ``"_mask"``.
        classes: the names of the classes, only for `classes`.
        mode, dtype, background: how pictures are decoded, as in `ImageFolder`.

    Items are ``{"images": [C, H, W], "masks": [H, W]}``; masks are uint8, or int64 if they have more than 8
    bits. `nn.CrossEntropy` takes both. The transforms move images and masks together.

    Attributes:
        classes: as passed; None if not.
        paths: the pictures' paths, relative to `images`.
        mask_paths: the masks' paths, relative to `masks`.

    Raises:
        DataError: there is no such folder, or a picture without a mask or the reverse; of an item, that a
            file cannot be decoded, a mask has colours, or the sizes differ.
        UnsupportedError: Pillow is not installed.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, kind in ("images", "RGB"), ("masks", "L"):
    ...     (folder / name).mkdir()
    ...     Image.new(kind, (8, 6)).save(folder / name / "1.png")
    >>> item = SegmentationFolder(folder / "images", folder / "masks")[0]
    >>> item["images"].shape, item["masks"].shape
    (torch.Size([3, 6, 8]), torch.Size([6, 8]))
    """

    def __init__(
        self,
        images: PathLike,
        masks: PathLike,
        *,
        mask_suffix: str = "",
        classes: Sequence[str] | None = None,
        mode: ImageMode = "RGB",
        dtype: torch.dtype = torch.uint8,
        background: int | tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__(images, mode, dtype, background)
        self.mask_folder = Path(masks)
        self.classes = None if classes is None else list(classes)
        self.paths, _ = find_files(self.folder, IMAGE_SUFFIXES)
        parts = sorted({path.partition("/")[0] for path in self.paths if "/" in path})
        check_splits(self.folder, parts, "join them by data.concat")
        found, _ = find_files(self.mask_folder, IMAGE_SUFFIXES)
        by_name = {os.path.splitext(path)[0]: path for path in found}
        wanted = [os.path.splitext(path)[0] + mask_suffix for path in self.paths]
        if not self.paths:
            raise DataError("a folder has no images", where=str(self.folder))
        for name, paths, kind, whose in (
            (self.mask_folder, [n for n in wanted if n not in by_name], "mask", "image"),
            (self.folder, sorted(by_name.keys() - set(wanted)), "image", "mask"),
        ):
            if paths:
                raise DataError(
                    f"{quantity(len(paths), whose)} without {kind}",
                    where=str(name),
                    expected=f"a {kind} of the same name for each {whose}",
                    found=f"none for {', '.join(paths[:3])}{' ...' if len(paths) > 3 else ''}",
                    hint='mask_suffix="_mask" finds 1_mask.png for 1.jpg' if not mask_suffix else None,
                )
        self.mask_paths = [by_name[name] for name in wanted]

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self._read(index)
        path = self.mask_folder / self.mask_paths[index]
        mask = read_mask(path)
        if image.shape[-2:] != mask.shape:
            raise DataError(
                "an image and its mask differ in size",
                where=f"{self.folder / self.paths[index]} and {path}",
                expected=f"{image.shape[-1]} x {image.shape[-2]}, as the image has",
                found=f"{mask.shape[-1]} x {mask.shape[-2]}",
            )
        return {"images": image, "masks": mask}

    def __repr__(self) -> str:
        return f"SegmentationFolder({quantity(len(self), 'image')} with masks)"


def _read_labels(path: Path, separator: str) -> tuple[dict[str, list[str]], list[str] | None]:
    """Read the classes of pictures from a file; the classes of a header with a column for each, else None."""
    suffix = path.suffix.lower()
    if suffix not in (".json", ".csv"):
        raise DataError(
            "labels are read from .json and .csv files", where=str(path), found=suffix or "no suffix"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        if suffix == ".json":
            labels = json.loads(text)
            if not isinstance(labels, dict) or not all(isinstance(row, list) for row in labels.values()):
                raise ValueError("expected an object with a list of names for each path")
            return labels, None
    except (OSError, ValueError) as error:
        raise DataError("the labels cannot be read", where=str(path), found=str(error)) from error
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        return _parse_rows(rows, separator, path)
    except csv.Error as error:
        where = f"{path}:{rows.line_num}"
        raise DataError("the labels cannot be read", where=where, found=str(error)) from error


def _parse_rows(rows: Any, separator: str, path: Path) -> tuple[dict[str, list[str]], list[str] | None]:
    header: list[str] = next(rows, [])
    if len(header) < 2:
        raise DataError(
            "the labels have no columns of classes",
            where=f"{path}:1",
            expected="a header, with the column of the paths first",
            found=", ".join(header) or "an empty file",
        )
    result: dict[str, list[str]] = {}
    for row in rows:
        where = f"{path}:{rows.line_num}"
        if len(row) != len(header):
            raise DataError("a row has the wrong length", where=where, expected=len(header), found=len(row))
        file, *values = row
        if file in result:
            raise DataError("a picture has two rows", where=where, found=file)
        if len(header) == 2:
            result[file] = [name.strip() for name in values[0].split(separator) if name.strip()]
            continue
        wrong = next((v for v in values if v.strip() not in ("0", "1")), None)
        if wrong is not None:
            raise DataError("a column of a class has neither 0 nor 1", where=where, found=repr(wrong))
        result[file] = [name for name, value in zip(header[1:], values, strict=True) if value.strip() == "1"]
    return result, header[1:] if len(header) > 2 else None
