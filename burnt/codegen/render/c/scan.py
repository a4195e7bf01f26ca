"""Scans in C: what holds a running value, and how an element joins it.

A kernel of scans takes the turns of its inner loop in order. Where memory runs along an outer loop, a tile of
that loop goes through them together, each lane with a value of its own, and lanes become vectors. Sums and
products run in double.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import Kernel, ScanStep, Store, Var, walk
from burnt.codegen.render.c.dtypes import C_TYPES, highest, lowest

__all__ = ["State", "lane_of_scans", "states"]


_WIDEST = 512  # lanes of a tile
_ROWS = 4


class State:
    """The running value of a scan.

    Args:
        step: the scan.
        name: of its variables.
        lanes: how many values run side by side; 0 for one.
        vectors: whether lanes are those of vectors.
    """

    def __init__(self, step: ScanStep, name: str, lanes: int, vectors: bool) -> None:
        self.step, self.name, self.lanes, self.vectors = step, name, lanes, vectors
        self.kind, self.inside = step.scan.kind, step.body.dtype
        self.is_arg = self.kind.startswith("arg")
        floating = self.inside.is_floating_point
        wide = floating and self.kind in ("sum", "prod", "logsumexp")
        self.type = "double" if wide else "int64_t" if self.kind == "sum" else C_TYPES[self.inside]
        at = "[l]" if lanes else ""
        self.value, self.at = f"{name}{at}", f"{name}_at{at}"

    def declared(self) -> list[str]:
        """The variables."""
        room = f"[{self.lanes}]" if self.lanes else ""
        return [
            f"{self.type} {self.name}{room};",
            *([f"int64_t {self.name}_at{room};"] if self.is_arg else []),
        ]

    def begun(self) -> list[str]:
        """What they hold before the first element."""
        start = {"sum": "0", "prod": "1", "logsumexp": "-__builtin_inf()"}.get(self.kind)
        if start is None:
            start = lowest(self.inside) if self.kind.endswith("max") else highest(self.inside)
        return [f"{self.value} = {start};", *([f"{self.at} = 0;"] if self.is_arg else [])]

    def joined(self, value: str, turn: str) -> list[str]:
        """An element joins."""
        own = self.value
        if self.kind in ("sum", "prod"):
            return [f"{own} {'+' if self.kind == 'sum' else '*'}= {value};"]
        if self.kind == "logsumexp":
            return [f"{own} = log_add_exp_f64({own}, {value});"]
        sign = ">=" if self.kind.endswith("max") else "<="
        nan = f" | ({value} != {value})" if self.inside.is_floating_point else ""
        take = f"{self.name}_take"
        if not self.vectors:
            # Seldom: a branch costs less than to wait for the comparison every time.
            place = f" {self.at} = {turn};" if self.is_arg else ""
            return [
                f"if (__builtin_expect(({value} {sign} {own}){nan}, 0)) {{",
                f"    {own} = {value};{place}",
                "}",
            ]
        lines = [f"const int {take} = ({value} {sign} {own}){nan};", f"{own} = {take} ? {value} : {own};"]
        return [*lines, *([f"{self.at} = {take} ? {turn} : {self.at};"] if self.is_arg else [])]

    def text(self) -> str:
        """The running value."""
        if self.is_arg:
            return self.at
        return f"({C_TYPES[self.step.scan.dtype]}){self.value}"


def lane_of_scans(kernel: Kernel) -> tuple[Var | None, int, bool]:
    """The outer loop that goes through a kernel's scans in tiles, how wide these are, and whether as vectors.

    That is the one that memory runs along. Where it runs along the scans, a few rows are taken together, each
    of which waits for its own last sum alone.
    """
    votes: dict[Var, int] = {}
    for step in kernel.steps:
        found = [step.offset] if isinstance(step, Store) else []
        exprs = [step.value if isinstance(step, Store) else step.body]
        found += [e.extra[1] for e in walk(exprs) if e.op == "load"]  # type: ignore[misc]
        for place in found:
            for v in (*kernel.outer, *step.inner):
                if place.stride(v) in (1, -1):
                    votes[v] = votes.get(v, 0) + 1
    best = max(votes, key=lambda v: votes[v], default=None)
    if best in kernel.outer and best is not None and best.extent >= 8:
        widths = [_WIDEST >> k for k in range(_WIDEST.bit_length()) if 8 <= _WIDEST >> k <= best.extent]
        few = [w for w in widths if -(-best.extent // w) * w <= best.extent * 9 // 8]
        return best, max(few, default=16 if best.extent >= 16 else 8), True
    rows = next((v for v in reversed(kernel.outer) if v.extent >= _ROWS), None)
    return rows, _ROWS, False


def states(steps: Sequence[ScanStep], lanes: int, vectors: bool) -> list[State]:
    """The running values of a kernel's scans, named."""
    return [State(step, f"s{i}", lanes, vectors) for i, step in enumerate(steps)]
