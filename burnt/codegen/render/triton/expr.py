"""Print element expressions as Triton lines, for a tile of rows and columns."""

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
from burnt.codegen.render.triton.layout import INT32_INDEX_LIMIT, Layout
from burnt.errors import UnsupportedError

TL_DTYPES = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.bfloat16: "tl.float32",
    torch.float16: "tl.float32", torch.int8: "tl.int8", torch.int16: "tl.int16", torch.int32: "tl.int32",
    torch.int64: "tl.int64", torch.uint8: "tl.uint8", torch.uint16: "tl.uint16", torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64", torch.bool: "tl.int1",
}  # fmt: skip
_HALF_DTYPES = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
_INTEGER_INFIX = {"trunc_div": "//", "shl": "<<", "shr": ">>"}  # as C has them
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_TL_FUNCTIONS = frozenset({"log", "log2", "cos", "abs"})
_HELPER_ALIASES = {"div": "divide"}
_HELPER_LIST = """
    maximum minimum fmax fmin neg copysign floor ceil trunc round sign relu sqrt rsqrt reciprocal exp exp2
    fast_exp2 expm1 sigmoid tanh sinh cosh log10 log1p asinh acosh atanh erf erfc sin tan asin acos atan
    atan2 pow fmod remainder trunc_div floor_div div
"""
_HELPERS = frozenset(_HELPER_LIST.split())
_MAX_LITERAL = 2
"""Integers up to this magnitude are written as literals: they rarely come from a shape."""


class TileValue(NamedTuple):
    """Triton text of a value, the axes of its block (part of ``"RC"``), and whether it is a literal."""

    text: str
    axes: str = ""
    is_literal: bool = False


NO_GUARD = TileValue("")


