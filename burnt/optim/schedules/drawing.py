"""Drawings of schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnt._hints import explain_arguments
from burnt.errors import OptimError
from burnt.optim.schedules.base import Constant, ScheduleLike, stable_text
from burnt.plot import Line, Plot

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
                "this is no schedule to draw",
                where=name,
                expected="a schedule, a number, or a function of the finished steps",
                found=repr(one),
            )
        lines.append(Line(name, at, [float(one(step)) for step in at]))
    return Plot(lines, x="step")
