"""Our own candidate of an op, timed next to the one that the op chooses where that is a library's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from burnt import kernels
from burnt.kernels.autotune.tuner import lookup_measurements
from burnt.kernels.dispatch.op import Op
from burnt.kernels.dispatch.selection import select_by_heuristic
from burnt.kernels.interface.binding import bind_candidate
from burnt.kernels.interface.tuning_key import format_choice, runnable_candidates

LIBRARY = frozenset({"library", "onednn", "onednn packed", "float32"})
"""Candidates that are calls of torch's or oneDNN's."""


CANDIDATES = "triton", "flash", "steps", "generated"  # of a GPU, the special ones first


def candidate_of(op: Any) -> Any:
    """Our own candidate for a GPU; None for an op that has none."""
    return next((op.candidates[name] for name in CANDIDATES if name in op.candidates), None)


def bound(op: Any, config: dict[str, Any] | None) -> Callable[..., Any]:
    """That candidate for arguments like those of the first call; None is the first of its configurations."""
    calls: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        full, candidate = op.bind(args, kwargs), candidate_of(op)
        if not calls:
            chosen = config or candidate.alternatives(full)[0].config
            calls.append(bind_candidate(op, candidate, chosen, full))
        return calls[0](*full)

    return call


class Own:
    """An op that takes the best of our own candidates, bound by the first call; called as the op is.

    Attributes:
        chosen: the candidate that the op itself takes.
        candidate: ours, with its configuration; None where the op's choice is ours, which is called then, or
            where none of ours can run.
        plain: whether no kernel is made in ours, whose product is torch's call.
    """

    def __init__(self, op: Op[..., Any]) -> None:
        self.op, self.chosen, self.plain = op, "", False
        self.candidate: str | None = None
        self._call: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        full = self.op.bind(args, kwargs)
        if self._call is None:
            self._call = self._bound(full)
        return self._call(*full)

    def _bound(self, full: tuple[Any, ...]) -> Callable[..., Any]:
        entry = self.op.chosen(*full)
        self.chosen = entry.candidate.name
        ours = [c for c in runnable_candidates(self.op, full) if c.name not in LIBRARY]
        if self.chosen not in LIBRARY or not ours:
            return entry.call
        candidate, config, *_ = lookup_measurements(entry.key).best(ours, full) or select_by_heuristic(
            self.op, full, ours
        )
        self.candidate = format_choice(candidate, config)
        if candidate.name == "generated":
            generated = kernels.explain(self.op, *full).generated
            assert generated is not None
            self.plain = all(step.kind in ("library", "view") for step in generated.steps)
        return bind_candidate(self.op, candidate, config, full)


def own_of(name: str, call: Callable[..., Any], inputs: Sequence[Tensor]) -> Own:
    """What takes the op's place in a row's call; the first call is made here.

    Args:
        name: of an op in `burnt.kernels`.
        call: of the op and the inputs.
        inputs: a row's.
    """
    made = Own(kernels.OPS[name])
    call(made, *inputs)
    return made
