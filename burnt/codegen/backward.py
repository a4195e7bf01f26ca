"""The backward of a fused function: a plan for the gradients, and the autograd node that runs it.

The traced graph of composite ops is differentiated by torch; the result is scheduled and compiled like any
other function. The backward recomputes what it needs from the inputs, except for the tensors that
`burnt.codegen.schedule.saved_tensors` selects to save. Second derivatives are torch's, of the traced graph
of composite ops.

The backward is traced with the forward plan, and scheduled and compiled at its first call.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.frontend.overlap import has_internal_overlap
from burnt.codegen.frontend.trace import (
    PLANNING_LOCK,
    ResultLayout,
    Traced,
    is_random,
    trace,
    why_unsupported,
)
from burnt.codegen.ir import Buffer
from burnt.codegen.printing import debug_log, debug_log_plan
from burnt.codegen.runtime.compiled_plan import CompiledPlan, warn_fallback
from burnt.codegen.schedule.saved_tensors import forget_dropped_values, with_saved_inputs
from burnt.errors import CacheError, UnsupportedError

# Longest axis of a cumprod whose derivative is compiled: torch unrolls it, about ten ops for each element.
_MAX_UNROLLED = 32


class Differentiable(torch.autograd.Function):
    """A compiled plan in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, forward: CompiledPlan, numbers: Sequence[float], *tensors: Tensor) -> Any:
        """Run the plan on tensor arguments, then captured tensors, and save what the backward needs."""
        seed = None if forward.plan.seed is None else forward.draw_seed()
        outputs_and_saved = (
            forward.run(*tensors, *numbers) if seed is None else forward(tensors, numbers, seed)
        )
        ctx.forward, ctx.numbers = forward, numbers
        results = forward.traced.results
        outputs, saved = outputs_and_saved[: len(results)], outputs_and_saved[len(results) :]
        ctx.has_seed = seed is not None
        ctx.has_hooks = _torch.has_saved_tensor_hooks()
        ctx.version_error = None
        saved_outputs = [outputs[i] for i in forward.saved.reused_results]
        unread = forward.saved.unread
        read = [None if i in unread else t for i, t in enumerate(tensors)] if unread else tensors
        ctx.save_for_backward(*read, *saved, *saved_outputs, *(() if seed is None else (seed,)))
        if forward.layouts is None:
            pairs = enumerate(results)
            forward.without_grad = [i for i, r in pairs if r is not None and not r.requires_grad]
            forward.layouts = [_layout(o) if isinstance(o, Tensor) else None for o in outputs]
        if forward.without_grad:
            ctx.mark_non_differentiable(*[outputs[i] for i in forward.without_grad])
        ctx.layouts = forward.layouts
        return tuple(outputs)

    @staticmethod
    @_torch.kernel_backward  # the trace contains autocast's casts, wherever backward() is called
    def backward(ctx: Any, *grad_outs: Any) -> Any:
        """Compute the gradients of the tensors that require one."""
        needs_grad = tuple(ctx.needs_input_grad[2:])
        plan = _get_plan(ctx, needs_grad) if _torch.is_plain_backward() else None
        if plan is None and ctx.version_error is not None:
            raise RuntimeError(ctx.version_error)
        try:
            saved_tensors = ctx.saved_tensors
        except RuntimeError as error:
            if plan is None:
                raise
            saved_tensors = _unpack_read_tensors(ctx, error)
        tensors, saved = saved_tensors[: len(needs_grad)], saved_tensors[len(needs_grad) :]
        *saved, seed = saved if ctx.has_seed else (*saved, None)
        if plan is None:
            tensors = _with_stand_ins(ctx.forward, tensors, needs_grad)
            draw = None if seed is None else functools.partial(redraw, ctx.forward, seed)
            run = functools.partial(interpret, ctx.forward.traced, ctx.numbers, draw)
            gradients = grad_by_torch(run, tensors, needs_grad, grad_outs)
        else:
            plan_grad_outs = [
                g
                if g.stride() == layout[1]
                else torch.empty_strided(*layout[:2], dtype=layout[2], device=g.device).copy_(g)
                for g, layout in zip(grad_outs, ctx.layouts, strict=True)
                if layout is not None and layout[2].is_floating_point
            ]
            inputs = [*plan_grad_outs, *tensors]
            # Numbers come after the tensors in the backward's arguments; it uses only some of them.
            numbers = [ctx.numbers[p - len(inputs)] for p in plan.plan.plan.number_positions]
            given = [*inputs, *saved, *plan.constants]
            found = iter(
                plan.plan(plan.plan.in_own_strides(given) if ctx.has_hooks else given, numbers, seed)
            )
            gradients = [next(found) if needed else None for needed in needs_grad]
        reached = ctx.forward.traced.inputs_with_grad
        return (None, None, *[g if i in reached else None for i, g in enumerate(gradients)])


