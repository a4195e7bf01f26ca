"""Whether a call is like one before, so that what was chosen for that one serves without a signature.

A signature is made of a dozen things that torch is asked for, each a call. That takes 3 microseconds, and 10
to 80 after a kernel that went through megabytes: what each of the calls reads is in no cache then. This asks
torch once, which takes a third of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from burnt import _torch
from burnt.codegen.precision import precision

__all__ = ["likeness"]


def likeness(args: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """A function of as many arguments: whether a call with them, now, has the signature that `args` have.

    `args` are such as have a signature, without autocast. Where the function says no, a call may have the
    same signature nevertheless.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    # Of tensors and floats the class counts, of the others the value; lists may change after the call.
    kinds = [type(a) if isinstance(a, Tensor | float) else None for a in args]
    values = [None if isinstance(a, Tensor) else list(a) if isinstance(a, list) else a for a in args]
    are_alike, products = _torch.alike(tensors), precision()

    def is_like(given: Sequence[Any]) -> bool:
        found: list[Any] = []
        for arg, kind, value in zip(given, kinds, values, strict=True):
            if kind is None:
                if arg is not value and not _is_same(arg, value):
                    return False
            elif type(arg) is not kind:
                return False
            elif kind is not float:
                found.append(arg)
        return are_alike(found) and precision() == products

    return is_like


def _is_same(arg: object, value: object) -> bool:
    """Whether they are equal and of one class, elements of sequences too: 1 is neither 1.0 nor True."""
    if type(arg) is not type(value):
        return False
    if isinstance(arg, list | tuple) and isinstance(value, list | tuple):
        return len(arg) == len(value) and all(map(_is_same, arg, value))
    return arg == value
