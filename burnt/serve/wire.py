"""Bodies of requests and answers: JSON, and raw tensors as safetensors.

JSON has no NaN and no infinity. Inputs must be finite in both formats; a missing value of a table may be NaN,
which is null in JSON. In the JSON of an answer, the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``
stand for them, as in the exports of runs; safetensors have them as they are.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from burnt.errors import BurntError, InputRuntimeError, InputTypeError
from burnt.serve.schema import Schema, TensorSchema

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"

_OPENING = re.compile(rb"[\s\[]*")
_SPACE = b" \t\r\n"
_NOT_NESTING = bytes(set(range(256)) - set(b"[],"))
_PIECE_BYTES = 2**16  # of JSON that are decoded at once
_PIECE_NUMBERS = 2**14  # that are encoded at once
_MAX_STRINGS = 500  # in a body, besides the names of inputs


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    inputs: dict[str, msgspec.Raw] | None = None
    rows: list[dict[str, str | int | float | bool | None]] | None = None


_BODY = msgspec.json.Decoder(_Body)


def decode_json(
    body: bytes, schema: Schema, max_rows: int | None = None
) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the inputs in ``{"inputs": {"images": [...]}}``, in the dtypes of the schema, or those that
    ``{"rows": [{"age": 31, "city": "Paris"}]}`` become.

    Numbers are checked as they are read: an integer input takes no fraction, a boolean one only true and
    false. Shapes are left to `Schema.fit`.
    """
    strings = _MAX_STRINGS + len(schema.inputs)
    if schema.table is not None:
        strings += 2 * len(schema.table.columns) * (max_rows or 1)
    # Many rows without columns are few bytes, and much memory.
    if body.count(b'"') > 2 * strings or body.count(b"{") > strings:
        raise InputTypeError("the body has more names or strings than a request", expected=_expected(schema))
    try:
        document = _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputTypeError(
            "the body is not the JSON of a request",
            expected=_expected(schema),
            found=str(error),
            hint=_not_finite_hint(body),
        ) from None
    except RecursionError:
        raise InputTypeError("the body is nested too deeply") from None
    if document.rows is not None and document.inputs is None:
        return schema.encode(document.rows, max_rows)
    if document.inputs is None or document.rows is not None:
        raise InputTypeError("the body has neither inputs nor rows, or both", expected=_expected(schema))
    inputs = document.inputs
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
        if len(raw) > _PIECE_BYTES:
            return _decode_in_pieces(bytes(raw).translate(None, _SPACE), depth, tensor)
        values = _decoder(depth, tensor.dtype, tensor.may_be_nan).decode(raw)
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
            "an input has lists of different lengths or depths",
            where=tensor.name,
            expected=tensor.shape_text(),
        ) from None


def _decode_in_pieces(text: bytes, depth: int, tensor: TensorSchema) -> np.ndarray[Any, Any]:
    """Return the numbers in nested lists, in JSON without spaces.

    Python's lock is held while a piece is decoded, about 2 ms: a thread that does this leaves time for
    others. There is one list of Python's numbers at a time, which takes little memory. Raises what
    `_decode` turns into errors.
    """
    shape = _nested_shape(text, depth)
    array = np.empty(math.prod(shape), tensor.dtype)
    numbers = text.translate(None, b"[]") if array.size else b""
    start = done = 0
    while start < len(numbers):
        end = numbers.find(b",", start + _PIECE_BYTES)
        end = len(numbers) if end < 0 else end
        try:
            values = _decoder(1, tensor.dtype, tensor.may_be_nan).decode(b"[%b]" % numbers[start:end])
        except msgspec.ValidationError as error:
            # Its index is one of the piece.
            path = functools.partial(_path, done, shape)
            raise msgspec.ValidationError(re.sub(r"`\$\[(\d+)\]`", path, str(error))) from None
        with np.errstate(over="ignore"):
            array[done : done + len(values)] = np.asarray(values, tensor.dtype)
        done += len(values)
        start = end + 1
    return array.reshape(shape)


