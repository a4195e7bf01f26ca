"""Optimizer kernels over lists of tensors in Triton: one launch per step, whatever the number of tensors.

As in `burnt.kernels.optim.foreach_c`, a table has one row per tensor, with its element count and addresses;
each program processes one block of one tensor. For the norm, squares are summed per chunk, and the chunks in
a fixed order by one program, so that the result is deterministic. The norm, the factor for the gradients and
whether the step is skipped stay on the device, where the update kernels read them: there is no
synchronization. Everything is computed in float32.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.device_math import divide, expm1, sqrt
from burnt.kernels.optim.foreach_c import ADAM, MOMENTUM, MUON, SGD, Update
from burnt.kernels.optim.request import Request, StepResult

__all__ = ["DevicePasses", "adam", "finish", "momentum", "muon", "sgd", "squares"]

BLOCK = 2048  # elements per program of an update: 16 per thread
CHUNK = 8 * BLOCK  # elements per program of a sum of squares
_TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _locate_block(table, block_rows, COLUMNS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the table row of a program's tensor, and the index of the program's first element in it."""
    block = tl.program_id(0).to(tl.int64)
    row = table + tl.load(block_rows + block).to(tl.int64) * COLUMNS
    return row, (block - tl.load(row + 1)) * SIZE


@triton.jit  # type: ignore[untyped-decorator]
def _load_count(row, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the number of elements of a row's tensor."""
    count = tl.load(row)
    if ALIGNED:
        count = tl.multiple_of(count, 16)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _load_pointer(row, index, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the pointer to a row's tensor in one of the lists."""
    pointer = tl.load(row + 3 + index).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _lerp(a, b, weight):  # type: ignore[no-untyped-def]
    """Interpolate like torch's lerp, which is exact at both ends."""
    return tl.where(weight < 0.5, a + weight * (b - a), b - (1.0 - weight) * (b - a))


@triton.jit  # type: ignore[untyped-decorator]
def squares(  # type: ignore[no-untyped-def]
    table,
    block_rows,
    scale,  # [1]
    sums,  # [chunks]
    nonfinite,  # [chunks], int32: whether an element is NaN or infinite
    HAS_SCALE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute the sum of squares of a chunk, and whether all its elements are finite."""
    row, start = _locate_block(table, block_rows, COLUMNS, SIZE)
    count = _load_count(row, ALIGNED)
    x_ = _load_pointer(row, 0, ELEMENT, ALIGNED)
    factor = tl.full([], 1.0, tl.float32)
    if HAS_SCALE:
        factor = divide(factor, tl.load(scale))
    total = tl.zeros([WIDTH], tl.float32)
    is_nonfinite = tl.zeros([WIDTH], tl.int32)
    for offset in range(0, SIZE, WIDTH):
        index = start + offset + tl.arange(0, WIDTH)
        x = tl.load(x_ + index, mask=index < count, other=0.0).to(tl.float32)
        # x - x is NaN if x is NaN or infinite, else 0.
        is_nonfinite = is_nonfinite | (x - x != 0.0).to(tl.int32)
        x = x * factor
        total += x * x
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))
    tl.store(nonfinite + tl.program_id(0), tl.max(is_nonfinite, 0))


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    sums,
    nonfinite,
    scale,
    outcome,  # [4]: norm, factor for the gradients, 1 if the step is skipped, increment of step counters
    chunks,
    max_norm,
    HAS_SCALE: tl.constexpr,
    CLIPPED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute `outcome` from the sums of all chunks, in a single program."""
    total = tl.zeros([WIDTH], tl.float32)
    is_nonfinite = tl.zeros([WIDTH], tl.int32)
    for start in range(0, chunks, WIDTH):
        index = start + tl.arange(0, WIDTH)
        total += tl.load(sums + index, mask=index < chunks, other=0.0)
        is_nonfinite = is_nonfinite | tl.load(nonfinite + index, mask=index < chunks, other=0)
    norm = sqrt(tl.sum(total, 0))
    factor = tl.full([], 1.0, tl.float32)
    if CLIPPED:
        factor = divide(factor * max_norm, norm + 1e-6)  # request.CLIP_EPS
        factor = tl.where(factor > 1.0, 1.0, factor)
    skipped = tl.full([], 0.0, tl.float32)
    if HAS_SCALE:
        factor = divide(factor, tl.load(scale))
        skipped = tl.max(is_nonfinite, 0).to(tl.float32)
    tl.store(outcome, norm)
    tl.store(outcome + 1, factor)
    tl.store(outcome + 2, skipped)
    tl.store(outcome + 3, 1.0 - skipped)


@triton.jit  # type: ignore[untyped-decorator]
def adam(  # type: ignore[no-untyped-def]
    table,
    block_rows,
    outcome,
    lr,
    first_weight,  # 1 - beta1
    second_decay,  # beta2
    second_weight,  # 1 - beta2
    log_beta1,
    log_beta2,
    eps,
    weight_decay,
    shrink,
    ema_weight,
    HAS_NORM: tl.constexpr,
    DECAY: tl.constexpr,
    AMSGRAD: tl.constexpr,
    HAS_EMA: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Update with Adam; DECAY is 1 for an L2 penalty, 2 for decoupled weight decay."""
    lr = tl.cast(lr, tl.float32)
    row, start = _locate_block(table, block_rows, COLUMNS, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < _load_count(row, ALIGNED)
    p_ = _load_pointer(row, 0, ELEMENT, ALIGNED) + index
    g_ = _load_pointer(row, 1, ELEMENT, ALIGNED) + index
    m_ = _load_pointer(row, 2, ELEMENT, ALIGNED) + index
    v_ = _load_pointer(row, 3, ELEMENT, ALIGNED) + index
    step = tl.load(tl.load(row + 2).to(tl.pointer_type(tl.float32))) + 1.0
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(m_, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(v_, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    if DECAY == 1:
        g += p * weight_decay
    if DECAY == 2:
        p = p * shrink
    m = _lerp(m, g, first_weight)
    v = v * second_decay + second_weight * g * g
    tl.store(m_, m.to(ELEMENT), mask=inside)
    tl.store(v_, v.to(ELEMENT), mask=inside)
    largest = v
    if AMSGRAD:
        x_ = _load_pointer(row, 4, ELEMENT, ALIGNED) + index
        x = tl.load(x_, mask=inside, other=0.0).to(tl.float32)
        largest = tl.where((x > v) | (x != x), x, v)
        tl.store(x_, largest.to(ELEMENT), mask=inside)
    step_size = divide(lr, -expm1(step * log_beta1))
    bias_correction = sqrt(-expm1(step * log_beta2))
    p -= divide(step_size * m, divide(sqrt(largest), bias_correction) + eps)
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if HAS_EMA:
        e_ = _load_pointer(row, 4 + AMSGRAD, ELEMENT, ALIGNED) + index
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _lerp(e, p, ema_weight).to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def sgd(  # type: ignore[no-untyped-def]
    table,
    block_rows,
    outcome,
    lr,
    momentum_decay,  # momentum
    grad_weight,  # 1 - dampening
    weight_decay,
    ema_weight,
    HAS_NORM: tl.constexpr,
    DECAY: tl.constexpr,
    HAS_MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    HAS_EMA: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Update with stochastic gradient descent."""
    row, start = _locate_block(table, block_rows, COLUMNS, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < _load_count(row, ALIGNED)
    p_ = _load_pointer(row, 0, ELEMENT, ALIGNED) + index
    g_ = _load_pointer(row, 1, ELEMENT, ALIGNED) + index
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    if DECAY:
        g += p * weight_decay
    if HAS_MOMENTUM:
        m_ = _load_pointer(row, 2, ELEMENT, ALIGNED) + index
        m = tl.load(m_, mask=inside, other=0.0).to(tl.float32)
        # In a first step (extra != 0) the gradient is not dampened.
        m = m * momentum_decay + g * tl.where(tl.load(row + 2) != 0, 1.0, grad_weight)
        tl.store(m_, m.to(ELEMENT), mask=inside)
        if NESTEROV:
            g += m * momentum_decay
        else:
            g = m
    p -= g * lr
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if HAS_EMA:
        e_ = _load_pointer(row, 2 + HAS_MOMENTUM, ELEMENT, ALIGNED) + index
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _lerp(e, p, ema_weight).to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def momentum(  # type: ignore[no-untyped-def]
    table,
    block_rows,
    outcome,
    momentum_decay,
    grad_weight,  # 1 - keep
    HAS_NORM: tl.constexpr,
    NESTEROV: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """First half of Muon: update the momentum and write the matrix to orthogonalize."""
    row, start = _locate_block(table, block_rows, COLUMNS, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < _load_count(row, ALIGNED)
    u_ = _load_pointer(row, 0, ELEMENT, ALIGNED) + index
    g_ = _load_pointer(row, 1, ELEMENT, ALIGNED) + index
    m_ = _load_pointer(row, 2, ELEMENT, ALIGNED) + index
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    m = _lerp(tl.load(m_, mask=inside, other=0.0).to(tl.float32), g, grad_weight)
    tl.store(m_, m.to(ELEMENT), mask=inside)
    if NESTEROV:
        m = _lerp(g, m, momentum_decay)
    tl.store(u_, m.to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def muon(  # type: ignore[no-untyped-def]
    table,
    block_rows,
    outcome,
    shrink,
    ema_weight,
    HAS_NORM: tl.constexpr,
    HAS_EMA: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Second half of Muon: update the parameters with the orthogonalized matrix, at the row's rate."""
    row, start = _locate_block(table, block_rows, COLUMNS, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < _load_count(row, ALIGNED)
    rate = tl.load(row + 2).to(tl.int32).to(tl.float32, bitcast=True)
    p_ = _load_pointer(row, 0, ELEMENT, ALIGNED) + index
    u_ = _load_pointer(row, 1, ELEMENT, ALIGNED) + index
    if HAS_NORM:
        inside = inside & (tl.load(outcome + 2) == 0.0)
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    p = p * shrink - rate * tl.load(u_, mask=inside, other=0.0).to(tl.float32)
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if HAS_EMA:
        e_ = _load_pointer(row, 2, ELEMENT, ALIGNED) + index
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _lerp(e, p, ema_weight).to(ELEMENT), mask=inside)


class DevicePasses:
    """`burnt.kernels.optim.foreach.Passes` on a GPU."""

    def __init__(self, request: Request, grads: Sequence[Tensor]) -> None:
        device = grads[0].device
        self._outcome = torch.empty(4, device=device) if request.needs_norm else None
        norm, skipped = None, torch.zeros((), dtype=torch.bool, device=device)
        if self._outcome is not None:
            self._compute_norm(request, grads, self._outcome)
            norm, skipped = self._outcome[0].clone(), self._outcome[2] != 0
        self.result = StepResult(norm, skipped, "burnt")

    def is_skipped(self, *, wait: bool) -> bool:
        """Whether the step is skipped; without `wait` False, and no synchronization."""
        return wait and bool(self.result.skipped)

    def apply_update(
        self,
        update: Update,
        columns: Sequence[Sequence[Tensor] | None],
        numbers: Sequence[float],
        options: Sequence[tuple[str, int]] = (),
        *,
        steps: Sequence[Tensor] | None = None,
        extras: Sequence[int | float] | None = None,
    ) -> None:
        """Apply an update, one launch per dtype and alignment; see `Passes`."""
        if steps is not None:
            extras = [step.data_ptr() for step in steps]
        kernel, arguments, flags = _ARGUMENTS[update](numbers, dict(options), columns)
        present_columns = [c for c in columns if c is not None]
        for (dtype, aligned), indices in _group_by_launch(present_columns).items():
            present = [[c[i] for i in indices] for c in present_columns]
            part_extras = [0] * len(indices) if extras is None else [extras[i] for i in indices]
            table, block_rows, blocks = _build_tables(present, part_extras, BLOCK)
            if blocks:
                outcome = table if self._outcome is None else self._outcome
                kernel[(blocks,)](
                    table, block_rows, outcome, *arguments, self._outcome is not None, *flags,
                    3 + len(present), _TRITON_DTYPES[dtype], aligned, BLOCK,
                )  # fmt: skip
        if steps is not None and len(steps):
            torch._foreach_add_(list(steps), 1 if self._outcome is None else self._outcome[3])
        written = [
            c for letter, c in zip(update.streams, columns, strict=True) if letter in update.written and c
        ]
        torch.autograd.graph.increment_version(chain(*written))

    def _compute_norm(self, request: Request, grads: Sequence[Tensor], outcome: Tensor) -> None:
        has_scale = request.grad_scale is not None
        scale = outcome
        if request.grad_scale is not None:
            scale = torch.as_tensor(request.grad_scale, dtype=torch.float32, device=outcome.device).reshape(1)
        launches = []
        for key, indices in _group_by_launch([grads]).items():
            launches.append((key, _build_tables([[grads[i] for i in indices]], [0] * len(indices), CHUNK)))
        chunks = sum(blocks for _, (_, _, blocks) in launches)
        sums = torch.empty(chunks, device=outcome.device)
        nonfinite = torch.empty(chunks, dtype=torch.int32, device=outcome.device)
        first_chunk = 0
        for (dtype, aligned), (table, block_rows, blocks) in launches:
            if blocks:
                squares[(blocks,)](
                    table, block_rows, scale, sums[first_chunk:], nonfinite[first_chunk:], has_scale, 4,
                    _TRITON_DTYPES[dtype], aligned, CHUNK, BLOCK,
                )  # fmt: skip
            first_chunk += blocks
        is_clipped = request.max_norm is not None and request.max_norm != math.inf
        max_norm = float(request.max_norm) if request.max_norm is not None and is_clipped else 0.0
        finish[(1,)](sums, nonfinite, scale, outcome, chunks, max_norm, has_scale, is_clipped, 1024)


def _adam_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    lr, beta1, beta2, eps, weight_decay, ema_weight = map(float, numbers)
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]
    scalars = [lr, 1 - beta1, beta2, 1 - beta2, *logs, eps, weight_decay, 1 - lr * weight_decay, ema_weight]
    return adam, scalars, [options["DECAY"], columns[4] is not None, columns[5] is not None]


def _sgd_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    lr, momentum_decay, dampening, weight_decay, ema_weight = map(float, numbers)
    flags = [options["DECAY"], columns[2] is not None, options["NESTEROV"], columns[3] is not None]
    return sgd, [lr, momentum_decay, 1 - dampening, weight_decay, ema_weight], flags


def _momentum_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    return momentum, [float(numbers[0]), 1 - float(numbers[0])], [options["NESTEROV"]]


def _muon_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    return muon, list(map(float, numbers)), [columns[2] is not None]


_ARGUMENTS = {
    ADAM: _adam_arguments, SGD: _sgd_arguments, MOMENTUM: _momentum_arguments, MUON: _muon_arguments
}  # fmt: skip


def _group_by_launch(columns: Sequence[Sequence[Tensor]]) -> dict[tuple[torch.dtype, bool], list[int]]:
    """Group the indices of tensors by launch: by dtype, and whether they consist of whole 16-byte vectors."""
    groups: dict[tuple[torch.dtype, bool], list[int]] = {}
    for i, tensors in enumerate(zip(*columns, strict=True)):
        aligned = tensors[0].numel() % 16 == 0 and not any(t.data_ptr() % 16 for t in tensors)
        groups.setdefault((tensors[0].dtype, aligned), []).append(i)
    return groups


def _build_tables(
    columns: Sequence[Sequence[Tensor]], extras: Sequence[int | float], size: int
) -> tuple[Tensor, Tensor, int]:
    """Return the table, the index of each block's tensor, and the number of blocks."""
    device = columns[0][0].device
    counts = tuple(t.numel() for t in columns[0])
    block_rows, firsts = _block_rows(counts, size, device)
    bits = [e if isinstance(e, int) else struct.unpack("i", struct.pack("f", e))[0] for e in extras]
    addresses = [[t.data_ptr() for t in column] for column in columns]
    rows = tuple(chain(*zip(counts, firsts, bits, *addresses, strict=True)))
    return _upload(rows, device), block_rows, len(block_rows)


@functools.lru_cache(maxsize=16)
def _upload(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Upload a table. If all addresses are those of an earlier step, as is usual, it is cached."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _block_rows(counts: tuple[int, ...], size: int, device: torch.device) -> tuple[Tensor, list[int]]:
    blocks = torch.tensor([-(-count // size) for count in counts], dtype=torch.int64)
    block_rows = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), blocks)
    return block_rows.to(device), (blocks.cumsum(0) - blocks).tolist()
