"""Resizing with ONNX's coordinates, and image files as tensors."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import RecordError
from burnt.onnx.functions.tensors import Sizes, to_ints


def affine_grid(theta: Tensor, size: Sizes, align_corners: bool = False) -> Tensor:
    """Return the grid of an affine map for images of a size."""
    return F.affine_grid(theta, to_ints(size), align_corners)


def resize(
    x: Tensor,
    sizes: Sizes | None = None,
    scales: Tensor | Sequence[float] | None = None,
    roi: Tensor | Sequence[float] | None = None,
    axes: Sequence[int] | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
    cubic: float = -0.75,
    antialias: bool = False,
    exclude_outside: bool = False,
    extrapolation: float = 0.0,
    aspect: str = "stretch",
) -> Tensor:
    """Resize axes of a tensor, one after the other, see the arguments of ONNX's Resize; None is all axes.

    `roi` has start and end per axis, for the `coordinates` tf_crop_and_resize, with `extrapolation` outside.
    The rounding `nearest` is ONNX's, or ``simple``: up where the size is reduced, else down. `cubic` is the
    coefficient of cubic kernels; with `exclude_outside` elements outside the input have no weight. `aspect`
    is stretch, not_larger or not_smaller.

    Sizes and places are computed in float32, as in ONNX Runtime: 5 times 1.4 is 7, not just below. Corners
    are aligned by the size of the result, as in ONNX Runtime and torch, not by the old size times the factor.
    """
    named = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    old = [x.shape[axis] for axis in named]
    if sizes is not None and len(to_ints(sizes)):
        new = to_ints(sizes)
        factors = [n / o for n, o in zip(new, old, strict=True)]
        if aspect != "stretch":
            factor = min(factors) if aspect == "not_larger" else max(factors)
            factors = [factor] * len(named)
            new = [math.floor(factor * o + 0.5) for o in old]
    else:
        assert scales is not None
        factors = [float(s) for s in (scales.tolist() if isinstance(scales, Tensor) else scales)]
        new = [int(np.float32(o) * np.float32(f)) for o, f in zip(old, factors, strict=True)]
    regions = [0.0, 1.0] if roi is None else roi.tolist() if isinstance(roi, Tensor) else list(roi)
    is_crop = coordinates == "tf_crop_and_resize"
    dtype = x.dtype
    outside: list[tuple[int, Tensor]] = []
    for i, (axis, size, factor) in enumerate(zip(named, new, factors, strict=True)):
        region = (regions[i], regions[len(named) + i]) if is_crop else (0.0, 1.0)
        if size == old[i] and factor == 1 and region == (0.0, 1.0):
            continue
        place = _places(size, old[i], factor, coordinates, region)
        if mode == "nearest":
            rounding = ("ceil" if factor < 1 else "floor") if nearest == "simple" else nearest
            index = _ROUND[rounding](place).clamp(0, old[i] - 1).long()
            x = x.index_select(axis, index.to(x.device))
        else:
            weights = _weights(place, old[i], factor, mode, cubic, antialias, exclude_outside)
            wide = x.movedim(axis, -1).to(torch.float64 if dtype == torch.float64 else torch.float32)
            x = torch.matmul(wide, weights.to(wide).t()).movedim(-1, axis)
        if is_crop:
            outside.append((axis, (place < 0) | (place > old[i] - 1)))
    for axis, mask in outside:
        x = x.masked_fill(
            mask.to(x.device).reshape([-1 if a == axis else 1 for a in range(x.dim())]), extrapolation
        )
    if not dtype.is_floating_point and x.dtype != dtype:
        x = x.round().clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return x.to(dtype)


_ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "round_prefer_floor": lambda place: torch.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: torch.floor(place + 0.5),
    "floor": torch.floor,
    "ceil": torch.ceil,
}


def _places(size: int, old: int, factor: float, kind: str, region: tuple[float, float]) -> Tensor:
    """Return the place in the input of each element of the result, in float32."""
    y = torch.arange(size, dtype=torch.float32)
    ratio = torch.tensor(factor, dtype=torch.float32)
    if kind == "align_corners":
        return y * 0 if size == 1 else y * (old - 1) / (size - 1)
    if kind == "asymmetric":
        return y / ratio
    if kind == "tf_half_pixel_for_nn":
        return (y + 0.5) / ratio
    if kind == "tf_crop_and_resize":
        start, end = torch.tensor(region, dtype=torch.float32).unbind()
        if size == 1:
            return y + (start + end) * (old - 1) * 0.5
        return start * (old - 1) + y * (end - start) * (old - 1) / (size - 1)
    if kind == "pytorch_half_pixel" and size == 1:
        return y * 0
    offset = old / 2 * (1 - size / (ratio * old)) if kind == "half_pixel_symmetric" else 0.0
    return offset + (y + 0.5) / ratio - 0.5


def _weights(
    place: Tensor, old: int, factor: float, mode: str, a: float, antialias: bool, exclude_outside: bool
) -> Tensor:
    """Return ``[new, old]``: the weight of each element of the input."""
    scale = min(factor, 1.0) if antialias else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / scale)
    place = place.double()
    index = torch.floor(place)[:, None] + torch.arange(1 - reach - 1, reach + 2, dtype=torch.float64)
    distance = ((index - place[:, None]) * scale).abs()
    if mode == "linear":
        weight = (1 - distance).clamp(min=0)
    else:
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        weight = torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))
    if exclude_outside:
        weight = weight * ((index >= 0) & (index < old))
    if exclude_outside or antialias:
        weight = weight / weight.sum(-1, keepdim=True)
    matrix = torch.zeros(place.numel(), old, dtype=torch.float64)
    return matrix.scatter_add(1, index.clamp(0, old - 1).long(), weight)


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
