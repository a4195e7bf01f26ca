"""What the printers of C and Metal share: lines, indices and operations in C's syntax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Computed,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    Reduction,
    Scan,
    Split,
    Store,
    Var,
    walk,
)
from burnt.codegen.render.shape_params import mark_size, mark_step

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<",
          "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
_TEMPLATES = {
    "identity": "{0}", "as": "{0}", "where": "{0} ? {1} : {2}", "neg": "-{0}", "not": "~{0}",
    "reciprocal": "1 / {0}", "relu": "{0} < 0 ? 0 : {0}",
}  # fmt: skip
_INTEGER_TEMPLATES = {
    "trunc_div": "{0} / {1}", "abs": "{0} < 0 ? -{0} : {0}", "sign": "({0} > 0) - ({0} < 0)",
    "maximum": "{0} > {1} ? {0} : {1}", "fmax": "{0} > {1} ? {0} : {1}",
    "minimum": "{0} < {1} ? {0} : {1}", "fmin": "{0} < {1} ? {0} : {1}",
}  # fmt: skip


class LinePrinter:
    """The lines of a kernel's function printed so far, and the names in them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.reduction_results: dict[tuple[Reduction, Index], str] = {}
        self.scan_results: dict[tuple[Scan, Index], str] = {}
        self.loop_names: dict[Var, str] = {}
        self.num_values = 0
        self.index_values: dict[int, str] = {}  # names of the expressions that indices contain

    def computed_text(self, atom: Computed) -> str:
        """Return the text of a computed part of an index."""
        raise NotImplementedError

    def index_text(self, ix: IndexExpr) -> str:
        """Return the text of an index."""
        parts = []
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                text = self.split_text(atom)
            else:
                text = self.loop_name(atom) if isinstance(atom, Var) else self.computed_text(atom)
            parts.append(text if c == 1 else f"{text} * {mark_step(c)}")
        if ix.const or not parts:
            parts.append(mark_size(ix.const) if ix.const else "0")
        return " + ".join(parts)

    def split_text(self, atom: Split) -> str:
        """Return the text of a quotient or remainder in an index."""
        low, _ = atom.inner.bounds()
        inner, divisor = self.index_text(atom.inner), mark_step(atom.divisor)
        if low < 0:
            return self.floor_text("div" if atom.kind == "/" else "mod", inner, divisor)
        return f"(({inner}) {atom.kind} {divisor})"

    def floor_text(self, kind: str, index: str, divisor: str) -> str:
        """Return a quotient (`kind` ``div``) or remainder (``mod``) of an index that may be negative."""
        return f"floor_{kind}({index}, {divisor})"

    def loop_name(self, var: Var) -> str:
        """Return a loop's variable name. Numbered by first use, so that equal kernels give equal text."""
        return self.loop_names.setdefault(var, f"i{len(self.loop_names)}")

    def emit(self, text: str) -> None:
        """Append a line, indented by the depth of the loops."""
        self.lines.append("    " * self.depth + text)

    def emit_all(self, lines: Sequence[str]) -> None:
        """Append several lines."""
        for text in lines:
            self.emit(text)

    def open(self, text: str = "") -> None:
        """Open a loop, a branch or a block."""
        self.emit(f"{text} {{".lstrip())
        self.depth += 1

    def close(self, count: int = 1) -> None:
        """Close the innermost `count` loops, branches or blocks."""
        for _ in range(count):
            self.depth -= 1
            self.emit("}")


def operation_text(expr: Expr, args: Sequence[str]) -> str | None:
    """Return an operation that all languages with C's syntax write in the same way; None for any other."""
    op, dtype = expr.op, expr.args[0].dtype
    if op in ("add", "mul") and expr.dtype == torch.bool:
        return f"{args[0]} {'|' if op == 'add' else '&'} {args[1]}"
    if op in _INFIX:
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if op == "decode_float8":
        return f"f32_of_{expr.extra[0]}({args[0]})"
    if op == "encode_float8":
        return f"{expr.extra[0]}_of_f32({args[0]})"
    template = _TEMPLATES.get(op) or (None if dtype.is_floating_point else _INTEGER_TEMPLATES.get(op))
    if op == "abs" and not dtype.is_floating_point and not dtype.is_signed:
        template = "{0}"
    return None if template is None else template.format(*args)


def most_contiguous_loop(kernel: Kernel) -> Var | None:
    """Return the loop along which most accesses of a scan kernel are contiguous; None if there is none."""
    votes: dict[Var, int] = {}
    for step, expr in zip(kernel.steps, kernel.exprs, strict=True):
        indices: list[IndexExpr] = [step.offset] if isinstance(step, Store) else []
        indices += [e.extra[1] for e in walk([expr]) if e.op == "load"]
        for index in indices:
            for v in (*kernel.outer, *step.inner):
                if index.stride(v) in (1, -1):
                    votes[v] = votes.get(v, 0) + 1
    return max(votes, key=lambda v: votes[v], default=None)
