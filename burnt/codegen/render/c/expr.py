"""Elements as C: the statements that compute expressions at a place of the loops around them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    PartialSum,
    Reduction,
    Scan,
    Split,
    Store,
    Var,
    index_exprs,
    walk,
)
from burnt.codegen.render.c.bounds_and_prefetch import row_of
from burnt.codegen.render.c.dtypes import C_TYPES, SHORT, constant
from burnt.codegen.render.shape_params import mark_size, mark_step

__all__ = ["Elements", "has_neighbours"]


# By bits where the test is the same for a whole loop, and of whole numbers: of such a choice, or a chain of
# them, gcc makes branches, and no vectors.
_PICKS = {
    torch.float64: "f64", torch.int8: "i32", torch.int16: "i32", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "i32", torch.bool: "i32", torch.float32: "f32", torch.bfloat16: "f32", torch.float16: "f32",
    torch.uint16: "i32", torch.uint32: "i32", torch.uint64: "i64",
}  # fmt: skip

_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip


class Elements:
    """Lines of a kernel, and what is known at the place where the next one goes.

    Args:
        kernel: what is printed.
        slots: the place of each buffer and run-time number among the arguments.
    """

    def __init__(self, kernel: Kernel, slots: dict[object, int]) -> None:
        self.kernel = kernel
        self.slots = slots
        self.lines: list[str] = []
        self.depth = 1
        self.folds: dict[tuple[Reduction, Index], str] = {}
        self.lane: Var | None = None
        self.tile = 1
        self.squares: dict[Expr, str] = {}  # where the elements of loads that go across are
        self.partials: dict[PartialSum, str] = {}
        self.shifts: dict[Buffer, int] = {}  # where the elements of local buffers begin
        self.used: dict[Buffer, None] = {}
        self.names: dict[Var, str] = {}
        self.temporary = 0
        self.known: set[int] = set()  # tests that hold at the current place
        self.sure: set[Expr] = set()  # loads that are made whatever the tests are
        self.span: tuple[Var, int, int] | None = None  # the vectorised loop around it, from where to where
        self.varying: set[str] = set()  # guards that are not the same for all of that loop
        self.uniform: dict[int, bool] = {}  # whether expressions are
        self.scanned: dict[tuple[Scan, Index], str] = {}
        self.halves: dict[
            tuple[Buffer, IndexExpr], str
        ] = {}  # where the floats of what is float16 in memory are
        self.words: dict[int, str] = {}  # random words that have been made, by what is drawn from them
        self.hoisted: list[str] = []  # lines that come before that loop
        self.lifted: dict[int, str] = {}  # names of the expressions that these compute
        self.outside = 1  # how deep they are
        self.computed: dict[int, str] = {}  # names of the expressions in indices
        self.opaque = False  # whether an index is computed
        self.vectors: int | None = (
            None  # how deep the vector loop around the current place is, in which one is
        )
        self.conditional = False  # whether the current body loads under a test
        self.failed = {check: f"failed{i}" for i, check in enumerate(kernel.checks)}

    # --- expressions --------------------------------------------------------------------------------------

    def exprs(self, wanted: Sequence[Expr], first: Sequence[Expr] = ()) -> list[str]:
        """Statements that compute expressions at the current place; the names of their results.

        Args:
            wanted: the expressions.
            first: those of their parts that are computed before all others.
        """
        memo: dict[tuple[int, str], str] = {}

        def visit(expr: Expr, guard: str) -> str:
            if expr in self.sure:
                guard = ""
            key = (id(expr), guard)
            if key in memo:
                return memo[key]
            if id(expr) in self.lifted:
                return self.lifted[id(expr)]
            if expr.op == "masked":
                test, yes, no = expr.args
                test_name = visit(test, guard)
                if test_name == "1":
                    memo[key] = visit(yes, guard)
                    return memo[key]
                inner = test_name if not guard else f"{guard} & {test_name}"
                other = guard
                if any(e.op == "load" for e in walk([no])):
                    other = f"!{test_name}" if not guard else f"{guard} & !{test_name}"
                if guard in self.varying or not self.is_uniform(test):
                    self.varying |= {inner, other} - {guard}
                chosen = visit(yes, inner), visit(no, other)
                if inner in self.varying:
                    name = self.define(expr, f"{test_name} ? {chosen[0]} : {chosen[1]}")
                else:
                    name = self.define(expr, f"pick_{_PICKS[expr.dtype]}({test_name}, {', '.join(chosen)})")
            elif id(expr) in self.known or (expr.op == "and" and {id(a) for a in expr.args} <= self.known):
                name = "1"
            elif id(expr) in self.words:
                name = self.define(expr, _of_word(expr, self.words[id(expr)]))
            elif expr.op == "const":
                name = constant(expr.extra[0], expr.dtype)
            elif expr.op == "number":
                name = f"a[{self.slots[expr.extra[0]]}].f"
            elif expr.op == "scanned":
                name = self.define(expr, self.scanned[expr.extra])  # type: ignore[index]
            elif expr.op == "reduced":
                name = self.folds[expr.extra]  # type: ignore[index]
            elif expr.op == "load":
                self.computed |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.load(expr, guard))
            elif expr.op == "index":
                self.computed |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.place(expr.extra[0]))  # type: ignore[arg-type]
            elif expr.op == "checked":
                name = self.checked(expr, [visit(a, guard) for a in expr.args], guard)
            else:
                arguments = [visit(a, guard) for a in expr.args]
                name = self.define(expr, _operation(expr, arguments))
            memo[key] = name
            return name

        for expr in first:
            visit(expr, "")
        return [visit(expr, "") for expr in wanted]

    def define(self, expr: Expr, text: str) -> str:
        """A name for the element that a text computes."""
        hoisted = self.is_uniform(expr)
        name = self.named_value(C_TYPES[expr.dtype], text, hoisted=hoisted)
        if hoisted:
            self.lifted[id(expr)] = name
        return name

    def named_value(self, ctype: str, text: str, *, hoisted: bool) -> str:
        """A name for a value; `hoisted`: it is the same for the whole loop, and is computed before it."""
        name = f"v{self.temporary}"
        self.temporary += 1
        (self.hoisted if hoisted else self.lines).append(
            "    " * (self.outside if hoisted else self.depth) + f"const {ctype} {name} = {text};"
        )
        return name

    def is_uniform(self, expr: Expr) -> bool:
        """Whether an expression is the same for all of the vectorised loop, and safe to compute before it."""
        if self.span is None or expr.op == "checked" or (expr.op == "load" and expr not in self.sure):
            return False
        found = self.uniform.get(id(expr))
        if found is None:
            along = self.span[0]
            found = all(map(self.is_uniform, expr.args)) and all(
                along not in ix.variables() for ix in index_exprs(expr)
            )
            self.uniform[id(expr)] = found
        return found

    def checked(self, expr: Expr, arguments: Sequence[str], guard: str) -> str:
        """A maximum rather than a branch, which would end a vector loop."""
        test, value, otherwise, shown = arguments
        failed = self.failed[expr.extra[0]]  # type: ignore[index]
        fails = f"{guard} & !{test}" if guard else f"!{test}"
        name = self.define(expr, f"{test} ? {value} : {otherwise}")
        self.line(f"const uint64_t {name}_failed = {fails} ? (uint64_t){shown} << 1 | 1 : 0;")
        self.line(f"{failed} = {name}_failed > {failed} ? {name}_failed : {failed};")
        return name

    def load(self, expr: Expr, guard: str) -> str:
        """What a load reads, where its guard holds; 0 elsewhere."""
        buffer: Buffer = expr.extra[0]  # type: ignore[assignment]
        place: IndexExpr = expr.extra[1]  # type: ignore[assignment]
        if (buffer, place) in self.halves:
            return self.halves[buffer, place]
        text = self.squares.get(expr) or self.element(buffer, place)
        if guard:
            apart = row_of(buffer, place, self.span) if guard not in self.varying and self.span else None
            if apart is not None:
                # The test is the same for the whole loop: a row that is there is loaded in place of another.
                shift = self.shifts.get(buffer, 0)
                row, safe, along = (
                    self.place(ix + by) for ix, by in zip(apart, (shift, shift, 0), strict=True)
                )
                start = self.named_value("int64_t", f"{guard} ? {row} : {safe}", hoisted=True)
                text = f"{buffer.name}[{start} + {along}]"
            else:
                text = f"({guard} ? {text} : 0)"
                self.conditional = True
        return f"f32_of_{SHORT[buffer.dtype]}({text})" if buffer.dtype in SHORT else text

    def put(self, step: Store, name: str) -> None:
        """A line that stores an element, or adds it to a partial sum."""
        if isinstance(step, PartialSum):
            self.line(f"{self.partials[step]}[{self.place(step.offset)}] += {name};")
            return
        buffer = step.buffer
        value = name
        if (buffer, step.offset) in self.halves:
            self.line(f"{self.halves[buffer, step.offset]} = {name};")
            return
        if buffer.dtype in SHORT:
            value = f"{SHORT[buffer.dtype]}_of_f32({name})"
        elif buffer.dtype == torch.bool:
            value = f"(uint8_t)({name} != 0)"
        self.line(f"{self.element(buffer, step.offset)} = {value};")

    def element(self, buffer: Buffer, place: IndexExpr) -> str:
        """An element of a buffer; of a local one, that of the lane."""
        text = self.place(place + self.shifts.get(buffer, 0))
        if buffer.role != "local":
            self.used[buffer] = None
        elif self.lane is not None:
            text = f"({text}) * {self.tile} + u + l"
        return f"{buffer.name}[{text}]"

    def place(self, ix: IndexExpr) -> str:
        """An index as text."""
        parts = []
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                text = self.split_text(atom)
            else:
                text = (
                    self.named(atom) if isinstance(atom, Var) else f"({self.computed[id(atom.expr)]} ^ zero)"
                )
                self.opaque = self.opaque or not isinstance(atom, Var)
            parts.append(text if c == 1 else f"{text} * {mark_step(c)}")
        if ix.const or not parts:
            parts.append(mark_size(ix.const) if ix.const else "0")
        return " + ".join(parts)

    def split_text(self, atom: Split) -> str:
        """A quotient or remainder as text."""
        low, _ = atom.inner.bounds()
        inner = self.place(atom.inner)
        if low < 0:
            return f"floor_{'div' if atom.kind == '/' else 'mod'}({inner}, {mark_step(atom.divisor)})"
        return f"(({inner}) {atom.kind} {mark_step(atom.divisor)})"

    def named(self, var: Var) -> str:
        """A loop's name: numbered as they turn up, so that the same kernel is the same text."""
        return self.names.setdefault(var, f"i{len(self.names)}")

    # --- lines --------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line, as deep as the loops are; failures are gathered over threads and lanes."""
        if text.startswith("#pragma omp"):
            if " simd" in text:
                self.vectors = self.depth
            if self.failed:
                text += f" reduction(max:{', '.join(self.failed.values())})"
        self.lines.append("    " * self.depth + text)

    def put_lines(self, lines: Sequence[str]) -> None:
        """Several lines."""
        for text in lines:
            self.line(text)

    def loop(self, var: Var, start: str = "0", stop: str = "") -> None:
        """Begin a loop."""
        name = self.named(var)
        stop = stop or mark_size(var.extent)
        self.line(f"for (int64_t {name} = {start}; {name} < {stop}; {name}++) {{")
        self.depth += 1

    def loops(self, loops: Sequence[Var]) -> None:
        """Begin nested loops."""
        for var in loops:
            self.loop(var)

    def close(self, count: int) -> None:
        """End loops."""
        for _ in range(count):
            self.depth -= 1
            self.line("}")
            if self.vectors is not None and self.depth <= self.vectors:
                self.vectors = None

    def end_of_body(self, stores: Sequence[Store]) -> None:
        """End the body of a loop, when all its elements have been computed and stored (`LOADS_UNDER_TESTS`).

        A loop that is not one of vectors may be unrolled within another, whose stores these are then.
        """
        if self.conditional and (self.vectors is None or has_neighbours(stores)):
            self.line("LOADS_UNDER_TESTS;")
        self.conditional = False


