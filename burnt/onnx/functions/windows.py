"""Functions of ops with windows: convolutions and poolings with ONNX's paddings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def _same_pads(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool
) -> tuple[list[int], list[int]]:
    before, after = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        before.append(total // 2 if upper else total - total // 2)
        after.append(total - before[-1])
    return before, after


def pad_same(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], upper: bool = True
) -> Tensor:
    """Pad ``[N, C, ...]`` with zeros so that an op with windows makes ``ceil(size / stride)`` elements.

    An odd number is padded at the end with `upper`, else at the start.
    """
    before, after = _same_pads(x.shape[2:], kernel, strides, dilations, upper)
    return F.pad(x, _torch_pads(before, after))


def _torch_pads(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return pads in the order of `torch.nn.functional.pad`: pairs, from the last axis on."""
    return [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]


_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    """Convolve ``[N, C, ...]``, with pads before each axis, then after each.

    Integers are convolved in float64, which is exact to 2**53.
    """
    rank = x.dim() - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    if auto_pad.startswith("SAME"):
        x = pad_same(x, weight.shape[2:], strides, dilations, auto_pad == "SAME_UPPER")
    elif pads and auto_pad != "VALID":
        x = F.pad(x, _torch_pads(pads[:rank], pads[rank:]))
    return _CONV[rank](x, weight, bias, list(strides), 0, list(dilations), groups)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    auto_pad: str = "NOTSET",
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
) -> Tensor:
    """Transposed convolution of ``[N, C, ...]``; `output_shape` or `auto_pad` decide the pads."""
    rank = x.dim() - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = list(output_padding or [0] * rank)
    full = _CONV_TRANSPOSE[rank](x, weight, None, list(strides), 0, 0, groups, list(dilations))
    pads = list(pads or [0] * 2 * rank)
    if output_shape is not None or auto_pad.startswith("SAME"):
        for i in range(rank):
            target = output_shape[-rank + i] if output_shape is not None else x.shape[2 + i] * strides[i]
            total = full.shape[2 + i] + extra[i] - target
            small, large = total // 2, total - total // 2
            pads[i], pads[rank + i] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
            if total < 0:  # the rest is output padding
                pads[i], pads[rank + i] = 0, total
    elif auto_pad == "VALID":
        pads = [0] * 2 * rank
    ends = [more - pad for more, pad in zip(extra, pads[rank:], strict=True)]
    result = F.pad(full, _torch_pads([-pad for pad in pads[:rank]], ends))
    return result if bias is None else result + bias.reshape(-1, *[1] * rank)


