"""Elements as Triton: the lines that compute expressions for a tile, as blocks of its rows and columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Reduction,
    ReductionStep,
    Scan,
    ScanStep,
    Split,
    Store,
    Var,
    index_exprs,
)
from burnt.codegen.render.triton.layout import FAR, Layout
from burnt.errors import UnsupportedError

__all__ = ["EVERYWHERE", "TL", "Elements", "TileValue", "union"]

TL = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.bfloat16: "tl.float32",
    torch.float16: "tl.float32", torch.int8: "tl.int8", torch.int16: "tl.int16", torch.int32: "tl.int32",
    torch.int64: "tl.int64", torch.uint8: "tl.uint8", torch.uint16: "tl.uint16", torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64", torch.bool: "tl.int1",
}  # fmt: skip
_SHORT = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
_INTEGER_INFIX = {"trunc_div": "//", "shl": "<<", "shr": ">>"}  # as C has them
_TESTS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_TL_FUNCTIONS = frozenset({"log", "log2", "cos", "abs"})
_RENAMED = {"div": "divide"}
_HELPED = """
    maximum minimum fmax fmin neg copysign floor ceil trunc round sign relu sqrt rsqrt reciprocal exp exp2
    expm1 sigmoid tanh sinh cosh log10 log1p asinh acosh atanh erf erfc sin tan asin acos atan atan2 pow fmod
    remainder trunc_div floor_div div