def has_neighbours(stores: Sequence[Store]) -> bool:
    """Whether one turn stores several elements of a buffer."""
    return len({step.buffer for step in stores}) < len(stores)


def _of_word(expr: Expr, word: str) -> str:
    """A random number, of a word of the generator."""
    if expr.op == "uniform":
        return f"uniform_f32({word})"
    return f"(int64_t)((uint64_t){word} * {expr.extra[1]}ull >> 32)"


def _operation(expr: Expr, a: list[str]) -> str:
    op, dtype = expr.op, expr.dtype
    inside = expr.args[0].dtype
    double = inside == torch.float64
    if op in _INFIX:
        if op in ("add", "mul") and dtype == torch.bool:
            return f"{a[0]} {'|' if op == 'add' else '&'} {a[1]}"
        return f"{a[0]} {_INFIX[op]} {a[1]}"
    if op in ("uniform", "random"):
        return _of_word(expr, f"philox_word({a[0]}, {a[1]}, {expr.extra[0]})")
    if op in ("identity", "as"):
        return a[0]
    if op == "cast":
        inner = expr.args[0]
        whole = not inside.is_floating_point and inside != torch.bool
        if whole and dtype.is_floating_point and inner.op == "cast" and inner.args[0].dtype.is_floating_point:
            # gcc takes a float made an integer and a float again for trunc: -0 where torch has 0.
            return f"{a[0]} == 0 ? 0 : {_cast(a[0], inside, dtype)}"
        return _cast(a[0], inside, dtype)
    if op == "where":
        if not dtype.is_floating_point and _is_compared(expr.args[0]):
            return f"pick_{_PICKS[dtype]}({', '.join(a)})"
        return f"{a[0]} ? {a[1]} : {a[2]}"
    if op == "neg":
        return f"-{a[0]}"
    if op == "not":
        return f"~{a[0]}"
    if op == "power":
        return f"power_{'int64' if dtype.is_signed else 'uint64'}({', '.join(a)})"
    if op == "div" or (op == "trunc_div" and not inside.is_floating_point):
        return f"{a[0]} / {a[1]}"
    if op == "reciprocal":
        return f"1 / {a[0]}"
    if op == "relu":
        return f"{a[0]} < 0 ? 0 : {a[0]}"
    if op in ("maximum", "minimum", "fmax", "fmin") and not inside.is_floating_point:
        return f"{a[0]} {'>' if 'max' in op else '<'} {a[1]} ? {a[0]} : {a[1]}"
    if op == "abs" and not inside.is_floating_point:
        return a[0] if not inside.is_signed else f"{a[0]} < 0 ? -{a[0]} : {a[0]}"
    if op == "sign" and not inside.is_floating_point:
        return f"({a[0]} > 0) - ({a[0]} < 0)"
    return f"{op}_{'f64' if double else 'f32'}({', '.join(a)})"


def _is_compared(test: Expr) -> bool:
    """Whether a test is 0 or 1 and nothing else, as no one can say of a bool that is loaded."""
    if test.op in ("and", "or"):
        return all(map(_is_compared, test.args))
    return test.op in ("eq", "ne", "lt", "le", "gt", "ge")


def _cast(value: str, old: torch.dtype, new: torch.dtype) -> str:
    if new == torch.float16:
        return f"round_f16({value})"
    if new in SHORT:
        return f"f32_of_{SHORT[new]}({SHORT[new]}_of_f32({value}))"
    if new == torch.bool:
        return f"{value} != 0"
    return f"({C_TYPES[new]}){value}"
