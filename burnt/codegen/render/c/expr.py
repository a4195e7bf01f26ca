"""Print expressions as C statements: loads, arithmetic, checks and stores inside the current loops.

Loops, passes and threads are printed by the subclass in `kernel.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Computed,
    Expr,
    IndexExpr,
    Kernel,
    PartialSum,
    Store,
    Var,
    index_exprs,
    walk,
)
from burnt.codegen.render.c.bounds_and_prefetch import split_row_index
from burnt.codegen.render.c.prelude import C_TYPES, SIXTEEN_BIT_FLOATS, constant
from burnt.codegen.render.printer import LinePrinter, operation_text
from burnt.codegen.render.shape_params import mark_size

# Bitwise selects (`select_i64` and so on), by dtype. They are used where the test does not vary along the
# loop, and for integers: gcc turns a `?:` there, or a chain of them, into branches and does not vectorise.
_SELECT_TYPES = {
    torch.float64: "f64", torch.int8: "i32", torch.int16: "i32", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "i32", torch.bool: "i32", torch.float32: "f32", torch.bfloat16: "f32", torch.float16: "f32",
    torch.uint16: "i32", torch.uint32: "i32", torch.uint64: "i64",
}  # fmt: skip


class ExprPrinter(LinePrinter):
    """The lines of a kernel printed so far, and the state that printing the next line depends on."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        # The positions in the argument array of each buffer and each run-time number.
        self.slots: dict[object, int] = {argument: i for i, argument in enumerate(kernel.arguments)}
        self.lane: Var | None = None
        self.tile_width = 1
        self.transposed_loads: dict[Expr, str] = {}  # loads read from a tile that was copied row by row
        self.partial_sums: dict[PartialSum, str] = {}
        self.scratch_offsets: dict[Buffer, int] = {}  # index of the first element of each local buffer
        self.used_buffers: dict[Buffer, None] = {}
        self.true_tests: set[int] = set()  # ids of tests that are known to hold in the current loop
        self.unconditional_loads: set[Expr] = set()  # loads that no test guards
        self.span: tuple[Var, int, int] | None = None  # the innermost loop, its start and its stop
        self.varying_guards: set[str] = set()  # guards whose value varies along that loop
        self.uniform_cache: dict[int, bool] = {}  # results of `is_uniform`, by id of the expression
        self.f32_copies: dict[tuple[Buffer, IndexExpr], str] = {}  # float32 copies of float16 elements
        self.random_words: dict[int, str] = {}  # words generated beforehand, by id of the drawing expression
        self.hoisted: list[str] = []  # lines to put before the innermost loop
        self.hoisted_names: dict[int, str] = {}  # names that these lines define, by id of the expression
        self.hoist_depth = 1  # indentation of these lines
        self.has_computed_index = False  # whether an index contains a computed value
        self.vector_depth: int | None = None  # depth of the enclosing SIMD loop; None outside of one
        self.has_guarded_load = False  # whether the current loop body loads under a test
        self.failure_names = {check: f"failed{i}" for i, check in enumerate(kernel.checks)}

    # --- expressions --------------------------------------------------------------------------------------

    def emit_exprs(self, exprs: Sequence[Expr], first: Sequence[Expr] = ()) -> list[str]:
        """Emit statements that compute expressions in the current loop, `first` before them; return names."""
        memo: dict[tuple[int, str], str] = {}

        def visit(expr: Expr, guard: str) -> str:
            if expr in self.unconditional_loads:
                guard = ""
            key = (id(expr), guard)
            if key in memo:
                return memo[key]
            if id(expr) in self.hoisted_names:
                return self.hoisted_names[id(expr)]
            if expr.op == "masked":
                test, yes, no = expr.args
                test_name = visit(test, guard)
                if test_name == "1":
                    memo[key] = visit(yes, guard)
                    return memo[key]
                yes_guard = test_name if not guard else f"{guard} & {test_name}"
                no_guard = guard
                if any(e.op == "load" for e in walk([no])):
                    no_guard = f"!{test_name}" if not guard else f"{guard} & !{test_name}"
                if guard in self.varying_guards or not self.is_uniform(test):
                    self.varying_guards |= {yes_guard, no_guard} - {guard}
                branches = visit(yes, yes_guard), visit(no, no_guard)
                if yes_guard in self.varying_guards:
                    name = self.define(expr, f"{test_name} ? {branches[0]} : {branches[1]}")
                else:
                    name = self.define(
                        expr, f"select_{_SELECT_TYPES[expr.dtype]}({test_name}, {', '.join(branches)})"
                    )
            elif id(expr) in self.true_tests or (
                expr.op == "and" and {id(a) for a in expr.args} <= self.true_tests
            ):
                name = "1"
            elif id(expr) in self.random_words:
                name = self.define(expr, _random_value(expr, self.random_words[id(expr)]))
            elif expr.op == "const":
                name = constant(expr.extra[0], expr.dtype)
            elif expr.op == "number":
                name = f"a[{self.slots[expr.extra[0]]}].f"
            elif expr.op == "scanned":
                name = self.define(expr, self.scan_results[expr.extra])
            elif expr.op == "reduced":
                name = self.reduction_results[expr.extra]
            elif expr.op == "load":
                self.index_values |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.load_text(expr, guard))
            elif expr.op == "index":
                self.index_values |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.index_text(expr.extra[0]))
            elif expr.op == "checked":
                name = self.emit_check(expr, [visit(a, guard) for a in expr.args], guard)
            else:
                arguments = [visit(a, guard) for a in expr.args]
                name = self.define(expr, _operation_text(expr, arguments))
            memo[key] = name
            return name

        for expr in first:
            visit(expr, "")
        return [visit(expr, "") for expr in exprs]

    def define(self, expr: Expr, text: str) -> str:
        """Assign a C expression to a new constant and return its name; hoist it if it is loop-invariant."""
        hoisted = self.is_uniform(expr)
        name = self.define_value(C_TYPES[expr.dtype], text, hoisted=hoisted)
        if hoisted:
            self.hoisted_names[id(expr)] = name
        return name

    def define_value(self, ctype: str, text: str, *, hoisted: bool) -> str:
        """Like `define`, where `hoisted` says whether the line goes before the innermost loop."""
        name = f"v{self.num_values}"
        self.num_values += 1
        (self.hoisted if hoisted else self.lines).append(
            "    " * (self.hoist_depth if hoisted else self.depth) + f"const {ctype} {name} = {text};"
        )
        return name

    def is_uniform(self, expr: Expr) -> bool:
        """Whether an expression is invariant along the innermost loop and safe to compute before it."""
        if (
            self.span is None
            or expr.op == "checked"
            or (expr.op == "load" and expr not in self.unconditional_loads)
        ):
            return False
        is_uniform = self.uniform_cache.get(id(expr))
        if is_uniform is None:
            along = self.span[0]
            is_uniform = all(map(self.is_uniform, expr.args)) and all(
                along not in ix.variables() for ix in index_exprs(expr)
            )
            self.uniform_cache[id(expr)] = is_uniform
        return is_uniform

    def emit_check(self, expr: Expr, arguments: Sequence[str], guard: str) -> str:
        """Emit a check and return the name of its value.

        A failure is recorded by a maximum, because a branch would keep the loop from being vectorised.
        """
        test, value, otherwise, reported = arguments
        failed = self.failure_names[expr.extra[0]]
        fails = f"{guard} & !{test}" if guard else f"!{test}"
        name = self.define(expr, f"{test} ? {value} : {otherwise}")
        self.emit(f"const uint64_t {name}_failed = {fails} ? (uint64_t){reported} << 1 | 1 : 0;")
        self.emit(f"{failed} = {name}_failed > {failed} ? {name}_failed : {failed};")
        return name

    def load_text(self, expr: Expr, guard: str) -> str:
        """Return the C of a load, converted to its compute type; 0 where the guard does not hold."""
        buffer: Buffer = expr.extra[0]
        offset: IndexExpr = expr.extra[1]
        if (buffer, offset) in self.f32_copies:
            return self.f32_copies[buffer, offset]
        text = self.transposed_loads.get(expr) or self.element_text(buffer, offset)
        if guard:
            parts = (
                split_row_index(buffer, offset, self.span)
                if guard not in self.varying_guards and self.span
                else None
            )
            if parts is not None:
                # The test is invariant along the loop: select a row in bounds, and load without a test.
                shift = self.scratch_offsets.get(buffer, 0)
                row, safe, along = (
                    self.index_text(ix + by) for ix, by in zip(parts, (shift, shift, 0), strict=True)
                )
                start = self.define_value("int64_t", f"{guard} ? {row} : {safe}", hoisted=True)
                text = f"{self.buffer_name(buffer)}[{start} + {along}]"
            else:
                text = f"({guard} ? {text} : 0)"
                self.has_guarded_load = True
        return (
            f"f32_of_{SIXTEEN_BIT_FLOATS[buffer.dtype]}({text})"
            if buffer.dtype in SIXTEEN_BIT_FLOATS
            else text
        )

    def emit_store(self, step: Store, name: str) -> None:
        """Emit the line that stores an element, or adds it to a partial sum."""
        if isinstance(step, PartialSum):
            self.emit(f"{self.partial_sums[step]}[{self.index_text(step.offset)}] += {name};")
            return
        buffer = step.buffer
        value = name
        if (buffer, step.offset) in self.f32_copies:
            self.emit(f"{self.f32_copies[buffer, step.offset]} = {name};")
            return
        if buffer.dtype in SIXTEEN_BIT_FLOATS:
            value = f"{SIXTEEN_BIT_FLOATS[buffer.dtype]}_of_f32({name})"
        elif buffer.dtype == torch.bool:
            value = f"(uint8_t)({name} != 0)"
        self.emit(f"{self.element_text(buffer, step.offset)} = {value};")

    def element_text(self, buffer: Buffer, offset: IndexExpr) -> str:
        """Return the C of a buffer's element; for a local buffer, the element of the current lane."""
        text = self.index_text(offset + self.scratch_offsets.get(buffer, 0))
        if buffer.role != "local":
            self.used_buffers[buffer] = None
        elif self.lane is not None:
            text = f"({text}) * {self.tile_width} + u + l"
        return f"{self.buffer_name(buffer)}[{text}]"

    def buffer_name(self, buffer: Buffer) -> str:
        """Return the variable of a buffer; its name does not depend on other kernels."""
        buffer = self.kernel.in_place.get(buffer, buffer)
        return (
            f"b{self.slots[buffer]}" if buffer in self.slots else f"local{self.kernel.scratch.index(buffer)}"
        )

    def computed_text(self, atom: Computed) -> str:
        """Return the C of a computed part of an index (see `_KernelPrinter.source` for the xor)."""
        self.has_computed_index = True
        return f"({self.index_values[id(atom.expr)]} ^ zero)"

    # --- lines --------------------------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Append a line, indented by the loop depth; an OpenMP pragma also reduces the failure flags."""
        if text.startswith("#pragma omp"):
            if " simd" in text:
                self.vector_depth = self.depth
            if self.failure_names:
                text += f" reduction(max:{', '.join(self.failure_names.values())})"
        super().emit(text)

    def open_loop(self, var: Var, start: str = "0", stop: str = "") -> None:
        """Open a loop, by default over all of its iterations."""
        name = self.loop_name(var)
        stop = stop or mark_size(var.extent)
        self.open(f"for (int64_t {name} = {start}; {name} < {stop}; {name}++)")

    def open_loops(self, loops: Sequence[Var]) -> None:
        """Open nested loops, the outermost first."""
        for var in loops:
            self.open_loop(var)

    def close(self, count: int = 1) -> None:
        """Close the innermost `count` loops or blocks."""
        super().close(count)
        if self.vector_depth is not None and self.depth <= self.vector_depth:
            self.vector_depth = None

    def end_body(self, stores: Sequence[Store]) -> None:
        """End a loop body after its last store: emit `GUARDED_LOADS` where gcc could misorder its loads.

        A loop that is not a SIMD loop may be unrolled into an enclosing one, where its stores are adjacent.
        """
        if self.has_guarded_load and (self.vector_depth is None or has_adjacent_stores(stores)):
            self.emit("GUARDED_LOADS;")
        self.has_guarded_load = False


