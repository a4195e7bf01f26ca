"""Functions of images next to torchvision's and Pillow's with the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from burnt.data import transforms
from burnt.data.transforms import RandomRotation, functional
from burnt.errors import DataError
from tests.messages import raises

GENERATOR = torch.Generator().manual_seed(7)
PICTURE = torch.randint(256, (3, 33, 46), generator=GENERATOR, dtype=torch.uint8)
SMOOTH = functional.resize(PICTURE[:, :7, :9], (67, 91), "bicubic")
"""A picture without noise, in which a shift by a fraction of a pixel shows no more than it should."""


def pillow(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def close(found: torch.Tensor, wanted: torch.Tensor, most: float) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert (found.double() - wanted.double()).abs().max() <= most


def different(found: torch.Tensor, wanted: torch.Tensor, by: float) -> float:
    return float(((found.double() - wanted.double()).abs() > by).double().mean())


@pytest.mark.parametrize("size", [(20, 31), (70, 60), 17, 49])  # none of them has ties between two pixels
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_resize_is_that_of_pillow(size, interpolation) -> None:
    height, width = functional.resized_size(33, 46, size)
    resampling = Image.Resampling[interpolation.upper()]
    wanted = tensor(pillow(PICTURE).resize((width, height), resampling))
    close(functional.resize(PICTURE, size, interpolation), wanted, 1)


@pytest.mark.parametrize("size", [(20, 31), 17, 50])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_resize_is_that_of_torchvision(torchvision, size, interpolation) -> None:
    mode = "nearest-exact" if interpolation == "nearest" else interpolation
    for image in (PICTURE, PICTURE / 255):
        wanted = torchvision.functional.resize(image, size, mode, antialias=True)
        close(functional.resize(image, size, interpolation), wanted, 0)


def test_sizes_are_those_of_torchvision(torchvision) -> None:
    for height, width, size, most in [
        (33, 46, 17, None),
        (46, 33, 17, None),
        (10, 99, 7, 40),
        (99, 10, 7, 40),
    ]:
        wanted = torchvision.functional.resize(torch.zeros(1, height, width), size, max_size=most).shape[-2:]
        assert functional.resized_size(height, width, size, most) == wanted


def test_a_size_of_zero_is_refused() -> None:
    with raises(DataError, "100 x 1000 to 0 x 5", match="would become empty"):
        functional.resize(torch.zeros(3, 100, 1000), 10, max_size=5)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad_is_that_of_torchvision(torchvision, mode) -> None:
    sides = (3, 1, 5, 2)
    close(
        functional.pad(PICTURE, sides, 9, mode), torchvision.functional.pad(PICTURE, list(sides), 9, mode), 0
    )
    if mode == "constant":
        fill = [1, 2, 3]
        wanted = torchvision.functional.pad(PICTURE, list(sides), fill)
        close(functional.pad(PICTURE, sides, fill), wanted, 0)


def test_pad_reflects_further_than_the_image() -> None:
    row = torch.tensor([[1, 2, 3]], dtype=torch.uint8)
    assert functional.pad(row, (5, 0, 0, 0), mode="reflect").tolist() == [[2, 1, 2, 3, 2, 1, 2, 3]]
    with pytest.raises(DataError, match="fill does not fit"):
        functional.pad(PICTURE, (1, 1, 1, 1), (1, 2))


@pytest.mark.parametrize("size", [(20, 31), (33, 46), (40, 20), (51, 60), (34, 47)])
def test_center_crop_is_that_of_torchvision(torchvision, size) -> None:
    wanted = torchvision.functional.center_crop(PICTURE, list(size))
    close(functional.center_crop(PICTURE, size), wanted, 0)


def test_normalize_and_back(torchvision) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    image = functional.to_float(PICTURE)
    close(image, torchvision.functional.to_dtype(PICTURE, torch.float32, scale=True), 1e-7)
    normalized = functional.normalize(image, mean, std)
    close(normalized, torchvision.functional.normalize(image, list(mean), list(std)), 0)
    close(functional.denormalize(normalized, mean, std), image, 1e-6)


def test_normalize_tells_what_is_wrong() -> None:
    with raises(DataError, "floating point", "ToFloat() before"):
        functional.normalize(PICTURE, [0.5], [0.5])
    with raises(DataError, "mean does not fit", "2 values for an image of shape (3, 33, 46)"):
        functional.normalize(PICTURE / 255, [0.5, 0.5], [0.5])


COLOURS = ["brightness", "contrast", "saturation", "sharpness"]


@pytest.mark.parametrize("factor", [0, 0.4, 1, 1.7, 2])
@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_those_of_torchvision(torchvision, name, factor) -> None:
    for image in (PICTURE, PICTURE / 255, PICTURE[:1], torch.stack([PICTURE, PICTURE // 2])):
        # With a whole number, the bytes of torchvision overflow.
        wanted = getattr(torchvision.functional, f"adjust_{name}")(image, float(factor))
        most = 1e-6 if image.is_floating_point() else 1
        close(getattr(functional, f"adjust_{name}")(image, factor), wanted, most)


def test_grey_is_that_of_torchvision(torchvision) -> None:
    for image in (PICTURE, PICTURE / 255, PICTURE[:1]):
        for channels in (1, 3):
            wanted = torchvision.functional.rgb_to_grayscale(image, channels)
            close(functional.grayscale(image, channels), wanted, 1e-6 if image.is_floating_point() else 1)


def test_grey_is_that_of_pillow() -> None:
    grey = torch.from_numpy(np.array(pillow(PICTURE).convert("L")))[None]
    close(functional.grayscale(PICTURE), grey, 1)
    with pytest.raises(DataError, match="no colours"):
        functional.grayscale(PICTURE[[0, 1, 2, 0, 1]])
    with pytest.raises(DataError, match="no colours"):
        functional.adjust_hue(PICTURE[[0, 1, 2, 0, 1]], 0.1)


@pytest.mark.parametrize("shift", [-0.5, -0.13, 0, 0.3, 0.5])
def test_hue_is_that_of_torchvision(torchvision, shift) -> None:
    grey = PICTURE[:1].expand_as(PICTURE)
    for image in (PICTURE, PICTURE / 255, grey, torch.zeros_like(PICTURE), torch.stack([PICTURE, grey])):
        wanted = torchvision.functional.adjust_hue(image, shift)
        close(functional.adjust_hue(image, shift), wanted, 2e-5 if image.is_floating_point() else 1)
    assert torch.equal(functional.adjust_hue(PICTURE[:1], shift), PICTURE[:1])


TONES = [
    ("posterize", 3, lambda image: ImageOps.posterize(image, 3)),
    ("posterize", 8, lambda image: image),
    ("solarize", 100, lambda image: ImageOps.solarize(image, 100)),
    ("invert", None, ImageOps.invert),
    ("autocontrast", None, ImageOps.autocontrast),
    ("equalize", None, ImageOps.equalize),
]


DARK = (SMOOTH // 3 + 20).clamp(max=80)
TONE_PICTURES = [SMOOTH, DARK, torch.full_like(DARK, 9), DARK[:, :5, :5]]
"""The last two have one value, and fewer pixels than values: nothing to stretch or to equalize."""


@pytest.mark.parametrize(("name", "argument", "of_pillow"), TONES, ids=lambda value: str(value)[:9])
def test_tones_are_those_of_torchvision_and_pillow(torchvision, name, argument, of_pillow) -> None:
    ours, theirs = getattr(functional, name), getattr(torchvision.functional, name)
    arguments = () if argument is None else (argument,)
    for image in TONE_PICTURES:
        close(ours(image, *arguments), theirs(image, *arguments), name == "autocontrast")
        close(ours(image, *arguments), tensor(of_pillow(pillow(image))), 1)
    together = ours(torch.stack(TONE_PICTURES[:3]), *arguments)
    assert torch.equal(together[2], ours(TONE_PICTURES[2], *arguments))
    if name in ("posterize", "equalize"):
        with pytest.raises(DataError, match="not of uint8"):
            ours(DARK / 255, *arguments)
    if name in ("solarize", "invert", "autocontrast"):
        arguments = () if argument is None else (0.4,)
        close(ours(DARK / 255, *arguments), theirs(DARK / 255, *arguments), 1e-6)


@pytest.mark.parametrize(("size", "sigma"), [((5, 5), 1.3), ((3, 9), 0.4)])
def test_blur_is_that_of_torchvision(torchvision, size, sigma) -> None:
    for image in (PICTURE, PICTURE / 255, torch.stack([PICTURE, PICTURE // 2])):
        wanted = torchvision.functional.gaussian_blur(image, list(size[::-1]), [sigma, sigma])
        close(functional.gaussian_blur(image, size, sigma), wanted, 1e-6 if image.is_floating_point() else 1)


def test_erase_leaves_its_argument() -> None:
    erased = functional.erase(PICTURE, 2, 3, torch.zeros(3, 4, 5))
    assert erased[:, 2:6, 3:8].sum() == 0
    assert (erased != PICTURE).sum() == (PICTURE[:, 2:6, 3:8] != 0).sum()


AFFINE = [
    {"angle": 30.0},
    {"translate": (4.0, -3.0)},
    {"scale": 1.4},
    {"shear": (10.0, 0.0)},
    {"shear": (0.0, 12.0)},
    {"angle": -75.0, "translate": (2.0, 5.0), "scale": 0.6, "shear": (8.0, -9.0)},
]


@pytest.mark.parametrize("params", AFFINE, ids=str)
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_affine_is_that_of_torchvision(torchvision, params, interpolation) -> None:
    full = {"angle": 0.0, "translate": (0.0, 0.0), "scale": 1.0, "shear": (0.0, 0.0)} | params
    theirs = {name: list(v) if isinstance(v, tuple) else v for name, v in full.items()}
    image = SMOOTH / 255
    wanted = torchvision.functional.affine(image, **theirs, interpolation=interpolation)
    # Where a pixel lies half-way between two, rounding decides which of them is the nearest.
    assert different(functional.affine(image, **full, interpolation=interpolation), wanted, 1e-4) < 0.01
    # At the edge, torchvision weights the image twice if it has a filling.
    inside = torchvision.functional.affine(torch.ones_like(image), **theirs, interpolation=interpolation)
    fill = torch.tensor([0.2, 0.4, 0.6])
    wanted += (1 - inside) * fill[:, None, None]
    found = functional.affine(image, **full, interpolation=interpolation, fill=fill.tolist())
    assert different(found, wanted, 1e-4) < 0.01
    wanted = torchvision.functional.affine(SMOOTH, **theirs, interpolation=interpolation)
    found = functional.affine(SMOOTH, **full, interpolation=interpolation)
    assert different(found, wanted, 1) < 0.01


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("angle", [0, 30, 90, 180, -120, 270])
def test_rotate_is_that_of_torchvision(torchvision, angle, expand) -> None:
    image = SMOOTH / 255
    wanted = torchvision.functional.rotate(image, angle, interpolation="bilinear", expand=expand)
    found = functional.rotate(image, angle, expand=expand)
    assert found.shape == wanted.shape
    assert different(found, wanted, 1e-3) < 0.01


def test_right_angles_are_exact_for_every_size() -> None:
    for size in ((2, 3), (5, 4), (1, 6), (3, 3)):
        image = PICTURE[:, : size[0], : size[1]]
        for angle in (-90, 0, 90, 180, 270, 450):
            found = functional.rotate(image, angle, expand=True)
            assert torch.equal(found, tensor(pillow(image).rotate(angle, expand=True))), (size, angle)
    mask = PICTURE[0, :4, :7]
    turned = RandomRotation((90, 90), expand=True)(
        {"images": PICTURE[:, :4, :7], "masks": mask}, torch.Generator()
    )
    assert torch.equal(turned["masks"], turned["images"][0])


def weights(old: int, new: int, mode: str) -> np.ndarray:
    """Return the matrix of Pillow's resampling: triangles or cubics (Keys, a = -0.5), widened to shrink."""
    scale = old / new
    widening = max(1.0, scale)
    reach = widening * (1 if mode == "bilinear" else 2)
    matrix = np.zeros((new, old))
    for row in range(new):
        centre = (row + 0.5) * scale
        for column in range(max(0, int(centre - reach + 0.5)), min(old, int(centre + reach + 0.5))):
            x = abs((column + 0.5 - centre) / widening)
            if mode == "bilinear":
                matrix[row, column] = max(0.0, 1 - x)
            else:
                near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
                matrix[row, column] = near if x < 1 else far if x < 2 else 0.0
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("old", [(6, 6), (6, 1), (1, 6), (3, 9)], ids=str)
@pytest.mark.parametrize("new", [(5, 1), (1, 1), (8, 1), (1, 5)], ids=str)
def test_one_pixel_wide_is_resized_as_any_other(
    mode: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    if old == new:
        return
    image = torch.rand(2, 3, *old, generator=GENERATOR, dtype=torch.float64, requires_grad=True)
    rows, columns = (torch.from_numpy(weights(*sizes, mode)) for sizes in zip(old, new, strict=True))
    found = functional.resize(image, new, mode)
    close(found.detach(), rows @ image.detach() @ columns.T, 1e-12)
    upstream = torch.rand(found.shape, generator=GENERATOR, dtype=torch.float64)
    found.backward(upstream)
    assert image.grad is not None
    close(image.grad, rows.T @ upstream @ columns, 1e-12)
    bytes_ = torch.randint(256, (3, *old), generator=GENERATOR, dtype=torch.uint8)
    channels_last = bytes_.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    whole = (rows @ bytes_.double() @ columns.T).clamp(0, 255)
    for given in (bytes_, channels_last):
        close(functional.resize(given, new, mode).double(), whole, 1.01 if mode == "bilinear" else 30)


ALPHA = [
    functional.invert,
    functional.autocontrast,
    functional.equalize,
    lambda image: functional.solarize(image, 100),
    lambda image: functional.posterize(image, 3),
    lambda image: functional.adjust_brightness(image, 0.5),
    lambda image: functional.adjust_contrast(image, 0.5),
    lambda image: functional.adjust_saturation(image, 0.5),
    lambda image: functional.adjust_hue(image, 0.2),
    lambda image: functional.adjust_sharpness(image, 3.0),
    lambda image: functional.grayscale(image),
    lambda image: functional.grayscale(image, 3),
]


@pytest.mark.parametrize("function", ALPHA, ids=range(len(ALPHA)))
@pytest.mark.parametrize("colours", [1, 3])
def test_colours_change_and_alpha_does_not(function: Any, colours: int) -> None:
    alpha = torch.randint(256, (1, 33, 46), generator=GENERATOR, dtype=torch.uint8)
    found = function(torch.cat([PICTURE[:colours], alpha]))
    assert torch.equal(found, torch.cat([function(PICTURE[:colours]), alpha]))
    batch = torch.cat([PICTURE[:colours], alpha]).expand(2, -1, -1, -1)
    assert torch.equal(function(batch), found.expand(2, -1, -1, -1))


@pytest.mark.parametrize("colours", [1, 3])
def test_transforms_of_colours_leave_alpha(colours: int) -> None:
    alpha = torch.randint(256, (1, 33, 46), generator=GENERATOR, dtype=torch.uint8)
    image = torch.cat([PICTURE[:colours], alpha])
    changed = 0
    for transform in (
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.2),
        transforms.Grayscale(3),
        transforms.RandomGrayscale(1),
        transforms.RandomErasing(1, value=9),
        transforms.RandomErasing(1, value="random"),
        transforms.RandomErasing(1, value=(9,) * colours),
    ):
        for given in (image, image / 255):
            found = transform(given, torch.Generator().manual_seed(0))
            assert torch.equal(found[-1:], given[-1:])
            changed += found.shape != given.shape or not torch.equal(found, given)
    assert changed >= 8
    opaque = transforms.RandomErasing(1, value=(9,) * colours + (255,))(
        image, torch.Generator().manual_seed(0)
    )
    assert (opaque[-1] == 255).sum() > (image[-1] == 255).sum()
    for _ in range(30):
        moved = transforms.RandAugment(1)(image, GENERATOR)
        where = moved[-1:] != alpha
        assert torch.equal(moved[-1:], alpha) or (moved != image).any(0, keepdim=True)[where].all()


def test_one_number_does_not_normalize_alpha() -> None:
    image = torch.rand(4, 2, 2, generator=GENERATOR)
    with raises(
        DataError,
        "a mean of 0 and a std of 1 leave alpha",
        match="mean does not fit the channels of an image",
    ):
        transforms.Normalize(0.5, 0.25)(image)
    found = transforms.Normalize((0.5, 0.5, 0.5, 0), (0.25, 0.25, 0.25, 1))(image)
    assert torch.equal(found, torch.cat([(image[:3] - 0.5) / 0.25, image[3:]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (4, 1), (1, 4), (4, 5)])
def test_antialias_of_16_bits_is_that_of_float32_rounded(dtype: torch.dtype, size: tuple[int, int]) -> None:
    image = torch.rand(3, 9, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for mode in ("bilinear", "bicubic"):
        expected = functional.resize(image.float(), size, mode).to(dtype)
        assert torch.equal(functional.resize(image, size, mode), expected)
