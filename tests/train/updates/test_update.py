"""Updates: accumulated gradients equal those of one large batch, clipping, and what a step counts."""

import gc
import itertools
import math
import os
import signal
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import Gradients, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.errors import BurntError, DefinitionError
from burnt.train import Interrupted, KeepLast, Learner, RunReader, StepOutput
from burnt.train.updates.optimizer_step import WindowGradients
from tests.train.cases import bare, supervised

ITEMS, BATCH, IGNORED = 22, 4, -100


def data(dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(ITEMS, 5, 6, generator=generator, dtype=dtype)
    y = torch.randint(7, (ITEMS, 5), generator=generator)
    lengths = torch.randint(0, 6, (ITEMS,), generator=generator)
    lengths[4:8] = 0  # a micro-batch without a single token
    return TensorDataset(x=x, y=y, tokens=y.masked_fill(torch.arange(5) >= lengths[:, None], IGNORED))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 7))


def samples(model: nn.Module, batch: Batch) -> StepOutput:
    logits = model(batch.x)
    return StepOutput(F.cross_entropy(logits.flatten(0, 1), batch.y.flatten()), logits, batch.y)


def tokens(model: nn.Module, batch: Batch) -> StepOutput:
    logits = model(batch.x)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten(), ignore_index=IGNORED)
    return StepOutput(loss, logits, batch.tokens, count=int((batch.tokens != IGNORED).sum()))


def huggingface(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss of a window as transformers defines it: the sum over its tokens over their number."""
    from transformers.loss.loss_utils import fixed_cross_entropy

    count = (batch.tokens != IGNORED).sum()
    return sum(
        fixed_cross_entropy(model(x), y, num_items_in_batch=count, ignore_index=IGNORED)
        for x, y in zip(batch.x, batch.tokens, strict=True)
    )


class Seen:
    """A callback that keeps the gradients of each step."""

    def __init__(self) -> None:
        self.gradients: list[Gradients] = []

    def on_gradients(self, event) -> None:
        self.gradients.append(event.gradients)


def train(folder, how=samples, optimizer=None, model=None, **settings):
    model = net() if model is None else model
    defaults = {"train": Loader(data(), BATCH), "duration": "1 epoch", "checkpoints": None}
    training = supervised(folder, defaults, **settings)
    return training.run(
        Learner(model, optimizer or optim.Sgd(), 0.0 if optimizer is None else 0.05, step=how)
    )


def windows(accumulate: int) -> list[Batch]:
    """The items of each step as one batch."""
    columns = data().columns
    size = BATCH * accumulate
    return [Batch(**{k: v[i : i + size] for k, v in columns.items()}) for i in range(0, ITEMS, size)]


def assert_close(ours: Gradients, expected: Gradients) -> None:
    largest = max(float(g.abs().max()) for g in expected.values())
    assert ours.keys() == expected.keys()
    for path, gradient in expected.items():
        assert float((ours[path] - gradient).abs().max()) <= 1e-6 * largest, path


class Unsized:
    """Batches of an unknown number."""

    def __iter__(self):
        return Loader(data(), BATCH).epoch(0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", [samples, tokens])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("source", ["sized", "unsized"])
def test_gradients_are_those_of_one_large_batch(tmp_path, how, accumulate, source):
    seen = Seen()
    train(
        tmp_path / "run",
        how,
        train=Loader(data(), BATCH) if source == "sized" else Unsized(),
        accumulate=accumulate,
        callbacks=[seen],
    )
    model = net()
    expected = [
        Gradients.of(how(model, window).loss, model)
        for window in windows(accumulate)
        if how is samples or (window.tokens != IGNORED).any()  # a window without items changes nothing
    ]
    assert len(seen.gradients) == len(expected)
    for ours, one in zip(seen.gradients, expected, strict=True):
        assert_close(ours, one)


@pytest.mark.full  # for the import of transformers
@pytest.mark.parametrize("accumulate", [2, 4])
def test_tokens_count_as_in_transformers(tmp_path, accumulate):
    seen = Seen()
    train(tmp_path / "run", tokens, accumulate=accumulate, callbacks=[seen])
    model = net()
    for ours, window in zip(seen.gradients, windows(accumulate), strict=True):
        assert_close(ours, Gradients.of(huggingface(model, window), model))


def pattern_groups() -> optim.Groups:
    return optim.Groups([("*.bias", optim.AdamW(weight_decay=0), 0.01, 0.5), ("*", optim.Sgd(momentum=0.9))])


OPTIMIZERS = {
    "sgd": optim.Sgd,
    "groups": pattern_groups,
    "ema": lambda: optim.Ema(optim.Sgd(momentum=0.9), decay=0.5),
    "lbfgs": lambda: optim.Lbfgs(max_iter=4, line_search_fn="strong_wolfe"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.1}, {"clip_value": 0.01}])
@pytest.mark.parametrize("how", [samples, tokens])
def test_a_training_is_that_of_large_batches(tmp_path, name, clip, how):
    # In float64: a line search makes much of a last bit.
    settings = {"how": how, "duration": "2 epochs", **clip}
    ours, theirs = (
        train(tmp_path / f"{accumulate}", optimizer=OPTIMIZERS[name](), model=net().double(),
              accumulate=accumulate, train=Loader(data(torch.float64), size), **settings)
        for accumulate, size in ((3, BATCH), (1, 3 * BATCH))
    )  # fmt: skip
    assert ours.position.step == theirs.position.step == 4
    assert ours.values["train/loss"] == pytest.approx(theirs.values["train/loss"], rel=1e-9)
    for p, q in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)
    assert not torch.equal(ours.model[0].weight, net().double()[0].weight)


class Odd(nn.Module):
    """A tied weight, a sparse embedding, and a branch that only some batches take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 6, sparse=True)
        self.inner = nn.Linear(6, 6)
        self.tied = self.inner
        self.branch = nn.Linear(6, 6)
        self.head = nn.Linear(6, 7)

    def forward(self, x, y):
        hidden = self.tied(torch.tanh(self.inner(x + self.embedding(y))))
        if y[0, 0] % 2:
            hidden = hidden + self.branch(hidden)
        return self.head(hidden)


