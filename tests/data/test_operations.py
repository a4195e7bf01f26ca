"""Operations on datasets, next to what torch, NumPy, pandas and scikit-learn give."""

import math
import pickle
import random

import datasets
import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedShuffleSplit
from torch.utils.data import ConcatDataset, random_split

from burnt import data
from burnt.data import Batch, CsvDataset, Loader, TensorDataset
from burnt.errors import DataError


def square(number):
    return number**2


def is_even(number):
    return number % 2 == 0


def shout(row):
    return {**row, "a": row["a"] / (row["a"] - 2)}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,kind\n" + "".join(f"{i},{'xy'[i % 2]}\n" for i in range(10)))
    return CsvDataset(path, label="kind")


def problem(function, *arguments, **options) -> str:
    with pytest.raises(DataError) as caught:
        function(*arguments, **options)
    return str(caught.value)


OPERATIONS = [
    lambda ds: data.filter(ds, lambda item: True),
    lambda ds: data.select(ds, [3, 3, -1, 0]),
    lambda ds: data.select(data.shuffle(ds, seed=3), slice(2, 8)),
    lambda ds: data.split(ds, 0.5, seed=1)[1],
    lambda ds: data.chunks(ds, 3)[1],
    lambda ds: data.sample(ds, 20, replacement=True),
    lambda ds: data.concat(ds, data.select(ds, range(3)), ds),
    lambda ds: data.windows(ds, 3, stride=2),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_take_is_collating_items(operation, rows):
    changed = operation(rows)
    indices = torch.randperm(len(changed), generator=torch.Generator().manual_seed(0))
    batch, items = changed.take(indices), data.collate([changed[index] for index in indices.tolist()])
    assert torch.equal(batch.a, items.a)
    assert torch.equal(batch.kind, items.kind)
    assert changed.classes == ["x", "y"]
    again = pickle.loads(pickle.dumps(changed))
    assert torch.equal(again.take(indices).a, batch.a)
    assert isinstance(changed, data.Dataset)
    assert len(list(changed)) == len(changed)
    with pytest.raises(IndexError):
        changed[len(changed)]
    plain = operation(range(10))
    assert not hasattr(plain, "take")
    assert not hasattr(plain, "classes")
    assert [torch.as_tensor(item).tolist() for item in plain] == [item["a"].tolist() if isinstance(item, dict)
        else item.a.tolist() for item in changed]  # fmt: skip


def test_map_and_filter():
    mapped = data.map(data.filter(range(7), is_even), square)
    assert list(mapped) == [0, 4, 16, 36]
    assert list(pickle.loads(pickle.dumps(mapped))) == [0, 4, 16, 36]
    assert not hasattr(data.map(TensorDataset(x=torch.zeros(3)), square), "take")
    assert len(data.filter(range(7), lambda number: number > 9)) == 0
    assert problem(data.map, square, range(3)).endswith(
        "hint      the dataset comes first: data.map(dataset, function)"
    )
    assert "data.filter needs a function of an item\n  found     range" in problem(
        data.filter, is_even, range(3)
    )


def test_an_error_names_the_row_that_it_is_about(rows, tmp_path):
    selected = data.select(rows, [7, 2])
    with pytest.raises(ZeroDivisionError) as caught:
        data.map(data.map(selected, lambda row: {"a": int(row["a"])}), shout)[1]
    assert [note[-16:] for note in caught.value.__notes__] == ["rows.csv, line 4"]
    assert caught.value.__notes__[0].startswith("while mapping ")
    with pytest.raises(TypeError) as caught:
        data.filter(["a", 1], len)
    assert caught.value.__notes__ == ["while filtering item 1"]
    mapped = data.map(rows, lambda row: row["b"])
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    with pytest.raises(KeyError) as caught:
        mapped[3]
    assert caught.value.__notes__ == ["while mapping item 3"]
    (tmp_path / "moved.csv").rename(tmp_path / "rows.csv")
    both = data.concat(data.select(rows, [0]), selected)
    assert both.place(2).endswith("rows.csv, line 4")
    assert data.windows(both, 2).place(1).endswith("rows.csv, line 9")


@given(st.lists(st.integers(-8, 7), max_size=10), st.lists(st.integers(0, 9), max_size=5))
def test_selections_are_numpys_and_nest_without_cost(first, second):
    values = np.arange(8) * 10
    selected = data.select(values.tolist(), first)
    assert list(selected) == values[first].tolist() if first else not len(selected)
    second = [index for index in second if index < len(first)]
    nested = data.select(selected, torch.tensor(second, dtype=torch.int64))
    assert nested.dataset == values.tolist()
    assert list(nested) == [values[first[index]] for index in second]


def test_masks_and_ranges_and_what_is_none(rows):
    assert list(data.select("abcd", [True, False, False, True])) == ["a", "d"]
    assert list(data.select("abcd", range(1, 3))) == ["b", "c"]
    assert [row["a"] for row in data.select(rows, rows.column("a") > 7)] == [8, 9]
    assert "expected  below 4, the number of items\n  found     4" in problem(data.select, "abcd", [0, 4])
    assert "found     -5" in problem(data.select, "abcd", [-5])
    assert "a mask needs the length of its dataset\n  expected  4\n  found     1" in problem(
        data.select, "abcd", [True]
    )
    assert "found     float64 of shape [1]" in problem(data.select, "abcd", [0.5])
    assert "found     int64 of shape [1, 1]" in problem(data.select, "abcd", [[1]])


# split


@given(st.integers(2, 60), st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(-(2**40), 2**70))
def test_parts_are_disjoint_and_all_of_the_dataset(length, shares, seed):
    sizes = [share / sum(shares) for share in shares]
    if min(sizes) * length < 1:
        return
    parts = data.split(range(length), *sizes, seed=seed)
    assert sorted(item for part in parts for item in part) == list(range(length))
    for part, size in zip(parts, sizes, strict=True):
        assert abs(len(part) - size * length) < 1
    again = data.split(range(length), *sizes, seed=seed)
    assert [list(part) for part in again] == [list(part) for part in parts]


def test_sizes_of_a_split():
    assert [len(part) for part in data.split(range(1000), 0.7, 0.2, 0.1)] == [700, 200, 100]
    assert [len(part) for part in random_split(range(1000), [0.7, 0.2, 0.1])] == [700, 200, 100]
    assert [len(part) for part in data.split(range(10), 3)] == [3, 7]
    assert [len(part) for part in data.split(range(10), 3, 3, 4)] == [3, 3, 4]
    ordered = data.split(range(10), 0.8, shuffle=False)
    assert [list(part) for part in ordered] == [[*range(8)], [8, 9]]
    for sizes, found in (
        ((0.5, 0.2), "do not add up\n  expected  1.0\n  found     0.5, 0.2: 0.7"),
        ((3, 3), "do not add up\n  expected  10\n  found     3, 3: 6"),
        ((0.5, 3), "a split needs sizes"),
        ((), "found     none"),
        ((-1,), "found     -1"),
        (([0.5, 0.5],), "a split needs sizes\n  expected  fractions that add up to 1, or numbers"),
        ((1.0,), "would be empty\n  expected  an item or more in each part\n  found     1.0 of 10 items"),
        ((10,), "would be empty"),
        ((11,), "would be empty"),
        ((0.01,), "would be empty"),
    ):
        assert found in problem(data.split, range(10), *sizes)


@pytest.mark.parametrize("seed", range(5))
def test_stratified_parts_have_the_proportions_of_scikit_learn(seed):
    labels = np.random.default_rng(seed).choice(4, 203, p=[0.6, 0.3, 0.07, 0.03])
    parts = data.split(range(203), 0.7, 0.2, 0.1, seed=seed, stratify=labels)
    assert sorted(item for part in parts for item in part) == list(range(203))
    for part, share in zip(parts, (0.7, 0.2, 0.1), strict=True):
        counts = np.bincount(labels[list(part)], minlength=4)
        assert (np.abs(counts - np.bincount(labels) * share) < 1.5).all()
    ours, _ = data.split(range(203), 150, seed=seed, stratify=torch.from_numpy(labels))
    theirs, _ = next(StratifiedShuffleSplit(1, train_size=150, random_state=seed).split(labels, labels))
    difference = np.bincount(labels[list(ours)]) - np.bincount(labels[theirs])
    assert np.abs(difference).max() <= 1
    assert len(set(labels[list(ours)][:20])) > 1  # not one label after the other


def test_a_column_of_a_part(rows):
    train, valid = data.split(rows, 0.7)
    assert train.column("kind").tolist() == [row["kind"] for row in train]
    assert sorted([*train.column("a").tolist(), *valid.column("a").tolist()]) == list(range(10))
    assert not hasattr(data.select([1, 2], [0]), "column")


def test_stratify_by_a_column(rows):
    for dataset in (
        rows,
        data.select(rows, slice(0, 8)),
        data.map(rows, dict),
        TensorDataset(kind=torch.arange(8) % 2),
    ):
        first, _ = data.split(dataset, 0.5, stratify="kind")
        kinds = [item["kind"] if isinstance(item, dict) else item.kind for item in first]
        assert abs(sum(kinds) * 2 - len(first)) <= 1
    assert len(data.split(["a", "b", "a", "b"], 2, stratify=["a", "b", "a", "b"])[0]) == 2
    assert "there is no such column\n  expected  one of a, kind" in problem(
        data.split, rows, 0.5, stratify="label"
    )
    text = problem(data.split, range(4), 0.5, stratify="x")
    assert "an item has no field of this name\n" in text
    assert "found     'x', in items of type int" in text
    assert "expected  [10]\n  found     [2]" in problem(data.split, rows, 0.5, stratify=[0, 1])
    assert "a split by labels is shuffled" in problem(data.split, rows, 0.5, stratify="kind", shuffle=False)


# random ones


def test_they_depend_on_their_seed_alone():
    def draw(seed):
        parts = [data.shuffle(range(50), seed), *data.split(range(50), 0.5, seed=seed)]
        parts += [
            data.sample(range(50), 20, seed=seed),
            data.sample(range(50), 20, weights=[1] * 50, seed=seed),
        ]
        return [list(part) for part in parts]

    torch.manual_seed(0)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    first = draw(3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    np.random.seed(5)
    torch.manual_seed(9)
    assert draw(3) == first
    assert all(ours != others for ours, others in zip(first, draw(4), strict=True))
    assert first[0] != Loader(range(50), 50, shuffle=True, seed=3).order(0).tolist()


def test_sampling_is_by_weight():
    weights = torch.tensor([1.0, 2, 3, 4, 0])
    drawn = list(data.sample(range(5), 40_000, weights=weights, replacement=True))
    shares = np.bincount(drawn, minlength=5) / 40_000
    assert np.allclose(shares, weights / 10, atol=0.01)
    firsts, seconds = [], []
    for seed in range(4000):
        first, second = data.sample(range(5), 2, weights=weights, seed=seed)
        firsts.append(first)
        seconds.append((first, second))
    assert np.allclose(np.bincount(firsts, minlength=5) / 4000, weights / 10, atol=0.03)
    after_3 = np.bincount([second for first, second in seconds if first == 3], minlength=5)
    assert np.allclose(after_3 / after_3.sum(), torch.tensor([1, 2, 3, 0, 0]) / 6, atol=0.05)
    assert sorted(data.sample(range(5), 4, weights=weights)) == [0, 1, 2, 3]
    assert sorted(data.sample(range(5), 1.0)) == [0, 1, 2, 3, 4]
    assert len(data.sample(range(5), 2.0, replacement=True)) == 10
    assert len(data.sample(range(5), np.int64(2))) == len(data.sample(range(5), np.float32(0.4))) == 2


def test_a_sample_that_cannot_be_drawn():
    assert "expected  at most 5 items\n  found     6\n  hint      replacement=True" in problem(
        data.sample, range(5), 6
    )
    message = problem(data.sample, range(5), 2, weights=[0, 0, 1, 0, 0])
    assert "expected  at most 1 item of positive weight\n  found     2" in message
    assert "found     1" in problem(data.sample, range(2), 1, weights=[0, 0], replacement=True)
    for size in (0, -1, 0.01, math.nan, "2"):
        assert f"found     size={size}" in problem(data.sample, range(5), size)
    for weights, found in (([1], "shape [1]"), ([-1, 1], "from -1.0 to 1.0"), ([math.nan, 1], "nan")):
        assert found in problem(data.sample, range(2), 1, weights=weights)


def test_chunks_are_numpys():
    for count in range(1, 8):
        expected = [part.tolist() for part in np.array_split(np.arange(7), count)]
        assert [list(part) for part in data.chunks(range(7), count)] == expected
    assert "expected  1 to 7, the number of items\n  found     8" in problem(data.chunks, range(7), 8)
    assert "found     0" in problem(data.chunks, range(7), 0)


# windows


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 10))
def test_windows_are_those_of_unfold(length, size, stride):
    tokens = torch.arange(length) * 3
    if length < size:
        assert f"expected  at least {size} items\n  found     {length}" in problem(
            data.windows, tokens, size, stride=stride
        )
        (short,) = data.windows(tokens, size, stride=stride, drop_last=False)
        assert torch.equal(short, tokens)
        return
    expected = tokens.unfold(0, size, stride)
    for source in (tokens, tokens.numpy().astype(np.uint16), TensorDataset(t=tokens), tokens.tolist()):
        made = data.windows(source, size, stride=stride)
        items = torch.stack([window.t if isinstance(window, Batch) else window for window in made])
        assert items.dtype == torch.int64
        assert torch.equal(items, expected)
        if hasattr(made, "take"):
            order = torch.arange(len(made)).flip(0)
            taken = made.take(order)
            assert torch.equal(taken.t if isinstance(taken, Batch) else taken, expected.flip(0))
        ragged = data.windows(source, size, stride=stride, drop_last=False)
        assert len(ragged) - len(made) in (0, 1)
        last = ragged[-1].t if isinstance(source, TensorDataset) else ragged[-1]
        assert last[-1] == tokens[-1] or len(ragged) * stride >= length
        if len(ragged) > len(made):
            assert last.tolist() == tokens[len(made) * stride :].tolist()
            assert not hasattr(ragged, "take")


