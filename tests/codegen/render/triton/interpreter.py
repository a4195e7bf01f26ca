"""Correct Triton's interpreter where it differs from a GPU.

* bfloat16 and float8 are computed on their bits as if they were integers; here they are `ml_dtypes`'.
* Masked-out lanes of a load are 0; here they are NaN, or 77 for integers, as a GPU guarantees nothing.
* Loads and stores outside of the tensors that a kernel is given go unnoticed; here they raise. Kernels that
  read addresses from a table are not checked.
* `tl.fma` rounds twice; here once.
* A comparison of scalars has their dtype; here int1, so that it combines with blocks.
* The all-ones value of an unsigned dtype, which inversion uses, is invalid in NumPy; here it is valid.
* A reduction or scan with a custom function calls it for every element; here for whole arrays, a few times,
  which takes milliseconds instead of minutes. Sums run this way too, and round as on a GPU.
* Additions by descriptor are missing.
* For speed: a call of a device function patches Triton's language again, and tables of NumPy's dtypes and
  types of blocks are built for each value, which takes a third of the time; here each is done once.

It patches the interpreter's internals; `interpreted/test_interpreter.py` fails when these change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from torch import Tensor
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

_SMALL_FLOATS = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
}
_POISON = 77


def correct() -> None:
    """Patch the interpreter of this process."""
    dtype_of = interpreter._get_np_dtype
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    dtypes: dict[str, np.dtype] = {}

    def original_dtype(dtype: Any) -> np.dtype:
        # As its property `scalar`, which a pointer answers with itself.
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if element.name not in dtypes:
            dtypes[element.name] = dtype_of(element)
        return dtypes[element.name]

    def numpy_dtype(dtype: Any) -> np.dtype:
        return _SMALL_FLOATS.get(dtype.scalar.name) or original_dtype(dtype)

    patch_language = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        if tl.core.is_builtin(tl.load) or tl.core.is_builtin(tl.core.load):
            return patch_language(function)
        return interpreter._LangPatchScope()

    types: dict[tuple[object, ...], Any] = {}

    def block_type(dtype: Any, shape: Any) -> Any:
        key = (dtype.name, *shape)
        if key not in types:
            types[key] = tl.block_type(dtype, shape)
        return types[key]

    interpreter._patch_lang = patch_once
    builder.get_block_ty = lambda self, dtype, shape: block_type(dtype, shape)
    tl.block_type.with_element_ty = lambda self, dtype: block_type(dtype, self.shape)

    def cast(self: Any, source: Any, dtype: Any, *_: Any) -> Any:
        with np.errstate(all="ignore"):
            return handle(source.data.astype(numpy_dtype(dtype)), dtype.scalar)

    memory: list[range] = []  # the addresses of the tensors of the kernel that runs
    original_arguments = interpreter.GridExecutor._init_args_hst

    def arguments(self: Any, args: Any, kwargs: Any) -> Any:
        here = original_arguments(self, args, kwargs)
        memory[:] = map(_addresses, _tensors(here))
        return here

    original_pointer = builder.create_int_to_ptr

    def pointer(self: Any, *args: Any) -> Any:
        memory.clear()
        return original_pointer(self, *args)

    def check_inside(pointers: Any, mask: Any, stored: np.dtype) -> None:
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if used.size and memory:
            first, end = int(used.min()), int(used.max()) + stored.itemsize
            inside = any(m.start <= first and end <= m.stop for m in memory)
            assert inside, f"access outside of the tensors: {first:#x} to {end:#x}, of {memory}"

    interpreter.GridExecutor._init_args_hst = arguments
    builder.create_int_to_ptr = pointer

    def load(self: Any, pointers: Any, mask: Any, other: Any, *_: Any, **__: Any) -> Any:
        dtype = pointers.get_element_ty()
        stored = original_dtype(dtype)
        check_inside(pointers, mask, stored)
        if other is None:
            poison = np.nan if dtype.is_floating() else 1 if stored == np.bool_ else _POISON
            fill = np.full(pointers.data.shape, poison, numpy_dtype(dtype))
        else:
            fill = np.ascontiguousarray(np.broadcast_to(other.data, pointers.data.shape))
        mask_array = np.ascontiguousarray(np.broadcast_to(mask.data, pointers.data.shape))
        loaded = interpreter._interpreter.load(pointers.data, mask_array, fill.view(stored), stored)
        return handle(loaded.view(numpy_dtype(dtype)), dtype)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *_: Any) -> Any:
        data = np.ascontiguousarray(value.data)
        check_inside(pointers, mask, original_dtype(value.dtype))
        return interpreter._interpreter.store(
            pointers.data, data.view(original_dtype(value.dtype)), mask.data
        )

    def reduce(self: Any, kind: Any, descriptor: Any, value: Any, offsets: Any) -> None:
        assert kind == ir.DESCRIPTOR_REDUCE_KIND.ADD
        pointers, mask = descriptor.materialize_pointers(offsets)
        total = load(self, pointers, mask, None).data + value.data
        store(self, pointers, handle(total, value.dtype), mask)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        with np.errstate(all="ignore"):
            return handle(_fma(x.data, y.data, z.data), z.dtype.scalar)

    original_binary = builder.binary_op

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        result = original_binary(self, left, right, op)
        return handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    original_dot = builder.create_dot

    def dot(self: Any, a: Any, b: Any, sums: Any, *rest: Any) -> Any:
        if a.dtype.primitive_bitwidth == 8 and a.dtype.is_floating():
            a, b = (handle(t.data.astype(np.float32), tl.float32) for t in (a, b))
        return original_dot(self, a, b, sums, *rest)

    original_ones = builder.get_all_ones_value

    def all_ones(self: Any, type: Any) -> Any:
        dtype = original_dtype(type)
        if dtype.kind != "u":
            return original_ones(self, type)
        return handle(np.full(1, np.iinfo(dtype).max, dtype), type.scalar)

    interpreter._get_np_dtype = numpy_dtype
    builder.get_all_ones_value = all_ones
    builder.binary_op, builder.create_dot = binary_op, dot
    for name in (
        "cast_impl", "create_fp_to_fp", "create_fp_trunc", "create_fp_ext", "create_si_to_fp",
        "create_ui_to_fp", "create_fp_to_si", "create_fp_to_ui",
    ):  # fmt: skip
        setattr(builder, name, cast)
    builder.create_descriptor_reduce = reduce
    builder.create_masked_load, builder.create_masked_store, builder.create_fma = load, store, fma
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan
    interpreter.ScanOps.cumsum = lambda self, tensor: _scan(self, (tensor,))


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among a kernel's arguments."""
    if isinstance(value, TensorDescriptor):
        value = value.base
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _addresses(tensor: Tensor) -> range:
    """The addresses of a tensor's bytes, and of those between its elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = last + 1 if tensor.numel() else 0
    return range(tensor.data_ptr(), tensor.data_ptr() + count * tensor.itemsize)


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x y + z, rounded once: in float64 for float32, with the product in two parts for float64."""
    if z.dtype != np.float64:
        return (x.astype(np.float64) * y + z).astype(z.dtype)
    product = x * y  # Dekker: the products of halves are exact
    x_high, y_high = _upper(x), _upper(y)
    x_low, y_low = x - x_high, y - y_high
    rest = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    total = product + z
    part = total - product
    error = (product - (total - part)) + (z - part)
    exact = total + (error + rest)
    return np.where(np.isfinite(exact), exact, total)


