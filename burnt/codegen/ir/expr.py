"""The intermediate form: what a value is at an index, and what a kernel does.

A tensor is a function from an index to an expression, so views cost nothing: they change the index on the way
to what they look at. Only reductions and buffers are things. Indices are affine in loop variables, as far as
they can be; what a reshape leaves over is a division or a remainder.

    Ix          an index: sum of coefficient x (loop variable | quotient | remainder | computed) plus a number
    Expr        an element: a constant, a number given at run time, a load, an operation, a reduction's result
    Reduction   a fold of a body over extents
    Product     a reduction that is a matrix product
    Pooled      a reduction over windows of what a product makes
    Scan        a running fold of a body along an axis
    Kept        a value that is read at several places, and so worth computing once
    Value       a tensor that is not in memory: shape, dtype, index -> Expr
    Buffer      a tensor that is in memory: an input, an output, or in between
    Kernel      loops over `outer`, and in each turn the folds and stores that belong to it
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import torch

from burnt.errors import InputDivisionError, InputError, InputIndexError, range_hint

_names = itertools.count()

DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
})  # fmt: skip
"""What elements of kernels can be; ops of others are torch's own calls."""


@dataclasses.dataclass(frozen=True, eq=False)
class Var:
    """A loop variable: 0 <= value < extent."""

    extent: int
    name: str = dataclasses.field(default_factory=lambda: f"i{next(_names)}")

    def __repr__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Split:
    """A quotient (``/``) or remainder (``%``) of an index by a positive number."""

    kind: str
    inner: IndexExpr
    by: int


@dataclasses.dataclass(frozen=True)
class Computed:
    """An index that is an element itself, as a gather has it: an int64 expression, 0 <= value < extent."""

    expr: Expr
    extent: int


Atom: TypeAlias = "Var | Split | Computed"
_NO_PADDING: Mapping[Var, int] = MappingProxyType({})


class IndexExpr:
    """An affine index. Immutable; sums and products simplify, divisions as far as bounds allow.

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
        """An index of a loop variable or a number; variables that can only be 0 vanish."""
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

    def _divided(self, by: int) -> tuple[IndexExpr, IndexExpr]:
        """A part that `by` divides, over `by`, and the rest."""
        whole = IndexExpr({a: c // by for a, c in self.terms.items() if c % by == 0}, self.const // by)
        rest = IndexExpr({a: c for a, c in self.terms.items() if c % by}, self.const % by)
        return whole, rest

    def __floordiv__(self, by: int) -> IndexExpr:
        if by == 1:
            return self
        whole, rest = self._divided(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return whole
        return whole + IndexExpr({Split("/", rest, by): 1})

    def __mod__(self, by: int) -> IndexExpr:
        if by == 1:
            return IndexExpr()
        _, rest = self._divided(by)
        low, high = rest.bounds()
        if low >= 0 and high < by:
            return rest
        return IndexExpr({Split("%", rest, by): 1})

    def bounds(self, padding: Mapping[Var, int] = _NO_PADDING) -> tuple[int, int]:
        """The smallest and largest value that the extents allow.

        Args:
            padding: how far variables go beyond their extents.
        """
        low = high = self.const
        for atom, c in self.terms.items():
            if isinstance(atom, Var | Computed):
                first, last = 0, max(atom.extent - 1, 0)
                last += padding.get(atom, 0) if isinstance(atom, Var) else 0
            elif atom.kind == "%":
                first, last = 0, atom.by - 1
            else:
                inner_low, inner_high = atom.inner.bounds(padding)
                first, last = inner_low // atom.by, inner_high // atom.by
            low += c * (first if c > 0 else last)
            high += c * (last if c > 0 else first)
        return low, high

    def variables(self) -> set[Var]:
        """The loop variables in it, also inside quotients."""
        found: set[Var] = set()
        for atom in self.terms:
            if isinstance(atom, Computed):
                found |= variables([atom.expr])
            else:
                found |= {atom} if isinstance(atom, Var) else atom.inner.variables()
        return found

    def computed(self) -> list[Expr]:
        """The expressions that it needs, each once."""
        found: dict[int, Expr] = {}
        for atom in self.terms:
            if isinstance(atom, Computed):
                found[id(atom.expr)] = atom.expr
            elif isinstance(atom, Split):
                found |= {id(e): e for e in atom.inner.computed()}
        return list(found.values())

    def affine(self) -> IndexExpr:
        """Without its computed parts."""
        return IndexExpr({a: c for a, c in self.terms.items() if not isinstance(a, Computed)}, self.const)

    def stride(self, var: Var) -> int | None:
        """How far a step of the variable goes; None where that is not the same everywhere."""
        if any(not isinstance(a, Var) and var in IndexExpr({a: 1}).variables() for a in self.terms):
            return None
        return self.terms.get(var, 0)

    def replaced(self, mapping: dict[Var, IndexExpr]) -> IndexExpr:
        """With indices in place of variables, also in what is computed."""
        return _affine_replaced(_with_computed(self, lambda e: substitute(e, mapping)), mapping)

    def __repr__(self) -> str:
        parts = []
        for atom, c in self.terms.items():
            name = f"({atom.inner!r}){atom.kind}{atom.by}" if isinstance(atom, Split) else repr(atom)
            parts.append(name if c == 1 else f"{c}*{name}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


Index = tuple[IndexExpr, ...]


def ravel(index: Sequence[IndexExpr], sizes: Sequence[int]) -> IndexExpr:
    """A place in flattened axes; the first size does not matter."""
    flat = IndexExpr()
    for ix, size in zip(index, sizes, strict=True):
        flat = flat * size + ix
    return flat


def unravel(flat: IndexExpr, sizes: Sequence[int]) -> Index:
    """The places in axes of a place in all of them together."""
    found: list[IndexExpr] = []
    for size in reversed(sizes[1:]):
        found.append(flat % size)
        flat = flat // size
    return (flat, *reversed(found))


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A tensor in memory. Strides are in elements.

    `role` is ``input`` (position in the arguments), ``output`` (position in the results), ``between``, or
    ``local``: scratch of one turn of a kernel's outer loops, where the target has it.
    """

    name: str
    role: str
    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def at(self, index: Sequence[IndexExpr]) -> IndexExpr:
        """The element's place in memory."""
        place = IndexExpr()
        for ix, stride in zip(index, self.strides, strict=True):
            place += ix * stride
        return place


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """A fold over `extents` of a body, at an index of `shape`.

    `kind` is one of sum, prod, max, min, argmax, argmin, any, all. The result of the arg kinds is the place
    in the flattened extents, of the first among equals.
    """

    kind: str
    shape: tuple[int, ...]
    extents: tuple[int, ...]
    dtype: torch.dtype
    body: Callable[[Index, Index], Expr]


