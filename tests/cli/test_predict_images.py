"""`burnt predict` of images: folders with and without classes, and images that a CSV file names."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import burnt
from burnt import data
from burnt.data import transforms
from burnt.train.after.loading import RunFiles
from tests.cli.commands import printed, refused, run_script
from tests.fixtures import Capture

CODE = """
import random
from pathlib import Path
import torch
from PIL import Image
import burnt
from burnt import data, nn, optim
from burnt.data import transforms
from burnt.train import ClassificationOutput, Learner, SupervisedTraining

class Net(burnt.Module):
    def __init__(self, numbers: int):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 + numbers, 2)

    def forward(self, images, x=None):
        found = torch.relu(self.conv(images)).mean((2, 3))
        return self.head(found if x is None else torch.cat([found, x], 1))

    def training_step(self, batch):
        x = () if "x" not in batch else (batch.x,)
        logits = self(batch.images, *x)
        labels = batch.labels
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, labels), logits, labels)

def draw(folder, count, seed):
    random.seed(seed)
    for name in ("bright", "dark"):
        (Path(folder) / name).mkdir(parents=True)
        for number in range(count):
            low = 150 if name == "bright" else 0
            image = Image.new("RGB", (random.randint(9, 14), random.randint(9, 14)))
            count_pixels = image.width * image.height
            image.putdata([tuple(random.choices(range(low, low + 100), k=3)) for _ in range(count_pixels)])
            image.save(Path(folder) / name / f"{number}.png")

def fit(folder, train, valid, prepare, numbers=0):
    torch.manual_seed(0)
    augment = transforms.Compose(transforms.RandomCrop(8), transforms.ToFloat(), transforms.Normalize())
    SupervisedTraining(
        folder, train=data.Loader(train, 4, item_transform=augment), duration="1 epoch", monitor="off",
        valid=data.Loader(valid, 4, item_transform=prepare), device="cpu",
    ).run(Learner(Net.Config(numbers=numbers).init(), optim.AdamW(), 0.02))

def main():
    draw("train", 4, 0)
    draw("valid", 3, 1)
    prepare = transforms.Compose(
        transforms.Resize((8, 9)), transforms.ToFloat(), transforms.Normalize((0.5, 0.4, 0.3), 0.25)
    )
    fit("runs/folder", data.ImageFolder("train"), data.ImageFolder("valid"), prepare)
    for split in ("train", "valid"):
        with open(f"{split}.csv", "w") as file:
            file.write("photo,age,kind\\n")
            for path in sorted(Path(split).rglob("*.png")):
                file.write(f"{path.relative_to(split)},{len(path.name)}.5,{path.parent.name}\\n")
    train, valid = (
        data.CsvDataset(
            f"{split}.csv", columns={"images": "photo", "x": ["age"], "labels": "kind"}, label="kind",
            types={"photo": data.ImageFiles(split)},
        )
        for split in ("train", "valid")
    )
    fit("runs/table", train, valid, prepare, 1)

if __name__ == "__main__":
    main()
"""
PREPARE = transforms.Compose(
    transforms.Resize((8, 9)), transforms.ToFloat(), transforms.Normalize((0.5, 0.4, 0.3), 0.25)
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_script(tmp_path_factory, "shades.py", CODE)


@pytest.fixture(autouse=True)
def folder(desk: Path, trained: Path) -> Path:
    shutil.copytree(trained, desk, dirs_exist_ok=True)
    return desk


def predicted(capsys: Capture, run: str, source: str, *words: str) -> list[dict[str, str]]:
    """Return the rows of predictions, in batches whose sizes differ from the training's."""
    text = printed(capsys, "predict", run, "--data", source, "--device", "cpu", "--batch-size", "5", *words)
    return list(csv.DictReader(text.splitlines()))


