"""Whether a call is like one before, so that what was chosen for that one serves without a signature.

A signature is made of a dozen things that torch is asked for. That takes 3 microseconds, and 10 to 110 after
kernels that went through megabytes: then what each question reads, code of torch's and the interpreter's too,
is in no cache. Here torch is asked once, by one expression that is made for the call, in about half the time
(Zen 4; the last table of ``python benchmarks/ops.py softmax``).
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import precision

__all__ = ["Guard", "InlineCache", "build_guard"]

Guard = Callable[..., "tuple[Any, ...] | None"]
"""Called as the guarded function: its bound arguments if the guard holds, else None (`build_guard`)."""

Plan_T = TypeVar("Plan_T")
_MAX_GUARDS = 4  # calls of a form: each costs a call that is like none of them half a microsecond
_MAX_TRIED = 32  # of a form: calls of so many kinds, or without a likeness, go by their signatures
_MAX_CALL_SHAPES = 4096

_CallShape = tuple[int, torch.Size | None]


class InlineCache(Generic[Plan_T]):
    """What serves the last few calls of each form: number of arguments by position, shape of the first."""

    __slots__ = ("calls", "tried")

    def __init__(self) -> None:
        self.calls: dict[_CallShape, list[tuple[Guard, Plan_T]]] = {}
        self.tried: Counter[_CallShape] = Counter()

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Plan_T, tuple[Any, ...]] | None:
        """What serves a call that this one is like, and its arguments by position; None without one."""
        if _torch.count_function_modes():
            return None  # they would see that a tensor is asked for its shape
        try:
            for is_like, serves in self.calls.get(_call_shape(args), ()):
                given = is_like(*args, **kwargs)
                if given is not None:
                    return serves, given
        except (TypeError, RuntimeError):
            return None  # see `build_guard`: the arguments do not fit, which the call will tell
        return None

    def wants(self, args: tuple[Any, ...]) -> bool:
        """Whether `put` is worth the work of making a likeness."""
        form = _call_shape(args)
        return self.tried[form] < _MAX_TRIED and (form in self.tried or len(self.tried) < _MAX_CALL_SHAPES)

    def put(self, args: tuple[Any, ...], is_like: Guard | None, serves: Plan_T) -> None:
        """Remember what serves a call, if there is a likeness of it, and forget the oldest of its form."""
        form = _call_shape(args)
        self.tried[form] += 1
        if self.tried[form] >= _MAX_TRIED:
            self.calls.pop(form, None)
        elif is_like is not None:
            self.calls[form] = [(is_like, serves), *self.calls.get(form, ())][:_MAX_GUARDS]


def _call_shape(args: tuple[Any, ...]) -> _CallShape:
    first: Any = args[0] if args else None
    plain = type(first) is Tensor or type(first) is torch.nn.Parameter  # others may do anything when asked
    return len(args), first.shape if plain else None


def build_guard(
    parameters: Mapping[str, Any],
    args: Sequence[Any],
    answers: Sequence[tuple[Callable[[], object], object]] = (),
) -> Guard | None:
    """A function that is called as another one is: whether a call of it, now, is one with `args`.

    Args:
        parameters: of that function, each by name with its default; `inspect.Parameter.empty` is none.
        args: all by position: plain tensors with strides, and what is equal to itself, or lists of that.
        answers: functions, each with what it must answer.

    Returns:
        All arguments by position if tensors differ in their values alone, floats in theirs, and nothing else
        does; None otherwise, which says nothing. The function raises TypeError where arguments do not fit the
        parameters, and RuntimeError where a tensor does not tell its sizes, or torch not how it multiplies.
        None instead of the function where calls cannot be told apart so: without tensors, with one in two
        places, under autocast, where torch does not tell how it multiplies, with parameters that begin with
        "__". Function modes are not asked for: `InlineCache` does that.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    if not tensors or len({id(t) for t in tensors}) < len(tensors) or _torch.is_autocast():
        return None
    try:
        multiplied = _torch.product_precision()
    except RuntimeError:  # set by torch's newer switches, beside which the older one is refused
        return None
    if any(name.startswith("__") for name in parameters):
        return None  # the expression's own names begin so
    names = {
        "__builtins__": {},
        **{f"__default_{name}": default for name, default in parameters.items()},
        **{f"__first_{name}": _expected(a) for name, a in zip(parameters, args, strict=True)},
        **{f"__ask_{i}": ask for i, (ask, _) in enumerate(answers)},
        **{f"__answer_{i}": answer for i, (_, answer) in enumerate(answers)},
        "__type": type,
        "__is_same": _is_same,
        "__with_gradients": torch.is_grad_enabled,
        "__first_with_gradients": torch.is_grad_enabled(),
        "__count_dispatch_modes": _torch.count_dispatch_modes,
        "__forward_ad": _torch.forward_ad,
        "__product_precision": _torch.product_precision,
        "__first_product_precision": multiplied,
        "__precision": precision,
        "__first_in_three": precision.in_three,
        "__are_alike": _torch.alike(tensors),
    }
    optional = tuple(default is not inspect.Parameter.empty for default in parameters.values())
    kinds = tuple(Tensor if isinstance(a, Tensor) else float if type(a) is float else None for a in args)
    return eval(_expression(tuple(parameters), optional, kinds, len(answers)), names)  # type: ignore[no-any-return]


@functools.cache
def _expression(
    names: tuple[str, ...], optional: tuple[bool, ...], kinds: tuple[type | None, ...], answers: int
) -> CodeType:
    """The code of a likeness, whatever the arguments of these kinds are."""
    parameters = [f"{n}=__default_{n}" if o else n for n, o in zip(names, optional, strict=True)]
    of_class = "__type({0}) is __first_{0}"
    of_value = "({0} is __first_{0} or __is_same({0}, __first_{0}))"
    tensors = [n for n, kind in zip(names, kinds, strict=True) if kind is Tensor]
    conditions = [
        *[(of_value if kind is None else of_class).format(n) for n, kind in zip(names, kinds, strict=True)],
        # The look at all tensors ends the process where one does not tell its shape, which raises here.
        *[f"{n}.shape is not None" for n in tensors],
        f"__are_alike({', '.join(tensors)})",
        "not __count_dispatch_modes()",
        "__forward_ad._current_level < 0",
        "__with_gradients() is __first_with_gradients",
        "__product_precision() == __first_product_precision",
        "__precision.in_three is __first_in_three",
        *[f"__ask_{i}() == __answer_{i}" for i in range(answers)],
    ]
    source = f"lambda {', '.join(parameters)}: ({', '.join(names)},) if {' and '.join(conditions)} else None"
    return compile(source, __file__, "eval")


def _expected(arg: object) -> object:
    """The class of a tensor and of a float, and the value of what else an argument is."""
    if isinstance(arg, Tensor) or type(arg) is float:
        return type(arg)
    return list(arg) if isinstance(arg, list) else arg  # the list may change after the call


def _is_same(arg: object, value: object) -> bool:
    """Whether they are equal and of one class, elements of sequences too: 1 is neither 1.0 nor True."""
    if type(arg) is not type(value):
        return False
    if isinstance(arg, list | tuple) and isinstance(value, list | tuple):
        return len(arg) == len(value) and all(map(_is_same, arg, value))
    return arg == value
