"""Whether a call is like one before, so that what was chosen for that one serves without a signature.

A signature is made of a dozen things that torch is asked for. That takes 3 microseconds, and 10 to 100 after
kernels that went through megabytes: then what each question reads, code of torch's and the interpreter's too,
is in no cache. Here torch is asked once, by one expression that is made for the call: 1 microsecond, and a
third of the others (Zen 4).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import precision

__all__ = ["Likeness", "Recent", "likeness"]

Likeness = Callable[..., "tuple[Any, ...] | None"]
"""A function that is called as another one is, and says whether a call is like one before: see `likeness`."""

Known = TypeVar("Known")
_MOST = 4  # each costs a call that is like none of them half a microsecond


class Recent(Generic[Known]):
    """What is known of the last few calls that were not like each other."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[tuple[Likeness, Known]] = []

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Known, tuple[Any, ...]] | None:
        """What is known of a call that this one is like, and its arguments by position; None without one."""
        try:
            for is_like, known in self.calls:
                given = is_like(*args, **kwargs)
                if given is not None:
                    return known, given
        except (TypeError, RuntimeError):
            return None  # the arguments do not fit, which others will say
        return None

    def put(self, is_like: Likeness, known: Known) -> None:
        """Remember a call before all others, and forget the oldest one."""
        others = [call for call in self.calls if call[0] is not is_like]
        self.calls = [(is_like, known), *others[: _MOST - 1]]


def likeness(
    parameters: Mapping[str, Any], args: Sequence[Any], also: Sequence[Callable[[], object]] = ()
) -> Likeness | None:
    """A function that is called as another one is: whether a call of it, now, is one with `args`.

    Args:
        parameters: of that function, each by name with its default; `inspect.Parameter.empty` is none.
        args: all by position: plain tensors with strides, at least one, and what is equal to itself, or lists
            of that.
        also: what must return the same object as now.

    Returns:
        All arguments by position if tensors differ in their values alone, floats in theirs, and nothing else
        does; None otherwise, which says nothing. The function raises TypeError where arguments do not fit the
        parameters, and RuntimeError where a tensor has no strides, or torch does not say how it multiplies.
        None instead of it, where torch does not say so now, or autocast is on.
    """
    if _torch.is_autocast() or not any(isinstance(a, Tensor) for a in args):
        return None
    try:
        multiplied = _torch.products()
    except RuntimeError:  # set by torch's newer switches, beside which the older one is refused
        return None
    known = {
        "__builtins__": {},
        **{f"__default_{name}": default for name, default in parameters.items()},
        **{f"__known_{name}": _kept(a) for name, a in zip(parameters, args, strict=True)},
        **{f"__also_{i}": ask for i, ask in enumerate(also)},
        **{f"__same_{i}": ask() for i, ask in enumerate(also)},
        "__type": type,
        "__is_same": _is_same,
        "__with_gradients": torch.is_grad_enabled,
        "__gradients": torch.is_grad_enabled(),
        "__function_modes": _torch.function_modes,
        "__forward": _torch.forward_derivatives,
        "__products": _torch.products,
        "__multiplied": multiplied,
        "__precision": precision,
        "__in_three": precision.in_three,
        "__are_alike": _torch.alike([a for a in args if isinstance(a, Tensor)]),
    }
    optional = tuple(default is not inspect.Parameter.empty for default in parameters.values())
    kinds = tuple(Tensor if isinstance(a, Tensor) else float if type(a) is float else None for a in args)
    code = _expression(tuple(parameters), optional, kinds, len(also))
    return eval(code, known)  # type: ignore[no-any-return]


@functools.cache
def _expression(
    names: tuple[str, ...], optional: tuple[bool, ...], kinds: tuple[type | None, ...], also: int
) -> CodeType:
    """The code of a likeness, whatever the arguments of these kinds are."""
    parameters = [f"{n}=__default_{n}" if o else n for n, o in zip(names, optional, strict=True)]
    of_class = "__type({0}) is __known_{0}"
    of_value = "({0} is __known_{0} or __is_same({0}, __known_{0}))"
    tensors = [n for n, kind in zip(names, kinds, strict=True) if kind is Tensor]
    conditions = [
        *[(of_value if kind is None else of_class).format(n) for n, kind in zip(names, kinds, strict=True)],
        "__with_gradients() is __gradients",
        "not __function_modes()",
        "__forward._current_level < 0",
        "__products() == __multiplied",
        "__precision.in_three is __in_three",
        *[f"__also_{i}() is __same_{i}" for i in range(also)],
        *[f"{n}.stride() is not None" for n in tensors],
        f"__are_alike({', '.join(tensors)})",
    ]
    source = f"lambda {', '.join(parameters)}: ({', '.join(names)},) if {' and '.join(conditions)} else None"
    return compile(source, __file__, "eval")


def _kept(arg: object) -> object:
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
