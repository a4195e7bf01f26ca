"""CheckpointWriter: writes the checkpoints of a training, at once or in the background, and reports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from burnt.store import RunWriter
from burnt.train.checkpoints.background import BackgroundWriter
from burnt.train.checkpoints.checkpoint import Checkpoints, Saved, TrainingState
from burnt.train.duration import Duration, Position


class CheckpointWriter:
    """Writes the checkpoints of a training, if there are any, at once or in the background.

    Each one is an event ``checkpoint`` of the run, and given to `on_written`, once it is written.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        background: BackgroundWriter[Saved] | None,
        writer: RunWriter,
        on_written: Callable[[Saved], None],
    ) -> None:
        self._checkpoints, self._background = checkpoints, background
        self._writer, self._on_written = writer, on_written
        self._written: Saved | None = None  # at once, and not reported yet
        self._state: object = None
        self._is_kept = False

    def interval(self, every: Duration) -> Duration:
        """Return an interval together with those of the keepers."""
        for interval in [] if self._checkpoints is None else self._checkpoints.intervals():
            every |= interval
        return every

    def has(self, state: object, *, kept: bool) -> bool:
        """Whether there is nothing to write: the last checkpoint has this state, or none are written."""
        is_saved = self._state == state and self._is_kept >= kept
        return self._checkpoints is None or self._writer.gone or is_saved

    def save(self, training: TrainingState, state: object, *, wait: bool) -> None:
        """Write a checkpoint; `report` reports it.

        `state` is what `has` compares, None if the checkpoint may be written again. With `wait`, it is
        written on return.
        """
        assert self._checkpoints is not None  # see `has`
        background = None if wait else self._background
        # Rows up to this step are not written again by a training that resumes from here.
        saved = self._checkpoints.save(training, background, self._writer.sync())
        self._state, self._is_kept = state, saved.kept
        if background is None:
            self._written = saved

    def report(self, *, wait: bool = False) -> None:
        """Report a checkpoint that was written, if there is a new one; raise the error of writing it."""
        saved, self._written = self._written, None
        if self._background is not None:
            if wait:
                self._background.wait()
            saved = self._background.collect() or saved
        if saved is not None:
            values = dict(saved.values)
            position, name = saved.position, saved.path.name
            self._writer.event("checkpoint", position.step, path=name, values=values, bytes=saved.bytes())
            self._on_written(saved)

    def is_best(self, position: Position, values: Mapping[str, float]) -> bool:
        """Whether a `KeepBest` would keep a checkpoint of this position with these metric values."""
        if self._checkpoints is None:
            return False
        self.report(wait=True)  # the ranking needs all files
        return self._checkpoints.is_best(position, values)

    def newest(self) -> Path | None:
        """Return the folder of the newest checkpoint, once all are written."""
        if self._background is not None:
            self._background.wait()
        return None if self._checkpoints is None else self._checkpoints.newest()

    def finish(self, error: BaseException | None = None) -> None:
        """Wait for the checkpoint that is being written; after an error, add a note if that fails too."""
        try:
            self.report(wait=True)
        except Exception as second:
            if error is None:
                raise
            if second is not error:
                notes = [f"{type(second).__name__}: {second}", *getattr(second, "__notes__", ())]
                error.add_note("\n".join(notes))
