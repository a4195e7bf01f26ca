"""Printing kernels as C: loops with OpenMP, bodies that the compiler's vectoriser takes.

A kernel is printed in one of three forms. *Rows*: turns of the outer loops go to the threads, each does its
folds and stores along the inner loops. *Columns*: where memory runs along an outer loop, a turn takes a tile
of it, and folds keep an accumulator for each column of the tile. *Split*: few rows of many elements, each
folded by all threads.

Arithmetic is torch's: no fast-math, 16-bit floats are computed in float32, float32 sums are gathered in
double every 256 elements, and one by one where they are not loaded as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from burnt.codegen import prelude
from burnt.codegen.ir import (
    Buffer,
    Expr,
    Fold,
    Index,
    Ix,
    Kernel,
    Reduction,
    Split,
    Store,
    Var,
    variables,
    walk,
)
from burnt.codegen.print_c_windows import inside, row_of
from burnt.codegen.sizes import mark

__all__ = ["print_kernels"]

_PARALLEL = 1 << 15  # elements below which one thread is faster than waking the others
_TILE = 256
_BLOCK = 256

_C = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "float", torch.float16: "float",
    torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int32_t", torch.int64: "int64_t",
    torch.uint8: "uint8_t", torch.uint16: "uint16_t", torch.uint32: "uint32_t", torch.uint64: "uint64_t",
    torch.bool: "int",
}  # fmt: skip
_MEMORY = {torch.bfloat16: "uint16_t", torch.float16: "uint16_t", torch.bool: "uint8_t"}
_SHORT = {torch.bfloat16: "bf16", torch.float16: "f16"}

_HELPERS = """
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t floor_mod(int64_t a, int64_t b) { const int64_t m = a % b; return m < 0 ? m + b : m; }
"""
for _t in ("int64", "uint64"):
    _HELPERS += f"""
static inline {_t}_t power_{_t}({_t}_t a, {_t}_t b)
{{
    {_t}_t whole = 1;
    for (; b; b >>= 1, a *= a) whole *= b & 1 ? a : 1;
    return whole;
}}
"""
for _t, _f in (("float", "f32"), ("double", "f64")):
    _HELPERS += f"""
