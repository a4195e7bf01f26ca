"""Parquet files, dataframes and datasets of Hugging Face, next to what their own libraries give."""

import datetime
import decimal
import multiprocessing
import pickle
import sys

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt.data import (
    CsvDataset,
    DataframeDataset,
    HuggingFaceDataset,
    Loader,
    ParquetDataset,
    collate,
    select,
)
from burnt.errors import DataError

FRAME = pandas.DataFrame(
    {"a": [1, 2, 3], "b": [1.5, 8, -2], "s": ["x", "", "é"], "c": pandas.Categorical(["v", "u", "v"])},
    index=[7, 8, 9],
)


@pytest.fixture
def parquet(tmp_path):
    def write(columns, name="rows.parquet", **options):
        path = tmp_path / name
        pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
        return path

    return write


def problem(kind, *arguments, **options) -> str:
    with pytest.raises(DataError) as caught:
        list(kind(*arguments, **options))
    return str(caught.value)


@pytest.mark.parametrize("make", [lambda f: f, polars.from_pandas, pyarrow.Table.from_pandas])
def test_dataframes_of_each_library(make):
    rows = DataframeDataset(make(FRAME), label="c")
    assert rows[1] == {"a": 2, "b": 8, "s": "", "c": 0}
    assert [type(cell) for cell in rows[0].values()] == [np.int64, np.float32, str, np.int64]
    assert rows.classes == ["u", "v"]
    batch = rows.take(torch.tensor([2, 0]))
    assert (batch.b.tolist(), batch.s, batch.c.tolist()) == ([-2, 1.5], ["é", "x"], [1, 1])
    copy = pickle.loads(pickle.dumps(DataframeDataset(make(FRAME), columns={"x": ["a", "b"]})))
    assert torch.equal(copy.column("x"), torch.tensor([[1, 1.5], [2, 8], [3, -2]]))


def test_a_slice_of_a_frame_is_read_from_its_start():
    table = pyarrow.table({"s": ["a", "bc", "def"], "l": [[1], [2, 3], [4]], "f": [1.0, None, 3.0]})
    rows = DataframeDataset(table.slice(1), missing="nan")
    assert (rows[1]["s"], rows[0]["l"].tolist()) == ("def", [2, 3])
    assert np.isnan(rows[0]["f"])
    chunks = pyarrow.concat_tables([table.slice(2), table.slice(0, 1)])
    assert DataframeDataset(chunks, columns=["s"]).column("s") == ["def", "a"]


def test_types_of_arrow():
    columns = {
        "n": pyarrow.array([1, 2], pyarrow.uint8()),
        "d": [decimal.Decimal("1.5"), decimal.Decimal("2")],
        "t": [True, False],
        "fixed": pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int64(), 2)),
    }
    rows = DataframeDataset(pyarrow.table(columns))
    batch = rows.take(torch.tensor([1, 0]))
    dtypes = [batch.n.dtype, batch.d.dtype, batch.t.dtype, batch.fixed.dtype]
    assert dtypes == [torch.int64, torch.float32, torch.bool, torch.int64]
    assert batch.fixed.tolist() == [[3, 4], [1, 2]]
    columns = {"lists": [[1.0], []], "deep": [[[1]], [[2], [3]]], "day": [datetime.date(2020, 1, 2)] * 2}
    rows = DataframeDataset(pyarrow.table({**columns, "struct": [{"k": 1}, {"k": 2}]}))
    assert not hasattr(rows, "take")
    row = rows[1]
    assert (row["lists"].dtype, row["lists"].shape, row["deep"].tolist()) == (torch.float32, (0,), [[2], [3]])
    assert (row["day"], row["struct"]) == (datetime.date(2020, 1, 2), {"k": 2})
    declared = {"a": torch.float64, "b": int, "s": object}
    row = DataframeDataset(FRAME[["a", "b", "s"]].iloc[1:], types=declared)[0]
    assert [type(cell) for cell in row.values()] == [np.float64, np.int64, str]
    assert DataframeDataset(FRAME, types={"a": str})[0]["a"] == "1"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1, None]}, {}, "1, column 'a'\n  expected  an integer\n  found     nothing\n  hint"),
        ({"a": [1.0, float("nan")]}, {}, "1, column 'a'\n  expected  a number\n  found     nothing"),
        ({"a": ["x", None]}, {"missing": "nan"}, "1, column 'a'\n  expected  text\n  found     nothing"),
        ({"a": ["x", None]}, {"label": "a"}, "1, column 'a'\n  expected  a category"),
        ({"a": ["x", "z"]}, {"categories": {"a": ["x"]}}, "1, column 'a'\n  expected  one of x\n  found "),
        ({"a": [1, 2.5]}, {"types": {"a": int}}, "'a'\n  expected  an integer that fits int64\n  found"),
        ({"a": [1, 300]}, {"types": {"a": torch.uint8}}, "an integer that fits uint8\n  found     300"),
        ({"a": [1.0, 1e39]}, {}, "1, column 'a'\n  expected  a number that fits float32\n  found     1e+39"),
        ({"a": ["x"]}, {"types": {"a": float}}, "expected  a number\n  found     a column of large_string"),
        ({"a": [[1], [2, None]]}, {}, "1, column 'a'\n  expected  a list of integers\n  found     a null"),
        ({"a": [[1], None]}, {}, "1, column 'a'\n  expected  a list of integers\n  found     nothing"),
        ({"a": [[1], None]}, {"missing": {"a": [0]}}, "nothing\n  hint      missing= does not fill in lists"),
        ({"a": [[[1], [2, 3]]]}, {}, "0, column 'a'\n  expected  a list of integers, of lists of one length"),
        ({"a": [[[1.0]], [[None]]]}, {}, "1, column 'a'\n  expected  a list of numbers, of lists of one"),
        ({"a": [[[1.0]], [[1e39]]]}, {}, "1, column 'a'\n  expected  a number that fits float32\n  found "),
        ({"a": pyarrow.array([], pyarrow.int64())}, {}, "there are no rows\n  in        the dataframe"),
        ({"a": [1], "s": ["x"]}, {"columns": {"v": ["a", "s"]}}, "0, column 's'\n  expected  numbers"),
        ({"a": [1]}, {"columns": ["b"]}, "columns= names a column that does not exist\n  in        the data"),
        ({"a": ["x", None]}, {"missing": {"a": 0}}, "column 'a'\n  expected  text in missing=\n  found "),
        ({"a": [1]}, {"missing": "drop"}, "burnt.data.filter drops items"),
    ],
)  # fmt: skip
def test_cells_that_do_not_fit_are_named(columns, options, message):
    assert message in problem(DataframeDataset, pyarrow.table(columns), **options)


