"""SupervisedTraining: the settings of a training, their checks before the first step, and its run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import platform
import shlex
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, time
from typing import Any

import torch
from torch.utils.data import DataLoader

from burnt import inspect, memory
from burnt._hints import explain_arguments
from burnt._json import parse_json
from burnt._version import __version__
from burnt.config import Config
from burnt.data import LimitedLoader, Loader, RepeatedLoader, as_loader
from burnt.data.loading.loader import EpochLoader
from burnt.data.names import category_names, check_same_names, class_names
from burnt.device import as_device
from burnt.errors import (
    CheckpointError,
    ConfigError,
    DefinitionError,
    TakenOverError,
    nearest,
    quantity,
)
from burnt.gradients import refuse_parallel
from burnt.kernels.dispatch.selection import choices, pinned
from burnt.module import loading_problem, restore_fields
from burnt.record import Record, load_into, record_of
from burnt.store import RunWriter
from burnt.store.schema import DATABASE
from burnt.train.after.evaluation import loss_first
from burnt.train.after.trained import TrainedAs
from burnt.train.checkpoints.background import BackgroundWriter
from burnt.train.checkpoints.checkpoint import (
    Checkpoints,
    KeepBest,
    Keeper,
    KeepLast,
    Loaded,
    Saved,
    checked_keepers,
    model_file,
)
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checks.dry_run import CollectingReporter, Findings
from burnt.train.checks.first_batches import check_first_batches, check_without_values
from burnt.train.code.source import Source, is_restartable, refuse_while_importing
from burnt.train.control.control import Control
from burnt.train.control.directing import take_director
from burnt.train.control.end_reason import Ending
from burnt.train.control.interrupt import Interruption
from burnt.train.control.non_finite import check_policy
from burnt.train.control.plateau import plateaus_of
from burnt.train.control.stopping import EarlyStopping
from burnt.train.duration import Duration, Position
from burnt.train.events import Callbacks, Ended, Failed
from burnt.train.format import duration_text, value_text, values_text
from burnt.train.learner import Learner, Steps
from burnt.train.loop import Loop
from burnt.train.metrics import Loss, Metric
from burnt.train.metrics.saved import metric_to_dict
from burnt.train.other_trainers import TRAINER_OPTIONS
from burnt.train.reporting.final_summary import format_summary
from burnt.train.reporting.progress import Reporter, check_monitor, choose_reporter
from burnt.train.reporting.run_tables import KernelTables, record_model
from burnt.train.reporting.system import SystemSampler
from burnt.train.sinks import Sink
from burnt.train.update import check_update
from burnt.train.updates.activation_checkpointing import checkpointed, select_modules
from burnt.train.updates.loss_scale import LossScale
from burnt.train.updates.optimizer_step import GradientRules
from burnt.train.updates.precision import (
    autocast,
    cast_parameters,
    check_precision,
    check_strategy,
    float32_matmuls,
    refuse_several_processes,
)

_MOST_NAMES = 1_000  # of a column of categories, in config.json


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    Args:
        model: the trained model, in its state after the last step, or with the best weights by
            ``EarlyStopping(restore_best=True)``; with the averages if the optimizer is an `optim.Ema`,
            `optim.Swa` or `optim.ScheduleFreeAdamW`.
        folder: the run folder.
        reason: ``"finished"``, ``"stopped early"``, or ``"stopped"`` by a command.
        position: steps and epochs done.
        values: the last metric values by split and name, ``{"valid/loss": 0.1}``.
        checkpoints: the checkpoints on disk, oldest first.
        best: the best of them, by the metric of the first `KeepBest`, or of an `EarlyStopping` with
            ``restore_best``; None without such a metric or before its first value.
        best_value: the value of that metric.
    """

    model: torch.nn.Module
    folder: Path
    reason: str
    position: Position
    values: Mapping[str, float]
    checkpoints: tuple[Saved, ...]
    best: Saved | None = None
    best_value: float | None = None

    def __repr__(self) -> str:
        checkpoints = ", ".join(saved.path.name for saved in self.checkpoints)
        return (
            f"TrainingResult({type(self.model).__name__}, {self.reason} after step {self.position.step}, "
            f"values: {values_text(self.values) or 'none'}, folder: {self.folder}, "
            f"checkpoints: {checkpoints or 'none'})"
        )


