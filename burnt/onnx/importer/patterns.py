"""Patterns: several nodes that exporters write for one layer become one node again.

LayerNorm, RMSNorm, GELU (erf and tanh), SiLU, rotary embedding and attention. The results differ from the
file's in rounding alone, but for one case: attention whose mask is minus infinity for all keys of a query
returns zeros, as PyTorch does, where the file's softmax computes NaN.

The same patterns as rules of onnxscript's rewriter, which expands each order of the operands of each rule,
took about 3 seconds a file for those of tests/onnx/files. Here the operands are swapped where a node fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from burnt.onnx.importer.expand import version_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["DOMAIN", "rewrite_patterns"]

DOMAIN = "burnt"
"""Of the nodes that stand for what ONNX has no op for, or only in newer versions."""

_New: TypeAlias = tuple[str, str, list[Any], dict[str, Any]]  # domain, op, inputs, attributes
_SWAPPED = [0, 1, 3, 2]


def rewrite_patterns(model: ir.Model) -> None:
    """Replace the patterns in a model, in place. Shapes and dtypes have been inferred before."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    _remove_no_ops(model)
    roots = {pattern[0] for pattern, _ in _PATTERNS if isinstance(pattern, tuple)}
    for node in reversed(list(model.graph.all_nodes())):  # from the outside: RMSNorm is a part of LayerNorm
        if node.op_type not in roots or node.domain not in ("", "ai.onnx"):
            continue
        for pattern, make in _PATTERNS:
            found: Found = {}
            new = make(found) if _match(pattern, node.outputs[0], found) else None
            if new is not None and _keeps_rank(new, node.outputs[0]):
                _replace(node, new)
                break
    RemoveUnusedNodesPass()(model)


def _keeps_rank(new: _New, output: ir.Value) -> bool:
    """Whether a new node's output has as many axes as the old one's: constants ``[1, 1, 1]`` add some."""
    return _rank(output) in (None, _rank(new[2][0]))


def _remove_no_ops(model: ir.Model) -> None:
    """Remove casts to the dtype that a value has already, and Identity, by which exporters share weights."""
    for node in list(model.graph.all_nodes()):
        if node.op_type not in ("Cast", "Identity") or node.domain not in ("", "ai.onnx") or not node.inputs:
            continue
        source, output, target = node.inputs[0], node.outputs[0], node.attributes.get("to")
        if source is None or output.is_graph_output() or node.graph is None:
            continue
        if node.op_type == "Cast" and (
            source.dtype is None or target is None or int(target.value) != source.dtype.value
        ):
            continue
        output.replace_all_uses_with(source)
        node.graph.remove(node, safe=True)


