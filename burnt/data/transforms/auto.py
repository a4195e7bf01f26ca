"""RandAugment and TrivialAugment: random transforms of random strength, with nothing to tune or little."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor

from burnt.data.transforms import functional
from burnt.data.transforms.geometry import Fill
from burnt.data.transforms.transform import Transform, integer, uniform
from burnt.errors import DataError

_LEVELS = 30

_STRENGTHS = {
    "identity": 0.0, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 150 / 331, "translate_y": 150 / 331,
    "rotate": 30.0, "brightness": 0.9, "saturation": 0.9, "contrast": 0.9, "sharpness": 0.9, "posterize": 4.0,
    "solarize": 1.0, "autocontrast": 0.0, "equalize": 0.0,
}  # fmt: skip
"""What each change has at the highest level: tangents, parts of the size, degrees, factors less 1, bits."""

_WIDE = _STRENGTHS | {
    "shear_x": 0.99, "shear_y": 0.99, "translate_x": 32.0, "translate_y": 32.0, "rotate": 135.0,
    "brightness": 0.99, "saturation": 0.99, "contrast": 0.99, "sharpness": 0.99, "posterize": 6.0,
}  # fmt: skip
"""The same for TrivialAugment, whose translations are in pixels."""

_SIGNED = {name for name in _STRENGTHS if name.startswith(("shear", "translate", "rotate"))}
_SIGNED |= {"brightness", "saturation", "contrast", "sharpness"}

Change = tuple[str, float]


class _Changes(Transform):
    """Applies the changes that were drawn, each with its strength."""

    fill: Fill
    mask_fill: int

    def transform_image(self, image: Tensor, params: list[Change]) -> Tensor:
        """Change the image."""
        functional.check_bytes(image)
        for name, strength in params:
            image = _change(image, name, strength, self.fill)
        return image

    def transform_mask(self, mask: Tensor, params: list[Change]) -> Tensor:
        """Move the mask."""
        mask = mask.unsqueeze(-3)
        for name, strength in params:
            if (moves := _moves(name, strength)) is not None:
                mask = functional.affine(mask, **moves, interpolation="nearest", fill=self.mask_fill)
        return mask.squeeze(-3)


@dataclass(frozen=True)
class RandAugment(_Changes):
    """Apply some of 14 changes at a common strength: shears, shifts, rotation, colours, sharpness and tones.

    Args:
        num_ops: how many changes are made, one after the other; one may be drawn twice.
        magnitude: their strength, from 0 to 30.
        fill: the value outside of a moved image, or one for each channel.
        mask_fill: the class outside of it.

    Images are uint8. The strengths are as in torchvision, but shears are about the centre. Cubuk et al.,
    2019.

    >>> import torch
    >>> image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    >>> RandAugment()(image, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 32, 32])
    """

    num_ops: int = 2
    magnitude: int = 9
    fill: Fill = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= _LEVELS:
            raise DataError("magnitude is out of range", expected=f"0 to {_LEVELS}", found=self.magnitude)
        if self.num_ops < 1:
            raise DataError("num_ops is too small", expected="at least 1", found=self.num_ops)

    def draw(self, image: Tensor, generator: Generator) -> list[Change]:
        """Draw the changes, each with its strength."""
        height, width = image.shape[-2:]
        sizes = {"translate_x": width, "translate_y": height}
        changes = [_draw(_STRENGTHS, self.magnitude, generator) for _ in range(self.num_ops)]
        return [(name, strength * sizes.get(name, 1)) for name, strength in changes]


@dataclass(frozen=True)
class TrivialAugment(_Changes):
    """Apply one of 14 changes at a random strength: nothing is to be tuned.

    Args:
        fill, mask_fill: the value and the class outside of a moved image, as in `RandAugment`.

    Images are uint8. The strengths are as in torchvision's ``TrivialAugmentWide``, but shears are about
    the centre. Müller and Hutter, 2021.

    >>> import torch
    >>> image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    >>> TrivialAugment()(image, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 32, 32])
    """

    fill: Fill = 0
    mask_fill: int = 0

    def draw(self, image: Tensor, generator: Generator) -> list[Change]:
        """Draw the change and its strength."""
        return [_draw(_WIDE, integer(generator, _LEVELS + 1), generator)]


def _draw(strengths: dict[str, float], level: int, generator: Generator) -> Change:
    names = list(strengths)
    name = names[integer(generator, len(names))]
    strength = strengths[name] * level / _LEVELS
    return name, -strength if name in _SIGNED and uniform(generator) < 0.5 else strength


def _moves(name: str, strength: float) -> dict[str, Any] | None:
    """The arguments of `affine` for a change that moves pixels; None for one that does not."""
    if name in ("shear_x", "shear_y"):
        degrees = math.degrees(math.atan(strength))
        return {"shear": (degrees, 0.0) if name == "shear_x" else (0.0, degrees)}
    if name in ("translate_x", "translate_y"):
        pixels = float(int(strength))
        return {"translate": (pixels, 0.0) if name == "translate_x" else (0.0, pixels)}
    return {"angle": -strength} if name == "rotate" else None


def _change(image: Tensor, name: str, strength: float, fill: Fill) -> Tensor:
    if (moves := _moves(name, strength)) is not None:
        return functional.affine(image, **moves, fill=fill)
    if name in ("brightness", "contrast", "saturation", "sharpness"):
        adjust = getattr(functional, f"adjust_{name}")
        changed: Tensor = adjust(image, 1 + strength)
        return changed
    if name == "posterize":
        return functional.posterize(image, 8 - round(strength))
    if name == "solarize":
        return functional.solarize(image, 255 * (1 - strength))
    if name == "autocontrast":
        return functional.autocontrast(image)
    return functional.equalize(image) if name == "equalize" else image
