"""Loops without tests: loads beside a tensor's edges are guarded, those in its middle are not."""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import Buffer, Expr, Ix, Var, walk

__all__ = ["inside", "row_of"]


def inside(loop: Var, exprs: Sequence[Expr]) -> tuple[int, int, list[Expr]]:
    """The stretch of a loop in which every test of a place along it holds, and these tests.

    Tests that also look at other loops count for nothing here. Where no turn passes them all, there are none.

    Args:
        loop: the innermost loop.
        exprs: what it computes.

    Returns:
        first turn, turn after the last, and the tests, comparisons of an ``index`` with a constant.
    """
    start, end, tests = 0, loop.extent, []
    for expr in walk(exprs):
        if expr.op not in ("ge", "lt") or expr.args[0].op != "index" or expr.args[1].op != "const":
            continue
        place, bound = expr.args[0].extra[0], expr.args[1].extra[0]
        assert isinstance(place, Ix)
        assert isinstance(bound, int)
        if list(place.terms) != [loop]:
            continue
        step, rest = place.terms[loop], bound - place.const
        # step * i >= rest, or step * i < rest, which is -step * i >= 1 - rest.
        if expr.op == "lt":
            step, rest = -step, 1 - rest
        if step > 0:
            start = max(start, -(-rest // step))
        else:
            end = min(end, rest // step + 1)
        tests.append(expr)
    return (start, end, tests) if start < end else (0, loop.extent, [])


def row_of(buffer: Buffer, place: Ix, span: tuple[Var, int, int]) -> tuple[Ix, Ix, Ix] | None:
    """A place in parts, so that a loop may load another row of the buffer where its own is not there.

    Args:
        buffer: what is loaded from.
        place: where; it may be outside of the buffer.
        span: a loop, its first turn, and the turn after its last.

    Returns:
        where the row is, where one is in any case, and the way along it; None where there is none.
    """
    loop, first, stop = span
    step = place.stride(loop)
    reach = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    if step is None or step < 0 or step * (stop - 1 - first) > reach or place.computed():
        return None
    along = Ix({loop: step})
    return place - along, Ix(const=-step * first), along
