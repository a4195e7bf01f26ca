"""Image files as tensors."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from burnt.errors import RecordError


def decode_image(data: Tensor, pixel_format: str = "RGB") -> Tensor:
    """Decode an image file with Pillow.

    Args:
        data: the bytes of the file, uint8 ``[bytes]``.
        pixel_format: ``RGB``, ``BGR`` or ``Grayscale``.

    Returns:
        uint8 ``[height, width, channels]``.

    Raises:
        RecordError: the bytes are no image that Pillow knows.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data.numpy(force=True).tobytes())) as image:
            pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise RecordError(
            "an image cannot be decoded", expected="a file that Pillow reads", found=str(error)
        ) from error
    if pixel_format == "Grayscale":
        pixels = pixels[:, :, None]
    elif pixel_format == "BGR":
        pixels = pixels[:, :, ::-1].copy()
    return torch.from_numpy(pixels).to(data.device)
