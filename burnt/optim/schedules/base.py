"""Schedule, the base of the schedules; the two simplest ones: a number, and a function; drawings."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch

from burnt._hints import ELSEWHERE, explain_arguments
from burnt.config import Config, qualified_name
from burnt.errors import ConfigError, OptimError
from burnt.plot import Line, Plot

ScheduleLike = float | Callable[[int], float]
"""What can be used as a schedule: a Schedule, a number, or any function of the finished steps."""


class Schedule(Config, tag=True, open=True):
    """Base of the schedules: maps the number of finished steps to the rate of the next one.

    A schedule of your own is a subclass with fields and `__call__`. As a field of a Config, ``schedule:
    Schedule`` takes every schedule, in JSON by its class's name. A number there is a `Constant`, a function a
    `Function`.

    >>> from burnt.optim import Warmup
    >>> class Sawtooth(Schedule):
    ...     lr: float
    ...     steps: int
    ...
    ...     def __call__(self, step: int) -> float:
    ...         return self.lr * (1 - step % self.steps / self.steps)
    >>> schedule = Warmup(2, Sawtooth(lr=1.0, steps=4))
    >>> [schedule(step) for step in range(8)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 1.0, 0.75]
    >>> Warmup.from_json(schedule.to_json()) == schedule
    True
    """

    _rates: ClassVar[tuple[str, ...]] = ()  # fields that are finite and not negative
    _factors: ClassVar[tuple[str, ...]] = ()  # fields that are so too, and multiply a rate
    _counts: ClassVar[tuple[str, ...]] = ()  # fields that are at least 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self, *self._rates)
        check_rates(self, *self._factors, what="factor")
        check_counts(self, *self._counts)

    def __call__(self, step: int) -> float:
        """Return the learning rate of the step after `step` finished steps."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def __copy__(self) -> Self:  # msgspec's loses what a schedule has computed
        return self

    @classmethod
    def _from_plain(cls, value: Any, *, strict: bool) -> Schedule:
        if isinstance(value, str) and not strict:
            with contextlib.suppress(ValueError):
                value = float(value)
        return as_schedule(value)


class Constant(Schedule, kw_only=False):
    """The same rate at every step.

    >>> Constant(0.1)(7)
    0.1
    """

    lr: float

    _rates = ("lr",)

    def __call__(self, step: int) -> float:
        """Return `lr`."""
        return self.lr


class Function(Schedule, kw_only=False):
    """Any function of the number of finished steps, as a part of other schedules.

    Other schedules wrap functions that they are given in it. It cannot be saved as JSON: write a subclass of
    `Schedule` for that.

    Args:
        function: finished steps -> rate.

    >>> from burnt.optim import Warmup
    >>> schedule = Warmup(4, lambda step: 1 / (1 + step))
    >>> [round(schedule(step), 3) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]
    """

    function: Callable[[int], float]

    def __post_init__(self) -> None:
        check_function(self, self.function)

    def __call__(self, step: int) -> float:
        """Return the function's value."""
        return float(self.function(step))

    def __repr__(self) -> str:
        return f"Function({stable_text(self.function)})"


def as_schedule(value: Any) -> Schedule:
    """Return a Schedule for a number or a function; a Schedule stays as it is.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(float(value))
    if callable(value) and not isinstance(value, type):
        return Function(value)
    raise ConfigError(
        "this is not a learning rate", expected=LEARNING_RATE, found=kind_of(value), hint=schedule_hint(value)
    )


LEARNING_RATE = "a number, such as 1e-3, a schedule of burnt.optim, or a function of the steps done"


def kind_of(given: Any) -> str:
    """Name what was given: a plain value, a class, or the class of an object."""
    if given is None or isinstance(given, str | bool | int | float | list | dict):
        return f"{given!r} ({type(given).__name__})"
    text = qualified_name(given) if isinstance(given, type) else qualified_name(type(given))
    return f"the class {text}" if isinstance(given, type) else text.removeprefix("builtins.")


def schedule_hint(given: Any) -> str:
    """Return what to use instead of something that is not a schedule: a scheduler of torch, a class, text."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            return f"a number instead of text: {float(given):g}"
    cls = given if isinstance(given, type) else type(given)
    name = given if isinstance(given, str) else cls.__name__
    package, _, twin = ELSEWHERE.get(name, f"burnt.optim.{name}").rpartition(".")
    schedules = {schedule.__name__.lower(): schedule for schedule in Schedule.__subclasses__()}
    hint = "a function of the number of steps done can be any schedule"
    if package == "burnt.train":
        hint = "burnt.train.Plateau(1e-3, metric, patience) reduces the rate when a metric stalls"
    elif schedule := schedules.get(twin.lower()):
        hint = f"burnt.optim.{schedule.__name__}({', '.join(schedule.__struct_fields__)})"
    if issubclass(cls, torch.optim.lr_scheduler.LRScheduler) and package != "burnt.train":
        hint += f"\nor optim.TorchSchedule(lambda optimizer: {cls.__name__}(optimizer, ...), lr=...)"
    return hint


