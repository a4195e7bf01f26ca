"""The training loop: epochs, steps, validation, checkpoints and run commands.

Read this file to see what a training does, or copy it as the start of a custom loop. It calls small objects:
a loader, the update that steps the optimizer, metrics, checkpoints, early stopping, callbacks, the run store
and a reporter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch

from burnt.data import Mover
from burnt.data.loading.loader import EpochLoader
from burnt.errors import DataError, DefinitionError, NonFiniteError
from burnt.gradients import Gradients
from burnt.store import RunWriter
from burnt.train.checkpoints.background import BackgroundWriter
from burnt.train.checkpoints.buffers import TransientBuffers, field_texts
from burnt.train.checkpoints.checkpoint import Checkpoints, Saved
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checkpoints.saving import CheckpointWriter
from burnt.train.code.source import replay_command
from burnt.train.control.control import Control, TrainingClock
from burnt.train.control.non_finite import NonFiniteReports, RecentLosses, list_text
from burnt.train.control.plateau import Plateau
from burnt.train.control.stopping import EarlyStopping
from burnt.train.duration import Duration, Position
from burnt.train.events import (
    Callbacks,
    CheckpointSaved,
    EpochEnded,
    GradientsComputed,
    Logged,
    Started,
    Stepped,
    Validated,
)
from burnt.train.learner import Learner, Steps
from burnt.train.logged import StepLog
from burnt.train.metrics.base import Metric, Sums, intervals, read
from burnt.train.reporting.progress import Reporter
from burnt.train.reporting.run_tables import KernelTables
from burnt.train.step import StepOutput
from burnt.train.update import update_of
from burnt.train.updates.optimizer_step import GradientRules

SPEED = (
    *("learning_rate", "steps_per_second", "samples_per_second", "data_wait_share"),
    *("gradient_norm", "loss_scale", "skipped_steps"),
)


@dataclasses.dataclass
class Loop:
    """One training, from `position` to its end.

    A step is one update of the parameters, by a window of `accumulate` batches; the last window of an epoch
    has those that are left. Everything between two steps happens at whole windows.

    `valid`, `valid_metrics` and `validate_every` are by the name of the split. The first of `train_metrics`
    is the loss.
    `values` holds the last metric values, ``{"valid/loss": 0.1}``, and `measured` the keys of those that were
    measured at `position`. `loader_state` is what the loader of a resumed training said of its position, and
    `restored` the state of this loop in the checkpoint (`state`), empty for a new training.
    `epoch_rng` holds the random states at the start of the epoch: when a training resumes in the middle of an
    epoch, a loader that cannot skip batches repeats the earlier ones, and must draw the same random numbers
    for them.
    """

    learner: Learner
    steps: Steps
    train: EpochLoader[Any]
    valid: Mapping[str, EpochLoader[Any]]
    train_metrics: Sequence[Metric]
    valid_metrics: Mapping[str, Sequence[Metric]]
    duration: Duration
    validate_every: Mapping[str, Duration]
    checkpoint_every: Duration
    log_every: int
    validate_first: bool
    accumulate: int
    rules: GradientRules
    on_nan: str
    device: torch.device
    autocast: Callable[[], AbstractContextManager[object]]
    checkpoints: Checkpoints | None
    background: BackgroundWriter[Saved] | None
    stopping: EarlyStopping | None
    plateaus: Mapping[Plateau, str]
    callbacks: Callbacks
    writer: RunWriter
    reporter: Reporter
    title: str
    control: Control
    kernels: KernelTables
    position: Position
    values: dict[str, float]
    measured: Collection[str]
    document: Callable[[], Mapping[str, Any]]
    epoch_rng: RandomStates
    loader_state: Any
    restored: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.saving = CheckpointWriter(
            self.checkpoints,
            self.background,
            self.writer,
            lambda saved: self.callbacks(CheckpointSaved(self, saved)),
        )

    def run(self) -> str:
        """Train until the duration is over, early stopping triggers or a user stops it; return which one."""
        # The command is answered when the checkpoint is written.
        self.control.attach(functools.partial(self.save, kept=True, wait=True), self.show_activity)
        self.params = dict(self.learner.model.named_parameters())
        self.batches_per_epoch = self.train.num_batches()
        self.batch_iterator: Iterator[Any] = iter(())
        self.mover = Mover(self.device)
        rules = self.rules
        if self.callbacks.wants(GradientsComputed):
            rules = dataclasses.replace(rules, on_gradients=self.show_gradients)
        self.update = update_of(self.learner, self.steps, rules, self.autocast)
        self.losses = RecentLosses()
        self.skips = NonFiniteReports(self.train, self.on_nan, self.writer, self.message)
        self.step_output: StepOutput | None = None
        self.stop_reason: str | None = None
        self.is_stepping = False
        self.logged_sums: Sequence[Sums] = read(self.train_metrics)
        names = {m.name for metrics in (self.train_metrics, *self.valid_metrics.values()) for m in metrics}
        self.logged = StepLog(self.writer, [*names, *SPEED], self.step_in_progress)
        self.clock, self.activity = TrainingClock(), "training"
        self.trained = TrainingClock(self.position.seconds)
        self.checked_seconds = self.position.seconds
        self.save_every = self.saving.interval(self.checkpoint_every)
        self.before_validation: RandomStates | None = None
        self.logged_step, self.logged_seconds, self.data_wait_seconds = self.position.step, 0.0, 0.0
        self.learning_rate = math.nan
        self.saved_step, self.checked_step = 0, self.position.step
        self.validated: dict[str, int] = {}  # the last step of each validation
        self.due_splits: Collection[str] = self.valid.keys()  # while `position.pending`
        self.load_state(self.restored)
        self.buffers = TransientBuffers(self.learner.model, self.restored.get("buffers", ()))
        self.fields = field_texts(self.learner.model)
        # A checkpoint is ranked by values of its own weights only, not by those of an earlier validation.
        self.measured_at = dict.fromkeys(self.measured, self.position.step)
        self.is_evaluating = False
        self.learner.optimizer.train(self.params)  # a checkpoint or an earlier run left those to evaluate
        self.steps.train()
        self.report_progress()
        reason = None
        with self.logged.active():
            rng = RandomStates.capture()
            self.callbacks(
                Started(self, self.title, self.duration.epochs, self.last_step(), self.duration.seconds)
            )
            if self.restored:
                rng.restore()  # what a callback draws at the start, it drew before the first step
            if self.validate_first and self.position.step == 0:
                self.position.pending = True
            if self.position.pending:
                reason = self.run_due_tasks(epoch_ended=self.position.batch == 0 and self.position.epoch > 0)
            elif self.duration.over(self.position):
                reason = "finished"  # a finished run was resumed: no steps are left
            if reason is None and self.stopping is not None and self.stopping.over:
                reason = "stopped early"
            while reason is None:
                reason = self.epoch()
        self.learner.optimizer.eval(self.params)
        return reason

    def epoch(self) -> str | None:
        """Run the remaining steps of the epoch; return why the training ends, or None to continue."""
        position = self.position
        first_batch = position.batch
        self.batch_iterator = self.batches()
        wait_start = perf_counter()
        while window := self.next_window():
            self.data_wait_seconds += perf_counter() - wait_start
            self.step(window)
            if position.step % self.log_every == 0:
                self.log()
            # After the last batch, the due tasks run below, once the epoch is counted.
            if position.batch != self.batches_per_epoch and (reason := self.run_due_tasks()) is not None:
                return reason
            wait_start = perf_counter()
        if position.batch == 0 and first_batch == 0:
            raise DataError(
                f"epoch {position.epoch + 1} gave no batches",
                hint="can the iterable be iterated more than once?",
            )
        self.log()
        position.epoch, position.batch = position.epoch + 1, 0
        self.end_epoch()
        return self.run_due_tasks(epoch_ended=True)

    def next_window(self) -> list[Any]:
        """Return the next batches; if they cannot be loaded, save the state after the last step."""
        window: list[Any] = []
        try:
            window.extend(itertools.islice(self.batch_iterator, self.accumulate))
        except Exception:
            # The position of a stream is already that after the batches that were loaded.
            if not (window and self.state_of_loader()):
                self.save_before_failing("the next batch cannot be loaded")
            raise
        return window

    def step(self, window: Sequence[Any]) -> None:
        """Update the parameters by a window of batches."""
        position = self.position
        self.learning_rate = self.control.learning_rate(position.step)
        # Of rates that the optimizer schedules itself.
        self.learner.optimizer.rate_factor = self.control.rate_factor
        self.losses.begin_step(position)
        self.is_stepping = True
        # Each batch is moved when it is its turn, so that the device holds one of them.
        try:
            self.update(map(self.to_device, window), self.learning_rate, self.observe)
        except Exception as error:
            error.add_note(self.failed_step_text(len(window)))
            raise
        self.is_stepping = False
        position.step += 1
        position.batch += len(window)
        found = self.update.non_finite
        if found is not None and self.skips.report(found, position, len(window), self.learning_rate):
            self.stop("stopped by a step that was not finite")
        if self.step_output is not None:
            batch, output, self.step_output = self.to_device(window[-1]), self.step_output, None
            self.callbacks(Stepped(self, batch, output, self.learning_rate, skipped=found is not None))

    def failed_step_text(self, window: int) -> str:
        """Describe a step of so many batches that raised an error, and how to look into it."""
        position, step = self.position, self.position.step + 1
        batches = range(position.batch, position.batch + window)
        where = f"step {step}, epoch {position.epoch + 1}, batch {batches[0] + 1}"
        if window > 1:
            where += f" to {batches[-1] + 1}"
        samples = [self.skips.samples(position.epoch, batch) for batch in batches]
        if None not in samples:
            where += f", samples {list_text([index for some in samples for index in some or ()])}"
        return f"in {where}; to look into it: {replay_command(self.writer.folder, step, step, debug=True)}"

    def observe(self, output: StepOutput, counts: bool) -> None:
        """Update the metrics by the output of a training step; one that does not count is left out."""
        if counts:
            self.losses.add(output)
            for metric in self.train_metrics:
                metric.update(output)
            if output.log:
                self.logged.add(output.log)
        if self.callbacks.wants(Stepped):
            output.loss = output.loss.detach()
            self.step_output = output

    def show_gradients(self, gradients: Gradients) -> Gradients:
        """Give the gradients of a step to the callbacks; return them, or those that a callback put there."""
        event = GradientsComputed(self, gradients)
        self.callbacks(event)
        if not isinstance(event.gradients, Mapping):
            raise DefinitionError(
                "a callback assigned no gradients",
                where="on_gradients",
                expected="burnt.Gradients, or a tensor by path",
                found=type(event.gradients).__name__,
            )
        return Gradients(event.gradients)

    def step_in_progress(self) -> tuple[int, bool, bool]:
        """Return the step in progress, or the last one between two; if it is logged; if it is in progress."""
        step = self.position.step + self.is_stepping
        return step, not self.is_stepping or step % self.log_every == 0, self.is_stepping

    def message(self, text: str) -> None:
        """Show a message to the user, and write it to the run's log."""
        self.reporter.message(text)

    def stop(self, reason: str) -> None:
        """End the training after the step in progress; its checkpoint is saved."""
        self.stop_reason = reason

    def batches(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch."""
        position = self.position
        state, self.loader_state = self.loader_state, None
        current_rng = RandomStates.capture()
        if position.batch == 0:
            self.epoch_rng = current_rng
            return self.train.epoch(position.epoch)
        if getattr(self.train, "replays", False):
            self.message(
                f"The loader cannot skip batches: going through the {position.batch} that epoch "
                f"{position.current_epoch} has had."
            )
        self.epoch_rng.restore()
        remaining = remaining_batches(self.train, position, state)
        current_rng.restore()
        return remaining

    def run_due_tasks(self, *, epoch_ended: bool = False) -> str | None:
        """Validate, save and process commands if due after a step or epoch; return why the training ends."""
        self.saving.report()
        position, since = self.position, self.checked_seconds
        position.seconds = self.trained.seconds()
        over = self.duration.over(position)
        updated_splits = {"train"} if epoch_ended else set()
        is_pending, position.pending = position.pending, False
        self.due_splits = [
            split
            for split, every in self.validate_every.items()
            if self.validated.get(split) != position.step
            and (
                over
                or (is_pending and split in self.due_splits)
                or every.due(position, epoch_ended=epoch_ended, since=since)
            )
        ]
        if self.due_splits:
            try:
                position.pending = not self.validate()
            except Exception:
                self.save_before_failing("the validation failed")
                raise
            updated_splits.update(self.due_splits)
        if not position.pending:
            self.update_plateaus(updated_splits)
        stop = False
        if (
            not position.pending
            and self.stopping is not None
            and self.stopping.monitored.split in updated_splits
        ):
            stop = self.should_stop()
        if over or stop or self.stop_reason is not None:
            self.log()
        if (
            over
            or stop
            or self.stop_reason is not None
            or self.save_every.due(position, epoch_ended=epoch_ended, since=since)
            or (updated_splits and not position.pending and self.saving.is_best(position, self.values_here()))
        ):
            self.save()
        if not self.control.process_commands():
            self.save(scheduled=False)
            return "interrupted"
        self.checked_seconds = position.seconds
        return "finished" if over else "stopped early" if stop else self.stop_reason

    def log(self) -> None:
        """Write the metrics to the run store and the reporter; raise if the loss is not finite."""
        position, steps = self.position, self.position.step - self.logged_step
        if not steps:
            return
        sums, now = read(self.train_metrics), self.clock.seconds()
        values = {**intervals(self.train_metrics, sums, self.logged_sums), **self.logged.read()}
        seconds = max(now - self.logged_seconds, 1e-9)
        speed = {
            "learning_rate": self.learning_rate,
            **{f"learning_rate/{name}": rate for name, rate in self.group_rates().items()},
            "steps_per_second": steps / seconds,
            "samples_per_second": (sums[0][1] - self.logged_sums[0][1]) / seconds,
            "data_wait_share": min(self.data_wait_seconds / seconds, 1.0),
            **self.update.readings(),
        }
        self.writer.log(position.step, position.current_epoch, {**values, **speed}, "train")
        self.report_progress()
        self.callbacks(Logged(self, values, speed))
        self.check_loss(values)
        self.losses.clear()
        self.skips.check_scale(speed.get("loss_scale"), position)
        self.logged_sums, self.logged_step, self.logged_seconds, self.data_wait_seconds = (
            sums,
            position.step,
            now,
            0.0,
        )
        self.kernels.record()

    def group_rates(self) -> Mapping[str, float]:
        """Return the rates of the last step that the optimizer scheduled, also of one before the resume."""
        return self.learner.optimizer.rates or self.restored.get("group_rates", {})

    def check_loss(self, values: Mapping[str, float]) -> None:
        """Raise if the loss since the last reading is not finite."""
        loss = values.get("loss", 0.0)  # batches without items have no loss
        if not math.isfinite(loss):
            raise self.non_finite_error("the loss", loss, self.checked_step)
        self.checked_step = self.position.step

    def last_step(self) -> int | None:
        """Return the last step of the training, if it is known."""
        return self.duration.last_step(self.position, self.batches_per_epoch, accumulate=self.accumulate)

    def report_progress(self) -> None:
        """Write the position and the current activity to the run store."""
        self.writer.progress(
            self.position.step,
            self.position.current_epoch,
            total_steps=self.last_step(),
            total_epochs=self.duration.epochs,
            activity=self.activity,
            paused_seconds=self.control.paused_seconds,
            # Only of a duration in seconds, which no total of steps shows.
            **(
                {}
                if self.duration.seconds is None
                else {"seconds": self.trained.seconds(), "total_seconds": self.duration.seconds}
            ),
        )

    @contextmanager
    def show_activity(self, activity: str) -> Iterator[None]:
        """Show `activity` to viewers while the block runs, and exclude its time from the step speed."""
        before = self.activity
        try:
            with self.clock.stopped(), self.trained.stopped() if activity == "paused" else nullcontext():
                self.activity = activity
                self.report_progress()
                self.reporter.activity(activity)
                yield
        finally:
            self.activity = before
            self.report_progress()
            self.reporter.activity(before)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Have the optimizer put the parameters to evaluate and save in place while the block runs."""
        if self.is_evaluating:  # a checkpoint saved during a validation
            yield
            return
        self.learner.optimizer.eval(self.params)
        self.is_evaluating = True
        try:
            yield
        finally:
            self.is_evaluating = False
            self.learner.optimizer.train(self.params)

    def non_finite_error(self, what: str, value: float, since: int) -> NonFiniteError:
        """Return the error for a loss or parameter that became NaN or infinite after step `since`."""
        return self.skips.error(
            what,
            value,
            since=since,
            position=self.position,
            place=self.losses.first_non_finite(),
            learning_rate=self.learning_rate,
            newest=self.saving.newest(),
        )

    def end_epoch(self) -> None:
        """Record the metric values over the whole epoch, and reset the metrics."""
        values = intervals(self.train_metrics, read(self.train_metrics), None)
        for metric in self.train_metrics:
            metric.reset()
        self.logged_sums = read(self.train_metrics)
        self.set_values("train", values)
        self.writer.event("epoch", self.position.step, epoch=self.position.epoch, values=values)
        self.callbacks(EpochEnded(self, values))

    def set_values(self, split: str, values: Mapping[str, float]) -> None:
        """Set the last metric values of a split, measured at the current step."""
        self.values |= {f"{split}/{name}": value for name, value in values.items()}
        self.measured_at |= {f"{split}/{name}": self.position.step for name in values}

    def values_here(self) -> dict[str, float]:
        """Return the metric values that were measured at the current step."""
        step = self.position.step
        return {key: value for key, value in self.values.items() if self.measured_at.get(key) == step}

    def validate(self) -> bool:
        """Run what is due and record its values; return False if a stop request interrupted it."""
        self.before_validation = RandomStates.capture()
        logged: dict[str, dict[str, float]] = {}
        with self.show_activity("validating"), self.evaluating():
            for split in self.due_splits:
                for metric in self.valid_metrics[split]:
                    metric.reset()
                batches_until_stop = itertools.takewhile(
                    lambda _: self.control.process_commands(), self.valid[split].epoch(0)
                )
                with self.logged.validating(split) as logged[split]:
                    run_validation(
                        self.steps,
                        map(self.to_device, batches_until_stop),
                        self.valid_metrics[split],
                        self.autocast,
                        self.logged.add,
                    )
                if self.control.is_ending:
                    break
        rng, self.before_validation = self.before_validation, None
        self.position.seconds = self.trained.seconds()
        if self.control.is_ending:
            rng.restore()  # a resumed run repeats these validations with the same random numbers
            return False
        for split in self.due_splits:
            metrics = self.valid_metrics[split]
            values = {**intervals(metrics, read(metrics), None), **logged[split]}
            self.set_values(split, values)
            self.writer.log(self.position.step, self.position.current_epoch, values, split)
            for metric in metrics:
                metric.record(self.writer, split, self.position.step)
            self.callbacks(Validated(self, split, values))
            self.validated[split] = self.position.step
        return True

    def update_plateaus(self, updated_splits: Collection[str]) -> None:
        """Reduce the learning rates whose metric no longer improves."""
        for plateau, group in self.plateaus.items():
            monitored = plateau.monitored
            if monitored.split in updated_splits and plateau.update(
                self.values.get(monitored.key, math.nan), self.position
            ):
                rate = plateau(self.position.step) * (self.control.rate_factor if group else 1)
                self.writer.event(
                    "plateau",
                    self.position.step,
                    metric=monitored.key,
                    best=plateau.best,
                    patience=str(plateau.patience),
                    rate=rate,
                    scale=plateau.scale,
                    group=group or None,
                )
                better = "been a number" if plateau.best is None else f"improved on {plateau.best:.4g}"
                scheduled = "learning rate" if self.control.override is None else "scheduled learning rate"
                self.message(
                    f"Reducing the {f'learning rate of {group}' if group else scheduled} to {rate:.4g}: "
                    f"{monitored.key} has not {better} for {plateau.patience}."
                )

    def should_stop(self) -> bool:
        """Update early stopping with the newest value; return whether to stop."""
        stopping = self.stopping
        assert stopping is not None
        stop = stopping.update(self.values.get(stopping.monitored.key, math.nan), self.position)
        monitor_state = {
            "metric": stopping.monitored.key,
            "best": stopping.best,
            "patience": None if stopping.patience is None else str(stopping.patience),
        }
        self.writer.event(
            "stopping", self.position.step, **monitor_state, waited=stopping.waited, left=stopping.left
        )
        if stop:
            self.writer.event("early_stopping", self.position.step, **monitor_state, reason=stopping.reason)
            self.message(f"Stopping early: {stopping.reason}.")
        return stop

    def save_before_failing(self, why: str) -> None:
        """Write a checkpoint between two steps before an error ends the training, and report it."""
        step = self.position.step
        if not step:
            return
        try:
            self.save(scheduled=False, wait=True)
        except Exception as error:  # the first error is the one to raise
            self.message(f"The state after step {step} is not saved: {type(error).__name__}: {error}")
        else:
            if self.saved_step == step:
                self.message(f"The state after step {step} is saved: {why}.")

    def save(self, *, kept: bool = False, scheduled: bool = True, wait: bool = False) -> None:
        """Write a checkpoint if loss and parameters are finite.

        Args:
            kept: it is never removed.
            scheduled: the settings of the training ask for it, not an interruption or a command.
            wait: return when it is written, also if checkpoints are written in the background.
        """
        position, control = self.position, self.control
        # A command can change the learning rate without a step.
        state = (position.step, position.epoch, control.override, control.override_factor)
        if self.saving.has(state, kept=kept):
            return
        with self.show_activity("saving"):
            self.saving.report(wait=True)
            # Without a row in the run store: an interruption must not change the history.
            self.check_loss(intervals(self.train_metrics, read(self.train_metrics), self.logged_sums))
            trained = {path: p.detach() for path, p in self.params.items() if p.requires_grad}
            if not Gradients(trained).finite():
                path = next(path for path, value in trained.items() if not value.isfinite().all())
                raise self.non_finite_error(f"{path}, after a finite loss,", math.nan, self.saved_step)
            # A checkpoint requested during a validation holds the state from before that validation.
            validating = self.before_validation is not None
            # Rows up to this step are not written again by a training that resumes from here.
            sync = self.writer.sync()
            with self.evaluating():
                self.saving.save(
                    None if validating else state,
                    self.learner.model,
                    self.learner.optimizer.into_record(),
                    self.train_metrics,
                    dataclasses.replace(position, pending=position.pending or validating),
                    self.values_here(),
                    self.epoch_rng,
                    {
                        "last_values": dict(self.values),
                        "loader_state": self.state_of_loader(),
                        "loop": self.state(),
                        **self.document(),
                    },
                    rng=self.before_validation,
                    kept=kept,
                    scheduled=scheduled and not kept,
                    buffers=self.buffers.changed(),
                    wait=wait,
                    sync=sync,
                )
        position.seconds = self.trained.seconds()
        self.saved_step = position.step
        if wait or self.background is None:
            self.saving.report()

    def state(self) -> dict[str, Any]:
        """Return what the loop knows of earlier steps, for a checkpoint."""
        return {
            "logged_step": self.logged_step,
            "logged_sums": {
                m.name: sums for m, sums in zip(self.train_metrics, self.logged_sums, strict=True)
            },
            "logged": self.logged.state(),
            "update": self.update.state(),
            "validated": dict(self.validated),
            "due_splits": list(self.due_splits),
            "learning_rate": self.learning_rate,
            "group_rates": dict(self.group_rates()),
            "buffers": list(self.buffers.changed()),
            "fields": sorted({*self.restored.get("fields", ()), *self.changed_fields()}),
        }

    def changed_fields(self) -> list[str]:
        """Return the paths of the model's static fields that the training has changed."""
        now = field_texts(self.learner.model)
        return [path for path, text in now.items() if self.fields.get(path) != text]

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; checkpoints of burnt 0.1.0 have nothing of it."""
        if not state:
            return
        self.logged_step, self.validated = state["logged_step"], dict(state["validated"])
        self.due_splits = state["due_splits"]
        self.learning_rate = state["learning_rate"]
        self.logged.load_state(state["logged"])
        self.update.load_state(state["update"])
        before = state["logged_sums"]
        self.logged_sums = [
            (before[metric.name][0], before[metric.name][1]) if metric.name in before else sums
            for metric, sums in zip(self.train_metrics, self.logged_sums, strict=True)
        ]

    def state_of_loader(self) -> Any:
        """Return what the loader says of its position in the epoch; None if batches are enough."""
        state = getattr(self.batch_iterator, "state", None)
        return state() if self.position.batch and callable(state) else None

    def to_device(self, batch: Any) -> Any:
        """Return the batch on the training's device."""
        return batch if self.device.type == "cpu" else self.mover(batch)


def remaining_batches(train: EpochLoader[Any], position: Position, state: Any) -> Iterator[Any]:
    """Return the batches of an epoch from a position on; `state` is what the loader said of it, or None."""
    if state is None:
        return train.epoch(position.epoch, position.batch)
    remaining: Iterator[Any] = train.resume(position.epoch, position.batch, state)  # type: ignore[attr-defined]  # it gave the state
    return remaining


def run_validation(
    steps: Steps,
    batches: Iterable[Any],
    metrics: Sequence[Metric],
    autocast: Callable[[], AbstractContextManager[object]],
    log: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Update metrics with the validation step on every batch, without gradients and in evaluation mode.

    `log` is given what the steps log.

    Each module's training mode is restored afterwards.
    """
    modes = [(module, module.training) for module in steps.modules()]
    steps.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                with autocast():
                    output = steps(batch, validating=True)
                for metric in metrics:
                    metric.update(output)
                if log is not None and output.log:
                    log(output.log)
    finally:
        for module, training in modes:
            module.training = training
