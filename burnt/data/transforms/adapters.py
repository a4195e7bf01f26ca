"""Transforms of torchvision v2 and albumentations as functions of an item and a generator."""

from __future__ import annotations

import copy
import dataclasses
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from burnt.data.batch import Batch
from burnt.data.seeds import seeded_globally
from burnt.errors import DataError


def as_transform(transform: Any) -> Any:
    """Return a function ``(item, generator)``: a transform of torchvision or albumentations in its adapter.

    Any other callable is returned as it is.

    Raises:
        DataError: it cannot be called.
    """
    modules = [kind.__module__.split(".")[0] for kind in type(transform).__mro__]
    if "torchvision" in modules:
        return Torchvision(transform)
    if "albumentations" in modules:
        return Albumentations(transform)
    if not callable(transform):
        raise DataError(
            "a transform cannot be called",
            expected="a function (item, generator)",
            found=repr(transform),
        )
    return transform


class Torchvision:
    """A transform of torchvision v2, seeded from the generator.

    torchvision draws from torch's global random state, and a function of yours inside of it perhaps from
    those of NumPy and Python: for the time of the call, all three are seeded by a number from the generator,
    and restored afterwards. Since threads share these states, it runs in the main thread of a process alone:
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
