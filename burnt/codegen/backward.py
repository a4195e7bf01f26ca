"""The derived backward: a plan for the gradients, and the autograd node that runs it.

The traced graph of the function's own ops is differentiated by torch and planned like any other. The backward
recomputes what it needs from the inputs, but for what `burnt.codegen.schedule.saved_tensors` picks. For
second derivatives torch runs the traced graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.frontend.trace import PLANNING, Traced, is_random, trace, why_unsupported
from burnt.codegen.runtime.compiled_plan import CompiledPlan, debug_log, debug_log_plan, warn_fallback
from burnt.codegen.schedule.saved_tensors import with_saved_inputs
from burnt.errors import CacheError, UnsupportedError

__all__ = ["BackwardPlan", "Differentiable", "derive", "derived_plan"]


_LONGEST_WRITTEN_OUT = 32  # about ten ops for each element: beyond, torch takes the derivative as it goes


class Differentiable(torch.autograd.Function):
    """A compiled plan in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, forward: CompiledPlan, numbers: Sequence[float], *tensors: Tensor) -> Any:
        """Run the plan on its tensors, captured ones last."""
        seed = forward.draw_seed()
        made = forward(tensors, numbers, seed)
        ctx.forward, ctx.numbers = forward, numbers
        facts = forward.traced.results
        outputs, saved = made[: len(facts)], made[len(facts) :]
        ctx.seeded = seed is not None
        lent = [outputs[i] for i in forward.saved.reused_results]
        ctx.save_for_backward(*tensors, *saved, *lent, *(() if seed is None else (seed,)))
        constant = [o for o, fact in zip(outputs, facts, strict=True) if fact is not None and not fact[1]]
        ctx.mark_non_differentiable(*constant)
        ctx.layouts = [_layout(o) if isinstance(o, Tensor) else None for o in outputs]
        return tuple(outputs)

    @staticmethod
    @_torch.without_autocast()  # what it casts is cast in the trace, wherever the gradients are asked for
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """The gradients of the tensors that want one."""
        wanted = tuple(ctx.needs_input_grad[2:])
        held = ctx.saved_tensors
        tensors, saved = held[: len(wanted)], held[len(wanted) :]
        *saved, seed = saved if ctx.seeded else (*saved, None)
        known = None if torch.is_grad_enabled() else _planned(ctx, tensors, wanted)
        if known is None:
            gradients = iter(_by_torch(ctx.forward, ctx.numbers, cotangents, tensors, wanted, seed))
        else:
            given = [
                c
                if c.stride() == layout[1] and not c.is_neg() and not c._is_zerotensor()
                else torch.empty_strided(*layout[:2], dtype=layout[2], device=c.device).copy_(c)
                for c, layout in zip(cotangents, ctx.layouts, strict=True)
                if layout is not None and layout[2].is_floating_point
            ]
            inputs = [*given, *tensors]
            # Numbers are the arguments after the tensors; those that the gradients do not need are gone.
            numbers = [ctx.numbers[p - len(inputs)] for p in known.plan.plan.numbers]
            gradients = iter(known.plan([*inputs, *saved, *known.constants], numbers, seed))
        reached = ctx.forward.traced.reached
        found = [next(gradients) if want else None for want in wanted]
        return (None, None, *[g if i in reached else None for i, g in enumerate(found)])


class BackwardPlan(NamedTuple):
    """The plan of a backward, and the tensors that it captured."""

    plan: CompiledPlan
    constants: list[Tensor]


_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _layout(tensor: Tensor) -> _Layout:
    """Shape, strides and dtype for a gradient of a tensor: its own strides, unless elements share memory."""
    strides, reach = tensor.stride(), 0
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            strides = torch.empty(tensor.shape, device="meta").stride()
            break
        reach += stride * (size - 1)
    return tuple(tensor.shape), strides, tensor.dtype


def _planned(ctx: Any, tensors: Sequence[Tensor], wanted: tuple[bool, ...]) -> BackwardPlan | None:
    """The plan of the wanted gradients, made at the first call; None where there can be none."""
    plans: dict[tuple[bool, ...], BackwardPlan | None] = ctx.forward.backward_plans
    if wanted not in plans:
        with PLANNING:
            if wanted not in plans:
                layouts = [v for v in ctx.layouts if v is not None and v[2].is_floating_point]
                plans[wanted] = _made(ctx.forward, tensors, wanted, layouts)
    return plans[wanted]


