"""Loops and the indices over them: create, analyse, split and merge loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from burnt.codegen.ir.expr import Index, IndexExpr, Split, Var, rebuild
from burnt.codegen.ir.kernel import Kernel, Store


def new_index(extents: Sequence[int]) -> Index:
    """Return an index of new loop variables with these extents."""
    return tuple(IndexExpr.of(Var(size)) for size in extents)


def max_index(index: IndexExpr, overrun: Mapping[Var, int] = MappingProxyType({})) -> int:
    """Return the largest absolute number that occurs while an index is computed, with loops that overrun."""
    total = abs(index.const)
    for atom, coefficient in index.terms.items():
        low, high = IndexExpr({atom: coefficient}).bounds(overrun)
        total += max(abs(low), abs(high))
        if isinstance(atom, Split):
            total = max(total, max_index(atom.inner, overrun))
    return total


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def distinct_loops(index: Index) -> set[Var] | None:
    """Return the loops of an index whose axes are distinct loop variables or 0; None for any other."""
    loops: list[Var] = []
    for ix in index:
        if not ix.terms and not ix.const:
            continue
        ((atom, c), *rest) = ix.terms.items() or ((None, 0),)
        if rest or ix.const or c != 1 or not isinstance(atom, Var) or atom in loops:
            return None
        loops.append(atom)
    return set(loops)


def covers_shape(index: Index, shape: Sequence[int], loops: Sequence[Var]) -> bool:
    """Whether the iterations of `loops` visit each index of a shape exactly once.

    They do if the index of each axis is a mixed-radix number whose digits are loops of only that axis.
    """
    unused = set(loops)
    for ix, size in zip(index, shape, strict=True):
        radix = 1
        for atom, coefficient in sorted(ix.terms.items(), key=lambda term: term[1]):
            if not isinstance(atom, Var) or atom not in unused or coefficient != radix:
                return False
            unused.remove(atom)
            radix *= atom.extent
        if ix.const or radix != size:
            return False
    return not unused


def split_loops(indices: Iterable[IndexExpr]) -> dict[Var, IndexExpr]:
    """Split each loop whose quotient or remainder is used into two loops, and return it in terms of these."""
    divisors: dict[Var, int] = {}
    for atom in (a for ix in indices for a in ix.terms):
        if isinstance(atom, Split) and len(atom.inner.terms) == 1 and not atom.inner.const:
            ((loop, coefficient),) = atom.inner.terms.items()
            if isinstance(loop, Var) and coefficient == 1 and loop.extent % atom.divisor == 0:
                divisors[loop] = atom.divisor
    return {v: IndexExpr.of(Var(v.extent // d)) * d + IndexExpr.of(Var(d)) for v, d in divisors.items()}


def merge_splits(ix: IndexExpr, mapping: dict[Var, IndexExpr]) -> IndexExpr:
    """Substitute variables, and replace each ``(x // d) * d + x % d`` by x."""
    result = ix.substitute(mapping)
    changed = True
    while changed:
        changed = False
        for atom, c in list(result.terms.items()):
            if not isinstance(atom, Split) or atom.kind != "/":
                continue
            for other, d in list(result.terms.items()):
                same = isinstance(other, Split) and other.kind == "%" and other.inner == atom.inner
                if same and other.divisor == atom.divisor and c == d * atom.divisor:  # type: ignore[union-attr]
                    rest = {k: v for k, v in result.terms.items() if k not in (atom, other)}
                    result = IndexExpr(rest, result.const) + atom.inner * d
                    changed = True
                    break
            if changed:
                break
    return result


def merge_adjacent_loops(kernel: Kernel) -> None:
    """Merge adjacent loops that every access of the kernel traverses with one stride.

    The loops of each axis of a matmul are merged whatever their strides, as its kernel counts along each axis
    anyway: an access that has one stride then needs no quotients.
    """
    accesses = kernel.indices
    matmul = kernel.matmul
    axes = [] if matmul is None else [ix.variables() for ix in matmul.index[-2:]] + [set(matmul.inner)]
    mapping: dict[Var, IndexExpr] = {}
    merged_of: dict[tuple[Var, Var], Var] = {}
    nests = [kernel.outer, *(step.inner for step in kernel.steps)]
    ends = {v: (v, v) for nest in nests for v in nest}

    def always_adjacent(a: Var, b: Var) -> bool:
        """Whether b is directly inside a in every nest that has either."""
        last, first = ends[a][1], ends[b][0]
        return all(
            (last, first) in itertools.pairwise(nest) for nest in nests if last in nest or first in nest
        )

    def merge(loops: tuple[Var, ...]) -> tuple[Var, ...]:
        result: list[Var] = []
        for loop in loops:
            if result and (
                (result[-1], loop) in merged_of
                or (
                    always_adjacent(result[-1], loop)
                    and (
                        any({ends[result[-1]][1], ends[loop][0]} <= axis for axis in axes)
                        or _have_one_stride(result[-1], loop, [merge_splits(ix, mapping) for ix in accesses])
                    )
                )
            ):
                last = result.pop()
                already_merged = (last, loop) in merged_of
                merged = merged_of.setdefault((last, loop), Var(last.extent * loop.extent))
                ends[merged] = (ends[last][0], ends[loop][1])
                result.append(merged)
                if already_merged:
                    continue
                mapping[last] = IndexExpr.of(merged) // loop.extent
                mapping[loop] = IndexExpr.of(merged) % loop.extent
                for var, ix in list(mapping.items()):
                    if var not in (last, loop):
                        mapping[var] = ix.substitute({last: mapping[last]})
            else:
                result.append(loop)
        return tuple(result)

    kernel.outer = merge(kernel.outer)
    for step in kernel.steps:
        step.inner = merge(step.inner)
    if mapping:
        for step in kernel.steps:
            if isinstance(step, Store):
                step.offset = merge_splits(step.offset, mapping)
                step.body = rebuild(step.body, lambda ix: merge_splits(ix, mapping))
            else:
                step.body = rebuild(step.body, lambda ix: merge_splits(ix, mapping))
                step.index = tuple(merge_splits(ix, mapping) for ix in step.index)


def _have_one_stride(a: Var, b: Var, accesses: list[IndexExpr]) -> bool:
    """Whether iterating over b inside a advances every access as one loop over both would."""
    for access in accesses:
        # Computed parts are examined through their own loads, which are among the accesses.
        first, second = access.without_computed().stride(a), access.without_computed().stride(b)
        if first is None or second is None or first != second * b.extent:
            return False
    return True
