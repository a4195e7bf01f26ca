"""SupervisedTraining: the checks before the first step, errors during the training, and its overhead."""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import os
import signal
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils._python_dispatch import TorchDispatchMode

import burnt
from burnt import optim
from burnt.data import Batch, Loader
from burnt.errors import (
    BurntError,
    CheckpointError,
    ConfigError,
    DataError,
    DefinitionError,
    MetricError,
    NonFiniteError,
    OptimError,
    RecordError,
    RunError,
    ShapeError,
    UnsupportedError,
)
from burnt.store.control import send
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    Interrupted,
    KeepBest,
    KeepLast,
    Learner,
    Plateau,
    Profiler,
    RunReader,
    StepOutput,
    SupervisedTraining,
    evaluate,
)
from burnt.train.checks.targets import TargetChecks
from burnt.train.code.source import started_by
from burnt.train.metrics import Accuracy, ConfusionMatrix, Loss, Metric
from burnt.train.metrics.monitored_metric import RunMetrics
from tests import forked
from tests.train.cases import bare, labelled, refused


def loader(n=20, batch_size=4) -> Loader:
    return labelled(n, batch_size)


def net(classes=3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, classes))


def step(model: nn.Module, batch: Batch) -> ClassificationOutput:
    logits = model(batch.x)
    return ClassificationOutput(F.cross_entropy(logits, batch.y), logits, batch.y)


def learner(model=None, schedule=0.01, how=step, **more) -> Learner:
    return Learner(net() if model is None else model, optim.AdamW(), schedule, step=how, **more)


def training(folder, **settings) -> SupervisedTraining:
    defaults = {
        "train": loader(),
        "valid": loader(),
        "duration": "1 epoch",
        "monitor": "off",
        "device": "cpu",
    }
    return SupervisedTraining(folder, **{**defaults, **settings})


# before the first step


class Looked:
    """The settings and the Learner of a training that must be refused, and words of the message."""

    def __init__(self, error, *words, how=step, model=None, validation_step=None, **settings):
        self.error, self.words, self.settings = error, words, settings
        self.how, self.model, self.validation_step = how, model, validation_step


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(9, 3))

    def forward(self, x):
        return self.layers(x)


def unreduced(model, batch):
    logits = model(batch.x)
    return StepOutput(F.cross_entropy(logits, batch.y, reduction="none"), logits, batch.y)


def squared_error(outputs, targets):
    return StepOutput((outputs - targets.double()).square().mean(), outputs, targets)


def crashing(model, batch):
    torch.rand(3)
    return {}["no such key"]


def labels_too_large(model, batch):
    logits = model(batch.x)
    return ClassificationOutput(burnt.nn.CrossEntropy()(logits, batch.y + 3), logits, batch.y + 3)


