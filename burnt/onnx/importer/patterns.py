"""Patterns: several nodes that exporters write for one layer become one node again.

Norms, activations, gated units, rotary embedding and attention. The results differ from the file's only
in rounding, but for two cases: attention whose mask is minus infinity for all keys of a query returns
zeros, as PyTorch does, where the file's softmax computes NaN; and a softplus that is written as
``log(1 + exp(x))`` does not overflow.

The same patterns as rules of onnxscript's rewriter, which expands each order of the operands of each rule,
took about 3 seconds a file for those of tests/onnx/files. Here the operands are swapped where a node fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from burnt.onnx.importer.expand import version_of
from burnt.onnx.importer.matching import (
    DOMAIN,
    Found,
    Pattern,
    array_of,
    axes_of,
    insert,
    integers_of,
    is_internal,
    is_same,
    match,
    number_of,
    producer_of,
    rank_of,
    shape_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir


_New: TypeAlias = tuple[str, str, list[Any], dict[str, Any]]  # domain, op, inputs, attributes
_Rule: TypeAlias = tuple[Pattern, Callable[[Found], _New | None]]
_SWAPPED = [0, 1, 3, 2]
_MOST_STEPS = 8  # from the product of query and key to softmax: scales and masks


def rewrite_patterns(model: ir.Model) -> None:
    """Replace the patterns in a model, in place. Shapes and dtypes have been inferred before."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    _remove_no_ops(model)
    has_unused = True  # nodes, in the file itself too
    for patterns in (_PATTERNS, _PATTERNS_OF_PATTERNS):
        by_op: dict[str, list[tuple[set[str], _Rule]]] = {}
        for root, make in patterns:
            assert isinstance(root, tuple)
            needed = {part[0].partition(":")[0] for part in root[1:] if isinstance(part, tuple)}
            by_op.setdefault(root[0].partition(":")[0], []).append((needed, (root, make)))
        nodes = list(model.graph.all_nodes())
        for node in reversed(nodes):  # from the outside: RMSNorm is a part of LayerNorm
            if node.domain not in ("", "ai.onnx"):
                continue
            rules = by_op.get(node.op_type)
            if rules is None:
                continue
            producers = [value.producer() for value in node.inputs if value is not None]
            given = {producer.op_type for producer in producers if producer is not None}
            for needed, (pattern, make) in rules:
                if not needed <= given:  # most rules end here, in a tenth of the time of `match`
                    continue
                found: Found = {"node": node}
                new = make(found) if match(pattern, node.outputs[0], found) else None
                if new is not None and _keeps_rank(new, node.outputs[0]):
                    _replace(node, new)
                    has_unused = True
                    break
        if has_unused:
            RemoveUnusedNodesPass()(model)
            has_unused = False


def _keeps_rank(new: _New, output: ir.Value) -> bool:
    """Whether a new node's output has as many axes as the old one's: constants ``[1, 1, 1]`` add some."""
    return rank_of(output) in (None, rank_of(new[2][0]))


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


def _mean_axis(node: ir.Node, value: ir.Value) -> int | None:
    """Return the axis that ReduceMean reduces and keeps, -1 for the last; None for several."""
    found, keeps, rank = axes_of(node), node.attributes.get("keepdims"), rank_of(value)
    if found is None or len(found) != 1 or (keeps is not None and int(keeps.value) != 1):
        return None
    (axis,) = found
    return -1 if rank is not None and axis == rank - 1 else axis


def _is_scale(scale: ir.Value, x: ir.Value) -> bool:
    """Whether a vector may be the scale of a norm of the last axis: as long as that, not broadcast."""
    if rank_of(scale) != 1 or scale.shape is None:
        return False
    length, size = scale.shape[0], x.shape[-1] if x.shape is not None and len(x.shape) else None
    if isinstance(length, int) and isinstance(size, int):
        return length == size
    return length != 1


