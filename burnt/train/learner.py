"""Learner: a model with its optimizer, learning rate schedule and step functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from burnt import optim
from burnt._hints import explain_arguments
from burnt._lazy import own_names
from burnt._torch import compiled_in_place, is_compiled
from burnt.errors import DefinitionError, did_you_mean
from burnt.gradients import refuse_parallel
from burnt.module import layers_in_body
from burnt.optim import Constant, Optimizer
from burnt.optim.schedules.base import LEARNING_RATE, kind_of, schedule_hint, stable_text
from burnt.train.step import StepOutput
from burnt.train.updates.manual import Optimizers

StepFunction = Callable[..., StepOutput]
"""A step of a model without a `training_step`: ``step(model, batch) -> StepOutput``."""


class Learner:
    """A model with everything needed to train it.

    Args:
        model: a burnt Module or any torch module. A model wrapped by `torch.compile` is unwrapped and
            compiled in place, so that its steps run compiled and its parameters keep their paths.
        optimizer: an optimizer of `burnt.optim`. Or several, each by the path of the submodule that it
            trains or a pattern on paths: then the training step gets a third argument, in which it steps them
            itself, ``optimizers["generator"].step(loss)``
            (`burnt.train.updates.manual.StepOptimizer`), and the validation step must be given.
        schedule: the learning rate: a schedule of `burnt.optim`, a `Plateau`, a number, or a function of the
            steps done. For several optimizers, one for all or one by each name.
        step: ``step(model, batch) -> StepOutput``, for a model without a `training_step`.
        validation_step: the same for validation; by default the model's `validation_step`, or the training
            step.
        compile: train the model compiled by `burnt.compile`, with the default options or those of a mapping,
            ``{"dynamic": True}``: its calls in steps, evaluations and predictions.

    The attribute `precision` is the last training's, in which `evaluate` evaluates the model.

    Raises:
        DefinitionError: `optimizer` is not an optimizer of burnt, `schedule` is not a learning rate, or the
            model has no `training_step` and no `step` was given, or a class of the model holds a layer; or
            the model cannot be compiled: it is swapped, or compiled otherwise.
        OptimError: of several optimizers, one cannot be stepped by gradients or has two names.
        UnsupportedError: the model contains DistributedDataParallel or the like, whose gradients only
            ``loss.backward()`` synchronizes.

    >>> import burnt
    >>> from burnt import nn, optim
    >>> def step(model, batch):
    ...     return burnt.train.StepOutput(loss=model(batch.x).square().mean(), targets=batch.y)
    >>> learner = Learner(nn.Linear(2, 1), optim.AdamW(), optim.Cosine(1e-3, steps=100), step=step)
    """

    @explain_arguments(
        lr="the learning rate is the schedule: Learner(model, optimizer, 1e-3)",
        loss="the loss is computed in the step: step=, or the model's training_step",
        loss_fn="the loss is computed in the step: step=, or the model's training_step",
        criterion="the loss is computed in the step: step=, or the model's training_step",
        metrics="metrics belong to SupervisedTraining",
        device="the device belongs to SupervisedTraining",
    )
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer],
        schedule: float | Callable[[int], float] | Mapping[str, float | Callable[[int], float]],
        step: StepFunction | None = None,
        validation_step: StepFunction | None = None,
        compile: bool | Mapping[str, Any] = False,
    ) -> None:
        refuse_parallel(model)
        _refuse_layers_of_classes(model)
        if isinstance(optimizer, Mapping):
            optimizer = _several(optimizer, schedule)
            self.schedule = next(iter(optimizer.all_schedules.values()))
        else:
            if not isinstance(optimizer, Optimizer):
                raise _not_an_optimizer(optimizer, schedule)
            self.schedule = _as_schedule(schedule)
        if step is None:
            step = model_step(model, "training_step")
            if validation_step is None and callable(getattr(model, "validation_step", None)):
                validation_step = model_step(model, "validation_step")
        model = compiled_in_place(model)
        if not isinstance(compile, bool | Mapping):
            raise DefinitionError(
                "compile= of the Learner is not understood",
                expected="True, False, or options of burnt.compile, such as {'dynamic': True}",
                found=repr(compile),
            )
        self.compile = compile if isinstance(compile, bool) else dict(compile)
        if self.compile is not False:
            _check_compilable(model)
        self.model = self.compiled(model)
        self.optimizer = optimizer
        self.step = step
        if validation_step is None:
            validation_step = _no_validation_step if isinstance(optimizer, Optimizers) else step
        self.validation_step = validation_step
        self.precision = "float32"

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model compiled in place as `compile` says, unless it is already; copies are not."""
        if self.compile is False or is_compiled(model):
            return model
        from burnt.fusion.backend import compile

        return compiled_in_place(compile(model, **({} if self.compile is True else self.compile)))

    @property
    def schedule_text(self) -> str:
        """The schedule, or each optimizer's of several, as text that is the same in every process."""
        if not isinstance(self.optimizer, Optimizers):
            return stable_text(self.schedule)
        schedules = self.optimizer.all_schedules.items()
        return ", ".join(f"{name}: {stable_text(schedule)}" for name, schedule in schedules)


