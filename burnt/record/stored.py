"""A tensor in a file or in memory, read when it is needed, also in another dtype; statistics."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnt._patterns import matches, near
from burnt.errors import RecordError


def describe_indirect(tensor: Tensor) -> str | None:
    """Return what a tensor is that has no value in memory for each element, as a sparse one; else None."""
    kind = type(tensor)
    if tensor.is_nested or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return f"a nested {kind.__name__}" if tensor.is_nested else f"a {kind.__name__}"
    if tensor.layout is not torch.strided:
        return f"a {kind.__name__} of layout {tensor.layout}"
    return f"a {kind.__name__} of {tensor.dtype}" if tensor.is_quantized else None


def memory_of(tensor: Tensor) -> tuple[object, ...] | None:
    """Return what is equal for tensors with the same elements in the same memory; None without memory."""
    if not tensor.data_ptr():
        return None
    bits = tensor.is_conj(), tensor.is_neg()
    return tensor.data_ptr(), tensor.device, tensor.shape, tensor.stride(), tensor.dtype, *bits


def check_plain(tensor: Tensor, where: str, hint: str) -> None:
    """Refuse a tensor that torch cannot copy to or from a plain one: sparse, quantized, nested or sharded."""
    if found := describe_indirect(tensor):
        raise RecordError(
            "a tensor is not stored as plain values",
            where=where,
            expected="a dense tensor with a value for each element",
            found=found,
            hint=hint,
        )


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a source: its shape and dtype, and a way to read its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The size of the values in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """Return the values on the CPU, contiguous; they may share memory with the source."""
        out = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read_into(out)
        return out

    def read_into(self, out: Tensor) -> None:
        """Write the values to a tensor of the same shape, of any dtype and device."""
        raise NotImplementedError

    def read_rows_into(self, first: int, out: Tensor) -> None:
        """Write to `out` as many rows as it has, from the one numbered `first` on."""
        out.copy_(self.read()[first : first + out.shape[0]])

    def read_verified(self, where: str) -> Tensor:
        """Return the values in memory of their own, after `verify`."""
        self.verify(where)
        out = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        self.read_into(out)
        return out

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that the values come from; a layout arranges some of several."""
        return (self,)

    def verify(self, where: str) -> None:
        """Raise a RecordError if the values are damaged, where the format allows to tell."""


