"""Adam and AdamW."""

from __future__ import annotations

import torch

from burnt.optim.optimizer import Optimizer

__all__ = ["Adam", "AdamW"]


class Adam(Optimizer):
    """Adam, with weight decay as a penalty on the loss.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: times the parameter, added to the gradient.
        amsgrad: use the largest of the past second moments.

    Kingma and Ba, 2015; as :class:`torch.optim.Adam`.

    >>> import torch
    >>> from burnt import Gradients, nn
    >>> model = nn.Linear(2, 1)
    >>> optimizer = Adam()
    >>> optimizer.step(1e-3, model, Gradients.of(model(torch.ones(3, 2)).sum(), model))
    """

    _torch = torch.optim.Adam

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: share of the parameter that is taken off, times the learning rate.
        amsgrad: use the largest of the past second moments.

    Loshchilov and Hutter, 2019; as :class:`torch.optim.AdamW`.

    >>> AdamW(weight_decay=0.1)
    AdamW(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1, amsgrad=False)
    """

    _torch = torch.optim.AdamW

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
