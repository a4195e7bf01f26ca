"""Weights in 16 bits: half the file, computed with in float32 as before.

Only matrices and larger tensors are stored so: vectors, such as biases and the statistics of a norm, take
little space, and rounding them hurts most.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from burnt.errors import InputValueError, UnsupportedError

if TYPE_CHECKING:
    import onnx_ir


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
