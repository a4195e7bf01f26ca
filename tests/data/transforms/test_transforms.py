"""Random transforms: determinism, masks that move along, distributions; items, batches and messages."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from burnt.data import Batch, Loader, TensorDataset, transforms
from burnt.data.transforms import functional
from burnt.errors import DataError
from tests.messages import raises

PICTURE = torch.randint(256, (3, 24, 31), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
MASK = PICTURE[0] % 5

GEOMETRY = [
    transforms.Resize(12),
    transforms.Resize((40, 17), "bicubic"),
    transforms.CenterCrop(20),
    transforms.CenterCrop(40),
    transforms.Pad((1, 2), mode="reflect"),
    transforms.RandomCrop((16, 20)),
    transforms.RandomCrop(24, padding=4, mode="edge"),
    transforms.RandomCrop(40, pad_if_needed=True, mask_fill=4),
    transforms.RandomResizedCrop(18),
    transforms.RandomHorizontalFlip(),
    transforms.RandomVerticalFlip(),
    transforms.RandomRotation(30, expand=False, mask_fill=4),
    transforms.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, mask_fill=4),
]
AUTO = [transforms.RandAugment(mask_fill=4), transforms.TrivialAugment(fill=(1, 2, 3))]
PIXELS = [
    transforms.ToFloat(),
    transforms.Compose(transforms.ToFloat(), transforms.Normalize()),
    transforms.Grayscale(3),
    transforms.RandomGrayscale(0.5),
    transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
    transforms.GaussianBlur(3),
    transforms.RandomErasing(0.7),
    transforms.RandomErasing(0.7, value="random"),
    transforms.RandomApply(transforms.ColorJitter(0.5), transforms.RandomHorizontalFlip(), p=0.5),
    transforms.RandomChoice(transforms.Grayscale(3), transforms.RandomVerticalFlip(), p=[1, 2]),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("transform", [*GEOMETRY, *PIXELS, *AUTO], ids=repr)
def test_a_generator_decides_all(transform) -> None:
    """The same seed gives the same image, also in a copy; no global state counts, and the argument stays."""
    before, state = PICTURE.clone(), torch.get_rng_state()
    images = [transform(PICTURE, seeded(seed)) for seed in range(8)]
    assert torch.equal(PICTURE, before)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    copy = pickle.loads(pickle.dumps(transform))
    for seed, image in enumerate(images):
        assert torch.equal(image, copy(PICTURE, seeded(seed)))
    torch.set_rng_state(state)
    differ = any(a.shape != b.shape or not torch.equal(a, b) for a, b in itertools.pairwise(images))
    assert differ == transform.is_random


@pytest.mark.parametrize("transform", [*GEOMETRY, *PIXELS, *AUTO], ids=repr)
def test_each_image_of_a_batch_has_its_own_parameters(transform) -> None:
    pictures, masks = torch.stack([PICTURE] * 6), torch.stack([MASK] * 6)
    batch = transform(Batch(images=pictures, masks=masks, labels=torch.arange(6)), seeded())
    generator = seeded()
    items = [transform({"images": PICTURE, "masks": MASK}, generator) for _ in range(6)]
    for i, item in enumerate(items):
        assert (batch.images[i].float() - item["images"].float()).abs().max() <= 1
        assert torch.equal(batch.masks[i], item["masks"])
    assert batch.labels.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("transform", GEOMETRY, ids=repr)
def test_masks_move_with_their_images(transform) -> None:
    """A mask that is the image of one channel, and nearest neighbours: both results are the same."""
    if "interpolation" in vars(transform):
        transform = type(transform)(**{**vars(transform), "interpolation": "nearest"})
    fill = getattr(transform, "mask_fill", 0)
    if "fill" in vars(transform):
        transform = type(transform)(**{**vars(transform), "fill": fill})
    for seed in range(4):
        item = transform({"image": MASK[None], "mask": MASK, "name": "a"}, seeded(seed))
        assert torch.equal(item["image"][0], item["mask"])
        assert item["mask"].dtype == torch.uint8
        assert item["name"] == "a"
        wide = transform({"image": MASK[None], "mask": MASK.long()}, seeded(seed))["mask"]
        assert wide.dtype == torch.int64
        assert torch.equal(wide, item["mask"].long())


@pytest.mark.parametrize("transform", PIXELS[:8], ids=repr)
def test_masks_stay_where_pixels_do(transform) -> None:
    for seed in range(4):
        assert torch.equal(transform({"images": PICTURE, "masks": MASK}, seeded(seed))["masks"], MASK)


class Pair(NamedTuple):
    picture: Tensor
    label: int


@dataclass(frozen=True)
class Item:
    image: Tensor
    label: int


def test_items_keep_their_type() -> None:
    flip = transforms.RandomVerticalFlip(p=1)
    flipped = PICTURE.flip(1)
    for item in (PICTURE, Pair(PICTURE, 3), Item(PICTURE, 3), (PICTURE, 3), [PICTURE, 3], {"image": PICTURE}):
        found = flip(item, seeded())
        assert type(found) is type(item)
        image = found
        if not isinstance(found, Tensor):
            image = found["image"] if isinstance(found, dict) else getattr(found, "image", None)
            image = found[0] if image is None else image
        assert torch.equal(image, flipped)
    assert flip(Pair(PICTURE, 3), seeded()).label == 3


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"pixels": PICTURE}, ["an item has no images", "images or image", "found     pixels"]),
        ([], ["an item is empty"]),
        (np.zeros((4, 4, 3)), ["needs images as tensors", "[C, H, W]", "ndarray", "ToImage()"]),
        (PICTURE[0], ["needs images as tensors", "(24, 31)", "images[None]"]),
        ({"images": PICTURE, "masks": MASK[1:]}, ["does not fit its image", "(24, 31)", "(23, 31)"]),
    ],
    ids=str,
)
def test_items_without_images_are_refused(item, words) -> None:
    with raises(DataError, *words):
        transforms.CenterCrop(4)(item)


def test_a_generator_is_needed_only_for_what_is_random() -> None:
    evaluation = transforms.Compose(transforms.Resize(20), transforms.ToFloat(), transforms.Normalize())
    assert evaluation(PICTURE).shape == (3, 20, 25)
    assert not evaluation.is_random
    for transform in (
        transforms.RandomCrop(8),
        transforms.RandomApply(transforms.Grayscale()),
        transforms.Compose(transforms.Resize(20), transforms.RandomHorizontalFlip()),
        transforms.MixUp(classes=2),
    ):
        assert transform.is_random
        with raises(
            DataError,
            "torch.Generator().manual_seed(0)",
            match="is random, and was called without a generator",
        ):
            transform(PICTURE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: transforms.Resize(0), ["size is not of this form", "found     0"]),
        (lambda: transforms.Resize(8, "lanczos"), ["unknown interpolation", "bilinear, bicubic, nearest"]),
        (lambda: transforms.RandomRotation(8, "bicubic"), ["unknown interpolation", "bilinear, nearest"]),
        (lambda: transforms.RandomHorizontalFlip(1.5), ["p must be between 0 and 1", "1.5"]),
        (lambda: transforms.RandomResizedCrop(8, (0.5, 0.1)), ["scale is not a range", "from 0 to 1"]),
        (lambda: transforms.RandomResizedCrop(8, ratio=(0, 1)), ["ratio is not a range", "above 0"]),
        (lambda: transforms.Pad((1, 2, 3)), ["padding is not of this form", "(1, 2, 3)"]),
        (lambda: transforms.GaussianBlur(4), ["kernel_size must be odd"]),
        (lambda: transforms.ColorJitter(hue=0.7), ["hue is not a range", "from -0.5 to 0.5"]),
        (lambda: transforms.RandomErasing(value="noise"), ["unknown value", "'noise'"]),
        (lambda: transforms.Normalize(std=[0.5, 0]), ["std must be positive"]),
        (lambda: transforms.Grayscale(2), ["1 or 3 channels"]),
        (lambda: transforms.Compose(transforms.ToFloat(), None), ["cannot be called", "None"]),
        (lambda: transforms.Compose(abs), ["called with two", "in        abs", "generator: abs(item)"]),
        (
            lambda: Loader([1, 2], 2, item_transform=lambda item: item),
            ["called with two arguments", "found     (item)", "lambda item, generator: function(item)"],
        ),
        (lambda: transforms.RandomChoice(transforms.ToFloat(), p=[1, 1]), ["p does not fit", "1 weights"]),
        (lambda: transforms.MixUp(alpha=0), ["alpha must be positive"]),
        (lambda: transforms.RandAugment(magnitude=31), ["magnitude is out of range", "0 to 30"]),
        (lambda: transforms.RandAugment(0), ["num_ops is too small"]),
        (
            lambda: transforms.TrivialAugment()(PICTURE / 255, seeded()),
            ["not of uint8", "ToFloat() comes later"],
        ),
        (
            lambda: transforms.RandomErasing(1, value=(1, 2))(PICTURE, seeded()),
            ["value does not fit", "2 values"],
        ),
        (
            lambda: transforms.RandomCrop(30)(PICTURE, seeded()),
            ["smaller than its crop", "24 x 31", "pad_if"],
        ),
        (
            lambda: transforms.RandomApply(transforms.ToFloat())(torch.stack([PICTURE] * 9), seeded()),
            ["makes the images of a batch different", "item_transform="],
        ),
    ],
)
def test_wrong_arguments_are_named(make: Any, words: list[str]) -> None:
    with raises(DataError, *words):
        make()


def uniform_p(values: list[float], low: float, high: float) -> float:
    return float(stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue)


def test_flips_and_choices_have_their_probability() -> None:
    generator, n = seeded(), 1500
    row = torch.tensor([[[0, 1]]])
    flipped = sum(transforms.RandomHorizontalFlip(0.3)(row, generator)[0, 0, 0].item() for _ in range(n))
    assert stats.binomtest(flipped, n, 0.3).pvalue > 1e-3
    numbers = [lambda item, generator, i=i: i for i in range(3)]
    choice = transforms.RandomChoice(*numbers, p=[1, 0, 3])
    counts = Counter(choice(row, generator) for _ in range(n))
    assert counts[1] == 0
    assert stats.chisquare([counts[0], counts[2]], [n / 4, 3 * n / 4]).pvalue > 1e-3
    applied = sum(transforms.RandomApply(numbers[2], p=0.1)(7, generator) == 2 for _ in range(n))
    assert stats.binomtest(applied, n, 0.1).pvalue > 1e-3


def test_crops_are_uniform_over_places() -> None:
    generator, n = seeded(), 1500
    crop = transforms.RandomCrop(4, padding=1)
    image = torch.arange(1, 21).reshape(1, 5, 4)
    padded = functional.pad(image, (1, 1, 1, 1))
    corners = [(top, left) for top in range(4) for left in range(3)]
    places = {tuple(functional.crop(padded, *at, 4, 4).flatten().tolist()): at for at in corners}
    found = Counter(places[tuple(crop(image, generator).flatten().tolist())] for _ in range(n))
    assert set(found) == set(corners)
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def test_resized_crops_have_uniform_area_and_log_aspect() -> None:
    generator = seeded()
    crop = transforms.RandomResizedCrop(8, scale=(0.1, 0.3))  # no rectangle of this scale is too large
    sizes = [crop.draw(torch.zeros(1, 900, 900), generator)[2:] for _ in range(400)]
    areas, ratios = zip(*[(h * w / 900**2, np.log(w / h)) for h, w in sizes], strict=True)
    assert uniform_p(list(areas), 0.1, 0.3) > 1e-3
    assert uniform_p(list(ratios), np.log(3 / 4), np.log(4 / 3)) > 1e-3
    wide = transforms.RandomResizedCrop(8, ratio=(1.5, 2)).draw(torch.zeros(1, 900, 900), generator)
    assert wide[3] > wide[2]
    tall = transforms.RandomErasing(1, ratio=(1.5, 2)).draw(torch.zeros(1, 900, 900), generator)
    assert tall[2].shape[1] > tall[2].shape[2]
    # Ten rectangles that do not fit: the centre, in the nearest allowed aspect ratio.
    assert crop.draw(torch.zeros(1, 1000, 10), generator) == (493, 0, 13, 10)
    assert crop.draw(torch.zeros(1, 10, 1000), generator) == (0, 493, 10, 13)


def test_parameters_are_those_of_torchvision(torchvision) -> None:
    """Random parameters have the same distributions: two samples each, compared."""
    generator, n = seeded(), 400
    torch.manual_seed(0)
    image = torch.zeros(3, 100, 150)

    def assert_same_distribution(theirs: Any, ours: Any, *readers: tuple[Any, Any]) -> None:
        samples = (
            [theirs.make_params([image]) for _ in range(n)],
            [ours.draw(image, generator) for _ in range(n)],
        )
        for number, pair in enumerate(readers):
            columns = [[read(p) for p in sample] for read, sample in zip(pair, samples, strict=True)]
            assert stats.ks_2samp(*columns).pvalue > 1e-3, number

    assert_same_distribution(
        torchvision.RandomResizedCrop(8), transforms.RandomResizedCrop(8),
        *((itemgetter(name), itemgetter(i)) for i, name in enumerate(("top", "left", "height", "width"))),
    )  # fmt: skip
    assert_same_distribution(
        torchvision.RandomErasing(1), transforms.RandomErasing(1),
        *((itemgetter(name), itemgetter(i)) for i, name in enumerate("ij")),
        *((itemgetter(name), lambda p, i=i: p[2].shape[i]) for i, name in enumerate("hw", start=1)),
    )  # fmt: skip
    options = 20, (0.1, 0.3), (0.8, 1.2), (5, 10, -4, 4)
    assert_same_distribution(
        torchvision.RandomAffine(*options), transforms.RandomAffine(*options),
        (itemgetter("angle"), itemgetter(0)),
        (lambda p: p["translate"][0], lambda p: p[1][0]),
        (lambda p: p["translate"][1], lambda p: p[1][1]),
        (itemgetter("scale"), itemgetter(2)),
        (lambda p: p["shear"][0], lambda p: p[3][0]),
        (lambda p: p["shear"][1], lambda p: p[3][1]),
    )  # fmt: skip
    assert_same_distribution(
        torchvision.ColorJitter(0.4, hue=0.1), transforms.ColorJitter(0.4, hue=0.1),
        (itemgetter("brightness_factor"), lambda p: dict(p)[functional.adjust_brightness]),
        (itemgetter("hue_factor"), lambda p: dict(p)[functional.adjust_hue]),
    )  # fmt: skip


def test_jitter_has_every_order() -> None:
    generator = seeded()
    jitter = transforms.ColorJitter(0.1, 0.1, 0.1)
    orders = Counter(tuple(f.__name__ for f, _ in jitter.draw(PICTURE, generator)) for _ in range(1200))
    assert len(orders) == 6
    assert stats.chisquare(list(orders.values())).pvalue > 1e-3


def test_augmentations_draw_every_change_as_torchvision_does(torchvision) -> None:
    """All 14 changes, equally often, each with torchvision's strength, and with both signs if it has them."""
    image, generator = torch.zeros(3, 100, 150, dtype=torch.uint8), seeded()
    theirs = {
        "brightness": "Brightness",
        "saturation": "Color",
        "contrast": "Contrast",
        "sharpness": "Sharpness",
    }
    for ours, peer, level in (
        (transforms.RandAugment(1, magnitude=30), torchvision.RandAugment(1), -1),
        (transforms.TrivialAugment(), torchvision.TrivialAugmentWide(), None),
    ):
        drawn = [ours.draw(image, generator)[0] for _ in range(1400)]
        counts = Counter(name for name, _ in drawn)
        assert len(counts) == 14
        assert stats.chisquare(list(counts.values())).pvalue > 1e-3
        for name in counts:
            key = theirs.get(name, name.title().replace("_", "").replace("Autoc", "AutoC"))
            magnitudes, is_signed = peer._AUGMENTATION_SPACE[key]
            strengths = [strength for drawn_name, strength in drawn if drawn_name == name]
            assert (min(strengths) < 0) == is_signed
            values = magnitudes(31, 100, 150)
            if values is None:
                assert set(strengths) == {0}
                continue
            wanted = {"posterize": 8 - values, "solarize": 1 - values}.get(name, values)
            found = max(map(abs, strengths))
            assert found == pytest.approx(float(wanted.abs().max()), rel=0 if level else 0.35, abs=1e-4), name


