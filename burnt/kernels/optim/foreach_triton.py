"""Optimizer steps over lists of tensors, in Triton: one launch for a step of as many tensors as there are.

As `burnt.kernels.optim.foreach_c`: a table with a row for each tensor, of numbers and addresses, and a
program for each block of whatever tensor. The norm's squares are added up by chunk and then in the order of
chunks, by one program, so that it is the same from run to run. It stays on the device, with the factor and
with whether the step comes to nothing, for the programs of the step to read: nothing waits. All of it is
float32 inside.
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

BLOCK = 2048  # elements of a program of a step: 16 to a thread
CHUNK = 8 * BLOCK  # of one that adds up squares
_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _place(table, owners, COLUMNS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's row of the table, and its first element."""
    block = tl.program_id(0).to(tl.int64)
    row = table + tl.load(owners + block).to(tl.int64) * COLUMNS
    return row, (block - tl.load(row + 1)) * SIZE


@triton.jit  # type: ignore[untyped-decorator]
def _count(row, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many elements the tensor has."""
    count = tl.load(row)
    if ALIGNED:
        count = tl.multiple_of(count, 16)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _column(row, at, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The tensor of a column."""
    pointer = tl.load(row + 3 + at).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _between(a, b, weight):  # type: ignore[no-untyped-def]
    """torch's lerp, which is exact at both ends."""
    return tl.where(weight < 0.5, a + weight * (b - a), b - (1.0 - weight) * (b - a))


@triton.jit  # type: ignore[untyped-decorator]
def squares(  # type: ignore[no-untyped-def]
    table,
    owners,
    scale,  # [1]
    sums,  # [chunks]
    flaws,  # [chunks], int32: whether an element is NaN or infinite
    SCALED: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The sum of squares of a chunk."""
    row, start = _place(table, owners, COLUMNS, SIZE)
    count = _count(row, ALIGNED)
    x_ = _column(row, 0, ELEMENT, ALIGNED)
    factor = tl.full([], 1.0, tl.float32)
    if SCALED:
        factor = divide(factor, tl.load(scale))
    total = tl.zeros([WIDTH], tl.float32)
    flaw = tl.zeros([WIDTH], tl.int32)
    for turn in range(0, SIZE, WIDTH):
        at = start + turn + tl.arange(0, WIDTH)
        x = tl.load(x_ + at, mask=at < count, other=0.0).to(tl.float32)
        # Of what is finite, the difference with itself is 0.
        flaw = flaw | (x - x != 0.0).to(tl.int32)
        x = x * factor
        total += x * x
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))
    tl.store(flaws + tl.program_id(0), tl.max(flaw, 0))


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    sums,
    flaws,
    scale,
    outcome,  # [4]: norm, factor of gradients, whether the step is skipped, and by how much steps go on
    chunks,
    max_norm,
    SCALED: tl.constexpr,
    LIMITED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program: the norm, and what follows from it."""
    total = tl.zeros([WIDTH], tl.float32)
    flaw = tl.zeros([WIDTH], tl.int32)
    for start in range(0, chunks, WIDTH):
        at = start + tl.arange(0, WIDTH)
        total += tl.load(sums + at, mask=at < chunks, other=0.0)
        flaw = flaw | tl.load(flaws + at, mask=at < chunks, other=0)
    norm = sqrt(tl.sum(total, 0))
    factor = tl.full([], 1.0, tl.float32)
    if LIMITED:
        factor = divide(factor * max_norm, norm + 1e-6)  # stepping.TINY
        factor = tl.where(factor > 1.0, 1.0, factor)
    skipped = tl.full([], 0.0, tl.float32)
    if SCALED:
        factor = divide(factor, tl.load(scale))
        skipped = tl.max(flaw, 0).to(tl.float32)
    tl.store(outcome, norm)
    tl.store(outcome + 1, factor)
    tl.store(outcome + 2, skipped)
    tl.store(outcome + 3, 1.0 - skipped)


@triton.jit  # type: ignore[untyped-decorator]
def adam(  # type: ignore[no-untyped-def]
    table,
    owners,
    outcome,
    lr,
    toward,  # 1 - beta1
    keep,  # beta2
    rest,  # 1 - beta2
    log1,  # of beta1
    log2,
    eps,
    decay,
    shrink,
    averaging,
    MEASURED: tl.constexpr,
    DECAY: tl.constexpr,
    LARGEST: tl.constexpr,
    AVERAGED: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """A step of Adam; DECAY is 1 for a penalty, 2 for decoupled weight decay."""
    lr = tl.cast(lr, tl.float32)
    row, start = _place(table, owners, COLUMNS, SIZE)
    at = start + tl.arange(0, SIZE)
    inside = at < _count(row, ALIGNED)
    p_ = _column(row, 0, ELEMENT, ALIGNED) + at
    g_ = _column(row, 1, ELEMENT, ALIGNED) + at
    m_ = _column(row, 2, ELEMENT, ALIGNED) + at
    v_ = _column(row, 3, ELEMENT, ALIGNED) + at
    step = tl.load(tl.load(row + 2).to(tl.pointer_type(tl.float32))) + 1.0
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(m_, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(v_, mask=inside, other=0.0).to(tl.float32)
    if MEASURED:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    if DECAY == 1:
        g += p * decay
    if DECAY == 2:
        p = p * shrink
    m = _between(m, g, toward)
    v = v * keep + rest * g * g
    tl.store(m_, m.to(ELEMENT), mask=inside)
    tl.store(v_, v.to(ELEMENT), mask=inside)
    largest = v
    if LARGEST:
        x_ = _column(row, 4, ELEMENT, ALIGNED) + at
        x = tl.load(x_, mask=inside, other=0.0).to(tl.float32)
        largest = tl.where((x > v) | (x != x), x, v)
        tl.store(x_, largest.to(ELEMENT), mask=inside)
    size = divide(lr, -expm1(step * log1))
    root = sqrt(-expm1(step * log2))
    p -= divide(size * m, divide(sqrt(largest), root) + eps)
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if AVERAGED:
        e_ = _column(row, 4 + LARGEST, ELEMENT, ALIGNED) + at
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _between(e, p, averaging).to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def sgd(  # type: ignore[no-untyped-def]
    table,
    owners,
    outcome,
    lr,
    keep,  # momentum
    taken,  # 1 - dampening
    decay,
    averaging,
    MEASURED: tl.constexpr,
    DECAY: tl.constexpr,
    MOVING: tl.constexpr,
    NESTEROV: tl.constexpr,
    AVERAGED: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """A step of stochastic gradient descent."""
    row, start = _place(table, owners, COLUMNS, SIZE)
    at = start + tl.arange(0, SIZE)
    inside = at < _count(row, ALIGNED)
    p_ = _column(row, 0, ELEMENT, ALIGNED) + at
    g_ = _column(row, 1, ELEMENT, ALIGNED) + at
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    if MEASURED:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    if DECAY:
        g += p * decay
    if MOVING:
        m_ = _column(row, 2, ELEMENT, ALIGNED) + at
        m = tl.load(m_, mask=inside, other=0.0).to(tl.float32)
        # The first gradient is the momentum, whatever the dampening.
        m = m * keep + g * tl.where(tl.load(row + 2) != 0, 1.0, taken)
        tl.store(m_, m.to(ELEMENT), mask=inside)
        if NESTEROV:
            g += m * keep
        else:
            g = m
    p -= g * lr
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if AVERAGED:
        e_ = _column(row, 2 + MOVING, ELEMENT, ALIGNED) + at
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _between(e, p, averaging).to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def momentum(  # type: ignore[no-untyped-def]
    table,
    owners,
    outcome,
    keep,
    taken,  # 1 - keep
    MEASURED: tl.constexpr,
    NESTEROV: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The first half of a step of Muon: the momentum, and what is made orthogonal."""
    row, start = _place(table, owners, COLUMNS, SIZE)
    at = start + tl.arange(0, SIZE)
    inside = at < _count(row, ALIGNED)
    u_ = _column(row, 0, ELEMENT, ALIGNED) + at
    g_ = _column(row, 1, ELEMENT, ALIGNED) + at
    m_ = _column(row, 2, ELEMENT, ALIGNED) + at
    g = tl.load(g_, mask=inside, other=0.0).to(tl.float32)
    if MEASURED:
        g = g * tl.load(outcome + 1)
        inside = inside & (tl.load(outcome + 2) == 0.0)
    m = _between(tl.load(m_, mask=inside, other=0.0).to(tl.float32), g, taken)
    tl.store(m_, m.to(ELEMENT), mask=inside)
    if NESTEROV:
        m = _between(g, m, keep)
    tl.store(u_, m.to(ELEMENT), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def muon(  # type: ignore[no-untyped-def]
    table,
    owners,
    outcome,
    shrink,
    averaging,
    MEASURED: tl.constexpr,
    AVERAGED: tl.constexpr,
    COLUMNS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The second half: the parameters move along what was made orthogonal, at a rate of each tensor's own."""
    row, start = _place(table, owners, COLUMNS, SIZE)
    at = start + tl.arange(0, SIZE)
    inside = at < _count(row, ALIGNED)
    rate = tl.load(row + 2).to(tl.int32).to(tl.float32, bitcast=True)
    p_ = _column(row, 0, ELEMENT, ALIGNED) + at
    u_ = _column(row, 1, ELEMENT, ALIGNED) + at
    if MEASURED:
        inside = inside & (tl.load(outcome + 2) == 0.0)
    p = tl.load(p_, mask=inside, other=0.0).to(tl.float32)
    p = p * shrink - rate * tl.load(u_, mask=inside, other=0.0).to(tl.float32)
    tl.store(p_, p.to(ELEMENT), mask=inside)
    if AVERAGED:
        e_ = _column(row, 2, ELEMENT, ALIGNED) + at
        e = tl.load(e_, mask=inside, other=0.0).to(tl.float32)
        tl.store(e_, _between(e, p, averaging).to(ELEMENT), mask=inside)


class DevicePasses:
    """Passes on a GPU; `burnt.kernels.optim.foreach.Passes` says what they are."""

    def __init__(self, request: Request, grads: Sequence[Tensor]) -> None:
        device = grads[0].device
        self._outcome = torch.empty(4, device=device) if request.measures else None
        norm, skipped = None, torch.zeros((), dtype=torch.bool, device=device)
        if self._outcome is not None:
            self._measure(request, grads, self._outcome)
            norm, skipped = self._outcome[0].clone(), self._outcome[2] != 0
        self.result = StepResult(norm, skipped, "burnt")

    def skips(self, *, wait: bool) -> bool:
        """As `Passes`."""
        return wait and bool(self.result.skipped)

    def advance(
        self,
        update: Update,
        columns: Sequence[Sequence[Tensor] | None],
        numbers: Sequence[float],
        options: Sequence[tuple[str, int]] = (),
        *,
        steps: Sequence[Tensor] | None = None,
        extras: Sequence[int | float] | None = None,
    ) -> None:
        """As `Passes`."""
        if steps is not None:
            extras = [step.data_ptr() for step in steps]
        kernel, arguments, flags = _ARGUMENTS[update](numbers, dict(options), columns)
        every = [c for c in columns if c is not None]
        for (dtype, aligned), part in _parts(every).items():
            present = [[c[i] for i in part] for c in every]
            given = [0] * len(part) if extras is None else [extras[i] for i in part]
            table, owners, blocks = _tables(present, given, BLOCK)
            if blocks:
                outcome = table if self._outcome is None else self._outcome
                kernel[(blocks,)](
                    table, owners, outcome, *arguments, self._outcome is not None, *flags,
                    3 + len(present), _ELEMENTS[dtype], aligned, BLOCK,
                )  # fmt: skip
        if steps is not None and len(steps):
            torch._foreach_add_(list(steps), 1 if self._outcome is None else self._outcome[3])
        written = [
            c for letter, c in zip(update.streams, columns, strict=True) if letter in update.written and c
        ]
        torch.autograd.graph.increment_version(chain(*written))

    def _measure(self, request: Request, grads: Sequence[Tensor], outcome: Tensor) -> None:
        scaled = request.grad_scale is not None
        scale = outcome
        if request.grad_scale is not None:
            scale = torch.as_tensor(request.grad_scale, dtype=torch.float32, device=outcome.device).reshape(1)
        parts = []
        for kind, part in _parts([grads]).items():
            parts.append((kind, _tables([[grads[i] for i in part]], [0] * len(part), CHUNK)))
        chunks = sum(blocks for _, (_, _, blocks) in parts)
        sums = torch.empty(chunks, device=outcome.device)
        flaws = torch.empty(chunks, dtype=torch.int32, device=outcome.device)
        begun = 0
        for (dtype, aligned), (table, owners, blocks) in parts:
            if blocks:
                squares[(blocks,)](
                    table, owners, scale, sums[begun:], flaws[begun:], scaled, 4, _ELEMENTS[dtype], aligned,
                    CHUNK, BLOCK,
                )  # fmt: skip
            begun += blocks
        limited = request.max_norm is not None and request.max_norm != math.inf
        limit = float(request.max_norm) if request.max_norm is not None and limited else 0.0
        finish[(1,)](sums, flaws, scale, outcome, chunks, limit, scaled, limited, 1024)


def _adam_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    lr, beta1, beta2, eps, decay, averaging = map(float, numbers)
    logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]
    given = [lr, 1 - beta1, beta2, 1 - beta2, *logs, eps, decay, 1 - lr * decay, averaging]
    return adam, given, [options["DECAY"], columns[4] is not None, columns[5] is not None]


def _sgd_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    lr, keep, dampening, decay, averaging = map(float, numbers)
    flags = [options["DECAY"], columns[2] is not None, options["NESTEROV"], columns[3] is not None]
    return sgd, [lr, keep, 1 - dampening, decay, averaging], flags


def _momentum_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    return momentum, [float(numbers[0]), 1 - float(numbers[0])], [options["NESTEROV"]]


def _muon_arguments(numbers: Sequence[float], options: dict[str, int], columns: Sequence[Any]) -> Any:
    return muon, list(map(float, numbers)), [columns[2] is not None]


_ARGUMENTS = {
    ADAM: _adam_arguments, SGD: _sgd_arguments, MOMENTUM: _momentum_arguments, MUON: _muon_arguments
}  # fmt: skip


def _parts(columns: Sequence[Sequence[Tensor]]) -> dict[tuple[torch.dtype, bool], list[int]]:
    """Places of tensors that go into one launch: of one dtype, and in whole vectors of 16 bytes or not."""
    parts: dict[tuple[torch.dtype, bool], list[int]] = {}
    for i, tensors in enumerate(zip(*columns, strict=True)):
        aligned = tensors[0].numel() % 16 == 0 and not any(t.data_ptr() % 16 for t in tensors)
        parts.setdefault((tensors[0].dtype, aligned), []).append(i)
    return parts


def _tables(
    columns: Sequence[Sequence[Tensor]], extras: Sequence[int | float], size: int
) -> tuple[Tensor, Tensor, int]:
    """The table, which tensor each block is of, and how many blocks there are."""
    device = columns[0][0].device
    counts = tuple(t.numel() for t in columns[0])
    owners, firsts = _owners(counts, size, device)
    bits = [e if isinstance(e, int) else struct.unpack("i", struct.pack("f", e))[0] for e in extras]
    addresses = [[t.data_ptr() for t in column] for column in columns]
    rows = tuple(chain(*zip(counts, firsts, bits, *addresses, strict=True)))
    return _uploaded(rows, device), owners, len(owners)


@functools.lru_cache(maxsize=16)
def _uploaded(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Where gradients lie where they lay a step before, which an allocator sees to, nothing is copied."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _owners(counts: tuple[int, ...], size: int, device: torch.device) -> tuple[Tensor, list[int]]:
    blocks = torch.tensor([-(-count // size) for count in counts], dtype=torch.int64)
    owners = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), blocks)
    return owners.to(device), (blocks.cumsum(0) - blocks).tolist()