def stable_text(value: object) -> str:
    """Return a function's name, or the repr of another value, as text that is the same in every process."""
    text: str = getattr(value, "__qualname__", None) or repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def check_function(schedule: Schedule, function: object) -> None:
    """Raise unless the field `function` is a function that depends only on the steps."""
    if not callable(function) or isinstance(function, type):
        raise invalid(schedule, "function", "a function of the finished steps", function)
    if hasattr(function, "load_state"):
        name = type(function).__name__
        raise invalid(
            schedule, "function", "a function of only the finished steps", function,
            hint=f"wrap the other way round, as in {name}(Warmup(...)): {name} has a state that the "
            "training must find",
        )  # fmt: skip


def check_counts(schedule: Schedule, *names: str, least: int = 1) -> None:
    """Raise unless the fields are at least `least`."""
    for name in names:
        if getattr(schedule, name) < least:
            raise invalid(schedule, name, f"at least {least}", getattr(schedule, name))


def check_rates(schedule: Schedule, *names: str, above_zero: bool = False, what: str = "rate") -> None:
    """Raise unless the fields are finite and not negative."""
    for name in names:
        value = getattr(schedule, name)
        if not (math.isfinite(value) and (value > 0 if above_zero else value >= 0)):
            limit = "above 0" if above_zero else "of at least 0"
            raise invalid(schedule, name, f"a finite {what} {limit}", value)


def invalid(
    schedule: Schedule, name: str, expected: str, found: object, hint: str | None = None
) -> ConfigError:
    """Return the error for the value of a field."""
    return ConfigError(
        f"{type(schedule).__name__} cannot be built",
        where=name,
        expected=expected,
        found=repr(found),
        hint=hint,
    )


_MAX_POINTS = 2000


@explain_arguments()
def plot(schedule: ScheduleLike | Sequence[ScheduleLike] | Mapping[str, ScheduleLike], steps: int) -> Plot:
    """Draw the learning rate over the steps of a training.

    Args:
        schedule: a schedule, a number or a function; or several, as a list or by name.
        steps: the last step to draw.

    Returns:
        The drawing: `print` shows it as text, a notebook as SVG, and its method `svg` returns an SVG
        document.

    Raises:
        OptimError: `steps` is below 1, or there is nothing to draw.

    >>> from burnt import optim
    >>> drawing = optim.plot(optim.Warmup(20, optim.Cosine(1e-3, steps=80)), steps=100)
    >>> print(drawing.text(width=44, height=8))
           ⠒⠒⠒ Warmup(steps=20, then=Cosine(lr=…
    0.0010┤      ⡴⠉⠉⠉⠙⠒⠒⠤⣄⣀
          │    ⢠⠎         ⠈⠉⠒⠦⣄⡀
    0.0005┤  ⢀⡴⠁               ⠉⠓⠦⣄⡀
          │ ⣠⠋                     ⠉⠓⠢⢄⣀
    0.0000┤⠜⠁                          ⠈⠉⠒⠢⠤⢤⣀⣀⣀
          └┬─────────────────┬─────────────────┬
           0                50              step
    """
    if isinstance(schedule, Mapping):
        named = list(schedule.items())
    else:
        schedules = schedule if isinstance(schedule, Sequence) else [schedule]
        named = [(stable_text(one), one) for one in schedules]
    if not named:
        raise OptimError("there is no schedule to draw", expected="at least one", found=repr(schedule))
    if steps < 1:
        raise OptimError("a schedule cannot be drawn", where="steps", expected="at least 1", found=steps)
    count = min(steps, _MAX_POINTS)
    at = [round(i * steps / count) for i in range(count + 1)]
    lines = []
    for name, one in named:
        if isinstance(one, int | float):
            one = Constant(one)
        if not callable(one):
            raise OptimError(
                "this is not a schedule to draw",
                where=name,
                expected="a schedule, a number, or a function of the finished steps",
                found=repr(one),
            )
        lines.append(Line(name, at, [float(one(step)) for step in at]))
    return Plot(lines, x="step")