class Unsized:
    def __init__(self, *batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Scaled(burnt.Module):
    """Its static field is nothing that a checkpoint could hold."""

    layers: nn.Sequential
    act: object

    def forward(self, x):
        return self.act(self.layers(x))


def frozen() -> nn.Sequential:
    model = net()
    burnt.freeze(model)
    return model


def detached(model, batch):
    output = step(model, batch)
    return StepOutput(output.loss.detach(), output.outputs, output.targets)


REFUSED = {
    "frozen": Looked(
        BurntError,
        "the loss depends on no trainable parameter",
        "0 trainable parameters",
        "is the model frozen",
        model=frozen(),
    ),
    "detached": Looked(
        BurntError, "the loss depends on no trainable parameter", "6 trainable parameters", how=detached
    ),
    "unsavable": Looked(
        RecordError, "a static field cannot be saved", "in        act", model=Scaled(net(), torch.relu)
    ),
    "targets of a metric": Looked(
        MetricError,
        "accuracy cannot find the class axis",
        "labels.argmax(1) of probabilities",
        metrics=[Accuracy()],
        valid=None,
        how=lambda model, batch: StepOutput(step(model, batch).loss, model(batch.x), batch.x[:, :3]),
    ),
    "kept metric": Looked(
        MetricError, "KeepBest monitors a metric", "one of: loss", checkpoints=[KeepBest(Accuracy())]
    ),
    "split without validation": Looked(
        MetricError, "give valid= a loader", valid=None, stopping=EarlyStopping(Loss(), "1 epoch")
    ),
    "twice": Looked(
        MetricError,
        "two metrics have the same name",
        "Metric(name='accuracy2')",
        metrics=[Accuracy(), Accuracy()],
    ),
    "loss": Looked(
        ShapeError,
        "the loss of the training step is not a scalar",
        "shape (4,) for a batch of 4",
        how=unreduced,
    ),
    "validation loss": Looked(
        ShapeError, "the loss of the validation step is not a scalar", "shape (4,)", validation_step=unreduced
    ),
    "output": Looked(
        DefinitionError,
        "the training step did not return a StepOutput",
        "lambda",
        "found     Tensor",
        how=lambda model, batch: model(batch.x).mean(),
        valid=None,
    ),
    "no output": Looked(
        DefinitionError, "did not return a StepOutput", "NoneType", how=lambda model, batch: None, valid=None
    ),
    "a number as loss": Looked(
        DefinitionError,
        "the loss of the training step is not a tensor",
        "found     float",
        "without .item()",
        how=lambda model, batch: StepOutput(0.5, targets=batch.y),
        valid=None,
    ),
    "validation": Looked(
        BurntError,
        "the validation step fails on its first batch",
        "Sequential, valid, Batch(x: (4, 6), y: (4,))",
        "KeyError: 'no such key'",
        validation_step=crashing,
    ),
    "shapes": Looked(
        ShapeError,
        "ShapeError in model.layers.2   Linear(9 -> 3)",
        "expected  (..., 9)",
        "found     (4, 8)",
        model=Stack(),
    ),
    "labels": Looked(
        DataError,
        "a label is not a class",
        "labels from 0 to 2, for logits of 3 classes",
        validation_step=labels_too_large,
    ),
    "confusion": Looked(
        MetricError, "confusion was built for another number of classes", metrics=[ConfusionMatrix(2)]
    ),
    "column and row": Looked(
        ShapeError,
        "the loss compares each prediction with every target",
        "in        the training step",
        "one shape in sub",
        "(4, 1) and (4,), which broadcast to (4, 4)",
        "squeeze(-1) the tensor of shape (4, 1)",
        how=lambda model, batch: squared_error(model(batch.x)[:, :1], batch.x.sum(1)),
    ),
    "masks of bytes": Looked(
        BurntError,
        "expected scalar type Long but found Byte",
        "masks.long()",
        how=lambda model, batch: StepOutput(
            F.cross_entropy(model(batch.x)[:, :, None, None], batch.y.byte()[:, None, None])
        ),
    ),
    "column and row, outputs not returned": Looked(
        ShapeError,
        "the loss compares each prediction with every target",
        "(4, 1) and (4,), which broadcast to (4, 4)",
        how=lambda model, batch: StepOutput(
            (model(batch.x)[:, :1] - (targets := batch.x.sum(1))).square().mean(), targets=targets
        ),
    ),
    "column and row in a loss": Looked(
        ShapeError,
        "one shape in l1_loss",
        how=lambda model, batch: StepOutput(F.l1_loss(model(batch.x)[:, :1], batch.x[:, 0])),
    ),
    "no batches": Looked(DataError, "train= gave no batches", "is its dataset empty?", train=Unsized()),
    "no validation": Looked(DataError, "valid= gave no batches", valid=Unsized()),
    "empty list": Looked(DataError, "train= has no batches", train=[]),
    "iterator": Looked(DataError, "valid= is an iterator", valid=iter([1])),
    "precision": Looked(UnsupportedError, "precision='fp8' does not exist", "bfloat16", precision="fp8"),
    "strategy": Looked(
        UnsupportedError,
        "strategy='dpd' does not exist",
        "auto, single, ddp or fsdp",
        "did you mean 'ddp'?",
        strategy="dpd",
    ),
    "monitor": Looked(UnsupportedError, "monitor='web' does not exist", "plain or off", monitor="web"),
    "config": Looked(RunError, "the config cannot be written as JSON", config={"f": step}),
}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"log_every": "5 steps"}, ConfigError, ["in        log_every", "a number of steps", "'5 steps'"]),
        ({"log_every": 0}, ConfigError, ["in        log_every", "above 0"]),
        ({"duration": "10"}, ConfigError, ["a duration needs a number and a unit", "'10'"]),
        ({"clip_norm": "1"}, ConfigError, ["in        clip_norm", "a number above 0", "'1'"]),
        ({"clip_norm": -1.0}, ConfigError, ["in        clip_norm", "-1.0"]),
        ({"seed": "a"}, ConfigError, ["in        seed", "a whole number", "'a'"]),
        ({"resume": "last.ckpt"}, ConfigError, ["in        resume", "True: the run in the folder"]),
        ({"checkpoints": "best"}, ConfigError, ["in        checkpoints", "[KeepLast(2),", "'best'"]),
        ({"checkpoints": 3}, ConfigError, ["in        checkpoints", "found     3"]),
        ({"checkpoints": KeepLast(1)}, ConfigError, ["takes a list of keepers", "KeepLast, outside"]),
        ({"checkpoints": [KeepLast]}, ConfigError, ["takes a list of keepers", "class", "KeepLast"]),
        ({"valid": [loader(), loader()]}, ConfigError, ["validation loaders need names", "a list of 2"]),
        ({"callbacks": Profiler()}, DefinitionError, ["callbacks= takes a list", "found     Profiler"]),
        ({"clip_value": 0.0}, ConfigError, ["in        clip_value", "found     0.0"]),
        ({"accumulate": 0}, ConfigError, ["in        accumulate", "found     0"]),
        ({"accumulate": 1.5}, ConfigError, ["in        accumulate", "found     1.5"]),
        ({"on_nan": "skipp"}, ConfigError, ["in        on_nan", "did you mean 'skip'?"]),
        ({"metrics": ["accuracy"]}, MetricError, ["takes metric objects"]),
        ({"metrics": Accuracy}, MetricError, ["expected  a list such as [Accuracy(), Loss()]"]),
        ({"limit_train": 0}, DataError, ["in        limit_train"]),
        ({"limit_valid": 0}, DataError, ["in        limit_valid"]),
        ({"overfit_batches": 0}, DataError, ["in        overfit_batches"]),
        (
            {"overfit_batches": 2, "limit_valid": 5},
            ConfigError,
            ["overfit_batches= replaces the other limits\n  in        limit_valid\n  expected  None\n"],
        ),
    ],
)
def test_settings_that_are_refused_at_once(tmp_path, settings, error, words):
    with refused(error, *words):
        training(tmp_path / "run", **settings)


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch warns of what is refused here
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_first_step_and_nothing_has_happened(tmp_path, name):
    case = REFUSED[name]
    folder = tmp_path / "run"
    ours = learner(case.model, how=case.how, validation_step=case.validation_step)
    state = {key: value.clone() for key, value in ours.model.state_dict().items()}
    modes = [module.training for module in ours.model.modules()]
    rng = torch.get_rng_state()
    with refused(case.error, *case.words):
        training(folder, **case.settings).run(ours)
    assert not folder.exists()
    assert all(torch.equal(value, state[key]) for key, value in ours.model.state_dict().items())
    assert [module.training for module in ours.model.modules()] == modes
    assert not ours.optimizer.into_record().tensors
    assert torch.equal(torch.get_rng_state(), rng)


def squeezed(model, batch):
    outputs, targets = model(batch.x)[:, :1], batch.x.sum(1)
    return StepOutput(F.mse_loss(outputs.squeeze(-1), targets), outputs, targets)


def viewed(model, batch):
    outputs, targets = model(batch.x)[:, :1], batch.x.sum(1)
    return StepOutput((outputs.view_as(targets) - targets).square().mean(), outputs, targets)


def all_pairs(model, batch):
    """A contrastive loss, which compares all labels of the batch."""
    outputs = model(batch.x)
    same = batch.y.unsqueeze(1) == batch.y
    return StepOutput((outputs @ outputs.T * same).mean(), outputs, batch.y)


def one_class(model, batch):
    outputs, targets = model(batch.x)[:, :1], batch.y * 0
    return StepOutput(F.cross_entropy(outputs, targets), outputs, targets)


@pytest.mark.parametrize("how", [squeezed, viewed, all_pairs, one_class])
def test_columns_and_rows_that_are_not_compared(how):
    batch = next(iter(loader()))
    targets = TargetChecks(batch)
    report = burnt.check(net(), batch, call=targets.recorded(how))
    assert not report.unchecked
    targets.check_shapes(report.outputs, "the training step")


def test_the_check_leaves_the_tables_that_a_model_caches(tmp_path):
    table = functools.lru_cache(lambda n: torch.arange(n).float())
    tables = {}

    class Shifted(nn.Linear):
        def forward(self, x):
            if len(x) not in tables:
                tables[len(x)] = torch.ones(len(x), 1)
            return super().forward(x) + table(3) * tables[len(x)]

    training(tmp_path / "run").run(learner(Shifted(6, 3)))
    assert {t.device.type for t in (table(3), *tables.values())} == {"cpu"}
    assert list(tables) == [4]  # the check also tries a batch of 5


