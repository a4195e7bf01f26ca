"""Formulas of optimizers: elementwise updates, written once for C, Triton and torch.

A formula is a Python function of two namespaces: ``s`` holds the tensors and scalars of one parameter, ``o``
the options. It reads and assigns their attributes, with operators and the functions below::

    def lion(s, o):
        update = sign(lerp(s.exp_avg, s.grad, 1 - o.beta1))
        s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta2)
        s.param = s.param - o.lr * update

With tensors and numbers in the namespaces it computes (`apply_eagerly`); with terms it builds expressions
(`trace`), which `foreach_c` and `foreach_triton` print. The scope of a term says how often it is computed:
once per step, per tensor, or per element. A number in an `if` is asked whether it is nonzero; a formula has
one kernel for each answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class Scope(IntEnum):
    """How often a term has to be computed."""

    STEP = 0
    TENSOR = 1
    ELEMENT = 2


def _operator(op: str) -> tuple[Callable[[Any, Any], Term], Callable[[Any, Any], Term]]:
    """Return the methods for an operator whose left, or right, operand is the term."""
    return lambda term, other: _combine(op, term, other), lambda term, other: _combine(op, other, term)


@dataclass(frozen=True, eq=False)
class Term:
    """An expression: `args` are its operands, or the value or name of a leaf.

    Leaves are ``"literal"``, ``"number"`` (an option), ``"factor"`` (of the gradients), ``"scalar"`` (one per
    tensor) and ``"element"``; other `op` are operations.
    """

    op: str
    args: tuple[Any, ...]
    scope: Scope
    is_nonzero: bool | None = None

    def __bool__(self) -> bool:
        if self.is_nonzero is None:
            raise TypeError("a formula can only branch on options other than lr")
        return self.is_nonzero

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")

    def __neg__(self) -> Term:
        return _combine("subtract", 0.0, self)


def _combine(op: str, *operands: Any) -> Term:
    terms = tuple(x if isinstance(x, Term) else Term("literal", (float(x),), Scope.STEP) for x in operands)
    return Term(op, terms, max(term.scope for term in terms))


# What formulas call. torch's functions differ for numbers, so those have their own.
_NUMBERS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "sqrt": math.sqrt,
    "power": lambda a, b: a**b,
    "where_greater": lambda a, b, yes, no: yes if a > b else no,
}
_TENSORS: dict[str, Callable[..., Tensor]] = {
    "sqrt": torch.sqrt,
    "absolute": torch.abs,
    "sign": torch.sign,
    "power": torch.pow,
    "maximum": torch.maximum,
    "lerp": lambda a, b, weight: torch.lerp(
        a, b, weight.to(a.dtype) if isinstance(weight, Tensor) else weight
    ),
    "where_greater": lambda a, b, yes, no: torch.where(a > b, yes, no),
}


def _call(op: str, *operands: Any) -> Any:
    if any(isinstance(x, Term) for x in operands):
        return _combine(op, *operands)
    return (_TENSORS if any(isinstance(x, Tensor) for x in operands) else _NUMBERS)[op](*operands)


sqrt = partial(_call, "sqrt")
absolute = partial(_call, "absolute")
sign = partial(_call, "sign")  # -1, 0 or 1; 0 for NaN
power = partial(_call, "power")  # of a number to a scalar
maximum = partial(_call, "maximum")  # NaN if one operand is NaN
lerp = partial(_call, "lerp")  # a + weight * (b - a), exact at both ends like torch's
where_greater = partial(_call, "where_greater")  # (a, b, yes, no): scalars or numbers


# --- reading a formula ------------------------------------------------------------------------------------


def fold(term: Term, numbers: Mapping[str, float]) -> float:
    """Return the value of a term of scope STEP."""
    if term.op == "literal":
        return float(term.args[0])
    if term.op == "number":
        return float(numbers[term.args[0]])
    return _NUMBERS[term.op](*(fold(arg, numbers) for arg in term.args))


@dataclass(frozen=True)
class Update:
    """An elementwise update of parameters and optimizer state: a kernel's `name` and its `formula`.

    The rest are names of what the formula reads or assigns: `elements` (tensors other than ``grad`` and
    ``ema``), `scalars` (scalar tensors: float32, or float64 in `wide`), and `values` (scalars that are
    numbers).
    """

    name: str
    formula: Callable[[Any, Any], None]
    elements: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trace:
    """A formula as terms.

    `elements` are in the order of their addresses; `results` are the new values of what the formula assigns.
    """

    update: Update
    elements: tuple[str, ...]
    results: Mapping[str, Term]
    options: tuple[str, ...]

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalars that the formula reads, in their order in a table."""
        return tuple(n for n in (*self.update.scalars, *self.update.values) if n in self.used)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """Names of the options that the formula reads as numbers."""
        return tuple(name for name in self.options if name in self.used)

    @cached_property
    def used(self) -> set[str]:
        """Names of the options, scalars and elements that the formula reads."""
        terms = [*self.results.values(), *(arg for term in self.terms() for arg in term.args)]
        return {term.args[0] for term in terms if term.op in ("number", "factor", "scalar", "element")}

    @cached_property
    def written(self) -> list[str]:
        """Names of the lists of tensors that are written."""
        return [name for name in self.elements if name in self.results]

    def terms(self) -> Iterator[Term]:
        """Iterate over all terms that have operands, operands first."""
        seen: set[Term] = set()

        def visit(term: Term) -> Iterator[Term]:
            if term not in seen and term.args and isinstance(term.args[0], Term):
                seen.add(term)
                for arg in term.args:
                    yield from visit(arg)
                yield term

        for result in self.results.values():
            yield from visit(result)


