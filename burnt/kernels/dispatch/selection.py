"""Select the candidate for a call: the pinned one, else the fastest measured one, else by a heuristic.

The heuristic (`select_by_heuristic`) is a pure function of the arguments: generated kernels, unless the table
of measured facts (`burnt.torch_speed`) says that torch's are faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from burnt.errors import UnsupportedError
from burnt.kernels.interface.candidate import OPS
from burnt.kernels.interface.tuning_key import (
    format_choice,
    parse_choice,
    runnable_candidates,
    tuning_key,
    wants_gradient,
)
from burnt.torch_speed import Fact, find_fact

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp, Candidate


Choice = tuple["Candidate", dict[str, Any] | None, str, str]

_chosen: dict[str, tuple[str, str]] = {}  # tuning key -> (choice as text, reason)
_pinned: dict[str, str] = {}


def choices() -> dict[str, str]:
    """Return the selections of this process: tuning key -> candidate, with its configuration as JSON.

    A checkpoint stores them, and `pin` makes a resumed run use the same kernels, whatever the tuner has
    measured since.
    """
    return {key: chosen for key, (chosen, _) in _chosen.items()}


def reasons() -> dict[str, str]:
    """Return why each of `choices` was selected: ``pinned``, ``heuristic``, or what was measured."""
    return {key: why for key, (_, why) in _chosen.items()}


def pin(choices: dict[str, str]) -> None:
    """Pin the candidates of these tuning keys to those returned by `choices`; an empty dictionary unpins all.

    A pinned candidate that does not exist or cannot run is ignored.

    >>> from burnt import kernels
    >>> kernels.pin(kernels.choices()); kernels.pin({})
    """
    _pinned.clear()
    _pinned.update(choices)
    for op in OPS.values():
        op.forget()


@contextlib.contextmanager
def pinned(choices: Mapping[str, str]) -> Iterator[None]:
    """Pin these choices, besides those already pinned, within a context."""
    before = dict(_pinned)
    pin({**before, **choices})
    try:
        yield
    finally:
        pin(before)


def select_candidate(op: AnyOp, args: Sequence[Any], broken: dict[str, str] | None = None) -> Choice:
    """Select the candidate for these arguments; also return its configuration, the reason and the tuning key.

    Raises:
        UnsupportedError: no candidate can run with these arguments.
        DefinitionError: a candidate has an invalid limit, and `broken` (see `runnable_candidates`) is None.
    """
    from burnt.kernels.autotune import tuner

    key = tuning_key(op, args)
    runnable = runnable_candidates(op, args, broken)
    if not runnable:
        raise UnsupportedError(
            f"no candidate of {op.name} can run with these arguments",
            where=f"burnt.kernels.{op.name}",
            found="\n".join(f"{c.name}: {c.why_not(args)}" for c in op.candidates.values()),
        )
    chosen = _pinned_choice(runnable, args, key)
    if chosen is None:
        measurements = tuner.lookup_or_measure(op, args, key, runnable)
        trusted = [
            c for c in runnable if format_choice(c, _first_config(c, args)) not in measurements.wrong
        ] or runnable
        chosen = measurements.best(trusted, args) or (*select_by_heuristic(op, args, trusted), "heuristic")
    _chosen[key] = format_choice(chosen[0], chosen[1]), chosen[2]
    return (*chosen, key)


def select_by_heuristic(
    op: AnyOp, args: Sequence[Any], candidates: Sequence[Candidate]
) -> tuple[Candidate, dict[str, Any] | None]:
    """Select a candidate and its first configuration from only the arguments' shapes, dtypes and devices.

    Candidates registered by users come first, the last registered one before the others, unless their
    ``best=`` declines (`Candidate`); then generated kernels where they are not known to be slower; then the
    library.
    """
    registered = [c for c in candidates if c.name not in ("library", "generated") and c.is_best(args)]
    if registered:
        return registered[-1], _first_config(registered[-1], args)
    by_name = {c.name: c for c in candidates}
    on_cpu = all(a.device.type == "cpu" for a in args if isinstance(a, Tensor))
    fact = find_op_fact(op, args, on_cpu)
    best, other = (
        ("generated", "library") if fact is None or fact.use == "generated" else ("library", "generated")
    )
    built_in = by_name.get(best) or by_name.get(other)
    return (candidates[-1], _first_config(candidates[-1], args)) if built_in is None else (built_in, None)


def find_op_fact(op: AnyOp, args: Sequence[Any], on_cpu: bool) -> Fact | None:
    """Return the measured fact that decides between torch's and generated kernels, or None.

    The features of a call are its settings by name (``"given"`` for an optional tensor), the elements of its
    largest tensor, whether there is an epilogue, and what the op's own `features` returns.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    settings = {n: "given" if isinstance(a, Tensor) else a for n, a in zip(op.positions, args, strict=True)}
    features = settings | {
        "elements": max((t.numel() for t in tensors), default=0),
        "epilogue": any(settings.get(name) is not None for name in ("residual", "activation", "scale")),
    }
    if op.features is not None:
        features |= op.features(*args)
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), None)
    call = on_cpu, dtype, wants_gradient(*args), features
    return find_fact("*", *call) or find_fact(op.name, *call)


def _pinned_choice(
    candidates: Sequence[Candidate], args: Sequence[Any], key: str
) -> tuple[Candidate, dict[str, Any] | None, str] | None:
    choice = parse_choice(candidates, args, _pinned[key]) if key in _pinned else None
    return None if choice is None else (*choice, "pinned")


def _first_config(candidate: Candidate, args: Sequence[Any]) -> dict[str, Any] | None:
    return candidate.alternatives(args)[0].config
