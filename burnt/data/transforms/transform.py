"""Transform, and how transforms are combined: Compose, RandomApply, RandomChoice.

Those of torchvision v2 and albumentations become functions of an item and a generator.

A transform is any ``function(item, generator)`` that returns the changed item: an item of a dataset as
`Loader(item_transform=)`, a batch as `Loader(transform=)`. What is random is drawn only from the generator.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import inspect
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from burnt.data.batch import Batch
from burnt.data.seeds import seeded_globally
from burnt.errors import DataError

IMAGES = ("images", "image")
_MASKS = ("masks", "mask")


class Transform:
    """Base of the transforms of images and of their masks.

    A transform is called as ``transform(item, generator)``. An item is a tensor; a dict, `Batch` or dataclass
    with a field ``images`` or ``image``, and perhaps ``masks`` or ``mask``; or a tuple or list, whose first
    element is the image. Other fields are unchanged. Images are ``[C, H, W]`` and masks ``[H, W]``; those of
    batches are ``[N, C, H, W]`` and ``[N, H, W]``, and each image gets random parameters of its own.

    A subclass defines `transform_image`; `transform_mask`, if it moves pixels; and `draw`, if it is random.

    Raises:
        DataError: the item has no images, they are not tensors or have other axes; or a random transform is
            called without a generator.

    >>> class RandomInvert(Transform):
    ...     def draw(self, image, generator):
    ...         return () if torch.rand((), generator=generator) < 0.5 else None
    ...
    ...     def transform_image(self, image, params):
    ...         return 255 - image
    >>> generator = torch.Generator().manual_seed(3)
    >>> RandomInvert()({"images": torch.zeros(1, 1, 2, dtype=torch.uint8), "labels": 7}, generator)
    {'images': tensor([[[255, 255]]], dtype=torch.uint8), 'labels': 7}
    """

    def draw(self, image: Tensor, generator: Generator) -> Any:
        """Draw the parameters for an image, ``[C, H, W]``; None leaves it unchanged."""
        return ()

    def transform_image(self, image: Tensor, params: Any) -> Tensor:
        """Return the changed image: ``[C, H, W]``, or with axes before these if nothing is random."""
        raise NotImplementedError

    def transform_mask(self, mask: Tensor, params: Any) -> Tensor:
        """Return the changed mask, ``[H, W]``, by the parameters of its image; by default, the mask."""
        return mask

    @property
    def is_random(self) -> bool:
        """Whether the transform draws from a generator."""
        return type(self).draw is not Transform.draw

    @property
    def is_per_image(self) -> bool:
        """Whether each image of a batch is transformed by itself, so that `apply` can be called."""
        return True

    def __call__(self, item: Any, generator: Generator | None = None) -> Any:
        """Return the item with changed images and masks."""
        if self.is_random:
            check_generator(generator, self)

        def change(images: Any, masks: Any) -> tuple[Any, Any]:
            _check(images, masks)
            return self.apply(images, masks, generator)

        return replace_images(item, change)

    def apply(
        self, images: Tensor, masks: Tensor | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return changed images, ``[C, H, W]`` or ``[N, C, H, W]``, and masks, which may be None."""
        if images.dim() == 3 or generator is None or not self.is_random:
            return self._apply_once(images, masks, generator)
        changed = [
            self._apply_once(image, None if masks is None else masks[i], generator)
            for i, image in enumerate(images)
        ]
        first = changed[0][0]
        for image, _ in changed:
            if image.shape != first.shape or image.dtype != first.dtype:
                raise DataError(
                    f"{type(self).__name__} makes the images of a batch different",
                    expected=f"all {tuple(first.shape)} of {first.dtype}",
                    found=f"one {tuple(image.shape)} of {image.dtype}",
                    hint="pass it as item_transform=, with a transform after it that makes them alike",
                )
        changed_masks = [mask for _, mask in changed if mask is not None]
        return torch.stack([image for image, _ in changed]), (
            torch.stack(changed_masks) if changed_masks else None
        )

    def _apply_once(
        self, image: Tensor, mask: Tensor | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        params = self.draw(image, generator)  # type: ignore[arg-type]
        if params is None:
            return image, mask
        image = self.transform_image(image, params)
        return image, None if mask is None else self.transform_mask(mask, params)


class Compose(Transform):
    """Transforms, one after the other.

    Args:
        *transforms: each a function ``(item, generator)``: a transform of burnt, your own, or one of
            torchvision v2 or albumentations, to which `as_transform` is applied. A list is taken, too.

    Raises:
        DataError: one of them cannot be called.

    >>> from burnt.data import transforms
    >>> augment = Compose(transforms.RandomCrop(4, padding=1), transforms.RandomHorizontalFlip())
    >>> augment(torch.zeros(3, 4, 4), torch.Generator().manual_seed(0)).shape
    torch.Size([3, 4, 4])
    """

    def __init__(self, *transforms: Any) -> None:
        self.transforms = _functions(transforms)

    @property
    def is_random(self) -> bool:
        """Whether one of the transforms may draw from a generator."""
        return any(getattr(transform, "is_random", True) for transform in self.transforms)

    @property
    def is_per_image(self) -> bool:
        """Whether all transforms are."""
        return all(getattr(transform, "is_per_image", False) for transform in self.transforms)

    def __call__(self, item: Any, generator: Generator | None = None) -> Any:
        """Return the item after all transforms."""
        for transform in self.transforms:
            item = transform(item, generator)
        return item

    def apply(
        self, images: Tensor, masks: Tensor | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Apply all transforms, each of which is per image."""
        for transform in self.transforms:
            images, masks = transform.apply(images, masks, generator)
        return images, masks

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class RandomChoice(Transform):
    """One of several transforms, drawn for each image; once for a batch if one of them takes whole batches.

    Args:
        *transforms: the transforms, as in `Compose`. A list is taken, too.
        p: the probability of each, or weights of any sum; None is the same for all.

    Raises:
        DataError: `p` does not fit the transforms.

    >>> from burnt.data import transforms
    >>> RandomChoice(transforms.MixUp(classes=10), transforms.CutMix(classes=10))
    RandomChoice(MixUp(alpha=1.0, classes=10), CutMix(alpha=1.0, classes=10))
    """

    def __init__(self, *transforms: Any, p: Sequence[float] | None = None) -> None:
        self.transforms = _functions(transforms)
        self.p = None if p is None else list(p)
        weights = [1.0] * len(self.transforms) if p is None else list(p)
        if len(weights) != len(self.transforms) or sum(weights) <= 0 or min(weights) < 0:
            raise DataError(
                "p does not fit the transforms",
                expected=f"{len(self.transforms)} weights of at least 0",
                found=repr(p),
            )
        self._cumulative = list(itertools.accumulate(weights))

    @property
    def is_random(self) -> bool:
        """Always: the choice is."""
        return True

    @property
    def is_per_image(self) -> bool:
        """Whether all transforms are."""
        return all(getattr(transform, "is_per_image", False) for transform in self.transforms)

    def __call__(self, item: Any, generator: Generator | None = None) -> Any:
        """Return the changed item."""
        check_generator(generator, self)
        if self.is_per_image:
            return super().__call__(item, generator)
        return self.transforms[self._choose(generator)](item, generator)

    def _apply_once(
        self, image: Tensor, mask: Tensor | None, generator: Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        changed: tuple[Tensor, Tensor | None] = self.transforms[self._choose(generator)].apply(
            image, mask, generator
        )
        return changed

    def _choose(self, generator: Generator | None) -> int:
        assert generator is not None
        return bisect.bisect_right(self._cumulative, uniform(generator, 0, self._cumulative[-1]))

    def __repr__(self) -> str:
        p = "" if self.p is None else f", p={self.p}"
        return f"{type(self).__name__}({', '.join(map(repr, self.transforms))}{p})"


class RandomApply(RandomChoice):
    """Transforms that are applied with a probability, all of them or none.

    Drawn for each image; once for a batch if one of the transforms takes whole batches.

    Args:
        *transforms: the transforms, as in `Compose`. A list is taken, too.
        p: the probability of applying it.

    Raises:
        DataError: `p` is not from 0 to 1.

    >>> from burnt.data import transforms
    >>> RandomApply(transforms.GaussianBlur(9), p=0.1)
    RandomApply(GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)), p=0.1)
    """

    def __init__(self, *transforms: Any, p: float = 0.5) -> None:
        check_probability(p)
        super().__init__(Compose(*transforms), Compose(), p=[p, 1 - p])

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.transforms[0].transforms))
        return f"RandomApply({inner}, p={self._cumulative[0]:g})"


def replace_images(item: Any, change: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Return an item with its image, and its mask if it has one, replaced by ``change(image, mask)``."""
    fields, like = open_item(item)
    image_name = next((name for name in IMAGES if name in fields), None)
    mask_name = next((name for name in _MASKS if name in fields), None)
    if image_name is None:
        raise DataError(
            "an item has no images",
            expected="a field images or image",
            found=", ".join(map(str, fields)) or "no fields",
            hint="rename the field, in a function (item, generator) before the transform",
        )
    image, mask = change(fields[image_name], fields[mask_name] if mask_name else None)
    return like({**fields, image_name: image} | ({mask_name: mask} if mask_name else {}))


