"""Descriptions of tables: JSON by which new rows are encoded as in training."""

import datetime
import json
import sqlite3

import numpy as np
import pandas
import pyarrow
import pytest
import torch

from burnt import data, nn, optim
from burnt.data.description import TableDescription, describe
from burnt.errors import DataError, UnsupportedError
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.after.loading import RunFiles

ROWS = [
    {
        "id": "a",
        "rooms": 2,
        "area": 51.5,
        "city": "Kiel",
        "joined": "2024-01-31",
        "new": True,
        "kind": "flat",
    },
    {"id": "b", "rooms": 5, "area": None, "city": "Bonn", "joined": None, "new": False, "kind": "house"},
    {
        "id": "c",
        "rooms": 3,
        "area": 80.0,
        "city": None,
        "joined": "1969-12-31T18:00",
        "new": True,
        "kind": "flat",
    },
]
OPTIONS = {
    "columns": {"x": ["rooms", "area", "joined", "joined.month", "new"], "city": "city"},
    "types": {"joined": datetime.date},
    "categories": ["city"],
    "unknown": True,
    "missing": "nan",
}


def write(folder, suffix, rows=ROWS):
    path, frame = folder / f"rows{suffix}", pandas.DataFrame(rows)
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


KINDS = {".csv": data.CsvDataset, ".parquet": data.ParquetDataset, ".jsonl": data.JsonLinesDataset}
EXPECTED = {  # by hand: 2024-01-31 is day 19753, as `date -d 2024-01-31 +%s` / 86400 says
    "x": [[2, 51.5, 19753, 1, 1], [5, np.nan, np.nan, np.nan, 0], [3, 80, -0.25, 12, 1]],
    "city": [1, 0, 2],
}


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_rows_are_encoded_as_the_file_was(tmp_path, suffix, other):
    rows = KINDS[suffix](write(tmp_path, suffix), **OPTIONS, label="kind")
    table = TableDescription.from_dict(json.loads(json.dumps(TableDescription.of(rows).to_dict())))
    assert table == TableDescription.of(rows)
    assert (table.label, list(table.columns), list(table.entries)) == (
        "kind", ["rooms", "area", "joined", "new", "city"], ["x", "city"],
    )  # fmt: skip
    assert table.columns["rooms"].range == (2, 5)
    assert table.columns["joined"].range == (-0.25, 19753)
    assert table.columns["city"].categories == ["Bonn", "Kiel", "<unknown>"]
    assert [name for name in table.columns if table.is_required(name)] == ["new"]
    encoded = table.encode([{key: row[key] for key in row if key != "kind"} for row in ROWS])
    opened = table.open(
        write(tmp_path, other, [{k: v for k, v in row.items() if k != "kind"} for row in ROWS])
    )
    batch = next(iter(data.Loader(opened, 3)))
    assert list(batch) == ["x", "city"]
    for found in (encoded, {name: getattr(batch, name).numpy() for name in batch}):
        np.testing.assert_array_equal(found["x"], np.array(EXPECTED["x"], np.float32))
        assert found["x"].dtype == np.float32
        assert found["city"].tolist() == EXPECTED["city"]


def test_a_description_is_found_below_loaders_and_views(tmp_path):
    rows = data.CsvDataset(write(tmp_path, ".csv"), **OPTIONS)
    expected = TableDescription.of(rows).to_dict()
    part, _ = data.split(rows, 2)
    for source in (rows, part, data.cache(part), data.concat(rows, part), torch.utils.data.Subset(rows, [0])):
        assert describe(data.Loader(source, 1)) == expected
        assert describe(data.as_loader(torch.utils.data.DataLoader(source, 1), "train")) == expected
    assert describe(data.LimitedLoader(data.Loader(rows, 1), 1)) == expected
    assert describe(data.RepeatedLoader(data.Loader(rows, 1), 1)) == expected
    assert describe([{"x": 1}]) is None

    def scale(item, generator=None):
        return item

    class Wrapper(list):
        dataset = rows

    for source, reason in (
        (data.Loader(data.map(part, scale), 1), "data.map(..., scale)"),
        (data.Loader(rows, 1, item_transform=scale), "item_transform= of the loader"),
        (data.LimitedLoader(data.Loader(rows, 1, transform=scale), 1), "transform= of the loader"),
        (data.Loader(Wrapper([1]), 1), "Wrapper"),
        (torch.utils.data.DataLoader(rows, collate_fn=scale), "collate_fn=scale"),
    ):
        assert describe(source) == {"unknown": f"items are changed by {reason}"}
    # What only the training does, such as noise, does not belong to new data.
    assert describe(data.Loader(rows, 1, item_transform=scale), [data.Loader(part, 1)]) == expected


