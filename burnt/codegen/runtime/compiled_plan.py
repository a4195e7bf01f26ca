"""A plan with its kernels compiled, and the run of it: allocate, launch, call what is torch's own."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from burnt import _torch, memory
from burnt.codegen.frontend.trace import Traced
from burnt.codegen.ir import Buffer, Expr, Kernel
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.target import Built, Target
from burnt.codegen.schedule.saved_tensors import Saved
from burnt.codegen.schedule.scheduler import Call, Plan, schedule

__all__ = ["CompiledPlan", "debug_log", "warn_fallback"]

_CPU = torch.device("cpu")
_Allocation = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class CompiledPlan:
    """A plan with its kernels compiled.

    Args:
        traced: the trace that is planned.
        captured: the tensors that it captured.
        name: what its kernels are called after.
        target: what they are printed for.
        device: where the tensors are.

    Raises:
        CompileError: the generated code does not compile.
    """

    def __init__(
        self,
        traced: Traced,
        captured: Sequence[Tensor],
        name: str,
        target: Target = C,
        device: torch.device = _CPU,
    ) -> None:
        self.name = name
        self.target, self.device = target, device
        if device.type == "cpu":
            memory.enable_by_default()
        self.traced = traced
        self.mutated = traced.mutated
        self.backward: dict[tuple[bool, ...], Any] = {}  # plans of gradients, by which are wanted
        self.derived: dict[tuple[bool, ...], Traced] = {}  # their traces, where these came first
        self.saved = Saved([], [])  # what the backward is given of this one
        self.plan: Plan = schedule(
            traced,
            captured,
            scratch=target.scratch,
            runs=target.runs,
            cuts=target.cuts,
            joins=target.joins,
            torch_is_best=target.torch_is_best,
            products=target.products,
        )
        self.kernels = [step for step in self.plan.steps if isinstance(step, Kernel)]
        for i, kernel in enumerate(self.kernels):
            kernel.name = f"{name}_{i}"
        made: dict[Buffer, None] = {}
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                made |= step.buffers_written
            else:
                # What no kernel writes, since it has no elements, is given all the same.
                made |= {b: None for b in (*step.inputs.values(), *step.outputs) if b is not None}
        made |= {o: None for o in self.plan.outputs if isinstance(o, Buffer)}
        buffers = list(dict.fromkeys([*self.plan.inputs, *made]))
        called: set[Buffer | None] = {b for s in self.plan.steps if isinstance(s, Call) for b in s.outputs}
        self.slots = {buffer: i for i, buffer in enumerate(buffers)}
        self.build()
        self.results = [self.slots[o] if isinstance(o, Buffer) else None for o in self.plan.outputs]
        self.constants = [None if isinstance(o, Buffer) else o for o in self.plan.outputs]
        self.fresh = [self.allocation(b) for b in made if b not in self.plan.inputs and b not in called]
        written = {b for k in self.kernels for b in k.buffers_written} | called | {*self.plan.inputs}
        self.empty = [(self.slots[b], self.allocation(b)) for b in made if b not in written]
        self.runs = [] if self.single is not None else self.prepared()
        Expr.clear_interned()

    def build(self) -> None:
        """Make the kernels run on the target."""
        built = Built("", {}, {})
        if self.kernels:
            built = self.target.build(self.kernels, list(self.slots), self.plan.numbers)
        self.source, self.texts, self.launch = built.source, built.texts, built.launch
        # One kernel and nothing else is the common case, with a path of its own.
        self.single = self.launch[self.kernels[0]] if len(self.plan.steps) == 1 and self.kernels else None

    def on(self, target: Target) -> CompiledPlan:
        """The same plan, and those of its gradients, with the kernels built by another target.

        Args:
            target: one that takes kernels that were planned for this one, as with other block sizes.
        """
        made = copy.copy(self)
        made.target = target
        Expr.restore_interned([expr for kernel in self.kernels for expr in kernel.exprs])
        made.build()
        Expr.clear_interned()
        made.backward = {
            wanted: None if plan is None else plan._replace(plan=plan.plan.on(target))
            for wanted, plan in self.backward.items()
        }
        made.derived = dict(self.derived)
        return made

    def prepared(self) -> list[_Run]:
        """The steps with what each allocates before and lets go of after."""
        runs, there = [], {*self.plan.inputs}
        for step in self.plan.steps:
            outputs = step.buffers_written if isinstance(step, Kernel) else ()
            fresh = [b for b in outputs if b not in there]
            there.update(outputs)
            allocate = [(self.slots[b], self.allocation(b)) for b in fresh]
            runs.append(_Run(step, _names(step), allocate, self.given(step)))
        # Results are kept; everything else goes with the last step that names it.
        kept = {r for r in self.results if r is not None}
        for run in reversed(runs):
            slots = {self.slots[b] for b in run.names if b.role != "local"}
            run.release = sorted(slots - kept)
            kept |= slots
        return runs

    def allocation(self, buffer: Buffer) -> _Allocation:
        """The shape, strides and dtype of the tensor that a buffer is."""
        shape = self.plan.viewed.get(buffer)
        if shape is None:
            return buffer.shape, buffer.strides, buffer.dtype
        return shape, torch.empty(shape, device="meta").stride(), buffer.dtype

    def draw(self) -> Tensor | None:
        """A seed from torch's generator for a plan that draws random numbers; None for others.

        It lies on the device, so that a recorded CUDA graph draws another one each time it is replayed.
        """
        if self.plan.seed is None:
            return None
        return torch.empty(1, dtype=torch.int64, device=self.device).random_()

    def __call__(
        self, tensors: Sequence[Tensor], numbers: Sequence[float], seed: Tensor | None = None
    ) -> list[Any]:
        """The results, flat, for tensors in the order of the plan's inputs and its run-time numbers.

        Where the plan draws random numbers and no seed is given, a new one is.
        """
        memory: list[Any] = list(tensors)
        if self.plan.seed is not None:
            memory.append(self.draw() if seed is None else seed)
        if self.single is not None:
            for shape, strides, dtype in self.fresh:
                memory.append(torch.empty_strided(shape, strides, dtype=dtype, device=self.device))
            self.single(memory, numbers)
        else:
            memory = self.memory(memory)
            for run in self.runs:
                self.step(run, memory, numbers)
                for slot in run.release:
                    memory[slot] = None
        results = [
            memory[r] if r is not None else c for r, c in zip(self.results, self.constants, strict=True)
        ]
        return self.written_back(tensors, results) if self.mutated else results

    def written_back(self, tensors: Sequence[Tensor], results: list[Any]) -> list[Any]:
        """The results that are returned; the others are what becomes of arguments, and are put there."""
        count = len(results) - len(self.mutated)
        for position, result in zip(self.mutated, results[count:], strict=True):
            tensors[position].copy_(result)
        return results[:count]

    def memory(self, given: Sequence[Any]) -> list[Any]:
        """What steps read and write, by slot: what is given, and what no step makes, having no elements."""
        memory = [*given, *[None] * (len(self.slots) - len(given))]
        for slot, (shape, strides, dtype) in self.empty:
            memory[slot] = torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
        return memory

    def step(self, run: _Run, memory: list[Any], numbers: Sequence[float]) -> None:
        """One step: allocate what it writes, and launch or call."""
        for slot, (shape, strides, dtype) in run.allocate:
            memory[slot] = torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
        step = run.step
        if isinstance(step, Kernel):
            self.launch[step](memory, numbers)
            return
        args: Any
        kwargs: Any
        if run.given is not None:
            args, kwargs = [v if slot is None else memory[slot] for slot, v in run.given], {}
        else:
            held = {node: memory[self.slots[buffer]] for node, buffer in step.inputs.items()}
            args, kwargs = torch.fx.node.map_aggregate(
                (step.node.args, step.node.kwargs), lambda v: self.argument(v, held, numbers)
            )
        # What autocast casts is cast in the trace.
        with _torch.without_autocast() if _torch.is_autocast() else contextlib.nullcontext():
            made = step.node.target(*args, **kwargs)  # type: ignore[operator]
        made = list(made) if isinstance(made, tuple | list) else [made]
        for buffer, tensor in zip(step.outputs, made, strict=True):
            if buffer is not None:
                if tensor.stride() != buffer.strides:
                    shape, strides, dtype = self.allocation(buffer)
                    if _lies(tensor, strides):
                        memory[self.slots[buffer]] = tensor.as_strided(shape, strides)
                        continue
                    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=self.device).copy_(
                        tensor
                    )
                memory[self.slots[buffer]] = tensor

    def given(self, step: Kernel | Call) -> list[tuple[int | None, Any]] | None:
        """The arguments of a call, each a slot or a constant, where they are no more than that."""
        if isinstance(step, Kernel) or step.node.kwargs:
            return None
        found: list[tuple[int | None, Any]] = []
        for value in step.node.args:
            if isinstance(value, torch.fx.Node):
                found.append((self.slots[step.inputs[value]], None))
            elif isinstance(value, float) or (
                isinstance(value, list | tuple) and not all(map(_is_whole, value))
            ):
                return None  # it may be a number that is known when it is run
            else:
                found.append((None, value))
        return found

    def argument(self, value: Any, held: dict[torch.fx.Node, Tensor], numbers: Sequence[float]) -> Any:
        """An argument of a call: a tensor for its node, a run-time number for its stand-in."""
        if isinstance(value, torch.fx.Node):
            return held[value]
        if isinstance(value, float) and value in self.traced.numbers:
            return numbers[self.plan.numbers.index(self.traced.numbers[value])]
        return value

    def times(self, tensors: Sequence[Tensor], numbers: Sequence[float], budget: float = 0.2) -> list[float]:
        """Seconds of each step, the median of as many runs as the budget allows, at least 3.

        Args:
            tensors: as for a call.
            numbers: as for a call.
            budget: seconds.
        """
        runs = self.runs or self.prepared()
        if not runs:
            return []  # what is returned is an argument or a constant
        samples: list[list[float]] = [[] for _ in runs]
        if self.plan.seed is not None:
            tensors = [*tensors, cast("Tensor", self.draw())]
        begin = time.perf_counter()
        while len(samples[0]) < 3 or (time.perf_counter() - begin < budget and len(samples[0]) < 101):
            memory = self.memory(tensors)
            for run, into in zip(runs, samples, strict=True):
                self.synchronise()
                start = time.perf_counter()
                self.step(run, memory, numbers)
                self.synchronise()
                into.append(time.perf_counter() - start)
                for slot in run.release:
                    memory[slot] = None
        return [statistics.median(s) for s in samples]

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).synchronize()


@dataclasses.dataclass(eq=False)
class _Run:
    """A step as it is run: slots to allocate before, and to empty after."""

    step: Kernel | Call
    names: set[Buffer]
    allocate: list[tuple[int, _Allocation]]
    given: list[tuple[int | None, Any]] | None = None
    release: list[int] = dataclasses.field(default_factory=list)


def _lies(tensor: Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie as strides say; those of axes that have one element say nothing."""
    steps = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return not tensor.numel() or all(own == other for size, own, other in steps if size > 1)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int)