def test_a_learner_needs_a_step_and_an_optimizer():
    with refused(DefinitionError, "Sequential has no training step", "training_step(batch) -> StepOutput"):
        Learner(net(), optim.AdamW(), 0.1)
    with pytest.raises(ConfigError, match="Constant cannot be built"):
        Learner(net(), optim.AdamW(), -0.1, step=step)


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        (
            torch.optim.SGD([torch.zeros(1)], lr=0.2),
            "torch.optim.sgd.SGD",
            "Learner(model, burnt.optim.Sgd(), 0.2)",
        ),
        (torch.optim.AdamW, "the class torch.optim.adamw.AdamW", "burnt.optim.AdamW(), 0.001)"),
        (optim.AdamW, "the class burnt.optim.adam.AdamW", "burnt.optim.AdamW(), 0.001)"),
        (torch.optim.RMSprop, "the class torch.optim.rmsprop.RMSprop", "burnt.optim.RmsProp(), 0.001)"),
        (torch.optim.ASGD, "the class torch.optim.asgd.ASGD", None),
    ],
)
def test_what_is_no_optimizer_of_burnt_names_the_one_that_is(given, found, hint):
    with pytest.raises(DefinitionError, match="needs a burnt optimizer") as caught:
        Learner(net(), given, 0.1, step=step)
    assert caught.value.found == found
    assert (caught.value.hint is None) if hint is None else hint in caught.value.hint


SGD = torch.optim.SGD([torch.zeros(1)], lr=0.2)


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        (
            lr_scheduler.StepLR(SGD, 3),
            "torch.optim.lr_scheduler.StepLR",
            "burnt.optim.Step(lr, every, gamma)\n"
            "or optim.TorchSchedule(lambda optimizer: StepLR(optimizer, ...), lr=...)",
        ),
        (
            lr_scheduler.CosineAnnealingLR(SGD, 3),
            "torch.optim.lr_scheduler.CosineAnnealingLR",
            "burnt.optim.Cosine(lr, steps, end)",
        ),
        (
            lr_scheduler.LinearLR,
            "the class torch.optim.lr_scheduler.LinearLR",
            "burnt.optim.Linear(start, end, steps)",
        ),
        (
            lr_scheduler.ReduceLROnPlateau(SGD),
            "torch.optim.lr_scheduler.ReduceLROnPlateau",
            "burnt.train.Plateau(1e-3, metric, patience)",
        ),
        (optim.Cosine, "the class burnt.optim.schedules.decay.Cosine", "burnt.optim.Cosine(lr, steps, end)"),
        ("cosine", "'cosine' (str)", "burnt.optim.Cosine(lr, steps, end)"),
        ("1e-3", "'1e-3' (str)", "a number instead of text: 0.001"),
        (None, "None (NoneType)", "a function of the number of steps"),
    ],
)
def test_what_is_no_schedule_names_the_one_that_is(given, found, hint):
    with pytest.raises(DefinitionError, match="needs a learning rate") as caught:
        Learner(net(), optim.AdamW(), given, step=step)
    assert caught.value.found == found
    assert hint in caught.value.hint


def test_optimizer_and_rate_in_the_wrong_order():
    with pytest.raises(DefinitionError, match="needs a burnt optimizer") as caught:
        Learner(net(), 1e-3, optim.AdamW(), step=step)
    assert caught.value.hint == "the optimizer comes first: Learner(model, AdamW(...), 1e-3)"


def test_a_model_that_load_will_not_build_is_reported_before_training(tmp_path, capsys):
    class OwnConfig(burnt.Config):
        def init(self):
            return Own(nn.Linear(6, 3))

    training(tmp_path / "here", monitor="plain").run(learner(OwnConfig().init()))
    assert "Own.load" not in capsys.readouterr().out
    OwnConfig.__module__ = "elsewhere"
    training(tmp_path / "there", monitor="plain").run(learner(OwnConfig().init()))
    out = capsys.readouterr().out
    assert out.startswith("Warning: Own.load will not build the saved model, because elsewhere.")
    assert "OwnConfig.init is not annotated to return Own." in out


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(RunError, "the run folder cannot be written", str(tmp_path / "file")):
        training(tmp_path / "file" / "run").run(learner())
    training(tmp_path / "run").run(learner())
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    with refused(RunError, f"{tmp_path / 'run'} already holds a run", "continue it with resume=True"):
        training(tmp_path / "run", checkpoints=[KeepBest(Loss())]).run(learner())
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == before


