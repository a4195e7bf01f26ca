"""TrainingSettings: the settings of a training, and their checks."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from burnt._hints import explain_arguments
from burnt.config import Config
from burnt.data import LimitedLoader, Loader, RepeatedLoader, as_loader
from burnt.data.dataset import class_names
from burnt.data.loading.loader import EpochLoader
from burnt.errors import ConfigError, UnsupportedError, did_you_mean
from burnt.store.opening import choose_exists
from burnt.train.checkpoints.checkpoint import KeepBest, Keeper, KeepLast, checked_keepers
from burnt.train.control.plateau import Plateau, plateaus_of
from burnt.train.control.stopping import EarlyStopping
from burnt.train.duration import Duration
from burnt.train.events import Callbacks
from burnt.train.learner import Learner
from burnt.train.metrics import Loss, Metric
from burnt.train.metrics.monitored_metric import Monitored, loss_first
from burnt.train.other_trainers import TRAINER_OPTIONS
from burnt.train.placement import Devices, Placement
from burnt.train.ranks.strategy import check_strategy
from burnt.train.reporting.notebook import in_notebook
from burnt.train.reporting.progress import Reporter, check_monitor
from burnt.train.updates.manual import Optimizers
from burnt.train.updates.optimizer_step import GradientRules
from burnt.train.updates.precision import LossScale, check_precision

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

_POLICIES = ("raise", "skip", "stop")


class TrainingSettings:
    """The settings of a `SupervisedTraining`, whose docstring says what each of them means."""

    @explain_arguments(**TRAINER_OPTIONS)
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        train: Any,
        valid: Any = None,
        duration: str | Duration,
        metrics: Sequence[Metric] = (),
        checkpoints: Sequence[Keeper] | None = (),
        stopping: EarlyStopping | None = None,
        precision: str = "float32",
        strategy: str | Ranks = "auto",
        monitor: str = "auto",
        device: Devices = None,
        seed: int | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        log_gradient_norm: bool = False,
        on_nan: str = "raise",
        checkpoint_activations: str | None = None,
        accumulate: int = 1,
        callbacks: Sequence[Any] = (),
        log_every: int = 20,
        validate_every: str | Duration | Mapping[str, str | Duration] = "1 epoch",
        validate_first: bool = False,
        checkpoint_every: str | Duration = "1 epoch",
        async_checkpoints: bool = False,
        exists: str | None = None,
        resume: bool = False,
        config: Config | Mapping[str, Any] | object | None = None,
        limit_train: float | None = None,
        limit_valid: float | None = None,
        overfit_batches: float | None = None,
        check: bool = True,
        memory_pool: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self._asked_folders: dict[Path, Path] = {}  # the folder that was used -> the one that was given
        self.train = as_loader(train, "train")
        self.valid = _validation_loaders(valid)
        self._limit(limit_train, limit_valid, overfit_batches)
        self.duration = Duration.parse(duration)
        self.validate_every = _validation_intervals(validate_every, self.valid)
        self.checkpoint_every = Duration.parse(checkpoint_every, "checkpoint_every")
        self.precision = check_precision(precision)
        self.strategy = check_strategy(strategy)
        self.ranks: Ranks | None = None
        self.placement = Placement(device)
        self.monitor = check_monitor(monitor)
        self.reporter = Reporter()
        self.seed = seed
        self.exists = choose_exists(exists, resume, "number" if in_notebook() else "error")
        self.config = _as_config(config)
        self.check = check
        self.memory_pool = memory_pool
        check_number("clip_norm", clip_norm, "a number above 0", optional=True)
        check_number("clip_value", clip_value, "a number above 0", optional=True)
        check_number("log_every", log_every, "a number of steps above 0", whole=True)
        check_number("accumulate", accumulate, "the number of batches of a step, at least 1", whole=True)
        if isinstance(seed, float | str):
            raise _invalid("seed", "a whole number, or None", seed)
        if on_nan not in _POLICIES:
            hint = did_you_mean(on_nan, _POLICIES)
            raise _invalid("on_nan", " or ".join(map(repr, _POLICIES)), on_nan, hint)
        self.accumulate = accumulate
        self.callbacks = Callbacks(callbacks)
        self.log_every = log_every
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.log_gradient_norm = log_gradient_norm
        self.on_nan = on_nan
        self.checkpoint_activations = checkpoint_activations
        # Copies: other trainings may use the same objects, with other classes.
        self.metrics = [copy.copy(metric) for metric in loss_first(metrics)]
        for metric in self.metrics:
            metric.data_classes = class_names(self.train)
        self.stopping = stopping
        self.fork: dict[str, Any] | None = None
        self.validate_first = validate_first
        self.async_checkpoints = async_checkpoints
        keepers = None if checkpoints is None else checked_keepers(checkpoints)
        if keepers is not None and not keepers:
            keepers = [KeepLast(2), *([KeepBest(Loss())] if self.valid else [])]
        self.keepers = keepers
        self.monitored: list[Monitored] = []
        for watcher in [stopping, *(keepers or ())]:
            if isinstance(watcher, EarlyStopping | KeepBest):
                self._resolve(watcher)
        if stopping is not None and stopping.restore_best:
            if keepers is None:
                raise ConfigError(
                    "EarlyStopping cannot restore the best weights",
                    where="restore_best",
                    expected="checkpoints to restore them from",
                    found="checkpoints=None",
                )
            if self.best_keeper is None:
                same = stopping.monitored
                is_higher = bool(same.metric.higher_is_better)
                best = KeepBest(same.name, same.split, higher_is_better=is_higher)
                self._resolve(best)
                keepers.append(best)

    def _resolve(self, watcher: EarlyStopping | KeepBest | Plateau) -> None:
        """Find the metric that is monitored among the training's."""
        watcher.monitored.resolve(self.metrics, ("train", *self.valid))
        self.monitored.append(watcher.monitored)

    def resolve_plateaus(self, learner: Learner) -> None:
        """Find the metrics that the schedules of a Learner monitor."""
        for plateau in plateaus_of(learner):
            self._resolve(plateau)

    @property
    def device(self) -> torch.device:
        """The device of batches and outputs."""
        return self.placement.main

    @property
    def resume(self) -> bool:
        """Whether a run in the folder is continued."""
        return self.exists == "resume"

    @property
    def best_keeper(self) -> KeepBest | None:
        """The keeper that determines the best checkpoint: ``restore_best``'s, or the first."""
        best = [keeper for keeper in self.keepers or () if isinstance(keeper, KeepBest)]
        if self.stopping is not None and self.stopping.restore_best:
            best = [keeper for keeper in best if keeper.monitored.key == self.stopping.monitored.key]
        return best[0] if best else None

    def gradient_rules(self) -> GradientRules:
        """Return what the training does with gradients."""
        return GradientRules(
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
            log_norm=self.log_gradient_norm,
            loss_scale=LossScale(self.device) if self.precision == "float16" else None,
            skip_non_finite=self.on_nan != "raise",
        )

    def _limit(self, train: float | None, valid: float | None, overfit: float | None) -> None:
        """Replace the loaders by a small run's."""
        if overfit is not None:
            if train is not None or valid is not None:
                raise ConfigError(
                    "overfit_batches= replaces the other limits",
                    where="limit_train" if train is not None else "limit_valid",
                    expected="None",
                    found=train if train is not None else valid,
                )
            self.train = RepeatedLoader(self.train, overfit, "overfit_batches")
            # So that what monitors a validation still works, and shows what differs in evaluation mode.
            self.valid = dict.fromkeys(self.valid, self.train)
        if train is not None:
            self.train = LimitedLoader(self.train, train, "limit_train")
        if valid is not None:
            self.valid = {
                split: LimitedLoader(loader, valid, "limit_valid") for split, loader in self.valid.items()
            }