def _names(step: Kernel | Call) -> set[Buffer]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Call):
        return {*step.inputs.values(), *(b for b in step.outputs if b is not None)}
    return {*step.buffers_read, *step.buffers_written}


def debug_log_plan(plan: CompiledPlan) -> None:
    """Print a plan, where ``BURNT_DEBUG=1`` asks for it: its steps, each with its kernel's text."""
    steps = plan.plan.steps
    lines = [f"{len(steps)} step{'s' if len(steps) != 1 else ''}"]
    for step in steps:
        if isinstance(step, Kernel):
            lines += [f"  {step.name}, {step.kind}", plan.texts.get(step, "")]
        else:
            lines.append(f"  {step.node.target}, torch's own call: {step.why}")
    debug_log(plan.name, "\n".join(lines))


def debug_log(name: str, what: str) -> None:
    """Print what was made of a function, where ``BURNT_DEBUG=1`` asks for it."""
    if os.environ.get("BURNT_DEBUG") == "1":
        print(f"burnt: {name}: {what}", file=sys.stderr)  # noqa: T201


def warn_fallback(name: str, error: Exception) -> str:
    """Warn that a function runs as plain torch because of a fault of ours; the reason, as text."""
    reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"burnt.fuse: {name} runs as plain torch: no kernels could be made of it. This is a fault of burnt's "
        f"or of the compiler's, and worth a report.\n{reason}",
        RuntimeWarning,
        stacklevel=2,
    )
    return reason
