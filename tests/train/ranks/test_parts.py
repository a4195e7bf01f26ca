"""Parts of batches, read in one process in which each rank is asked by itself."""

import torch

from burnt import data
from burnt.train.ranks.parts import PartLoader


class Peers:
    """All ranks do the same as this one; what they compared is kept."""

    def __init__(self, rank, size):
        self.rank, self.size, self.compared = rank, size, []

    def every(self, value):
        return [value] * self.size

    def totals(self, values):
        return [value * self.size for value in values]

    def check_same(self, values, hint=None):
        self.compared.append(values)


def stream(limit=None):
    loader = data.StreamLoader(data.Shards([0, 100], lambda shard: range(shard, shard + 7)), 4, shuffle=3)
    return loader if limit is None else data.LimitedLoader(loader, limit)


def read(parts):
    return [(part.batch.tolist(), part.count, part.total) for part in parts]


def test_a_position_is_that_before_the_first_batch_until_it_is_given():
    # To compare it between the ranks, it is read before it is asked for.
    for loader in (stream(), stream(3)):
        whole = loader.epoch(0)
        parts = PartLoader(loader, Peers(0, 2)).epoch(0)
        for _ in range(3):
            assert parts.state() == whole.state()
            next(whole), next(parts)
        resumed = PartLoader(loader, Peers(1, 3)).resume(0, 3, parts.state())
        assert resumed.state() == parts.state()
        assert [total for _, _, total in read(resumed)] == [len(batch) for batch in whole]


def test_ranks_compare_the_first_items_of_a_stream_and_the_first_batch_of_another_loader():
    for loader in (stream, lambda: [torch.arange(4), torch.arange(2)]):
        compared = []
        for rank in range(2):
            peers = Peers(rank, 2)
            assert read(PartLoader(data.as_loader(loader(), "train"), peers).epoch(0))
            compared.append(peers.compared)
        assert compared[0] == compared[1]
        assert "values of the digest" in str(compared[0])
        assert "None" not in str(compared[0])


def test_repeated_batches_of_a_stream_are_slices():
    loader = data.RepeatedLoader(stream(), 2)
    own = [read(PartLoader(loader, Peers(rank, 2)).epoch(5)) for rank in range(2)]
    whole = [batch.tolist() for batch in loader.epoch(0)]
    assert [one[0] + other[0] for one, other in zip(*own, strict=True)] == whole
