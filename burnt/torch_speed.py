"""Where torch's own kernels are faster than generated ones: a table of measured facts, and what reads it.

The table is ``torch_speed.json``, one fact a line; ``benchmarks/kernels.py --write-rules`` measures it again.
What selects kernels asks `find_fact`: `burnt.kernels.dispatch.selection` for ops, after what the tuner has
measured on the user's machine, and `burnt.codegen.eager_policy` for fused functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from burnt._files import parse_json
from burnt.device import processor

TABLE = Path(__file__).with_suffix(".json")


class Fact(NamedTuple):
    """Whether to use torch's kernel for some calls of an op, and the measurement that says so."""

    op: str  # of `burnt.kernels`, "*" for all of them, or "aten::name" in fused functions
    use: str  # "torch" or "generated"; "float32": torch's kernel for float32
    measured: str  # the machine
    date: str
    ratio: tuple[float, float] | None = None  # torch's time divided by the generated kernel's, from and to
    why: str = ""  # the reason, where it is not only the ratio
    processor: str = "cpu"  # or "gpu"; "cpu wide" (512 bits) and "cpu narrow"; by the vendor, "cpu Intel"
    dtypes: tuple[str, ...] = ()  # of the first floating-point tensor; empty for all
    gradients: bool | None = None  # whether a gradient is required; None for both
    where: Mapping[str, Any] = {}  # feature of the call -> its value, or [least, most], None without limit

    @property
    def reason(self) -> str:
        """Why torch's kernel is used, as text."""
        why = self.why
        if self.ratio is not None and not why:
            why = "torch takes {:g} to {:g} times as long".format(*self.ratio)
        return f"{why} ({self.measured}, {self.date})"

    def holds(self, kinds: tuple[str, ...], dtype: str, gradients: bool, features: Mapping[str, Any]) -> bool:
        """Whether it is about a call; the arguments are as in `find_fact`."""
        return (
            self.processor in kinds
            and (not self.dtypes or dtype in self.dtypes)
            and self.gradients in (None, gradients)
            and all(_is_met(limit, features[name]) for name, limit in self.where.items())
        )


def find_fact(
    op: str, is_cpu: bool, dtype: torch.dtype | None, gradients: bool, features: Mapping[str, Any]
) -> Fact | None:
    """Return the first fact about a call; None if there is none, and kernels are generated.

    Arguments are as in `Fact`; `features` has all sizes and settings of the call that the op's facts ask for.

    >>> find_fact("silu", True, torch.float64, False, {}).use
    'torch'
    """
    kinds: tuple[str, ...] = ("gpu",)
    if is_cpu:
        cpu = processor()
        kinds = "cpu", f"cpu {cpu.vendor}", f"cpu {'wide' if cpu.has_wide_vectors else 'narrow'}"
    name = str(dtype).removeprefix("torch.")
    facts = read_table().get(op, ())
    return next((fact for fact in facts if fact.holds(kinds, name, gradients, features)), None)


@functools.cache
def read_table() -> dict[str, list[Fact]]:
    """Read the facts of each op, in the order of the table."""
    facts: dict[str, list[Fact]] = {}
    for row in parse_json(TABLE.read_bytes())["facts"]:
        facts.setdefault(row["op"], []).append(Fact(**row))
    return facts


def _is_met(limit: Any, value: Any) -> bool:
    if not isinstance(limit, list):
        return bool(value == limit)
    least, most = limit
    return (least is None or value >= least) and (most is None or value <= most)
