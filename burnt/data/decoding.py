"""Decode pictures to tensors with Pillow: orientation, palettes, alpha, 16 bits, errors with the file."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnt.data.fitting import fill_values
from burnt.errors import DataError, UnsupportedError

if TYPE_CHECKING:
    from PIL import Image

ImageMode = Literal["RGB", "L", "RGBA"]
Colour = tuple[int, int, int]

_ORIENTATION = 0x0112  # the tag of EXIF
STORED = "_stored_samples"
"""The attribute of an image that is decoded here: its `_Samples`, for when it is read again."""

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


class _Samples(NamedTuple):
    """How a file stores its samples, if Pillow changes them when it decodes: None, if not or if unknown."""

    largest: int | None = None  # which becomes 255, or 65535 in mode I
    inverted: bool = False  # 0 is white
    colours_are_cut: bool = False  # from 16 bits to 8
    is_stretched: bool = False  # by others, who may have changed the picture


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
        background: the colour behind transparent pixels in the modes RGB and L, from 0 to 255; None drops the
            alpha channel, as Pillow and torchvision do.

    Returns:
        ``[C, H, W]`` of `dtype`, where C is 3, 1 or 4. The channels of a pixel are adjacent in memory, which
        makes resizing fast; `transforms.ToFloat` makes the image contiguous.

    Raises:
        DataError: the picture cannot be read or decoded, or has more pixels than
            ``PIL.Image.MAX_IMAGE_PIXELS``, 89,478,485 unless you set it; it names the file.
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
    colour = None if background is None else _colour(background)
    with _decoding(source) as (image, samples):
        image = _upright(image)
        if image.mode in _SIXTEEN_BITS or image.mode in ("I", "F"):
            return _deep_grey(image, samples, mode, dtype, colour)
        # A copy, which torch may write to.
        pixels = np.array(_convert(image, samples, mode, colour))
    tensor = torch.from_numpy(pixels)
    tensor = tensor[None] if tensor.dim() == 2 else tensor.permute(2, 0, 1)
    return tensor if dtype == torch.uint8 else tensor.to(dtype).div_(255)


def read_mask(source: str | os.PathLike[str] | bytes | Image.Image) -> Tensor:
    """Decode a segmentation mask, whose values are classes: grey values or the indices of a palette.

    Grey values are as in the file. Pillow stretches values of 2 and 4 bits, and of PGM files, over the
    whole range. An image of Pillow that was decoded elsewhere is refused if its file says so; of one that has
    no file name, it is not known.

    Args:
        source: the image: a path, bytes or a Pillow image, as `read_image` takes it.

    Returns:
        ``[H, W]`` of uint8, or of int64 for masks of more than 8 bits.

    Raises:
        DataError: the mask has colours, or a format where 0 is white, or cannot be read or decoded; it names
            the file.
        UnsupportedError: Pillow is not installed.

    >>> from PIL import Image
    >>> read_mask(Image.new("P", (3, 2), 7)).tolist()
    [[7, 7, 7], [7, 7, 7]]
    """
    with _decoding(source) as (image, samples):
        image = _upright(image)
        if samples.inverted:
            raise DataError(
                "a mask is stored in a format where 0 is white, so that its classes are ambiguous",
                expected="grey values that are classes, or palette indices",
                found=f"{image.format}, mode {image.mode}, with inverted values",
                hint="save the masks as class numbers, in PNG files",
            )
        if image.mode not in ("P", "L", "1", "I", *_SIXTEEN_BITS):
            raise DataError(
                "a mask has colours where classes are expected",
                expected="grey values or palette indices (modes P, L, 1, I)",
                found=f"mode {image.mode}",
                hint="save the masks as class numbers, in PNG files",
            )
        if samples.is_stretched and samples.largest is not None:
            raise DataError(
                "a mask was decoded before, and its classes were stretched over the whole range",
                expected="a path, bytes, or an image of Pillow that is only opened",
                found=f"{image.format}, values up to {samples.largest} in the file",
                hint="pass the path of the file",
            )
        is_deep = image.mode not in ("P", "L", "1")
        values = np.array(image)
        if samples.largest is not None and image.mode in ("L", "I"):
            values = np.rint(values * (samples.largest / (255 if image.mode == "L" else 65535)))
        return torch.from_numpy(values.astype(np.int64 if is_deep else np.uint8))


def import_pillow(where: str | None = None) -> Any:
    """Return the module `PIL.Image`."""
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
def _decoding(source: Any) -> Iterator[tuple[Image.Image, _Samples]]:
    """Open and decode a picture; whatever fails in the block becomes a DataError that names the file."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    pillow = import_pillow(name)
    if not isinstance(source, bytes | bytearray | memoryview | pillow.Image) and name is None:
        raise DataError(
            "this is not a picture",
            expected="a path, bytes or an image of Pillow",
            found=type(source).__name__,
        )
    try:
        if isinstance(source, pillow.Image):
            name = getattr(source, "filename", "") or "an image of Pillow"
            yield source, _load(source)
            return
        with (
            open(source, "rb") if name is not None else io.BytesIO(source) as file,
            pillow.open(file) as image,
        ):
            yield image, _load(image)
    except MemoryError:
        raise
    except DataError as error:
        error.where = name
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DataError(
            "a picture has too many pixels",
            where=name or f"{len(source)} bytes",
            expected=f"at most {pillow.MAX_IMAGE_PIXELS:,} pixels, which is PIL.Image.MAX_IMAGE_PIXELS",
            found=str(error),
            hint="set PIL.Image.MAX_IMAGE_PIXELS if you trust the file: 3 or 4 bytes a pixel, several times",
        ) from error
    except Exception as error:  # of Pillow's many plugins: OSError, SyntaxError, ValueError, struct.error ...
        # Pillow's own message for an unknown format names the object that was read, and not the file.
        is_unknown = isinstance(error, pillow.UnidentifiedImageError)
        text = "no format that Pillow knows" if is_unknown else f"{type(error).__name__}: {error}"
        system = error.strerror if isinstance(error, OSError) and error.errno is not None else None
        raise DataError(
            "a file cannot be read" if system else "a picture cannot be decoded",
            where=name or f"{len(source)} bytes",
            found=system or text,
            hint=None if system else "is it complete? Open it in a viewer, or leave it out",
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    try:
        # exif_transpose copies every image; most have no orientation, or that of no change.
        turned = image.getexif().get(_ORIENTATION, 1) != 1
    except (SyntaxError, OSError, ValueError, struct.error):  # damaged metadata of pixels that are not
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _load(image: Image.Image) -> _Samples:
    """Decode an image, if it is only opened, and return how its file stores the samples."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    if getattr(image, "fp", None) is not None and limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(f"{image.width} x {image.height}")
    tiles: Any = getattr(image, "tile", None)
    if tiles and image.format == "BMP" and image.mode == "L":
        file: Any = image.fp  # type: ignore[attr-defined]
        file.seek(28)
        if (bits := file.read(1)[0]) != 8:
            raise DataError(
                "Pillow misreads BMP files of few bits with a palette of greys",
                expected="8 bits for each pixel",
                found=f"{bits} bits",
                hint="save it as a PNG file",
            )
    image.load()
    if not tiles:
        return _samples_before(image)
    samples = _samples_of(tiles)
    setattr(image, STORED, samples)
    return samples


def _samples_before(image: Image.Image) -> _Samples:
    """Return how the file of an image that is decoded already stores its samples, as far as it is known."""
    from PIL import Image

    samples: _Samples = getattr(image, STORED, _Samples())
    if not hasattr(image, STORED) and image.mode in ("L", "I") and getattr(image, "filename", None):
        with suppress(OSError, IndexError), Image.open(image.filename) as file:  # type: ignore[attr-defined]
            samples = _samples_of(file.tile)._replace(is_stretched=True)
    return samples


def _samples_of(tiles: Any) -> _Samples:
    arguments = tiles[0][3] if isinstance(tiles[0][3], tuple) else (tiles[0][3],)
    raw = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    bits = raw.partition(";")[2]
    largest = None
    if tiles[0][0] in ("ppm", "ppm_plain") and isinstance(arguments[-1], int):
        largest = arguments[-1]
    elif raw == "I;12" or raw.startswith(("L;2", "L;4")):
        largest = (1 << int(bits.rstrip("IR"))) - 1
    return _Samples(largest, raw[:1] in ("L", "1") and "I" in bits, raw.startswith("RGB;16"))


def _convert(image: Image.Image, samples: _Samples, mode: str, background: Colour | None) -> Image.Image:
    transparent = image.info.get("transparency")
    if image.mode == mode and (transparent is None or background is None):
        return image
    if image.mode not in ("RGBA", "LA", "PA", "RGBa", "La") and transparent is None:
        return image.convert(mode)
    are_cut = samples.colours_are_cut or (isinstance(transparent, tuple) and max(transparent) > 255)
    if are_cut and transparent is not None and (mode == "RGBA" or background is not None):
        raise DataError(
            "the transparent pixels of a picture are unknown, because Pillow reads 8 of its 16 bits",
            expected="8 bits for each colour, or an alpha channel",
            found="16 bits for each colour, one of which is transparent",
            hint="save it with an alpha channel, or read it in mode RGB without background=",
        )
    if samples.largest is not None and isinstance(transparent, int):
        image = image.copy()  # the transparent value is one of the file, unlike the pixels
        image.info["transparency"] = transparent * 255 // samples.largest
    # By way of RGBA, because palettes may have a transparency for each of their colours.
    image = image.convert("RGBA")
    if background is not None:
        from PIL import Image

        behind = Image.new("RGBA", image.size, (*background, 255))
        image = image if mode == "RGBA" else Image.alpha_composite(behind, image)
    return image.convert("RGB").convert("L") if mode == "L" else image.convert(mode)


def _colour(background: int | tuple[int, int, int]) -> Colour:
    values: list[int] = fill_values(background, torch.uint8, "background").reshape(-1).tolist()
    if len(values) not in (1, 3):
        raise DataError(
            "background= must be one number or three",
            expected="grey, or red, green and blue, from 0 to 255",
            found=background,
        )
    red, green, blue = (values * 3)[:3]
    return red, green, blue


def _deep_grey(
    image: Image.Image, samples: _Samples, mode: str, dtype: torch.dtype, background: Colour | None
) -> Tensor:
    """Grey values of 16 bits; those of mode I are such values, too, if they come from PNG or TIFF files."""
    pixels = torch.from_numpy(np.asarray(image).astype(np.float32))[None]
    found = image.mode
    if found == "F" or (found == "I" and (pixels.min() < 0 or pixels.max() > 65535)):
        raise DataError(
            "the range of a picture's values is unknown",
            expected="8 or 16 bits for each channel",
            found=f"mode {found}, values from {pixels.min():g} to {pixels.max():g}",
            hint="read it with Pillow or tifffile, and scale it",
        )
    largest = samples.largest if found != "I" and samples.largest is not None else 65535
    opaque = 1 if dtype == torch.float32 else 255
    colours = (pixels / (largest / opaque)).expand(1 if mode == "L" else 3, -1, -1)
    transparent = image.info.get("transparency")
    is_clear = pixels == (transparent if isinstance(transparent, int) else -1)
    if mode == "RGBA":
        colours = torch.cat([colours, torch.where(is_clear, 0.0, float(opaque))])
    elif background is not None:
        from PIL import Image

        behind = np.array(Image.new("RGB", (1, 1), background).convert(mode), np.float32)
        colours = torch.where(is_clear, torch.from_numpy(behind).view(-1, 1, 1) * (opaque / 255), colours)
    return colours.clone() if dtype == torch.float32 else colours.round().to(torch.uint8)
