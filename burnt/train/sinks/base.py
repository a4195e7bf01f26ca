"""Sink: mirrors a run to another tracker.

A sink reads the run store, as viewers do, in a thread of its own. So the training never waits for a tracker,
and a tracker gets the same rows as the store, also those of an earlier attempt that a killed process had not
sent. What was sent is kept in ``logs/<name>.json`` of the run folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from burnt._files import parse_json, replacing
from burnt.errors import ConfigError, RunError, TakenOverError, UnsupportedError, quantity
from burnt.store.reader import Artefact, Event, Point, RunReader, Series
from burnt.store.write_lease import WriteLease
from burnt.train.events import Ended, Failed, Started

_POLL_SECONDS = 1.0
_END_SECONDS = 30.0  # how long the end of a training waits for a tracker

# What a resumed training records again for steps that an earlier attempt had recorded already.
_REPEATED_EVENTS = {"checkpoint", "early_stopping", "epoch", "plateau", "stopping"}

How = Literal["finished", "stopped", "failed"]


@dataclass
class Run:
    """The run that a sink mirrors.

    Args:
        folder: the run folder.
        name: the run's name.
        config: the content of ``config.json``, without what only `burnt.load` needs.
        created: when the run began, in Unix seconds.
        host: the machine that the attempt runs on.
        attempt: the attempt's number, from 1.
        resumed_from_step: the step that it resumed from; None if it started from the beginning.
        state: what the sink keeps for the next attempt, as JSON: its ids. Empty at first.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    created: float
    host: str
    attempt: int
    resumed_from_step: int | None
    state: dict[str, Any]


@dataclass
class Records:
    """New rows of the run store.

    Args:
        points: metric values with their series, by step.
        events: the events, in the order of writing.
        artefacts: images, tables and histograms, in the order of writing.
    """

    points: list[tuple[Series, Point]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    artefacts: list[Artefact] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.points) + len(self.events) + len(self.artefacts)


class Sink:
    """Base class of sinks, which are callbacks of a training: ``callbacks=[TensorBoard()]``.

    A subclass defines `open`, `send` and `close`, which are called in the sink's thread. If one of them
    raises, the training goes on, the error is reported once, and nothing more is sent; at the end of the
    training the number of records that were not sent is reported. A training has one sink of a name.

    >>> class Printer(Sink):
    ...     name = "printer"
    ...
    ...     def send(self, records):
    ...         for (name, split), point in records.points:
    ...             print(split, name, point.step, point.value)
    """

    name: ClassVar[str]
    """Names the sink's file in the run folder."""

    drops_superseded: ClassVar[bool] = False
    """Whether the tracker can forget steps that a resumed training repeats; otherwise a step that was sent is
    not sent again."""

    def __init__(self) -> None:
        self._follower: _Follower | None = None
        self.report: Callable[[str], None] = lambda text: None
        """Shows a message of the training."""
        self.left_out = 0
        """How many values the tracker did not take."""

    def leave_out(self, what: str, error: Exception) -> None:
        """Go on without a value that the tracker refuses; the first one is reported, and their number."""
        self.left_out += 1
        if self.left_out == 1:
            self.report(f"Warning: {self.name} does not take {what!r}, which it lacks: {error}")

    def open(self, run: Run) -> str | None:
        """Begin, or continue after a resume; return where the run can be seen, such as a URL."""
        return None

    def send(self, records: Records) -> None:
        """Send records; once this has returned they are not given again."""
        raise NotImplementedError(f"{type(self).__name__}.send")

    def close(self, how: How) -> None:
        """Send what is left, and say how the training ended."""

    def on_start(self, event: Started) -> None:
        """Start to follow the run.

        Raises:
            ConfigError: the training has another sink of this name.
        """
        training = event.training
        same = [one for one in training.callbacks.all if isinstance(one, Sink) and one.name == self.name]
        if len(same) > 1:
            raise ConfigError(
                f"the training has {len(same)} sinks named {self.name!r}",
                where="callbacks",
                expected="one, as they would share the file of what was sent",
                hint="a subclass with another `name`",
            )
        writer = training.writer
        self.report, self.left_out = training.message, 0
        self._follower = _Follower(self, writer.folder, writer.lease, training.message)
        self._follower.start()

    def on_end(self, event: Ended) -> None:
        """Send the rest."""
        self._end(event, "finished" if event.reason in ("finished", "stopped early") else "stopped")

    def on_error(self, event: Failed) -> None:
        """Send the rest."""
        self._end(event, "stopped" if isinstance(event.error, KeyboardInterrupt) else "failed")

    def _end(self, event: Ended | Failed, how: How) -> None:
        if self._follower is not None:
            event.training.writer.flush()
            self._follower.end(how)
            self._follower = None


