"""The derived backward: a plan for the gradients, and the autograd node that runs it.

The traced graph of the function's own ops is differentiated by torch and planned like any other, so the
backward recomputes what it needs from the inputs and saves nothing else. For second derivatives torch runs the
traced graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from burnt.codegen.compiled import CompiledPlan
from burnt.codegen.trace import Traced, trace

__all__ = ["Differentiable"]


class Differentiable(torch.autograd.Function):
    """A compiled plan in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, forward: CompiledPlan, numbers: Sequence[float], *tensors: Tensor) -> Any:
        """Run the plan on its tensors, captured ones last."""
        outputs = forward(tensors, numbers)
        ctx.forward, ctx.numbers = forward, numbers
        ctx.save_for_backward(*tensors)
        facts = forward.traced.results
        constant = [o for o, fact in zip(outputs, facts, strict=True) if fact is not None and not fact[1]]
        ctx.mark_non_differentiable(*constant)
        ctx.layouts = [_layout(o) if isinstance(o, Tensor) else None for o in outputs]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The gradients of the tensors that want one."""
        tensors, wanted = ctx.saved_tensors, tuple(ctx.needs_input_grad[2:])
        if torch.is_grad_enabled():
            gradients = iter(_by_torch(ctx.forward, ctx.numbers, cotangents, tensors, wanted))
        else:
            given = [
                c if c.stride() == layout[1] else torch.empty_strided(*layout[:2], dtype=layout[2]).copy_(c)
                for c, layout in zip(cotangents, ctx.layouts, strict=True)
                if layout is not None and layout[2].is_floating_point
            ]
            plan = _plan(ctx.forward, tensors, wanted, given)
            inputs = [*given, *tensors]
            # Numbers are the arguments after the tensors; those that the gradients do not need are gone.
            gradients = iter(plan(inputs, [ctx.numbers[p - len(inputs)] for p in plan.plan.numbers]))
        return (None, None, *[next(gradients) if want else None for want in wanted])


_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _layout(tensor: Tensor) -> _Layout:
    """Shape, strides and dtype for a gradient of a tensor: its own strides, unless elements share memory."""
    strides = tensor.stride()
    if not all(stride or size == 1 for stride, size in zip(strides, tensor.shape, strict=True)):
        strides = torch.empty(tensor.shape, device="meta").stride()
    return tuple(tensor.shape), strides, tensor.dtype


def _plan(
    forward: CompiledPlan, tensors: Sequence[Tensor], wanted: tuple[bool, ...], cotangents: Sequence[Tensor]
) -> CompiledPlan:
    """The plan of the wanted gradients: cotangents, tensors and numbers in."""
    known = forward.backward.get(wanted)
    if known is not None:
        return known
    floating = len(cotangents)

    def backward(*given: Any) -> Any:
        pulled, inputs = given[:floating], given[floating : floating + len(wanted)]
        numbers = given[floating + len(wanted) :]

        def run(*some: Tensor) -> tuple[Tensor, ...]:
            replaced = iter(some)
            full = [next(replaced) if want else t for t, want in zip(inputs, wanted, strict=True)]
            made = _interpreted(forward, full, numbers)
            return tuple(t for t in made if isinstance(t, Tensor) and t.dtype.is_floating_point)

        chosen = [t for t, want in zip(inputs, wanted, strict=True) if want]
        return torch.func.vjp(run, *chosen)[1](pulled)

    # Fresh tensors of the same layouts: equal arguments must not look like one.
    examples: list[Any] = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in (*cotangents, *tensors)
    ]
    traced, _ = trace(backward, [*examples, *(0.5 for _ in forward.plan.numbers)])
    with torch.no_grad():
        captured = [cast("Tensor", getattr(traced.graph, name)) for name in traced.captured]
        made = CompiledPlan(traced, captured, f"{forward.name}_backward")
    forward.backward[wanted] = made
    return made


def _by_torch(
    forward: CompiledPlan,
    numbers: Sequence[float],
    cotangents: Sequence[Any],
    tensors: Sequence[Tensor],
    wanted: tuple[bool, ...],
) -> list[Any]:
    """Gradients with a graph of their own."""
    outputs = _interpreted(forward, tensors, numbers)
    pairs = [
        (o, c)
        for o, c in zip(outputs, cotangents, strict=True)
        if isinstance(o, Tensor) and o.requires_grad and isinstance(c, Tensor)
    ]
    chosen = [t for t, want in zip(tensors, wanted, strict=True) if want]
    return list(
        torch.autograd.grad(
            [o for o, _ in pairs], chosen, [c for _, c in pairs], create_graph=True, allow_unused=True
        )
    )


def _interpreted(forward: CompiledPlan, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
    """The function's own ops run by torch, captured tensors given last."""
    traced: Traced = forward.traced
    nodes = list(traced.whole.graph.nodes)
    placeholders = sum(node.op == "placeholder" for node in nodes)
    # The graphs of a trace name what they captured each on its own.
    objects = [id(getattr(traced.graph, name)) for name in traced.captured]
    captured = dict(zip(objects, tensors[placeholders:], strict=True))
    values = dict(zip(forward.plan.numbers, numbers, strict=True))
    given = iter(tensors)
    env: dict[torch.fx.Node, Any] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return env[value]
        if isinstance(value, float) and value in traced.numbers:
            return values[traced.numbers[value]]
        return value

    for node in nodes[:-1]:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            held = getattr(traced.whole, str(node.target))
            env[node] = captured.get(id(held), held)
        else:
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
            env[node] = node.target(*args, **kwargs)
    return [argument(value) for value in nodes[-1].args[0]]