def odd(model: nn.Module, batch: Batch) -> StepOutput:
    logits = model(batch.x, batch.y)
    return StepOutput(F.cross_entropy(logits.flatten(0, 1), batch.y.flatten()), logits, batch.y)


def test_tied_sparse_and_partly_reached_parameters(tmp_path):
    seen = Seen()
    train(tmp_path / "run", odd, model=Odd(), accumulate=3, callbacks=[seen])
    model, sizes = Odd(), [BATCH] * 5 + [2]
    columns = data().columns
    parts = [
        Batch(**{k: v.split(sizes)[i] for k, v in columns.items()}) for i in range(len(sizes))
    ]  # the branch depends on the first item of a micro-batch
    assert {int(part.y[0, 0] % 2) for part in parts[:3]} == {0, 1}
    for ours, group in zip(seen.gradients, (parts[:3], parts[3:]), strict=True):
        count = sum(len(part.x) for part in group)
        loss = sum(odd(model, part).loss * len(part.x) for part in group) / count
        expected = Gradients.of(loss, model)
        assert ours["embedding.weight"].is_sparse
        assert_close(
            Gradients({path: g.to_dense() for path, g in ours.items()}),
            Gradients({path: g.to_dense() for path, g in expected.items()}),
        )


def test_a_sparse_and_a_dense_gradient_of_one_parameter_are_added():
    dense = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    sparse = torch.tensor([[0.0, 0.0], [8.0, 8.0]]).to_sparse(1)
    for order in itertools.permutations([dense, sparse]):
        window = WindowGradients()
        for gradient in order:
            window.add(Gradients({"w": gradient}), 1)
        assert torch.equal(window.mean()["w"].to_dense(), torch.tensor([[0.5, 1.0], [5.5, 6.0]]))
    assert torch.equal(dense, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_16_bit_gradients_are_added_in_float32():
    window = WindowGradients()
    for _ in range(300):  # a sum in bfloat16 stops at 256
        window.add(Gradients({"w": torch.ones(1, dtype=torch.bfloat16)}), 1)
    (mean,) = window.mean().values()
    assert mean == 1
    assert mean.dtype == torch.bfloat16


@pytest.mark.parametrize("on_nan", ["raise", "skip"])
def test_one_micro_batch_is_alive_at_a_time(tmp_path, on_nan):
    alive, most = [], []

    def counted(model, batch):
        most.append(sum(ref() is not None for ref in alive))
        output = samples(model, batch)
        alive.extend([weakref.ref(output.outputs), weakref.ref(output.loss)])
        return output

    gc.disable()  # nothing may depend on cycles being found
    try:
        train(tmp_path / "run", counted, accumulate=3, on_nan=on_nan)
    finally:
        gc.enable()
    assert len(most) == 6
    assert set(most) == {0}


def test_everything_counts_steps(tmp_path):
    result = train(
        tmp_path / "run",
        optimizer=optim.AdamW(),
        valid=Loader(data(), ITEMS),
        accumulate=4,  # 6 batches: steps of 4 and 2
        duration="3 epochs",
        checkpoints=[KeepLast(9)],
        log_every=1,
        validate_every="2 steps",
        checkpoint_every="3 steps",
    )
    assert (result.position.step, result.position.epoch) == (6, 3)
    assert [saved.position.step for saved in result.checkpoints] == [3, 6]
    assert [saved.position.batch for saved in result.checkpoints] == [4, 0]
    with RunReader(tmp_path / "run") as run:
        assert run.points("loss", "train").steps == [1, 2, 3, 4, 5, 6]
        assert run.points("loss", "valid").steps == [2, 4, 6]
        assert run.progress().total_steps == 6


def test_a_stop_finishes_the_window(tmp_path):
    calls = []

    def stopped(model, batch):
        calls.append(1)
        if len(calls) == 2:  # the second of three micro-batches
            os.kill(os.getpid(), signal.SIGINT)
        return samples(model, batch)

    with pytest.raises(Interrupted):
        train(tmp_path / "run", stopped, optim.AdamW(), accumulate=3, checkpoints=[KeepLast(1)])
    assert len(calls) == 3
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("cls", [optim.Sgd, bare(optim.Sgd)])
@pytest.mark.parametrize(
    "clip", [{"clip_norm": 0.1}, {"clip_value": 0.01}, {"clip_norm": 0.05, "clip_value": 0.01}]
)
def test_clipping_is_torchs_after_accumulation(tmp_path, cls, clip):
    result = train(tmp_path / "run", optimizer=cls(), accumulate=3, log_every=1, **clip)
    model, norms = net(), []
    for window in windows(3):
        model.zero_grad()
        samples(model, window).loss.backward()
        if "clip_value" in clip:
            nn.utils.clip_grad_value_(model.parameters(), clip["clip_value"])
        if "clip_norm" in clip:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip["clip_norm"])))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
    for p, q in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    if norms:
        with RunReader(tmp_path / "run") as run:
            assert run.points("gradient_norm").values == pytest.approx(norms, rel=1e-5)


def test_the_norm_is_logged_when_asked_for(tmp_path):
    train(tmp_path / "run", log_gradient_norm=True, log_every=3)
    model = net()
    norms = [float(Gradients.of(samples(model, w).loss, model).norm()) for w in windows(1)]
    with RunReader(tmp_path / "run") as run:
        means = [math.fsum(norms[:3]) / 3, math.fsum(norms[3:]) / 3]
        assert run.points("gradient_norm").values == pytest.approx(means, rel=1e-5)
    train(tmp_path / "plain")
    with RunReader(tmp_path / "plain") as run:
        assert "gradient_norm" not in {series.name for series in run.series()}


@pytest.mark.parametrize("count", [-1, 2.0, torch.tensor(3)])
def test_a_count_is_a_number_of_items(count):
    with pytest.raises(DefinitionError, match="a StepOutput needs a number of items") as caught:
        StepOutput(torch.tensor(0.5), count=count)
    assert ("hint      int(count)" in str(caught.value)) == isinstance(count, torch.Tensor)


def test_a_loss_is_no_float():
    with pytest.raises(BurntError, match="gradients need a loss with a graph"):
        Gradients.of(0.5, nn.Linear(1, 1))
