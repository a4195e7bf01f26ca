"""Whether tensors overlap, that is share memory, by addresses, shapes and strides; results as views.

All tests err on the safe side: they may report an overlap where there is none, never the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

STRIDE_OPS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
"""Ops whose result depends on the strides of their argument, not only on its elements."""

# ``torch.tensor`` calls `lift_fresh`. In a trace, its result is a detached view of a constant.
_DETACHING = frozenset({torch.ops.aten.detach.default, torch.ops.aten.lift_fresh.default})
_REPLACEMENTS = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_"})
# What `OverlapWatch` finds. A change is recorded late if it is the first that autograd records of memory with
# a detached tensor in it: that tensor gets the gradient, or the others do.
_WRITTEN_WHILE_READ = "it modifies a tensor in place that overlaps another argument of the same op"
_WRITTEN_TWICE = "it modifies elements in place that share memory with others of the same tensor"
_RECORDED_LATE = "it writes what has a gradient to memory of a detached tensor, or to one from torch.tensor"
_UNRECORDED = (
    "it modifies a tensor that requires a gradient in a way that autograd does not record: under no_grad, or "
    "through detach() or .data"
)
_REPLACED = "it gives a tensor other memory, by set_ or resize_"
_INFERENCE = "it enters inference mode"
_BY_IMPORTANCE = _WRITTEN_WHILE_READ, _WRITTEN_TWICE, _RECORDED_LATE, _UNRECORDED, _INFERENCE, _REPLACED


def has_internal_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of one tensor may share memory, as in ``x.expand(2, 3)`` or ``x.unfold(0, 3, 1)``.

    >>> has_internal_overlap((3, 2), (1, 3)), has_internal_overlap((3, 3), (1, 1))
    (False, True)
    """
    if 0 in shape:
        return False
    last = 0  # the largest offset along the axes with smaller strides
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= last:
                return True
            last += stride * (size - 1)
    return False


class Footprint(NamedTuple):
    """Which bytes the elements of a tensor take, relative to its first one."""

    # Bytes between two elements along an axis, and its size; axes that do not move are left out.
    axes: tuple[tuple[int, int], ...]
    itemsize: int
    num_bytes: int  # from the first byte to behind the last; 0 for a tensor without elements

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Footprint:
        """Return the footprint of a tensor with this shape, these strides (in elements) and this itemsize."""
        if 0 in shape:
            return cls((), itemsize, 0)
        pairs = zip(shape, strides, strict=True)
        axes = tuple((stride * itemsize, size) for size, stride in pairs if size > 1 and stride)
        return cls(axes, itemsize, itemsize + _last_offset(axes))


def _last_offset(axes: Sequence[tuple[int, int]]) -> int:
    return sum(stride * (size - 1) for stride, size in axes)


def may_overlap(a: Footprint, b: Footprint, distance: int) -> bool:
    """Whether tensors with these footprints may share a byte; `distance` is b's address minus a's, in bytes.

    Axes with strides below a threshold stay within one block of bytes; the others move the blocks of both
    tensors by multiples of a common divisor. Blocks that are apart modulo that divisor never meet. If both
    fit into one period, only blocks of the same period meet, and the axes within them decide.

    >>> evens, odds = (Footprint.of((5,), (2,), 4) for _ in range(2))
    >>> may_overlap(evens, odds, 4), may_overlap(evens, odds, 8)
    (False, True)
    """
    if not -b.num_bytes < distance < a.num_bytes:
        return False
    axes_a, axes_b = list(a.axes), list(b.axes)
    for threshold in sorted({stride for stride, _ in (*a.axes, *b.axes)}, reverse=True):
        period = math.gcd(*(stride for stride, _ in (*axes_a, *axes_b) if stride >= threshold))
        inner_a, inner_b = ([axis for axis in axes if axis[0] < threshold] for axes in (axes_a, axes_b))
        size_a, size_b = a.itemsize + _last_offset(inner_a), b.itemsize + _last_offset(inner_b)
        if size_a <= distance % period <= period - size_b:
            return False
        for start_b in (distance % period, distance % period - period):
            if max(size_a, start_b + size_b) - min(0, start_b) <= period:
                axes_a, axes_b, distance = inner_a, inner_b, start_b
                break
    return True


def is_attention(target: Any) -> bool:
    """Whether an op computes attention as a whole; torch's have no gradient of masks."""
    return getattr(target, "namespace", None) == "aten" and "_scaled_dot_product_" in target.__name__


class OverlapWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices in-place changes that the functionalized graph does not reproduce.

    A view such as ``x.as_strided((4, 3), (1, 1))`` holds some elements twice. Functionalization does not see
    that a change of one is a change of the other. It sees it for views that hold every element once, however
    many of these there are. But in its graph an op reads all elements before it changes any. In calls such as
    ``x[1:].add_(x[:-1])`` and ``torch._foreach_add_([x, y], [y, x])``, torch raises or reads changed ones.

    A change that autograd does not record, under `no_grad` or through ``.detach()`` or ``.data``, leaves the
    gradient of a tensor as it was. The graph only has the new value, which has no gradient, and a backward
    that recomputes what eager torch saves would not see the change.

    Attributes:
        is_changed: whether elements were changed in place at all.
        has_attention: whether an op that computes attention as a whole was called.
        restrided: shape and strides of the tensors whose memory an op such as ``as_strided`` reads by other
            strides.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_changed = self.has_attention = False
        self._needs_grad, self._is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._problems: set[str] = set()
        self.restrided: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self.views: dict[tuple[Any, ...], Tensor] = {}  # of tensors with internal overlap; kept alive
        self.differentiated: dict[int, Any] = {}  # storages of tensors that require gradients; kept alive
        self.detached: dict[int, Any] = {}  # storages of detached tensors; kept alive

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an op, and look at what it views or changes."""
        if torch.is_inference_mode_enabled() and not self._is_inference:
            self._problems.add(_INFERENCE)
        requires_grad = self._find_differentiated((args, kwargs))
        result = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return result
        if func in _DETACHING and result.layout == torch.strided:
            self.detached[_storage(result)._cdata] = _storage(result)
        self.has_attention |= is_attention(func)
        if func in STRIDE_OPS:
            self.restrided.add((tuple(args[0].shape), tuple(args[0].stride())))
        if func.is_view:
            if any(map(self._is_part_of_overlap, _tensors(args))):
                self.views |= {_layout(t): t for t in _tensors(result)}
        elif func._schema.is_mutable:
            parameters = func._schema.arguments
            named = dict(zip([a.name for a in parameters], args, strict=False)) | (kwargs or {})
            written = [named.get(a.name) for a in parameters if a.alias_info and a.alias_info.is_write]
            if any(map(self._is_part_of_overlap, _tensors(written))):
                self._problems.add(_WRITTEN_TWICE)
            if _is_written_while_read(written, list(named.values())):
                self._problems.add(_WRITTEN_WHILE_READ)
            if func._schema.name in _REPLACEMENTS:
                self._problems.add(_REPLACED)
            self.is_changed |= torch.Tag.inplace_view not in func.tags  # matmul calls squeeze_
            is_recorded = torch.is_grad_enabled() and requires_grad
            for tensor in (t for t in _tensors(written) if t.layout == torch.strided):
                storage = _storage(tensor)
                if self._needs_grad and not (is_recorded and tensor.requires_grad):
                    if storage._cdata in self.differentiated:
                        self._problems.add(_UNRECORDED)
                    if is_recorded and storage._cdata in self.detached:
                        self._problems.add(_RECORDED_LATE)
                if is_recorded:
                    self.differentiated[storage._cdata] = storage
        return result

    @property
    def unsupported_reason(self) -> str | None:
        """Why the graph does not do what the function does; None if it does."""
        return next((problem for problem in _BY_IMPORTANCE if problem in self._problems), None)

    def _find_differentiated(self, arguments: Any) -> bool:
        """Note the memory of the tensors that require gradients; return whether there are any."""
        storages = [_storage(t) for t in _tensors(arguments) if t.requires_grad and t.layout == torch.strided]
        self.differentiated |= {storage._cdata: storage for storage in storages}
        return bool(storages)

    def _is_part_of_overlap(self, tensor: Tensor) -> bool:
        if tensor.layout != torch.strided:
            return False
        return has_internal_overlap(tensor.shape, tensor.stride()) or _layout(tensor) in self.views


def _tensors(values: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, Tensor)]


def _is_written_while_read(written: Sequence[Any], arguments: Sequence[Any]) -> bool:
    """Whether an argument that an op changes may overlap another, unless these have the same elements.

    An argument may be a list of tensors, as in ``torch._foreach_add_``, which reads and changes the tensors
    at one position after those at another.
    """
    by_storage: dict[Any, list[tuple[int, Tensor]]] = {}
    for argument in arguments:
        for position, tensor in enumerate(_tensors(argument)):
            if tensor.layout == torch.strided:
                by_storage.setdefault(_layout(tensor)[0], []).append((position, tensor))
    return any(
        not (position == other_position and _layout(a) == _layout(b) and a.dtype == b.dtype)
        and may_overlap(footprint(a), footprint(b), _offset(b) - _offset(a))
        for argument in written
        for position, a in enumerate(_tensors(argument))
        if a.layout == torch.strided
        for other_position, b in by_storage[_layout(a)[0]]
    )


def footprint(tensor: Tensor) -> Footprint:
    """Return the footprint of a tensor."""
    return Footprint.of(tensor.shape, tensor.stride(), tensor.itemsize)


def _offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.itemsize


def _storage(tensor: Tensor) -> Any:
    storage: Callable[[], Any] = tensor.untyped_storage
    return storage()


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor is in memory: autograd may return a view as another object than the mode saw."""
    return _storage(tensor)._cdata, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


