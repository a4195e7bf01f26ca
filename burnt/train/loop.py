"""The training loop: steps, epochs, validation, checkpoints and run commands.

Read this file to see what a training does, or copy it as the start of a custom loop. `TrainStep`, in
`train_step.py`, is one step: forward, backward, clipping, the optimizer. `Loop` is what happens around it.
Both call small objects: a loader, metrics, checkpoints, early stopping, callbacks, the run store, a reporter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from burnt._torch import restored_modes
from burnt.data.loading.loader import EpochLoader
from burnt.errors import DataError, DefinitionError, NonFiniteError, quantity
from burnt.gradients import Gradients
from burnt.inspect import num_params
from burnt.store import RunWriter
from burnt.train.checkpoints.buffers import TransientBuffers, field_texts
from burnt.train.checkpoints.checkpoint import Checkpoints, Loaded, TrainingState
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checkpoints.saving import CheckpointWriter
from burnt.train.control.control import Control, TrainingClock
from burnt.train.control.non_finite import NonFiniteReports, RecentLosses
from burnt.train.control.plateau import plateaus_of
from burnt.train.control.stopping import MetricWatch
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
from burnt.train.metrics.base import Metric, update
from burnt.train.metrics.monitored_metric import SPEED, RunMetrics
from burnt.train.reporting.run_tables import KernelTables
from burnt.train.resuming import checkpoint_document
from burnt.train.settings import TrainingSettings
from burnt.train.step import StepOutput
from burnt.train.train_step import TrainStep

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks


class Loop:
    """One training, from a position to its end.

    A step is one update of the parameters, by a window of `accumulate` batches; the last window of an epoch
    has those that are left. Everything between two steps happens at whole windows. `loaded` is the checkpoint
    that the training goes on from, or nothing.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        learner: Learner,
        steps: Steps,
        metrics: RunMetrics,
        checkpoints: Checkpoints | None,
        writer: RunWriter,
        control: Control,
        kernels: KernelTables,
        loaded: Loaded,
    ) -> None:
        self.settings, self.learner, self.steps, self.metrics = settings, learner, steps, metrics
        self.writer, self.control, self.kernels, self.position = writer, control, kernels, loaded.position
        self.reporter, self.ranks = settings.reporter, settings.ranks
        self.callbacks = Callbacks([settings.reporter, *settings.callbacks.all])
        self.watch = MetricWatch(settings.stopping, plateaus_of(learner), writer, self.message, control)
        self.losses = RecentLosses()
        self.non_finite = NonFiniteReports(
            settings.train, settings.on_nan, writer, self.message, settings.folder
        )
        self.logged = StepLog(writer, [*metrics.names, *SPEED], self.step_in_progress, self.ranks)
        rules = settings.gradient_rules()
        if self.callbacks.wants(GradientsComputed):
            rules = dataclasses.replace(rules, on_gradients=self.show_gradients)
        self.train_step = TrainStep(learner, steps, rules, settings.precision, settings.device, self.ranks)
        self.params = self.train_step.params
        self.saving = CheckpointWriter(
            checkpoints,
            writer,
            lambda saved: self.callbacks(CheckpointSaved(self, saved)),
            in_background=settings.async_checkpoints,
        )
        self.save_every = self.saving.interval(settings.checkpoint_every)
        self.fields = field_texts(learner.model)
        self.loaders: Mapping[str, EpochLoader[Any]] = {"train": settings.train, **settings.valid}
        if self.ranks is not None:
            self.loaders = {split: self.ranks.loader(loader) for split, loader in self.loaders.items()}
        self.batches_per_epoch = settings.train.num_batches()
        self.batch_iterator: Iterator[Any] = iter(())
        # What the loader said of its position, and the random states at the start of the epoch: when a
        # training resumes in the middle of an epoch, a loader that cannot skip batches repeats the earlier
        # ones, and must draw the same random numbers for them.
        self.loader_state = loaded.document.get("loader_state")
        self.epoch_rng = loaded.epoch_rng or RandomStates.capture()
        self.checked_seconds = self.position.seconds
        self.logged_step, self.logged_seconds, self.data_wait_seconds = self.position.step, 0.0, 0.0
        self.saved_step, self.checked_step = 0, self.position.step
        self.learning_rate, self.due_splits = math.nan, list(settings.valid)
        self.validated: dict[str, int] = {}  # the last step of each validation
        self.stop_reason: str | None = None
        # A callback may call `stop` on one rank alone.
        own = len(settings.callbacks.all)
        self.agrees_to_stop = self.ranks is not None and self.ranks.totals([own]) != [0]
        self.stepped: tuple[Any, StepOutput] | None = None  # of the step, where callbacks want it
        self.activity, self.is_stepping, self.is_evaluating = "training", False, False
        self.before_validation: RandomStates | None = None
        self.load_state(loaded)

    @property
    def values(self) -> dict[str, float]:
        """The last metric values, ``{"valid/loss": 0.1}``."""
        return self.metrics.values

    def run(self) -> str:
        """Train until the duration is over, early stopping triggers or a user stops it; return which one."""
        self.clock, self.trained = TrainingClock(), TrainingClock(self.position.seconds)
        if self.ranks is not None:
            self.ranks.clock, self.ranks.seconds = self.trained.seconds, self.position.seconds
        # The command is answered when the checkpoint is written.
        self.control.attach(functools.partial(self.save, kept=True, wait=True), self.show_activity)
        self.learner.optimizer.train(self.params)  # a checkpoint or an earlier run left those to evaluate
        self.steps.train()
        self.report_progress()
        position, reason = self.position, None
        with self.logged.active():
            rng = RandomStates.capture()
            duration = self.settings.duration
            self.callbacks(Started(self, self.title(), duration.epochs, self.last_step(), duration.seconds))
            if self.is_resumed:
                rng.restore()  # what a callback draws at the start, it drew before the first step
            if self.settings.validate_first and position.step == 0:
                position.pending = True
            if position.pending:
                reason = self.run_due_tasks(epoch_ended=position.batch == 0 and position.epoch > 0)
            elif self.settings.duration.over(position):
                reason = "finished"
                self.message(
                    f"Nothing is left to train: the duration of {duration} is over. To train on, resume with "
                    "a longer duration."
                )
            if reason is None and self.watch.why_over is not None:
                reason = "stopped early"
                self.message(
                    f"Nothing is left to train: early stopping has ended the run, as {self.watch.why_over}. "
                    "To train on, resume with other bounds of EarlyStopping, or without it."
                )
            while reason is None:
                reason = self.epoch()
        self.reshard()
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
            if position.step % self.settings.log_every == 0:
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
        values = self.metrics.end_epoch(position.step)
        self.writer.event("epoch", position.step, epoch=position.epoch, values=values)
        self.callbacks(EpochEnded(self, values))
        return self.run_due_tasks(epoch_ended=True)

    def batches(self) -> Iterator[Any]:
        """Iterate over the remaining batches of the epoch."""
        position, loader = self.position, self.loaders["train"]
        state, self.loader_state = self.loader_state, None
        current_rng = RandomStates.capture()
        if position.batch == 0:
            self.epoch_rng = current_rng
            return loader.epoch(position.epoch)
        if getattr(loader, "replays", False):
            self.message(
                f"The loader cannot skip batches: going through the {position.batch} that epoch "
                f"{position.current_epoch} has had."
            )
        self.epoch_rng.restore()
        remaining = remaining_batches(loader, position, state)
        current_rng.restore()
        return remaining

    def next_window(self) -> list[Any]:
        """Return the next batches; if they cannot be loaded, save the state after the last step."""
        window: list[Any] = []
        try:
            window.extend(itertools.islice(self.batch_iterator, self.settings.accumulate))
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
        try:
            found = self.train_step(window, self.learning_rate, self.observe)
        except Exception as error:
            error.add_note(self.non_finite.failed_step_text(position, len(window)))
            raise
        self.is_stepping = False
        position.step += 1
        position.batch += len(window)
        if found is not None and self.non_finite.report(found, position, len(window), self.learning_rate):
            self.stop("stopped by a step that was not finite")
        if self.stepped is not None:
            (batch, output), self.stepped = self.stepped, None
            self.callbacks(Stepped(self, batch, output, self.learning_rate, skipped=found is not None))

    def observe(self, batch: Any, output: StepOutput, counts: bool) -> None:
        """Update the metrics by the output of a training step; one that does not count is left out."""
        if self.ranks is not None and self.ranks.is_stand_in:
            counts = False
        if counts:
            self.losses.add(output)
            for metric in self.metrics.train:
                update(metric, output, is_first=not self.position.step)
            if output.log:
                self.logged.add(output.log)
        if self.callbacks.wants(Stepped):
            output.loss = output.loss.detach()
            self.stepped = batch, output

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
        return step, not self.is_stepping or step % self.settings.log_every == 0, self.is_stepping

    def message(self, text: str) -> None:
        """Show a message to the user, and write it to the run's log."""
        self.reporter.message(text)

    def stop(self, reason: str) -> None:
        """End the training after the step in progress; its checkpoint is saved."""
        self.stop_reason = reason

    def run_due_tasks(self, *, epoch_ended: bool = False) -> str | None:
        """Validate, save and process commands if due after a step or epoch; return why the training ends."""
        self.saving.report()
        position = self.position
        position.seconds = self.trained.seconds() if self.ranks is None else self.ranks.seconds
        due = functools.partial(
            Duration.due, position=position, epoch_ended=epoch_ended, since=self.checked_seconds
        )
        over = self.settings.duration.over(position)
        updated_splits = {"train"} if epoch_ended else set()
        is_pending, position.pending = position.pending, False
        self.due_splits = [
            split
            for split, every in self.settings.validate_every.items()
            if self.validated.get(split) != position.step
            and (over or (is_pending and split in self.due_splits) or due(every))
        ]
        if self.due_splits:
            try:
                position.pending = not self.validate()
            except Exception:
                self.save_before_failing("the validation failed")
                raise
            updated_splits.update(self.due_splits)
        is_new = bool(updated_splits) and not position.pending
        for monitored in self.settings.monitored:
            if is_new and monitored.split in updated_splits:
                names = [
                    key.partition("/")[2] for key in self.values if key.startswith(f"{monitored.split}/")
                ]
                monitored.check(names, f"after step {position.step}")
        stop = is_new and self.watch.update(self.values, updated_splits, position)
        if self.ranks is not None and self.agrees_to_stop:
            self.stop_reason = self.ranks.agreed(self.stop_reason)
        stop_reason = self.stop_reason
        ends = over or stop or stop_reason is not None
        if ends:
            self.log()
        if ends or due(self.save_every) or (is_new and self.is_best()):
            self.save()
        if not self.control.process_commands():
            self.save(scheduled=False)
            return "interrupted"
        self.checked_seconds = position.seconds
        if not self.agrees_to_stop:
            stop_reason = self.stop_reason  # which a callback may have given when the checkpoint was saved
        return "finished" if over else "stopped early" if stop else stop_reason

    def is_best(self) -> bool:
        """Whether a `KeepBest` would keep a checkpoint of the position."""

        def rank() -> bool:
            return self.saving.is_best(self.position, self.metrics.values_at(self.position.step))

        return rank() if self.ranks is None else self.ranks.first(rank)

    def log(self) -> None:
        """Write the metrics to the run store and the reporter; raise if the loss is not finite."""
        position, steps = self.position, self.position.step - self.logged_step
        if not steps:
            return
        sums, now = self.metrics.sums(), self.clock.seconds()
        seconds = max(now - self.logged_seconds, 1e-9)
        values = {**self.metrics.since_log(sums, seconds), **self.logged.read()}
        speed = {
            "learning_rate": self.learning_rate,
            **{f"learning_rate/{name}": rate for name, rate in self.group_rates().items()},
            "steps_per_second": steps / seconds,
            "samples_per_second": (sums[0][1] - self.metrics.logged[0][1]) / seconds,
            "data_wait_share": min(self.data_wait_seconds / seconds, 1.0),
            **(
                {} if self.ranks is None else {"rank_wait_share": min(self.ranks.wait_seconds / seconds, 1.0)}
            ),
            **self.train_step.outcomes.readings(),
        }
        self.writer.log(position.step, position.current_epoch, {**values, **speed}, "train")
        self.report_progress()
        monitored = {one.name for one in self.settings.monitored if one.is_logged and one.split == "train"}
        readings = {name: one for name, one in (values | speed).items() if name in monitored}
        if self.ranks is not None and readings:  # each rank has a speed of its own
            readings = self.ranks.mean_values(readings)
        for name, one in readings.items():
            self.metrics.add_reading(name, one, steps)
        self.callbacks(Logged(self, values, speed))
        self.check_loss(values)
        self.losses.clear()
        self.non_finite.check_scale(speed.get("loss_scale"), position)
        self.metrics.logged, self.logged_step = sums, position.step
        self.logged_seconds, self.data_wait_seconds = now, 0.0
        if self.ranks is not None:
            self.ranks.wait_seconds = 0.0
        self.kernels.record()

    def group_rates(self) -> Mapping[str, float]:
        """Return the rates of the last step that the optimizer scheduled, also of one before the resume."""
        return self.learner.optimizer.rates or self.restored_rates

    def check_loss(self, values: Mapping[str, float]) -> None:
        """Raise if the loss since the last reading is not finite."""
        loss = values.get("loss", 0.0)  # batches without items have no loss
        if not math.isfinite(loss):
            raise self.non_finite_error("the loss", loss, self.checked_step)
        self.checked_step = self.position.step

    def check_parameters(self) -> None:
        """Raise if a parameter is not finite."""
        trained = {path: p.detach() for path, p in self.params.items() if p.requires_grad}
        values = Gradients(trained)
        if not (values.finite() if self.ranks is None else self.ranks.all_finite(values)):
            path = next(
                (path for path, value in trained.items() if not value.isfinite().all()), "a parameter"
            )
            raise self.non_finite_error(f"{path}, after a finite loss,", math.nan, self.saved_step)

    def non_finite_error(self, what: str, value: float, since: int) -> NonFiniteError:
        """Return the error for a loss or parameter that became NaN or infinite after step `since`."""
        place, newest = self.losses.first_non_finite(), self.saving.newest()
        if self.ranks is not None:
            place = min((one for one in self.ranks.every(place) if one is not None), default=None)
        return self.non_finite.error(what, value, since, self.position, place, self.learning_rate, newest)

    def last_step(self) -> int | None:
        """Return the last step of the training; None if it is not known."""
        settings = self.settings
        return settings.duration.last_step(
            self.position, self.batches_per_epoch, accumulate=settings.accumulate
        )

    def title(self) -> str:
        """Return model, duration and device in one line."""
        settings, model, step = self.settings, self.learner.model, self.position.step
        ranks = "" if self.ranks is None else f" of {self.ranks.size} ranks"
        return (
            f"{type(model).__name__}, {quantity(num_params(model), 'parameter')}, {settings.duration} on "
            f"{settings.placement}{ranks} in {settings.precision}, run folder {settings.folder}"
            + (f", resuming after step {step}" if step else "")
        )

    def report_progress(self) -> None:
        """Write the position and the current activity to the run store."""
        duration = self.settings.duration
        self.writer.progress(
            self.position.step,
            self.position.current_epoch,
            total_steps=self.last_step(),
            total_epochs=duration.epochs,
            activity=self.activity,
            paused_seconds=self.control.paused_seconds,
            # Only of a duration in seconds, which no total of steps shows.
            **(
                {}
                if duration.seconds is None
                else {"seconds": self.trained.seconds(), "total_seconds": duration.seconds}
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
        if self.ranks is not None:
            self.ranks.share_buffers()
        self.reshard()
        self.learner.optimizer.eval(self.params)
        self.is_evaluating = True
        try:
            yield
        finally:
            self.is_evaluating = False
            self.reshard()
            self.learner.optimizer.train(self.params)

    def reshard(self) -> None:
        """Have several ranks put the parameters that the optimizer steps in place."""
        if self.ranks is not None:
            self.ranks.reshard(self.learner.model)

    def validate(self) -> bool:
        """Run what is due and record its values; return False if a stop request interrupted it."""
        self.before_validation = RandomStates.capture()
        logged: dict[str, dict[str, float]] = {}
        with self.show_activity("validating"), self.evaluating():
            for split in self.due_splits:
                metrics = self.metrics.valid[split]
                for metric in metrics:
                    metric.reset()
                batches = self.loaders[split].epoch(0)
                until_stop = itertools.takewhile(lambda _: self.control.process_commands(), batches)
                on_device = map(self.train_step.to_device, until_stop)
                with self.logged.validating(split) as logged[split]:
                    run_validation(
                        self.steps, on_device, metrics, self.train_step.autocast, self.logged.add, self.ranks
                    )
                if self.control.is_ending:
                    break
        rng, self.before_validation = self.before_validation, None
        position = self.position
        self.update_seconds()
        if self.control.is_ending:
            rng.restore()  # a resumed run repeats these validations with the same random numbers
            return False
        for split in self.due_splits:
            values = self.metrics.end_validation(split, logged[split], position.step)
            self.writer.log(position.step, position.current_epoch, values, split)
            for metric in self.metrics.valid[split]:
                metric.record(self.writer, split, position.step)
            self.callbacks(Validated(self, split, values))
            self.validated[split] = position.step
        return True

    def update_seconds(self) -> None:
        """Set the position's seconds; with several ranks, by rank 0's clock, as durations end by them."""
        self.position.seconds = self.trained.seconds() if self.ranks is None else self.ranks.share_seconds()

    def save_before_failing(self, why: str) -> None:
        """Write a checkpoint between two steps before an error ends the training, and report it.

        One of several ranks cannot, as the others do not know of its error.
        """
        step = self.position.step
        if not step or self.ranks is not None:
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

        One that is `kept` is never removed; one is `scheduled` if the settings of the training ask for it,
        not an interruption or a command. With `wait` it is written on return, also in the background.
        """
        position, control = self.position, self.control
        # A command can change the learning rate without a step.
        state = (position.step, position.epoch, control.override, control.override_factor)
        has = functools.partial(self.saving.has, state, kept=kept)
        if has() if self.ranks is None else self.ranks.first(has):
            return
        with self.show_activity("saving"):
            report = functools.partial(self.saving.report, wait=True)
            if self.ranks is None:
                report()
            else:
                self.ranks.first(report)
            # Without a row in the run store: an interruption must not change the history.
            self.check_loss(self.metrics.since_log(self.metrics.sums()))
            self.check_parameters()
            # A checkpoint requested during a validation holds the state from before that validation.
            validating = self.before_validation is not None
            rng = self.before_validation or RandomStates.capture()
            rank_rngs: Mapping[str, RandomStates] = {}
            if self.ranks is not None:
                rank_rngs = self.ranks.other_states({"rng": rng, "epoch_rng": self.epoch_rng})
                if (warning := self.ranks.drift_warning()) is not None:
                    self.message(f"{warning} (at step {position.step})")
            with self.evaluating():
                model, optimizer, record = self.learner.model, self.learner.optimizer, None
                optimizer_record = optimizer.into_record()
                if self.ranks is not None:
                    record = self.ranks.record(model)
                    optimizer_record = self.ranks.optimizer_record(optimizer, self.params)
                training = TrainingState(
                    model,
                    optimizer_record,
                    self.metrics.merged(self.metrics.train),
                    dataclasses.replace(position, pending=position.pending or validating),
                    self.metrics.values_at(position.step),
                    self.epoch_rng,
                    rng,
                    self.state(),
                    self.buffers.changed(),
                    kept=kept,
                    scheduled=scheduled and not kept,
                    rank_rngs=rank_rngs,
                    record=record,
                )
                write = functools.partial(
                    self.saving.save, training, None if validating else state, wait=wait
                )
                if self.ranks is None:
                    write()
                else:
                    self.ranks.first(write)
        self.update_seconds()
        self.saved_step = position.step
        if wait or not self.settings.async_checkpoints:
            self.saving.report()

    def state(self) -> dict[str, Any]:
        """Return the JSON part of a checkpoint: everything but tensors and position."""
        return {
            "last_values": dict(self.values),
            "loader_state": self.state_of_loader(),
            "loop": {
                "logged_step": self.logged_step,
                "logged_sums": self.metrics.state(),
                "logged": self.logged.state(),
                "update": self.train_step.outcomes.state(),
                "validated": dict(self.validated),
                "due_splits": list(self.due_splits),
                "learning_rate": self.learning_rate,
                "group_rates": dict(self.group_rates()),
                "buffers": list(self.buffers.changed()),
                "fields": sorted(self.changed_fields()),
            },
            **checkpoint_document(self.settings, self.learner, self.control),
        }

    def load_state(self, loaded: Loaded) -> None:
        """Restore what `state` returned; checkpoints of burnt 0.1.0 have nothing of the loop."""
        state = loaded.document.get("loop", {})
        self.is_resumed = bool(state)
        self.restored_rates: Mapping[str, float] = state.get("group_rates", {})
        self.changed_before = set(state.get("fields", ()))
        self.buffers = TransientBuffers(self.learner.model, state.get("buffers", ()))
        measured, sums = loaded.document.get("values", {}), state.get("logged_sums", {})
        self.metrics.load_state(loaded.last_values(), measured, self.position.step, sums)
        if state:
            self.learning_rate, self.due_splits = state["learning_rate"], state["due_splits"]
            self.logged_step, self.validated = state["logged_step"], dict(state["validated"])
            self.logged.load_state(state["logged"])
            self.train_step.outcomes.load_state(state["update"])

    def changed_fields(self) -> set[str]:
        """Return the paths of the model's static fields that the training has changed."""
        now = field_texts(self.learner.model)
        return self.changed_before.union(path for path, text in now.items() if self.fields.get(path) != text)

    def state_of_loader(self) -> Any:
        """Return what the loader says of its position in the epoch; None if batches are enough."""
        state = getattr(self.batch_iterator, "state", None)
        return state() if self.position.batch and callable(state) else None


def remaining_batches(loader: EpochLoader[Any], position: Position, state: Any) -> Iterator[Any]:
    """Return the batches of an epoch from a position on; `state` is what the loader said of it, or None."""
    if state is None:
        return loader.epoch(position.epoch, position.batch)
    remaining: Iterator[Any] = loader.resume(position.epoch, position.batch, state)  # type: ignore[attr-defined]  # it gave the state
    return remaining


def run_validation(
    steps: Steps,
    batches: Iterable[Any],
    metrics: Sequence[Metric],
    autocast: Callable[[], AbstractContextManager[object]],
    log: Callable[[Mapping[str, Any]], None] | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Update metrics with the validation step on every batch, without gradients and in evaluation mode.

    `log` is given what the steps log; `ranks` are those of a training that share each batch. Each module's
    training mode is restored afterwards.
    """
    with restored_modes(steps), torch.no_grad():
        steps.eval()
        for number, batch in enumerate(batches):
            with autocast():
                output = steps(batch, validating=True)
            if ranks is not None and ranks.is_stand_in:
                continue
            for metric in metrics:
                update(metric, output, is_first=not number)
            if log is not None and output.log:
                log(output.log)