def test_augmentations_move_masks() -> None:
    augment, moved = transforms.TrivialAugment(), 0
    for seed in range(60):
        params = augment.draw(PICTURE, seeded(seed))
        item = augment({"images": MASK.expand(3, -1, -1), "masks": MASK}, seeded(seed))
        moves = params[0][0].startswith(("shear", "translate", "rotate"))
        assert moves or torch.equal(item["masks"], MASK)
        moved += not torch.equal(item["masks"], MASK)
        if params[0][0].startswith("translate"):
            assert torch.equal(item["images"][0], item["masks"])
    assert moved > 10


def test_blur_and_rotation_are_uniform() -> None:
    generator = seeded()
    sigmas = [transforms.GaussianBlur(3).draw(PICTURE, generator) for _ in range(500)]
    assert uniform_p(sigmas, 0.1, 2) > 1e-3
    angles = [transforms.RandomRotation((-10, 50)).draw(PICTURE, generator) for _ in range(500)]
    assert uniform_p(angles, -10, 50) > 1e-3


def test_erasing_fills_with_what_is_asked() -> None:
    image = torch.full((3, 60, 60), 0.5)
    erase = transforms.RandomErasing(1, scale=(0.3, 0.3), value=(1, 2, 3))
    erased = erase(image, seeded())
    assert set(erased[1].unique().tolist()) == {0.5, 2.0}
    assert 0.25 < (erased[1] == 2).float().mean() < 0.35
    noise = transforms.RandomErasing(1, scale=(0.3, 0.3), value="random")
    pixels = noise(image, seeded())
    assert stats.kstest(pixels[pixels != 0.5].numpy(), "norm").pvalue > 1e-3
    grey = torch.full((3, 60, 60), 7, dtype=torch.uint8)
    pixels = noise(grey, seeded())
    assert pixels[pixels != 7].float().mean() == pytest.approx(127.5, abs=5)


