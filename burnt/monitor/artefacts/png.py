"""Decode and scale images for the terminal with Pillow, which is imported when the first image is shown."""

from __future__ import annotations

import io
from typing import NamedTuple

_GREY = (128, 128, 128, 255)  # behind transparent pixels


class PngError(ValueError):
    """The image cannot be decoded; the message says why."""


class Image(NamedTuple):
    """An RGB image: three bytes per pixel, row by row from the top."""

    width: int
    height: int
    rgb: bytes


def decode(data: bytes) -> Image:
    """Decode a PNG file; transparent pixels are blended on grey.

    Raises:
        PngError: the file is damaged or far too large, or Pillow is not installed.
    """
    try:
        from PIL import Image as pillow
    except ImportError:
        raise PngError("showing images needs Pillow: pip install 'burnt[tui]'") from None
    try:
        with pillow.open(io.BytesIO(data), formats=["PNG"]) as file:
            image = file.convert("RGBA")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise PngError(f"the PNG file is damaged: {error}") from error
    rgb = pillow.alpha_composite(pillow.new("RGBA", image.size, _GREY), image).convert("RGB")
    return Image(*rgb.size, rgb.tobytes())


def fit(image: Image, width: int, height: int) -> Image:
    """Scale an image to at most `width` by `height` pixels, keeping its proportions.

    Large images are reduced by averaging pixels; small ones are enlarged by a whole number, so that pixels
    stay square.
    """
    from PIL import Image as pillow

    if width < 1 or height < 1:
        return Image(0, 0, b"")
    shrink = max(image.width / width, image.height / height)
    if shrink <= 1:
        factor, method = max(min(width // image.width, height // image.height), 1), pillow.Resampling.NEAREST
        size = image.width * factor, image.height * factor
    else:
        method = pillow.Resampling.BOX
        size = max(round(image.width / shrink), 1), max(round(image.height / shrink), 1)
    scaled = pillow.frombytes("RGB", (image.width, image.height), image.rgb).resize(size, method)
    return Image(*size, scaled.tobytes())