def problem(function, *args, **options):
    with pytest.raises(DataError) as caught:
        function(*args, **options)
    return str(caught.value)


def test_messages_of_rows_and_files(tmp_path):
    options = {**OPTIONS, "unknown": False, "missing": {"area": 1.5, "city": "Bonn", "joined": "2000-01-01"}}
    table = TableDescription.of(data.CsvDataset(write(tmp_path, ".csv"), **options))
    row = {key: value for key, value in ROWS[0].items() if key != "kind"}
    assert table.encode([{**row, "area": None, "joined": None, "city": None}])["x"].tolist() == [
        [2, 1.5, 10957, 1, 1]
    ]
    assert problem(table.encode, [row, {**row, "city": "Rome"}], "the request") == (
        "a row cannot be read\n  in        the request, row 1, column 'city'\n"
        "  expected  one of Bonn, Kiel\n  found     Rome\n"
        "  hint      categories={column: names} names them all, unknown=True makes one of all others"
    )
    assert problem(table.encode, [{**row, "joined": "31.01.2024"}]) == (
        "a row cannot be read\n  in        the rows, row 0, column 'joined'\n"
        "  expected  a date such as 2024-01-31\n  found     31.01.2024\n"
        "  hint      types={'joined': '%d.%m.%Y'} is another format, as of strptime"
    )
    for value, found in (("5", "5"), (None, "nothing")):
        text = problem(table.encode, [{**row, "rooms": value}])
        assert "row 0, column 'rooms'" in text
        assert f"found     {found}" in text
    less = [{key: value for key, value in row.items() if key != "rooms"}]
    assert "found     'rooms'" in problem(table.encode, less)
    for suffix in KINDS:
        text = problem(table.open, write(tmp_path, suffix, less))
        assert "names a column that does not exist" in text
        assert f"rows{suffix}" in text
    assert "there are no rows" in problem(table.encode, [])
    (tmp_path / "rows.xlsx").touch()
    assert "expected  .csv, .tsv, .parquet, .jsonl, .csv.gz, or a" in problem(
        table.open, tmp_path / "rows.xlsx"
    )


@pytest.mark.parametrize("suffix", KINDS)
def test_unseen_and_missing_categories_are_the_last_one(tmp_path, suffix):
    cities = [{key: row[key] for key in ("city", "kind")} for row in ROWS]
    rows = KINDS[suffix](write(tmp_path, suffix, cities), categories=["city"], unknown=["city"], label="kind")
    assert rows.categories == {"city": ["Bonn", "Kiel", "<unknown>"], "kind": ["flat", "house"]}
    assert rows.column("city").tolist() == [1, 0, 2]
    new = [{"city": city} for city in ("Rome", "Kiel", None)]
    test = KINDS[suffix](write(tmp_path, suffix, new), categories=rows.categories)  # without the labels
    assert test.column("city").tolist() == [2, 1, 2]
    assert test.categories == {"city": rows.categories["city"]}
    filled = KINDS[suffix](write(tmp_path, suffix, new), categories=rows.categories, missing={"city": "Bonn"})
    assert filled.column("city").tolist() == [2, 1, 0]
    strict = {"city": ["Bonn", "Kiel"], "kind": ["flat", "house"]}  # not `train.categories`
    assert "'kind'" in problem(KINDS[suffix], write(tmp_path, suffix, new), categories=strict)
    bad = [{"city": "Kiel", "kind": "tent"}]
    found = KINDS[suffix](write(tmp_path, suffix, cities), categories=rows.categories, label="kind")
    assert found.column("kind").tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="one of flat, house"):  # never of the label
        KINDS[suffix](write(tmp_path, suffix, bad), categories=rows.categories, label="kind")[0]
    for columns, hint in ((["kind"], "has no label"), (["rooms"], "some of city")):
        assert hint in problem(
            KINDS[suffix], write(tmp_path, suffix), categories=["city"], label="kind", unknown=columns
        )