class ExprPrinter:
    """Print the expressions of one Triton function, line by line."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout, self.name = layout, name
        self.lines: list[str] = []
        self.depth = 1
        self.helpers: set[str] = set()
        self.buffers: dict[Buffer, None] = {}
        self.scalar_args: dict[int, bool] = {}
        self.sizes: dict[int, str] = {}
        self.loop_values: dict[Var, TileValue] = {}
        self.masks: dict[str, str] = {}
        self.reductions: dict[tuple[Reduction, Index], TileValue] = {}
        self.scans: dict[tuple[Scan, Index], TileValue] = {}
        self.memo: dict[tuple[int, str], TileValue] = {}
        self.guard_needed: dict[int, bool] = {}
        self.num_temporaries = 0
        self.is_chunked = self.can_fail = False
        self.block = ""

    def combine_partials(self, key: tuple[Reduction, Index]) -> TileValue:
        """Emit the reduction of a previous function's partial results; return its value."""
        raise NotImplementedError

    # --- expressions --------------------------------------------------------------------------------------

    def hoist(self, exprs: Iterable[Expr], loop_vars: set[Var]) -> None:
        """Compute loop-invariant expressions before the loop, except under a condition."""
        varies: dict[int, bool] = {}

        def depends_on_loops(expr: Expr) -> bool:
            if id(expr) not in varies:
                varies[id(expr)] = any(p.variables() & loop_vars for p in index_exprs(expr)) or any(
                    map(depends_on_loops, expr.args)
                )
            return varies[id(expr)]

        seen: set[int] = set()

        def hoist_invariant(expr: Expr) -> None:
            if id(expr) in seen:
                return
            seen.add(id(expr))
            if not depends_on_loops(expr):
                self.visit(expr)
                return
            for k, argument in enumerate(expr.args):
                if expr.op != "masked" or k != 1:
                    hoist_invariant(argument)

        for expr in exprs:
            hoist_invariant(expr)

    def visit(self, expr: Expr, guard: TileValue = NO_GUARD) -> TileValue:
        """Emit the lines that compute an expression where the guard holds; return its value. Memoized."""
        if guard.text and not self.needs_guard(expr):
            guard = NO_GUARD
        key = id(expr), guard.text
        value = self.memo.get(key)
        if value is None:
            value = self.memo[key] = self.compute_new(expr, guard)
        return value

    def needs_guard(self, expr: Expr) -> bool:
        """Whether an expression must be guarded: it reads memory, or may fail a check."""
        if id(expr) not in self.guard_needed:
            self.guard_needed[id(expr)] = expr.op in ("load", "checked") or any(
                map(self.needs_guard, expr.args)
            )
        return self.guard_needed[id(expr)]

    def compute_new(self, expr: Expr, guard: TileValue) -> TileValue:
        """Emit the lines that compute an expression that is not memoized yet."""
        op = expr.op
        if op == "const":
            return self.constant(expr.extra[0], expr.dtype)
        if op == "number":
            return self.scalar_arg(expr, torch.float64)
        if op == "reduced":
            key: tuple[Reduction, Index] = expr.extra
            return self.reductions[key] if key in self.reductions else self.combine_partials(key)
        if op == "scanned":
            return self.scans[expr.extra]
        if op == "load":
            return self.load(expr, guard)
        if op == "index":
            index = self.index_text(expr.extra[0], guard)
            return self.define(self.index_as_dtype(index, torch.int64), index.axes)
        if op == "masked":
            condition = self.visit(expr.args[0], guard)
            inner_guard = (
                TileValue(f"{guard.text} & {condition.text}", union_axes(guard, condition))
                if guard.text
                else condition
            )
            if_true, if_false = self.visit(expr.args[1], inner_guard), self.visit(expr.args[2], guard)
            return self.select(condition, if_true, if_false, expr.dtype)
        if op == "checked":
            return self.bounds_check(expr, guard)
        if op == "cast":
            return self.cast(expr, guard)
        if op in _COMPARISONS and all(
            a.op in ("index", "const") and a.dtype == torch.int64 for a in expr.args
        ):
            # Compare indices in their own width: converting them to int64 first is not needed.
            a, b = (self.comparison_operand(a, guard) for a in expr.args)
            if not (a.is_literal and b.is_literal):
                return self.define(f"{a.text} {_INFIX[op]} {b.text}", union_axes(a, b))
        return self.operation(expr, [self.visit(a, guard) for a in expr.args])

    def comparison_operand(self, expr: Expr, guard: TileValue) -> TileValue:
        """Return an index, or an integer that indices are compared with."""
        if expr.op == "index":
            return self.index_text(expr.extra[0], guard)
        value = int(expr.extra[0])
        return TileValue(self.size_arg(value), "", is_literal=self.is_literal(value))

    def define(self, text: str, axes: str) -> TileValue:
        """Assign a text to a new variable and return it."""
        name = f"v{self.num_temporaries}"
        self.num_temporaries += 1
        self.emit(f"{name} = {text}")
        return TileValue(name, axes)

    def constant(self, value: float, dtype: torch.dtype) -> TileValue:
        """Return a constant of the expression."""
        if value == 0 and math.copysign(1, value) < 0:
            # Triton turns the constant -0.0 into 0.0.
            return TileValue(f"{self.helper('neg')}(tl.full([], 0.0, {TL_DTYPES[dtype]}))")
        return TileValue(literal(value, dtype), "", is_literal=True)

    def as_typed(self, value: TileValue, dtype: torch.dtype) -> str:
        """Return a text with a dtype of its own: Python literals have none."""
        return f"tl.full([], {value.text}, {TL_DTYPES[dtype]})" if value.is_literal else value.text

    def scalar_arg(self, expr: Expr, dtype: torch.dtype) -> TileValue:
        """Return a run-time number, converted to a dtype."""
        position: int = expr.extra[0]
        self.scalar_args[position] = self.scalar_args.get(position, False) or dtype == torch.float64
        return self.define(f"tl.full([], f{position}, {TL_DTYPES[dtype]})", "")

    def select(
        self, condition: TileValue, if_true: TileValue, if_false: TileValue, dtype: torch.dtype
    ) -> TileValue:
        """Emit ``tl.where`` of two values."""
        texts = [if_true.text, if_false.text]
        if if_true.is_literal and if_false.is_literal:
            texts = [self.as_typed(if_true, dtype), if_false.text]
        return self.define(
            f"tl.where({self.as_typed(condition, torch.bool)}, {', '.join(texts)})",
            union_axes(condition, if_true, if_false),
        )

    def bounds_check(self, expr: Expr, guard: TileValue) -> TileValue:
        """Emit a select; where the condition fails, also store the offending value in the `failed` flag."""
        condition, value, fallback, reported = (self.visit(a, guard) for a in expr.args)
        axes = union_axes(condition, reported, guard)
        failed = f"~{self.as_typed(condition, torch.bool)}"
        masks = [*(self.masks[axis] for axis in axes), *([guard.text] if guard.text else []), failed]
        check_index = str(self.layout.kernel.checks.index(expr.extra[0]))
        if axes:
            check_index = f"tl.full({self.block_shape(axes)}, {check_index}, tl.int32)"
        self.can_fail = True
        text = self.as_typed(reported, torch.int64)
        self.emit(f"tl.store(failed + {check_index}, ({text} << 1) | 1, mask={' & '.join(masks)})")
        return self.select(condition, value, fallback, expr.dtype)

    def cast(self, expr: Expr, guard: TileValue) -> TileValue:
        """Emit a conversion to another dtype."""
        (inner,), new = expr.args, expr.dtype
        if inner.op == "number":
            value = self.scalar_arg(
                inner, new if new == torch.float64 or not new.is_floating_point else torch.float32
            )
            if new == torch.float64 or (new.is_floating_point and new not in _HALF_DTYPES):
                return value
            old = torch.float64 if not new.is_floating_point else torch.float32
        elif inner.op == "index" and new.is_floating_point and new not in _HALF_DTYPES:
            index = self.index_text(inner.extra[0], guard)
            return self.define(self.index_as_dtype(index, new), index.axes)
        else:
            value, old = self.visit(inner, guard), inner.dtype
        text = self.as_typed(value, old)
        if new == torch.bool:
            return value if old == torch.bool else self.define(f"{text} != 0", value.axes)
        if new in _HALF_DTYPES:
            # Through float32, as torch converts.
            text = text if TL_DTYPES[old] == "tl.float32" else f"{text}.to(tl.float32)"
            return self.define(f"{text}.to({_HALF_DTYPES[new]}).to(tl.float32)", value.axes)
        if old.is_floating_point and new in (
            torch.int8,
            torch.int16,
            torch.uint8,
            torch.uint16,
            torch.uint32,
        ):
            text = f"{text}.to(tl.int{'32' if new.is_signed else '64'})"
        if TL_DTYPES[old] == TL_DTYPES[new]:
            return value
        return self.define(f"{text}.to({TL_DTYPES[new]})", value.axes)

    def index_as_dtype(self, index: TileValue, dtype: torch.dtype) -> str:
        """Return the text of an index converted to a dtype."""
        if index.is_literal:
            return self.as_typed(index, dtype)
        return (
            f"({index.text}).to({TL_DTYPES[dtype]})"
            if " " in index.text
            else f"{index.text}.to({TL_DTYPES[dtype]})"
        )

    def operation(self, expr: Expr, args: Sequence[TileValue]) -> TileValue:
        """Emit an operation on its computed arguments."""
        op, operand_dtype = expr.op, expr.args[0].dtype
        axes = union_axes(*args)
        if op in ("decode_float8", "encode_float8"):
            name = self.helper(f"{op[:6]}_{expr.extra[0]}")
            return self.define(f"{name}({self.as_typed(args[0], operand_dtype)})", axes)
        if op in ("identity", "as"):
            return args[0]
        if op == "where":
            return self.select(args[0], args[1], args[2], expr.dtype)
        if op in _INFIX:
            left, right = args[0].text, args[1].text
            if args[0].is_literal and args[1].is_literal:
                left = self.as_typed(args[0], operand_dtype)
            symbol = _INFIX[op]
            if expr.dtype == torch.bool and op in ("add", "mul"):
                symbol = "|" if op == "add" else "&"
            return self.define(f"{left} {symbol} {right}", axes)
        texts = [self.as_typed(v, e.dtype) for v, e in zip(args, expr.args, strict=True)]
        if op in ("uniform", "random"):
            name = self.helper("uniform" if op == "uniform" else "random_below")
            return self.define(f"{name}({', '.join([*texts, *map(str, expr.extra)])})", axes)
        if not operand_dtype.is_floating_point:
            return self.integer_operation(op, texts, operand_dtype, axes)
        if op in _TL_FUNCTIONS:
            return self.define(f"tl.{op}({texts[0]})", axes)
        if op not in _HELPERS:
            raise UnsupportedError(f"no Triton text for {op}", where=self.name)
        return self.define(f"{self.helper(_HELPER_ALIASES.get(op, op))}({', '.join(texts)})", axes)

    def integer_operation(self, op: str, args: Sequence[str], dtype: torch.dtype, axes: str) -> TileValue:
        """Emit an operation on integers or booleans."""
        is_unsigned = not dtype.is_signed
        if op in _INTEGER_INFIX:
            return self.define(f"{args[0]} {_INTEGER_INFIX[op]} {args[1]}", axes)
        if op == "power":
            return self.define(f"{self.helper('power')}({args[0]}, {args[1]})", axes)
        if op == "neg":
            return self.define(f"-{args[0]}", axes)
        if op == "not":
            return self.define(f"~{args[0]}", axes)
        if op == "abs":
            return TileValue(args[0], axes) if is_unsigned else self.define(f"tl.abs({args[0]})", axes)
        if op == "relu":
            return TileValue(args[0], axes) if is_unsigned else self.define(f"tl.maximum({args[0]}, 0)", axes)
        if op in ("maximum", "fmax", "minimum", "fmin"):
            symbol = ">" if "max" in op else "<"
            return self.define(f"tl.where({args[0]} {symbol} {args[1]}, {args[0]}, {args[1]})", axes)
        if op == "sign":
            tl_dtype = TL_DTYPES[dtype]
            if dtype == torch.bool:
                return TileValue(args[0], axes)
            if is_unsigned:
                return self.define(f"({args[0]} > 0).to({tl_dtype})", axes)
            return self.define(f"({args[0]} > 0).to({tl_dtype}) - ({args[0]} < 0).to({tl_dtype})", axes)
        raise UnsupportedError(f"no Triton text for {op} of {dtype}", where=self.name)

    def helper(self, name: str, *known: str) -> str:
        """Return the name of a function of `device_math`, and record that the text imports it."""
        self.helpers.add(known[0] if known else name)
        return name

    # --- memory -------------------------------------------------------------------------------------------

    def load(self, expr: Expr, guard: TileValue) -> TileValue:
        """Emit a load; lanes outside of the guard and the tile are 0."""
        buffer: Buffer = expr.extra[0]
        self.buffers[buffer] = None
        index = self.index_text(expr.extra[1], guard)
        axes = union_axes(index, guard)
        offset = index.text
        if axes != index.axes:
            shape = self.block_shape(axes)
            offset = (
                f"tl.full({shape}, {offset}, tl.int32)"
                if index.is_literal
                else f"tl.broadcast_to({offset}, {shape})"
            )
        masks = [self.masks[axis] for axis in axes] + ([guard.text] if guard.text else [])
        extra = f", mask={' & '.join(masks)}, other=0" if masks else ""
        pointer = buffer.name if offset == "0" else f"{buffer.name} + {offset}"
        return self.define(f"tl.load({pointer}{extra}){self.widening_cast(buffer)}", axes)

    def widening_cast(self, buffer: Buffer) -> str:
        """Return the suffix that converts a loaded 16-bit float to float32."""
        return ".to(tl.float32)" if buffer.dtype in _HALF_DTYPES else ""

    def store_all(self, group: Sequence[ReductionStep | ScanStep | Store]) -> None:
        """Emit the stores of one tile; all values are read before any is written."""
        stores = [step for step in group if isinstance(step, Store)]
        for step, value in [(step, self.visit(step.body)) for step in stores]:
            self.store(step, value)

    def store(self, step: Store, value: TileValue) -> None:
        """Emit the store of a block."""
        buffer = step.buffer
        self.buffers[buffer] = None
        index = self.index_text(step.offset, NO_GUARD)
        text = self.as_typed(value, buffer.dtype)
        if buffer.dtype in _HALF_DTYPES:
            text += f".to({_HALF_DTYPES[buffer.dtype]})"
        masks = [self.masks[axis] for axis in index.axes]
        if self.is_chunked and not step.inner:
            masks.append("(chunk == 0)")
        extra = f", mask={' & '.join(masks)}" if masks else ""
        pointer = buffer.name if index.text == "0" else f"{buffer.name} + {index.text}"
        self.emit(f"tl.store({pointer}, {text}{extra})")

    def block_shape(self, axes: str) -> str:
        """Return the text of the shape of a block with these axes."""
        if not self.layout.row_loops:
            return f"[{self.block}]"
        return f"[{'ROWS' if 'R' in axes else '1'}, {self.block if 'C' in axes else '1'}]"

    def index_text(self, index: IndexExpr, guard: TileValue) -> TileValue:
        """Return an index as text; parts that are themselves elements are computed first."""
        parts, axes = [], ""
        for atom, coefficient in index.terms.items():
            if isinstance(atom, Split):
                inner = self.index_text(atom.inner, guard)
                text, divisor = inner.text, self.size_arg(atom.divisor)
                if atom.inner.bounds()[0] < 0:
                    name = self.helper("index_div" if atom.kind == "/" else "index_mod")
                    text = f"{name}({text}, {divisor})"
                else:
                    text = f"({text})" if " " in text else text
                    text = f"({text} {'//' if atom.kind == '/' else '%'} {divisor})"
            else:
                inner = self.loop_values[atom] if isinstance(atom, Var) else self.visit(atom.expr, guard)
                text = inner.text if isinstance(atom, Var) else self.as_typed(inner, torch.int64)
            axes = "".join(a for a in "RC" if a in axes or a in inner.axes)
            parts.append(text if coefficient == 1 else f"{text} * {self.size_arg(coefficient)}")
        if index.const or not parts:
            parts.append(self.size_arg(index.const))
        text = " + ".join(parts).replace("+ -", "- ")
        return TileValue(text, axes, is_literal=not index.terms and self.is_literal(index.const))

    def size_arg(self, value: int, *, is_argument: bool = False) -> str:
        """Return an integer that comes from a shape, as an argument of the function, one for each value.

        It is a literal instead if `is_literal`, unless `is_argument`.

        Adding a block to a value near 2^31 would overflow 32 bits, so it is widened; a larger one is 64-bit
        already.
        """
        is_literal = self.is_literal(value) and not is_argument
        name = str(value) if is_literal else self.sizes.setdefault(value, f"n{len(self.sizes)}")
        return f"({name} + tl.full([], 0, tl.int64))" if INT32_INDEX_LIMIT < abs(value) < 2**31 else name

    def is_literal(self, value: int) -> bool:
        """Whether an integer that comes from a shape is a number in the text, not an argument."""
        return abs(value) <= _MAX_LITERAL

    def emit(self, text: str) -> None:
        """Append a line at the current loop depth."""
        self.lines.append("    " * self.depth + text)


def union_axes(*values: TileValue) -> str:
    """Return the axes that any of the values has."""
    return "".join(axis for axis in "RC" if any(axis in v.axes for v in values))


def literal(value: float, dtype: torch.dtype) -> str:
    """Return a number of a dtype as a Python literal."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(float(value)) if dtype == torch.float64 else repr(float(str(np.float32(value))))