class _Follower(threading.Thread):
    """Reads the run store, and gives a sink what is new."""

    def __init__(self, sink: Sink, folder: Path, lease: WriteLease, report: Callable[[str], None]) -> None:
        super().__init__(name=f"burnt-sink-{sink.name}", daemon=True)
        self._sink, self._folder, self._lease, self._report = sink, folder, lease, report
        self._file = folder / "logs" / f"{sink.name}.json"
        self._how: How | None = None
        self._ends = threading.Event()
        self._sent = _Sent()
        self._error: Exception | None = None

    def end(self, how: How) -> None:
        """Send the rest and wait until it is done; report what was not sent."""
        self._how = how
        self._ends.set()
        self.join(_END_SECONDS)
        if self.is_alive():
            self._report(
                f"Warning: {self._sink.name} has not sent everything in {_END_SECONDS:.0f} s; "
                "the training does not wait for it any longer."
            )
        elif self._error is not None and (count := self._count_unsent()):
            self._report(f"Warning: {self._sink.name} lacks {quantity(count, 'record')} of the run.")
        elif self._sink.left_out > 1:
            count = self._sink.left_out
            self._report(f"Warning: {self._sink.name} did not take {quantity(count, 'value')} of the run.")

    def _count_unsent(self) -> int:
        """Return the number of records that are not known to have been sent; 0 if it cannot be found out."""
        count = 0
        # A run or a file that cannot be read was reported, and the training must not fail by it.
        with contextlib.suppress(RunError), RunReader(self._folder) as reader:
            sent = _Sent.read(self._file)  # what was being sent when the tracker failed is not in it
            while records := sent.next(reader, self._sink):
                count += len(records)
        return count

    def run(self) -> None:
        """Follow the run until it ends."""
        try:
            with RunReader(self._folder) as reader:
                if len(reader.attempts()) > 1:  # else a file is of a run that this one has replaced
                    self._sent = _Sent.read(self._file)
                self._follow(reader)
        except TakenOverError:  # which ends the training as well
            return
        except Exception as error:  # whatever a tracker raises, the training goes on
            self._error = error
            self._report(
                f"Warning: {self._sink.name} failed and gets nothing more: {type(error).__name__}: {error}"
            )

    def _follow(self, reader: RunReader) -> None:
        attempt = reader.attempts()[-1]
        config = {key: value for key, value in (reader.config() or {}).items() if key != "load"}
        run = Run(
            self._folder,
            reader.name,
            config,
            reader.created,
            attempt.host,
            attempt.id,
            attempt.resumed_from_step,
            self._sent.state,
        )
        place = self._sink.open(run)
        self._write_sent()
        if place is not None:
            self._report(f"{self._sink.name}: {place}")
        how = None
        while how is None:
            self._ends.wait(_POLL_SECONDS)
            how = self._how  # read before the rows: what was written before the end is among them
            while True:
                records = self._sent.next(reader, self._sink)
                if reader.attempts()[-1].id != attempt.id:
                    return  # the process that has resumed the run sends its rows, and says how it ended
                if not records:
                    break
                self._sink.send(records)
                self._write_sent()
        self._sink.close(how)
        self._write_sent()

    def _write_sent(self) -> None:
        with contextlib.suppress(RunError), self._lease.hold():  # RunError: the run folder was deleted
            self._sent.write(self._file)


