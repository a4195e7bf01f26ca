"""Groups: each group of parameters with an optimizer, a schedule and a clipping norm of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt._patterns import matches, near, warn_unmatched
from burnt.errors import OptimError, quantity
from burnt.kernels import StepResult
from burnt.optim.optimizer import (
    Model,
    Optimizer,
    OptimizerRecord,
    StepOptions,
    clip_together,
    is_rate,
    join_names,
    rate_error,
)
from burnt.optim.schedules import Constant
from burnt.optim.schedules.base import LEARNING_RATE, kind_of, schedule_hint, stable_text

Pattern = str | Callable[[str, torch.nn.Parameter], bool]


def matrices(path: str, parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter has two axes: a pattern of `Groups`.

    Weights of embeddings are matrices too; put a group with their paths before this one.

    >>> matrices("head.weight", torch.nn.Parameter(torch.ones(3, 2)))
    True
    """
    return parameter.dim() == 2


class Group:
    """A group of `Groups`; the tuple of its arguments does as well.

    Args:
        pattern: a glob on parameter paths, or several separated by ``|``, as in `burnt.freeze`; or a function
            ``(path, parameter) -> bool``.
        optimizer: steps the parameters of the group.
        schedule: the group's learning rate: a schedule, a number, or a function of the group's finished
            steps. None is the rate that `Groups.step` is given.
        clip_norm: maximum norm of the gradients of this group.

    Raises:
        OptimError: an argument is invalid.

    >>> from burnt import optim
    >>> Group("head", optim.Sgd(momentum=0.9), schedule=0.1, clip_norm=1.0)
    ('head', Sgd(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False), Constant(lr=0.1), 1.0)
    """

    @explain_arguments(lr="the learning rate of a group is its schedule: a number, such as 1e-3, is constant")
    def __init__(
        self,
        pattern: Pattern,
        optimizer: Optimizer,
        schedule: float | Callable[[int], float] | None = None,
        clip_norm: float | None = None,
    ) -> None:
        is_number = isinstance(schedule, int | float)
        for name, is_valid, expected, found in (
            ("pattern", isinstance(pattern, str) or _is_function(pattern), _PATTERN, pattern),
            ("optimizer", isinstance(optimizer, Optimizer), "an optimizer of burnt.optim", optimizer),
            ("schedule", schedule is None or is_number or _is_function(schedule), LEARNING_RATE, schedule),
            ("clip_norm", clip_norm is None or clip_norm > 0, "a number above 0", clip_norm),
        ):
            if not is_valid:
                raise OptimError(
                    "a group cannot be built",
                    where=name,
                    expected=expected,
                    found=kind_of(found) if name in _HINTS else repr(found),
                    hint=_HINTS[name](found) if name in _HINTS else None,
                )
        if optimizer.needs_closure:
            raise OptimError(
                f"{type(optimizer).__name__} cannot step a group of parameters",
                hint="it evaluates the loss several times in a step, so it steps all parameters or none",
            )
        self.pattern = pattern
        self.optimizer = optimizer
        self.schedule = Constant(schedule) if isinstance(schedule, int | float) else schedule
        self.clip_norm = clip_norm

    def __repr__(self) -> str:
        schedule = None if self.schedule is None else stable_text(self.schedule)
        arguments = [stable_text(self.pattern), repr(self.optimizer), schedule, self.clip_norm]
        while arguments[-1] is None:
            arguments.pop()
        return f"({', '.join(map(str, arguments))})"

    @property
    def name(self) -> str:
        """The pattern as text."""
        return self.pattern if isinstance(self.pattern, str) else stable_text(self.pattern)

    def matches(self, path: str, parameter: torch.nn.Parameter) -> bool:
        """Whether the pattern matches a parameter."""
        if isinstance(self.pattern, str):
            return matches(self.pattern, path)
        return self.pattern(path, parameter)


