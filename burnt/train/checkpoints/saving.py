"""CheckpointWriter: writes the checkpoints of a training, at once or in a thread, and reports them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from burnt.store import RunWriter
from burnt.train.checkpoints.checkpoint import Checkpoints, Saved, TrainingState
from burnt.train.duration import Duration, Position


class CheckpointWriter:
    """Writes the checkpoints of a training, if there are any, at once or one at a time in a thread.

    Each one is an event ``checkpoint`` of the run, and given to `on_written`, once it is written. The methods
    are for the thread of the training. Errors of writing in the background are raised by `report`, each time,
    because the training must not go on without its checkpoints.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        writer: RunWriter,
        on_written: Callable[[Saved], None],
        *,
        in_background: bool,
    ) -> None:
        self._checkpoints, self._writer, self._on_written = checkpoints, writer, on_written
        self._in_background = in_background
        self._thread: threading.Thread | None = None
        self._written: Saved | None = None  # and not reported yet
        self._error: BaseException | None = None
        self._state: object = None
        self._is_kept = False

    def interval(self, every: Duration) -> Duration:
        """Return an interval together with the keepers' intervals."""
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
        self.wait()
        # Rows up to this step are not written again by a training that resumes from here.
        sync = self._writer.sync()
        if wait or not self._in_background:
            saved = self._written = self._checkpoints.save(training, sync)
        else:
            saved, write = self._checkpoints.prepare(training, sync, copied=True)
            # A disk that does not answer must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._write, args=(saved.path.name, write), name="burnt-checkpoint", daemon=True
            )
            self._thread.start()
        self._state, self._is_kept = state, saved.kept

    def _write(self, name: str, write: Callable[[], Saved]) -> None:
        try:
            self._written = write()
        except BaseException as error:
            error.add_note(f"while the checkpoint {name} was written in the background")
            self._error = error

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def report(self, *, wait: bool = False) -> None:
        """Report a checkpoint that was written, if there is a new one; raise the error of writing it."""
        if wait:
            self.wait()
        if self._error is not None:
            raise self._error
        if (saved := self._written) is not None:
            self._written = None
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
        self.wait()
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
