"""Folders of pictures: order, classes, labels and masks, and what is said of folders that hold none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from burnt.data import ImageFolder, Loader, MultiLabelImageFolder, SegmentationFolder, TextFolder, transforms
from burnt.errors import ArgumentError, DataError
from tests.messages import raises


def picture(path: Path, value: int = 0, size: tuple[int, int] = (8, 6), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, with what operating systems leave in folders."""
    for value, name in enumerate(["b/2.png", "b/10.PNG", "b/deep/1.jpg", "a/9.png", "a/0.bmp"]):
        picture(tmp_path / name, value)
    for name in (".DS_Store", "a/._9.png", ".git/x.png", "b/notes.txt", "read me.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no picture")
    return tmp_path


def test_pictures_are_sorted_by_class_and_name(folder: Path) -> None:
    data = ImageFolder(folder, mode="L")
    assert data.classes == ["a", "b"]
    assert data.paths == ["a/0.bmp", "a/9.png", "b/10.PNG", "b/2.png", "b/deep/1.jpg"]
    assert data.labels == [0, 0, 1, 1, 1]
    assert data.others == ["b/notes.txt"]
    assert repr(data) == "ImageFolder(5 images, 2 classes, 1 other file)"
    assert [int(item["images"][0, 0, 0]) for item in data] == [4, 3, 1, 0, 2]
    assert data[0]["images"].shape == (1, 6, 8)
    assert len(data) == 5
    with pytest.raises(IndexError):
        data[5]


def test_items_are_collated_and_augmented(folder: Path) -> None:
    batch = next(Loader(ImageFolder(folder, dtype=torch.float32), batch_size=3).epoch(0))
    assert batch.images.shape == (3, 3, 6, 8)
    assert batch.images.dtype == torch.float32
    assert batch.labels.tolist() == [0, 0, 1]
    assert batch.labels.dtype == torch.int64


def test_classes_may_be_chosen_and_ordered(folder: Path) -> None:
    data = ImageFolder(folder, classes=["b", "a"])
    assert data.labels == [0, 0, 0, 1, 1]
    assert ImageFolder(folder, classes=["b"]).labels == [0, 0, 0]
    with raises(DataError, "a class has no folder: 'bb'", "'b'?"):
        ImageFolder(folder, classes=["a", "bb"])
    with pytest.raises(DataError, match="a name twice"):
        ImageFolder(folder, classes=["a", "a"])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("root", "it is called folder"),
        ("transform", "item_transform= of the loader"),
        ("loader", "burnt.data.read_image"),
        ("clases", "did you mean 'classes'?"),
    ],
)
def test_other_arguments_have_a_hint(argument: str, words: str, folder: Path) -> None:
    with raises(ArgumentError, words):
        ImageFolder(**{"folder": folder, argument: None})


def test_a_class_without_pictures_is_refused(folder: Path) -> None:
    (folder / "c").mkdir()
    with raises(DataError, "a class has no images: 'c'", str(folder / "c"), "allow_empty=True"):
        ImageFolder(folder)
    data = ImageFolder(folder, allow_empty=True)
    assert data.classes == ["a", "b", "c"]
    assert max(data.labels) == 1
    (folder / "c" / "scan.pdf").write_text("no picture")
    with raises(DataError, "found     scan.pdf", match="no images"):
        ImageFolder(folder)


