"""Precisions: what is computed in what, loss scaling, and global settings that come back."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt.nn
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import NonFiniteError, UnsupportedError
from burnt.train import KeepLast, Learner, RunReader, StepOutput, evaluate, update_batch_norm
from burnt.train.updates.precision import LossScale, check_precision
from tests import forked
from tests.train.cases import bare, refused, supervised


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(24, 6, generator=generator)
    return TensorDataset(x=x, y=torch.randint(3, (24,), generator=generator))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        burnt.nn.Linear(6, 8), burnt.nn.BatchNorm(8), nn.Tanh(), burnt.nn.LayerNorm(8), burnt.nn.Linear(8, 3)
    )


class Step:
    """A step that keeps the dtypes of logits and loss; multiplies the loss by `factor` at some calls."""

    def __init__(self, factor: float = 1.0, at=()) -> None:
        self.dtypes, self.calls = set(), 0
        self.factor, self.at = factor, at

    def __call__(self, model, batch) -> StepOutput:
        logits = model(batch.x)
        loss = F.cross_entropy(logits, batch.y)
        if not loss.is_meta and model.training:
            self.dtypes.add((logits.dtype, loss.dtype))
            self.calls += 1
            if self.calls in self.at:
                loss = self.factor * loss
        return StepOutput(loss, logits, batch.y)


def train(folder, how=None, optimizer=None, model=None, **settings):
    loaders = {"train": Loader(data(), 8, shuffle=True), "valid": Loader(data(), 24)}
    training = supervised(folder, {**loaders, "duration": "4 epochs", "log_every": 1}, **settings)
    learner = Learner(net() if model is None else model, optimizer or optim.AdamW(), 0.01, step=how or Step())
    return training.run(learner), learner


@pytest.mark.parametrize(
    ("given", "name"),
    [("16-mixed", "float16"), ("bf16-mixed", "bfloat16"), ("bf16-true", "bfloat16 whole"),
     ("32-true", "float32"), ("fp16", "float16"), ("no", "float32"), ("tf32", "tf32"),
     ("bfloat16 whole", "bfloat16 whole")],
)  # fmt: skip
def test_names_of_other_libraries(given, name):
    assert check_precision(given) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("16-true", "are 0 in float16"),
        ("64-true", r"model\.double\(\)"),
        ("blfoat16", "did you mean 'bfloat16'"),
    ],
)
def test_other_names_are_refused(name, hint):
    with pytest.raises(UnsupportedError, match=hint):
        check_precision(name)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("precision", "computed", "stored"),
    [("float32", torch.float32, torch.float32), ("tf32", torch.float32, torch.float32),
     ("float16", torch.float16, torch.float32), ("bfloat16", torch.bfloat16, torch.float32),
     ("bfloat16 whole", torch.bfloat16, torch.bfloat16)],
)  # fmt: skip
def test_what_is_computed_and_stored_in_what(tmp_path, precision, computed, stored):
    how = Step()
    result, learner = train(tmp_path / "run", how, precision=precision)
    assert how.dtypes == {(computed, torch.float32)}
    assert result.model[0].weight.dtype == stored
    assert result.model[1].weight.dtype == result.model[1].running_mean.dtype == torch.float32
    assert result.model[3].weight.dtype == torch.float32
    assert result.model[4].weight.dtype == stored
    state = learner.optimizer.into_record().tensors
    assert state["0.weight/exp_avg"].dtype == stored
    # As good as float32, within the precision.
    reference, _ = train(tmp_path / "reference")
    close = 0.02 if precision == "bfloat16 whole" else 0.01
    assert result.values["train/loss"] == pytest.approx(reference.values["train/loss"], rel=close)
    assert evaluate(learner, Loader(data(), 24))["loss"] == pytest.approx(result.values["valid/loss"])
    update_batch_norm(learner, Loader(data(), 8))
    assert (tmp_path / "run" / "config.json").read_text().count(f'"precision": "{precision}"') == 1


class Summed(nn.Module):
    """The norm of a sum, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.position, self.norm = nn.Parameter(torch.zeros(6)), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + self.position)


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [burnt.nn.LayerNorm(6), burnt.nn.RmsNorm(6), nn.GroupNorm(2, 6), Summed()])
def test_whole_bfloat16_takes_float32_into_norms(tmp_path, first):
    # The batch itself, what a matmul returns, and the sum of both.
    model = nn.Sequential(first, burnt.nn.Linear(6, 8), nn.LayerNorm(8), burnt.nn.Linear(8, 3))
    result, _ = train(tmp_path, model=model, precision="bfloat16 whole", duration="1 epoch", check=True)
    assert result.model[2].weight.dtype == torch.float32
    assert result.model[3].weight.dtype == torch.bfloat16


