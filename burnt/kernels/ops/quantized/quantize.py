"""`quantize`, `dequantize`, `quantize_rows`, `quantize_tensor`: they fuse with what is around them.

A matrix of values has the shape ``[rows, columns]``. int8 values are an int8 tensor of that shape; all others
are uint8 tensors, so that ``module.half()`` and ``module.to(dtype)`` leave them alone: float8 values by their
bits, smaller values two or four to a byte, the first one in the lowest bits (as in ONNX and in
compressed-tensors). Small integers are in two's complement.
"""

from __future__ import annotations

import types

import torch
from torch import Tensor

from burnt.errors import InputRuntimeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device
from burnt.scheme import VALUES, ValueType

FLOAT8 = types.MappingProxyType({"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2})
"""torch's dtypes of the float8 values."""


def value_type(op: str, value: str) -> ValueType:
    """Return the type of values by its name; raise an `InputValueError` if there is none."""
    if value not in VALUES:
        raise InputValueError(
            f"{op} does not know this type of quantized values",
            where=f"burnt.kernels.{op}",
            expected=", ".join(VALUES),
            found=repr(value),
        )
    return VALUES[value]


def check_values(op: str, values: Tensor, value: str) -> None:
    """Check that packed values have the dtype of their kind."""
    expected = torch.int8 if value_type(op, value).name == "int8" else torch.uint8
    if values.dtype != expected:
        raise InputRuntimeError(
            f"the values of {op} have the wrong dtype",
            where=f"burnt.kernels.{op}",
            expected=f"{expected} for {value}",
            found=values.dtype,
        )


def pack(codes: Tensor, value: str) -> Tensor:
    """Pack codes ``[rows, columns]``, int8, into bytes: int8 stays, others become uint8 ``[rows, bytes]``.

    Columns must be a multiple of the values per byte.
    """
    kind = VALUES[value]
    if value == "int8":
        return codes
    unsigned = codes.to(torch.uint8) if kind.bits == 8 else (codes & ((1 << kind.bits) - 1)).to(torch.uint8)
    if kind.per_byte == 1:
        return unsigned
    columns = codes.shape[-1] // kind.per_byte
    parts = unsigned.reshape(*codes.shape[:-1], columns, kind.per_byte).unbind(-1)
    packed: Tensor = parts[0]
    for i, part in enumerate(parts[1:], 1):
        packed = packed | (part << (i * kind.bits))
    return packed


def unpack(values: Tensor, value: str) -> Tensor:
    """Return the codes in packed values: int8, or uint8 for floats, ``[rows, columns]``."""
    kind = VALUES[value]
    if kind.per_byte == 1:
        return values
    mask, sign = (1 << kind.bits) - 1, 1 << (kind.bits - 1)
    shifts = torch.arange(0, 8, kind.bits, dtype=torch.uint8, device=values.device)
    codes = ((values.unsqueeze(-1) >> shifts) & mask).flatten(-2)
    return codes if kind.is_float else (codes.to(torch.int8) ^ sign) - sign


def decode(values: Tensor, value: str, dtype: torch.dtype) -> Tensor:
    """Return what packed values stand for, without scale and zero point, in a floating-point dtype."""
    if value in FLOAT8:
        return values.view(FLOAT8[value]).to(dtype)
    codes = unpack(values, value)
    if value != "float4_e2m1":
        return codes.to(dtype)
    code = (codes & 7).to(dtype)  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
    size = torch.where(code < 4, code * 0.5, torch.where(code < 6, code - 2, code * 2 - 8))
    return torch.where(codes >= 8, -size, size)


def encode(x: Tensor, value: str, zero_point: Tensor | None, smallest: float) -> Tensor:
    """Round numbers ``[rows, columns]``, which were divided by their scale, to values, and pack them.

    Ties are rounded to even, numbers out of range become the largest or `smallest` value. NaN becomes NaN in
    float8 and 0 elsewhere.
    """
    kind = VALUES[value]
    if kind.bits == 8 and kind.is_float:
        clipped = torch.clamp(x, kind.smallest, kind.largest)
        return clipped.to(FLOAT8[value]).view(torch.uint8)
    if not kind.is_float:
        codes = torch.round(x) if zero_point is None else torch.round(x) + zero_point.to(x.dtype)
        codes = torch.clamp(codes, smallest, kind.largest)
        return pack(torch.where(codes.isnan(), 0, codes).to(torch.int8), value)
    size = x.abs()
    # A tie goes to the even code: up at 0.75, 1.75 and 3.5, down at the others.
    codes = (size > 0.25).to(torch.int8) + (size >= 0.75).to(torch.int8) + (size > 1.25).to(torch.int8)
    codes = codes + (size >= 1.75).to(torch.int8) + (size > 2.5).to(torch.int8)
    codes = codes + (size >= 3.5).to(torch.int8) + (size > 5).to(torch.int8)
    return pack(codes + (x < 0).to(torch.int8) * 8, value)


def expand_scale(scale: Tensor, block: int, columns: int) -> Tensor:
    """Return scales (or zero points) ``[rows or 1, blocks or 1]`` as they multiply ``[rows, columns]``."""
    if not block or scale.shape[-1] == 1:
        return scale
    return scale.repeat_interleave(block, -1)[..., :columns]


def check_scale(
    op_name: str, rows: int, columns: int, scale: Tensor, zero_point: Tensor | None, block: int
) -> None:
    """Check the shapes of scales and zero points of a matrix ``[rows, columns]``."""
    if block < 0:
        raise InputValueError(
            f"the block of {op_name} is negative",
            where=f"burnt.kernels.{op_name}",
            expected="columns per block, 0 without blocks",
            found=block,
        )
    blocks = -(-columns // block) if block else 1
    shapes = [(rows, blocks)] if block else [(rows, 1), (1, 1)]
    for name, tensor in (("scale", scale), ("zero_point", zero_point)):
        if tensor is not None and tuple(tensor.shape) not in shapes:
            raise InputRuntimeError(
                f"{name} of {op_name} has the wrong shape",
                where=f"burnt.kernels.{op_name}",
                expected=f"{' or '.join(map(str, map(list, shapes)))} for {rows} rows of {columns}"
                + (f" in blocks of {block}" if block else ""),
                found=list(tensor.shape),
            )
    if zero_point is not None and zero_point.dtype != torch.int8:
        raise InputRuntimeError(
            f"zero_point of {op_name} has the wrong dtype",
            where=f"burnt.kernels.{op_name}",
            expected=torch.int8,
            found=zero_point.dtype,
        )


def is_floating(dtype: torch.dtype | None) -> bool:
    """Whether a dtype of results is floating-point; None stands for float32."""
    return dtype is None or dtype.is_floating_point


def _check_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, value: str, block: int, narrow: bool
) -> None:
    check_one_device("quantize", x=x, scale=scale, zero_point=zero_point)
    check_floating("quantize", x=x, scale=scale)
    kind = value_type("quantize", value)
    if x.dim() != 2 or x.shape[1] % kind.per_byte:
        raise InputRuntimeError(
            "x of quantize has the wrong shape",
            where="burnt.kernels.quantize",
            expected="[rows, columns]"
            + (f", columns a multiple of {kind.per_byte}" if kind.per_byte > 1 else ""),
            found=list(x.shape),
        )
    check_scale("quantize", x.shape[0], x.shape[1], scale, zero_point, block)
    if kind.is_float and (narrow or zero_point is not None):
        raise InputValueError(
            f"{value} has neither zero points nor a narrow range",
            where="burnt.kernels.quantize",
            expected="zero_point=None, narrow=False",
            found=f"zero_point={zero_point is not None}, narrow={narrow}",
        )


def quantized_example(
    device: torch.device, rows: int, columns: int, value: str, block: int = 0, zero: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return random values of a matrix with scales and zero points, for examples and tests."""
    kind = VALUES[value]
    blocks = -(-columns // block) if block else 1
    scale = (torch.rand(rows, blocks) * 0.01 + 0.001).to(device)
    zero_point = torch.randint(-3, 4, (rows, blocks), dtype=torch.int8).to(device) if zero else None
    padded = -(-columns // kind.per_byte) * kind.per_byte
    x = torch.randn(rows, padded) * 0.3 * kind.largest
    return encode(x, value, None, kind.smallest).to(device), scale, zero_point


def _quantize_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for rows, columns, value, block in [
        (1024, 1024, "int8", 0),
        (512, 1024, "int4", 32),
        (64, 96, "float8_e4m3", 0),
        (7, 12, "float4_e2m1", 4),
        (5, 8, "int2", 4),
    ]:
        blocks = columns // block if block else 1
        scale = torch.rand(rows, blocks, device=device) + 0.1
        examples.append((torch.randn(rows, columns, device=device), scale, None, value, block, False))
    return examples


@op(check=_check_quantize, examples=_quantize_examples)
def quantize(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    value: str = "int8",
    block: int = 0,
    narrow: bool = False,
) -> Tensor:
    """Quantize a matrix: ``clamp(round(x / scale) + zero_point)``, packed.

    Args:
        x: ``[rows, columns]``, floating-point; columns a multiple of the values per byte.
        scale: ``[rows, 1]``, ``[1, 1]`` or with blocks ``[rows, blocks]``, floating-point. Where it is 0,
            values are 0.
        zero_point: int8, in the shape of `scale`; not for floats.
        value: the type of the values, a key of `burnt.scheme.VALUES`.
        block: columns that share a scale; 0 for whole rows.
        narrow: leave out the most negative integer.

    Returns:
        int8 ``[rows, columns]`` for int8, else uint8 ``[rows, columns / values per byte]``.

    Raises:
        InputValueError: `value` is unknown, or has no zero points.

    Ties are rounded to even, as in ONNX's QuantizeLinear; NaN becomes the value 0, in float8 NaN.

    >>> quantize(torch.tensor([[0.1, -0.26, 3.0]]), torch.tensor([[0.02]]))
    tensor([[  5, -13, 127]], dtype=torch.int8)
    """
    wide = expand_scale(scale, block, x.shape[1]).to(torch.promote_types(x.dtype, torch.float32))
    scaled = torch.where(wide == 0, 0.0, x.to(wide.dtype) / torch.where(wide == 0, 1.0, wide))
    zero = None if zero_point is None else expand_scale(zero_point, block, x.shape[1])
    return encode(scaled, value, zero, VALUES[value].smallest + narrow)


def _check_dequantize(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    value: str,
    block: int,
    columns: int | None,
    dtype: torch.dtype | None,
) -> None:
    check_one_device("dequantize", values=values, scale=scale, zero_point=zero_point)
    check_floating("dequantize", scale=scale)
    check_values("dequantize", values, value)
    stored = values.shape[-1] * value_type("dequantize", value).per_byte
    if (
        values.dim() != 2
        or not is_floating(dtype)
        or not 0 <= (stored if columns is None else columns) <= stored
    ):
        raise InputRuntimeError(
            "the arguments of dequantize do not match",
            where="burnt.kernels.dequantize",
            expected=f"values [rows, bytes], at most {stored} columns, a floating-point dtype",
            found=f"values {list(values.shape)}, {columns} columns, {dtype}",
        )
    check_scale(
        "dequantize", values.shape[0], stored if columns is None else columns, scale, zero_point, block
    )


def _dequantize_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [
        (*quantized_example(device, 1024, 1024, "int8"), "int8", 0, None, torch.float32),
        (*quantized_example(device, 512, 1024, "int4", 32), "int4", 32, None, torch.bfloat16),
        (*quantized_example(device, 64, 95, "int4", 5, zero=True), "int4", 5, 95, torch.float32),
        (*quantized_example(device, 7, 12, "float8_e4m3"), "float8_e4m3", 0, None, torch.float32),
        (*quantized_example(device, 7, 12, "float4_e2m1", 4), "float4_e2m1", 4, None, torch.float32),
    ]


@op(check=_check_dequantize, examples=_dequantize_examples)
def dequantize(
    values: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    value: str = "int8",
    block: int = 0,
    columns: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the matrix that quantized values stand for: ``(values - zero_point) * scale``.

    Args:
        values: the packed values that `quantize` returns.
        scale, zero_point, value, block: the arguments that `quantize` was given.
        columns: number of columns of the result, without padding; None for all that are stored.
        dtype: dtype of the result, None for float32; the product is computed in float32 or wider.

    Returns:
        ``[rows, columns]``.

    Raises:
        InputValueError: `value` is unknown.

    >>> dequantize(torch.tensor([[5, -13]], dtype=torch.int8), torch.tensor([[0.02]]))
    tensor([[ 0.1000, -0.2600]])
    """
    wide = torch.promote_types(scale.dtype, torch.float32)
    dtype = wide if dtype is None else dtype
    wide = torch.promote_types(wide, dtype)
    numbers = decode(values, value, wide)
    columns = numbers.shape[1] if columns is None else columns
    numbers = numbers[:, :columns]
    if zero_point is not None:
        numbers = numbers - expand_scale(zero_point, block, columns).to(wide)
    return (numbers * expand_scale(scale, block, columns).to(wide)).to(dtype)


def _check_quantize_rows(x: Tensor, value: str) -> None:
    check_floating("quantize_rows", x=x)
    if value_type("quantize_rows", value).bits != 8 or x.dim() < 1:
        raise InputValueError(
            "quantize_rows quantizes rows to 8 bits",
            where="burnt.kernels.quantize_rows",
            expected="int8, float8_e4m3 or float8_e5m2, and x [*, columns]",
            found=f"{value}, x {list(x.shape)}",
        )


def _rows_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [((1024, 1024), "int8"), ((8, 128, 768), "float8_e4m3"), ((5, 7), "int8")]
    return [(torch.randn(shape, device=device), value) for shape, value in shapes]


@op(check=_check_quantize_rows, examples=_rows_examples)
def quantize_rows(x: Tensor, value: str = "int8") -> tuple[Tensor, Tensor]:
    """Quantize each row by its largest absolute value, symmetrically: dynamic quantization of a layer's
    input.

    Args:
        x: ``[*, columns]``, floating-point.
        value: ``"int8"`` (codes from -127 to 127), ``"float8_e4m3"`` or ``"float8_e5m2"``.

    Returns:
        values ``[*, columns]``, int8 or uint8, and scales ``[*, 1]``, float32 (float64 for float64): ``amax /
        127``, or 448 or 57344. A row of zeros has the scale 0, one with NaN or an infinity the scale NaN or
        infinity.

    Raises:
        InputValueError: `value` does not have 8 bits.

    >>> quantize_rows(torch.tensor([[1.0, -0.5]]))
    (tensor([[127, -64]], dtype=torch.int8), tensor([[0.0079]]))
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    amax = wide.abs().amax(-1, keepdim=True) if x.shape[-1] else wide.new_zeros(*x.shape[:-1], 1)
    scale = amax / VALUES[value].largest
    scaled = torch.where(scale == 0, 0.0, wide / torch.where(scale == 0, 1.0, scale))
    return encode(scaled, value, None, VALUES[value].smallest + (value == "int8")), scale


def _check_quantize_tensor(x: Tensor) -> None:
    check_floating("quantize_tensor", x=x)


def _tensor_examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(torch.randn(shape, device=device),) for shape in ((1024, 1024), (8, 128, 768), (5, 7))]


@op(check=_check_quantize_tensor, examples=_tensor_examples)
def quantize_tensor(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize a tensor by the range of all its elements and 0, as ONNX's DynamicQuantizeLinear does.

    Args:
        x: ``[*]``, floating-point.

    Returns:
        values ``[*]``, int8; a scale ``[1, 1]``, float32 (float64 for float64): ``(max - min) / 255``, or 1
        if all elements are 0; and a zero point ``[1, 1]``, int8. Values and zero point are ONNX's less 128,
        which are unsigned.

    >>> quantize_tensor(torch.tensor([3.0, -0.5, 4.6]))
    (tensor([  47, -128,  127], dtype=torch.int8), tensor([[0.0200]]), tensor([[-103]], dtype=torch.int8))
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    ends = (wide.amin(), wide.amax()) if x.numel() else (wide.new_zeros(()),) * 2
    low, high = ends[0].clamp(max=0), ends[1].clamp(min=0)
    smallest, largest = VALUES["int8"].smallest, VALUES["int8"].largest
    scale = (high - low) / (largest - smallest)
    scale = torch.where(scale == 0, 1.0, scale)
    # Not rounded to int8 and back: generated loops with conversions of a number run four times slower.
    zero = torch.clamp(torch.round(-low / scale) + smallest, smallest, largest)
    zero = torch.where(zero.isnan(), 0.0, zero)
    values = encode(wide / scale, "int8", zero, smallest)
    return values, scale.reshape(1, 1), zero.to(torch.int8).reshape(1, 1)
