"""The gradient of an embedding table in Triton, in several rounds.

A round sums the runs within the parts of a sorted list, one program per part. A run within one part is
written to the table. A run that crosses parts becomes entries of the next round's list, two per part: each
list is a sixteenth as long as the one before, so that runs of any length are done in a few rounds. The number
of rounds depends only on the number of indices, so nothing waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.kernels.interface.launch import on_device_of

_PART_LENGTH = 32  # entries that a program sums in order


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def add_runs(  # type: ignore[no-untyped-def]
    g,  # [entries, d]
    keys,  # [entries], sorted except for -1, which marks an empty entry
    order,  # [entries]: the row of g of each entry, if ORDERED
    y,  # [rows, d]
    sums,  # [parts, 2, d]: sums of a run that began in an earlier part, and of one that continues in the next
    sum_keys,  # [parts, 2]
    entries,
    d,
    padding,
    ORDERED: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Run one round; a program takes LENGTH entries and BLOCK columns."""
    part = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = column < d
    begin = part * LENGTH
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    zeros = tl.zeros([BLOCK], sums.dtype.element_ty)
    head_key = tl.full([], -1, tl.int64)
    tail_key = tl.full([], -1, tl.int64)
    last_key = tl.load(keys + begin - 1, mask=begin > 0, other=-1).to(tl.int64)
    key = tl.load(keys + begin, mask=begin < entries, other=-1).to(tl.int64)
    is_head = last_key == key
    for i in range(LENGTH):
        entry = begin + i
        is_entry = entry < entries
        next_key = tl.load(keys + entry + 1, mask=entry + 1 < entries, other=-1).to(tl.int64)
        is_summed = is_entry & (key >= 0) & (key != padding)
        row = entry
        if ORDERED:
            row = tl.load(order + entry, mask=is_entry, other=0).to(tl.int64)
        total += tl.load(g + row * d + column, mask=in_bounds & is_summed, other=0.0).to(total.dtype)
        continues = (next_key == key) & (i == LENGTH - 1)
        run_ends = is_summed & ((next_key != key) | (i == LENGTH - 1))
        is_whole = run_ends & (is_head == 0) & (continues == 0)
        tl.store(y + key * d + column, total.to(y.dtype.element_ty), mask=in_bounds & is_whole)
        ends_head = run_ends & is_head
        tl.store(sums + 2 * part * d + column, total, mask=in_bounds & ends_head)
        head_key = tl.where(ends_head, key, head_key)
        # A part inside a longer run is one entry (head); its tail entry, zeros, keeps the run contiguous.
        ends_tail = run_ends & continues
        rest = tl.where(is_head, zeros, total)
        tl.store(sums + (2 * part + 1) * d + column, rest, mask=in_bounds & ends_tail)
        tail_key = tl.where(ends_tail, key, tail_key)
        starts_new_run = next_key != key
        total = tl.where(starts_new_run, zeros, total)
        is_head = is_head & (starts_new_run == 0)
        key = next_key
    first = tl.program_id(1) == 0
    tl.store(sum_keys + 2 * part, head_key, mask=first)
    tl.store(sum_keys + 2 * part + 1, tail_key, mask=first)


def sum_rows_by_key(g: Tensor, keys: Tensor, order: Tensor, rows: int, padding: int) -> Tensor:
    """Sum the rows of a matrix ``[count, d]`` by key: ``[rows, d]``, accumulated in at least float32.

    `keys`, sorted, are rows of the result; `order` is the row of `g` of each; rows of the key `padding` are
    left out (-1: none).
    """
    y = torch.zeros(rows, g.shape[1], dtype=g.dtype, device=g.device)
    if not g.numel():
        return y
    sum_dtype = torch.promote_types(g.dtype, torch.float32)
    block = min(512, triton.next_power_of_2(g.shape[1]))
    columns = triton.cdiv(g.shape[1], block)
    source, is_ordered = g, True
    with on_device_of(g):
        while True:
            parts = triton.cdiv(len(keys), _PART_LENGTH)
            sums = torch.empty(2 * parts, g.shape[1], dtype=sum_dtype, device=g.device)
            sum_keys = torch.empty(2 * parts, dtype=torch.int64, device=g.device)
            add_runs[(parts, columns)](
                source, keys, order, y, sums, sum_keys, len(keys), g.shape[1], padding, is_ordered,
                _PART_LENGTH, block,
            )  # fmt: skip
            if parts == 1:
                return y
            source, keys, is_ordered = sums, sum_keys, False