def uniform(generator: Generator, low: float = 0.0, high: float = 1.0) -> float:
    """Draw a number from low up to high."""
    drawn = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device)
    return low + (high - low) * drawn.item()


def integer(generator: Generator, end: int) -> int:
    """Draw a whole number from 0 up to, and without, `end`."""
    return int(torch.randint(end, (), generator=generator, device=generator.device))


def check_probability(p: float) -> None:
    """Check that a probability is from 0 to 1."""
    if not 0 <= p <= 1:
        raise DataError("p must be between 0 and 1", expected="from 0 to 1", found=p)


def _functions(transforms: Iterable[Any]) -> list[Any]:
    transforms = list(transforms)
    if len(transforms) == 1 and isinstance(transforms[0], list | tuple):
        transforms = list(transforms[0])
    return [as_transform(transform) for transform in transforms]


def _check(images: Any, masks: Any) -> None:
    if not isinstance(images, Tensor) or images.dim() not in (3, 4):
        is_tensor = isinstance(images, Tensor)
        raise DataError(
            "a transform needs images as tensors",
            expected="[C, H, W], or [N, C, H, W]",
            found=tuple(images.shape) if is_tensor else type(images).__name__,
            hint="images[None] adds the axis of the channels"
            if is_tensor
            else "ToImage() before it converts arrays and Pillow's images",
        )
    if masks is not None:
        shape = (*images.shape[:-3], *images.shape[-2:])
        if not isinstance(masks, Tensor) or masks.shape != shape:
            raise DataError(
                "a mask does not fit its image",
                expected=f"a tensor of shape {shape}",
                found=tuple(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__,
            )


def as_transform(transform: Any) -> Any:
    """Return a function ``(item, generator)``: a transform of torchvision or albumentations in its adapter.

    Any other callable is returned as it is.

    Raises:
        DataError: it cannot be called, or not with an item and a generator.
    """
    modules = [kind.__module__.split(".")[0] for kind in type(transform).__mro__]
    if "torchvision" in modules:
        return Torchvision(transform)
    if "albumentations" in modules:
        return Albumentations(transform)
    if not callable(transform):
        raise DataError(
            "a transform cannot be called", expected="a function (item, generator)", found=repr(transform)
        )
    try:
        signature = inspect.signature(transform)
    except (ValueError, TypeError):  # of code in C: its first call tells
        return transform
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise DataError(
            "a transform is called with two arguments",
            where=name,
            expected="a function (item, generator)",
            found=f"({', '.join(signature.parameters)})",
            hint=f"lambda item, generator: {name.replace('<lambda>', 'function')}(item). What is random "
            "draws from the generator, to repeat after a resume",
        ) from None
    return transform


class Torchvision:
    """A transform of torchvision v2, seeded from the generator.

    torchvision draws from torch's global random state, and a function of yours inside of it perhaps from
    those of NumPy and Python: for the time of the call, all three are seeded by a number from the generator,
    and restored afterwards. Since threads share these states, it runs only in the main thread of a process:
    in this process, or in worker processes.

    Args:
        transform: a transform of ``torchvision.transforms.v2``.

    Fields ``images`` and ``masks`` are passed as ``tv_tensors``, which move together, and become tensors
    again; all others are passed as they are. A batch is passed as one: its images share their random
    parameters.

    Raises:
        DataError: it runs in a thread.
    """

    is_random = True

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, item: Any, generator: Generator) -> Any:
        """Return the changed item."""
        if threading.current_thread() is not threading.main_thread():
            raise DataError(
                "a transform of torchvision runs in a thread",
                expected="the main thread, since it draws from the global random state that threads share",
                found=threading.current_thread().name,
                hint="load with worker processes, or use the transforms of burnt.data.transforms",
            )
        from torchvision import tv_tensors

        kinds = {"image": tv_tensors.Image, "mask": tv_tensors.Mask}

        def wrap(name: Any, value: Any) -> Any:
            kind = kinds.get(str(name).removesuffix("s"))
            return kind(value) if kind is not None and isinstance(value, Tensor) else value

        fields, like = open_item(item)
        tensors = [value for value in fields.values() if isinstance(value, Tensor)]
        devices = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
        with seeded_globally(draw_seed(check_generator(generator, self.transform)), devices):
            changed = self.transform({name: wrap(name, value) for name, value in fields.items()})
        return like({name: _plain(value) for name, value in changed.items()})

    def __repr__(self) -> str:
        return f"Torchvision({type(self.transform).__name__})"


