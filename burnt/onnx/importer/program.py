"""Programs: statements that call functions, which can be evaluated, or printed as Python.

A statement is ``outputs = function(arguments)``. Arguments are expressions: names of earlier results, sizes
of tensors, arithmetic on sizes, constants, and lists of these. Bodies of loops and branches are programs of
their own, and see the names around them, as nested functions do.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F

from burnt.onnx import functions
from burnt.onnx.functions import truncated_div


@dataclass(frozen=True)
class Name:
    """A result, an input, or an attribute of the module (``self.weight``)."""

    name: str


@dataclass(frozen=True)
class Size:
    """The size of an axis of a tensor, ``x.shape[0]``, or the sizes of all."""

    tensor: Name
    axis: int | None  # its number; None stands for all axes, ``x.shape``


@dataclass(frozen=True)
class Device:
    """The device of a tensor, for tensors that are created: ``x.device``."""

    tensor: Name


@dataclass(frozen=True)
class Arithmetic:
    """Integer arithmetic on sizes."""

    # an operator, ``+``, ``-``, ``*``, ``//``, ``%`` or ``/``, or a function of two numbers, ``min``,
    # ``max`` or ``ops.truncated_div``.
    symbol: str
    left: Expr
    right: Expr


Expr: TypeAlias = (
    "Name | Size | Device | Arithmetic | int | float | bool | str | torch.dtype | tuple[Expr, ...] "
    "| list[Expr] | None"
)

Leaf: TypeAlias = "Name | Size | Device"
"""What an expression reads."""

Replace: TypeAlias = "Callable[[Leaf], Any]"
Rename: TypeAlias = Callable[[str], str]


@dataclass(frozen=True)
class Call:
    """A call of a function."""

    function: str  # ``torch.add``, ``F.conv2d``, ``ops.pad``, or a layer of the module, ``self.conv``
    args: tuple[Expr, ...] = ()
    kwargs: Mapping[str, Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """A call and the names of its results: none, one, or several that it returns as a tuple."""

    outputs: tuple[str, ...]
    call: Call

    @functools.cached_property
    def reads(self) -> Counter[str]:
        """How often each name is read, the function's included; not to be changed."""
        return Counter([self.call.function, *names_in(self.call)])

    def replaced(self, leaf: Replace, name: Rename = str) -> Statement:
        """Return the statement with other leaves in its arguments, and another name of its function."""
        args = replace_leaves(self.call.args, leaf)
        kwargs = {key: replace_leaves(value, leaf) for key, value in self.call.kwargs.items()}
        return Statement(self.outputs, Call(name(self.call.function), args, kwargs))


@dataclass(frozen=True)
class Define:
    """The definition of a nested function."""

    name: str
    program: Program

    @property
    def outputs(self) -> tuple[str, ...]:
        """The name of the function."""
        return (self.name,)

    @property
    def reads(self) -> Counter[str]:
        """The names that it reads from around it, once each."""
        return Counter(self.program.free_names())

    def replaced(self, leaf: Replace, name: Rename = str) -> Define:
        """Return a definition whose statements have other leaves and names of functions."""
        return Define(self.name, self.program.replaced(leaf, name))


@dataclass(frozen=True)
class Repeat:
    """Calls of modules in order, each with the results of the one before: a loop of written Python."""

    outputs: tuple[str, ...]  # names of the results of the last one
    modules: str  # the list, ``self.layers``, or the module that is called again and again
    initial: tuple[Expr, ...]  # what the first one gets, as many as there are outputs
    args: tuple[Expr, ...] = ()  # further arguments, the same for all
    count: int | None = None  # how often a single module is called; None for a list

    @functools.cached_property
    def reads(self) -> Counter[str]:
        """How often each name is read, the list's included; not to be changed."""
        return Counter([self.modules, *names_in((*self.initial, *self.args))])

    def replaced(self, leaf: Replace, name: Rename = str) -> Repeat:
        """Return the loop with other leaves in its arguments, and another name of its modules."""
        initial, args = replace_leaves(self.initial, leaf), replace_leaves(self.args, leaf)
        return Repeat(self.outputs, name(self.modules), initial, args, self.count)


