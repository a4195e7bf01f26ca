"""Device functions of the quantized Triton kernels: decoding values, activations, requantization."""

from __future__ import annotations

import triton
import triton.language as tl

from burnt.codegen.render.triton.device_math import (
    decode_e4m3,
    decode_e5m2,
    divide,
    encode_e4m3,
    encode_e5m2,
    erf,
    round,
    sigmoid,
    tanh,
)


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def decode(packed, zero, PART: tl.constexpr, VALUE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The value number PART of each byte, less its zero point, as float32.

    An integer's code, made unsigned, is put into the mantissa of 2^23 and the offset subtracted, which is
    exact: conversions from integers run at a quarter of the speed of additions.
    """
    if VALUE == "float8_e4m3":
        return decode_e4m3(packed)
    elif VALUE == "float8_e5m2":
        return decode_e5m2(packed)
    elif VALUE == "float4_e2m1":
        code = packed.to(tl.uint32) >> (4 * PART)
        normal = (((code & 7) << 22) + 0x3F000000).to(tl.float32, bitcast=True)
        size = tl.where((code & 6) == 0, (code & 1).to(tl.float32) * 0.5, normal)
        return (size.to(tl.uint32, bitcast=True) | ((code & 8) << 28)).to(tl.float32, bitcast=True)
    else:
        BITS: tl.constexpr = 8 if VALUE == "int8" else 4 if VALUE == "int4" else 2
        SIGN: tl.constexpr = 1 << (BITS - 1)
        unsigned = packed.to(tl.uint8, bitcast=True).to(tl.uint32) >> (BITS * PART)
        code = (unsigned & ((1 << BITS) - 1)) ^ SIGN
        return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + SIGN + zero)


@triton.jit  # type: ignore[untyped-decorator]
def decode_float16(packed, VALUE: tl.constexpr):  # type: ignore[no-untyped-def]
    """float8 numbers as float16, which holds them all exactly."""
    if VALUE == "float8_e5m2":
        return (packed.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    else:
        byte = packed.to(tl.uint16)
        # With a bias of 7 as float16's 15, the number is 2^-8 of itself.
        number = (((byte & 0x7F) << 7) | ((byte & 0x80) << 8)).to(tl.float16, bitcast=True) * 256.0
        return tl.where((byte & 0x7F) == 0x7F, float("nan"), number).to(tl.float16)


@triton.jit  # type: ignore[untyped-decorator]
def activate(x, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply a key of `burnt.kernels.ACTIVATIONS` to float32 numbers, as torch computes it."""
    if ACTIVATION is None:
        return x
    elif ACTIVATION == "relu":
        return tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "gelu":
        return x * 0.5 * (1.0 + erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu":
        return x * sigmoid(x)
    elif ACTIVATION == "relu2":
        positive = tl.where(x < 0, 0.0, x)
        return positive * positive
    elif ACTIVATION == "relu6":
        return tl.where(x < 0, 0.0, tl.where(x > 6, 6.0, x))
    else:
        tl.static_assert(ACTIVATION == "hardswish")
        shifted = x + 3.0
        clamped = tl.where(shifted < 0, 0.0, tl.where(shifted > 6, 6.0, shifted))
        return x * clamped / 6.0


@triton.jit  # type: ignore[untyped-decorator]
def requantize(x, scale, zero, VALUE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Float32 numbers as values of 8 bits, as `burnt.kernels.ops.quantized.quantize.encode` computes them."""
    x = divide(x, scale)
    if VALUE == "int8":
        code = round(x) + zero
        code = tl.where(code < -128, -128.0, tl.where(code > 127, 127.0, code))
        return tl.where(code != code, 0.0, code).to(tl.int8)
    elif VALUE == "float8_e4m3":
        return encode_e4m3(tl.where(x < -448, -448.0, tl.where(x > 448, 448.0, x)))
    else:
        return encode_e5m2(tl.where(x < -57344, -57344.0, tl.where(x > 57344, 57344.0, x)))
