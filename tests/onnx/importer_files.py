"""The ONNX files of `tests/onnx/files`, and inputs for them."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import torch

import burnt
from burnt.onnx.importer.program import Statement

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


def parse(text: str, *, opset: int = 21, ir: int = 10, **arrays: Any) -> onnx.ModelProto:
    """Return a model from ONNX's text, ``(float[n] x) => (float[n] y) { y = Mul(x, w) }``, with constants."""
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> m {text}')
    model.graph.initializer.extend(tensor(array, name=name) for name, array in arrays.items())
    return model


def read_by(model: onnx.ModelProto, constants: Mapping[str, Any]) -> list[onnx.TensorProto]:
    """Return the constants that nodes read; Python's floating-point numbers are float32."""
    names = {name for node in model.graph.node for name in node.input}
    arrays = {name: np.asarray(value) for name, value in constants.items() if name in names}
    single = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}
    return [tensor(array, name=name) for name, array in single.items()]


def compare(model: onnx.ModelProto, *inputs: np.ndarray[Any, Any], tolerance: float = 1e-5) -> Any:
    """Compare with ONNX Runtime, to a tolerance of the output's scale; return the imported module."""
    import onnxruntime

    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)})
    with torch.no_grad():
        found = module(*map(torch.from_numpy, inputs)).numpy()
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * max(1.0, float(np.abs(want).max())))
    return module


def calls_of(module: Any) -> list[str]:
    """Return the functions that a module calls; layers by their class."""
    names = [s.call.function for s in module.program.statements if isinstance(s, Statement)]
    return [type(module.get_submodule(n[5:])).__name__ if n.startswith("self.") else n for n in names]