@dataclass
class Program:
    """Statements with inputs and outputs."""

    inputs: list[str]
    # what is returned: one expression, or several as a tuple.
    outputs: list[Expr] = field(default_factory=list)
    # in order; complete before the program runs. Those of a module that runs have no `Repeat`.
    statements: list[Statement | Define | Repeat] = field(default_factory=list)
    # the statements and outputs as `run_program` runs them, from its first run on.
    plan: Any = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"plan": None}  # it has functions that cannot be pickled

    def free_names(self) -> set[str]:
        """Return the names that the program reads from around it."""
        known, free = set(self.inputs), set()
        for statement in self.statements:
            free |= statement.reads.keys() - known
            known.update(statement.outputs)
        return free | (set(names_in(self.outputs)) - known)

    def replaced(self, leaf: Replace, name: Rename = str) -> Program:
        """Return a program whose statements have other leaves and names of functions."""
        outputs = replace_leaves(self.outputs, leaf)
        return Program(list(self.inputs), outputs, [one.replaced(leaf, name) for one in self.statements])

    def renamed(self, name: Rename) -> Program:
        """Return a program that reads and calls other names."""
        return self.replaced(renaming(name), name)

    def remove_unused(self) -> None:
        """Remove statements whose results nothing reads."""
        needed = set(names_in(self.outputs))
        kept: list[Statement | Define | Repeat] = []
        for statement in reversed(self.statements):
            if not needed.isdisjoint(statement.outputs):
                if isinstance(statement, Define):
                    statement.program.remove_unused()
                needed |= statement.reads.keys()
                kept.append(statement)
        self.statements = kept[::-1]

    def last_uses(self) -> list[tuple[str, ...]]:
        """Return after each statement the names that are not used any more, so that memory can be freed."""
        bodies = {s.name: s.program.free_names() for s in self.statements if isinstance(s, Define)}

        def with_bodies(names: set[str]) -> set[str]:
            """Add what nested functions read, which is needed as long as they are."""
            found, stack = set(names), list(names)
            while stack:
                more = bodies.get(stack.pop(), set()) - found
                found |= more
                stack += more
            return found

        later = with_bodies(set(names_in(self.outputs)))
        dead: list[tuple[str, ...]] = []
        for statement in reversed(self.statements):
            used = with_bodies(set(statement.reads))
            dead.append(tuple(sorted(n for n in (used.union(statement.outputs)) - later if "." not in n)))
            later |= used
        return dead[::-1]


def parts(expr: Any) -> Iterable[Any]:
    """Return what an expression consists of: operands, elements, or the arguments of a call."""
    if isinstance(expr, Call):
        return (*expr.args, *expr.kwargs.values())
    if isinstance(expr, Arithmetic):
        return expr.left, expr.right
    return expr if isinstance(expr, tuple | list) else ()


def leaves(expr: Any) -> Iterator[Leaf]:
    """Yield the names, sizes and devices in an expression or a call."""
    if isinstance(expr, Name | Size | Device):
        yield expr
    for part in parts(expr):
        yield from leaves(part)


def replace_leaves(expr: Any, leaf: Replace) -> Any:
    """Return an expression or a call with other names, sizes and devices."""
    if isinstance(expr, Name | Size | Device):
        return leaf(expr)
    if isinstance(expr, Arithmetic):
        return Arithmetic(expr.symbol, replace_leaves(expr.left, leaf), replace_leaves(expr.right, leaf))
    if isinstance(expr, tuple | list):
        return type(expr)(replace_leaves(part, leaf) for part in expr)
    if isinstance(expr, Call):
        kwargs = {key: replace_leaves(value, leaf) for key, value in expr.kwargs.items()}
        return replace(expr, args=replace_leaves(expr.args, leaf), kwargs=kwargs)
    return expr


def renaming(name: Rename) -> Replace:
    """Return what gives leaves other names."""

    def renamed(leaf: Leaf) -> Leaf:
        if isinstance(leaf, Name):
            return Name(name(leaf.name))
        tensor = Name(name(leaf.tensor.name))
        return Size(tensor, leaf.axis) if isinstance(leaf, Size) else Device(tensor)

    return renamed


def name_of(leaf: Leaf) -> Name:
    """Return the name that a leaf of an expression reads: of ``x.shape[0]`` it is ``x``."""
    return leaf if isinstance(leaf, Name) else leaf.tensor


def names_in(expr: Any) -> Iterator[str]:
    """Yield the names in an expression or the arguments of a call."""
    for leaf in leaves(expr):
        yield name_of(leaf).name


