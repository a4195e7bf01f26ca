"""Transforms of torchvision and albumentations: seeded from the generator, with no trace in global states."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from burnt.data import Batch, Shards, StreamLoader, transforms
from burnt.errors import DataError
from tests.messages import raises

PICTURE = torch.randint(256, (3, 24, 31), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
MASK = PICTURE[0] % 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def global_states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def augmentation(torchvision: Any) -> Any:
    noise = torchvision.Lambda(lambda image: image + np.random.randint(9) + random.randrange(9), dict)
    return torchvision.Compose([torchvision.RandomCrop(16), torchvision.RandomHorizontalFlip(), noise])


def test_torchvision_draws_from_the_generator(torchvision) -> None:
    augment = transforms.Compose(augmentation(torchvision), transforms.ToFloat())
    before = global_states()
    images = [augment(PICTURE, seeded(seed)) for seed in range(10)]
    assert global_states() == before
    torch.rand(3), random.random(), np.random.rand()
    for seed, image in enumerate(images):
        assert torch.equal(augment(PICTURE, seeded(seed)), image)
        assert type(image) is torch.Tensor
    assert len({image.sum().item() for image in images}) == 10


def test_global_states_are_restored_after_an_error(torchvision) -> None:
    def fail(image: Any) -> Any:
        torch.rand(3), random.random(), np.random.rand()
        raise ZeroDivisionError

    before = global_states()
    with pytest.raises(ZeroDivisionError):
        transforms.Torchvision(torchvision.Lambda(fail))(PICTURE, seeded())
    assert global_states() == before


def test_torchvision_moves_masks_and_leaves_the_rest(torchvision) -> None:
    transform = transforms.as_transform(torchvision.Compose([torchvision.RandomAffine(0, (0.2, 0.2))]))
    for make in (dict, Batch):
        item = transform(make(images=MASK[None], masks=MASK, labels=torch.tensor(3), name="a"), seeded(2))
        fields = item if isinstance(item, dict) else vars(item)
        assert type(item) is make
        assert torch.equal(fields["images"][0], fields["masks"])
        assert not torch.equal(fields["masks"], MASK)
        assert type(fields["masks"]) is torch.Tensor
        assert fields["name"] == "a"
        assert fields["labels"] == 3
    image, label = transform((PICTURE, 3), seeded())
    assert label == 3
    assert type(image) is torch.Tensor


def test_torchvision_mixes_batches(torchvision) -> None:
    mix = transforms.as_transform(torchvision.MixUp(num_classes=4))
    batch = Batch(images=torch.rand(4, 3, 8, 8), labels=torch.arange(4))
    mixed = mix(batch, seeded())
    assert mixed.labels.shape == (4, 4)
    assert torch.equal(mixed.images, mix(batch, seeded()).images)
    images, labels = mix((batch.images, batch.labels), seeded())
    assert torch.equal(images, mixed.images)
    assert torch.equal(labels, mixed.labels)


def test_streams_take_transforms_of_torchvision(torchvision) -> None:
    pictures = [{"images": PICTURE, "labels": number} for number in range(4)]
    settings: Any = {
        "item_transform": torchvision.RandomCrop(8),
        "transform": torchvision.RandomHorizontalFlip(),
    }
    (batch,) = StreamLoader(Shards([0], lambda _: pictures), 4, **settings).epoch(1)
    assert batch.images.shape == (4, 3, 8, 8)
    assert batch.labels.tolist() == [0, 1, 2, 3]
    (again,) = StreamLoader(Shards([0], lambda _: pictures), 4, **settings).epoch(1)
    assert torch.equal(again.images, batch.images)


def test_torchvision_is_refused_in_threads(torchvision) -> None:
    transform = transforms.as_transform(torchvision.RandomHorizontalFlip())
    with ThreadPoolExecutor(1) as pool, pytest.raises(DataError) as error:
        pool.submit(transform, PICTURE, seeded()).result()
    assert "runs in a thread" in str(error.value)
    assert "worker processes" in str(error.value)
    with pytest.raises(DataError, match="called without a generator"):
        transform(PICTURE, None)


class Recorded:
    """What the adapter uses of albumentations: generators that are replaced, and named inputs."""

    def set_random_state(self, random_generator: np.random.Generator, py_random: random.Random) -> None:
        self.numpy, self.python = random_generator, py_random

    def __call__(
        self, image: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None, **rest: Any
    ) -> Any:
        assert image.flags["C_CONTIGUOUS"]
        assert image.shape[2:] in ((3,), (1,))
        shift = int(self.numpy.integers(10)) + self.python.randrange(10)
        changed = {"image": np.roll(image, shift, 1)[:, ::-1], **rest}
        return changed if mask is None else {**changed, "mask": np.roll(mask, shift, 1)[:, ::-1]}


def test_albumentations_draws_from_the_generator() -> None:
    transform = transforms.Albumentations(Recorded())
    before = global_states()
    item = transform({"images": MASK[None], "masks": MASK, "labels": 3}, seeded(4))
    assert global_states() == before
    assert torch.equal(item["images"][0], item["masks"])
    assert item["labels"] == 3
    assert list(item) == ["images", "masks", "labels"]
    array = PICTURE.permute(1, 2, 0).contiguous().numpy()
    assert torch.equal(transform((array, 3), seeded())[0], transform(PICTURE, seeded()))
    images = [transform(PICTURE, seeded(seed)) for seed in range(20)]
    assert len({image[0, 0].tolist().__str__() for image in images}) > 5
    with ThreadPoolExecutor(4) as pool:
        again = pool.map(pickle.loads(pickle.dumps(transform)), [PICTURE] * 20, map(seeded, range(20)))
        assert all(map(torch.equal, images, again))


def test_what_albumentations_cannot_do() -> None:
    with raises(DataError, "set_random_state", match="cannot be seeded"):
        transforms.Albumentations(transforms.ToFloat())
    with raises(DataError, "item_transform=", match="takes no batches"):
        transforms.Albumentations(Recorded())(torch.zeros(2, 3, 4, 4), seeded())


def test_albumentations_itself() -> None:
    albumentations = pytest.importorskip("albumentations", reason="not installed: pip install albumentations")
    augment = transforms.Compose(
        albumentations.Compose([albumentations.RandomCrop(16, 16), albumentations.HorizontalFlip(p=0.5)]),
        transforms.ToFloat(),
    )
    items = [augment({"images": MASK[None], "masks": MASK, "labels": 3}, seeded(seed)) for seed in range(10)]
    for seed, item in enumerate(items):
        assert torch.equal(item["images"][0], item["masks"] / 255)
        assert item["images"].shape == (1, 16, 16)
        assert torch.equal(augment({"images": MASK[None]}, seeded(seed))["images"], item["images"])
    # Transforms that draw the same numbers would flip and transpose together.
    both = albumentations.Compose([albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5)])
    corner = torch.zeros(1, 2, 2)
    corner[0, 0, 0] = 1
    places = {transforms.as_transform(both)(corner, seeded(seed)).argmax().item() for seed in range(40)}
    assert places == {0, 1, 2, 3}
