"""Expressions and calls of programs as Python: operators, methods, and long lines broken as ruff does."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from burnt.onnx import functions
from burnt.onnx.importer.program import Arithmetic, Call, Device, Name, Size
from burnt.onnx.importer.python.kinds import Kinds, is_tensor, kind_of

_ATOM, _POWER, _UNARY, _COMPARISON = 13, 12, 11, 4
_STRENGTHS = {
    **dict.fromkeys(("==", "<", "<=", ">", ">="), _COMPARISON),
    "|": 5,
    "^": 6,
    "&": 7,
    "+": 9,
    "-": 9,
    "*": 10,
    "/": 10,
    "//": 10,
    "%": 10,
    "@": 10,
    "**": _POWER,
}

_OPERATORS = {
    "torch.add": "+",
    "torch.sub": "-",
    "torch.mul": "*",
    "torch.div": "/",
    "torch.matmul": "@",
    "torch.pow": "**",
    "torch.eq": "==",
    "torch.lt": "<",
    "torch.le": "<=",
    "torch.gt": ">",
    "torch.ge": ">=",
    "torch.bitwise_and": "&",
    "torch.bitwise_or": "|",
    "torch.bitwise_xor": "^",
}
_LOGICAL = {"torch.logical_and": "&", "torch.logical_or": "|", "torch.logical_xor": "^"}
_NUMBER_FIRST = ("torch.add", "torch.sub", "torch.mul", "torch.pow")
"""Functions that take a number as their first argument, and are the same as the operator then.

