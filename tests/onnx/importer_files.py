"""The ONNX files of `tests/onnx/files`, and inputs for them."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FILES = Path(__file__).parent / "files"
_SIZES = {"batch": 2, "sequence": 5}


def names() -> list[str]:
    """Return the names of the files."""
    return sorted(path.name.removesuffix(".onnx.xz") for path in FILES.glob("*.onnx.xz"))


def read(name: str) -> bytes:
    """Return the bytes of a model."""
    return lzma.decompress((FILES / f"{name}.onnx.xz").read_bytes())


def inputs_of(model: bytes, batch: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs for a model: ids below 40, masks of ones, normal numbers."""
    rng = np.random.default_rng(0)
    proto = onnx.load_from_string(model)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for i, value in enumerate(v for v in proto.graph.input if v.name not in initializers):
        kind = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else batch for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.STRING:
            words = np.array(["good film", "a bad day", "something else"], dtype=object)
            inputs[value.name] = np.resize(words, shape)
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind in "iu":
            # Ids, then a mask of the valid ones.
            inputs[value.name] = (rng.integers(3, 40, shape) if i == 0 else np.ones(shape)).astype(dtype)
        else:
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
    return inputs


def tensor(values: Any, kind: str | None = None, name: str = "") -> onnx.TensorProto:
    """Return values as an ONNX tensor, of a type that numpy need not have, such as int4."""
    array = np.asarray(values)
    dtype = (
        onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        if kind is None
        else onnx.TensorProto.DataType.Value(kind.upper())
    )
    return onnx.helper.make_tensor(name, dtype, array.shape, array.reshape(-1).tolist())
