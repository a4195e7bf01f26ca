"""Loops and indices over them: new ones, how they walk through a shape, and neighbours joined into one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from burnt.codegen.ir.expr import Index, IndexExpr, Split, Var, index_exprs, rebuild, walk
from burnt.codegen.ir.kernel import Kernel, Store

__all__ = ["collapse", "covers", "dense", "flat", "fresh", "in_parts", "plain_rows"]


def fresh(extents: Sequence[int]) -> Index:
    """An index of new loops over some extents."""
    return tuple(IndexExpr.of(Var(size)) for size in extents)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def plain_rows(index: Index) -> set[Var] | None:
    """The loops of an index that is made of different whole loops; None for any other."""
    rows: list[Var] = []
    for ix in index:
        if not ix.terms and not ix.const:
            continue
        ((atom, c), *rest) = ix.terms.items() or ((None, 0),)
        if rest or ix.const or c != 1 or not isinstance(atom, Var) or atom in rows:
            return None
        rows.append(atom)
    return set(rows)


def covers(index: Index, shape: Sequence[int], loops: Sequence[Var]) -> bool:
    """Whether the turns of loops are the places of a shape, each once: every axis is a number whose digits
    are loops of its own."""
    left = set(loops)
    for ix, size in zip(index, shape, strict=True):
        digit = 1
        for atom, weight in sorted(ix.terms.items(), key=lambda term: term[1]):
            if not isinstance(atom, Var) or atom not in left or weight != digit:
                return False
            left.remove(atom)
            digit *= atom.extent
        if ix.const or digit != size:
            return False
    return not left


def in_parts(places: Iterable[IndexExpr]) -> dict[Var, IndexExpr]:
    """Loops of which quotients and remainders are taken, as two loops each."""
    parts: dict[Var, int] = {}
    for atom in (a for ix in places for a in ix.terms):
        if isinstance(atom, Split) and len(atom.inner.terms) == 1 and not atom.inner.const:
            ((loop, weight),) = atom.inner.terms.items()
            if isinstance(loop, Var) and weight == 1 and loop.extent % atom.by == 0:
                parts[loop] = atom.by
    return {v: IndexExpr.of(Var(v.extent // by)) * by + IndexExpr.of(Var(by)) for v, by in parts.items()}


def flat(ix: IndexExpr, mapping: dict[Var, IndexExpr]) -> IndexExpr:
    """An index over joined loops: a quotient and its remainder, weighted alike, are the whole again."""
    result = ix.replaced(mapping)
    changed = True
    while changed:
        changed = False
        for atom, c in list(result.terms.items()):
            if not isinstance(atom, Split) or atom.kind != "/":
                continue
            for other, d in list(result.terms.items()):
                same = isinstance(other, Split) and other.kind == "%" and other.inner == atom.inner
                if same and other.by == atom.by and c == d * atom.by:  # type: ignore[union-attr]
                    rest = {k: v for k, v in result.terms.items() if k not in (atom, other)}
                    result = IndexExpr(rest, result.const) + atom.inner * d
                    changed = True
                    break
            if changed:
                break
    return result


def collapse(kernel: Kernel) -> None:
    """Join neighbouring loops that every access walks as if they were one."""
    walked = [place for expr in walk(kernel.exprs) for place in index_exprs(expr)]
    walked += [step.place for step in kernel.steps if isinstance(step, Store)]
    mapping: dict[Var, IndexExpr] = {}
    wholes: dict[tuple[Var, Var], Var] = {}
    nests = [kernel.outer, *(step.inner for step in kernel.steps)]
    ends = {v: (v, v) for nest in nests for v in nest}

    def neighbours(a: Var, b: Var) -> bool:
        """Whether one is inside of the other wherever either is a loop."""
        last, first = ends[a][1], ends[b][0]
        return all(
            (last, first) in itertools.pairwise(nest) for nest in nests if last in nest or first in nest
        )

    def joined(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        result: list[Var] = []
        for loop in loops:
            if result and (
                (result[-1], loop) in wholes
                or (
                    neighbours(result[-1], loop)
                    and _walk_as_one(result[-1], loop, [flat(p, mapping) for p in walked])
                )
            ):
                last = result.pop()
                known = (last, loop) in wholes
                whole = wholes.setdefault((last, loop), Var(last.extent * loop.extent))
                ends[whole] = (ends[last][0], ends[loop][1])
                result.append(whole)
                if known:
                    continue
                mapping[last] = IndexExpr.of(whole) // loop.extent
                mapping[loop] = IndexExpr.of(whole) % loop.extent
                for var, ix in list(mapping.items()):
                    if var not in (last, loop):
                        mapping[var] = ix.replaced({last: mapping[last]})
            else:
                result.append(loop)
        return tuple(result)

    kernel.outer = joined(kernel.outer)
    for step in kernel.steps:
        step.inner = joined(step.inner)
    if mapping:
        for step in kernel.steps:
            if isinstance(step, Store):
                step.place = flat(step.place, mapping)
                step.value = rebuild(step.value, lambda ix: flat(ix, mapping))
            else:
                step.body = rebuild(step.body, lambda ix: flat(ix, mapping))
                step.index = tuple(flat(ix, mapping) for ix in step.index)


def _walk_as_one(a: Var, b: Var, places: list[IndexExpr]) -> bool:
    for place in places:
        # What is computed is looked at where its own loads are.
        first, second = place.affine().stride(a), place.affine().stride(b)
        if first is None or second is None or first != second * b.extent:
            return False
    return True
