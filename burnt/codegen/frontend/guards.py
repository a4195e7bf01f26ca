"""Inline cache: reuse the chosen cache entry when its guard holds, without building the full signature.

A signature takes a dozen queries to torch. They cost 3 microseconds, and 10 to 110 after kernels that have
streamed megabytes, since then the code and data that each query touches, torch's and the interpreter's, are
no longer in the CPU caches. A guard is one expression generated for the call, and asks torch once: about half
the time (Zen 4; the last table of ``python benchmarks/ops.py softmax``).
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import precision

Guard = Callable[..., "tuple[Any, ...] | None"]
"""Called like the guarded function. Returns its bound arguments if the guard holds, else None."""

Condition = tuple[Callable[[], object], object]
"""A function, and the value that it must return."""


class GuardedCall(NamedTuple):
    """A function that tests nothing: it is for calls that a guard accepts, built with these arguments."""

    call: Callable[..., Any]
    conditions: Sequence[Condition] = ()
    exact_floats: bool = False


Entry_T = TypeVar("Entry_T")
_MAX_GUARDS = 4  # per call shape: each guard that fails costs half a microsecond
_MAX_ATTEMPTS = 32  # additions per call shape; beyond, see `InlineCache.add`
_MAX_CALL_SHAPES = 4096

_CallShape = tuple[int, torch.Size | None]


class InlineCache(Generic[Entry_T]):
    """The cache entries of the last few calls of each call shape, each with its guard.

    A call shape is the number of positional arguments and the shape of the first one.
    """

    __slots__ = ("entries", "num_attempts")

    def __init__(self) -> None:
        self.entries: dict[_CallShape, list[tuple[Guard, Entry_T]]] = {}
        self.num_attempts: Counter[_CallShape] = Counter()

    def find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Entry_T, tuple[Any, ...]] | None:
        """Return the entry whose guard holds for a call, and its arguments by position; None if none does."""
        if _torch.count_function_modes():
            return None  # a function mode would see the shape being read
        try:
            # As `_call_shape`, without another Python frame.
            kind = type(args[0]) if args else None
            shape = args[0].shape if kind is Tensor or kind is torch.nn.Parameter else None
            for guard, entry in self.entries.get((len(args), shape), ()):
                bound_args = guard(*args, **kwargs)
                if bound_args is not None:
                    return entry, bound_args
        except (TypeError, RuntimeError):
            return None  # see `build_guard`: the arguments do not fit, and the call itself will raise
        return None

    def has_room(self, args: tuple[Any, ...]) -> bool:
        """Whether `add` would still store an entry for such a call: if not, do not build a guard."""
        shape = _call_shape(args)
        return self.num_attempts[shape] < _MAX_ATTEMPTS and (
            shape in self.num_attempts or len(self.num_attempts) < _MAX_CALL_SHAPES
        )

    def add(
        self, args: tuple[Any, ...], guard: Guard | None, entry: Entry_T, exact_floats: bool = False
    ) -> None:
        """Add the entry of a call, unless it has no guard, and drop the oldest of its call shape.

        Beyond the limit, all of its call shape are dropped, but those there stay if this one is for exact
        floats: a few values may alternate, and a guard fails early for another value.
        """
        shape = _call_shape(args)
        self.num_attempts[shape] += 1
        if self.num_attempts[shape] >= _MAX_ATTEMPTS:
            if not exact_floats:
                self.entries.pop(shape, None)
        elif guard is not None:
            self.entries[shape] = [(guard, entry), *self.entries.get(shape, ())][:_MAX_GUARDS]


def _call_shape(args: tuple[Any, ...]) -> _CallShape:
    first: Any = args[0] if args else None
    is_plain = type(first) is Tensor or type(first) is torch.nn.Parameter  # a subclass may run any code
    return len(args), first.shape if is_plain else None


def build_guard(
    parameters: Mapping[str, Any],
    args: Sequence[Any],
    conditions: Sequence[Condition] = (),
    exact_floats: bool = False,
) -> Guard | None:
    """Build a guard: a function that is called like the guarded one and accepts calls equivalent to `args`.

    `parameters` has the guarded function's parameters: name -> default; `inspect.Parameter.empty` for none.
    The arguments are by position: plain tensors with strides, values that equal themselves, or lists of such.
    The guard holds only while each condition's function returns its value, and with `exact_floats` only for
    these values of floats.

    None is returned where calls cannot be distinguished in this way: without tensors, with the same tensor
    twice, under autocast, where torch does not report its matmul precision, and with parameters that begin
    with ``__``.

    The guard returns all arguments by position if they and torch's state (gradient mode, dispatch modes,
    matmul precision) are the same but for the values of tensors and floats; otherwise None, though the call
    may still have the same signature. It raises TypeError if the arguments do not fit the parameters, and
    RuntimeError if a tensor has no sizes. It ignores function modes: `InlineCache` tests for them.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    if not tensors or len({id(t) for t in tensors}) < len(tensors) or _torch.is_autocast():
        return None
    try:
        matmul_precision = _torch.float32_matmul_precision()
    except RuntimeError:  # set by torch's newer settings, after which reading the older one raises
        return None
    if any(name.startswith("__") for name in parameters):
        return None  # reserved for the names that the guard expression uses itself
    names = {
        "__builtins__": {},
        **{f"__default_{name}": default for name, default in parameters.items()},
        **{f"__expected_{n}": _expected(a, exact_floats) for n, a in zip(parameters, args, strict=True)},
        **{f"__condition_{i}": condition for i, (condition, _) in enumerate(conditions)},
        **{f"__value_{i}": value for i, (_, value) in enumerate(conditions)},
        "__type": type,
        "__is_same": _is_same,
        "__is_grad_enabled": torch.is_grad_enabled,
        "__initial_is_grad_enabled": torch.is_grad_enabled(),
        "__count_dispatch_modes": _torch.count_dispatch_modes,
        "__forward_ad": _torch.forward_ad,
        "__matmul_precision": _torch.float32_matmul_precision,
        "__initial_matmul_precision": matmul_precision,
        "__precision": precision,
        "__initial_is_tf32x3": precision.is_tf32x3,
        "__have_same_layout": _torch.build_tensor_guard(tensors),
    }
    optional = tuple(default is not inspect.Parameter.empty for default in parameters.values())
    float_type = None if exact_floats else float
    types = tuple(Tensor if isinstance(a, Tensor) else float_type if type(a) is float else None for a in args)
    return eval(_expression(tuple(parameters), optional, types, len(conditions)), names)  # type: ignore[no-any-return]