def has_adjacent_stores(stores: Sequence[Store]) -> bool:
    """Whether one iteration stores several elements of the same buffer."""
    return len({step.buffer for step in stores}) < len(stores)


def _random_value(expr: Expr, word: str) -> str:
    """Return the C that converts a word of the generator to the random number of an expression."""
    if expr.op == "uniform":
        return f"uniform_f32({word})"
    return f"(int64_t)((uint64_t){word} * {expr.extra[1]}ull >> 32)"


def _operation_text(expr: Expr, args: list[str]) -> str:
    op, dtype = expr.op, expr.dtype
    arg_dtype = expr.args[0].dtype
    if op in ("uniform", "random"):
        return _random_value(expr, f"philox_word({args[0]}, {args[1]}, {expr.extra[0]})")
    if op == "cast":
        inner = expr.args[0]
        is_integer = not arg_dtype.is_floating_point and arg_dtype != torch.bool
        text = _cast_text(args[0], dtype)
        if (
            is_integer
            and dtype.is_floating_point
            and inner.op == "cast"
            and inner.args[0].dtype.is_floating_point
        ):
            # gcc compiles float -> integer -> float as trunc, which gives -0 where torch gives 0.
            return f"{args[0]} == 0 ? 0 : {text}"
        return text
    if op == "where" and not dtype.is_floating_point and _is_zero_or_one(expr.args[0]):
        return f"select_{_SELECT_TYPES[dtype]}({', '.join(args)})"
    if op == "power":
        return f"power_{'int64' if dtype.is_signed else 'uint64'}({', '.join(args)})"
    suffix = "f64" if arg_dtype == torch.float64 else "f32"
    return operation_text(expr, args) or f"{op}_{suffix}({', '.join(args)})"


def _is_zero_or_one(test: Expr) -> bool:
    """Whether a test is certainly 0 or 1. A bool loaded from memory may hold any byte."""
    if test.op in ("and", "or"):
        return all(map(_is_zero_or_one, test.args))
    return test.op in ("eq", "ne", "lt", "le", "gt", "ge")


def _cast_text(value: str, new: torch.dtype) -> str:
    if new == torch.float16:
        return f"round_f16({value})"
    if new in SIXTEEN_BIT_FLOATS:
        return f"f32_of_{SIXTEEN_BIT_FLOATS[new]}({SIXTEEN_BIT_FLOATS[new]}_of_f32({value}))"
    if new == torch.bool:
        return f"{value} != 0"
    return f"({C_TYPES[new]}){value}"
