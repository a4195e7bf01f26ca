"""Print scans (cumulative sums, maxima and so on) as C: the running value and how an element updates it.

The inner loop of a scan kernel runs in order. Where memory is contiguous along an outer loop, a tile of that
loop is scanned at once, with a running value for each lane, and the lanes are vectorised. Sums and products
are accumulated in double.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import Kernel, ScanStep, Var
from burnt.codegen.render.c.dtypes import C_TYPES, highest, lowest
from burnt.codegen.render.printer import most_contiguous_loop

_MAX_LANES = 512  # lanes of a tile
_NUM_ROWS = 4  # rows that are scanned at once where lanes are not vectorised


class ScanState:
    """The C variables of a scan's running value: of `lanes` values side by side, or 0 for a single one."""

    def __init__(self, step: ScanStep, name: str, lanes: int, is_vectorized: bool) -> None:
        self.step, self.name, self.lanes, self.is_vectorized = step, name, lanes, is_vectorized
        self.kind, self.dtype = step.scan.kind, step.body.dtype
        self.is_arg = self.kind.startswith("arg")
        is_floating = self.dtype.is_floating_point
        is_double = is_floating and self.kind in ("sum", "prod", "logsumexp")
        self.type = "double" if is_double else "int64_t" if self.kind == "sum" else C_TYPES[self.dtype]
        lane = "[l]" if lanes else ""
        self.value, self.index = f"{name}{lane}", f"{name}_at{lane}"

    def declarations(self) -> list[str]:
        """Return the declarations of the variables."""
        lanes = f"[{self.lanes}]" if self.lanes else ""
        return [
            f"{self.type} {self.name}{lanes};",
            *([f"int64_t {self.name}_at{lanes};"] if self.is_arg else []),
        ]

    def initial_values(self) -> list[str]:
        """Return the lines that set the variables before the first element."""
        value = {"sum": "0", "prod": "1", "logsumexp": "-__builtin_inf()"}.get(self.kind)
        if value is None:
            value = lowest(self.dtype) if self.kind.endswith("max") else highest(self.dtype)
        return [f"{self.value} = {value};", *([f"{self.index} = 0;"] if self.is_arg else [])]

    def update(self, value: str, iteration: str) -> list[str]:
        """Return the lines that add an element to the running value."""
        state = self.value
        if self.kind in ("sum", "prod"):
            return [f"{state} {'+' if self.kind == 'sum' else '*'}= {value};"]
        if self.kind == "logsumexp":
            return [f"{state} = log_add_exp_f64({state}, {value});"]
        sign = ">=" if self.kind.endswith("max") else "<="
        nan_test = f" | ({value} != {value})" if self.dtype.is_floating_point else ""
        take = f"{self.name}_take"
        if not self.is_vectorized:
            # A new extreme is rare: a branch costs less than waiting for the comparison every time.
            index_update = f" {self.index} = {iteration};" if self.is_arg else ""
            return [
                f"if (__builtin_expect(({value} {sign} {state}){nan_test}, 0)) {{",
                f"    {state} = {value};{index_update}",
                "}",
            ]
        lines = [
            f"const int {take} = ({value} {sign} {state}){nan_test};",
            f"{state} = {take} ? {value} : {state};",
        ]
        return [*lines, *([f"{self.index} = {take} ? {iteration} : {self.index};"] if self.is_arg else [])]

    def result_text(self) -> str:
        """Return the C expression of the running value."""
        if self.is_arg:
            return self.index
        return f"({C_TYPES[self.step.scan.dtype]}){self.value}"


def select_scan_lane(kernel: Kernel) -> tuple[Var | None, int, bool]:
    """Return the outer loop to scan in tiles, the tile width, and whether the lanes are vectorised.

    This is the loop along which memory is contiguous. If memory is contiguous along the scans, a few rows are
    scanned at once: each has its own dependency chain, so their latencies overlap.
    """
    best = most_contiguous_loop(kernel)
    if best in kernel.outer and best is not None and best.extent >= 8:
        widths = [
            _MAX_LANES >> k for k in range(_MAX_LANES.bit_length()) if 8 <= _MAX_LANES >> k <= best.extent
        ]
        wasting_little = [w for w in widths if -(-best.extent // w) * w <= best.extent * 9 // 8]
        return best, max(wasting_little, default=16 if best.extent >= 16 else 8), True
    rows = next((v for v in reversed(kernel.outer) if v.extent >= _NUM_ROWS), None)
    return rows, _NUM_ROWS, False


def create_scan_states(steps: Sequence[ScanStep], lanes: int, is_vectorized: bool) -> list[ScanState]:
    """Return the running values of a kernel's scans, named s0, s1 and so on."""
    return [ScanState(step, f"s{i}", lanes, is_vectorized) for i, step in enumerate(steps)]
