"""What a step did: the first layer with values that are not finite, the samples, the gradients by layer."""

from __future__ import annotations

import dataclasses
import math
import pdb
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from burnt._torch import is_compiled
from burnt.data.loading.loader import EpochLoader
from burnt.errors import quantity
from burnt.gradients import Gradients
from burnt.inspect.specs import named_tensors, tensors_in
from burnt.train.control.non_finite import list_text
from burnt.train.events import Failed, GradientsComputed, Started, Stepped
from burnt.train.format import value_text
from burnt.train.rewind.rewind import RewoundLoop

_MAX_ITEMS = 20  # indices of samples in the text
_MAX_VALUES = 4  # first values of a tensor


@dataclasses.dataclass
class InspectedStep:
    """A step that was run again.

    `gradients` are, for each layer with trainable parameters, its path, the norm of the gradients, the norm
    of the parameters before the step, and how many gradients are not finite. `unseen` are, where something is
    compiled, the layers whose outputs were not looked at: they are compiled, or the step does not use them.
    """

    step: int  # from 1, and so is the epoch
    epoch: int
    batches: list[int] = dataclasses.field(default_factory=list)  # their numbers in the epoch, from 0
    losses: list[float] = dataclasses.field(default_factory=list)  # of each batch
    learning_rate: float = math.nan
    non_finite: str | None = None  # the first values that are not finite, in words
    layer: str | None = None  # they came from it; "" is the model itself, or the step
    samples: list[int] | None = None  # their indices in the dataset; None if the loader does not tell
    tensors: list[str] = dataclasses.field(default_factory=list)  # a description of each in the batches
    gradients: list[tuple[str, float, float, int]] = dataclasses.field(default_factory=list)
    error: str | None = None  # the exception that the step raised
    unseen: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Return the report, line by line."""
        losses = ", ".join(f"{loss:.9g}" for loss in self.losses) or "none"
        yield f"step {self.step}, epoch {self.epoch}, {_numbers('batch', self.batches)}"
        if self.error is not None:
            yield f"  raised         {self.error}"
        yield f"  loss           {losses}"
        yield f"  learning rate  {value_text(self.learning_rate)}"
        yield f"  not finite     {self.non_finite or 'nothing'}"
        if self.unseen:
            shown = ", ".join(self.unseen[:_MAX_ITEMS]) + (" ..." if len(self.unseen) > _MAX_ITEMS else "")
            yield f"  not looked at  {shown}: compiled, or not used"
            yield "                 with TORCHDYNAMO_DISABLE=1 they are, but rounded in other ways"
        if self.samples is not None:
            yield f"  samples        {list_text(self.samples, _MAX_ITEMS)}"
        for i, text in enumerate(self.tensors):
            yield f"  {'' if i else 'values':<13}  {text}"
        if self.gradients:
            width = max(len("layer"), *(len(path) for path, *_ in self.gradients))
            yield f"  {'layer':<{width}}  gradient norm  parameter norm"
            for path, norm, size, bad in self.gradients:
                note = f"  {quantity(bad, 'gradient')} not finite" if bad else ""
                yield f"  {path:<{width}}  {value_text(norm):>13}  {value_text(size):>14}{note}"


class StepInspector:
    """Callback of a rewound training that looks at steps `first` to its last, and ends it where one is bad.

    With `debug`, the training step of each runs in the debugger. `progress` is called with the steps done,
    before them. `inspected` is the step looked at last: the first that is not finite, or else the last one.
    """

    def __init__(
        self, first: int, *, debug: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        self.inspected: InspectedStep | None = None
        self._first = first
        self._debug = debug
        self._progress = progress
        self._watch: _Watch | None = None

    def on_start(self, event: Started) -> None:
        """Look at the next step, if it is one of these."""
        self._prepare(event.training)  # type: ignore[arg-type]

    def on_gradients(self, event: GradientsComputed) -> None:
        """Measure the gradients."""
        if self._watch is not None:
            self._watch.measure(event.gradients)

    def on_step(self, event: Stepped) -> None:
        """Finish the report of a step, and prepare the next one."""
        loop: RewoundLoop = event.training  # type: ignore[assignment]
        if self._watch is not None:
            self._watch.step.learning_rate = event.learning_rate
            if self._end_watch() is not None:
                loop.last = loop.position.step
        self._prepare(loop)

    def on_error(self, event: Failed) -> None:
        """Finish the report of a step that failed."""
        if self._watch is not None:
            self._watch.step.error = f"{type(event.error).__name__}: {event.error}"
            self._watch.step.learning_rate = event.training.learning_rate  # type: ignore[attr-defined]
            self._end_watch()
            if self._debug:
                pdb.post_mortem(event.error.__traceback__)

    def _prepare(self, loop: RewoundLoop) -> None:
        done = loop.position.step
        if self._progress is not None:
            self._progress(done)
        if self._first <= done + 1 <= loop.last:
            self._watch = _Watch(loop, debug=self._debug)
            self.inspected = self._watch.step

    def _end_watch(self) -> str | None:
        """Remove the hooks; return what was not finite, if anything."""
        watch, self._watch = self._watch, None
        assert watch is not None
        watch.close()
        return watch.step.non_finite


class _Watch:
    """Hooks on the modules of a model during one step."""

    def __init__(self, loop: RewoundLoop, *, debug: bool) -> None:
        position = loop.position
        self.step = InspectedStep(position.step + 1, position.epoch + 1)
        self._loop = loop
        self._gradient: Tensor | None = None  # the first one that is not finite
        self._seen: set[str] = set()
        self._sizes: Mapping[str, Tensor] = {
            path: p.detach().norm() for path, p in loop.params.items() if p.requires_grad
        }
        self._hooks = [
            loop.steps.register_forward_pre_hook(self._before),
            loop.steps.register_forward_hook(self._after),
        ]
        for path, module in loop.learner.model.named_modules():
            self._hooks.append(
                module.register_forward_hook(
                    lambda module, args, kwargs, output, path=path: self._look(
                        path, module, (args, kwargs), output
                    ),
                    with_kwargs=True,
                )
            )
        self._training_step = loop.steps.training_step
        if debug:
            loop.steps.training_step = self._in_debugger

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._loop.steps.training_step = self._training_step
        self.step.unseen = self._find_unseen()

    def _find_unseen(self) -> list[str]:
        """Return the paths of the innermost modules that were not looked at; none if nothing is compiled."""
        learner = self._loop.learner
        modules = dict(learner.model.named_modules())
        calls = [*modules.values(), *(module.forward for module in modules.values())]
        if not any(map(is_compiled, (*calls, learner.step, getattr(learner.model, "training_step", None)))):
            return []
        leaves = [path for path, module in modules.items() if next(module.children(), None) is None]
        return [path for path in leaves if path not in self._seen]

    def _in_debugger(self, *args: Any) -> Any:
        # Without the frame of burnt that calls the method of a model.
        return _StepDebugger(skip=["burnt.train.learner"]).runcall(self._training_step, *args)

    def _before(self, steps: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Describe a micro-batch, once."""
        if not self._loop.is_stepping:  # a validation before the step
            return
        step, position = self.step, self._loop.position
        if len(step.batches) == self._loop.batches_of_step:
            return
        step.epoch = position.epoch + 1  # before it, the last epoch may not have been counted
        number = position.batch + len(step.batches)
        step.batches.append(number)
        indices = _indices(self._loop.settings.train, position.epoch, number)
        if indices is not None:
            step.samples = [*(step.samples or []), *indices]
        for name, tensor in named_tensors(args[0], "batch").items():
            step.tensors.append(f"{name} {_describe(tensor, indices)}")
            if not _is_finite(tensor):
                self._report(f"{name}, which the loader gave: {_count(tensor, indices)}", "")

    def _after(self, steps: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self._loop.is_stepping:
            return
        if len(self.step.losses) < len(self.step.batches):
            self.step.losses.append(output.loss.item())
        if not _is_finite(output.loss):
            has_unseen = bool(self._find_unseen())
            self._report("the loss" if has_unseen else "the loss, from finite outputs of the layers", "")

    def _look(self, path: str, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """Look at a module's outputs, and at their gradients and those of its inputs when they are known."""
        # In a graph that is being compiled, this would change the graph, and so its roundings.
        if torch.compiler.is_compiling() or not self._loop.is_stepping:
            return
        self._seen.add(path)
        where = f"{path or 'the model'} ({type(module).__name__})"
        for tensor in tensors_in(output):
            if not _is_finite(tensor):
                self._report(f"the output of {where}: {_count(tensor)}", path)
            if tensor.requires_grad:
                tensor.register_hook(
                    lambda gradient: self._look_at_gradient(
                        gradient, f"the gradient of the output of {where}", path
                    )
                )
        for tensor in tensors_in(inputs):
            if tensor.requires_grad:
                tensor.register_hook(
                    lambda gradient: self._look_at_gradient(gradient, f"the gradient from {where}", path)
                )

    def _look_at_gradient(self, gradient: Tensor, what: str, path: str) -> None:
        if _is_finite(gradient):
            return
        if self._gradient is None:
            self._gradient = gradient
            self._report(f"{what}: {_count(gradient)}", path)
        elif gradient is self._gradient and self.step.layer != path and what.startswith("the gradient from"):
            # The same tensor is the output of one layer and the input of the next, whose backward made it.
            self.step.non_finite, self.step.layer = f"{what}: {_count(gradient)}", path

    def measure(self, gradients: Gradients) -> None:
        """Measure the gradients of each layer."""
        layers: dict[str, list[str]] = {}
        for path in gradients:
            layers.setdefault(path.rpartition(".")[0], []).append(path)
        for layer, paths in layers.items():
            norm = float(Gradients({path: gradients[path] for path in paths}).norm())
            size = math.sqrt(sum(float(self._sizes[path]) ** 2 for path in paths if path in self._sizes))
            bad = sum(_num_bad(gradients[path]) for path in paths)
            self.step.gradients.append((layer or "(model)", norm, size, bad))
            if bad:
                path = next(path for path in paths if _num_bad(gradients[path]))
                self._report(f"the gradient of the parameter {path}: {_count(gradients[path])}", layer)

    def _report(self, what: str, path: str) -> None:
        if self.step.non_finite is None:
            self.step.non_finite, self.step.layer = what, path


class _StepDebugger(pdb.Pdb):
    """Stops at the first line of a function, not at its ``def``, which pdb shows as a call."""

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Go on to the first line."""


def _indices(loader: EpochLoader[Any], epoch: int, batch: int) -> list[int] | None:
    """Return the indices of a batch's samples in the dataset; None if the loader does not tell."""
    indices = getattr(loader, "indices", None)
    return None if indices is None else indices(epoch, batch).tolist()


def _is_finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or _num_bad(value) == 0


def _num_bad(tensor: Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return 0
    dense = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return dense.numel() - int(dense.isfinite().sum())


def _count(tensor: Tensor, indices: list[int] | None = None) -> str:
    """Return how many values of a tensor are not finite, and in which samples."""
    text = f"{_num_bad(tensor):,} of {quantity(tensor.numel(), 'value')}"
    if indices is None or not tensor.dim() or len(tensor) != len(indices):
        return text
    is_bad = (~tensor.detach().isfinite()).reshape(len(indices), -1).any(1).tolist()
    samples = [index for index, bad in zip(indices, is_bad, strict=True) if bad]
    return f"{text}, in {_numbers('sample', samples)}"


def _describe(tensor: Tensor, indices: list[int] | None) -> str:
    """Return shape, dtype, range and first values of a tensor."""
    text = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if not tensor.numel() or tensor.is_complex():
        return text
    if not tensor.is_floating_point():
        values = tensor.detach().flatten()
        first = ", ".join(str(value) for value in values[:_MAX_VALUES].tolist())
        return f"{text}, {values.min().item()} to {values.max().item()}, first {first}"
    values = tensor.detach().double().flatten()
    finite = values[values.isfinite()]
    if len(finite):
        text += f", {value_text(finite.min().item())} to {value_text(finite.max().item())}"
        text += f", mean {value_text(finite.mean().item())}"
    if len(finite) < len(values):
        text += f", not finite: {_count(tensor, indices)}"
    first = ", ".join(value_text(value) for value in values[:_MAX_VALUES].tolist())
    return f"{text}, first {first}"


def _numbers(noun: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    shown = ", ".join(map(str, numbers[:_MAX_ITEMS]))
    return f"{plural} {shown}" + (" ..." if len(numbers) > _MAX_ITEMS else "")