def test_what_the_look_tells_but_does_not_refuse(tmp_path, capsys):
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.used(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    training(tmp_path / "one", monitor="plain").run(learner(Partly()))
    assert "not checked: " in capsys.readouterr().out

    class Unused(Partly):
        def forward(self, x):
            return self.used(x)

    training(tmp_path / "two", monitor="plain").run(learner(Unused()))
    output = capsys.readouterr().out
    assert "unused.weight will not be trained, because the loss does not depend on it" in output
    assert "not checked" not in output


def test_a_model_is_no_learner(tmp_path):
    with pytest.raises(DefinitionError, match="a training runs a Learner") as caught:
        training(tmp_path / "run").run(net())
    assert caught.value.found == "Sequential"


def test_a_step_of_lightning_is_refused():
    class Theirs(nn.Linear):
        def training_step(self, batch, batch_idx): ...

    with pytest.raises(
        DefinitionError, match=r"Theirs\.training_step takes the number of the batch"
    ) as caught:
        Learner(Theirs(2, 2), optim.Sgd(), 0.1)
    assert caught.value.expected == "training_step(self, batch) -> StepOutput"


# when a run breaks


def ended(folder) -> tuple[str, str]:
    with RunReader(folder) as run:
        return run.state(), run.attempts()[-1].end_reason


class Breaking:
    """A step that does something at its n-th call in training."""

    def __init__(self, at, act):
        self.at, self.act, self.calls = at, act, 0

    def __call__(self, model, batch):
        output = step(model, batch)
        if model.training and not output.loss.is_meta:
            self.calls += 1
            if self.calls == self.at:
                return self.act(output)
        return output


def nan_loss(output):
    return StepOutput(output.loss * float("nan"), output.outputs, output.targets)


def nan_gradient(output):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(context, loss):
            return loss.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * float("nan")

    return StepOutput(Bad.apply(output.loss), output.outputs, output.targets)


def raising(error):
    def act(output):
        raise error

    return act


def all_finite(folder) -> bool:
    files = list((folder / "checkpoints").glob("step-*/model.safetensors"))
    assert files
    tensors = [t for file in files for t in burnt.Record.load(file).tensors.values()]
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


@pytest.mark.sample(1)
@pytest.mark.parametrize("log_every", [1, 4])
def test_a_loss_that_is_nan(tmp_path, log_every):
    with pytest.raises(NonFiniteError) as caught:
        training(tmp_path / "run", duration="3 epochs", log_every=log_every).run(
            learner(how=Breaking(7, nan_loss), schedule=0.125)
        )
    newest = tmp_path / "run" / "checkpoints" / "step-00000005"
    steps = "7" if log_every == 1 else "(6, 8)"
    assert str(caught.value) == (
        "the loss became nan\n"
        "  in        step 7, epoch 2, batch 2, samples 4, 5, 6, 7\n"
        "  expected  a finite number\n"
        "  found     nan at a learning rate of 0.125\n"
        f"  hint      to see where it began: burnt.train.replay(training, learner, {steps})\n"
        "            look for bad values in the data, or try a lower learning rate or clip_norm=1.0; "
        f"resume from the last checkpoint, {newest}"
    )
    state, reason = ended(tmp_path / "run")
    assert state == "crashed"
    assert reason.startswith("NonFiniteError: the loss became nan")
    assert all_finite(tmp_path / "run")
    with RunReader(tmp_path / "run") as run:
        (event,) = run.events("error")
    assert event.data["error"] == "NonFiniteError"


@pytest.mark.sample(1)
@pytest.mark.parametrize("act", [nan_loss, nan_gradient])
@pytest.mark.parametrize("at", [4, 5, 6])
def test_nan_is_never_in_a_checkpoint(tmp_path, act, at):
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteError) as caught:
        training(folder, duration="2 epochs", checkpoint_every="2 steps", log_every=100).run(
            learner(how=Breaking(at, act))
        )
    assert all_finite(folder)
    if act is nan_gradient:
        assert "after a finite loss" in str(caught.value) or "the loss became nan" in str(caught.value)
    # What is there can be gone on from.
    training(folder, duration="2 epochs", resume=True).run(learner())
    assert ended(folder) == ("finished", "finished")


@pytest.mark.sample(1)
@pytest.mark.parametrize("log_every", [1, 20])
def test_a_batch_of_no_items_has_no_loss_and_counts_for_nothing(tmp_path, log_every):
    def padded(model, batch):
        output = step(model, batch)
        return StepOutput(output.loss, count=0) if batch.x[0, 0] == 9 else output

    nothing = Batch(x=torch.full((4, 6), 9.0), y=torch.zeros(4, dtype=torch.int64))
    batches = [*loader(), nothing]
    result = training(tmp_path / "run", train=batches, log_every=log_every, valid=[nothing],
                      stopping=EarlyStopping(Loss(), "9 epochs")).run(learner(how=padded))  # fmt: skip
    assert result.position.step == len(batches)
    assert math.isfinite(result.values["train/loss"])
    assert "valid/loss" not in result.values


def test_a_monitored_value_that_never_was_a_number_stops_early_and_is_reported(tmp_path, capsys):
    def never(model, batch):
        output = step(model, batch)
        return StepOutput(output.loss * math.nan, output.outputs, output.targets)

    result = training(
        tmp_path / "run", duration="9 epochs", monitor="plain", stopping=EarlyStopping(Loss(), "2 epochs")
    ).run(learner(validation_step=never))
    assert (result.reason, result.position.epoch) == ("stopped early", 2)
    assert "Stopping early: valid/loss has not been a number for 2 epochs." in capsys.readouterr().out


def test_a_plateau_reduces_the_rate_from_the_next_step_on_and_says_so(tmp_path, capsys):
    plateau = Plateau(
        0.1, Accuracy(), "1 epoch", factor=0.5, threshold=2.0, threshold_mode="abs", min_lr=0.03
    )
    result = training(
        tmp_path / "run", duration="4 epochs", monitor="plain", metrics=[Accuracy()], log_every=1
    ).run(learner(schedule=plateau))
    # No accuracy is better by 2: after each epoch but the first, down to the lowest rate.
    best = result.values["valid/accuracy"] if plateau.best is None else plateau.best
    with RunReader(tmp_path / "run") as run:
        rates = run.points("learning_rate", "train").values
        assert list(rates) == [0.1] * 10 + [0.05] * 5 + [0.03] * 5
        assert [(event.step, event.data) for event in run.events("plateau")] == [
            (step, {"metric": "valid/accuracy", "best": best, "patience": "1 epoch", "rate": rate,
                    "scale": scale, "group": None})
            for step, rate, scale in ((10, 0.05, 0.5), (15, 0.03, 0.25))
        ]  # fmt: skip
        config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["schedule"] == repr(plateau)
    out = capsys.readouterr().out
    reason = f"valid/accuracy has not improved on {best:.4g} for 1 epoch."
    assert f"Reducing the learning rate to 0.05: {reason}" in out
    assert f"Reducing the learning rate to 0.03: {reason}" in out


def stalled(rate: float = 0.1) -> Plateau:
    """Reduces the rate at each validation but the first: no loss is better by so much."""
    return Plateau(rate, "loss", "1 epoch", factor=0.5, threshold=100.0, threshold_mode="abs")


@pytest.mark.full
def test_plateaus_in_groups_are_updated_too_each_once(tmp_path):
    own, shared = stalled(), stalled()
    groups = optim.Groups([("*.weight", optim.Sgd(), own), ("*", optim.AdamW(), shared)])
    trained = Learner(net(), optim.Ema(groups), shared, step=step)
    training(tmp_path / "run", duration="2 epochs").run(trained)
    assert [(plateau.evaluations, plateau.scale) for plateau in (own, shared)] == [(2, 0.5)] * 2
    assert groups.rates == {"*.weight": 0.1, "*": 0.1}
    training(tmp_path / "run", duration="3 epochs", resume=True).run(trained)
    assert [(plateau.evaluations, plateau.scale) for plateau in (own, shared)] == [(3, 0.25)] * 2
    assert groups.rates == {"*.weight": 0.05, "*": 0.05}


@pytest.mark.full
def test_a_plateau_gets_the_state_of_its_own_group(tmp_path):
    def run(learner_rate, epochs: int, **settings) -> Plateau:
        bias = stalled()
        groups = optim.Groups([("*.bias", optim.Sgd(), bias), ("*", optim.Sgd())])
        trained = Learner(net(), groups, learner_rate, step=step)
        training(tmp_path / "run", duration=f"{epochs} epochs", **settings).run(trained)
        return bias

    assert run(0.1, 2).scale == 0.5
    added = stalled()
    assert run(added, 3, resume=True).scale == 0.25
    assert (added.evaluations, added.scale) == (1, 1.0)


