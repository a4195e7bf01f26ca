"""Transforms that move pixels, of images and masks alike: sizes, crops, flips, rotations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from burnt.data.transforms import functional
from burnt.data.transforms.functional import Interpolation, PaddingMode
from burnt.data.transforms.transform import Transform, check_probability, integer, uniform
from burnt.errors import DataError

Size = int | tuple[int, int]
Range = tuple[float, float]
Fill = float | tuple[float, ...]


class _Geometric(Transform):
    """Moves the pixels of an image, and its mask's in the same way, as an image of one channel."""

    interpolation: Interpolation = "bilinear"
    fill: Fill = 0
    mask_fill: int = 0

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Move the pixels of the image."""
        return self._move(image, params, self.interpolation, self.fill)

    def transform_mask(self, mask: Tensor, params: Any) -> Tensor:
        """Move the pixels of the mask in the same way; each becomes one of the mask, or the filling."""
        return self._move(mask.unsqueeze(-3), params, "nearest", self.mask_fill).squeeze(-3)

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Resize(_Geometric):
    """Resize images, with antialiasing when they become smaller; masks take the nearest pixel.

    Args:
        size: ``(height, width)``, or the length of the shorter side, which keeps the aspect ratio.
        interpolation: ``"bilinear"``, ``"bicubic"`` or ``"nearest"``.
        max_size: the greatest length of the longer side, if `size` is one number.

    >>> Resize(224)(torch.zeros(3, 480, 640)).shape
    torch.Size([3, 224, 298])
    """

    size: Size
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)
        _check_interpolation(self.interpolation, "bilinear", "bicubic", "nearest")

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return _resize(pixels, self.size, interpolation, self.max_size)


@dataclass(frozen=True)
class CenterCrop(_Geometric):
    """Cut out the centre; what is too small is padded with 0.

    Args:
        size: ``(height, width)``, or one number for both.

    >>> CenterCrop(224)(torch.zeros(3, 256, 300)).shape
    torch.Size([3, 224, 224])
    """

    size: Size

    def __post_init__(self) -> None:
        _check_size(self.size)

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return functional.center_crop(pixels, _pair(self.size))


@dataclass(frozen=True)
class Pad(_Geometric):
    """Pad images and masks.

    Args:
        padding: pixels on all sides; ``(horizontal, vertical)``; or left, top, right and bottom.
        fill: the value of the padding, or one for each channel.
        mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.
        mask_fill: the class of the padding in masks.

    >>> Pad(2)(torch.zeros(3, 32, 32)).shape
    torch.Size([3, 36, 36])
    """

    padding: int | tuple[int, int] | tuple[int, int, int, int]
    fill: Fill = 0
    mode: PaddingMode = "constant"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        _sides(self.padding)

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return functional.pad(pixels, _sides(self.padding), fill, self.mode)


@dataclass(frozen=True)
class RandomCrop(_Geometric):
    """Cut out a rectangle at a random place, after padding.

    Args:
        size: ``(height, width)``, or one number for both.
        padding: pixels to add before cropping, as in `Pad`.
        pad_if_needed: pad what is too small on both sides, by what it lacks.
        fill, mode, mask_fill: how the padding is filled, as in `Pad`.

    Raises:
        DataError: an image, with its padding, is smaller than `size`.

    >>> RandomCrop(32, padding=4)(torch.zeros(3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 32, 32])
    """

    size: Size
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0
    pad_if_needed: bool = False
    fill: Fill = 0
    mode: PaddingMode = "constant"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size)
        _sides(self.padding)

    def apply(
        self, images: Tensor, masks: Tensor | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Pad all images of a batch at once, and crop each."""
        height, width = _pair(self.size)
        left, top, right, bottom = _sides(self.padding)
        if self.pad_if_needed:
            down = max(height - images.shape[-2] - top - bottom, 0)
            across = max(width - images.shape[-1] - left - right, 0)
            left, top, right, bottom = left + across, top + down, right + across, bottom + down
        sides = left, top, right, bottom
        images = functional.pad(images, sides, self.fill, self.mode)
        masks = None if masks is None else functional.pad(masks, sides, self.mask_fill, self.mode)
        return super().apply(images, masks, generator)

    def draw(self, image: Tensor, generator: Generator) -> tuple[int, int]:
        """Draw the top left corner in a padded image."""
        height, width = _pair(self.size)
        high, wide = image.shape[-2:]
        if high < height or wide < width:
            raise DataError(
                "an image is smaller than its crop",
                expected=f"at least {height} x {width}",
                found=f"{high} x {wide}" + (" with its padding" if self.padding else ""),
                hint="RandomCrop(..., pad_if_needed=True), or Resize before it",
            )
        return integer(generator, high - height + 1), integer(generator, wide - width + 1)

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        top, left = params
        return functional.crop(pixels, top, left, *_pair(self.size))


