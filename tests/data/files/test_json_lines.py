"""JSON lines: rows parsed when they are used, and faults with their file and line."""

import json
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt.data import JsonLinesDataset, Loader
from burnt.errors import DataError

POSTS = [
    {
        "text": "hello",
        "stars": 3,
        "score": 0.5,
        "ok": True,
        "ids": [3, 1],
        "meta": {"lang": "en"},
        "kind": "b",
    },
    {"text": "bye", "stars": 5, "score": 1, "ok": False, "ids": [2], "meta": {"lang": "de"}, "kind": "a"},
]


@pytest.fixture
def write(tmp_path):
    def write(rows, name="posts.jsonl", end="\n"):
        path = tmp_path / name
        text = rows if isinstance(rows, str | bytes) else end.join(map(json.dumps, rows)) + end
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problem(*arguments, **options) -> str:
    with pytest.raises(DataError) as caught:
        list(JsonLinesDataset(*arguments, **options))
    return str(caught.value)


def test_cells_by_their_type(write):
    posts = JsonLinesDataset(write(POSTS))
    row = posts[1]
    assert [type(row[name]) for name in ("stars", "score", "ok")] == [np.int64, np.float32, np.bool_]
    assert (row["text"], row["stars"], row["score"], row["ok"]) == ("bye", 5, 1, False)
    assert torch.equal(row["ids"], torch.tensor([2]))
    assert row["meta"] == {"lang": "de"}
    assert posts[-2]["text"] == "hello"
    assert len(list(posts)) == 2
    assert not hasattr(posts, "classes")


def test_options(write):
    path = write(POSTS)
    posts = JsonLinesDataset(path, columns={"x": ["stars", "score"], "words": "ids"}, label="kind")
    assert posts[0]["x"].tolist() == [3, 0.5]
    assert (posts.classes, posts[0]["kind"], posts[1]["kind"]) == (["a", "b"], 1, 0)
    assert posts.categories == {"kind": ["a", "b"]}
    assert posts.column("x").tolist() == [[3, 0.5], [5, 1]]
    with pytest.raises(DataError, match="there is no such column"):
        posts.column("stars")
    types = {"stars": torch.float64, "ids": list[float], "meta": object, "ok": object, "kind": str}
    row = JsonLinesDataset(path, types=types)[0]
    assert (type(row["stars"]), row["ids"].dtype, row["ok"]) == (np.float64, torch.float32, True)
    given = JsonLinesDataset(path, columns=["text"], label="kind", categories={"kind": ["b", "a"]})
    assert (given[0], given.classes) == ({"text": "hello", "kind": 0}, ["b", "a"])


def test_a_loader_collates_rows(write):
    (batch,) = Loader(JsonLinesDataset(write(POSTS), columns=["text", "score", "stars"]), 2)
    assert batch.text == ["hello", "bye"]
    assert batch.score.dtype == torch.float32
    assert batch.stars.tolist() == [3, 5]
    with pytest.raises(DataError, match="pad them, or pass your own batcher="):
        list(Loader(JsonLinesDataset(write(POSTS), columns=["ids"]), 2))


