"""L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from burnt.errors import OptimError
from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.optim.optimizer import Model, Optimizer, OptimizerRecord, option_error

# torch's state: lists of tensors and of numbers, tensors, numbers. The rest is overwritten in each step.
_LISTS = ("old_dirs", "old_stps", "ro")
_TENSORS = ("d", "prev_flat_grad", "H_diag")
_NUMBERS = ("t", "prev_loss", "func_evals", "n_iter")


class Lbfgs(Optimizer):
    """L-BFGS: a quasi-Newton method for small models and losses over all data.

    Each step evaluates the loss several times: call `step_with` instead of `step`. The learning rate is
    usually 1.

    Args:
        max_iter: largest number of iterations per step.
        max_eval: largest number of evaluations per step; None is ``max_iter * 5 // 4``.
        tolerance_grad: a step ends where no gradient is larger.
        tolerance_change: a step ends where neither the loss nor a parameter changes by more.
        history_size: number of past updates that approximate the Hessian; each is as large as the model.
        line_search_fn: ``"strong_wolfe"``, which is recommended, or None for the learning rate as it is.

    Raises:
        OptimError: an option is invalid.

    Liu and Nocedal, 1989; same as :class:`torch.optim.LBFGS`, which performs the steps; Burn's LBFGS.

    >>> model = torch.nn.Linear(1, 1)
    >>> x = torch.linspace(-1, 1, 9)[:, None]
    >>> def closure():
    ...     loss = (model(x) - 3 * x - 1).square().mean()
    ...     return loss, Gradients.of(loss, model)
    >>> result = Lbfgs(line_search_fn="strong_wolfe").step_with(1.0, model, closure)
    >>> round(model.weight.item(), 3), round(model.bias.item(), 3)
    (3.0, 1.0)
    """

    _torch = torch.optim.LBFGS
    needs_closure = True

    max_iter: int = 20
    max_eval: int | None = None
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    history_size: int = 100
    line_search_fn: Literal["strong_wolfe"] | None = None

    def __post_init__(self) -> None:
        if self.line_search_fn not in (None, "strong_wolfe"):
            raise option_error("Lbfgs", "line_search_fn", "'strong_wolfe' or None", self.line_search_fn)
        super().__post_init__()

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """Raise: one gradient is not enough.

        Raises:
            OptimError: always.
        """
        raise OptimError(
            "Lbfgs evaluates the loss several times per step",
            expected="step_with(lr, model, closure)",
            found="step(lr, model, grads)",
            hint="the closure returns the loss and Gradients.of(loss, model)",
        )

    def step_with(
        self,
        lr: float,
        model: Model,
        closure: Callable[[], tuple[Tensor, Mapping[str, Tensor]]],
        *,
        clip_norm: float | None = None,
    ) -> StepResult:
        """Update the parameters by at most `max_iter` iterations.

        Args:
            lr: the learning rate of this step, the first step length that the line search tries.
            model: a module, or parameters by path.
            closure: computes loss and gradients, by path, at the present parameters.
            clip_norm: scale the gradients of each evaluation down to this global norm. They are then not
                the loss's gradients, which misleads the line search and the approximation: leave it out.

        Returns:
            The gradients' norm at the first evaluation, if `clip_norm` is given.

        Raises:
            OptimError: a gradient belongs to no parameter of the model, or the rate is below 0.
        """
        self._check_rate(lr)
        self._bind_model(model)
        assert self._inner is not None
        norms: list[Tensor] = []

        def evaluate() -> Tensor:
            loss, grads = closure()
            self._check_paths(grads)
            if clip_norm is not None:
                grads = Gradients(grads)
                norms.append(grads.norm())
                grads = grads.clip_norm(clip_norm)
            for path, parameter in self._params.items():
                parameter.grad = grads.get(path)
            return loss

        self._inner.param_groups[0]["lr"] = lr
        try:
            self._inner.step(evaluate)  # type: ignore[arg-type]
        finally:
            for parameter in self._params.values():
                parameter.grad = None
        return StepResult(norms[0] if norms else None, torch.tensor(False), "torch: it has no kernel")

    def into_record(self) -> OptimizerRecord:
        """Return the state as a record. It is by the first parameter's path, and of all parameters."""
        tensors = dict(self._pending_state)
        if self._inner is not None:
            path = next(iter(self._params))
            state = self._inner.state.get(self._params[path], {})
            for name in (*_LISTS, *_TENSORS, *_NUMBERS):
                value = state.get(name)
                if name in _LISTS and value:
                    tensors[f"{path}/{name}"] = torch.stack(value)
                elif name in _TENSORS and value is not None:
                    tensors[f"{path}/{name}"] = torch.as_tensor(value)
                elif name in _NUMBERS and value is not None:
                    tensors[f"{path}/{name}"] = torch.tensor(float(value), dtype=torch.float64)
        return OptimizerRecord(type(self).__name__, dict(self._options), tensors)

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        if len(devices := {str(parameter.device): None for parameter in named.values()}) > 1:
            raise OptimError(
                "Lbfgs cannot step a model in parts",
                expected="all parameters on one device, as it computes with all of them as one vector",
                found=" and ".join(devices),
                hint="another optimizer, such as AdamW, steps the parameters of each device",
            )
        saved, self._params = self.into_record().tensors, dict(named)
        self._inner = torch.optim.LBFGS(list(named.values()), **self._options)
        self._pending_state = {}
        if not saved:
            return
        first = next(iter(named.values()))
        tensors = {key.rpartition("/")[2]: value.clone() for key, value in saved.items()}
        count = sum(p.numel() * (2 if p.is_complex() else 1) for p in named.values())
        if "d" in tensors and tensors["d"].numel() != count:
            raise OptimError(
                "the optimizer's state is of another model",
                expected=f"{count} values",
                found=f"{tensors['d'].numel()} values",
                hint="the model has changed since the state was saved",
            )
        state: dict[str, Any] = {name: tensors[name].item() for name in _NUMBERS if name in tensors}
        state |= {name: int(state[name]) for name in ("func_evals", "n_iter")}
        dtype = first.real.dtype if first.is_complex() else first.dtype
        for name in (*_LISTS, *_TENSORS):
            if name in tensors:
                moved = tensors[name].to(first.device, dtype)
                # Rows of one tensor are not aligned as the tensors of torch's own steps.
                state[name] = [row.clone() for row in moved.unbind()] if name in _LISTS else moved
        if "d" in state:
            state |= {name: state.get(name, []) for name in _LISTS}
        self._inner.state[first] = state
