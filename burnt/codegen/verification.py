"""Verification: results of generated code are compared with a reference's, of new plans or a sample of calls.

An error is relative to the largest value of its result, or of what it was rounded from. The tolerance is 16
times the error of torch's own result, both against the reference in float64, plus a few units of the dtype's
precision: of a result of few elements that cancel out, rounding is a matter of luck.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from burnt import _torch
from burnt.codegen.backward import interpret, redraw
from burnt.codegen.frontend.trace import Traced, is_random
from burnt.codegen.lower import LOWERINGS
from burnt.codegen.precision import matmul_eps
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.errors import FusionError, FusionWarning, InputValueError

# The tolerance in units of the dtype's precision, with a reference in float64 and without one; the first also
# has so many times the error of torch's result.
_SLACK, _APART, _TIMES = 8, 64, 16

listeners: list[Callable[[Mapping[str, float]], None]] = []
"""The last is given the errors of sampled calls, ``{"verify/graph0_forward": 1e-7}``: a training's log."""


class Difference(NamedTuple):
    """The result that is worst off: its position, its error and the tolerance, both relative."""

    position: int
    error: float
    tolerance: float

    @property
    def fault(self) -> str | None:
        """Why the error is too large; None if it is not."""
        if self.error <= self.tolerance:
            return None
        return f"off by {self.error:.1e} of the largest number, where {self.tolerance:.1e} is allowed"


class Verification:
    """Says which calls of one piece of generated code are verified, and reports what was found.

    Args:
        name: of the code.
        interval: 0 for the first call, which raises if it is off; else a sample, the first of so many calls,
            whose errors go to `listeners` and, beyond the tolerance, into a warning.
    """

    def __init__(self, name: str, interval: int) -> None:
        self.name, self.interval = name, interval
        self.calls = itertools.count()

    def is_due(self) -> bool:
        """Count a call, and return whether it is verified."""
        call = next(self.calls)
        return call % self.interval == 0 if self.interval else call == 0

    def report(self, error: float, what: str, fault: str | None) -> None:
        """Report an error; `what` names the result, and `fault` says why it is too large, or is None.

        Raises:
            FusionError: it is too large, and not a sample's.
        """
        if self.interval:
            for listener in listeners[-1:]:
                listener({f"verify/{self.name}": error})
        if fault is None:
            return
        raised = FusionError(
            f"{self.name} computes something else than torch",
            where=what,
            found=fault,
            hint="this is a bug in burnt or in the compiler; please report it",
        )
        if not self.interval:
            raise raised
        warnings.warn(str(raised), FusionWarning, stacklevel=2)


def interval_of(verify: Any, where: str) -> int | None:
    """Return the interval that ``verify=`` asks for, as a `Verification` takes it; None for False.

    Raises:
        InputValueError: it is neither a truth value nor a share of calls.
    """
    if isinstance(verify, bool):
        return 0 if verify else None
    if isinstance(verify, int | float) and 0 < verify <= 1:
        return round(1 / verify)
    raise InputValueError(
        "verify= is not understood",
        where=where,
        expected="True, for each new plan; or a share of calls up to 1, such as 1/1000",
        found=repr(verify),
    )


def verify_plan(plan: CompiledPlan, interval: int, traced: Traced | None = None) -> None:
    """Let a plan's calls be verified, by `run`, and those of its backward plans.

    The reference is the plan's graph, run by torch with the numbers that the plan draws; or the one that was
    given to the passes, then the calls are by `run_and_free`.
    """
    name = "run" if traced is None else "run_and_free"
    plan.verify = functools.partial(verify_plan, interval=interval)
    traced = plan.traced if traced is None else traced
    nodes = traced.graph.graph.nodes
    if others := [str(n.target) for n in nodes if is_random(n) and n.target not in LOWERINGS]:
        text = f"{plan.name} is not verified, as torch draws random numbers: {', '.join(others)}"
        warnings.warn(text, FusionWarning, stacklevel=2)
        return
    traced = dataclasses.replace(traced, composite_graph=traced.graph)  # with what is saved
    verified = _verified(plan, traced, getattr(plan, name), Verification(plan.name, interval))
    setattr(plan, name, verified)


