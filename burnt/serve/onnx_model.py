"""OnnxModel: an ONNX file in ONNX Runtime, as the server runs it. Needs no torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from burnt._independence import tolerance_for
from burnt.errors import RecordError, UnsupportedError
from burnt.serve.schema import Arrays, Schema, TensorSchema

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

_BATCH = r"(?i)batch(_?size)?"  # names of an axis of the items


class OnnxModel:
    """A model in an ONNX file.

    The names, shapes and batch axes are those that `burnt.onnx.export` wrote into the file; for other files
    they are its inputs and outputs, and the batch is the axes named ``batch`` or ``batch_size``, or if there
    are none the first axis of the first input, if its size is open, and all axes of that name.

    Args:
        path: the file.

    Raises:
        UnsupportedError: ONNX Runtime is missing, or an input or output is not a tensor of numbers.
        RecordError: the file is missing, damaged, or has operators that ONNX Runtime lacks.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mark = self._disk_mark()
        self._session = _open_session(self.path)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.schema = _schema(self._session, metadata, self.path)
        self._known = {value.name for value in self._session.get_inputs()}
        self.version = metadata.get("burnt.checkpoint") or self._mark

    def batch_sizes(self, max_batch: int) -> Sequence[int]:
        """Return the largest size only: ONNX Runtime takes every size at the same cost per item."""
        return [max_batch] if self.schema.is_batchable else [1]

    def run(self, arrays: Arrays) -> Arrays:
        """Return the outputs."""
        named = {tensor.name: array for tensor, array in zip(self.schema.inputs, arrays, strict=True)}
        # The file lacks the inputs that the model takes and does not use.
        fed = {name: array for name, array in named.items() if name in self._known}
        outputs: Arrays = self._session.run([tensor.name for tensor in self.schema.outputs], fed)
        return outputs

    def newest_version(self) -> str:
        """Return this version until the file changes, then the time of the change."""
        mark = self._disk_mark()
        return self.version if mark == self._mark else mark

    def reloaded(self) -> Self:
        """Read the file again."""
        return type(self)(self.path)

    def _disk_mark(self) -> str:
        """Return the time of the file's last change, which stands for its content."""
        try:
            seconds = self.path.stat().st_mtime
        except OSError as error:
            raise RecordError(
                "the ONNX file cannot be read", where=str(self.path), found=error.strerror
            ) from None
        return datetime.fromtimestamp(seconds, UTC).isoformat()


def _open_session(path: Path) -> Any:
    if importlib.util.find_spec("onnxruntime") is None:
        raise UnsupportedError(
            "serving an ONNX file needs ONNX Runtime", where=str(path), hint="pip install onnxruntime"
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():  # as torch does; ONNX Runtime itself does not read it
        options.intra_op_num_threads = int(threads)
    # Threads that spin between calls take the processor time that the server needs for requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but Exception
        raise RecordError(
            "ONNX Runtime cannot load the file", where=str(path), found=str(error).strip()[:300]
        ) from error


def _schema(session: Any, metadata: Mapping[str, str], path: Path) -> Schema:
    """Return the schema that burnt wrote into the file, with the sizes that the file fixes; or the file's."""
    try:
        classes = json.loads(metadata["burnt.classes"]) if "burnt.classes" in metadata else None
        written = json.loads(metadata["burnt.signature"]) if "burnt.signature" in metadata else None
    except ValueError as error:
        raise RecordError("the file's metadata is damaged", where=str(path), found=str(error)) from None
    inputs, outputs = _own_tensors(session, path)
    tolerance = tolerance_for(str(tensor.dtype) for tensor in (*inputs, *outputs))
    names = None if not classes else tuple(map(str, classes))
    if written is not None:
        described = Schema.from_signature(written)
        inputs, outputs = _with_sizes(described.inputs, inputs), _with_sizes(described.outputs, outputs)
    return Schema(inputs, outputs, names, "burnt.multi_label" in metadata, tolerance)


def _with_sizes(described: Sequence[TensorSchema], own: Sequence[TensorSchema]) -> tuple[TensorSchema, ...]:
    """Take the shapes and dtypes of the file; a batch axis whose size it fixes is none."""
    known = {tensor.name: tensor for tensor in own}
    merged = []
    for tensor in described:
        file = known.get(tensor.name, tensor)
        axis = tensor.batch_axis
        is_open = axis is not None and file.shape[axis] is None
        batch_axis = axis if is_open else None
        merged.append(replace(tensor, shape=file.shape, dtype=file.dtype, batch_axis=batch_axis))
    return tuple(merged)


def _own_tensors(session: Any, path: Path) -> tuple[tuple[TensorSchema, ...], tuple[TensorSchema, ...]]:
    taken, returned = session.get_inputs(), session.get_outputs()
    named = [size for value in taken for size in value.shape if re.fullmatch(_BATCH, str(size))]
    batch = named[0] if named else taken[0].shape[0] if taken and taken[0].shape else 1
    inputs = tuple(_tensor(value, batch, path) for value in taken)
    outputs = tuple(_tensor(value, batch, path) for value in returned)
    return inputs, outputs


def _tensor(value: Any, batch: int | str | None, path: Path) -> TensorSchema:
    """Describe an input or output; `batch` is the size of the batch, by its name, or None if it has none.

    Of axes without a name, which cannot be distinguished, only the first one is the batch.
    """
    if value.type not in _DTYPES:
        raise UnsupportedError(
            "the server cannot pass on an input or output of this type",
            where=f"{path}, {value.name}",
            expected="a tensor of numbers",
            found=value.type,
            hint="scikit-learn's converter: options={'zipmap': False}" if "map" in value.type else None,
        )
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    axes = [axis for axis, size in enumerate(value.shape) if size == batch and shape[axis] is None]
    axis = axes[0] if axes and (axes[0] == 0 or isinstance(batch, str)) else None
    return TensorSchema(value.name, shape, np.dtype(_DTYPES[value.type]), axis)
