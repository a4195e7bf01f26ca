"""Images that a column of a table names: `ImageFiles`, in CSV, JSON lines, Parquet, SQLite and dataframes."""

import json
import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from burnt import data
from burnt.data import ImageFiles, transforms
from burnt.data.description import TableDescription, describe
from burnt.data.transforms import stored
from burnt.errors import DataError, UnsupportedError

ROWS = [{"photo": f"{name}.png", "age": age, "kind": kind} for name, age, kind in
        (("a", 3, "cat"), ("b", 5, "dog"), ("sub/c", 7, "cat"))]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "photos/sub").mkdir(parents=True)
    for number, row in enumerate(ROWS):
        pixels = generator.integers(0, 256, (6, 8 + number, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / row["photo"])
    pandas.DataFrame(ROWS).to_csv(tmp_path / "rows.csv", index=False)
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with sqlite3.connect(tmp_path / "rows.db") as database:
        pandas.DataFrame(ROWS).to_sql("rows", database, index=False)
    return tmp_path


OPENED = {
    ".csv": data.CsvDataset,
    ".parquet": data.ParquetDataset,
    ".jsonl": data.JsonLinesDataset,
    ".db": lambda path, **options: data.SqliteDataset(path, table="rows", **options),
    "frame": lambda path, **options: data.DataframeDataset(pandas.DataFrame(ROWS), **options),
}


@pytest.mark.parametrize("suffix", OPENED)
def test_items_hold_what_pillow_decodes(folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)  # to which the folder of a dataframe's images is relative
    columns = {"images": "photo", "x": ["age"]}
    rows = OPENED[suffix](
        folder / f"rows{suffix}", columns=columns, types={"photo": ImageFiles("photos")}, label="kind"
    )
    assert not hasattr(rows, "take")
    assert rows.classes == ["cat", "dog"]
    for index, row in enumerate(ROWS):
        item = pickle.loads(pickle.dumps(rows))[index]
        expected = np.array(Image.open(folder / "photos" / row["photo"])).transpose(2, 0, 1)
        assert np.array_equal(item["images"].numpy(), expected)
        assert item["x"].tolist() == [row["age"]]
        assert rows.classes[item["kind"]] == row["kind"]
    crop = transforms.Compose(transforms.CenterCrop(4), transforms.ToFloat())
    (batch,) = data.Loader(rows, 3, item_transform=crop).epoch(0)
    assert batch.images.shape == (3, 3, 4, 4)


def test_mode_dtype_and_size(folder: Path):
    files = ImageFiles(folder / "photos", mode="L", dtype=torch.float32, size=(2, 3))
    rows = data.CsvDataset(folder / "rows.csv", types={"photo": files})
    image = data.read_image(folder / "photos/b.png", mode="L", dtype=torch.float32)
    torch.testing.assert_close(rows[1]["photo"], transforms.Resize((2, 3))(image), rtol=0, atol=0)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_an_image_that_cannot_be_read_names_row_column_and_file(folder: Path, suffix: str):
    rows = OPENED[suffix](folder / f"rows{suffix}", types={"photo": ImageFiles("photos")})
    (folder / "photos/b.png").write_bytes(b"no image")
    (folder / "photos/sub/c.png").unlink()
    place = {".csv": "line 3", ".jsonl": "line 2", ".parquet": "row 1"}[suffix]
    with pytest.raises(DataError) as caught:
        rows[1]
    assert place in caught.value.where
    assert f"column 'photo': {folder}/photos/b.png" in caught.value.where
    assert "cannot be decoded" in caught.value.what
    with pytest.raises(DataError, match="a file cannot be read") as caught:
        rows[2]
    assert "sub/c.png" in caught.value.where
    assert "ImageFiles(folder=)" in caught.value.hint


def test_bad_options_are_refused(folder: Path):
    path = folder / "rows.csv"
    with pytest.raises(DataError, match="the folder of a column of images does not exist") as caught:
        data.CsvDataset(path, types={"photo": ImageFiles("pics")})
    assert caught.value.found == f"{folder}/pics"
    with pytest.raises(DataError, match="stacks a column that is not numeric"):
        data.CsvDataset(path, columns={"x": ["age", "photo"]}, types={"photo": ImageFiles("photos")})
    with pytest.raises(DataError, match="types= has a type that columns cannot have") as caught:
        data.CsvDataset(path, types={"photo": ImageFiles})
    assert "ImageFiles()" in caught.value.expected
    with pytest.raises(DataError, match="size is not of this form"):
        ImageFiles(size=(1, 2, 3))
    with pytest.raises(DataError) as caught:
        data.ParquetDataset(folder / "rows.parquet", types={"age": ImageFiles("photos")})[0]
    assert caught.value.expected == "a path of an image"
    assert "int64" in caught.value.found


def test_a_missing_path_is_an_error_or_another_image(folder: Path):
    (folder / "gap.csv").write_text("photo,age\n,1\na.png,2\n")
    types = {"photo": ImageFiles("photos")}
    with pytest.raises(DataError) as caught:
        data.CsvDataset(folder / "gap.csv", types=types)
    assert caught.value.expected == "a path of an image"
    assert "line 2" in caught.value.where
    assert len(data.CsvDataset(folder / "gap.csv", types=types, missing="drop")) == 1
    filled = data.CsvDataset(folder / "gap.csv", types=types, missing={"photo": "b.png"})
    assert torch.equal(filled[0]["photo"], data.read_image(folder / "photos/b.png"))


def test_a_description_reads_other_files_in_the_same_way(folder: Path):
    files = ImageFiles(Path("photos"), mode="L", background=(1, 2, 3), size=(4, 5))
    columns = {"images": "photo", "x": ["age"]}
    rows = data.CsvDataset(folder / "rows.csv", columns=columns, types={"photo": files}, label="kind")
    augment = transforms.RandomCrop(2)
    prepare = transforms.Compose(transforms.ToFloat(), transforms.Normalize(0.5, 0.25))
    loader = data.Loader(rows, 2, item_transform=prepare)
    document = json.loads(json.dumps(describe(data.Loader(rows, 2, item_transform=augment), [loader])))
    reason = {"unknown": "items are changed by item_transform= of the loader"}
    assert describe(data.Loader(rows, 2, item_transform=augment)) == reason
    table = TableDescription.from_dict(document)
    assert table.columns["photo"].image["folder"] == "photos"  # next to the new file, wherever that is
    for suffix in (".csv", ".jsonl", ".parquet"):
        found = table.transformed(table.open(folder / f"rows{suffix}"))
        for index in range(3):
            torch.testing.assert_close(found[index]["images"], prepare(rows[index])["images"], rtol=0, atol=0)
    with pytest.raises(DataError, match="the model takes more than images") as caught:
        table.open(folder / "photos")
    assert "photo, age" in caught.value.expected


def test_a_folder_takes_the_place_of_the_column_s_own(folder: Path):
    files = ImageFiles("photos", background=7)
    rows = data.CsvDataset(folder / "rows.csv", columns={"images": "photo"}, types={"photo": files})
    found = TableDescription.of(rows).open(folder / "photos")
    assert [found.read(index)["photo"] for index in range(3)] == ["a.png", "b.png", "sub/c.png"]
    assert torch.equal(found[2]["images"], rows[2]["images"])
    with pytest.raises(UnsupportedError, match="cannot be stored as JSON") as caught:
        TableDescription.of(data.ImageFolder(folder, classes=["photos"], background=torch.tensor(7)))
    assert caught.value.where == "ImageFiles(background=)"


def test_transforms_that_json_does_not_hold():
    class Own(transforms.Resize):
        pass

    for other in (
        transforms.RandomCrop(2), Own(3), transforms.Normalize(mean=torch.zeros(3)), print,
        transforms.Compose(transforms.ToFloat(), transforms.RandomHorizontalFlip()),
    ):  # fmt: skip
        assert stored.to_json(other) is None
    every = transforms.Compose(
        transforms.ToImage(), transforms.Resize(5, max_size=7), transforms.Pad((1, 2)),
        transforms.CenterCrop((4, 4)), transforms.Grayscale(3),
        transforms.Compose(transforms.ToFloat(torch.float64)), transforms.Normalize(),
    )  # fmt: skip
    documents = json.loads(json.dumps(stored.to_json(every)))
    image = torch.randint(0, 256, (3, 9, 6), dtype=torch.uint8)
    torch.testing.assert_close(stored.from_json(documents)(image), every(image), rtol=0, atol=0)
    for bad in ({"name": "RandomCrop", "size": 2}, {"name": "Resize", "length": 2}, {}):
        with pytest.raises(ValueError, match="an unknown transform"):
            stored.from_json([bad])


def test_folders_below_views_and_subclasses(folder: Path):
    class Own(data.ImageFolder):
        def __getitem__(self, index):
            return {"images": torch.zeros(1), "labels": 0}

    images = data.ImageFolder(folder, classes=["photos"], mode="L")
    mapped = data.map(data.select(images, [0, 1]), transforms.CenterCrop(2))
    after = transforms.Normalize(0, 2)
    document = describe(data.Loader(mapped, 1, item_transform=transforms.ToFloat(), transform=after))
    assert document["columns"]["path"]["image"]["mode"] == "L"
    assert [each["name"] for each in document["transforms"]] == ["CenterCrop", "ToFloat", "Normalize"]
    assert describe(data.Loader(Own(folder, classes=["photos"]), 1)) is None
