"""Several optimizers that the training step steps itself."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import BurntError, ConfigError, DefinitionError, OptimError
from burnt.store.control import send
from burnt.train import KeepLast, Learner, RunReader, StepOutput, update_batch_norm
from tests.train.cases import refused, supervised


def data() -> TensorDataset:
    return TensorDataset(x=torch.randn(24, 3, generator=torch.Generator().manual_seed(1)))


def gan() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "generator": nn.Sequential(
                nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
            ),
            "discriminator": nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
    )


def losses(model, real):
    """The loss of the discriminator, and a function for that of the generator, after the first update."""
    fake = model["generator"](torch.randn(len(real), 2))

    def judge(x):
        return model["discriminator"](x).float()  # a loss in float16 would overflow at the first scale

    loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
    return loss, lambda: F.softplus(-judge(fake)).mean()


def step(model, batch, optimizers, prefix="") -> StepOutput:
    loss, of_generator = losses(model, batch.x)
    optimizers[f"{prefix}discriminator"].step(loss)
    loss = of_generator()
    optimizers[f"{prefix}generator"].step(loss)
    return StepOutput(loss.detach(), targets=batch.x)


def two(**others):
    return {"generator": optim.AdamW(), "discriminator": optim.Sgd(momentum=0.9), **others}


RATES = {"generator": optim.Cosine(0.02, 12), "discriminator": lambda step: 0.05 / (1 + step)}


def train(folder, how=step, optimizers=None, rates=None, model=None, **settings):
    defaults = {"train": Loader(data(), 4, shuffle=True), "duration": "2 epochs", "log_every": 1, "seed": 0}
    training = supervised(folder, {**defaults, "check": True}, **settings)
    model = gan() if model is None else model
    optimizers = two() if optimizers is None else optimizers
    learner = Learner(model, optimizers, RATES if rates is None else rates, step=how)
    return training.run(learner), learner


def by_hand(clip_norm=None) -> nn.Module:
    """The same training with torch's optimizers, which clear and fill the gradients of both parts."""
    model = gan()
    torch.manual_seed(0)
    parts = {
        "generator": torch.optim.AdamW(model["generator"].parameters()),
        "discriminator": torch.optim.SGD(model["discriminator"].parameters(), momentum=0.9),
    }
    number, loader = 0, Loader(data(), 4, shuffle=True)

    def update(name, loss):
        parts[name].param_groups[0]["lr"] = RATES[name](number)
        model.zero_grad()
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model[name].parameters(), clip_norm)
        parts[name].step()

    for epoch in range(2):
        for batch in loader.epoch(epoch):
            loss, of_generator = losses(model, batch.x)
            update("discriminator", loss)
            update("generator", of_generator())
            number += 1
    return model