def test_reductions_of_groups_are_named_with_the_rate_that_follows(tmp_path, capsys):
    shared = stalled()
    groups = optim.Groups(
        [
            ("0.weight", optim.Sgd(), shared),
            ("0.bias", optim.Sgd(), shared),
            ("*", optim.Sgd(), stalled(0.01)),
        ]
    )

    def commanded(model, batch):
        if model.training and groups.rates and groups.rate_factor == 1:
            send(tmp_path / "run", "lr", 0.8)
        return step(model, batch)

    trained = Learner(net(), groups, stalled(0.4), step=commanded)
    training(tmp_path / "run", duration="3 epochs", monitor="plain", check=False, log_every=1).run(trained)
    out = capsys.readouterr().out
    reason = "valid/loss has not improved on "
    assert f"Reducing the scheduled learning rate to 0.2: {reason}" in out
    assert f"Reducing the learning rate of 0.weight, 0.bias to 0.1: {reason}" in out
    assert f"Reducing the learning rate of * to 0.01: {reason}" in out
    with RunReader(tmp_path / "run") as run:
        reduced = {(e.step, e.data["group"]): e.data["rate"] for e in run.events("plateau")}
        assert [reduced[10, group] for group in (None, "0.weight, 0.bias", "*")] == [0.2, 0.1, 0.01]
        assert run.points("learning_rate/0.bias", "train").values[10] == 0.1
        assert run.points("learning_rate/*", "train").values[10] == 0.01


def test_a_plateau_of_the_training_loss_of_epochs(tmp_path):
    plateau = Plateau(0.1, "loss", "1 epoch", split="train", threshold=100.0, threshold_mode="abs")
    training(tmp_path / "run", valid=None, duration="3 epochs").run(learner(schedule=plateau))
    assert (plateau.evaluations, plateau.scale) == (3, pytest.approx(0.01))


def test_a_plateau_of_a_metric_that_is_not_there(tmp_path):
    with refused(MetricError, "Plateau monitors", "did you mean 'accuracy'?"):
        training(tmp_path / "run", metrics=[Accuracy()]).run(learner(schedule=Plateau(0.1, "acuracy", 3)))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_changed_plateau_is_reported_when_a_run_goes_on(tmp_path, capsys):
    training(tmp_path / "run").run(learner(schedule=Plateau(0.1, Loss(), 3)))
    again = Plateau(0.1, Loss(), 5)
    training(tmp_path / "run", resume=True, monitor="plain").run(learner(schedule=again))
    assert (
        "Warning: the schedule changed since the checkpoint: was Plateau(Constant(lr=0.1), 'valid/loss'"
        in (capsys.readouterr().out)
    )
    assert again.evaluations == 1


def test_what_breaks_between_the_run_folder_and_the_first_step_ends_the_run(tmp_path, monkeypatch):
    ours = learner()
    monkeypatch.setattr(torch, "manual_seed", raising(ValueError("no number")))
    with pytest.raises(ValueError, match="no number"):
        training(tmp_path / "run", seed=1).run(ours)
    state, reason = ended(tmp_path / "run")
    assert state == "crashed"
    assert reason.startswith("ValueError")


def test_an_exception_of_the_step_is_raised_as_it_is_and_recorded(tmp_path):
    error = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        training(tmp_path / "run").run(learner(how=Breaking(3, raising(error))))
    assert caught.value is error
    assert ended(tmp_path / "run") == ("crashed", "ZeroDivisionError: mine")
    with RunReader(tmp_path / "run") as run:
        (event,) = run.events("error")
    assert "Traceback" in event.data["traceback"]
    assert event.data.pop("traceback").splitlines()[-3] == "ZeroDivisionError: mine"
    data = {"error": "ZeroDivisionError", "message": "mine", "cause": "exception"}
    assert (event.step, event.data) == (2, data)


def test_resuming_what_does_not_fit(tmp_path):
    folder = tmp_path / "run"
    training(folder).run(learner())
    with pytest.raises(CheckpointError, match="does not fit the model"):
        training(folder, resume=True, duration="2 epochs").run(learner(net(classes=4)))
    with pytest.raises(OptimError, match="the state of one optimizer does not fit another"):
        training(folder, resume=True, duration="2 epochs").run(Learner(net(), optim.Sgd(), 0.1, step=step))
    newest = folder / "checkpoints" / "step-00000005"
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="step-00000005 cannot be used"):
        training(folder, resume=True, duration="2 epochs").run(learner())
    assert ended(folder) == ("finished", "finished")


def test_an_error_in_a_step_says_which_samples_it_had(tmp_path):
    broken = loader(n=20, batch_size=4)
    broken.dataset.columns["y"][13] = 7

    with pytest.raises(IndexError) as caught:
        training(tmp_path / "one", train=broken, valid=None, check=False).run(learner())
    where = "in step 4, epoch 1, batch 4, samples 12, 13, 14, 15; to look into it: "
    assert caught.value.__notes__[0] == f"{where}burnt.train.replay(training, learner, 4, debug=True)"
    with RunReader(tmp_path / "one") as reader:
        (event,) = reader.events("error")
    assert where in event.data["traceback"]

    with pytest.raises(IndexError) as caught, started_by("net.py:main", (), None):
        training(tmp_path / "two", train=broken, valid=None, accumulate=3, check=False).run(learner())
    assert caught.value.__notes__[0] == (
        "in step 2, epoch 1, batches 4, 5, samples 12, 13, 14, 15, 16, 17, 18, 19; to look into it: "
        f"burnt replay {tmp_path / 'two'} --step 2 --pdb"
    )


# signals, in a process of their own

SIGNALLED = """
import os, signal, sys, time
sys.path.insert(0, os.getcwd())
import torch
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

calls = 0

def step(model, batch):
    global calls
    loss = model(batch.x).square().mean()
    if not loss.is_meta:
        calls += 1
        if calls == 3:
            for _ in range(int(sys.argv[3])):
                os.kill(os.getpid(), int(sys.argv[2]))
                sum(range(1000))  # the interpreter handles a signal between two instructions
    return StepOutput(loss)

loader = Loader(TensorDataset(x=torch.randn(40, 3)), 4)
training = SupervisedTraining(sys.argv[1], train=loader, duration="9 epochs", monitor="plain", device="cpu")
training.run(Learner(torch.nn.Linear(3, 1), optim.AdamW(), 0.1, step=step))
print("not reached")
"""