def test_missing_values_are_filled_in():
    table = pyarrow.table({"a": [1, None], "s": [None, "x"], "c": ["u", None], "o": [{"k": 1}, None]})
    fills = {"a": 0.5, "s": "?", "c": "u", "o": {}}
    rows = DataframeDataset(table, missing=fills, categories=["c"])
    assert rows[0] == {"a": 1, "s": "?", "c": 0, "o": {"k": 1}}
    assert rows[1] == {"a": 0.5, "s": "x", "c": 0, "o": {}}
    assert type(DataframeDataset(table, columns=["a"], missing={"a": 7})[1]["a"]) is np.int64
    assert DataframeDataset(table, columns=["s"], types={"s": object})[0]["s"] is None
    large = DataframeDataset(pyarrow.table({"a": [2**53 + 1, None]}), types={"a": int}, missing={"a": 0.0})
    assert large.column("a").tolist() == [2**53 + 1, 0]
    floats = DataframeDataset(pyarrow.table({"a": [2.0, float("nan")]}), types={"a": int}, missing={"a": 7})
    assert floats.column("a").tolist() == [2, 7]
    labels = DataframeDataset(
        pyarrow.table({"a": [2.0, float("nan")]}), label="a", categories={"a": [2.0]}, missing={"a": 2.0}
    )
    assert (labels.classes, labels.column("a").tolist()) == (["2.0"], [0, 0])
    decimals = pyarrow.table({"a": [[decimal.Decimal("1.5")]], "b": [[[decimal.Decimal("2.5")]]]})
    assert DataframeDataset(decimals)[0] == {"a": torch.tensor([1.5]), "b": torch.tensor([[2.5]])}


def test_what_is_no_dataframe():
    assert "this is not a dataframe" in problem(DataframeDataset, {"a": [1]})
    lazy = polars.LazyFrame({"a": [1]})
    assert "frame.collect() makes one of a LazyFrame" in problem(DataframeDataset, lazy)
    assert repr(DataframeDataset(polars.DataFrame({"a": [1, 2]}))) == "DataframeDataset(2 rows)"
    assert "the columns of a dataframe need names" in problem(DataframeDataset, pandas.DataFrame([[1, 2]]))
    mixed = problem(DataframeDataset, pandas.DataFrame({"a": [1, "x"]}))
    assert (
        "a column of the dataframe cannot be converted to one type\n  found     Could not convert 'x'"
        in mixed
    )
    twice = pyarrow.table([[1], [2]], names=["a", "a"])
    for frame in (twice, pandas.DataFrame([[1, 2]], columns=["a", "a"])):
        assert problem(DataframeDataset, frame) == "two columns have the same name\n  found     'a'"