"""
_HELPERS = frozenset(_HELPED.split())
_LITERAL = 2
"""Integers up to this size are written as they are: they are structure more often than sizes."""


class TileValue(NamedTuple):
    """Text of an element, the axes of its block (of ``RC``), and whether it is a Python constant."""

    text: str
    axes: str = ""
    literal: bool = False


EVERYWHERE = TileValue("")


class Elements:
    """Lines of a function, and what is known at the place where the next one goes.

    Args:
        layout: which loops are rows and columns.
        name: the function's.
    """

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout, self.name = layout, name
        self.lines: list[str] = []
        self.depth = 1
        self.helpers: set[str] = set()
        self.buffers: dict[Buffer, None] = {}
        self.numbers: dict[int, bool] = {}
        self.sizes: dict[int, str] = {}
        self.names: dict[Var, TileValue] = {}
        self.masks: dict[str, str] = {}
        self.folds: dict[tuple[Reduction, Index], TileValue] = {}
        self.scans: dict[tuple[Scan, Index], TileValue] = {}
        self.memo: dict[tuple[int, str], TileValue] = {}
        self.reads: dict[int, bool] = {}
        self.temporary = 0
        self.chunked = self.may_fail = False
        self.block = ""

    def gathered(self, key: tuple[Reduction, Index]) -> TileValue:
        """Lines that fold the parts of a fold of the function before."""
        raise NotImplementedError

    # --- expressions --------------------------------------------------------------------------------------

    def hoist(self, exprs: Iterable[Expr], along: set[Var]) -> None:
        """Compute what does not change in a loop before it, as far as no test is asked first."""
        walked: dict[int, bool] = {}

        def changes(expr: Expr) -> bool:
            if id(expr) not in walked:
                walked[id(expr)] = any(p.variables() & along for p in index_exprs(expr)) or any(
                    map(changes, expr.args)
                )
            return walked[id(expr)]

        seen: set[int] = set()

        def look(expr: Expr) -> None:
            if id(expr) in seen:
                return
            seen.add(id(expr))
            if not changes(expr):
                self.visit(expr)
                return
            for k, argument in enumerate(expr.args):
                if expr.op != "masked" or k != 1:
                    look(argument)

        for expr in exprs:
            look(expr)

    def visit(self, expr: Expr, guard: TileValue = EVERYWHERE) -> TileValue:
        """Lines that compute an expression where the guard holds; its name."""
        if guard.text and not self.loads(expr):
            guard = EVERYWHERE
        key = id(expr), guard.text
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.made(expr, guard)
        return found

    def loads(self, expr: Expr) -> bool:
        """Whether a guard matters to an expression: it reads memory, or may fail."""
        if id(expr) not in self.reads:
            self.reads[id(expr)] = expr.op in ("load", "checked") or any(map(self.loads, expr.args))
        return self.reads[id(expr)]

    def made(self, expr: Expr, guard: TileValue) -> TileValue:
        """Lines that compute an expression that is not known yet."""
        op = expr.op
        if op == "const":
            return self.constant(expr.extra[0], expr.dtype)
        if op == "number":
            return self.number(expr, torch.float64)
        if op == "reduced":
            key: tuple[Reduction, Index] = expr.extra  # type: ignore[assignment]
            return self.folds[key] if key in self.folds else self.gathered(key)
        if op == "scanned":
            return self.scans[expr.extra]  # type: ignore[index]
        if op == "load":
            return self.load(expr, guard)
        if op == "index":
            place = self.place(expr.extra[0], guard)  # type: ignore[arg-type]
            return self.define(self.converted(place, torch.int64), place.axes)
        if op == "masked":
            test = self.visit(expr.args[0], guard)
            inner = TileValue(f"{guard.text} & {test.text}", union(guard, test)) if guard.text else test
            yes, no = self.visit(expr.args[1], inner), self.visit(expr.args[2], guard)
            return self.choice(test, yes, no, expr.dtype)
        if op == "checked":
            return self.checked(expr, guard)
        if op == "cast":
            return self.cast(expr, guard)
        if op in _TESTS and all(a.op in ("index", "const") and a.dtype == torch.int64 for a in expr.args):
            # Places are compared as they are: an int64 of its own is not needed.
            a, b = (self.bound(a, guard) for a in expr.args)
            if not (a.literal and b.literal):
                return self.define(f"{a.text} {_INFIX[op]} {b.text}", union(a, b))
        return self.operation(expr, [self.visit(a, guard) for a in expr.args])

    def bound(self, expr: Expr, guard: TileValue) -> TileValue:
        """A place, or a number that places are compared with."""
        if expr.op == "index":
            return self.place(expr.extra[0], guard)  # type: ignore[arg-type]
        value = int(expr.extra[0])  # type: ignore[call-overload]
        return TileValue(self.size(value), "", literal=abs(value) <= _LITERAL)

    def define(self, text: str, axes: str) -> TileValue:
        """A name for what a text computes."""
        name = f"v{self.temporary}"
        self.temporary += 1
        self.line(f"{name} = {text}")
        return TileValue(name, axes)

    def constant(self, value: object, dtype: torch.dtype) -> TileValue:
        """A number of the function's own."""
        assert isinstance(value, int | float)
        if value == 0 and math.copysign(1, value) < 0:
            # Triton makes 0 of a constant -0.
            return TileValue(f"{self.helper('neg')}(tl.full([], 0.0, {TL[dtype]}))")
        return TileValue(_literal(value, dtype), "", literal=True)

    def typed(self, value: TileValue, dtype: torch.dtype) -> str:
        """A value that has a dtype of its own, which Python's constants have not."""
        return f"tl.full([], {value.text}, {TL[dtype]})" if value.literal else value.text

    def number(self, expr: Expr, dtype: torch.dtype) -> TileValue:
        """A run-time number."""
        position: int = expr.extra[0]  # type: ignore[assignment]
        self.numbers[position] = self.numbers.get(position, False) or dtype == torch.float64
        return self.define(f"tl.full([], f{position}, {TL[dtype]})", "")

    def choice(self, test: TileValue, yes: TileValue, no: TileValue, dtype: torch.dtype) -> TileValue:
        """One value or another."""
        texts = [yes.text, no.text]
        if yes.literal and no.literal:
            texts = [self.typed(yes, dtype), no.text]
        return self.define(
            f"tl.where({self.typed(test, torch.bool)}, {', '.join(texts)})", union(test, yes, no)
        )

    def checked(self, expr: Expr, guard: TileValue) -> TileValue:
        """A choice; where the test fails, the element is left where the caller looks."""
        test, value, otherwise, shown = (self.visit(a, guard) for a in expr.args)
        axes = union(test, shown, guard)
        failed = f"~{self.typed(test, torch.bool)}"
        masks = [*(self.masks[axis] for axis in axes), *([guard.text] if guard.text else []), failed]
        place = str(self.layout.kernel.checks.index(expr.extra[0]))
        if axes:
            place = f"tl.full({self.shape(axes)}, {place}, tl.int32)"
        self.may_fail = True
        text = self.typed(shown, torch.int64)
        self.line(f"tl.store(failed + {place}, ({text} << 1) | 1, mask={' & '.join(masks)})")
        return self.choice(test, value, otherwise, expr.dtype)

    def cast(self, expr: Expr, guard: TileValue) -> TileValue:
        """A value in another dtype."""
        (inner,), new = expr.args, expr.dtype
        if inner.op == "number":
            made = self.number(
                inner, new if new == torch.float64 or not new.is_floating_point else torch.float32
            )
            if new == torch.float64 or (new.is_floating_point and new not in _SHORT):
                return made
            old = torch.float64 if not new.is_floating_point else torch.float32
        elif inner.op == "index" and new.is_floating_point and new not in _SHORT:
            place = self.place(inner.extra[0], guard)  # type: ignore[arg-type]
            return self.define(self.converted(place, new), place.axes)
        else:
            made, old = self.visit(inner, guard), inner.dtype
        text = self.typed(made, old)
        if new == torch.bool:
            return made if old == torch.bool else self.define(f"{text} != 0", made.axes)
        if new in _SHORT:
            # By way of float32, as torch's conversions go.
            text = text if TL[old] == "tl.float32" else f"{text}.to(tl.float32)"
            return self.define(f"{text}.to({_SHORT[new]}).to(tl.float32)", made.axes)
        if old.is_floating_point and new in (
            torch.int8,
            torch.int16,
            torch.uint8,
            torch.uint16,
            torch.uint32,
        ):
            text = f"{text}.to(tl.int{'32' if new.is_signed else '64'})"
        if TL[old] == TL[new]:
            return made
        return self.define(f"{text}.to({TL[new]})", made.axes)

    def converted(self, place: TileValue, dtype: torch.dtype) -> str:
        """A place as an element."""
        if place.literal:
            return self.typed(place, dtype)
        return f"({place.text}).to({TL[dtype]})" if " " in place.text else f"{place.text}.to({TL[dtype]})"

    def operation(self, expr: Expr, a: Sequence[TileValue]) -> TileValue:
        """What an operation makes of its arguments."""
        op, inside = expr.op, expr.args[0].dtype
        axes = union(*a)
        if op in ("identity", "as"):
            return a[0]
        if op == "where":
            return self.choice(a[0], a[1], a[2], expr.dtype)
        if op in _INFIX:
            left, right = a[0].text, a[1].text
            if a[0].literal and a[1].literal:
                left = self.typed(a[0], inside)
            sign = _INFIX[op]
            if expr.dtype == torch.bool and op in ("add", "mul"):
                sign = "|" if op == "add" else "&"
            return self.define(f"{left} {sign} {right}", axes)
        texts = [self.typed(v, e.dtype) for v, e in zip(a, expr.args, strict=True)]
        if op in ("uniform", "random"):
            name = self.helper("uniform" if op == "uniform" else "random_below")
            return self.define(f"{name}({', '.join([*texts, *map(str, expr.extra)])})", axes)
        if not inside.is_floating_point:
            return self.integer(op, texts, inside, axes)
        if op in _TL_FUNCTIONS:
            return self.define(f"tl.{op}({texts[0]})", axes)
        if op not in _HELPERS:
            raise UnsupportedError(f"no Triton text for {op}", where=self.name)
        return self.define(f"{self.helper(_RENAMED.get(op, op))}({', '.join(texts)})", axes)

    def integer(self, op: str, a: Sequence[str], dtype: torch.dtype, axes: str) -> TileValue:
        """An operation of whole numbers."""
        plain = not dtype.is_signed
        if op in _INTEGER_INFIX:
            return self.define(f"{a[0]} {_INTEGER_INFIX[op]} {a[1]}", axes)
        if op == "power":
            return self.define(f"{self.helper('power')}({a[0]}, {a[1]})", axes)
        if op == "neg":
            return self.define(f"-{a[0]}", axes)
        if op == "not":
            return self.define(f"~{a[0]}", axes)
        if op == "abs":
            return TileValue(a[0], axes) if plain else self.define(f"tl.abs({a[0]})", axes)
        if op == "relu":
            return TileValue(a[0], axes) if plain else self.define(f"tl.maximum({a[0]}, 0)", axes)
        if op in ("maximum", "fmax", "minimum", "fmin"):
            sign = ">" if "max" in op else "<"
            return self.define(f"tl.where({a[0]} {sign} {a[1]}, {a[0]}, {a[1]})", axes)
        if op == "sign":
            kind = TL[dtype]
            if dtype == torch.bool:
                return TileValue(a[0], axes)
            if plain:
                return self.define(f"({a[0]} > 0).to({kind})", axes)
            return self.define(f"({a[0]} > 0).to({kind}) - ({a[0]} < 0).to({kind})", axes)
        raise UnsupportedError(f"no Triton text for {op} of {dtype}", where=self.name)

    def helper(self, name: str, *known: str) -> str:
        """A function of `burnt.codegen.render.triton.device_math`, which the text imports."""
        self.helpers.add(known[0] if known else name)
        return name

    # --- memory -------------------------------------------------------------------------------------------

    def load(self, expr: Expr, guard: TileValue) -> TileValue:
        """What a load reads, where its guard holds; 0 elsewhere."""
        buffer: Buffer = expr.extra[0]  # type: ignore[assignment]
        self.buffers[buffer] = None
        place = self.place(expr.extra[1], guard)  # type: ignore[arg-type]
        axes = union(place, guard)
        where = place.text
        if axes != place.axes:
            shape = self.shape(axes)
            where = (
                f"tl.full({shape}, {where}, tl.int32)"
                if place.literal
                else f"tl.broadcast_to({where}, {shape})"
            )
        masks = [self.masks[axis] for axis in axes] + ([guard.text] if guard.text else [])
        extra = f", mask={' & '.join(masks)}, other=0" if masks else ""
        pointer = buffer.name if where == "0" else f"{buffer.name} + {where}"
        return self.define(f"tl.load({pointer}{extra}){self.widened(buffer)}", axes)

    def widened(self, buffer: Buffer) -> str:
        """The conversion of what is loaded to the dtype that it is computed in."""
        return ".to(tl.float32)" if buffer.dtype in _SHORT else ""

    def put_all(self, group: Sequence[ReductionStep | ScanStep | Store]) -> None:
        """Stores of one tile: all is read before anything is written."""
        stores = [step for step in group if isinstance(step, Store)]
        for step, value in [(step, self.visit(step.value)) for step in stores]:
            self.put(step, value)

    def put(self, step: Store, value: TileValue) -> None:
        """A line that stores a block."""
        buffer = step.buffer
        self.buffers[buffer] = None
        place = self.place(step.offset, EVERYWHERE)
        text = self.typed(value, buffer.dtype)
        if buffer.dtype in _SHORT:
            text += f".to({_SHORT[buffer.dtype]})"
        masks = [self.masks[axis] for axis in place.axes]
        if self.chunked and not step.inner:
            masks.append("(chunk == 0)")
        extra = f", mask={' & '.join(masks)}" if masks else ""
        pointer = buffer.name if place.text == "0" else f"{buffer.name} + {place.text}"
        self.line(f"tl.store({pointer}, {text}{extra})")

    def shape(self, axes: str) -> str:
        """The shape of a block with these axes."""
        if not self.layout.rows:
            return f"[{self.block}]"
        return f"[{'ROWS' if 'R' in axes else '1'}, {self.block if 'C' in axes else '1'}]"

    def place(self, ix: IndexExpr, guard: TileValue) -> TileValue:
        """An index as text; computed parts of it are elements, which are computed first."""
        parts, axes = [], ""
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                inner = self.place(atom.inner, guard)
                text, by = inner.text, self.size(atom.divisor)
                if atom.inner.bounds()[0] < 0:
                    name = self.helper("index_div" if atom.kind == "/" else "index_mod")
                    text = f"{name}({text}, {by})"
                else:
                    text = f"({text})" if " " in text else text
                    text = f"({text} {'//' if atom.kind == '/' else '%'} {by})"
            else:
                inner = self.names[atom] if isinstance(atom, Var) else self.visit(atom.expr, guard)
                text = inner.text if isinstance(atom, Var) else self.typed(inner, torch.int64)
            axes = "".join(a for a in "RC" if a in axes or a in inner.axes)
            parts.append(text if c == 1 else f"{text} * {self.size(c)}")
        if ix.const or not parts:
            parts.append(self.size(ix.const))
        text = " + ".join(parts).replace("+ -", "- ")
        return TileValue(text, axes, literal=not ix.terms and abs(ix.const) <= _LITERAL)

    def size(self, value: int) -> str:
        """An integer that comes from a shape: an argument, one for each value.

        To one near the end of 32 bits no block can be added there; one beyond has 64 as it is.
        """
        if abs(value) <= _LITERAL:
            return str(value)
        name = self.sizes.setdefault(value, f"n{len(self.sizes)}")
        return f"({name} + tl.full([], 0, tl.int64))" if FAR < abs(value) < 2**31 else name

    def line(self, text: str) -> None:
        """A line, as deep as the loops are."""
        self.lines.append("    " * self.depth + text)


def union(*values: TileValue) -> str:
    """The axes that some of the values have."""
    return "".join(axis for axis in "RC" if any(axis in v.axes for v in values))


def _literal(value: int | float, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(float(value)) if dtype == torch.float64 else repr(float(str(np.float32(value))))