def _check_compilable(model: torch.nn.Module) -> None:
    from burnt.swapping.site import site_of

    found, hint = "it is compiled already", "leave out compile=, or torch.compile"
    if any(site_of(module) is not None for module in model.modules()):
        found = "burnt.swap has replaced modules, which compilers see as the originals"
        hint = "one of them: burnt.unswap(model), or leave out compile="
    elif not is_compiled(model):
        return
    what = "the Learner cannot compile its model"
    raise DefinitionError(what, where="compile", expected="a model as it was built", found=found, hint=hint)


def _refuse_layers_of_classes(model: torch.nn.Module) -> None:
    """Refuse trainable layers in the body of a torch module's class, which no training would find.

    `burnt.Module` has refused those of its own.
    """
    owners = {type(module): path for path, module in reversed(list(model.named_modules()))}
    for owner, path in owners.items():
        for name, layer in layers_in_body(owner):
            parameters = layer.parameters() if isinstance(layer, torch.nn.Module) else [layer]
            if any(parameter.requires_grad for parameter in parameters):
                raise DefinitionError(
                    f"{owner.__qualname__}.{name} would be neither trained nor saved",
                    where=".".join(filter(None, ("model", path, name))),
                    expected=f"self.{name} = ... in __init__",
                    found=f"a {type(layer).__name__} that belongs to the class, not to its instances",
                    hint="if it is not to be trained, freeze it: requires_grad_(False)",
                )


def _several(given: Mapping[str, Any], schedule: Any) -> Optimizers:
    """Return the optimizers by name, with the schedule of each."""
    schedules = schedule if isinstance(schedule, Mapping) else dict.fromkeys(given, schedule)
    for name, one in given.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise DefinitionError(
                "an optimizer has an unusable name",
                expected="the path of a submodule, or a pattern",
                found=repr(name),
            )
        if not isinstance(one, Optimizer):
            error = _not_an_optimizer(one, schedules.get(name))
            error.where = name
            raise error
    if not given or schedules.keys() != given.keys():
        unknown = next((name for name in schedules if name not in given), None)
        raise DefinitionError(
            "each of several optimizers needs a learning rate",
            expected=f"a schedule for each of {', '.join(map(repr, given)) or 'one optimizer or more'}",
            found=", ".join(map(repr, schedules)) or "none",
            hint=None if unknown is None else did_you_mean(unknown, given),
        )
    return Optimizers(given, {name: _as_schedule(schedules[name]) for name in given})


def _no_validation_step(model: torch.nn.Module, batch: Any) -> StepOutput:
    raise DefinitionError(
        "a Learner with several optimizers has no validation step of its own",
        where=type(model).__name__,
        expected="a method validation_step(batch), or Learner(..., validation_step=function)",
        hint="its training step updates the parameters, so it cannot validate them",
    )