class Alias(NamedTuple):
    """A result that is another one, or a view of it."""

    base: int  # position of the other result
    # Shape, strides, and offset from the base's first element; None for the same object.
    layout: tuple[tuple[int, ...], tuple[int, ...], int] | None
    is_detached: bool  # whether no gradient flows through it

    def of(self, base: Tensor) -> Tensor:
        """Return the view of the base."""
        if self.layout is None:
            return base
        shape, strides, offset = self.layout
        base = base.detach() if self.is_detached else base
        return base.as_strided(shape, strides, base.storage_offset() + offset)


class Aliases(NamedTuple):
    """Which results a plan need not compute."""

    by_position: dict[int, Alias]  # the results that are other results or views of these
    unsupported_reason: str | None = None  # why no plan can return results that overlap in this way


def find_aliases(results: Sequence[Any]) -> Aliases:
    """Find the results of the eager function that are other results or views of them, or overlap otherwise.

    Results that lie apart in one storage, as those of ``chunk``, are not aliases.
    """
    found: dict[int, Alias] = {}
    by_storage: dict[int, list[int]] = {}
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and result.layout == torch.strided:
            by_storage.setdefault(result.untyped_storage()._cdata, []).append(i)
    for positions in by_storage.values():
        aliases = _aliases_of_results(results, positions)
        if aliases is None:
            return Aliases({}, "its results overlap in part, and none is a view of another")
        found |= aliases
    return Aliases(found)


def _aliases_of_results(results: Sequence[Any], positions: Sequence[int]) -> dict[int, Alias] | None:
    """Return which results are views of others; None if two overlap and neither is a view of the other."""
    aliases: dict[int, Alias] = {}
    bases: list[int] = []
    # The first are those that others can be views of.
    for i in sorted(positions, key=lambda i: _rank(results[i]), reverse=True):
        overlapping = [base for base in bases if _overlap(results[base], results[i])]
        if not overlapping:
            bases.append(i)
            continue
        alias = _alias(results[overlapping[0]], results[i], overlapping[0])
        if alias is None or len(overlapping) > 1:
            return None
        aliases[i] = alias
    return aliases


def _rank(result: Tensor) -> tuple[bool, bool, int]:
    return result.requires_grad, not has_internal_overlap(result.shape, result.stride()), result.numel()


def _distance(base: Tensor, tensor: Tensor) -> int:
    """Return the distance of their first elements, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize - int(base.storage_offset()) * base.itemsize


def _overlap(base: Tensor, tensor: Tensor) -> bool:
    return base is tensor or may_overlap(footprint(base), footprint(tensor), _distance(base, tensor))


def _alias(base: Tensor, tensor: Tensor, position: int) -> Alias | None:
    """Return a tensor as a view of a base; None if it is none."""
    if base is tensor:
        return Alias(position, None, False)
    offset = _distance(base, tensor) // base.itemsize
    if base.dtype != tensor.dtype or not _holds(base, tensor, offset):
        return None
    layout = tuple(tensor.shape), tuple(tensor.stride()), offset
    return Alias(position, layout, base.requires_grad and not tensor.requires_grad)


def _holds(base: Tensor, tensor: Tensor, offset: int) -> bool:
    """Whether all elements of a tensor, which begins at this offset, are found to be elements of a base."""
    end = offset + footprint(tensor).num_bytes // tensor.itemsize
    size = footprint(base).num_bytes // base.itemsize
    if offset < 0 or end > size:
        return False
    is_dense = size == base.numel() and not has_internal_overlap(base.shape, base.stride())
    if is_dense or (base.shape, base.stride()) == (tensor.shape, tensor.stride()):
        return True
    # The base has gaps: each axis of the tensor must run along one of the base's, and stay within it.
    axes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    for stride, size in sorted(zip(base.stride(), base.shape, strict=True), reverse=True):
        if size > 1 and stride:
            along = [axis for axis in axes if axis[0] >= stride and not axis[0] % stride]
            last = offset // stride + sum(step // stride * (count - 1) for step, count in along)
            if last >= size:
                return False
            axes, offset = [axis for axis in axes if axis not in along], offset % stride
    return not offset and all(step == 0 for step, _ in axes)
