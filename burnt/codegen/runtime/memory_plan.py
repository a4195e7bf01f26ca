"""Which buffers of a plan take the memory of others: of those that are dead, or changed in place."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

from burnt.codegen.ir import Buffer, Kernel, Store, walk
from burnt.codegen.ir.kernel import ReductionStep, ScanStep
from burnt.codegen.runtime.torch_calls import Allocation, is_own_memory
from burnt.codegen.schedule.passes import lane_loop
from burnt.codegen.schedule.placement import VIEW_OPS
from burnt.codegen.schedule.scheduler import TorchCall

_RESULT = 1 << 60  # later than any step


def shared_memory(
    steps: Sequence[Kernel | TorchCall],
    allocations: Mapping[Buffer, Allocation],
    results: Sequence[Buffer],
    changed: Mapping[Buffer, Buffer],
    *,
    in_place: bool,
) -> dict[Buffer, Buffer]:
    """Return for each buffer that takes the memory of another which: of the same size and dtype.

    A buffer that a kernel writes takes the memory of one that an earlier kernel of the same run of kernels
    read last. If `in_place`, also of one that it reads last itself, where it reads each element before it
    writes it, and of the argument of the plan that the value is the new one of (`changed`), if no later step
    reads the old. `allocations` has only buffers with elements. Kernels learn of it by `Kernel.in_place`.
    """
    last: dict[Buffer, int] = dict.fromkeys(results, _RESULT)
    viewed: dict[Buffer, int] = {}  # when what may be a view of a buffer is read last
    for i, step in reversed(list(enumerate(steps))):
        until = i
        if isinstance(step, TorchCall) and not is_own_memory(step):
            # The results may be the memory of the arguments.
            until = max([i, *(last[b] for b in step.outputs if b is not None and b in last)])
            viewed |= {b: max(viewed.get(b, 0), until) for b in _read(step)}
        for buffer in _read(step):
            last[buffer] = max(last.get(buffer, 0), until)
    shared: dict[Buffer, Buffer] = {}
    owned: set[Buffer] = set()  # whose memory is the plan's, and may be taken
    dead: list[Buffer] = []

    def is_free(buffer: Buffer, step: int) -> bool:
        return buffer in owned and last[buffer] == step and buffer not in shared.values()

    for i, step in enumerate(steps):
        if isinstance(step, TorchCall):
            owned |= {b for b in step.outputs if b is not None and b in allocations and is_own_memory(step)}
            if step.node.target not in VIEW_OPS:  # a call: memory that is not used is not held meanwhile
                dead.clear()
            continue
        step.in_place = {}
        for new in step.buffers_written:
            if new not in allocations or new in owned or new in shared:
                continue
            old = changed.get(new)
            takes = [b for b in dead if _has_same_memory(allocations[b], allocations[new])]
            if in_place:
                may_change = [old] if old is not None and last.get(old, -1) <= i else []
                dying = may_change or [b for b in step.buffers_read if is_free(b, i)]
                for b in dying:
                    fits = _has_same_memory if b is not old else operator.eq
                    is_free_now = viewed.get(b, -1) < i and b in allocations
                    if is_free_now and fits(allocations[b], allocations[new]) and _reads_first(step, b, new):
                        if b in step.buffers_read:
                            step.in_place[new] = b
                        takes.append(b)
                        break
            if takes:
                shared[new] = takes[-1]
                dead = [b for b in dead if b is not takes[-1]]
            if not takes or takes[-1] is not old:
                owned.add(new)
        dead += [b for b in step.buffers_read if is_free(b, i)]
    return shared


def _has_same_memory(one: Allocation, other: Allocation) -> bool:
    """Whether two tensors that have memory without gaps fit the same memory."""
    sizes = [math.prod(shape) for shape, _, _ in (one, other)]
    extents = [1 + sum((n - 1) * stride for n, stride in zip(*a[:2], strict=True)) for a in (one, other)]
    return one == other or (one[2] == other[2] and sizes[0] == sizes[1] == extents[0] == extents[1])


def bytes_of(buffer: Buffer) -> int:
    """Return the size of a buffer's elements."""
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def _read(step: Kernel | TorchCall) -> list[Buffer]:
    return [*step.inputs.values()] if isinstance(step, TorchCall) else [*step.buffers_read]


def _reads_first(kernel: Kernel, read: Buffer, written: Buffer) -> bool:
    """Whether a C kernel certainly reads each element of one buffer before it writes that of the other."""
    stores = [step for step in kernel.stores if step.buffer is written]
    if len(stores) != 1 or type(stores[0]) is not Store or kernel.kind in ("matmul", "scan"):
        return False
    offset = stores[0].offset
    loads = [e for e in walk(kernel.exprs) if e.op == "load" and e.extra[0] is read]
    if any(e.args or e.extra[1] != offset for e in loads):
        return False
    if kernel.kind == "elementwise":
        return True
    if lane_loop(kernel) is not None:  # tiles overlap: some elements are computed twice
        return False
    passes = kernel.passes()
    (at,) = [i for i, steps in enumerate(passes) if stores[0] in steps]
    later = [step.body for steps in passes[at + 1 :] for step in steps]
    return not any(isinstance(step, ReductionStep | ScanStep) for step in passes[at]) and not any(
        e.op == "load" and e.extra[0] is read for e in walk(later)
    )