def _windows(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: bool = False,
    auto_pad: str = "NOTSET",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return elements ``[..., *out, window]``, whether each is in the input, and in the input or its pads."""
    rank, lengths = len(kernel), []
    sizes, strides, dilations = x.shape[-rank:], strides or [1] * rank, dilations or [1] * rank
    if auto_pad.startswith("SAME"):
        before, after = _same_pads(sizes, kernel, strides, dilations, auto_pad == "SAME_UPPER")
    elif auto_pad == "VALID" or not pads:
        before, after = [0] * rank, [0] * rank
    else:
        before, after = list(pads[:rank]), list(pads[rank:])
    flat = torch.zeros((1,) * 2 * rank, dtype=torch.int64, device=x.device)
    inside = torch.ones((1,) * 2 * rank, dtype=torch.bool, device=x.device)
    in_pads = inside
    for i in range(rank):
        span = dilations[i] * (kernel[i] - 1) + 1
        room = sizes[i] + before[i] + after[i] - span
        count = (-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1
        if ceil_mode and (count - 1) * strides[i] >= sizes[i] + before[i]:
            count -= 1  # a window must start in the input or the pads before it
        start = torch.arange(count, device=x.device) * strides[i] - before[i]
        # A window may be far larger than the input: what is beyond it and its pads is left out.
        lengths.append(max(1, min(kernel[i], (sizes[i] + before[i] + after[i] - 1) // dilations[i] + 1)))
        place = start[:, None] + torch.arange(lengths[i], device=x.device) * dilations[i]
        view = [1] * 2 * rank
        view[i], view[rank + i] = place.shape
        place = place.reshape(view)
        flat = flat * sizes[i] + place.clamp(0, sizes[i] - 1)
        inside = inside & (place >= 0) & (place < sizes[i])
        in_pads = in_pads & (place < sizes[i] + after[i])
    out, window = flat.shape[:rank], math.prod(lengths)
    flat = flat.reshape(*out, window)
    taken = x.flatten(-rank)[..., flat]
    return taken, inside.reshape(*out, window), in_pads.expand((*out, *lengths)).reshape(*out, window)


def _lowest(dtype: torch.dtype) -> float | int:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def max_pool(
    x: Tensor, kernel: Sequence[int], column_major: bool = False, **window: Any
) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows of ``[N, C, ...]``, and their places in the flat input.

    `pads` are those before each axis, then those after each; `ceil_mode` rounds the number of windows up;
    `column_major` counts places with the first spatial axis fastest.
    """
    taken, inside, _ = _windows(x, kernel, **window)
    values, best = taken.masked_fill(~inside, _lowest(x.dtype)).max(-1)
    sizes = x.shape[2:]
    number = torch.arange(math.prod(sizes), device=x.device).reshape((1, 1, *sizes))
    places, _, _ = _windows(number, kernel, **window)
    index = places.expand(*taken.shape).gather(-1, best[..., None])[..., 0]
    if column_major:
        parts = torch.unravel_index(index, sizes)
        index = torch.zeros_like(index)
        for part, size in zip(reversed(parts), reversed(sizes), strict=True):
            index = index * size + part
    plane = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(x.shape[:2] + (1,) * len(sizes))
    return values, index + plane * math.prod(sizes)


def average_pool(x: Tensor, kernel: Sequence[int], count_include_pad: bool = False, **window: Any) -> Tensor:
    """Return the means of windows of ``[N, C, ...]``, see `max_pool`; with or without the pads."""
    taken, inside, in_pads = _windows(x, kernel, **window)
    total = taken.masked_fill(~inside, 0).sum(-1)
    return total / (in_pads if count_include_pad else inside).sum(-1).to(x.dtype)


def lp_pool(x: Tensor, kernel: Sequence[int], p: float = 2, **window: Any) -> Tensor:
    """Return the p-norms of windows of ``[N, C, ...]``, see `max_pool`."""
    taken, inside, _ = _windows(x, kernel, **window)
    return taken.masked_fill(~inside, 0).abs().pow(p).sum(-1).pow(1 / p)


def global_pool(x: Tensor, kind: str, p: float = 2) -> Tensor:
    """Return the mean (``avg``), maximum (``max``) or p-norm (``lp``) of each plane of ``[N, C, ...]``."""
    axes = list(range(2, x.dim()))
    if not axes:
        return x.abs() if kind == "lp" else x
    if kind == "lp":
        norm: Tensor = torch.linalg.vector_norm(x, p, axes, keepdim=True)
        return norm
    return x.mean(axes, keepdim=True) if kind == "avg" else x.amax(axes, keepdim=True)


def max_unpool(
    x: Tensor,
    indices: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    output_shape: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """Put maxima back to their places; the other elements are 0."""
    rank = len(kernel)
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    natural = [(x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i in range(rank)]
    flat = x.new_zeros(x.shape[0] * x.shape[1] * math.prod(natural))
    flat[indices.reshape(-1)] = x.reshape(-1)
    result = flat.reshape(*x.shape[:2], *natural)
    if output_shape is None:
        return result
    sizes = output_shape.tolist() if isinstance(output_shape, Tensor) else list(output_shape)
    more = [size - have for size, have in zip(sizes[2:], natural, strict=True)]
    return F.pad(result, _torch_pads([0] * rank, more))


def deform_conv(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor:
    """Convolution in two dimensions whose samples are moved by `offset` and weighted by `mask`.

    Dai and others, 2017; Zhu and others, 2018.
    """
    n, channels, height, width = x.shape
    kh, kw = weight.shape[2:]
    strides, dilations, pads = strides or [1, 1], dilations or [1, 1], pads or [0] * 4
    out_h, out_w = offset.shape[-2:]
    offset = offset.reshape(n, offset_groups, kh * kw, 2, out_h, out_w)
    steps = [torch.arange(k, device=x.device) * d for k, d in zip((kh, kw), dilations, strict=True)]
    starts = [
        torch.arange(o, device=x.device) * s - p
        for o, s, p in zip((out_h, out_w), strides, pads[:2], strict=True)
    ]
    rows = steps[0].repeat_interleave(kw)[:, None, None] + starts[0][None, :, None] + offset[:, :, :, 0]
    columns = steps[1].repeat(kh)[:, None, None] + starts[1][None, None, :] + offset[:, :, :, 1]
    per_group = channels // offset_groups
    flat = x.reshape(n, offset_groups, per_group, height * width)
    sampled = x.new_zeros(n, offset_groups, per_group, kh * kw * out_h * out_w)
    top, left = rows.floor(), columns.floor()
    for row, column in itertools.product((top, top + 1), (left, left + 1)):
        share = (1 - (rows - row).abs()) * (1 - (columns - column).abs())
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
        place = place.reshape(n, offset_groups, 1, -1).expand(-1, -1, per_group, -1)
        sampled = sampled + flat.gather(-1, place) * (share * inside).reshape(n, offset_groups, 1, -1)
    sampled = sampled.reshape(n, offset_groups, per_group, kh * kw, out_h, out_w)
    if mask is not None:
        sampled = sampled * mask.reshape(n, offset_groups, 1, kh * kw, out_h, out_w)
    inputs = sampled.reshape(n, groups, channels // groups * kh * kw, out_h * out_w)
    kernel = weight.reshape(groups, weight.shape[0] // groups, -1)
    y = torch.einsum("gok,ngkl->ngol", kernel, inputs).reshape(n, weight.shape[0], out_h, out_w)
    return y if bias is None else y + bias[:, None, None]


def roi_align(
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    output: Sequence[int],
    scale: float = 1.0,
    sampling_ratio: int = 0,
    mode: str = "avg",
    half_pixel: bool = True,
) -> Tensor:
    """Pool regions of ``[N, C, H, W]`` by bilinear samples in each of their bins. He and others, 2017."""
    height, width = x.shape[-2:]
    results = []
    for roi, image in zip(rois, batch.tolist(), strict=True):
        corners = roi * scale - (0.5 if half_pixel else 0.0)
        sides = [corners[3] - corners[1], corners[2] - corners[0]]
        if not half_pixel:
            sides = [side.clamp(min=1.0) for side in sides]
        places, counts = [], []
        for axis, (side, bins) in enumerate(zip(sides, output, strict=True)):
            count = sampling_ratio if sampling_ratio > 0 else max(math.ceil(float(side) / bins), 1)
            step = (torch.arange(bins * count, device=x.device, dtype=x.dtype) + 0.5) / count
            places.append(corners[1 - axis] + step * (side / bins))
            counts.append(count)
        samples = _bilinear(x[image], places[0], places[1], height, width, mode)
        parts = samples.reshape(-1, output[0], counts[0], output[1], counts[1])
        results.append(parts.mean((2, 4)) if mode == "avg" else parts.amax((2, 4)))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], *output)


def _bilinear(plane: Tensor, ys: Tensor, xs: Tensor, height: int, width: int, mode: str) -> Tensor:
    """Sample ``[C, H, W]`` on a grid; 0 outside, clamped near the border. Mode max: the largest product."""
    parts = []
    for place, size in ((ys, height), (xs, width)):
        valid = (place >= -1) & (place <= size)
        place = place.clamp(0, size - 1)
        low = place.floor().long()
        high = (low + 1).clamp(max=size - 1)
        weight = place - low
        parts.append(((low, 1 - weight), (high, weight), valid))
    (y0, y1, y_valid), (x0, x1, x_valid) = parts
    terms = []
    for (row, a), (column, b) in itertools.product((y0, y1), (x0, x1)):
        terms.append(plane[:, row][:, :, column] * a[:, None] * b[None, :])
    stacked = torch.stack(terms)
    found = stacked.sum(0) if mode == "avg" else stacked.amax(0)
    return found * (y_valid[:, None] & x_valid[None, :])


def max_roi_pool(x: Tensor, rois: Tensor, output: Sequence[int], scale: float = 1.0) -> Tensor:
    """Return the maxima of the bins of regions ``[image, x1, y1, x2, y2]``. Girshick, 2015."""
    results = []
    for roi in rois:
        image = x[int(roi[0])]
        x1, y1, x2, y2 = [int(torch.floor(v * scale + 0.5)) for v in roi[1:]]
        rows, columns = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        bins = x.new_zeros(x.shape[1], *output)
        for i, j in itertools.product(range(output[0]), range(output[1])):
            top, bottom = i * rows // output[0] + y1, -(-(i + 1) * rows // output[0]) + y1
            left, right = j * columns // output[1] + x1, -(-(j + 1) * columns // output[1]) + x1
            part = image[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
            if part.numel():
                bins[:, i, j] = part.amax((1, 2))
        results.append(bins)
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], *output)


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_boxes: Any = 0,
    iou_threshold: Any = 0.0,
    score_threshold: Any = None,
    center_point: bool = False,
) -> Tensor:
    """Return ``[K, 3]``: image, class and box of those that do not overlap a box with a better score.

    `boxes` are ``[N, B, 4]``: two corners (y, x), or with `center_point` centre and size (x, y, w, h);
    `scores` ``[N, classes, B]``. At most `max_boxes` per image and class are kept, of scores above
    `score_threshold`.
    """
    if center_point:
        corners = torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
    else:
        corners = torch.cat(
            [torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])], -1
        )
    limit, threshold = int(max_boxes), float(iou_threshold)
    selected = []
    for image, kind in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        order = torch.sort(scores[image, kind], descending=True, stable=True).indices
        if score_threshold is not None:
            order = order[scores[image, kind][order] > float(score_threshold)]
        kept: list[int] = []
        area = (corners[image, :, 2:] - corners[image, :, :2]).prod(-1)
        while order.numel() and len(kept) < limit:
            best, order = order[0], order[1:]
            kept.append(int(best))
            low = torch.maximum(corners[image, best, :2], corners[image, order, :2])
            high = torch.minimum(corners[image, best, 2:], corners[image, order, 2:])
            common = (high - low).clamp(min=0).prod(-1)
            order = order[~(common > threshold * (area[best] + area[order] - common))]
        selected += [[image, kind, box] for box in kept]
    return torch.tensor(selected, dtype=torch.int64, device=boxes.device).reshape(-1, 3)