class _Sent:
    """What was sent: positions of rows, the newest step of each series, and the state of the sink."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self._positions: dict[tuple[Series, int], int] = {}
        self._steps: dict[str, int] = {}
        self._event = self._artefact = 0

    @classmethod
    def read(cls, file: Path) -> _Sent:
        """Read what an earlier attempt has written."""
        sent = cls()
        try:
            document = parse_json(file.read_bytes())
        except FileNotFoundError:
            return sent
        except ValueError as error:
            raise RunError(
                "the file of a sink is damaged",
                where=str(file),
                found=str(error),
                hint="delete it to send the whole run again, as a new one",
            ) from error
        sent.state, sent._steps = document["state"], document["steps"]
        sent._event, sent._artefact = document["event"], document["artefact"]
        sent._positions = {
            (Series(name, split), attempt): position
            for name, split, attempt, position in document["positions"]
        }
        return sent

    def write(self, file: Path) -> None:
        """Write the file, if the run folder is still there."""
        document = {
            "state": self.state,
            "steps": self._steps,
            "event": self._event,
            "artefact": self._artefact,
            "positions": [[*series, attempt, at] for (series, attempt), at in self._positions.items()],
        }
        if file.parent.is_dir():
            with replacing(file) as draft:
                draft.write_text(json.dumps(document), encoding="utf-8")

    def next(self, reader: RunReader, sink: Sink) -> Records:
        """Return the next rows, and count them as sent; empty if there are none."""
        records = Records()
        while not records:
            rows = reader.new_points(self._positions)
            events = reader.events(after=self._event)
            names = [name for name in reader.artefact_names() if name.id > self._artefact]
            if not (rows or events or names):
                break
            for series, position, point in rows:
                self._positions[series, point.attempt] = position + 1
                if self._is_new(f"{series.split}/{series.name}", point.step, sink):
                    records.points.append((series, point))
            for event in events:
                self._event = event.id
                repeats = event.kind in _REPEATED_EVENTS
                if not repeats or self._is_new(f"event {event.kind}", event.step, sink):
                    records.events.append(event)
            for name in names:
                self._artefact = name.id
                if self._is_new(f"{name.kind} {name.name}", name.step, sink):
                    artefact = reader.artefact(name.id)
                    records.artefacts += [artefact] if artefact is not None else []
        return records

    def _is_new(self, key: str, step: int | None, sink: Sink) -> bool:
        """Whether a step of a series was not sent yet, by this attempt or an earlier one."""
        if step is None or sink.drops_superseded:
            return True
        if step <= self._steps.get(key, -1):
            return False
        self._steps[key] = step
        return True


class Names:
    """Names that a tracker takes: one of its own for each name of a run, the same in each attempt.

    `taken` maps what names became to the names, from earlier attempts; new ones are added. `clean` replaces
    what the tracker does not take in a name, except its length, which is at most `most` bytes. `nests` says
    that names are files, so that one cannot also be the folder of others.

    >>> names = Names({}, lambda name: name.replace("<", "_").replace(">", "_"))
    >>> names("f1"), names("recall>0.5"), names("recall<0.5"), names("recall>0.5")
    ('f1', 'recall_0.5', 'recall_0.5-ed159ba6', 'recall_0.5')
    """

    def __init__(
        self,
        taken: dict[str, str],
        clean: Callable[[str], str],
        *,
        nests: bool = False,
        most: int = 250,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._taken, self._clean, self._nests, self._most, self._report = taken, clean, nests, most, report
        self._known = {name: valid for valid, name in taken.items()}
        self._folders = {folder for valid in taken for folder in _folders(valid)}

    def __call__(self, name: str) -> str:
        """Return the tracker's name."""
        if name in self._known:
            return self._known[name]
        valid = self._clean(name)
        nested = self._nests and (
            valid in self._folders or not self._taken.keys().isdisjoint(_folders(valid))
        )
        if nested or valid in self._taken or len(valid.encode()) > self._most:
            start = (valid.replace("/", "_") if nested else valid).encode()[: self._most - 9]
            valid = f"{start.decode(errors='ignore')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            shown = name[:80].replace("\0", ".")
            self._report(f"Warning: {shown!r} became {valid!r}, and other taken or long names likewise")
            self._report = lambda text: None
        self._taken[valid], self._known[name] = name, valid
        self._folders.update(_folders(valid))
        return valid


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def require_package(module: str, sink: str, package: str | None = None) -> None:
    """Raise an UnsupportedError unless a module is installed, by default by burnt's extra of that name."""
    if importlib.util.find_spec(module) is None:
        raise UnsupportedError(
            f"{sink} needs {module}", expected="the package", found="it is not installed",
            hint=f"pip install '{package or f'burnt[{module}]'}'",
        )  # fmt: skip
