"""Functions of images with every parameter given: what the transforms apply after drawing theirs.

An image is ``[..., C, H, W]``, uint8 from 0 to 255 or floating point from 0 to 1; a mask is ``[..., H, W]``.
Results have the dtype of the image, and no function changes its argument. Values are those of the functions
of the same names in torchvision v2; where they differ, the docstring says so. torchvision itself is not
called: it runs with one build of torch only, and weights fillings at edges twice.

The last of 2 or 4 channels is alpha, which functions of colours and tones leave unchanged, unlike
torchvision's; functions that move, resize or blur pixels treat it as any channel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Concatenate, Literal, ParamSpec

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt._torch import interpolate_antialiased
from burnt.data.fitting import fill_values
from burnt.errors import DataError

Interpolation = Literal["bilinear", "bicubic", "nearest"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]

P = ParamSpec("P")

_GREY = (0.2989, 0.587, 0.114)


def has_alpha(image: Tensor) -> bool:
    """Whether the last channel of an image is alpha."""
    return image.shape[-3] in (2, 4)


def _of_colours(
    function: Callable[Concatenate[Tensor, P], Tensor],
) -> Callable[Concatenate[Tensor, P], Tensor]:
    """Let a function change only the colours of an image."""

    @functools.wraps(function)
    def keep_alpha(image: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if not has_alpha(image):
            return function(image, *args, **kwargs)
        colours, alpha = image[..., :-1, :, :], image[..., -1:, :, :]
        return torch.cat([function(colours, *args, **kwargs), alpha], -3)

    return keep_alpha


def resized_size(
    height: int, width: int, size: int | tuple[int, int], max_size: int | None = None
) -> tuple[int, int]:
    """Return the height and width after `resize`.

    >>> resized_size(480, 640, 224), resized_size(480, 640, (64, 64)), resized_size(300, 900, 100, 200)
    ((224, 298), (64, 64), (66, 200))
    """
    if not isinstance(size, int):
        return size[0], size[1]
    short, long = min(height, width), max(height, width)
    new_short, new_long = size, int(size * long / short)
    if max_size is not None and new_long > max_size:
        new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_short, new_long) if height <= width else (new_long, new_short)


def resize(
    image: Tensor,
    size: int | tuple[int, int],
    interpolation: Interpolation = "bilinear",
    max_size: int | None = None,
) -> Tensor:
    """Resize an image, with antialiasing when it becomes smaller.

    Args:
        image: ``[..., C, H, W]``.
        size: ``(height, width)``, or the length of the shorter side, which keeps the aspect ratio.
        interpolation: ``"nearest"`` takes the nearest pixel centre, as Pillow does; torchvision calls it
            ``"nearest-exact"``.
        max_size: the greatest length of the longer side, if `size` is one number.

    >>> resize(torch.zeros(3, 480, 640), 224).shape
    torch.Size([3, 224, 298])
    """
    old_height, old_width = image.shape[-2:]
    height, width = resized_size(old_height, old_width, size, max_size)
    if (height, width) == (old_height, old_width):
        return image
    if min(height, width) < 1:
        found = f"{old_height} x {old_width} to {height} x {width}"
        raise DataError("an image would become empty", expected="at least 1 pixel", found=found)
    flat = image.reshape(-1, *image.shape[-3:])
    if interpolation == "nearest":
        resized = F.interpolate(flat, (height, width), mode="nearest-exact")
    else:
        resized = interpolate_antialiased(flat, (height, width), None, interpolation, False)
    return resized.reshape(*image.shape[:-2], height, width)


def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Cut a rectangle out of an image or a mask, ``[..., H, W]``: a view, without a copy."""
    return image[..., top : top + height, left : left + width]


