"""Decode pictures to tensors with Pillow: orientation, palettes, alpha, 16 bits, errors with the file."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from burnt.errors import DataError, UnsupportedError

__all__ = ["ImageMode", "read_image", "read_mask"]

if TYPE_CHECKING:
    from PIL import Image

ImageMode = Literal["RGB", "L", "RGBA"]

_ORIENTATION = 0x0112  # the tag of EXIF
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def read_image(
    source: str | os.PathLike[str] | bytes | Image.Image,
    *,
    mode: ImageMode = "RGB",
    dtype: torch.dtype = torch.uint8,
    background: int | tuple[int, int, int] | None = None,
) -> Tensor:
    """Decode a picture to a tensor.

    The orientation in its EXIF data is applied, palettes become colours, and of an animation the first frame
    is read. Grey pictures of 16 bits are scaled to the whole range, where ``Image.convert`` of Pillow cuts
    off all above 255.

    Args:
        source: a path, the bytes of a file, or an image of Pillow.
        mode: ``"RGB"``, ``"L"`` for grey, or ``"RGBA"``, which keeps the alpha channel.
        dtype: ``torch.uint8`` from 0 to 255, or ``torch.float32`` from 0 to 1, which keeps the precision of
            grey pictures of 16 bits.
        background: the colour behind transparent pixels in the modes RGB and L; None drops the alpha channel,
            as Pillow and torchvision do.

    Returns:
        ``[C, H, W]`` of `dtype`, where C is 3, 1 or 4. The channels of a pixel are adjacent in memory, which
        makes resizing fast; `transforms.ToFloat` makes the image contiguous.

    Raises:
        DataError: the picture cannot be read or decoded; it names the file.
        UnsupportedError: Pillow is not installed.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (4, 3), (255, 0, 0)).save(file, "png")
    >>> read_image(file.getvalue())[:, 0, 0], read_image(file.getvalue(), mode="L").shape
    (tensor([255,   0,   0], dtype=torch.uint8), torch.Size([1, 3, 4]))
    """
    if mode not in ("RGB", "L", "RGBA"):
        raise DataError("unknown mode of images", expected='"RGB", "L" or "RGBA"', found=repr(mode))
    if dtype not in (torch.uint8, torch.float32):
        raise DataError("images have no such dtype", expected="torch.uint8 or torch.float32", found=dtype)
    with _decoding(source) as image:
        image = _upright(image)
        if image.mode in _SIXTEEN_BITS or image.mode in ("I", "F"):
            return _deep_grey(np.asarray(image), image.mode, mode, dtype)
        pixels = np.array(_convert(image, mode, background))  # a copy, which torch may write to
    tensor = torch.from_numpy(pixels)
    tensor = tensor[None] if tensor.dim() == 2 else tensor.permute(2, 0, 1)
    return tensor if dtype == torch.uint8 else tensor.to(dtype).div_(255)


def read_mask(source: str | os.PathLike[str] | bytes | Image.Image) -> Tensor:
    """Decode a segmentation mask, whose values are classes: grey values or the indices of a palette.

    Args:
        source: as of `read_image`.

    Returns:
        ``[H, W]`` of uint8, or of int64 for masks of more than 8 bits.

    Raises:
        DataError: the mask has colours, or cannot be read or decoded; it names the file.
        UnsupportedError: Pillow is not installed.

    >>> from PIL import Image
    >>> read_mask(Image.new("P", (3, 2), 7)).tolist()
    [[7, 7, 7], [7, 7, 7]]
    """
    with _decoding(source) as image:
        image = _upright(image)
        if image.mode not in ("P", "L", "1", "I", *_SIXTEEN_BITS):
            raise DataError(
                "a mask has colours where classes are expected",
                expected="grey values or palette indices (modes P, L, 1, I)",
                found=f"mode {image.mode}",
                hint="save the masks as class numbers, in PNG files",
            )
        is_deep = image.mode not in ("P", "L", "1")
        return torch.from_numpy(np.array(image).astype(np.int64 if is_deep else np.uint8))


def import_pillow(where: str | None = None) -> Any:
    """Return the module `PIL.Image`.

    Raises:
        UnsupportedError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            "pictures are decoded by Pillow, which is not installed",
            where=where,
            hint='pip install "burnt[data]"',
        ) from error
    return Image


