"""ONNX's types of elements as torch's, and numpy arrays of any of them as tensors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import UnsupportedError

_SMALL = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", "float4_e2m1fn": "float32"}
"""Types of less than 8 bits, and the smallest type that holds their elements, which are unpacked."""


@functools.cache
def type_name(onnx_type: int) -> str:
    """Return the name of a TensorProto.DataType in numpy or ml_dtypes; ``object`` for strings."""
    import onnx_ir as ir

    return str(ir.DataType(onnx_type).numpy().name)


@functools.cache
def torch_dtype(onnx_type: int) -> torch.dtype | None:
    """Return torch's dtype for a TensorProto.DataType; None for strings."""
    try:
        name = type_name(onnx_type)
        found: torch.dtype | None = None if name == "object" else getattr(torch, _SMALL.get(name, name))
    except (ValueError, TypeError, AttributeError):
        raise UnsupportedError(
            "torch has no such type of elements",
            expected="a type of ONNX up to 2-bit integers",
            found=onnx_type,
        ) from None
    return found


_BITS = {"bfloat16": (np.int16, torch.bfloat16)} | {
    name: (np.uint8, getattr(torch, name))
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
}


def to_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a numpy array, also of ml_dtypes' types, as a tensor."""
    name = array.dtype.name
    if name in _BITS:
        bits, dtype = _BITS[name]
        return torch.from_numpy(np.array(array.view(bits), order="C")).view(dtype)
    if name in _SMALL:
        return torch.from_numpy(array.astype(_SMALL[name]))
    # A copy: arrays of files are read-only. It keeps the layout, since torch transposes faster than numpy.
    return torch.from_numpy(np.array(array)).contiguous()


def to_array(value: Any) -> Any:
    """Return a tensor as numpy array, of ml_dtypes' types where numpy has none; others stay."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    for name, (bits, dtype) in _BITS.items():
        if value.dtype == dtype:
            import ml_dtypes

            raw = value.contiguous().view(torch.int16 if bits is np.int16 else torch.uint8)
            return raw.numpy().view(getattr(ml_dtypes, name))
    return value.resolve_conj().resolve_neg().numpy()


def from_numpy(value: Any, device: torch.device) -> Any:
    """Return an input of a model as tensors: lists stay lists; None and arrays of strings stay."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [from_numpy(part, device) for part in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "OSU" else to_tensor(array).to(device)


def to_numpy(value: Any, kind: Any) -> Any:
    """Return an output of a model as numpy arrays of the types that the model declares, ``onnx.TypeProto``.

    Types that torch does not have, such as int4, are known only from these.
    """
    if value is None:
        return None
    field = kind.WhichOneof("value")
    if field == "optional_type":
        return to_numpy(value, kind.optional_type.elem_type)
    if isinstance(value, list | tuple):
        return [to_numpy(part, kind.sequence_type.elem_type) for part in value]
    array = to_array(value)
    code = kind.tensor_type.elem_type
    if code and (name := type_name(code)) in _SMALL:
        import ml_dtypes

        return array.astype(getattr(ml_dtypes, name))
    return array
