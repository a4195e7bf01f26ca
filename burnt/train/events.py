"""Events of a training, and the callbacks that receive them.

A callback is any object with one or more of the methods in `HOOKS`. It may keep a state of its own in the
checkpoints, by methods ``state() -> dict`` (JSON) and ``load_state(dict)``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from burnt.errors import DefinitionError, nearest
from burnt.gradients import Gradients
from burnt.train.control.stopping import EarlyStopping
from burnt.train.other_trainers import CALLBACK_METHODS
from burnt.train.step import StepOutput

if TYPE_CHECKING:
    from burnt.store import RunWriter
    from burnt.train.checkpoints.checkpoint import Saved
    from burnt.train.duration import Position
    from burnt.train.learner import Learner


class Training(Protocol):
    """What callbacks see of the training, which is a `burnt.train.loop.Loop`."""

    learner: Learner
    position: Position
    writer: RunWriter  # the run store; `writer.folder` is the run's folder
    callbacks: Callbacks

    @property
    def values(self) -> dict[str, float]:
        """The last metric values, ``{"valid/loss": 0.1}``."""
        ...

    def stop(self, reason: str) -> None:
        """End the training after the step in progress, for this reason; its checkpoint is saved."""
        ...

    def save(self, *, kept: bool = False) -> None:
        """Write a checkpoint; with `kept`, it is never removed."""
        ...

    def message(self, text: str) -> None:
        """Show a message to the user, and write it to the run's log."""
        ...


@dataclasses.dataclass
class Event:
    """What every event has: the training in which it happened."""

    training: Training


@dataclasses.dataclass
class Started(Event):
    """The training begins, or goes on after a resume, at ``training.position``.

    `title` is the model, the duration and the device in one line. The training ends after `epochs`, `steps`
    or `seconds`, as far as these are known.
    """

    title: str = ""
    epochs: int | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclasses.dataclass
class GradientsComputed(Event):
    """The gradients of a step are known, before they are clipped; of several optimizers, those of each step.

    `gradients` are of the mean loss over the window, by path; a callback may assign others.
    """

    gradients: Gradients


@dataclasses.dataclass
class Stepped(Event):
    """A step is done, and counted in ``training.position``.

    `batch` is its last micro-batch, and `output` what the training step returned for it. A step that is
    `skipped` changed nothing, by ``on_nan=``.
    """

    batch: Any
    output: StepOutput
    learning_rate: float
    skipped: bool = False


@dataclasses.dataclass
class Logged(Event):
    """The metrics were read: `values` are those since the last reading, ``{"loss": 0.3}``."""

    values: Mapping[str, float]
    speed: Mapping[str, float]  # learning rate, steps and samples per second, share of time waiting for data


@dataclasses.dataclass
class EpochEnded(Event):
    """An epoch is done: its metrics, ``{"loss": 0.3}``."""

    values: Mapping[str, float]


@dataclasses.dataclass
class Validated(Event):
    """A validation is done: its split, ``"valid"``, and its metrics, ``{"loss": 0.3}``."""

    split: str
    values: Mapping[str, float]


@dataclasses.dataclass
class CheckpointSaved(Event):
    """A checkpoint was written."""

    saved: Saved


@dataclasses.dataclass
class Failed(Event):
    """An exception ends the training."""

    error: BaseException


@dataclasses.dataclass
class Ended(Event):
    """The training is over, without an exception."""

    reason: str  # such as "finished"


HOOKS: Mapping[str, type[Event]] = {
    "on_start": Started,
    "on_gradients": GradientsComputed,
    "on_step": Stepped,
    "on_log": Logged,
    "on_epoch": EpochEnded,
    "on_validation": Validated,
    "on_checkpoint": CheckpointSaved,
    "on_error": Failed,
    "on_end": Ended,
}
"""The methods that a callback may have, and the event that each is given."""


class Callbacks:
    """The callbacks of a training, in the order they were given.

    >>> class Printer:
    ...     def on_end(self, event):
    ...         print(event.reason)
    >>> callbacks = Callbacks([Printer()])
    >>> callbacks.wants(Stepped), callbacks.wants(Ended)
    (False, True)
    """

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        if not isinstance(callbacks, Iterable):
            raise DefinitionError(
                "callbacks= takes a list", expected=f"[{callbacks!r}]", found=type(callbacks).__name__
            )
        self.all = tuple(callbacks)
        self._methods: dict[type[Event], list[Callable[[Any], object]]] = {}
        for callback in self.all:
            _check(callback)
            for name, event in HOOKS.items():
                if (method := getattr(callback, name, None)) is not None:
                    self._methods.setdefault(event, []).append(method)

    def without(self, kind: type) -> Callbacks:
        """Return those that are not of a class."""
        return Callbacks([callback for callback in self.all if not isinstance(callback, kind)])

    def wants(self, event: type[Event]) -> bool:
        """Whether a callback has the method for an event, so that events nobody wants are never built."""
        return event in self._methods

    def __call__(self, event: Event) -> None:
        """Give an event to each callback that has its method."""
        for method in self._methods.get(type(event), ()):
            method(event)

    def fail(self, event: Failed) -> None:
        """Give an event to each callback; what one raises is a note of the first error, and hides nothing."""
        for method in self._methods.get(Failed, ()):
            try:
                method(event)
            except Exception as second:
                name = type(getattr(method, "__self__", method)).__name__
                event.error.add_note(f"{name}.on_error failed, too: {type(second).__name__}: {second}")

    def state(self) -> dict[str, Any]:
        """Return the states of the callbacks that have one, as JSON, by name."""
        states = {name: callback.state() for name, callback in self._named() if hasattr(callback, "state")}
        for name, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise DefinitionError(
                    "the state of a callback cannot be saved",
                    where=f"{name}.state()",
                    expected="a dict of numbers, texts, lists and dicts, as JSON has them",
                    found=str(error),
                    hint="tensor.tolist()" if "Tensor" in str(error) else None,
                ) from error
        return states

    def load_state(self, states: Mapping[str, Any]) -> None:
        """Restore the states of the callbacks that the checkpoint knows."""
        for name, callback in self._named():
            if name in states and hasattr(callback, "load_state"):
                callback.load_state(states[name])

    def _named(self) -> list[tuple[str, Any]]:
        """Return the callbacks with their class's name, numbered from the second of a class on."""
        named: dict[str, Any] = {}
        for callback in self.all:
            kind = type(callback).__name__
            number = sum(type(other).__name__ == kind for other in named.values())
            named[f"{kind}-{number + 1}" if number else kind] = callback
        return list(named.items())


def _check(callback: Any) -> None:
    if isinstance(callback, type):
        raise DefinitionError(
            "callbacks= takes objects",
            expected=f"{callback.__name__}(...)",
            found=f"the class {callback.__name__}",
        )
    hooks = [name for name in dir(callback) if name.startswith("on_")]
    wrong = next((name for name in hooks if name not in HOOKS), None)
    if hooks and wrong is None:
        return
    hint = None
    if wrong is not None:
        guess = CALLBACK_METHODS.get(wrong) or nearest(wrong, HOOKS)
        hint = f"did you mean {guess}?" if guess else None
    elif callable(getattr(callback, "keep", None)):
        hint = "what selects checkpoints belongs to checkpoints="
    elif isinstance(callback, EarlyStopping):
        hint = "it belongs to stopping="
    raise DefinitionError(
        f"{type(callback).__name__} is not a callback",
        expected=f"an object with one or more of the methods {', '.join(HOOKS)}",
        found="none of them" if wrong is None else f"a method {wrong}",
        hint=hint,
    )