@pytest.mark.parametrize(
    ("number", "code", "again"),
    [
        (signal.SIGINT, 130, "Press Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, "Send SIGTERM", marks=pytest.mark.full),
    ],
)
def test_one_signal_saves_and_ends_quietly(tmp_path, number, code, again):
    folder = tmp_path / "run"
    done = forked.run(SIGNALLED, folder, int(number), 1)
    assert (done.returncode, done.stderr) == (code, "")
    assert f"Stop requested: finishing this step, then saving. {again} again to stop now." in done.stdout
    saved = folder / "checkpoints" / "step-00000003"
    assert (
        f"Stopped after step 3. Saved in {saved}\n"
        f"To resume, run the same program with the folder {saved.parent.parent} and resume=True."
        in (done.stdout)
    )
    assert "not reached" not in done.stdout
    assert saved.is_dir()
    assert ended(folder) == ("stopped", f"interrupted by {number.name}")


def test_two_signals_stop_at_once(tmp_path):
    folder = tmp_path / "run"
    done = forked.run(SIGNALLED, folder, int(signal.SIGINT), 2)
    # Python ends by the signal itself, which a shell shows as 130.
    assert done.returncode in (-signal.SIGINT, 130)
    assert not list((folder / "checkpoints").iterdir())
    assert ended(folder) == ("stopped", "interrupted at once; nothing was saved after the last checkpoint")


# what a step costs and leaves behind


class Readings(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_the_host_waits_for_the_device_once_a_reading_and_never_in_between(tmp_path, monkeypatch):
    seen, reads = [], []
    mode = Readings()
    read = RunMetrics.sums
    monkeypatch.setattr(RunMetrics, "sums", lambda metrics: reads.append(1) or read(metrics))

    def counted(model, batch):
        output = step(model, batch)
        if model.training and not output.loss.is_meta:
            seen.append((mode.count, len(reads)))
        return output

    with mode:
        training(
            tmp_path / "run",
            train=loader(400),
            metrics=[Accuracy(), Accuracy(ignore_index=0, name="some"), ConfusionMatrix(3)],
            log_every=25,
            clip_norm=1.0,
            check=False,
        ).run(learner(how=counted, schedule=optim.Cosine(0.01, 100)))
    assert len(seen) == 100
    # Between two steps: no scalar is read, and the metrics are read together where they are logged.
    assert {waits for waits, _ in seen} == {0}
    readings = [reads for _, reads in seen]
    assert [after - before for before, after in itertools.pairwise(readings)] == [
        int(number % 25 == 0) for number in range(1, 100)
    ]


def test_a_step_finds_the_memory_of_the_last_one_free(tmp_path):
    last: list[weakref.ref] = []
    alive: list[bool] = []

    def watched(model, batch):
        alive.extend(reference() is not None for reference in last)
        output = step(model, batch)
        last[:] = [weakref.ref(output.loss), weakref.ref(output.outputs)]
        return output

    class Watched(optim.Sgd):
        def step(self, lr, model, grads):
            last.extend(weakref.ref(gradient) for gradient in grads.values())
            super().step(lr, model, grads)

    ours = Learner(net(), Watched(), 0.1, step=watched)
    training(tmp_path / "run", valid=None, check=False).run(ours)
    assert alive == [False] * len(alive)
    assert len(alive) == 4 * (2 + 6)


def test_a_compiled_model_runs_compiled_and_keeps_its_paths(tmp_path):
    calls = []

    def backend(graph, inputs):
        def run(*args):
            calls.append(torch.is_grad_enabled())
            return graph(*args)

        return run

    class Mlp(burnt.Module):
        body: nn.Sequential

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch):
            return step(self, batch)

    torch.manual_seed(0)
    model = Mlp(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)))
    plain = model.fork()
    optimizer = optim.AdamW()
    ours = Learner(torch.compile(model, backend=backend), optimizer, 0.01)
    training(tmp_path / "run").run(ours)
    # The steps, validation; the look at validation before them is not compiled.
    assert calls == [True] * 5 + [False] * 5
    assert {key.partition("/")[0] for key in optimizer.into_record().tensors} == {
        path for path, _ in plain.named_parameters()
    }
    # A checkpoint of a compiled model is one of the plain model.
    resumed = training(tmp_path / "run", duration="2 epochs", resume=True)
    resumed.run(Learner(plain, optim.AdamW(), 0.01))
    assert RunReader(tmp_path / "run").attempts()[-1].resumed_from_step == 5


def test_modes_and_gradients_after_validation_and_training(tmp_path):
    model = net()
    modes = []

    class Frozen(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    model[1] = Frozen(8)

    def seen(model, batch):
        if not batch.x.is_meta:
            modes.append((model.training, model[1].training, torch.is_grad_enabled()))
            assert all(p.grad is None for p in model.parameters())
        return step(model, batch)

    training(tmp_path / "run", duration="2 epochs").run(learner(model, how=seen))
    assert modes[0] == (False, False, False)  # the look
    assert modes[1:] == ([(True, False, True)] * 5 + [(False, False, False)] * 5) * 2
    assert model.training
    assert not model[1].training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", [optim.AdamW, bare(optim.AdamW)])
def test_as_a_loop_written_by_hand(tmp_path, optimizer):
    model, twin = net(), net()
    twin.load_state_dict(model.state_dict())
    model[2], twin[2] = nn.Identity(), nn.Identity()
    # The norm takes this bias out again: of its gradient, rounding alone, Adam would make whole steps.
    model[0].bias.requires_grad_(False)
    twin[0].bias.requires_grad_(False)
    schedule = optim.Cosine(0.05, 10)
    ours = Learner(model, optimizer(), schedule, step=step)
    result = training(tmp_path / "run", duration="2 epochs", clip_norm=0.5).run(ours)
    optimizer = torch.optim.AdamW(twin.parameters(), fused=True)
    for number, batch in enumerate([*loader(), *loader()]):
        optimizer.zero_grad()
        step(twin, batch).loss.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = schedule(number)
        optimizer.step()
    for mine, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other)
    assert (result.position.step, result.position.epoch, result.reason) == (10, 2, "finished")
    assert result.model is model


def test_a_model_with_steps_of_its_own(tmp_path):
    result = training(tmp_path / "run").run(Learner(Own(nn.Linear(6, 3)), optim.AdamW(), 0.1))
    assert result.values["valid/loss"] == 7.0
    assert result.values["train/loss"] != 7.0