def pad(
    image: Tensor,
    padding: tuple[int, int, int, int],
    fill: float | Sequence[float] = 0,
    mode: PaddingMode = "constant",
) -> Tensor:
    """Pad an image or a mask, ``[..., H, W]``.

    Args:
        image: ``[..., C, H, W]``, or a mask if `fill` is a number.
        padding: left, top, right and bottom.
        fill: a value for each channel, or one for all, for the mode ``"constant"``.
        mode: ``"edge"`` repeats the edge, ``"reflect"`` mirrors without it, ``"symmetric"`` with it.

    >>> pad(torch.tensor([[1, 2, 3]]), (2, 0, 0, 0), mode="reflect")
    tensor([[3, 2, 1, 2, 3]])
    """
    left, top, right, bottom = padding
    if not any(padding):
        return image
    height, width = image.shape[-2:]
    if mode == "constant":
        padded = image.new_empty(*image.shape[:-2], height + top + bottom, width + left + right)
        padded[...] = _fill(image, fill)
        padded[..., top : top + height, left : left + width] = image
        return padded
    # torch pads by reflection only in floating point, and no further than the image's size.
    rows = torch.from_numpy(np.pad(np.arange(height), (top, bottom), mode=mode))
    columns = torch.from_numpy(np.pad(np.arange(width), (left, right), mode=mode))
    return image[..., rows.to(image.device), :][..., columns.to(image.device)]