def test_windows_of_rows_and_of_mapped_files(rows, tmp_path):
    pairs = data.windows(torch.arange(12).view(6, 2), 2, stride=4)
    assert pairs.take(torch.tensor([1])).tolist() == [[[8, 9], [10, 11]]]
    (batch,) = Loader(data.windows(rows, 4, stride=3), 8)
    assert batch.a.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", np.uint16, "r")
    (batch,) = Loader(data.windows(tokens, 5, stride=4), 8)
    assert batch.tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    text = data.windows(TensorDataset(x=torch.zeros(3)), 2)
    assert text[0].x.shape == (2,)
    assert "expected  at least 1\n  found     0, 1" in problem(data.windows, range(3), 0)
    assert "found     1, 0" in problem(data.windows, range(3), 1, stride=0)


# concat, cache


def test_concat_is_torchs(rows):
    parts = [[1, 2], [], [3]]
    assert list(data.concat(*parts)) == list(ConcatDataset(parts)) == [1, 2, 3]
    assert data.concat(*parts)[-2] == 2
    tensors = data.concat(torch.arange(3), torch.arange(5) + 10)
    assert tensors.take(torch.tensor([7, 0, 3, 2])).tolist() == [14, 0, 10, 2]
    assert "there is nothing to concatenate" in problem(data.concat)


