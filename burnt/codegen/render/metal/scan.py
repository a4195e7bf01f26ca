"""Scans in Metal: what holds a running value, and how another that comes after it joins.

An element is a running value as well, of itself alone, so that threads can put together what each has found.
Sums keep what rounding takes from them. A logarithm of a sum is the largest element and the sum of the
exponentials of all, less that element. Products are float, as Metal has nothing wider.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnt.codegen.ir import Kernel, ScanStep, Store, Var, walk
from burnt.codegen.render.metal.dtypes import COMPUTE, highest, lowest

__all__ = ["State", "lane_of_scans"]


class State:
    """The running value of a scan: `parts` are its variables, `kinds` their types in Metal.

    Args:
        step: the scan.
        name: what variables begin with.
    """

    def __init__(self, step: ScanStep, name: str) -> None:
        self.step, self.name, self.kind, self.inside = step, name, step.scan.kind, step.body.dtype
        floating = self.inside.is_floating_point
        # A simdgroup shuffles 32 bits; what is narrower wraps when it is stored.
        wide = not floating and (self.kind == "sum" or self.inside == torch.int64)
        own = "float" if floating else "long" if wide else "int"
        self.kinds, self.ends = [own], [""]
        if self.kind.startswith("arg"):
            self.kinds, self.ends = [own, "long"], ["", "_at"]
        elif self.kind == "sum" and floating:
            self.kinds, self.ends = [own, own], ["", "_low"]
        elif self.kind == "logsumexp":
            self.kinds, self.ends = [own, own, own], ["_top", "", "_low"]
        self.parts = self.named("")

    def named(self, suffix: str) -> list[str]:
        """Names for the parts of another value of the same kind."""
        return [f"{self.name}{suffix}{end}" for end in self.ends]

    def begun(self, names: Sequence[str]) -> list[str]:
        """Variables for what there is before the first element."""
        start = {"sum": "0", "prod": "1", "logsumexp": "-INFINITY"}.get(self.kind)
        if start is None:
            start = lowest(self.inside) if self.kind.endswith("max") else highest(self.inside)
        return self.declared(names, [start, "0", "0"][: len(self.kinds)])

    def element(self, value: str, turn: str) -> list[str]:
        """The parts of an element."""
        if self.kind == "logsumexp":
            return [value, "1.0f", "0.0f"]
        return [value, *([turn] if self.kind.startswith("arg") else ["0.0f"] * (len(self.kinds) - 1))]

    def declared(self, names: Sequence[str], values: Sequence[str]) -> list[str]:
        """New variables that hold a value."""
        return [f"{k} {n} = {v};" for k, n, v in zip(self.kinds, names, values, strict=True)]

    def copied(self, names: Sequence[str], values: Sequence[str]) -> list[str]:
        """Variables that hold another value from here on."""
        return [f"{n} = {v};" for n, v in zip(names, values, strict=True)]

    def joined(self, own: Sequence[str], later: Sequence[str]) -> list[str]:
        """A value that comes later joins one."""
        if self.kind == "logsumexp":
            return [f"add_exp_to({', '.join([*own, *later])});"]
        if self.kind == "sum" and len(own) == 2:
            rest = [] if later[1] == "0.0f" else [f"{own[1]} += {later[1]};"]
            return [f"add_to({own[0]}, {own[1]}, {later[0]});", *rest]
        if self.kind in ("sum", "prod"):
            return [f"{own[0]} = {own[0]} {'+' if self.kind == 'sum' else '*'} {later[0]};"]
        nan = f" || {later[0]} != {later[0]}" if self.inside.is_floating_point else ""
        sign = ">=" if self.kind.endswith("max") else "<="
        taken = [f"    {line}" for line in self.copied(own, later)]
        return [f"if ({later[0]} {sign} {own[0]}{nan}) {{", *taken, "}"]

    def text(self) -> str:
        """What the scan is at this turn."""
        if self.kind == "logsumexp":
            return f"{self.parts[0]} + log_f32({self.parts[1]} + {self.parts[2]})"
        if self.kind.startswith("arg"):
            return self.parts[1]
        if len(self.parts) == 2:
            return f"sum_of({', '.join(self.parts)})"
        return f"{COMPUTE[self.step.scan.dtype]}({self.parts[0]})"


def lane_of_scans(kernel: Kernel) -> Var | None:
    """The outer loop that memory runs along in most of what scans read and write; None where it is theirs."""
    votes: dict[Var, int] = {}
    for step in kernel.steps:
        found = [step.offset] if isinstance(step, Store) else []
        exprs = [step.value if isinstance(step, Store) else step.body]
        found += [e.extra[1] for e in walk(exprs) if e.op == "load"]  # type: ignore[misc]
        for place in found:
            for v in (*kernel.outer, *step.inner):
                if place.stride(v) in (1, -1):
                    votes[v] = votes.get(v, 0) + 1
    best = max(votes, key=lambda v: votes[v], default=None)
    return best if best in kernel.outer else None
