"""Image files as tensors."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from burnt.errors import RecordError


def decode_image(data: Tensor, pixel_format: str = "RGB") -> Tensor:
    """Return uint8 ``[height, width, channels]`` of the bytes of an image file, decoded by Pillow.

    `pixel_format` is ``RGB``, ``BGR`` or ``Grayscale``; what Pillow does not read is a RecordError.
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