class Albumentations:
    """A transform of albumentations, 2.0 or later, seeded from the generator.

    albumentations draws from generators of its own, which are replaced for each call by new ones with a seed
    from the generator; no global random state is touched. Each thread uses a copy of the transform.

    Args:
        transform: a transform of albumentations, such as its ``Compose``.

    The fields ``images``, ``[C, H, W]``, and ``masks``, ``[H, W]``, are passed as ``image`` and ``mask``,
    arrays ``[H, W, C]`` and ``[H, W]``, and become tensors again. Other fields are passed as they are:
    ``bboxes`` and ``keypoints`` are changed, if the transform knows their format.

    Raises:
        DataError: the item is a batch, or albumentations is too old.
    """

    is_random = True

    def __init__(self, transform: Any) -> None:
        if not hasattr(transform, "set_random_state"):
            raise DataError(
                "this version of albumentations cannot be seeded",
                expected="2.0 or later, whose transforms have set_random_state",
                found=type(transform).__name__,
            )
        self.transform = transform
        self._of_thread = threading.local()

    def __call__(self, item: Any, generator: Generator) -> Any:
        """Return the changed item."""
        if not hasattr(self._of_thread, "transform"):
            self._of_thread.transform = copy.deepcopy(self.transform)
        transform = self._of_thread.transform
        seed = draw_seed(check_generator(generator, self.transform))
        # Not set_random_seed, with which all transforms inside draw the same numbers.
        transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
        fields, like = open_item(item)
        theirs = {"images": "image", "masks": "mask"}
        inputs = {theirs.get(name, name): value for name, value in fields.items()}
        inputs |= {name: _to_array(inputs[name]) for name in ("image", "mask") if name in inputs}
        changed = transform(**inputs)
        changed |= {name: _to_tensor(changed[name]) for name in ("image", "mask") if name in inputs}
        return like({name: changed[theirs.get(name, name)] for name in fields})

    def __reduce__(self) -> tuple[Any, ...]:
        return Albumentations, (self.transform,)

    def __repr__(self) -> str:
        return f"Albumentations({type(self.transform).__name__})"


