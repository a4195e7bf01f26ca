"""Index expressions and element expressions: the intermediate representation of one tensor element.

A tensor is a function from an index to an expression, so views cost nothing: they only change the index that
is passed on. Reductions, scans and buffers are the only objects with an identity of their own. Indices are
affine in the loop variables where possible; a reshape that is not affine adds a quotient or a remainder.

    IndexExpr      sum of coefficient x (loop variable | quotient | remainder | computed index), plus constant
    Expr           an element: constant, run-time number, load, operation, or result of a reduction or scan
    Reduction      a reduction of a body over extents
    Matmul         a reduction that is a matrix multiplication
    PooledMatmul   a reduction over pooling windows of a matmul's output
    Scan           a cumulative reduction (cumsum, cummax, ...) of a body along an axis
    Materialized   a value whose elements are read several times, and so worth computing once
    Value          a tensor that is not in memory: shape, dtype, index -> Expr
    Buffer         a tensor in memory: an input, an output, or an intermediate result

Kernels, which hold the loops and stores, are in `burnt.codegen.ir.kernel`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from burnt.errors import InputDivisionError, InputError, InputIndexError, range_hint

_name_counter = itertools.count()

DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
})  # fmt: skip
"""The element dtypes that kernels support; ops on other dtypes run as torch calls."""


@dataclasses.dataclass(frozen=True, eq=False)
class Var:
    """A loop variable: 0 <= value < extent."""

    extent: int
    name: str = dataclasses.field(default_factory=lambda: f"i{next(_name_counter)}")

    def __repr__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Split:
    """The quotient (`kind` ``/``) or remainder (``%``) of the index `inner` by a positive `divisor`."""

    kind: str
    inner: IndexExpr
    divisor: int


@dataclasses.dataclass(frozen=True)
class Computed:
    """An index whose value is computed, as in a gather: an int64 expression, 0 <= value < extent."""

    expr: Expr
    extent: int


Atom: TypeAlias = "Var | Split | Computed"
_NO_PADDING: Mapping[Var, int] = MappingProxyType({})


class IndexExpr:
    """An immutable affine index expression.

    Sums and multiples are simplified; quotients and remainders are, as far as the bounds allow.

    >>> i, j = Var(4, "i"), Var(8, "j")
    >>> flat = IndexExpr.of(i) * 8 + IndexExpr.of(j)
    >>> flat, flat // 8, flat % 8
    (8*i + j, i, j)
    """

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: dict[Atom, int] | None = None, const: int = 0) -> None:
        self.terms = {atom: c for atom, c in (terms or {}).items() if c}
        self.const = const
        self._hash = hash((frozenset(self.terms.items()), const))

    @staticmethod
    def of(value: IndexExpr | Atom | int) -> IndexExpr:
        """Convert a loop variable or number to an index; a variable of extent 1 becomes 0."""
        if isinstance(value, IndexExpr):
            return value
        if isinstance(value, int):
            return IndexExpr(const=value)
        if isinstance(value, Var) and value.extent == 1:
            return IndexExpr()
        return IndexExpr({value: 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexExpr) and self.const == other.const and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: IndexExpr | int) -> IndexExpr:
        other = IndexExpr.of(other)
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            terms[atom] = terms.get(atom, 0) + c
        return IndexExpr(terms, self.const + other.const)

    def __mul__(self, factor: int) -> IndexExpr:
        return IndexExpr({atom: c * factor for atom, c in self.terms.items()}, self.const * factor)

    def __sub__(self, other: IndexExpr | int) -> IndexExpr:
        return self + IndexExpr.of(other) * -1

    def _split_multiples(self, divisor: int) -> tuple[IndexExpr, IndexExpr]:
        """Split into ``(whole, rest)`` so that self == whole * divisor + rest, term by term."""
        whole = IndexExpr(
            {a: c // divisor for a, c in self.terms.items() if c % divisor == 0}, self.const // divisor
        )
        rest = IndexExpr({a: c for a, c in self.terms.items() if c % divisor}, self.const % divisor)
        return whole, rest

    def __floordiv__(self, divisor: int) -> IndexExpr:
        if divisor == 1:
            return self
        whole, rest = self._split_multiples(divisor)
        low, high = rest.bounds()
        if low >= 0 and high < divisor:
            return whole
        return whole + IndexExpr({Split("/", rest, divisor): 1})

    def __mod__(self, divisor: int) -> IndexExpr:
        if divisor == 1:
            return IndexExpr()
        _, rest = self._split_multiples(divisor)
        low, high = rest.bounds()
        if low >= 0 and high < divisor:
            return rest
        return IndexExpr({Split("%", rest, divisor): 1})

    def bounds(self, padding: Mapping[Var, int] = _NO_PADDING) -> tuple[int, int]:
        """Return the smallest and largest value, if variables exceed their extents by up to `padding`."""
        low = high = self.const
        for atom, c in self.terms.items():
            if isinstance(atom, Var | Computed):
                first, last = 0, max(atom.extent - 1, 0)
                last += padding.get(atom, 0) if isinstance(atom, Var) else 0
            elif atom.kind == "%":
                first, last = 0, atom.divisor - 1
            else:
                inner_low, inner_high = atom.inner.bounds(padding)
                first, last = inner_low // atom.divisor, inner_high // atom.divisor
            low += c * (first if c > 0 else last)
            high += c * (last if c > 0 else first)
        return low, high

    def variables(self) -> set[Var]:
        """Return the loop variables in this index, including those inside quotients and computed parts."""
        found: set[Var] = set()
        for atom in self.terms:
            if isinstance(atom, Computed):
                found |= variables([atom.expr])
            else:
                found |= {atom} if isinstance(atom, Var) else atom.inner.variables()
        return found

    def computed_exprs(self) -> list[Expr]:
        """Return the expressions of its computed parts, without duplicates."""
        found: dict[int, Expr] = {}
        for atom in self.terms:
            if isinstance(atom, Computed):
                found[id(atom.expr)] = atom.expr
            elif isinstance(atom, Split):
                found |= {id(e): e for e in atom.inner.computed_exprs()}
        return list(found.values())

    def without_computed(self) -> IndexExpr:
        """Return this index without its computed parts."""
        return IndexExpr({a: c for a, c in self.terms.items() if not isinstance(a, Computed)}, self.const)

    def stride(self, var: Var) -> int | None:
        """Return the coefficient of a loop variable; None if the step is not the same everywhere."""
        if any(not isinstance(a, Var) and var in IndexExpr({a: 1}).variables() for a in self.terms):
            return None
        return self.terms.get(var, 0)

    def substitute(self, mapping: dict[Var, IndexExpr]) -> IndexExpr:
        """Replace variables by indices, also inside computed parts."""
        return _substitute_affine(_map_computed(self, lambda e: substitute(e, mapping)), mapping)

    def __repr__(self) -> str:
        parts = []
        for atom, c in self.terms.items():
            name = f"({atom.inner!r}){atom.kind}{atom.divisor}" if isinstance(atom, Split) else repr(atom)
            parts.append(name if c == 1 else f"{c}*{name}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


Index = tuple[IndexExpr, ...]


def ravel(index: Sequence[IndexExpr], sizes: Sequence[int]) -> IndexExpr:
    """Flatten a multi-dimensional index to a row-major one; the first size is not used."""
    flat = IndexExpr()
    for ix, size in zip(index, sizes, strict=True):
        flat = flat * size + ix
    return flat


def unravel(flat: IndexExpr, sizes: Sequence[int]) -> Index:
    """Split a row-major flat index into one index for each axis; the inverse of `ravel`."""
    indices: list[IndexExpr] = []
    for size in reversed(sizes[1:]):
        indices.append(flat % size)
        flat = flat // size
    return (flat, *reversed(indices))


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A tensor in memory. Strides are in elements.

    `role` is ``input`` (`position` counts the arguments), ``output`` (`position` counts the results),
    ``intermediate`` (written by one kernel, read by another), or ``local``: scratch memory of one iteration
    of a kernel's outer loops, on targets that have it.
    """

    name: str
    role: str
    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def at(self, index: Sequence[IndexExpr]) -> IndexExpr:
        """Return the offset of an element from the start of the buffer, in elements."""
        offset = IndexExpr()
        for ix, stride in zip(index, self.strides, strict=True):
            offset += ix * stride
        return offset


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction of `body(index, inner)` over all inner indices of `extents`, for each index of `shape`.

    `kind` is one of sum, prod, max, min, argmax, argmin, any, all. argmax and argmin give the position in the
    flattened extents, the first one among equals.
    """

    kind: str
    shape: tuple[int, ...]
    extents: tuple[int, ...]
    dtype: torch.dtype
    body: Callable[[Index, Index], Expr]


@dataclasses.dataclass(frozen=True, eq=False)
class Matmul(Reduction):
    """A matrix multiplication: the sum over one axis of ``mul`` of two operands.

    Its shape ends in rows and columns: the first operand does not depend on the column, the second not on the
    row. `stored_dtype` is the dtype of its elements in memory; `precision` says how float32 is multiplied:
    ``ieee``, ``tf32``, ``tf32x3``, or ``flex32`` (as bfloat16). A kernel has at most one matmul, and its
    loops then iterate over the matmul's output elements. The only other reduction allowed there is a
    `PooledMatmul` over the last of these loops, whose result is stored once for each pooling window.
    """

    stored_dtype: torch.dtype
    precision: str


@dataclasses.dataclass(frozen=True, eq=False)
class PooledMatmul(Reduction):
    """A reduction over non-overlapping pooling windows that cover a matmul's output.

    The matmul's kernel reduces the windows in its epilogue where it can. Elsewhere the scheduler uses
    `from_memory`, the same value at an index with the matmul's output read from memory: in scheduled kernels
    only a matmul's kernel holds a `PooledMatmul`.
    """

    from_memory: Callable[[Index], Expr]


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A cumulative reduction of a body along one axis of `shape`: each element includes all up to itself.

    `kind` is one of sum, prod, max, min, argmax, argmin, logsumexp. argmax and argmin give the position along
    the axis, the last one among equals; NaN counts as the extreme.
    """

    kind: str
    shape: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    body: Callable[[Index], Expr]


