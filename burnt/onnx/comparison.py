"""compare: run an ONNX file in ONNX Runtime next to the module that it was made from; 16-bit weights."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnt.errors import InputRuntimeError, InputValueError, UnsupportedError
from burnt.inspect.signature import Signature
from burnt.onnx.axes import Limit

if TYPE_CHECKING:
    import onnx_ir

_LARGEST_RUN = 1025  # beyond a limit: attention takes memory with the square of the length


def compare(
    path: Path,
    model: nn.Module,
    signature: Signature,
    axes: Sequence[Mapping[int, str]],
    batches: Sequence[int],
    tolerance: float,
    limits: Mapping[str, Limit] | None = None,
) -> dict[int, float]:
    """Run a file next to its module on random inputs; return the largest error by the number of items in
    `batches`.

    Errors are relative to the largest output or 1; larger ones than `tolerance`, and a file that ONNX Runtime
    refuses, raise `InputRuntimeError`. The module is on the CPU and in evaluation mode; after the first batch
    all open `axes` but the batch are shorter, too. The file must agree below the smallest sizes of the
    `limits` that torch's graph is known to hold for, and beyond the largest one not compute something else.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it says is in the exception, too
    # By default it rounds inputs to 8 bits where weights have 4 or 8, which is not what the file says.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but Exception
        has_bfloat16 = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
        raise InputRuntimeError(
            "ONNX Runtime refuses the file",
            found=first_line(error),
            hint="it lacks ops for bfloat16: export model.float() with weights='bfloat16'"
            if has_bfloat16
            else None,
        ) from error
    errors, shorter = {}, signature

    def check(sized: Signature, batch: int, what: str, may_refuse: bool = False) -> float:
        error = _compare_once(session, model, sized, batch, what, may_refuse)
        if not error <= tolerance:
            raise InputRuntimeError(
                "the file computes something else than the module",
                where=f"{type(model).__name__}, {what}",
                expected=f"a largest error of {tolerance:g}",
                found=f"{error:.3g}",
                hint="random numbers, and Python values that are computed, are fixed when a model is traced",
            )
        return error

    for batch in batches:
        errors[batch] = check(shorter, batch, f"batch {batch}")
        shorter = _with_sizes(shorter, axes, lambda size, _: size // 2)
    for symbol, limit in (limits or {}).items():
        sizes = list(range(1, limit.smallest))
        if limit.largest is not None and limit.largest < _LARGEST_RUN:
            sizes.append(limit.largest + 1)
        for new in sizes:
            sized = _with_sizes(signature, axes, lambda size, name: new if name == symbol else size)  # noqa: B023
            batch = new if symbol == "batch" else batches[0]
            check(sized, batch, f"{symbol} {new}", may_refuse=new > limit.smallest)
    return errors


def _compare_once(
    session: Any, model: nn.Module, signature: Signature, batch: int, what: str, may_refuse: bool = False
) -> float:
    """Return the error for random inputs of a number of items; 0 where file or module may, and do, refuse."""
    inputs = signature.example(batch, seed=batch)
    where = f"{type(model).__name__}, {what}"
    names = [info.name for info in signature.inputs]
    try:
        arrays = session.run(None, dict(zip(names, (t.numpy() for t in inputs), strict=True)))
    except Exception as error:  # its exceptions have no common base but Exception
        if may_refuse:
            return 0.0
        raise InputRuntimeError("ONNX Runtime fails", where=where, found=first_line(error)) from error
    try:
        with torch.no_grad():
            expected = signature.call(model, inputs)
    except Exception:  # the model's code may raise anything
        if may_refuse:
            return 0.0
        raise
    found = [torch.from_numpy(array) for array in arrays]
    _require_shapes(found, expected, signature, where)
    return max(map(_error, found, expected), default=0.0)


def _with_sizes(
    signature: Signature, axes: Sequence[Mapping[int, str]], change: Callable[[int, str], int]
) -> Signature:
    """Return a signature with other sizes of its open axes, by their sizes and names."""
    inputs = [
        replace(info, shape=tuple(change(n, names[i]) if i in names else n for i, n in enumerate(info.shape)))
        for info, names in zip(signature.inputs, axes, strict=True)
    ]
    return replace(signature, inputs=tuple(inputs))


def _require_shapes(
    found: Sequence[Tensor], expected: Sequence[Tensor], signature: Signature, where: str
) -> None:
    for a, b, info in zip(found, expected, signature.outputs, strict=True):
        if a.shape != b.shape:
            raise InputRuntimeError(
                f"the file's {info.name} has another shape than the module's",
                where=where,
                expected=list(b.shape),
                found=list(a.shape),
                hint="squeeze() without an axis drops a batch of 1, too",
            )


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value or 1; infinity where NaNs differ."""
    found, expected = found.double(), expected.double()
    if not torch.equal(found.isnan(), expected.isnan()) or not torch.equal(found.isinf(), expected.isinf()):
        return float("inf")
    finite = expected.isfinite()
    if not bool(finite.any()):
        return 0.0
    difference = (found - expected)[finite].abs().max()
    return float(difference / expected[finite].abs().max().clamp(min=1.0))


def first_line(error: BaseException) -> str:
    """Return the type and the first line of a third-party error, without colours and advice."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


# Weights in 16 bits: half the file, computed with in float32 as before. Only matrices and larger tensors
# are stored so: vectors, such as biases and the statistics of a norm, take little space, and rounding
# them hurts most.


def require_numbers(model: nn.Module) -> None:
    """Check that the weights of a model have values, and that none is NaN."""
    for name, tensor in _named_tensors(model):
        if tensor.is_meta:
            raise UnsupportedError(
                "the weights of the model have no values",
                where=name,
                found="a tensor on the meta device",
                hint="load the weights first",
            )
        if bool(tensor.isnan().any()):
            raise InputValueError(
                "a weight is NaN", where=name, hint="did the training diverge? take an earlier checkpoint"
            )


def rounded_copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model whose float32 weights are rounded to a 16-bit dtype."""
    twin = copy.deepcopy(model)
    for name, tensor in _named_tensors(twin):
        if tensor.dtype != torch.float32 or tensor.dim() < 2:
            continue
        rounded = tensor.detach().to(dtype).to(torch.float32)
        if bool((rounded.isinf() & tensor.isfinite()).any()):
            largest = tensor.detach()[tensor.isfinite()].abs().max()
            raise InputValueError(
                f"a weight does not fit {_name(dtype)}",
                where=name,
                expected=f"at most {torch.finfo(dtype).max:g}",
                found=f"{float(largest):g}",
                hint="bfloat16 has the range of float32" if dtype == torch.float16 else None,
            )
        with torch.no_grad():
            tensor.copy_(rounded)
    return twin


def store_in_16_bits(model: onnx_ir.Model, dtype: torch.dtype) -> None:
    """Store the float32 initializers of an ONNX model in a 16-bit dtype, each followed by a cast to float32.

    Their values must be representable in `dtype`, as those of a `rounded_copy` are; others stay.
    """
    import onnx_ir as ir

    kind = ir.DataType.FLOAT16 if dtype == torch.float16 else ir.DataType.BFLOAT16
    casts = []
    for name, value in list(model.graph.initializers.items()):
        constant = value.const_value
        if constant is None or constant.dtype != ir.DataType.FLOAT or len(constant.shape) < 2:
            continue
        exact = torch.from_numpy(constant.numpy().copy())
        rounded = exact.to(dtype)
        if not torch.equal(rounded.to(torch.float32), exact):
            continue
        bits = rounded.view(torch.int16).numpy().view(kind.numpy())
        stored = ir.Value(
            name=f"{name}.{_name(dtype)}",
            type=ir.TensorType(kind),
            shape=value.shape,
            const_value=ir.Tensor(bits, dtype=kind, name=f"{name}.{_name(dtype)}"),
        )
        cast = ir.node("Cast", [stored], attributes={"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].shape, cast.outputs[0].type = value.shape, ir.TensorType(ir.DataType.FLOAT)
        value.replace_all_uses_with(cast.outputs[0])
        model.graph.initializers.pop(name)
        model.graph.register_initializer(stored)
        cast.outputs[0].name = name
        casts.append(cast)
    if casts:
        model.graph.insert_before(model.graph[0], casts)


def _named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
