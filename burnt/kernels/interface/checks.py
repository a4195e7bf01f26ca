"""Checks of an op's arguments before a candidate runs, and translation of torch's errors into `InputError`.

Translated errors keep torch's exception class (`RuntimeError`, `IndexError`, ...), with a more detailed
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    from burnt.kernels.interface.op_protocol import AnyOp


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
    op: AnyOp,
    args: Sequence[Any],
    error: Exception,
    candidate: str | None = None,
    part: str = "",
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
    for first, expected, name, tensor in _differing("device", tensors):
        raise InputRuntimeError(
            f"the arguments of {op} are on different devices",
            where=f"burnt.kernels.{op}",
            expected=f"{name} on {expected}, as {first}",
            found=f"{name} on {tensor.device}",
            hint=f"{name}.to({str(expected)!r})",
        )


def _differing(what: str, tensors: Mapping[str, Tensor | None]) -> Iterator[tuple[str, Any, str, Tensor]]:
    """Yield the first tensor's name and its device or dtype, and each tensor with another one."""
    present = {name: t for name, t in tensors.items() if t is not None}
    first = next(iter(present))
    expected = getattr(present[first], what)
    for name, tensor in present.items():
        if getattr(tensor, what) != expected:
            yield first, expected, name, tensor


def check_one_dtype(op: str, **tensors: Tensor | None) -> None:
    """Raise an `InputRuntimeError` that names the first tensor of another dtype, if any."""
    for first, expected, name, tensor in _differing("dtype", tensors):
        raise InputRuntimeError(
            f"the arguments of {op} have different dtypes",
            where=f"burnt.kernels.{op}",
            expected=f"{name} of {expected}, as {first}",
            found=f"{name} of {tensor.dtype}",
            hint=f"{name}.to({expected}), or run it under torch.autocast",
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
