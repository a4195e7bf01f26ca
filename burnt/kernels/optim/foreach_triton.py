"""Optimizer kernels over lists of tensors in Triton: one launch per step, whatever the number of tensors.

As in `burnt.kernels.optim.foreach_c`, a table has one row per tensor, with its element count, scalars and
addresses; each program processes one block of one tensor. What a formula computes per tensor, such as bias
corrections, is computed before in float64 by a kernel with one thread per tensor, which writes the scalars of
the state, too. For the norm, squares are summed per chunk, and the chunks in
a fixed order by one program, so that the result is deterministic. The norm, the factor for the gradients and
whether the step is skipped stay on the device, where the update kernels read them: there is no
synchronization. Elements are computed in float32.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.device_math import divide, sqrt
from burnt.codegen.runtime import triton_launch
from burnt.kernels.optim.foreach_c import increment_versions, scalar_bits, scalar_type
from burnt.kernels.optim.formula import Options, Scope, Term, Trace, Update, fold, trace
from burnt.kernels.optim.request import Request, StepResult

BLOCK = 2048  # elements per program of an update: 16 per thread
CHUNK = 8 * BLOCK  # elements per program of a sum of squares
_TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def locate_block(table, block_rows, COLUMNS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's tensor, its row, and the index of the program's first element in it."""
    block = tl.program_id(0).to(tl.int64)
    tensor = tl.load(block_rows + block).to(tl.int64)
    row = table + tensor * COLUMNS
    return tensor, row, (block - tl.load(row + 1)) * SIZE


