"""Numbers that a dtype does not hold are refused, next to Python's exact numbers: fill values and columns."""

from __future__ import annotations

import decimal
import json
import math
import sqlite3
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from burnt.data import (
    CsvDataset,
    DataframeDataset,
    HuggingFaceDataset,
    JsonLinesDataset,
    Loader,
    Pack,
    Pad,
    ParquetDataset,
    SqliteDataset,
    transforms,
)
from burnt.data.fitting import fill_values, misfits
from burnt.data.transforms import functional
from burnt.errors import DataError
from tests.messages import raises

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ID = 2**24 + 1
"""The first integer that float32 does not hold."""


def holds(value: float, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a number, by Python's exact ones."""
    if dtype.is_floating_point:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        nearest = torch.tensor(float(value), dtype=torch.float64).to(dtype).item()
        return math.isfinite(nearest) and (isinstance(value, float) or Fraction(nearest) == value)
    if not math.isfinite(value) or value != int(value):
        return False
    if dtype == torch.bool:
        return value in (0, 1)
    return torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


@given(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.floats(), st.floats(-3, 3)),
    st.sampled_from((torch.bool, *INTEGERS, *FLOATS)),
)
@example(-(2**63), torch.float16)  # infinity as an int64
def test_a_fill_value_is_held_or_refused(value: float, dtype: torch.dtype) -> None:
    if dtype == torch.int64 and isinstance(value, float) and abs(value) >= 2.0**63:
        return  # what a conversion gives differs between processors
    if holds(value, dtype):
        found = fill_values(value, dtype, "fill")
        assert found.dtype == dtype
        assert torch.equal(found, torch.full((), value, dtype=dtype)) or math.isnan(value)
    else:
        with pytest.raises(DataError, match="fill= does not fit the dtype of what it fills"):
            fill_values(value, dtype, "fill")


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(2**24 - 3, 2**24 + 3)), min_size=1),
    st.sampled_from((np.float16, np.float32, np.float64)),
)
def test_integers_of_columns_are_exact_or_named(numbers: list[int], kind: type) -> None:
    with np.errstate(over="ignore"):
        expected = [not math.isfinite(kind(n)) or int(kind(n)) != n for n in numbers]
    assert misfits(np.array(numbers, np.int64), np.dtype(kind)).tolist() == expected


IMAGE = torch.full((3, 4, 4), 7, dtype=torch.uint8)
MASKED = {"images": IMAGE, "masks": torch.ones(4, 4, dtype=torch.uint8)}
MOVES = [
    lambda fill: transforms.Pad(2, mask_fill=fill),
    lambda fill: transforms.Pad((1, 2, 3, 4), fill=fill),
    lambda fill: transforms.Pad(2, fill=(0, fill, 0)),
    lambda fill: transforms.RandomCrop(4, padding=2, mask_fill=fill),
    lambda fill: transforms.RandomCrop(7, pad_if_needed=True, fill=fill),
    lambda fill: transforms.RandomRotation((45, 45), mask_fill=fill),
    lambda fill: transforms.RandomRotation((45, 45), expand=True, fill=fill),
    lambda fill: transforms.RandomAffine((45, 45), mask_fill=fill),
    lambda fill: transforms.RandomAffine((45, 45), interpolation="nearest", fill=fill),
    lambda fill: transforms.RandomErasing(p=1, value=fill),
]


@pytest.mark.parametrize("make", MOVES, ids=range(len(MOVES)))
@pytest.mark.parametrize("fill", [-1, 256, 0.5, math.nan, 2**63, 2**64], ids=str)
def test_pixels_and_classes_are_not_wrapped(make: Callable[[Any], Any], fill: float) -> None:
    with pytest.raises(DataError, match="does not fit the dtype") as caught:
        make(fill)(dict(MASKED), torch.Generator().manual_seed(0))
    assert caught.value.expected == "an integer from 0 to 255, for torch.uint8"
    moved = make(255)(dict(MASKED), torch.Generator().manual_seed(0))
    assert 255 in torch.cat([moved["images"].flatten(), moved["masks"].flatten()])


def test_auto_augmentation_and_backgrounds_are_checked() -> None:
    augment = transforms.RandAugment(num_ops=20, mask_fill=-100)
    with pytest.raises(DataError, match="does not fit the dtype"):
        augment(dict(MASKED), torch.Generator().manual_seed(0))
    with pytest.raises(DataError, match="background= does not fit"):
        transforms.ToImage(background=300)({"image": b""})
    with pytest.raises(DataError, match="background= must be one number or three"):
        transforms.ToImage(background=(1, 2))({"image": b""})  # type: ignore[arg-type]


