"""Lowerings of gelu and its derivative for 16-bit tensors, by a short formula for the tail of the normal.

Those of other dtypes are decomposed by torch's formula, ``x / 2 (1 + erf(x / sqrt 2))``. It cancels for
negative x, where a 16-bit result is off by several steps, and erf takes dozens of instructions on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from burnt.codegen.ir import Expr, Value, const
from burnt.codegen.lower.registry import aten, elementwise, register_lowering

_LOG2_TAIL = (
    -1.00005825, -1.15036076, -0.460605251, -0.0520090982, 0.00765995378, -0.000741909187, 4.09253316e-5,
    -9.53274917e-7,
)  # fmt: skip
"""Coefficients of the base-2 logarithm of the tail: the minimax polynomial from 0 to 5.6, off by at most
6e-5, whose error grows slowly up to 13, where the tail is no normal float32."""


def _tail(a: Expr) -> Expr:
    """Return the probability of a standard normal variable above `a`, at least 0."""
    log: Expr = const(_LOG2_TAIL[-1], a.dtype)
    for coefficient in _LOG2_TAIL[-2::-1]:
        log = log * a + coefficient
    return log.apply("fast_exp2")


@register_lowering(aten.gelu.default)
def _lower_gelu(meta: torch.Tensor, x: Value, **_: Any) -> Value:
    def element(x: Expr) -> Expr:
        a = x.apply("abs")
        # The bound is for infinity, times a tail of 0.
        return x.apply("maximum", 0) - a.apply("minimum", 2.0**100) * _tail(a)

    return elementwise(meta, [x], element)


@register_lowering(aten.gelu_backward.default)
def _lower_gelu_backward(meta: torch.Tensor, gradient: Value, x: Value, **_: Any) -> Value:
    def element(gradient: Expr, x: Expr) -> Expr:
        tail = _tail(x.apply("abs"))
        density = (x * x * (-0.5 * math.log2(math.e))).apply("fast_exp2") * math.sqrt(0.5 / math.pi)
        return gradient * (x.lt(0).where(tail, -tail + 1) + x * density)

    return elementwise(meta, [gradient, x], element)
