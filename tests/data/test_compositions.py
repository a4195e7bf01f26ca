"""Random compositions of sources, operations and loader settings, resumed after every batch."""

import csv
import json
import sqlite3

import datasets
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnt import data
from burnt.data import (
    CsvDataset,
    DataframeDataset,
    JsonLinesDataset,
    LimitedLoader,
    Loader,
    ParquetDataset,
    Shards,
    SqliteDataset,
    StreamLoader,
    SubsetSampler,
    TensorDataset,
    WeightedSampler,
)

ROWS = [{"n": n, "x": n / 4} for n in range(23)]


class Plain:
    """Items by index alone."""

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return dict(ROWS[index])


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Each source, as a function that opens it anew."""
    folder = tmp_path_factory.mktemp("sources")
    frame = pandas.DataFrame(ROWS)
    with (folder / "rows.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["n", "x"])
        table.writeheader()
        table.writerows(ROWS)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    frame.to_parquet(folder / "rows.parquet", row_group_size=5)
    with sqlite3.connect(folder / "rows.db") as database:
        frame.to_sql("rows", database, index=False)
    database.close()
    return {
        "items": Plain,
        "tensors": lambda: TensorDataset(**{name: torch.tensor(frame[name].tolist()) for name in frame}),
        "csv": lambda: CsvDataset(folder / "rows.csv"),
        "json": lambda: JsonLinesDataset(folder / "rows.jsonl"),
        "parquet": lambda: ParquetDataset(folder / "rows.parquet", memory=200),
        "sqlite": lambda: SqliteDataset(folder / "rows.db", "rows"),
        "frame": lambda: DataframeDataset(frame),
        "hugging face": lambda: datasets.Dataset.from_list(ROWS),
    }


def renamed(item):
    return {"n": int(item["n"] if isinstance(item, dict) else item.n), "x": 0.5}


seeds = st.integers(0, 99)
OPERATIONS = st.one_of(
    st.tuples(st.just(operation), argument)
    for operation, argument in (
        (data.shuffle, seeds),
        (lambda rows, seed: data.split(rows, 0.7, seed=seed)[0], seeds),
        (lambda rows, count: data.chunks(rows, min(count, len(rows)))[-1], st.integers(1, 3)),
        (lambda rows, step: data.select(rows, slice(None, None, step)), st.sampled_from((-1, 2))),
        (lambda rows, seed: data.sample(rows, 30, replacement=True, seed=seed), seeds),
        (lambda rows, part: data.concat(rows, data.select(rows, slice(part))), st.integers(1, 5)),
        (lambda rows, _: data.cache(rows), st.none()),
        (lambda rows, _: data.map(rows, renamed), st.none()),
    )
)


def noisy(item, generator):
    return {
        "n": int(item["n"] if isinstance(item, dict) else item.n),
        "noise": torch.rand(2, generator=generator),
    }


def scaled(batch, generator):
    return batch.replace(scale=torch.rand(len(batch), generator=generator))


def contents(batches):
    return [{name: column.tolist() for name, column in vars(batch).items()} for batch in batches]


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_a_loader_of_any_pipeline_is_resumed_after_every_batch(sources, draw):
    source = draw.draw(st.sampled_from(sorted(sources)))
    operations = draw.draw(st.lists(OPERATIONS, max_size=3))

    def pipeline():
        rows = sources[source]()
        for operation, argument in operations:
            rows = operation(rows, argument)
        return rows

    rows = pipeline()
    number = [int(noisy(rows[index], None)["n"]) for index in range(len(rows))]
    order = draw.draw(st.sampled_from(("as it is", "shuffled", "subset", "weighted")))
    options = {
        "seed": draw.draw(seeds),
        "item_transform": draw.draw(st.sampled_from((None, noisy))),
        "transform": draw.draw(st.sampled_from((None, scaled))),
        "shuffle": order == "shuffled",
        "drop_last": draw.draw(st.booleans()) and len(rows) >= 9,
        "buckets": draw.draw(st.sampled_from((None, [1 + n % 5 for n in number]))),
    }
    if order == "subset":
        options["sampler"] = SubsetSampler(list(range(0, len(rows), 2)), seed=3)
        options["drop_last"] = False
    elif order == "weighted":
        options["sampler"] = WeightedSampler([1.0 + n for n in number], seed=3)
    batch_size, epoch = draw.draw(st.integers(1, 9)), draw.draw(st.integers(0, 2))

    def loader(**more):
        return Loader(pipeline(), batch_size, **options, **more)

    first = loader()
    whole = contents(first.epoch(epoch))
    indices = [first.samples(epoch, batch) for batch in range(len(first))]
    assert [batch["n"] for batch in whole] == [[number[index] for index in batch] for batch in indices]
    if "sampler" not in options and not options["drop_last"]:
        assert sorted(index for batch in indices for index in batch) == list(range(len(rows)))
    for start in range(1, len(whole) + 1):
        assert contents(loader().epoch(epoch, start)) == whole[start:]
    threads = loader(workers="2 threads", prefetch=1)
    assert contents(threads.epoch(epoch)) == whole
    threads.close()


class Counted:
    """A stream that knows its position, and goes on there in the next epoch if it is left."""

    def __init__(self, length):
        self.length, self.at = length, 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_stream_of_any_settings_is_resumed_after_every_batch_of_a_resumed_one(draw):
    sizes = draw.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    kind = draw.draw(st.sampled_from(("shards", "with a state", "replayed")))
    options = {
        "batch_size": draw.draw(st.integers(1, 4)),
        "shuffle": draw.draw(st.integers(0, 6)),
        "drop_last": draw.draw(st.booleans()),
        "seed": draw.draw(seeds),
        "item_transform": draw.draw(
            st.sampled_from((None, lambda n, generator: n + torch.rand(1, generator=generator)))
        ),
    }
    if kind == "shards":
        options["lanes"] = draw.draw(st.integers(1, len(sizes)))
        options["workers"] = draw.draw(st.sampled_from((0, "1 thread", "3 threads")))
    limit = draw.draw(st.integers(1, 6) | st.none())

    def stream():
        length = sum(sizes)
        dataset = {
            "shards": Shards(range(len(sizes)), lambda shard: range(10 * shard, 10 * shard + sizes[shard])),
            "with a state": Counted(length),
            "replayed": list(range(length)),
        }[kind]
        made = StreamLoader(dataset, **options)
        return made if limit is None else LimitedLoader(made, limit)

    def lists(batches):
        return [batch.tolist() for batch in batches]

    uninterrupted = stream()
    whole = {epoch: lists(uninterrupted.epoch(epoch)) for epoch in (0, 1)}
    uninterrupted.close()
    for epoch, expected in whole.items():
        state = None
        for done in range(len(expected) + 1):  # one batch, then a new process
            again = stream()
            batches = again.epoch(epoch) if state is None else again.resume(epoch, done, state)
            assert lists(batches if done == len(expected) else [next(batches)]) == expected[done : done + 1]
            state = json.loads(json.dumps(batches.state()))
            again.close()