def test_normalize_has_an_inverse() -> None:
    image = functional.to_float(PICTURE)
    for arguments in ((), (0.4, 0.2), (0.4, (0.2, 0.3, 1))):
        normalize = transforms.Normalize(*arguments)
        assert torch.allclose(normalize.inverse()(normalize(image)), image, atol=1e-6)


def test_arrays_and_pictures_become_tensors() -> None:
    from PIL import Image

    array = PICTURE.permute(1, 2, 0).numpy()
    to_image = transforms.ToImage()
    for image in (array, Image.fromarray(array), PICTURE):
        item = to_image({"image": image, "mask": MASK.numpy(), "label": 2})
        assert torch.equal(item["image"], PICTURE)
        assert torch.equal(item["mask"], MASK)
    assert torch.equal(to_image((array[..., 0], 3))[0], PICTURE[:1])
    palette = Image.fromarray(MASK.numpy()).convert("P")
    assert to_image({"image": array, "mask": palette})["mask"].shape == MASK.shape
    with pytest.raises(DataError, match="an array is not an image"):
        to_image(np.zeros(3))


def test_functions_of_ones_own_are_composed() -> None:
    augment = transforms.Compose([transforms.RandomHorizontalFlip(1), lambda item, generator: item[:, :2]])
    assert torch.equal(augment(PICTURE, seeded()), PICTURE.flip(-1)[:, :2])
    assert augment.is_random
    assert not augment.is_per_image