@functools.cache
def _expression(
    names: tuple[str, ...], optional: tuple[bool, ...], types: tuple[type | None, ...], num_conditions: int
) -> CodeType:
    """Compile the expression of a guard, which is the same for all arguments of these types."""
    parameters = [f"{n}=__default_{n}" if o else n for n, o in zip(names, optional, strict=True)]
    type_test = "__type({0}) is __expected_{0}"
    value_test = "({0} is __expected_{0} or __is_same({0}, __expected_{0}))"
    tensors = [n for n, type_ in zip(names, types, strict=True) if type_ is Tensor]
    tests = [
        *[(value_test if t is None else type_test).format(n) for n, t in zip(names, types, strict=True)],
        # The layout test aborts the process if a tensor has no shape; this raises instead.
        *[f"{n}.shape is not None" for n in tensors],
        f"__have_same_layout({', '.join(tensors)})",
        "not __count_dispatch_modes()",
        "__forward_ad._current_level < 0",
        "__is_grad_enabled() is __initial_is_grad_enabled",
        "__matmul_precision() == __initial_matmul_precision",
        "__precision.is_tf32x3 is __initial_is_tf32x3",
        *[f"__condition_{i}() == __value_{i}" for i in range(num_conditions)],
    ]
    source = f"lambda {', '.join(parameters)}: ({', '.join(names)},) if {' and '.join(tests)} else None"
    return compile(source, __file__, "eval")


def _expected(arg: object, exact_floats: bool) -> object:
    """Return what a guard compares an argument with: type of a tensor or float, value of anything else."""
    if isinstance(arg, Tensor) or (type(arg) is float and not exact_floats):
        return type(arg)
    return list(arg) if isinstance(arg, list) else arg  # a copy, as the list may change after the call


def _is_same(arg: object, value: object) -> bool:
    """Whether two values are equal and of one type, and so are their elements: 1 is not 1.0 or True."""
    if type(arg) is not type(value):
        return False
    if isinstance(arg, list | tuple) and isinstance(value, list | tuple):
        return len(arg) == len(value) and all(map(_is_same, arg, value))
    if isinstance(arg, float) and isinstance(value, float):
        return arg.hex() == value.hex()  # which tells 0.0 and -0.0 apart
    return arg == value