@dataclasses.dataclass(frozen=True, eq=False)
class Matmul(Reduction):
    """A matrix product: the sum over one axis of ``mul`` of two factors.

    Its shape ends in rows and columns: the first factor does not depend on the column, the second not on the
    row. `stored` is the dtype that its elements have in memory; `precision` says how float32 is multiplied:
    ``ieee``, ``tf32``, ``tf32x3``, or ``flex32``, as bfloat16. A kernel has at most one product, and loops
    whose turns are the product's elements; another fold there is `PooledMatmul`, over the last of these
    loops, and what is made of it is stored once for each of its windows.
    """

    stored: torch.dtype
    precision: str


@dataclasses.dataclass(frozen=True, eq=False)
class PooledMatmul(Reduction):
    """A fold over windows of what a matrix product makes, which share all of its elements out.

    The product's kernel folds them where it makes them, if it may. Anywhere else `otherwise`, which reads the
    elements from memory, is the same at an index: no scheduled kernel but a product's holds such a fold.
    """

    otherwise: Callable[[Index], Expr]


@dataclasses.dataclass(frozen=True, eq=False)
class Scan:
    """A fold of a body along one axis of `shape`, of all elements up to and with each.

    `kind` is one of sum, prod, max, min, argmax, argmin, logsumexp. The result of the arg kinds is the place
    along the axis, of the last among equals; NaN is the extreme of all.
    """

    kind: str
    shape: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    body: Callable[[Index], Expr]