def _nested_shape(text: bytes, depth: int) -> tuple[int, ...]:
    """Return the shape of nested lists in JSON without spaces; a ValueError if their lengths differ.

    >>> _nested_shape(b"[[1,2,3],[4,5,6]]", 2)
    (2, 3)
    """
    nesting = text.translate(None, _NOT_NESTING)  # such as b"[[,,],[,,]]"
    shape: list[int] = []
    item = b""
    for level in range(1, depth + 1):
        # All items of the first list of this level must look like the first one.
        first = nesting[depth - level : nesting.find(b"]" * level) + level]
        count = (len(first) - 1) // (len(item) + 1)
        if first != b"[%b]" % ((item + b",") * count)[:-1]:
            raise ValueError
        shape.insert(0, count)
        item = first
    if item != nesting:
        raise ValueError
    if shape[-1:] == [1] and b"[]" in text:  # a list of no element looks like one of one element
        if text != nesting:
            raise ValueError
        shape[-1] = 0
    return tuple(shape)


def _path(start: int, shape: tuple[int, ...], index: re.Match[str]) -> str:
    return "`$" + "".join(f"[{i}]" for i in np.unravel_index(start + int(index[1]), shape)) + "`"


@functools.lru_cache
def _decoder(depth: int, dtype: np.dtype[Any], has_null: bool) -> msgspec.json.Decoder[Any]:
    """Return the decoder of lists nested so deep: it names the index of a value that is not of the dtype."""
    nested: Any = {"b": bool, "i": int, "u": int, "f": float | None if has_null else float}[dtype.kind]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # msgspec takes limits of up to 64 bits with a sign; beyond them NumPy raises OverflowError.
        largest = int(limits.max) if dtype.itemsize < 8 else None
        nested = Annotated[int, msgspec.Meta(ge=int(limits.min), le=largest)]
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def _expected(schema: Schema) -> str:
    inputs = '{"inputs": {' + ", ".join(f'"{tensor.name}": [...]' for tensor in schema.inputs) + "}}"
    if schema.table is None:
        return inputs
    return '{"rows": [{' + ", ".join(f'"{name}": ...' for name in schema.table.columns) + "}]}, or " + inputs


def _not_finite_hint(body: bytes) -> str | None:
    found = re.search(rb"\b(NaN|-?Infinity|nan|-?inf)\b", body[:1_000_000])
    return None if found is None else f"JSON has no {found[0].decode()}, and inputs must be finite"


def decode_safetensors(body: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of a file in the format of safetensors."""
    try:
        return safetensors.numpy.load(body)
    except safetensors.SafetensorError as error:
        raise InputTypeError("the body is not a file of safetensors", found=str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:  # for bfloat16 and 8-bit floats, by version
        raise InputTypeError(
            "a tensor has a dtype that the server cannot read", found=str(error), hint="send float32"
        ) from None


def encode_json(
    outputs: Mapping[str, np.ndarray[Any, Any]],
    extra: Mapping[str, Any],
    labels: Any = None,
    probabilities: Any = None,
) -> bytes:
    """Return an answer as JSON: the outputs as nested lists, and what goes with them."""
    document: dict[str, Any] = {
        **extra,
        "outputs": {name: msgspec.Raw(_to_json(array)) for name, array in outputs.items()},
    }
    named = {"labels": labels, "probabilities": probabilities}
    return msgspec.json.encode(document | {name: value for name, value in named.items() if value is not None})


def by_class(probabilities: np.ndarray[Any, Any], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the probabilities of each item by the names of classes, with ``"NaN"`` as in outputs."""
    return [dict(zip(classes, row, strict=True)) for row in _to_lists(probabilities)]


def encode_safetensors(
    outputs: Mapping[str, np.ndarray[Any, Any]], extra: Mapping[str, Any], labels: Any = None
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


def _to_json(array: np.ndarray[Any, Any]) -> bytes:
    if array.size <= _PIECE_NUMBERS or array.ndim == 0:
        return msgspec.json.encode(_to_lists(array))
    rows = _PIECE_NUMBERS // array[0].size
    if rows == 0:
        parts = [_to_json(row) for row in array]
    else:
        parts = [_to_json(array[i : i + rows])[1:-1] for i in range(0, len(array), rows)]
    return b"[%b]" % b",".join(parts)


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
