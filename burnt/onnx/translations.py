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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import UnsupportedError
from burnt.kernels import ACTIVATIONS
from burnt.kernels.ops.attention.reference import traceable_attention
from burnt.kernels.ops.quantized.scaled import finish
from burnt.kernels.ops.quantized.values import unpack
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
    translated = _Translations(opset)
    table = translated.table()
    if signed:
        table[torch.ops.burnt.quantize_tensor.default] = translated.signed_quantize_tensor
    return table


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


def _or_reference(translation: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """Return a function that traces an op's reference where its translation is `NotImplemented`."""

    def translated(*args: Any, **kwargs: Any) -> Any:
        found = translation(*args, **kwargs)
        return op.reference(*args, **kwargs) if found is NotImplemented else found

    return translated


class _Translations:
    """The translations for one opset; `NotImplemented` where an op's arguments do not fit ONNX's."""

    def __init__(self, opset: int) -> None:
        self._opset = opset

    def table(self) -> dict[Any, Callable[..., Any]]:
        ops = torch.ops.burnt
        layer_norm = _or_reference(self.layer_norm, kernels.layer_norm)
        table: dict[Any, Callable[..., Any]] = {
            ops.layer_norm.default: layer_norm,
            ops.layer_norm.residual: layer_norm,
            ops.dot_product_attention.default: _or_reference(self.attention, kernels.dot_product_attention),
            torch.ops.aten.scaled_dot_product_attention.default: self.torch_attention,
            ops.quantize.default: _or_reference(self.quantize, kernels.quantize),
            ops.quantize_tensor.default: self.quantize_tensor,
            ops.dequantize.default: self.dequantize,
            ops.quantized_linear.default: self.quantized_linear,
            ops.quantized_embedding.default: self.quantized_embedding,
            ops.scaled_linear.default: _or_reference(self.scaled_linear, kernels.scaled_linear),
            ops.scaled_conv.default: self.scaled_conv,
        }
        if self._opset >= _OPSET_RMS_NORM:
            rms_norm = _or_reference(self.rms_norm, kernels.rms_norm)
            table |= dict.fromkeys((ops.rms_norm.default, ops.rms_norm.residual), rms_norm)
            table[ops.rope.default] = _or_reference(self.rope, kernels.rope)
        return table

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

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        residual: Tensor | None = None,
        activation: str | None = None,
    ) -> Any:
        if weight is None:  # the scale is no optional input of ONNX's op
            return NotImplemented
        total = x if residual is None else x + residual
        out = F.layer_norm(total, weight.shape, weight.to(x.dtype), _cast(bias, x.dtype), eps)
        return _activated(out, activation) if residual is None else (_activated(out, activation), total)

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor | None = None,
        eps: float | None = None,
        residual: Tensor | None = None,
        activation: str | None = None,
    ) -> Any:
        if weight is None or x.dtype != torch.float32:
            return NotImplemented
        total = x if residual is None else x + residual
        epsilon = torch.finfo(torch.float32).eps if eps is None else eps
        attributes = {"axis": -weight.dim(), "epsilon": epsilon}
        out = self._call("RMSNormalization", (total, weight.to(x.dtype)), attributes, x.shape)
        return _activated(out, activation) if residual is None else (_activated(out, activation), total)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Any:
        """ONNX's op takes ``[batch, heads, length, d]`` and angles ``[batch, length, r]``."""
        angles = [_angles(t, x) for t in (cos, sin)]
        if x.dim() != 4 or angles[0] is None or not x.dtype == cos.dtype == sin.dtype:
            return NotImplemented
        width = 2 * cos.shape[-1]
        attributes = {"interleaved": int(interleaved)}
        if width != x.shape[-1]:
            attributes |= {"rotary_embedding_dim": width}
        return self._call("RotaryEmbedding", (x, *angles), attributes, x.shape, x.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> Any:
        """torch's attention, which has a translation for each opset, with one mask for burnt's options."""
        bound = kernels.dot_product_attention.signature.bind(q, k, v, *rest, **named)
        bound.apply_defaults()
        if bound.arguments["softcap"] is not None or bound.arguments["seed"] is not None:
            return NotImplemented
        return traceable_attention(*bound.args)

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

    def quantize(
        self,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor | None = None,
        value: str = "int8",
        block: int = 0,
        narrow: bool = False,
    ) -> Any:
        if value != "int8" or scale.numel() != 1 or narrow or x.dtype != torch.float32:
            return NotImplemented
        zero = torch.zeros((), dtype=torch.int8) if zero_point is None else zero_point.reshape(())
        inputs = (x, scale.float().reshape(()), zero)
        return self._call("QuantizeLinear", inputs, {}, x.shape, torch.int8)

    def quantize_tensor(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """DynamicQuantizeLinear, whose values and zero point are larger than burnt's by 128: uint8."""
        values, scale, zero_point = torch.onnx.ops.symbolic_multi_out(
            "DynamicQuantizeLinear",
            (x.float(),),
            dtypes=(torch.uint8, torch.float32, torch.uint8),
            shapes=(x.shape, (), ()),
            version=self._opset,
        )
        return values, scale, zero_point

    def signed_quantize_tensor(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, scale, zero_point = self.quantize_tensor(x)
        signed = [(number.to(torch.int32) - 128).to(torch.int8) for number in (values, zero_point)]
        return signed[0], scale.reshape(1, 1), signed[1].reshape(1, 1)

    def dequantize(
        self,
        values: Tensor,
        scale: Tensor,
        zero_point: Tensor | None = None,
        value: str = "int8",
        block: int = 0,
        columns: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        weight = self._weight(values, scale, zero_point, value, block)
        weight = weight if columns is None or columns == weight.shape[1] else weight[:, :columns]
        return weight.to(dtype or torch.float32)

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

    def quantized_linear(
        self,
        x: Tensor,
        values: Tensor,
        scale: Tensor,
        zero_point: Tensor | None = None,
        bias: Tensor | None = None,
        activation: str | None = None,
        value: str = "int8",
        block: int = 0,
    ) -> Tensor:
        weight = self.dequantize(values, scale, zero_point, value, block, x.shape[-1], x.dtype)
        return _activated(F.linear(x, weight, _cast(bias, x.dtype)), activation)

    def quantized_embedding(
        self,
        indices: Tensor,
        values: Tensor,
        scale: Tensor,
        zero_point: Tensor | None = None,
        value: str = "int8",
        block: int = 0,
        columns: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Gathered rows are dequantized by arithmetic: their scales are no constants."""
        flat, scale = indices.reshape(-1), scale.float()  # ONNX Runtime lacks ops for bfloat16
        rows = F.embedding(flat, values)
        if value in ("int4", "int2"):
            value, rows = "int8", self._unpack(rows, VALUES[value].bits)
        elif value in FLOAT8:  # the whole table: there is no Gather of float8
            table = self._weight(values, scale, zero_point, value, block)[:, :columns]
            return F.embedding(indices, table).to(dtype or torch.float32)
        is_shared = scale.shape[0] == 1 and values.shape[0] != 1
        row_scale = scale if is_shared else F.embedding(flat, scale)
        row_zero = zero_point if zero_point is None or is_shared else F.embedding(flat, zero_point)
        out = kernels.dequantize.reference(rows, row_scale, row_zero, value, block, columns, dtype)
        return out.reshape(*indices.shape, out.shape[-1])

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

    def scaled_linear(
        self,
        x: Tensor,
        values: Tensor,
        x_scale: Tensor,
        scale: Tensor,
        x_zero_point: Tensor | None = None,
        bias: Tensor | None = None,
        activation: str | None = None,
        out_scale: Tensor | None = None,
        out_zero_point: Tensor | None = None,
        value: str = "int8",
        dtype: torch.dtype | None = None,
        zero_point: Tensor | None = None,
    ) -> Any:
        """Static: the pattern DequantizeLinear, MatMul, which runtimes know. Dynamic: MatMulInteger."""
        if x.dtype == torch.uint8 and value == "int8":
            flat = () if scale.numel() == 1 else (-1,)
            zeros = x_zero_point, None if zero_point is None else zero_point.reshape(flat)
            shape = (*x.shape[:-1], values.shape[0])
            sums = self._call("MatMulInteger", (x, values.t(), *zeros), {}, shape, torch.int32)
            out = sums.to(torch.float32) * (x_scale * scale.float().reshape(flat))
            out = out if bias is None else out + bias.float()
            return _activated(out, activation).to(dtype or torch.float32)
        has_row_scales = x_scale.numel() != 1
        is_unknown = zero_point is not None and has_row_scales
        if value != "int8" or out_scale is not None or x.dim() != 2 or is_unknown:
            return NotImplemented
        if not has_row_scales:
            numbers = self._numbers(x, x_scale, x_zero_point)
            weight = self._weight(values, scale, zero_point, value, 0)
            out = F.linear(numbers, weight, _cast(bias, torch.float32))
            return _activated(out, activation).to(dtype or torch.float32)
        shape = (x.shape[0], values.shape[0])
        sums = self._call("MatMulInteger", (x, values.t()), {}, shape, torch.int32)
        return finish(sums, x_scale, scale, bias, activation, None, None, value, dtype)

    def scaled_conv(
        self,
        x: Tensor,
        values: Tensor,
        x_scale: Tensor,
        scale: Tensor,
        x_zero_point: Tensor | None = None,
        bias: Tensor | None = None,
        activation: str | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
        out_scale: Tensor | None = None,
        out_zero_point: Tensor | None = None,
        dtype: torch.dtype | None = None,
        zero_point: Tensor | None = None,
    ) -> Tensor:
        """The pattern DequantizeLinear, Conv; a dynamic scale for each sample multiplies the input."""
        if out_scale is not None:
            raise UnsupportedError("quantized outputs of convolutions have no translation to ONNX")
        axes = values.dim() - 2
        shape = (-1,) if scale.numel() > 1 else ()
        zero_point = None if zero_point is None else zero_point.reshape(shape)
        inputs = values, scale.float().reshape(shape), zero_point
        weight = self._call("DequantizeLinear", inputs, {"axis": 0}, values.shape)
        if x_scale.numel() == 1:
            numbers = self._numbers(x, x_scale, x_zero_point)
        else:
            numbers = x.float() * x_scale.reshape(-1, *[1] * (x.dim() - 1))
        conv: Any = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
        sizes = [_expanded(size, axes) for size in (stride, padding, dilation)]
        out = conv(numbers, weight, _cast(bias, torch.float32), *sizes, groups)
        if x.dtype == torch.uint8 and scale.numel() == 1:
            attributes = {"strides": sizes[0], "pads": sizes[1] * 2, "dilations": sizes[2], "group": groups}
            given = x, values, x_zero_point, zero_point
            sums = self._call("ConvInteger", given, attributes, out.shape, torch.int32)
            out = sums.to(torch.float32) * (x_scale * scale.float().reshape(()))
            out = out if bias is None else out + bias.float().reshape(-1, *[1] * axes)
        return _activated(out, activation).to(dtype or torch.float32)

    def _numbers(self, x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None) -> Any:
        zero = None if x_zero_point is None else x_zero_point.reshape(())
        return self._call("DequantizeLinear", (x, x_scale.float().reshape(()), zero), {}, x.shape)


def _activated(x: Tensor, activation: str | None) -> Tensor:
    return x if activation is None else ACTIVATIONS[activation](x)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _expanded(sizes: Sequence[int], axes: int) -> list[int]:
    return list(sizes) * axes if len(sizes) == 1 else list(sizes)


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