def open_item(item: Any) -> tuple[dict[Any, Any], Callable[[Mapping[Any, Any]], Any]]:
    """Return the fields of an item by name, and a function that makes an item like it of changed fields.

    A tuple or list begins with an image and a label; what has no fields is an image itself.
    """
    if isinstance(item, tuple | list):
        if not item:
            raise DataError("an item is empty, and has no image")
        names = ["image", "label", *map(str, range(2, len(item)))]

        def like(fields: Mapping[Any, Any]) -> Any:
            values = fields.values()
            return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)

        return dict(zip(names, item, strict=False)), like
    if isinstance(item, Mapping):
        return dict(item), dict
    if isinstance(item, Batch):
        return dict(vars(item)), lambda fields: Batch(**fields)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return dict(vars(item)), lambda fields: dataclasses.replace(item, **fields)
    return {"image": item}, lambda fields: fields["image"]


def check_generator(generator: Generator | None, owner: object) -> Generator:
    """Return a generator; raise a DataError if there is none, which `owner` needs."""
    if generator is None:
        raise DataError(
            f"{type(owner).__name__} is random, and was called without a generator",
            expected="transform(item, generator)",
            hint="generator = torch.Generator().manual_seed(0)",
        )
    return generator


def draw_seed(generator: Generator) -> int:
    """Draw a seed for what does not draw from the generator itself."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, Tensor) else value


def _to_array(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim() not in (2, 3):
        raise DataError(
            "albumentations takes no batches",
            expected="[C, H, W], and masks [H, W]",
            found=tuple(value.shape),
            hint="pass it as item_transform= of the loader",
        )
    return value.numpy() if value.dim() == 2 else np.ascontiguousarray(value.permute(1, 2, 0).numpy())


def _to_tensor(value: Any) -> Any:
    if isinstance(value, Tensor):  # of ToTensorV2
        return value
    # A copy, because flips and crops are views that torch cannot hold or that keep the whole image.
    return torch.from_numpy(np.ascontiguousarray(value if value.ndim == 2 else value.transpose(2, 0, 1)))