@pytest.mark.parametrize("kind", [transforms.MixUp, transforms.CutMix])
def test_mixing_keeps_each_label_s_share_of_pixels(kind) -> None:
    """Constant images of the value of their class: the mean of a mixed image is that of its label."""
    labels = torch.arange(4)
    images = labels[:, None, None, None].expand(4, 1, 20, 30).float()
    shares = []
    for seed in range(30):
        batch = kind(alpha=1.0, classes=4)(Batch(images=images, labels=labels, ids=labels), seeded(seed))
        assert batch.labels.dtype == torch.float32
        assert torch.allclose(batch.labels.sum(1), torch.ones(4))
        assert torch.allclose(batch.images.mean((1, 2, 3)), batch.labels @ labels.float(), atol=1e-5)
        assert torch.equal(batch.ids, labels)
        shares.append(batch.labels[1, 1].item())
    assert len(set(shares)) > 20
    again = kind(classes=4)((images, labels), seeded(3))
    assert torch.equal(again[1], kind(classes=4)({"image": images, "label": labels}, seeded(3))["label"])


def test_shares_are_those_of_the_beta_distribution() -> None:
    images, labels = torch.zeros(2, 1, 1, 1), torch.eye(2)  # probabilities, which need no number of classes
    generator = seeded()
    shares = [transforms.MixUp(alpha=0.4)((images, labels), generator)[1][0, 0].item() for _ in range(500)]
    assert stats.kstest(shares, stats.beta(0.4, 0.4).cdf).pvalue > 1e-3


