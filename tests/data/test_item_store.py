"""Items cached on disk: what comes back, who shares them, and files that are something else."""

import os
import pickle
import sqlite3
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt import data
from burnt.data import Batch
from burnt.errors import DataError

Pair = namedtuple("Pair", "x y")


def counted(items):
    calls = []
    return data.map(items, lambda item: calls.append(item) or item), calls


def equal(one, other):
    if isinstance(one, torch.Tensor | np.ndarray | np.generic):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert np.array_equal(torch.as_tensor(one).float(), torch.as_tensor(other).float(), equal_nan=True)
        assert tuple(one.shape) == tuple(other.shape)
    elif isinstance(one, Batch):
        equal(vars(one), vars(other))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert type(one) is type(other)
        for ours, theirs in zip(one, other, strict=True):
            equal(ours, theirs)
    else:
        assert (type(one), one) == (type(other), other)


def test_every_kind_of_item_comes_back(tmp_path):
    items = [
        {
            "x": torch.arange(6.0).view(2, 3).T,
            "half": torch.ones(2, dtype=torch.bfloat16),
            "n": torch.tensor(3),
        },
        (np.arange(4, dtype=np.uint16).reshape(2, 2), np.float32(1.5), np.bool_(True), np.int64(-1)),
        Batch(x=torch.zeros(0, 3), words=["a", "é"], deep=({"k": (1, None)}, [b"\0", True, 2.5])),
        torch.tensor([True, False]),
        None,
        {1: "number", "z": np.array(2.0), "c": torch.tensor([1 + 2j])},
    ]
    cached, calls = counted(items)
    cached = data.cache(cached, tmp_path / "items.db")
    for index in (2, 0, 5, 1, 3, 4, -1):
        cached[index]
    assert len(calls) == 6
    for dataset in (
        cached,
        data.cache(counted(items)[0], tmp_path / "items.db"),
        data.cache(items, tmp_path / "items.db"),
    ):
        for index, item in enumerate(items):
            if isinstance(item, dict) and "c" in item:
                assert dataset[index]["c"].tolist() == [1 + 2j]
            else:
                equal(dataset[index], item)
    assert len(calls) == 6
    cached[0]["x"].add_(1)  # what was read is a copy
    equal(cached[0], items[0])


plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(values, min_size=1, max_size=4))
def test_nested_items_come_back(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("store") / "items.db"
    list(data.cache(items, path))
    again = data.cache([object()] * len(items), path)  # of which none is computed
    for item, found in zip(items, again, strict=True):
        equal(found, item)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_processes_share_what_one_has_computed(tmp_path):
    cached, calls = counted(list(range(200)))
    cached = data.cache(cached, tmp_path / "items.db")
    assert cached[7] == 7
    children = []
    for _ in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            os._exit(list(cached) != list(range(200)))
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert list(cached) == list(range(200))
    assert calls == [7]
    assert pickle.loads(pickle.dumps(data.cache(range(200), tmp_path / "items.db")))[8] == 8


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "items.db"
    data.cache(range(3), path, key="small")
    for length, key in ((4, "small"), (3, "large")):
        with pytest.raises(DataError) as caught:
            data.cache(range(length), path, key=key)
        assert str(caught.value) == (
            f"the cache is of another dataset\n  in        {path}\n  expected  {length} items, key '{key}'\n"
            "  found     3 items, key 'small'\n  hint      delete the file, or choose another path"
        )
    other = tmp_path / "other.db"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE runs (a)")
    database.close()
    with pytest.raises(DataError, match="the file is not a cache of items"):
        data.cache(range(3), other)
    (tmp_path / "text.db").write_text("no database, but long enough to be one " * 20)
    with pytest.raises(DataError, match="file is not a database"):
        data.cache(range(3), tmp_path / "text.db")
    with pytest.raises(DataError, match="unable to open database file"):
        data.cache(range(3), tmp_path / "none" / "items.db")


@pytest.mark.parametrize(
    "item", [object(), Pair(1, 2), {"x": [range(3)]}, np.array(["text"]), 2**70, "\ud800"]
)
def test_items_that_cannot_be_stored(tmp_path, item):
    with pytest.raises(DataError, match="an item cannot be cached on disk"):
        data.cache([item], tmp_path / "items.db")[0]


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\xc7\x01\x01\xc0", b"\xd4\x09\xc0"])
def test_a_damaged_item_is_named(tmp_path, content):
    path = tmp_path / "items.db"
    assert list(data.cache(range(2), path)) == [0, 1]
    database = sqlite3.connect(path)
    database.execute("UPDATE items SET item = ? WHERE number = 1", (content,))
    database.commit()
    database.close()
    damaged = data.cache(range(2), path)
    assert damaged[0] == 0
    with pytest.raises(DataError, match="an item of the cache is damaged") as caught:
        damaged[1]
    assert caught.value.where == f"{path}, item 1"