class Expr:
    """An element. Expressions are interned: equal ones are one object, so common subexpressions are shared.

    `op` is one of the following, with its `extra` in parentheses, or the name of an operation: those are
    listed in `burnt.codegen.lower`, and each renderer has the code for them.

        const (value)                      a constant
        number (position)                  an argument that is a Python number, given at run time
        load (Buffer, IndexExpr)           an element of a buffer
        index (IndexExpr)                  an index as a value
        reduced (Reduction, Index)         the result of a reduction
        scanned (Scan, Index)              the result of a scan
        materialized (Materialized, Index) an element of a materialized value; none is left after scheduling
        cast                               its argument, converted to `dtype`
        as                                 its argument, with `dtype` as a label: see below
        masked, checked                    see below

    Where an index has `Computed` parts, their expressions are in `args`, so that they are computed first
    (`load` and `index_value` below do this).

    16-bit floats are computed in float32. ``as`` gives such a result its 16-bit dtype without rounding; the
    store rounds it. ``cast`` rounds at once.

    ``masked`` with args (test, yes, no) is `yes` where the test holds, and loads in `yes` happen only there.

    ``checked`` with args (test, value, otherwise, reported) and a `Check` in `extra` is `value` where the
    test holds. Elsewhere it is `otherwise`, and the kernel records the failure with the int64 `reported`; the
    caller then raises the check's error. It is not a branch: the loop goes on and stays vectorizable.

    ``decode_float8`` (format) is the float32 number of a uint8 that holds a float8 number, ``encode_float8``
    (format) the uint8 of a float32, where e4m3 saturates at 448; the format is ``e4m3`` or ``e5m2``.

    Two operations draw random numbers from a seed (int64, a load) and a counter i (an int64 index), for the
    stream in `extra`. Philox4x32-10 computes four 32-bit words from the counter (i // 4 as two words, low one
    first; the stream; 0), with the seed's two halves, low one first, as the key; w is word i % 4. ``uniform``
    (stream) is float32: the upper 24 bits of w times 2^-24. ``random`` (stream, bound) is int64:
    w * bound // 2^32.

    Python's operators build expressions of the same dtype, and `eq` to `ge` comparisons; a number among the
    operands becomes a constant of that dtype.

    >>> x = Expr.make("number", (), torch.float32, 0)
    >>> x.gt(0).where(x * 2, 0)
    where(gt(number(0), const(0.0)), mul(number(0), const(2.0)), const(0.0))
    """

    __slots__ = ("args", "dtype", "extra", "op")
    _interned: dict[tuple[object, ...], Expr] = {}  # noqa: RUF012 - shared on purpose

    op: str
    args: tuple[Expr, ...]
    extra: tuple[Any, ...]
    dtype: torch.dtype

    @staticmethod
    def make(op: str, args: Sequence[Expr], dtype: torch.dtype, *extra: object) -> Expr:
        """Return the interned expression with these parts; create it if there is none."""
        key = Expr._key(op, args, dtype, extra)
        expr = Expr._interned.get(key)
        if expr is None:
            expr = Expr()
            expr.op, expr.args, expr.dtype, expr.extra = op, tuple(args), dtype, extra
            Expr._interned[key] = expr
        return expr

    @staticmethod
    def _key(
        op: str, args: Sequence[Expr], dtype: torch.dtype, extra: Sequence[object]
    ) -> tuple[object, ...]:
        # repr distinguishes 0.0 from -0.0, and makes NaN equal to itself.
        return (op, tuple(map(id, args)), dtype, *(repr(e) if isinstance(e, float) else e for e in extra))

    @staticmethod
    def clear_interned() -> None:
        """Empty the table of interned expressions, once a plan's code is generated."""
        Expr._interned.clear()

    @staticmethod
    def restore_interned(exprs: Sequence[Expr]) -> None:
        """Fill the table with just these expressions, to generate the code of a plan again, identically."""
        Expr._interned.clear()
        for expr in walk(exprs):
            Expr._interned[Expr._key(expr.op, expr.args, expr.dtype, expr.extra)] = expr

    def apply(self, op: str, *others: Expr | float, dtype: torch.dtype | None = None) -> Expr:
        """Return an operation on this expression and others, by default of the same dtype."""
        args = [other if isinstance(other, Expr) else const(other, self.dtype) for other in others]
        return Expr.make(op, (self, *args), dtype or self.dtype)

    def __add__(self, other: Expr | float) -> Expr:
        return self.apply("add", other)

    def __sub__(self, other: Expr | float) -> Expr:
        return self.apply("sub", other)

    def __mul__(self, other: Expr | float) -> Expr:
        return self.apply("mul", other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return self.apply("div", other)

    def __and__(self, other: Expr) -> Expr:
        return self.apply("and", other)

    def __or__(self, other: Expr) -> Expr:
        return self.apply("or", other)

    def __neg__(self) -> Expr:
        return self.apply("neg")

    def eq(self, other: Expr | float) -> Expr:
        """Return ``self == other``, a bool; Python's operator compares the objects."""
        return self.apply("eq", other, dtype=torch.bool)

    def ne(self, other: Expr | float) -> Expr:
        """Return ``self != other``, a bool."""
        return self.apply("ne", other, dtype=torch.bool)

    def lt(self, other: Expr | float) -> Expr:
        """Return ``self < other``, a bool."""
        return self.apply("lt", other, dtype=torch.bool)

    def le(self, other: Expr | float) -> Expr:
        """Return ``self <= other``, a bool."""
        return self.apply("le", other, dtype=torch.bool)

    def gt(self, other: Expr | float) -> Expr:
        """Return ``self > other``, a bool."""
        return self.apply("gt", other, dtype=torch.bool)

    def ge(self, other: Expr | float) -> Expr:
        """Return ``self >= other``, a bool."""
        return self.apply("ge", other, dtype=torch.bool)

    def where(self, yes: Expr | float, no: Expr | float) -> Expr:
        """Return `yes` where this bool holds, else `no`; at least one of them is an expression."""
        dtype = next(value.dtype for value in (yes, no) if isinstance(value, Expr))
        yes, no = (value if isinstance(value, Expr) else const(value, dtype) for value in (yes, no))
        return Expr.make("where", (self, yes, no), dtype)

    def __repr__(self) -> str:
        inside = ", ".join([*map(repr, self.args), *map(repr, self.extra)])
        return f"{self.op}({inside})"


def const(value: float, dtype: torch.dtype) -> Expr:
    """Build a constant of a dtype: floats are rounded to it, integers wrap around."""
    if dtype.is_floating_point:
        value = rounded(value, dtype)
    elif dtype == torch.bool:
        value = bool(value)
    else:
        bits = torch.iinfo(dtype).bits
        # Infinity and NaN get here only for empty results, such as the softmax of an empty integer tensor:
        # for others torch raises.
        value = int(value) % (1 << bits) if math.isfinite(value) else 0
        value -= (value >> (bits - 1)) << bits if dtype.is_signed else 0
    return Expr.make("const", (), dtype, value)


def rounded(value: float, dtype: torch.dtype) -> float:
    """Round to a float dtype. A tensor would take a millisecond while torch compiles a graph.

    >>> rounded(0.1, torch.float32), rounded(1e39, torch.float32), rounded(1e39, torch.bfloat16)
    (0.10000000149011612, inf, inf)
    """
    if dtype == torch.float64:
        return float(value)
    if dtype == torch.float32:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def extreme(dtype: torch.dtype, *, lowest: bool) -> float:
    """Return the lowest or highest number of a dtype; infinite for floats."""
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    if dtype == torch.bool:
        return not lowest
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def cast(expr: Expr, dtype: torch.dtype) -> Expr:
    """Convert an expression to a dtype, as torch does; constants are converted now."""
    if expr.dtype == dtype:
        return expr
    if expr.op == "const":
        value = expr.extra[0]
        if dtype == torch.bool:
            return const(bool(value), dtype)
        if dtype.is_floating_point or not isinstance(value, float):
            return const(value, dtype)
    return Expr.make("cast", (expr,), dtype)


def walk(exprs: Sequence[Expr]) -> Iterator[Expr]:
    """Yield these expressions and all their subexpressions, each once, arguments first."""
    seen: set[int] = set()
    # Not recursive: nested gathers can be deeper than Python's stack.
    stack = [(expr, False) for expr in reversed(exprs)]
    while stack:
        expr, is_ready = stack.pop()
        if is_ready:
            yield expr
        elif id(expr) not in seen:
            seen.add(id(expr))
            stack.append((expr, True))
            stack += [(argument, False) for argument in reversed(expr.args)]


def load(buffer: Buffer, offset: IndexExpr) -> Expr:
    """Build the load of a buffer's element at an offset, in elements."""
    return Expr.make("load", offset.computed_exprs(), buffer.dtype, buffer, offset)


def index_value(index: IndexExpr) -> Expr:
    """Build an int64 element whose value is an index."""
    return Expr.make("index", index.computed_exprs(), torch.int64, index)


@dataclasses.dataclass(frozen=True)
class Check:
    """The check of a ``checked`` expression: an index in range, or a divisor that is not 0."""

    op: str  # name of the op that needs the check, as torch spells it
    size: int = 0  # size of the indexed axis; 0 for the check of a divisor
    axis: int = 0  # the indexed axis
    low: int = 0  # the smallest valid index

    def error(self, value: int) -> InputError:
        """Return the error to raise for a value that fails the check."""
        where = f"torch.ops.aten.{self.op}"
        if not self.size:
            return InputDivisionError(
                f"{self.op}: an integer is divided by zero",
                where=where,
                expected="no 0 among the divisors",
                found=value,
                hint="a float would give infinity or NaN",
            )
        return InputIndexError(
            f"{self.op}: index {value} is out of range",
            where=where,
            expected=f"{self.low} <= index < {self.size}, the size of axis {self.axis}",
            found=value,
            hint=range_hint(min(value, 0), value, self.size),
        )


def checked_value(check: Check, test: Expr, value: Expr, otherwise: Expr, reported: Expr) -> Expr:
    """Build `value` where a test holds; elsewhere `otherwise`, and the kernel fails with `reported`."""
    return Expr.make("checked", (test, value, otherwise, reported), value.dtype, check)


def _at_index(op: str, node: Reduction | Scan | Materialized, dtype: torch.dtype, index: Index) -> Expr:
    computed = {id(e): e for ix in index for e in ix.computed_exprs()}
    return Expr.make(op, list(computed.values()), dtype, node, index)


def reduction_result(reduction: Reduction, index: Index) -> Expr:
    """Build the result of a reduction at an index."""
    return _at_index("reduced", reduction, reduction.dtype, index)


def scan_result(scan: Scan, index: Index) -> Expr:
    """Build the result of a scan at an index."""
    return _at_index("scanned", scan, scan.dtype, index)


def materialized(value: Materialized, index: Index) -> Expr:
    """Build an element of a materialized value."""
    return _at_index("materialized", value, value.value.dtype, index)


# Constructors of the ops whose `extra` contains indices.
_CONSTRUCTORS: dict[str, Callable[..., Expr]] = {
    "load": load,
    "index": index_value,
    "reduced": reduction_result,
    "scanned": scan_result,
    "materialized": materialized,
}


def variables(exprs: Sequence[Expr]) -> set[Var]:
    """Return the loop variables that expressions depend on."""
    found: set[Var] = set()
    for expr in walk(exprs):
        for index_expr in index_exprs(expr):
            found |= {atom for atom in index_expr.terms if isinstance(atom, Var)}
            for atom in index_expr.terms:
                if isinstance(atom, Split):
                    found |= atom.inner.variables()
    return found


def index_exprs(expr: Expr) -> list[IndexExpr]:
    """Return the index expressions in an expression's `extra`, not in its arguments'."""
    found: list[IndexExpr] = []
    for extra in expr.extra:
        if isinstance(extra, IndexExpr):
            found.append(extra)
        elif isinstance(extra, tuple):
            found += [ix for ix in extra if isinstance(ix, IndexExpr)]
    return found


def rebuild(
    expr: Expr,
    map_index: Callable[[IndexExpr], IndexExpr] = lambda ix: ix,
    replace: Callable[[Expr], Expr | None] = lambda expr: None,
) -> Expr:
    """Rewrite an expression bottom up, including the expressions inside computed indices.

    `map_index` is applied to each index expression, after its computed parts are rewritten; `replace` returns
    the replacement of a rewritten expression, or None to leave it.
    """
    rebuilt: dict[int, Expr] = {}

    def rebuild_index(ix: IndexExpr) -> IndexExpr:
        return map_index(_map_computed(ix, lambda e: rebuilt[id(e)]))

    for e in walk([expr]):
        new = e
        if e.op in _CONSTRUCTORS:
            extra = [
                rebuild_index(x)
                if isinstance(x, IndexExpr)
                else tuple(map(rebuild_index, x))
                if isinstance(x, tuple)
                else x
                for x in e.extra
            ]
            new = _CONSTRUCTORS[e.op](*extra)
        elif any(rebuilt[id(a)] is not a for a in e.args):
            new = Expr.make(e.op, [rebuilt[id(a)] for a in e.args], e.dtype, *e.extra)
        rebuilt[id(e)] = replace(new) or new
    return rebuilt[id(expr)]


def substitute(expr: Expr, mapping: dict[Var, IndexExpr]) -> Expr:
    """Replace loop variables by indices."""
    return rebuild(expr, lambda ix: _substitute_affine(ix, mapping))


def _substitute_affine(ix: IndexExpr, mapping: dict[Var, IndexExpr]) -> IndexExpr:
    """Replace variables by indices outside the computed parts."""
    result = IndexExpr(const=ix.const)
    for atom, c in ix.terms.items():
        if isinstance(atom, Var):
            result += mapping.get(atom, IndexExpr.of(atom)) * c
        elif isinstance(atom, Computed):
            result += IndexExpr({atom: c})
        else:
            inner = _substitute_affine(atom.inner, mapping)
            result += (inner // atom.divisor if atom.kind == "/" else inner % atom.divisor) * c
    return result


def _map_computed(ix: IndexExpr, map_expr: Callable[[Expr], Expr]) -> IndexExpr:
    if not ix.computed_exprs():
        return ix
    result = IndexExpr(const=ix.const)
    for atom, c in ix.terms.items():
        if isinstance(atom, Computed):
            result += IndexExpr({Computed(map_expr(atom.expr), atom.extent): c})
        elif isinstance(atom, Split):
            inner = _map_computed(atom.inner, map_expr)
            result += (inner // atom.divisor if atom.kind == "/" else inner % atom.divisor) * c
        else:
            result += IndexExpr({atom: c})
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor that is not in memory: `at(index)` is the expression of an element."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    at: Callable[[Index], Expr]

    def __post_init__(self) -> None:
        # An op that uses a value twice calls `at` twice, at every level: without the cache, a chain of n
        # squares would take 2^n steps.
        object.__setattr__(self, "at", functools.cache(self.at))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Materialized:
    """A value whose elements are each read several times, so that it is worth computing them once."""

    value: Value  # the value to store
    # Whether scratch for one row of its last axis is enough, because its readers iterate along that axis.
    # Without such scratch on the target, a cheap value is inlined. Any other value is written to memory.
    fits_row_scratch: bool
