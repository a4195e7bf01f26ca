"""CSV files: what columns become, next to pandas, and every fault with its file, line and column."""

import csv
import gzip
import os
import pickle
from fractions import Fraction

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt.data import Batch, CsvDataset, Loader, collate
from burnt.errors import DataError

FLATS = "rooms,area,kind,sunny,zip\n2,51.5,flat,true,00501\n5,120,house,FALSE,1\n\n3,8e1,flat,True,99999\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="flats.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return write


def problem(*arguments, **options) -> str:
    with pytest.raises(DataError) as caught:
        CsvDataset(*arguments, **options)
    return str(caught.value)


def test_types_are_inferred_and_rows_have_them(write):
    flats = CsvDataset(write(FLATS))
    assert len(flats) == 3
    assert flats[0] == {"rooms": 2, "area": 51.5, "kind": "flat", "sunny": True, "zip": "00501"}
    assert [type(cell) for cell in flats[1].values()] == [np.int64, np.float32, str, np.bool_, str]
    assert flats[-1] == flats[2]
    for index in (3, -4):
        with pytest.raises(IndexError):
            flats[index]
        with pytest.raises(IndexError):
            CsvDataset(write(FLATS), columns=["kind"])[index]
    infinite = CsvDataset(write("a\n1.5\ninf\n-Infinity\n", "infinite.csv"))
    assert infinite.column("a").tolist() == [1.5, float("inf"), -float("inf")]
    batch = flats.take(torch.tensor([2, 0, 2]))
    assert (batch.rooms.dtype, batch.area.dtype, batch.sunny.dtype) == (
        torch.int64,
        torch.float32,
        torch.bool,
    )
    assert batch.area.tolist() == [80, 51.5, 80]
    assert batch.zip == ["99999", "00501", "99999"]
    joined = collate([flats[index] for index in (2, 0, 2)])
    for name in batch:
        assert str(getattr(joined, name)) == str(getattr(batch, name))


def test_columns_are_selected_renamed_stacked_and_matched(write):
    path = write("p1,p10,p2,y\n1,2,3,4.5\n5,6,7,8\n")
    assert list(CsvDataset(path, columns=["y", "p1"])[0]) == ["y", "p1"]
    rows = CsvDataset(path, columns={"x": ["p2", "p1"], "all": "p*", "target": "y"})
    assert rows[0]["x"].tolist() == [3, 1]
    assert rows[0]["x"].dtype == torch.int64
    assert rows.take(torch.tensor([1])).all.tolist() == [[5, 6, 7]]
    mixed = CsvDataset(path, columns={"x": ["p1", "y"]})
    assert torch.equal(mixed.column("x"), torch.tensor([[1, 4.5], [5, 8]]))
    rows[0]["x"].zero_()  # an item is a copy
    assert rows[0]["x"].tolist() == [3, 1]


def test_declared_types(write):
    path = write("a,b,c\n1,2,3\n4,5,6\n")
    types = {"a": torch.int32, "b": float, "c": str}
    row = CsvDataset(path, types=types)[1]
    assert [(type(cell), cell) for cell in row.values()] == [(np.int32, 4), (np.float32, 5), (str, "6")]
    assert CsvDataset(path, types={"a": torch.float64}).column("a").dtype == torch.float64


def test_classes_are_sorted_and_shared_with_validation_data(write):
    train = CsvDataset(write(FLATS), label="kind", categories=["zip"])
    assert train.classes == ["flat", "house"]
    assert train.column("kind").tolist() == [0, 1, 0]
    assert train.categories == {"kind": ["flat", "house"], "zip": ["1", "00501", "99999"]}  # by size
    valid = write("zip,kind\n1, house\n", "valid.csv")
    assert CsvDataset(valid, label="kind", categories=train.categories)[0] == {"zip": 0, "kind": 1}
    assert (
        CsvDataset(valid, columns=["zip"], label="kind", categories=train.categories).classes == train.classes
    )
    assert not hasattr(CsvDataset(valid, categories=["zip"]), "classes")
    assert CsvDataset(write("y\n10\n9\n", "y.csv"), label="y").classes == ["9", "10"]
    message = problem(write("kind\nflat\nhose\n", "more.csv"), categories={"kind": train.classes})
    assert "more.csv, line 3, column 'kind'" in message
    assert message.endswith("found     hose\n  hint      did you mean 'house'?")


def test_classes_that_are_equal_as_numbers_have_one_order(write):
    # A set of texts has another order in each process.
    names = [zeros * "0" + digit for digit in "12" for zeros in range(4)] + ["+1"]
    rows = CsvDataset(write("c\n" + "\n".join(names)), label="c")
    assert rows.classes == ["+1", "0001", "001", "01", "1", "0002", "002", "02", "2"]