def test_missing_values(write):
    path = write([{"a": 1, "b": "x"}, {"a": None}, {"b": "y"}])
    assert "posts.jsonl, line 2, column 'a'\n  expected  an integer\n  found     nothing" in problem(path)
    filled = JsonLinesDataset(path, missing={"a": 7, "b": ""})
    assert list(filled) == [{"a": 1, "b": "x"}, {"a": 7, "b": ""}, {"a": 7, "b": "y"}]
    nan = JsonLinesDataset(path, columns=["a"], missing="nan")
    assert [type(row["a"]) for row in nan] == [np.float32] * 3
    assert np.isnan(nan[1]["a"])
    assert "burnt.data.filter drops items" in problem(path, missing="drop")
    assert JsonLinesDataset(path, columns=["b"], types={"b": object})[1] == {"b": None}
    assert "column 'b'\n  expected  a category\n  found     nothing" in problem(
        path, columns=["b"], label="b"
    )


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ('{"a": 2', {}, "line 3\n  expected  a JSON object\n  found     Input data was truncated"),
        ("[1]", {}, "line 3\n  expected  a JSON object\n  found     [1]"),
        (b'{"a": "\xe9"}', {}, "line 3\n  expected  text in UTF-8\n  found     b'{\"a\": \"\\xe9\"}'"),
        ('{"a": 2.5}', {}, "3, column 'a'\n  expected  an integer, as in the first rows\n  found     2.5\n"
         "  hint      types={'a': float} declares the type"),
        ('{"a": "x"}', {}, "found     x\n  hint      types={'a': object} declares the type"),
        ('{"a": true}', {}, "expected  an integer, as in the first rows\n  found     True"),
        ('{"a": "x"}', {"types": {"a": float}}, "column 'a'\n  expected  a number\n  found     x"),
        ('{"a": 1e39}', {"types": {"a": float}}, "expected  a number that fits float32\n  found     1e+39"),
        ('{"a": 1' + 400 * "0" + "}", {"types": {"a": float}}, "expected  a number that fits float32\n"),
        ('{"a": 1' + 30 * "0" + "}", {}, "expected  an integer that fits int64, as in the first rows\n"),
        ('{"a": 300}', {"types": {"a": torch.uint8}}, "an integer that fits uint8\n  found     300"),
        ('{"a": ' + 5000 * "[" + 5000 * "]" + "}", {}, "line 3\n  expected  JSON of less depth"),
        ('{"a": 9}', {"types": {"a": str}}, "line 1, column 'a'\n  expected  text\n  found     1"),
        ('{"a": 9}', {"types": {"a": bool}}, "line 3, column 'a'\n  expected  true or false\n  found     9"),
        ('{"a": 2}', {"categories": {"a": [1, 3]}}, "3, column 'a'\n  expected  one of 1, 3\n  found     2"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_are_named(write, monkeypatch, row, options, message):
    monkeypatch.setattr("burnt.data.files.rows._SAMPLED", 1)  # so that types are inferred from the first row
    path = write(b'{"a": 1}\n\n' + (row if isinstance(row, bytes) else row.encode()) + b"\n")
    found = problem(path, **options)
    assert message in found
    assert "posts.jsonl, line" in found


@pytest.mark.parametrize(
    ("value", "types"),
    [([1, 2.5], {"a": list[int]}), ([[1], [2, 3]], None), (["x"], None), (3, None), ([None], None)],
)
def test_lists_that_do_not_fit(write, value, types):
    path = write([{"a": [1]}] * 1000 + [{"a": value}])
    assert "line 1001, column 'a'\n  expected  a list of integers" in problem(path, types=types)


def test_keys_that_the_first_rows_lack_have_declared_types(write):
    path = write([{"a": 1}] * 1000 + [{"a": 2, "late": "x"}])
    rows = JsonLinesDataset(path, types={"late": str}, missing={"late": ""})
    assert [rows[999], rows[1000]] == [{"a": 1, "late": ""}, {"a": 2, "late": "x"}]
    assert "columns= names a column that does not exist" in problem(path, columns=["late"])


def test_files_that_are_none_of_json_lines(write):
    assert "a JSON array is not a file of JSON lines" in problem(write("[\n{}\n]\n"))
    assert "there are no rows" in problem(write("\n\r\n\n"))
    assert "decompress it" in problem(write(b"\x1f\x8b\x08"))
    assert "column 'meta'\n  expected  text or a number, as a category" in problem(write(POSTS), label="meta")
    message = problem(write(POSTS), columns={"x": ["stars", "kind"]})
    assert "the entry 'x' stacks a column that is not numeric\n  in        column 'kind'" in message


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=9),
    st.lists(st.sampled_from(["\n", "\r\n", "\n\n", "\n\r\n\n"]), min_size=9, max_size=9),
    st.booleans(),
    st.booleans(),
)
def test_every_layout_of_lines_gives_the_rows_and_their_lines(
    tmp_path_factory, values, ends, is_ended, has_mark
):
    text, lines = "\r\n", []
    for value, end in zip(values, ends, strict=False):
        lines.append(text.count("\n") + 1)
        text += f'{{"a": {value}}}{end}'
    text = text if is_ended else text.rstrip()
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    path.write_text(text, encoding="utf-8-sig" if has_mark else "utf-8", newline="")
    dataset = JsonLinesDataset(path)
    assert [int(row["a"]) for row in dataset] == values
    assert [int(dataset.place(i).rpartition(" ")[2]) for i in range(len(values))] == lines


def test_shards_blocks_threads_processes_and_pickles(write, tmp_path, monkeypatch):
    monkeypatch.setattr("burnt.data.files.json_lines._BLOCK", 64)
    write([{"a": i} for i in range(40)], "part-0.jsonl")
    write([{"a": i} for i in range(40, 50)], "part-1.jsonl", "\r\n")
    rows = JsonLinesDataset(tmp_path / "part-*.jsonl")
    assert [int(row["a"]) for row in rows] == list(range(50))
    assert rows.place(45).endswith("part-1.jsonl, line 6")
    copy = pickle.loads(pickle.dumps(rows))
    assert (copy[41], copy.place(39)[-7:]) == ({"a": 41}, "line 40")
    wrong = []

    def read(dataset=rows):
        wrong.extend(i for _ in range(20) for i in range(50) if dataset[i]["a"] != i)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    if hasattr(os, "fork"):
        children = []
        for _ in range(2):  # they share the parent's files unless they open their own
            children.append(os.fork())
            if children[-1] == 0:
                read()
                os._exit(len(wrong))
        read()
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        assert not wrong


def test_numbers_in_lists_fit_their_type(write):
    rows = JsonLinesDataset(write('{"a": [1.5]}\n{"a": [1e300]}\n'))
    with pytest.raises(DataError, match=r"line 2, column 'a'\n  expected  a list of numbers"):
        rows[1]


def test_a_file_that_changes(write):
    path = write(POSTS)
    posts = JsonLinesDataset(path)
    os.truncate(path, 20)
    with pytest.raises(DataError, match="the file was changed after it was opened"):
        posts[1]
    posts = JsonLinesDataset(write('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'))
    write('{"a": 100, "b": "x"}\n{"a": 2, "b": "y"}\n')
    with pytest.raises(DataError, match="the file was changed after it was opened"):
        posts[1]