@pytest.mark.parametrize("suffix", KINDS)
def test_dates_of_other_formats(tmp_path, suffix):
    rows = [{"day": "31.12.1969 06:00"}, {"day": "01.03.2024 18:00"}]
    columns = ["day", "day.year", "day.month", "day.day", "day.weekday", "day.hour"]
    found = KINDS[suffix](
        write(tmp_path, suffix, rows), types={"day": "%d.%m.%Y %H:%M"}, columns={"x": columns}
    )
    batch = next(iter(data.Loader(found, 2)))
    assert batch.x.tolist() == [[-0.75, 1969, 12, 31, 2, 6], [19783.75, 2024, 3, 1, 4, 18]]
    zoned = [{"day": "2024-03-01T01:00+02:00"}, {"day": "2024-02-29T23:00Z"}, {"day": "2024-02-29 23:00"}]
    found = KINDS[suffix](write(tmp_path, suffix, zoned), types={"day": datetime.datetime})
    assert found.column("day").tolist() == [pytest.approx(19782 + 23 / 24)] * 3
    text = problem(lambda: KINDS[suffix](write(tmp_path, suffix, rows), types={"day": datetime.date})[0])
    assert "expected  a date such as 2024-01-31" in text
    assert "found     31.12.1969 06:00" in text
    text = problem(lambda: KINDS[suffix](write(tmp_path, suffix, rows), columns=["day", "day.month"]))
    assert "'day.month'" in text


def test_dates_of_arrow_and_sqlite(tmp_path):
    days = [datetime.date(2024, 2, 29), None]
    times = pandas.to_datetime(["2024-02-29 12:00:00.000000001", None])
    frame = pyarrow.table({"day": days, "time": times, "zoned": times.tz_localize("Europe/Berlin")})
    options = {"types": dict.fromkeys(["day", "time", "zoned"], datetime.date), "missing": "nan"}
    rows = data.DataframeDataset(frame, columns={"x": ["day", "time", "zoned", "day.weekday"]}, **options)
    np.testing.assert_array_equal(rows.column("x")[0], [19782, 19782.5, np.float32(19782 + 11 / 24), 3])
    assert rows.column("x")[1].isnan().all()
    only = data.DataframeDataset(frame, columns=["day.month"], types={"day": datetime.date}, missing="nan")
    assert only.column("day.month")[0] == 2
    database = sqlite3.connect(tmp_path / "rows.db")
    database.execute("CREATE TABLE rows (day TEXT)")
    database.executemany("INSERT INTO rows VALUES (?)", [["2024-02-29"], [None]])
    database.commit()
    database.close()
    found = data.SqliteDataset(tmp_path / "rows.db", "rows", types={"day": datetime.date}, missing="nan")
    np.testing.assert_array_equal(found.column("day"), [19782, np.nan])


def test_a_run_keeps_the_description(tmp_path):
    options = {**OPTIONS, "missing": {"area": 60, "joined": "2024-01-01"}}
    rows = data.CsvDataset(write(tmp_path, ".csv"), **options, label="kind")
    assert trained(tmp_path / "run", rows).table().to_dict() == {
        **TableDescription.of(rows).only(["x"]).to_dict(), "label": "kind"
    }  # fmt: skip
    for name, source, word in (
        ("mapped", data.map(rows, dict), "items are changed by data.map(..., dict)"),
        ("tensors", data.TensorDataset(x=torch.ones(3, 5), kind=torch.tensor([0, 1, 0])), "not described"),
    ):
        with pytest.raises(UnsupportedError) as caught:
            trained(tmp_path / name, source).table()
        assert word in str(caught.value)
        assert "--data module:loader" in str(caught.value)


def trained(folder, rows):
    def step(model, batch):
        logits = model(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.kind), logits, batch.kind)

    model = nn.Linear.Config(in_features=5, out_features=2).init()
    loader = data.Loader(rows, 3)
    SupervisedTraining(folder, train=loader, valid=loader, duration="1 step", monitor="off").run(
        Learner(model, optim.Sgd(), 1e-9, step)
    )
    return RunFiles.read(folder)


def test_a_file_without_header_may_lack_the_label(tmp_path):
    (tmp_path / "train.csv").write_text("1,cat,2.5\n3,dog,4.5\n")
    (tmp_path / "new.csv").write_text("5,6.5\n7,8.5\n")
    names = ["a", "kind", "b"]
    rows = data.CsvDataset(tmp_path / "train.csv", columns={"x": ["a", "b"]}, label="kind", header=names)
    table = TableDescription.from_dict(TableDescription.of(rows).to_dict())
    for name, expected in (("train.csv", [[1, 2.5], [3, 4.5]]), ("new.csv", [[5, 6.5], [7, 8.5]])):
        found = table.open(tmp_path / name)
        assert [found[index]["x"].tolist() for index in range(2)] == expected
    (tmp_path / "odd.csv").write_text("5\n")
    with pytest.raises(DataError, match="3 fields: a, kind, b"):
        table.open(tmp_path / "odd.csv")