@dataclass(frozen=True)
class RandomResizedCrop(_Geometric):
    """Cut out a rectangle of random area and aspect ratio, and resize it.

    Args:
        size: ``(height, width)``, or one number for both.
        scale: the least and the greatest part of the image's area.
        ratio: the least and the greatest width divided by height, between which its logarithm is uniform.
        interpolation: ``"bilinear"``, ``"bicubic"`` or ``"nearest"``.

    If ten drawn rectangles do not fit into the image, its centre is taken.

    >>> RandomResizedCrop(224)(torch.zeros(3, 480, 640), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 224, 224])
    """

    size: Size
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        _check_size(self.size)
        check_range("scale", self.scale, 0, 1)
        check_range("ratio", self.ratio, positive=True)
        _check_interpolation(self.interpolation, "bilinear", "bicubic", "nearest")

    def draw(self, image: Tensor, generator: Generator) -> tuple[int, int, int, int]:
        """Draw top, left, height and width."""
        height, width = image.shape[-2:]
        size = draw_rectangle(height, width, self.scale, self.ratio, generator)
        if size is not None:
            h, w = size
            return integer(generator, height - h + 1), integer(generator, width - w + 1), h, w
        h = min(height, round(width / self.ratio[0]))
        w = min(width, round(height * self.ratio[1]))
        return (height - h) // 2, (width - w) // 2, h, w

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return _resize(functional.crop(pixels, *params), _pair(self.size), interpolation)


