"""replay: run a step of a run again, bit for bit, and look at what happens in it."""

from __future__ import annotations

import dataclasses
import math
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from burnt.errors import CheckpointError, ConfigError, NonFiniteError
from burnt.store import RunReader, Series
from burnt.train.learner import Learner
from burnt.train.rewind.rewind import Past, train_forward
from burnt.train.rewind.step_inspection import InspectedStep, StepInspector
from burnt.train.training import SupervisedTraining

_TOLERANCE = 1e-3
_OF_ONE = "with one, dropout, other random numbers in the model and BatchNorm differ"


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """A step that was run again, and how it compares with what the run had recorded."""

    step: InspectedStep
    start: str | None  # the checkpoint that it was trained forward from; None is the beginning
    logged: dict[str, float]  # the values that the run recorded at this step, by metric
    compared: int  # the number of values that the run recorded since `start`, up to this step
    difference: str | None  # the first that differs from the replay, in words; None if all are equal
    ranks: int = 1  # the number of processes that trained the run; of several, values are nearly equal

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from self.step.lines()
        values = ", ".join(f"{name} {value:.9g}" for name, value in self.logged.items())
        yield f"  recorded       {values or 'nothing at this step'}"
        since = f"since {self.start}" if self.start else "since the beginning"
        if self.difference is not None:
            yield f"  differs        {self.difference}"
        elif self.compared and self.ranks > 1:
            yield f"  nearly equal   all {self.compared:,} values recorded {since}, to {_TOLERANCE:.1%}:"
            yield f"                 {self.ranks} processes trained the run, and round sums otherwise"
        elif self.compared:
            yield f"  equal          all {self.compared:,} values recorded {since}, bit for bit"
        else:
            yield f"  not compared   the run recorded no value {since} up to this step"

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return dataclasses.asdict(self)


def replay(
    training: SupervisedTraining,
    learner: Learner,
    step: int | tuple[int, int],
    *,
    debug: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Run a step of a run again and look at its layers, gradients and samples. The run is not written to.

    The training is taken up from the newest checkpoint before the step and goes forward to it in silence,
    with its validations and callbacks; what these write to the run folder goes to a temporary one. A run that
    several processes trained is replayed by one, in which dropout and BatchNorm differ and sums are rounded
    in another order: its values are compared to 0.1 %.

    Args:
        training: as it was in the run; its folder is the run's.
        learner: as it was given to the run at its start.
        step: the step, from 1; or the first and the last of several, of which the first that is not finite is
            reported, or else the last one.
        debug: stop in the debugger at the first line of the training step, and where it raises.
        progress: called before each step with the number of steps done.

    Raises:
        RunError: the folder holds no run, or the run has no such step.
        CheckpointError: the checkpoint does not fit the model.

    >>> import torch
    >>> from burnt import nn, optim
    >>> from burnt.data import Loader, TensorDataset
    >>> from burnt.train import Learner, StepOutput, SupervisedTraining
    >>> def step(model, batch):
    ...     return StepOutput(loss=model(batch.x).square().mean(), targets=batch.x)
    >>> def prepared(folder):
    ...     torch.manual_seed(0)
    ...     loader = Loader(TensorDataset(x=torch.arange(8.0).reshape(4, 2)), batch_size=2)
    ...     training = SupervisedTraining(
    ...         folder, train=loader, duration="3 epochs", log_every=1, monitor="off"
    ...     )
    ...     return training, Learner(nn.Linear(2, 1), optim.Sgd(), 1e-3, step)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     training, learner = prepared(folder)
    ...     result = training.run(learner)
    ...     report = replay(*prepared(folder), step=5)
    >>> report.start, report.step.samples, report.step.non_finite, report.difference
    ('step-00000004', [0, 1], None, None)
    """
    first, last = (step, step) if isinstance(step, int) else step
    if not 1 <= first <= last:
        raise ConfigError(
            "no such steps", where="step", expected="from 1, the first not after the last", found=repr(step)
        )
    past = past_of(training.folder, first, last)
    inspector = StepInspector(first, debug=debug, progress=progress)
    with tempfile.TemporaryDirectory(prefix="burnt-replay-") as scratch:
        try:
            train_forward(training, learner, past, Path(scratch), finish=False, callbacks=[inspector])
        except CheckpointError:
            raise
        except Exception as error:
            # The step to look at may well be the one that failed in the run.
            if inspector.inspected is None or not (
                isinstance(error, NonFiniteError) or inspector.inspected.error is not None
            ):
                raise
        inspected = inspector.inspected
        assert inspected is not None
        return _compare(past, inspected, Path(scratch))


def past_of(folder: Path, first: int, last: int) -> Past:
    """Return how to get to step `first` of a run, and on to `last`; raise a RunError if there is no way."""
    return Past.read(folder, last, before=first - 1, failed=True)


def is_timed(series: Series) -> bool:
    """Whether the values of a series depend on the clock, so that they differ from run to run."""
    return "per_second" in series.name or series.name in ("data_wait_share", "rank_wait_share")


def same_bits(a: float, b: float) -> bool:
    """Whether two numbers are equal to the bit; NaN equals itself."""
    return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)


def _nearly_equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) or same_bits(a, b)


def compare_recorded(past: Past, scratch: Path, last: int) -> tuple[int, str | None]:
    """Compare what a run recorded with what training it forward again did, up to step `last`.

    Returned are the number of values compared, and the first that differs, as text; None if all are equal, or
    nearly so if several processes trained the run, as they add numbers in another order.
    """
    compared, difference = 0, None
    is_equal = same_bits if past.ranks == 1 else _nearly_equal
    with RunReader(past.folder) as run, RunReader(scratch) as again:
        for series in sorted(set(run.series()) & set(again.series())):
            if is_timed(series):
                continue
            old, new = (
                {
                    step: value
                    for step, value in zip(*reader.points(*series)[::2], strict=True)
                    if past.first < step <= last
                }
                for reader in (run, again)
            )
            for step in sorted(old.keys() & new.keys()):
                compared += 1
                if not is_equal(old[step], new[step]) and difference is None:
                    difference = (
                        f"{series.split}/{series.name} at step {step}: {old[step]!r} in the run, "
                        f"{new[step]!r} now"
                        + (f" ({past.ranks} processes trained the run; {_OF_ONE})" if past.ranks > 1 else "")
                    )
    return compared, difference


def _compare(past: Past, inspected: InspectedStep, scratch: Path) -> ReplayReport:
    """Compare what the run and the replay recorded, from the checkpoint to the step."""
    compared, difference = compare_recorded(past, scratch, inspected.step)
    with RunReader(past.folder) as run, RunReader(scratch) as again:
        logged = {
            series.name: value
            for series in sorted(set(run.series()) & set(again.series()))
            if series.split == "train" and not is_timed(series)
            for step, value in zip(*run.points(*series)[::2], strict=True)
            if step == inspected.step
        }
    start = None if past.start is None else past.start.path.name
    return ReplayReport(inspected, start, logged, compared, difference, past.ranks)
