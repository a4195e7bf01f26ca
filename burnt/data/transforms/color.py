"""Transforms of pixel values: conversion, normalization, colours, blur, erasing. Masks are unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from burnt.data.decoding import ImageMode, read_image, read_mask
from burnt.data.fitting import fill_values
from burnt.data.transforms import functional
from burnt.data.transforms.geometry import Range, check_range, draw_rectangle
from burnt.data.transforms.transform import Transform, check_probability, integer, replace_images, uniform
from burnt.errors import DataError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The mean of ImageNet's channels, from 0 to 1, that most pretrained models are normalized with."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The standard deviation of ImageNet's channels."""


@dataclass(frozen=True)
class ToImage(Transform):
    """Convert images of Pillow, encoded bytes and arrays to tensors; masks, too. Tensors are unchanged.

    Items of Hugging Face datasets have an ``image`` of Pillow; Parquet files have its bytes.

    Args:
        mode, dtype, background: how images of Pillow and bytes are decoded, as in `read_image`.
            Arrays, ``[H, W, C]`` or ``[H, W]``, keep channels and dtype.

    >>> ToImage()({"image": np.zeros((6, 8, 3), np.uint8), "label": 1})["image"].shape
    torch.Size([3, 6, 8])
    """

    mode: ImageMode = "RGB"
    dtype: torch.dtype = torch.uint8
    background: int | tuple[int, int, int] | None = None

    def __call__(self, item: Any, generator: Generator | None = None) -> Any:
        """Return the item with tensors."""
        return replace_images(item, lambda image, mask: (self._image(image), self._mask(mask)))

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Return the tensor itself."""
        return image

    def _image(self, image: Any) -> Tensor:
        if isinstance(image, Tensor):
            return image
        if isinstance(image, np.ndarray):
            if image.ndim not in (2, 3):
                raise DataError("an array is not an image", expected="[H, W, C] or [H, W]", found=image.shape)
            tensor = torch.from_numpy(image)
            return tensor[None] if image.ndim == 2 else tensor.permute(2, 0, 1).contiguous()
        return read_image(image, mode=self.mode, dtype=self.dtype, background=self.background)

    def _mask(self, mask: Any) -> Any:
        if mask is None or isinstance(mask, Tensor):
            return mask
        return torch.from_numpy(mask) if isinstance(mask, np.ndarray) else read_mask(mask)


@dataclass(frozen=True)
class ToFloat(Transform):
    """Convert images to floating point: bytes become 0 to 1.

    Args:
        dtype: the dtype of the result.

    >>> ToFloat()(torch.tensor([[[0, 51, 255]]], dtype=torch.uint8))
    tensor([[[0.0000, 0.2000, 1.0000]]])
    """

    dtype: torch.dtype = torch.float32

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Convert the image."""
        return functional.to_float(image, self.dtype)


@dataclass(frozen=True)
class Normalize(Transform):
    """Subtract a mean and divide by a standard deviation, of images in floating point.

    Args:
        mean: the means, one for each channel, or one for all of 1 or 3; ImageNet's by default.
        std: the standard deviations, one for each channel, likewise.

    >>> normalize = Normalize(mean=[0.5], std=[0.25])
    >>> normalize(torch.ones(1, 1, 2)), normalize.inverse()(normalize(torch.ones(1, 1, 2)))
    (tensor([[[2., 2.]]]), tensor([[[1., 1.]]]))
    """

    mean: float | tuple[float, ...] | list[float] = IMAGENET_MEAN
    std: float | tuple[float, ...] | list[float] = IMAGENET_STD

    def __post_init__(self) -> None:
        if not all(value > 0 for value in _values(self.std)):
            raise DataError("std must be positive", found=self.std)

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Normalize the image."""
        return functional.normalize(image, _values(self.mean), _values(self.std))

    def inverse(self) -> Normalize:
        """Return the transform that undoes this one, to look at images."""
        means, stds = _values(self.mean), _values(self.std)
        size = max(len(means), len(stds))
        pairs = list(zip(means * (size // len(means)), stds * (size // len(stds)), strict=True))
        return Normalize(mean=tuple(-m / s for m, s in pairs), std=tuple(1 / s for _, s in pairs))


@dataclass(frozen=True)
class Grayscale(Transform):
    """Convert images to grey; an alpha channel stays.

    Args:
        channels: 1, or 3 equal ones; and the alpha channel of an image that has one.

    >>> Grayscale()(torch.zeros(3, 4, 4)).shape
    torch.Size([1, 4, 4])
    """

    channels: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise DataError("a grey image has 1 or 3 channels", found=self.channels)

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Convert the image."""
        return functional.grayscale(image, self.channels)


