"""Trainings with groups, averages of weights, and an optimizer that evaluates the loss itself."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import OptimError
from burnt.kernels import StepResult
from burnt.store.control import send
from burnt.train import (
    ClassificationOutput,
    KeepLast,
    Learner,
    RunReader,
    SupervisedTraining,
    evaluate,
    update_batch_norm,
)
from burnt.train.metrics import Accuracy
from tests.train.cases import assert_same_tensors, refused
from tests.train.exact import Halving

PER_EPOCH, STEPS = 4, 12


def rate(step: int) -> float:
    return 0.05 / (1 + step)


def own_rate(step: int) -> float:
    return 0.1 / (2 + step)


def groups() -> optim.Groups:
    return optim.Groups(
        [
            ("*.bias|1", optim.AdamW(weight_decay=0), own_rate),
            (optim.matrices, optim.Muon(), optim.Warmup(3, optim.Cosine(0.02, 9)), 1.0),
            ("*", optim.Sgd(momentum=0.9)),
        ]
    )


MAKERS = {
    "ema": lambda: optim.Ema(optim.AdamW(), decay=0.9),
    "swa-closure": lambda: optim.Swa(Halving(momentum=0.9), start=2),
}


class Trial:
    """A training of 3 epochs with 4 steps each; `at` has commands by step."""

    def __init__(self, folder, optimizer, *, init_seed=0, at=None, **settings: Any) -> None:
        torch.manual_seed(init_seed)
        self.folder, self.optimizer, self.at = folder, optimizer, dict(at or {})
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
        )
        self.evaluated: list[torch.Tensor] = []  # the first weight in each validation

        schedule = settings.pop("scheduled", rate)
        data = TensorDataset(**tensors())
        training = SupervisedTraining(
            folder,
            train=Loader(data, 5, shuffle=True, seed=3),
            metrics=[Accuracy()],
            **{
                "valid": Loader(data, 20),
                "duration": f"{STEPS} steps",
                "checkpoints": [KeepLast(20)],
                "device": "cpu",
                "log_every": 1,
                "monitor": "off",
                **settings,
            },
        )
        self.learner = Learner(self.model, optimizer, schedule, step=self.step)
        self.result = training.run(self.learner)
        self.rng = torch.get_rng_state()

    def step(self, model: nn.Module, batch) -> ClassificationOutput:
        logits = model(batch.x)
        now: Any = None  # the check before the first step
        if (self.folder / "run.db").exists() and not model.training:
            self.evaluated.append(model[0].weight.detach().clone())
        elif self.at:
            now = int(self.optimizer.into_record().tensors["/steps"].max()) + 1
        for kind, value in self.at.pop(now, ()):
            send(self.folder, kind, value)
        return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)

    def state(self) -> dict[str, torch.Tensor]:
        return {**self.model.state_dict(), **self.optimizer.into_record().tensors, "rng": self.rng}

    def history(self) -> dict[tuple[str, str], list[float]]:
        with RunReader(self.folder) as run:
            return {
                (s.name, s.split): list(run.points(s.name, s.split).values)
                for s in run.series()
                if "second" not in s.name and "wait" not in s.name
            }


def tensors() -> dict[str, torch.Tensor]:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(7))
    return {"x": x, "y": (x.sum(1) > 0).long()}


def assert_same(one: Trial, other: Trial) -> None:
    assert_same_tensors(one.state(), other.state())
    assert one.result.values == other.result.values
    assert one.history() == other.history()


# averages


@pytest.mark.parametrize("name", ["ema", pytest.param("swa-closure", marks=pytest.mark.full)])
def test_the_averages_are_evaluated_saved_and_returned_and_others_trained(tmp_path, name):
    """Against the optimizer alone: the same training, whose weights are averaged by hand."""
    plain = Trial(tmp_path / "plain", MAKERS[name]().optimizer, checkpoint_every="1 step")
    trial = Trial(tmp_path / "run", MAKERS[name]())
    weights = [
        burnt.load(tmp_path / "plain", step, model=plain.model)[0].weight.detach().clone()
        for step in range(1, STEPS + 1)
    ]
    average, averages = weights[0], []
    for step, weight in enumerate(weights, 1):
        if name == "ema":
            average = average.lerp(weight, 1 - min(0.9, (1 + step) / (10 + step)))
        else:
            average = weight if step <= 2 else torch.stack(weights[2:step]).mean(0)
        averages.append(average)
    ends = averages[PER_EPOCH - 1 :: PER_EPOCH]
    for evaluated, right in zip(trial.evaluated, ends, strict=True):
        torch.testing.assert_close(evaluated, right)
        assert not torch.equal(right, weights[-1])
    saved = trial.result.checkpoints[-1].path
    assert torch.equal(
        burnt.record.Record.load(saved / "model.safetensors").tensors["0.weight"], trial.evaluated[-1]
    )
    result = trial.result.model
    assert result is trial.model
    assert torch.equal(result[0].weight, trial.evaluated[-1])
    metrics = evaluate(trial.learner, Loader(TensorDataset(**tensors()), 20))
    assert metrics["loss"] == trial.result.values["valid/loss"]
    trial.optimizer.train(trial.model)
    torch.testing.assert_close(trial.model[0].weight.detach(), weights[-1], rtol=0, atol=0)
    # The training saw none of it.
    assert trial.history()["loss", "train"] == plain.history()["loss", "train"]


def test_a_learner_goes_on_from_the_weights_that_it_trained(tmp_path):
    whole = Trial(tmp_path / "whole", MAKERS["ema"](), duration="12 steps")
    trial = Trial(tmp_path / "run", MAKERS["ema"](), duration="8 steps")
    again = SupervisedTraining(
        tmp_path / "run",
        train=Loader(TensorDataset(**tensors()), 5, shuffle=True, seed=3),
        duration="12 steps",
        device="cpu",
        monitor="off",
        resume=True,
    )
    again.run(trial.learner)
    assert torch.equal(trial.model[0].weight, whole.model[0].weight)


def test_without_averages_the_optimizer_of_a_checkpoint_is_refused(tmp_path):
    Trial(tmp_path / "run", MAKERS["ema"](), duration="4 steps")
    with refused(OptimError, "found     Ema"):
        Trial(tmp_path / "run", optim.AdamW(), resume=True)


@pytest.mark.parametrize("given", ["learner", "model"])
def test_statistics_of_batch_norm_are_recomputed_as_by_torch(given):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), burnt.nn.BatchNorm(8, momentum=0.3), nn.Linear(8, 2)
    )
    model[3].eval()
    twin, data = copy.deepcopy(model), tensors()
    loader = Loader(TensorDataset(**data), 6)

    def step(model, batch):
        return ClassificationOutput(F.cross_entropy(model(batch.x), batch.y), None, batch.y)

    learner = Learner(model, optim.Sgd(), 0.1, step=step)
    update_batch_norm(
        learner if given == "learner" else model, loader, step=None if given == "learner" else step
    )
    torch.optim.swa_utils.update_bn(data["x"].split(6), twin)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name])
    assert [(m.training, getattr(m, "momentum", None)) for m in model] == [
        (True, None), (True, 0.1), (True, 0.3), (False, None),
    ]  # fmt: skip
    update_batch_norm(nn.Linear(1, 1), None, step=step)  # has none: the batches are not looked at


# groups


def test_the_rates_of_groups_are_series_and_a_command_scales_them(tmp_path):
    at = {4: [("lr", 0.5)], 6: [("lr", "auto")], 8: [("lr", 0.25)]}
    trial = Trial(tmp_path / "run", groups(), at=at)
    history = trial.history()
    factor = {4: 0.5 / rate(4), 5: 0.5 / rate(4)} | {step: 0.25 / rate(8) for step in range(8, STEPS)}
    set_to = {4: 0.5, 5: 0.5} | dict.fromkeys(range(8, STEPS), 0.25)
    # The factor is that of the first step after the command.
    assert history["learning_rate", "train"] == [set_to.get(step, rate(step)) for step in range(STEPS)]
    expected = [own_rate(step) * factor.get(step, 1.0) for step in range(STEPS)]
    assert history["learning_rate/*.bias|1", "train"] == pytest.approx(expected)
    assert ("learning_rate/matrices", "train") in history
    assert ("learning_rate/*", "train") not in history


def test_the_answer_to_a_new_rate_names_the_groups(tmp_path):
    at = {4: [("lr", 0.5)], 6: [("lr", "auto")]}
    trial = Trial(tmp_path / "run", groups(), at=at, scheduled=lambda step: 0.25)
    with RunReader(trial.folder) as run:
        answers = [event.data["reason"] for event in run.events() if event.kind == "command"]
    assert answers == ["groups *.bias|1, matrices by the factor 2", "groups *.bias|1, matrices as scheduled"]


def test_relative_to_a_scheduled_rate_of_0_groups_keep_their_rates(tmp_path):
    trial = Trial(tmp_path / "run", groups(), at={4: [("lr", 0.5)]}, scheduled=lambda step: 0.0)
    assert trial.history()["learning_rate", "train"] == [0.0] * 4 + [0.5] * 8
    assert trial.history()["learning_rate/*.bias|1", "train"] == [own_rate(step) for step in range(STEPS)]


@pytest.mark.full
def test_the_factor_of_a_command_survives_resumes(tmp_path):
    at, settings = {4: [("lr", 0.5)]}, {"duration": "8 steps"}
    whole = Trial(tmp_path / "whole", groups(), at=at, **settings)
    Trial(tmp_path / "run", groups(), at={4: [*at[4], ("stop", None)]}, **settings)
    second = Trial(tmp_path / "run", groups(), at={6: [("stop", None)]}, resume=True, **settings)
    assert second.result.position.step == 6
    assert_same(Trial(tmp_path / "run", groups(), resume=True, init_seed=9, **settings), whole)


@pytest.mark.sample(1)
@pytest.mark.parametrize("commands", [[("lr", 0.5)], [("save", None), ("lr", 0.5)]])
def test_a_rate_set_right_after_a_checkpoint_survives_a_resume(tmp_path, commands):
    settings = {"checkpoint_every": "1 step", "duration": "8 steps"}
    whole = Trial(tmp_path / "whole", groups(), at={6: commands}, **settings)
    Trial(tmp_path / "run", groups(), at={6: [*commands, ("stop", None)]}, **settings)
    assert_same(Trial(tmp_path / "run", groups(), resume=True, init_seed=9, **settings), whole)


@pytest.mark.full
def test_other_groups_are_refused_and_other_options_reported(tmp_path, capsys):
    Trial(tmp_path / "run", optim.Groups([("0", optim.AdamW()), ("*", optim.Sgd())]), duration="4 steps")
    with refused(OptimError, "expected  5: AdamW; *: Sgd\n  found     0: AdamW; *: Sgd"):
        Trial(tmp_path / "run", optim.Groups([("5", optim.AdamW()), ("*", optim.Sgd())]), resume=True)
    other = optim.Groups([("0", optim.AdamW(weight_decay=0.2), 0.1), ("*", optim.Sgd())])
    Trial(tmp_path / "run", other, resume=True, monitor="plain")
    assert (
        "Warning: the optimizer changed since the checkpoint: was Groups([('0', AdamW("
        in capsys.readouterr().out
    )


@pytest.mark.sample
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("optimizer", "scheduled", "words"),
    [
        (optim.Groups([("5.bais", optim.Sgd()), ("*", optim.Sgd())]), rate, ["no parameter: 5.bais"]),
        (optim.Groups([("5", optim.Muon()), ("*", optim.Sgd())]), rate, ["5.bias", "matrices"]),
        (optim.Ema(optim.Muon()), rate, ["0.bias", "optim.matrices"]),
        (optim.Groups([("5", optim.Sgd(), lambda step: None), ("*", optim.Sgd())]), rate, ["group '5'"]),
        (optim.Sgd(), lambda step: float("nan"), ["learning rate", "found     nan"]),
        (optim.Sgd(), lambda step: None, ["learning rate", "found     None"]),
    ],
)
def test_what_cannot_step_is_refused_before_the_folder_is_made(tmp_path, optimizer, scheduled, words, check):
    with pytest.raises(OptimError) as caught:
        Trial(tmp_path / "run", optimizer, scheduled=scheduled, check=check)
    assert [word for word in words if word not in str(caught.value)] == []
    assert not (tmp_path / "run").exists()


# an optimizer that evaluates the loss


class Noting(optim.Sgd):
    """Evaluates the loss three times, in a context without gradients, and notes what it was given."""

    needs_closure = True

    def step_with(self, lr, model, closure, *, clip_norm=None) -> StepResult:
        with torch.no_grad():
            given = [closure() for _ in range(3)]
        self.noted.append((lr, clip_norm, [float(loss) for loss, _ in given]))
        assert not given[0][0].requires_grad
        assert given[0][1].keys() == model.keys()
        return self.step(lr, model, given[0][1], clip_norm=clip_norm)


@pytest.mark.sample(1)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_metrics_are_of_the_first_evaluation(tmp_path, clip_norm):
    optimizer = Noting()
    optimizer.noted = []
    trial = Trial(tmp_path / "run", optimizer, clip_norm=clip_norm, precision="bfloat16")
    assert [lr for lr, _, _ in optimizer.noted] == [rate(step) for step in range(STEPS)]
    assert {clip for _, clip, _ in optimizer.noted} == {clip_norm}
    assert trial.history()["loss", "train"] == pytest.approx([losses[0] for _, _, losses in optimizer.noted])
    assert all(losses[0] != losses[1] for _, _, losses in optimizer.noted)  # dropout draws anew
