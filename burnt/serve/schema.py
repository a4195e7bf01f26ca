"""Schema: names, shapes and dtypes of what a model takes and returns, for arrays of NumPy.

It is a `burnt.inspect.Signature` without torch, whose axes other than the batch may be open too: an ONNX file
is served where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt._independence import TOLERANCE, pad
from burnt._probabilities import classify
from burnt.errors import (
    BurntError,
    DataError,
    InputError,
    InputRuntimeError,
    InputTypeError,
    InputValueError,
    UnsupportedError,
    did_you_mean,
)

if TYPE_CHECKING:
    from burnt.data.description import TableDescription

Arrays = list[np.ndarray[Any, Any]]
"""Inputs or outputs of a model, in the order of its schema."""


class TooLargeError(InputError):
    """A request is larger than the server accepts."""


@dataclass(frozen=True)
class TensorSchema:
    """One tensor that a model takes or returns."""

    name: str
    shape: tuple[int | None, ...]  # None is an axis of any size, such as the batch
    dtype: np.dtype[Any]
    batch_axis: int | None = None
    range: tuple[float, float] | None = None  # the lowest and highest value in the model's example, if known
    may_be_nan: bool = False  # for a missing value

    def shape_text(self) -> str:
        """Format the shape: ``[batch, 1, 8, 8]``, with ``any`` for further open axes."""
        return f"[{', '.join(str(size) for size in self.sizes())}]"

    def sizes(self) -> list[int | str]:
        """Return the sizes with ``"batch"`` and ``"any"`` for open axes."""
        return [
            "batch" if axis == self.batch_axis else "any" if size is None else size
            for axis, size in enumerate(self.shape)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        described: dict[str, Any] = {"name": self.name, "dtype": str(self.dtype), "shape": self.sizes()}
        if self.range is not None:
            described["range"] = list(self.range)
        return described | ({"may_be_nan": True} if self.may_be_nan else {})


@dataclass(frozen=True)
class Batch:
    """Inputs that fit a model."""

    arrays: Arrays  # in the order of the schema, all with their batch axis
    rows: int
    is_single: bool  # they came without a batch axis; then the answer has none either

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all inputs."""
        return tuple(array.shape for array in self.arrays)


