"""Unroll loops whose indices contain divisions by the period after which the index pattern repeats.

The gradient of pooling with stride 2 is an example: element ``i`` is in the windows ``i // 2`` and
``i // 2 - 1``, at positions ``i % 2`` and ``i % 2 + 2``. In a loop over ``q`` with one body for ``i = 2 * q``
and one for ``i = 2 * q + 1``, no index is divided, most tests are constant, and loads and stores are
vectorised.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch

from burnt.codegen.ir import Expr, IndexExpr, Split, Store, Var, const, index_exprs, rebuild, walk

_MAX_PERIOD = 4  # iterations of a period: more make the source too long


def index_period(loop: Var, stores: Sequence[Store]) -> int:
    """Return the number of iterations after which every divided index advances by an integer quotient.

    1 if no index is divided along the loop, or if the period would be too long.
    """
    period = 1
    exprs = walk([step.body for step in stores])
    for index in (*(ix for e in exprs for ix in index_exprs(e)), *(step.offset for step in stores)):
        for atom in _nested_splits(index):
            if loop not in atom.inner.variables():
                continue
            step = atom.inner.stride(loop)
            if step is None:
                return 1
            period = math.lcm(period, atom.divisor // math.gcd(step, atom.divisor))
    draws_random = any(e.op in ("uniform", "random") for e in walk([step.body for step in stores]))
    return period if period <= min(_MAX_PERIOD, loop.extent // 2) and not draws_random else 1


def unroll_period(
    loop: Var, period: int, stores: Sequence[Store]
) -> tuple[Var, list[list[Store]], list[list[Store]]]:
    """Unroll a loop by its period.

    Return the loop over whole periods; for each iteration of a period, its stores in that loop; for each
    iteration after the last whole period, its stores.
    """
    periods = Var(loop.extent // period)
    bodies = [
        [_substitute(s, loop, IndexExpr.of(periods) * period + i) for s in stores] for i in range(period)
    ]
    remainder = range(loop.extent // period * period, loop.extent)
    return periods, bodies, [[_substitute(s, loop, IndexExpr.of(i)) for s in stores] for i in remainder]


def _nested_splits(index: IndexExpr) -> Iterator[Split]:
    for atom in index.terms:
        if isinstance(atom, Split):
            yield atom
            yield from _nested_splits(atom.inner)


def _substitute(step: Store, loop: Var, index: IndexExpr) -> Store:
    """Return a store with the loop's index replaced, and without the tests that become constant."""
    mapping = {loop: index}
    body = rebuild(step.body, lambda ix: ix.substitute(mapping), _simplify_known_tests)
    return dataclasses.replace(step, offset=step.offset.substitute(mapping), body=body)


def _simplify_known_tests(e: Expr) -> Expr | None:
    """Simplify an expression whose test is constant within the bounds of the loops; None if there is none."""
    if e.op in ("ge", "lt", "eq") and e.args[0].op == "index" and e.args[1].op == "const":
        (index,), (bound,) = e.args[0].extra, e.args[1].extra
        low, high = index.bounds()
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