@pytest.mark.parametrize("make", ["missing", "file", "flat"])
def test_folders_without_classes(make: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    if make == "file":
        path.write_text("")
    if make == "flat":
        picture(path / "1.png")
    with pytest.raises(DataError) as error:
        ImageFolder(path)
    words = {"missing": "there is no such folder", "file": "not a folder", "flat": "TextFolder(..., lab"}
    assert words[make] in str(error.value)
    assert str(path) in str(error.value)


def test_relative_folders_name_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(DataError, f"the current folder is {tmp_path}"):
        ImageFolder("flowers")


def test_links_are_followed_unless_broken_or_circular(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / ".store"
    picture(store / "7.png", 7)
    (folder / "a" / "5.png").symlink_to(store / "7.png")
    (folder / "c").symlink_to(store)
    data = ImageFolder(folder, mode="L")
    assert data.paths == ["a/0.bmp", "a/5.png", "a/9.png", "b/10.PNG", "b/2.png", "b/deep/1.jpg", "c/7.png"]
    assert data[1]["images"].unique().tolist() == [7]
    (folder / "a" / "6.png").symlink_to(store / "none.png")
    with raises(DataError, "a link is broken", "none.png, which does not exist"):
        ImageFolder(folder)
    (folder / "a" / "6.png").unlink()
    (folder / "b" / "deep" / "up").symlink_to(folder / "b")
    with pytest.raises(DataError, match="leads to a folder that holds it"):
        ImageFolder(folder)


def test_a_broken_picture_is_named_when_it_is_read(folder: Path) -> None:
    (folder / "b" / "3.jpg").write_bytes(b"\xff\xd8\xff no jpeg")
    data = ImageFolder(folder)
    with raises(DataError, str(folder / "b" / "3.jpg")):
        list(Loader(data, batch_size=6))


LABELS = {"1.png": ["dog"], "sub/2.png": [], "3.png": ["bird", "dog"]}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for value, name in enumerate(LABELS):
        picture(tmp_path / name, value)
    return tmp_path


def test_labels_come_from_mappings_and_files(pets: Path) -> None:
    (pets / "a.json").write_text(json.dumps(LABELS))
    (pets / "b.csv").write_text("file,labels\n1.png,dog\nsub/2.png,\n3.png,bird  dog\n")
    (pets / "c.csv").write_bytes(b"\xef\xbb\xbffile,bird,dog\r\n1.png,0,1\r\nsub/2.png,0,0\r\n3.png,1, 1\r\n")
    (pets / "d.csv").write_text('file,labels\n1.png,dog\nsub/2.png,\n"3.png","bird|dog"\n')
    for data in (
        MultiLabelImageFolder(pets, LABELS),
        MultiLabelImageFolder(pets, pets / "a.json"),
        MultiLabelImageFolder(pets, pets / "b.csv"),
        MultiLabelImageFolder(pets, str(pets / "c.csv")),
        MultiLabelImageFolder(pets, pets / "d.csv", separator="|"),
    ):
        assert data.classes == ["bird", "dog"]
        assert data.paths == list(LABELS)
        assert [item["labels"].tolist() for item in data] == [[0, 1], [0, 0], [1, 1]]
        assert data[2]["images"].unique().tolist() == [2]
    batch = next(Loader(MultiLabelImageFolder(pets, LABELS), batch_size=3).epoch(0))
    assert batch.labels.dtype == torch.float32
    wide = MultiLabelImageFolder(pets, LABELS, classes=["dog", "cat", "bird"])
    assert wide[2]["labels"].tolist() == [1, 0, 1]
    assert repr(wide) == "MultiLabelImageFolder(3 images, 3 classes)"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", "", [".json and .csv", "found     .txt"]),
        ("x.json", "[1]", ["cannot be read", "an object with a list"]),
        ("x.json", "{", ["cannot be read", "Expecting property name"]),
        ("x.json", '{"1.png": [3]}', ["must be a list of names", "x.json: 1.png", "[3]"]),
        ("x.csv", "", ["no columns of classes", "x.csv:1", "an empty file"]),
        ("x.csv", "file,labels\n1.png\n", ["wrong length", "x.csv:2", "expected  2", "found     1"]),
        ("x.csv", "file,a,b\n1.png,0,1\n3.png,2,0\n", ["neither 0 nor 1", "x.csv:3", "'2'"]),
        ("x.csv", "file,labels\n1.png,a\n1.png,b\n", ["two rows", "x.csv:3"]),
        ("x.csv", "file,labels\n7.png,a\n", ["does not exist", "7.png"]),
        (None, "", ["cannot be read", "No such file"]),
    ],
)
def test_labels_that_cannot_be_read(name: str | None, content: str, words: list[str], pets: Path) -> None:
    path = pets / (name or "none.csv")
    if name:
        path.write_text(content)
    with raises(DataError, *words):
        MultiLabelImageFolder(pets, path)


def test_unknown_classes_and_strings_for_lists(pets: Path) -> None:
    with raises(DataError, "unknown class: 'dog'", "'dogs'?"):
        MultiLabelImageFolder(pets, LABELS, classes=["dogs", "bird"])
    with pytest.raises(DataError, match="must be a list of names"):
        MultiLabelImageFolder(pets, {"1.png": "dog"})


@pytest.fixture
def street(tmp_path: Path) -> Path:
    for i, name in enumerate(["a/1", "b"]):
        picture(tmp_path / "images" / f"{name}.jpg", 90 * i)
        picture(tmp_path / "masks" / f"{name}.png", i + 1)
    return tmp_path


