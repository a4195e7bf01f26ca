"""Several optimizers by name, which the training step steps itself: GANs, actor and critic.

The training step of a Learner with a dictionary of optimizers gets a third argument, a `StepOptimizers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from burnt._patterns import matches, near
from burnt._torch import without_autocast
from burnt.errors import BurntError, DefinitionError, OptimError, did_you_mean
from burnt.gradients import Gradients
from burnt.kernels import StepResult
from burnt.optim import Optimizer, OptimizerRecord
from burnt.optim.optimizer import is_rate
from burnt.train.updates.optimizer_step import GradientRules, OptimizerStep

Schedule = Callable[[int], float]


class Peers(Protocol):
    """What a step of one of several optimizers needs of a training in several processes."""

    def joint_weight(self) -> float:
        """Return by what a loss is multiplied before its backward pass."""
        ...

    def mean_of_parts(self, gradients: Gradients, params: Mapping[str, Tensor]) -> Gradients:
        """Return the gradients of the mean loss over the whole batch, from those of each process's part."""
        ...


class Optimizers(Optimizer):
    """Several optimizers, each for a part of the model, as one for checkpoints, averages and evaluation.

    Each is given by the path of the submodule that it trains, or by a pattern as in `burnt.optim.Groups`; a
    parameter belongs to the first that matches it. The schedules are functions of the training's steps done,
    and the first optimizer's is the Learner's.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], schedules: Mapping[str, Schedule]) -> None:
        self.optimizers = dict(optimizers)
        self.all_schedules = dict(schedules)
        for name, optimizer in self.optimizers.items():
            if optimizer.needs_closure:
                raise OptimError(
                    f"{type(optimizer).__name__} cannot be one of several optimizers",
                    where=name,
                    hint="it evaluates the loss several times in a step; give the Learner it alone",
                )
        if len({id(optimizer) for optimizer in self.optimizers.values()}) < len(self.optimizers):
            raise OptimError("two names share one optimizer object", hint="build an optimizer for each name")
        self.is_elementwise = False  # the steps are the user's
        self.learning_rates: dict[str, float] = {}
        self._steps = 0
        self._bound_to: object = None
        self._params: dict[str, torch.nn.Parameter] = {}
        self._parts: dict[str, dict[str, torch.nn.Parameter]] = {}

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {optimizer!r}' for name, optimizer in self.optimizers.items())}}}"

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """Raise an OptimError: the training step steps each by its name."""
        name = next(iter(self.optimizers))
        raise OptimError(
            "several optimizers are not stepped as one", expected=f"optimizers[{name!r}].step(loss)"
        )

    @property
    def rates(self) -> Mapping[str, float]:
        """The rates of the last step by name, and those that the optimizers schedule themselves."""
        rates = dict(self.learning_rates)
        for name, optimizer in self.optimizers.items():
            rates |= {f"{name}/{inner}": rate for inner, rate in optimizer.rates.items()}
        return rates

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules other than the first optimizer's, which is the Learner's."""
        schedules = dict(list(self.all_schedules.items())[1:])
        for name, optimizer in self.optimizers.items():
            schedules |= {f"{name}/{inner}": own for inner, own in optimizer.schedules.items()}
        return schedules

    def begin_step(self, learning_rate: float) -> None:
        """Compute the rates of the next training step; the first optimizer's is given."""
        first, *others = self.optimizers
        self.learning_rates = {first: learning_rate}
        for name in others:
            rate = self.all_schedules[name](self._steps)
            if not is_rate(rate):
                raise OptimError(
                    "an optimizer cannot step with this learning rate",
                    where=f"the schedule of {name!r}",
                    expected="a number of at least 0",
                    found=repr(rate),
                )
            self.learning_rates[name] = rate * self.rate_factor
        for optimizer in self.optimizers.values():
            optimizer.rate_factor = self.rate_factor
        self._steps += 1

    def parts(
        self, model: torch.nn.Module | Mapping[str, torch.nn.Parameter]
    ) -> dict[str, dict[str, torch.nn.Parameter]]:
        """Return the parameters of each optimizer, by name and path.

        Each name must match a parameter, and each trainable parameter belong to an optimizer.
        """
        named = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else dict(model)
        parts: dict[str, dict[str, torch.nn.Parameter]] = {name: {} for name in self.optimizers}
        left = []
        for path, parameter in named.items():
            owner = next((name for name in parts if matches(name, path)), None)
            if owner is not None:
                parts[owner][path] = parameter
            elif parameter.requires_grad:
                left.append(path)
        for name, part in parts.items():
            if not part:
                raise OptimError(
                    f"the optimizer {name!r} has no parameters",
                    expected="the path of a submodule or a pattern, before those that match the same",
                    hint=near(name, named),
                )
        if left:
            raise OptimError(
                "a trainable parameter belongs to no optimizer",
                where=left[0],
                expected=f"a path or pattern for it among {', '.join(map(repr, parts))}",
                found=f"{len(left)} such parameters",
                hint='name an optimizer "*" for all that is left, or burnt.freeze them',
            )
        return parts

    def check(self, lr: float, model: torch.nn.Module | Mapping[str, torch.nn.Parameter]) -> None:
        """Raise what the step of any optimizer would raise; see `Optimizer.check`."""
        self._bind_model(model)
        for name, optimizer in self.optimizers.items():
            rate = lr if name == next(iter(self.optimizers)) else self.all_schedules[name](self._steps)
            optimizer.check(rate, self._parts[name])

    def train(self, model: torch.nn.Module | Mapping[str, torch.nn.Parameter]) -> None:
        """Put the parameters for training in place, after `eval`."""
        self._bind_model(model)
        for name, optimizer in self.optimizers.items():
            optimizer.train(self._parts[name])

    def eval(self, model: torch.nn.Module | Mapping[str, torch.nn.Parameter]) -> None:
        """Put the parameters to evaluate and save in place."""
        self._bind_model(model)
        for name, optimizer in self.optimizers.items():
            optimizer.eval(self._parts[name])

    def into_record(self) -> OptimizerRecord:
        """Return the state as a record, which shares memory with the optimizers."""
        options, tensors = {}, {"/steps": torch.tensor(self._steps)}
        for name, optimizer in self.optimizers.items():
            record = optimizer.into_record()
            options[name] = {"optimizer": record.optimizer, "options": dict(record.options)}
            tensors |= {f"{name}/{key}": tensor for key, tensor in record.tensors.items()}
        return OptimizerRecord("Optimizers", {"optimizers": options}, tensors)

    def load_record(self, record: OptimizerRecord) -> None:
        """Load a saved state, of optimizers with the same names; it is applied at the next step."""
        self._check_record(record)
        saved = record.options["optimizers"]
        if list(saved) != list(self.optimizers):
            raise OptimError(
                "the state of some optimizers does not fit others",
                expected=", ".join(self.optimizers),
                found=", ".join(saved),
                hint="resume with the names of the saved state, or start afresh",
            )
        for name, optimizer in self.optimizers.items():
            inner = {key: t for key, t in record.tensors.items() if key.startswith(f"{name}/")}
            tensors = {key.removeprefix(f"{name}/"): t for key, t in inner.items()}
            optimizer.load_record(OptimizerRecord(**saved[name], tensors=tensors))
        self._steps = int(record.tensors["/steps"])
        self._bound_to, self._params, self._parts = None, {}, {}

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        self._parts = self.parts(named)
        self._params = dict(named)


