"""Patterns: several nodes that exporters write for one layer become one node again.

LayerNorm, RMSNorm, GELU (erf and tanh), SiLU, rotary embedding and attention, by onnxscript's rewriter. The
results differ from the file's in rounding alone, but for one case: attention whose mask is minus infinity for
all keys of a query returns zeros, as PyTorch does, where the file's softmax computes NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["DOMAIN", "rewrite_patterns"]

DOMAIN = "burnt"
"""Of the nodes that stand for what ONNX has no op for, or only in newer versions."""

_SWAPPED = [0, 1, 3, 2]


def rewrite_patterns(model: ir.Model) -> None:
    """Replace the patterns in a model, in place. Shapes and dtypes have been inferred before."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    _remove_casts(model)
    for rules in _rules():
        rules.apply_to_model(model)
    RemoveUnusedNodesPass()(model)


def _remove_casts(model: ir.Model) -> None:
    """Remove casts to the dtype that a value has already."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Cast" or node.domain not in ("", "ai.onnx") or not node.inputs:
            continue
        source, output = node.inputs[0], node.outputs[0]
        target = node.attributes.get("to")
        if source is None or source.dtype is None or target is None or int(target.value) != source.dtype.value:
            continue
        if not output.is_graph_output():
            output.replace_all_uses_with(source)


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    array = value.const_value.numpy()
    return float(array.reshape(()).astype(np.float64)) if array.dtype.kind in "iuf" else None


def _ints(value: ir.Value | None) -> list[int] | None:
    if value is None or value.const_value is None or value.const_value.size > 8:
        return None
    array = value.const_value.numpy()
    return [int(v) for v in array.reshape(-1)] if array.dtype.kind in "iu" else None


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _is_last_mean(node: ir.Node, value: ir.Value) -> bool:
    """Whether ReduceMean takes the mean over the last axis, and keeps it."""
    axes = node.attributes.get("axes")
    found = list(axes.value) if axes is not None else _ints(node.inputs[1] if len(node.inputs) > 1 else None)
    keeps = node.attributes.get("keepdims")
    rank = _rank(value)
    last = found == [-1] or (rank is not None and found == [rank - 1])
    return last and (keeps is None or int(keeps.value) == 1)


def _is_internal(value: ir.Value) -> bool:
    """Whether one node alone reads a value."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def _producer(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node that computes a value, if it is one of some ops of ONNX."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in ops and node.domain in ("", "ai.onnx") else None


