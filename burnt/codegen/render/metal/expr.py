"""Print expressions as Metal statements: loads, arithmetic, checks and stores inside the current loops.

Loops, dispatches and threads are printed by the subclasses in `kernel.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from burnt.codegen.ir import Buffer, Computed, Expr, Kernel, Store, Var
from burnt.codegen.render.metal import prelude
from burnt.codegen.render.metal.prelude import MEMORY_TYPES, METAL_TYPES, SIXTEEN_BIT_FLOATS, constant
from burnt.codegen.render.printer import LinePrinter, operation_text
from burnt.codegen.render.shape_params import mark_size
from burnt.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class Scratch:
    """Memory that a kernel needs besides its tensors: `count` elements, zeroed or uninitialized."""

    name: str
    dtype: torch.dtype
    count: int
    zeros: bool = False


class ExprPrinter(LinePrinter):
    """The lines of a function printed so far, and the state that printing the next line depends on.

    `numbers` are the positions of the run-time numbers, in the order in which they are passed; `wide` says
    that indices need 64 bits.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[int], *, wide: bool) -> None:
        super().__init__(kernel)
        self.number_slots = {number: i for i, number in enumerate(numbers)}
        self.has_numbers = False
        self.buffers: dict[Buffer | Scratch, None] = {}
        self.written: set[Buffer | Scratch] = set()
        self.wide = wide
        self.index_type = "long" if wide else "int"

    # --- expressions --------------------------------------------------------------------------------------

    def emit_exprs(self, exprs: Sequence[Expr]) -> list[str]:
        """Emit statements that compute expressions in the current loop, and return the result names."""
        memo: dict[tuple[int, str], str] = {}

        def visit(expr: Expr, guard: str) -> str:
            key = (id(expr), guard)
            if key in memo:
                return memo[key]
            if expr.op == "masked":
                test, yes, no = expr.args
                test_name = visit(test, guard)
                # A load in the branch that is not selected may be out of bounds.
                yes_guard, no_guard = (
                    f"{guard} && {t}" if guard else t for t in (test_name, f"!{test_name}")
                )
                name = self.define(expr, f"{test_name} ? {visit(yes, yes_guard)} : {visit(no, no_guard)}")
            elif expr.op == "const":
                name = constant(expr.extra[0], expr.dtype)
            elif expr.op == "number":
                self.has_numbers = True
                name = f"numbers[{self.number_slots[expr.extra[0]]}]"
            elif expr.op == "reduced":
                name = self.reduction_results[expr.extra]
                if expr.extra[0].kind in ("argmax", "argmin") and not self.wide:
                    name = self.define(expr, name)  # converts the 32-bit index to int64
            elif expr.op == "scanned":
                name = self.define(expr, self.scan_results[expr.extra])
            elif expr.op == "load":
                self.index_values |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.load_text(expr, guard))
            elif expr.op == "checked":
                arguments = [visit(a, guard) for a in expr.args]
                name = self.emit_check(expr, arguments, guard)
            elif expr.op == "index":
                self.index_values |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.index_text(expr.extra[0]))
            else:
                arguments = [visit(a, guard) for a in expr.args]
                name = self.define(expr, _operation_text(expr, arguments))
            memo[key] = name
            return name

        return [visit(expr, "") for expr in exprs]

    def emit_check(self, expr: Expr, arguments: Sequence[str], guard: str) -> str:
        """Emit a check and return the name of its value. If several elements fail, any one is reported."""
        test, value, otherwise, shown = arguments
        failed = Scratch("failed", torch.int64, len(self.kernel.checks), zeros=True)
        self.buffers[failed] = None
        self.written.add(failed)
        fails = f"{guard} && !{test}" if guard else f"!{test}"
        check_index = self.kernel.checks.index(expr.extra[0])
        self.emit(f"if ({fails}) {failed.name}[{check_index}] = {shown} * 2 + 1;")
        return self.define(expr, f"{test} ? {value} : {otherwise}")

    def define(self, expr: Expr, text: str) -> str:
        """Assign an expression's text to a new constant and return its name."""
        name = f"v{self.num_values}"
        self.num_values += 1
        self.emit(f"const {METAL_TYPES[expr.dtype]} {name} = {text};")
        return name

    def load_text(self, expr: Expr, guard: str) -> str:
        """Return the text of a load, converted to its compute type; 0 where the guard does not hold."""
        buffer: Buffer = expr.extra[0]
        self.buffers[buffer] = None
        text = f"{buffer.name}[{self.index_text(expr.extra[1])}]"
        if buffer.dtype in SIXTEEN_BIT_FLOATS:
            text = f"float({text})"
        return f"{guard} ? {text} : 0" if guard else text

    def emit_store(self, step: Store, name: str) -> None:
        """Emit the line that stores an element."""
        buffer = step.buffer
        self.buffers[buffer] = None
        self.written.add(buffer)
        value = name
        if buffer.dtype in SIXTEEN_BIT_FLOATS:
            value = f"{MEMORY_TYPES[buffer.dtype]}({name})"
        elif buffer.dtype == torch.bool and step.body.dtype != torch.bool:
            value = f"{name} != 0"
        self.emit(f"{buffer.name}[{self.index_text(step.offset)}] = {value};")

    def emit_all_stores(self, stores: Sequence[Store]) -> None:
        """Emit the lines that compute the values of stores, then those that store them."""
        for step, name in zip(stores, self.emit_exprs([step.body for step in stores]), strict=True):
            self.emit_store(step, name)

    def computed_text(self, atom: Computed) -> str:
        """Return the text of a computed part of an index."""
        return f"{self.index_type}({self.index_values[id(atom.expr)]})"

    def floor_text(self, kind: str, index: str, divisor: str) -> str:
        """Return a quotient (`kind` ``div``) or remainder (``mod``) of an index that may be negative."""
        return f"floor_{kind}({self.index_type}({index}), {self.index_type}({divisor}))"

    def emit_loop_variables(self, loops: Sequence[Var], flat_index: str) -> None:
        """Define the variables of nested loops, from the flattened number of an iteration."""
        loops = [v for v in loops if v.extent > 1]
        for i, var in enumerate(loops):
            size = math.prod(v.extent for v in loops[i + 1 :])
            text = flat_index if size == 1 else f"{flat_index} / {mark_size(size)}"
            if i:
                text = f"{text} % {mark_size(var.extent)}"
            self.emit(f"const {self.index_type} {self.loop_name(var)} = {text};")


