"""Transforms of images, and of their masks and labels, without torchvision.

`functional` has functions of pixels with every parameter given, `geometry` and `color` the transforms that
draw these parameters, `auto` those that draw the transform, too, `mixing` those of whole batches, `transform`
their base, how they are combined, and those of torchvision and albumentations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt._lazy import own_names
from burnt.data.transforms import functional as functional
from burnt.data.transforms.auto import RandAugment as RandAugment
from burnt.data.transforms.auto import TrivialAugment as TrivialAugment
from burnt.data.transforms.color import IMAGENET_MEAN as IMAGENET_MEAN
from burnt.data.transforms.color import IMAGENET_STD as IMAGENET_STD
from burnt.data.transforms.color import ColorJitter as ColorJitter
from burnt.data.transforms.color import GaussianBlur as GaussianBlur
from burnt.data.transforms.color import Grayscale as Grayscale
from burnt.data.transforms.color import Normalize as Normalize
from burnt.data.transforms.color import RandomErasing as RandomErasing
from burnt.data.transforms.color import RandomGrayscale as RandomGrayscale
from burnt.data.transforms.color import ToFloat as ToFloat
from burnt.data.transforms.color import ToImage as ToImage
from burnt.data.transforms.geometry import CenterCrop as CenterCrop
from burnt.data.transforms.geometry import Pad as Pad
from burnt.data.transforms.geometry import RandomAffine as RandomAffine
from burnt.data.transforms.geometry import RandomCrop as RandomCrop
from burnt.data.transforms.geometry import RandomHorizontalFlip as RandomHorizontalFlip
from burnt.data.transforms.geometry import RandomResizedCrop as RandomResizedCrop
from burnt.data.transforms.geometry import RandomRotation as RandomRotation
from burnt.data.transforms.geometry import RandomVerticalFlip as RandomVerticalFlip
from burnt.data.transforms.geometry import Resize as Resize
from burnt.data.transforms.mixing import CutMix as CutMix
from burnt.data.transforms.mixing import MixUp as MixUp
from burnt.data.transforms.transform import Albumentations as Albumentations
from burnt.data.transforms.transform import Compose as Compose
from burnt.data.transforms.transform import RandomApply as RandomApply
from burnt.data.transforms.transform import RandomChoice as RandomChoice
from burnt.data.transforms.transform import Torchvision as Torchvision
from burnt.data.transforms.transform import Transform as Transform
from burnt.data.transforms.transform import as_transform as as_transform

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "functional", *own_names(globals())]

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
