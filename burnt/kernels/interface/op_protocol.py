"""The protocol of an op, for modules that `burnt.kernels.dispatch.op` imports and that cannot import `Op`.

Tuning, accuracy checks and error messages work on any op through this protocol.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from burnt.kernels.interface.candidate import Candidate


class AnyOp(Protocol):
    """An op with any signature; `burnt.kernels.dispatch.op.Op` documents each member."""

    name: str
    reference: Callable[..., Any]
    signature: inspect.Signature
    positions: dict[str, int]
    pair: int | None
    random: bool
    candidates: dict[str, Candidate]
    gradient_functions: dict[tuple[Any, ...], Any]
    in_parts: Callable[..., Any] | None
    features: Callable[..., dict[str, Any]] | None
    examples: Callable[..., Any] | None
    registration: Any

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults filled in."""

    def example_args(self, device: torch.device) -> list[tuple[Any, ...]]:
        """Return the arguments of each example on a device, defaults filled in."""

    def run(self, args: Sequence[Any]) -> Any:
        """Compute the op with the selected candidate."""

    def forget(self) -> None:
        """Clear the cached selections; the next call with each signature selects again."""

    def named_tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments, each with a description for messages."""

    def check_unmodified(
        self, who: str, tensors: Sequence[tuple[str, Tensor]], before: Sequence[int]
    ) -> None:
        """Raise if a tensor was modified in place since its version in `before` was read."""

    def check_results(self, candidate: Candidate, args: Sequence[Any], results: Any) -> None:
        """Raise if a candidate's results differ from the reference's in shape, dtype, device or structure."""


OPS: dict[str, AnyOp] = {}
"""Every op by name."""
