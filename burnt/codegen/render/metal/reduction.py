"""Print reductions as Metal: a thread's accumulator, and how elements and other threads' results are added.

A sum that needs another reduction's result in the same loop is first computed relative to the thread's own
maximum or mean, and corrected once the maximum or mean of all threads is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from burnt.codegen.ir import Kernel, OnlineReduction, ReductionStep, ScanStep, Var
from burnt.codegen.render.metal.prelude import METAL_TYPES, highest, lowest
from burnt.codegen.render.printer import most_contiguous_loop
from burnt.codegen.render.shape_params import mark_size


@dataclasses.dataclass(frozen=True)
class ReductionState:
    """A thread's accumulator of a reduction."""

    name: str  # the name of the result
    metal_type: str
    kind: str  # the reduction's kind
    dtypes: tuple[torch.dtype, ...]  # dtypes of the values that threads exchange, for scratch memory
    variables: dict[str, str]  # names of the variables that hold these values, with their types
    initial: str  # the value before the first element
    is_floating: bool  # whether elements are floats

    @staticmethod
    def of(step: ReductionStep, name: str, index_type: str) -> ReductionState:
        """Create the accumulator of a reduction; argmax and argmin give indices of `index_type`."""
        element_dtype, kind = step.body.dtype, step.reduction.kind
        is_floating = element_dtype.is_floating_point
        dtype = torch.float32 if is_floating else torch.int64 if element_dtype == torch.int64 else torch.int32
        if kind in ("sum", "prod") and not is_floating:
            dtype = torch.int64
        metal_type = METAL_TYPES[dtype]
        if kind in ("argmax", "argmin"):
            index_dtype = torch.int64 if index_type == "long" else torch.int32
            return ReductionState(
                name,
                index_type,
                kind,
                (dtype, index_dtype),
                {f"{name}_best": metal_type, name: index_type},
                "0",
                is_floating,
            )
        initial = {
            "sum": "0", "prod": "1", "any": "0", "all": "1",
            "max": lowest(element_dtype), "min": highest(element_dtype),
        }[kind]  # fmt: skip
        return ReductionState(name, metal_type, kind, (dtype,), {name: metal_type}, initial, is_floating)

    @property
    def is_arg(self) -> bool:
        """Whether the result is the index of an extreme."""
        return self.kind in ("argmax", "argmin")

    @property
    def is_compensated(self) -> bool:
        """Whether this is a compensated sum, which carries its rounding error along."""
        return self.kind == "sum" and self.is_floating

    def declare(self) -> list[str]:
        """Return the lines that declare the variables, with their values before the first element."""
        name = self.name
        if self.is_arg:
            best, best_type = next(iter(self.variables.items()))
            return [f"{best_type} {best} = 0;", f"{self.metal_type} {name} = -1;"]
        if self.is_compensated:
            return [f"float {name} = 0, {name}_low = 0;"]
        return [f"{self.metal_type} {name} = {self.initial};"]

    def add(self, value: str, index: str) -> list[str]:
        """Return the lines that add an element, which has the given index in the reduction."""
        if self.is_compensated:
            return [f"add_compensated({self.name}, {self.name}_low, {value});"]
        return self.merge([value, index] if self.is_arg else [value])

    def finish(self) -> list[str]:
        """Return the lines that follow the last element."""
        return (
            [f"{self.name} = compensated_sum({self.name}, {self.name}_low);"] if self.is_compensated else []
        )

    def merge(self, others: Sequence[str]) -> list[str]:
        """Return the lines that add the values of another thread."""
        name = self.name
        if self.is_arg:
            best, best_type = next(iter(self.variables.items()))
            test = "is_larger" if self.kind == "argmax" else "is_smaller"
            return [
                f"const {best_type} other = {others[0]};",
                f"const {self.metal_type} other_at = {others[1]};",
                f"if ({test}(other, other_at, {best}, {name})) {{",
                f"    {best} = other;",
                f"    {name} = other_at;",
                "}",
            ]
        (other,) = others
        if self.kind in ("max", "min"):
            function = f"{self.kind}imum_f32" if self.is_floating else self.kind
            other = other if self.is_floating else f"{self.metal_type}({other})"
            return [f"{name} = {function}({name}, {other});"]
        op = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[self.kind]
        return [f"{name} = {name} {op} {other};"]


class OnlineSum:
    """A thread's sum relative to its own maximum or mean, in the same loop that computes the total one.

    `reference` is the name of the other reduction's result: the maximum, or the sum of all elements.
    """

    def __init__(self, step: OnlineReduction, state: ReductionState, reference: str) -> None:
        self.step, self.state, self.reference = step, state, reference
        self.name, self.is_exp = state.name, step.kind == "exp"

    def declare(self) -> list[str]:
        """Return the lines that declare the variables, with their values before the first element."""
        variables = "max = -INFINITY" if self.is_exp else f"mean = 0, {self.name}_count = 0"
        return [*self.state.declare(), f"float {self.name}_{variables};"]

    def add(self, value: str) -> list[str]:
        """Return the lines that add an element."""
        name = self.name
        if self.is_exp:
            return [f"add_exp_sum({name}_max, {name}, {name}_low, {value}, 1.0f, 0.0f);"]
        return [f"add_square({name}_mean, {name}, {name}_count, {value});"]

    def rescale(self, count: str) -> list[str]:
        """Return lines that make the sum relative to all threads' maximum, or mean of `count` elements."""
        name = self.name
        if not self.is_exp:
            return [
                f"{name} = shift_square_sum({name}, {name}_count, {name}_mean, {self.reference} / {count});"
            ]
        return [f"{n} = rescale_exp_sum({n}, {name}_max, {self.reference});" for n in (name, f"{name}_low")]

    def rescale_chunk(self, value: str, chunk_reference: str, count: str) -> str:
        """Return the text of a chunk's sum relative to the maximum or mean of all chunks."""
        if self.is_exp:
            return f"rescale_exp_sum({value}, {chunk_reference}, {self.reference})"
        mean = f"{self.reference} / float({mark_size(self.step.iterations)})"
        return f"shift_square_sum({value}, {count}, {chunk_reference} / {count}, {mean})"

    def handle_non_finite(self) -> list[str]:
        """Return the lines that set the result where the maximum is infinite or NaN."""
        if not self.is_exp:
            return []
        limit = (
            f"exp_f32({self.reference})"
            if self.step.ignores_infinite_max
            else f"{self.reference} - {self.reference}"
        )
        return [f"{self.name} = abs_f32({self.reference}) < INFINITY ? {self.name} : {limit};"]


# Print scans (cumulative sums, maxima and so on) as Metal: the running value and how values are combined.
# An element is the running value of only itself, so that threads can combine their running values. Float
# sums are compensated. A logsumexp is stored as the maximum and the sum of exponentials relative to it.
# Products are float: Metal has no wider type.


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
