"""Whether a call is like one before, so that what was chosen for that one serves without a signature.

A signature is made of a dozen things that torch is asked for. That takes 3 microseconds, and 10 to 100 after
kernels that went through megabytes: then what each question reads, code of torch's and the interpreter's too,
is in no cache. Here torch is asked once, by one expression that is made for the call: 1 microsecond, and a
third of the others (Zen 4).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import precision

__all__ = ["likeness"]


def likeness(
    signature: inspect.Signature, args: Sequence[Any]
) -> Callable[..., tuple[Any, ...] | None] | None:
    """A function that is called as one of this signature is: whether a call now is one with `args`.

    Args:
        signature: of a function whose arguments are given by position or by name.
        args: all of them, by position: plain tensors with strides, at least one, and what can be hashed, or
            lists of that; without autocast.

    Returns:
        All arguments by position if tensors differ in their values alone, floats in theirs, and nothing else
        does; None otherwise, which says nothing. The function raises TypeError where arguments do not fit the
        signature, and RuntimeError where a tensor has no strides, or torch does not say how it multiplies.
        None instead of it, where torch does not say so now.
    """
    names = list(signature.parameters)
    known: dict[str, Any] = {
        "__builtins__": {},
        **{f"__default_{p.name}": p.default for p in signature.parameters.values()},
        **{f"__known_{name}": _kept(a) for name, a in zip(names, args, strict=True)},
        "__type": type,
        "__is_same": _is_same,
        "__with_gradients": torch.is_grad_enabled,
        "__gradients": torch.is_grad_enabled(),
        "__function_modes": _torch.function_modes,
        "__forward": _torch.forward_derivatives,
        "__products": _torch.products,
        "__precision": precision,
        "__in_three": precision.in_three,
        "__are_alike": _torch.alike([a for a in args if isinstance(a, Tensor)]),
    }
    try:
        known["__multiplied"] = _torch.products()
    except RuntimeError:
        return None
    optional = tuple(p.default is not p.empty for p in signature.parameters.values())
    kinds = tuple(
        "tensor" if isinstance(a, Tensor) else "float" if type(a) is float else "value" for a in args
    )
    return eval(_expression(tuple(names), optional, kinds), known)  # type: ignore[no-any-return]


@functools.cache
def _expression(names: tuple[str, ...], optional: tuple[bool, ...], kinds: tuple[str, ...]) -> CodeType:
    """The code of a likeness, whatever the arguments of these kinds are."""
    parameters = [f"{n}=__default_{n}" if o else n for n, o in zip(names, optional, strict=True)]
    of_kind = {
        "value": "({0} is __known_{0} or __is_same({0}, __known_{0}))",
        "float": "__type({0}) is __known_{0}",
        "tensor": "__type({0}) is __known_{0}",
    }
    conditions = [of_kind[kind].format(n) for n, kind in zip(names, kinds, strict=True)]
    tensors = [n for n, kind in zip(names, kinds, strict=True) if kind == "tensor"]
    conditions += [
        "__with_gradients() is __gradients",
        "not __function_modes()",
        "__forward._current_level < 0",
        "__products() == __multiplied",
        "__precision.in_three is __in_three",
        *[f"{n}.stride() is not None" for n in tensors],
        f"__are_alike({', '.join(tensors)})",
    ]
    source = f"lambda {', '.join(parameters)}: ({', '.join(names)},) if {' and '.join(conditions)} else None"
    return compile(source, __file__, "eval")


def _kept(arg: object) -> object:
    """The class of a tensor and of a float, and the value of what else an argument is."""
    if isinstance(arg, Tensor | float):
        return type(arg)
    return list(arg) if isinstance(arg, list) else arg  # the list may change after the call


def _is_same(arg: object, value: object) -> bool:
    """Whether they are equal and of one class, elements of sequences too: 1 is neither 1.0 nor True."""
    if type(arg) is not type(value):
        return False
    if isinstance(arg, list | tuple) and isinstance(value, list | tuple):
        return len(arg) == len(value) and all(map(_is_same, arg, value))
    return arg == value
