"""Reshape and Expand: as axes that are split, merged, added, removed or repeated, where others stay."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.integers import multiply, product
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.program import Arithmetic, Name, Size, names_in


@handler("Reshape")
def _reshape(build: Build, node: Node) -> Any:
    shape = node.attr("shape") or build.ints(node, 1)
    x = build.tensor(node, 0)
    if shape is not None:
        known = tuple(size if type(size) is int and size > 1 else None for size in shape)
        build.root.fixed[node.node.outputs[0]] = known
    allow_zero = bool(node.attr("allowzero", 0))
    if node.is_text(0):  # a numpy array
        return build.call(
            "ops.reshape",
            x,
            build.tensor(node, 1) if shape is None else shape,
            *([True] if allow_zero else []),
            hint="reshaped",
        )
    is_plain = shape is not None and all(type(size) is not int or size != 0 for size in shape)
    if shape is not None and isinstance(x, Name) and (is_plain or not allow_zero) and build.rank(node, 0):
        return _reshaped(build, node, x, shape)
    if shape is not None and (allow_zero or is_plain) and isinstance(x, Name):
        return build.call("torch.reshape", x, tuple(shape), hint="reshaped")
    if shape is None:
        shape = build.tensor(node, 1)
    return build.call("ops.reshape", x, shape, *([True] if allow_zero else []), hint="reshaped")


def _reshaped(build: Build, node: Node, x: Name, shape: list[Any]) -> Any:
    """Reshape a tensor to known sizes, 0 for those that stay; a chain of nodes is one call."""
    before = shape_of(node.node.inputs[0])
    if build.is_shape(shape, x, before):
        return x
    sizes = [Size(x, i) if type(size) is int and size == 0 else size for i, size in enumerate(shape)]
    source = x
    if x.name not in names_in(sizes):
        first, its_sizes, _ = build.reshaped.get(x, (x, before, []))
        if first != x and build.is_shape(sizes, first, its_sizes):
            return first
        if node.is_only_use(0):
            source, before = first, its_sizes
    is_whole = source == x and node.is_only_use(0)
    swapped = _permuted_source(build, source, sizes, len(before)) if is_whole else None
    if swapped is not None:
        return swapped
    result = _changed_axes(build, source, before, sizes, shape_of(node.node.outputs[0]))
    if result is None:
        result = build.call("torch.reshape", source, tuple(sizes), hint="reshaped")
    build.reshaped[result] = source, before, shape_of(node.node.outputs[0])
    return result


def _permuted_source(build: Build, x: Name, sizes: list[Any], rank: int) -> Any:
    """Return a tensor with permuted axes, where the leading ones were merged before that and are split again.

    Exporters transpose the keys of an attention as matrices.
    """
    flat, axes = build.permuted(x, rank) or (x, [])
    source, before, after = build.reshaped.get(flat, (x, [], []))
    added = len(before) - len(axes)
    if not axes or axes[0] != 0 or added < 1 or len(sizes) != len(before) or sizes.count(-1) > 1:
        return None
    if None in before or after[1:] != before[added + 1 :]:
        return None
    order = [*range(added + 1), *(axis + added for axis in axes[1:])]
    for axis, size in zip(order, sizes, strict=True):
        if size != -1 and not build.is_size(size, source, axis, before):
            return None
    return build.permute(source, order)


def _changed_axes(
    build: Build, x: Name, before: list[Any], sizes: list[Any], after: list[Any]
) -> Name | None:
    """Split, merge, add or remove axes, where all others have the same sizes; None if more than that changes.

    `sizes` are expressions; `before` and `after` are the sizes in the file.
    """
    if len(after) != len(sizes):
        return None
    most = min(len(before), len(after))
    first = next((i for i in range(most) if not _is_same(before[i], after[i])), most)
    last = next((i for i in range(most - first) if not _is_same(before[-1 - i], after[-1 - i])), most - first)
    old, new = before[first : len(before) - last], sizes[first : len(sizes) - last]
    if not _keeps_sizes(build, x, before, sizes, first, last):
        return None
    if len(old) == 1 and new.count(1) == len(new) - 1 > 0 and new.count(-1) == 1:
        return build.unsqueeze(x, [first + i for i, size in enumerate(new) if size == 1], len(after))
    if not first and not last:
        return None
    if len(old) > 1 and len(new) == 1:
        end = [first + len(old) - 1] if last else []
        return build.call("torch.flatten", x, first, *end, hint="reshaped")
    if len(old) == 1 and len(new) > 1 and x.name not in names_in(new):
        return build.call("torch.unflatten", x, first if last else -1, tuple(new), hint="reshaped")
    if not old and -1 in new and last:  # heads: as many as there are, though there is one
        both = (*new, sizes[len(sizes) - last])
        return build.call("torch.unflatten", x, first if last > 1 else -1, both, hint="reshaped")
    if not old and new and after[first : len(after) - last] == [1] * len(new):
        return build.unsqueeze(x, list(range(first, first + len(new))), len(after))
    if not new and old == [1] * len(old):
        return _squeezed(build, x, list(range(first, first + len(old))), len(after))
    return None


def _keeps_sizes(build: Build, x: Name, before: list[Any], sizes: list[Any], first: int, last: int) -> bool:
    """Whether a reshape certainly keeps the first and last axes, whatever the file says of its result."""
    new = sizes[first : len(sizes) - last]
    kept = [*enumerate(sizes[:first]), *enumerate(sizes[len(sizes) - last :], len(before) - last)]
    if any(size == -1 for _, size in kept):
        axes = range(first, len(before) - last)
        old = [before[axis] if type(before[axis]) is int else Size(x, axis) for axis in axes]
        if -1 in new or product(old) != product(new):
            return False
    return all(
        size == -1 or build.is_size(_with_numbers(build, size), x, axis, before) for axis, size in kept
    )


def _with_numbers(build: Build, size: Any) -> Any:
    """Return a product of sizes with the numbers that are known of them."""
    if isinstance(size, Arithmetic) and size.symbol == "*":
        return multiply(_with_numbers(build, size.left), _with_numbers(build, size.right))
    if isinstance(size, Size) and size.axis is not None:
        known = build.root.shapes.get(size.tensor)
        return known[size.axis] if known and type(known[size.axis]) is int else size
    return size


def _is_same(size: Any, other: Any) -> bool:
    """Whether two sizes are known to be equal."""
    return size is not None and type(size) is type(other) and bool(size == other)


def _squeezed(build: Build, x: Name, axes: list[int], rank: int) -> Name:
    """Remove axes, or do not insert them in the first place."""
    source, inserted = build.unsqueezed(x) or (x, [])
    if not set(axes) <= set(inserted):
        return build.call("torch.squeeze", x, axes[0] if len(axes) == 1 else tuple(axes), hint="reshaped")
    rest = [axis - sum(other < axis for other in axes) for axis in inserted if axis not in axes]
    return build.unsqueeze(source, rest, rank) if rest else source


@handler("Expand")
def _expand(build: Build, node: Node) -> Any:
    x, sizes = build.tensor(node, 0), build.integers(node, 1)
    wanted = _sizes_for_torch(build, node, x, sizes)
    if wanted is None:
        return build.call("ops.expand", x, sizes, hint="expanded")
    changed = [axis for axis, size in enumerate(wanted) if size != -1]
    if not changed:
        return x
    return build.call("torch.Tensor.expand", x, tuple(wanted), hint="expanded")


def _sizes_for_torch(build: Build, node: Node, x: Any, sizes: Any) -> list[Any] | None:
    """Return sizes for torch's expand, -1 for axes that stay; None if it may not mean the same.

    In ONNX a size of 1 leaves an axis as it is, while torch refuses it for an axis of another size.
    """
    if build.rank(node, 0) is None or not isinstance(sizes, list) or not isinstance(x, Name):
        return None
    if any(type(size) is int and size < 0 for size in sizes):
        return None
    known = shape_of(node.node.inputs[0])
    source, inserted = build.unsqueezed(x) or (None, [])
    sizes = [1] * (len(known) - len(sizes)) + sizes
    new = len(sizes) - len(known)
    wanted: list[Any] = list(sizes[:new])
    for axis, size in enumerate(sizes[new:]):
        is_same = size == 1 or build.is_size(size, x, axis, known)
        if source is not None and axis not in inserted:
            is_same = is_same or size == Size(source, axis - sum(one < axis for one in inserted))
        if not (is_same or known[axis] == 1 or type(size) is int):
            return None
        wanted.append(-1 if is_same else size)
    return wanted
