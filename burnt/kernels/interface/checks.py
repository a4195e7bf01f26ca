"""Checks of an op's arguments before a candidate runs, and translation of torch's errors into `InputError`.

Translated errors keep torch's exception class (`RuntimeError`, `IndexError`, ...), with a more detailed
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt.errors import (
    BurntError,
    InputError,
    InputIndexError,
    InputRuntimeError,
    InputTypeError,
    InputUnsupportedError,
    InputValueError,
)

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp


_SHORT = (torch.float16, torch.bfloat16)

_INPUT_ERRORS: dict[type[Exception], type[InputError]] = {
    RuntimeError: InputRuntimeError,
    IndexError: InputIndexError,
    ValueError: InputValueError,
    TypeError: InputTypeError,
    NotImplementedError: InputUnsupportedError,
}


def all_strided(values: Iterable[object]) -> bool:
    """Whether all tensors among the values have strides: none is sparse, nested or in oneDNN's layout."""
    return all(v.layout is torch.strided and not v.is_nested for v in values if isinstance(v, Tensor))


def translate_error(
    op: AnyOp, args: Sequence[Any], error: Exception, candidate: str | None = None, part: str = ""
) -> Exception:
    """Translate torch's error about an op's arguments into an `InputError` of the same class, if it is one.

    For a user's `candidate`, errors of other classes are translated, too; `part` names its part, such as
    ``"the backward of "``.
    """
    kind = _INPUT_ERRORS.get(type(error))
    found = str(error)
    if kind is None and candidate is not None and not isinstance(error, RuntimeError | MemoryError):
        kind, found = InputRuntimeError, f"{type(error).__name__}: {error}"
    if kind is None or isinstance(error, BurntError):
        return error
    return kind(
        f"{op.name} cannot take these arguments"
        if candidate is None
        else f"{part}the candidate {candidate!r} of {op.name} fails with these arguments",
        where=f"burnt.kernels.{op.name}",
        expected=format_signature(op),
        found=found,
        origin=[f"{name} = {describe(a)}" for name, a in zip(op.positions, args, strict=True)],
        hint=_NO_DRIVER if "active drivers" in found else None,
    )


_NO_DRIVER = (
    "Triton finds no GPU. It runs kernels on a CPU where TRITON_INTERPRET=1 is set before triton is imported"
)


def format_signature(op: AnyOp) -> str:
    """Format an op's arguments and result: ``(x: Tensor, eps: float = 1e-06) -> Tensor``."""
    return str(op.signature).replace("'", "").replace("torch.", "")


def describe(value: Any) -> str:
    """Describe an argument in short, for messages.

    >>> import torch
    >>> describe(torch.zeros(2, 3)), describe(0.5)
    ('float32 (2, 3) on cpu', '0.5')
    """
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} on {value.device}"
    return repr(value)


def check_one_device(op: str, **tensors: Tensor | None) -> None:
    """Raise an `InputRuntimeError` that names the first tensor on another device, if any."""
    _check_equal(op, "device", "are on different devices", "on", "{}.to('{}')", tensors)


def check_one_dtype(op: str, **tensors: Tensor | None) -> None:
    """Raise an `InputRuntimeError` that names the first tensor of another dtype, if any."""
    hint = "{}.to({}), or run it under torch.autocast"
    _check_equal(op, "dtype", "have different dtypes", "of", hint, tensors)


def _check_equal(
    op: str, what: str, differ: str, is_: str, hint: str, tensors: Mapping[str, Tensor | None]
) -> None:
    present = {name: t for name, t in tensors.items() if t is not None}
    first = next(iter(present))
    expected = getattr(present[first], what)
    for name, tensor in present.items():
        if getattr(tensor, what) != expected:
            raise InputRuntimeError(
                f"the arguments of {op} {differ}",
                where=f"burnt.kernels.{op}",
                expected=f"{name} {is_} {expected}, as {first}",
                found=f"{name} {is_} {getattr(tensor, what)}",
                hint=hint.format(name, expected),
            )


def check_shape(op: str, name: str, tensor: Tensor | None, shape: Sequence[int]) -> None:
    """Raise an `InputRuntimeError` if a tensor is given and has another shape."""
    if tensor is not None and list(tensor.shape) != list(shape):
        raise InputRuntimeError(
            f"{name} of {op} has the wrong shape",
            where=f"burnt.kernels.{op}",
            expected=list(shape),
            found=list(tensor.shape),
        )


def check_residual_dtype(op: str, x: Tensor, residual: Tensor | None) -> None:
    """Check that a residual has the dtype of `x`, or is float32 where `x` is float16 or bfloat16."""
    if residual is not None and not (residual.dtype == torch.float32 and x.dtype in _SHORT):
        check_one_dtype(op, x=x, residual=residual)


def check_floating(op: str, **tensors: Tensor | None) -> None:
    """Raise an `InputUnsupportedError` if a tensor is not floating-point, as torch has no kernel for it."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise InputUnsupportedError(
                f"{op} is not defined for {str(tensor.dtype).removeprefix('torch.')}",
                where=f"burnt.kernels.{op}",
                expected=f"{name} of a floating-point dtype",
                found=describe(tensor),
                hint=f"{name}.float()",
            )


def check_one_of(op: str, name: str, value: str | None, known: Sequence[str]) -> None:
    """Raise an `InputValueError` if an option is neither None nor one of the supported values."""
    if value is not None and value not in known:
        raise InputValueError(
            f"{op} does not support the {name} {value!r}",
            where=f"burnt.kernels.{op}",
            expected=", ".join(map(repr, known)),
            found=repr(value),
        )
