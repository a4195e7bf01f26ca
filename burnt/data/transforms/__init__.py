"""Transforms of images, and of their masks and labels, without torchvision.

`functional` has functions of pixels with every parameter given, `geometry` and `color` the transforms that
draw these parameters, `auto` those that draw the transform, too, `mixing` those of whole batches, `transform`
their base and how they are combined, `adapters` those of torchvision and albumentations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.data.transforms import functional
from burnt.data.transforms.adapters import Albumentations, Torchvision, as_transform
from burnt.data.transforms.auto import RandAugment, TrivialAugment
from burnt.data.transforms.color import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    ToFloat,
    ToImage,
)
from burnt.data.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)
from burnt.data.transforms.mixing import CutMix, MixUp
from burnt.data.transforms.transform import Compose, RandomApply, RandomChoice, Transform

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Albumentations",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "MixUp",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToFloat",
    "ToImage",
    "Torchvision",
    "Transform",
    "TrivialAugment",
    "as_transform",
    "functional",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