def _operation_text(expr: Expr, args: list[str]) -> str:
    op = expr.op
    if op == "power":
        return f"power<{METAL_TYPES[expr.dtype]}>({', '.join(args)})"
    if op in ("uniform", "random"):
        function = "uniform_f32" if op == "uniform" else "random_below"
        return f"{function}({', '.join([*args, *map(str, expr.extra)])})"
    if op == "cast":
        return _cast_text(args[0], expr.args[0].dtype, expr.dtype)
    text = operation_text(expr, args)
    if text is None and f"{op}_f32" not in prelude.functions():
        raise UnsupportedError(f"Metal has no {op} yet")
    return text or f"{op}_f32({', '.join(args)})"


def _cast_text(value: str, old: torch.dtype, new: torch.dtype) -> str:
    if new in SIXTEEN_BIT_FLOATS:
        return f"float({MEMORY_TYPES[new]}({value}))"
    if new == torch.bool:
        return f"{value} != 0"
    if old.is_floating_point and new in (torch.int8, torch.int16, torch.uint8, torch.uint16):
        return f"{METAL_TYPES[new]}(int({value}))"  # values out of range wrap, as in torch
    if old.is_floating_point and new == torch.uint32:
        return f"uint(long({value}))"
    return f"{METAL_TYPES[new]}({value})"
