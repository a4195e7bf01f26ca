"""ONNX's types of elements as torch's, and numpy arrays of any of them as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import UnsupportedError

# By TensorProto.DataType. Types of less than 8 bits are unpacked to the smallest type that holds them.
_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
    21: torch.uint8,
    22: torch.int8,
    23: torch.float32,
    24: torch.float8_e8m0fnu,
    25: torch.uint8,
    26: torch.int8,
}


def torch_dtype(onnx_type: int) -> torch.dtype | None:
    """Return torch's dtype for a TensorProto.DataType; None for strings."""
    if onnx_type == 8:
        return None
    if onnx_type not in _DTYPES:
        raise UnsupportedError(
            "torch has no such type of elements",
            expected="a type of ONNX up to 2-bit integers",
            found=onnx_type,
        )
    return _DTYPES[onnx_type]


_BITS = {"bfloat16": (np.int16, torch.bfloat16)} | {
    name: (np.uint8, getattr(torch, name))
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
}
_SMALL = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8, "float4_e2m1fn": np.float32}


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

    Types that torch does not have, such as int4, are known from these alone.
    """
    if value is None:
        return None
    field = kind.WhichOneof("value")
    if field == "optional_type":
        return to_numpy(value, kind.optional_type.elem_type)
    if isinstance(value, list | tuple):
        return [to_numpy(part, kind.sequence_type.elem_type) for part in value]
    array = to_array(value)
    name = _SMALL_TYPES.get(kind.tensor_type.elem_type)
    if name is not None:
        import ml_dtypes

        return array.astype(getattr(ml_dtypes, name))
    return array


_SMALL_TYPES = {21: "uint4", 22: "int4", 23: "float4_e2m1fn", 25: "uint2", 26: "int2"}