class SupervisedTraining:
    """Trains a Learner's model on batches, and records the run in a folder.

    Args:
        folder: the run folder; one folder holds one run.
        train: a `burnt.data.Loader`, or any iterable of batches that can be iterated more than once.
        valid: the same for validation, or several by name: ``{"valid": loader, "rotated": other}``. The names
            are the splits of their metrics, ``"rotated/loss"``.
        duration: ``"10 epochs"``, ``"500 steps"`` or ``"2 h"``, counted from the start of the run, also when
            resumed; ``"10 epochs or 2 h"`` ends with the first. Time is that of the training with its
            validations and checkpoints, without pauses; where it ends a run is not reproducible.
        metrics: metrics to compute on both splits, in addition to the loss. Metrics that are not a single
            number, such as `ConfusionMatrix`, are computed on the validation split only.
        checkpoints: which checkpoints to keep, besides those that are kept for good: by default the last two
            and the best by validation loss (`KeepBest`); None turns checkpoints off.
        stopping: an `EarlyStopping`.
        precision: ``"float32"``; ``"tf32"``, float32 on tensor cores; ``"bfloat16"`` or ``"float16"``, by
            autocast with parameters in float32, float16 with a loss scale; ``"bfloat16 whole"``, which
            converts the parameters of all modules but normalizations. Lightning's names, such as
            ``"bf16-mixed"``, are understood.
        strategy: ``"auto"``: one device and one process. Under torchrun with several processes, `run` raises:
            they would train models of their own, and write to one folder.
        monitor: how to show progress. ``"tui"``: the full-screen monitor, in a separate monitor process;
            output that the training prints meanwhile goes to ``logs/output.log`` in the run folder, and
            closing the monitor or the terminal does not stop the training. ``"live"``: a progress bar and a
            table. ``"notebook"``: a bar, a table and curves in the output of a notebook's cell. ``"plain"``:
            lines for logs. ``"off"``: nothing. ``"auto"``: the monitor in a terminal (the live view if
            textual is not installed), ``"notebook"`` in a notebook, plain lines elsewhere; the environment
            variable ``BURNT_MONITOR`` overrides it.
        device: where to train; by default the fastest device available.
        seed: seed of torch's generators, set before the first step of a new run.
        clip_norm: maximum global norm of the gradients.
        clip_value: maximum absolute value of each element of the gradients, clipped before the norm.
        log_gradient_norm: log the norm of the gradients before clipping as ``gradient_norm``, as `clip_norm`
            does anyway.
        on_nan: what to do about a loss or gradient that is NaN or infinite. ``"raise"``: raise when the
            metrics are read next, which is free. ``"skip"``: do not make the update, leave the batch out of
            the metrics and go on; looks at each loss, and so waits for the device in each step. ``"stop"``:
            the same, then save and end.
        checkpoint_activations: a pattern on paths of modules, ``"decoder.layers.*"``, whose activations are
            computed again in the backward pass instead of stored.
        accumulate: the number of batches of a step. Their gradients are added up to those of the mean loss
            over all their items (`StepOutput.count`); the last step of an epoch has the batches left.
        callbacks: objects with methods such as ``on_step(event)``; see `burnt.train.events`.
        log_every: steps between two readings of the metrics.
        validate_every: how often to validate: a duration, as all intervals; or one for each validation set by
            name, ``{"valid": "1 epoch", "rotated": "5 epochs"}``, of which those left out have one epoch. At
            the end of the training all are validated.
        validate_first: validate before the first step too: metric values at step 0.
        checkpoint_every: how often to save; a validation that gives a new best value of a `KeepBest` also
            saves, and so does the interval of an `Every`.
        async_checkpoints: write checkpoints in a thread: the training waits for a copy of the model and the
            optimizer's state alone, which takes memory until it is written. One is written at a time; an
            error is raised after the next step, or at the end.
        resume: continue the run in the folder from its newest checkpoint, at the next batch.
        config: written to the run's ``config.json``; by default the Config that built the model.
        limit_train: use only the first batches of each training epoch: a number, or as a float a fraction of
            an epoch, ``0.1``.
        limit_valid: the same for each validation.
        overfit_batches: train on the same first batches in every epoch, a number or a fraction of an epoch,
            and validate on them too: a model that cannot fit them has an error. They are held in memory.
        check: check shapes, loss and validation step before the first step.
        memory_pool: reuse large host buffers during the run (`burnt.memory`), unless the environment disables
            it.

    Raises:
        ConfigError, MetricError, DataError, DeviceError, UnsupportedError: a setting is invalid.

    The body of `_run` shows the order of the steps; the loop itself is in `burnt.train.loop`.
    """

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
        strategy: str = "auto",
        monitor: str = "auto",
        device: torch.device | str | None = None,
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
        resume: bool = False,
        config: Config | Mapping[str, Any] | None = None,
        limit_train: float | None = None,
        limit_valid: float | None = None,
        overfit_batches: float | None = None,
        check: bool = True,
        memory_pool: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self.train = as_loader(train, "train")
        self.valid = _validation_loaders(valid)
        self._limit(limit_train, limit_valid, overfit_batches)
        self.duration = Duration.parse(duration)
        self.validate_every = _validation_intervals(validate_every, self.valid)
        self.checkpoint_every = Duration.parse(checkpoint_every, "checkpoint_every")
        self.precision = check_precision(precision)
        self.strategy = check_strategy(strategy)
        self.device = as_device(device)
        self.monitor = check_monitor(monitor)
        self.reporter = Reporter()
        self.seed = seed
        self.resume = resume
        self.config = config
        self.check = check
        self.memory_pool = memory_pool
        _check_number("clip_norm", clip_norm, "a number above 0", optional=True)
        _check_number("clip_value", clip_value, "a number above 0", optional=True)
        _check_number("log_every", log_every, "a number of steps above 0", whole=True)
        _check_number("accumulate", accumulate, "the number of batches of a step, at least 1", whole=True)
        if isinstance(seed, float | str):
            raise _invalid("seed", "a whole number, or None", seed)
        if resume not in (True, False):
            raise _invalid("resume", "True: the run in the folder goes on from its newest checkpoint", resume)
        self.accumulate = accumulate
        self.callbacks = Callbacks(callbacks)
        self.log_every = log_every
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.log_gradient_norm = log_gradient_norm
        self.on_nan = check_policy(on_nan)
        self.checkpoint_activations = checkpoint_activations
        self.metrics = loss_first(metrics)
        self.stopping = stopping
        self.fork: dict[str, Any] | None = None
        self.loop_type: Callable[..., Loop] = Loop
        self.validate_first = validate_first
        self.async_checkpoints = async_checkpoints
        self._signature: dict[str, Any] = {"unknown": "the run was started with check=False"}
        self._sources: list[list[str | int] | None] = []
        keepers = None if checkpoints is None else checked_keepers(checkpoints)
        if keepers is not None and not keepers:
            keepers = [KeepLast(2), *([KeepBest(Loss())] if self.valid else [])]
        self.keepers = keepers
        for watcher in [stopping, *(keepers or ())]:
            if isinstance(watcher, EarlyStopping | KeepBest):
                watcher.metric = watcher.monitored.resolve(
                    self.metrics, self._splits(), type(watcher).__name__
                )
        if stopping is not None and stopping.restore_best:
            if keepers is None:
                raise ConfigError(
                    "EarlyStopping cannot restore the best weights",
                    where="restore_best",
                    expected="checkpoints to restore them from",
                    found="checkpoints=None",
                )
            if self._best_keeper() is None:
                assert stopping.metric is not None  # resolved above
                keepers.append(KeepBest(stopping.metric, stopping.monitored.split))

    def _limit(self, train: float | None, valid: float | None, overfit: float | None) -> None:
        """Replace the loaders by those of a small run.

        Raises:
            ConfigError: `overfit` is combined with another limit.
            DataError: a limit is invalid.
        """
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

    def quick_run(self, learner: Learner) -> dict[str, float]:
        """Do one step, one batch of each validation, a checkpoint and a resume, to find errors early.

        The run is in a temporary folder, which is removed; model, optimizer and early stopping are copies,
        and random states are restored. Callbacks receive its events, except sinks.

        Returns:
            The metric values, as in `TrainingResult.values`.

        Raises:
            BurntError, Exception: any error of `run`.

        >>> import torch
        >>> from burnt import nn, optim
        >>> from burnt.train import Learner, StepOutput, SupervisedTraining
        >>> def step(model, batch):
        ...     return StepOutput(model(batch["x"]).square().mean(), targets=batch["x"])
        >>> batches = [{"x": torch.ones(4, 2)}] * 9
        >>> training = SupervisedTraining("runs/net", train=batches, duration="9 epochs")
        >>> list(training.quick_run(Learner(nn.Linear(2, 1), optim.AdamW(), 1e-3, step)))
        ['train/loss']
        """
        quick, rng = copy.copy(self), RandomStates.capture()
        quick.duration, quick.monitor, quick.resume = Duration(1, "epochs"), "off", False
        quick.train = LimitedLoader(self.train, self.accumulate)
        quick.valid = {split: LimitedLoader(loader, 1) for split, loader in self.valid.items()}
        quick.stopping, quick.callbacks = copy.deepcopy(self.stopping), self.callbacks.without(Sink)
        try:
            with tempfile.TemporaryDirectory(prefix="burnt-quick-run-") as folder:
                quick.folder = Path(folder) / "run"
                result = quick.run(copy.deepcopy(learner))
                if self.keepers is not None:
                    quick.resume = True
                    quick.run(copy.deepcopy(learner))
        finally:
            rng.restore()
        return dict(result.values)

    def run(self, learner: Learner) -> TrainingResult:
        """Train, and return the trained model with the results.

        Raises:
            ShapeError: the model's shapes do not fit; found before the first step.
            RunError: the folder holds a run (without `resume`), or cannot be written.
            CheckpointError: the checkpoint to resume from is damaged, or does not fit the model.
            TakenOverError: another process has resumed the run, because this one seemed dead (suspended, or
                its disk hung). This one has changed nothing since.
            NonFiniteError: the loss became NaN or infinite.
            Interrupted: a signal stopped the training; everything is saved.
            UnsupportedError: a launcher such as torchrun has started several processes.
            DefinitionError: `learner` is no Learner; or `burnt.load` or a command is just importing the code,
                which must not train again.
        """
        refuse_while_importing()
        if not isinstance(learner, Learner):
            raise DefinitionError(
                "a training runs a Learner",
                expected="run(Learner(model, optimizer, schedule))",
                found=type(learner).__name__,
            )
        refuse_several_processes(self.folder)
        refuse_parallel(learner.model)  # the wrapper may be newer than the Learner
        if (director := take_director()) is not None:
            directed: TrainingResult = director(self, learner)
            return directed
        try:
            return self._run(learner)
        except TakenOverError as error:
            sys.stderr.write(f"{error}\n")  # no traceback shows it, as it is a SystemExit
            raise

    def _run(self, learner: Learner) -> TrainingResult:
        self.reporter = choose_reporter(self.monitor)
        model = learner.model.to(self.device)
        cast_parameters(self.precision, model)
        self._check_update(learner)
        steps = Steps(model, learner.step, learner.validation_step)
        learner.precision = self.precision
        train_metrics = [metric.fresh() for metric in self.metrics if metric.scalar]
        valid_metrics = {split: [metric.fresh() for metric in self.metrics] for split in self.valid}
        checkpoints = None
        if self.keepers is not None:
            checkpoints = Checkpoints(self.folder / "checkpoints", self.keepers)
        if self.stopping is not None:
            self.stopping.reset()  # another run may have used it
        for plateau in plateaus_of(learner):
            plateau.metric = plateau.monitored.resolve(self.metrics, self._splits(), "Plateau")
            plateau.reset()
        chosen = time()
        loaded = self._restore_checkpoint(learner, train_metrics, checkpoints)
        position = Position() if loaded is None else loaded.position
        loader_state = None if loaded is None else loaded.document.get("loader_state")
        shapes = self._check_first_batches(learner, steps, position, loader_state) if self.check else {}
        TrainedAs.read(self.precision, self._load_document()).attach(learner.model)
        if loaded is None:
            learner.optimizer.check(learner.schedule(position.step), model)
        writer = RunWriter.create(
            self.folder,
            config=self._run_config(learner),
            resume=self.resume,
            resumed_from_step=None if loaded is None else position.step,
            since=chosen,
            on_error=self.reporter.message,
        )
        Source.of(learner.model).mark(self.folder, _config_in(self.folder))
        if checkpoints is not None:
            checkpoints.lease = writer.lease
        if checkpoints is not None and loaded is not None:
            checkpoints.prune()  # the process that saved it may have been killed before it could
        self.reporter.open(writer)
        start_time = perf_counter()
        with ExitStack() as stack:
            if self.memory_pool:
                stack.enter_context(memory.pool(by_default=True))
            stack.enter_context(float32_matmuls(self.precision))
            stack.enter_context(checkpointed(model, self.checkpoint_activations))
            stack.callback(self.reporter.close)
            ending = stack.enter_context(Ending(writer, position))
            if loaded is not None:
                loaded.rng.restore()
                stack.enter_context(pinned(loaded.document.get("kernels", {})))
            elif self.seed is not None:
                torch.manual_seed(self.seed)
            record_model(writer, learner.model, shapes)
            kernels = KernelTables(writer)
            stack.callback(kernels.record, last=True)
            interruption = stack.enter_context(
                Interruption(self.reporter.message, self.reporter.handle_signal)
            )
            control = stack.enter_context(
                Control(
                    writer,
                    self.reporter.message,
                    interruption,
                    position,
                    learner.schedule,
                    learning_rate=None if loaded is None else loaded.document.get("learning_rate"),
                    rate_factor=None if loaded is None else loaded.document.get("rate_factor"),
                    groups=learner.optimizer.schedules,
                    keeps_checkpoints=checkpoints is not None,
                )
            )
            loop = self.loop_type(
                learner=learner,
                steps=steps,
                train=self.train,
                valid=self.valid,
                train_metrics=train_metrics,
                valid_metrics=valid_metrics,
                duration=self.duration,
                validate_every=self.validate_every,
                checkpoint_every=self.checkpoint_every,
                log_every=self.log_every,
                validate_first=self.validate_first,
                accumulate=self.accumulate,
                rules=self._rules(),
                on_nan=self.on_nan,
                device=self.device,
                autocast=functools.partial(autocast, self.precision, self.device),
                checkpoints=checkpoints,
                background=BackgroundWriter() if self.async_checkpoints else None,
                stopping=self.stopping,
                plateaus=plateaus_of(learner),
                callbacks=Callbacks([self.reporter, *self.callbacks.all]),
                writer=writer,
                reporter=self.reporter,
                title=self._title(learner, position),
                control=control,
                kernels=kernels,
                position=position,
                values={} if loaded is None else loaded.last_values(),
                measured=() if loaded is None else loaded.document["values"],
                document=functools.partial(self._checkpoint_document, learner, control),
                epoch_rng=RandomStates.capture() if loaded is None else loaded.epoch_rng,
                loader_state=loader_state,
                restored={} if loaded is None else loaded.document.get("loop", {}),
            )
            stack.enter_context(SystemSampler(writer.system, folder=self.folder))
            try:
                reason = ending.reason = loop.run()
                loop.saving.finish()
            except BaseException as error:
                loop.saving.finish(error)
                self.callbacks.fail(Failed(loop, error))
                raise
            saved = tuple(checkpoints.saved()) if checkpoints is not None else ()
            if interruption.signal is None:
                self._restore_best(learner.model, saved)
            self.callbacks(Ended(loop, reason))
            seconds = perf_counter() - start_time
            if control.is_ending:
                ending.reason = control.reason
                reason = reason if interruption.signal is not None else "stopped"
        writer.check()
        self.reporter.message(
            f"Training {reason}: {quantity(position.epoch, 'epoch')}, {quantity(position.step, 'step')}, "
            f"{duration_text(seconds)}"
        )
        self.reporter.message(
            format_summary(self.folder, loop.values, train_metrics, saved, self.keepers or ())
            if not writer.gone
            else f"The run is not saved: its folder {self.folder} was deleted or moved during the training."
        )
        if control.is_ending and not writer.gone:
            self.reporter.message(self._resume_instructions(position, saved))
        if interruption.signal is not None:
            raise interruption.error()
        return TrainingResult(model, self.folder, reason, position, loop.values, saved, *self._best(saved))

    def _rules(self) -> GradientRules:
        return GradientRules(
            clip_norm=self.clip_norm,
            clip_value=self.clip_value,
            log_norm=self.log_gradient_norm,
            loss_scale=LossScale(self.device) if self.precision == "float16" else None,
            skip_non_finite=self.on_nan != "raise",
        )

    def _check_update(self, learner: Learner) -> None:
        """Raise if the settings of updates do not fit the Learner."""
        check_update(learner, accumulate=self.accumulate, precision=self.precision, on_nan=self.on_nan)
        if self.checkpoint_activations is not None:
            select_modules(learner.model, self.checkpoint_activations)

    def _splits(self) -> tuple[str, ...]:
        return ("train", *self.valid)

    def _best_keeper(self) -> KeepBest | None:
        """Return the keeper that determines the best checkpoint: that of ``restore_best``, or the first."""
        best = [keeper for keeper in self.keepers or () if isinstance(keeper, KeepBest)]
        if self.stopping is not None and self.stopping.restore_best:
            best = [keeper for keeper in best if keeper.monitored.key == self.stopping.monitored.key]
        return best[0] if best else None

    def _best(self, saved: Sequence[Saved]) -> tuple[Saved | None, float | None]:
        """Return the best checkpoint with its value."""
        keeper = self._best_keeper()
        found = None if keeper is None else next(iter(keeper.keep(saved)), None)
        if keeper is None or found is None:
            return None, None
        return found, found.values[keeper.monitored.key]

    def _restore_best(self, model: torch.nn.Module, saved: Sequence[Saved]) -> None:
        """Load the weights of the best checkpoint into the model, if early stopping is to do so."""
        if self.stopping is None or not self.stopping.restore_best:
            return
        best, value = self._best(saved)
        key = self.stopping.monitored.key
        if best is None or value is None:
            self.reporter.message(f"No checkpoint has a value of {key}: the model has its last weights.")
            return
        record = Record.load(model_file(best.path))
        load_into(model, record)
        restore_fields(model, record)
        self.reporter.message(f"Restored the weights of {best.path.name}: {key} {value_text(value)}.")

    def _restore_checkpoint(
        self, learner: Learner, metrics: Sequence[Metric], checkpoints: Checkpoints | None
    ) -> Loaded | None:
        """Load the newest checkpoint of a resumed run into model, optimizer and stopping, if there is one."""
        newest = checkpoints.newest() if checkpoints is not None and self.resume else None
        if checkpoints is None or newest is None:
            if self.resume:
                found = "has no checkpoint" if (self.folder / DATABASE).exists() else "holds no run"
                self.reporter.message(f"{self.folder} {found}: starting from the beginning.")
            return None
        loaded = checkpoints.load(newest, learner.model, metrics)
        document = loaded.document
        learner.optimizer.load_record(loaded.optimizer)
        if self.stopping is not None and document["stopping"] is not None:
            self.stopping.load_state(document["stopping"])
        self.callbacks.load_state(document.get("callbacks", {}))
        states = document.get("plateaus", {})  # checkpoints of burnt 0.1.0 lack them
        plateaus = plateaus_of(learner)
        if isinstance(states, list):  # as they were first stored
            states = dict(zip(plateaus.values(), states, strict=False))
        for plateau, group in plateaus.items():
            if group in states:
                plateau.load_state(states[group])
        if loaded.position.batch and document["loader"] != self.train.state():
            raise CheckpointError(
                f"{newest.name} was saved in the middle of an epoch, with a different loader",
                where=str(newest),
                expected=f"train= with {document['loader']}",
                found=str(self.train.state()),
                hint="resume with the same loader, or start a new run with the new one",
            )
        for name, old, now in (
            ("train=", document["loader"], self.train.state()),
            ("the schedule", document["schedule"], learner.schedule_text),
            # Checkpoints of burnt 0.1.0 lack the other two, earlier ones all three.
            ("the optimizer", document.get("built", repr(learner.optimizer)), repr(learner.optimizer)),
            ("precision=", document.get("precision", self.precision), self.precision),
            ("accumulate=", document.get("accumulate", 1), self.accumulate),
            ("clip_norm=", document.get("clip_norm", self.clip_norm), self.clip_norm),
            ("clip_value=", document.get("clip_value", self.clip_value), self.clip_value),
        ):
            if old != now:
                self.reporter.message(
                    f"Warning: {name} changed since the checkpoint: was {old}, is now {now}."
                )
        for text in loaded.fields_kept:
            self.reporter.message(f"Warning: a field of the model changed since the checkpoint: {text}")
        for text in loaded.fields_set:
            self.reporter.message(f"A field of the model is as in the checkpoint: {text}")
        rate = document.get("learning_rate")
        if rate is not None and document["schedule"] != learner.schedule_text:
            self.reporter.message(
                f"Warning: the learning rate {rate:.4g} that a command had set no longer holds, because the "
                "schedule changed."
            )
            document["learning_rate"] = document["rate_factor"] = None
        return loaded

    def _check_first_batches(
        self, learner: Learner, steps: Steps, position: Position, loader_state: Any
    ) -> Mapping[str, str]:
        """Run one batch of each loader through its step; return the output shapes of the modules, by path."""
        self._check_names()
        if self.keepers is not None:
            record_of(learner.model).check()
            if (problem := loading_problem(learner.model)) is not None:
                self.reporter.message(f"Warning: {problem}.")
        found = check_first_batches(
            learner,
            steps,
            self.train,
            self.valid,
            self.metrics,
            position,
            loader_state,
            self.precision,
            self.reporter.message,
        )
        self._signature, self._sources = found.signature, found.sources
        return found.shapes

    def _check_names(self) -> None:
        """Check that classes and categories have the same numbers in all loaders."""
        classes, categories = class_names(self.train), category_names(self.train)
        for split, loader in self.valid.items():
            check_same_names(loader, split, classes, categories)

    def check_only(self, learner: Learner) -> Findings:
        """Check what `run` checks before the first step, without values, the device and the run folder."""
        reporter = self.reporter = CollectingReporter()
        self._check_update(learner)
        self._check_names()
        for plateau in plateaus_of(learner):
            plateau.metric = plateau.monitored.resolve(self.metrics, self._splits(), "Plateau")
        if self.keepers is not None:
            record = record_of(learner.model)
            real = {path: tensor for path, tensor in record.tensors.items() if not tensor.is_meta}
            dataclasses.replace(record, tensors=real).check()
            if (problem := loading_problem(learner.model)) is not None:
                reporter.message(problem)
        rng = RandomStates.capture()
        try:
            checked = check_without_values(
                learner, self.train, self.valid, self.metrics, self.precision, reporter.message
            )
        finally:
            rng.restore()
        steps = self.duration.last_step(Position(), self.train.num_batches(), accumulate=self.accumulate)
        rates = [learner.schedule(step) for step in (0, *([steps // 2, steps - 1] if steps else ()))]
        for rate in rates:
            learner.optimizer.check(rate, learner.model)
        name, size = type(learner.model).__name__, inspect.num_params(learner.model)
        rates_text = " .. ".join(f"{rate:.3g}" for rate in rates)
        return Findings(
            {
                "model": f"{name}, {quantity(size, 'parameter')}",
                **checked,
                "metrics": ", ".join(metric.name for metric in self.metrics),
                "schedule": f"{learner.schedule_text}: {rates_text}",
                "checkpoints": ", ".join(map(_keeper_text, self.keepers or ())) or "none",
                "duration": str(self.duration) + (f", {quantity(steps, 'step')}" if steps else ""),
            },
            reporter.messages,
        )

    def _ranking(self) -> dict[str, Any] | None:
        """Return by which value checkpoints are ranked, for config.json; None without `KeepBest`."""
        keeper = self._best_keeper()
        if keeper is None or keeper.metric is None:
            return None
        return {
            "metric": keeper.monitored.key,
            "higher_is_better": bool(keeper.metric.higher_is_better),
        }

    def _run_config(self, learner: Learner) -> dict[str, Any]:
        """Return the settings to write to config.json."""
        config = self.config if self.config is not None else getattr(learner.model, "_built_by", None)
        earlier = _config_in(self.folder) if self.resume else {}
        inputs = self._load_document()
        if "unknown" in self._signature:  # the run may have been resumed where there was no batch to check
            before = earlier.get("load", {})
            inputs |= {key: before[key] for key in inputs if key in before}
        fork = self.fork or earlier.get("fork")
        return {
            "config": config.to_dict() if isinstance(config, Config) else dict(config or {}),
            "model": type(learner.model).__qualname__,
            "parameters": inspect.num_params(learner.model),
            "optimizer": repr(learner.optimizer),
            "schedule": learner.schedule_text,
            **({} if (ranking := self._ranking()) is None else {"ranked_by": ranking["metric"]}),
            "duration": str(self.duration),
            "precision": self.precision,
            "accumulate": self.accumulate,
            "device": str(self.device),
            "loader": self.train.state(),
            "seed": self.seed,
            # Viewers need to know which value is the best.
            "metrics": {
                metric.name: "higher" if metric.higher_is_better else "lower"
                for metric in self.metrics if metric.higher_is_better is not None
            },
            # What `burnt.load` and the commands that ship a model need; viewers do not show it.
            "load": {
                "id": uuid.uuid4().hex,  # nobody else can guess it, nor the name of this run's mark
                "source": Source.of(learner.model).to_dict(),
                **inputs,
                "metrics": [metric_to_dict(metric) for metric in self.metrics],
                "classes": class_names(self.train),
                "categories": _stored_categories(self.train),
                "versions": {
                    "burnt": __version__, "torch": torch.__version__, "python": platform.python_version()
                },
                "best": ranking,
            },
            **({"fork": fork} if fork else {}),
        }  # fmt: skip

    def _load_document(self) -> dict[str, Any]:
        """Return what predictions need to know of the model's inputs."""
        return {"signature": self._signature, "sources": self._sources}

    def _checkpoint_document(self, learner: Learner, control: Control) -> dict[str, Any]:
        """Return the JSON part of a checkpoint: everything but tensors and position."""
        return {
            "loader": self.train.state(),
            "seed": self.seed,
            "schedule": learner.schedule_text,
            "built": repr(learner.optimizer),
            "precision": self.precision,
            "clip_norm": self.clip_norm,
            "clip_value": self.clip_value,
            "accumulate": self.accumulate,
            "callbacks": self.callbacks.state(),
            "stopping": None if self.stopping is None else self.stopping.state(),
            "plateaus": {group: plateau.state() for plateau, group in plateaus_of(learner).items()},
            "learning_rate": control.override,
            "rate_factor": control.override_factor,
            "kernels": choices(),
        }

    def _title(self, learner: Learner, position: Position) -> str:
        name = type(learner.model).__name__
        size = inspect.num_params(learner.model)
        start = f", resuming after step {position.step}" if position.step else ""
        return (
            f"{name}, {quantity(size, 'parameter')}, {self.duration} on {self.device} in {self.precision}, "
            f"run folder {self.folder}{start}"
        )

    def _resume_instructions(self, position: Position, saved: Sequence[Saved]) -> str:
        if not saved:
            return f"Stopped after step {position.step}. Nothing is saved: checkpoints are off for this run."
        instructions = f"To resume, run the same program with the folder {self.folder} and resume=True."
        if is_restartable():
            instructions += f"\nFrom the shell: burnt train --resume {shlex.quote(str(self.folder))}"
        return f"Stopped after step {position.step}. Saved in {saved[-1].path}\n{instructions}"


def _invalid(name: str, expected: str, found: object) -> ConfigError:
    return ConfigError("a training setting is invalid", where=name, expected=expected, found=repr(found))


def _check_number(
    name: str, value: Any, expected: str, *, whole: bool = False, optional: bool = False
) -> None:
    """Refuse a setting that is no number above 0."""
    if optional and value is None:
        return
    if not isinstance(value, int if whole else int | float) or not value > 0:
        raise _invalid(name, expected, value)


def _validation_loaders(valid: Any) -> dict[str, EpochLoader[Any]]:
    """Return the validation loaders by split.

    Raises:
        DataError: one is no loader.
        ConfigError: a name is that of the training split, or no text; several loaders have no names.
    """
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
    """Return the interval of each validation by split.

    Raises:
        ConfigError: an interval is no duration, or there is no validation of a name.
    """
    if not isinstance(given, Mapping):
        return dict.fromkeys(splits, Duration.parse(given, "validate_every"))
    unknown = next((name for name in given if name not in splits), None)
    if unknown is not None:
        guess = nearest(str(unknown), splits)
        raise ConfigError(
            "there is no validation set of this name",
            where="validate_every",
            expected=" or ".join(map(repr, splits)) or "a duration, or valid={name: loader}",
            found=repr(unknown),
            hint=f"did you mean {guess!r}?" if guess else None,
        )
    every = {name: Duration.parse(text, f"validate_every[{name!r}]") for name, text in given.items()}
    return {split: every.get(split, Duration(1, "epochs")) for split in splits}


def _config_in(folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` that a folder holds; empty if there is none that can be read."""
    try:
        document = parse_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):  # it is about to be written anew
        return {}
    return document if isinstance(document, dict) else {}


def _keeper_text(keeper: Keeper) -> str:
    monitored = f" by {keeper.monitored.key}" if isinstance(keeper, KeepBest) else ""
    return type(keeper).__name__ + monitored


def _stored_categories(loader: Any) -> dict[str, list[str]]:
    """Return the names of categories for config.json, without those of columns of ids: viewers read it."""
    return {column: names for column, names in category_names(loader).items() if len(names) <= _MOST_NAMES}