@contextmanager
def _decoding(source: Any) -> Iterator[Image.Image]:
    """Open and decode a picture; whatever fails in the block becomes a DataError that names the file."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    pillow = import_pillow(name)
    if not isinstance(source, bytes | bytearray | memoryview | pillow.Image) and name is None:
        raise DataError(
            "this is no picture", expected="a path, bytes or an image of Pillow", found=type(source).__name__
        )
    try:
        if isinstance(source, pillow.Image):
            name = getattr(source, "filename", "") or "an image of Pillow"
            source.load()  # opened and not read yet, perhaps
            yield source
            return
        with (
            open(source, "rb") if name is not None else io.BytesIO(source) as file,
            pillow.open(file) as image,
        ):
            image.load()
            yield image
    except MemoryError:
        raise
    except DataError as error:
        error.where = name
        raise
    except Exception as error:  # of Pillow's many plugins: OSError, SyntaxError, ValueError, struct.error ...
        system = error.strerror if isinstance(error, OSError) and error.errno is not None else None
        raise DataError(
            "a file cannot be read" if system else "a picture cannot be decoded",
            where=name or f"{len(source)} bytes",
            found=system or _describe(error),
            hint=None if system else "is it complete? Open it in a viewer, or leave it out",
        ) from error


def _describe(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    # Its own message names the object that was read, and not the file.
    is_unknown = isinstance(error, UnidentifiedImageError)
    return "no format that Pillow knows" if is_unknown else f"{type(error).__name__}: {error}"


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    try:
        # exif_transpose copies every image; most have no orientation, or that of no change.
        turned = image.getexif().get(_ORIENTATION, 1) != 1
    except (SyntaxError, OSError, ValueError, struct.error):  # damaged metadata of pixels that are not
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _convert(image: Image.Image, mode: str, background: int | tuple[int, int, int] | None) -> Image.Image:
    if image.mode == mode:
        return image
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not has_alpha or mode == "RGBA":
        return image.convert(mode)
    # By way of RGBA, because palettes may have a transparency for each of their colours.
    image = image.convert("RGBA")
    if background is not None:
        from PIL import Image

        colour = (background,) * 3 if isinstance(background, int) else background
        image = Image.alpha_composite(Image.new("RGBA", image.size, (*colour, 255)), image)
    return image.convert("RGB") if mode == "RGB" else image.convert("RGB").convert("L")


def _deep_grey(pixels: np.ndarray[Any, Any], found: str, mode: str, dtype: torch.dtype) -> Tensor:
    """Grey values of 16 bits; those of mode I are such values, too, if they come from PNG or TIFF files."""
    grey = torch.from_numpy(pixels.astype(np.float32))
    if found == "F" or (found == "I" and (grey.min() < 0 or grey.max() > 65535)):
        raise DataError(
            "the range of a picture's values is unknown",
            expected="8 or 16 bits for each channel",
            found=f"mode {found}, values from {grey.min():g} to {grey.max():g}",
            hint="read it with Pillow or tifffile, and scale it",
        )
    grey = grey / 65535 if dtype == torch.float32 else (grey / 257).round().to(torch.uint8)
    if mode == "L":
        return grey[None]
    colours = grey.expand(3, *grey.shape)
    return (
        colours.clone()
        if mode == "RGB"
        else torch.cat([colours, torch.ones_like(grey[None]) * _opaque(dtype)])
    )


def _opaque(dtype: torch.dtype) -> int:
    return 1 if dtype == torch.float32 else 255