class Reads:
    """How often each name of a program, which is not changed afterwards, is read, and where."""

    def __init__(self, program: Program) -> None:
        self.of_statement = [statement.reads for statement in program.statements]
        self.total = sum_reads([*self.of_statement, Counter(names_in(program.outputs))])

    def within(self, start: int, end: int) -> Counter[str]:
        """Return the reads of statements."""
        return sum_reads(self.of_statement[start:end])


def sum_reads(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Return how often names are read in all of several places."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total


_SYMBOLS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "min": min,
    "max": max,
    "ops.truncated_div": truncated_div,
}


def getter(expr: Expr) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that gives the value of an expression for the values of names.

    >>> getter(Arithmetic("+", Name("n"), 1))({"n": 2})
    3
    """
    if isinstance(expr, Name):
        return operator.itemgetter(expr.name)
    if isinstance(expr, Size):
        tensor, axis = expr.tensor.name, expr.axis
        if axis is None:
            return lambda names: names[tensor].shape
        return lambda names: names[tensor].shape[axis]
    if isinstance(expr, Device):
        tensor = expr.tensor.name
        return lambda names: names[tensor].device
    if isinstance(expr, Arithmetic):
        compute, left, right = _SYMBOLS[expr.symbol], getter(expr.left), getter(expr.right)
        return lambda names: compute(left(names), right(names))
    if isinstance(expr, tuple) and len(expr) > 1 and all(isinstance(part, Name) for part in expr):
        return operator.itemgetter(*names_in(expr))
    if isinstance(expr, tuple) and any(names_in(expr)):
        parts = [getter(part) for part in expr]
        return lambda names: tuple([part(names) for part in parts])
    if isinstance(expr, list):  # always a new one
        parts = [getter(part) for part in expr]
        return lambda names: [part(names) for part in parts]
    return lambda names: expr


_NAMESPACES = {"torch": torch, "F": F, "ops": functions}


def run_program(program: Program, inputs: tuple[Any, ...], outer: Callable[[str], Any]) -> tuple[Any, ...]:
    """Run a program."""
    names = _Scope(outer)
    names.update(zip(program.inputs, inputs, strict=True))
    if program.plan is None:
        program.plan = _steps(program), [getter(output) for output in program.outputs]
    steps, results = program.plan
    for function, name, args, kwargs, outputs, dead in steps:
        function = function or names[name]
        if kwargs:
            result = function(*args(names), **{key: value(names) for key, value in kwargs.items()})
        else:
            result = function(*args(names))
        if len(outputs) == 1:
            names[outputs[0]] = result
        elif outputs:
            names.update(zip(outputs, result, strict=True))
        for used in dead:
            del names[used]
    return tuple([value(names) for value in results])


class _Step(NamedTuple):
    """A statement, prepared to be run often."""

    # what is called; None for a layer or a nested function, which is looked up by its name.
    function: Callable[..., Any] | None
    name: str
    # returns the tuple of positional arguments for the values of names.
    args: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    # functions that likewise return the keyword arguments.
    kwargs: dict[str, Callable[[Mapping[str, Any]], Any]]
    outputs: tuple[str, ...]
    dead: list[str]  # names that no later statement reads


def _steps(program: Program) -> list[_Step]:
    own = set(program.inputs)
    steps = []
    for statement, names in zip(program.statements, program.last_uses(), strict=True):
        if isinstance(statement, Define):
            define = functools.partial(_function, statement.program)
            step = _Step(define, statement.name, lambda names: (names,), {}, (statement.name,), [])
        else:
            assert isinstance(statement, Statement)
            call = statement.call
            step = _Step(
                _find(call.function),
                call.function,
                getter(call.args),
                {key: getter(value) for key, value in call.kwargs.items()},
                statement.outputs,
                [],
            )
        own.update(step.outputs)
        step.dead.extend(name for name in names if name in own)  # others are of the program around it
        own.difference_update(step.dead)
        steps.append(step)
    return steps


class _Scope(dict[str, Any]):
    """Names of a function, with those around it."""

    def __init__(self, outer: Callable[[str], Any]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Any:
        return self.outer(name)


def _function(program: Program, outer: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a nested function; its program has one output, a tuple."""

    def call(*inputs: Any) -> Any:
        return run_program(program, inputs, outer.__getitem__)[0]

    return call


def _find(path: str) -> Callable[..., Any] | None:
    """Return a function of `_NAMESPACES`; None for layers and nested functions."""
    root, *rest = path.split(".")
    if root not in _NAMESPACES:
        return None
    found: Any = _NAMESPACES[root]
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
