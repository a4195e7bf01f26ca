"""Folds in Metal: what a thread knows of one, and how an element, or what another thread knows, is added.

A sum that needs another fold's result in the same loop is about the thread's own largest element or mean
until those of all threads are known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from burnt.codegen.ir import OnlineReduction, ReductionStep
from burnt.codegen.render.metal.dtypes import COMPUTE, highest, lowest
from burnt.codegen.render.shape_params import mark_size

__all__ = ["OnlineSum", "ReductionState"]


@dataclasses.dataclass(frozen=True)
class ReductionState:
    """What a thread knows of a fold: how it begins, takes an element, and is merged with another's.

    Args:
        name: of the result.
        kind: its type in Metal.
        fold: the reduction's kind.
        dtypes: of what goes from thread to thread, for scratch memory.
        parts: the names of that, with their types.
        start: the value before the first element.
        floating: whether elements are floats.
    """

    name: str
    kind: str
    fold: str
    dtypes: tuple[torch.dtype, ...]
    parts: dict[str, str]
    start: str
    floating: bool

    @staticmethod
    def of(step: ReductionStep, name: str, index: str) -> ReductionState:
        """The state of a fold, which counts places in a type."""
        inside, fold = step.body.dtype, step.reduction.kind
        floating = inside.is_floating_point
        dtype = torch.float32 if floating else torch.int64 if inside == torch.int64 else torch.int32
        if fold in ("sum", "prod") and not floating:
            dtype = torch.int64
        kind = COMPUTE[dtype]
        if fold in ("argmax", "argmin"):
            place = torch.int64 if index == "long" else torch.int32
            return ReductionState(
                name, index, fold, (dtype, place), {f"{name}_best": kind, name: index}, "0", floating
            )
        start = {
            "sum": "0", "prod": "1", "any": "0", "all": "1", "max": lowest(inside), "min": highest(inside)
        }[fold]  # fmt: skip
        return ReductionState(name, kind, fold, (dtype,), {name: kind}, start, floating)

    @property
    def is_arg(self) -> bool:
        """Whether the place of an extreme is wanted."""
        return self.fold in ("argmax", "argmin")

    @property
    def keeps_low(self) -> bool:
        """Whether a thread keeps what rounding takes from a sum."""
        return self.fold == "sum" and self.floating

    def begun(self) -> list[str]:
        """Before the first element."""
        name = self.name
        if self.is_arg:
            best, kind = next(iter(self.parts.items()))
            return [f"{kind} {best} = 0;", f"{self.kind} {name} = -1;"]
        if self.keeps_low:
            return [f"float {name} = 0, {name}_low = 0;"]
        return [f"{self.kind} {name} = {self.start};"]

    def taking(self, value: str, turn: str) -> list[str]:
        """With one element more, of which the number in the fold is `turn`."""
        if self.keeps_low:
            return [f"add_to({self.name}, {self.name}_low, {value});"]
        return self.merging([value, turn] if self.is_arg else [value])

    def ended(self) -> list[str]:
        """After the last element."""
        return [f"{self.name} = sum_of({self.name}, {self.name}_low);"] if self.keeps_low else []

    def merging(self, others: Sequence[str]) -> list[str]:
        """With what another thread has found."""
        name = self.name
        if self.is_arg:
            best, kind = next(iter(self.parts.items()))
            test = "is_larger" if self.fold == "argmax" else "is_smaller"
            return [
                f"const {kind} other = {others[0]};",
                f"const {self.kind} other_at = {others[1]};",
                f"if ({test}(other, other_at, {best}, {name})) {{",
                f"    {best} = other;",
                f"    {name} = other_at;",
                "}",
            ]
        (other,) = others
        if self.fold in ("max", "min"):
            function = f"{self.fold}imum_f32" if self.floating else self.fold
            other = other if self.floating else f"{self.kind}({other})"
            return [f"{name} = {function}({name}, {other});"]
        op = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[self.fold]
        return [f"{name} = {name} {op} {other};"]


class OnlineSum:
    """A thread's sum about its own largest element, or mean, while another fold finds that of all.

    Args:
        step: the sum.
        state: of it.
        beside: the other fold's result.
    """

    def __init__(self, step: OnlineReduction, state: ReductionState, beside: str) -> None:
        self.step, self.state, self.beside = step, state, beside
        self.name, self.of_exp = state.name, step.kind == "exp"

    def begun(self) -> list[str]:
        """Before the first element."""
        own = "top = -INFINITY" if self.of_exp else f"mean = 0, {self.name}_turns = 0"
        return [*self.state.begun(), f"float {self.name}_{own};"]

    def taking(self, value: str) -> list[str]:
        """With one element more."""
        name = self.name
        if self.of_exp:
            return [f"add_exp_to({name}_top, {name}, {name}_low, {value}, 1.0f, 0.0f);"]
        return [f"add_square_to({name}_mean, {name}, {name}_turns, {value});"]

    def moved(self, turns: str) -> list[str]:
        """About what all threads have found: the largest, or the sum of so many elements."""
        name = self.name
        if not self.of_exp:
            return [
                f"{name} = moved_squares({name}, {name}_turns, {name}_mean, {self.beside} / {turns});",
            ]
        return [f"{n} = moved_exp({n}, {name}_top, {self.beside});" for n in (name, f"{name}_low")]

    def of_part(self, part: str, reference: str, turns: str) -> str:
        """A chunk's, about what all of them have found."""
        if self.of_exp:
            return f"moved_exp({part}, {reference}, {self.beside})"
        whole = f"{self.beside} / float({mark_size(self.step.iterations)})"
        return f"moved_squares({part}, {turns}, {reference} / {turns}, {whole})"

    def settled(self) -> list[str]:
        """Where the largest element is infinite or NaN."""
        if not self.of_exp:
            return []
        otherwise = (
            f"exp_f32({self.beside})" if self.step.ignores_infinite_max else f"{self.beside} - {self.beside}"
        )
        return [f"{self.name} = abs_f32({self.beside}) < INFINITY ? {self.name} : {otherwise};"]
