"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from burnt.kernels import StepResult, adam_step, adamw_step
from burnt.optim.optimizer import Optimizer, zero


class _Adam(Optimizer):
    """Base of Adam and AdamW: their state, and the step except for its function."""

    _step: ClassVar[Callable[..., StepResult]]

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * self._options["amsgrad"]
        return {"step": zero(parameter)} | {name: torch.zeros_like(parameter) for name in names}

    def _advance(
        self,
        lr: float,
        params: Sequence[torch.nn.Parameter],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        limits: Mapping[str, Any],
    ) -> StepResult:
        options = self._options
        first, second, steps = ([s[name] for s in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        largest = [s["max_exp_avg_sq"] for s in states] if options["amsgrad"] else None
        return type(self)._step(
            params, grads, first, second, steps, largest,
            lr=lr, betas=options["betas"], eps=options["eps"], weight_decay=options["weight_decay"], **limits,
        )  # fmt: skip


class Adam(_Adam):
    """Adam, with weight decay as a penalty on the loss.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the gradient.
        amsgrad: use the largest of the past second moments.

    Kingma and Ba, 2015; same as :class:`torch.optim.Adam`.

    >>> import torch
    >>> from burnt import Gradients, nn
    >>> model = nn.Linear(2, 1)
    >>> optimizer = Adam()
    >>> result = optimizer.step(1e-3, model, Gradients.of(model(torch.ones(3, 2)).sum(), model))
    """

    _torch = torch.optim.Adam
    _step = staticmethod(adam_step)

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)


class AdamW(_Adam):
    """Adam with decoupled weight decay.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the learning rate is the fraction subtracted from the parameter.
        amsgrad: use the largest of the past second moments.

    Loshchilov and Hutter, 2019; as :class:`torch.optim.AdamW`.

    >>> AdamW(weight_decay=0.1)
    AdamW(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1, amsgrad=False)
    """

    _torch = torch.optim.AdamW
    _step = staticmethod(adamw_step)

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
