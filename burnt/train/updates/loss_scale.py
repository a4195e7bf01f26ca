"""LossScale: the factor by which losses are multiplied so that float16 gradients do not vanish."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnt._torch import update_loss_scale

_LEAST = 2.0**-24
"""The scale falls no further, so that gradients can always be divided by it."""


class LossScale:
    """A dynamic loss scale, with the rules and defaults of :class:`torch.amp.GradScaler`.

    A step that overflows is skipped and multiplies the scale by `backoff`; `interval` steps in a row that do
    not, multiply it by `growth`. The state stays on the device: neither a step nor `update` waits for it.

    >>> scale = LossScale(torch.device("cpu"), scale=8.0, interval=2)
    >>> for skipped in (True, False, False):
    ...     scale.update(torch.tensor(skipped))
    ...     print(float(scale.value), int(scale.skipped))
    4.0 1
    4.0 1
    8.0 1
    """

    def __init__(
        self,
        device: torch.device,
        *,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        self.value = torch.tensor(scale, dtype=torch.float32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._growth, self._backoff, self._interval = growth, backoff, interval

    def update(self, skipped: Tensor) -> None:
        """Adapt the scale after a step; `skipped`, ``[]``, says whether its gradients overflowed.

        `skipped` may be on the host: optimizers that decide there return it so.
        """
        skipped = skipped.to(self.value.device)
        update_loss_scale(
            self.value, self._good_steps, skipped.float(), self._growth, self._backoff, self._interval
        )
        self.value.clamp_(min=_LEAST)
        self.skipped += skipped

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint. Waits for the device."""
        return {
            "scale": float(self.value),
            "good_steps": int(self._good_steps),
            "skipped": int(self.skipped),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.value.fill_(state["scale"])
        self._good_steps.fill_(state["good_steps"])
        self.skipped.fill_(state["skipped"])
