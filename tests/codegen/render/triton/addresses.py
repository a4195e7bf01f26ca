"""Compute the exact ranges of the integers in a Triton kernel's addresses, masks and loop bounds.

A launch is recorded, with tensors on the meta device, and the kernel is translated to TTIR, Triton's first
intermediate representation: 0.1 s, without a GPU. `check` then evaluates every integer operation of that text
as an interval of Python integers: program ids, loop variables and padded lanes take all of their values. An
operation whose exact result does not fit into its type is an overflow if an address, a mask or a loop bound
depends on it. Small tensors that are computed from known values are evaluated element by element. The rules
that choose between 32 and 64 bits are not used.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from triton._C.libtriton import ir
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from burnt.codegen.ir import Buffer
from burnt.codegen.render.triton.source import FailedFlag, ScalarArg, TritonSource, Workspace
from burnt.codegen.runtime.triton_launch import load
from tests.codegen.render.triton.ahead import TARGETS, driven

__all__ = ["Found", "Launched", "check", "launches_of", "recorded", "translated"]

Range = tuple[int, int]
Exact = np.ndarray[Any, np.dtype[np.int64]]
_LOADED = re.compile(r"tensor<(?:\d+x)*(.+)>")


@dataclasses.dataclass(frozen=True, eq=False)
class Launched:
    """A recorded launch: the kernel, its arguments, its options and its grid."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    grid: tuple[int, ...]

    @property
    def name(self) -> str:
        """The kernel's module and name."""
        return f"{self.kernel.fn.__module__}.{self.kernel.fn.__name__}"