def test_images_and_masks_are_paired(street: Path) -> None:
    data = SegmentationFolder(street / "images", street / "masks", classes=["road", "car"])
    assert data.paths == ["a/1.jpg", "b.jpg"]
    assert data.mask_paths == ["a/1.png", "b.png"]
    assert data.classes == ["road", "car"]
    assert repr(data) == "SegmentationFolder(2 images with masks)"
    batch = next(Loader(data, batch_size=2).epoch(0))
    assert batch.masks.shape == (2, 6, 8)
    assert batch.masks[:, 0, 0].tolist() == [1, 2]
    assert batch.masks.dtype == torch.uint8
    augmented = transforms.RandomResizedCrop(4)(data[1], torch.Generator().manual_seed(0))
    assert augmented["images"].shape == (3, 4, 4)
    assert augmented["masks"].shape == (4, 4)


def test_masks_may_have_a_suffix(street: Path) -> None:
    for path in (street / "masks").rglob("*.png"):
        path.rename(path.with_name(f"{path.stem}_mask.png"))
    with raises(DataError, "2 images without mask", "none for a/1, b", 'mask_suffix="_mask"'):
        SegmentationFolder(street / "images", street / "masks")
    data = SegmentationFolder(street / "images", street / "masks", mask_suffix="_mask")
    assert data.mask_paths == ["a/1_mask.png", "b_mask.png"]


def test_masks_that_do_not_fit(street: Path) -> None:
    picture(street / "masks" / "b.png", size=(8, 5))
    with raises(DataError, "differ in size", "8 x 6, as the image has"):
        SegmentationFolder(street / "images", street / "masks")[1]
    picture(street / "masks" / "c.png")
    with pytest.raises(DataError, match="1 mask without image"):
        SegmentationFolder(street / "images", street / "masks")
    shutil.rmtree(street / "images")
    (street / "images").mkdir()
    with pytest.raises(DataError, match="has no images"):
        SegmentationFolder(street / "images", street / "masks")


def test_sixteen_bit_masks_are_int64(street: Path) -> None:
    deep = np.full((6, 8), 1000, dtype=np.uint16)
    Image.fromarray(deep).save(street / "masks" / "b.png")
    mask = SegmentationFolder(street / "images", street / "masks")[1]["masks"]
    assert mask.dtype == torch.int64
    assert mask.unique().tolist() == [1000]


@pytest.mark.parametrize(
    "names",
    [
        ["train", "valid"], ["train", "val", "test"], ["Training", "Testing"], ["training_set", "test_set"],
        ["train2017", "val2017"], ["cifar_train", "cifar_val"], ["seg_train", "seg_test"],
        ["train", "valid", "labels"], ["train"],
    ],
    ids=str,
)  # fmt: skip
def test_the_parts_of_a_data_set_are_no_classes(names: list[str], tmp_path: Path) -> None:
    for name in names:
        picture(tmp_path / name / "daisy" / "1.png")
        (tmp_path / name / "daisy" / "1.txt").write_text("text")
    for read in (ImageFolder, TextFolder):
        with pytest.raises(DataError, match="a folder holds the parts of a data set") as caught:
            read(tmp_path)
        assert repr(str(tmp_path / names[0])) in str(caught.value.hint)
        assert read(tmp_path / names[0]).classes == ["daisy"]
        assert read(tmp_path, classes=names).classes == names  # if they are meant
    if len(names) > 1 or names[0] == "train":
        with pytest.raises(DataError, match="a folder holds the parts of a data set"):
            SegmentationFolder(tmp_path, tmp_path)
    assert len(SegmentationFolder(tmp_path / names[0], tmp_path / names[0])) == 1


@pytest.mark.parametrize(
    "names", [["negative_test", "positive_test"], ["post-eval", "pre-eval"], ["crash_test"]], ids=str
)
def test_a_class_may_end_like_a_part_of_a_data_set(names: list[str], tmp_path: Path) -> None:
    for name in names:
        picture(tmp_path / name / "1.png")
    assert ImageFolder(tmp_path).classes == names


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train", "freight_car"):
        picture(tmp_path / name / "1.png")
        picture(tmp_path / name / "train" / "2.png")
    assert ImageFolder(tmp_path).classes == ["bus", "freight_car", "train"]
    assert len(SegmentationFolder(tmp_path, tmp_path)) == 6
