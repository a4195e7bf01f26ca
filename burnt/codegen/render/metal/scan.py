"""Print scans (cumulative sums, maxima and so on) as Metal: the running value and how values are combined.

An element is the running value of itself alone, so that threads can combine their running values. Float sums
are compensated. A logsumexp is stored as the maximum and the sum of exponentials relative to it. Products
are float: Metal has no wider type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnt.codegen.ir import Kernel, ScanStep, Var
from burnt.codegen.render.metal.dtypes import METAL_TYPES, highest, lowest
from burnt.codegen.render.printer import most_contiguous_loop


class ScanState:
    """The running value of a scan: `variables` are its variables, `types` their types in Metal."""

    def __init__(self, step: ScanStep, name: str) -> None:
        self.step, self.name, self.kind, self.dtype = step, name, step.scan.kind, step.body.dtype
        is_floating = self.dtype.is_floating_point
        # A simdgroup shuffles 32 bits; narrower integers wrap when they are stored.
        is_long = not is_floating and (self.kind == "sum" or self.dtype == torch.int64)
        value_type = "float" if is_floating else "long" if is_long else "int"
        self.types, self.suffixes = [value_type], [""]
        if self.kind.startswith("arg"):
            self.types, self.suffixes = [value_type, "long"], ["", "_at"]
        elif self.kind == "sum" and is_floating:
            self.types, self.suffixes = [value_type, value_type], ["", "_low"]
        elif self.kind == "logsumexp":
            self.types, self.suffixes = [value_type, value_type, value_type], ["_max", "", "_low"]
        self.variables = self.variable_names("")

    def variable_names(self, suffix: str) -> list[str]:
        """Return variable names for another value of the same kind."""
        return [f"{self.name}{suffix}{end}" for end in self.suffixes]

    def declare_initial(self, names: Sequence[str]) -> list[str]:
        """Return the lines that declare variables with their values before the first element."""
        value = {"sum": "0", "prod": "1", "logsumexp": "-INFINITY"}.get(self.kind)
        if value is None:
            value = lowest(self.dtype) if self.kind.endswith("max") else highest(self.dtype)
        return self.declare(names, [value, "0", "0"][: len(self.types)])

    def element_values(self, value: str, iteration: str) -> list[str]:
        """Return the values that represent a single element."""
        if self.kind == "logsumexp":
            return [value, "1.0f", "0.0f"]
        return [value, *([iteration] if self.kind.startswith("arg") else ["0.0f"] * (len(self.types) - 1))]

    def declare(self, names: Sequence[str], values: Sequence[str]) -> list[str]:
        """Return the lines that declare variables and set them to values."""
        return [
            f"{ctype} {name} = {value};" for ctype, name, value in zip(self.types, names, values, strict=True)
        ]

    def assign(self, names: Sequence[str], values: Sequence[str]) -> list[str]:
        """Return the lines that set variables to values."""
        return [f"{name} = {value};" for name, value in zip(names, values, strict=True)]

    def combine(self, earlier: Sequence[str], later: Sequence[str]) -> list[str]:
        """Return the lines that add a later running value to an earlier one."""
        if self.kind == "logsumexp":
            return [f"add_exp_sum({', '.join([*earlier, *later])});"]
        if self.kind == "sum" and len(earlier) == 2:
            carry = [] if later[1] == "0.0f" else [f"{earlier[1]} += {later[1]};"]
            return [f"add_compensated({earlier[0]}, {earlier[1]}, {later[0]});", *carry]
        if self.kind in ("sum", "prod"):
            return [f"{earlier[0]} = {earlier[0]} {'+' if self.kind == 'sum' else '*'} {later[0]};"]
        nan_test = f" || {later[0]} != {later[0]}" if self.dtype.is_floating_point else ""
        sign = ">=" if self.kind.endswith("max") else "<="
        lines = [f"    {line}" for line in self.assign(earlier, later)]
        return [f"if ({later[0]} {sign} {earlier[0]}{nan_test}) {{", *lines, "}"]

    def result_text(self) -> str:
        """Return the text of the scan's result at this iteration."""
        if self.kind == "logsumexp":
            return f"{self.variables[0]} + log_f32({self.variables[1]} + {self.variables[2]})"
        if self.kind.startswith("arg"):
            return self.variables[1]
        if len(self.variables) == 2:
            return f"compensated_sum({', '.join(self.variables)})"
        return f"{METAL_TYPES[self.step.scan.dtype]}({self.variables[0]})"


def select_scan_lane(kernel: Kernel) -> Var | None:
    """Return the outer loop along which most accesses are contiguous; None if that is the scans' own loop."""
    best = most_contiguous_loop(kernel)
    return best if best in kernel.outer else None