@triton.jit  # type: ignore[untyped-decorator]
def load_count(row, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the number of elements of a row's tensor."""
    count = tl.load(row)
    if ALIGNED:
        count = tl.multiple_of(count, 16)
    return count


@triton.jit  # type: ignore[untyped-decorator]
def load_pointer(row, index, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the pointer in a column of a row."""
    pointer = tl.load(row + index).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def lerp(a, b, weight):  # type: ignore[no-untyped-def]
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
    _, row, start = locate_block(table, block_rows, COLUMNS, SIZE)
    count = load_count(row, ALIGNED)
    x_ = load_pointer(row, 2, ELEMENT, ALIGNED)
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


class DevicePasses:
    """As `burnt.kernels.optim.foreach.HostPasses`, on a GPU."""

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
        elements: Mapping[str, Sequence[Tensor]],
        options: Options,
        scalars: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Apply an update, one launch per dtype and alignment."""
        scalars = scalars or {}
        traced = trace(update, elements.keys(), options)
        kernels = compile_update(traced)
        per_tensor = [number for term in kernels.wide for number in _split(fold(term, options))]
        per_element = [fold(term, options) for term in kernels.narrow]
        has_norm = self._outcome is not None
        for (dtype, aligned), indices in _group_by_launch(list(elements.values())).items():
            columns = [[column[i] for i in indices] for column in elements.values()]
            bits = [[scalar_bits(scalars[name][i]) for i in indices] for name in traced.scalars]
            table, block_rows, blocks = _build_tables(columns, bits, BLOCK)
            width = 2 + len(bits) + len(columns)
            outcome = table if self._outcome is None else self._outcome
            prepared = outcome
            if kernels.prepare is not None:
                prepared = torch.empty(len(indices), max(len(kernels.prepared), 1), device=table.device)
                kernels.prepare[(-(-len(indices) // 128),)](
                    table, outcome, prepared, len(indices), *per_tensor, has_norm, width, 128
                )
            if blocks:
                kernels.update[(blocks,)](
                    table, block_rows, outcome, prepared, *per_element, has_norm, width,
                    _TRITON_DTYPES[dtype], aligned, BLOCK,
                )  # fmt: skip
        increment_versions(traced, elements, scalars)

    def _compute_norm(self, request: Request, grads: Sequence[Tensor], outcome: Tensor) -> None:
        has_scale = request.grad_scale is not None
        scale = outcome
        if request.grad_scale is not None:
            scale = torch.as_tensor(request.grad_scale, dtype=torch.float32, device=outcome.device).reshape(1)
        launches = []
        for key, indices in _group_by_launch([grads]).items():
            launches.append((key, _build_tables([[grads[i] for i in indices]], [], CHUNK)))
        chunks = sum(blocks for _, (_, _, blocks) in launches)
        sums = torch.empty(chunks, device=outcome.device)
        nonfinite = torch.empty(chunks, dtype=torch.int32, device=outcome.device)
        first_chunk = 0
        for (dtype, aligned), (table, block_rows, blocks) in launches:
            if blocks:
                squares[(blocks,)](
                    table, block_rows, scale, sums[first_chunk:], nonfinite[first_chunk:], has_scale, 3,
                    _TRITON_DTYPES[dtype], aligned, CHUNK, BLOCK,
                )  # fmt: skip
            first_chunk += blocks
        is_clipped = request.max_norm is not None and request.max_norm != math.inf
        max_norm = float(request.max_norm) if request.max_norm is not None and is_clipped else 0.0
        finish[(1,)](sums, nonfinite, scale, outcome, chunks, max_norm, has_scale, is_clipped, 1024)


_OPERATIONS = {
    "add": "{} + {}",
    "subtract": "{} - {}",
    "multiply": "{} * {}",
    "divide": "divide({}, {})",
    "sqrt": "sqrt({})",
    "absolute": "tl.abs({})",
    "sign": "sign({})",
    "power": "pow({}, {})",
    "maximum": "maximum({}, {})",
    "lerp": "lerp({}, {}, {})",
    "where_greater": "tl.where({} > {}, {}, {})",
}
_HEADER = """
import triton
import triton.language as tl

from burnt.codegen.render.triton.device_math import divide, maximum, pow, sign, sqrt
from burnt.kernels.optim.foreach_triton import lerp, load_count, load_pointer, locate_block

"""


@dataclass(frozen=True)
class Kernels:
    """The kernels of an update, and their `source`.

    `prepare` computes what elements need of their tensor and updates scalars (None if there is nothing), from
    the terms `wide`, which the host passes as two numbers each, and stores the terms `prepared`. `update`
    updates the elements, from these and the host's terms `narrow`.
    """

    prepare: Any
    update: Any
    wide: tuple[Term, ...]
    narrow: tuple[Term, ...]
    prepared: tuple[Term, ...]
    source: str


def _split(number: float) -> tuple[float, float]:
    """Split a double into two numbers that are exact in float32, the type of numbers that kernels get."""
    high = struct.unpack("f", struct.pack("f", number))[0]
    return high, number - high


@functools.cache
def compile_update(traced: Trace) -> Kernels:
    """Print the kernels of a traced formula."""
    operands = [(term.scope, arg) for term in traced.terms() for arg in term.args]
    for name, result in traced.results.items():
        operands.append((Scope.TENSOR if name in traced.scalars else Scope.ELEMENT, result))

    def find_operands(user: Scope, scope: Scope) -> tuple[Term, ...]:
        """Find the terms of a scope that terms of another one use."""
        found = [arg for user_scope, arg in operands if user_scope is user and arg.scope is scope]
        return tuple(dict.fromkeys(arg for arg in found if arg.op not in ("literal", "factor")))

    wide, narrow = find_operands(Scope.TENSOR, Scope.STEP), find_operands(Scope.ELEMENT, Scope.STEP)
    prepared = find_operands(Scope.ELEMENT, Scope.TENSOR)
    prepare = _print_prepare(traced, wide, prepared) if traced.scalars else ""
    source = _HEADER + prepare + _print_update(traced, narrow, prepared)
    functions = triton_launch.load(source)
    return Kernels(functions.get("prepare"), functions[traced.update.name], wide, narrow, prepared, source)


def _print_prepare(traced: Trace, wide: Sequence[Term], prepared: Sequence[Term]) -> str:
    names = {term: f"w{i}" for i, term in enumerate(wide)}
    body = [f"w{i} = tl.cast(w{i}_high, tl.float64) + w{i}_low" for i in range(len(wide))]
    for i, scalar in enumerate(traced.scalars):
        bits = f"tl.load(row + {2 + i}, mask=inside, other=0)"
        if scalar in traced.update.values:
            body.append(f"{scalar} = {bits}.to(tl.float64, bitcast=True)")
        else:
            body.append(f"{scalar}_ = {bits}.to(tl.pointer_type(tl.{scalar_type(traced, scalar)}))")
            body.append(f"{scalar} = tl.load({scalar}_, mask=inside, other=1.0).to(tl.float64)")
    body += _print_terms(traced, Scope.TENSOR, names)
    for i, term in enumerate(prepared):
        address, number = f"prepared + tensor * {len(prepared)} + {i}", f"{_name(term, names)}.to(tl.float32)"
        body.append(f"tl.store({address}, {number}, mask=inside)")
    body += ["if HAS_NORM:", "    inside = inside & (tl.load(outcome + 2) == 0.0)"]
    for scalar in traced.scalars:
        if scalar in traced.results:
            number = f"{_name(traced.results[scalar], names)}.to({scalar}_.dtype.element_ty)"
            body.append(f"tl.store({scalar}_, {number}, mask=inside)")
    newline = "\n    "
    return f"""
@triton.jit
def prepare(
    table, outcome, prepared, tensors, {"".join(f"w{i}_high, w{i}_low, " for i in range(len(wide)))}
    HAS_NORM: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
):
    tensor = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = tensor < tensors
    row = table + tensor.to(tl.int64) * COLUMNS
    {newline.join(body)}
"""


def _print_update(traced: Trace, narrow: Sequence[Term], prepared: Sequence[Term]) -> str:
    names = {term: f"n{i}" for i, term in enumerate(narrow)}
    body = [f"n{i} = tl.cast(n{i}, tl.float32)" for i in range(len(narrow))]
    for i, term in enumerate(prepared):
        names[term] = f"p{i}"
        body.append(f"p{i} = tl.load(prepared + tensor * {len(prepared)} + {i})")
    for i, element in enumerate(traced.elements, 2 + len(traced.scalars)):
        body.append(f"{element}_ = load_pointer(row, {i}, ELEMENT, ALIGNED) + index")
        if element in traced.used:
            body.append(f"{element} = tl.load({element}_, mask=inside, other=0.0).to(tl.float32)")
    body += ["grad_factor = 1.0", "if HAS_NORM:", "    grad_factor = tl.load(outcome + 1)"]
    body += ["    inside = inside & (tl.load(outcome + 2) == 0.0)"]
    body += _print_terms(traced, Scope.ELEMENT, names)
    for element in traced.written:
        result = _name(traced.results[element], names)
        body.append(f"tl.store({element}_, {result}.to(ELEMENT), mask=inside)")
    newline = "\n    "
    return f"""
@triton.jit
def {traced.update.name}(
    table, block_rows, outcome, prepared, {"".join(f"n{i}, " for i in range(len(narrow)))}
    HAS_NORM: tl.constexpr, COLUMNS: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr,
    SIZE: tl.constexpr,
):
    tensor, row, start = locate_block(table, block_rows, COLUMNS, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < load_count(row, ALIGNED)
    {newline.join(body)}
"""


def _print_terms(traced: Trace, scope: Scope, names: dict[Term, str]) -> list[str]:
    lines, dtype = [], "tl.float64" if scope is Scope.TENSOR else "tl.float32"
    for i, term in enumerate(term for term in traced.terms() if term.scope is scope):
        text = _OPERATIONS[term.op].format(*(_name(arg, names, dtype) for arg in term.args))
        lines.append(f"t{i} = {text}")
        names[term] = f"t{i}"
    return lines


def _name(term: Term, names: Mapping[Term, str], dtype: str = "") -> str:
    if term in names:
        return names[term]
    return f"tl.full([], {term.args[0]!r}, {dtype})" if term.op == "literal" else str(term.args[0])


def _group_by_launch(columns: Sequence[Sequence[Tensor]]) -> dict[tuple[torch.dtype, bool], list[int]]:
    """Group the indices of tensors by launch: by dtype, and whether they consist of whole 16-byte vectors."""
    groups: dict[tuple[torch.dtype, bool], list[int]] = {}
    for i, tensors in enumerate(zip(*columns, strict=True)):
        aligned = tensors[0].numel() % 16 == 0 and not any(t.data_ptr() % 16 for t in tensors)
        groups.setdefault((tensors[0].dtype, aligned), []).append(i)
    return groups


def _build_tables(
    columns: Sequence[Sequence[Tensor]], scalars: Sequence[Sequence[int]], size: int
) -> tuple[Tensor, Tensor, int]:
    """Return the table, the index of each block's tensor, and the number of blocks."""
    device = columns[0][0].device
    counts = tuple(t.numel() for t in columns[0])
    block_rows, firsts = _block_rows(counts, size, device)
    addresses = [[t.data_ptr() for t in column] for column in columns]
    rows = tuple(chain(*zip(counts, firsts, *scalars, *addresses, strict=True)))
    return _upload(rows, device), block_rows, len(block_rows)


@functools.lru_cache(maxsize=16)
def _upload(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Upload a table. If all addresses equal an earlier step's, as is usual, it is cached."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _block_rows(counts: tuple[int, ...], size: int, device: torch.device) -> tuple[Tensor, list[int]]:
    blocks = torch.tensor([-(-count // size) for count in counts], dtype=torch.int64)
    block_rows = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32), blocks)
    return block_rows.to(device), (blocks.cumsum(0) - blocks).tolist()
