"""The searches for a learning rate and for a batch size, and the profiler."""

import gzip
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import Gradients, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import BurntError, ConfigError, DataError
from burnt.train import (
    Learner,
    Profiler,
    RunReader,
    StepOutput,
    SupervisedTraining,
    find_batch_size,
    find_learning_rate,
)
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checks.batch_size_finder import BatchSizeSearch, Trial
from burnt.train.checks.rate_finder import RateSearch


def loader(count: int = 64, batch_size: int = 8) -> Loader:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), batch_size=batch_size, shuffle=True)


def step(model: nn.Module, batch: Batch) -> StepOutput:
    outputs = model(batch.x)
    return StepOutput(F.mse_loss(outputs, batch.y), outputs, batch.y)


def learner(optimizer=None) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    return Learner(model, optimizer or optim.Adam(), 0.01, step=step)


def test_the_losses_are_those_of_steps_by_hand():
    rates = [1e-3 * 10 ** (i / 9) for i in range(10)]
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    search = find_learning_rate(
        Learner(model, optim.Sgd(), 0.1, step=step), loader(), low=1e-3, high=1e-2, steps=10
    )
    expected, number = [], 0
    for epoch in range(2):
        for batch in loader().epoch(epoch):
            if number < 10:
                loss = step(model, batch).loss
                expected.append(float(loss.detach()))
                for parameter, grad in zip(
                    model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
                ):
                    parameter.data -= rates[number] * grad
                number += 1
    assert search.rates == pytest.approx(rates)
    assert search.losses == pytest.approx(expected, rel=1e-6)


def test_the_suggestion_is_where_the_loss_falls_fastest():
    rates = [10 ** (-6 + i / 10) for i in range(60)]
    # A step down around 1e-3, then divergence.
    losses = [2 - 1 / (1 + math.exp(-5 * (math.log10(r) + 3))) + (r / 0.05) ** 2 for r in rates]
    search = RateSearch(rates, losses)
    assert 10**-3.2 <= search.suggestion <= 10**-2.8
    assert "falls fastest at" in repr(search)
    assert "polyline" in search._repr_svg_()
    noisy = [2.6, 1.9, 2.2, *losses[3:]]  # the first losses are those of single batches
    assert 10**-3.4 <= RateSearch(rates, noisy).suggestion <= 10**-2.6
    flat = RateSearch(rates, [1.0] * 60)
    assert flat.suggestion is None
    assert "never falls" in repr(flat)


def test_a_search_stops_when_the_loss_diverges():
    torch.manual_seed(0)
    search = find_learning_rate(Learner(nn.Linear(4, 1), optim.Sgd(), 0.1, step=step), loader(), high=1e4)
    assert len(search.rates) < 100
    assert search.rates[-1] > 1


@pytest.mark.parametrize("find", ["rate", "size"])
def test_nothing_is_changed(find):
    subject = learner()
    model = subject.model
    batch = next(iter(loader().epoch(0)))
    # So that the optimizer has a state.
    subject.optimizer.step(0.01, model, Gradients.of(step(model, batch).loss, model))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    record = subject.optimizer.into_record()
    tensors = {name: value.clone() for name, value in record.tensors.items()}
    rng = RandomStates.capture()
    if find == "rate":
        find_learning_rate(subject, loader(), accumulate=2, clip_norm=1.0)
    else:
        find_batch_size(subject, loader(), low=2, high=8)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = subject.optimizer.into_record().tensors
    assert tensors.keys() == after.keys()
    assert all(torch.equal(tensors[name], value) for name, value in after.items())
    assert torch.equal(rng.tensors["torch"], torch.get_rng_state())
    assert [module.training for module in model] == [True, True, False, True]
    assert all(parameter.grad is None for parameter in model.parameters())