def test_row_groups_are_read_when_they_are_used(parquet, monkeypatch):
    path = parquet({"a": range(10), "s": [f"r{i}" for i in range(10)], "unused": range(10)}, row_group_size=3)
    rows = ParquetDataset(path, columns=["a", "s"])
    read = []
    original = pyarrow.parquet.ParquetFile.read_row_group

    def read_row_group(self, group, columns):
        read.append((group, columns))
        return original(self, group, columns=columns)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", read_row_group)
    assert (len(rows), rows[7], rows[8], rows[-1]["s"]) == (
        10,
        {"a": 7, "s": "r7"},
        {"a": 8, "s": "r8"},
        "r9",
    )
    assert read == [(2, ["a", "s"]), (3, ["a", "s"])]
    batch = rows.take(torch.tensor([9, 0, 4, 1]))
    assert (batch.a.tolist(), batch.s) == ([9, 0, 4, 1], ["r9", "r0", "r4", "r1"])
    assert [group for group, _ in read] == [2, 3, 0, 1]
    assert len(pickle.loads(pickle.dumps(rows)).take(torch.tensor([], dtype=torch.int64)).a) == 0
    small = ParquetDataset(path, memory=1)
    read.clear()
    assert [int(small[index]["a"]) for index in (0, 9, 0, 1)] == [0, 9, 0, 1]
    assert [group for group, _ in read] == [0, 3, 0]
    two = ParquetDataset(path, columns=["a"], memory=2 * 3 * 8)
    read.clear()
    assert [int(two[index]["a"]) for index in (0, 3, 0, 6, 0, 3)] == [0, 3, 0, 6, 0, 3]
    assert [group for group, _ in read] == [0, 1, 2, 1]  # 0 was used after 1
    read.clear()
    assert small.take(torch.tensor([4, 9])).a.tolist() == [4, 9]
    assert [group for group, _ in read] == [1, 3]
    with pytest.raises(IndexError):
        rows[10]


def test_parquet_types_and_classes_are_the_same_in_every_group_and_file(parquet, tmp_path):
    parquet({"a": [1, 2, None], "c": ["y", "x", "y"]}, "part-0.parquet", row_group_size=2)
    parquet({"c": ["z"], "a": [4]}, "part-1.parquet")
    rows = ParquetDataset(tmp_path / "part-*.parquet", missing="nan", label="c")
    assert [type(row["a"]) for row in rows] == [np.float32] * 4
    assert ([int(row["c"]) for row in rows], rows.classes) == ([1, 0, 1, 2], ["x", "y", "z"])
    assert rows.categories == {"c": ["x", "y", "z"]}
    assert rows.column("c").tolist() == [1, 0, 1, 2]
    assert rows.place(3).endswith("part-1.parquet, row 0")
    message = problem(ParquetDataset, tmp_path / "part-*.parquet")
    assert "part-0.parquet, row 2, column 'a'\n  expected  an integer\n  found     nothing" in message
    parquet({"b": [1]}, "part-2.parquet")
    message = problem(ParquetDataset, tmp_path / "part-*.parquet")
    assert "part-2.parquet\n  expected  a, c, as in " in message
    ragged = ParquetDataset(parquet({"ids": [[1], [2, 3]]}))
    assert not hasattr(ragged, "take")
    assert not hasattr(ragged, "classes")
    assert collate([ragged[1], ragged[1]]).ids.tolist() == [[2, 3], [2, 3]]
    parquet({"v": pyarrow.array([[1, 2]], pyarrow.list_(pyarrow.int64(), 2))}, "fixed-0.parquet")
    parquet({"v": [[3]]}, "fixed-1.parquet")
    assert hasattr(ParquetDataset(tmp_path / "fixed-0.parquet"), "take")
    assert not hasattr(ParquetDataset(tmp_path / "fixed-*.parquet"), "take")


def test_a_parquet_column_of_another_type_than_declared(parquet):
    message = problem(ParquetDataset, parquet({"a": [1]}), types={"a": list[int]})
    assert (
        "rows.parquet, row 0, column 'a'\n  expected  a list of integers\n  found     a column of int64"
        in message
    )


def test_damaged_parquet_files(parquet, tmp_path):
    path = parquet({"a": list(range(1000))}, compression="none", use_dictionary=False)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    assert "the file cannot be read\n  in        " in problem(ParquetDataset, path)
    path.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
    assert "rows.parquet, row group 0\n  found     " in problem(ParquetDataset, path)
    assert "there are no rows" in problem(ParquetDataset, parquet({"a": pyarrow.array([], pyarrow.int64())}))
    assert "there is no such file" in problem(ParquetDataset, tmp_path / "none.parquet")


