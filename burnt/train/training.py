"""SupervisedTraining: a training, from its checks before the first step to its result."""

from __future__ import annotations

import copy
import dataclasses
import functools
import platform
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from time import perf_counter, time
from typing import Any

import torch

from burnt import inspect, memory
from burnt._files import parse_json
from burnt._user_code import user_line
from burnt._version import __version__
from burnt.config import Config
from burnt.data import LimitedLoader
from burnt.data.dataset import category_names, check_same_names, class_names
from burnt.data.description import describe
from burnt.errors import DefinitionError, TakenOverError, quantity
from burnt.gradients import refuse_parallel
from burnt.kernels.dispatch.selection import pinned
from burnt.module import loading_problem, restore_fields
from burnt.record import Record, load_into, record_of
from burnt.store import RunWriter
from burnt.train.after.trained import TrainedAs
from burnt.train.checkpoints.checkpoint import Checkpoints, KeepBest, Keeper, Loaded, Saved, model_file
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checks.first_batches import (
    CollectingReporter,
    Findings,
    FirstBatches,
    check_first_batches,
    check_without_values,
)
from burnt.train.code.source import Source, is_restartable, refuse_while_importing, resume_command
from burnt.train.control.control import Control
from burnt.train.control.end_reason import Ending, Interrupted, Interruption
from burnt.train.control.intercepting import intercept_run
from burnt.train.control.plateau import plateaus_of
from burnt.train.duration import Duration, Position
from burnt.train.events import Ended, Failed
from burnt.train.format import duration_text, value_text, values_text
from burnt.train.learner import Learner, Steps
from burnt.train.loop import Loop
from burnt.train.metrics.base import check_mergeable, metric_to_dict
from burnt.train.metrics.monitored_metric import RunMetrics
from burnt.train.ranks.strategy import ranks_of
from burnt.train.reporting.final_summary import format_summary
from burnt.train.reporting.progress import choose_reporter
from burnt.train.reporting.run_tables import KernelTables, record_model
from burnt.train.reporting.system import SystemSampler
from burnt.train.resuming import restore_checkpoint
from burnt.train.settings import TrainingSettings, check_update
from burnt.train.sinks import Sink
from burnt.train.updates.activation_checkpointing import checkpointed, select_modules
from burnt.train.updates.precision import cast_parameters, float32_matmuls

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
        position: the numbers of steps and epochs done.
        values: the last metric values by split and name, ``{"valid/loss": 0.1}``. Those of the training are
            over its last complete epoch, or over all steps of one that was not completed if it is the first.
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