def _verified(
    plan: CompiledPlan, traced: Traced, run: Callable[..., Any], verification: Verification
) -> Callable[..., Any]:
    """Return the function that runs a plan, or takes its arguments as a list, with verified calls."""
    names = list(map(str, cast("Sequence[Any]", traced.graph.graph.output_node().args[0])))
    has_seed = plan.plan.seed is not None

    def reference(*given: Any, draw: Callable[..., Any] = redraw) -> list[Any]:
        tensors, numbers = given[: len(plan.plan.inputs)], given[len(plan.plan.inputs) :]
        seed = tensors[-1] if has_seed else None
        tensors = tensors[:-1] if has_seed else tensors
        return interpret(traced, numbers, functools.partial(draw, plan, seed), *tensors)

    def call(*arguments: Any) -> Any:
        if not verification.is_due():
            return run(*arguments)
        given = list(arguments[0] if arguments and isinstance(arguments[0], list) else arguments)
        devices = [plan.device] if plan.device.type == "cuda" else []
        with torch.no_grad(), _torch.without_autocast():
            with torch.random.fork_rng(devices):
                theirs = reference(*given)
            right = None
            no_float64 = contextlib.suppress(RuntimeError, TypeError)  # some ops do not compute in it
            with torch.random.fork_rng(devices), no_float64, _InFloat64():  # type: ignore[no-untyped-call]
                right = reference(*in_float64(given), draw=_redraw_in_float64)
            results = run(*arguments)
            count = len(theirs) - len(plan.mutated)
            ours = [*results[:count], *(given[i] for i in plan.mutated)]
            found = compare(ours, theirs, right)
        kind = "changed argument" if found.position >= count else f"result {found.position}"
        of = theirs[found.position] if theirs else None
        what = f", {names[found.position]}, {of.dtype} {list(of.shape)}" if isinstance(of, Tensor) else ""
        verification.report(found.error, kind + what, found.fault)
        return results

    return call


class _InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes in float64 whatever floating-point dtype is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = in_float64((args, kwargs or {}))
        return in_float64(func(*args, **kwargs))


def in_float64(values: Any) -> Any:
    """Return nested values with float64 in place of other floating-point tensors and dtypes."""

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.double() if value.is_floating_point() else value
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    return pytree.tree_map(wide, values)


def _redraw_in_float64(*arguments: Any) -> Any:
    with _disable_current_modes():  # a kernel writes the dtype that it was generated for
        return in_float64(redraw(*arguments))


def compare(ours: Sequence[Any], theirs: Sequence[Any], exact: Sequence[Any] | None) -> Difference:
    """Compare results with torch's, and with those in float64 if there are any; return the worst.

    Of integers and truth values, the error is the share that differs: rounding decides near-ties.
    """
    floats = [t.dtype for t in theirs if isinstance(t, Tensor) and t.is_floating_point()]
    coarsest = max((torch.finfo(dtype).eps for dtype in floats), default=torch.finfo(torch.float32).eps)
    worst = Difference(0, 0.0, 1.0)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, Tensor):
            continue
        found = Difference(i, *_difference(a, b, None if exact is None else exact[i], coarsest))
        if found.error * worst.tolerance > worst.error * found.tolerance:
            worst = found
    return worst


def _difference(ours: Any, theirs: Tensor, exact: Tensor | None, coarsest: float) -> tuple[float, float]:
    """Return the relative error of a result, and its tolerance."""
    if not isinstance(ours, Tensor) or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return math.inf, 1.0
    if not theirs.is_floating_point() and not theirs.is_complex():
        differs = ours != theirs
        if exact is not None:
            differs &= ours != exact
        return int(differs.sum()) / max(differs.numel(), 1), math.sqrt(coarsest)
    ours, baseline = _wide(ours), _wide(theirs if exact is None else exact)
    finite = theirs.isfinite() & baseline.isfinite()
    if bool((ours.isfinite() & ~baseline.isfinite() & ~theirs.isfinite()).any()):
        return math.inf, 1.0
    eps = torch.finfo(theirs.dtype).eps
    if not bool(finite.any()):
        return 0.0, 1.0
    error, their_error = (float((t - baseline)[finite].abs().max()) for t in (ours, _wide(theirs)))
    # Of a result that cancels out, such as the gradient of a bias before a batch norm, only rounding is left.
    scale = max(float(baseline[finite].abs().max()), their_error / (_APART * eps)) or 1.0
    error, their_error = error / scale, their_error / scale
    tolerance = _TIMES * their_error + _SLACK * eps
    if exact is None:
        tolerance = max(_APART * eps, _SLACK * matmul_eps(theirs.dtype))
    return math.inf if math.isnan(error) else error, tolerance


def _wide(values: Tensor) -> Tensor:
    values = values.detach().cpu() if values.device.type == "mps" else values.detach()
    return values.to(torch.complex128 if values.is_complex() else torch.float64)