@dataclass(frozen=True)
class RandomGrayscale(Transform):
    """Take the colours away, with a probability; the number of channels stays.

    Args:
        p: the probability of the change.

    >>> RandomGrayscale(p=1)(torch.zeros(3, 4, 4), torch.Generator()).shape
    torch.Size([3, 4, 4])
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability(self.p)

    def draw(self, image: Tensor, generator: Generator) -> tuple[()] | None:
        """Draw whether to convert."""
        return () if uniform(generator) < self.p else None

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Convert the image."""
        return functional.grayscale(image, 3 if image.shape[-3] >= 3 else 1)


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: the least and the greatest factor; or x for 1 - x to 1 + x, from 0 on.
        contrast: the least and the greatest factor, likewise.
        saturation: the least and the greatest factor, likewise.
        hue: the least and the greatest shift, within -0.5 and 0.5 of a full turn; or x for -x to x.

    Images are uint8, or floating point from 0 to 1, so that `Normalize` comes later.

    >>> ColorJitter(0.4, 0.4, 0.4, 0.1)(torch.rand(3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 8, 8])
    """

    brightness: float | Range = 0
    contrast: float | Range = 0
    saturation: float | Range = 0
    hue: float | Range = 0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_range(name, _around_one(getattr(self, name)), 0)
        check_range("hue", _around_zero(self.hue), -0.5, 0.5)

    def draw(self, image: Tensor, generator: Generator) -> list[tuple[Any, float]]:
        """Draw the functions in their order, each with its factor."""
        changes = [
            (functional.adjust_brightness, _around_one(self.brightness)),
            (functional.adjust_contrast, _around_one(self.contrast)),
            (functional.adjust_saturation, _around_one(self.saturation)),
            (functional.adjust_hue, _around_zero(self.hue)),
        ]
        order = torch.randperm(4, generator=generator, device=generator.device).tolist()
        used = [changes[i] for i in order if changes[i][1] not in ((1, 1), (0, 0))]
        return [(function, uniform(generator, *values)) for function, values in used]

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Change the image."""
        for function, factor in params:
            image = function(image, factor)
        return image


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur images.

    Args:
        kernel_size: an odd number of pixels, or ``(height, width)``.
        sigma: the least and the greatest standard deviation in pixels, or one number.

    >>> GaussianBlur(5)(torch.zeros(3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 8, 8])
    """

    kernel_size: int | tuple[int, int]
    sigma: float | Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        if not all(isinstance(size, int) and size > 0 and size % 2 for size in self._sizes()):
            raise DataError(
                "kernel_size must be odd", expected="an odd number, or two", found=self.kernel_size
            )
        check_range("sigma", self._sigmas(), positive=True)

    def draw(self, image: Tensor, generator: Generator) -> float:
        """Draw the standard deviation."""
        return uniform(generator, *self._sigmas())

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Blur the image."""
        return functional.gaussian_blur(image, self._sizes(), params)

    def _sizes(self) -> tuple[int, int]:
        return (self.kernel_size,) * 2 if isinstance(self.kernel_size, int) else self.kernel_size

    def _sigmas(self) -> Range:
        return (self.sigma, self.sigma) if isinstance(self.sigma, int | float) else self.sigma


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Erase a rectangle of random size and place.

    Args:
        p: the probability of the change.
        scale: the least and the greatest part of the image's area.
        ratio: the least and the greatest height divided by width.
        value: what to erase with: a number, one for each channel, or ``"random"`` for each pixel: standard
            normal numbers in floating point, or any byte. Alpha, the last of 2 or 4 channels, is unchanged,
            unless there is a value for each channel.

    Nothing is erased if ten drawn rectangles do not fit. Zhong et al., 2017.

    >>> RandomErasing(p=1)(torch.ones(3, 8, 8), torch.Generator().manual_seed(0)).mean() < 1
    tensor(True)
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: float | tuple[float, ...] | Literal["random"] = 0

    def __post_init__(self) -> None:
        check_probability(self.p)
        check_range("scale", self.scale, 0, 1)
        check_range("ratio", self.ratio, positive=True)
        if isinstance(self.value, str) and self.value != "random":
            raise DataError(
                "unknown value to erase with", expected='numbers or "random"', found=repr(self.value)
            )

    def draw(self, image: Tensor, generator: Generator) -> tuple[int, int, Tensor] | None:
        """Draw top, left and the new pixels."""
        if uniform(generator) >= self.p:
            return None
        channels, height, width = image.shape
        inverse = 1 / self.ratio[1], 1 / self.ratio[0]  # of width divided by height
        size = draw_rectangle(height, width, self.scale, inverse, generator)
        if size is None:
            return None
        top, left = integer(generator, height - size[0] + 1), integer(generator, width - size[1] + 1)
        return top, left, self._pixels(channels, size, image.dtype, generator)

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Erase the rectangle."""
        return functional.erase(image, *params)

    def _pixels(
        self, channels: int, size: tuple[int, int], dtype: torch.dtype, generator: Generator
    ) -> Tensor:
        colours = channels - (channels in (2, 4))  # without alpha
        shape, device = (colours, *size), generator.device
        if self.value == "random":
            if dtype.is_floating_point:
                return torch.randn(shape, generator=generator, device=device)
            return torch.randint(256, shape, generator=generator, device=device)
        values = _values(self.value)
        if len(values) not in (1, colours, channels):
            raise DataError(
                "value does not fit the channels of an image",
                expected=f"{channels} values, or a number",
                found=f"{len(values)} values",
            )
        return fill_values(values, dtype, "value")[:, None, None].expand(max(colours, len(values)), *size)


def _values(value: float | tuple[float, ...] | list[float]) -> list[float]:
    return [value] if isinstance(value, int | float) else list(value)


def _around_one(value: float | Range) -> Range:
    return (max(0, 1 - value), 1 + value) if isinstance(value, int | float) else value


def _around_zero(value: float | Range) -> Range:
    return (-value, value) if isinstance(value, int | float) else value