def _not_an_optimizer(given: Any, schedule: Any) -> DefinitionError:
    """Return the error for what is given instead of an optimizer, such as one of torch's, or a class."""
    cls = given if isinstance(given, type) else type(given)
    hint = None
    if isinstance(schedule, Optimizer):
        hint = f"the optimizer comes first: Learner(model, {type(schedule).__name__}(...), 1e-3)"
    elif twin := next((n for n in own_names(vars(optim)) if n.lower() == cls.__name__.lower()), None):
        rate = given.defaults["lr"] if isinstance(given, torch.optim.Optimizer) else 1e-3
        hint = f"Learner(model, burnt.optim.{twin}(), {rate}): the learning rate is the schedule"
    return DefinitionError(
        "the Learner needs a burnt optimizer",
        expected="burnt.optim.AdamW() or another optimizer, built without parameters",
        found=kind_of(given),
        hint=hint,
    )


def _as_schedule(given: Any) -> Callable[[int], float]:
    """Return a schedule; a number is constant."""
    if callable(given) and not isinstance(given, type):
        schedule: Callable[[int], float] = given
        return schedule
    rate = None
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        rate = None if isinstance(given, str) else float(given)
    if rate is not None:
        return Constant(rate)
    raise DefinitionError(
        "the Learner needs a learning rate",
        expected=LEARNING_RATE,
        found=kind_of(given),
        hint=schedule_hint(given),
    )


def model_step(model: torch.nn.Module, *names: str) -> StepFunction:
    """Return the step that calls the first of these methods which the model has.

    A method of a LightningModule, which wants a ``batch_idx``, is refused.
    """
    name = next((name for name in names if callable(getattr(model, name, None))), None)
    if name is None:
        kind = names[0].removesuffix("_step")
        raise DefinitionError(
            f"{type(model).__name__} has no {kind} step",
            expected=" or ".join(f"a method {name}(batch) -> StepOutput" for name in names)
            + ", or step=function",
            found="neither" if len(names) == 1 else "none of them",
        )
    signature = inspect.signature(getattr(model, name))
    if (index := signature.parameters.get("batch_idx")) is not None and index.default is index.empty:
        raise DefinitionError(
            f"{type(model).__name__}.{name} takes the number of the batch",
            expected=f"{name}(self, batch) -> StepOutput",
            found=f"{name}{signature}",
            hint="training.position of a callback's event has the epoch and the batch",
        )

    def call(model: torch.nn.Module, batch: Any, *optimizers: Any) -> StepOutput:
        output: StepOutput = getattr(model, name)(batch, *optimizers)
        return output

    call.__name__ = call.__qualname__ = name
    return call


class Steps(torch.nn.Module):
    """A module whose `forward` runs a step, so that hooks and `torch.compile` see each step as a call."""

    def __init__(self, model: torch.nn.Module, training: StepFunction, validation: StepFunction) -> None:
        super().__init__()
        self.model = model
        self.training_step = training
        self._validation = validation

    def forward(self, batch: Any, validating: bool = False, *optimizers: Any) -> StepOutput:
        """Run one step on a batch; `optimizers`: those that a training step steps itself."""
        step = self._validation if validating else self.training_step
        return checked_output(
            step(self.model, batch, *optimizers), step, "validation" if validating else "training"
        )


def checked_output(output: Any, step: StepFunction, kind: str) -> StepOutput:
    """Return `output` if it is a StepOutput with a tensor as its loss, else raise a DefinitionError."""
    if not isinstance(output, StepOutput):
        raise DefinitionError(
            f"the {kind} step did not return a StepOutput",
            where=getattr(step, "__qualname__", repr(step)),
            expected="burnt.train.StepOutput(loss=..., outputs=..., targets=...)",
            found=type(output).__name__,
        )
    if not isinstance(output.loss, torch.Tensor):
        raise DefinitionError(
            f"the loss of the {kind} step is not a tensor",
            where=getattr(step, "__qualname__", repr(step)),
            expected="a tensor of shape ()",
            found=type(output.loss).__name__,
            hint="without .item(): the gradients come from the tensor",
        )
    return output
