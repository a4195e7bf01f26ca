"""Run a plan with compiled kernels: allocate outputs, launch kernels, call torch's ops, free what is done."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from burnt import _torch, memory
from burnt.codegen.frontend.overlap import Footprint, may_overlap
from burnt.codegen.frontend.trace import Traced
from burnt.codegen.ir import Buffer, Expr, Kernel
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.runtime.memory_plan import bytes_of, shared_memory
from burnt.codegen.runtime.target import BuiltKernels, Target
from burnt.codegen.runtime.torch_calls import Allocation, View, add_torch_call, layout_of_view
from burnt.codegen.schedule.saved_tensors import SavedTensors
from burnt.codegen.schedule.scheduler import Plan, TorchCall
from burnt.errors import FusionWarning

_CPU = torch.device("cpu")
# Bytes that stay allocated, though no later kernel needs them, to make one call of several.
_MAX_HELD = 1 << 16


class CompiledPlan:
    """A plan with kernels compiled for a target, which can be called; kernels are named ``NAME_0`` etc."""

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
        self.backward_plans: dict[tuple[bool, ...], Any] = {}  # by which inputs require gradients
        self.backward_traces: dict[tuple[bool, ...], Traced] = {}  # the same; traces not scheduled yet
        self.verify: Callable[[CompiledPlan], None] | None = None  # is given the backward plans
        self.saved = SavedTensors([], [])  # what the backward takes from this plan
        self.layouts: list[Any] | None = (
            None  # of the results' gradients; None before the first call with any
        )
        self.without_grad: list[int] = []  # results that have none
        self.plan: Plan = target.schedule(traced, captured)
        self.stand_ins = {  # of run-time numbers in arguments of calls
            stand_in: self.plan.number_positions.index(position)
            for stand_in, position in traced.stand_in_positions.items()
            if position in self.plan.number_positions
        }
        self.number_limits = [
            (i, traced.number_limits[position])
            for i, position in enumerate(self.plan.number_positions)
            if position in traced.number_limits
        ]
        self.kernels = [step for step in self.plan.steps if isinstance(step, Kernel)]
        for i, kernel in enumerate(self.kernels):
            kernel.name = f"{name}_{i}"
        # No kernel writes a buffer without elements, but a call takes it all the same.
        buffers = dict.fromkeys(self.plan.inputs)
        for step in self.plan.steps:
            buffers |= _buffers_of(step)
        buffers |= {o: None for o in self.plan.outputs if isinstance(o, Buffer)}
        computed = [b for b in buffers if b not in self.plan.inputs]
        call_outputs: set[Buffer | None] = {
            b for s in self.plan.steps if isinstance(s, TorchCall) for b in s.outputs
        }
        self.slots = {buffer: i for i, buffer in enumerate(buffers)}
        self.bytes_of = [*map(bytes_of, buffers)]
        tensors = [b for b in self.plan.inputs if b is not self.plan.seed]
        footprints = [Footprint.of(b.shape, b.strides, b.dtype.itemsize) for b in tensors]
        self.mutated_pairs = [  # of inputs that must not overlap: one is changed in place
            (i, j, footprints[i], footprints[j])
            for i in self.mutated
            for j in range(len(footprints))
            if i != j and not (j in self.mutated and j < i)
        ]
        self.shared = self.share_memory()
        self.build_kernels()
        self.results = [self.slots[o] if isinstance(o, Buffer) else None for o in self.plan.outputs]
        self.constants = [None if isinstance(o, Buffer) else o for o in self.plan.outputs]
        written = {b for k in self.kernels for b in k.buffers_written} | call_outputs
        self.unwritten = [(self.slots[b], self.allocation(b)) for b in computed if b not in written]
        self.prepared_steps = self.prepare_steps()
        Expr.clear_interned()

    def share_memory(self) -> dict[int, int]:
        """Return the slots of buffers that take the memory of another, with the slot of that."""
        outputs = [o for o in self.plan.outputs if isinstance(o, Buffer)]
        changed = dict(zip(outputs[::-1], [self.plan.inputs[i] for i in self.mutated[::-1]], strict=False))
        # A failed check raises before anything has changed; a call that returns nothing is a check.
        if any(s.checks if isinstance(s, Kernel) else not any(s.outputs) for s in self.plan.steps):
            changed = {}
        shared = shared_memory(
            self.plan.steps,
            {b: self.allocation(b) for b in self.slots if math.prod(b.shape)},
            outputs,
            {new: old for new, old in changed.items() if outputs.count(new) == 1},
            in_place=self.target.writes_in_place,
        )
        return {self.slots[new]: self.slots[old] for new, old in shared.items()}

    def build_kernels(self) -> None:
        """Compile the kernels for the target."""
        built = BuiltKernels({}, {})
        if self.kernels:
            built = self.target.build(self.kernels, list(self.slots), self.plan.number_positions)
        self.texts, self.launchers = built.texts, built.launchers

    def with_target(self, target: Target) -> CompiledPlan:
        """Return this plan and its backward plans with kernels compiled for another target.

        It must be able to compile kernels scheduled for this plan's target, such as the same target with
        other block sizes.
        """
        other = copy.copy(self)
        for generated in ("run", "run_and_free"):
            other.__dict__.pop(generated, None)
        other.target = target
        Expr.restore_interned([expr for kernel in self.kernels for expr in kernel.exprs])
        other.build_kernels()
        Expr.clear_interned()
        other.backward_plans = {
            needs_grad: None if plan is None else plan._replace(plan=plan.plan.with_target(target))
            for needs_grad, plan in self.backward_plans.items()
        }
        other.backward_traces = dict(self.backward_traces)
        return other

    def prepare_steps(self) -> list[_PreparedStep]:
        """Return the steps, each with the buffers to allocate before it and to release after it."""
        prepared_steps, allocated = [], {*self.plan.inputs}
        for step in self.plan.steps:
            outputs = step.buffers_written if isinstance(step, Kernel) else ()
            new = [b for b in outputs if b not in allocated]
            allocated.update(outputs)
            allocate = [(self.slots[b], self.allocation(b)) for b in new]
            results = [] if isinstance(step, Kernel) else step.outputs
            allocations = [None if b is None else self.allocation(b) for b in results]
            # A result shares the counter of versions with its base, by which autograd sees changes.
            is_result = any(b is not None and self.slots[b] in self.results for b in results)
            view = None if isinstance(step, Kernel) or is_result else layout_of_view(step)
            prepared_steps.append(_PreparedStep(step, _buffers_of(step), allocate, allocations, view))
        # Release a buffer after the last step that uses it, unless it is a result or another has its memory.
        used_later = {*self.shared.values(), *(r for r in self.results if r is not None)}
        for prepared in reversed(prepared_steps):
            used = {self.slots[b] for b in prepared.buffers if b.role != "local"}
            prepared.release = sorted(used - used_later)
            used_later |= used
        return prepared_steps

    def allocation(self, buffer: Buffer) -> Allocation:
        """Return the shape, strides and dtype of a buffer's tensor."""
        shape = self.plan.result_shapes.get(buffer)
        if shape is None:
            return buffer.shape, buffer.strides, buffer.dtype
        return shape, torch.empty(shape, device="meta").stride(), buffer.dtype

    def draw_seed(self) -> Tensor | None:
        """Return a seed from torch's generator, or None if the plan draws no random numbers.

        The seed is a tensor on the device, so that a CUDA graph draws a new one at each replay.
        """
        if self.plan.seed is None:
            return None
        return torch.empty(1, dtype=torch.int64, device=self.device).random_()

    def __call__(
        self, tensors: Sequence[Tensor], numbers: Sequence[float], seed: Tensor | None = None
    ) -> Sequence[Any]:
        """Run the plan and return its results, without containers.

        It takes its inputs in order without the seed, the numbers in the order of `Plan.number_positions`,
        and a seed from `draw_seed`; by default a new one.
        """
        if self.plan.seed is None:
            return self.run(*tensors, *numbers)
        return self.run(*tensors, self.draw_seed() if seed is None else seed, *numbers)

    @functools.cached_property
    def run(self) -> Callable[..., tuple[Any, ...]]:
        """The plan as a generated function of its inputs, the seed included, and numbers."""
        return self.generate()

    @functools.cached_property
    def run_and_free(self) -> Callable[[list[Any]], Sequence[Any]]:
        """As `run`, of a list, which it empties: an input is freed after the last step that reads it."""
        return self.generate(takes_list=True)

    def generate(
        self, mark: Callable[[], None] | None = None, *, takes_list: bool = False
    ) -> Callable[..., tuple[Any, ...]]:
        """Generate the function that runs the plan; it calls `mark` first and after each step."""
        inputs = [f"t{i}" for i in range(len(self.plan.inputs))]
        numbers = [f"n{i}" for i in range(len(self.plan.number_positions))]
        code = HostCode(["inputs"] if takes_list else [*inputs, *numbers], self.device)
        if takes_list:
            code.lines += [f"({''.join(f'{t}, ' for t in (*inputs, *numbers))}) = inputs", "inputs.clear()"]
        kept = self.mutated if takes_list else range(len(inputs))  # otherwise the caller holds them
        variables = [*inputs, *["None"] * (len(self.slots) - len(inputs))]
        stand_ins = {stand_in: numbers[i] for stand_in, i in self.stand_ins.items()}
        marks = [] if mark is None else [code.call(mark)]
        dead: list[int] = []  # slots to release
        buffers = list(self.slots)

        def release() -> None:
            code.end_c_calls()
            for slot in dead:
                if slot not in kept:
                    code.lines.append(f"{variables[slot]} = None")
                    variables[slot] = "None"
            dead.clear()

        def allocate(allocations: Sequence[tuple[int, Allocation]]) -> None:
            for slot, allocation in allocations:
                base = self.shared.get(slot)
                variables[slot] = f"t{slot}" if base is None else variables[base]
                if base is None:
                    code.empty(variables[slot], *allocation)
                elif allocation != self.allocation(buffers[base]):
                    layout = map(code.name, (*allocation[:2], 0))
                    code.lines.append(
                        f"{variables[slot]} = {code.call(_torch.reinterpreted, variables[slot], *layout)}"
                    )

        allocate(self.unwritten)  # tensors without elements
        code.lines += marks
        for prepared in self.prepared_steps:
            step = prepared.step
            view = prepared.view
            # Kernels that follow each other are one call, after all that they need has been allocated.
            is_call = isinstance(step, TorchCall) and view is None
            held = sum(self.bytes_of[slot] for slot in dead if slot not in kept)
            if is_call or (prepared.allocate and held > _MAX_HELD):
                release()
            allocate(prepared.allocate)
            if isinstance(step, Kernel):
                self.launchers[step](code, variables, numbers)
            else:
                given = {node: variables[self.slots[buffer]] for node, buffer in step.inputs.items()}
                for buffer in step.outputs:
                    if buffer is not None:
                        variables[self.slots[buffer]] = f"t{self.slots[buffer]}"
                found = [None if b is None else variables[self.slots[b]] for b in step.outputs]
                if view is None:
                    add_torch_call(code, step, given, found, prepared.outputs, stand_ins)
                else:
                    (base,), (output,) = given.values(), found
                    reinterpret = code.call(_torch.reinterpreted, base, *map(code.name, view))
                    code.lines.append(f"{output} = {reinterpret}")
            if prepared is not self.prepared_steps[-1]:
                dead += prepared.release
            if marks or is_call:
                release()
            code.lines += marks
        code.end_c_calls()
        results = [
            code.name(c) if r is None else variables[r]
            for r, c in zip(self.results, self.constants, strict=True)
        ]
        count = len(results) - len(self.mutated)
        # The new values of arguments that are changed in place: most are there already.
        changed = list(zip([f"t{i}" for i in self.mutated], results[count:], strict=True))
        code.lines += [f"{t}.copy_({new})" for t, new in changed if t != new]
        written = [t for t, new in changed if t == new]
        if written:
            code.lines.append(code.call(torch.autograd.graph.increment_version, f"[{', '.join(written)}]"))
        return code.build(f"({''.join(f'{r}, ' for r in results[:count])})")

    def in_own_strides(self, tensors: Sequence[Any]) -> list[Any]:
        """Return inputs with the strides of the plan's: hooks on saved tensors may return others."""
        found = list(tensors)
        for i, (tensor, buffer) in enumerate(zip(tensors, self.plan.inputs, strict=False)):
            if tensor is not None and tensor.stride() != buffer.strides:
                empty = torch.empty_strided(
                    buffer.shape, buffer.strides, dtype=buffer.dtype, device=tensor.device
                )
                found[i] = empty.copy_(tensor)
        return found

    def mutates_overlap(self, tensors: Sequence[Tensor]) -> bool:
        """Whether an argument that is changed in place may overlap another of the plan's inputs.

        The plan reads all inputs as they were before the change, so the eager function must run then.
        """
        addresses = [t.data_ptr() for t in tensors]
        return any(may_overlap(a, b, addresses[j] - addresses[i]) for i, j, a, b in self.mutated_pairs)

    def exceeds_limits(self, numbers: Sequence[float]) -> bool:
        """Whether a number is too large for a dtype, as 1e9 for float16: eager torch raises then."""
        return any(limit < abs(numbers[i]) < math.inf for i, limit in self.number_limits)

    def time_steps(
        self, tensors: Sequence[Tensor], numbers: Sequence[float], budget: float = 0.2
    ) -> list[float]:
        """Return the seconds of each step: the median of 3 to 101 runs, as many as fit `budget` seconds."""
        times: list[float] = []

        def mark() -> None:
            self.synchronise()
            times.append(time.perf_counter())

        if self.plan.seed is not None:
            tensors = [*tensors, cast("Tensor", self.draw_seed())]
        run = self.generate(mark)
        samples: list[list[float]] = []
        begin = time.perf_counter()
        while len(samples) < 3 or (time.perf_counter() - begin < budget and len(samples) < 101):
            times.clear()
            run(*tensors, *numbers)
            samples.append([after - before for before, after in itertools.pairwise(times)])
        return [statistics.median(seconds) for seconds in zip(*samples, strict=True)]

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).synchronize()


@dataclasses.dataclass(eq=False)
class _PreparedStep:
    """A step with the slots to allocate before it and to release after it."""

    step: Kernel | TorchCall  # the kernel or call
    buffers: dict[Buffer, None]  # all that it reads or writes
    allocate: list[tuple[int, Allocation]]  # slots of a kernel's new outputs, and their layouts
    outputs: list[Allocation | None]  # shape, strides and dtype of a call's results
    view: View | None  # what a call need not be made for
    release: list[int] = dataclasses.field(default_factory=list)  # slots that no later step uses


def _buffers_of(step: Kernel | TorchCall) -> dict[Buffer, None]:
    """Return the buffers that a step reads or writes, in order."""
    if isinstance(step, TorchCall):
        return {b: None for b in (*step.inputs.values(), *step.outputs) if b is not None}
    return step.buffers_read | step.buffers_written


def warn_fallback(name: str, error: Exception) -> str:
    """Warn that the eager function runs because of a bug in burnt or the compiler; return the reason."""
    reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"burnt.fuse: {name} runs as the eager function, because generating or compiling its kernels failed. "
        f"This is a bug in burnt or in the compiler; please report it.\n{reason}",
        FusionWarning,
        stacklevel=2,
    )
    return reason