@dataclass(frozen=True)
class MemoryTensor(StoredTensor):
    """A tensor in memory, or mapped from a file."""

    tensor: Tensor = field(repr=False)

    @classmethod
    def of(cls, tensor: Tensor) -> MemoryTensor:
        """Return the stored tensor of one in memory; it shares memory."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.detach())

    def shares_memory(self, other: MemoryTensor) -> bool:
        """Whether the other one has the same elements in the same memory."""
        return self.tensor.is_set_to(other.tensor)

    def read(self) -> Tensor:
        """Return the tensor itself where it is on the CPU and contiguous, else a copy that is."""
        return self.tensor.cpu().resolve_conj().resolve_neg().contiguous()

    def read_into(self, out: Tensor) -> None:
        """Copy the values to a tensor."""
        out.copy_(self.tensor)

    def read_rows_into(self, first: int, out: Tensor) -> None:
        """Copy only rows."""
        out.copy_(self.tensor[first : first + out.shape[0]])

    def verify(self, where: str) -> None:
        """Refuse a tensor on the meta device."""
        if self.tensor.is_meta:
            raise RecordError("a tensor on the meta device has no values to load", where=where)


def read_all(tensors: Mapping[str, StoredTensor], where: str | None) -> dict[str, Tensor]:
    """Read tensors into memory, each verified; `where` is what messages call the file."""
    return {
        name: stored.read_verified(name if where is None else f"{where}: {name}")
        for name, stored in tensors.items()
    }


_CHUNK = 1 << 22


@dataclass(frozen=True)
class Statistics:
    """The extremes and the mean of a tensor's values that are not NaN, and the number of NaNs.

    None stands for no such values, and for complex numbers.
    """

    min: float | None
    max: float | None
    mean: float | None
    nans: int


def statistics_of(stored: StoredTensor) -> Statistics:
    """Read a tensor and return the statistics of its values.

    >>> from burnt.record.stored import MemoryTensor
    >>> statistics_of(MemoryTensor.of(torch.tensor([1.0, torch.nan, 4.0])))
    Statistics(min=1.0, max=4.0, mean=2.5, nans=1)
    """
    values = stored.read().reshape(-1)
    lows, highs, total, nans = [], [], 0.0, 0
    for part in torch.split(values, _CHUNK):  # in float64, which takes twice the memory or more
        if part.is_complex():
            nans += int(part.isnan().sum())
        elif part.numel():
            wide = part.double() if part.is_floating_point() or part.dtype == torch.bool else part
            known = wide[~wide.isnan()] if wide.is_floating_point() else wide
            nans += part.numel() - known.numel()
            if known.numel():
                low, high = known.aminmax() if known.dtype not in _UNSIGNED else known.long().aminmax()
                lows.append(low.item())
                highs.append(high.item())
                total += known.double().sum().item()
    if not lows:
        return Statistics(None, None, None, nans)
    return Statistics(min(lows), max(highs), total / (values.numel() - nans), nans)


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""dtypes that torch cannot compare; of uint64, values from 2**63 on are shown as negative."""


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What weights can be converted to. Smaller floats need scales, and are left as they are."""

_STATISTICS = ("running_mean", "running_var", "fill_values", "feature_mean")

_MOST_NAMES = 5


@dataclass(frozen=True)
class CastTensor(StoredTensor):
    """A tensor that is converted when it is read."""

    source: StoredTensor = field(repr=False)

    def read_into(self, out: Tensor) -> None:
        """Read the values of the source, converted to the dtype of `out`."""
        self.source.read_into(out)

    def verify(self, where: str) -> None:
        """Verify the source."""
        self.source.verify(where)


def cast_tensors(
    tensors: Mapping[str, StoredTensor],
    dtype: torch.dtype | None,
    keep: str | Iterable[str] | None = None,
    unchanged: Collection[str] = (),
) -> dict[str, StoredTensor]:
    """Return tensors of another floating-point dtype, which are converted when they are read.

    Integers, booleans, complex numbers and floats of 8 bits stay as they are, and in 16 bits also the
    modules with running statistics (`beside_statistics`), what patterns in `keep` match, and the paths in
    `unchanged`: the scales of quantized layers. None converts nothing.
    """
    patterns = [] if keep is None else [keep] if isinstance(keep, str) else list(keep)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in tensors):
            raise RecordError(
                f"the pattern {pattern!r} of keep= matches nothing",
                expected="a pattern on paths of tensors",
                hint=near(pattern, tensors),
            )
    if dtype is None:
        return dict(tensors)
    if dtype not in DTYPES:
        raise RecordError(
            f"weights are not saved in {dtype}", expected=", ".join(map(str, DTYPES)), found=str(dtype)
        )
    kept = beside_statistics(tensors) if dtype.itemsize < 4 else set()
    cast = {
        path: CastTensor(stored.shape, dtype, stored)
        for path, stored in tensors.items()
        if stored.dtype in DTYPES
        and stored.dtype != dtype
        and path not in kept
        and path not in unchanged
        and not any(matches(pattern, path) for pattern in patterns)
    }
    check_range(
        {path: tensors[path] for path in cast},
        dtype,
        "bfloat16 has the range of float32, and keep='{}' (--keep) leaves a tensor as it is",
    )
    return {**tensors, **cast}


def beside_statistics(paths: Iterable[str]) -> set[str]:
    """Return the paths of the tensors of modules that have running statistics, such as BatchNorm.

    Models in 16 bits keep these modules in float32: a running variance below 6e-8 is 0 in float16, a running
    average in 8 significant bits stops moving, and torch takes input of 16 bits only with all of a
    normalization's tensors in float32 or none. Burn's HalfPrecisionAdapter leaves out BatchNorm too.
    Normalizations without statistics (LayerNorm, RmsNorm) are converted, as by ``model.half()``.

    >>> sorted(beside_statistics(["a.weight", "n.weight", "n.bias", "n.running_mean", "n.running_var"]))
    ['n.bias', 'n.running_mean', 'n.running_var', 'n.weight']
    """
    known = list(paths)
    modules = {module for module, _, name in (path.rpartition(".") for path in known) if name in _STATISTICS}
    return {path for path in known if path.rpartition(".")[0] in modules}


def can_overflow(old: torch.dtype, new: torch.dtype) -> bool:
    """Whether real values of one dtype may be infinite in another, floating-point one.

    bfloat16 passes for as wide as float32: only the last 0.4 % of that range round to infinity.
    """
    if old.is_complex or old == torch.bool:
        return False
    largest = torch.finfo(old).max if old.is_floating_point else torch.iinfo(old).max
    return largest >= 2 * torch.finfo(new).max


def check_range(tensors: Mapping[str, StoredTensor], dtype: torch.dtype, hint: str) -> None:
    """Refuse finite values that are beyond the range of a dtype."""
    largest: dict[str, float] = {}
    for path, stored in tensors.items():
        if not can_overflow(stored.dtype, dtype):
            continue
        if dtype.itemsize == 1:  # some have no infinity: larger values become the largest
            values = stored.read()
            is_larger = values.abs() > torch.finfo(dtype).max
        else:
            converted = torch.empty(stored.shape, dtype=dtype, device="cpu")
            stored.read_into(converted)
            if not converted.isinf().any():  # most have none, and are not read twice
                continue
            values = stored.read()
            is_larger = converted.isinf()
        overflowed = values[is_larger & values.isfinite()]
        if overflowed.numel():
            largest[path] = overflowed.double().abs().max().item()
    if largest:
        shown = [f"{path}: {value:.3g}" for path, value in list(largest.items())[:_MOST_NAMES]]
        more = len(largest) - len(shown)
        raise RecordError(
            f"values of {len(largest):,} of {len(tensors):,} tensors are too large for {dtype}",
            expected=f"magnitudes up to {torch.finfo(dtype).max:.5g}",
            found="\n".join([*shown, *([f"and {more:,} more"] if more else [])]),
            hint=hint.format(next(iter(largest))),
        )
