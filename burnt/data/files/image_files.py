"""ImageFiles: a column of a table with the paths of images, which are decoded when an item is read."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burnt.data.decoding import ImageMode, read_image
from burnt.data.transforms.geometry import Resize
from burnt.errors import DataError


@dataclass(frozen=True)
class ImageFiles:
    """Declares, in ``types=`` of a table, that a column holds paths of images, which the items have decoded.

    Args:
        folder: what the paths are relative to. It is relative itself to the folder of the table's file, or to
            the current one for a dataframe.
        mode, dtype, background: how images are decoded, as in `burnt.data.read_image`.
        size: ``(height, width)`` or the length of the shorter side in pixels, to which images are resized as
            by `burnt.data.transforms.Resize`; None keeps their sizes.

    An entry is ``[C, H, W]`` of `dtype`. Name it ``images`` for the transforms of a loader:
    ``columns={"images": "photo", ...}``.

    Raises:
        DataError: the folder does not exist; of an item, that an image cannot be read: the message names row,
            column and file.
        UnsupportedError: Pillow is not installed.

    >>> import pathlib, tempfile
    >>> from PIL import Image
    >>> from burnt import data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> Image.new("RGB", (8, 6)).save(folder / "1.png")
    >>> _ = (folder / "pets.csv").write_text("photo,kind\\n1.png,cat\\n")
    >>> pets = data.CsvDataset(folder / "pets.csv", types={"photo": ImageFiles(size=(4, 4))}, label="kind")
    >>> pets[0]["photo"].shape
    torch.Size([3, 4, 4])
    """

    folder: str | os.PathLike[str] = ""
    mode: ImageMode = "RGB"
    dtype: torch.dtype = torch.uint8
    background: int | tuple[int, int, int] | None = None
    size: int | tuple[int, int] | None = None
    _base: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", os.fspath(self.folder))
        if self.size is not None:
            Resize(self.size)  # raises if it has another form

    def __str__(self) -> str:
        return "a path of an image"

    @property
    def place(self) -> str:
        """The folder that paths are relative to."""
        return os.path.join(self._base, self.folder)

    def below(self, base: str, column: str) -> ImageFiles:
        """Return this, with its folder relative to `base`; raise a DataError if there is none."""
        found = copy.copy(self)
        object.__setattr__(found, "_base", base)
        if not os.path.isdir(folder := os.path.join(base, self.folder) or "."):
            raise DataError(
                "the folder of a column of images does not exist",
                where=f"types[{column!r}]",
                expected="a folder, relative to that of the table's file",
                found=folder,
            )
        return found

    def read(self, column: str, place: Callable[[int], str], cell: Any, index: int) -> Tensor:
        """Return the image of a row, whose cell is text, also of Arrow; ``place(index)`` is for messages."""
        path = os.path.join(self.place, str(cell))
        try:
            image = read_image(path, mode=self.mode, dtype=self.dtype, background=self.background)
            return image if self.size is None else Resize(self.size)(image)
        except DataError as error:
            error.where = f"{place(index)}, column {column!r}: {path}"
            if not os.path.exists(path):
                error.hint = "ImageFiles(folder=) is relative to the folder of the table's file"
            raise
