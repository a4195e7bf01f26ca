"""Find random numbers in loops whose Philox words can be generated a block at a time, four per counter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from burnt.codegen.ir import Expr, IndexExpr, Var, walk

RANDOM_BLOCK = 512
"""Iterations of a loop whose words are generated together."""
_MAX_STEP = 8


@dataclasses.dataclass(frozen=True)
class RandomWords:
    """A group of random numbers whose positions in a stream advance by the same step in each iteration."""

    seed: Expr  # the load of the seed
    stream: int  # the number of the stream
    first: IndexExpr  # position of the group's first word, in terms of the loops
    step: int  # distance between the positions of one iteration and the next
    reach: int  # distance from the first position to the last within an iteration
    offsets: dict[Expr, int]  # distance of each random number from the first


def find_random_words(loop: Var, exprs: Sequence[Expr]) -> list[RandomWords]:
    """Return the random numbers in a loop that can be generated in blocks."""
    groups: dict[tuple[Expr, int, IndexExpr], dict[Expr, int]] = {}
    for e in walk(exprs):
        if e.op not in ("uniform", "random") or e.args[1].op != "index":
            continue
        seed, index = e.args[0], e.args[1].extra[0]
        step = index.stride(loop)
        if step is not None and 0 < step <= _MAX_STEP and not index.computed_exprs() and seed.op == "load":
            groups.setdefault((seed, e.extra[0], index - index.const), {})[e] = index.const
    result = []
    for (seed, stream, index), counters in groups.items():
        low, high = min(counters.values()), max(counters.values())
        step = index.stride(loop)
        assert step is not None
        offsets = {e: counter - low for e, counter in counters.items()}
        result.append(RandomWords(seed, stream, index + low, step, high - low, offsets))
    return result
