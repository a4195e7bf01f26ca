"""What the rest of `burnt.kernels` needs to know of an op: `Op` has it, and is not imported for it.

Tuning, accuracy checks and error messages work on any op; the class itself (`burnt.kernels.dispatch.op`)
stands above them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from burnt.kernels.interface.candidate import Candidate

__all__ = ["AnyOp"]


class AnyOp(Protocol):
    """An op, whatever its arguments; `burnt.kernels.dispatch.op.Op` describes each member."""

    name: str
    reference: Callable[..., Any]
    signature: inspect.Signature
    positions: dict[str, int]
    pair: int | None
    random: bool
    candidates: dict[str, Candidate]
    gradients: dict[tuple[Any, ...], Any]
    parts: Callable[..., Any] | None
    library_best: Callable[..., bool] | None
    examples: Callable[..., Any] | None
    declared: Any

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults filled in."""

    def example_args(self, device: torch.device) -> list[tuple[Any, ...]]:
        """All arguments of each example, defaults filled in."""

    def run(self, args: Sequence[Any]) -> Any:
        """The results by the best candidate."""

    def forget(self) -> None:
        """Choose anew at the next call with any signature."""

    def named_tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """The tensors among the arguments, with their names."""

    def check_versions(self, who: str, tensors: Sequence[tuple[str, Tensor]], before: Sequence[int]) -> None:
        """Raise where a tensor was changed in place since `before` was read."""

    def check_results(self, candidate: Candidate, args: Sequence[Any], made: Any) -> None:
        """Raise where a candidate returns something else than the reference."""
