"""What each rank has of its own, and what must be common nevertheless: `python own_values.py FOLDER RANK`."""

import sys
from pathlib import Path

import pytest
import torch

from burnt import data, nn
from burnt.errors import MetricError
from burnt.gradients import Gradients
from burnt.train import EarlyStopping, Ranks, evaluate
from burnt.train.metrics import EpochMetric
from tests.train.ranks.programs import classify, network, table, train


class Sum(EpochMetric):
    """Has a state of its own, which several processes cannot merge."""

    name, higher_is_better = "sum", True

    def update(self, output):
        self.sum = getattr(self, "sum", 0.0) + float(output.outputs.detach().sum())
        self.count += output.count

    def compute(self):
        return self.sum

    def state(self):
        return {"sum": getattr(self, "sum", 0.0), "count": self.count}

    def load_state(self, state):
        self.sum, self.count = state["sum"], state["count"]


class OwnMean(Ranks):
    """A strategy of one's own that sums the gradients itself."""

    def mean(self, window, params, outcomes):
        total, local = self.totals([window.count])[0], window.mean()
        weighted = [local[path] * (window.count / total) for path in params]
        self.sum(weighted)
        return Gradients(dict(zip(params, weighted, strict=True)))


class Swapping:
    """Trains one bias in the first epoch, then the other one."""

    def __init__(self, swaps):
        self.swaps = swaps

    def on_start(self, event):
        self.set(event, 0)

    def on_epoch(self, event):
        self.set(event, 1)

    def set(self, event, epoch):
        if self.swaps:
            model = event.training.learner.model
            model[0].bias.requires_grad_(epoch == 0)
            model[2].bias.requires_grad_(epoch == 1)


def main(folder, rank):
    # The running statistics of each rank's part, of which one checkpoint has rank 0's.
    model, result = train(folder / "norm", network(nn.BatchNorm(16)))
    measured = evaluate(model, data.Loader(table(), 7), step=classify)
    assert result.values["valid/loss"] == pytest.approx(measured["loss"], abs=1e-9)

    fastest = EarlyStopping("train/steps_per_second", patience="1 epoch", higher_is_better=True)
    _, result = train(folder / "speed", stopping=fastest)
    speeds = [None, None]
    torch.distributed.all_gather_object(speeds, result.values["train/steps_per_second"])
    assert speeds[0] == speeds[1]

    full = []

    def step(model, batch):
        full.append((nn.SyncBatchNorm.counts, nn.SyncBatchNorm.all_count))
        return classify(model, batch)

    loader = data.Loader(table(17), 8)  # the last batch has one item, and two values for each channel
    layers = nn.Unflatten(1, (8, 2)), nn.SyncBatchNorm(8), nn.Flatten()
    train(folder / "part", network(*layers), step=step, loader=loader, duration="1 epoch")
    assert (rank == 0, False) in full

    model, _ = train(folder / "default")
    for name, strategy in (("mean", OwnMean()), ("auto", "auto")):
        own, _ = train(folder / name, strategy=strategy, callbacks=[Swapping(name == "auto")])
        values = [None, None]
        torch.distributed.all_gather_object(values, [p.tolist() for p in own.parameters()])
        assert values[0] == values[1], name
        if name == "mean":
            torch.testing.assert_close(own.state_dict(), model.state_dict())

    with pytest.raises(MetricError, match="cannot be merged"):
        train(folder / "sum", metrics=[Sum()])
    print("common")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
