"""Loops in C by their phases: where indices are divided, turns a period apart are alike, and share a text.

The gradient of a pool with stride 2 is an example: an element is in windows ``i // 2`` and ``i // 2 - 1``, as
tap ``i % 2`` and ``i % 2 + 2``. Along ``q``, with ``i = 2 * q`` in one text and ``i = 2 * q + 1`` in another,
nothing is divided, most tests are known, and loads and stores are those of vectors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from burnt.codegen.ir import Expr, IndexExpr, Split, Store, Var, index_exprs, rebuild, walk
from burnt.codegen.lower.registry import const

__all__ = ["period_of", "phases"]

_LONGEST = 4  # turns of a period: more are too much text


def period_of(loop: Var, stores: Sequence[Store]) -> int:
    """After how many turns of a loop whatever is divided in its stores has moved by whole numbers.

    1 where nothing is divided along the loop, or where no short period helps.
    """
    period = 1
    for place in (*_places(stores), *(step.offset for step in stores)):
        for atom in _splits(place):
            if loop not in atom.inner.variables():
                continue
            step = atom.inner.stride(loop)
            if step is None:
                return 1
            period = math.lcm(period, atom.divisor // math.gcd(step, atom.divisor))
    drawn = any(e.op in ("uniform", "random") for e in walk([step.value for step in stores]))
    return period if period <= min(_LONGEST, loop.extent // 2) and not drawn else 1


def phases(
    loop: Var, period: int, stores: Sequence[Store]
) -> tuple[Var, list[list[Store]], list[list[Store]]]:
    """Stores of a loop's whole periods, and of the turns that are left.

    Returns:
        the loop over periods; for each turn of a period its stores in that loop; for each turn after the last
        whole period its stores.
    """
    periods = Var(loop.extent // period)
    along = [
        [_moved(s, loop, IndexExpr.of(periods) * period + turn) for s in stores] for turn in range(period)
    ]
    rest = range(loop.extent // period * period, loop.extent)
    return periods, along, [[_moved(s, loop, IndexExpr.of(turn)) for s in stores] for turn in rest]


def _places(stores: Sequence[Store]) -> Iterator[IndexExpr]:
    for e in walk([step.value for step in stores]):
        yield from index_exprs(e)


def _splits(place: IndexExpr) -> Iterator[Split]:
    for atom in place.terms:
        if isinstance(atom, Split):
            yield atom
            yield from _splits(atom.inner)


def _moved(step: Store, loop: Var, place: IndexExpr) -> Store:
    """A store at another place of a loop, without the tests that are known there."""
    mapping = {loop: place}
    value = rebuild(step.value, lambda ix: ix.substitute(mapping), _known)
    return dataclasses.replace(step, offset=step.offset.substitute(mapping), value=value)


def _known(e: Expr) -> Expr | None:
    """What an expression comes to whose tests are known by the bounds of loops."""
    if e.op in ("ge", "lt", "eq") and e.args[0].op == "index" and e.args[1].op == "const":
        (place,), (bound,) = e.args[0].extra, e.args[1].extra
        assert isinstance(place, IndexExpr)
        assert isinstance(bound, int)
        low, high = place.bounds()
        if e.op == "eq":
            known = True if low == high == bound else None if low <= bound <= high else False
        else:
            below = True if high < bound else False if low >= bound else None
            known = below if e.op == "lt" or below is None else not below
        return None if known is None else const(known, torch.bool)
    if e.op == "and" and e.dtype == torch.bool:
        for i, argument in enumerate(e.args):
            if argument.op == "const":
                return e.args[1 - i] if argument.extra[0] else argument
    if e.op in ("masked", "where") and e.args[0].op == "const":
        return e.args[1] if e.args[0].extra[0] else e.args[2]
    return None
