"""Loops of C without tests in a tensor's middle, and rows that are fetched before their turn."""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import Buffer, Expr, IndexExpr, Kernel, Store, Var, walk

__all__ = ["inside", "next_parts", "next_rows", "row_of", "rows_to_write"]

_ROW = 640  # bytes of a row below which what comes next is seen without being asked for
_FETCHED = 1 << 13  # bytes that a turn asks for at the most: a quarter of a first cache
_PARTS_FETCHED = 1 << 17  # bytes of rows fetched while others are folded: half of a small second cache


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
        assert isinstance(place, IndexExpr)
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


def row_of(
    buffer: Buffer, place: IndexExpr, span: tuple[Var, int, int]
) -> tuple[IndexExpr, IndexExpr, IndexExpr] | None:
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
    if step is None or step < 0 or step * (stop - 1 - first) > reach or place.computed_exprs():
        return None
    along = IndexExpr({loop: step})
    return place - along, IndexExpr(const=-step * first), along


def next_rows(kernel: Kernel) -> list[tuple[Buffer, IndexExpr, int]]:
    """What a turn of a kernel with rows in scratch does not load from memory, and the next turn does.

    A processor sees for itself what comes next in one long stretch, not that each turn goes on with other
    rows. A maximum over 3 x 3 with stride 2 of rows of 2 KB takes a third of the time if they are asked for
    early, and rows that lie one after another by one instruction: by two, it takes half.

    Returns:
        of each stretch the buffer, where it begins, and how many elements it has.
    """
    if kernel.kind != "pooling" or not kernel.outer:
        return []
    turn = kernel.outer[-1]
    found: dict[tuple[Buffer, IndexExpr], int] = {}
    for step, expr in zip(kernel.steps, kernel.exprs, strict=True):
        for e in walk([expr]):
            if e.op != "load" or e.args or not step.inner:
                continue
            (buffer, place), along = e.extra, step.inner[-1]
            assert isinstance(buffer, Buffer)
            assert isinstance(place, IndexExpr)
            long = along.extent * buffer.dtype.itemsize >= _ROW and buffer.role != "local"
            if long and place.stride(along) == 1 and (place.stride(turn) or 0) > 0:
                found[buffer, place - IndexExpr.of(along)] = along.extent
    rows = [(buffer, start + start.terms[turn], extent) for (buffer, start), extent in found.items()]
    rows = [(buffer, start, extent) for buffer, start, extent in rows if (buffer, start) not in found]
    stretches: list[tuple[Buffer, IndexExpr, int]] = []
    for buffer, start, extent in sorted(rows, key=lambda row: row[1].const):
        for i, (other, first, length) in enumerate(stretches):
            apart = start - first
            if other is buffer and not apart.terms and apart.const <= 2 * length:
                stretches[i] = (buffer, first, max(length, apart.const + extent))
                break
        else:
            stretches.append((buffer, start, extent))
    for i, (buffer, start, extent) in enumerate(stretches):
        # Without gaps: one of a row after each row costs more time than it saves bytes.
        advance = start.terms[turn]
        stretches[i] = (buffer, start, advance if advance <= 2 * extent else extent)
    moved = sum(extent * buffer.dtype.itemsize for buffer, _, extent in stretches)
    return stretches if moved <= _FETCHED else []


def next_parts(lead: Var, last: Var, exprs: Sequence[Expr]) -> list[tuple[Buffer, IndexExpr]]:
    """Rows that folds along two loops take from memory at the next turn of the outer one.

    The gradient of a batch normalisation of 16 x 64 x 56 x 56 takes 0.65 ms where they are asked for a turn
    early, and 1.0 ms otherwise (two threads of a Zen 5): a processor sees no more than three pages of each.

    Returns:
        of each row the buffer, and where it begins.
    """
    found: dict[tuple[Buffer, IndexExpr], None] = {}
    for e in walk(exprs):
        if e.op != "load" or e.args:
            continue
        buffer, place = e.extra
        assert isinstance(buffer, Buffer)
        assert isinstance(place, IndexExpr)
        advance = 0 if place.computed_exprs() else place.stride(lead) or 0
        if buffer.role != "local" and place.stride(last) == 1 and advance > last.extent:
            found[buffer, place - IndexExpr.of(last) + advance] = None
    sizes = [last.extent * buffer.dtype.itemsize for buffer, _ in found]
    return list(found) if sizes and min(sizes) >= _ROW and sum(sizes) <= _PARTS_FETCHED else []


def rows_to_write(kernel: Kernel, stores: Sequence[Store], last: Var) -> list[tuple[Buffer, IndexExpr]]:
    """Rows of results that a turn will write, where a fold keeps in scratch what it folds.

    What is kept is costly, so that memory has nothing to do meanwhile, and a line is read before it is
    written. A cross entropy with its gradient, 4096 x 4096, takes 5.5 ms in place of 7.7 where the gradient's
    lines are asked for while exponentials are computed (two threads of a Zen 4).

    Args:
        kernel: what a turn is of.
        stores: what the fold keeps.
        last: the fold's loop.

    Returns:
        of each row the buffer, and where it begins.
    """
    if not any(step.buffer.role == "local" for step in stores):
        return []
    found: dict[tuple[Buffer, IndexExpr], None] = {}
    for step in kernel.steps[kernel.steps.index(stores[-1]) + 1 :]:
        if type(step) is not Store or step.buffer.role == "local" or len(step.inner) != 1:
            continue
        (along,) = step.inner
        whole = along.extent == last.extent and not step.offset.computed_exprs()
        if whole and step.offset.stride(along) == 1:
            found[step.buffer, step.offset - IndexExpr.of(along)] = None
    sizes = [last.extent * buffer.dtype.itemsize for buffer, _ in found]
    return list(found) if sizes and min(sizes) >= _ROW and sum(sizes) <= _PARTS_FETCHED else []
