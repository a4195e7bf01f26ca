"""Samplers, buckets, packing and padding: what an epoch has, as a function of (seed, epoch)."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt import kernels, nn
from burnt.data import (
    Batch,
    Buckets,
    ClassBalanced,
    Loader,
    Pack,
    Pad,
    SubsetSampler,
    TensorDataset,
    TorchSampler,
    WeightedSampler,
    collate,
    segment_mask,
    segment_starts,
)
from burnt.errors import DataError
from tests.messages import raises


def flat(batches):
    return [item for batch in batches for item in batch.tolist()]


# samplers


SAMPLERS = [
    lambda seed: SubsetSampler(range(0, 100, 2), seed=seed),
    lambda seed: WeightedSampler(torch.arange(100.0), seed=seed),
    lambda seed: WeightedSampler(torch.arange(100.0), 50, replacement=False, seed=seed),
    lambda seed: ClassBalanced([0] * 90 + [1] * 10, seed=seed),
    lambda seed: TorchSampler(torch_data.RandomSampler(range(100)), seed),
    lambda seed: TorchSampler(torch_data.WeightedRandomSampler(torch.arange(100.0), 30), seed),
    lambda seed: TorchSampler(torch_data.SubsetRandomSampler(range(50)), seed),
]


@pytest.mark.parametrize("make", SAMPLERS)
def test_samplers_are_functions_of_seed_and_epoch(make):
    torch.manual_seed(0)
    first = {(seed, epoch): make(seed).indices(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)}
    assert len({tuple(indices) for indices in first.values()}) == 4
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    sampler = make(1)
    torch.manual_seed(9)
    for epoch in (1, 0, 1):
        assert sampler.indices(epoch).tolist() == first[1, epoch]
    torch.set_rng_state(states[0])
    sampler.indices(2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    indices = sampler.indices(0)
    assert (indices.dtype, len(indices)) == (torch.int64, len(sampler))
    assert json.loads(json.dumps(sampler.state())) == make(1).state() != make(0).state()


def test_samplers_of_the_global_states_are_made_deterministic():
    class Own:
        def __len__(self):
            return 3

        def __iter__(self):
            return iter([random.randrange(9), int(np.random.randint(9)), int(torch.randint(9, ()))])

    loader = Loader(range(9), 2, sampler=Own(), seed=4)
    assert flat(loader.epoch(0)) == flat(loader.epoch(0))
    assert len({tuple(flat(loader.epoch(epoch))) for epoch in range(9)}) > 5


def test_set_epoch_reaches_the_sampler_and_lists_are_an_order():
    distributed = torch_data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=3)
    loader = Loader(range(10), 2, sampler=distributed)
    expected = []
    for epoch in (4, 2):
        distributed.set_epoch(epoch)
        expected.append(list(distributed))
    assert [flat(loader.epoch(epoch)) for epoch in (4, 2)] == expected
    assert len(loader) == 3
    assert flat(Loader(range(10), 2, sampler=[7, 7, 1])) == [7, 7, 1]
    assert flat(Loader(range(10), 2, sampler=[7, 7, 1], drop_last=True)) == [7, 7]


def test_weights_are_probabilities():
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0])
    drawn = torch.bincount(WeightedSampler(weights, 40_000).indices(0), minlength=4) / 40_000
    assert torch.allclose(drawn, weights / 8, atol=0.01)
    firsts = torch.stack([WeightedSampler(weights, 1, replacement=False).indices(e) for e in range(4000)])
    assert torch.allclose(torch.bincount(firsts.flatten(), minlength=4) / 4000, weights / 8, atol=0.04)
    assert sorted(WeightedSampler(weights, replacement=False).indices(0).tolist()) == [1, 2, 3]
    labels = torch.tensor([5] * 8000 + [-1] * 1000 + [7] * 1000)
    counts = labels[ClassBalanced(labels).indices(0)].unique(return_counts=True)[1]
    assert torch.allclose(counts / 10_000, torch.tensor(1 / 3), atol=0.02)


def test_the_samples_stay_what_they_were():
    # A checkpoint of last year must be resumed in the order in which it was begun.
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert WeightedSampler(weights, seed=3).indices(2).tolist() == [5, 3, 2, 3, 3, 5]
    assert WeightedSampler(weights, replacement=False, seed=3).indices(2).tolist() == [1, 2, 3, 5, 4, 0]
    assert SubsetSampler([9, 8, 7, 6], seed=3).indices(2).tolist() == [7, 6, 8, 9]
    order = Loader(range(8), 2, buckets=[1, 1, 2, 2, 3, 3, 4, 4], shuffle=True, seed=3).order(2)
    assert order.tolist() == [5, 4, 6, 7, 2, 3, 0, 1]


# buckets


lengths_of_items = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@given(
    lengths_of_items,
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.fixed_dictionaries({}, optional={"count": st.integers(1, 9)})
    | st.fixed_dictionaries({"width": st.integers(1, 9)}),
)
@settings(max_examples=30)
def test_buckets_keep_every_item_once_and_similar_lengths_together(
    lengths, batch_size, shuffle, drop_last, how
):
    drop_last = drop_last and len(lengths) >= batch_size
    loader = Loader(
        range(len(lengths)), batch_size, shuffle=shuffle, drop_last=drop_last, buckets=Buckets(lengths, **how)
    )
    batches = [batch.tolist() for batch in loader.epoch(1)]
    assert len(batches) == len(loader)
    items = [item for batch in batches for item in batch]
    assert (
        len(set(items))
        == len(items)
        == len(lengths) // (batch_size if drop_last else 1) * (batch_size if drop_last else 1)
    )
    assert items == loader.order(1).tolist()
    assert [batch.tolist() for batch in loader.epoch(1, 1)] == batches[1:]
    # Sorted by their buckets, batches overlap at their ends alone.
    buckets = {item: loader.buckets._bucket[item] for item in items}
    ranges = sorted((min(buckets[i] for i in batch), max(buckets[i] for i in batch)) for batch in batches)
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))
    if not shuffle:
        assert [buckets[item] for item in items] == sorted(buckets.values())


@given(lengths_of_items, st.integers(1, 9), st.integers(30, 90))
@settings(max_examples=30)
def test_a_budget_of_tokens_holds_with_padding_in_every_epoch(lengths, batch_size, tokens):
    loader = Loader(
        range(len(lengths)), batch_size, shuffle=True, buckets=Buckets(lengths, count=4, tokens=tokens)
    )
    for epoch in range(2):
        batches = [batch.tolist() for batch in loader.epoch(epoch)]
        assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
        assert len(batches) == len(loader)
        assert all(len(b) <= batch_size and len(b) * max(lengths[i] for i in b) <= tokens for b in batches)


def test_buckets_leave_little_padding_and_change_every_epoch():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 512, (4000,), generator=generator)

    def padding(**settings):
        loader = Loader(range(4000), 32, shuffle=True, **settings)
        batches = [lengths[batch] for batch in loader.epoch(0)]
        return 1 - lengths.sum() / sum(len(batch) * batch.max() for batch in batches)

    assert padding() > 0.4
    assert padding(buckets=lengths) < 0.1
    loader = Loader(range(4000), 32, shuffle=True, buckets=lengths)
    first, second = ({tuple(sorted(b.tolist())) for b in loader.epoch(epoch)} for epoch in (0, 1))
    assert not first & second
    by_function = Loader(["a", "bbb", "cc"], 1, buckets=len)
    assert list(by_function) == [["a"], ["cc"], ["bbb"]]


# packing


def documents_of(lengths):
    start = 1
    documents = []
    for length in lengths:
        documents.append(list(range(start, start + length)))
        start += length
    return documents


@given(
    st.lists(st.integers(0, 25), min_size=1, max_size=20).filter(any),
    st.integers(1, 12), st.integers(1, 4), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_packing_keeps_every_token_once_with_its_next_token(lengths, length, batch_size, split, shuffle):
    documents = documents_of(lengths)
    loader = Loader(documents, batch_size, shuffle=shuffle, pack=Pack(length, split=split))
    batches = list(loader.epoch(3))
    assert len(batches) == len(loader)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(loader.epoch(3, 1), batches[1:], strict=True))
    rows = {name: torch.cat([vars(batch)[name] for batch in batches]) for name in batches[0]}
    real = rows["segments"] > 0
    assert sorted(rows["tokens"][real].tolist()) == list(range(1, sum(lengths) + 1))
    assert (rows["tokens"][~real] == 0).all()
    assert (rows["labels"][~real] == -100).all()
    following = {token: document[i + 1] for document in documents for i, token in enumerate(document[:-1])}
    for token, label in zip(rows["tokens"][real].tolist(), rows["labels"][real].tolist(), strict=True):
        assert label == following.get(token, -100)
    document_of = {token: number for number, document in enumerate(documents) for token in document}
    for tokens, positions, segments in zip(rows["tokens"], rows["positions"], rows["segments"], strict=True):
        for segment in range(1, int(segments.max()) + 1):
            piece = tokens[segments == segment].tolist()
            assert piece == list(range(piece[0], piece[0] + len(piece)))
            assert len({document_of[token] for token in piece}) == 1
            assert positions[segments == segment].tolist() == list(range(len(piece)))
    if split:
        assert real.flatten()[: sum(lengths)].all()  # only the last row has padding
        if not shuffle:
            assert rows["tokens"].flatten()[: sum(lengths)].tolist() == list(range(1, sum(lengths) + 1))
    else:
        whole = {n for n, document in enumerate(documents) if 0 < len(document) <= length}
        rows_of = {}
        for row, tokens in enumerate(rows["tokens"].tolist()):
            for token in filter(None, tokens):
                rows_of.setdefault(document_of[token], set()).add(row)
        assert all(len(rows_of[number]) == 1 for number in whole)


def test_best_fit_needs_few_rows():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 100, 500)
    loader = Loader(documents_of(lengths), 1, pack=Pack(128, lengths=lengths, split=False), shuffle=True)
    assert len(loader) <= 1.03 * np.ceil(lengths.sum() / 128)
    assert sorted(flat(b.tokens[b.segments > 0] for b in loader)) == list(range(1, lengths.sum() + 1))


def test_attention_over_packed_rows_is_that_over_the_documents():
    torch.manual_seed(0)
    documents = [torch.randint(1, 50, (n,)) for n in (5, 3, 7, 2, 6)]
    batch = next(iter(Loader(documents, 8, pack=Pack(8))))
    rows, length = batch.tokens.shape
    embedding = torch.randn(50, 16)
    layer = nn.MultiHeadAttention(16, 2)
    x = embedding[batch.tokens]
    mask = segment_mask(batch.segments)
    got = layer(x, x, x, attn_mask=mask)
    q = x.view(rows, length, 2, 8).transpose(1, 2)
    by_mask = kernels.attention(q, q, q, ~mask[:, None])
    one = x.view(1, rows * length, 2, 8).transpose(1, 2)
    starts = segment_starts(batch.segments)
    by_starts = kernels.attention(one, one, one, causal=True, q_starts=starts, k_starts=starts)
    torch.testing.assert_close(by_starts[0].view(2, rows, length, 8).transpose(0, 1), by_mask)
    ends = starts.tolist()
    for start, end in itertools.pairwise(ends):
        if batch.segments.flatten()[start] == 0:
            continue
        piece = x.view(1, -1, 16)[:, start:end]
        torch.testing.assert_close(
            got.view(1, -1, 16)[:, start:end], layer(piece, piece, piece, is_causal=True)
        )


def test_packed_fields_are_packed_alike_and_own_labels_are_kept():
    items = [{"ids": [1, 2, 3], "labels": [-100, 5, 6]}, {"ids": [4, 5], "labels": [7, 8]}]
    batch = next(
        iter(Loader(items, 2, pack=Pack(4, field="ids", pad=9, ignore_index=-1), workers="1 thread"))
    )
    assert list(batch) == ["ids", "labels", "positions", "segments"]
    assert batch.ids.tolist() == [[1, 2, 3, 4], [5, 9, 9, 9]]
    assert batch.labels.tolist() == [[-100, 5, 6, 7], [8, -1, -1, -1]]
    read = Loader(
        [Batch(tokens=torch.tensor([1, 2], dtype=torch.int32))],
        1,
        pack=Pack(3),
        item_transform=lambda item, g: item,
    )
    assert next(iter(read)).tokens.dtype == torch.int32


# padding


def test_padding_agrees_with_torch():
    sequences = [torch.randn(n, 3) for n in (4, 1, 3)]
    batch = Pad({"x": -1})([{"x": x, "y": i} for i, x in enumerate(sequences)])
    assert torch.equal(
        batch.x, torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)
    )
    assert torch.equal(batch.padding_mask, nn.length_mask(batch.lengths, 4))
    assert (batch.y.tolist(), batch.lengths.tolist()) == ([0, 1, 2], [4, 1, 3])


def test_padding_options():
    items = [[1, 2, 3], [4]]
    left = Pad(0, side="left")(items)
    assert left.items.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert left.padding_mask.tolist() == [[False] * 3, [True, True, False]]
    assert Pad(0, multiple=8)(items).items.shape == (2, 8)
    cut = Pad(7, length=2)(items)
    assert (cut.items.tolist(), cut.lengths.tolist()) == ([[1, 2], [4, 7]], [2, 1])
    assert Pad(0, length=5)(items).items.shape == (2, 5)
    named = Pad(0)(
        [{"a": [1], "b": [2.5], "name": "x", "n": 1}, {"a": [1, 2], "b": [2.5, 1.5], "name": "y", "n": 2}]
    )
    assert (named.a.shape, named.b.dtype, named.name) == ((2, 2), torch.float32, ["x", "y"])
    assert Pad(0)([[], [1]]).items.shape == (2, 1)


# state and messages


def test_state_tells_what_decides_the_order_apart_and_nothing_else():
    data = [[1] * n for n in range(1, 9)]
    lengths = [len(item) for item in data]
    base = Loader(data, 2)
    settings_of = [
        {"sampler": [1, 2]},
        {"sampler": SubsetSampler([1, 2])},
        {"sampler": SubsetSampler([1, 3])},
        {"sampler": WeightedSampler(lengths)},
        {"sampler": WeightedSampler(lengths, seed=1)},
        {"buckets": lengths},
        {"buckets": Buckets(lengths, width=2)},
        {"buckets": Buckets(lengths[::-1])},
        {"buckets": Buckets(lengths, tokens=20)},
        {"pack": Pack(4)},
        {"pack": Pack(5)},
        {"pack": Pack(4, split=False)},
    ]
    states = [json.dumps(Loader(data, 2, **one).state()) for one in settings_of]
    assert len({*states, json.dumps(base.state())}) == len(states) + 1
    assert set(base.state()) == {"seed", "shuffle", "batch_size", "drop_last", "items"}  # as of burnt 0.1.0
    assert Loader(data, 2, workers=2, prefetch=4, pin=True, batcher=Pad(0)).state() == base.state()
    assert not base.replays


def test_settings_may_be_given_to_several_loaders():
    pack, buckets = Pack(2), Buckets(len)
    first, second = Loader([[1]], 1, pack=pack), Loader([[1, 2, 3], [4]], 1, pack=pack)
    assert (len(first), len(second)) == (1, 2)
    assert list(Loader(["a", "b"], 1, buckets=buckets)) == [["a"], ["b"]]
    assert len(Loader(["abc"], 1, buckets=buckets)) == 1


ITEMS = [[1, 2], [3]]
NO_LENGTH = ["the length of an item cannot be found", "item 1 of list"]


class Short:
    def __len__(self):
        return 3

    def indices(self, epoch):
        return torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (ITEMS, {"shuffle": True, "sampler": [0]}, ["shuffle= and sampler=", "SubsetSampler"]),
        (ITEMS, {"sampler": 3}, ["sampler= cannot be used", "indices(epoch)", "int"]),
        (ITEMS, {"sampler": torch_data.BatchSampler([0], 1, False)}, ["batches of indices", "buckets="]),
        (ITEMS, {"sampler": [0, 2]}, ["an index that the dataset lacks", "0 to 1", "2"]),
        (ITEMS, {"sampler": [-1]}, ["an index that the dataset lacks", "-1"]),
        (ITEMS, {"sampler": ["a"]}, ["indices cannot be used", "int64"]),
        (ITEMS, {"sampler": Short()}, ["another number of indices than its length", "3", "2 in epoch 0"]),
        (ITEMS, {"buckets": lambda item: 1 // (len(item) - 1)}, [*NO_LENGTH, "ZeroDivisionError"]),
        ([[1], 7], {"pack": Pack(2)}, [*NO_LENGTH, "TypeError"]),
        (ITEMS, {"buckets": [1]}, ["lengths of buckets do not fit", "2 lengths", "1 lengths from 1 to 1"]),
        (ITEMS, {"buckets": Buckets([2, 9], tokens=5)}, ["longer than a batch", "item 1", "tokens=5", "9"]),
        (
            ITEMS,
            {"buckets": Buckets([2, 9], tokens=9), "drop_last": True},
            ["tokens= of buckets", "drop_last"],
        ),
        (ITEMS, {"pack": Pack(2, lengths=[1])}, ["lengths of documents do not fit", "2 lengths"]),
        (
            ITEMS,
            {"pack": Pack(2, lengths=[2, 2])},
            ["another length than was said", "item 1, tokens", "(1,)"],
        ),
        (ITEMS, {"pack": Pack(2), "buckets": [1, 2]}, ["pack= cannot be combined", "in the dataset"]),
        (ITEMS, {"pack": Pack(2), "batcher": collate}, ["pack= makes the batches itself", "transform="]),
        (ITEMS, {"pack": Pack(9), "drop_last": True, "batch_size": 9}, ["no batch", "9 rows", "1 row"]),
        ([[]], {"pack": Pack(2)}, ["documents are empty", "with a token among them"]),
        ([{"ids": [1]}], {"pack": Pack(2)}, ["no field with tokens", "tokens", "ids", "field="]),
        (TensorDataset(x=torch.ones(2)), {"pack": Pack(2)}, ["pack= makes", "without take()"]),
        (iter(ITEMS), {}, ["a length and items by index", "StreamLoader"]),
    ],
)
def test_what_a_loader_refuses(data, settings, words):
    with raises(DataError, *words):
        list(Loader(data, **{"batch_size": 1, **settings}))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WeightedSampler([1.0, -1.0]), ["cannot be probabilities", "negative"]),
        (lambda: WeightedSampler([0.0]), ["cannot be probabilities", "nothing above 0"]),
        (lambda: WeightedSampler([float("nan"), 1]), ["NaN"]),
        (lambda: WeightedSampler([]), ["weights cannot be used", "not empty"]),
        (lambda: WeightedSampler([1.0, 0.0], 2, replacement=False), ["the 1 items", "replacement=True"]),
        (lambda: WeightedSampler([[1.0]]), ["one axis of float64", "(1, 1)"]),
        (lambda: SubsetSampler([0.5]), ["indices cannot be used", "one axis of int64", "float64"]),
        (lambda: Buckets([1], count=2, width=3), ["count= or by width="]),
        (lambda: Buckets([1], tokens=0), ["tokens", "at least 1"]),
        (lambda: Pack(0), ["the length of packed rows", "at least 1"]),
        (lambda: Pad(0, side="top"), ["side=", "'top'"]),
        (lambda: Pad(0, multiple=0), ["lengths of Pad", "multiple=0"]),
        (lambda: Pad({"z": 0})([{"x": [1]}]), ["a field that the items lack", "some of: x", "z"]),
        (lambda: Pad(0)([{"x": 1}]), ["no field to pad", "x"]),
        (lambda: Pad(0)([{"x": [1]}, {"y": [1]}]), ["do not fit together", "x in one item, y in another"]),
        (lambda: Pad(0)([{"x": [1], "y": [1, 2]}]), ["differ in length", "y", "[1]", "[2]"]),
        (
            lambda: Pad(0)([torch.ones(2, 3), torch.ones(2, 4)]),
            ["do not fit together", "[length, 3]", "(2, 4)"],
        ),
    ],
)
def test_what_other_settings_refuse(make, words):
    with raises(DataError, *words):
        make()