@pytest.mark.parametrize("kind", [DataframeDataset, CsvDataset, ParquetDataset])
def test_without_pyarrow_the_extra_is_named(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = problem(kind, FRAME)
    assert message == (
        f"a {kind.__name__} needs a further package\n"
        "  expected  pyarrow\n"
        '  hint      pip install "burnt[data]"'
    )


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_parquet_is_read_in_forked_processes(parquet):
    rows = ParquetDataset(parquet({"a": range(100)}, row_group_size=10))
    assert rows[0] == {"a": 0}
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert [int(row["a"]) for row in pool.map(rows.__getitem__, range(100), chunksize=10)] == list(
            range(100)
        )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False) | st.none(), min_size=1, max_size=9),
    st.integers(1, 4),
    st.data(),
)
def test_parquet_rows_are_those_of_pandas(tmp_path_factory, values, group, data):
    frame = pandas.DataFrame({"x": pandas.array(values, "Float32"), "s": [str(value) for value in values]})
    path = tmp_path_factory.mktemp("parquet") / "rows.parquet"
    frame.to_parquet(path, row_group_size=group)
    rows = ParquetDataset(path, missing="nan")
    indices = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=6))
    batch = rows.take(torch.tensor(indices, dtype=torch.int64))
    expected = pandas.read_parquet(path).iloc[indices]
    assert np.array_equal(batch.x, expected["x"].to_numpy("float32", na_value=np.nan), equal_nan=True)
    assert batch.s == expected["s"].tolist()


# Hugging Face


def posts(**features):
    columns = {
        "text": ["a", "b", "c"],
        "n": [1, 2, 3],
        "x": [0.5, 1, 2],
        "y": [0, 1, 0],
        "ids": [[1], [2, 3], []],
    }
    made = datasets.Dataset.from_dict(columns)
    return made.cast_column("y", datasets.ClassLabel(names=["ham", "spam"]))


def test_hugging_face_rows_and_batches():
    rows = HuggingFaceDataset(posts(), columns={"words": "text", "x": "x", "labels": "y"})
    assert (len(rows), rows.classes, list(rows[1])) == (3, ["ham", "spam"], ["words", "x", "labels"])
    assert rows[1]["x"].dtype == torch.float32
    batch = rows.take(torch.tensor([2, 1]))
    assert (batch.words, batch.x.tolist(), batch.labels.tolist()) == (["c", "b"], [2, 1], [0, 1])
    joined = collate([rows[2], rows[1]])
    assert (joined.words, joined.x.dtype, joined.labels.tolist()) == (["c", "b"], torch.float32, [0, 1])
    assert (rows.column("labels").tolist(), rows.column("words")) == ([0, 1, 0], ["a", "b", "c"])
    assert "expected  one of words, x, labels\n  found     'y'" in problem(lambda: rows.column("y"))
    (loaded,) = Loader(rows, 3)
    assert loaded.labels.tolist() == [0, 1, 0]
    assert pickle.loads(pickle.dumps(rows))[0]["words"] == "a"


def test_hugging_face_formats_and_selections_are_kept():
    ragged = HuggingFaceDataset(posts().select([2, 0]))
    assert not hasattr(ragged, "take")
    assert (ragged[1]["ids"].tolist(), ragged[0]["n"]) == ([1], 3)
    assert [row["n"].tolist() for row in ragged.__getitems__([1, 0])] == [1, 3]
    arrays = posts().select_columns(["x"]).with_format("numpy")
    assert not hasattr(HuggingFaceDataset(arrays), "take")
    assert next(iter(Loader(HuggingFaceDataset(arrays), 3))).x.tolist() == [0.5, 1, 2]
    seen = []
    list(Loader(posts(), 3, item_transform=lambda row, generator: seen.append(row["ids"]) or {"n": row["n"]}))
    assert seen == [[1], [2, 3], []]  # in the dataset's own format
    assert [row["n"].tolist() for row in select(ragged, [1, 1, 0]).__getitems__([2, 0])] == [3, 1]
    assert not hasattr(HuggingFaceDataset(posts(), columns=["n"]), "__getitems__")
    arrays = HuggingFaceDataset(posts().with_format("numpy"), columns=["x"])
    assert isinstance(arrays[0]["x"], np.floating)
    upper = posts().with_transform(lambda batch: {"loud": [text.upper() for text in batch["text"]]})
    assert HuggingFaceDataset(upper, columns={"loud": "text"}).dataset is upper


def test_what_is_no_map_style_dataset_of_hugging_face():
    splits = datasets.DatasetDict(train=posts())
    assert problem(HuggingFaceDataset, splits).endswith("hint      take one of its splits: dataset['train']")
    assert "load it without streaming=True" in problem(HuggingFaceDataset, posts().to_iterable_dataset())
    assert "this is not a dataset of Hugging Face" in problem(HuggingFaceDataset, [1])
    assert problem(HuggingFaceDataset, posts(), columns=["txt"]).endswith("did you mean 'text'?")
    assert "dataset.class_encode_column('n') makes it one" in problem(HuggingFaceDataset, posts(), label="n")
    with pytest.raises(AttributeError):
        HuggingFaceDataset(posts(), columns=["n"]).classes
