"""Options common to all optimizer steps (`Request`), and the result of a step (`StepResult`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from burnt.errors import InputValueError
from burnt.kernels.interface.checks import describe

_CANDIDATES = ("burnt", "torch")
LIMITS = ("grad_scale", "max_norm", "ema", "ema_decay", "candidate")
"""The arguments that all steps have."""


CLIP_EPS = 1e-6  # torch's `clip_grad_norm_` adds this to the norm


class StepResult(NamedTuple):
    """The result of a step. Its tensors are on the gradients' device; returning it does not synchronize.

    Args:
        norm: ``[]``, the Euclidean norm of all gradients, divided by `grad_scale` and before clipping;
            float64 if a gradient is, else float32. None if neither `max_norm` nor `grad_scale` was passed.
        skipped: ``[]``, bool: whether the step changed nothing because a gradient is NaN or infinite. Always
            False without `grad_scale`.
        by: the candidate that ran: ``"burnt"``, or ``"torch: "`` and the reason.
    """

    norm: Tensor | None
    skipped: Tensor
    by: str


@dataclass(frozen=True)
class Request:
    """Options common to all steps, of the same names as in `adamw_step`, which also lists the errors raised.

    `name` is the name of a function of `burnt.kernels` or of a class of `burnt.optim`.
    """

    name: str
    grad_scale: float | Tensor | None = None
    max_norm: float | None = None
    ema: Sequence[Tensor] | None = None
    ema_decay: float = 0.999
    candidate: str | None = None

    def __post_init__(self) -> None:
        if self.candidate is not None and self.candidate not in _CANDIDATES:
            self.reject("candidate", ", ".join(map(repr, _CANDIDATES)), repr(self.candidate))
        if self.max_norm is not None and not self.max_norm >= 0:
            self.reject("max_norm", "a limit of at least 0", str(self.max_norm))
        if not 0 <= self.ema_decay <= 1:
            self.reject("ema_decay", "a number from 0 to 1", str(self.ema_decay))
        scale = self.grad_scale
        if isinstance(scale, Tensor):
            if scale.numel() != 1:
                self.reject("grad_scale", "a number, or a tensor with one element", describe(scale))
        elif scale is not None and not (scale > 0 and math.isfinite(scale)):
            self.reject("grad_scale", "a positive number", str(scale))

    def reject(self, option: str, expected: str, found: str) -> None:
        """Raise the error for an option with an invalid value."""
        raise InputValueError(
            f"{self.name} does not accept this {option}", where=self.where, expected=expected, found=found
        )

    @property
    def where(self) -> str:
        """The function or class of the step, for messages."""
        return f"burnt.{'kernels' if self.name.endswith('_step') else 'optim'}.{self.name}"

    def check_numbers(self, *betas: float | Tensor, **nonnegative: float | Tensor) -> None:
        """Check the hyperparameters of a step: `betas` are in ``[0, 1)``, the others at least 0."""
        for what, value in nonnegative.items():
            if not isinstance(value, Tensor) and not value >= 0:
                self.reject(what, "a number of at least 0", str(value))
        if any(not isinstance(beta, Tensor) and not 0 <= beta < 1 for beta in betas):
            self.reject("betas", "two numbers, at least 0 and below 1", str(betas))

    def with_ema(self, elements: Mapping[str, Sequence[Tensor]]) -> Mapping[str, Sequence[Tensor]]:
        """Return lists of tensors by name, with the averages if there are some."""
        return elements if self.ema is None else {**elements, "ema": self.ema}

    @property
    def needs_norm(self) -> bool:
        """Whether the step computes the norm of the gradients."""
        return self.max_norm is not None or self.grad_scale is not None