def _unpack_read_tensors(ctx: Any, error: RuntimeError) -> Any:
    """Return the saved tensors though one may have changed that only second derivatives read.

    torch checks the versions of all saved tensors, whichever are read. `version_error` keeps its error for
    second derivatives.
    """
    deferred = ctx.forward.saved.deferred
    is_of_a_version = "modified by an inplace operation" in str(error)
    if not is_of_a_version or ctx.version_error is not None or not deferred:
        raise error
    ctx.version_error = str(error)
    _torch.skip_version_checks(ctx, deferred)
    return ctx.saved_tensors


def _with_stand_ins(
    forward: CompiledPlan, tensors: Sequence[Tensor | None], needs_grad: Sequence[bool]
) -> list[Tensor]:
    """Return the tensors with zeros in place of those that were not saved, as no derivative reads them."""

    @torch.enable_grad()
    def zeros(buffer: Buffer, needed: bool) -> Tensor:
        last = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
        size = max(last + 1, 0)
        elements = torch.zeros(size, dtype=buffer.dtype, device=forward.device, requires_grad=needed)
        return elements.as_strided(buffer.shape, buffer.strides)

    triples = zip(tensors, forward.plan.inputs, needs_grad, strict=False)
    return [zeros(b, needed) if t is None else t for t, b, needed in triples]


class BackwardPlan(NamedTuple):
    """The plan of a backward."""

    plan: CompiledPlan
    constants: list[Tensor]  # the tensors that it captured
    read: frozenset[int]  # positions of the forward's tensors that it reads


_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _layout(tensor: Tensor) -> _Layout:
    """Return shape, strides and dtype for a tensor's gradient: its own strides, unless elements overlap."""
    strides = tensor.stride()
    if has_internal_overlap(tensor.shape, strides):
        strides = torch.empty(tensor.shape, device="meta").stride()
    return tuple(tensor.shape), strides, tensor.dtype


def _get_plan(ctx: Any, needs_grad: tuple[bool, ...]) -> BackwardPlan | None:
    """Return the plan for these gradients, built at the first call; None if none can be built."""
    plans: dict[tuple[bool, ...], BackwardPlan | None] = ctx.forward.backward_plans
    if needs_grad not in plans:
        with PLANNING_LOCK:
            if needs_grad not in plans:
                layouts = [v for v in ctx.layouts if v is not None and v[2].is_floating_point]
                plans[needs_grad] = _build_plan(ctx.forward, needs_grad, layouts)
    return plans[needs_grad]


def _build_plan(
    forward: CompiledPlan, needs_grad: tuple[bool, ...], grad_outs: Sequence[_Layout]
) -> BackwardPlan | None:
    """Build the plan that computes the gradients from grad_outs, tensors, saved tensors and numbers."""
    traced = forward.backward_traces.pop(needs_grad, None)
    if traced is None:
        inputs = [(b.shape, b.strides, b.dtype) for b in forward.plan.inputs[: len(needs_grad)]]
        traced = _trace_vjp(forward.traced, needs_grad, grad_outs, inputs, forward.device)
        if traced is not None and _lower_limits(forward.traced, traced):
            return None  # calls with numbers that torch refuses here have passed the forward's check
    if traced is None:
        return None
    with torch.no_grad():
        saved = forward.saved.all_nodes(forward.traced)
        traced = with_saved_inputs(traced, forward.traced, saved, forward.target.why_torch_call)
        placeholders = [n for n in traced.graph.graph.nodes if n.op == "placeholder"]
        first = len(placeholders) - len(saved) - len(needs_grad)
        read = frozenset(i for i in range(len(needs_grad)) if placeholders[first + i].users)
        # Each gradient is computed as among all of them, so some gradients read no more than all.
        assert read.isdisjoint((*forward.saved.unread, *forward.saved.deferred))
        # Tensors that the function itself creates from Python numbers.
        constants = [cast("Tensor", getattr(traced.graph, name)) for name in traced.captured]
        try:
            plan = CompiledPlan(traced, constants, f"{forward.name}_backward", forward.target, forward.device)
        except (UnsupportedError, RecursionError) as error:
            # For example a dtype that only the derivative has, or expressions nested too deeply.
            debug_log(f"{forward.name}_backward", f"gradients of the eager function are used: {error}")
            return None
        except CacheError:
            raise  # the cache folder cannot be trusted
        except Exception as error:  # of any kind: a fault in burnt must not stop what torch can run
            warn_fallback(f"{forward.name}'s backward", error)
            return None
        debug_log_plan(plan)
        if forward.verify is not None:
            forward.verify(plan)
        return BackwardPlan(plan, constants, read)


