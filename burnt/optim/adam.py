"""Adam and its variants: AdamW (also schedule-free), Adamax, NAdam, RAdam, Adan, Lamb."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from burnt.errors import OptimError
from burnt.kernels import StepResult, adam_step, adamw_step
from burnt.kernels.optim.formula import ADAMAX, ADAN, NADAM, RADAM, SCHEDULE_FREE_ADAMW, wide_dtype
from burnt.kernels.optim.steps import lamb_step
from burnt.optim.optimizer import Model, Optimizer, StepInputs, zero


class _Adam(Optimizer):
    """Base of Adam and AdamW: their options, their state, and the step except for its function."""

    _step_fn: ClassVar[Callable[..., StepResult]]
    _state_names = ("step", "exp_avg", "exp_avg_sq")

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        largest = {"max_exp_avg_sq": torch.zeros_like(parameter)} if self._options["amsgrad"] else {}
        return super()._initial_state(parameter) | largest

    def _advance(self, inputs: StepInputs) -> StepResult:
        options = {name: value for name, value in self._options.items() if name != "amsgrad"}
        names = ("exp_avg", "exp_avg_sq", "step", *["max_exp_avg_sq"] * self._options["amsgrad"])
        states = inputs.state(*names)
        return type(self)._step_fn(inputs.params, inputs.grads, *states, **options, **inputs.settings)


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
    _step_fn = staticmethod(adam_step)


class AdamW(_Adam):
    """Adam with decoupled weight decay.

    Args:
        weight_decay: this times the learning rate is the fraction subtracted from the parameter.

    Other arguments are as in `Adam`.

    Loshchilov and Hutter, 2019; as :class:`torch.optim.AdamW`.

    >>> AdamW(weight_decay=0.1)
    AdamW(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1, amsgrad=False)
    """

    _torch = torch.optim.AdamW
    _step_fn = staticmethod(adamw_step)

    weight_decay: float = 0.01


class Adamax(Optimizer):
    """Adam with the largest of past gradients, decayed, in place of the root of their mean square.

    Args:
        betas: decay of the running mean of the gradient, and of the running maximum of its absolute value.
        eps: added to the absolute value.
        weight_decay: this times the parameter is added to the gradient.

    Kingma and Ba, 2015, section 7.1; same as :class:`torch.optim.Adamax`.

    >>> Adamax()
    Adamax(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0)
    """

    _torch = torch.optim.Adamax
    _state_names = ("step", "exp_avg", "exp_inf")
    _update = ADAMAX

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


class NAdam(Optimizer):
    """Adam with Nesterov momentum.

    Args:
        momentum_decay: how slowly the momentum approaches its final value.
        decoupled_weight_decay: subtract the weight decay from the parameter as in AdamW.

    Other arguments are as in `Adam`.

    Dozat, 2016; same as :class:`torch.optim.NAdam`.

    >>> NAdam(weight_decay=0.01, decoupled_weight_decay=True).into_record().options["momentum_decay"]
    0.004
    """

    _torch = torch.optim.NAdam
    _state_names = ("step", "exp_avg", "exp_avg_sq")
    _update = NADAM

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return super()._initial_state(parameter) | {"mu_product": zero(parameter) + 1}


class RAdam(Optimizer):
    """Adam whose adaptive rate is rectified, and not used in the first steps, where its variance is large.

    Args:
        decoupled_weight_decay: subtract the weight decay from the parameter as in AdamW.

    Other arguments are as in `Adam`.

    Liu et al., 2020; same as :class:`torch.optim.RAdam`.

    >>> RAdam()
    RAdam(betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0, decoupled_weight_decay=False)
    """

    _torch = torch.optim.RAdam
    _state_names = ("step", "exp_avg", "exp_avg_sq")
    _update = RADAM

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False


class Adan(Optimizer):
    """Adan: Adam with Nesterov momentum by differences of gradients.

    With g the gradient, d its difference to the one of the step before (0 at the first), and b the betas::

        m = b1 m + (1 - b1) g
        v = b2 v + (1 - b2) d
        n = b3 n + (1 - b3) (g + b2 d)^2
        p = (p - lr (m + b2 v) / (sqrt(n) + eps)) / (1 + lr weight_decay)

    where the means are divided by 1 - b^step. Takes learning rates 5 to 10 times Adam's.

    Args:
        betas: decay of the running means of the gradient, of its difference and of its square: 1 minus those
            of the paper.
        eps: added to the denominator.
        weight_decay: decoupled.
        no_prox: multiply the parameter by ``1 - lr * weight_decay`` before the update, instead of dividing it
            by ``1 + lr * weight_decay`` after it.

    Xie et al., 2022; Burn's Adan.

    >>> Adan()
    Adan(betas=(0.98, 0.92, 0.99), eps=1e-08, weight_decay=0.0, no_prox=False)
    """

    _update = ADAN
    _state_names = ("step", "exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad")

    betas: tuple[float, float, float] = (0.98, 0.92, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    no_prox: bool = False


class Lamb(Optimizer):
    """Lamb: AdamW whose update of each parameter tensor is scaled to the tensor's norm, for large batches.

    With u Adam's update plus weight_decay p, the step is p = p - lr u |p| / |u|; the ratio is 1 where a norm
    is 0.

    Args:
        betas: decay of the running means of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: this times the parameter is added to the update.

    You et al., 2020, with the norms as they are (their phi is the identity). torch and Burn lack it.

    >>> Lamb(weight_decay=0.01)
    Lamb(betas=(0.9, 0.999), eps=1e-06, weight_decay=0.01)
    """

    is_elementwise = False
    _state_names = ("step", "exp_avg", "exp_avg_sq")

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0

    def _advance(self, inputs: StepInputs) -> StepResult:
        first, second, steps = inputs.state("exp_avg", "exp_avg_sq", "step")
        return lamb_step(
            inputs.params, inputs.grads, first, second, steps, **self._options, **inputs.settings
        )


class ScheduleFreeAdamW(Optimizer):
    """AdamW that averages its parameters instead of lowering the learning rate, which stays constant.

    Gradients are taken at y, between the parameters z that are stepped and their average x. With g the
    gradient at y and r = lr sqrt(1 - b2^step) min(1, step / warmup_steps)::

        v = b2 v + (1 - b2) g^2
        z = z - r (g / (sqrt(v) + eps) + weight_decay y)
        x = (1 - c) x + c z         with c = r^2 / (sum of r^2 so far)
        y = (1 - b1) z + b1 x

    The model has the parameters y for training, and x for evaluation: `eval` exchanges them in place, and
    `train` exchanges them back, without rounding. A `Learner` calls both.

    Args:
        betas: the weight of the average in y, and the decay of the running mean of the squared gradient.
        eps: added to the denominator.
        weight_decay: this times the learning rate times y is subtracted from z.
        warmup_steps: the number of steps over which the learning rate rises linearly from 0.

    Raises:
        OptimError: an option is invalid or, at a step, a gradient is sparse, a parameter complex, or the
            model in evaluation.

    Defazio et al., 2024, "The Road Less Scheduled", algorithm 1. The authors' code computes x from y and z,
    which saves a tensor, and weighs by the largest rate so far. torch and Burn lack it.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = ScheduleFreeAdamW(warmup_steps=100)
    >>> result = optimizer.step(2.5e-3, model, {"weight": torch.ones(1, 2)})
    >>> optimizer.eval(model)  # validate, save
    >>> optimizer.train(model)
    """

    _update = SCHEDULE_FREE_ADAMW

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0

    def train(self, model: Model) -> None:
        """Put the parameters y in place, where gradients are computed."""
        self._exchange(model, "y", "x")

    def eval(self, model: Model) -> None:
        """Put the averages x in place; the state holds y until `train`."""
        self._exchange(model, "x", "y")

    @torch.no_grad()
    def _exchange(self, model: Model, stored: str, replaced: str) -> None:
        self._bind_model(model)
        for path, state in self._state.items():
            if stored in state:
                parameter, value = self._params[path], state.pop(stored)
                state[replaced] = parameter.detach().clone()
                parameter.copy_(value)

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            "step": zero(parameter),
            "weight_sum": zero(parameter).to(wide_dtype(parameter.device)),
            "exp_avg_sq": torch.zeros_like(parameter),
            "z": parameter.clone(),
            "x": parameter.clone(),
        }

    def _needed_state(self, saved: set[str]) -> set[str]:
        # Saved in evaluation, the model has x, and the state y.
        return super()._needed_state(saved) ^ ({"x", "y"} if "y" in saved else set())

    def _advance(self, inputs: StepInputs) -> StepResult:
        if any("y" in state for state in self._state.values()):
            raise OptimError(
                "ScheduleFreeAdamW cannot step a model in evaluation",
                expected="the parameters at which gradients are computed",
                found="their averages",
                hint="call optimizer.train(model) after optimizer.eval(model)",
            )
        return super()._advance(inputs)