@pytest.mark.sample(1)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_it_is_the_loop_by_hand(tmp_path, clip_norm):
    result, _ = train(tmp_path / "run", clip_norm=clip_norm, check=clip_norm is None)
    for p, q in zip(result.model.parameters(), by_hand(clip_norm).parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert (result.position.step, result.position.epoch) == (12, 2)
    with RunReader(tmp_path / "run") as run:
        for name, rate in RATES.items():
            rates = [rate(number) for number in range(12)]
            assert list(run.points(f"learning_rate/{name}").values) == pytest.approx(rates)
        assert list(run.points("learning_rate").values) == pytest.approx(
            [RATES["generator"](n) for n in range(12)]
        )
        names = {series.name for series in run.series()}
        assert ("gradient_norm/discriminator" in names) == (clip_norm is not None)


def test_averages_are_evaluated_and_saved(tmp_path):
    optimizers = two(generator=optim.Ema(optim.AdamW(), decay=0.5))
    result, learner = train(tmp_path / "run", optimizers=optimizers, check=False)
    averaged = [p.detach().clone() for p in result.model["generator"].parameters()]
    judges = [p.detach().clone() for p in result.model["discriminator"].parameters()]
    learner.optimizer.train(result.model)
    assert not all(
        torch.equal(p, q) for p, q in zip(averaged, result.model["generator"].parameters(), strict=True)
    )
    assert all(
        torch.equal(p, q) for p, q in zip(judges, result.model["discriminator"].parameters(), strict=True)
    )


def test_only_the_parameters_of_the_optimizer_get_gradients(tmp_path):
    """The generator's loss passes through the discriminator, and the step may add up gradients itself."""
    seen = []

    def how(model, batch, optimizers):
        loss, of_generator = losses(model, batch.x)
        judge = optimizers["discriminator"]
        first = judge.gradients(loss, retain_graph=True)
        seen.append((first.keys(), judge.learning_rate))
        result = judge.step(first.accumulate(judge.gradients(loss)).scale(0.5), clip_norm=1e-3)
        seen.append(result.norm)
        optimizers["generator"].step(of_generator())
        return StepOutput(loss.detach(), targets=batch.x)

    result, _ = train(tmp_path / "run", how, check=False, duration="1 step", log_gradient_norm=True)
    (paths, rate), norm = seen
    assert paths == {f"discriminator.{path}" for path, _ in gan()["discriminator"].named_parameters()}
    assert rate == 0.05
    assert all(p.grad is None for p in result.model.parameters())
    before, after = gan()["discriminator"].parameters(), result.model["discriminator"].parameters()
    moved = torch.cat([(p - q).flatten() for p, q in zip(after, before, strict=True)])
    assert float(moved.detach().norm()) == pytest.approx(0.05 * 1e-3, rel=1e-3)
    assert float(norm) > 1e-3
    with RunReader(tmp_path / "run") as run:
        assert run.points("gradient_norm/discriminator").values[0] == pytest.approx(float(norm))


def test_float16_scales_each_loss_and_skips_by_part(tmp_path):
    def overflowing(model, batch, optimizers):
        loss, of_generator = losses(model, batch.x)
        overflow.append(not loss.is_meta)
        optimizers["discriminator"].step(1e30 * loss if sum(overflow) == 3 else loss)
        loss = of_generator()
        optimizers["generator"].step(loss)
        return StepOutput(loss.detach(), targets=batch.x)

    overflow: list[bool] = []
    result, _ = train(tmp_path / "run", overflowing, precision="float16", check=False)
    with RunReader(tmp_path / "run") as run:
        assert list(run.points("skipped_steps").values) == [0, 0] + [1] * 10
        assert list(run.points("loss_scale").values) == [2.0**16] * 2 + [2.0**15] * 10
    for p, q in zip(result.model.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0.1)


@pytest.mark.full
def test_steps_that_are_not_finite_are_skipped(tmp_path):
    bad = data()
    bad.columns["x"][5] = float("nan")
    result, _ = train(tmp_path / "run", train=Loader(bad, 4), on_nan="skip", duration="1 epoch", check=False)
    assert all(value.isfinite().all() for value in result.model.state_dict().values())
    with RunReader(tmp_path / "run") as run:
        (event,) = run.events("non_finite")
    assert (event.step, event.data["samples"]) == (2, [4, 5, 6, 7])


def test_a_rate_set_by_a_command_moves_all(tmp_path):
    def commanding(model, batch, optimizers):
        commands.append(not batch.x.is_meta)
        if sum(commands) == 4:
            send(tmp_path / "run", "lr", 0.002)
        return step(model, batch, optimizers)

    commands: list[bool] = []
    rates = {"generator": 0.01, "discriminator": 0.1}
    train(tmp_path / "run", commanding, rates=rates, check=False)
    with RunReader(tmp_path / "run") as run:
        (command,) = run.events("command")
        assert command.data["reason"] == "group discriminator by the factor 0.2"
        for name, before, after in (("generator", 0.01, 0.002), ("discriminator", 0.1, 0.02)):
            values = run.points(f"learning_rate/{name}").values
            assert list(values) == pytest.approx([before] * 4 + [after] * 8)


def test_one_rate_for_all_and_patterns(tmp_path):
    optimizers = {"generator.0|generator.1": optim.Sgd(), "*": optim.Sgd()}

    def how(model, batch, optimizers):
        loss, of_generator = losses(model, batch.x)
        for name in optimizers:
            optimizers[name].step(loss + of_generator(), retain_graph=name != "*")
        return StepOutput(loss.detach(), targets=batch.x)

    result, _ = train(tmp_path / "run", how, optimizers, 0.1, check=False, duration="1 step")
    assert not any(
        torch.equal(p, q) for p, q in zip(result.model.parameters(), gan().parameters(), strict=True)
    )


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = gan()

    def training_step(self, batch, optimizers):
        return step(self.parts, batch, optimizers, "parts.")

    def validation_step(self, batch):
        loss, _ = losses(self.parts, batch.x)
        return StepOutput(loss, targets=batch.x)


def test_a_models_own_steps(tmp_path):
    optimizers = {f"parts.{name}": inner for name, inner in two().items()}
    result, learner = train(
        tmp_path / "run", None, optimizers, 0.01, Own(), valid=Loader(data(), 24), checkpoints=[KeepLast(1)]
    )
    assert "valid/loss" in result.values
    before = {path: value.clone() for path, value in result.model.state_dict().items()}
    update_batch_norm(learner, Loader(data(), 4))
    changed = {
        path for path, value in result.model.state_dict().items() if not torch.equal(value, before[path])
    }
    assert {path.rpartition(".")[2] for path in changed} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert result.checkpoints[-1].position.step == 12


def without_graph(model, batch, optimizers):
    loss, _ = losses(model, batch.x)
    optimizers["generator"].step(loss)  # which does not depend on it
    return StepOutput(loss)


def misnamed(model, batch, optimizers):
    optimizers["generater"].step(losses(model, batch.x)[0])


def half(model, batch, optimizers):
    loss, _ = losses(model, batch.x)
    optimizers["discriminator"].step(loss)
    return StepOutput(loss.detach(), targets=batch.x)


REFUSED = {
    "a loss of another part": (BurntError, {"how": without_graph}, "depends on no trainable parameter"),
    "a name that is none": (DefinitionError, {"how": misnamed}, "did you mean 'generator'?"),
    "accumulate": (ConfigError, {"accumulate": 2}, "optimizers[name].gradients(loss)"),
    "no validation step": (DefinitionError, {"valid": Loader(data(), 24)}, "validation_step=function"),
    "a part that is none": (
        OptimError, {"optimizers": two(generator_2=optim.Sgd()), "rates": 0.1}, "did you mean 'generator'?",
    ),
    "a parameter without": (
        OptimError, {"optimizers": {"generator": optim.Sgd()}, "rates": 0.1}, "belongs to no optimizer",
    ),
    "a closure": (OptimError, {"optimizers": two(generator=optim.Lbfgs())}, "cannot be one of several"),
    "one twice": (
        OptimError, {"optimizers": dict.fromkeys(two(), optim.Sgd())}, "two names share one optimizer object",
    ),
    "another rate": (
        DefinitionError, {"rates": {"generator": 0.1, "discriminater": 0.1}}, "did you mean 'discriminator'?",
    ),
    "torch's": (
        DefinitionError,
        {"optimizers": two(generator=torch.optim.SGD([torch.zeros(1)], 0.1))},
        "in        generator",
    ),
    "none": (DefinitionError, {"optimizers": {}}, "one optimizer or more"),
    "a rate below 0": (
        OptimError, {"rates": {"generator": 0.1, "discriminator": lambda step: -0.1}}, "at least 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_step(tmp_path, name):
    error, arguments, words = REFUSED[name]
    with refused(error, words):
        train(tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_the_check_names_parameters_that_nothing_trains(tmp_path, capsys):
    train(tmp_path / "run", half, monitor="plain", duration="1 step")
    out = capsys.readouterr().out
    assert "Warning: generator.0.weight will not be trained" in out
    assert "discriminator.0.weight will not" not in out


def test_other_optimizers_do_not_resume_it(tmp_path):
    settings = {"duration": "3 steps", "checkpoints": [KeepLast(1)], "check": False}
    train(tmp_path / "run", **settings)
    swapped = dict(reversed(two().items()))
    with pytest.raises(OptimError, match="the state of some optimizers does not fit others"):
        train(tmp_path / "run", optimizers=swapped, resume=True, **settings)
    learner = Learner(gan(), two(), RATES, step=step)
    with pytest.raises(OptimError, match=r"optimizers\['generator'\]\.step\(loss\)"):
        learner.optimizer.step(0.1, learner.model, {})
