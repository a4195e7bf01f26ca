"""`burnt predict`: a file of predictions for new rows, equal to what `burnt.predict` returns."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import burnt
from burnt.cli import main, predict
from burnt.errors import DataError
from burnt.train.after.loading import RunFiles
from tests.cli.commands import printed, refused, run_script
from tests.fixtures import Capture

CODE = """
import csv, datetime, random
import torch
import burnt
from burnt import data, nn, optim
from burnt.train import ClassificationOutput, Learner, StepOutput, SupervisedTraining

class Churn(burnt.Module):
    def __init__(self, cities: int):
        super().__init__()
        self.fill, self.scale = nn.FillMissing(4, "median"), nn.Standardize(4)
        self.city, self.head = nn.Embedding(cities, 3), nn.Linear(7, 2)

    def forward(self, x, city):
        return self.head(torch.cat([self.scale(self.fill(x)), self.city(city)], 1))

    def training_step(self, batch):
        logits = self(batch.x, batch.city)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.left), logits, batch.left)

class Prices(burnt.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)

    def training_step(self, batch):
        output = self(batch.x)
        return StepOutput((output - batch.y).square().mean(), output, batch.y)

def rows(count, seed):
    random.seed(seed)
    for number in range(count):
        day = datetime.date(2024, 1, 1) + datetime.timedelta(random.randint(0, 400))
        yield {
            "id": f"00{number}", "age": random.choice(["", random.randint(18, 90)]),
            "spent": random.random() * 100, "joined": random.choice(["", day]),
            "city": random.choice(["Bonn", "Kiel", ""]), "left": random.choice(["no", "yes"]),
        }

def write(path, rows):
    rows = list(rows)
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)

def fit(folder, model, loader):
    SupervisedTraining(
        folder, train=loader, valid=loader, duration="2 epochs", monitor="off", device="cpu"
    ).run(Learner(model, optim.AdamW(), 0.01))

def main():
    torch.manual_seed(0)
    write("train.csv", rows(60, 0))
    train = data.CsvDataset(
        "train.csv", columns={"x": ["age", "spent", "joined", "joined.month"], "city": "city"}, label="left",
        types={"joined": datetime.date}, categories=["city"], unknown=True, missing="nan",
    )
    model = Churn.Config(cities=3).init()
    model.fill.fit(train, "x")
    model.scale.fit(train, "x")
    fit("runs/churn", model, data.Loader(train, 16, shuffle=True))
    flats = [{"rooms": i % 5, "area": i * 1.5, "price": i + 0.5, "rent": i / 3} for i in range(20)]
    write("flats.csv", flats)
    flats = data.CsvDataset("flats.csv", columns={"x": ["rooms", "area"], "y": ["price", "rent"]})
    fit("runs/flats", Prices.Config().init(), data.Loader(flats, 8))
    mapped = data.Loader(data.map(flats, dict), 8)
    fit("runs/mapped", Prices.Config().init(), mapped)

def batches():
    return data.Loader(data.CsvDataset("flats.csv", columns={"x": ["rooms", "area"]}), 8)

if __name__ == "__main__":
    main()