class Expr:
    """An element. Equal expressions are one object, so that common parts are found by identity.

    Two operations draw random numbers, as functions of a seed (int64, a load) and a counter i (an int64
    index), for a stream, which is in `extra`. Philox4x32-10 makes four words of the counter (i // 4 as two
    words, the low one first, the stream, 0) under the key that is the seed's halves, the low one first; w is
    the word i % 4. ``uniform`` (stream) is float32, the upper 24 bits of w times 2^-24; ``random`` (stream,
    bound) is int64, w * bound // 2^32.

    `op` is ``const`` (value), ``number`` (position), ``load`` (Buffer, Ix), ``index`` (Ix), ``reduced``
    (Reduction, Index), ``scanned`` (Scan, Index), ``kept`` (Kept, Index; a scheduled kernel has none left),
    ``cast``, ``masked``, ``checked``, or the name of an operation, of which `burnt.codegen.lower` has the
    list and each printer the text. Where an index holds `Computed` parts, their expressions are arguments, so
    that they are found and computed first (`load`, `index_value` below do so).

    ``masked`` (test, yes, no) is `yes` where the test holds, and loads below it are made there alone.
    ``checked`` (test, value, otherwise, shown; extra: `Check`) is `value` where the test holds. Where it does
    not it is `otherwise`, and the kernel fails: a printer sees to it that the caller gets to know, with
    `shown` (int64), as the `Check` says. It is no branch: a loop goes on with `otherwise`, and is a vector's.
    """

    __slots__ = ("args", "dtype", "extra", "op")
    _known: dict[tuple[object, ...], Expr] = {}  # noqa: RUF012 - shared on purpose

    op: str
    args: tuple[Expr, ...]
    extra: tuple[object, ...]
    dtype: torch.dtype

    @staticmethod
    def make(op: str, args: Sequence[Expr], dtype: torch.dtype, *extra: object) -> Expr:
        """The expression with these parts, made unless it exists."""
        key = Expr._key(op, args, dtype, extra)
        found = Expr._known.get(key)
        if found is None:
            found = Expr()
            found.op, found.args, found.dtype, found.extra = op, tuple(args), dtype, extra
            Expr._known[key] = found
        return found

    @staticmethod
    def _key(
        op: str, args: Sequence[Expr], dtype: torch.dtype, extra: Sequence[object]
    ) -> tuple[object, ...]:
        # repr tells 0.0 from -0.0 and keeps NaN equal to itself.
        return (op, tuple(map(id, args)), dtype, *(repr(e) if isinstance(e, float) else e for e in extra))

    @staticmethod
    def forget() -> None:
        """Drop the table of known expressions, once a plan is printed."""
        Expr._known.clear()

    @staticmethod
    def recall(exprs: Sequence[Expr]) -> None:
        """Make the table one of these expressions, to print a plan again as it was printed first."""
        Expr._known.clear()
        for expr in walk(exprs):
            Expr._known[Expr._key(expr.op, expr.args, expr.dtype, expr.extra)] = expr

    def __repr__(self) -> str:
        inside = ", ".join([*map(repr, self.args), *map(repr, self.extra)])
        return f"{self.op}({inside})"


def walk(exprs: Sequence[Expr]) -> Iterator[Expr]:
    """Every expression below some, each once, arguments first."""
    seen: set[int] = set()
    # Not by recursion: look-ups of look-ups are deeper than Python's stack.
    todo = [(expr, False) for expr in reversed(exprs)]
    while todo:
        expr, ready = todo.pop()
        if ready:
            yield expr
        elif id(expr) not in seen:
            seen.add(id(expr))
            todo.append((expr, True))
            todo += [(argument, False) for argument in reversed(expr.args)]


def load(buffer: Buffer, place: IndexExpr) -> Expr:
    """What a buffer holds at a place."""
    return Expr.make("load", place.computed(), buffer.dtype, buffer, place)


def index_value(place: IndexExpr) -> Expr:
    """An index as an int64 element."""
    return Expr.make("index", place.computed(), torch.int64, place)


@dataclasses.dataclass(frozen=True)
class Check:
    """What a ``checked`` expression looks at.

    Args:
        op: the op that asks for it, as torch spells it.
        size: of the axis that is indexed; 0 where a divisor must not be 0.
        axis: the axis.
        low: the smallest legal index.
    """

    op: str
    size: int = 0
    axis: int = 0
    low: int = 0

    def error(self, value: int) -> InputError:
        """What to raise for a value that fails."""
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


def bounds_checked(check: Check, test: Expr, value: Expr, otherwise: Expr, shown: Expr) -> Expr:
    """A value where a test holds; elsewhere another, and the kernel fails."""
    return Expr.make("checked", (test, value, otherwise, shown), value.dtype, check)


def reduction_result(fold: Reduction, at: Index) -> Expr:
    """The result of a fold at an index."""
    needed = {id(e): e for ix in at for e in ix.computed()}
    return Expr.make("reduced", list(needed.values()), fold.dtype, fold, at)


def scan_result(scan: Scan, at: Index) -> Expr:
    """The result of a scan at an index."""
    needed = {id(e): e for ix in at for e in ix.computed()}
    return Expr.make("scanned", list(needed.values()), scan.dtype, scan, at)