def center_crop(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut the centre out of an image or a mask, ``[..., H, W]``; what is too small is padded with 0.

    >>> center_crop(torch.arange(5).expand(5, 5), (1, 3))
    tensor([[1, 2, 3]])
    """
    height, width = size
    missing = max(height - image.shape[-2], 0), max(width - image.shape[-1], 0)
    image = pad(image, (missing[1] // 2, missing[0] // 2, (missing[1] + 1) // 2, (missing[0] + 1) // 2))
    top, left = (round((have - want) / 2) for have, want in zip(image.shape[-2:], size, strict=True))
    return crop(image, top, left, height, width)


def to_float(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert an image to floating point, in contiguous memory; bytes become 0 to 1."""
    converted = image.to(dtype, memory_format=torch.contiguous_format)
    return converted.div_(255) if image.dtype == torch.uint8 else converted


def normalize(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract a mean and divide by a standard deviation, one for each channel, or one for 1 or 3 channels.

    Raises:
        DataError: the image is not in floating point, or has another number of channels.
    """
    return image.sub(_channels(image, mean, "mean")).div_(_channels(image, std, "std"))


def denormalize(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Undo `normalize`: multiply by the standard deviation, and add the mean."""
    return image.mul(_channels(image, std, "std")).add_(_channels(image, mean, "mean"))


@_of_colours
def grayscale(image: Tensor, channels: Literal[1, 3] = 1) -> Tensor:
    """Convert an image of 3 channels to grey, ``0.2989 R + 0.587 G + 0.114 B``.

    Args:
        image: ``[..., 3, H, W]`` or ``[..., 1, H, W]``, or with one more channel, alpha, which stays.
        channels: 3 repeats the grey channel.
    """
    grey = _luma(image).to(image.dtype)
    return grey if channels == 1 else grey.expand(*grey.shape[:-3], 3, *grey.shape[-2:]).contiguous()


@_of_colours
def adjust_brightness(image: Tensor, factor: float) -> Tensor:
    """Multiply an image by a factor: 0 is black, 1 leaves it as it is."""
    return _to_range(image * float(factor), image.dtype)  # bytes times a whole number would overflow


@_of_colours
def adjust_contrast(image: Tensor, factor: float) -> Tensor:
    """Scale an image's distance from its mean grey: 0 is grey, 1 leaves it as it is."""
    return _blend(image, _luma(image, whole=True).mean((-3, -2, -1), keepdim=True), factor)


@_of_colours
def adjust_saturation(image: Tensor, factor: float) -> Tensor:
    """Scale the distance of each pixel from its grey: 0 is a grey image, 1 leaves it as it is."""
    return image if image.shape[-3] == 1 else _blend(image, _luma(image, whole=True), factor)


@_of_colours
def adjust_hue(image: Tensor, shift: float) -> Tensor:
    """Turn the hue of each pixel in the HSV colour space.

    Args:
        image: ``[..., 3, H, W]``; a grey image has no hue, and is returned.
        shift: part of a full turn, from -0.5 to 0.5; both ends give the complementary colours.
    """
    if image.shape[-3] == 1:
        return image
    _check_colours(image)
    colours = to_float(image) if image.dtype == torch.uint8 else image
    low, high = torch.aminmax(colours, dim=-3, keepdim=True)
    spread = high - low
    red, green, blue = (colours.narrow(-3, channel, 1) for channel in range(3))
    # Sixths of a turn: an offset for the largest channel, and the difference of the other two.
    sixths = torch.where(
        high == red, green - blue, torch.where(high == green, blue - red, red - green)
    ) / spread.clamp(min=torch.finfo(colours.dtype).tiny)
    offset = torch.where(high == red, 0.0, torch.where(high == green, 2.0, 4.0)).to(colours.dtype)
    position = torch.tensor([5.0, 3.0, 1.0], dtype=colours.dtype, device=image.device)[:, None, None]
    k = (sixths + offset + 6 * shift + position).remainder(6)
    turned = high - spread * torch.minimum(k, 4 - k).clamp(0, 1)
    return turned.mul_(255).round_().to(torch.uint8) if image.dtype == torch.uint8 else turned


@_of_colours
def adjust_sharpness(image: Tensor, factor: float) -> Tensor:
    """Scale the difference of an image and a smoothed one: 0 is smooth, 1 leaves it as it is.

    Pixels at the edge are unchanged, as in Pillow.
    """
    height, width = image.shape[-2:]
    if min(height, width) < 3:
        return image
    whole = image if image.is_floating_point() else image.float()
    smooth = 4 * whole[..., 1:-1, 1:-1]
    for top in range(3):
        for left in range(3):
            smooth += crop(whole, top, left, height - 2, width - 2)
    smooth /= 13
    smooth = smooth if image.is_floating_point() else smooth.round_()
    sharpened = image.clone()
    sharpened[..., 1:-1, 1:-1] = _blend(crop(image, 1, 1, height - 2, width - 2), smooth, factor)
    return sharpened


@_of_colours
def invert(image: Tensor) -> Tensor:
    """Make light dark and dark light."""
    return 1 - image if image.is_floating_point() else 255 - image


@_of_colours
def solarize(image: Tensor, threshold: float) -> Tensor:
    """Invert all values from a threshold on."""
    return torch.where(image >= threshold, invert(image), image)


@_of_colours
def posterize(image: Tensor, bits: int) -> Tensor:
    """Keep the highest bits of each value of an image of uint8."""
    return check_bytes(image) & (256 - (1 << (8 - bits)))


@_of_colours
def autocontrast(image: Tensor) -> Tensor:
    """Stretch each channel to the whole range, from its least to its greatest value."""
    low, high = image.amin((-2, -1), keepdim=True), image.amax((-2, -1), keepdim=True)
    top = 1.0 if image.is_floating_point() else 255.0
    stretched = (image - low) * top / (high - low)  # NaN for a channel of one value
    return torch.where(high > low, _to_range(stretched, image.dtype), image)


@_of_colours
def equalize(image: Tensor) -> Tensor:
    """Make all values of each channel equally frequent, as far as possible, in an image of uint8."""
    channels = check_bytes(image).reshape(-1, image.shape[-2] * image.shape[-1]).long()
    counts = torch.zeros(len(channels), 256, dtype=torch.int64, device=image.device)
    counts.scatter_add_(1, channels, torch.ones_like(channels))
    step = (channels.shape[1] - counts.gather(1, channels.amax(1, keepdim=True))) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    equal = torch.where(step > 0, table.gather(1, channels), channels)
    return equal.to(torch.uint8).reshape(image.shape)


def gaussian_blur(image: Tensor, kernel_size: tuple[int, int], sigma: float) -> Tensor:
    """Blur an image by a Gaussian kernel, reflected at the edges.

    Args:
        image: ``[..., C, H, W]``, larger than half the kernel.
        kernel_size: height and width of the kernel, odd.
        sigma: the standard deviation in pixels.
    """
    half_h, half_w = kernel_size[0] // 2, kernel_size[1] // 2
    blurred = image if image.is_floating_point() else image.float()
    blurred = pad(blurred, (half_w, half_h, half_w, half_h), mode="reflect")
    # A sum of shifted images along each axis, which for few channels is faster than conv2d.
    for axis, size in ((-2, kernel_size[0]), (-1, kernel_size[1])):
        length = image.shape[axis]
        shifted = (blurred.narrow(axis, start, length) for start in range(size))
        weights = _gaussian(size, sigma)
        total = next(shifted) * weights[0]
        for part, weight in zip(shifted, weights[1:], strict=True):
            total.add_(part, alpha=weight)
        blurred = total
    return blurred if image.is_floating_point() else blurred.round_().to(image.dtype)


def erase(image: Tensor, top: int, left: int, value: Tensor) -> Tensor:
    """Replace a rectangle of an image by `value`, ``[C, height, width]``, or of its first channels."""
    image = image.clone()
    value = fill_values(value, image.dtype, "value").to(image.device)
    channels, height, width = value.shape[-3:]
    image[..., :channels, top : top + height, left : left + width] = value
    return image


def affine(
    image: Tensor,
    angle: float = 0.0,
    translate: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    interpolation: Literal["bilinear", "nearest"] = "bilinear",
    fill: float | Sequence[float] = 0,
) -> Tensor:
    """Rotate, scale, shear and move an image about its centre; its size stays.

    Args:
        image: ``[..., C, H, W]``.
        angle: the rotation in degrees, clockwise.
        translate: right and down, in pixels.
        scale: the factor of the size; above 1 enlarges.
        shear: along x and y, in degrees.
        interpolation: ``"nearest"`` for masks.
        fill: the value outside of the image, or one for each channel.
    """
    turn, shear_x, shear_y = math.radians(angle), *(math.radians(s) for s in shear)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    shears = np.array([[1, 0], [-math.tan(shear_y), 1]]) @ np.array([[1, -math.tan(shear_x)], [0, 1]])
    inverse = np.linalg.inv(scale * rotation @ shears)
    return _sample(image, inverse, -inverse @ np.array(translate), image.shape[-2:], interpolation, fill)


def rotate(
    image: Tensor,
    angle: float,
    interpolation: Literal["bilinear", "nearest"] = "bilinear",
    expand: bool = False,
    fill: float | Sequence[float] = 0,
) -> Tensor:
    """Rotate an image about its centre.

    Args:
        image: ``[..., C, H, W]``.
        angle: the rotation in degrees, counter-clockwise.
        interpolation: ``"nearest"`` for masks.
        expand: enlarge the result to hold all of the image.
        fill: the value outside of the image, or one for each channel.
    """
    if expand and angle % 90 == 0:
        return image.rot90(round(angle / 90), (-2, -1))  # exactly, where the sizes differ by an odd number
    turn = math.radians(angle)
    inverse = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    height, width = image.shape[-2:]
    size = height, width
    if expand:
        # `_even_growth` has a tolerance, so that errors of rounding add no pixel.
        wide = abs(inverse[0, 0]) * width + abs(inverse[0, 1]) * height
        high = abs(inverse[1, 0]) * width + abs(inverse[1, 1]) * height
        size = _even_growth(high, height), _even_growth(wide, width)
    return _sample(image, inverse, np.zeros(2), size, interpolation, fill)


def _even_growth(needed: float, have: int) -> int:
    """The size that holds `needed` about the centre: the same number of whole pixels on both sides."""
    return have + 2 * math.ceil((needed - have) / 2 - 1e-4)


def _sample(
    image: Tensor,
    inverse: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    offset: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    size: Sequence[int],
    interpolation: str,
    fill: float | Sequence[float],
) -> Tensor:
    """Sample the pixel at `inverse @ (x, y) + offset` for each pixel of the result, from the centres on."""
    into = np.array([2 / image.shape[-1], 2 / image.shape[-2]])  # torch counts from -1 to 1
    theta = np.column_stack([into[:, None] * inverse * np.array([size[1] / 2, size[0] / 2]), into * offset])
    flat = image.reshape(-1, *image.shape[-3:])
    filling = _fill(image, fill)
    if interpolation == "nearest":  # by the numbers of the pixels: float32 would round classes above 2**24
        height, width = image.shape[-2:]
        source = torch.arange(1, height * width + 1, device=image.device).view(1, 1, height, width)
        source = (
            source.double() if image.dtype == torch.float64 or source.numel() >= 1 << 24 else source.float()
        )
    else:
        source = flat if image.is_floating_point() else flat.float()
    matrix = torch.from_numpy(theta).to(source).expand(len(source), 2, 3)
    grid = F.affine_grid(matrix, [len(source), 1, *size], align_corners=False)
    # Outside is 0 for grid_sample.
    sampled = F.grid_sample(source, grid, interpolation, "zeros", align_corners=False)
    if interpolation == "nearest":
        outside = filling.reshape(-1, 1).expand(*flat.shape[:2], 1)
        pixels = torch.cat([outside, flat.flatten(2)], 2)
        return pixels[..., sampled.long().flatten()].reshape(*image.shape[:-2], *size)
    if filling.any():
        ones = torch.ones_like(source[:, :1])
        inside = F.grid_sample(ones, grid, interpolation, "zeros", align_corners=False)
        # Rounded weights of pixels inside would add parts of a large value.
        sampled = torch.where(inside > 1 - 1e-5, sampled, sampled + (1 - inside) * filling)
    sampled = sampled.reshape(*image.shape[:-2], *size)
    return sampled if image.is_floating_point() else sampled.round_().to(image.dtype)


def _luma(image: Tensor, whole: bool = False) -> Tensor:
    """The grey channel in floating point; with `whole`, without the fractions of bytes, as Pillow has it."""
    if image.shape[-3] == 1:
        return image if image.is_floating_point() else image.float()
    _check_colours(image)
    red, green, blue = (image.narrow(-3, channel, 1) for channel in range(3))
    grey = (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])
    return grey.floor_() if whole and not image.is_floating_point() else grey


def _check_colours(image: Tensor) -> None:
    if image.shape[-3] != 3:
        raise DataError("an image has no colours", expected="3 channels, or 1", found=tuple(image.shape))


def check_bytes(image: Tensor) -> Tensor:
    """Return an image of uint8; raise a DataError for one of another dtype."""
    if image.dtype != torch.uint8:
        raise DataError(
            "an image is not of uint8",
            expected="torch.uint8",
            found=image.dtype,
            hint="ToFloat() comes later",
        )
    return image


def _blend(image: Tensor, other: Tensor, factor: float) -> Tensor:
    return _to_range((image * float(factor)).add_(other, alpha=1 - factor), image.dtype)


def _to_range(image: Tensor, dtype: torch.dtype) -> Tensor:
    return image.clamp_(0, 1) if dtype.is_floating_point else image.clamp_(0, 255).to(dtype)


def _channels(image: Tensor, values: Sequence[float], name: str) -> Tensor:
    if not image.is_floating_point():
        raise DataError(
            "only images in floating point are normalized",
            found=str(image.dtype),
            hint="ToFloat() before Normalize()",
        )
    if len(values) not in ((image.shape[-3],) if has_alpha(image) else (1, image.shape[-3])):
        raise DataError(
            f"{name} does not fit the channels of an image",
            expected=f"{image.shape[-3]} values" + ("" if has_alpha(image) else ", or 1"),
            found=f"{len(values)} values for an image of shape {tuple(image.shape)}",
            hint="a mean of 0 and a std of 1 leave alpha, the last channel, unchanged"
            if has_alpha(image)
            else None,
        )
    return torch.tensor(values, dtype=image.dtype, device=image.device)[:, None, None]


def _fill(image: Tensor, fill: float | Sequence[float]) -> Tensor:
    """The filling in the image's dtype: ``[1, 1]``, or ``[C, 1, 1]`` of one value for each channel."""
    values = fill_values(fill, image.dtype, "fill").to(image.device).reshape(-1)
    if len(values) not in (1, image.shape[-3] if image.dim() > 2 else 1):
        raise DataError(
            "fill does not fit the channels of an image",
            expected=f"{image.shape[-3]} values, or a number",
            found=f"{len(values)} values",
        )
    return values[:, None] if len(values) == 1 else values[:, None, None]


def _gaussian(size: int, sigma: float) -> list[float]:
    weights = [math.exp(-0.5 * ((i - size // 2) / sigma) ** 2) for i in range(size)]
    return [weight / sum(weights) for weight in weights]