def test_steps_as_the_measure_of_everything(tmp_path):
    validated = []

    def seen(model, batch):
        output = step(model, batch)
        if not model.training and not output.loss.is_meta:
            validated.append(1)
        return output

    result = training(
        tmp_path / "run", duration="7 steps", validate_every="3 steps", checkpoint_every="2 steps"
    ).run(learner(how=seen))
    assert (result.position.step, result.position.epoch, result.position.batch) == (7, 1, 2)
    assert len(validated) == 1 + 3 * 5  # the look, then after steps 3 and 6 and at the end
    with RunReader(tmp_path / "run") as run:
        # Step 3 is saved as the first validation, and so the best one so far.
        assert [event.step for event in run.events("checkpoint")] == [2, 3, 4, 6, 7]
        assert run.points("loss", "valid").steps == [3, 6, 7]


def loss_of(checkpoint) -> float:
    """The validation loss of the weights in a checkpoint."""
    model = net()
    burnt.record.load_into(model, burnt.Record.load(checkpoint.path / "model.safetensors"))
    model.eval()
    outputs = [(step(model, batch).loss.item(), len(batch)) for batch in loader()]
    return sum(loss * n for loss, n in outputs) / sum(n for _, n in outputs)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("validate_every", "checkpoint_every"),
    [("4 steps", "6 steps"), ("3 steps", "1 epoch"), ("1 epoch", "2 steps"), ("2 epochs", "1 epoch")],
)
@pytest.mark.parametrize("stop_at", [None, 8])
def test_a_checkpoint_is_ranked_by_a_validation_of_its_weights(
    tmp_path, validate_every, checkpoint_every, stop_at
):
    def rising_rate(done: int) -> float:
        return 0.01 if done < 6 else 0.3  # the best weights are in the middle, between the intervals

    def run(stop_at=None, **more):
        def stopping(model, batch):
            if model.training and len(steps) == stop_at:
                os.kill(os.getpid(), signal.SIGINT)
            steps.extend([1] * model.training)
            return step(model, batch)

        steps: list[int] = []
        keepers = [KeepLast(2), KeepBest(Loss()), KeepBest("accuracy", count=2), KeepBest("train/loss")]
        settings = {"validate_every": validate_every, "checkpoint_every": checkpoint_every, **more}
        settings |= {"metrics": [Accuracy()], "checkpoints": keepers, "duration": "23 steps", "check": False}
        return training(tmp_path / "run", **settings).run(learner(schedule=rising_rate, how=stopping))

    if stop_at is not None:
        with pytest.raises(Interrupted):
            run(stop_at)
    result = run(resume=True)
    for saved in result.checkpoints:
        if "valid/loss" in saved.values:
            assert saved.values["valid/loss"] == pytest.approx(loss_of(saved), rel=1e-5)
    assert result.checkpoints[-1].values.keys() >= {"valid/loss", "valid/accuracy"}
    with RunReader(tmp_path / "run") as reader:
        for name, split in (("loss", "valid"), ("accuracy", "valid")):
            measured = reader.points(name, split)
            best = (min if name == "loss" else max)(measured.values)
            assert measured.steps[measured.values.index(best)] in [
                saved.position.step
                for saved in result.checkpoints
                if saved.values.get(f"{split}/{name}") == best
            ]
        epochs = {event.step: event.data["values"]["loss"] for event in reader.events("epoch")}
    for saved in result.checkpoints:
        assert saved.values.get("train/loss") == epochs.get(saved.position.step)
    assert min(epochs, key=epochs.get) in [saved.position.step for saved in result.checkpoints]


def test_the_epoch_ranks_the_checkpoint_at_its_end_whatever_is_saved_there_before(tmp_path):
    # The loop learns that an epoch of unknown length is over after the checkpoint of its last step.
    result = training(
        tmp_path / "run", train=Unsized(*loader()), valid=None, duration="2 epochs",
        checkpoint_every="5 steps", checkpoints=[KeepBest("train/loss", count=2)],
    ).run(learner())  # fmt: skip
    assert [(s.position.step, "train/loss" in s.values) for s in result.checkpoints] == [
        (5, True),
        (10, True),
    ]


def test_printing_a_result_shows_its_values_and_no_tensors(tmp_path):
    result = training(tmp_path / "run").run(learner())
    result.values.update({"train/loss": 0.5, "valid/loss": 1e-7})
    assert repr(result) == (
        "TrainingResult(Sequential, finished after step 5, values: train/loss 0.5000  valid/loss 1e-07, "
        f"folder: {tmp_path / 'run'}, checkpoints: step-00000005)"
    )


def test_a_stream_of_unknown_length(tmp_path):
    stream = Unsized(*loader())
    result = training(tmp_path / "run", train=stream, duration="2 epochs").run(learner())
    assert (result.position.step, result.position.epoch) == (10, 2)

    class Once(Unsized):
        def __iter__(self):
            batches, self.batches = self.batches, ()
            return iter(batches)

    with pytest.raises(DataError, match="epoch 2 gave no batches"):
        training(tmp_path / "once", train=Once(*loader()), duration="2 epochs", check=False).run(learner())


def test_a_run_without_checkpoints_says_that_it_starts_anew(tmp_path, capsys):
    result = training(tmp_path / "run", checkpoints=None).run(learner())
    assert result.checkpoints == ()
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    result = training(tmp_path / "run", monitor="plain", resume=True).run(learner())
    assert f"{tmp_path / 'run'} has no checkpoint: starting from the beginning." in capsys.readouterr().out
    assert result.position.step == 5
    training(tmp_path / "new", monitor="plain", resume=True).run(learner())
    out = capsys.readouterr().out
    assert "new holds no run: starting from the beginning." in out
    assert "no checkpoint" not in out


@pytest.mark.full
def test_a_seed_decides_what_is_drawn(tmp_path):
    losses = []
    for name in ("one", "other"):
        model = net()
        model.load_state_dict({key: torch.ones_like(value) for key, value in model.state_dict().items()})
        torch.manual_seed(hash(name) % 1000)
        losses.append(training(tmp_path / name, seed=5).run(learner(model)).values)
    assert losses[0] == losses[1]


# memory

GROWTH = """
import gc, os, sys
sys.path.insert(0, os.getcwd())
import psutil, torch
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining

marks = []
def step(model, batch):
    if len(marks) in (300, int(sys.argv[2]) - 1):
        gc.collect()
        print(psutil.Process().memory_info().rss)
    marks.append(0)
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)

torch.set_num_threads(1)
loader = Loader(TensorDataset(x=torch.randn(400, 3)), 4, shuffle=True)
SupervisedTraining(
    sys.argv[1], train=loader, duration=f"{sys.argv[2]} steps", monitor="off", device="cpu", check=False,
    checkpoint_every="500 steps",
).run(Learner(torch.nn.Linear(3, 1), optim.AdamW(), 0.1, step=step))
"""