class Groups(Optimizer):
    """Several optimizers, each for a group of the parameters, as one.

    Args:
        groups: `Group` objects, or tuples of their arguments: pattern, optimizer and optionally schedule and
            clipping norm. A parameter belongs to the first group whose pattern matches it; the last pattern
            is ``"*"``.

    A group without a schedule takes the learning rate of `step`, in a training the Learner's. The
    schedule of a group counts the steps in which the group had a gradient. ``burnt ctl lr`` sets the
    Learner's rate, and multiplies the rates of groups with a schedule by the same factor: the new rate over
    the one that was scheduled for the next step (1 if that is 0).

    `step(clip_norm=)` limits the norm of all gradients together; afterwards each group limits its own. With
    `grad_scale`, one gradient that is NaN or infinite skips the step of all groups, and the step synchronises
    with the device.

    The attribute `names` holds the patterns as text; functions of the same name have the group's number.

    Raises:
        OptimError: a group is invalid, the last pattern is not ``"*"``, or two groups share an optimizer; at
            the first step, a pattern matches no parameter, or only parameters of earlier groups.

    >>> from burnt import optim
    >>> no_decay = optim.AdamW(weight_decay=0)
    >>> Groups([("*.bias|*norm*", no_decay), (matrices, optim.Muon(), 0.02), ("*", optim.AdamW())]).names
    ('*.bias|*norm*', 'matrices', '*')
    """

    _usage = 'Groups([("*.bias|*norm*", optim.AdamW(weight_decay=0)), ("*", optim.AdamW())])'

    def __init__(self, groups: Sequence[Group | tuple[Any, ...]]) -> None:
        if isinstance(groups, Mapping):
            raise OptimError("Groups takes a list of groups", expected=self._usage, found=kind_of(groups))
        self.groups = [group if isinstance(group, Group) else Group(*group) for group in groups]
        if not self.groups or self.groups[-1].pattern != "*":
            raise OptimError(
                "the last group of Groups must take every parameter that is left",
                expected='a last group ("*", optimizer)',
                found=repr(self.groups[-1]) if self.groups else "no groups",
            )
        optimizers = {id(group.optimizer) for group in self.groups}
        if len(optimizers) < len(self.groups):
            raise OptimError(
                "two groups share one optimizer object", hint="build an optimizer for each group"
            )
        names = [group.name for group in self.groups]
        self.names = tuple(
            name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, 1)
        )
        self.is_elementwise = all(g.optimizer.is_elementwise and g.clip_norm is None for g in self.groups)
        self._steps = [0] * len(self.groups)
        self._rates: dict[str, float] = {}
        self._bound_to: object = None
        self._params: dict[str, torch.nn.Parameter] = {}
        self._parts: list[dict[str, torch.nn.Parameter]] = []
        self._group_of: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Groups([{', '.join(map(repr, self.groups))}])"

    @property
    def rates(self) -> Mapping[str, float]:
        """The rates of the last step by name, of groups with a schedule, also of groups in groups."""
        rates = dict(self._rates)
        for name, group in zip(self.names, self.groups, strict=True):
            rates |= {f"{name}/{inner}": rate for inner, rate in group.optimizer.rates.items()}
        return rates

    @property
    def schedules(self) -> Mapping[str, Callable[[int], float]]:
        """The schedules of the groups, by name, also of groups in groups."""
        schedules = {}
        for name, group in zip(self.names, self.groups, strict=True):
            if group.schedule is not None:
                schedules[name] = group.schedule
            schedules |= {f"{name}/{inner}": own for inner, own in group.optimizer.schedules.items()}
        return schedules

    def _step(self, lr: float, model: Model, grads: Mapping[str, Tensor], options: StepOptions) -> StepResult:
        clip_norm, grad_scale, ema, ema_decay = options
        self._check_rate(lr)
        self._bind_model(model)
        parts: list[dict[str, Tensor]] = [{} for _ in self.groups]
        self._check_paths(grads)
        for path, gradient in grads.items():
            parts[self._group_of[path]][path] = gradient
        rates = [lr if rate is None else rate for rate in map(self._scheduled_rate, range(len(parts)))]
        norm = None
        if clip_norm is not None or grad_scale is not None:
            is_scaled = grad_scale is not None
            measured, parts, grad_scale = clip_together(parts, clip_norm, grad_scale)
            if is_scaled and bool(measured.skipped):
                return measured
            norm = measured.norm
        self._rates = {}
        results = []
        for index, (group, rate, part) in enumerate(zip(self.groups, rates, parts, strict=True)):
            if group.schedule is not None:
                self._rates[self.names[index]] = rate
            if not self._parts[index] or (not part and ema is None):
                continue
            group.optimizer.rate_factor = self.rate_factor
            options = StepOptions(group.clip_norm, grad_scale, ema, ema_decay)
            result = group.optimizer.step(rate, self._parts[index], part, **options._asdict())
            self._steps[index] += bool(part)
            results.append(result)
        skipped = results[0].skipped if results else torch.zeros((), dtype=torch.bool)
        return StepResult(norm, skipped, join_names(results))

    def check(self, lr: float, model: Model) -> None:
        """Raise what the step of any group would raise; see `Optimizer.check`."""
        super().check(lr, model)
        for index, (group, part) in enumerate(zip(self.groups, self._parts, strict=True)):
            rate = self._scheduled_rate(index)
            if part:
                group.optimizer.check(lr if rate is None else rate, part)

    def train(self, model: Model) -> None:
        """Put the parameters for training in place, after `eval`."""
        self._bind_model(model)
        for group, part in zip(self.groups, self._parts, strict=True):
            group.optimizer.train(part)

    def eval(self, model: Model) -> None:
        """Put the parameters to evaluate and save in place."""
        self._bind_model(model)
        for group, part in zip(self.groups, self._parts, strict=True):
            group.optimizer.eval(part)

    def into_record(self) -> OptimizerRecord:
        """Return the state as a record, which shares memory with the optimizers."""
        records = [group.optimizer.into_record() for group in self.groups]
        tensors = {
            f"{index}/{name}": tensor
            for index, record in enumerate(records)
            for name, tensor in record.tensors.items()
        }
        options = [
            {
                "pattern": group.name,
                "optimizer": record.optimizer,
                "options": dict(record.options),
                "schedule": None if group.schedule is None else stable_text(group.schedule),
                "clip_norm": group.clip_norm,
            }
            for group, record in zip(self.groups, records, strict=True)
        ]
        return OptimizerRecord(
            "Groups", {"groups": options}, {**tensors, "/steps": torch.tensor(self._steps)}
        )

    def load_record(self, record: OptimizerRecord) -> None:
        """Load a saved state; it is applied at the next step.

        Raises:
            OptimError: the record is of another optimizer, or of groups with other patterns or optimizers.
        """
        self._check_record(record)
        saved = record.options["groups"]
        expected = [f"{group.name}: {type(group.optimizer).__name__}" for group in self.groups]
        found = [f"{group['pattern']}: {group['optimizer']}" for group in saved]
        if expected != found:
            raise OptimError(
                "the state of some groups does not fit others",
                expected="; ".join(expected),
                found="; ".join(found),
                hint="resume with the groups of the saved state, or start afresh",
            )
        for index, (group, old) in enumerate(zip(self.groups, saved, strict=True)):
            prefix = f"{index}/"
            tensors = {
                name.removeprefix(prefix): t for name, t in record.tensors.items() if name.startswith(prefix)
            }
            group.optimizer.load_record(OptimizerRecord(old["optimizer"], old["options"], tensors))
        self._steps = record.tensors["/steps"].tolist()
        self._bound_to, self._parts, self._group_of = None, [], {}

    def _scheduled_rate(self, index: int) -> float | None:
        schedule = self.groups[index].schedule
        if schedule is None:
            return None
        rate = schedule(self._steps[index])
        if not is_rate(rate):
            raise rate_error("a group", f"the schedule of the group {self.groups[index].name!r}", rate)
        return rate * self.rate_factor

    def describe(self, model: Model) -> str:
        """Return which parameters of a model are in which group, as text to print.

        >>> from burnt import nn, optim
        >>> groups = optim.Groups([("*.bias", optim.Sgd(), 0.1), ("*", optim.AdamW())])
        >>> print(groups.describe(torch.nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))))
        *.bias: Sgd, Constant(lr=0.1), 18 parameters in 2 tensors
          0.bias, 1.bias
        *: AdamW, 160 parameters in 2 tensors
          0.weight, 1.weight
        """
        named = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else model
        parts, _ = self._divide(named)
        lines = []
        for name, group, part in zip(self.names, self.groups, parts, strict=True):
            schedule = "" if group.schedule is None else f", {stable_text(group.schedule)}"
            count = quantity(sum(p.numel() for p in part.values()), "parameter")
            tensors = quantity(len(part), "tensor")
            lines.append(f"{name}: {type(group.optimizer).__name__}{schedule}, {count} in {tensors}")
            inner = group.optimizer
            paths = inner.describe(part) if isinstance(inner, Groups) else textwrap.fill(", ".join(part), 98)
            lines.append(textwrap.indent(paths, "  "))
        return "\n".join(filter(None, lines))

    def _divide(
        self, named: Mapping[str, torch.nn.Parameter]
    ) -> tuple[list[dict[str, torch.nn.Parameter]], dict[str, int]]:
        parts: list[dict[str, torch.nn.Parameter]] = [{} for _ in self.groups]
        matched: dict[int, str] = {}  # one path that each group's pattern matches
        group_of: dict[str, int] = {}
        for path, parameter in named.items():
            hits = [index for index, group in enumerate(self.groups) if group.matches(path, parameter)]
            matched |= dict.fromkeys(hits, path)
            parts[hits[0]][path] = parameter
            group_of[path] = hits[0]
        for index, group in enumerate(self.groups[:-1]):
            if index not in matched:
                pattern, paths = group.pattern, _with_modules(named)
                raise OptimError(
                    f"the pattern of a group matches no parameter: {group.name}",
                    expected="a glob on parameter paths, the path of a module, or a function",
                    hint=near(pattern, paths) if isinstance(pattern, str) else None,
                )
            if not parts[index]:
                first = self.groups[group_of[matched[index]]].name
                raise OptimError(
                    f"a group gets no parameter: {group.name}",
                    found=f"all that it matches, such as {matched[index]}, belong to groups before it",
                    hint=f"put it before the group {first!r}: the first pattern that matches wins",
                )
            if isinstance(group.pattern, str):
                warn_unmatched(group.pattern, named)
        return parts, group_of

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        parts, group_of = self._divide(named)
        for index, group in enumerate(self.groups):
            for path in map(_state_path, group.optimizer.into_record().tensors):
                if group_of.get(path, index) != index:
                    raise OptimError(
                        "the state of a parameter belongs to another group",
                        where=path,
                        expected=f"the group {group.name!r}, which stepped it before",
                        found=f"the group {self.groups[group_of[path]].name!r}",
                        hint="resume with the groups of the saved state, or start afresh",
                    )
        self._params, self._parts, self._group_of = dict(named), parts, group_of


_PATTERN = 'a pattern, such as "*.bias|*norm*", or a function (path, parameter) -> bool'


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _optimizer_hint(given: Any) -> str | None:
    """Return the optimizer that a class, an optimizer of torch, or text stands for."""
    cls = given if isinstance(given, type) else type(given)
    name = given if isinstance(given, str) else cls.__name__
    known = {optimizer.__name__.lower(): optimizer.__name__ for optimizer in Optimizer.__subclasses__()}
    return f"did you mean {known[name.lower()]}()?" if name.lower() in known else None


_HINTS: Mapping[str, Callable[[Any], str | None]] = {"optimizer": _optimizer_hint, "schedule": schedule_hint}


def _state_path(key: str) -> str:
    """Return the parameter path in the key of a state tensor.

    >>> _state_path("0/head.weight/exp_avg")
    'head.weight'
    """
    return key.split("/")[-2]


def _with_modules(paths: Mapping[str, object]) -> list[str]:
    modules = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "."}
    return [*paths, *sorted(modules)]
