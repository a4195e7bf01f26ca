"""Averages of weights: Ema and Swa, around any optimizer."""

from __future__ import annotations

import numbers
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.errors import OptimError
from burnt.gradients import summed_dtype
from burnt.kernels import StepResult
from burnt.optim.optimizer import Model, Optimizer, OptimizerRecord, StepOptions, option_error

_INNER = "optimizer/"  # before the keys of the state of the optimizer inside


class _Averaging(Optimizer):
    """Base of Ema and Swa: an optimizer, and an average of each parameter that it trains.

    The averages of 16-bit parameters are in float32: there, most small changes would be rounded away.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._usage = f"{cls.__name__}(optim.AdamW())"

    def __init__(self, optimizer: Optimizer, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise OptimError(
                f"{type(self).__name__} needs an optimizer",
                expected=f"such as {type(self).__name__}(optim.AdamW(), ...)",
                found=repr(optimizer),
            )
        self.optimizer = optimizer
        self.needs_closure, self.is_elementwise = optimizer.needs_closure, optimizer.is_elementwise
        self._options = options
        self._bound_to: object = None
        self._params: dict[str, torch.nn.Parameter] = {}
        self._steps = 0
        self._average: dict[str, Tensor] = {}
        # The parameters for training, while the averages are in their place.
        self._trained: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({self.optimizer!r}{options})"

    @property
    def rates(self) -> Mapping[str, float]:
        """Those of the optimizer inside."""
        return self.optimizer.rates

    @property
    def schedules(self) -> Mapping[str, Callable[[int], float]]:
        """Those of the optimizer inside."""
        return self.optimizer.schedules

    def _step(self, lr: float, model: Model, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        self._prepare(model)
        weight = self._weight(self._steps + 1)
        is_fused = options.ema is None and weight is not None and self._can_fuse()
        if is_fused and weight is not None:
            options = options._replace(ema=self._average, ema_decay=1 - weight)
        result = self.optimizer.step(lr, model, grads, **options._asdict())
        if options.grad_scale is None or not bool(result.skipped):  # synchronises with the device
            self._steps += 1
            if weight is not None and not is_fused:
                self._average_params(weight)
        return result

    def step_with(
        self,
        lr: float,
        model: Model,
        closure: Callable[[], tuple[Tensor, Mapping[str, Tensor]]],
        *,
        clip_norm: float | None = None,
    ) -> StepResult:
        """Update the parameters by the optimizer inside, then the averages; see `Optimizer.step_with`."""
        self._prepare(model)
        result = self.optimizer.step_with(lr, model, closure, clip_norm=clip_norm)
        self._steps += 1
        if (weight := self._weight(self._steps)) is not None:
            self._average_params(weight)
        return result

    def check(self, lr: float, model: Model) -> None:
        """Raise what the optimizer inside would raise; see `Optimizer.check`."""
        self.optimizer.check(lr, model)

    def train(self, model: Model) -> None:
        """Put the parameters for training in place, after `eval`."""
        if self._trained is not None:
            self._bind_model(model)
            self._copy(self._trained)
            self._trained = None
        self.optimizer.train(model)

    def eval(self, model: Model) -> None:
        """Put the averages in place of the parameters, of which the record then has a copy."""
        self.optimizer.eval(model)
        if self._trained is None:
            self._bind_model(model)
            self._trained = {path: self._params[path].detach().clone() for path in self._average}
            self._copy(self._average)

    def into_record(self) -> OptimizerRecord:
        """Return the state as a record, which shares memory with the optimizer."""
        inner = self.optimizer.into_record()
        tensors = {f"{_INNER}{name}": tensor for name, tensor in inner.tensors.items()}
        tensors |= {f"/{path}/average": tensor for path, tensor in self._average.items()}
        tensors |= {f"/{path}/trained": tensor for path, tensor in (self._trained or {}).items()}
        options = {
            **self._options,
            "optimizer": {"optimizer": inner.optimizer, "options": dict(inner.options)},
        }
        return OptimizerRecord(type(self).__name__, options, {**tensors, "/steps": torch.tensor(self._steps)})

    def load_record(self, record: OptimizerRecord) -> None:
        """Load a saved state; if it was saved after `eval`, call `train` before the next step.

        Raises:
            OptimError: the record is of another optimizer, or of another one inside.
        """
        self._check_record(record)
        own, inner = {}, {}
        for key, tensor in record.tensors.items():
            if key.startswith(_INNER):
                inner[key.removeprefix(_INNER)] = tensor
            else:
                own[key] = tensor.clone()
        self.optimizer.load_record(OptimizerRecord(**record.options["optimizer"], tensors=inner))
        self._steps = int(own.pop("/steps"))
        states: dict[str, dict[str, Tensor]] = {"average": {}, "trained": {}}
        for key, tensor in own.items():
            path, _, name = key.removeprefix("/").rpartition("/")
            states[name][path] = tensor
        self._average, self._trained = states["average"], states["trained"] or None
        self._bound_to = None

    @abstractmethod
    def _weight(self, step: int) -> float | None:
        """Return the weight of the parameters in the averages after a step; None for no change."""

    def _prepare(self, model: Model) -> None:
        if self._trained is not None:
            raise OptimError(
                "the model has its averages in place of the parameters",
                hint="call optimizer.train(model) before the gradients are computed",
            )
        self._bind_model(model)
        self.optimizer.rate_factor = self.rate_factor

    def _can_fuse(self) -> bool:
        """Whether the step of the optimizer inside can update the averages in its passes over memory."""
        return len(self._average) == len(self._params) and all(
            average.dtype == self._params[path].dtype for path, average in self._average.items()
        )

    def _average_params(self, weight: float) -> None:
        averages, values = [], []
        for path, parameter in self._params.items():
            average = self._average.get(path)
            if average is not None:
                averages.append(average)
                values.append(parameter.detach().to(average.dtype))
            elif parameter.requires_grad:
                self._average[path] = parameter.detach().to(summed_dtype(parameter.dtype), copy=True)
        if averages:
            torch._foreach_lerp_(averages, values, weight)

    def _copy(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for path, value in values.items():
                self._params[path].copy_(value)

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        """Take these parameters, with the averages of their paths on their devices and in their layouts."""
        for states in (self._average, self._trained or {}):
            for path, value in states.items():
                if path not in named or named[path].shape != value.shape:
                    raise OptimError(
                        "an average does not fit the model",
                        where=path,
                        expected=f"a parameter of shape {tuple(value.shape)}",
                        found=f"shape {tuple(named[path].shape)}" if path in named else "no such parameter",
                        hint="the model has changed since the state was saved",
                    )
                dtype = summed_dtype(named[path].dtype) if states is self._average else named[path].dtype
                placed = torch.empty_like(named[path], dtype=dtype, requires_grad=False)
                states[path] = placed.copy_(value)
        self._params = dict(named)


class Ema(_Averaging):
    """An optimizer whose results are exponential moving averages of the parameters.

    ``average = decay * average + (1 - decay) * parameter`` after each step; the first average is a copy.
    `eval` puts the averages in place of the parameters, `train` undoes it. A training evaluates and saves the
    averages, and returns the model with them; the parameters that it trains are in the optimizer's record.

    Args:
        optimizer: the optimizer that steps the parameters.
        decay: the weight of the old average.
        warmup: in step t the decay is at most ``(1 + t) / (10 + t)``, so that the first parameters are
            forgotten soon.

    Raises:
        OptimError: `decay` is not in ``[0, 1)``.

    Polyak and Juditsky, 1992; without warm-up as :func:`torch.optim.swa_utils.get_ema_multi_avg_fn`. The
    running statistics of BatchNorm are not averaged: see `burnt.train.update_batch_norm`.

    >>> from burnt import optim
    >>> Ema(optim.Sgd(momentum=0.9), decay=0.99)
    Ema(Sgd(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False), decay=0.99, warmup=True)
    """

    def __init__(self, optimizer: Optimizer, decay: float = 0.999, warmup: bool = True) -> None:
        super().__init__(optimizer, decay=decay, warmup=warmup)
        is_number = isinstance(decay, numbers.Real)
        if not is_number or not 0 <= decay < 1:
            raise option_error("Ema", "decay", "a number of at least 0 and below 1", decay)

    def _weight(self, step: int) -> float:
        decay: float = self._options["decay"]
        return 1 - (min(decay, (1 + step) / (10 + step)) if self._options["warmup"] else decay)


class Swa(_Averaging):
    """An optimizer whose results are means of the parameters at several steps: stochastic weight averaging.

    Until the first of these steps the results are the parameters. `eval` and `train` as in `Ema`.

    Args:
        optimizer: the optimizer that steps the parameters.
        start: steps before the averaging begins.
        every: steps between two additions to the mean; the first is after ``start + every`` steps.

    Raises:
        OptimError: `start` is below 0 or no integer, or `every` below 1.

    Izmailov et al., 2018; as :class:`torch.optim.swa_utils.AveragedModel`. The averaging gains most with a
    high rate, constant or cyclic, from `start` on: ``optim.Sequential(((Cosine(0.1, 900, end=0.05), 900),
    (Constant(0.05), 100)))``.

    >>> from burnt import optim
    >>> Swa(optim.Adam(), start=900, every=20)._options
    {'start': 900, 'every': 20}
    """

    def __init__(self, optimizer: Optimizer, start: int, every: int = 1) -> None:
        super().__init__(optimizer, start=start, every=every)
        counts: dict[str, Any] = {"start": start, "every": every}
        for (name, value), least in zip(counts.items(), (0, 1), strict=True):
            if not isinstance(value, numbers.Integral) or value < least:
                error = option_error("Swa", name, f"a number of steps of at least {least}", value)
                if isinstance(value, float) and 0 < value < 1:
                    error.hint = f"a share of the training: {name}=int({value} * steps)"
                raise error

    def _weight(self, step: int) -> float | None:
        count, rest = divmod(step - self._options["start"], self._options["every"])
        return 1 / count if count > 0 and not rest else None
