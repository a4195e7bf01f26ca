"""A plan with its kernels compiled, and the run of it: allocate, launch, call what is torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.ir import Buffer, Expr, Kernel, Store
from burnt.codegen.schedule import Call, Plan, schedule
from burnt.codegen.target import Built, C, Target
from burnt.codegen.trace import Traced

__all__ = ["CompiledPlan"]

_CPU = torch.device("cpu")


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
        self.traced = traced
        self.backward: dict[tuple[bool, ...], Any] = {}  # plans of gradients, by which are wanted
        self.plan: Plan = schedule(traced, captured, scratch=target.scratch)
        self.kernels = [step for step in self.plan.steps if isinstance(step, Kernel)]
        for i, kernel in enumerate(self.kernels):
            kernel.name = f"{name}_{i}"
        made: dict[Buffer, None] = {}
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                made |= {
                    s.buffer: None for s in step.steps if isinstance(s, Store) and s.buffer.role != "local"
                }
            else:
                made |= {b: None for b in step.outputs if b is not None}
        made |= {o: None for o in self.plan.outputs if isinstance(o, Buffer)}
        buffers = list(dict.fromkeys([*self.plan.inputs, *made]))
        called = {b for s in self.plan.steps if isinstance(s, Call) for b in s.outputs}
        self.slots = {buffer: i for i, buffer in enumerate(buffers)}
        self.fresh = [
            (b.shape, b.strides, b.dtype) if b not in called else None
            for b in made
            if b not in self.plan.inputs
        ]
        built = target.build(self.kernels, buffers, self.plan.numbers) if self.kernels else Built("", {})
        self.source, self.launch = built.source, built.launch
        self.results = [self.slots[o] if isinstance(o, Buffer) else None for o in self.plan.outputs]
        self.constants = [None if isinstance(o, Buffer) else o for o in self.plan.outputs]
        # One kernel and nothing else is the common case, with a path of its own.
        self.single = self.launch[self.kernels[0]] if len(self.plan.steps) == 1 and self.kernels else None
        Expr.forget()

    def __call__(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
        """The results, flat, for tensors in the order of the plan's inputs and its run-time numbers."""
        memory: list[Any] = list(tensors)
        for made in self.fresh:
            memory.append(
                None
                if made is None
                else torch.empty_strided(made[0], made[1], dtype=made[2], device=self.device)
            )
        if self.single is not None:
            self.single(memory, numbers)
        else:
            self.steps(memory, numbers)
        return [memory[r] if r is not None else c for r, c in zip(self.results, self.constants, strict=True)]

    def steps(self, memory: list[Any], numbers: Sequence[float]) -> None:
        """The kernels and calls, in order."""
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                self.launch[step](memory, numbers)
                continue
            held = {node: memory[self.slots[buffer]] for node, buffer in step.inputs.items()}
            args, kwargs = torch.fx.node.map_aggregate(
                (step.node.args, step.node.kwargs),
                lambda v, held=held: self.argument(v, held, numbers),  # type: ignore[misc]
            )
            made = step.node.target(*args, **kwargs)  # type: ignore[operator]
            made = list(made) if isinstance(made, tuple | list) else [made]
            for buffer, tensor in zip(step.outputs, made, strict=True):
                if buffer is not None:
                    if tensor.stride() != buffer.strides:
                        tensor = torch.empty_strided(
                            buffer.shape, buffer.strides, dtype=buffer.dtype, device=self.device
                        ).copy_(tensor)
                    memory[self.slots[buffer]] = tensor

    def argument(self, value: Any, held: dict[torch.fx.Node, Tensor], numbers: Sequence[float]) -> Any:
        """An argument of a call: a tensor for its node, a run-time number for its stand-in."""
        if isinstance(value, torch.fx.Node):
            return held[value]
        if isinstance(value, float) and value in self.traced.numbers:
            return numbers[self.plan.numbers.index(self.traced.numbers[value])]
        return value