def build_backward_plan(forward: CompiledPlan, tensors: Sequence[Tensor]) -> BackwardPlan | None:
    """Build the backward plan of a forward plan that was not run; None if it has none."""
    needs_grad = tuple(t.requires_grad for t in tensors)
    if needs_grad not in forward.backward_traces:
        return None
    with PLANNING_LOCK:
        return _build_plan(forward, needs_grad, [])


def trace_backward(traced: Traced, tensors: Sequence[Tensor], device: torch.device) -> Traced | None:
    """Trace the backward for the tensors that require a gradient; None if there is none."""
    (results,) = next(n.args for n in traced.graph.graph.nodes if n.op == "output")
    layouts = []
    for node, result in zip(results, traced.results, strict=True):
        if result is not None and isinstance(node, torch.fx.Node) and node.meta["val"].is_floating_point():
            value = node.meta["val"]
            like = torch.empty_strided(value.shape, result.strides, dtype=value.dtype, device="meta")
            layouts.append(_layout(like))
    inputs = [(t.shape, t.stride(), t.dtype) for t in tensors]
    backward = _trace_vjp(traced, tuple(t.requires_grad for t in tensors), layouts, inputs, device)
    if backward is not None:
        # Not to fail in the backward, where it is too late to run the eager function.
        traced.number_limits.update(_lower_limits(traced, backward))
    return backward


def _trace_vjp(
    forward: Traced,
    needs_grad: tuple[bool, ...],
    grad_outs: Sequence[_Layout],
    inputs: Sequence[_Layout],
    device: torch.device,
) -> Traced | None:
    """Trace the backward, a function of grad_outs and tensors of these layouts and numbers, if possible."""
    if any(map(_has_unrolled_derivative, forward.composite_graph.graph.nodes)):
        return None
    num_grad_outs = len(grad_outs)

    def backward(*args: Any) -> Any:
        cotangents, tensors = args[:num_grad_outs], args[num_grad_outs : num_grad_outs + len(needs_grad)]
        numbers = args[num_grad_outs + len(needs_grad) :]

        def run(*differentiated: Tensor) -> tuple[Tensor, ...]:
            remaining = iter(differentiated)
            full = [next(remaining) if needed else t for t, needed in zip(tensors, needs_grad, strict=True)]
            results = interpret(forward, numbers, None, *full)
            return tuple(t for t in results if isinstance(t, Tensor) and t.dtype.is_floating_point)

        primals = [t for t, needed in zip(tensors, needs_grad, strict=True) if needed]
        return torch.func.vjp(run, *primals)[1](cotangents)

    # New tensors of the same layouts: an argument that is passed twice must be two inputs.
    examples: list[Any] = [
        torch.empty_strided(shape, strides, dtype=dtype, device=device)
        for shape, strides, dtype in [*grad_outs, *inputs]
    ]
    try:
        with _torch.without_autocast():
            traced, is_general = trace(backward, [*examples, *(0.5 for _ in forward.stand_in_positions)])
    except Exception:  # of any kind: torch can still differentiate what cannot be traced
        return None
    if not is_general or why_unsupported(traced, device) is not None:
        return None  # a derivative that depends on the value of a number (x**s at 0) is left to torch, too
    num_random = [sum(map(is_random, t.graph.graph.nodes)) for t in (forward, traced)]
    if num_random[0] != num_random[1]:
        return None  # the random ops of forward and backward would not draw the same numbers
    return forget_dropped_values(traced)


def _lower_limits(forward: Traced, backward: Traced) -> dict[int, float]:
    """Return the limits of numbers, by position in the forward, that only ops of the backward have."""
    num_tensors = sum(node.op == "placeholder" for node in backward.graph.graph.nodes)
    positions = sorted(forward.stand_in_positions.values())
    limits = {positions[p - num_tensors]: limit for p, limit in backward.number_limits.items()}
    return {p: limit for p, limit in limits.items() if limit < forward.number_limits.get(p, math.inf)}


def _has_unrolled_derivative(node: torch.fx.Node) -> bool:
    """Whether torch's derivative of an op is a graph whose size grows with a long axis of its tensor."""
    if node.target is not torch.ops.aten.cumprod.default:
        return False
    value = node.meta["val"]
    axis = cast("int", node.args[1])
    return bool(value.dim()) and value.shape[axis] > _MAX_UNROLLED