def _per_channel(value: ir.Value, x: ir.Value) -> ir.Value | None:
    """Return a weight ``[C, 1, 1]`` of a value ``[N, C, H, W]``, or the ``[C]`` it was made of, else None."""
    sizes, rank = shape_of(value), rank_of(x)
    while sizes[:1] == [1] and rank is not None and len(sizes) >= rank:
        sizes = sizes[1:]
    if rank is None or rank < 3 or len(sizes) != rank - 1 or sizes[1:] != [1] * (rank - 2):
        return None
    if sizes[0] != shape_of(x)[1] or type(sizes[0]) is not int:
        return None
    inner = value
    while (node := producer_of(inner, "Unsqueeze", "Reshape")) is not None and node.inputs[0] is not None:
        inner = node.inputs[0]
    return inner if rank_of(inner) == 1 else value


def _scaled(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return a value and the number it is multiplied by, if it is a product or a quotient with a number."""
    node = producer_of(value, "Mul", "Div")
    if node is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    number = number_of(right)
    if left is not None and number is not None and rank_of(right) in {0, 1}:
        return left, (number if node.op_type == "Mul" else 1.0 / number if number else math.nan)
    number = number_of(left)
    if node.op_type == "Mul" and right is not None and number is not None and rank_of(left) in {0, 1}:
        return right, number
    return None


def _scores(
    value: ir.Value, depth: int = _MOST_STEPS
) -> tuple[ir.Value, ir.Value, float, list[ir.Value]] | None:
    """Return query, transposed key, scale and masks of attention scores: ``(q @ k.T) * scale + mask``."""
    if not is_internal(value) or depth == 0:
        return None
    node = producer_of(value, "MatMul")
    if node is not None:
        query, key = node.inputs
        return (query, key, 1.0, []) if query is not None and key is not None else None
    node = producer_of(value, "Add")
    if node is not None:
        for i in (0, 1):
            one, other = node.inputs[i], node.inputs[1 - i]
            found = None if one is None or other is None else _scores(one, depth - 1)
            if found is not None and other is not None:
                return (*found[:3], [*found[3], other])
        return None
    scaled = _scaled(value)
    if scaled is not None:
        found = _scores(scaled[0], depth - 1)
        if found is not None and not found[3]:
            return (*found[:2], found[2] * scaled[1], [])
    return None


def _without_swap(value: ir.Value) -> ir.Value | None:
    """Return a value of four axes before its last two are swapped as a matrix, by reshapes; else None.

    torch.onnx writes the key of scaled_dot_product_attention so, with ``dynamo=True``.
    """
    found: Found = {}
    if not match(_SWAP_BY_RESHAPES, value, found) or rank_of(found["x"]) != 4:
        return None
    bounds = {"leading": (-(2**31), -2), "rows": (-2, -1), "columns": (-1, 2**31 - 1)}
    is_swap = list(found["swapped"].attributes["perm"].value) == [0, 2, 1] and all(
        _is_part_of_shape(found[name], found["x"], *bound) for name, bound in bounds.items()
    )
    return found["x"] if is_swap else None


def _is_part_of_shape(value: ir.Value, x: ir.Value, start: int, end: int) -> bool:
    """Whether a value is ``x.shape[start:end]``; ends of 31 bits stand for none."""
    node = producer_of(value, "Slice")
    shape = None if node is None else producer_of(node.inputs[0], "Shape")
    if node is None or shape is None or not is_same(shape.inputs[0], x) or "end" in shape.attributes:
        return False
    first, last = (number_of(one) for one in node.inputs[1:3])
    begin = shape.attributes.get("start")
    if len(node.inputs) > 3 or first is None or last is None or (begin is not None and begin.value != 0):
        return False
    return max(first, -(2**31)) == start and min(last, 2**31 - 1) == end


def _without_roots(query: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return query and key before each is multiplied by the root of ``1 / sqrt(query.shape[-1])``.

    torch.onnx writes its scaled_dot_product_attention so, with the size as a tensor.
    """
    sides: list[Found] = [{}, {}]
    pattern: Pattern = ("Mul", "x", ("Sqrt", ("Div", 1.0, ("Sqrt", ("Cast", "size")))))
    if not all(match(pattern, value, found) for value, found in zip((query, key), sides, strict=True)):
        return None
    (q, size), (k, other) = ((found["x"], found["size"]) for found in sides)
    return (q, k) if is_same(size, other) and _is_last_size(size, q) else None


def _is_last_size(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is the size of the last axis of another."""
    node, rank = producer_of(value, "Slice", "Gather"), rank_of(x)
    shape = None if node is None else producer_of(node.inputs[0], "Shape")
    if node is None or shape is None or shape.attributes or not is_same(shape.inputs[0], x):
        return False
    first = number_of(node.inputs[1])
    if node.op_type == "Gather":
        return first == -1 or (rank is not None and first == rank - 1)
    last = number_of(node.inputs[2])
    return first == -1 and last is not None and last >= 2**31 - 1


def _is_half(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether an index is half of the size of the last axis of a value."""
    size = x.shape[-1] if x.shape is not None and len(x.shape) else None
    number = number_of(value)
    if number is not None:
        return isinstance(size, int) and 2 * number == size
    while (node := producer_of(value, "Unsqueeze", "Cast", "Reshape", "Squeeze")) is not None:
        value = node.inputs[0]
    node = producer_of(value, "Div")
    return node is not None and number_of(node.inputs[1]) == 2.0 and _is_last_size(node.inputs[0], x)


def _cut(node: ir.Node) -> tuple[int, Any, Any, int] | None:
    """Return axis, start, end and step of a slice of one axis; None where the axis or step is not known.

    Bounds are numbers, at least 0 if the size is known, or else values. One that cuts nothing is None.
    """
    inputs = [*node.inputs, None, None][:5]
    rank, axes, steps = rank_of(inputs[0]), integers_of(inputs[3]), integers_of(inputs[4])
    steps = [1] if inputs[4] is None else steps
    if version_of(node) < 10 or rank is None or axes is None or steps is None or len(axes) != 1:
        return None
    size = shape_of(inputs[0])[axes[0]]
    bounds: list[Any] = []
    for value in inputs[1:3]:
        number = number_of(value)
        known = value if number is None else int(number)
        bounds.append(known + size if type(known) is type(size) is int and known < 0 else known)
    start, end = bounds
    is_whole = type(end) is int and end >= (size if isinstance(size, int) else 2**31 - 1)
    return axes[0] % rank, start or None, None if is_whole else end, steps[0]


def _roll(found: Found) -> _New | None:
    """Match slices of one value that meet, in the other order: the last elements come first."""
    joined, x = found["joined"], found["x"]
    first, last = _cut(found["first"]), _cut(found["last"])
    if len(joined.inputs) != 2 or first is None or last is None or first[0] != last[0]:
        return None
    if x.dtype is None or x.dtype.name == "STRING":
        return None
    (axis, start, *rest), (_, *before, end, step) = first, last
    if type(start) is not int or start != end or [*rest, *before, step] != [None, 1, None, 1]:
        return None
    rank, size = rank_of(x), shape_of(x)[axis]
    if rank is None or joined.attributes["axis"].value % rank != axis:
        return None
    shift = -start
    if isinstance(size, int):
        if not 0 < start < size:
            return None
        shift = -start if 2 * start <= size else size - start
    elif abs(start) > 2:
        return None  # where an axis is shorter than that, the slices are not a rotation
    return DOMAIN, "Roll", [x], {"axis": axis, "shift": shift}


def _becomes(domain: str, op: str, **attributes: Any) -> Callable[[Found], _New]:
    """Return a rule for one op of the value ``x``."""
    return lambda found: (domain, op, [found["x"]], attributes)


def _clips_to_6(node: ir.Node) -> bool:
    """Whether a Clip is one to 0 and 6."""
    low, high = (node.attributes.get(name) for name in ("min", "max"))
    if version_of(node) < 11:
        return low is not None and high is not None and (low.value, high.value) == (0, 6)
    inputs = [*node.inputs, None, None]
    return (number_of(inputs[1]), number_of(inputs[2])) == (0, 6)


def _clipped(domain: str, op: str, **attributes: Any) -> Callable[[Found], _New | None]:
    """Return a rule for one op of the value ``x``, where the Clip is one to 0 and 6."""
    make = _becomes(domain, op, **attributes)
    return lambda found: make(found) if _clips_to_6(found["clip"]) else None


def _gated_hard_sigmoid(found: Found) -> _New | None:
    alpha, beta = (found["gate"].attributes.get(name) for name in ("alpha", "beta"))
    is_hard_swish = alpha is not None and math.isclose(alpha.value, 1 / 6, rel_tol=1e-6)
    if not is_hard_swish or (beta is not None and beta.value != 0.5):
        return None
    return DOMAIN, "HardSwish", [found["x"]], {}


def _rms_norm(found: Found) -> _New | None:
    x, scale, eps = found["x"], found["scale"], number_of(found["eps"])
    if eps is None or not _is_scale(scale, x) or _mean_axis(found["mean"], x) != -1:
        return None
    return "", "RMSNormalization", [x, scale], {"axis": -1, "epsilon": eps}


def _layer_norm(found: Found) -> _New | None:
    x, eps = found["x"], number_of(found["eps"])
    weights = [found[name] for name in ("scale", "bias") if name in found]
    axis = _mean_axis(found["mean"], x)
    if eps is None or axis is None or axis != _mean_axis(found["variance"], x):
        return None
    if axis == -1 and all(_is_scale(weight, x) for weight in weights):
        return "", "LayerNormalization", [x, *weights], {"axis": -1, "epsilon": eps}
    channels = [_per_channel(weight, x) for weight in weights]
    if axis == 1 and all(weight is not None for weight in channels):
        return DOMAIN, "ChannelsLayerNorm", [x, *channels], {"epsilon": eps}
    return None


def _group_norm(found: Found) -> _New | None:
    """Match what is written for a GroupNorm: the groups are channels of an InstanceNormalization."""
    x, sizes = found["x"], shape_of(found["x"])
    groups = integers_of(found["groups"].inputs[1])
    ones, zeros = (array_of(found[name], 4096) for name in ("ones", "zeros"))
    if (
        groups is None
        or len(groups) != 3
        or groups[0] not in (0, *sizes[:1])
        or ones is None
        or zeros is None
    ):
        return None
    if len(sizes) < 3 or not isinstance(sizes[1], int) or groups[1] < 1 or sizes[1] % groups[1]:
        return None
    if not ((ones == 1).all() and (zeros == 0).all() and _is_shape_of(found["whole"].inputs[1], x)):
        return None
    weights = [_per_channel(found[name], x) for name in ("scale", "bias") if name in found]
    if any(weight is None for weight in weights):
        return None
    eps = found["norm"].attributes.get("epsilon")
    attributes = {"groups": groups[1], "channels": sizes[1], "epsilon": 1e-5 if eps is None else eps.value}
    return DOMAIN, "GroupNorm", [x, *weights], attributes


def _integer_product(found: Found) -> _New | None:
    """Match the product of dynamically quantized values with a weight, and what makes floats of it."""
    product, bias = found["product"], found.get("bias")
    if bias is not None and rank_of(bias) != 1:
        return None
    zeros = [*product.inputs[2:], None, None][:2]
    inputs = [found["a"], found["b"], found["a_scale"], found["b_scale"], *zeros]
    return "com.microsoft", "MatMulIntegerToFloat", inputs if bias is None else [*inputs, bias], {}


def _is_shape_of(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is the shape of another."""
    node, known = producer_of(value, "Shape"), integers_of(value)
    if node is not None:
        start = node.attributes.get("start")
        return node.inputs[0] is x and "end" not in node.attributes and (start is None or start.value == 0)
    sizes = shape_of(x)
    if known is None or len(known) != len(sizes) or known.count(-1) > 1:
        return False
    # One size may be open; a size of 0 is the input's, which is the same only on the first axis.
    places = enumerate(zip(known, sizes, strict=True))
    return all(new in (-1, size) or (new == 0 and axis == 0) for axis, (new, size) in places)


def _gated_unit(found: Found) -> _New | None:
    gate, up, node = found["gate"], found["up"], found["activation"]
    one, other = shape_of(gate), shape_of(up)
    if not is_internal(node.outputs[0]) or not one or len(one) != len(other) or gate.dtype != up.dtype:
        return None
    if one[-1] != other[-1] or not isinstance(one[-1], int) or gate is up:
        return None
    if any(type(a) is type(b) is int and a != b for a, b in zip(one, other, strict=True)):
        return None
    if node.op_type == "Silu":
        return DOMAIN, "SwiGlu", [gate, up], {}
    approximate = node.attributes.get("approximate")
    return DOMAIN, "GeGlu", [gate, up], {} if approximate is None else {"approximate": approximate.value}


def _rotary(found: Found) -> _New | None:
    x, low, high = found["x"], _cut(found["first"]), _cut(found["second"])
    axis, rank = found["rotated"].attributes["axis"].value, rank_of(x)
    if low is None or high is None or rank is None or axis not in (-1, rank - 1):
        return None
    (low_axis, start, middle, low_step), (high_axis, other, end, high_step) = low, high
    is_same_middle = middle == other if type(middle) is int else is_same(middle, other)
    if (low_axis, high_axis, start, end, low_step, high_step) != (rank - 1, rank - 1, None, None, 1, 1):
        return None
    if not is_same_middle or not _is_half(found["first"].inputs[2], x):
        return None
    return DOMAIN, "Rotary", [x, found["cos"], found["sin"]], {}


def _interleaved_rotary(found: Found) -> _New | None:
    """Match rotary embedding of neighbours: the odd features, negated, next to the even ones."""
    x, rank, sizes = found["x"], rank_of(found["x"]), shape_of(found["x"])
    if rank is None or found["rotated"].attributes["axis"].value not in (-1, rank):
        return None
    if any(axes_of(found[name]) not in ([-1], [rank]) for name in ("odds", "evens")):
        return None
    if [_cut(found[name]) for name in ("odd", "even")] != [(rank - 1, 1, None, 2), (rank - 1, None, None, 2)]:
        return None
    if None in sizes or shape_of(found["whole"].outputs[0]) != sizes:
        return None
    return DOMAIN, "Rotary", [x, found["cos"], found["sin"]], {"interleaved": 1}


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
    unscaled = _without_roots(query, key) if scale == 1 else None
    if unscaled is not None:
        query, key = unscaled
    while unscaled is None and (scaled := _scaled(query)) is not None:
        query, scale = scaled[0], scale * scaled[1]
    while unscaled is None and (scaled := _scaled(key)) is not None:
        key, scale = scaled[0], scale * scaled[1]
    if any(rank_of(part) != 4 for part in (query, key, value)) or not math.isfinite(scale):
        return None
    if any((rank_of(mask) or 0) < 2 or mask.dtype != query.dtype for mask in masks):
        return None
    if any(_widens(mask, query, key) for mask in masks):
        return None
    attributes: dict[str, Any] = {"scale": scale} if unscaled is None else {}
    inputs = _attention_inputs(found["node"], query, key, value, masks)
    heads = [shape_of(one)[1] for one in inputs[:2] if len(shape_of(one)) == 4]
    if len(heads) == 2 and heads[0] != heads[1]:
        attributes["grouped"] = 1
    return DOMAIN, "Attention", inputs, attributes


_ERF_GATES: list[Pattern] = [
    ("Add", ("Erf", ("Mul", "x", 0.7071067811865476)), 1.0),
    ("Add", ("Erf", ("Div", "x", 1.4142135623730951)), 1.0),
]
_CUBES: list[Pattern] = [("Pow", "x", 3.0), ("Mul", ("Mul", "x", "x"), "x")]
_CUBIC_FACTOR: Pattern = ("Add", ("Mul", ("Mul", "x", 0.044715), "x"), 1.0)
_TANH_GATES: list[Pattern] = [
    *(
        ("Add", ("Tanh", ("Mul", ("Add", "x", ("Mul", cube, 0.044715)), 0.7978845608028654)), 1.0)
        for cube in _CUBES
    ),
    ("Add", ("Tanh", ("Mul", ("Mul", "x", 0.7978845608028654), _CUBIC_FACTOR)), 1.0),  # BLOOM and others
]


def _half_gated(gate: Pattern) -> list[Pattern]:
    """Return the orders of ``0.5 * x * gate``."""
    return [
        ("Mul", ("Mul", "x", gate), 0.5),
        ("Mul", ("Mul", "x", 0.5), gate),
        ("Mul", "x", ("Mul", gate, 0.5)),
    ]


_CLIP: Pattern = ("Clip:clip", ("Add", "x", 3.0))
_HARD_SWISHES: list[Pattern] = [
    ("Mul", "x", ("Div", _CLIP, 6.0)),
    ("Mul", "x", ("Mul", _CLIP, 1 / 6)),
    ("Div", ("Mul", "x", _CLIP), 6.0),
    ("Mul", ("Mul", "x", _CLIP), 1 / 6),
]
_CENTRED: Pattern = ("Sub", "x", ("ReduceMean:mean", "x"))


def _roots(square: Pattern, name: str) -> Pattern:
    return ("Sqrt", ("Add", (f"ReduceMean:{name}", square), "eps"))


def _normalized(x: Pattern, root: Pattern) -> list[Pattern]:
    return [("Div", x, root), ("Mul", x, ("Reciprocal", root)), ("Mul", x, ("Div", 1.0, root))]


_LAYER_NORMS = [
    ("Mul", normalized, "scale")
    for square in (("Pow", _CENTRED, 2.0), ("Mul", _CENTRED, _CENTRED))
    for normalized in _normalized(_CENTRED, _roots(square, "variance"))
]
_INTEGER_PRODUCT: Pattern = (
    "Mul",
    ("Cast", ("MatMulInteger:product", "a", "b")),
    ("Mul", "a_scale", "b_scale"),
)
_GROUPS: Pattern = ("Reshape:whole", ("InstanceNormalization:norm", ("Reshape:groups", "x"), "ones", "zeros"))
_SLICES: tuple[Pattern, Pattern] = ("Slice:first", "x"), ("Slice:second", "x")
_SWAP_BY_RESHAPES: Pattern = (
    "Reshape",
    ("Transpose:swapped", ("Reshape", "x", ("Concat", -1.0, "rows", "columns"))),
    ("Concat", "leading", "columns", "rows"),
)
_PAIRS: Pattern = (
    "Reshape:whole",
    (
        "Concat:rotated",
        ("Unsqueeze:odds", ("Neg", ("Slice:odd", "x"))),
        ("Unsqueeze:evens", ("Slice:even", "x")),
    ),
)
_WEIGHTS: Pattern = ("Softmax:softmax", "scores")
_PATTERNS: list[_Rule] = [  # the first that matches a node takes its place
    *((p, _becomes("", "Gelu")) for gate in _ERF_GATES for p in _half_gated(gate)),
    *((p, _becomes("", "Gelu", approximate="tanh")) for gate in _TANH_GATES for p in _half_gated(gate)),
    (("Mul", "x", ("Sigmoid", "x")), _becomes(DOMAIN, "Silu")),
    (("Mul", "x", ("Sigmoid", ("Mul", "x", 1.702))), _becomes(DOMAIN, "QuickGelu")),
    (("Mul", "x", ("HardSigmoid:gate", "x")), _gated_hard_sigmoid),
    *((pattern, _clipped(DOMAIN, "HardSwish")) for pattern in _HARD_SWISHES),
    (("Div", _CLIP, 6.0), _clipped("", "HardSigmoid", alpha=1 / 6, beta=0.5)),
    (("Mul", _CLIP, 1 / 6), _clipped("", "HardSigmoid", alpha=1 / 6, beta=0.5)),
    (("Min", ("Relu", "x"), 6.0), _becomes(DOMAIN, "Relu6")),
    (("Log", ("Add", ("Exp", "x"), 1.0)), _becomes("", "Softplus")),
    *((("Add", scaled, "bias"), _layer_norm) for scaled in _LAYER_NORMS),
    *((scaled, _layer_norm) for scaled in _LAYER_NORMS),  # before RMSNorm, of what is centred
    *(
        (("Mul", normalized, "scale"), _rms_norm)
        for square in (("Pow", "x", 2.0), ("Mul", "x", "x"))
        for normalized in _normalized("x", _roots(square, "mean"))
    ),
    (("Add", ("Mul", _GROUPS, "scale"), "bias"), _group_norm),
    (_GROUPS, _group_norm),
    (
        ("Add", ("Mul", "x", "cos"), ("Mul", ("Concat:rotated", ("Neg", _SLICES[1]), _SLICES[0]), "sin")),
        _rotary,
    ),
    (("Add", ("Mul", "x", "cos"), ("Mul", _PAIRS, "sin")), _interleaved_rotary),
    (("Concat:joined", ("Slice:first", "x"), ("Slice:last", "x")), _roll),
    (("Add", _INTEGER_PRODUCT, "bias"), _integer_product),
    (_INTEGER_PRODUCT, _integer_product),
    (("MatMul", _WEIGHTS, "v"), _attention),
    (("MatMul", ("Where", ("IsNaN", _WEIGHTS), 0.0, _WEIGHTS), "v"), _attention),
]
_PATTERNS_OF_PATTERNS: list[_Rule] = [
    (("Mul", ("Silu:activation", "gate"), "up"), _gated_unit),
    (("Mul", ("Gelu:activation", "gate"), "up"), _gated_unit),
    (("Mul", "x", ("Tanh", ("Softplus", "x"))), _becomes(DOMAIN, "Mish")),
    (("Where", ("Greater", "x", 20.0), "x", ("Softplus", "x")), _becomes("", "Softplus")),
]


def _replace(node: ir.Node, new: _New) -> None:
    """Put a new node in the place of an old one, whose output it computes."""
    import onnx_ir as ir

    insert(node, *new, node.outputs[0])
    assert isinstance(node.graph, ir.Graph | ir.Function)
    node.graph.remove(node, safe=True)


def _attention_inputs(node: ir.Node, query: Any, key: Any, value: Any, masks: list[Any]) -> list[Any]:
    """Return query, key, value and the sum of the masks; the key is no longer transposed."""
    import onnx_ir as ir

    if (original := _without_swap(key)) is not None:
        key, order = original, [0, 1, 2, 3]
    else:
        order = _SWAPPED
    transposed = producer_of(key, "Transpose") if order == _SWAPPED else None
    perm = transposed.attributes.get("perm") if transposed is not None else None
    if transposed is not None and perm is not None:
        order = [list(perm.value)[axis] for axis in _SWAPPED]
        key = transposed.inputs[0]
    if order != [0, 1, 2, 3]:
        source = key
        key = insert(node, "", "Transpose", [source], {"perm": order})
        key.dtype = source.dtype
        if source.shape is not None:
            key.shape = ir.Shape([source.shape[axis] for axis in order])
    grouped = _grouped_heads(query, key, value)
    if grouped is not None:
        key, value = grouped
    mask = masks[0] if masks else None
    for other in masks[1:]:
        first, mask = mask, insert(node, "", "Add", [mask, other], {})
        mask.dtype = query.dtype
        ranks = rank_of(first), rank_of(other)
        mask.shape = ir.Shape([None] * max(rank for rank in ranks if rank is not None))
    return [query, key, value] if mask is None else [query, key, value, mask]


def _grouped_heads(query: ir.Value, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return keys and values before their heads are repeated for those of the query, else None."""
    keys, values, heads = _before_repeats(key), _before_repeats(value), shape_of(query)[1:2]
    if keys is None or values is None or not shape_of(key)[1:2] == shape_of(value)[1:2] == heads:
        return None
    return keys, values


def _before_repeats(value: ir.Value) -> ir.Value | None:
    """Return a value whose heads Unsqueeze, Expand and Reshape repeat, so that equal ones are neighbours."""
    reshape = producer_of(value, "Reshape")
    expand = None if reshape is None else producer_of(reshape.inputs[0], "Expand")
    unsqueeze = None if expand is None else producer_of(expand.inputs[0], "Unsqueeze")
    if expand is None or unsqueeze is None or len(shape_of(unsqueeze.inputs[0])) != 4:
        return None
    batch, heads, *rest = shape_of(unsqueeze.inputs[0])
    narrow, wide, merged = (shape_of(v) for v in (unsqueeze.outputs[0], expand.outputs[0], value))
    if None in (batch, *rest) or type(heads) is not int or len(wide) != 5 or type(wide[2]) is not int:
        return None
    shapes = [[batch, heads, size, *rest] for size in (1, wide[2])]
    is_repeated = [narrow, wide] == shapes and merged == [batch, heads * wide[2], *rest]
    return unsqueeze.inputs[0] if is_repeated else None