def _made(
    forward: CompiledPlan, tensors: Sequence[Tensor], wanted: tuple[bool, ...], layouts: Sequence[_Layout]
) -> BackwardPlan | None:
    """A plan with cotangents, tensors, what was saved and numbers in, and the wanted gradients out."""
    traced = forward.backward_traces.pop(wanted, None)
    if traced is None:
        traced = _derived(forward.traced, tensors, wanted, layouts, forward.device)
    if traced is None:
        return None
    with torch.no_grad():
        given = forward.saved.all_nodes(forward.traced)
        traced = with_saved_inputs(traced, forward.traced, given, forward.target.why_eager)
        # Tensors that the function itself makes of Python numbers.
        constants = [cast("Tensor", getattr(traced.graph, name)) for name in traced.captured]
        try:
            plan = CompiledPlan(traced, constants, f"{forward.name}_backward", forward.target, forward.device)
        except (UnsupportedError, RecursionError) as error:
            # A dtype, say, that only the derivative has, or expressions nested too deeply.
            debug_log(f"{forward.name}_backward", f"the eager function's gradients: {error}")
            return None
        except CacheError:
            raise  # of a folder that cannot be trusted
        except Exception as error:  # of any kind: a fault of ours must not stop what torch can run
            warn_fallback(f"{forward.name}'s backward", error)
            return None
        debug_log_plan(plan)
        return BackwardPlan(plan, constants)


def derived_plan(forward: CompiledPlan, tensors: Sequence[Tensor]) -> BackwardPlan | None:
    """The plan of the gradients that tensors want, of a forward that was not run; None if there is none."""
    wanted = tuple(t.requires_grad for t in tensors)
    if wanted not in forward.backward_traces:
        return None
    with PLANNING:
        return _made(forward, tensors, wanted, [])


def derive(traced: Traced, tensors: Sequence[Tensor], device: torch.device) -> Traced | None:
    """The trace of the backward for the tensors that want a gradient, if there can be one."""
    (results,) = next(n.args for n in traced.graph.graph.nodes if n.op == "output")
    layouts = []
    for node, fact in zip(results, traced.results, strict=True):
        if fact is not None and isinstance(node, torch.fx.Node) and node.meta["val"].is_floating_point():
            value = node.meta["val"]
            result = torch.empty_strided(value.shape, fact[0], dtype=value.dtype, device="meta")
            layouts.append(_layout(result))
    return _derived(traced, tensors, tuple(t.requires_grad for t in tensors), layouts, device)


def _derived(
    of: Traced,
    tensors: Sequence[Tensor],
    wanted: tuple[bool, ...],
    layouts: Sequence[_Layout],
    device: torch.device,
) -> Traced | None:
    """The trace of a backward: of a function of cotangents, tensors and numbers."""
    if any(map(_is_written_out, of.whole.graph.nodes)):
        return None
    floating = len(layouts)

    def backward(*given: Any) -> Any:
        pulled, inputs = given[:floating], given[floating : floating + len(wanted)]
        numbers = given[floating + len(wanted) :]

        def run(*some: Tensor) -> tuple[Tensor, ...]:
            replaced = iter(some)
            full = [next(replaced) if want else t for t, want in zip(inputs, wanted, strict=True)]
            made = _interpreted(of, full, numbers)
            return tuple(t for t in made if isinstance(t, Tensor) and t.dtype.is_floating_point)

        chosen = [t for t, want in zip(inputs, wanted, strict=True) if want]
        return torch.func.vjp(run, *chosen)[1](pulled)

    # Fresh tensors of the same layouts: equal arguments must not look like one.
    examples: list[Any] = [torch.empty_strided(*v[:2], dtype=v[2], device=device) for v in layouts]
    examples += [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]
    try:
        with _torch.without_autocast():
            traced, general = trace(backward, [*examples, *(0.5 for _ in of.numbers)])
    except Exception:  # of any kind: what cannot be traced, torch can still differentiate as it goes
        return None
    if not general or why_unsupported(traced) is not None:
        return None  # a derivative that depends on what a number is (x**s at 0) is torch's matter, too
    drawn = [sum(map(is_random, t.graph.graph.nodes)) for t in (of, traced)]
    if drawn[0] != drawn[1]:
        return None  # each would draw the numbers of another
    return traced