@dataclasses.dataclass
class CheckedSteps:
    """What the check before the first step finds of several optimizers, which then update nothing.

    `error` is the first of an optimizer, which `inspect.check` does not pass on.
    """

    reached: set[str] = dataclasses.field(default_factory=set)
    error: BurntError | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the first error of the block."""
        try:
            yield
        except BurntError as error:
            self.error = self.error or error
            raise


class StepOptimizer:
    """One of the optimizers that a training step gets, ``optimizers["generator"]``.

    It takes the gradients of its own parameters: a loss that passes through other parts of the model changes
    nothing there.
    """

    def __init__(
        self,
        name: str,
        optimizers: Optimizers,
        params: Mapping[str, torch.nn.Parameter],
        rules: GradientRules,
        found: CheckedSteps | None,
        ranks: Peers | None,
    ) -> None:
        self._name, self._optimizers, self._rules, self._found = name, optimizers, rules, found
        self._ranks = ranks
        self._step = OptimizerStep(optimizers.optimizers[name], params, rules)
        self.results: list[tuple[str, StepResult | None]] = []

    @property
    def learning_rate(self) -> float:
        """The learning rate of this step; 0 in the check before the first one."""
        return self._optimizers.learning_rates[self._name] if self._found is None else 0.0

    def gradients(self, loss: Tensor, *, retain_graph: bool | None = None) -> Gradients:
        """Compute the gradients of a loss with respect to the optimizer's parameters.

        Args:
            loss: a scalar, ``[]``.
            retain_graph: keep the graph for another call with a loss that shares it.

        Raises:
            BurntError: the loss is not a scalar, or depends on none of the parameters.
        """
        gradients, scale = self._scaled_gradients(loss, retain_graph), self._rules.loss_scale
        return gradients if scale is None else gradients.scale(1 / scale.value)

    def step(
        self,
        loss: Tensor | Mapping[str, Tensor],
        *,
        clip_norm: float | None = None,
        retain_graph: bool | None = None,
    ) -> StepResult | None:
        """Update the optimizer's parameters.

        Args:
            loss: a scalar, ``[]``; or gradients, as `gradients` returns them, to add up several losses.
            clip_norm: maximum norm of the gradients, instead of the training's.
            retain_graph: keep the graph for another call, as in `gradients`.

        Returns:
            The norm of the gradients if it was measured, and whether the step was skipped.

        Raises:
            BurntError: the loss is not a scalar, or depends on none of the parameters.
        """
        is_scaled = isinstance(loss, Tensor)
        if isinstance(loss, Tensor):
            gradients = self._scaled_gradients(loss, retain_graph)
        else:
            gradients = Gradients(loss)
        if self._found is not None:
            return StepResult(None, torch.tensor(False), "check")
        if self._ranks is not None:
            gradients = self._ranks.mean_of_parts(gradients, self._step.params)
        with without_autocast():
            result = self._step(self.learning_rate, gradients, clip_norm=clip_norm, is_scaled=is_scaled)
        self.results.append((self._name, result))
        return result

    def _scaled_gradients(self, loss: Tensor, retain_graph: bool | None) -> Gradients:
        # Under autocast, a backward pass would cast once more than its forward pass did.
        recording = contextlib.nullcontext() if self._found is None else self._found.recording()
        with recording, without_autocast():
            weight = 1.0 if self._ranks is None else self._ranks.joint_weight()
            scaled = self._rules.scaled(loss if weight == 1 else loss * weight)
            gradients = Gradients.of(scaled, self._step.params, retain_graph=retain_graph)
            if weight not in (0, 1):  # `mean_of_parts` weights all gradients, the user's own too
                gradients = gradients.scale(1 / weight)
        if self._found is not None:
            self._found.reached.update(gradients)
        return gradients


class StepOptimizers(Mapping[str, StepOptimizer]):
    """The optimizers that a training step gets as its third argument, by name.

    With `found`, they only record what the check before the first step wants to know. `ranks` are those of a
    training in several processes.
    """

    def __init__(
        self,
        optimizers: Optimizers,
        model: torch.nn.Module,
        rules: GradientRules,
        found: CheckedSteps | None = None,
        ranks: Peers | None = None,
    ) -> None:
        self._optimizers, self._found = optimizers, found
        self._handles = {
            name: StepOptimizer(name, optimizers, part, rules, found, ranks)
            for name, part in optimizers.parts(model).items()
        }

    def __getitem__(self, name: str) -> StepOptimizer:
        if name not in self._handles:
            error = DefinitionError(
                "there is no optimizer of this name",
                expected=" or ".join(map(repr, self._handles)),
                found=repr(name),
                hint=did_you_mean(name, self._handles),
            )
            if self._found is not None:
                self._found.error = self._found.error or error
            raise error
        return self._handles[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def begin_step(self, learning_rate: float) -> None:
        """Compute the rates of the next training step; the first optimizer's is given."""
        self._optimizers.begin_step(learning_rate)

    def end_step(self) -> list[tuple[str, StepResult | None]]:
        """Return the results of all steps since the last call, by name."""
        results = [result for handle in self._handles.values() for result in handle.results]
        for handle in self._handles.values():
            handle.results.clear()
        return results
