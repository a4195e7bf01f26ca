"""An optimizer step to be made: its hyperparameters, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from burnt.errors import InputValueError
from burnt.kernels.interface.checks import describe

__all__ = ["Request", "StepResult"]


_CANDIDATES = ("burnt", "torch")


TINY = 1e-6  # what torch adds to the norm when it clips


class StepResult(NamedTuple):
    """What a step says. Tensors are on the gradients' device, which is not waited for.

    Args:
        norm: ``[]``, the Euclidean norm of all gradients after `grad_scale` was taken out and before
            clipping, float32 (float64 where a gradient is); None where neither `max_norm` nor `grad_scale`
            was given.
        skipped: ``[]``, bool: nothing was changed, because of a gradient that is NaN or infinite. Only with
            `grad_scale`.
        by: the candidate; for torch's also why.
    """

    norm: Tensor | None
    skipped: Tensor
    by: str


@dataclass(frozen=True)
class Request:
    """What is asked for besides the step; the arguments of the public functions.

    Raises:
        InputValueError: a limit, scale, decay or candidate that cannot be.
    """

    name: str
    grad_scale: float | Tensor | None
    max_norm: float | None
    ema: Sequence[Tensor] | None
    ema_decay: float
    candidate: str | None

    def __post_init__(self) -> None:
        if self.candidate is not None and self.candidate not in _CANDIDATES:
            self._refuse("candidate", ", ".join(map(repr, _CANDIDATES)), repr(self.candidate))
        if self.max_norm is not None and not self.max_norm >= 0:
            self._refuse("max_norm", "a limit of at least 0", str(self.max_norm))
        if not 0 <= self.ema_decay <= 1:
            self._refuse("ema_decay", "a share from 0 to 1", str(self.ema_decay))
        scale = self.grad_scale
        if isinstance(scale, Tensor):
            if scale.numel() != 1:
                self._refuse("grad_scale", "a number, or a tensor that holds one", describe(scale))
        elif scale is not None and not (scale > 0 and math.isfinite(scale)):
            self._refuse("grad_scale", "a positive number", str(scale))

    def _refuse(self, what: str, expected: str, found: str) -> None:
        raise InputValueError(
            f"{self.name} cannot have this {what}",
            where=f"burnt.kernels.{self.name}",
            expected=expected,
            found=found,
        )

    def check_numbers(self, *betas: float | Tensor, **least: float | Tensor) -> None:
        """The numbers of a step: none below zero, and decays of running means below 1, too.

        Raises:
            InputValueError: naming the one that cannot be.
        """
        for what, value in least.items():
            if not isinstance(value, Tensor) and not value >= 0:
                self._refuse(what, "a number of at least 0", str(value))
        if any(not isinstance(beta, Tensor) and not 0 <= beta < 1 for beta in betas):
            self._refuse("betas", "two shares, of at least 0 and below 1", str(betas))

    @property
    def measures(self) -> bool:
        """Whether the norm is wanted."""
        return self.max_norm is not None or self.grad_scale is not None