class SupervisedTraining(TrainingSettings):
    """Trains a Learner's model on batches, and records the run in a folder.

    Args:
        folder: the run folder; one folder holds one run, see `exists`.
        train: a `burnt.data.Loader`, or any iterable of batches that can be iterated more than once.
        valid: the same for validation, or several by name: ``{"valid": loader, "rotated": other}``. The names
            are the splits of their metrics, ``"rotated/loss"``.
        duration: ``"10 epochs"``, ``"500 steps"`` or ``"2 h"``, counted from the start of the run, also when
            resumed; ``"10 epochs or 2 h"`` ends with the first. Time is the training's with its
            validations and checkpoints, without pauses; where it ends a run is not reproducible.
        metrics: metrics to compute on both splits, in addition to the loss. Metrics that are not a single
            number, such as `ConfusionMatrix`, are computed on the validation split only.
        checkpoints: which checkpoints to keep, besides those that are kept for good: by default the last two
            and the best by validation loss (`KeepBest`); None turns checkpoints off.
        stopping: when to stop early, an `EarlyStopping`.
        precision: ``"float32"``; ``"tf32"``, float32 on tensor cores; ``"bfloat16"`` or ``"float16"``, by
            autocast with parameters in float32, float16 with a loss scale; ``"bfloat16 whole"``, which
            converts the parameters of all modules but normalizations. Lightning's names, such as
            ``"bf16-mixed"``, are understood.
        strategy: ``"auto"``: one device and one process, or as ``"ddp"`` where a launcher such as torchrun or
            ``burnt train --nproc`` has started several. ``"ddp"``: each process has the whole model;
            ``"fsdp"``: a part of each parameter; ``"single"``: several processes are an error. Or a strategy
            of one's own, a `burnt.train.Ranks`. ``docs/several-devices.md`` compares them.
        monitor: how to show progress. ``"tui"``: the full-screen monitor, in a separate monitor process;
            output that the training prints meanwhile goes to ``logs/output.log`` in the run folder, and
            closing the monitor or the terminal does not stop the training. ``"live"``: a progress bar and a
            table. ``"notebook"``: a bar, a table and curves in the output of a notebook's cell. ``"plain"``:
            lines for logs. ``"off"``: nothing. ``"auto"``: the monitor in a terminal (the live view if
            textual is not installed), ``"notebook"`` in a notebook, plain lines elsewhere; the environment
            variable ``BURNT_MONITOR`` overrides it.
        device: where to train; by default where `burnt.place` has put a model in parts, else the fastest
            device available. Or the devices of a model in parts by patterns on paths,
            ``{"embedding": "cpu", "*": "cuda"}``, see `burnt.place`.
        seed: seed of torch's generators, set before the first step of a new run. Initial weights are drawn
            before, when the model is made: call ``torch.manual_seed`` there.
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
        accumulate: the number of batches of a step. Their gradients are added up to the gradients of the mean
            loss over all their items (`StepOutput.count`); the last step of an epoch has the batches left.
        callbacks: objects with methods such as ``on_step(event)``; see `burnt.train.events`.
        log_every: steps between two readings of the metrics.
        validate_every: how often to validate: a duration, as all intervals; or one for each validation set by
            name, ``{"valid": "1 epoch", "rotated": "5 epochs"}``, of which those left out have one epoch. At
            the end of the training all are validated.
        validate_first: validate before the first step too: metric values at step 0.
        checkpoint_every: how often to save; a validation that gives a new best value of a `KeepBest` also
            saves, and so does the interval of an `Every`.
        async_checkpoints: write checkpoints in a thread: the training waits only for a copy of the model and
            the optimizer's state, which takes memory until it is written. One is written at a time; an
            error is raised after the next step, or at the end.
        exists: what to do if the folder holds a run. ``"error"``: refuse it, the default. ``"number"``: train
            in the first free folder of ``runs/net``, ``runs/net-2``, ``runs/net-3``, ..., the default in a
            notebook. ``"resume"``: continue the run from its newest checkpoint, at the next batch. A run that
            has neither a finished step nor a checkpoint is replaced (but for ``"resume"``), unless its folder
            holds files, tags or notes of yours or a living process owns it.
        resume: the same as ``exists="resume"``; give one of the two.
        config: written to the run's ``config.json``; by default the Config that built the model. A Config, a
            dict, a dataclass or an ``argparse.Namespace``.
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

    `burnt.train.settings` checks the settings, the body of `_run` shows the order of what follows, and
    the loop itself is in `burnt.train.loop`.
    """

    loop_type: Callable[..., Loop] = Loop

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
        quick.duration, quick.monitor, quick.exists = Duration(1, "epochs"), "off", "error"
        quick.train = LimitedLoader(self.train, self.accumulate)
        quick.valid = {split: LimitedLoader(loader, 1) for split, loader in self.valid.items()}
        quick.stopping, quick.callbacks = copy.deepcopy(self.stopping), self.callbacks.without(Sink)
        try:
            with tempfile.TemporaryDirectory(prefix="burnt-quick-run-") as folder:
                quick.folder = Path(folder) / "run"
                result = quick.run(copy.deepcopy(learner))
                if self.keepers is not None:
                    quick.exists = "resume"
                    quick.run(copy.deepcopy(learner))
        finally:
            rng.restore()
        return dict(result.values)

    def run(self, learner: Learner) -> TrainingResult:
        """Train, and return the trained model with the results.

        Raises:
            ShapeError: the model's shapes do not fit; found before the first step.
            RunError: the folder holds a run that is not to be continued (`exists`), or cannot be written.
            CheckpointError: the checkpoint to resume from is damaged, or does not fit the model.
            TakenOverError: another process has resumed the run, because this one seemed dead (suspended, or
                its disk hung). This one has changed nothing since.
            NonFiniteError: the loss became NaN or infinite.
            Interrupted: a signal stopped the training; everything is saved.
            RankError: the processes that a launcher has started cannot train together, or one of them failed.
            DefinitionError: `learner` is not a Learner; or `burnt.load` or a command is just importing the
                code, which must not train again.
        """
        refuse_while_importing()
        if not isinstance(learner, Learner):
            raise DefinitionError(
                "a training runs a Learner",
                expected="run(Learner(model, optimizer, schedule))",
                found=type(learner).__name__,
            )
        refuse_parallel(learner.model)  # the wrapper may be newer than the Learner
        if (instead := intercept_run()) is not None:
            result: TrainingResult = instead(self, learner)
            return result
        try:
            self.placement = self.placement.for_model(learner.model)
            self.ranks = ranks_of(self.strategy, self.folder, self.device)
            if self.ranks is None:
                return self._run(learner)
            self.placement = self.placement.of_rank(self.ranks.device)
            with self.ranks.failing(self.folder, Interrupted):
                return self._run(learner)
        except TakenOverError as error:
            sys.stderr.write(f"{error}\n")  # no traceback shows it, as it is a SystemExit
            raise

    def _run(self, learner: Learner) -> TrainingResult:
        ranks = self.ranks
        is_writing = ranks is None or ranks.rank == 0
        self.reporter = choose_reporter(self.monitor if is_writing else "off")
        if not is_writing:
            self.callbacks = self.callbacks.without(Sink)
        model = learner.model
        if ranks is None or ranks.has_replicas:  # parts are moved one by one, as the model may be too large
            model = self.placement.apply(model)
        cast_parameters(self.precision, model)
        learner.compiled(model)  # the Learner may be a copy
        self._check_update(learner)
        steps = Steps(model, learner.step, learner.validation_step)
        learner.precision = self.precision
        metrics = RunMetrics(self.metrics, self.valid, None if ranks is None else ranks.merged)
        checkpoints = None
        if self.keepers is not None:
            checkpoints = Checkpoints(self.folder / "checkpoints", self.keepers)
        if self.stopping is not None:
            self.stopping.reset()  # another run may have used it
        self.resolve_plateaus(learner)
        for plateau in plateaus_of(learner):
            plateau.reset()
        chosen = time()
        loaded = restore_checkpoint(self, learner, metrics.train, checkpoints)
        position, document = loaded.position, loaded.document
        found = self._check_first_batches(learner, steps, loaded)
        TrainedAs.read(self.precision, found.load_document()).attach(learner.model)
        if loaded.rng is None:
            learner.optimizer.check(learner.schedule(0), model)
        # Before the ranks share it: fully_shard changes the class of a model.
        config, source = self._run_config(learner, found), Source.of(learner.model)
        if ranks is not None:
            check_mergeable(self.metrics)
            ranks.prepare(learner, self._common_state(learner, position))
            items = getattr(getattr(self.train, "batches", self.train), "batch_size", None) or ranks.size
            if items < ranks.size:
                self.reporter.message(
                    f"Warning: a batch has {quantity(items, 'item')}, so of {ranks.size} ranks some have "
                    "nothing to do."
                )
        asked = self._asked_folders.get(self.folder, self.folder)
        create = functools.partial(
            RunWriter.create,
            resumed_from_step=None if loaded.rng is None else position.step,
            on_error=self.reporter.message,
        )
        if ranks is None:
            writer = create(asked, config=config, exists=self.exists, since=chosen)
        else:
            writer = ranks.writer(create, asked, config=config, exists=self.exists, since=chosen)
        folder = writer.folder if is_writing else writer.folder.parent.parent
        if folder != asked:
            self.reporter.message(f"{asked} is taken: this run is in {folder}.")
        self.folder, self._asked_folders = folder, {folder: asked}
        if is_writing:
            source.mark(self.folder, _config_in(self.folder))
        if checkpoints is not None:
            checkpoints.folder, checkpoints.lease = self.folder / "checkpoints", writer.lease
            if loaded.rng is not None and is_writing:
                checkpoints.prune()  # the process that saved it may have been killed before it could
        self.reporter.open(writer)
        start_time = perf_counter()
        with ExitStack() as stack:
            if self.memory_pool:
                stack.enter_context(memory.pool(by_default=True))
            stack.enter_context(float32_matmuls(self.precision))
            stack.enter_context(checkpointed(model, self.checkpoint_activations))
            stack.callback(self.reporter.close)
            stack.enter_context(self.reporter.logging_warnings())
            ending = stack.enter_context(Ending(writer, position))
            if loaded.rng is not None:
                loaded.rng.restore()
                stack.enter_context(pinned(document.get("kernels", {})))
            elif self.seed is not None:
                torch.manual_seed(self.seed)
            if ranks is not None and (loaded.rng is None or document.get("ranks", 1) != ranks.size):
                ranks.reseed(position.step)
            record_model(writer, learner.model, found.shapes)
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
                    learning_rate=document.get("learning_rate"),
                    rate_factor=document.get("rate_factor"),
                    groups=learner.optimizer.schedules,
                    keeps_checkpoints=checkpoints is not None,
                    ranks=ranks,
                )
            )
            loop = self.loop_type(
                self, learner, steps, metrics, checkpoints, writer, control, kernels, loaded
            )
            stack.enter_context(SystemSampler(writer.system, folder=self.folder))
            try:
                # Here too, so that the run and the callbacks have the first cause.
                with nullcontext() if ranks is None else ranks.failing(self.folder, Interrupted):
                    reason = ending.reason = loop.run()
                if reason == "stopped early":
                    ending.reason += f": {loop.watch.why_over}"
                loop.saving.finish()
            except BaseException as error:
                loop.saving.finish(error)
                self.callbacks.fail(Failed(loop, error))
                if isinstance(error, Exception) and (line := user_line(error)) is not None:
                    error.add_note(f"at {line}")  # a long traceback hides it among frames of burnt and torch
                raise
            saved: tuple[Saved, ...] = ()
            if checkpoints is not None:
                saved = tuple(checkpoints.saved() if ranks is None else ranks.first(checkpoints.saved))
            if control.stop_signal is None:
                self._restore_best(learner.model, saved)
            self.callbacks(Ended(loop, reason))
            seconds = perf_counter() - start_time
            if control.is_ending:
                ending.reason = control.reason
                reason = reason if control.stop_signal is not None else "stopped"
        writer.check()
        values = metrics.final_values()
        self.reporter.message(
            f"Training {reason}: {quantity(position.epoch, 'epoch')}, {quantity(position.step, 'step')}, "
            f"{duration_text(seconds)}"
        )
        self.reporter.message(
            format_summary(self.folder, values, metrics.train, saved, self.keepers or ())
            if not writer.gone
            else f"The run is not saved: its folder {self.folder} was deleted or moved during the training."
        )
        if control.is_ending and not writer.gone:
            self.reporter.message(self._resume_instructions(position, saved))
        if control.stop_signal is not None:
            raise Interrupted(128 + control.stop_signal)
        return TrainingResult(model, self.folder, reason, position, values, saved, *self._best(saved))

    def _common_state(self, learner: Learner, position: Position) -> dict[str, Any]:
        """Return what must be the same in all processes of a training, as texts."""
        config = self.config.to_dict() if isinstance(self.config, Config) else dict(self.config or {})
        settings = (
            "duration accumulate precision clip_norm clip_value log_gradient_norm on_nan log_every metrics "
            "validate_every validate_first checkpoint_every keepers stopping"
        )
        state: dict[str, Mapping[str, object]] = {
            "the Config": config,
            "the Learner": {
                "optimizer": learner.optimizer,
                "schedule": learner.schedule_text,
                "compile": learner.compile,
            },
            "the training's loader": self.train.state(),
            **{f"the loader of {split}": loader.state() for split, loader in self.valid.items()},
            "the settings": {name: getattr(self, name) for name in settings.split()},
            "the run folder": {"the step to resume from": position.step},
        }
        address = re.compile(" at 0x[0-9a-f]+")  # in the repr of an object, which differs
        return {
            what: {str(name): address.sub("", repr(value)) for name, value in values.items()}
            for what, values in state.items()
        }

    def _check_update(self, learner: Learner) -> None:
        """Raise if the settings of updates do not fit the Learner."""
        check_update(learner, accumulate=self.accumulate, precision=self.precision, on_nan=self.on_nan)
        if self.checkpoint_activations is not None:
            select_modules(learner.model, self.checkpoint_activations)

    def _best(self, saved: Sequence[Saved]) -> tuple[Saved | None, float | None]:
        """Return the best checkpoint with its value."""
        keeper = self.best_keeper
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
        (load_into if self.ranks is None else self.ranks.load_into)(model, record)
        restore_fields(model, record)
        self.reporter.message(f"Restored the weights of {best.path.name}: {key} {value_text(value)}.")

    def _check_first_batches(self, learner: Learner, steps: Steps, loaded: Loaded) -> FirstBatches:
        """Run one batch of each loader through its step."""
        if not self.check:
            return FirstBatches({}, {"unknown": "the run was started with check=False"})
        self._check_names()
        if self.keepers is not None:
            record_of(learner.model).check()
            if (problem := loading_problem(learner.model)) is not None:
                self.reporter.message(f"Warning: {problem}.")
        return check_first_batches(self, learner, steps, loaded)

    def _check_names(self) -> None:
        """Raise if classes or categories have other numbers in one of the loaders."""
        classes, categories = class_names(self.train), category_names(self.train)
        for split, loader in self.valid.items():
            check_same_names(loader, split, classes, categories)

    def check_only(self, learner: Learner) -> Findings:
        """Check what `run` checks before the first step, without values, the device and the run folder."""
        reporter = self.reporter = CollectingReporter()
        self._check_update(learner)
        self._check_names()
        self.resolve_plateaus(learner)
        if self.keepers is not None:
            record = record_of(learner.model)
            real = {path: tensor for path, tensor in record.tensors.items() if not tensor.is_meta}
            dataclasses.replace(record, tensors=real).check()
            if (problem := loading_problem(learner.model)) is not None:
                reporter.message(problem)
        rng = RandomStates.capture()
        try:
            checked = check_without_values(self, learner)
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

    def _run_config(self, learner: Learner, found: FirstBatches) -> dict[str, Any]:
        """Return the settings to write to config.json."""
        config = self.config if self.config is not None else getattr(learner.model, "_built_by", None)
        earlier = _config_in(self.folder) if self.resume else {}
        inputs = found.load_document()
        if "unknown" in found.signature:  # the run may have been resumed where there was no batch to check
            before = earlier.get("load", {})
            inputs |= {key: before[key] for key in inputs if key in before}
        fork = self.fork or earlier.get("fork")
        directions = {metric.name: metric.higher_is_better for metric in self.metrics}
        directions |= {one.name: one.metric.higher_is_better for one in self.monitored}
        ranking = None
        if (best := self.best_keeper) is not None:
            is_higher = bool(best.monitored.metric.higher_is_better)
            ranking = {"metric": best.monitored.key, "higher_is_better": is_higher}
        return {
            "config": config.to_dict() if isinstance(config, Config) else dict(config or {}),
            "model": type(learner.model).__qualname__,
            "parameters": inspect.num_params(learner.model),
            "optimizer": repr(learner.optimizer),
            "schedule": learner.schedule_text,
            **({} if learner.compile is False else {"compile": learner.compile}),
            **({} if ranking is None else {"ranked_by": ranking["metric"]}),
            "duration": str(self.duration),
            "precision": self.precision,
            "accumulate": self.accumulate,
            "device": str(self.placement),
            **({} if self.ranks is None else {"strategy": self.ranks.name, "ranks": self.ranks.size}),
            "loader": self.train.state(),
            "seed": self.seed,
            # Viewers need to know which value is the best.
            "metrics": {
                name: "higher" if is_higher else "lower"
                for name, is_higher in directions.items() if is_higher is not None
            },
            # What `burnt.load` and the commands that ship a model need; viewers do not show it.
            "load": {
                "id": uuid.uuid4().hex,  # nobody else can guess it, nor the name of this run's mark
                "source": Source.of(learner.model).to_dict(),
                **inputs,
                "metrics": [metric_to_dict(metric) for metric in self.metrics],
                "classes": class_names(self.train),
                "categories": _stored_categories(self.train),
                "data": describe(self.train, self.valid.values()),
                "versions": {
                    "burnt": __version__, "torch": torch.__version__, "python": platform.python_version()
                },
                "best": ranking,
            },
            **({"fork": fork} if fork else {}),
        }  # fmt: skip

    def _resume_instructions(self, position: Position, saved: Sequence[Saved]) -> str:
        if not saved:
            return f"Stopped after step {position.step}. Nothing is saved: checkpoints are off for this run."
        instructions = f"To resume, run the same program with the folder {self.folder} and resume=True."
        if is_restartable():
            size = 1 if self.ranks is None else self.ranks.size
            instructions += f"\nFrom the shell: {resume_command(self.folder, size)}"
        return f"Stopped after step {position.step}. Saved in {saved[-1].path}\n{instructions}"


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
    """Return the names of categories for config.json, without columns of ids: viewers read it."""
    return {column: names for column, names in category_names(loader).items() if len(names) <= _MOST_NAMES}