``1 / x`` is not: torch computes it as ``x.reciprocal() * 1``.
"""

METHODS = {
    *("reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "softmax", "select"),
    *("log_softmax", "mean", "sum", "amax", "amin", "argmax", "argmin", "split", "t"),
    *("chunk", "unflatten", "clamp"),
}
"""Functions of torch that are written as methods of their first argument."""

_SPREAD = {"torch.reshape", "torch.permute", "torch.Tensor.expand"}
"""Functions whose methods take what they take as a tuple."""
_REDUCTIONS = {f"torch.{name}" for name in ("mean", "sum", "amax", "amin")}

_LONGEST_PART = 96  # characters of a slice

_NO_DEFAULT = object()
_KEEPDIM = (None, None, ("keepdim", False))
_PARAMETERS: dict[str, tuple[tuple[str, Any] | None, ...]] = {
    "torch.cat": (None, ("dim", 0)),
    "torch.split": (None, None, ("dim", 0)),
    "torch.chunk": (None, None, ("dim", 0)),
    "torch.softmax": (None, ("dim", _NO_DEFAULT)),
    "torch.log_softmax": (None, ("dim", _NO_DEFAULT)),
    "torch.triu": (None, ("diagonal", 0)),
    "torch.tril": (None, ("diagonal", 0)),
    "torch.roll": (None, ("shifts", _NO_DEFAULT), ("dims", _NO_DEFAULT)),
    **{f"torch.{name}": _KEEPDIM for name in ("mean", "sum", "amax", "amin", "argmax", "argmin")},
    "torch.addmm": (None, None, None, ("beta", 1.0), ("alpha", 1.0)),
    "F.gelu": (None, ("approximate", "none")),
    "F.leaky_relu": (None, ("negative_slope", 0.01)),
    "F.elu": (None, ("alpha", 1.0)),
    "F.celu": (None, ("alpha", 1.0)),
    "F.pad": (None, None, ("mode", "constant")),
    "F.scaled_dot_product_attention": (
        *(None, None, None),
        *(("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False), ("scale", None)),
    ),
}
"""Parameters of torch that are written as keywords, with their defaults, which are left out."""


@dataclass(frozen=True)
class Code:
    """Source of an expression, and where a line may be broken in it."""

    text: str  # on one line
    strength: int = _ATOM  # how strongly its outermost operator binds
    head: str = ""  # of a call, list or tuple: what comes before its items
    items: tuple[Code, ...] = ()  # of a call, list or tuple
    tail: str = ""  # what comes after its items
    # whether this is a list or tuple, whose items get a line each where it is broken.
    is_display: bool = False
    operands: tuple[str, ...] = ()  # the leftmost operand, and each operator with the one to its right


def bracketed(head: str, items: Sequence[Code], tail: str, *, is_display: bool = False) -> Code:
    """Return a call, list or tuple."""
    inner = ", ".join(item.text for item in items)
    if is_display and tail == ")" and len(items) == 1:
        inner += ","
    return Code(f"{head}{inner}{tail}", _ATOM, head, tuple(items), tail, is_display)


def prefixed(prefix: str, code: Code) -> Code:
    """Return code with text before it: ``key=``, or ``*``."""
    return replace(code, text=prefix + code.text, head=prefix + code.head, operands=())


def broken(code: Code, width: int, prefix: str = "", suffix: str = "") -> Iterator[str]:
    """Yield the lines of code between a prefix and a suffix, broken as ruff does where one is too long."""
    line = f"{prefix}{code.text}{suffix}"
    if len(line) <= width or not (code.items or code.operands):
        yield line
        return
    if code.operands:
        yield f"{prefix}("
        one = " ".join(code.operands)
        yield from (f"    {part}" for part in ([one] if len(one) <= width - 4 else code.operands))
        yield f"){suffix}"
        return
    inner = ", ".join(item.text for item in code.items)
    yield f"{prefix}{code.head}"
    if not code.is_display and len(inner) <= width - 4:
        yield f"    {inner}"
    else:
        alone = len(code.items) == 1 and not code.is_display
        for item in code.items:
            yield from (f"    {part}" for part in broken(item, width - 4, "", "" if alone else ","))
    yield f"{code.tail}{suffix}"


# --- expressions ------------------------------------------------------------------------------------------


def code_of(tree: Any, names: Mapping[str, str] | None = None, kinds: Kinds | None = None) -> Code:
    """Return the source of an expression, which may have calls in it.

    >>> x, y = Name("x"), Name("y")
    >>> code_of(Call("torch.mul", (Call("torch.add", (x, 1)), y)), kinds={"x": "tensor", "y": "tensor"}).text
    '(x + 1) * y'
    """
    return _Source(names or {}, kinds or {}).code(tree)


def is_index(call: Call) -> bool:
    """Whether a call is written with brackets, ``x[:, 0]``."""
    return call.function in _INDICES and _Source({}, {}).index(call) is not None


_INDICES = ("torch.select", "ops.slice_", "ops.unsqueeze")


@dataclass(frozen=True)
class _Source:
    names: Mapping[str, str]
    kinds: Kinds

    def name(self, name: Name) -> str:
        return self.names.get(name.name, name.name)

    def code(self, tree: Any) -> Code:
        if isinstance(tree, Call):
            return self.call(tree)
        if isinstance(tree, Name):
            return Code(self.name(tree))
        if isinstance(tree, Size):
            return Code(f"{self.name(tree.tensor)}.shape" + ("" if tree.axis is None else f"[{tree.axis}]"))
        if isinstance(tree, Device):
            return Code(f"{self.name(tree.tensor)}.device")
        if isinstance(tree, Arithmetic):
            return self.arithmetic(tree)
        if isinstance(tree, tuple | list):
            items = self.sizes(tree)
            if len(items) == 1 and items[0].text.startswith("*"):
                return Code(items[0].text[1:])
            return bracketed(
                *("(", items, ")") if isinstance(tree, tuple) else ("[", items, "]"), is_display=True
            )
        return _literal(tree)

    def arithmetic(self, tree: Arithmetic) -> Code:
        """Return arithmetic on sizes: with operators, or calls of ``min`` and the like."""
        if tree.symbol[0].isalpha():
            return bracketed(f"{tree.symbol}(", [self.code(tree.left), self.code(tree.right)], ")")
        if tree.symbol == "-" and tree.left == 0:
            return Code(f"-{_wrapped(self.code(tree.right), _UNARY)}", _UNARY)
        return _binary(tree.symbol, self.code(tree.left), self.code(tree.right))

    def sizes(self, trees: Sequence[Any]) -> list[Code]:
        """Return items; consecutive sizes of a tensor become ``*x.shape[:2]``."""
        items: list[Code] = []
        i = 0
        while i < len(trees):
            first, count = trees[i], 1
            if isinstance(first, Size) and first.axis is not None:
                following = (Size(first.tensor, first.axis + n) for n in itertools.count(1))
                same = zip(trees[i + 1 :], following, strict=False)
                count += sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], same))
            if count >= 2 and first.axis >= 0:
                start = first.axis or ""
                items.append(Code(f"*{self.name(first.tensor)}.shape[{start}:{first.axis + count}]"))
                i += count
            else:
                items.append(self.code(first))
                i += 1
        return items

    def call(self, call: Call) -> Code:
        written = self.operator(call) or self.index(call)
        if written is not None:
            return written
        arguments = list(_arguments(call))
        head = f"{call.function}("
        namespace, _, name = call.function.partition(".")
        receiver = arguments[0][1] if arguments and arguments[0][0] is None else None
        is_method = namespace == "torch" and name in METHODS
        if call.function.startswith("torch.Tensor."):
            is_method, name = True, name.removeprefix("Tensor.")
        if is_method and isinstance(receiver, Name | Call):
            head = f"{_wrapped(self.code(receiver), _ATOM)}.{name}("
            del arguments[0]
            if (
                call.function in _SPREAD
                and arguments
                and isinstance(arguments[0][1], tuple)
                and arguments[0][1]
            ):
                items = self.sizes(arguments[0][1])
                if len(items) == 1 and items[0].text.startswith("*"):
                    items = [Code(items[0].text[1:])]
                return bracketed(head, items, ")")
        items = [
            self.code(tree) if key is None else prefixed(f"{key}=", self.code(tree))
            for key, tree in arguments
        ]
        return bracketed(head, items, ")")

    def operator(self, call: Call) -> Code | None:
        """Return a call as an operator, where it is the same."""
        if call.kwargs:
            return None
        found = [kind_of(arg, self.kinds) for arg in call.args]
        if len(call.args) == 1 and is_tensor(found[0]):
            symbol = {"torch.neg": "-", "torch.bitwise_not": "~"}.get(call.function)
            if call.function == "torch.logical_not" and found == ["bool"]:
                symbol = "~"
            if symbol:
                operand = self.code(call.args[0])
                return Code(f"{symbol}{_wrapped(operand, _ATOM)}", _UNARY)
        if len(call.args) != 2 or not any(map(is_tensor, found)):
            return None
        symbol = _OPERATORS.get(call.function)
        if found == ["bool", "bool"]:
            symbol = _LOGICAL.get(call.function, symbol)
        is_operand = all(
            isinstance(arg, Name | Call) or kind in ("int", "float")
            for arg, kind in zip(call.args, found, strict=True)
        )
        if symbol is None or not is_operand:
            return None
        if found[0] in ("int", "float") and call.function not in _NUMBER_FIRST:
            return None
        return _binary(symbol, *map(self.code, call.args))

    def index(self, call: Call) -> Code | None:
        """Return a selection, a slice or added axes as ``x[:, 0]``, where it is the same."""
        parts: dict[int, str] = {}
        if call.function == "torch.select" and not call.kwargs:
            _, axis, position = call.args
            if type(axis) is not int or type(position) is not int:
                return None
            parts[axis] = str(position)
        elif call.function == "ops.slice_" and isinstance(call.args[0], Name | Call):
            found = self.slices(call)
            if found is None:
                return None
            parts = found
        elif (
            call.function == "ops.unsqueeze" and len(call.args) == 2 and isinstance(call.args[0], Name | Call)
        ):
            parts = dict.fromkeys(_ints(call.args[1]) or [], "None")
        else:
            return None
        axes = sorted(parts)
        if any(len(part) > _LONGEST_PART for part in parts.values()):
            return None  # a call can be broken into lines
        if axes == [-1]:
            inner = ["...", parts[-1]]
        elif axes and axes[0] >= 0 and axes[-1] <= 4:
            inner = [parts.get(axis, ":") for axis in range(axes[-1] + 1)]
        else:
            return None
        return bracketed(f"{_wrapped(self.code(call.args[0]), _ATOM)}[", list(map(Code, inner)), "]")

    def slices(self, call: Call) -> dict[int, str] | None:
        """Return what stands in brackets for the axes of a slice; None where bounds or axes are not known."""
        _, starts, ends, *rest = call.args
        if rest or not set(call.kwargs) <= {"axes", "steps"} or not isinstance(starts, list):
            return None
        axes = _ints(call.kwargs.get("axes", list(range(len(starts)))))
        steps = _ints(call.kwargs.get("steps", [1] * len(starts)))
        if axes is None or steps is None or not isinstance(ends, list):
            return None
        if not len(starts) == len(ends) == len(axes) == len(steps):
            return None
        if len(set(axes)) < len(axes) or min(steps, default=1) < 1:
            return None
        parts = {}
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            if not all(kind_of(v, self.kinds) == "int" for v in (start, end)):
                return None
            has_start = type(start) is not int or -(2**31) < start != 0
            has_end = type(end) is not int or end < 2**31 - 1
            bounds = [start] if has_start else [], [end] if has_end else []
            first, last = ("".join(self.code(v).text for v in bound) for bound in bounds)
            is_simple = all(type(v) is int or isinstance(v, Name) for bound in bounds for v in bound)
            before = " " if first and not is_simple else ""
            after = " " if last and not is_simple else ""
            parts[axis] = f"{first}{before}:{after}{last}" + (f":{step}" if step != 1 and is_simple else "")
            if step != 1 and not is_simple:
                parts[axis] += f" : {step}"
        return parts


def _ints(value: Any) -> list[int] | None:
    """Return a list of integers as it is, and None for anything else."""
    return value if isinstance(value, list) and all(type(v) is int for v in value) else None


def _binary(symbol: str, left: Code, right: Code) -> Code:
    strength = _STRENGTHS[symbol]
    if symbol == "**":
        first, second = _wrapped(left, _ATOM), _wrapped(right, _ATOM)
        if right.strength == _UNARY:
            second = right.text
        space = "" if _is_simple(first) and _is_simple(second) else " "
        return Code(f"{first}{space}**{space}{second}", strength)
    first = _wrapped(left, strength + (strength == _COMPARISON))
    second = _wrapped(right, strength + 1)
    chain = left.operands if left.strength == strength else (first,)  # of operators of one strength
    return Code(f"{first} {symbol} {second}", strength, operands=(*(chain or (first,)), f"{symbol} {second}"))


def _wrapped(code: Code, strength: int) -> str:
    """Return the text of an operand, in parentheses where it binds less strongly."""
    return code.text if code.strength >= strength else f"({code.text})"


def _is_simple(operand: str) -> bool:
    """Whether ruff writes a power of this without spaces: a name, an attribute or a number."""
    plain = operand.removeprefix("-")
    return all(part.isidentifier() for part in plain.split(".")) or plain[:1].isdigit()


_LIMITS = {
    getattr(torch.finfo(dtype), limit): f"torch.finfo({dtype}).{limit}"
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for limit in ("min", "max")
}
"""The smallest and largest numbers of dtypes, which fill masks."""


def _literal(value: Any) -> Code:
    if isinstance(value, float) and not math.isfinite(value):
        return Code(f'float("{value}")')
    if isinstance(value, float) and value in _LIMITS:
        return Code(_LIMITS[value])
    text = repr(value).replace("e+", "e") if isinstance(value, float) else repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in text:
        text = f'"{text[1:-1]}"'
    is_negative = type(value) in (int, float) and text[0] == "-"
    return Code(text, _UNARY if is_negative else _ATOM)


# --- arguments --------------------------------------------------------------------------------------------


def _is_literal(tree: Any) -> bool:
    if isinstance(tree, tuple | list):
        return all(map(_is_literal, tree))
    return not isinstance(tree, Name | Size | Device | Arithmetic | Call)


def _is_same(value: Any, default: Any) -> bool:
    """Whether a literal is a default, to the type and the bit."""
    return type(value) is type(default) and repr(value) == repr(default)


def _arguments(call: Call) -> Iterator[tuple[str | None, Any]]:
    """Yield the arguments that differ from defaults, with a keyword or None for positional ones."""
    args, kwargs = list(call.args), dict(call.kwargs)
    if call.function == "torch.arange" and args[2:] == [1] and type(args[2]) is int:
        del args[2]
        if type(args[0]) is int and args[0] == 0 and kind_of(args[1], {}) == "int":
            del args[0]
    if call.function in _REDUCTIONS and len(args) > 1 and isinstance(args[1], list) and len(args[1]) == 1:
        args[1] = args[1][0]
    parameters = _parameters(call.function)
    defaults = {parameter[0]: parameter[1] for parameter in parameters if parameter is not None}
    is_keyword = False
    for i, arg in enumerate(args):
        parameter = parameters[i] if i < len(parameters) else None
        if parameter is None:
            yield None, arg
            continue
        if _is_literal(arg) and _is_same(arg, parameter[1]):
            is_keyword = True
            continue
        is_keyword |= _is_literal(arg) or call.function.startswith(("torch.", "F."))
        yield (parameter[0] if is_keyword else None), arg
    for key, value in kwargs.items():
        if not (key in defaults and _is_literal(value) and _is_same(value, defaults[key])):
            yield key, value


def parameter_name(function: str, position: int) -> str:
    """Return the name of a function's parameter that has a default; "" if it is not known.

    >>> parameter_name("F.leaky_relu", 1)
    'negative_slope'
    """
    parameters = _parameters(function)
    parameter = parameters[position] if position < len(parameters) else None
    return "" if parameter is None else parameter[0]


@functools.cache
def _parameters(function: str) -> tuple[tuple[str, Any] | None, ...]:
    """Return the names and defaults of parameters of a function; None for those without a default."""
    namespace, _, name = function.partition(".")
    if namespace != "ops":
        return _PARAMETERS.get(function, ())
    found: list[tuple[str, Any] | None] = []
    signature: Callable[..., Any] = getattr(functions, name)
    for parameter in inspect.signature(signature).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            break
        has_default = parameter.default is not parameter.empty
        found.append((parameter.name, parameter.default) if has_default else None)
    return tuple(found)