def check_update(
    learner: Learner, *, accumulate: int = 1, precision: str = "float32", on_nan: str = "raise"
) -> None:
    """Raise if settings of updates do not fit a Learner."""
    check_number("accumulate", accumulate, "the number of batches of a step, at least 1", whole=True)
    if isinstance(learner.optimizer, Optimizers) and accumulate > 1:
        raise ConfigError(
            "a training step with several optimizers accumulates gradients itself",
            where="accumulate",
            expected="1",
            found=accumulate,
            hint="optimizers[name].gradients(loss) returns gradients to add up, and step takes them",
        )
    if learner.optimizer.needs_closure and (precision == "float16" or on_nan != "raise"):
        raise UnsupportedError(
            f"{type(learner.optimizer).__name__} evaluates the loss several times in a step, "
            "and cannot skip one",
            expected='another optimizer, or precision="float32" and on_nan="raise"',
            found=f"precision={precision!r}, on_nan={on_nan!r}",
        )


def _invalid(name: str, expected: str, found: object, hint: str | None = None) -> ConfigError:
    what = "a training setting is invalid"
    return ConfigError(what, where=name, expected=expected, found=repr(found), hint=hint)


def check_number(
    name: str, value: Any, expected: str, *, whole: bool = False, optional: bool = False
) -> None:
    """Refuse a setting that is not a number above 0."""
    if optional and value is None:
        return
    if not isinstance(value, int if whole else int | float) or not value > 0:
        raise _invalid(name, expected, value)


def _as_config(given: Any) -> Config | Mapping[str, Any] | None:
    """Return ``config=`` as a Config or a mapping."""
    if given is None or isinstance(given, Config | Mapping):
        return given
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return dataclasses.asdict(given)
    if isinstance(given, argparse.Namespace):
        return vars(given)
    raise ConfigError(
        "a training setting is invalid",
        where="config",
        expected="a burnt.Config, a dict, a dataclass or an argparse.Namespace",
        found=f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__,
        hint=f"an instance: config={given.__name__}()" if isinstance(given, type) else None,
    )


def _validation_loaders(valid: Any) -> dict[str, EpochLoader[Any]]:
    """Return the validation loaders by split."""
    if valid is None:
        return {}
    if not isinstance(valid, Mapping):
        if isinstance(valid, list | tuple) and any(isinstance(one, Loader | DataLoader) for one in valid):
            raise ConfigError(
                "several validation loaders need names",
                where="valid",
                expected='a dict, such as {"clean": loader, "noisy": other}',
                found=f"a {type(valid).__name__} of {len(valid)}",
            )
        return {"valid": as_loader(valid, "valid")}
    for name in valid:
        if not isinstance(name, str) or not name or "/" in name or name == "train":
            raise ConfigError(
                "a validation loader has an unusable name",
                where="valid",
                expected='a text without a slash, other than "train"',
                found=repr(name),
            )
    return {name: as_loader(loader, f"valid[{name!r}]") for name, loader in valid.items()}


def _validation_intervals(given: Any, splits: Collection[str]) -> dict[str, Duration]:
    """Return the interval of each validation by split."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(splits, Duration.parse(given, "validate_every"))
    unknown = next((name for name in given if name not in splits), None)
    if unknown is not None:
        raise ConfigError(
            "there is no validation set of this name",
            where="validate_every",
            expected=" or ".join(map(repr, splits)) or "a duration, or valid={name: loader}",
            found=repr(unknown),
            hint=did_you_mean(unknown, splits),
        )
    every = {name: Duration.parse(text, f"validate_every[{name!r}]") for name, text in given.items()}
    return {split: every.get(split, Duration(1, "epochs")) for split in splits}