def test_batchers_check_their_padding() -> None:
    for value, sequence in (
        (-100, torch.tensor([1], dtype=torch.uint8)),
        (0.5, [1]),
        (2, torch.tensor([True])),
        (2**24 + 1, [0.5]),
        (-1e9, torch.ones(1, dtype=torch.float16)),
    ):
        longer = torch.cat([torch.as_tensor(sequence)] * 2)
        with pytest.raises(DataError, match="Pad\\('t'\\)= does not fit the dtype"):
            Pad({"t": value})([{"t": sequence}, {"t": longer}])
    assert Pad({"t": -100})([{"t": [1]}, {"t": [1, 2]}]).t.tolist() == [[1, -100], [1, 2]]
    tokens = torch.ones(2, dtype=torch.uint8)
    for options, name in (({"pad": -1}, "pad"), ({"ignore_index": 0.5}, "ignore_index")):
        with pytest.raises(DataError, match=f"{name}= does not fit the dtype"):
            next(iter(Loader([tokens], 1, pack=Pack(4, **options))))
    labelled = [{"tokens": tokens, "labels": tokens}]
    with pytest.raises(DataError, match="ignore_index= does not fit the dtype"):
        next(iter(Loader(labelled, 1, pack=Pack(4))))


def test_a_large_fill_changes_no_pixel_inside() -> None:
    """The rotated image is what it is with a fill of 0, where it covers the result."""
    image = torch.rand(1, 9, 9, generator=torch.Generator().manual_seed(0))
    plain, filled = functional.rotate(image, 30.0), functional.rotate(image, 30.0, fill=-1e9)
    covered = functional.rotate(torch.ones(1, 9, 9), 30.0) > 0.999
    assert covered.any()
    assert torch.equal(filled[covered], plain[covered])
    outside = functional.rotate(torch.ones(1, 9, 9), 30.0) == 0
    assert (filled[outside] == -1e9).all()


def test_moved_masks_keep_classes_beyond_float32() -> None:
    mask = torch.arange(49).view(7, 7) + 2**60
    moved = functional.affine(mask[None], translate=(2.0, 1.0), interpolation="nearest", fill=-100)[0]
    expected = torch.full((7, 7), -100)
    expected[1:, 2:] = mask[:-1, :-2]
    assert torch.equal(moved, expected)