def test_missing_values(write):
    path = write("a,b,c,s\n1,2,x,\n,NA,,t\n3,0.5, ,NA\n")
    message = problem(path)
    assert "flats.csv, line 3, column 'a'\n  expected  an integer\n  found     nothing" in message
    assert "hint      missing={'a': value} fills in a value, missing='nan' NaN" in message
    nan = CsvDataset(path, missing="nan")
    assert np.array_equal(nan.column("a"), [1, np.nan, 3], equal_nan=True)
    assert nan.column("a").dtype == torch.float32
    assert nan.column("s") == ["", "t", "NA"]
    assert nan.column("c") == ["x", "", " "]
    drop = CsvDataset(path, missing="drop", label="c")
    assert (len(drop), drop[0]) == (1, {"a": 1, "b": 2, "c": 0, "s": ""})
    drop = CsvDataset(path, missing="drop", columns=["a", "s"])
    assert (drop.column("a").tolist(), drop.column("s"), drop.place(1)) == (
        [1, 3],
        ["", "NA"],
        f"{path}, line 4",
    )
    filled = CsvDataset(path, missing={"a": 7, "b": 0.25, "c": "x"}, categories=["c"])
    assert (filled.column("a").tolist(), filled.column("c").tolist()) == ([1, 7, 3], [0, 0, 0])
    assert filled.column("a").dtype == torch.int64
    assert "column 'b'" in problem(path, missing={"a": 7})
    assert "expected  a category" in problem(path, label="c", missing="nan")
    assert "missing={'c': value}" in problem(path, columns=["s"], label="c")
    assert "expected  one of x\n  found     z" in problem(path, columns=["s"], label="c", missing={"c": "z"})
    message = problem(path, columns=["a"], types={"a": int}, missing={"a": 0.5})
    assert "expected  an integer that fits int64\n  found     0.5" in message
    assert "expected  an integer\n  found     nothing" in problem(path, types={"a": int}, missing="nan")
    assert "column 'a'\n  expected  an integer in missing=\n  found     x" in problem(
        path, missing={"a": "x"}
    )
    # NA is a category where it is named as one: it is also Namibia.
    assert CsvDataset(write("c\nNA\nDE\n", "c.csv"), categories={"c": ["NA", "DE"]}).column("c").tolist() == [
        0,
        1,
    ]
    empty = CsvDataset(write("a,b\n,1\n,2\n", "empty.csv"), missing="nan")
    assert empty.column("a").isnan().all()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n3\n", {}, "3\n  expected  2 fields: a, b\n  found     1 field: 3\n  hint      is delim"),
        ("a,b\n1,2\n\n3,4,5\n", {}, "4\n  expected  2 fields: a, b\n  found     3 fields: 3,4,5"),
        ('a,b\n1,"2\n3"\n1\n', {}, "4\n  expected  2 fields"),
        ('a,b\n1,2\n3,"4\n', {}, "3\n  expected  fields of CSV\n  found     a quote is not closed"),
        ("a\n1\nx\n", {"types": {"a": float}}, "3, column 'a'\n  expected  a number\n  found     x"),
        ("a\n1\n2.5\n", {"types": {"a": int}}, "3, column 'a'\n  expected  an integer\n  found     2.5"),
        ("a\n300\n", {"types": {"a": torch.uint8}}, "2, column 'a'\n  expected  an integer that fits uint8"),
        ("a\n1_000\n", {"types": {"a": int}}, "expected  an integer\n  found     1_000"),
        ("a\nyes\n", {"types": {"a": bool}}, "2, column 'a'\n  expected  true or false\n  found     yes"),
        ("a\n1\n\n-1e39\n", {}, "4, column 'a'\n  expected  a number that fits float32\n  found     -1e39\n"
         "  hint      types={'a': torch.float64} has a larger range"),
        ("a,b\n1,x\n2,3\n", {"columns": {"v": ["a", "b"]}}, "2, column 'b'\n  expected  numbers, true and"),
        (b"a\nx\ny\xe9\n", {}, "3\n  expected  text in utf-8\n  found     bytes e9\n  hint      encoding="),
        (b"a\nx\ny\xc3", {}, "3\n  expected  text in utf-8\n  found     bytes c3"),  # ends in a character
        ("a\n1.5\n1e999\n", {}, "3, column 'a'\n  expected  a number that fits float32\n  found     1e999"),
        ("", {}, "the file is empty"),
        ("a,b\n", {}, "there are no rows"),
        ("a,a\n1,2\n", {}, "two columns have the same name\n  in        "),
        ("a\n1\n", {"columns": ["b"]}, "columns= names a column that does not exist"),
        ("a;b\n1;2\n", {"columns": ["b"]}, "hint      delimiter=';'?"),
        ("area\n1\n", {"label": "aera"}, "label= names a column that does not exist"),
        ("area\n1\n", {"label": "aera"}, "found     'aera'\n  hint      did you mean 'area'?"),
        ("a\n1\n", {"columns": []}, "columns= selects no columns"),
        ("a\n1\n", {"types": {"b": int}}, "types= names a column that does not exist"),
        ("a\n1\n", {"types": {"a": list}}, "in        types['a']\n  expected  float, int, bool, str, torch."),
        ("a\n1\n", {"types": {"a": int}, "label": "a"}, "both a type and categories\n  in        column 'a'"),
        ("a\n1\n", {"label": ["a"]}, "label= must be the name of one column"),
        ("a\n1\n", {"categories": {"a": ["1", "1"]}}, "categories= names a value twice"),
        ("a\n1\n", {"missing": "ignore"}, "expected  'error', 'nan', 'drop' or a mapping"),
        ("a\n1\n", {"missing": {"b": 0}}, "missing= names a column that does not exist"),
        ("a\n1\n", {"encoding": "utf-9"}, "encoding= is unknown to Python\n  found     'utf-9'"),
        ("a\n1\n", {"encoding": "base64"}, "encoding= is unknown to Python\n  found     'base64'"),
        ("a,b\n,1\n2,\n", {"missing": "drop"}, "every row lacks a value, so that none is left\n  in        "),
        ("a\n1\n", {"delimiter": "||"}, "delimiter= must be one character\n  found     '||'"),
        ("a\n1\n", {"header": "a"}, "header= must be true, false or a list of names"),
        ("1,2\n", {"header": ["a"]}, "line 1\n  expected  1 field: a\n  found     2 fields: 1,2"),
    ],
)  # fmt: skip
def test_faults_are_named(write, text, options, message):
    found = problem(write(text), **options)
    assert message in found
    assert "flats.csv" in found or options


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ("x", "a number, as in the rows before it"),
        ("007", "a number without leading zeros, as in the rows before it"),
        (str(2**63), "a number that fits int64, as in the rows before it"),
    ],
)
def test_a_later_row_that_does_not_fit_is_an_error(write, late, expected):
    path = write("a\n" + "1\n" * 20_100 + f"{late}\n1\n")
    message = problem(path)
    assert f"line 20102, column 'a'\n  expected  {expected}\n  found     {late}\n" in message
    assert message.endswith("hint      types={'a': str} if the column is text")
    assert CsvDataset(path, types={"a": str})[20_100] == {"a": late}