@pytest.mark.parametrize("steps", [1_500, pytest.param(10_000, marks=pytest.mark.full)])
def test_memory_does_not_grow_with_steps(tmp_path, steps):
    done = forked.run(GROWTH, tmp_path / "run", steps)
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    assert late - early < min(10e6, 5e3 * (steps - 300))


# evaluate


def test_evaluate_is_a_loop_by_hand(tmp_path):
    model = net()
    with torch.no_grad():
        for batch in loader(8):
            model(batch.x)  # so that the batch norm has something to say
    model.train()
    model[2].eval()
    confusion = ConfusionMatrix(3)
    batches = loader(10, batch_size=4)  # the last one is smaller
    values = evaluate(learner(model), batches, [Accuracy(), confusion])
    assert [m.training for m in model] == [True, True, False, True]
    assert model.training
    model.eval()
    everything = batches.dataset.columns
    with torch.no_grad():
        logits = model(everything["x"])
    assert values["loss"] == pytest.approx(float(F.cross_entropy(logits, everything["y"])), rel=1e-6)
    assert values["accuracy"] == pytest.approx(float((logits.argmax(1) == everything["y"]).double().mean()))
    assert values.keys() == {"loss", "accuracy"}
    assert int(confusion.matrix().sum()) == 10
    again = evaluate(learner(model), batches, [Accuracy(), confusion])
    assert again == values
    assert int(confusion.matrix().sum()) == 10


class Own(burnt.Module):
    layer: nn.Linear

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        return step(self.layer, batch)

    def validation_step(self, batch):
        return StepOutput(self.layer(batch.x).mean() * 0 + 7, targets=batch.y)


def test_evaluate_takes_any_module():
    model = net().eval()
    expected = evaluate(learner(model), loader(), [Accuracy()])
    assert evaluate(model, loader(), [Accuracy()], step=step) == expected
    own = Own(nn.Linear(6, 3))
    assert evaluate(own, loader()) == {"loss": 7.0}
    assert evaluate(own, loader(), step=Own.training_step) == evaluate(own.layer, loader(), step=step)
    assert evaluate(learner(own.layer), loader(), step=lambda model, batch: own.validation_step(batch)) == {
        "loss": 7.0
    }
    with pytest.raises(DefinitionError) as caught:
        evaluate(model, loader())
    assert "Sequential has no validation step" in str(caught.value)
    assert "step=function" in caught.value.expected
    with pytest.raises(DefinitionError, match="evaluate needs a model"):
        evaluate([model], loader())


def test_evaluate_uses_the_precision_of_the_training(tmp_path):
    seen = []

    def recorded(model, batch):
        logits = model(batch.x)
        seen.append(logits.dtype)
        return StepOutput(F.cross_entropy(logits.float(), batch.y), logits, batch.y)

    def dtype(*args, **settings):
        seen.clear()
        evaluate(*args, loader(), **settings)
        assert len(set(seen)) == 1
        return seen[0]

    trained = learner(how=recorded)
    assert dtype(trained) == torch.float32
    training(tmp_path / "run", precision="bfloat16").run(trained)
    assert dtype(trained) == torch.bfloat16
    assert dtype(trained, precision="float32") == torch.float32
    assert dtype(trained.model, step=recorded) == torch.float32
    assert dtype(trained.model, step=recorded, precision="bf16") == torch.bfloat16


def test_evaluate_puts_modes_back_after_a_failure():
    model = net()
    with pytest.raises(KeyError):
        evaluate(learner(model, how=crashing), loader())
    assert all(module.training for module in model.modules())


def test_a_metric_of_ones_own_is_monitored(tmp_path):
    class Wrong(Metric):
        name = "wrong"
        higher_is_better = False

        def update(self, output):
            self.add((output.outputs.argmax(1) != output.targets).sum(), len(output.targets))

    result = training(tmp_path / "run", metrics=[Wrong(), Accuracy()], checkpoints=[KeepBest("wrong")]).run(
        learner()
    )
    assert result.values["valid/wrong"] == pytest.approx(1 - result.values["valid/accuracy"])


class Mine(burnt.Config):
    mine: int


def test_the_config_of_a_run_whose_folder_is_a_text_and_whose_metrics_have_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["step", "epoch", "kind", "loss/mean", "größe"]
    settings = {"config": Mine(mine=1), "seed": 3, "metrics": [Accuracy(name=name) for name in names]}
    result = training("runs/a", **settings).run(learner(schedule=optim.Cosine(0.1, 5)))
    assert result.folder == Path("runs/a")
    assert {f"valid/{name}" for name in names} <= result.values.keys()
    with RunReader("runs/a") as run:
        assert [run.points(name, "valid").steps for name in names] == [[5]] * 5
        assert run.events("epoch")[0].data["values"].keys() == {"loss", *names}
    config = json.loads(Path("runs/a/config.json").read_text())
    assert config["config"] == {"mine": 1}
    assert Mine.load("runs/a/config.json") == Mine(mine=1)
    assert config["schedule"] == "Cosine(lr=0.1, steps=5, end=0.0)"
    assert config["parameters"] == 99
    assert (config["seed"], config["duration"], config["device"]) == (3, "1 epoch", "cpu")
    assert config["metrics"]["loss"] == "lower"


@dataclasses.dataclass
class DataclassSettings:
    lr: float = 0.1
    data: Path = Path("data/train.csv")
    sizes: tuple[int, ...] = (8, 4)
    inner: "DataclassSettings | None" = None


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (
            DataclassSettings(inner=DataclassSettings(lr=1)),
            {
                "lr": 0.1,
                "data": "data/train.csv",
                "sizes": [8, 4],
                "inner": {"lr": 1, "data": "data/train.csv", "sizes": [8, 4], "inner": None},
            },
        ),
        (argparse.Namespace(lr=0.1, out=Path("x")), {"lr": 0.1, "out": "x"}),
        ({"lr": 0.1}, {"lr": 0.1}),
    ],
)
def test_settings_of_other_kinds_are_recorded(tmp_path, given, stored):
    training(tmp_path / "run", config=given).run(learner())
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"] == stored


@pytest.mark.parametrize(
    ("given", "found", "hint"),
    [
        (DataclassSettings, "the class DataclassSettings", "an instance: config=DataclassSettings()"),
        (3, "int", None),
        ([("lr", 1)], "list", None),
    ],
)
def test_settings_of_no_kind_are_refused_at_once(tmp_path, given, found, hint):
    with pytest.raises(ConfigError) as caught:
        training(tmp_path / "run", config=given)
    assert (caught.value.where, caught.value.found, caught.value.hint) == ("config", found, hint)
    assert "a dataclass or an argparse.Namespace" in caught.value.expected