def grad_by_torch(
    fn: Callable[..., Any],
    args: Sequence[Any],
    needs_grad: Sequence[bool],
    grad_outs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Compute gradients by torch's autograd, where a backward cannot run kernels (`is_plain_backward`).

    If gradients are enabled, they can be differentiated again. None stands for the gradient of an argument
    that is not needed or that no result depends on, and in `grad_outs` for that of a result without one.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> with torch.no_grad():
    ...     grad_by_torch(torch.sin, [x], [True], [torch.ones(2)])
    [tensor([1., 1.])]
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, because the hooks of the arguments themselves are called for the gradients returned here.
        args = [a.view_as(a) if needed else a for a, needed in zip(args, needs_grad, strict=True)]
        results = fn(*args)
    pairs = [
        (r, g)
        for r, g in zip([results] if isinstance(results, Tensor) else results, grad_outs, strict=True)
        if isinstance(r, Tensor) and r.requires_grad and isinstance(g, Tensor)
    ]
    inputs = [a for a, needed in zip(args, needs_grad, strict=True) if needed]
    outputs, grads = [r for r, _ in pairs], [g for _, g in pairs]
    found = torch.autograd.grad(outputs, inputs, grads, create_graph=create_graph, allow_unused=True)
    gradients = iter(found)
    return [next(gradients) if needed else None for needed in needs_grad]


def interpret(
    traced: Traced,
    numbers: Sequence[float],
    draw: Callable[[torch.fx.Node, Any, Any, Tensor | None], Any] | None,
    *tensors: Tensor,
) -> list[Any]:
    """Run the composite ops of a trace by torch, random ones by `draw`; captured tensors come last."""
    nodes = list(traced.composite_graph.graph.nodes)
    num_placeholders = sum(node.op == "placeholder" for node in nodes)
    # The graphs of a trace each have their own names for captured tensors: compare the objects.
    captured_ids = [id(getattr(traced.graph, name)) for name in traced.captured]
    captured = dict(zip(captured_ids, tensors[num_placeholders:], strict=True))
    values = dict(zip(sorted(traced.stand_in_positions.values()), numbers, strict=True))
    remaining = iter(tensors)
    env: dict[torch.fx.Node, Any] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return env[value]
        if isinstance(value, float) and value in traced.stand_in_positions:
            return values[traced.stand_in_positions[value]]
        return value

    for node in nodes[:-1]:
        if node.op == "placeholder":
            env[node] = next(remaining)
        elif node.op == "get_attr":
            attribute = getattr(traced.composite_graph, str(node.target))
            env[node] = captured.get(id(attribute), attribute)
        else:
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
            if draw is not None and is_random(node):
                env[node] = draw(node, args, kwargs, env.get(node.meta.get("seed")))
            else:
                env[node] = node.target(*args, **kwargs)
    return [argument(value) for value in nodes[-1].args[0]]


def redraw(
    forward: CompiledPlan, seed: Any, node: torch.fx.Node, args: Any, kwargs: Any, own_seed: Tensor | None
) -> Any:
    """Repeat a random op with the forward's numbers, by a plan of that op; dropout is differentiable."""
    seed = seed if own_seed is None else own_seed
    if node.target is torch.ops.aten.native_dropout.default:
        x, p, _ = args
        scale = 0.0 if p == 1 else 1 / (1 - p)
        _, mask = _run_alone(forward, node, (x.detach(), p, True), kwargs, seed)
        return x * mask * scale, mask
    detached = torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, args)
    results = _run_alone(forward, node, detached, kwargs, seed)
    return results if isinstance(node.meta["val"], tuple | list) else results[0]


def _run_alone(
    forward: CompiledPlan,
    node: torch.fx.Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seed: Tensor | None,
) -> list[Any]:
    """Compile and run a plan of one random op, with these arguments and the forward's seed."""
    graph = torch.fx.Graph()
    tensors: list[Tensor] = []

    def add_placeholder(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        placeholder = graph.placeholder(f"x{len(tensors)}")
        placeholder.meta["val"] = value
        tensors.append(value)
        return placeholder

    args, kwargs = torch.utils._pytree.tree_map(add_placeholder, (args, kwargs))
    call = graph.call_function(cast("Any", node.target), args, kwargs)
    call.meta = {key: value for key, value in node.meta.items() if key != "seed"}
    metas, results = node.meta["val"], [call]
    if isinstance(metas, tuple | list):
        results = [graph.call_function(operator.getitem, (call, i)) for i in range(len(metas))]
        for result, meta in zip(results, metas, strict=True):
            result.meta["val"] = meta
    graph.output(results)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    layouts = tuple(ResultLayout(tuple(result.meta["val"].stride()), False) for result in results)
    with PLANNING_LOCK, torch.no_grad():
        traced = Traced(module, module, {}, (), layouts)
        plan = CompiledPlan(traced, [], f"{forward.name}_drawn", forward.target, forward.device)
        return list(plan(tensors, [], seed))