def check(found: list[dict[str, str]], run: str, dataset: data.Dataset) -> None:
    """Compare with `burnt.predict` on the dataset of a training."""
    shares = burnt.predict(
        burnt.load(f"runs/{run}", import_code=True),
        data.map(dataset, PREPARE),
        transform=torch.nn.Softmax(-1),
    ).numpy()
    for number, name in enumerate(("bright", "dark")):
        column = [float(row[f"probability_{name}"]) for row in found]
        np.testing.assert_allclose(column, shares[:, number], rtol=0, atol=1e-5)
    assert [row["prediction"] for row in found] == [["bright", "dark"][i] for i in shares.argmax(1)]
    assert len(np.unique(shares)) > 4


def test_folders_are_predicted_as_the_validation_data(capsys: Capture, folder: Path):
    valid = data.ImageFolder("valid")
    found = predicted(capsys, "folder", "valid")
    assert list(found[0]) == ["path", "prediction", "probability_bright", "probability_dark"]
    assert [row["path"] for row in found] == valid.paths
    check(found, "folder", valid)
    # Without classes, in other places, and of names in a table.
    flat = folder / "flat"
    flat.mkdir()
    for number, path in enumerate(valid.paths):
        shutil.copy(folder / "valid" / path, flat / f"{number}.png")
    (flat / "notes.txt").write_text("no image")
    assert predicted(capsys, "folder", "flat/2.png") == predicted(capsys, "folder", "flat")[2:3]
    others = predicted(capsys, "folder", "flat")
    assert [row["path"] for row in others] == [f"{number}.png" for number in range(6)]
    check(others, "folder", valid)
    (folder / "names.csv").write_text("path,note\n" + "".join(f"flat/{n}.png,n{n}\n" for n in range(6)))
    named = predicted(capsys, "folder", "names.csv")
    assert named[1]["note"] == "n1"
    check(named, "folder", valid)


def test_images_that_a_table_names(capsys: Capture, folder: Path):
    (folder / "new").mkdir()
    shutil.copytree(folder / "valid", folder / "new/train")  # the folder's name in the training
    rows = list(csv.DictReader((folder / "valid.csv").read_text().splitlines()))
    (folder / "new/rows.csv").write_text(
        "id,age,photo\n" + "".join(f"{i},{row['age']},{row['photo']}\n" for i, row in enumerate(rows))
    )
    found = predicted(capsys, "table", "new/rows.csv", "--keep", "id")
    assert [row["id"] for row in found] == [str(i) for i in range(6)]
    columns = {"images": "photo", "x": ["age"]}
    check(
        found,
        "table",
        data.CsvDataset("valid.csv", columns=columns, types={"photo": data.ImageFiles("valid")}),
    )
    words = ("predict", "table", "--data", "new/rows.csv", "-o", "table.csv", "--device", "cpu")
    assert "column 'photo': images in new/train\n" in refused(capsys, *words, code=0)
    (folder / "new/train/dark/1.png").unlink()
    text = refused(
        capsys, "predict", "table", "--data", "new/rows.csv", "-o", "out.csv", "--device", "cpu", code=1
    )
    assert "new/rows.csv, line 6, column 'photo': new/train/dark/1.png" in text
    assert not (folder / "out.csv").exists()
    # A server would read what a request names.
    assert RunFiles.read("runs/table").input_table() is None
    text = refused(capsys, "predict", "table", "--data", "valid", code=1)
    assert "expected  a file with the columns photo, age" in text


def test_what_cannot_be_read(capsys: Capture, folder: Path):
    (folder / "empty").mkdir()
    for name in ("none", "none.png"):
        text = refused(capsys, "predict", "folder", "--data", name, code=1)
        assert "no such file" in text.lower()
    assert "a folder has no images" in refused(capsys, "predict", "folder", "--data", "empty", code=1)
    (folder / "valid/bright/1.png").write_bytes(b"")
    assert "valid/bright/1.png" in refused(capsys, "predict", "folder", "--data", "valid", code=1)
