"""MixUp and CutMix: transforms of whole batches, which mix their labels, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Generator, Tensor

from burnt.data.transforms import functional
from burnt.data.transforms.transform import IMAGES, check_generator, draw_seed, integer, open_item
from burnt.errors import DataError


@dataclass(frozen=True)
class _Mix:
    alpha: float = 1.0
    classes: int | None = None

    is_random = True

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise DataError("alpha must be positive", found=self.alpha)

    def __call__(self, batch: Any, generator: Generator | None = None) -> Any:
        """Return the batch with mixed images and labels."""
        generator = check_generator(generator, self)
        name, seed = type(self).__name__, draw_seed(generator)
        fields, like = open_item(batch)
        image_name = next((n for n in IMAGES if isinstance(fields.get(n), Tensor)), None)
        label_name = next((n for n in ("labels", "label") if isinstance(fields.get(n), Tensor)), None)
        if image_name is None or label_name is None:
            raise DataError(
                f"{name} needs images and labels",
                expected="a batch with the fields images and labels, or a pair",
                found=", ".join(map(str, fields)),
            )
        images, labels = fields[image_name], fields[label_name]
        if not images.is_floating_point() and isinstance(self, MixUp):
            raise DataError(
                "only images in floating point are mixed", found=images.dtype, hint="ToFloat() before"
            )
        if images.dim() != 4 or len(labels) != len(images):
            raise DataError(
                f"{name} needs a batch",
                expected="images [N, C, H, W] and labels [N] or [N, classes]",
                found=f"images {tuple(images.shape)} and labels {tuple(labels.shape)}",
                hint="pass it as transform= of the loader, not as item_transform=",
            )
        targets = self._targets(labels)
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        images, share = self.mix(images, share, generator)
        labels = targets * share + targets.roll(1, 0) * (1 - share)
        return like({**fields, image_name: images, label_name: labels})

    def mix(self, images: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        """Mix each image with the one before it, and return the share that it has of the result."""
        raise NotImplementedError

    def _targets(self, labels: Tensor) -> Tensor:
        if labels.is_floating_point():
            return labels
        if self.classes is None or labels.dim() != 1:
            raise DataError(
                f"{type(self).__name__} needs the number of classes",
                expected=f"{type(self).__name__}(classes=10), or probabilities [N, classes] as labels",
                found=f"labels {tuple(labels.shape)} of {labels.dtype}",
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.classes:
            raise DataError(
                "labels are out of range", expected=f"0 to {self.classes - 1}", found=f"{low} to {high}"
            )
        return F.one_hot(labels.long(), self.classes).float()


@dataclass(frozen=True)
class MixUp(_Mix):
    """Mix each image of a batch, and its label, with another one: ``share * a + (1 - share) * b``.

    For `Loader(transform=)`. The partner of an image is the one before it, so that the loader must shuffle.
    One share is drawn for the batch.

    Args:
        alpha: the share is drawn from Beta(alpha, alpha): 1 is uniform, 0.2 mostly near 0 or 1.
        classes: the number of classes, if labels are integers.

    The batch has ``images``, ``[N, C, H, W]`` in floating point, and ``labels``, ``[N]`` of integers or
    ``[N, classes]`` of probabilities; or it is a tuple of both. The labels become probabilities,
    ``[N, classes]`` of float32, which `nn.CrossEntropy` takes. Zhang et al., 2017.

    Raises:
        DataError: the batch has other fields, shapes or dtypes, or labels that are not classes.

    >>> import torch
    >>> images, labels = MixUp(classes=3)((torch.rand(2, 3, 8, 8), torch.tensor([0, 2])), torch.Generator())
    >>> labels.shape, labels.sum(1)
    (torch.Size([2, 3]), tensor([1., 1.]))
    """

    def mix(self, images: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        """Mix the pixels."""
        return images * share + images.roll(1, 0) * (1 - share), share


@dataclass(frozen=True)
class CutMix(_Mix):
    """Replace a rectangle of each image of a batch by another image's, and mix the labels by area.

    For `Loader(transform=)`. The partner of an image is the one before it, so that the loader must shuffle.
    One rectangle is drawn for the batch; parts of it outside of the images do not count.

    Args:
        alpha: the part of the area that stays is drawn from Beta(alpha, alpha).
        classes: the number of classes, if labels are integers.

    Batches are as in `MixUp`, also with images of uint8. Yun et al., 2019.

    Raises:
        DataError: as in `MixUp`.

    >>> import torch
    >>> images, labels = CutMix(classes=3)((torch.rand(2, 3, 8, 8), torch.tensor([0, 2])), torch.Generator())
    >>> labels.shape, labels.sum(1)
    (torch.Size([2, 3]), tensor([1., 1.]))
    """

    def mix(self, images: Tensor, share: float, generator: Generator) -> tuple[Tensor, float]:
        """Replace the rectangle, and return the share of the area outside of it."""
        height, width = images.shape[-2:]
        y, x = integer(generator, height), integer(generator, width)
        half_h, half_w = (int(0.5 * math.sqrt(1 - share) * size) for size in (height, width))
        top, bottom = max(y - half_h, 0), min(y + half_h, height)
        left, right = max(x - half_w, 0), min(x + half_w, width)
        mixed = images.clone()
        patch = functional.crop(images.roll(1, 0), top, left, bottom - top, right - left)
        mixed[..., top:bottom, left:right] = patch
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)