class Sources:
    """One column of numbers in every kind of file and frame."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def csv(self, values: list[Any], **options: Any) -> Any:
        path = self.folder / "a.csv"
        path.write_text("a,b\n" + "".join(f"{'' if v is None else v},0\n" for v in values))
        return CsvDataset(path, columns=["a"], **options)

    def json_lines(self, values: list[Any], **options: Any) -> Any:
        path = self.folder / "a.jsonl"
        path.write_text("".join(json.dumps({"a": value}) + "\n" for value in values))
        return JsonLinesDataset(path, **options)

    def sqlite(self, values: list[Any], **options: Any) -> Any:
        path = self.folder / "a.db"
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE t (a)")
        database.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        database.commit()
        database.close()
        return SqliteDataset(path, "t", **options)

    def parquet(self, values: Any, **options: Any) -> Any:
        path = self.folder / "a.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"a": values}), path)
        return ParquetDataset(path, **options)

    def pandas(self, values: list[Any], **options: Any) -> Any:
        return DataframeDataset(pandas.DataFrame({"a": values}), **options)

    def polars(self, values: list[Any], **options: Any) -> Any:
        return DataframeDataset(polars.DataFrame({"a": values}), **options)


SOURCES = ("csv", "json_lines", "sqlite", "parquet", "pandas", "polars")


@pytest.mark.parametrize("source", SOURCES)
def test_no_source_makes_two_identifiers_one(source: str, tmp_path: Path) -> None:
    read = getattr(Sources(tmp_path), source)
    nan: dict[str, Any] = {"missing": "nan"}
    float16, float32, float64 = (
        {"types": {"a": dtype}} for dtype in (torch.float16, torch.float32, torch.float64)
    )
    for values, options, place in (
        ([1, ID, None], nan, 1),
        ([float(ID), 1.0, None], nan, 0),
        ([1, ID], float32, 1),
        ([2**53 + 1, 1], float64, 0),
        ([1, 2049], float16, 1),
        ([1.5, 1e39], {}, 1),
    ):
        with pytest.raises(DataError, match="that fits float") as caught:
            list(read(values, **options))
        assert "column 'a'" in str(caught.value.where)
        rows = {"csv": f"line {place + 2}", "json_lines": f"line {place + 1}", "sqlite": f"rowid {place + 1}"}
        assert rows.get(source, f"row {place}") in str(caught.value.where)
    for values, options in (
        ([1, ID - 1, None], nan),
        ([float(ID), 1.5], {}),  # a measurement, which is rounded
        ([1e30, 1.0], {}),
        ([ID, 1], float64),
    ):
        found = [item["a"] for item in read(values, **options)]
        kind = np.float64 if options is float64 else np.float32
        assert np.array_equal(found, np.array(values, np.float64).astype(kind), equal_nan=True)
    assert [item["a"] for item in read([ID, 1])] == [ID, 1]


@pytest.mark.parametrize("source", ["csv", "json_lines", "pandas"])
def test_integers_stacked_with_floats_are_exact(source: str, tmp_path: Path) -> None:
    rows = [{"a": 3, "b": 0.5}, {"a": ID, "b": 1.5}]
    path = tmp_path / "rows"
    read: Any = DataframeDataset
    given: Any = pandas.DataFrame(rows)
    if source == "csv":
        given.to_csv(path, index=False)
        given, read = path, CsvDataset
    elif source == "json_lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given, read = path, JsonLinesDataset
    with pytest.raises(DataError, match="that fits float32") as caught:
        list(read(given, columns={"x": ["b", "a"]}))
    assert "entry 'x', column 'a'" in str(caught.value.where)


def test_decimals_and_lists_are_exact(tmp_path: Path) -> None:
    read = Sources(tmp_path).parquet
    number, wide = decimal.Decimal, pyarrow.decimal128(30, 2)
    for values, options in (
        (pyarrow.array([number(ID)], pyarrow.decimal128(20, 0)), {}),
        (pyarrow.array([number(2**53 + 1), number("1.5")], wide), {"types": {"a": torch.float64}}),
        (pyarrow.array([[1, ID]]), {"types": {"a": list[float]}}),
        (pyarrow.array([[[1, ID]]]), {"types": {"a": list[float]}}),
    ):
        with pytest.raises(DataError, match="that fits float"):
            list(read(values, **options))
    exact = pyarrow.array([number(2**53 + 1)], pyarrow.decimal128(20, 0))
    assert [item["a"] for item in read(exact, types={"a": int})] == [2**53 + 1]
    assert [item["a"] for item in read(pyarrow.array([number("9.99")], wide))] == [np.float32(9.99)]
    with pytest.raises(DataError, match="a list of numbers that fit float32"):
        list(Sources(tmp_path).json_lines([[float(ID), 1.0]]))


MIXED = {
    "first": [[ID, 1.5]],
    "last": [[1.5, ID]],
    "negative": [[-ID, 1.5]],
    "nested": [[[1.5, 2], [3, ID]]],
    "a late row": [[1.5, 2], [3, 4.5], [ID, 0.5]],
}


@pytest.mark.parametrize("source", ["json_lines", "pandas"])
@pytest.mark.parametrize("name", MIXED)
def test_integers_next_to_floats_in_lists_are_exact(source: str, name: str, tmp_path: Path) -> None:
    read, values = getattr(Sources(tmp_path), source), MIXED[name]
    with pytest.raises(DataError, match=r"fits? float32") as caught:
        list(read(values))
    place = f"line {len(values)}" if source == "json_lines" else f"row {len(values) - 1}"
    assert place in str(caught.value.where)
    exact = json.loads(json.dumps(values).replace(str(ID), str(ID - 1)))
    assert [item["a"].tolist() for item in read(exact)] == exact


def test_objects_of_pandas_are_exact(tmp_path: Path) -> None:
    def read(values: list[Any], **options: Any) -> Any:
        return DataframeDataset(pandas.DataFrame({"a": pandas.Series(values, dtype=object)}), **options)

    for values in ([ID, 1.5], [1.5, None, -ID], [1.5, np.int64(ID)]):
        with pytest.raises(DataError, match="that fits float32") as caught:
            read(values, missing="nan")
        assert f"row {max(values.index(v) for v in values if v not in (None, 1.5))}," in str(
            caught.value.where
        )
    for values in ([2**70, 1], [2**70, 1.5]):
        with pytest.raises(DataError, match="cannot be converted to one type"):
            read(values)
    assert [item["a"] for item in read([ID - 1, 1.5])] == [ID - 1, 1.5]
    assert [item["a"] for item in read([ID, 1.5], types={"a": torch.float64})] == [ID, 1.5]


@pytest.mark.parametrize("access", ["take", "item", "column"])
def test_what_hugging_face_rounds_is_refused(access: str) -> None:
    def read(values: Any) -> Any:
        data = HuggingFaceDataset(datasets.Dataset(pyarrow.table({"a": values})))
        if access == "item":
            return torch.stack([data[index]["a"] for index in range(len(data))])
        return data.column("a") if access == "column" else data.take(torch.arange(len(data))).a

    lost = [pyarrow.array([1.0, ID]), pyarrow.array([1, 2**63 + 1], pyarrow.uint64())]
    if access != "item":  # where datasets gives an integer of its own
        lost.append(pyarrow.array([ID, None]))
    for values in lost:
        with pytest.raises(DataError, match=r"fits (float32|int64)"):
            read(values)
    assert read(pyarrow.array([1.5, ID])).tolist() == [1.5, ID - 1]
    assert read(pyarrow.array([-5, 2**60 + 1])).tolist() == [-5, 2**60 + 1]


@pytest.mark.parametrize(
    ("column", "views"),
    [
        (pyarrow.array([-100] * 8), 0),
        (pyarrow.array([-100.5] * 8), 0),
        (pyarrow.array([1.5, *[float(ID)] * 7]), 1),
        (pyarrow.array([*range(8)], pyarrow.uint64()), 0),
    ],
    ids=["labels", "numbers", "large numbers", "unsigned"],
)
def test_hugging_face_is_read_once(column: Any, views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = HuggingFaceDataset(datasets.Dataset(pyarrow.table({"a": column})))
    calls = []
    select = datasets.Dataset.select_columns
    monkeypatch.setattr(
        datasets.Dataset, "select_columns", lambda self, names: calls.append(names) or select(self, names)
    )
    for index in range(8):
        assert data[index]["a"] == data.take(torch.tensor([index])).a
    assert len(calls) == views


PRICES = [round(1.01 * i, 2) for i in range(1, 61)]


@pytest.mark.parametrize("source", SOURCES)
def test_a_label_has_classes(source: str, tmp_path: Path) -> None:
    read = getattr(Sources(tmp_path), source)
    for values, words in (
        (PRICES, "numbers with a decimal point"),
        ([0.0, 1.0], "numbers with a decimal point"),
        ([str(price) for price in PRICES], "numbers with a decimal point"),
        (list(range(60)), "60 classes in 60 rows"),
        ([f"name {i % 26}" for i in range(50)], "26 classes in 50 rows"),
    ):
        with raises(
            DataError, words, "leave out label= to predict numbers", match="whose values are not classes"
        ):
            read(values, label="a")
    for values in (list(range(49)), [i % 25 for i in range(50)], ["b", "a"]):
        assert len(read(values, label="a").classes) == len(set(values))
    names = ["0.0", "1.0"] if source == "csv" else [0.0, 1.0]
    assert [int(item["a"]) for item in read([1.0, 0.0], label="a", categories={"a": names})] == [1, 0]


class Name(str):
    """A name whose comparisons are calls of Python, which are counted."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def count_calls(function: Callable[[], Any]) -> int:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet"])
def test_twice_the_columns_cost_twice_the_calls(kind: str, tmp_path: Path) -> None:
    def opening(size: int) -> Callable[[], Any]:
        path = tmp_path / f"{size}"
        names = [Name(f"c{i}") for i in range(size)]
        if kind == "csv":
            path.write_text("".join(",".join([row] * size) + "\n" for row in ("1", "", "2.5")))
            return lambda: CsvDataset(
                [path, path], header=names, missing="nan", columns={n: n for n in names}
            )[0]
        if kind == "json_lines":
            path.write_text(json.dumps(dict.fromkeys(names, 1)))
            return lambda: JsonLinesDataset(path)[0]
        pyarrow.parquet.write_table(pyarrow.table({str(name): [1, None] for name in names}), path)
        return lambda: ParquetDataset(path, missing="nan")[0]

    opening(10)()  # imports
    assert count_calls(opening(300)) <= 2.2 * count_calls(opening(150))