def _upper(x: np.ndarray) -> np.ndarray:
    """The upper half of a float64's bits, rounded, so that the remainder has 26."""
    scaled = x * 134217729.0
    return scaled - (scaled - x)


def _reduce(self: Any, tensors: Any) -> list[Any]:
    """Reduce an array by halves; its size is a power of two, as Triton's blocks have."""
    tensors, axis = self.unravel(tensors, self.axis)
    arrays = [np.moveaxis(t.handle.data, axis, 0) for t in tensors]
    while len(arrays[0]) > 1:
        half = len(arrays[0]) // 2
        parts = [
            self.to_tensor(a[part], t.dtype)
            for part in (slice(None, half), slice(half, None))
            for a, t in zip(arrays, tensors, strict=True)
        ]
        with np.errstate(all="ignore"):
            combined = self.combine_fn.fn(*parts)
        arrays = [
            m.handle.data for m in (combined if isinstance(combined, tuple | tl.tuple) else (combined,))
        ]
    results = []
    for array, tensor in zip(arrays, tensors, strict=True):
        data = np.moveaxis(array, 0, axis) if self.keep_dims else array[0]
        results.append(self.to_tensor(data if data.ndim else data.item(), tensor.dtype))
    return results


def _scan(self: Any, tensors: Any) -> list[Any]:
    """Scan with strides of 1, 2, 4 ..."""
    arrays = [np.moveaxis(t.handle.data, self.axis, 0).copy() for t in tensors]
    stride = 1
    while stride < len(arrays[0]):
        before = [
            self.to_tensor(np.roll(a, stride, 0), t.dtype) for a, t in zip(arrays, tensors, strict=True)
        ]
        here = [self.to_tensor(a, t.dtype) for a, t in zip(arrays, tensors, strict=True)]
        with np.errstate(all="ignore"):
            combined = self.combine_fn.fn(*before, *here)
        combined = combined if isinstance(combined, tuple | tl.tuple) else (combined,)
        for array, joined in zip(arrays, combined, strict=True):
            array[stride:] = joined.handle.data[stride:]
        stride *= 2
    return [
        self.to_tensor(np.moveaxis(a, 0, self.axis), t.dtype) for a, t in zip(arrays, tensors, strict=True)
    ]