@contextmanager
def recorded() -> Iterator[list[Launched]]:
    """Record launches instead of executing them."""
    launches: list[Launched] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launches.append(Launched(self, args, options, tuple(grid)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        yield launches


@dataclasses.dataclass(frozen=True)
class Translated:
    """A kernel as TTIR.

    Args:
        text: after inlining and simplification.
        functions: the Triton functions that it calls, as ``module.name``.
        integers: the values of the integer arguments, by name in the text.
        pointers: the names of its tensor arguments, by name in the text.
    """

    text: str
    functions: frozenset[str]
    integers: dict[str, int]
    pointers: dict[str, str]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _leaf_names(name: str, value: Any) -> list[str]:
    """Return a name for each of `_leaves`: of the argument, or of the named tuple's field."""
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", [name] * len(value))
        return [leaf for field, each in zip(names, value, strict=True) for leaf in _leaf_names(field, each)]
    return [name]


@functools.cache
def translated(launched: Launched, target: str = "sm_90") -> Translated:
    """Return a launch's kernel as TTIR."""
    with driven(TARGETS[target]):
        kernel = JITFunction(launched.kernel.fn, do_not_specialize=launched.kernel.do_not_specialize)
        _, _, machine, backend, binder = kernel.device_caches[0]
        arguments = {"debug": False, "instrumentation_mode": "", **launched.options}
        bound, specialization, _ = binder(*launched.args, **arguments)
        options, signature, constants, attributes = kernel._pack_args(
            backend, arguments, bound, specialization, None
        )
        source = ASTSource(kernel, signature, constants, attributes)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        module = source.make_ir(
            machine, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
        )
        called = set(re.findall(r"tt\.func \w+ @\"?([\w.]+?)__", module.str_nodebug()))
        stages: dict[str, Callable[..., Any]] = {}
        backend.add_stages(stages, options, source.language)
        text = stages["ttir"](module, {}).str_nodebug()
    signature_match = re.search(r"tt\.func public @\w+\((.*?)\) attributes", text)
    assert signature_match is not None
    names = re.findall(r"%([\w.$'-]+):", signature_match[1])
    tensors_and_numbers = [
        (name, kind, value)
        for argument in signature
        if signature[argument] != "constexpr"
        for name, kind, value in zip(
            _leaf_names(argument, bound[argument]),
            _leaves(signature[argument]),
            _leaves(bound[argument]),
            strict=True,
        )
        if kind != "constexpr"
    ]
    integers, pointers = {}, {}
    for name, (argument, kind, value) in zip(names, tensors_and_numbers, strict=True):
        if str(kind).startswith("*"):
            pointers[name] = argument
        elif isinstance(value, int):
            integers[name] = int(value)
    return Translated(text, frozenset(called), integers, pointers)


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of `check`.

    Args:
        overflows: operations whose exact result does not fit into their type, as messages.
        widest: bits of the widest offset into a tensor: 32 or 64.
    """

    overflows: tuple[str, ...]
    widest: int


def check(
    launched: Launched,
    loaded: Mapping[str, Range | list[int]] | None = None,
    programs: Sequence[int] | None = None,
    target: str = "sm_90",
) -> Found:
    """Evaluate the integers of a launch.

    Args:
        launched: the launch.
        loaded: ranges of the values in integer tensors, or all values as a list, by argument name.
        programs: program ids to evaluate one by one; None evaluates the whole grid as one interval.
        target: what to translate for.
    """
    kernel = translated(launched, target)
    region, _ = _parsed(iter(kernel.text.splitlines()))
    relevant = _relevant(region)
    overflows: dict[str, None] = {}
    grid = [*launched.grid, 1, 1][:3]
    for first in [(0, grid[0] - 1)] if programs is None else [(p, p) for p in programs]:
        evaluation = _Evaluation(
            kernel, relevant, dict(loaded or {}), [first, (0, grid[1] - 1), (0, grid[2] - 1)]
        )
        evaluation.region(region)
        overflows |= dict.fromkeys(evaluation.overflows)
    widths = [
        bits
        for op in _walk(region)
        if op.name == "tt.addptr" and (bits := re.search(r"tensor<[\dx]*xi(\d+)>$", op.type)) is not None
    ]
    return Found(tuple(overflows), max((int(w[1]) for w in widths), default=32))


# --- the text ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Op:
    """An operation: its results, name, operands, attributes, final type and regions."""

    results: list[str]
    name: str
    operands: list[str]
    text: str
    type: str
    regions: list[list[_Op]] = dataclasses.field(default_factory=list)
    arguments: list[str] = dataclasses.field(default_factory=list)


_LINE = re.compile(r"^(?:(%[\w.$'-]+)(?::(\d+))?((?:, %[\w.$'-]+)*) = )?\"?([\w.]+)\"?(.*)$")
_NAME = re.compile(r"%[\w.$'-]+(?:#\d+)?")
_BASE = re.compile(r"%[\w.$'-]+")


class _Names:
    """Make names unique in the whole text: sibling regions may reuse a name."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def define(self, scope: dict[str, str], name: str) -> None:
        """Define a name in its scope."""
        unique = name
        while unique in self.used:
            unique += "'"
        self.used.add(unique)
        scope[name] = unique


def _renamed(line: str, scope: Mapping[str, str]) -> str:
    return _BASE.sub(lambda m: scope.get(m[0], m[0]), line)


def _parsed(
    lines: Iterator[str], names: _Names | None = None, scope: dict[str, str] | None = None
) -> tuple[list[_Op], str]:
    """Return the operations of a region and the line that ends it."""
    names, scope, operations = names or _Names(), {} if scope is None else scope, []
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith(("module", "^", "tt.func", "#", "//")):
            continue
        if line.startswith("}"):
            return operations, line
        defined = line.partition(" = ")[0] if line.startswith("%") else ""
        for name in _BASE.findall(defined):
            names.define(scope, name)
        inner = dict(scope)
        if "scf.for" in line:
            head, _, carried = line.partition("scf.for ")[2].partition("iter_args(")
            for name in [head.split()[0], *re.findall(r"(%[\w.$'-]+) = ", carried)]:
                names.define(inner, name)
        line = _renamed(line, inner)
        matched = _LINE.match(line)
        assert matched is not None, line
        first, count, further, kind, rest = matched.groups()
        results = [f"{first}#{k}" for k in range(int(count))] if count else [first] * (first is not None)
        results += _NAME.findall(further or "")
        op = _Op(results, kind, [], rest, "")
        if line.endswith(("{", "({")):
            end = "} else {"
            while end.startswith(("} else", "}, {", "} do")):
                region, end = _parsed(lines, names, dict(inner))
                op.regions.append(region)
            op.text += " " + _renamed(end, scope)
        before, _, after = op.text.partition(" : ") if " : " in op.text else (op.text, "", "")
        op.operands = _NAME.findall(before)
        op.type = re.split(r" -> | to ", after)[-1].strip() if after else ""
        operations.append(op)
    return operations, ""


def _walk(region: Sequence[_Op]) -> Iterator[_Op]:
    for op in region:
        yield op
        for inner in op.regions:
            yield from _walk(inner)


_FOR = re.compile(r"(%[\w.$'-]+) = (%[\w.$'-]+(?:#\d+)?) to (%[\w.$'-]+(?:#\d+)?) step (%[\w.$'-]+(?:#\d+)?)")
_ELEMENTS = re.compile(r"(?:^|x)b?f\d+>?$")
_CARRIED = re.compile(r"(%[\w.$'-]+) = (%[\w.$'-]+(?:#\d+)?)")


def _loop(op: _Op) -> tuple[str, list[str], list[tuple[str, str]]]:
    """Return a loop's variable, its bounds and step, and what it carries with the initial values."""
    head = _FOR.search(op.text)
    assert head is not None, op.text
    carried = re.search(r"iter_args\((.*?)\) ->", op.text)
    return head[1], [head[2], head[3], head[4]], _CARRIED.findall(carried[1]) if carried else []


def _relevant(region: Sequence[_Op]) -> tuple[set[str], set[str]]:
    """Return the values that addresses depend on, and those that masks, loop bounds or branches do."""
    operands_of: dict[str, list[str]] = {}
    addresses: list[str] = []
    conditions: list[str] = []
    for op in _walk(region):
        operands = list(op.operands)
        if op.name == "scf.for":
            _, bounds, carried = _loop(op)
            conditions += bounds
            last = op.regions[0][-1].operands if carried else []
            for k, (name, start) in enumerate(carried):
                operands_of[name] = [start, last[k]]
                operands_of[op.results[k]] = [start, last[k]]
            continue
        if op.name == "scf.if":
            conditions += operands[:1]
            for k, result in enumerate(op.results):
                operands_of[result] = [r[-1].operands[k] for r in op.regions]
            continue
        if op.name in ("tt.load", "tt.store"):
            addresses += operands[:1]
            conditions += operands[1:2] if op.name == "tt.load" else operands[2:]
        elif "descriptor" in op.name or op.name == "tt.addptr":
            addresses += operands
        # A loaded value does not depend on its address. Floating-point elements are never part of an address.
        if op.name != "tt.load" and not _ELEMENTS.search(op.type):
            for result in op.results:
                operands_of[result] = operands
    return _reached(addresses, operands_of), _reached(conditions, operands_of)


def _reached(roots: list[str], operands_of: Mapping[str, list[str]]) -> set[str]:
    visited: set[str] = set()
    while roots:
        name = roots.pop()
        if name not in visited:
            visited.add(name)
            roots += operands_of.get(name, [])
    return visited


# --- values -----------------------------------------------------------------------------------------------


def _bits(text: str) -> int | None:
    """Return the bits of an integer type's elements."""
    inner = _LOADED.fullmatch(text)
    bits = re.fullmatch(r"i(\d+)", inner[1] if inner else text)
    return int(bits[1]) if bits else "index" and (64 if text == "index" else None)


def _full(bits: int | None) -> Range | None:
    """Return the range of a type; None if it is not an integer."""
    return None if bits is None else (0, 1) if bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _join(a: Range | None, b: Range | None) -> Range | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero, as hardware does


def _divided(a: Range, b: Range) -> Range | None:
    if b[0] <= 0 <= b[1]:
        return None
    corners = [_quotient(x, y) for x in a for y in b]
    corners += [0] if a[0] <= 0 <= a[1] else []
    return min(corners), max(corners)


def _remainder(a: Range, b: Range) -> Range | None:
    if b[0] <= 0:
        return None
    if a[0] == a[1] and b[0] == b[1]:
        rest = a[0] - _quotient(a[0], b[0]) * b[0]
        return rest, rest
    if a[0] >= 0 and a[1] < b[0]:
        return a
    bound = min(b[1] - 1, max(abs(a[0]), abs(a[1])))
    return (0 if a[0] >= 0 else -bound), bound if a[1] > 0 else 0


_ARITHMETIC: dict[str, Callable[[Range, Range], Range | None]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": lambda a, b: (min(c := [x * y for x in a for y in b]), max(c)),
    "arith.divsi": _divided,
    "arith.divui": lambda a, b: _divided(a, b) if a[0] >= 0 and b[0] > 0 else None,
    "arith.remsi": _remainder,
    "arith.remui": lambda a, b: _remainder(a, b) if a[0] >= 0 else None,
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "arith.minui": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])) if min(a[0], b[0]) >= 0 else None,
    "arith.maxui": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])) if min(a[0], b[0]) >= 0 else None,
    "arith.shli": lambda a, b: (a[0] << b[0], a[1] << b[0]) if b[0] == b[1] else None,
    "arith.shrsi": lambda a, b: (a[0] >> b[0], a[1] >> b[0]) if b[0] == b[1] else None,
    "arith.shrui": lambda a, b: (a[0] >> b[0], a[1] >> b[0]) if b[0] == b[1] and a[0] >= 0 else None,
}
_COMPARED: dict[str, Callable[[Range, Range], Range]] = {
    "slt": lambda a, b: (int(a[1] < b[0]), int(a[0] < b[1])),
    "sle": lambda a, b: (int(a[1] <= b[0]), int(a[0] <= b[1])),
    "sgt": lambda a, b: (int(a[0] > b[1]), int(a[1] > b[0])),
    "sge": lambda a, b: (int(a[0] >= b[1]), int(a[1] >= b[0])),
}
_SAME = {
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "arith.extsi", "tt.split",
    "ttg.convert_layout", "arith.index_cast",
}  # fmt: skip