def test_mixing_is_that_of_torchvision(torchvision) -> None:
    images, labels = torch.rand(5, 3, 8, 9, generator=seeded()), torch.tensor([0, 2, 1, 1, 0])
    params = {"labels": labels, "batch_size": 5, "lam": 0.3}
    theirs = torchvision.MixUp(num_classes=3)
    wanted = theirs.transform(images, params)
    assert torch.allclose(transforms.MixUp(classes=3).mix(images, 0.3, seeded())[0], wanted, atol=1e-6)
    mixed, share = transforms.CutMix(classes=3).mix(images, 0.3, seeded())
    box = (mixed != images).any(0).any(0).nonzero()
    (top, left), (bottom, right) = box.min(0).values.tolist(), (box.max(0).values + 1).tolist()
    params = {"labels": labels, "batch_size": 5, "box": (left, top, right, bottom), "lam_adjusted": share}
    assert torch.equal(torchvision.CutMix(num_classes=3).transform(images, params), mixed)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"images": torch.zeros(2, 3, 4, 4)}, ["needs images and labels", "found     images"]),
        ((torch.zeros(2, 3, 4, 4), torch.tensor([0, 5])), ["out of range", "0 to 2", "0 to 5"]),
        ((torch.zeros(3, 4, 4), torch.tensor([0, 1, 2])), ["needs a batch", "(3, 4, 4)", "transform="]),
        ((torch.zeros(2, 3, 4, 4).byte(), torch.tensor([0, 1])), ["floating point", "ToFloat() before"]),
    ],
)
def test_batches_that_cannot_be_mixed(batch, words) -> None:
    with raises(DataError, *words):
        transforms.MixUp(classes=3)(batch, seeded())
    with pytest.raises(DataError, match="needs the number of classes"):
        transforms.CutMix()((torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])), seeded())


def test_a_loader_augments_batches_and_mixes_them() -> None:
    """Soft targets go into the cross entropy, and a batch is the same whenever it is asked for."""
    from burnt import nn

    data = TensorDataset(images=torch.stack([PICTURE] * 10), labels=torch.arange(10) % 3)
    augment = transforms.Compose(
        transforms.RandomCrop(24, padding=2),
        transforms.RandomHorizontalFlip(),
        transforms.ToFloat(),
        transforms.RandomChoice(transforms.MixUp(classes=3), transforms.CutMix(classes=3)),
    )
    loader = Loader(data, batch_size=4, shuffle=True, seed=3, transform=augment)
    batches = list(loader.epoch(1))
    assert [tuple(batch.images.shape) for batch in batches] == [(4, 3, 24, 24)] * 2 + [(2, 3, 24, 24)]
    (last,) = loader.epoch(1, start=2)
    assert torch.equal(last.images, batches[2].images)
    assert torch.equal(last.labels, batches[2].labels)
    logits = batches[0].images.mean((2, 3))
    wanted = -(batches[0].labels * logits.log_softmax(1)).sum(1).mean()
    assert torch.allclose(nn.CrossEntropy()(logits, batches[0].labels), wanted)
