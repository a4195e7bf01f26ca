"""Weights in another dtype: which tensors are converted, and which values the dtype cannot hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnt._patterns import matches, near
from burnt.errors import RecordError
from burnt.record.stored import StoredTensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What weights can be converted to. Smaller floats need scales, and are left as they are."""

_STATISTICS = ("running_mean", "running_var")

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
