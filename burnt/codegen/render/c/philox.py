"""Random numbers in loops: words are made for a block of turns at a time, four to a counter, then used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from burnt.codegen.ir import Expr, IndexExpr, Var, walk

__all__ = ["BLOCK", "Words", "words_of"]

BLOCK = 512
"""Turns of a loop that words are made for."""
_MOST_STEPS = 8


@dataclasses.dataclass(frozen=True)
class Words:
    """Random numbers whose counters go evenly along a loop.

    Args:
        seed: as an element.
        stream: of them all.
        first: the counter of the first of them at a turn.
        step: from one turn to the next.
        reach: counters from the first of a turn to its last.
        offsets: how far after the first each is.
    """

    seed: Expr
    stream: int
    first: IndexExpr
    step: int
    reach: int
    offsets: dict[Expr, int]


def words_of(loop: Var, exprs: Sequence[Expr]) -> list[Words]:
    """The random numbers of a loop that can be made in blocks."""
    groups: dict[tuple[Expr, object, IndexExpr], dict[Expr, int]] = {}
    for e in walk(exprs):
        if e.op not in ("uniform", "random") or e.args[1].op != "index":
            continue
        seed, place = e.args[0], e.args[1].extra[0]
        assert isinstance(place, IndexExpr)
        step = place.stride(loop)
        if step is not None and 0 < step <= _MOST_STEPS and not place.computed_exprs() and seed.op == "load":
            groups.setdefault((seed, e.extra[0], place - place.const), {})[e] = place.const
    found = []
    for (seed, stream, place), counters in groups.items():
        low, high = min(counters.values()), max(counters.values())
        step = place.stride(loop)
        assert step is not None
        assert isinstance(stream, int)
        offsets = {e: counter - low for e, counter in counters.items()}
        found.append(Words(seed, stream, place + low, step, high - low, offsets))
    return found
