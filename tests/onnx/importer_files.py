"""The ONNX files of `tests/onnx/files`, and inputs for them."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import onnx

FILES = Path(__file__).parent / "files"
WORDS = {
    "text": ("A good film, good actors!", "a bad day", "nothing that is known", "", "Good-bye bad film"),
    "color": ("red", "green", "blue", "violet"),
}
"""Values of inputs of strings, by the name of the input; the models were not fitted on all of them."""


def names() -> list[str]:
    """Return the names of the files."""
    return sorted(path.name.removesuffix(".onnx.xz") for path in FILES.glob("*.onnx.xz"))


def read(name: str) -> bytes:
    """Return the bytes of a model."""
    return lzma.decompress((FILES / f"{name}.onnx.xz").read_bytes())


def inputs_of(model: bytes, batch: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs for a model: ids below 40, masks that end early, words, normal numbers.

    Sequences are three longer than the batch is. Inputs that are called gaps have missing values.
    """
    rng = np.random.default_rng(0)
    proto = onnx.load_from_string(model)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for value in proto.graph.input:
        if value.name in initializers:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value or (batch + 3 if d.dim_param == "sequence" else batch) for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.STRING:
            inputs[value.name] = rng.choice(np.array(WORDS[value.name], dtype=object), shape)
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name == "attention_mask":
            lengths = shape[1] - np.arange(shape[0])[:, None]
            inputs[value.name] = (np.arange(shape[1]) < lengths).astype(dtype)
        elif dtype.kind in "iu":
            inputs[value.name] = rng.integers(3, 40, shape).astype(dtype)
        else:
            inputs[value.name] = rng.standard_normal(shape).astype(dtype)
            if value.name == "gaps":
                inputs[value.name].flat[::11] = np.nan
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