def test_concat_refuses_other_classes(rows, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,kind\n1,y\n2,z\n")
    other = CsvDataset(path, label="kind")
    message = problem(data.concat, rows, other)
    assert "expected  ['x', 'y']\n  found     ['y', 'z']\n  hint      categories= of a dataset" in message
    message = problem(data.concat, CsvDataset(path, categories=["a"]), CsvDataset(path, categories=["kind"]))
    assert "the datasets have different categories" in message
    joined = data.concat(data.map(rows, dict), [1])
    assert joined.classes == ["x", "y"]
    batches = data.concat(TensorDataset(x=torch.zeros(1)), InTuples())
    with pytest.raises(DataError, match="batches of several datasets cannot be joined"):
        data.concat(InTuples(), TensorDataset(x=torch.zeros(1))).take(torch.tensor([0, 1]))
    assert len(batches) == 2


class InTuples:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return (torch.zeros(()),)

    def take(self, indices):
        return (torch.zeros(len(indices)),)


def test_a_cache_reads_each_item_once():
    calls = []
    cached = data.cache(data.map(range(5), lambda number: calls.append(number) or number * 2))
    assert [cached[index] for index in (3, 1, 3, -2)] == [6, 2, 6, 6]
    assert calls == [3, 1]
    assert list(cached) == [0, 2, 4, 6, 8]
    assert pickle.loads(pickle.dumps(data.cache([1, 2])))[1] == 2


# what users have in hand


def test_dataframes_tensors_and_hugging_face_as_they_are():
    frame = pandas.DataFrame({"a": [1, 2, 3, 4]})
    (batch,) = Loader(data.split(frame, 0.5)[0], 2)
    assert len(batch.a) == 2
    mapped = data.map(datasets.Dataset.from_dict({"a": [1, 2, 3]}), lambda row: row["a"] * 2)
    assert [int(item) for item in mapped] == [2, 4, 6]
    images = data.shuffle(np.zeros((4, 2, 3), np.float32))
    assert images.take(torch.tensor([0, 1])).shape == (2, 2, 3)
    assert "expected  a length and items by index\n  found     generator\n  hint      list(...)" in problem(
        data.shuffle, (number for number in range(3))
    )
    assert "found     int" in problem(data.filter, 3, is_even)


KEEPING = {
    "map": lambda dataset: data.map(dataset, dict),
    "filter": lambda dataset: data.filter(dataset, lambda row: True),
    "select": lambda dataset: data.select(dataset, slice(None)),
    "split": lambda dataset: data.split(dataset, 0.5, shuffle=False)[0],
    "chunks": lambda dataset: data.chunks(dataset, 1)[0],
    "shuffle": data.shuffle,
    "sample": lambda dataset: data.sample(dataset, 3),
    "concat": lambda dataset: data.concat(dataset, dataset),
    "cache": data.cache,
    "map of a cache of a concat": lambda d: data.map(data.cache(data.concat(d, d)), dict),
}


@pytest.mark.parametrize("operation", KEEPING)
def test_classes_categories_and_columns_are_kept(rows, operation):
    result = KEEPING[operation](rows)
    assert (result.classes, result.categories) == (rows.classes, rows.categories)
    for name in ("a", "kind"):
        column = result.column(name)
        assert isinstance(column, torch.Tensor)
        assert column.tolist() == [row[name] for row in result]
    assert not hasattr(KEEPING[operation]([{}, {}, {}]), "column")


def test_a_column_after_map_is_of_the_mapped_items(rows):
    """Class weights of labels that a map has changed are of the changed ones, not of the file's."""
    flipped = data.map(rows, lambda row: {"kind": 1 - row["kind"], "name": f"row {row['a']:.0f}"})
    assert flipped.column("kind").tolist() == [1 - kind for kind in rows.column("kind").tolist()]
    assert flipped.column("name")[:2] == ["row 0", "row 1"]
    of_batches = data.map(rows, lambda row: Batch(**row))
    assert of_batches.column("a").tolist() == rows.column("a").tolist()
    ragged = data.map(rows, lambda row: {"x": torch.zeros(int(row["a"]))})
    assert [len(x) for x in ragged.column("x")] == list(range(10))
    train = data.split(flipped, 0.5, stratify="kind")[0]
    assert sum(train.column("kind").tolist()) in (2, 3)


@pytest.mark.parametrize(
    ("function", "name", "words"),
    [
        (
            lambda row: {"kinds": 1},
            "kind",
            ["rows.csv, line 2", "expected  kinds", "found     'kind'", "mean 'kinds'?"],
        ),
        (lambda row: {"other": 1}, "kind", ["take the column of the dataset before it"]),
        (lambda row: row["a"], "kind", ["items with named fields", "'kind', in items of type int64"]),
    ],
)
def test_a_column_that_map_took_away_is_refused(rows, function, name, words):
    text = problem(data.map(data.select(rows, [0]), dict).column, "kynd")
    assert "mean 'kind'?" in text
    text = problem(data.map(rows, function).column, name)
    assert text.startswith("an item has no field of this name\n")
    for word in words:
        assert word in text