@dataclass(frozen=True)
class RandomHorizontalFlip(_Geometric):
    """Mirror left and right.

    Args:
        p: the probability of a flip.

    >>> RandomHorizontalFlip(p=1)(torch.tensor([[[1, 2, 3]]]), torch.Generator())
    tensor([[[3, 2, 1]]])
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p)

    def draw(self, image: Tensor, generator: Generator) -> tuple[()] | None:
        """Draw whether to flip."""
        return () if uniform(generator) < self.p else None

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return pixels.flip(-1)


@dataclass(frozen=True)
class RandomVerticalFlip(RandomHorizontalFlip):
    """Mirror top and bottom.

    Args:
        p: the probability of a flip.

    >>> RandomVerticalFlip(p=1)(torch.tensor([[[1], [2]]]), torch.Generator())
    tensor([[[2],
             [1]]])
    """

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return pixels.flip(-2)


@dataclass(frozen=True)
class RandomRotation(_Geometric):
    """Rotate about the centre.

    Args:
        degrees: the least and the greatest angle, counter-clockwise; or one number for both directions.
        interpolation: ``"bilinear"`` or ``"nearest"``. torchvision's default is ``"nearest"``.
        expand: enlarge the result to hold all of the image.
        fill: the value outside of the image, or one for each channel.
        mask_fill: the class outside of the image.

    >>> RandomRotation(15)(torch.zeros(3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 32, 32])
    """

    degrees: float | Range
    interpolation: Literal["bilinear", "nearest"] = "bilinear"
    expand: bool = False
    fill: Fill = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        check_range("degrees", _symmetric(self.degrees))
        _check_interpolation(self.interpolation, "bilinear", "nearest")

    def draw(self, image: Tensor, generator: Generator) -> float:
        """Draw the angle."""
        return uniform(generator, *_symmetric(self.degrees))

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        return functional.rotate(pixels, params, interpolation, self.expand, fill)


@dataclass(frozen=True)
class RandomAffine(_Geometric):
    """Rotate, move, scale and shear about the centre; the size stays.

    Args:
        degrees: the least and the greatest angle, clockwise; or one number for both directions.
        translate: the greatest shift, as part of the width and of the height.
        scale: the least and the greatest factor.
        shear: the least and the greatest angle along x in degrees, or one number for both directions; four
            numbers are those along x and along y.
        interpolation, fill, mask_fill: how pixels are computed and filled, as in `RandomRotation`.

    >>> RandomAffine(10, translate=(0.1, 0.1))(torch.zeros(3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 32, 32])
    """

    degrees: float | Range = 0
    translate: Range = (0, 0)
    scale: Range = (1, 1)
    shear: float | Range | tuple[float, float, float, float] = 0
    interpolation: Literal["bilinear", "nearest"] = "bilinear"
    fill: Fill = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        check_range("degrees", _symmetric(self.degrees))
        for part in self.translate:
            check_range("translate", (0, part), 0, 1)
        check_range("scale", self.scale, positive=True)
        for shear in self._shears():
            check_range("shear", shear, -90, 90)
        _check_interpolation(self.interpolation, "bilinear", "nearest")

    def draw(self, image: Tensor, generator: Generator) -> tuple[float, Range, float, Range]:
        """Draw angle, shift in pixels, scale and shears."""
        angle = uniform(generator, *_symmetric(self.degrees))
        shift = [part * size for part, size in zip(self.translate, image.shape[:-3:-1], strict=True)]
        right, down = (float(round(uniform(generator, -s, s))) for s in shift)
        scale = uniform(generator, *self.scale)
        shear_x, shear_y = (uniform(generator, *shear) for shear in self._shears())
        return angle, (right, down), scale, (shear_x, shear_y)

    def _move(self, pixels: Tensor, params: Any, interpolation: Any, fill: Fill) -> Tensor:
        angle, shift, scale, shear = params
        return functional.affine(pixels, angle, shift, scale, shear, interpolation, fill)

    def _shears(self) -> tuple[Range, Range]:
        if isinstance(self.shear, tuple) and len(self.shear) == 4:
            return self.shear[:2], self.shear[2:]
        return _symmetric(self.shear), (0, 0)


def draw_rectangle(
    height: int, width: int, scale: Range, ratio: Range, generator: Generator
) -> tuple[int, int] | None:
    """Draw height and width of a part of an image, by its area and aspect ratio; None if ten do not fit."""
    logs = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * uniform(generator, *scale)
        aspect = math.exp(uniform(generator, *logs))
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < h <= height and 0 < w <= width:
            return h, w
    return None


def check_range(
    name: str, values: Range, low: float = -math.inf, high: float = math.inf, *, positive: bool = False
) -> None:
    """Check that values are the least and the greatest of a range."""
    is_pair = isinstance(values, tuple | list) and len(values) == 2
    if not is_pair or not low <= values[0] <= values[1] <= high or (positive and values[0] <= 0):
        within = f", from {low:g} to {high:g}" if low > -math.inf else ", above 0" if positive else ""
        raise DataError(
            f"{name} is not a range", expected=f"the least and the greatest value{within}", found=values
        )


def _symmetric(values: float | Range) -> Range:
    return (-values, values) if isinstance(values, int | float) else values


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _sides(padding: Any) -> tuple[int, int, int, int]:
    sides = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
    sides = sides * 2 if len(sides) == 2 else sides
    if len(sides) != 4 or not all(isinstance(side, int) and side >= 0 for side in sides):
        raise DataError(
            "padding is not of this form",
            expected="pixels, (horizontal, vertical) or (left, top, right, bottom), of at least 0",
            found=padding,
        )
    return sides[0], sides[1], sides[2], sides[3]


def _check_size(size: Any) -> None:
    values = size if isinstance(size, tuple | list) and len(size) == 2 else (size,)
    if not all(isinstance(value, int) and value > 0 for value in values):
        raise DataError("size is not of this form", expected="pixels, or (height, width)", found=size)


def _check_interpolation(interpolation: str, *known: str) -> None:
    if interpolation not in known:
        raise DataError("unknown interpolation", expected=", ".join(known), found=repr(interpolation))


def _resize(pixels: Tensor, size: Size, interpolation: Interpolation, max_size: int | None = None) -> Tensor:
    if interpolation == "nearest" and pixels.dtype not in (torch.uint8, torch.float32, torch.float64):
        # Of others, such as masks of int64, torch has no nearest neighbours.
        return functional.resize(pixels.double(), size, interpolation, max_size).to(pixels.dtype)
    return functional.resize(pixels, size, interpolation, max_size)