@pytest.mark.full
def test_a_whole_bfloat16_training_goes_on_and_loads(tmp_path):
    train(tmp_path / "run", precision="bfloat16 whole", duration="2 epochs", checkpoints=[KeepLast(1)])
    resumed, learner = train(
        tmp_path / "run", precision="bfloat16 whole", checkpoints=[KeepLast(1)], resume=True
    )
    whole, _ = train(tmp_path / "whole", precision="bfloat16 whole")
    for p, q in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(p, q)
    # The model that a training has converted trains on.
    again, _ = train(tmp_path / "again", model=learner.model, precision="bfloat16 whole", check=True)
    assert math.isfinite(again.values["valid/loss"])


# --- tf32

SETTINGS = {
    "nothing": "",
    "old": "torch.set_float32_matmul_precision('medium')",
    "new": "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "new and convolutions": "torch.backends.cuda.matmul.fp32_precision = 'ieee'; "
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "all backends": "torch.backends.fp32_precision = 'tf32'; "
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
}


def fp32_settings() -> dict[str, str]:
    backends = torch.backends
    parts = {
        "matmul": backends.cuda.matmul, "conv": backends.cudnn.conv, "rnn": backends.cudnn.rnn,
        "mkldnn": backends.mkldnn.matmul,
    }  # fmt: skip
    return {name: part.fp32_precision for name, part in parts.items()}


TF32 = """
import pathlib, sys, torch
from burnt import kernels
from burnt.data import Loader
from burnt.train import evaluate
from tests.train.updates.test_precision import Step, data, fp32_settings, train

{setting}
before, during = fp32_settings(), []


def how(model, batch):
    during.append((fp32_settings(), kernels.precision()))
    return Step()(model, batch)


_, learner = train(pathlib.Path(sys.argv[1]), how, precision="tf32", duration="1 epoch", check=False)
assert {{precision for _, precision in during}} == {{"tf32"}}
assert {{one["matmul"] for one, _ in during}} == {{one["conv"] for one, _ in during}} == {{"tf32"}}
assert fp32_settings() == before
during.clear()
evaluate(learner, Loader(data(), 24))
assert during[0][1] == "tf32"
assert fp32_settings() == before
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_tf32_is_set_for_the_run_and_the_setting_comes_back(tmp_path, name):
    # In a process of its own: test utilities of torch, once imported, forbid to change the settings.
    done = forked.run(TF32.format(setting=SETTINGS[name]), tmp_path / "run")
    assert done.returncode == 0, done.stderr


# --- float16


def test_the_scale_follows_torchs_grad_scaler():
    ours = LossScale(torch.device("cpu"), scale=2.0**10, interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    overflows = [0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    for overflow in overflows:
        theirs.scale(parameter.sum())  # GradScaler makes its scale at the first use
        parameter.grad = torch.full((1,), math.inf if overflow else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(bool(overflow)))
        assert float(ours.value) == theirs.get_scale()
    assert int(ours.skipped) == sum(overflows)
    other = LossScale(torch.device("cpu"), interval=3)
    other.load_state(ours.state())
    for overflow in (0, 0, 1):
        ours.update(torch.tensor(bool(overflow)))
        other.update(torch.tensor(bool(overflow)))
        assert other.state() == ours.state()


def test_the_scale_stays_finite_and_above_0():
    scale = LossScale(torch.device("cpu"), scale=2.0**127, interval=1)
    scale.update(torch.tensor(False))
    assert float(scale.value) == 2.0**127
    for _ in range(400):
        scale.update(torch.tensor(True))
    assert float(scale.value) == 2.0**-24


def torch_loop(overflow_at=(), clip_norm=None) -> tuple[nn.Module, list[float], list[float]]:
    """The same training by hand, with torch's autocast, GradScaler and AdamW."""
    model, scaler = net(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    how, scales, norms = Step(1e6, overflow_at), [], []
    loader = Loader(data(), 8, shuffle=True)
    model.train()
    for epoch in range(4):
        for batch in loader.epoch(epoch):
            with torch.autocast("cpu", torch.float16):
                loss = how(model, batch).loss
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf if clip_norm is None else clip_norm)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            norms.append(float(norm))
    return model, scales, norms