"""

NEW = [
    {"id": "001", "age": 41, "spent": 3.5, "joined": "2024-02-29", "city": "Kiel", "note": 'a "b", c'},
    {"id": "002", "age": None, "spent": 99.0, "joined": None, "city": None, "note": "x"},
    {"id": "003", "age": 18, "spent": None, "joined": "2025-01-01", "city": "Rome", "note": ""},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_script(tmp_path_factory, "predicted.py", CODE)


@pytest.fixture(autouse=True)
def folder(desk: Path, trained: Path) -> Path:
    shutil.copytree(trained, desk, dirs_exist_ok=True)
    write(desk, ".csv", NEW)
    return desk


def write(folder: Path, suffix: str, rows: list[dict]) -> str:
    path = folder / f"new{suffix}"
    if suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


def read(path: Path) -> list[dict]:
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(folder: Path) -> np.ndarray:
    """The probabilities for NEW, from arrays made by hand."""
    files = RunFiles.read(folder / "runs/churn")
    model = burnt.load(folder / "runs/churn", import_code=True)
    x = torch.tensor([[41, 3.5, 19782, 2], [torch.nan, 99, torch.nan, torch.nan], [18, torch.nan, 20089, 1]])
    assert files.table().columns["city"].categories == ["Bonn", "Kiel", "<unknown>"]
    found = burnt.predict(model, {"x": x, "city": torch.tensor([1, 2, 2])}, transform=torch.nn.Softmax(-1))
    assert found.isfinite().all()
    return found.numpy()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (".csv", ".csv"),
        (".jsonl", ".parquet"),
        (".parquet", ".jsonl"),
        (".csv", ".parquet"),
        (".parquet", ".parquet"),
        (".jsonl", ".csv"),
    ],
)
def test_rows_with_gaps_dates_and_unseen_categories(capsys: Capture, folder: Path, source: str, target: str):
    shares = expected(folder)
    words = (
        "--data",
        write(folder, source, NEW),
        "-o",
        f"out{target}",
        "--batch-size",
        "2",
        "--device",
        "cpu",
    )
    printed(capsys, "predict", "churn", *words)
    found = read(folder / f"out{target}")
    assert list(found[0]) == [*NEW[0], "prediction", "probability_no", "probability_yes"]
    assert [row["id"] for row in found] == ["001", "002", "003"]
    assert [row["note"] for row in found] == [row["note"] for row in NEW]
    for name, column in (("probability_no", 0), ("probability_yes", 1)):
        np.testing.assert_allclose([float(row[name]) for row in found], shares[:, column], atol=1e-5)
    assert [row["prediction"] for row in found] == [["no", "yes"][i] for i in shares.argmax(1)]


def test_values_have_the_names_of_their_columns(capsys: Capture, folder: Path):
    (folder / "plain.csv").write_text("rooms,area\n2,7.5\n3,1\n")
    text = printed(capsys, "predict", "flats", "--data", "plain.csv", "--device", "cpu", "--keep", "area")
    found = list(csv.DictReader(text.splitlines()))
    model = burnt.load(folder / "runs/flats", import_code=True)
    values = burnt.predict(model, torch.tensor([[2, 7.5], [3, 1]]))
    assert list(found[0]) == ["area", "prediction_price", "prediction_rent"]
    np.testing.assert_allclose(
        [[float(row[f"prediction_{n}"]) for n in ("price", "rent")] for row in found], values
    )
    # Batches of user code have no columns of their own.
    words = ("--data", "predicted.py:batches", "--device", "cpu", "-o")
    for run in ("flats", "mapped"):
        printed(capsys, "predict", run, *words, f"{run}.jsonl")
    assert list(read(folder / "flats.jsonl")[0]) == ["prediction_price", "prediction_rent"]
    assert list(read(folder / "mapped.jsonl")[0]) == ["prediction_0", "prediction_1"]
    assert len(read(folder / "flats.jsonl")) == 20


def test_unknown_categories_are_listed(capsys: Capture, folder: Path):
    words = ("predict", "churn", "--device", "cpu", "-o", "out.csv", "--force", "--data")
    for suffix in (".csv", ".jsonl", ".parquet"):
        write(folder, suffix, [*NEW, {**NEW[0], "city": "KIEL"}, {**NEW[0], "city": "Rome"}])
        text = refused(capsys, *words, f"new{suffix}", code=0)
        assert "out.csv: 5 rows\ncolumn 'city': 2 values unknown to the training: Rome, KIEL\n" in text
    write(folder, ".csv", NEW[:2])  # known, and missing
    assert "column" not in refused(capsys, *words, "new.csv", code=0)


def test_errors_write_nothing(capsys: Capture, folder: Path):
    def problem(*words: str, code: int = 1) -> str:
        text = refused(capsys, "predict", *words, "--device", "cpu", "-o", "out.csv", code=code)
        assert not (folder / "out.csv").exists()
        assert not list(folder.glob(".out*"))
        return text

    text = problem("mapped", "--data", "flats.csv")
    assert "items are changed by data.map(..., dict)" in text
    assert "--data module:loader" in text
    write(folder, ".csv", [{key: row[key] for key in row if key != "age"} for row in NEW])
    text = problem("churn", "--data", "new.csv")
    assert "a column of the training's data is missing" in text
    assert "expected  'age'" in text
    assert "found     id," in text
    write(folder, ".csv", [*NEW, {**NEW[0], "age": "old"}])
    assert "new.csv, line 5, column 'age'" in problem("churn", "--data", "new.csv")
    write(folder, ".jsonl", [*NEW, {**NEW[0], "joined": "31.01.2024"}])
    text = problem("churn", "--data", "new.jsonl", "--batch-size", "2")  # after the first batch is written
    assert "new.jsonl, line 4, column 'joined'" in text
    assert "hint      new data has the columns of the training's" in text
    assert "types=" not in text
    assert "there is no such file" in problem("churn", "--data", "none.csv")
    write(folder, ".csv", NEW)
    assert "'nme'" in problem("churn", "--data", "new.csv", "--keep", "id,nme", code=2)
    write(folder, ".csv", [{**row, "prediction": "no"} for row in NEW])
    assert "--keep A,B" in problem("churn", "--data", "new.csv", code=2)
    write(folder, ".csv", NEW)
    for out, word in (("out.xlsx", ".csv, .jsonl, .parquet"), ("new.csv", "the file exists")):
        assert word in refused(capsys, "predict", "churn", "--data", "new.csv", "-o", out)
    printed(capsys, "predict", "churn", "--data", "new.csv", "-o", "new.csv", "--force", "--device", "cpu")
    assert "prediction" in read(folder / "new.csv")[0]
    assert main(["predict", "churn", "--data", "new.csv", "--keep", "", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "prediction,probability_no,probability_yes"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_chunks_are_rows_in_their_order(capsys: Capture, folder: Path, suffix: str):
    rows = [{**NEW[0], "id": f"{number:03}", "age": 18 + number} for number in range(23)]
    words = ("--data", write(folder, suffix, rows), "--batch-size", "5", "--device", "cpu", "-o")
    printed(capsys, "predict", "churn", *words, "all.jsonl", "--keep", "id,age")
    found = read(folder / "all.jsonl")
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    shares = [row["probability_yes"] for row in found]
    assert len(set(shares)) == 23
    assert list(found[0]) == ["id", "age", "prediction", "probability_no", "probability_yes"]
    printed(capsys, "predict", "churn", *words, "none.parquet", "--keep", "")
    assert [row["probability_yes"] for row in read(folder / "none.parquet")] == pytest.approx(shares)


def test_what_outputs_become():
    logits = torch.tensor([[2.0, -1.0], [torch.nan, 0.0]])
    found = predict._Columns(["a", "b"], False, False, []).columns(logits)
    assert found["prediction"] == ["a", None]
    assert found["probability_a"] == [pytest.approx(torch.softmax(logits[0], 0)[0].item()), None]
    labels = predict._Columns(["a", "b"], True, False, []).columns(torch.tensor([[2.0, 1.0], [-3.0, 0.5]]))
    assert labels["prediction"] == [["a", "b"], ["b"]]
    assert labels["probability_a"] == pytest.approx(torch.tensor([2.0, -3.0]).sigmoid().tolist())
    one = predict._Columns(["a", "b"], False, False, []).columns(
        torch.tensor([[2.0], [-3.0]])
    )  # of the second class
    assert (one["prediction"], one["probability_b"]) == (["b", "a"], labels["probability_a"])
    assert predict._Columns(["a", "b"], True, False, []).columns(torch.tensor([2.0, -3.0])) == one
    given = predict._Columns(["a", "b"], False, True, []).columns(torch.tensor([[0.75], [0.25]]))
    assert given["probability_b"] == [0.75, 0.25]  # of a model that ends in a sigmoid
    small = predict._Columns(["a", "b"], False, False, []).columns(torch.tensor([[0.75]]))
    assert small["probability_b"] == pytest.approx([torch.tensor(0.75).sigmoid().item()])
    parts = predict._Columns(None, False, False, []).columns(
        {"mean": torch.ones(2), "count": torch.tensor([[1, 2]] * 2)}
    )
    assert parts == {
        "prediction_mean": [1.0, 1.0], "prediction_count_0": [1, 1], "prediction_count_1": [2, 2]
    }  # fmt: skip
    with pytest.raises(DataError, match="not a row for each item"):
        predict._Columns(None, False, False, []).columns(torch.tensor(1.0))
    with pytest.raises(DataError, match="not a row for each item"):
        list(predict._aligned(iter([[{}, {}]]), [{"prediction": [1]}]))