def _truncated(a: Exact, b: Exact) -> Exact:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _shape(text: str) -> tuple[int, ...]:
    """Return the shape of a tensor type; () for others."""
    sizes = re.match(r"tensor<((?:\d+x)+)", text)
    return tuple(int(size) for size in sizes[1].split("x")[:-1]) if sizes else ()


def _ends(elements: Exact) -> Range:
    return int(elements.min()), int(elements.max())


_FEW = 1024
"""Elements of a tensor that are evaluated one by one."""
_ELEMENTWISE: dict[str, Any] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.divsi": _truncated,
    "arith.remsi": lambda a, b: a - _truncated(a, b) * b, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
}  # fmt: skip
_COMPARISONS: dict[str, Any] = {
    "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip


class _Evaluation:
    """Evaluate a kernel's integers as intervals."""

    def __init__(
        self,
        kernel: Translated,
        relevant: tuple[set[str], set[str]],
        loaded: dict[str, Range | list[int]],
        programs: list[Range],
    ) -> None:
        (self.addresses, self.conditions), self.programs = relevant, programs
        self.loaded = {
            name: (min(known), max(known)) if isinstance(known, list) else known
            for name, known in loaded.items()
        }
        self.elements = {name: np.array(known) for name, known in loaded.items() if isinstance(known, list)}
        self.exact: dict[str, Exact] = {}  # of pointers: the offset
        self.data: set[str] = (
            set()
        )  # derived from elements: comparisons of these may wrap around as elements do
        self.values: dict[str, Range | None] = {f"%{k}": (v, v) for k, v in kernel.integers.items()}
        self.origin = {f"%{name}": tensor for name, tensor in kernel.pointers.items()}
        self.overflows: dict[str, None] = {}

    def region(self, ops: Sequence[_Op]) -> list[Range | None]:
        """Evaluate operations in order; return what the last one yields."""
        for op in ops:
            if op.name == "scf.yield":
                return [self.values.get(name) for name in op.operands]
            if op.name == "scf.for":
                self.loop(op)
            elif op.name == "scf.if":
                self.branch(op)
            else:
                self.step(op)
        return []

    def loop(self, op: _Op) -> None:
        """Evaluate a loop: its first and last iteration if the bounds are known, else all of them at once."""
        variable, (low, high, step), carried = _loop(op)
        begin, end, stride = (self.values[name] for name in (low, high, step))
        assert begin is not None
        assert end is not None
        assert stride is not None
        yielded = op.regions[0][-1].operands
        types = dict(zip((name for name, _ in carried), self._types(op), strict=True))
        first = [self.values.get(start) for _, start in carried]
        results = list(first)
        if begin[0] < end[1]:
            if begin[0] == begin[1] and end[0] == end[1] and stride[0] == stride[1]:
                last = begin[0] + (end[0] - 1 - begin[0]) // stride[0] * stride[0]
                iterations: list[Range] = [(begin[0], begin[0]), (last, last)]
            else:
                iterations = [(begin[0], end[1] - 1)]
            after = (
                iterations[-1][1] + stride[1]
            )  # the final value of the counter, which is compared with the end
            if op.type.startswith("i32") and after >= 2**31:
                self.overflows[f"the counter of a loop: {after:,}"] = None
            for iteration in iterations:
                self.values[variable] = iteration
                for name in (variable, *(name for name, _ in carried)):
                    self.exact.pop(name, None)
                for k, (name, start) in enumerate(carried):
                    self.origin[name] = self.origin.get(start, "")
                    # A carried value that changes may be any value of its type.
                    self.values[name] = first[k] if yielded[k] in (name, start) else _full(_bits(types[name]))
                yields = self.region(op.regions[0])
                results = [_join(a, b) for a, b in zip(results, yields, strict=True)]
        for k, result in enumerate(op.results or []):
            self.exact.pop(result, None)
            self.values[result] = results[k]
            self.origin[result] = self.origin.get(carried[k][1], "")
        if len(op.results) == 1 and not op.results[0].endswith("#0"):
            self.values[f"{op.results[0]}#0"] = results[0]

    @staticmethod
    def _types(op: _Op) -> list[str]:
        match = re.search(r"-> \((.*?)\)\s*:", op.text)
        if match is None:
            return []
        return [t.strip() for t in re.split(r", (?![^<]*>)", match[1])]

    def branch(self, op: _Op) -> None:
        """Evaluate a branch: both sides, or the one that is executed."""
        condition = self.values.get(op.operands[0], (0, 1)) or (0, 1)
        regions = [
            r for r, value in zip(op.regions, (1, 0), strict=False) if condition[0] <= value <= condition[1]
        ]
        yields = [self.region(r) for r in regions]
        for k, result in enumerate(op.results):
            self.exact.pop(result, None)
            self.values[result] = yields[0][k] if len(yields) == 1 else _join(yields[0][k], yields[1][k])

    def overflow(self, op: _Op, exact: Range) -> None:
        """Record an operation whose exact result does not fit."""
        name = op.results[0]
        if name in self.addresses or (name in self.conditions and name not in self.data):
            self.overflows[f"{name} = {op.name}: {exact[0]:,} to {exact[1]:,}"] = None

    def step(self, op: _Op) -> None:
        """Evaluate one operation."""
        is_unknown_load = op.name == "tt.load" and self.origin.get(op.operands[0], "") not in self.loaded
        if is_unknown_load or self.data.intersection(op.operands):
            self.data.update(op.results)
        operands = [self.values.get(name) for name in op.operands]
        elements = self.elementwise(op)
        # A load's type is its pointer's.
        bits = _bits(re.sub(r"!tt\.ptr<(\w+)>", r"\1", op.type) if op.name == "tt.load" else op.type)
        value: Range | None = None
        if op.name == "arith.constant":
            value = self.constant(op)
            bits = None
        elif op.name == "tt.make_range":
            ends = dict(re.findall(r"(end|start) = (\d+)", op.text))
            value = int(ends["start"]), int(ends["end"]) - 1
        elif op.name == "tt.get_program_id":
            value = self.programs["xyz".index(op.text.split()[0])]
        elif op.name in _ARITHMETIC and bits not in (None, 1):
            a, b = operands
            exact = None if a is None or b is None else _ARITHMETIC[op.name](a, b)
            exact = exact if elements is None else _ends(elements)
            type_range = _full(bits)
            assert type_range is not None
            if (
                exact is not None
                and bits == 32
                and not type_range[0] <= exact[0] <= exact[1] <= type_range[1]
            ):
                self.overflow(op, exact)
                exact = type_range
            value = exact
        elif op.name == "arith.trunci" and bits is not None and operands[0] is not None:
            low, high = _full(bits) or (0, 0)
            value = operands[0] if low <= operands[0][0] and operands[0][1] <= high else None
            if value is None and bits == 32:
                self.overflow(op, operands[0])
        elif op.name == "arith.cmpi":
            kind = op.text.split(",")[0].strip()
            a, b = operands
            is_known = kind in _COMPARED and a is not None and b is not None
            value, bits = (_COMPARED[kind](a, b) if is_known else (0, 1)), None  # type: ignore[arg-type]
        elif op.name == "arith.select":
            condition, a, b = operands
            value = a if condition == (1, 1) else b if condition == (0, 0) else _join(a, b)
            self.origin[op.results[0]] = self.origin.get(op.operands[1], "")
        elif op.name == "arith.extui":
            value = operands[0] if operands[0] is not None and operands[0][0] >= 0 else None
        elif op.name in _SAME:
            value = operands[0]
            for result in op.results:
                self.origin[result] = self.origin.get(op.operands[0], "")
        elif op.name == "tt.addptr":
            self.origin[op.results[0]] = self.origin.get(op.operands[0], "")
        elif op.name == "tt.load" and bits is not None:
            value = self.loaded.get(self.origin.get(op.operands[0], ""))
            other = operands[2] if len(operands) > 2 else None
            value = value if other is None else _join(value, other)
        elif op.name == "tt.reduce" and op.regions:
            kind = {inner.name for inner in op.regions[0]}
            value = operands[0] if kind & {"arith.minsi", "arith.maxsi"} else None
        for inner in op.regions:  # of reductions: elements, not addresses
            assert not any(o.name in ("tt.addptr", "scf.for") for o in _walk(inner)), op.text
        if elements is not None and op.name != "tt.addptr":
            limits, reached = _full(bits), _ends(elements)
            if limits is None or limits[0] <= reached[0] <= reached[1] <= limits[1]:
                value = reached
            else:
                elements = None
        for result in op.results:
            self.values[result] = _full(bits) if value is None else value
            self.exact.pop(result, None)
            if elements is not None:
                self.exact[result] = elements

    def elementwise(self, op: _Op) -> Exact | None:
        """Evaluate an operation element by element; None if an operand is not known, or large."""
        shape = _shape(op.type)
        if math.prod(shape) > _FEW:
            return None
        if op.name == "tt.make_range":
            ends = dict(re.findall(r"(end|start) = (\d+)", op.text))
            return np.arange(int(ends["start"]), int(ends["end"]))
        if op.name == "tt.load":
            elements, offset = (
                self.elements.get(self.origin.get(op.operands[0], "")), self.exact.get(op.operands[0])
            )  # fmt: skip
            return None if elements is None or offset is None or len(op.operands) > 1 else elements[offset]
        if op.name == "tt.addptr":
            # Of a tensor's first element.
            return self.known(op.operands[1]) if op.operands[0] not in self.exact else None
        operands = [self.known(name) for name in op.operands]
        if not operands or any(a is None for a in operands):
            return None
        if op.name in ("tt.reduce", "tt.scan"):
            kind = next((o.name for inner in op.regions for o in inner), "")
            if kind not in _ELEMENTWISE or operands[0].ndim != 1 or "reverse = true" in op.text:
                return None
            combined = _ELEMENTWISE[kind].accumulate(operands[0])
            return combined[-1] if op.name == "tt.reduce" else combined
        if op.name == "arith.cmpi":
            compare = _COMPARISONS.get(op.text.split(",")[0].strip())
            found = None if compare is None else compare(*operands).astype(np.int64)
        elif op.name in _ELEMENTWISE:
            found = _ELEMENTWISE[op.name](*operands)
        elif op.name == "arith.select":
            found = np.where(*operands)
        elif op.name in ("tt.splat", "tt.broadcast", "arith.extsi", "arith.extui", "arith.trunci"):
            found = operands[0] if op.name != "arith.extsi" or not re.search(r"i1>? to ", op.text) else None
        elif op.name in ("tt.expand_dims", "tt.reshape") and operands[0].size == math.prod(shape):
            found = operands[0].reshape(shape)
        else:
            return None
        return None if found is None else np.broadcast_to(found, shape)

    def known(self, name: str) -> Exact | None:
        """Return a value's elements if they are known."""
        value = self.values.get(name)
        if name in self.exact or value is None or value[0] != value[1]:
            return self.exact.get(name)
        return np.array(value[0])

    @staticmethod
    def constant(op: _Op) -> Range | None:
        """Return a constant; None if it is not an integer."""
        if op.text.strip().startswith(("true", "false")):
            return (1, 1) if "true" in op.text else (0, 0)
        if "dense<true>" in op.text or "dense<false>" in op.text:
            return (1, 1) if "true" in op.text else (0, 0)
        match = re.match(r"\s*(?:dense<)?(-?\d+)>? : ", op.text)
        return (int(match[1]), int(match[1])) if match and _bits(op.type) else None


# --- generated kernels ------------------------------------------------------------------------------------


def launches_of(printed: TritonSource) -> list[Launched]:
    """Return the launches of a generated kernel, for tensors without memory."""

    def argument(described: Any) -> Any:
        if isinstance(described, Buffer | Workspace):
            return torch.empty(1, dtype=described.dtype, device="meta")
        if isinstance(described, FailedFlag):
            return torch.empty(1, dtype=torch.int64, device="meta")
        return 1.5 if isinstance(described, ScalarArg) else described

    space = load(printed.text)
    return [
        Launched(
            space[f.name],
            tuple(map(argument, f.arguments)),
            {**f.constants, **printed.config.options},
            (f.programs,),
        )
        for f in printed.functions
    ]
