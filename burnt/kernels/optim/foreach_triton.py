"""Optimizer kernels over lists of tensors in Triton: one launch per step, whatever the number of tensors.

As in `burnt.kernels.optim.foreach_c`, each program processes one block of one tensor. Each list of tensors is
a table of addresses on the device, so that only the tables whose addresses are new are uploaded. What a
formula computes per tensor, such as bias corrections, is computed before in float64 by a kernel with one
thread per tensor, which writes the scalars of the state, too. For the norm, squares are summed per chunk, and
the chunks in a fixed order by one program, so that the result is deterministic. The norm, the factor for the
gradients and whether the step is skipped stay on the device, where the update kernels read them: there is no
synchronization. Elements are computed in float32.
"""

from __future__ import annotations

import functools
import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import or_
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.device_math import divide, sqrt
from burnt.codegen.runtime import triton_launch
from burnt.codegen.runtime.bound_launch import IS_INTERPRETED, BoundLaunch
from burnt.kernels.optim.foreach_c import increment_versions, numbers_of, scalar_type
from burnt.kernels.optim.formula import Lists, Options, Scope, Term, Trace, Update, fold, trace
from burnt.kernels.optim.request import Request, StepResult

BLOCK = 2048  # elements per program of an update: 16 per thread
CHUNK = 8 * BLOCK  # elements per program of a sum of squares
_TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def locate_block(sizes, owners, ALIGNED: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's tensor, its number of elements, and the index of the program's first one."""
    block = tl.program_id(0).to(tl.int64)
    tensor = tl.load(owners + block).to(tl.int64)
    count = tl.load(sizes + 2 * tensor)
    if ALIGNED:
        count = tl.multiple_of(count, 16)
    return tensor, count, (block - tl.load(sizes + 2 * tensor + 1)) * SIZE


@triton.jit  # type: ignore[untyped-decorator]
def load_pointer(table, tensor, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the pointer to a tensor's elements."""
    pointer = tl.load(table + tensor).to(tl.pointer_type(ELEMENT))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def lerp(a, b, weight):  # type: ignore[no-untyped-def]
    """Interpolate like torch's lerp, which is exact at both ends."""
    return tl.where(weight < 0.5, a + weight * (b - a), b - (1.0 - weight) * (b - a))


@triton.jit  # type: ignore[untyped-decorator]
def squares(  # type: ignore[no-untyped-def]
    sizes, owners, grads, scale, sums, first, chunks, HAS_SCALE: tl.constexpr, ELEMENT: tl.constexpr,
    ALIGNED: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the sum of squares of a chunk, and whether all its elements are finite.

    `sums` is ``[2, chunks]``: the sums, and 1 where an element is not finite; `first` is the launch's first.
    """
    tensor, count, start = locate_block(sizes, owners, ALIGNED, SIZE)
    x_ = load_pointer(grads, tensor, ELEMENT, ALIGNED)
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
    sums += first + tl.program_id(0)
    tl.store(sums, tl.sum(total, 0))
    tl.store(sums + chunks, tl.max(is_nonfinite, 0).to(tl.float32))


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    sums, scale, outcome, max_norm, chunks, HAS_SCALE: tl.constexpr, CLIPPED: tl.constexpr
):
    """Compute the outcome from the sums of all chunks, in a single program.

    It is ``[4]``: the norm, the factor for the gradients, 1 if the step is skipped, and the same as a bool.
    """
    total = tl.zeros([1024], tl.float32)
    nonfinite = tl.zeros([1024], tl.float32)
    for start in range(0, chunks, 1024):
        index = start + tl.arange(0, 1024)
        total += tl.load(sums + index, mask=index < chunks, other=0.0)
        nonfinite += tl.load(sums + chunks + index, mask=index < chunks, other=0.0)
    norm = sqrt(tl.sum(total, 0))
    factor = tl.full([], 1.0, tl.float32)
    if CLIPPED:
        factor = divide(factor * max_norm, norm + 1e-6)  # request.CLIP_EPS
        factor = tl.where(factor > 1.0, 1.0, factor)
    skipped = tl.full([], 0.0, tl.float32)
    if HAS_SCALE:
        factor = divide(factor, tl.load(scale))
        skipped = (tl.max(nonfinite, 0) > 0.0).to(tl.float32)
    tl.store(outcome, norm)
    tl.store(outcome + 1, factor)
    tl.store(outcome + 2, skipped)
    tl.store((outcome + 3).to(tl.pointer_type(tl.int8), bitcast=True), skipped.to(tl.int8))


class Table(NamedTuple):
    """A list of tensors, or of numbers, as the kernels read it."""

    numbers: Tensor  # [tensors], int64: addresses, or the bits of doubles
    unaligned: frozenset[int]  # indices of the tensors that do not begin at a multiple of 16 bytes


@dataclass(frozen=True, eq=False)
class Group:
    """Tensors that share a launch: of one dtype, and all or none `aligned`, to be read as 16-byte vectors."""

    element: Any
    aligned: bool
    sizes: Tensor  # [tensors, 2], int64: number of elements, index of the first block
    owners: Tensor  # [blocks], int32: the index of each block's tensor
    blocks: int


class Tables:
    """What the launches of a step need; the next step takes it over if its state and layouts are the same."""

    def __init__(self, device: torch.device, stream: int) -> None:
        self.device, self.stream = device, stream
        self._launches: dict[Any, BoundLaunch | None] = {}
        self._states: dict[str, Table] = {}
        self._groups: dict[tuple[int, frozenset[int]], list[Group]] = {}

    def get(self, name: str, column: Sequence[Any]) -> Table:
        """Return the table of a list. Of the optimizer's own state, no address is read again."""
        if (table := self._states.get(name)) is None:
            table = _upload(numbers_of(column).tobytes(), self.device, self.stream)
            if name not in _FRESH and isinstance(column[0], Tensor):
                self._states[name] = table
        return table

    def groups(self, tensors: Sequence[Tensor], size: int, *tables: Table) -> list[Group]:
        """Group tensors by launch, with blocks of `size` elements. `tables` have their addresses."""
        unaligned = frozenset[int]().union(*(table.unaligned for table in tables))
        if (found := self._groups.get((size, unaligned))) is None:
            kinds = [
                (t.numel(), t.dtype, t.numel() % 16 == 0 and i not in unaligned)
                for i, t in enumerate(tensors)
            ]
            found = self._groups[size, unaligned] = _group(tuple(kinds), size, self.device, self.stream)
        return found

    def launch(
        self, key: Any, kernel: Any, blocks: int, tensors: list[Tensor], numbers: list[float], *rest: Any
    ) -> None:
        """Launch a kernel; `key` stands for it, the number of blocks and the rest of the arguments."""
        arguments = (*tensors, *numbers, *rest)
        if key not in self._launches:  # the step may not be repeated
            self._launches[key] = None
            kernel[(blocks,)](*arguments)
            return
        if (bound := self._launches[key]) is None:
            bound = self._launches[key] = BoundLaunch(kernel, (blocks,), arguments, {}, {})
        addresses = tensors if IS_INTERPRETED else [tensor.data_ptr() for tensor in tensors]
        bound.call(self.stream, *addresses, *numbers)


# Lists whose tensors are not the optimizer's own: the next step may have other addresses.
_FRESH = frozenset({"param", "grad", "update", "ema", "trust_ratio"})


@functools.lru_cache(maxsize=256)
def _upload(numbers: bytes, device: torch.device, stream: int) -> Table:
    """Upload a table. Addresses recur, as an allocator reuses memory, so the last tables are cached."""
    values = array("q", numbers)
    unaligned = [i for i, x in enumerate(values) if x & 15] if functools.reduce(or_, values) & 15 else ()
    return Table(_to_device(torch.frombuffer(values, dtype=torch.int64), device), frozenset(unaligned))


@functools.lru_cache(maxsize=64)
def _group(
    kinds: tuple[tuple[int, torch.dtype, bool], ...], size: int, device: torch.device, stream: int
) -> list[Group]:
    """Group tensors of these element counts and dtypes, aligned or not; empty ones are left out."""
    groups, counts = [], torch.tensor([count for count, _, _ in kinds])
    for key in dict.fromkeys((dtype, aligned) for count, dtype, aligned in kinds if count):
        blocks = (counts + size - 1) // size * torch.tensor([kind[1:] == key for kind in kinds])
        owners = torch.repeat_interleave(torch.arange(len(kinds), dtype=torch.int32), blocks)
        sizes = _to_device(torch.stack([counts, blocks.cumsum(0) - blocks], 1), device)
        groups.append(Group(_TRITON_DTYPES[key[0]], key[1], sizes, _to_device(owners, device), len(owners)))
    return groups


def _to_device(table: Tensor, device: torch.device) -> Tensor:
    """Copy a table on the current stream, which torch has wait before it reuses the pinned memory."""
    return (table.pin_memory() if device.type == "cuda" else table).to(device, non_blocking=True)


class DevicePasses:
    """As `burnt.kernels.optim.foreach.HostPasses`, on a GPU."""

    def __init__(self, request: Request, grads: Sequence[Tensor], tables: dict[int, Tables]) -> None:
        device = grads[0].device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        if stream not in tables:
            tables[stream] = Tables(device, stream)
        self._tables = tables[stream]
        self._grads = self._tables.get("grad", grads)
        self._outcome: Tensor | None = None
        if not request.needs_norm:
            self.result = StepResult(None, torch.zeros((), dtype=torch.bool, device=device), "burnt")
            return
        self._outcome = torch.empty(4, device=device)
        self._compute_norm(request, grads, self._outcome)
        self.result = StepResult(self._outcome[0], self._outcome.view(torch.bool)[12], "burnt")

    def is_skipped(self, *, wait: bool) -> bool:
        """Whether the step is skipped; without `wait` False, and no synchronization."""
        return wait and bool(self.result.skipped)

    def apply_update(self, update: Update, elements: Lists, options: Options, scalars: Lists) -> None:
        """Apply an update, one launch per dtype and alignment."""
        traced = trace(update, elements.keys(), options)
        kernels = compile_update(traced)
        per_tensor = [number for term in kernels.wide for number in _split(fold(term, options))]
        per_element = [fold(term, options) for term in kernels.narrow]
        columns = [
            self._grads if name == "grad" else self._tables.get(name, column)
            for name, column in elements.items()
        ]
        tables, has_norm = [column.numbers for column in columns], self._outcome is not None
        outcome = prepared = tables[0] if self._outcome is None else self._outcome
        tensors = next(iter(elements.values()))
        if kernels.prepare is not None:
            prepared = torch.empty(len(tensors), max(len(kernels.prepared), 1), device=self._tables.device)
            inputs = [self._tables.get(name, scalars[name]).numbers for name in traced.scalars]
            self._tables.launch(
                (traced, has_norm), kernels.prepare, -(-len(tensors) // 128), [*inputs, outcome, prepared],
                per_tensor, len(tensors), has_norm, 128,
            )  # fmt: skip
        for group in self._tables.groups(tensors, BLOCK, *columns):
            self._tables.launch(
                (traced, has_norm, group), kernels.update, group.blocks,
                [group.sizes, group.owners, *tables, outcome, prepared], per_element, has_norm,
                group.element, group.aligned, BLOCK,
            )  # fmt: skip
        increment_versions(traced, elements, scalars)

    def _compute_norm(self, request: Request, grads: Sequence[Tensor], outcome: Tensor) -> None:
        scale, has_scale, first = outcome, request.grad_scale is not None, 0
        if isinstance(request.grad_scale, Tensor):
            scale = request.grad_scale.to(outcome.device, torch.float32).reshape(1)
        elif request.grad_scale is not None:
            scale = torch.full((1,), request.grad_scale, device=outcome.device)
        groups = self._tables.groups(grads, CHUNK, self._grads)
        chunks = sum(group.blocks for group in groups)
        sums = torch.empty(2, chunks, device=outcome.device)
        for group in groups:
            self._tables.launch(
                (has_scale, group), squares, group.blocks,
                [group.sizes, group.owners, self._grads.numbers, scale, sums], [], first, chunks, has_scale,
                group.element, group.aligned, CHUNK, BLOCK,
            )  # fmt: skip
            first += group.blocks
        limit = math.inf if request.max_norm is None else float(request.max_norm)
        self._tables.launch(
            (chunks, has_scale, limit < math.inf), finish, 1, [sums, scale, outcome], [limit],
            chunks, has_scale, limit < math.inf,
        )  # fmt: skip


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
from burnt.kernels.optim.foreach_triton import lerp, load_pointer, locate_block

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
    for scalar in traced.scalars:
        bits = f"tl.load({scalar}_table + tensor, mask=inside, other=0)"
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
    {"".join(f"{scalar}_table, " for scalar in traced.scalars)}outcome, prepared,
    {"".join(f"w{i}_high, w{i}_low, " for i in range(len(wide)))}tensors,
    HAS_NORM: tl.constexpr, SIZE: tl.constexpr,
):
    tensor = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = tensor < tensors
    {newline.join(body)}
"""


def _print_update(traced: Trace, narrow: Sequence[Term], prepared: Sequence[Term]) -> str:
    names = {term: f"n{i}" for i, term in enumerate(narrow)}
    body = [f"n{i} = tl.cast(n{i}, tl.float32)" for i in range(len(narrow))]
    for i, term in enumerate(prepared):
        names[term] = f"p{i}"
        body.append(f"p{i} = tl.load(prepared + tensor * {len(prepared)} + {i})")
    for element in traced.elements:
        body.append(f"{element}_ = load_pointer({element}_table, tensor, ELEMENT, ALIGNED) + index")
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
    sizes, owners, {"".join(f"{element}_table, " for element in traced.elements)}outcome, prepared,
    {"".join(f"n{i}, " for i in range(len(narrow)))}
    HAS_NORM: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr, SIZE: tl.constexpr,
):
    tensor, count, start = locate_block(sizes, owners, ALIGNED, SIZE)
    index = start + tl.arange(0, SIZE)
    inside = index < count
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