def _array(value: ir.Value | None, most: int) -> np.ndarray[Any, Any] | None:
    """Return a constant of few elements."""
    import onnx_ir as ir

    if value is None or (value.const_value is None and _producer(value, "Constant") is None):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.size <= most else None


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number."""
    array = _array(value, 1)
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    return float(array.reshape(()))


def _ints(value: ir.Value | None) -> list[int] | None:
    """Return a constant of few integers as a list."""
    array = _array(value, 8)
    return [int(v) for v in array.reshape(-1)] if array is not None and array.dtype.kind in "iu" else None


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


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
    if left is not None and number is not None and _rank(right) in {0, 1}:
        return left, (number if node.op_type == "Mul" else 1.0 / number if number else math.nan)
    number = _number(left)
    if node.op_type == "Mul" and right is not None and number is not None and _rank(left) in {0, 1}:
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
    """Whether two values are equal: one value, equal constants, or results of the same op on equal inputs."""
    if one is other:
        return True
    if one is None or other is None or depth == 0:
        return False
    if (numbers := _ints(one)) is not None:
        return numbers == _ints(other)
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


Pattern: TypeAlias = "str | float | tuple[Any, ...]"
Found: TypeAlias = dict[str, Any]


def _match(pattern: Pattern, value: ir.Value | None, found: Found) -> bool:
    """Match a pattern with what computes a value.

    Args:
        pattern: a name, which stands for one value; a number; or an op with patterns of its first inputs,
            such as ``("Mul", "x", 0.5)``. ``"Slice:first"`` keeps the node as ``first``.
        value: of the graph.
        found: the values and nodes of names, extended where the pattern matches.
    """
    if isinstance(pattern, str):
        return value is not None and found.setdefault(pattern, value) is value
    if isinstance(pattern, float):
        number = _number(value)
        return number is not None and math.isclose(number, pattern, rel_tol=1e-4)
    op, _, name = pattern[0].partition(":")
    node = _producer(value, op)
    if node is None or len(node.inputs) < len(pattern) - 1:
        return False
    parts = list(pattern[1:])
    for order in (parts, parts[::-1]) if op in ("Add", "Mul") else (parts,):
        trial = dict(found)
        if all(_match(part, one, trial) for part, one in zip(order, node.inputs, strict=False)):
            if name and not _same(trial.setdefault(name, node).outputs[0], node.outputs[0]):
                continue  # a pattern's node in two places: the mean of x over one axis, and over another
            found.update(trial)
            return True
    return False


def _gelu(found: Found) -> _New:
    return "", "Gelu", [found["x"]], {}


def _tanh_gelu(found: Found) -> _New:
    return "", "Gelu", [found["x"]], {"approximate": "tanh"}


def _silu(found: Found) -> _New:
    return DOMAIN, "Silu", [found["x"]], {}


def _is_scale(scale: ir.Value, x: ir.Value) -> bool:
    """Whether a vector may be the scale of a norm of the last axis: as long as that, not broadcast."""
    if _rank(scale) != 1 or scale.shape is None:
        return False
    length, size = scale.shape[0], x.shape[-1] if x.shape is not None and len(x.shape) else None
    if isinstance(length, int) and isinstance(size, int):
        return length == size
    return length != 1


def _rms_norm(found: Found) -> _New | None:
    x, scale, eps = found["x"], found["scale"], _number(found["eps"])
    if eps is None or not _is_scale(scale, x) or not _is_last_mean(found["mean"], x):
        return None
    return "", "RMSNormalization", [x, scale], {"axis": -1, "epsilon": eps}


def _layer_norm(found: Found) -> _New | None:
    x, scale, bias, eps = found["x"], found["scale"], found["bias"], _number(found["eps"])
    if eps is None or not _is_scale(scale, x) or not _is_scale(bias, x):
        return None
    if not (_is_last_mean(found["mean"], x) and _is_last_mean(found["variance"], x)):
        return None
    return "", "LayerNormalization", [x, scale, bias], {"axis": -1, "epsilon": eps}


def _rotary(found: Found) -> _New | None:
    x = found["x"]
    axis, rank = found["rotated"].attributes["axis"].value, _rank(x)
    low, high = _bounds(found["first"]), _bounds(found["second"])
    if low is None or high is None or not (axis == -1 or (rank is not None and axis == rank - 1)):
        return None
    if _number(low[0]) != 0 or not _is_half(low[1], x) or not _same(low[1], high[0]):
        return None
    end, size = _number(high[1]), x.shape[-1] if x.shape is not None else None
    if end is None or end < (size if isinstance(size, int) else 2**31 - 1):
        return None
    return DOMAIN, "Rotary", [x, found["cos"], found["sin"]], {}


def _widens(mask: ir.Value, query: ir.Value, key: ir.Value) -> bool:
    """Whether a mask repeats scores along axes of size 1, which torch's attention refuses."""
    if mask.shape is None or query.shape is None or key.shape is None:
        return False
    sizes = [b if a == 1 else a for a, b in zip(query.shape[:2], key.shape[:2], strict=True)]
    sizes += [query.shape[2], key.shape[3]]
    pairs = zip(reversed(sizes), reversed(list(mask.shape)), strict=False)
    return any(size == 1 and other != 1 for size, other in pairs)


def _attention(found: Found) -> _New | None:
    axis, value = found["softmax"].attributes.get("axis"), found["v"]
    default = -1 if version_of(found["softmax"]) >= 13 else 1
    parts = _scores(found["scores"])
    if parts is None or (default if axis is None else int(axis.value)) not in (-1, 3):
        return None
    query, key, scale, masks = parts
    while (scaled := _scaled(query)) is not None:
        query, scale = scaled[0], scale * scaled[1]
    while (scaled := _scaled(key)) is not None:
        key, scale = scaled[0], scale * scaled[1]
    if any(_rank(part) != 4 for part in (query, key, value)) or not math.isfinite(scale):
        return None
    if any((_rank(mask) or 0) < 2 or mask.dtype != query.dtype for mask in masks):
        return None
    if any(_widens(mask, query, key) for mask in masks):
        return None
    return DOMAIN, "Attention", [query, key, value, *masks], {"scale": scale}


_ERF_GATES: list[Pattern] = [
    ("Add", ("Erf", ("Mul", "x", 0.7071067811865476)), 1.0),
    ("Add", ("Erf", ("Div", "x", 1.4142135623730951)), 1.0),
]
_CUBES: list[Pattern] = [("Pow", "x", 3.0), ("Mul", ("Mul", "x", "x"), "x")]
_TANH_GATES: list[Pattern] = [
    ("Add", ("Tanh", ("Mul", ("Add", "x", ("Mul", cube, 0.044715)), 0.7978845608028654)), 1.0)
    for cube in _CUBES
]