Options = Mapping[str, Any]


def trace(update: Update, elements: Iterable[str], options: Options) -> Trace:
    """Trace a formula; cached. Options that are floats become numbers, others are constants of the trace."""
    return _trace(
        update,
        tuple(elements),
        tuple(
            (name, name == "lr" or value != 0, None) if isinstance(value, float) else (name, None, value)
            for name, value in options.items()
        ),
    )


@cache
def _trace(
    update: Update, elements: tuple[str, ...], options: tuple[tuple[str, bool | None, Any], ...]
) -> Trace:
    o, s = SimpleNamespace(ema_weight=None), SimpleNamespace()
    for name, is_nonzero, value in options:
        if is_nonzero is not None:
            value = Term("number", (name,), Scope.STEP, None if name == "lr" else is_nonzero)
        setattr(o, name, value)
    before: dict[str, Term] = {}
    for name in (*update.scalars, *update.values):
        before[name] = Term("scalar", (name,), Scope.TENSOR)
    for name in elements:
        before[name] = Term("element", (name,), Scope.ELEMENT)
    vars(s).update(before)
    if "grad" in before:
        s.grad = before["grad"] * Term("factor", ("grad_factor",), Scope.STEP)
    update.formula(s, o)
    if "ema" in before:
        s.ema = lerp(before["ema"], s.param, o.ema_weight)
    results = {
        name: value for name, value in vars(s).items() if name != "grad" and value is not before.get(name)
    }
    return Trace(update, elements, results, tuple(name for name, _, _ in options))


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64; float32 on Metal, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def apply_eagerly(
    update: Update,
    elements: Mapping[str, Sequence[Tensor]],
    options: Options,
    scalars: Mapping[str, Sequence[Any]],
) -> None:
    """Apply an update with torch's operations, one tensor at a time; 16-bit elements in float32."""
    o = SimpleNamespace(**options)
    for i in range(len(next(iter(elements.values())))):
        tensors = {name: column[i] for name, column in elements.items()}
        # With an axis, as a scalar promotes a 0-dimensional tensor to its own dtype.
        before = {
            name: (t if t.dtype == torch.float64 else t.float()).reshape(t.shape or (1,))
            for name, t in tensors.items()
        }
        for name, column in scalars.items():
            if isinstance(column[i], Tensor):
                tensors[name], before[name] = column[i], column[i].to(wide_dtype(column[i].device))
        s = SimpleNamespace(**{name: column[i] for name, column in scalars.items()} | before)
        update.formula(s, o)
        for name, tensor in tensors.items():
            if name != "grad" and vars(s)[name] is not before[name]:
                tensor.copy_(vars(s)[name].reshape(tensor.shape))