@dataclass(frozen=True)
class Schema:
    """What a model takes and returns, in order.

    >>> described = {"shape": [4, 2], "dtype": "float32", "batch_axis": 0, "range": None}
    >>> schema = Schema.from_signature(
    ...     {"inputs": [{"name": "x", **described}], "outputs": [{"name": "output", **described}]}
    ... )
    >>> schema.inputs[0].shape_text(), schema.is_batchable
    ('[batch, 2]', True)
    >>> schema.fit({"x": np.zeros(2, np.float32)}).arrays[0].shape
    (1, 2)
    """

    inputs: tuple[TensorSchema, ...]
    outputs: tuple[TensorSchema, ...]
    classes: tuple[str, ...] | None = None  # that a single output [batch, classes] scores
    is_multi_label: bool = False  # an item may have several classes
    tolerance: float = TOLERANCE  # between batches of other sizes, relative to the largest output
    largest_integer: int = 1000  # of random items, where an input's range is not known
    one_by_one: str | None = None  # why requests are not joined, found when the model is first run
    table: TableDescription | None = None  # whose entries are the inputs; needs torch to encode rows

    @classmethod
    def from_signature(
        cls, document: Mapping[str, Any], classes: Sequence[str] | None = None, is_multi_label: bool = False
    ) -> Schema:
        """Read what `burnt.inspect.Signature.to_dict` returned."""
        inputs, outputs = (
            tuple(
                TensorSchema(
                    info["name"],
                    tuple(None if axis == info["batch_axis"] else n for axis, n in enumerate(info["shape"])),
                    numpy_dtype(info["dtype"], info["name"]),
                    info["batch_axis"],
                    None if info["range"] is None else (info["range"][0], info["range"][1]),
                    any(column["may_be_nan"] for column in info.get("columns", ())),
                )
                for info in document[part]
            )
            for part in ("inputs", "outputs")
        )
        return cls(inputs, outputs, None if not classes else tuple(map(str, classes)), is_multi_label)

    @property
    def is_batchable(self) -> bool:
        """Whether several requests can be answered by one call: all tensors have a batch axis, along which
        the items are independent."""
        tensors = (*self.inputs, *self.outputs)
        return self.one_by_one is None and all(tensor.batch_axis is not None for tensor in tensors)

    @property
    def has_open_axes(self) -> bool:
        """Whether an input has an axis of any size other than the batch."""
        return any(
            size is None and axis != tensor.batch_axis
            for tensor in self.inputs
            for axis, size in enumerate(tensor.shape)
        )

    def classify(self, outputs: Arrays) -> tuple[list[Any], np.ndarray[Any, Any]] | None:
        """Return the class of each item, and the probabilities ``[n, classes]``: see `_probabilities`.

        None unless the only output is such scores.
        """
        if self.classes is None or len(self.outputs) != 1 or self.outputs[0].batch_axis != 0:
            return None
        return classify(outputs[0], self.classes, self.is_multi_label, self.outputs[0].range == (0, 1))

    def encode(self, rows: Sequence[Mapping[str, Any]], max_rows: int | None) -> dict[str, Any]:
        """Return the inputs that rows of a table become, in which an absent column is a missing value."""
        if self.table is None:
            raise InputTypeError(
                "the model takes no rows",
                expected="inputs, as GET /v1/schema describes them",
                hint="a run that was trained on a table takes rows; an ONNX file does not",
            )
        check_count(len(rows), max_rows)
        columns = self.table.columns
        for number, row in enumerate(rows):
            if unknown := next((name for name in row if name not in columns), None):
                raise InputValueError(
                    "a row has a column that the model does not know",
                    where=f"row {number}",
                    expected=", ".join(columns),
                    found=repr(unknown)[:100],
                    hint=did_you_mean(unknown, columns),
                )
        try:
            return self.table.encode(
                [{name: row.get(name) for name in columns} for row in rows], "the request"
            )
        except DataError as error:  # its hint is about the dataset's options
            raise InputValueError(
                error.what, where=error.where, expected=error.expected, found=error.found
            ) from None

    def without_batch_axis(self, outputs: Arrays) -> Arrays:
        """Return the outputs for one item without their batch axes."""
        return [
            output if tensor.batch_axis is None else output.squeeze(tensor.batch_axis)
            for output, tensor in zip(outputs, self.outputs, strict=True)
        ]

    def fit(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        max_rows: int | None = None,
        max_elements: int | None = None,
    ) -> Batch:
        """Return inputs by name as a batch, if they fit.

        An input has all its axes, or lacks the batch axis: then it is one item. That holds for all of them.
        """
        self.check_names(arrays)
        rows: int | None = None
        is_single: bool | None = None
        fitted: Arrays = []
        for tensor in self.inputs:
            array = arrays[tensor.name]
            if array.dtype != tensor.dtype:
                raise InputTypeError(
                    "an input has another dtype",
                    where=tensor.name,
                    expected=str(tensor.dtype),
                    found=str(array.dtype),
                )
            if tensor.batch_axis is not None:
                lacks_axis = array.ndim == len(tensor.shape) - 1
                is_single = lacks_axis if is_single is None else is_single
                if lacks_axis != is_single:
                    raise InputRuntimeError(
                        "some inputs have a batch axis and some have none",
                        where=tensor.name,
                        expected="a batch axis in all of them, or in none",
                        found=_shape_text(array),
                    )
                if lacks_axis:
                    array = np.expand_dims(array, tensor.batch_axis)
            size = array.shape[tensor.batch_axis] if _has_axis(array, tensor.batch_axis) else None
            if not _fits(array.shape, tensor.shape) or (size is not None and rows not in (None, size)):
                raise InputRuntimeError(
                    "an input has another shape",
                    where=tensor.name,
                    expected=tensor.shape_text()
                    + (f" with batch {rows}" if rows is not None and not is_single else "")
                    + ("" if tensor.batch_axis is None else ", or one item without the batch axis"),
                    found=_shape_text(arrays[tensor.name]),
                )
            if max_elements is not None and array.size > max_elements:
                raise TooLargeError(
                    "an input is too large",
                    where=tensor.name,
                    expected=f"at most {max_elements:,} elements",
                    found=f"{_shape_text(array)}, {array.size:,} elements",
                )
            if array.dtype.kind == "f" and not _are_valid(array, tensor).all():
                raise _not_finite_error(tensor, arrays[tensor.name])
            rows = size if size is not None else rows
            fitted.append(array)
        check_count(rows or 1, max_rows)
        return Batch(fitted, rows or 1, bool(is_single))

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Check that exactly the inputs of the model are given."""
        names = [tensor.name for tensor in self.inputs]
        if set(given) != set(names):
            raise InputTypeError(
                "the inputs are not those of the model",
                expected=", ".join(names),
                found=", ".join(given)[:200] or "none",
            )

    def check_outputs(self, outputs: Arrays, rows: int) -> None:
        """Check that a model has returned as many outputs as it should, and as many items as it was given."""
        if len(outputs) != len(self.outputs):
            raise BurntError(
                "the model returned another number of outputs",
                expected=str(len(self.outputs)),
                found=str(len(outputs)),
            )
        for output, tensor in zip(outputs, self.outputs, strict=True):
            axis = tensor.batch_axis
            if axis is not None and (axis >= output.ndim or output.shape[axis] != rows):
                raise BurntError(
                    "an output has another number of items than the inputs",
                    where=tensor.name,
                    expected=f"{rows} along axis {axis}",
                    found=_shape_text(output),
                )

    def example(self, rows: int) -> Arrays:
        """Return inputs of the lowest known value, or 0, for a first call of a model without open axes."""
        arrays: Arrays = []
        for tensor in self.inputs:
            shape = [rows if size is None else size for size in tensor.shape]
            arrays.append(np.full(shape, 0 if tensor.range is None else tensor.range[0], tensor.dtype))
        return arrays

    def random_item(
        self,
        generator: np.random.Generator,
        scale: float = 1.0,
        open_size: int = 1,
        largest_integer: int = 1,
        is_padded: bool = False,
    ) -> Arrays:
        """Return random inputs for one item, with open axes other than the batch of one size.

        With a `scale` above 1, integers are the largest of their range, or `largest_integer` if that is not
        known, and booleans true: the sums of many random ones would hardly differ between items. If padded,
        integers and booleans end with zeros, where 0 is in their range.
        """
        arrays: Arrays = []
        for tensor in self.inputs:
            shape = [
                1 if axis == tensor.batch_axis else open_size if size is None else size
                for axis, size in enumerate(tensor.shape)
            ]
            array = _random_array(tensor, shape, generator, scale, largest_integer)
            if is_padded and (tensor.range is None or tensor.range[0] <= 0 <= tensor.range[1]):
                pad(array, tensor.batch_axis)
            arrays.append(array)
        return arrays

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as JSON values."""
        return {
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "classes": None if self.classes is None else list(self.classes),
            **({} if self.table is None else {"columns": self.table.columns_to_dict()}),
            **({} if self.one_by_one is None else {"one_by_one": self.one_by_one}),
        }

    def __str__(self) -> str:
        def text(tensors: Sequence[TensorSchema]) -> str:
            return ", ".join(f"{t.name}: {t.dtype}{t.shape_text()}" for t in tensors)

        return f"{text(self.inputs)} -> {text(self.outputs)}"


