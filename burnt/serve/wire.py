"""Bodies of requests and answers: JSON, and raw tensors as safetensors.

JSON has no NaN and no infinity. Inputs must be finite in both formats. In the JSON of an answer, the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` stand for them, as in the exports of runs; safetensors have them
as they are.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from burnt.errors import BurntError, InputRuntimeError, InputTypeError
from burnt.serve.schema import Schema, TensorSchema

__all__ = [
    "JSON",
    "SAFETENSORS",
    "decode_json",
    "decode_safetensors",
    "encode_error",
    "encode_json",
    "encode_safetensors",
    "is_finite",
]

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"

_OPENING = re.compile(rb"[\s\[]*")


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, msgspec.Raw]


_BODY = msgspec.json.Decoder(_Body)


def decode_json(body: bytes, schema: Schema) -> dict[str, np.ndarray[Any, Any]]:
    """Return the inputs in ``{"inputs": {"images": [...]}}``, in the dtypes of the schema.

    Numbers are checked as they are read: an integer input takes no fraction, a boolean one only true and
    false. Shapes are left to `Schema.fit`.

    Raises:
        InputError: the body is no such JSON, lists are ragged, or a value does not fit its dtype.
    """
    try:
        inputs = _BODY.decode(body).inputs
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputTypeError(
            "the body is not the JSON of a request",
            expected='{"inputs": {' + ", ".join(f'"{t.name}": [...]' for t in schema.inputs) + "}}",
            found=str(error),
            hint=_not_finite_hint(body),
        ) from None
    except RecursionError:
        raise InputTypeError("the body is nested too deeply") from None
    schema.check_names(inputs)
    return {tensor.name: _decode(memoryview(inputs[tensor.name]), tensor) for tensor in schema.inputs}


def _decode(raw: memoryview, tensor: TensorSchema) -> np.ndarray[Any, Any]:
    opening = _OPENING.match(raw)
    depth = 0 if opening is None else opening[0].count(b"[")
    depths = [len(tensor.shape)] if tensor.batch_axis is None else [len(tensor.shape), len(tensor.shape) - 1]
    if depth not in depths:
        raise InputRuntimeError(
            "an input has another number of axes",
            where=tensor.name,
            expected=f"lists nested {' or '.join(map(str, depths))} deep, for {tensor.shape_text()}",
            found=f"lists nested {depth} deep",
        )
    try:
        values = _decoder(depth, tensor.dtype).decode(raw)
        with np.errstate(over="ignore"):  # what becomes infinite is refused by `Schema.fit`
            return np.asarray(values, tensor.dtype)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise InputTypeError(
            "an input has a value that does not fit",
            where=tensor.name,
            expected="true and false" if tensor.dtype.kind == "b" else f"numbers of {tensor.dtype}",
            found=str(error),
        ) from None
    except ValueError:
        raise InputRuntimeError(
            "an input has lists of different lengths", where=tensor.name, expected=tensor.shape_text()
        ) from None


@functools.lru_cache
def _decoder(depth: int, dtype: np.dtype[Any]) -> msgspec.json.Decoder[Any]:
    """Return the decoder of lists nested so deep: it names the index of a value that is not of the dtype."""
    nested: Any = {"b": bool, "i": int, "u": int, "f": float}[dtype.kind]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # msgspec takes limits of up to 64 bits with a sign; beyond them NumPy raises OverflowError.
        largest = int(limits.max) if dtype.itemsize < 8 else None
        nested = Annotated[int, msgspec.Meta(ge=int(limits.min), le=largest)]
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def _not_finite_hint(body: bytes) -> str | None:
    found = re.search(rb"\b(NaN|-?Infinity|nan|-?inf)\b", body[:1_000_000])
    return None if found is None else f"JSON has no {found[0].decode()}, and inputs must be finite"


def decode_safetensors(body: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a file in the format of safetensors.

    Raises:
        InputError: it is damaged, or has a dtype that NumPy lacks.
    """
    try:
        return safetensors.numpy.load(body)
    except safetensors.SafetensorError as error:
        raise InputTypeError("the body is no file of safetensors", found=str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:  # for bfloat16 and 8-bit floats, by version
        raise InputTypeError(
            "a tensor has a dtype that the server cannot read", found=str(error), hint="send float32"
        ) from None


def encode_json(outputs: Mapping[str, np.ndarray[Any, Any]], extra: Mapping[str, Any], labels: Any) -> bytes:
    """Return an answer as JSON: the outputs as nested lists, and what goes with them."""
    document: dict[str, Any] = {**extra, "outputs": {name: _to_lists(a) for name, a in outputs.items()}}
    if labels is not None:
        document["labels"] = labels
    return msgspec.json.encode(document)


def encode_safetensors(
    outputs: Mapping[str, np.ndarray[Any, Any]], extra: Mapping[str, Any], labels: Any
) -> bytes:
    """Return an answer as safetensors; what goes with the outputs is in the metadata of its header."""
    metadata = {name: str(value) for name, value in extra.items()}
    if labels is not None:
        metadata["labels"] = json.dumps(labels)
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in outputs.items()}
    return safetensors.numpy.save(arrays, metadata)


def is_finite(outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether no output has a NaN or an infinity."""
    return all(array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in outputs)


def _to_lists(array: np.ndarray[Any, Any]) -> Any:
    if is_finite([array]):
        return array.tolist()
    values: np.ndarray[Any, Any] = array.astype(object)
    values[np.isnan(array)] = "NaN"
    values[np.isposinf(array)] = "Infinity"
    values[np.isneginf(array)] = "-Infinity"
    return values.tolist()


def encode_error(error: BurntError) -> bytes:
    """Return an error as JSON: its message, and where, expected, found and hint if it has them."""
    parts = {name: getattr(error, name) for name in ("where", "expected", "found", "hint")}
    given = {name: str(part) for name, part in parts.items() if part is not None}
    return msgspec.json.encode({"error": {"message": error.what, **given}})