def _half_gated(gate: Pattern) -> list[Pattern]:
    """Return the orders of ``0.5 * x * gate``."""
    return [
        ("Mul", ("Mul", "x", gate), 0.5),
        ("Mul", ("Mul", "x", 0.5), gate),
        ("Mul", "x", ("Mul", gate, 0.5)),
    ]


_CENTRED: Pattern = ("Sub", "x", ("ReduceMean:mean", "x"))


def _roots(square: Pattern, name: str) -> Pattern:
    return ("Sqrt", ("Add", (f"ReduceMean:{name}", square), "eps"))


def _normalized(x: Pattern, root: Pattern) -> list[Pattern]:
    return [("Div", x, root), ("Mul", x, ("Reciprocal", root)), ("Mul", x, ("Div", 1.0, root))]


_SLICES: tuple[Pattern, Pattern] = ("Slice:first", "x"), ("Slice:second", "x")
_WEIGHTS: Pattern = ("Softmax:softmax", "scores")
_PATTERNS: list[tuple[Pattern, Callable[[Found], _New | None]]] = [
    *((p, _gelu) for gate in _ERF_GATES for p in _half_gated(gate)),
    *((p, _tanh_gelu) for gate in _TANH_GATES for p in _half_gated(gate)),
    (("Mul", "x", ("Sigmoid", "x")), _silu),
    *(
        (("Mul", normalized, "scale"), _rms_norm)
        for square in (("Pow", "x", 2.0), ("Mul", "x", "x"))
        for normalized in _normalized("x", _roots(square, "mean"))
    ),
    *(
        (("Add", ("Mul", normalized, "scale"), "bias"), _layer_norm)
        for square in (("Pow", _CENTRED, 2.0), ("Mul", _CENTRED, _CENTRED))
        for normalized in _normalized(_CENTRED, _roots(square, "variance"))
    ),
    (
        ("Add", ("Mul", "x", "cos"), ("Mul", ("Concat:rotated", ("Neg", _SLICES[1]), _SLICES[0]), "sin")),
        _rotary,
    ),
    (("MatMul", _WEIGHTS, "v"), _attention),
    (("MatMul", ("Where", ("IsNaN", _WEIGHTS), 0.0, _WEIGHTS), "v"), _attention),
]


def _replace(node: ir.Node, new: _New) -> None:
    """Put a new node in the place of an old one, whose output it computes."""
    import onnx_ir as ir

    domain, op, inputs, attributes = new
    if op == "Attention" and domain == DOMAIN:
        inputs = _attention_inputs(node, inputs)
    _insert(node, domain, op, inputs, attributes, node.outputs[0])
    assert isinstance(node.graph, ir.Graph | ir.Function)
    node.graph.remove(node, safe=True)


def _insert(
    before: ir.Node,
    domain: str,
    op: str,
    inputs: list[Any],
    attributes: dict[str, Any],
    output: ir.Value | None = None,
) -> ir.Value:
    """Add a node; its output takes the place of another, if one is given."""
    import onnx_ir as ir

    node = ir.node(op, inputs, attributes, domain=domain, name=before.name)
    node.version = before.version if domain == before.domain else 1
    assert before.graph is not None
    before.graph.insert_before(before, node)
    if output is not None:
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = (
            output.name,
            output.type,
            output.shape,
        )
        output.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
    return node.outputs[0]


def _attention_inputs(node: ir.Node, inputs: list[Any]) -> list[Any]:
    """Return query, key, value and the sum of the masks; the key is no longer transposed."""
    import onnx_ir as ir

    query, key, value, *masks = inputs
    transposed = _producer(key, "Transpose")
    perm = transposed.attributes.get("perm") if transposed is not None else None
    order = _SWAPPED
    if transposed is not None and perm is not None:
        order = [list(perm.value)[axis] for axis in _SWAPPED]
        key = transposed.inputs[0]
    if order != [0, 1, 2, 3]:
        source = key
        key = _insert(node, "", "Transpose", [source], {"perm": order})
        key.dtype = source.dtype
        if source.shape is not None:
            key.shape = ir.Shape([source.shape[axis] for axis in order])
    mask = masks[0] if masks else None
    for other in masks[1:]:
        first, mask = mask, _insert(node, "", "Add", [mask, other], {})
        mask.dtype = query.dtype
        ranks = _rank(first), _rank(other)
        mask.shape = ir.Shape([None] * max(rank for rank in ranks if rank is not None))
    return [query, key, value] if mask is None else [query, key, value, mask]
