"""translations: burnt's ops as ops of ONNX, where its opset has them.

A translation is a function of the op's arguments that calls `torch.onnx.ops.symbolic`; `torch.export` traces
it in place of the op's reference. Where an op's arguments do not fit ONNX's op, the reference is traced.

Quantized weights become DequantizeLinear with the values as initializers. torch has no tensors of 4 bits, and
burnt keeps float8 as bytes: `burnt::Packed` stands for such a weight, until `store_packed_weights` replaces
it by an initializer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import UnsupportedError
from burnt.kernels import ACTIVATIONS
from burnt.kernels.ops.attention.reference import traceable_attention
from burnt.kernels.ops.quantized.quantize import unpack
from burnt.kernels.ops.quantized.scaled import finish
from burnt.scheme import VALUES

OPSET_FLOAT8 = 19
"""The first opset with tensors of float8."""

OPSET_4_BITS = 21
"""The first opset with tensors of 4 bits and with scales for blocks."""

_OPSET_RMS_NORM = 23  # RMSNormalization, RotaryEmbedding and Attention came together
FLOAT8 = {"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
_PACKED = "burnt"  # the domain of the op that stands for a packed weight


def translations(opset: int, signed: bool = False) -> dict[Any, Callable[..., Any]]:
    """Return what is traced in place of burnt's ops: a function of the same arguments for each overload.

    With `signed`, `quantize_tensor` returns burnt's values, not ONNX's unsigned ones.

    >>> torch.ops.burnt.rms_norm.default in translations(23), torch.ops.burnt.rope.default in translations(20)
    (True, False)
    """
    return _Translations(opset).table(signed)


def reads_only_quantized(graph: torch.fx.Graph) -> bool:
    """Whether only burnt's quantized ops read what `quantize_tensor` returns.

    Their translations take ONNX's unsigned values; other ops would find numbers larger by 128.
    """
    ops = torch.ops.burnt
    readers = {op.default for op in (ops.scaled_linear, ops.scaled_conv, ops.dequantize)}
    passing = {operator.getitem, torch.ops.aten.view.default, torch.ops.aten.reshape.default}
    values = [node for node in graph.nodes if node.target is ops.quantize_tensor.default]
    while values:
        for user in values.pop().users:
            if user.target in passing:
                values.append(user)
            elif user.target not in readers:
                return False
    return True


def _traced(op: Any, translation: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that traces a translation of an op's arguments by name, else the op's reference."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        bound = op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = translation(SimpleNamespace(**bound.arguments))
        return op.reference(*args, **kwargs) if found is NotImplemented else found

    return traced


class _Translations:
    """The translations for one opset; `NotImplemented` where an op's arguments do not fit ONNX's.

    Each is given the arguments of its op, by the names that they have in `burnt.kernels`.
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset

    def table(self, signed: bool) -> dict[Any, Callable[..., Any]]:
        known: dict[str, Callable[[Any], Any]] = {
            "layer_norm": self.layer_norm,
            "dot_product_attention": self.attention,
            "quantize": self.quantize,
            "quantize_tensor": self.signed_quantize_tensor if signed else self.quantize_tensor,
            "dequantize": self.dequantize,
            "quantized_linear": self.quantized_linear,
            "quantized_embedding": self.quantized_embedding,
            "scaled_linear": self.scaled_linear,
            "scaled_conv": self.scaled_conv,
        }
        if self._opset >= _OPSET_RMS_NORM:
            known |= {"rms_norm": self.rms_norm, "rope": self.rope}
        ops = torch.ops.burnt
        traced = {name: _traced(getattr(kernels, name), function) for name, function in known.items()}
        table: dict[Any, Callable[..., Any]] = {getattr(ops, name).default: f for name, f in traced.items()}
        for name in {"layer_norm", "rms_norm"} & known.keys():
            table[getattr(ops, name).residual] = traced[name]
        return table | {torch.ops.aten.scaled_dot_product_attention.default: self.torch_attention}

    def _call(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: dict[str, Any],
        shape: Sequence[Any],
        dtype: torch.dtype = torch.float32,
    ) -> Any:
        version = 1 if op.startswith(_PACKED) else self._opset
        return torch.onnx.ops.symbolic(op, inputs, attributes, dtype=dtype, shape=shape, version=version)

    def layer_norm(self, a: Any) -> Any:
        if a.weight is None:  # the scale is not an optional input of ONNX's op
            return NotImplemented
        total, dtype = a.x if a.residual is None else a.x + a.residual, a.x.dtype
        out = F.layer_norm(total, a.weight.shape, a.weight.to(dtype), _cast(a.bias, dtype), a.eps)
        return _activated(out, a.activation) if a.residual is None else (_activated(out, a.activation), total)

    def rms_norm(self, a: Any) -> Any:
        if a.weight is None or a.x.dtype != torch.float32:
            return NotImplemented
        total = a.x if a.residual is None else a.x + a.residual
        epsilon = torch.finfo(torch.float32).eps if a.eps is None else a.eps
        attributes = {"axis": -a.weight.dim(), "epsilon": epsilon}
        out = self._call("RMSNormalization", (total, a.weight.to(a.x.dtype)), attributes, a.x.shape)
        return _activated(out, a.activation) if a.residual is None else (_activated(out, a.activation), total)

    def rope(self, a: Any) -> Any:
        """ONNX's op takes ``[batch, heads, length, d]`` and angles ``[batch, length, r]``."""
        angles = [_angles(t, a.x) for t in (a.cos, a.sin)]
        if a.x.dim() != 4 or angles[0] is None or not a.x.dtype == a.cos.dtype == a.sin.dtype:
            return NotImplemented
        width = 2 * a.cos.shape[-1]
        attributes = {"interleaved": int(a.interleaved)}
        if width != a.x.shape[-1]:
            attributes |= {"rotary_embedding_dim": width}
        return self._call("RotaryEmbedding", (a.x, *angles), attributes, a.x.shape, a.x.dtype)

    def attention(self, a: Any) -> Any:
        """torch's attention, which has a translation for each opset, with one mask for burnt's options."""
        if a.softcap is not None or a.seed is not None:
            return NotImplemented
        return traceable_attention(*vars(a).values())

    def torch_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """torch's attention of any rank in the form that torch.onnx takes: 4 axes, heads equal or grouped."""
        if not q.dim() == k.dim() == v.dim():
            return NotImplemented
        lead = q.shape[:-2]
        options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        if q.dim() != 4:
            padding = (None,) * (4 - q.dim())
            q4, k4, v4 = (t.expand(*lead[:-1], *t.shape[-3:])[padding].flatten(0, -4) for t in (q, k, v))
            if attn_mask is not None and attn_mask.dim() > 2:
                attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-2:])[padding].flatten(0, -4)
            out = F.scaled_dot_product_attention(q4, k4, v4, attn_mask, **options, enable_gqa=enable_gqa)
            return out.reshape(*lead, q.shape[-2], v.shape[-1])
        have_equal_heads = q.shape[1] == k.shape[1] == v.shape[1]
        if enable_gqa != have_equal_heads:
            return NotImplemented
        k, v = (t.expand(-1, q.shape[1], -1, -1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask, **options)

    def quantize(self, a: Any) -> Any:
        if a.value != "int8" or a.scale.numel() != 1 or a.narrow or a.x.dtype != torch.float32:
            return NotImplemented
        zero = torch.zeros((), dtype=torch.int8) if a.zero_point is None else a.zero_point.reshape(())
        inputs = (a.x, a.scale.float().reshape(()), zero)
        return self._call("QuantizeLinear", inputs, {}, a.x.shape, torch.int8)

    def quantize_tensor(self, a: Any) -> Any:
        """DynamicQuantizeLinear, whose values and zero point are larger than burnt's by 128: uint8."""
        return torch.onnx.ops.symbolic_multi_out(
            "DynamicQuantizeLinear",
            (a.x.float(),),
            dtypes=(torch.uint8, torch.float32, torch.uint8),
            shapes=(a.x.shape, (), ()),
            version=self._opset,
        )

    def signed_quantize_tensor(self, a: Any) -> tuple[Tensor, Tensor, Tensor]:
        values, scale, zero_point = self.quantize_tensor(a)
        signed = [(number.to(torch.int32) - 128).to(torch.int8) for number in (values, zero_point)]
        return signed[0], scale.reshape(1, 1), signed[1].reshape(1, 1)

    def dequantize(self, a: Any) -> Any:
        return self._columns(a, a.columns).to(a.dtype or torch.float32)

    def _columns(self, a: Any, columns: int | None) -> Any:
        """Return the dequantized matrix of an op's arguments, of so many columns."""
        weight = self._weight(a.values, a.scale, a.zero_point, a.value, a.block)
        return weight if columns is None or columns == weight.shape[1] else weight[:, :columns]

    def _weight(
        self, values: Tensor, scale: Tensor, zero_point: Tensor | None, value: str, block: int
    ) -> Any:
        """Return the dequantized matrix ``[rows, columns]`` with all columns that are stored."""
        codes, (rows, columns) = values, values.shape
        has_blocks = block > 0 and self._opset >= OPSET_4_BITS  # as ONNX's op has them
        shape = scale.shape if has_blocks else () if scale.numel() == 1 else (scale.numel(),)
        if value in FLOAT8:
            attributes: dict[str, Any] = {"value": value, "bits": 8}
            codes = self._call(f"{_PACKED}::Packed", (values,), attributes, values.shape, FLOAT8[value])
        elif value != "int8":
            columns *= VALUES[value].per_byte
            attributes = {"value": value, "bits": 4 if self._opset >= OPSET_4_BITS else 8}
            codes = self._call(f"{_PACKED}::Packed", (values,), attributes, (rows, columns), torch.int8)
            if zero_point is not None:
                attributes |= {"value": "int8"}
                zero_point = self._call(f"{_PACKED}::Packed", (zero_point,), attributes, shape, torch.int8)
        scale = scale.float()  # ONNX Runtime lacks ops for bfloat16
        if has_blocks:
            attributes = {"axis": 1, "block_size": block}
            return self._call("DequantizeLinear", (codes, scale, zero_point), attributes, (rows, columns))
        # Each block is a row, since older opsets have one scale for each index of an axis.
        codes = codes.reshape(-1, block) if block else codes
        if zero_point is not None and zero_point.shape != shape:  # ONNX Runtime cannot reshape 4 bits
            zero_point = zero_point.reshape(shape)
        inputs = (codes, scale.reshape(shape), zero_point)
        out = self._call("DequantizeLinear", inputs, {"axis": 0}, codes.shape)
        return out.reshape(rows, columns)

    def quantized_linear(self, a: Any) -> Tensor:
        weight = self._columns(a, a.x.shape[-1]).to(a.x.dtype)
        return _activated(F.linear(a.x, weight, _cast(a.bias, a.x.dtype)), a.activation)

    def quantized_embedding(self, a: Any) -> Tensor:
        """Gathered rows are dequantized by arithmetic: their scales are not constants."""
        if a.value in FLOAT8:  # the whole table: there is no Gather of float8
            return F.embedding(a.indices, self._columns(a, a.columns)).to(a.dtype or torch.float32)
        flat, scale, value = a.indices.reshape(-1), a.scale.float(), a.value  # ONNX Runtime lacks bfloat16
        rows, row_zero = F.embedding(flat, a.values), a.zero_point
        if value in ("int4", "int2"):
            value, rows = "int8", self._unpack(rows, VALUES[value].bits)
        if scale.shape[0] != 1 or a.values.shape[0] == 1:
            scale = F.embedding(flat, scale)
            row_zero = None if row_zero is None else F.embedding(flat, row_zero)
        out = kernels.dequantize.reference(rows, scale, row_zero, value, a.block, a.columns, a.dtype)
        return out.reshape(*a.indices.shape, out.shape[-1])

    def _unpack(self, packed: Tensor, bits: int) -> Tensor:
        """Return the integers in bytes ``[rows, bytes]``: int32 ``[rows, columns]``."""
        mask = torch.full((), (1 << bits) - 1, dtype=torch.uint8)
        parts = []
        for bit in range(0, 8, bits):
            shift = torch.full((), bit, dtype=torch.uint8)
            part = self._call("BitShift", (packed, shift), {"direction": "RIGHT"}, packed.shape, packed.dtype)
            parts.append(self._call("BitwiseAnd", (part, mask), {}, packed.shape, packed.dtype))
        unsigned = torch.stack(parts, -1).flatten(1).to(torch.int32)
        return torch.where(unsigned >= 1 << (bits - 1), unsigned - (1 << bits), unsigned)

    def scaled_linear(self, a: Any) -> Any:
        """Static: the pattern DequantizeLinear, MatMul, which runtimes know. Dynamic: MatMulInteger."""
        x, scale, zero_point = a.x, a.scale, a.zero_point
        shape = (*x.shape[:-1], a.values.shape[0])
        if x.dtype == torch.uint8 and a.value == "int8":
            flat = () if scale.numel() == 1 else (-1,)
            zeros = a.x_zero_point, None if zero_point is None else zero_point.reshape(flat)
            sums = self._call("MatMulInteger", (x, a.values.t(), *zeros), {}, shape, torch.int32)
            out = sums.to(torch.float32) * (a.x_scale * scale.float().reshape(flat))
            out = out if a.bias is None else out + a.bias.float()
            return _activated(out, a.activation).to(a.dtype or torch.float32)
        has_row_scales = a.x_scale.numel() != 1
        is_unknown = zero_point is not None and has_row_scales
        if a.value != "int8" or a.out_scale is not None or x.dim() != 2 or is_unknown:
            return NotImplemented
        if not has_row_scales:
            weight = self._weight(a.values, scale, zero_point, a.value, 0)
            out = F.linear(self._numbers(a), weight, _cast(a.bias, torch.float32))
            return _activated(out, a.activation).to(a.dtype or torch.float32)
        sums = self._call("MatMulInteger", (x, a.values.t()), {}, shape, torch.int32)
        return finish(sums, a.x_scale, scale, a.bias, a.activation, None, None, a.value, a.dtype)

    def scaled_conv(self, a: Any) -> Tensor:
        """The pattern DequantizeLinear, Conv; a dynamic scale for each sample multiplies the input."""
        if a.out_scale is not None:
            raise UnsupportedError("quantized outputs of convolutions have no translation to ONNX")
        x, values, axes = a.x, a.values, a.values.dim() - 2
        scale = a.scale.float().reshape((-1,) if a.scale.numel() > 1 else ())
        zero_point = None if a.zero_point is None else a.zero_point.reshape(scale.shape)
        weight = self._call("DequantizeLinear", (values, scale, zero_point), {"axis": 0}, values.shape)
        if a.x_scale.numel() == 1:
            numbers = self._numbers(a)
        else:
            numbers = x.float() * a.x_scale.reshape(-1, *[1] * (x.dim() - 1))
        conv: Any = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        sizes = [list(n) * (axes if len(n) == 1 else 1) for n in (a.stride, a.padding, a.dilation)]
        out = conv(numbers, weight, _cast(a.bias, torch.float32), *sizes, a.groups)
        if x.dtype == torch.uint8 and not scale.dim():
            attributes = {"strides": sizes[0], "pads": sizes[1] * 2, "dilations": sizes[2], "group": a.groups}
            given = x, values, a.x_zero_point, zero_point
            sums = self._call("ConvInteger", given, attributes, out.shape, torch.int32)
            out = sums.to(torch.float32) * (a.x_scale * scale)
            out = out if a.bias is None else out + a.bias.float().reshape(-1, *[1] * axes)
        return _activated(out, a.activation).to(a.dtype or torch.float32)

    def _numbers(self, a: Any) -> Any:
        """Return the numbers that the quantized input of an op stands for."""
        zero = None if a.x_zero_point is None else a.x_zero_point.reshape(())
        return self._call("DequantizeLinear", (a.x, a.x_scale.float().reshape(()), zero), {}, a.x.shape)


def _activated(x: Tensor, activation: str | None) -> Tensor:
    return x if activation is None else ACTIVATIONS[activation](x)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _angles(table: Tensor, x: Tensor) -> Tensor | None:
    """Return cosines or sines as ``[batch, length, r]``; None if they differ among heads."""
    if table.dim() == 4 and table.shape[1] == 1:
        table = table.squeeze(1)
    if table.dim() not in (2, 3) or (table.dim() == 3 and x.dim() != 4):
        return None
    return table.expand(x.shape[0], x.shape[2], table.shape[-1]) if x.dim() == 4 else None


def store_packed_weights(model: Any) -> None:
    """Replace each `burnt::Packed` of an `onnx_ir.Model` by an initializer of 4 bits, 8 bits or float8."""
    import onnx_ir as ir

    graph = model.graph
    for node in [node for node in graph if node.domain == _PACKED]:
        source = node.inputs[0]
        assert source is not None
        reshapes = []
        while source.const_value is None:  # a flattened weight of a convolution
            reshapes.append(source.producer())
            source = reshapes[-1].inputs[0]
        packed = torch.from_numpy(source.const_value.numpy().copy())
        rows = packed.reshape(packed.shape[0], -1)
        value = node.attributes["value"].as_string()
        output = node.outputs[0]
        codes = (rows if value in FLOAT8 else unpack(rows, value)).numpy().reshape(output.shape.numpy())
        name = source.name
        new = ir.Value(name=f"{name}.unpacked", shape=ir.Shape(codes.shape))
        if value in FLOAT8:
            kind = ir.DataType.FLOAT8E4M3FN if value == "float8_e4m3" else ir.DataType.FLOAT8E5M2
            new.const_value = ir.Tensor(codes.view(kind.numpy()), dtype=kind, name=new.name)
        elif node.attributes["bits"].as_int() == 4:
            data = np.ascontiguousarray(codes).astype(ir.DataType.INT4.numpy())
            new.const_value = ir.Tensor(data, dtype=ir.DataType.INT4, name=new.name)
        else:
            new.const_value = ir.Tensor(np.ascontiguousarray(codes), name=new.name)
        new.type = ir.TensorType(new.const_value.dtype)
        if new.name not in graph.initializers:
            graph.register_initializer(new)
        output.replace_all_uses_with(graph.initializers[new.name])
        graph.remove(node, safe=True)
        for reshape in reshapes:
            if not reshape.outputs[0].uses():
                graph.remove(reshape, safe=True)
        if not source.uses():
            del graph.initializers[name]
    model.opset_imports.pop(_PACKED, None)


def quantize_in_shape(model: Any) -> None:
    """Quantize inputs with one scale in their own shape, instead of as the matrices that burnt's ops take.

    Without reshapes between QuantizeLinear, DequantizeLinear and Conv, runtimes know the pattern. From opset
    21 on, ONNX Runtime 1.32 refuses a file with a reshape between DequantizeLinear and Conv: it inserts a
    QuantizeLinear there, of another type than its zero point.
    """
    graph = model.graph
    for first in [node for node in graph if node.op_type == "Reshape"]:
        if first.graph is None:  # removed with another one
            continue
        x, chain = first.inputs[0], [first]
        while not _have_same_shape(chain[-1].outputs[0], x):
            users = chain[-1].outputs[0].consumers()
            if len(users) != 1 or not (users[0].op_type == "Reshape" or _has_one_scale(users[0])):
                break
            chain.append(users[0])
        else:
            for node in chain:
                if node.op_type == "Reshape" and not node.outputs[0].is_graph_output():
                    node.outputs[0].replace_all_uses_with(node.inputs[0])
                    graph.remove(node, safe=True)
                else:
                    node.outputs[0].shape = x.shape


def expand_masks(model: Any) -> None:
    """Give masks of attention a row for each query and a column for each key.

    ONNX's Attention broadcasts a mask such as ``[batch, 1, 1, keys]``; ONNX Runtime 1.32 refuses one whose
    last two axes are not ``[queries, keys]``.
    """
    import onnx_ir as ir

    graph = model.graph
    for node in [node for node in graph if node.op_type == "Attention" and node.domain == ""]:
        inputs: list[Any] = list(node.inputs)
        q, k, mask = inputs[0], inputs[1], inputs[3] if len(inputs) > 3 else None
        if mask is None or mask.shape[-2:] == (q.shape[2], k.shape[2]):
            continue
        sizes = [ir.node("Shape", [x], {"start": 2, "end": 3}) for x in (q, k)]
        shape = ir.node("Concat", [size.outputs[0] for size in sizes], {"axis": 0})
        expanded = ir.node("Expand", [mask, shape.outputs[0]])
        graph.insert_before(node, (*sizes, shape, expanded))
        node.replace_input_with(3, expanded.outputs[0])


def _has_one_scale(node: Any) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.inputs[1].shape == ()


def _have_same_shape(a: Any, b: Any) -> bool:
    return a.shape is not None and a.shape == b.shape and not a.shape.has_unknown_dim()