class Statistics(nn.Module):
    """Assigns its buffer anew."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


def test_a_buffer_that_is_assigned_is_put_back():
    model = Statistics()
    find_learning_rate(Learner(model, optim.Sgd(), 0.1, step=step), loader(), steps=10)
    assert torch.equal(model.mean, torch.zeros(4))


@pytest.mark.parametrize("find", [find_learning_rate, find_batch_size])
def test_a_precision_is_that_of_a_training(find):
    seen = set()

    def watched(model, batch):
        output = step(model, batch)
        seen.add((model[0].weight.dtype, model[1].weight.dtype, output.outputs.dtype))
        return output

    subject = learner()
    subject.step = watched
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    data = {find_learning_rate: loader(), find_batch_size: loader(count=4)}[find]
    settings = {} if find is find_learning_rate else {"low": 2}
    find(subject, data, precision="bf16-true", **settings)
    assert seen == {(torch.bfloat16, torch.float32, torch.bfloat16)}
    after = subject.model.state_dict()
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name], value)


def test_activations_are_checkpointed_in_the_search_of_sizes():
    calls = []
    subject = learner()
    subject.model[2].register_forward_pre_hook(lambda *args: calls.append(1))
    subject.model[0].forward = lambda x, inner=subject.model[0].forward: (calls.append(0), inner(x))[1]
    find_batch_size(subject, loader(count=2), low=2, checkpoint_activations="0")
    assert calls.count(0) == 2 * calls.count(1)


def test_several_optimizers():
    def manual(model, batch, optimizers):
        output = step(model, batch)
        rates.append((optimizers["0"].learning_rate, optimizers["*"].learning_rate))
        optimizers["0"].step(output.loss, retain_graph=True)
        optimizers["*"].step(output.loss)
        return output

    rates = []
    several = Learner(
        learner().model, {"0": optim.Sgd(), "*": optim.Sgd()}, {"0": 0.1, "*": 0.3}, manual, step
    )
    search = find_learning_rate(several, loader(), low=1e-3, high=1e-2, steps=10)
    assert rates == [(rate, 0.3) for rate in search.rates]
    del rates[:]
    find_batch_size(several, loader(count=4), low=2)
    assert set(rates) == {(0.0, 0.0)}
    with pytest.raises(ConfigError, match="several optimizers accumulates gradients itself"):
        find_learning_rate(several, loader(), accumulate=2)


def test_windows_without_items_are_left_out_of_a_search():
    def some(model, batch):
        output = step(model, batch)
        if len(counts) % 3:
            output.loss, output.count = output.loss * math.nan, 0
        counts.append(output.count)
        return output

    counts = []
    subject = learner()
    subject.step = some
    search = find_learning_rate(subject, loader(), steps=12)
    assert len(search.rates) == 4
    assert all(map(math.isfinite, search.losses))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0.0}, "0 < low < high"),
        ({"low": 1.0, "high": 0.1}, "found     1.0 and 0.1"),
        ({"steps": 9}, "the search is too short"),
        ({"accumulate": 0}, "the number of batches of a step, at least 1"),
        ({"precision": "float8"}, "precision='float8' does not exist"),
    ],
)
def test_a_search_of_rates_that_makes_no_sense(arguments, message):
    with pytest.raises(BurntError, match=message):
        find_learning_rate(learner(), loader(), **arguments)


def test_a_search_without_batches():
    class Once:
        def __iter__(self):
            yield from self.__dict__.pop("batches", [])

    empty = Once()
    empty.batches = list(loader().epoch(0))
    with pytest.raises(DataError, match="batches= gave no batches"):
        find_learning_rate(learner(), empty)


def test_a_search_goes_on_from_the_parameters_in_training(tmp_path):
    torch.manual_seed(0)
    subject = Learner(nn.Linear(4, 1), optim.Ema(optim.Sgd(), decay=0.99), 0.1, step=step)
    data = loader(count=8)
    SupervisedTraining(tmp_path, train=data, duration="4 epochs", monitor="off").run(subject)
    averages = subject.model.weight.detach().clone()
    search = find_learning_rate(subject, data, steps=10)
    assert torch.equal(subject.model.weight, averages)
    subject.optimizer.train(subject.model)
    assert not torch.equal(subject.model.weight, averages)
    expected = step(subject.model, next(iter(data.epoch(0)))).loss
    assert search.losses[0] == pytest.approx(float(expected.detach()), rel=1e-6)


def test_batch_sizes_double_up_to_the_dataset():
    seen = set()

    def watched(model, batch):
        seen.add(len(batch))
        return step(model, batch)

    subject = learner()
    subject.step = watched
    search = find_batch_size(subject, loader(count=20), low=2)
    assert [trial.batch_size for trial in search.trials] == [2, 4, 8, 16, 20]
    assert seen >= {2, 4, 8, 16, 20}
    assert search.largest == 20
    assert all(trial.seconds > 0 for trial in search.trials)


def test_the_fastest_is_the_smallest_of_equal_throughput():
    trials = [
        Trial(1, 0.1, 10),
        Trial(2, 0.1, 20),
        Trial(4, 0.1, 30),
        Trial(8, 0.196, 40),
        Trial(16, 0.5, 50),
    ]
    search = BatchSizeSearch([*trials, Trial(32, None, 60, "out of memory")])
    assert (search.fastest, search.largest) == (4, 16)
    table = repr(search).splitlines()
    assert table[-1].split() == ["32", "out", "of", "memory"]
    assert table[5].split()[-1] == "largest"


def test_a_size_that_is_out_of_memory_ends_the_search():
    def limited(model, batch):
        if len(batch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(model, batch)

    subject = learner()
    subject.step = limited
    search = find_batch_size(subject, loader(), low=2)
    assert [(t.batch_size, t.problem) for t in search.trials] == [(2, None), (4, None), (8, "out of memory")]
    assert search.largest == 4
    with pytest.raises(BurntError, match="not even the smallest batch fits") as caught:
        find_batch_size(subject, loader(), low=8)
    assert caught.value.found == "out of memory"


def test_a_size_that_would_need_more_is_not_tried(monkeypatch):
    from burnt.train.checks import batch_size_finder

    peaks = iter([100, 200, 400, 800])
    monkeypatch.setattr(batch_size_finder._Memory, "peak", lambda self: next(peaks))
    search = find_batch_size(learner(), loader(), low=2, memory_bytes=700)
    assert [(t.batch_size, t.peak_bytes) for t in search.trials] == [(2, 100), (4, 200), (8, 400), (16, 800)]
    assert search.trials[-1].problem == "not tried: would need some 0 MiB"
    assert search.largest == 8


@pytest.mark.parametrize(
    ("arguments", "where"), [({"low": 0}, "low"), ({"steps": 1}, "steps"), ({"low": 8, "high": 4}, "high")]
)
def test_a_search_of_sizes_that_makes_no_sense(arguments, where):
    with pytest.raises(ConfigError, match="a setting of the search is invalid") as caught:
        find_batch_size(learner(), loader(), **arguments)
    assert caught.value.where == where
    with pytest.raises(ConfigError, match="the batch size of this cannot be varied"):
        find_batch_size(learner(), [torch.ones(2, 4)])


@pytest.mark.sample(1)
@pytest.mark.parametrize(("skip", "steps", "last"), [(0, 2, 2), (3, 2, 5), (6, 9, 8)])
def test_the_profiler_writes_a_trace_and_a_table(tmp_path, skip, steps, last):
    training = SupervisedTraining(
        tmp_path / "run",
        train=loader(),
        duration="1 epoch",
        monitor="off",
        callbacks=[Profiler(skip=skip, steps=steps)],
    )
    training.run(learner())
    (path,) = (tmp_path / "run" / "profile").iterdir()
    assert path.name == f"step-{last:08d}.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    forwards = [event for event in events if event.get("name") == "aten::dropout"]
    assert len(forwards) == last - skip
    (table,) = RunReader(tmp_path / "run").artefacts("table", "profile")
    assert table.step == last
    assert "aten::addmm" in {row[0] for row in table.data["rows"]}


@pytest.mark.parametrize("skip", [2, 5])
def test_a_profiler_that_saw_no_step_says_so(tmp_path, capsys, skip):
    SupervisedTraining(
        tmp_path, train=loader(), duration="2 steps", callbacks=[Profiler(skip)], monitor="plain", check=False
    ).run(learner())
    assert f"Profiled nothing: fewer than {skip + 1} steps were done." in capsys.readouterr().out
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize(("arguments", "where"), [({"skip": -1}, "skip"), ({"steps": 0}, "steps")])
def test_a_profiler_that_makes_no_sense(arguments, where):
    with pytest.raises(ConfigError, match="a Profiler cannot be built") as caught:
        Profiler(**arguments)
    assert caught.value.where == where