def _is_written_out(node: torch.fx.Node) -> bool:
    """Whether torch's derivative of an op is a graph as long as an axis of its tensor is."""
    if node.target is not torch.ops.aten.cumprod.default:
        return False
    value = node.meta["val"]
    axis = cast("int", node.args[1])
    return bool(value.dim()) and value.shape[axis] > _LONGEST_WRITTEN_OUT


def _by_torch(
    forward: CompiledPlan,
    numbers: Sequence[float],
    cotangents: Sequence[Any],
    tensors: Sequence[Tensor],
    wanted: tuple[bool, ...],
    seed: Tensor | None,
) -> list[Any]:
    """Gradients by torch: with a graph of their own for second derivatives, or where there is no plan."""
    further = torch.is_grad_enabled()
    if not further:
        tensors = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    with torch.enable_grad():
        draw = None if seed is None else functools.partial(_drawn_again, forward, seed)
        outputs = _interpreted(forward.traced, tensors, numbers, draw)
    pairs = [
        (o, c)
        for o, c in zip(outputs, cotangents, strict=True)
        if isinstance(o, Tensor) and o.requires_grad and isinstance(c, Tensor)
    ]
    chosen = [t for t, want in zip(tensors, wanted, strict=True) if want]
    return list(
        torch.autograd.grad(
            [o for o, _ in pairs], chosen, [c for _, c in pairs], create_graph=further, allow_unused=True
        )
    )


def _interpreted(
    traced: Traced,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    draw: Callable[[torch.fx.Node, Any, Any], Any] | None = None,
) -> list[Any]:
    """The function's own ops run by torch, captured tensors given last; random numbers are `draw`'s."""
    nodes = list(traced.whole.graph.nodes)
    placeholders = sum(node.op == "placeholder" for node in nodes)
    # The graphs of a trace name what they captured each on its own.
    objects = [id(getattr(traced.graph, name)) for name in traced.captured]
    captured = dict(zip(objects, tensors[placeholders:], strict=True))
    values = dict(zip(sorted(traced.numbers.values()), numbers, strict=True))
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
            if draw is not None and is_random(node):
                env[node] = draw(node, args, kwargs)
            else:
                env[node] = node.target(*args, **kwargs)
    return [argument(value) for value in nodes[-1].args[0]]


def _drawn_again(
    forward: CompiledPlan, seed: Tensor, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What an op drew in the forward, by a plan of that op alone; dropout's result has its gradient."""
    if node.target is torch.ops.aten.native_dropout.default:
        x, p, _ = args
        scale = 0.0 if p == 1 else 1 / (1 - p)
        _, mask = _replayed(forward, node, (x.detach(), p, True), kwargs, seed)
        return x * mask * scale, mask
    plain = torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, args)
    made = _replayed(forward, node, plain, kwargs, seed)
    return made if isinstance(node.meta["val"], tuple | list) else made[0]


def _replayed(
    forward: CompiledPlan, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], seed: Tensor
) -> list[Any]:
    """The results of one op that draws random numbers, given its arguments."""
    graph = torch.fx.Graph()
    tensors: list[Tensor] = []

    def given(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        placeholder = graph.placeholder(f"x{len(tensors)}")
        placeholder.meta["val"] = value
        tensors.append(value)
        return placeholder

    args, kwargs = torch.utils._pytree.tree_map(given, (args, kwargs))
    call = graph.call_function(cast("Any", node.target), args, kwargs)
    call.meta = dict(node.meta)
    metas = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else [node.meta["val"]]
    results = []
    for i, meta in enumerate(metas):
        results.append(call)
        if isinstance(node.meta["val"], tuple | list):
            results[-1] = graph.call_function(operator.getitem, (call, i))
            results[-1].meta["val"] = meta
    graph.output(results)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    facts = tuple((tuple(meta.stride()), False) for meta in metas)
    with PLANNING, torch.no_grad():
        traced = Traced(module, module, None, {}, (), facts)
        return CompiledPlan(traced, [], f"{forward.name}_drawn", forward.target, forward.device)(
            tensors, [], seed
        )
