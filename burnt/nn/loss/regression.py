"""Losses of numbers: distances between prediction and target, and likelihoods."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnt.errors import InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.loss import checks


class _Distance:
    """Of input and target, which must have one shape."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the error of `input` ``[*]`` against `target` ``[*]``."""
        checks.same_shape(self, input, target=target)  # type: ignore[arg-type]
        return super().forward(input, target)  # type: ignore[misc, no-any-return]


class L1(_Distance, checks.ReducedLoss, torch.nn.L1Loss, init=False):
    r"""Mean absolute error: :math:`\frac{1}{n} \sum_i |x_i - t_i|`.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    >>> L1()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.)
    """


class Mse(_Distance, checks.ReducedLoss, torch.nn.MSELoss, init=False):
    r"""Mean squared error: :math:`\frac{1}{n} \sum_i (x_i - t_i)^2`.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        ShapeError: input and target differ in shape. (torch broadcasts, with a warning: ``[n]`` against
            ``[n, 1]`` would give the mean over ``n * n`` pairs.)

    >>> Mse()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(2.)
    """


class Lp(Module):
    r"""Mean power of the error: :math:`\frac{1}{n} \sum_i |x_i - t_i|^p`, without a root.

    Args:
        p: the power, more than 0; 1 is `L1`, 2 `Mse`.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        InputValueError: `p` is not positive.

    Burn's LpLoss; torch has none. Where input and target are equal, the gradient is 0 for every `p`.

    >>> Lp(3)(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(4.)
    """

    p: float
    reduction: str

    def __init__(self, p: float, reduction: checks.Reduction = "mean") -> None:
        super().__init__()
        require(p > 0, "Lp", "p", "more than 0", p)
        self.p = p
        self.reduction = checks.known_reduction(self, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the error of `input` ``[*]`` against `target` ``[*]``."""
        checks.same_shape(self, input, target=target)
        error = (input - target).abs()
        if self.p < 1:
            # The slope at 0 is infinite, and infinity times the slope 0 of abs would be NaN.
            is_positive = error > 0
            losses = torch.where(is_positive, torch.where(is_positive, error, 1.0).pow(self.p), error)
        else:
            losses = error.pow(self.p)
        return checks.reduce_losses(losses, self.reduction)


class SmoothL1(_Distance, Module, torch.nn.SmoothL1Loss):
    r"""Squared error where it is small, absolute error where it is large.

    .. math:: \ell = \begin{cases} e^2 / 2 \beta & |e| < \beta \\ |e| - \beta / 2 & \text{else} \end{cases}
              \quad e = x - t

    Args:
        beta: where the square ends; 0 is `L1`.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        InputValueError: `beta` is negative.

    Girshick, 2015 (Fast R-CNN). `Huber` divided by `beta`.

    >>> SmoothL1()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(0.7500)
    """

    reduction: str
    beta: float

    def __init__(self, reduction: checks.Reduction = "mean", beta: float = 1.0) -> None:
        super().__init__(
            reduction=checks.known_reduction(self, reduction), beta=checks.in_range(self, "beta", beta, 0.0)
        )


class Huber(_Distance, Module, torch.nn.HuberLoss):
    r"""Squared error where it is small, a multiple of the absolute error where it is large.

    .. math:: \ell = \begin{cases} e^2 / 2 & |e| < \delta \\
              \delta (|e| - \delta / 2) & \text{else} \end{cases} \quad e = x - t

    Args:
        delta: where the square ends, more than 0.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        InputValueError: `delta` is not positive.

    Huber, 1964.

    >>> Huber()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(0.7500)
    """

    reduction: str
    delta: float

    def __init__(self, reduction: checks.Reduction = "mean", delta: float = 1.0) -> None:
        require(delta > 0, "Huber", "delta", "more than 0", delta, hint="0 is L1()")
        super().__init__(reduction=checks.known_reduction(self, reduction), delta=delta)


class GaussianNll(Module, torch.nn.GaussianNLLLoss):
    r"""Negative log-likelihood of numbers under normal distributions of predicted mean and variance.

    .. math:: \ell = \tfrac{1}{2} \left( \log v + \frac{(x - t)^2}{v} \right), \quad
              v = \max(\mathrm{var}, \mathrm{eps})

    Args:
        full: whether to add the constant :math:`\tfrac{1}{2} \log 2 \pi`.
        eps: smallest variance.

    Shapes:
        input and target ``[*]``, of one shape; the variance is a number, ``[*]``, or that with 1 as the size
        of one axis or without the last axis; output ``[]``, with ``"none"`` the input's shape.

    Raises:
        InputValueError: a variance is negative.
        ShapeError: input and target differ in shape (torch broadcasts), or the variance has another one.

    Nix and Weigend, 1994. As in torch, a variance below `eps` gets the gradient of `eps`.

    >>> GaussianNll()(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]), torch.tensor([1.0, 4.0]))
    tensor(0.5966)
    """

    full: bool
    eps: float
    reduction: str

    def __init__(
        self, *, full: bool = False, eps: float = 1e-6, reduction: checks.Reduction = "mean"
    ) -> None:
        super().__init__(
            full=full,
            eps=checks.in_range(self, "eps", eps, 0.0),
            reduction=checks.known_reduction(self, reduction),
        )

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """Return the loss of means `input` ``[*]`` and variances `var` for numbers `target` ``[*]``."""
        checks.same_shape(self, input, target=target)
        var = self._variance(input, var)
        # The clamp has no gradient, as in torch: a variance that is too small must be able to grow.
        var = torch.where(var < self.eps, self.eps + (var - var.detach()), var)
        losses = (var.log() + (input - target).square() / var) / 2
        if self.full:
            losses = losses + math.log(2 * math.pi) / 2
        return checks.reduce_losses(losses, self.reduction)

    def _variance(self, input: Tensor, var: Tensor | float) -> Tensor:
        """Return variances that broadcast with the input, and check them."""
        if not isinstance(var, Tensor):
            var = torch.full_like(input, var)
        if checks.has_values(var) and var.numel() and var.min() < 0:
            raise InputValueError(
                "a variance is negative",
                where="GaussianNll",
                expected="at least 0",
                found=float(var.min()),
                hint="the last layer's output through torch.nn.functional.softplus, or torch.exp",
            )
        if var.shape == input.shape[:-1] and var.dim() < input.dim():
            return var.unsqueeze(-1)
        sizes = zip(var.shape, input.shape, strict=False)
        narrow = [given for given, wanted in sizes if given != wanted]
        if var.dim() != input.dim() or narrow not in ([], [1]):
            raise ShapeError(
                "the variance does not fit the input",
                where="GaussianNll",
                expected=f"a var of shape {tuple(input.shape)}, {(*input.shape[:-1], 1)} "
                f"or {tuple(input.shape[:-1])}",
                found=tuple(var.shape),
            )
        return var


class PoissonNll(Module, torch.nn.PoissonNLLLoss):
    r"""Negative log-likelihood of counts under Poisson distributions of predicted rates.

    .. math:: \ell = e^x - t x, \quad \text{or} \quad x - t \log(x + \mathrm{eps}) \text{ of rates}

    Args:
        log_input: whether the input is the rates' logarithm.
        full: whether to add Stirling's approximation of :math:`\log t!`, for counts above 1.
        eps: added to rates before their logarithm is taken.

    Shapes:
        input and target ``[*]``, of one shape; output ``[]``, with ``"none"`` the input's shape.

    >>> PoissonNll()(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0]))
    tensor(0.3591)
    """

    log_input: bool
    full: bool
    eps: float
    reduction: str

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: checks.Reduction = "mean",
    ) -> None:
        super().__init__(
            log_input=log_input,
            full=full,
            eps=checks.in_range(self, "eps", eps, 0.0),
            reduction=checks.known_reduction(self, reduction),
        )

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """Return the loss of log rates (or rates) ``[*]`` for counts `target` ``[*]``."""
        checks.same_shape(self, log_input, target=target)
        return super().forward(log_input, target)