@pytest.mark.sample(1)
@pytest.mark.parametrize("cls", [optim.AdamW, bare(optim.AdamW)])
@pytest.mark.parametrize("clip_norm", [None, 0.2])
def test_float16_is_torchs_with_skipped_steps(tmp_path, cls, clip_norm):
    at = (3, 7)  # the gradients of these losses overflow in float16
    expected, scales, norms = torch_loop(at, clip_norm)
    result, _ = train(
        tmp_path / "run", Step(1e6, at), cls(), precision="float16", clip_norm=clip_norm, valid=None
    )
    for p, q in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-3, atol=2e-4)
    with RunReader(tmp_path / "run") as run:
        assert list(run.points("loss_scale").values) == scales
        assert list(run.points("skipped_steps").values) == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
        assert scales[-1] == 2.0**14
        if clip_norm is not None:
            points = run.points("gradient_norm")
            kept = [step for step in range(1, 13) if step not in at]
            assert list(points.steps) == kept
            assert list(points.values) == pytest.approx([norms[step - 1] for step in kept], rel=1e-2)


def test_callbacks_see_gradients_without_the_scale(tmp_path):
    norms = {}

    class Norms:
        def on_gradients(self, event) -> None:
            norms[event.training.position.step] = float(event.gradients.norm())

    result, _ = train(tmp_path / "run", Step(1e6, (3,)), precision="float16", callbacks=[Norms()])
    plain, _ = train(tmp_path / "plain", Step(1e6, (3,)), precision="float16")
    assert not math.isfinite(norms.pop(2))
    assert max(norms.values()) < 10
    for p, q in zip(result.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_groups_skip_together(tmp_path):
    groups = optim.Groups([("*.bias", optim.AdamW(weight_decay=0), 0.01), ("*", optim.AdamW())])
    train(tmp_path / "run", Step(1e6, (2,)), groups, precision="float16", accumulate=2, duration="2 epochs")
    with RunReader(tmp_path / "run") as run:
        assert list(run.points("skipped_steps").values) == [1, 1, 1, 1]


def test_a_scale_that_collapses_is_reported_and_ends_the_training(tmp_path, capsys):
    how = Step(1e30, range(1, 100))
    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path / "run", how, precision="float16", duration="99 epochs", monitor="plain", valid=None)
    assert str(caught.value) == (
        "the loss scale fell to 6.1e-05\n"
        "  in        step 30, epoch 10\n"
        "  expected  at least 1\n"
        "  found     a gradient that overflows in each step, which is skipped\n"
        '  hint      gradients overflow in float16 whatever the scale: try precision="bfloat16", '
        "or clip_norm=1.0"
    )
    assert capsys.readouterr().out.count("Warning: the loss scale fell to 0.5: ") == 1
    with RunReader(tmp_path / "run") as run:
        (event,) = run.events("loss_scale")
    assert (event.step, event.data["scale"]) == (17, 0.5)


def test_an_optimizer_with_closures_takes_no_float16(tmp_path):
    with refused(UnsupportedError, "Lbfgs evaluates the loss several times", "precision='float16'"):
        train(tmp_path / "run", optimizer=optim.Lbfgs(), precision="float16")
    assert not (tmp_path / "run").exists()