static inline {_t} trunc_div_{_f}({_t} a, {_t} b) {{ return trunc_{_f}(a / b); }}
static inline {_t} floor_div_{_f}({_t} a, {_t} b)
{{
    const {_t} m = fmod_{_f}(a, b), whole = (a - m) / b, lower = whole - (m != 0 && (b < 0) != (m < 0));
    const {_t} down = floor_{_f}(lower), near = lower - down > ({_t})0.5 ? down + 1 : down;
    return b == 0 ? a / b : lower == 0 ? copysign_{_f}(0, a / b) : near;
}}
"""

_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip


def print_kernels(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> str:
    """The C of kernels, each a function ``void name(const burnt_arg *a)`` as `toolchain.load` wants it.

    Integers that come from shapes are marked (`burnt.codegen.sizes`).

    Args:
        kernels: what to print; their names are the functions'.
        buffers: in the order in which their addresses are given.
        numbers: positions of run-time numbers, in the order in which they follow the addresses.

    Where a kernel has checks, an address follows those of the buffers: of a word for each of the kernel's
    checks, into which goes ``2 * shown + 1`` (as uint64) of one element that fails, if any does.
    """
    slots: dict[object, int] = {buffer: i for i, buffer in enumerate(buffers)}
    if any(kernel.checks for kernel in kernels):
        slots["failed"] = len(buffers)
    slots |= {number: len(slots) + i for i, number in enumerate(numbers)}
    return "\n".join([prelude.source(), _HELPERS, *(_Printer(kernel, slots).text() for kernel in kernels)])


class _Printer:
    def __init__(self, kernel: Kernel, slots: dict[object, int]) -> None:
        self.kernel = kernel
        self.slots = slots
        self.lines: list[str] = []
        self.depth = 1
        self.folds: dict[tuple[Reduction, Index], str] = {}
        self.lane: Var | None = None
        self.used: dict[Buffer, None] = {}
        self.names: dict[Var, str] = {}
        self.temporary = 0
        self.known: set[int] = set()  # tests that hold at the current place
        self.span: tuple[Var, int, int] | None = None  # the vectorised loop around it, from where to where
        self.varying: set[str] = set()  # guards that are not the same for all of that loop
        self.computed: dict[int, str] = {}  # names of the expressions in indices
        self.opaque = False  # whether an index is computed
        self.failed = {check: f"failed{i}" for i, check in enumerate(kernel.checks)}

    def text(self) -> str:
        kernel = self.kernel
        rows = math.prod(v.extent for v in kernel.outer)
        inner = max((math.prod(v.extent for v in step.inner) for step in kernel.steps), default=1)
        folding = kernel.kind == "reduction"
        self.lane = self.lane_of() if folding else None
        if kernel.scratch:
            self.rows(rows, inner)
        elif not folding:
            self.elementwise(rows)
        elif self.lane is not None:
            self.columns(rows, inner)
        elif rows < 16 and inner >= _PARALLEL:
            self.split()
        else:
            self.rows(rows, inner)
        head = [f"void {kernel.name}(const burnt_arg *a)", "{"]
        stored = {step.buffer for step in kernel.steps if isinstance(step, Store)}
        for buffer in self.used:
            if buffer.role == "local":
                continue
            kind = _MEMORY.get(buffer.dtype, _C[buffer.dtype])
            only = "" if buffer in stored else "const "
            head.append(f"    {only}{kind} *restrict {buffer.name} = a[{self.slots[buffer]}].p;")
        if self.opaque:
            # gcc 12 takes an index that comes from a comparison for a mask in loops of SIMD, and reads
            # elsewhere; a number that it does not know makes an integer of it.
            head.append('    int64_t zero = 0; __asm__("" : "+r"(zero));')
        head += [f"    uint64_t {name} = 0;" for name in self.failed.values()]
        for i, name in enumerate(self.failed.values()):
            self.line(f"if ({name}) ((uint64_t *)a[{self.slots['failed']}].p)[{i}] = {name};")
        return "\n".join([*head, *self.lines, "}", ""])

    # --- forms --------------------------------------------------------------------------------------------

    def elementwise(self, count: int) -> None:
        loops = list(self.kernel.outer)
        stores = [step for step in self.kernel.steps if isinstance(step, Store)]
        if not loops:
            self.bodies(stores)
            return
        *lead, last = loops
        rows = math.prod(v.extent for v in lead)
        if count >= _PARALLEL and rows < 8:
            self.loops(lead)
            self.line("#pragma omp parallel for simd schedule(static)")
        else:
            if count >= _PARALLEL:
                self.line(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
            self.loops(lead)
            self.spans(last, stores)
            self.close(len(lead))
            return
        self.loop(last)
        self.bodies(stores)
        self.close(len(loops))

    def bodies(self, stores: Sequence[Store]) -> None:
        names = self.exprs([step.value for step in stores])
        for step, name in zip(stores, names, strict=True):
            self.put(step, name)

    def rows(self, rows: int, inner: int) -> None:
        outer = self.kernel.outer
        if outer and rows * inner >= _PARALLEL:
            self.line(f"#pragma omp parallel for collapse({len(outer)}) schedule(static)")
        self.loops(outer)
        for buffer in self.kernel.scratch:
            kind = _MEMORY.get(buffer.dtype, _C[buffer.dtype])
            self.line(f"{kind} {buffer.name}[{mark(math.prod(buffer.shape))}];")
        for group in self.groups():
            if isinstance(group, Fold):
                self.fold(group, parallel=False)
            else:
                self.along(group)
        self.close(len(outer))

    def split(self) -> None:
        self.loops(self.kernel.outer)
        for group in self.groups():
            if isinstance(group, Fold):
                self.fold(group, parallel=True)
            else:
                self.along(group, parallel=math.prod(v.extent for v in group[0].inner) >= _PARALLEL)
        self.close(len(self.kernel.outer))

    def groups(self) -> list[Fold | list[Store]]:
        """The steps, neighbouring stores of the same loops together."""
        groups: list[Fold | list[Store]] = []
        for step in self.kernel.steps:
            last = groups[-1] if groups else None
            if isinstance(step, Store) and isinstance(last, list) and last[0].inner == step.inner:
                last.append(step)
            else:
                groups.append(step if isinstance(step, Fold) else [step])
        return groups

    def along(self, stores: list[Store], *, parallel: bool = False) -> None:
        """Stores for every turn of their inner loops."""
        inner = stores[0].inner
        if inner:
            *lead, last = inner
            if parallel and not lead:
                self.line("#pragma omp parallel for simd schedule(static)")
            else:
                if parallel:
                    self.line(f"#pragma omp parallel for collapse({len(lead)}) schedule(static)")
                self.loops(lead)
                self.spans(last, stores)
                self.close(len(lead))
                return
            self.loop(last)
        self.bodies(stores)
        self.close(len(inner))

    def spans(self, last: Var, stores: Sequence[Store]) -> None:
        """Stores for every turn of a loop, its middle, where tests of its place hold, apart from its ends."""
        name, size = self.named(last), last.extent
        start, end, tests = inside(last, [step.value for step in stores])
        for first, stop, known in (0, start, ()), (start, end, tests), (end, size, ()):
            if first >= stop:
                continue
            if stop - first >= 8:
                self.line("#pragma omp simd")
            self.line(f"for (int64_t {name} = {mark(first)}; {name} < {mark(stop)}; {name}++) {{")
            self.depth += 1
            self.known, self.span = {id(test) for test in known}, (last, first, stop)
            self.bodies(stores)
            self.known, self.span = set(), None
            self.close(1)

    def columns(self, rows: int, inner: int) -> None:
        lane = self.lane
        assert lane is not None
        lead = [v for v in self.kernel.outer if v is not lane]
        if rows * inner >= _PARALLEL:
            self.line(f"#pragma omp parallel for collapse({len(lead) + 1}) schedule(static)")
        self.loops(lead)
        size = mark(lane.extent)
        self.line(f"for (int64_t tile = 0; tile < {size}; tile += {_TILE}) {{")
        self.depth += 1
        self.line(f"const int64_t width = {size} - tile < {_TILE} ? {size} - tile : {_TILE};")
        for step in self.kernel.steps:
            if isinstance(step, Fold):
                self.column_fold(step)
            else:
                self.loops(step.inner)
                self.lanes()
                (name,) = self.exprs([step.value])
                self.put(step, name)
                self.close(len(step.inner) + 1)
        self.close(len(lead) + 1)

    def lanes(self) -> None:
        assert self.lane is not None
        self.line("#pragma omp simd")
        self.line("for (int64_t l = 0; l < width; l++) {")
        self.depth += 1
        self.line(f"const int64_t {self.named(self.lane)} = tile + l;")

    # --- folds --------------------------------------------------------------------------------------------

    def fold(self, step: Fold, *, parallel: bool) -> None:
        fold = step.reduction
        name = f"r{len(self.folds)}"
        kind, inside = fold.kind, step.body.dtype
        if not step.inner:
            (value,) = self.exprs([step.body])
            self.line(f"const {_C[fold.dtype]} {name} = {'0' if kind.startswith('arg') else value};")
            self.folds[fold, step.index] = name
            return
        if kind in ("argmax", "argmin"):
            self.arg_fold(step, name)
        elif kind == "sum" and inside.is_floating_point:
            self.blocked(step, name, "double", "0", "+", parallel)
        else:
            op, start = {
                "sum": ("+", "0"), "prod": ("*", "1"), "any": ("|", "0"), "all": ("&", "1"),
                "max": ("max", _lowest(inside)), "min": ("min", _highest(inside)),
            }[kind]  # fmt: skip
            ctype = "double" if kind == "prod" and inside.is_floating_point else _C[fold.dtype]
            self.blocked(step, name, ctype, start, op, parallel)
        self.folds[fold, step.index] = name

    def blocked(self, step: Fold, name: str, ctype: str, start: str, op: str, parallel: bool) -> None:
        """A fold in blocks: a vectorised part for each, added to the whole."""
        inside = step.body.dtype
        part = _C[inside] if not (op == "+" and not inside.is_floating_point) else "int64_t"
        if inside.is_floating_point and (op == "*" or (op == "+" and not _as_vectors(step))):
            part = "double"
        nan = op in ("max", "min") and inside.is_floating_point
        *lead, last = step.inner
        whole, flag = f"{name}_whole", f"{name}_nan"
        self.line(f"{ctype} {whole} = {start};")
        if nan:
            self.line(f"int {flag} = 0;")
        clause = f"reduction({op}:{whole})" + (f" reduction(|:{flag})" if nan else "")
        if parallel:
            self.line(f"#pragma omp parallel for collapse({len(lead) + 1}) schedule(static) {clause}")
        self.loops(lead)
        block = _BLOCK * 32 if op in ("max", "min") else _BLOCK
        size = mark(last.extent)
        self.line(f"for (int64_t block = 0; block < {size}; block += {block}) {{")
        self.depth += 1
        self.line(f"const int64_t end = block + {block} < {size} ? block + {block} : {size};")
        self.line(f"{part} part = {start};")
        if nan:
            self.line("int part_nan = 0;")
        inner_clause = f"reduction({op}:part)" + (" reduction(|:part_nan)" if nan else "")
        self.line(f"#pragma omp simd {inner_clause}")
        along = self.named(last)
        self.line(f"for (int64_t {along} = block; {along} < end; {along}++) {{")
        self.depth += 1
        (value,) = self.exprs([step.body])
        if op in ("max", "min"):
            sign = ">" if op == "max" else "<"
            self.line(f"part = {value} {sign} part ? {value} : part;")
            if nan:
                self.line(f"part_nan |= {value} != {value};")
        else:
            self.line(f"part {op}= {value};")
        self.close(1)
        if op in ("max", "min"):
            sign = ">" if op == "max" else "<"
            self.line(f"{whole} = part {sign} {whole} ? part : {whole};")
            if nan:
                self.line(f"{flag} |= part_nan;")
        else:
            self.line(f"{whole} {op}= part;")
        self.close(len(lead) + 1)
        if nan:
            self.line(f'if ({flag}) {whole} = __builtin_nanf("");')
        self.line(f"const {_C[step.reduction.dtype]} {name} = {whole};")

    def arg_fold(self, step: Fold, name: str) -> None:
        """The first place of the extreme; NaN is the extreme of all."""
        inside = step.body.dtype
        ctype, sign = _C[inside], ">" if step.reduction.kind == "argmax" else "<"
        self.line(f"int64_t {name} = 0, {name}_at = 0;")
        self.line(f"{ctype} {name}_best = 0;")
        self.loops(step.inner)
        (value,) = self.exprs([step.body])
        nan = f" || ({value} != {value} && {name}_best == {name}_best)" if inside.is_floating_point else ""
        self.line(f"if ({name}_at == 0 || {value} {sign} {name}_best{nan}) {{")
        self.line(f"    {name}_best = {value};")
        self.line(f"    {name} = {name}_at;")
        self.line("}")
        self.line(f"{name}_at++;")
        self.close(len(step.inner))

    def column_fold(self, step: Fold) -> None:
        fold = step.reduction
        name = f"r{len(self.folds)}"
        kind, inside = fold.kind, step.body.dtype
        wide = kind in ("sum", "prod") and inside.is_floating_point
        ctype = "double" if wide else "int64_t" if kind == "sum" else _C[fold.dtype]
        start = {"sum": "0", "prod": "1", "any": "0", "all": "1", "max": _lowest(inside),
                 "min": _highest(inside), "argmax": "0", "argmin": "0"}[kind]  # fmt: skip
        self.line(f"{ctype} {name}[{_TILE}];")
        self.line(f"for (int64_t l = 0; l < width; l++) {name}[l] = {start};")
        arg = kind in ("argmax", "argmin")
        if arg:
            self.line(f"{_C[inside]} {name}_best[{_TILE}];")
            self.line(f"int64_t {name}_at = 0;")
        self.loops(step.inner)
        self.lanes()
        (value,) = self.exprs([step.body])
        into = f"{name}[l]"
        if arg or kind in ("max", "min"):
            sign = ">" if kind.endswith("max") else "<"
            best = f"{name}_best[l]" if arg else into
            nan = f" || ({value} != {value} && {best} == {best})" if inside.is_floating_point else ""
            first = f"{name}_at == 0 || " if arg else ""
            self.line(f"const int better = {first}{value} {sign} {best}{nan};")
            self.line(f"{best} = better ? {value} : {best};")
            if arg:
                self.line(f"{into} = better ? {name}_at : {into};")
        else:
            op = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[kind]
            self.line(f"{into} {op}= {value};")
        self.close(1)
        if arg:
            self.line(f"{name}_at++;")
        self.close(len(step.inner))
        self.folds[fold, step.index] = f"({_C[fold.dtype]}){into}" if wide else into

    def lane_of(self) -> Var | None:
        """The outer loop that memory runs along, where the folds' own loops do not."""
        if not self.kernel.outer:
            return None
        votes: dict[Var | None, int] = {}
        for step in self.kernel.steps:
            if not isinstance(step, Fold):
                continue
            for e in walk([step.body]):
                if e.op != "load":
                    continue
                place: Ix = e.extra[1]  # type: ignore[assignment]
                if step.inner and place.stride(step.inner[-1]) == 1:
                    votes[None] = votes.get(None, 0) + 1
                for v in self.kernel.outer:
                    if place.stride(v) == 1:
                        votes[v] = votes.get(v, 0) + 1
        best = max(votes, key=lambda v: votes[v], default=None)
        return best if best is not None and best.extent >= 8 else None

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
                if test_name == "1":
                    memo[key] = visit(yes, guard)
                    return memo[key]
                inner = test_name if not guard else f"{guard} & {test_name}"
                if guard in self.varying or self.span is None or self.span[0] in variables([test]):
                    self.varying.add(inner)
                name = self.define(expr, f"{test_name} ? {visit(yes, inner)} : {visit(no, guard)}")
            elif id(expr) in self.known or (expr.op == "and" and {id(a) for a in expr.args} <= self.known):
                name = "1"
            elif expr.op == "const":
                name = _constant(expr.extra[0], expr.dtype)
            elif expr.op == "number":
                name = f"a[{self.slots[expr.extra[0]]}].f"
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

        return [visit(expr, "") for expr in wanted]

    def define(self, expr: Expr, text: str) -> str:
        name = f"v{self.temporary}"
        self.temporary += 1
        self.line(f"const {_C[expr.dtype]} {name} = {text};")
        return name

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
        buffer: Buffer = expr.extra[0]  # type: ignore[assignment]
        self.used[buffer] = None
        place: Ix = expr.extra[1]  # type: ignore[assignment]
        text = f"{buffer.name}[{self.place(place)}]"
        if guard:
            apart = row_of(buffer, place, self.span) if guard not in self.varying and self.span else None
            if apart is not None:
                # The test is the same for the whole loop: a row that is there is loaded in place of another.
                row, safe, along = (self.place(ix) for ix in apart)
                text = f"{buffer.name}[({guard} ? {row} : {safe}) + {along}]"
            else:
                text = f"({guard} ? {text} : 0)"
        return f"f32_of_{_SHORT[buffer.dtype]}({text})" if buffer.dtype in _SHORT else text

    def put(self, step: Store, name: str) -> None:
        buffer = step.buffer
        self.used[buffer] = None
        value = name
        if buffer.dtype in _SHORT:
            value = f"{_SHORT[buffer.dtype]}_of_f32({name})"
        elif buffer.dtype == torch.bool:
            value = f"(uint8_t)({name} != 0)"
        self.line(f"{buffer.name}[{self.place(step.place)}] = {value};")

    def place(self, ix: Ix) -> str:
        parts = []
        for atom, c in ix.terms.items():
            if isinstance(atom, Split):
                text = self.split_text(atom)
            else:
                text = (
                    self.named(atom) if isinstance(atom, Var) else f"({self.computed[id(atom.expr)]} ^ zero)"
                )
                self.opaque = self.opaque or not isinstance(atom, Var)
            parts.append(text if c == 1 else f"{text} * {mark(c)}")
        if ix.const or not parts:
            parts.append(mark(ix.const) if ix.const else "0")
        return " + ".join(parts)

    def split_text(self, atom: Split) -> str:
        low, _ = atom.inner.bounds()
        inner = self.place(atom.inner)
        if low < 0:
            return f"floor_{'div' if atom.kind == '/' else 'mod'}({inner}, {mark(atom.by)})"
        return f"(({inner}) {atom.kind} {mark(atom.by)})"

    def named(self, var: Var) -> str:
        """A loop's name: numbered as they turn up, so that the same kernel is the same text."""
        return self.names.setdefault(var, f"i{len(self.names)}")

    # --- lines --------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        if self.failed and text.startswith("#pragma omp"):
            text += f" reduction(max:{', '.join(self.failed.values())})"
        self.lines.append("    " * self.depth + text)

    def loop(self, var: Var) -> None:
        name = self.named(var)
        self.line(f"for (int64_t {name} = 0; {name} < {mark(var.extent)}; {name}++) {{")
        self.depth += 1

    def loops(self, loops: Sequence[Var]) -> None:
        for var in loops:
            self.loop(var)

    def close(self, count: int) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")


