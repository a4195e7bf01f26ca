"""Optimizer: `step(lr, model, grads)` with burnt's kernels, and state by parameter path.

The state has the names of `torch.optim`, where torch has the optimizer. Torch's then performs the steps that
`burnt.kernels` does not support: sparse gradients and complex parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt.config import Config as _Config
from burnt.config import DerivedConfig, derive_config, field_values
from burnt.errors import OptimError, did_you_mean, quantity
from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.kernels.optim.foreach import BoundParams, measure_gradients
from burnt.kernels.optim.formula import Update
from burnt.kernels.optim.request import CLIP_EPS
from burnt.kernels.optim.steps import update_step
from burnt.record import read_tensors, write_tensors


@dataclasses.dataclass(frozen=True)
class OptimizerRecord:
    """The state of an optimizer.

    Args:
        optimizer: the class's name, ``"AdamW"``.
        options: the options that the optimizer was built with, without the learning rate.
        tensors: state tensors by parameter path and name, ``"head.weight/exp_avg"``. Those of the optimizers
            inside `Groups` and averages have a prefix, ``"0/head.weight/exp_avg"``; those of no parameter
            have an empty path.
    """

    optimizer: str
    options: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        values = quantity(sum(t.numel() for t in self.tensors.values()), "value")
        tensors = quantity(len(self.tensors), "tensor")
        return f"OptimizerRecord({self.optimizer}({options}), {tensors}, {values})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically.

        Raises:
            OSError: the folder cannot be written.
        """
        write_tensors(path, self.tensors, {"optimizer": self.optimizer, "options": dict(self.options)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> OptimizerRecord:
        """Read a file that `save` wrote.

        Raises:
            RecordError: the file is damaged.
            OptimError: it holds no optimizer.
        """
        tensors, document = read_tensors(path)
        if not document or "optimizer" not in document:
            raise OptimError("this file holds no optimizer", where=os.fspath(path))
        return cls(document["optimizer"], document["options"], tensors)


_MOST_BOUND = 16  # sets of parameters that have gradients, whose steps need not be checked again


Model = torch.nn.Module | Mapping[str, torch.nn.Parameter]
"""What an optimizer steps: a module, or parameters by path."""


class StepOptions(NamedTuple):
    """The options of `Optimizer.step`."""

    clip_norm: float | None = None
    grad_scale: float | Tensor | None = None
    ema: torch.nn.Module | Mapping[str, Tensor] | None = None
    ema_decay: float = 0.999


class StepInputs(NamedTuple):
    """What a step of `burnt.kernels` is computed from: the parameters that have a gradient."""

    params: Sequence[Tensor]
    grads: Sequence[Tensor]
    states: Sequence[dict[str, Any]]
    settings: Mapping[str, Any]  # keywords of the kernel: the learning rate, clipping, loss scale, averages

    def state(self, *names: str) -> list[list[Any]]:
        """Return the states of these names, each as a list over the parameters; None where there is none."""
        return [[state.get(name) for state in self.states] for name in names]


_NO_PARAMS = "the parameters are those of the model that the Learner, or step(lr, model, grads), is given"
_NO_RATE = (
    "the learning rate is the Learner's schedule, Learner(model, optimizer, 1e-3), or that of step(lr, ...)"
)


def _holds_tensors(value: Any) -> bool:
    """Whether a value is a model, parameters, or parameter groups as torch's optimizers take them."""
    if isinstance(value, Sequence) and value:
        value = value[0]
    if isinstance(value, Mapping) and any(isinstance(one, Optimizer) for one in value.values()):
        return False  # for Groups, which takes a list
    return isinstance(value, Tensor | torch.nn.Module | Mapping | Iterator)


def is_rate(value: Any) -> bool:
    """Whether a value, such as one that a user's schedule returned, can be a learning rate.

    >>> is_rate(0.0), is_rate(-1.0), is_rate(float("nan")), is_rate(None)
    (True, False, False, False)
    """
    try:
        return bool(value >= 0)
    except TypeError:
        return False


def _is_number(value: object, default: object) -> bool:
    """Whether an option is a number, or None where its default is None."""
    return isinstance(value, numbers.Real) or (value is None and default is None)


def option_error(optimizer: str, name: str, expected: str, found: object) -> OptimError:
    """Return the error for an invalid option."""
    return OptimError(f"{optimizer} cannot be built", where=name, expected=expected, found=repr(found))


def rate_error(what: str, where: str, rate: object) -> OptimError:
    """Return the error for a learning rate that is none, see `is_rate`."""
    return OptimError(
        f"{what} cannot step with this learning rate",
        where=where,
        expected="a number of at least 0",
        found=repr(rate),
    )


def clip_together(
    parts: list[dict[str, Tensor]], clip_norm: float | None, grad_scale: float | Tensor | None
) -> tuple[StepResult, list[dict[str, Tensor]], float | Tensor | None]:
    """Measure gradients that several steps get, and limit their common norm.

    Returns what a step with all of them would return, and the gradients and the loss scale that together are
    clipped as by torch's `clip_grad_norm_`. With a loss scale, the steps must be skipped if the result says
    so.
    """
    grads = [g.coalesce().values() if g.is_sparse else g for part in parts for g in part.values()]
    measured = measure_gradients(grads, max_norm=clip_norm, grad_scale=grad_scale)
    norm = measured.norm
    if clip_norm is None or norm is None:
        return measured, parts, grad_scale
    factor = (clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)
    # On a GPU the comparison would wait for the norm.
    if factor.device.type == "cpu" and 0 < float(factor) <= 1:
        if float(factor) == 1:
            return measured, parts, grad_scale
        # The steps divide by the loss scale as they read the gradients.
        return measured, parts, (1.0 if grad_scale is None else float(grad_scale)) / float(factor)
    factors = {device: factor.to(device) for device in {g.device for g in grads}}
    clipped = [{path: g * factors[g.device] for path, g in part.items()} for part in parts]
    return measured, clipped, grad_scale


def join_names(results: Sequence[StepResult]) -> str:
    """Return which implementations several steps ran, each once."""
    return "; ".join(dict.fromkeys(result.by for result in results))


def zero(parameter: Tensor) -> Tensor:
    """Return a scalar for a parameter's state, such as a step counter."""
    return torch.zeros((), dtype=torch.float32, device=parameter.device)


@dataclass_transform(eq_default=False)
class Optimizer:
    """Base of the optimizers: built without parameters; each step gets model, gradients and learning rate.

    A direct subclass annotates its options, and `__init__` is derived from them, as for a dataclass. State is
    stored by parameter path, so it stays valid for a model that was moved, forked or reloaded.

    Raises:
        OptimError: an option has an invalid value; at a step, a gradient is sparse or a parameter complex,
            and torch has no such optimizer that takes it.
    """

    _torch: ClassVar[type[torch.optim.Optimizer] | None] = None
    _update: ClassVar[Update]
    needs_closure: bool = False  # whether the training calls `step_with`
    is_elementwise: bool = True  # whether each element's update depends on no other, but by clip_norm
    # Of the learning rates that the optimizer schedules itself. The training sets it before each step.
    rate_factor: float = 1.0
    _usage: ClassVar[str | None] = None  # how it is built, for messages; by default with options
    _shape: ClassVar[tuple[int, ...]] = (0,)  # of a parameter that every such optimizer accepts
    _state_names: ClassVar[tuple[str, ...]] = ()  # of the state of each parameter, which begins with zeros

    if TYPE_CHECKING:

        class Config(_Config):
            """The arguments of `__init__`; `init()` builds the optimizer."""

            def __init__(self, **values: Any) -> None: ...

            def init(self) -> Any:
                """Build the optimizer."""

    else:
        Config = DerivedConfig(
            lambda owner: derive_config(owner, lambda config: owner(**field_values(config)))
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            name
            for name, kind in inspect.get_annotations(cls).items()
            if not str(kind).startswith(("ClassVar", "typing.ClassVar"))
        }
        # A subclass of an optimizer with options may change their defaults; what else it annotates is its own
        has_options = cls.__init__ is not Optimizer.__init__
        if (
            own
            and "__init__" not in cls.__dict__
            and (not has_options or own <= getattr(cls, "__dataclass_fields__", {}).keys())
        ):
            dataclasses.dataclass(eq=False, repr=False)(cls)
        if "__init__" in cls.__dict__:
            notes = {"lr": _NO_RATE, "learning_rate": _NO_RATE, "params": _NO_PARAMS}
            cls.__init__ = explain_arguments(**notes)(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Raise if the first argument is what torch's optimizers take first: the parameters."""
        if args and _holds_tensors(args[0]):
            raise OptimError(
                f"{cls.__name__} is built without parameters",
                expected=cls._usage or f"{cls.__name__}() or {cls.__name__}(option=value)",
                found=f"a {type(args[0]).__name__} as its first argument",
                hint=_NO_PARAMS,
            )
        if (
            args
            and isinstance(args[0], int | float)
            and "betas" in inspect.signature(cls.__init__).parameters
        ):
            raise OptimError(
                f"{cls.__name__} takes no number as its first argument",
                expected=f"{cls.__name__}() or {cls.__name__}(option=value)",
                found=repr(args[0]),
                hint=_NO_RATE,
            )
        return super().__new__(cls)

    def __init__(self, **options: Any) -> None:
        options |= self._checked_tuples(options)
        self._check_options(options)
        self._options = options
        self._bound_to: object = None
        self._params: dict[str, torch.nn.Parameter] = {}
        self._state: dict[str, dict[str, Any]] = {}
        # The parameters that have gradients in a step, and their states, by their paths.
        self._bound: dict[tuple[str, ...], tuple[BoundParams, list[dict[str, Any]]]] = {}
        self._inner: torch.optim.Optimizer | None = None
        self._pending_state: Mapping[str, Tensor] = {}
        self._is_in_parts = False  # whether the parameters are on several devices

    def __post_init__(self) -> None:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        Optimizer.__init__(self, **{field.name: getattr(self, field.name) for field in fields})

    def _checked_tuples(self, options: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Return the options that are several numbers, such as betas, as tuples as long as their defaults."""
        checked = {}
        for name, parameter in inspect.signature(type(self).__init__).parameters.items():
            default = parameter.default
            if name not in options or not isinstance(default, tuple):
                continue
            value = options[name]
            is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
            if not (is_sequence and len(value) == len(default) and all(map(_is_number, value, default))):
                expected = f"{len(default)} numbers, such as {default!r}"
                raise option_error(type(self).__name__, name, expected, value)
            checked[name] = tuple(value)
        return checked

    def _check_options(self, options: Mapping[str, Any]) -> None:
        if self._torch is not None:
            try:
                self._torch([torch.nn.Parameter(torch.empty(self._shape))], lr=0.0, **options)  # type: ignore[call-arg]
            except (TypeError, ValueError) as error:
                raise OptimError(f"{type(self).__name__} cannot be built", found=str(error)) from None
            return
        for name, value in options.items():
            are_betas = name == "betas"
            is_valid = are_betas or (_is_number(value, 0.0) and value >= 0)
            if not is_valid or (are_betas and not all(0 <= beta < 1 for beta in value)):
                expected = "numbers of at least 0 and below 1" if are_betas else "a number of at least 0"
                raise option_error(type(self).__name__, name, expected, value)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({options})"

    def step(
        self,
        lr: float,
        model: Model,
        grads: Mapping[str, Tensor],
        *,
        clip_norm: float | None = None,
        grad_scale: float | Tensor | None = None,
        ema: torch.nn.Module | Mapping[str, Tensor] | None = None,
        ema_decay: float = 0.999,
    ) -> StepResult:
        """Update the parameters in place. Clipping, unscaling and averaging share its passes over memory.

        Args:
            lr: the learning rate of this step.
            model: a module, or parameters by path; a mapping is assumed to keep its parameters.
            grads: gradients by path, such as `burnt.Gradients`; parameters without one stay unchanged.
            clip_norm: scale gradients down to this global norm, as `Gradients.clip_norm` does; infinity only
                computes the norm.
            grad_scale: the factor by which the loss was multiplied for float16 gradients: they are divided
                by it, and the step is skipped if one is NaN or infinite.
            ema: moving averages of the parameters by the same paths, as in ``model.fork()``; updated.
            ema_decay: the weight of the old average.

        Returns:
            The gradients' norm if requested, whether the step was skipped, and which implementation ran.

        Raises:
            OptimError: a gradient belongs to no parameter of the model, a parameter has no average, or the
                rate is below 0.
            InputRuntimeError: a gradient does not fit its parameter.
        """
        return self._step(lr, model, grads, StepOptions(clip_norm, grad_scale, ema, ema_decay))

    def _step(self, lr: float, model: Model, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        self._check_rate(lr)
        self._bind_model(model)
        self._check_paths(grads)
        averages = None if options.ema is None else self._averages(options.ema)
        if all(self._params[path].is_floating_point() and not g.is_sparse for path, g in grads.items()):
            steps = self._advance_by_device if self._is_in_parts else self._advance_by_kernels
            result = steps(lr, grads, options._replace(ema=averages))
            rest = [path for path in averages or () if path not in grads]
        else:
            result = self._step_with_torch(lr, grads, options)
            rest = list(averages or ())
        if averages is not None and rest:
            weight = torch.where(result.skipped, 0.0, 1 - options.ema_decay)
            with torch.no_grad():
                for path in rest:
                    average = averages[path]
                    average.lerp_(self._params[path], weight.to(average.device, average.dtype))
        return result

    def _advance_by_kernels(self, lr: float, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        averages: Any = options.ema
        settings = {
            "lr": lr,
            "max_norm": options.clip_norm,
            "grad_scale": options.grad_scale,
            "ema": None if averages is None else [averages[path] for path in grads],
            "ema_decay": options.ema_decay,
        }
        paths = tuple(grads)
        if paths not in self._bound:
            if len(self._bound) >= _MOST_BOUND:
                self._bound.clear()
            states = [self._state_of(path) for path in paths]
            self._bound[paths] = BoundParams(self._params[path] for path in paths), states
        params, states = self._bound[paths]
        return self._advance(StepInputs(params, [g for _, g in grads.items()], states, settings))

    def _advance_by_device(self, lr: float, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        """Perform a step of a model in parts: the parameters of each device by its own kernels."""
        parts: dict[torch.device, dict[str, Tensor]] = {}
        for path, gradient in grads.items():
            parts.setdefault(gradient.device, {})[path] = gradient
        measured, divided, scale = clip_together(list(parts.values()), options.clip_norm, options.grad_scale)
        if options.grad_scale is not None and bool(measured.skipped):
            return measured
        results = []
        for device, part in zip(parts, divided, strict=True):
            own = scale.to(device) if isinstance(scale, Tensor) else scale
            limits = options._replace(clip_norm=None, grad_scale=own)
            results.append(self._advance_by_kernels(lr, part, limits))
        return StepResult(measured.norm, measured.skipped, join_names(results))

    def step_with(
        self,
        lr: float,
        model: Model,
        closure: Callable[[], tuple[Tensor, Mapping[str, Tensor]]],
        *,
        clip_norm: float | None = None,
    ) -> StepResult:
        """Update the parameters by a step that evaluates the loss several times, at parameters it tries.

        The training calls this instead of `step` where `needs_closure` is true.

        Args:
            lr: the learning rate of this step.
            model: a module, or parameters by path, as in `step`.
            closure: computes loss and gradients, by path, at the present parameters.
            clip_norm: maximum global norm of the gradients of each evaluation.
        """
        raise NotImplementedError(f"{type(self).__name__} steps with gradients: step(lr, model, grads)")

    @property
    def rates(self) -> Mapping[str, float]:
        """The learning rates of the last step that are not the one `step` was given, by group."""
        return {}

    @property
    def schedules(self) -> Mapping[str, Callable[[int], float]]:
        """The schedules that the optimizer has of its own, by group."""
        return {}

    def train(self, model: Model) -> None:
        """Put the parameters for training in place, after `eval`.

        An optimizer whose results are other parameters than those it trains (averages) overrides both.
        """

    def eval(self, model: Model) -> None:
        """Put the parameters to evaluate and save in place; `train` undoes it."""

    def check(self, lr: float, model: Model) -> None:
        """Raise what `step` would raise for this learning rate and these parameters, before a step.

        A training calls it before its first step.

        Raises:
            OptimError: the optimizer cannot step these parameters, or the rate is below 0 or no number.
        """
        self._check_rate(lr)
        self._bind_model(model)

    def _check_rate(self, lr: float) -> None:
        if not is_rate(lr):
            raise rate_error(type(self).__name__, "lr", lr)

    def _bind_model(self, model: Model) -> None:
        """Step the parameters of this model from now on, if it is not the one of the last step."""
        if isinstance(model, torch.nn.Module):
            # The module may have been moved, or have other parameters, since the last step.
            named = dict(model.named_parameters())
            binding: object = [(path, id(p), p.device, p.dtype) for path, p in named.items()]
            if binding != self._bound_to:
                self._bind(named)
                self._bound_to = binding
        elif model is not self._bound_to:
            self._bind(model)
            self._bound_to = model

    def _check_paths(self, grads: Mapping[str, Tensor]) -> None:
        for path in grads:
            if path not in self._params:
                raise OptimError(
                    "a gradient belongs to no parameter of the model",
                    where=path,
                    hint=did_you_mean(path, self._params, "were the gradients computed with another model?"),
                )

    def _averages(self, ema: torch.nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
        named = dict(ema.named_parameters()) if isinstance(ema, torch.nn.Module) else ema
        missing = next((path for path in self._params if path not in named), None)
        if missing is not None:
            raise OptimError(
                "a parameter has no average",
                where=missing,
                expected="averages by the paths of the parameters",
                hint="create them with model.fork() before the first step",
            )
        return {path: named[path] for path in self._params}

    def _check_record(self, record: OptimizerRecord) -> None:
        if record.optimizer != type(self).__name__:
            raise OptimError(
                "the state of one optimizer does not fit another",
                expected=type(self).__name__,
                found=record.optimizer,
                hint=f"resume with optim.{record.optimizer}, or start afresh",
            )

    def into_record(self) -> OptimizerRecord:
        """Return the state as a record, which shares memory with the optimizer."""
        tensors = dict(self._pending_state)
        for path, state in self._state.items():
            tensors |= {
                f"{path}/{name}": value.detach() for name, value in state.items() if value is not None
            }
        return OptimizerRecord(type(self).__name__, dict(self._options), tensors)

    def load_record(self, record: OptimizerRecord) -> None:
        """Load a saved state; it is applied at the next step.

        Raises:
            OptimError: the record is of another optimizer, or lacks a state that an option needs.
        """
        self._check_record(record)
        saved = {key.rpartition("/")[2] for key in record.tensors}
        needed = self._needed_state(saved)
        if record.tensors and not needed <= saved:
            options = [f"{name}={v!r}" for name, v in record.options.items() if v != self._options.get(name)]
            raise OptimError(
                "the saved state lacks what this optimizer's options need",
                expected=", ".join(sorted(needed)),
                found=", ".join(sorted(saved)),
                hint=f"resume with {record.optimizer}({', '.join(options)}), or start afresh",
            )
        self._bound_to, self._inner, self._params, self._state = None, None, {}, {}
        self._pending_state = {
            key: tensor.clone() for key, tensor in record.tensors.items() if key.rpartition("/")[2] in needed
        }

    def _needed_state(self, saved: set[str]) -> set[str]:
        """Return the names that a state with these ones must have; others are of options that are off now."""
        return set(self._initial_state(torch.empty(self._shape))) or saved

    def _initial_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            name: zero(parameter) if name == "step" else torch.zeros_like(parameter)
            for name in self._state_names
        }

    def _state_of(self, path: str) -> dict[str, Any]:
        state = self._state.setdefault(path, {})
        if not state:
            state |= self._initial_state(self._params[path].detach())
        return state

    def _advance(self, inputs: StepInputs) -> StepResult:
        """Perform a step with `burnt.kernels`, by the formula `_update` unless a class overrides it."""
        params, grads, states, settings = inputs
        names, update = states[0].keys() if states else (), self._update
        # In the order of the update, not of a record, so that there is one kernel for both.
        tensors, scalars = (
            {name: [state[name] for state in states] for name in of_update if name in names}
            for of_update in (update.elements, update.scalars)
        )
        return update_step(
            type(self).__name__, update, params, grads, tensors, scalars, **self._options, **settings
        )

    def _step_with_torch(self, lr: float, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        """Perform a step with torch's optimizer; with a loss scale, it synchronises with the device."""
        clip_norm, grad_scale = options.clip_norm, options.grad_scale
        scaled, norm, by = Gradients(grads), None, "torch.optim: sparse or complex"
        if grad_scale is not None:
            scaled = scaled.scale(1 / grad_scale)
        if clip_norm is not None or grad_scale is not None:
            norm = scaled.norm()
        if grad_scale is not None and not scaled.finite():
            return StepResult(norm, torch.tensor(True), by)
        if clip_norm is not None:
            scaled = scaled.clip_norm(clip_norm)
        if self._inner is None:
            if self._torch is None:
                raise self._unsupported("it needs dense gradients of real parameters")
            self._inner = self._torch(list(self._params.values()), lr=0.0, **self._options)  # type: ignore[call-arg]
        self._inner.param_groups[0]["lr"] = lr
        try:
            for path, gradient in scaled.items():
                parameter = self._params[path]
                parameter.grad = gradient
                self._inner.state[parameter] = self._state_of(path)
            self._inner.step()
        except RuntimeError as error:
            raise self._unsupported(str(error)) from None
        finally:
            for parameter in self._params.values():
                parameter.grad = None
        return StepResult(norm, torch.tensor(False), by)

    def _unsupported(self, found: str) -> OptimError:
        return OptimError(
            f"{type(self).__name__} does not support sparse gradients or complex parameters like these",
            found=found,
            hint="gradient.to_dense(), torch.view_as_real(parameter), or another optimizer, such as Sgd",
        )

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        """Step these parameters from now on, with the state of their paths."""
        tensors, params = self.into_record().tensors, dict(named)
        self._check_params(params)
        states: dict[str, dict[str, Any]] = {}
        for key, value in tensors.items():
            path, _, name = key.rpartition("/")
            parameter = params.get(path)
            if parameter is None:
                raise OptimError(
                    "the optimizer's state belongs to a parameter that the model lacks",
                    where=path,
                    hint="the model has changed since the state was saved",
                )
            like = self._initial_state(parameter.detach().to("meta")).get(name, parameter)
            if value.shape != like.shape:
                raise OptimError(
                    "the optimizer's state has another shape than its parameter",
                    where=key,
                    expected=tuple(like.shape),
                    found=tuple(value.shape),
                )
            placed = torch.empty_like(like, device=parameter.device, requires_grad=False)
            states.setdefault(path, {})[name] = placed.copy_(value)  # with the strides of the first step's
        self._params, self._state, self._inner, self._pending_state = params, states, None, {}
        self._bound = {}
        self._is_in_parts = len({parameter.device for parameter in params.values()}) > 1

    def _check_params(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Raise if the optimizer cannot step these parameters."""
