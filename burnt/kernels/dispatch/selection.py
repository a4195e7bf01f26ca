"""Which candidate runs: what was pinned, else what was measured, else a heuristic that always answers.

The heuristic is a pure function of the arguments (`select_by_heuristic`). On a CPU kernels are generated
where eager torch would take 100 microseconds or more, unless the op says that its library is the better one
there; below, torch's single calls cost less than the way to ours, and nothing has to be compiled. Elsewhere
they always are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from burnt.errors import UnsupportedError
from burnt.kernels.interface.tuning_key import (
    format_choice,
    parse_choice,
    runnable_candidates,
    tuning_key,
    wants_gradient,
)

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import Candidate
    from burnt.kernels.interface.op_protocol import AnyOp

__all__ = ["Choice", "choices", "pin", "reasons", "select_by_heuristic", "select_candidate"]

_SMALL = 1 << 16
"""Elements below which torch's own call is taken on a CPU: it computes that many in some 20 to 60
microseconds, and a generated kernel takes 10 to be reached and a compiler at the first call."""

Choice = tuple["Candidate", dict[str, Any] | None, str, str]

_chosen: dict[str, tuple[str, str]] = {}  # what, and why
_pinned: dict[str, str] = {}


def choices() -> dict[str, str]:
    """What was chosen in this process so far: tuning key -> candidate, with its configuration as JSON.

    A checkpoint stores it, and `pin` makes a resumed run compute with the same kernels, whatever the tuner
    has found since.
    """
    return {key: chosen for key, (chosen, _) in _chosen.items()}


def reasons() -> dict[str, str]:
    """Why each of `choices` was chosen: ``pinned``, ``heuristic``, or what was measured."""
    return {key: why for key, (_, why) in _chosen.items()}


def pin(choices: dict[str, str]) -> None:
    """Choose for these tuning keys what `choices` noted, as far as it can run; an empty one unpins all.

    >>> from burnt import kernels
    >>> kernels.pin(kernels.choices()); kernels.pin({})
    """
    from burnt.kernels.interface.registry import OPS

    _pinned.clear()
    _pinned.update(choices)
    for op in OPS.values():
        op.forget()


@contextlib.contextmanager
def pinned(choices: Mapping[str, str]) -> Iterator[None]:
    """A context in which these are pinned besides what is."""
    before = dict(_pinned)
    pin({**before, **choices})
    try:
        yield
    finally:
        pin(before)


def select_candidate(op: AnyOp, args: Sequence[Any], broken: dict[str, str] | None = None) -> Choice:
    """The candidate for these arguments, its configuration, why it was chosen, and the tuning key.

    With `broken`, the others than those that `runnable_candidates` notes there.
    """
    from burnt.kernels.tuning import tuner

    key = tuning_key(op, args)
    able = runnable_candidates(op, args, broken)
    if not able:
        raise UnsupportedError(
            f"no candidate of {op.name} can run here",
            where=f"burnt.kernels.{op.name}",
            found="\n".join(f"{c.name}: {c.why_not(args)}" for c in op.candidates.values()),
        )
    chosen = _pinned_choice(able, args, key)
    if chosen is None:
        known = tuner.measured(op, args, key, able)
        trusted = [c for c in able if format_choice(c, _first_config(c, args)) not in known.wrong] or able
        chosen = known.best(trusted, args) or (*select_by_heuristic(op, args, trusted), "heuristic")
    _chosen[key] = format_choice(chosen[0], chosen[1]), chosen[2]
    return (*chosen, key)


def select_by_heuristic(
    op: AnyOp, args: Sequence[Any], able: Sequence[Candidate]
) -> tuple[Candidate, dict[str, Any] | None]:
    """The heuristic: a function of the arguments' shapes, dtypes and devices alone.

    A candidate that somebody registered is meant to be used, the last one first, unless it says otherwise
    (`Candidate`, `best`); then generated kernels, where they are not known to be slower; the library's last.
    """
    added = [c for c in able if c.name not in ("library", "generated") and c.is_best(args)]
    if added:
        return added[-1], _first_config(added[-1], args)
    known = {c.name: c for c in able}
    tensors = [a for a in args if isinstance(a, Tensor)]
    # With gradients there is an autograd node in Python to be reached, too.
    small = max((t.numel() for t in tensors), default=0) < _SMALL << wants_gradient(*args)
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    worse = on_cpu and (small or (op.library_best is not None and op.library_best(*args)))
    best, other = ("library", "generated") if worse else ("generated", "library")
    plain = known.get(best) or known.get(other)
    return (able[-1], _first_config(able[-1], args)) if plain is None else (plain, None)


def _pinned_choice(
    able: Sequence[Candidate], args: Sequence[Any], key: str
) -> tuple[Candidate, dict[str, Any] | None, str] | None:
    found = parse_choice(able, args, _pinned[key]) if key in _pinned else None
    return None if found is None else (*found, "pinned")


def _first_config(candidate: Candidate, args: Sequence[Any]) -> dict[str, Any] | None:
    return candidate.alternatives(args)[0].config


# --- keys -------------------------------------------------------------------------------------------------
