"""Elements as Metal: the statements that compute expressions at a place of the loops around them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from burnt.codegen.ir import Buffer, Expr, Index, IndexExpr, Kernel, Reduction, Scan, Split, Store, Var
from burnt.codegen.render.metal import prelude
from burnt.codegen.render.metal.dtypes import COMPUTE, MEMORY, SHORT, constant
from burnt.codegen.render.shape_params import mark_size, mark_step
from burnt.errors import UnsupportedError

__all__ = ["Elements", "Scratch"]

_INTEGER_INFIX = {"trunc_div": "/", "shl": "<<", "shr": ">>"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Scratch:
    """Memory of a kernel's own: `count` elements of a dtype, which begin as zeros or as anything."""

    name: str
    dtype: torch.dtype
    count: int
    zeros: bool = False


class Elements:
    """Lines of a function, and what is known at the place where the next one goes.

    Args:
        kernel: what is printed.
        numbers: positions of run-time numbers, in the order in which they are given.
        wide: whether indices need 64 bits.
    """

    def __init__(self, kernel: Kernel, numbers: Sequence[int], *, wide: bool) -> None:
        self.kernel = kernel
        self.position = {number: i for i, number in enumerate(numbers)}
        self.has_numbers = False
        self.lines: list[str] = []
        self.depth = 1
        self.folds: dict[tuple[Reduction, Index], str] = {}
        self.scans: dict[tuple[Scan, Index], str] = {}
        self.memory: dict[Buffer | Scratch, None] = {}
        self.written: set[Buffer | Scratch] = set()
        self.names: dict[Var, str] = {}
        self.temporary = 0
        self.computed: dict[int, str] = {}  # names of the expressions in indices
        self.wide = wide
        self.index = "long" if wide else "int"

    # --- expressions --------------------------------------------------------------------------------------

    def exprs(self, wanted: Sequence[Expr]) -> list[str]:
        """Statements that compute expressions at the current place; the names of their results."""
        memo: dict[tuple[int, str], str] = {}

        def visit(expr: Expr, guard: str) -> str:
            key = (id(expr), guard)
            if key in memo:
                return memo[key]
            if expr.op == "masked":
                test, yes, no = expr.args
                test_name = visit(test, guard)
                # Where the other one is chosen, a load may be out of bounds.
                there, elsewhere = (f"{guard} && {t}" if guard else t for t in (test_name, f"!{test_name}"))
                name = self.define(expr, f"{test_name} ? {visit(yes, there)} : {visit(no, elsewhere)}")
            elif expr.op == "const":
                name = constant(expr.extra[0], expr.dtype)
            elif expr.op == "number":
                self.has_numbers = True
                name = f"numbers[{self.position[expr.extra[0]]}]"  # type: ignore[index]
            elif expr.op == "reduced":
                name = self.folds[expr.extra]  # type: ignore[index]
                if expr.extra[0].kind in ("argmax", "argmin") and not self.wide:  # type: ignore[attr-defined]
                    name = self.define(expr, name)  # a place, which is counted in 32 bits, is one of 64
            elif expr.op == "scanned":
                name = self.define(expr, self.scans[expr.extra])  # type: ignore[index]
            elif expr.op == "load":
                self.computed |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.load(expr, guard))
            elif expr.op == "checked":
                arguments = [visit(a, guard) for a in expr.args]
                name = self.checked(expr, arguments, guard)
            elif expr.op == "index":
                self.computed |= {id(a): visit(a, guard) for a in expr.args}
                name = self.define(expr, self.place(expr.extra[0]))  # type: ignore[arg-type]
            else:
                arguments = [visit(a, guard) for a in expr.args]
                name = self.define(expr, _operation(expr, arguments))
            memo[key] = name
            return name

        return [visit(expr, "") for expr in wanted]

    def checked(self, expr: Expr, arguments: Sequence[str], guard: str) -> str:
        """Which of the elements that fail is told is left to chance: one of them."""
        test, value, otherwise, shown = arguments
        failed = Scratch("failed", torch.int64, len(self.kernel.checks), zeros=True)
        self.memory[failed] = None
        self.written.add(failed)
        fails = f"{guard} && !{test}" if guard else f"!{test}"
        place = self.kernel.checks.index(expr.extra[0])
        self.line(f"if ({fails}) {failed.name}[{place}] = {shown} * 2 + 1;")
        return self.define(expr, f"{test} ? {value} : {otherwise}")

    def define(self, expr: Expr, text: str) -> str:
        """A name for the element that a text computes."""
        name = f"v{self.temporary}"
        self.temporary += 1
        self.line(f"const {COMPUTE[expr.dtype]} {name} = {text};")
        return name

    def load(self, expr: Expr, guard: str) -> str:
        """What a load reads, where its guard holds; 0 elsewhere."""
        buffer: Buffer = expr.extra[0]  # type: ignore[assignment]
        self.memory[buffer] = None
        text = f"{buffer.name}[{self.place(expr.extra[1])}]"  # type: ignore[arg-type]
        if buffer.dtype in SHORT:
            text = f"float({text})"
        return f"{guard} ? {text} : 0" if guard else text

    def put(self, step: Store, name: str) -> None:
        """A line that stores an element."""
        buffer = step.buffer
        self.memory[buffer] = None
        self.written.add(buffer)
        value = name
        if buffer.dtype in SHORT:
            value = f"{MEMORY[buffer.dtype]}({name})"
        elif buffer.dtype == torch.bool and step.value.dtype != torch.bool:
            value = f"{name} != 0"
        self.line(f"{buffer.name}[{self.place(step.offset)}] = {value};")

    def place(self, ix: IndexExpr) -> str:
        """An index as text."""
        parts = []
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                text = self.split_text(atom)
            elif isinstance(atom, Var):
                text = self.named(atom)
            else:
                text = f"{self.index}({self.computed[id(atom.expr)]})"
            parts.append(text if c == 1 else f"{text} * {mark_step(c)}")
        if ix.const or not parts:
            parts.append(mark_size(ix.const) if ix.const else "0")
        return " + ".join(parts)

    def split_text(self, atom: Split) -> str:
        """A quotient or remainder as text."""
        low, _ = atom.inner.bounds()
        inner = self.place(atom.inner)
        if low < 0:
            kind, by = ("div" if atom.kind == "/" else "mod"), f"{self.index}({mark_step(atom.divisor)})"
            return f"floor_{kind}({self.index}({inner}), {by})"
        return f"(({inner}) {atom.kind} {mark_step(atom.divisor)})"

    def named(self, var: Var) -> str:
        """A loop's name: numbered as they turn up, so that the same kernel is the same text."""
        return self.names.setdefault(var, f"i{len(self.names)}")

    # --- lines --------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line, as deep as the loops are."""
        self.lines.append("    " * self.depth + text)

    def line_all(self, texts: Sequence[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    def open(self, text: str) -> None:
        """Begin a loop or a branch."""
        self.line(f"{text} {{")
        self.depth += 1

    def close(self) -> None:
        """End it."""
        self.depth -= 1
        self.line("}")

    def turns(self, loops: Sequence[Var], whole: str) -> None:
        """The loops' variables, of the number of a turn through all of them."""
        loops = [v for v in loops if v.extent > 1]
        for i, var in enumerate(loops):
            size = math.prod(v.extent for v in loops[i + 1 :])
            text = whole if size == 1 else f"{whole} / {mark_size(size)}"
            if i:
                text = f"{text} % {mark_size(var.extent)}"
            self.line(f"const {self.index} {self.named(var)} = {text};")


def _operation(expr: Expr, a: list[str]) -> str:
    op, dtype = expr.op, expr.dtype
    inside = expr.args[0].dtype
    floating = inside.is_floating_point
    if op in _INFIX:
        if op in ("add", "mul") and dtype == torch.bool:
            return f"{a[0]} {'|' if op == 'add' else '&'} {a[1]}"
        return f"{a[0]} {_INFIX[op]} {a[1]}"
    if op in _INTEGER_INFIX and not floating:
        return f"{a[0]} {_INTEGER_INFIX[op]} {a[1]}"
    if op == "power":
        return f"power<{COMPUTE[dtype]}>({', '.join(a)})"
    if op in ("uniform", "random"):
        function = "uniform_f32" if op == "uniform" else "random_below"
        return f"{function}({', '.join([*a, *map(str, expr.extra)])})"
    if op in ("identity", "as"):
        return a[0]
    if op == "cast":
        return _cast(a[0], inside, dtype)
    if op == "where":
        return f"{a[0]} ? {a[1]} : {a[2]}"
    if op == "neg":
        return f"-{a[0]}"
    if op == "not":
        return f"~{a[0]}"
    if op == "reciprocal":
        return f"1 / {a[0]}"
    if op == "relu":
        return f"{a[0]} < 0 ? 0 : {a[0]}"
    if op in ("maximum", "minimum", "fmax", "fmin") and not floating:
        return f"{a[0]} {'>' if 'max' in op else '<'} {a[1]} ? {a[0]} : {a[1]}"
    if op == "abs" and not floating:
        return a[0] if not inside.is_signed else f"{a[0]} < 0 ? -{a[0]} : {a[0]}"
    if op == "sign" and not floating:
        return f"({a[0]} > 0) - ({a[0]} < 0)"
    if f"{op}_f32" not in prelude.functions():
        raise UnsupportedError(f"Metal has no {op} yet")
    return f"{op}_f32({', '.join(a)})"


def _cast(value: str, old: torch.dtype, new: torch.dtype) -> str:
    if new in SHORT:
        return f"float({MEMORY[new]}({value}))"
    if new == torch.bool:
        return f"{value} != 0"
    if old.is_floating_point and new in (torch.int8, torch.int16, torch.uint8, torch.uint16):
        return f"{COMPUTE[new]}(int({value}))"  # what lies outside wraps, as in torch
    if old.is_floating_point and new == torch.uint32:
        return f"uint(long({value}))"
    return f"{COMPUTE[new]}({value})"