def materialized(value: Materialized, at: Index) -> Expr:
    """An element of a value that is computed once."""
    needed = {id(e): e for ix in at for e in ix.computed()}
    return Expr.make("kept", list(needed.values()), value.value.dtype, value, at)


# Expressions that hold indices, by what makes them.
_MAKERS: dict[str, Callable[..., Expr]] = {
    "load": load,
    "index": index_value,
    "reduced": reduction_result,
    "scanned": scan_result,
    "kept": materialized,
}


def variables(exprs: Sequence[Expr]) -> set[Var]:
    """The loop variables that expressions depend on."""
    found: set[Var] = set()
    for expr in walk(exprs):
        for place in index_exprs(expr):
            found |= {atom for atom in place.terms if isinstance(atom, Var)}
            for atom in place.terms:
                if isinstance(atom, Split):
                    found |= atom.inner.variables()
    return found


def index_exprs(expr: Expr) -> list[IndexExpr]:
    """The indices that an expression holds itself, not those of its arguments."""
    found: list[IndexExpr] = []
    for extra in expr.extra:
        if isinstance(extra, IndexExpr):
            found.append(extra)
        elif isinstance(extra, tuple):
            found += [ix for ix in extra if isinstance(ix, IndexExpr)]
    return found


def rebuild(
    expr: Expr,
    place: Callable[[IndexExpr], IndexExpr] = lambda ix: ix,
    swap: Callable[[Expr], Expr | None] = lambda expr: None,
) -> Expr:
    """An expression in another form, bottom up, also inside of computed indices.

    Args:
        expr: what is rebuilt.
        place: gives an index' own terms another form; its computed parts are rebuilt before.
        swap: what stands in the place of a rebuilt expression; None to leave it.
    """
    memo: dict[int, Expr] = {}

    def moved(ix: IndexExpr) -> IndexExpr:
        return place(_with_computed(ix, lambda e: memo[id(e)]))

    for e in walk([expr]):
        made = e
        if e.op in _MAKERS:
            extra = [
                moved(x) if isinstance(x, IndexExpr) else tuple(map(moved, x)) if isinstance(x, tuple) else x
                for x in e.extra
            ]
            made = _MAKERS[e.op](*extra)
        elif any(memo[id(a)] is not a for a in e.args):
            made = Expr.make(e.op, [memo[id(a)] for a in e.args], e.dtype, *e.extra)
        memo[id(e)] = swap(made) or made
    return memo[id(expr)]


def substitute(expr: Expr, mapping: dict[Var, IndexExpr]) -> Expr:
    """With indices in place of variables."""
    return rebuild(expr, lambda ix: _affine_replaced(ix, mapping))


def _affine_replaced(ix: IndexExpr, mapping: dict[Var, IndexExpr]) -> IndexExpr:
    result = IndexExpr(const=ix.const)
    for atom, c in ix.terms.items():
        if isinstance(atom, Var):
            result += mapping.get(atom, IndexExpr.of(atom)) * c
        elif isinstance(atom, Computed):
            result += IndexExpr({atom: c})
        else:
            inner = _affine_replaced(atom.inner, mapping)
            result += (inner // atom.by if atom.kind == "/" else inner % atom.by) * c
    return result


def _with_computed(ix: IndexExpr, change: Callable[[Expr], Expr]) -> IndexExpr:
    """An index with other expressions in its computed parts."""
    if not ix.computed():
        return ix
    result = IndexExpr(const=ix.const)
    for atom, c in ix.terms.items():
        if isinstance(atom, Computed):
            result += IndexExpr({Computed(change(atom.expr), atom.extent): c})
        elif isinstance(atom, Split):
            inner = _with_computed(atom.inner, change)
            result += (inner // atom.by if atom.kind == "/" else inner % atom.by) * c
        else:
            result += IndexExpr({atom: c})
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A tensor that is not in memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    at: Callable[[Index], Expr]

    def __post_init__(self) -> None:
        # What uses a value twice asks for its element twice, and so on down: without this, a chain of n
        # squares would take 2^n steps.
        object.__setattr__(self, "at", functools.cache(self.at))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Materialized:
    """A value of which each element is read several times.

    Args:
        value: what is kept.
        rows: scratch for one row of its last axis is enough, because what reads it walks along that axis. It
            is computed in place where that is cheap and there is no such scratch. Otherwise the value goes
            through memory.
    """

    value: Value
    rows: bool