def check_count(count: int, max_rows: int | None) -> None:
    """Raise if a request has more items than a server accepts."""
    if max_rows is not None and count > max_rows:
        raise TooLargeError(
            "the request has too many items",
            expected=f"at most {max_rows}",
            found=str(count),
            hint="send several requests, or raise --max-batch",
        )


def numpy_dtype(name: str, where: str) -> np.dtype[Any]:
    """Return the dtype of the arrays for a dtype by name; for bfloat16, which NumPy lacks, it is float32."""
    try:
        dtype = np.dtype("float32" if name == "bfloat16" else name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise UnsupportedError(
            "the server cannot pass on a tensor of this dtype",
            where=where,
            expected="a boolean, integer or floating-point dtype",
            found=name,
        )
    return dtype


def _random_array(
    tensor: TensorSchema,
    shape: Sequence[int],
    generator: np.random.Generator,
    scale: float,
    largest_integer: int,
) -> np.ndarray[Any, Any]:
    low, high = tensor.range or (0, 0)
    if tensor.dtype.kind == "b":
        return generator.random(shape) < (0.5 if scale == 1 else 1)
    if tensor.dtype.kind in "iu":
        limits = np.iinfo(tensor.dtype)
        least, most = max(int(low), limits.min), min(int(high), limits.max)
        if tensor.range is None and scale > 1:
            is_8_bits = tensor.dtype.itemsize == 1  # such as an image
            least, most = (limits.min, limits.max) if is_8_bits else (0, largest_integer)
        elif least >= most:  # 0 and 1 are valid as tokens, kinds of tokens and masks
            least, most = (least, least + 1) if least < limits.max else (least - 1, least)
        return generator.integers(least if scale == 1 else most, most, shape, tensor.dtype, endpoint=True)
    if low == high == 0:
        numbers = generator.standard_normal(shape)
    else:
        numbers = (
            generator.uniform(low, high, shape) if low < high else low * generator.uniform(0.5, 2, shape)
        )
    largest = np.finfo(tensor.dtype).max
    return (numbers * scale).clip(-largest, largest).astype(tensor.dtype)


def _has_axis(array: np.ndarray[Any, Any], axis: int | None) -> bool:
    return axis is not None and axis < array.ndim


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    # An axis of size 0 has nothing to predict for, and many models fail on it.
    return len(shape) == len(expected) and all(
        found > 0 if size is None else found == size for found, size in zip(shape, expected, strict=True)
    )


def _shape_text(array: np.ndarray[Any, Any]) -> str:
    return str(list(array.shape))


def _are_valid(array: np.ndarray[Any, Any], tensor: TensorSchema) -> np.ndarray[Any, Any]:
    valid: np.ndarray[Any, Any] = ~np.isinf(array) if tensor.may_be_nan else np.isfinite(array)
    return valid


def _not_finite_error(tensor: TensorSchema, array: np.ndarray[Any, Any]) -> InputValueError:
    index = [int(i) for i in np.argwhere(~_are_valid(array, tensor))[0]]
    value = float(array[tuple(index)])
    return InputValueError(
        "an input is not finite",
        where=f"{tensor.name}[{', '.join(map(str, index))}]",
        expected=f"finite numbers within {tensor.dtype}" + (", or NaN" if tensor.may_be_nan else ""),
        found=str(value),
    )