def test_types_of_long_files(write):
    late = CsvDataset(write("a,b,c\n" + "1,,\n" * 20_100 + "2.5,x,\n2,y,3\n"), missing="nan")
    assert late.column("a").dtype == torch.float32
    assert late[20_100] == {"a": 2.5, "b": "x", "c": pytest.approx(np.nan, nan_ok=True)}
    assert (late[5]["b"], late[20_101]["c"], np.isnan(late[7]["c"])) == ("", 3, True)
    large = CsvDataset(write(f"a,b\n{2**63},1\n5,2\n"))
    assert large[0]["a"] == str(2**63)


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        ("\n\na,b\n1,2\n", {}, 4),
        ('a,"b\nc"\n1,2\n', {}, 3),
        ("a,b\r1,2\r", {}, 2),
        ("\r\na,b\r\n\r\n1,2", {}, 4),
        ("\n1,2\n", {"header": False}, 2),
        ('"odd\nmore\na,b\n1,2\n', {"skip": 2}, 4),
    ],
)
def test_rows_begin_after_the_header_wherever_it_is(write, text, options, line):
    rows = CsvDataset(write(text), **options)
    assert list(rows[0].values()) == [1, 2]
    assert (len(rows), rows.place(0)[-6:]) == (1, f"line {line}")


def test_several_files_and_where_rows_are(write, tmp_path):
    write("a,b\n1,x\n2,y\n", "part-1.csv")
    write('b,a\nz,3\n\n"\nw",4\nv,5\n', "part-2.csv")
    rows = CsvDataset(tmp_path / "part-*.csv")
    assert rows.column("a").tolist() == [1, 2, 3, 4, 5]
    assert rows.column("b") == ["x", "y", "z", "\nw", "v"]
    places = [os.path.basename(rows.place(index)) for index in range(5)]
    lines = [("part-1.csv", 2), ("part-1.csv", 3), ("part-2.csv", 2), ("part-2.csv", 4), ("part-2.csv", 6)]
    assert places == [f"{name}, line {line}" for name, line in lines]
    assert len(CsvDataset([tmp_path / "part-2.csv", tmp_path / "part-1.csv"])) == 5
    write("a,c\n1,2\n", "part-3.csv")
    message = problem(tmp_path / "part-*.csv")
    assert "part-3.csv\n  expected  a, b, as in" in message
    assert "found     no column 'b' in a, c" in message


