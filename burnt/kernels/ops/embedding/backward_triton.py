"""The gradient of an embedding's table in Triton: as `burnt.kernels.ops.embedding.backward`, in several
rounds.

A round adds up the runs of parts of a sorted list, a program a part. A run that a part has to itself goes to
the table. Of a run that it shares with its neighbours it makes entries of the list that the next round takes:
two to a part, so that a list is a sixteenth as long as the one before, and a run of any length is done in a
few rounds. How many there are depends on the number of indices alone: nothing waits for the device.
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_runs", "summed"]

_LENGTH = 32  # of a part: it is gone through in order


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def add_runs(  # type: ignore[no-untyped-def]
    g,  # [entries, d]
    keys,  # [entries], sorted but for -1, which is no row
    order,  # [entries]: where an entry's row of g is, if ORDERED
    y,  # [rows, d]
    sums,  # [parts, 2, d]: of a run that began before the part, and of one that begins in it and goes on
    sum_keys,  # [parts, 2]
    entries,
    d,
    padding,
    ORDERED: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A round: a program takes LENGTH entries and BLOCK columns."""
    part = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    begin = part * LENGTH
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    nothing = tl.zeros([BLOCK], sums.dtype.element_ty)
    head_key = tl.full([], -1, tl.int64)
    tail_key = tl.full([], -1, tl.int64)
    last_key = tl.load(keys + begin - 1, mask=begin > 0, other=-1).to(tl.int64)
    key = tl.load(keys + begin, mask=begin < entries, other=-1).to(tl.int64)
    is_head = last_key == key
    for i in range(LENGTH):
        at = begin + i
        here = at < entries
        next_key = tl.load(keys + at + 1, mask=at + 1 < entries, other=-1).to(tl.int64)
        counts = here & (key >= 0) & (key != padding)
        row = at
        if ORDERED:
            row = tl.load(order + at, mask=here, other=0).to(tl.int64)
        total += tl.load(g + row * d + column, mask=inside & counts, other=0.0).to(total.dtype)
        goes_on = (next_key == key) & (i == LENGTH - 1)
        ends = counts & ((next_key != key) | (i == LENGTH - 1))
        alone = ends & (is_head == 0) & (goes_on == 0)
        tl.store(y + key * d + column, total.to(y.dtype.element_ty), mask=inside & alone)
        of_head = ends & is_head
        tl.store(sums + 2 * part * d + column, total, mask=inside & of_head)
        head_key = tl.where(of_head, key, head_key)
        # A part in the midst of a run is one entry; the other one, nothing, keeps the run together.
        of_tail = ends & goes_on
        rest = tl.where(is_head, nothing, total)
        tl.store(sums + (2 * part + 1) * d + column, rest, mask=inside & of_tail)
        tail_key = tl.where(of_tail, key, tail_key)
        done = next_key != key
        total = tl.where(done, nothing, total)
        is_head = is_head & (done == 0)
        key = next_key
    first = tl.program_id(1) == 0
    tl.store(sum_keys + 2 * part, head_key, mask=first)
    tl.store(sum_keys + 2 * part + 1, tail_key, mask=first)


def summed(g: Tensor, keys: Tensor, order: Tensor, rows: int, padding: int) -> Tensor:
    """The rows of a matrix, added up by key.

    Args:
        g: ``[count, d]``, contiguous.
        keys: ``[count]``, int64 or int32, sorted: rows of the result.
        order: ``[count]``, int64: which row of `g` each is for.
        rows: of the result.
        padding: the key whose rows are left out; -1 for none.

    Returns:
        ``[rows, d]``, as `g`; sums are made in float32 at least.
    """
    y = torch.zeros(rows, g.shape[1], dtype=g.dtype, device=g.device)
    if not g.numel():
        return y
    inside = torch.promote_types(g.dtype, torch.float32)
    block = min(512, triton.next_power_of_2(g.shape[1]))
    columns = triton.cdiv(g.shape[1], block)
    source, ordered = g, True
    with torch.cuda.device(g.device) if g.is_cuda else contextlib.nullcontext():
        while True:
            parts = triton.cdiv(len(keys), _LENGTH)
            sums = torch.empty(2 * parts, g.shape[1], dtype=inside, device=g.device)
            sum_keys = torch.empty(2 * parts, dtype=torch.int64, device=g.device)
            add_runs[(parts, columns)](
                source,
                keys,
                order,
                y,
                sums,
                sum_keys,
                len(keys),
                g.shape[1],
                padding,
                ordered,
                _LENGTH,
                block,
            )
            if parts == 1:
                return y
            source, keys, ordered = sums, sum_keys, False