def _scaled(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return a value and the number it is multiplied by, if it is a product or a quotient with a number."""
    node = _producer(value, "Mul", "Div")
    if node is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    number = _number(right)
    if left is not None and number is not None and _rank(right) in (0, 1):
        return left, (number if node.op_type == "Mul" else 1.0 / number if number else math.nan)
    number = _number(left)
    if node.op_type == "Mul" and right is not None and number is not None and _rank(left) in (0, 1):
        return right, number
    return None


def _scores(value: ir.Value) -> tuple[ir.Value, ir.Value, float, list[ir.Value]] | None:
    """Return query, transposed key, scale and masks of attention scores: ``(q @ k.T) * scale + mask``."""
    if not _is_internal(value):
        return None
    node = _producer(value, "MatMul")
    if node is not None:
        query, key = node.inputs
        return (query, key, 1.0, []) if query is not None and key is not None else None
    node = _producer(value, "Add")
    if node is not None:
        for i in (0, 1):
            one, other = node.inputs[i], node.inputs[1 - i]
            found = None if one is None or other is None else _scores(one)
            if found is not None and other is not None:
                return (*found[:3], [*found[3], other])
        return None
    scaled = _scaled(value)
    if scaled is not None:
        found = _scores(scaled[0])
        if found is not None and not found[3]:
            return (*found[:2], found[2] * scaled[1], [])
    return None


def _same(one: ir.Value | None, other: ir.Value | None, depth: int = 6) -> bool:
    """Whether two values are equal: one value, equal constants, or computed alike from the same."""
    if one is other:
        return True
    if one is None or other is None or depth == 0:
        return False
    if one.const_value is not None and other.const_value is not None:
        return _ints(one) is not None and _ints(one) == _ints(other)
    first, second = one.producer(), other.producer()
    if first is None or second is None or len(first.outputs) != 1:
        return False
    return (
        first.op_identifier() == second.op_identifier()
        and len(first.inputs) == len(second.inputs)
        and {k: str(v) for k, v in first.attributes.items()}
        == {k: str(v) for k, v in second.attributes.items()}
        and all(_same(a, b, depth - 1) for a, b in zip(first.inputs, second.inputs, strict=True))
    )


def _is_half(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether an index is half of the size of the last axis of a value."""
    size = x.shape[-1] if x.shape is not None and len(x.shape) else None
    number = _number(value)
    if number is not None:
        return isinstance(size, int) and 2 * number == size
    while (node := _producer(value, "Unsqueeze", "Cast", "Reshape", "Squeeze")) is not None:
        value = node.inputs[0]
    node = _producer(value, "Div")
    if node is None or _number(node.inputs[1]) != 2.0:
        return False
    gather = _producer(node.inputs[0], "Gather")
    shape = None if gather is None else _producer(gather.inputs[0], "Shape")
    if gather is None or shape is None or shape.attributes or not _same(shape.inputs[0], x):
        return False
    index, rank = _number(gather.inputs[1]), _rank(x)
    return index == -1 or (rank is not None and index == rank - 1)


def _bounds(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None] | None:
    """Return start and end of a slice of the last axis with step 1."""
    inputs = [*node.inputs, None, None][:5]
    rank = None if node.inputs[0] is None else _rank(node.inputs[0])
    axes, steps = _ints(inputs[3]), _ints(inputs[4])
    if axes is None or not (axes == [-1] or (rank is not None and axes == [rank - 1])):
        return None
    if inputs[4] is not None and steps != [1]:
        return None
    return inputs[1], inputs[2]


def _rules() -> list[Any]:
    from onnxscript.rewriter import pattern

    anything = {"_allow_other_inputs": True, "_allow_other_attributes": True}

    class Gelu(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``0.5 x (1 + erf(x / sqrt 2))``, in the orders that exporters write."""

        def __init__(self, order: int) -> None:
            super().__init__(f"Gelu{order}")
            self.order = order

        def pattern(self, op: Any, x: Any, one: Any, half: Any) -> Any:
            gate = op.Add(op.Erf(op.Mul(x, 0.7071067811865476)), 1.0)
            if self.order % 2:
                gate = op.Add(op.Erf(op.Div(x, 1.4142135623730951)), 1.0)
            return {
                0: lambda: op.Mul(op.Mul(x, gate), 0.5),
                1: lambda: op.Mul(op.Mul(x, 0.5), gate),
                2: lambda: op.Mul(x, op.Mul(gate, 0.5)),
            }[self.order // 2]()

        def rewrite(self, op: Any, x: Any, **_: Any) -> Any:
            return op.Gelu(x)

    class TanhGelu(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``."""

        def __init__(self, order: int) -> None:
            super().__init__(f"TanhGelu{order}")
            self.order = order

        def pattern(self, op: Any, x: Any) -> Any:
            cube = op.Pow(x, 3.0) if self.order % 2 else op.Mul(op.Mul(x, x), x)
            inner = op.Mul(op.Add(x, op.Mul(cube, 0.044715)), 0.7978845608028654)
            gate = op.Add(op.Tanh(inner), 1.0)
            return {
                0: lambda: op.Mul(op.Mul(x, 0.5), gate),
                1: lambda: op.Mul(x, op.Mul(gate, 0.5)),
                2: lambda: op.Mul(op.Mul(x, gate), 0.5),
            }[self.order // 2]()

        def rewrite(self, op: Any, x: Any) -> Any:
            return op.Gelu(x, approximate="tanh")

    class Silu(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``x sigmoid(x)``."""

        def pattern(self, op: Any, x: Any) -> Any:
            return op.Mul(x, op.Sigmoid(x))

        def rewrite(self, op: Any, x: Any) -> Any:
            return op.Silu(x, _domain=DOMAIN)

    class RmsNorm(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``x / sqrt(mean(x^2) + eps) * scale``."""

        def __init__(self, order: int) -> None:
            super().__init__(f"RmsNorm{order}")
            self.order = order

        def pattern(self, op: Any, x: Any, scale: Any, eps: Any) -> Any:
            square = op.Pow(x, 2.0) if self.order % 2 else op.Mul(x, x)
            root = op.Sqrt(op.Add(op.ReduceMean(square, **anything, _outputs=["mean"]), eps))
            normalized = {
                0: lambda: op.Mul(x, op.Reciprocal(root)),
                1: lambda: op.Mul(x, op.Div(1.0, root)),
                2: lambda: op.Div(x, root),
            }[self.order // 2]()
            return op.Mul(normalized, scale)

        def check(self, context: Any, x: Any, scale: Any, eps: Any, mean: Any, **_: Any) -> Any:
            result = pattern.MatchResult()
            if _number(eps) is None or _rank(scale) != 1 or not _is_last_mean(mean.producer(), x):
                return result.fail("no RMSNorm over the last axis")
            return result

        def rewrite(self, op: Any, x: Any, scale: Any, eps: Any, **_: Any) -> Any:
            return op.RMSNormalization(x, scale, axis=-1, epsilon=_number(eps))

    class LayerNorm(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``(x - mean) / sqrt(var + eps) * scale + bias``."""

        def __init__(self, order: int) -> None:
            super().__init__(f"LayerNorm{order}")
            self.order = order

        def pattern(self, op: Any, x: Any, scale: Any, bias: Any, eps: Any) -> Any:
            centred = op.Sub(x, op.ReduceMean(x, **anything, _outputs=["mean"]))
            square = op.Pow(centred, 2.0) if self.order % 2 else op.Mul(centred, centred)
            root = op.Sqrt(op.Add(op.ReduceMean(square, **anything, _outputs=["variance"]), eps))
            normalized = op.Mul(centred, op.Reciprocal(root)) if self.order // 2 else op.Div(centred, root)
            return op.Add(op.Mul(normalized, scale), bias)

        def check(
            self, context: Any, x: Any, scale: Any, bias: Any, eps: Any, mean: Any, variance: Any, **_: Any
        ) -> Any:
            result = pattern.MatchResult()
            if _number(eps) is None or _rank(scale) != 1 or _rank(bias) != 1:
                return result.fail("no LayerNorm over the last axis")
            if not (_is_last_mean(mean.producer(), x) and _is_last_mean(variance.producer(), x)):
                return result.fail("means over other axes")
            return result

        def rewrite(self, op: Any, x: Any, scale: Any, bias: Any, eps: Any, **_: Any) -> Any:
            return op.LayerNormalization(x, scale, bias, axis=-1, epsilon=_number(eps))

    class Rotary(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``x cos + rotated(x) sin``, where rotated(x) is the negated second half, then the first."""

        def pattern(self, op: Any, x: Any, cos: Any, sin: Any) -> Any:
            first = op.Slice(x, _allow_other_inputs=True, _outputs=["first"])
            second = op.Slice(x, _allow_other_inputs=True, _outputs=["second"])
            rotated = op.Concat(op.Neg(second), first, _allow_other_attributes=True, _outputs=["rotated"])
            return op.Add(op.Mul(x, cos), op.Mul(rotated, sin))

        def check(self, context: Any, x: Any, first: Any, second: Any, rotated: Any, **_: Any) -> Any:
            result = pattern.MatchResult()
            axis, rank = rotated.producer().attributes["axis"].value, _rank(x)
            low, high = _bounds(first.producer()), _bounds(second.producer())
            if low is None or high is None or not (axis == -1 or (rank is not None and axis == rank - 1)):
                return result.fail("not on the last axis")
            if _number(low[0]) != 0 or not _is_half(low[1], x) or not _same(low[1], high[0]):
                return result.fail("no halves")
            end = _number(high[1])
            size = x.shape[-1] if x.shape is not None else None
            if end is None or end < (size if isinstance(size, int) else 2**31 - 1):
                return result.fail("the second part ends early")
            return result

        def rewrite(self, op: Any, x: Any, cos: Any, sin: Any, **_: Any) -> Any:
            return op.Rotary(x, cos, sin, _domain=DOMAIN)

    class Attention(pattern.RewriteRuleClassBase):  # type: ignore[misc]
        """``softmax(q @ k.T * scale + mask) @ v``, with or without a guard against NaN."""

        def __init__(self, is_guarded: bool) -> None:
            super().__init__(f"Attention{int(is_guarded)}")
            self.is_guarded = is_guarded

        def pattern(self, op: Any, scores: Any, v: Any) -> Any:
            weights = op.Softmax(scores, _allow_other_attributes=True, _outputs=["weights"])
            if self.is_guarded:
                return op.MatMul(op.Where(op.IsNaN(weights), 0.0, weights), v)
            return op.MatMul(weights, v)

        def check(self, context: Any, scores: Any, v: Any, weights: Any, **_: Any) -> Any:
            result = pattern.MatchResult()
            softmax = weights.producer()
            axis = softmax.attributes.get("axis")
            default = -1 if (softmax.version or 13) >= 13 else 1
            if (default if axis is None else int(axis.value)) not in (-1, 3):
                return result.fail("a softmax over another axis")
            found = _scores(scores)
            if found is None:
                return result.fail("no scores of attention")
            query, key, scale, masks = found
            if any(_rank(value) != 4 for value in (query, key, v)) or not math.isfinite(scale):
                return result.fail("not four axes")
            if any(_rank(mask) is None or _rank(mask) < 2 or mask.dtype != query.dtype for mask in masks):
                return result.fail("a mask of other shape or dtype")
            return result

        def rewrite(self, op: Any, scores: Any, v: Any, **_: Any) -> Any:
            found = _scores(scores)
            assert found is not None
            query, key, scale, masks = found
            while (scaled := _scaled(query)) is not None:
                query, scale = scaled[0], scale * scaled[1]
            while (scaled := _scaled(key)) is not None:
                key, scale = scaled[0], scale * scaled[1]
            transposed = _producer(key, "Transpose")
            perm = transposed.attributes.get("perm") if transposed is not None else None
            if transposed is not None and perm is not None:
                order = [list(perm.value)[axis] for axis in _SWAPPED]
                key = transposed.inputs[0]
                key = key if order == [0, 1, 2, 3] else op.Transpose(key, perm=order)
            else:
                key = op.Transpose(key, perm=_SWAPPED)
            mask = masks[0] if masks else None
            for other in masks[1:]:
                mask = op.Add(mask, other)
            inputs = [query, key, v] if mask is None else [query, key, v, mask]
            return op.Attention(*inputs, scale=scale, _domain=DOMAIN)

    elementwise = [
        *(Gelu.rule(order) for order in range(6)),
        *(TanhGelu.rule(order) for order in range(6)),
        *(RmsNorm.rule(order) for order in range(6)),
        *(LayerNorm.rule(order) for order in range(4)),
        Silu.rule(),
        Rotary.rule(),
    ]
    return [
        pattern.RewriteRuleSet(elementwise, commute=True),
        pattern.RewriteRuleSet([Attention.rule(False), Attention.rule(True)]),
    ]