def test_paths_that_are_no_files(write, tmp_path):
    write(FLATS)
    assert problem(tmp_path / "flat.csv").endswith("flat.csv\n  hint      did you mean 'flats.csv'?")
    assert "there is no folder" in problem(tmp_path / "data" / "flats.csv")
    assert problem(tmp_path / "*.tsv").startswith("no file matches the pattern")
    assert problem(tmp_path).startswith("expected a file, found a folder")
    assert problem([]).startswith("no files were given")


def test_dialects(write):
    assert CsvDataset(write("a\tb\n1\tx,y\n", "t.tsv"))[0] == {"a": 1, "b": "x,y"}
    assert CsvDataset(write("a;b\n1;2,5\n"), delimiter=";")[0] == {"a": 1, "b": "2,5"}
    assert CsvDataset(write("1,2\n"), header=False)[0] == {"column_0": 1, "column_1": 2}
    assert CsvDataset(write("1,2\n"), header=["x", "y"])[0] == {"x": 1, "y": 2}
    skipped = CsvDataset(write("# made today\n# by me\na\n1\n"), skip=2)
    assert (skipped[0], skipped.place(0)[-6:]) == ({"a": 1}, "line 4")
    assert CsvDataset(write("a,b\n1,é\n", encoding="latin-1"), encoding="latin-1")[0]["b"] == "é"
    assert CsvDataset(write("a,b\n1,é\n", encoding="utf-16"), encoding="utf-16")[0] == {"a": 1, "b": "é"}
    assert list(CsvDataset(write("a\n1\n", encoding="utf-8-sig"))[0]) == ["a"]
    assert CsvDataset(write(gzip.compress(FLATS.encode()), "flats.csv.gz"))[1]["kind"] == "house"
    assert problem(write(b"no gzip", "broken.csv.gz")).startswith("the file cannot be read")
    long = "x" * 200_000
    limit = csv.field_size_limit()
    assert CsvDataset(write(f"a\r\n{long}\r\n"))[0]["a"] == long
    assert csv.field_size_limit() == limit


def test_a_loader_takes_batches_and_a_pickle_has_the_rows(write):
    flats = CsvDataset(write(FLATS), columns={"x": ["rooms", "area"]}, label="kind")
    copy = pickle.loads(pickle.dumps(flats))
    assert (copy.classes, copy[1]["x"].tolist(), copy.place(2)) == (
        ["flat", "house"],
        [5, 120],
        flats.place(2),
    )
    (batch,) = Loader(copy, 4, shuffle=True)
    assert type(batch) is Batch
    assert sorted(batch.kind.tolist()) == [0, 0, 1]


cells = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**31), 2**31).map(str),
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(cells, texts, st.integers(-9, 9)), min_size=1, max_size=6))
def test_it_reads_what_python_writes_as_pandas_does(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("a", "b", "c"), *rows])
    frame = pandas.read_csv(path, keep_default_na=False, dtype=str)
    numbers = [Fraction(text) for text in frame["a"]]
    rounded = [
        text
        for text, number in zip(frame["a"], numbers, strict=True)
        if Fraction(float(np.float32(text))) != number and abs(number) <= 2**53
    ]
    if not frame["a"].str.fullmatch(r"-?\d+").all() and (
        any(text.strip("-").isdigit() for text in rounded)
        or (rounded and all(number.denominator == 1 for number in numbers))
    ):
        assert "float32" in problem(path, types={"b": str})
        return
    dataset = CsvDataset(path, types={"b": str})
    column = dataset.column("a").numpy()
    assert column.dtype == (np.int64 if frame["a"].str.fullmatch(r"-?\d+").all() else np.float32)
    assert np.array_equal(column, frame["a"].astype(np.float64).astype(column.dtype))
    assert dataset.column("b") == frame["b"].tolist() == [text for _, text, _ in rows]
    assert dataset.column("c").tolist() == frame["c"].astype(int).tolist()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_threads_of_pyarrow_hold_no_object_of_python(write, monkeypatch, encoding):
    import pyarrow
    import pyarrow.csv

    path = write("a,b\n" + "1,é\n" * 10_000, encoding=encoding)
    read, before, seen = pyarrow.csv.read_csv, pyarrow.total_allocated_bytes(), []

    def spy(source, options, *rest):
        seen.append((options.encoding, source.size() <= pyarrow.total_allocated_bytes() - before))
        return read(source, options, *rest)

    monkeypatch.setattr(pyarrow.csv, "read_csv", spy)
    CsvDataset(path, encoding=encoding)
    assert seen == [("utf8", True)]  # a codec of Python would make its own bytes