def _as_vectors(step: Fold) -> bool:
    """Whether a fold reads memory element after element, so that lanes of a vector share its rounding."""
    last = step.inner[-1]
    for e in walk([step.body]):
        if e.op == "masked" or (e.op == "load" and e.extra[1].stride(last) not in (0, 1)):  # type: ignore[attr-defined]
            return False
    return True


def _constant(value: object, dtype: torch.dtype) -> str:
    assert isinstance(value, int | float)
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return str(int(bool(value)))
        suffix = "LL" if dtype.is_signed else "ULL"
        return "INT64_MIN" if value == -(2**63) else f"(({_C[dtype]}){int(value)}{suffix})"
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "(-__builtin_inff())"
    if dtype == torch.float64:
        return f"({float(value).hex()})"
    # Rounded here, once: a double constant would make the compiler compute in double.
    return f"({float(torch.tensor(value, dtype=torch.float32)).hex()}f)"


def _operation(expr: Expr, a: list[str]) -> str:
    op, dtype = expr.op, expr.dtype
    inside = expr.args[0].dtype
    double = inside == torch.float64
    if op in _INFIX:
        if op in ("add", "mul") and dtype == torch.bool:
            return f"{a[0]} {'|' if op == 'add' else '&'} {a[1]}"
        return f"{a[0]} {_INFIX[op]} {a[1]}"
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
        return a[0] if inside in (torch.uint8, torch.bool) else f"{a[0]} < 0 ? -{a[0]} : {a[0]}"
    if op == "sign" and not inside.is_floating_point:
        return f"({a[0]} > 0) - ({a[0]} < 0)"
    return f"{op}_{'f64' if double else 'f32'}({', '.join(a)})"


def _cast(value: str, old: torch.dtype, new: torch.dtype) -> str:
    if new in _SHORT:
        return f"f32_of_{_SHORT[new]}({_SHORT[new]}_of_f32({value}))"
    if new == torch.bool:
        return f"{value} != 0"
    return f"({_C[new]}){value}"


def _lowest(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "(-__builtin_inff())"
    return "0" if dtype == torch.bool else _constant(torch.iinfo(dtype).min, dtype)


def _highest(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "__builtin_inff()"
    return "1" if dtype == torch.bool else _constant(torch.iinfo(dtype).max, dtype)
