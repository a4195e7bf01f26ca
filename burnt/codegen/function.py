"""A traced function: plans for each signature, cached, and called with as little as possible in between.

`Function` is what `@burnt.fuse` makes. The first call with a signature traces, schedules, prints and compiles;
later ones look it up, allocate the results and launch. Backward is derived and recomputes what it needs.
Wherever a plan would not be right or not be better, the plain function runs, and `Function.why_plain` says why.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.codegen import toolchain
from burnt.codegen.ir import Buffer, Expr, Kernel, Store
from burnt.codegen.print_c import print_kernels
from burnt.codegen.schedule import Call, Plan, schedule
from burnt.codegen.trace import Traced, trace
from burnt.errors import BurntError, FusionError

__all__ = ["CompiledPlan", "Function", "fuse"]

_MOST_VALUES = 16  # of numbers that a function looks at: beyond, the plain function is the cheaper one
_SIMPLE = (bool, int, str, type(None), torch.dtype, torch.device, torch.memory_format)


class CompiledPlan:
    """A plan with its kernels compiled: called with tensors and numbers, returns the results, flat."""

    def __init__(self, traced: Traced, captured: Sequence[Tensor], name: str) -> None:
        self.traced = traced
        self.plan: Plan = schedule(traced, captured)
        self.kernels = [step for step in self.plan.steps if isinstance(step, Kernel)]
        for i, kernel in enumerate(self.kernels):
            kernel.name = f"{name}_{i}"
        made: dict[Buffer, None] = {}
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                made |= {s.buffer: None for s in step.steps if isinstance(s, Store)}
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
        self.source = print_kernels(self.kernels, buffers, self.plan.numbers)
        self.launch: dict[Kernel, Callable[..., None]] = {}
        if self.kernels:
            library = toolchain.load(toolchain.PREAMBLE + self.source, [k.name for k in self.kernels])
            for kernel in self.kernels:
                self.launch[kernel] = toolchain.launcher(
                    library[kernel.name], pointers=len(buffers), floats=len(self.plan.numbers)
                )
        self.results = [self.slots[o] if isinstance(o, Buffer) else None for o in self.plan.outputs]
        self.constants = [None if isinstance(o, Buffer) else o for o in self.plan.outputs]
        # One kernel and nothing else is the common case, with a path of its own.
        self.single = self.launch[self.kernels[0]] if len(self.plan.steps) == 1 and self.kernels else None
        Expr.forget()

    def __call__(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
        memory: list[Any] = list(tensors)
        for made in self.fresh:
            memory.append(None if made is None else torch.empty_strided(made[0], made[1], dtype=made[2]))
        if self.single is not None:
            self.single(*[t.data_ptr() for t in memory], *numbers)
        else:
            self.steps(memory, numbers)
        return [memory[r] if r is not None else c for r, c in zip(self.results, self.constants, strict=True)]

    def steps(self, memory: list[Any], numbers: Sequence[float]) -> None:
        """The kernels and calls, in order."""
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                self.launch[step](*[0 if t is None else t.data_ptr() for t in memory], *numbers)
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
                        tensor = torch.empty_strided(buffer.shape, buffer.strides, dtype=buffer.dtype).copy_(
                            tensor
                        )
                    memory[self.slots[buffer]] = tensor

    def argument(self, value: Any, held: dict[torch.fx.Node, Tensor], numbers: Sequence[float]) -> Any:
        """An argument of a call: a tensor for its node, a run-time number for its stand-in."""
        if isinstance(value, torch.fx.Node):
            return held[value]
        if isinstance(value, float) and value in self.traced.numbers:
            return numbers[self.plan.numbers.index(self.traced.numbers[value])]
        return value


class _Backward(NamedTuple):
    """The plan of a backward, and the tensors that it captured."""

    plan: CompiledPlan
    constants: list[Tensor]


class _Entry:
    """What is known for a signature: a plan, its backward, or why the plain function runs."""

    def __init__(
        self,
        forward: CompiledPlan | None,
        captured: list[Tensor],
        plain: str | None = None,
        by_value: bool = False,
    ) -> None:
        self.forward = forward
        # The function looks at its numbers: the plan is right for these alone.
        self.by_value = by_value
        self.variants = 0
        self.captured = captured
        self.plain = plain
        self.numbers: list[int] = forward.plan.numbers if forward is not None else []
        self.backward: dict[tuple[bool, ...], _Backward | None] = {}


class Function:
    """A function of tensors and numbers that runs as few kernels as the schedule finds.

    Args:
        fn: a Python function of tensors, numbers and other constants; it may capture tensors.
        single: raise `FusionError` where it does not come out as one kernel.
    """

    def __init__(self, fn: Callable[..., Any], *, single: bool = False) -> None:
        self.fn = fn
        self.single = single
        self.name = "".join(c if c.isalnum() else "_" for c in getattr(fn, "__name__", "fn"))
        self._entries: dict[Any, _Entry] = {}
        self._captures = _captures(fn)
        self._lock = threading.Lock()
        functools.update_wrapper(self, fn)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not _torch.is_plain_call():
            return self.fn(*args, **kwargs)
        if kwargs:
            return self._with_keywords(args, kwargs)
        key: list[Any] = [torch.is_grad_enabled()]
        tensors: list[Tensor] = []
        wants_gradient = False
        for arg in args:
            kind = type(arg)
            if kind is Tensor or kind is torch.nn.Parameter:
                key.append((arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad))
                tensors.append(arg)
                wants_gradient = wants_gradient or arg.requires_grad
            elif kind is float:
                key.append(float)
            elif kind in _SIMPLE or isinstance(arg, _SIMPLE):
                key.append((kind, arg))
            else:
                return self.fn(*args)
        for cell, name in self._captures:
            key.append(id(_content(cell, name)))
        if torch.is_autocast_enabled("cpu"):
            key.append(torch.get_autocast_dtype("cpu"))
        if torch.get_default_dtype() is not torch.float32:
            key.append(torch.get_default_dtype())
        signature = tuple(key)
        entry = self._entries.get(signature)
        if entry is None:
            entry = self._prepare(signature, args, tensors)
        if entry.by_value:
            values = tuple(arg.hex() for arg in args if type(arg) is float)
            entry = self._entries.get((signature, values)) or self._prepare(signature, args, tensors, values)
        if entry.forward is None:
            return self.fn(*args)
        numbers = [args[i] for i in entry.numbers]
        if key[0] and (wants_gradient or any(t.requires_grad for t in entry.captured)):
            flat = _Differentiable.apply(self, entry, args, numbers, *tensors, *entry.captured)
            flat = list(flat)
        else:
            flat = entry.forward([*tensors, *entry.captured], numbers)
        structure = entry.forward.traced.structure
        return flat[0] if structure.is_leaf() else pytree.tree_unflatten(flat, structure)

    def _with_keywords(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import inspect

        bound = inspect.signature(self.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            return self.fn(*args, **kwargs)
        return self(*bound.args)

    def why_plain(self, *args: Any) -> str | None:
        """Why the plain function runs for these arguments; None if a plan does."""
        self(*args)
        entry = next(reversed(self._entries.values()), None)
        return entry.plain if entry is not None else "the call was not looked at"

    def plan(self, *args: Any) -> CompiledPlan | None:
        """The forward plan for these arguments, made if need be; None where the plain function runs."""
        known = set(self._entries)
        self(*args)
        made = [e for k, e in self._entries.items() if k not in known] or list(self._entries.values())
        return made[-1].forward if made else None

    # --- making plans -------------------------------------------------------------------------------------

    def _prepare(
        self,
        signature: tuple[Any, ...],
        args: Sequence[Any],
        tensors: Sequence[Tensor],
        values: tuple[str, ...] | None = None,
    ) -> _Entry:
        key = signature if values is None else (signature, values)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                first = self._entries.get(signature)
                if first is not None and first.variants >= _MOST_VALUES:
                    entry = self._plain(f"it looks at its numbers, and has met {_MOST_VALUES} values of them")
                else:
                    entry = self._made(args, tensors)
                if first is not None:
                    first.variants += 1
                self._entries[key] = entry
            return entry

    def _made(self, args: Sequence[Any], tensors: Sequence[Tensor]) -> _Entry:
        reason = self._unsuited(tensors)
        if reason is not None:
            return self._plain(reason)
        try:
            traced, general = trace(self.fn, args)
        except Exception as error:  # of any kind: the plain function either raises it too, or can run
            return self._plain(f"it cannot be traced: {type(error).__name__}: {error}")
        captured = [getattr(traced.graph, name) for name in traced.captured]
        reason = self._unsuited(captured) or _unsuited_graph(traced)
        if reason is None and torch.is_grad_enabled() and any(t.requires_grad for t in [*tensors, *captured]):
            reason = _random_op(traced)
        if reason is not None:
            return self._plain(reason)
        with torch.no_grad():
            forward = CompiledPlan(traced, captured, self.name)
        if self.single and len(forward.plan.steps) != 1:
            raise FusionError(
                f"{self.name} does not come out as one kernel",
                expected="1 kernel",
                found=f"{len(forward.plan.steps)} steps: "
                + ", ".join(
                    s.kind if isinstance(s, Kernel) else str(s.node.target) for s in forward.plan.steps
                ),
                hint="see burnt.explain for what ends each group",
            )
        if os.environ.get("BURNT_DEBUG") == "1":
            print(f"burnt: {self.name}: {len(forward.plan.steps)} steps\n{forward.source}", file=sys.stderr)  # noqa: T201
        return _Entry(forward, captured, by_value=not general)

    def _plain(self, reason: str) -> _Entry:
        if self.single:
            raise FusionError(f"{self.name} does not come out as one kernel", found=reason)
        return _Entry(None, [], reason)

    def _unsuited(self, tensors: Sequence[Tensor]) -> str | None:
        if toolchain.find_compiler() is None:
            return f"no C compiler: {toolchain.why_no_compiler()}"
        for tensor in tensors:
            if tensor.device.type != "cpu":
                return f"a tensor on {tensor.device}: kernels are printed for the CPU only, so far"
            if tensor.layout != torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
                return f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}"
            if tensor.numel() == 0:
                return "an empty tensor"
            if tensor.is_conj() or tensor.is_neg() or type(tensor) not in (Tensor, torch.nn.Parameter):
                return "a tensor that is more than its memory"
        return None

    def gradients(
        self, entry: _Entry, args: Sequence[Any], wanted: tuple[bool, ...], outputs: Sequence[Any]
    ) -> _Backward | None:
        """The plan of the backward: cotangents and inputs in, the wanted gradients out; None without one."""
        with self._lock:
            if wanted in entry.backward:
                return entry.backward[wanted]
            tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
            floating = [o.dtype.is_floating_point for o in outputs if isinstance(o, Tensor)]
            forward = entry.forward
            assert forward is not None
            graph = forward.traced.whole
            numbers = [i for i in entry.numbers]
            # The traced graph is differentiated, not the function again: numbers that are inputs stay inputs.
            count = len([o for o in outputs if isinstance(o, Tensor)])

            def backward(*given: Any) -> Any:
                cotangents = given[:count]
                inputs = given[count : count + len(wanted)]
                values = dict(zip(numbers, given[count + len(wanted) :], strict=True))
                chosen = [t for t, want in zip(inputs, wanted, strict=True) if want]

                def run(*some: Tensor) -> tuple[Tensor, ...]:
                    replaced = iter(some)
                    full = [next(replaced) if want else t for t, want in zip(inputs, wanted, strict=True)]
                    made = _interpreted(graph, full, forward.traced, values)
                    kept = [t for t in made if isinstance(t, Tensor)]
                    return tuple(t for t, f in zip(kept, floating, strict=True) if f)

                _, pull = torch.func.vjp(run, *chosen)
                return pull(tuple(c for c, f in zip(cotangents, floating, strict=True) if f))

            examples: list[Any] = [
                torch.empty_strided(o.shape, o.stride(), dtype=o.dtype)
                for o in outputs
                if isinstance(o, Tensor)
            ]
            examples += [args[i].detach() for i in tensors] + [t.detach() for t in entry.captured]
            examples += [0.5 for _ in numbers]
            made: _Backward | None = None
            try:
                traced, general = trace(backward, examples)
            except Exception:  # of any kind: what cannot be traced, torch can still differentiate as it goes
                traced, general = None, False
            # A derivative that depends on what a number is (x**s at 0) is torch's matter, too.
            if traced is not None and general and _unsuited_graph(traced) is None:
                # Tensors that the function itself makes of Python numbers.
                constants = [getattr(traced.graph, name) for name in traced.captured]
                with torch.no_grad():
                    made = _Backward(CompiledPlan(traced, constants, f"{self.name}_backward"), constants)
            entry.backward[wanted] = made
            return made


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, function: Function, entry: _Entry, args: Any, numbers: Any, *tensors: Tensor
    ) -> Any:
        assert entry.forward is not None
        outputs = entry.forward(tensors, numbers)
        ctx.function, ctx.entry, ctx.args, ctx.numbers = function, entry, args, numbers
        ctx.save_for_backward(*tensors)
        facts = entry.forward.traced.results
        constant = [o for o, fact in zip(outputs, facts, strict=True) if fact is not None and not fact[1]]
        ctx.mark_non_differentiable(*constant)
        ctx.outputs = [
            (o.shape, _own_strides(o), o.dtype) if isinstance(o, Tensor) else None for o in outputs
        ]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[4:])
        if torch.is_grad_enabled():
            return (None, None, None, None, *_differentiable_gradients(ctx, cotangents, tensors, wanted))
        shapes = [o for o in ctx.outputs if o is not None]
        given = [c for c, o in zip(cotangents, ctx.outputs, strict=True) if o is not None]
        given = [
            c if c.stride() == o[1] else torch.empty_strided(o[0], o[1], dtype=o[2]).copy_(c)
            for c, o in zip(given, shapes, strict=True)
        ]
        metas = [torch.empty_strided(o[0], o[1], dtype=o[2], device="meta") for o in shapes]
        if wanted in ctx.entry.backward:
            made = ctx.entry.backward[wanted]
        else:
            made = ctx.function.gradients(ctx.entry, ctx.args, wanted, metas)
        if made is None:
            return (None, None, None, None, *_differentiable_gradients(ctx, cotangents, tensors, wanted))
        plan, constants = made
        gradients = iter(
            plan([*given, *tensors, *constants], [ctx.numbers[i] for i in _positions(plan, given, tensors)])
        )
        return (None, None, None, None, *[next(gradients) if want else None for want in wanted])


def _own_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides for a gradient of a tensor: its own, unless elements of it share memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return tensor.stride()
    return torch.empty(tensor.shape, device="meta").stride()


def _positions(plan: CompiledPlan, given: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[int]:
    start = len(given) + len(tensors)
    return [position - start for position in plan.plan.numbers]


def _differentiable_gradients(
    ctx: Any, cotangents: Sequence[Any], tensors: Sequence[Tensor], wanted: tuple[bool, ...]
) -> list[Any]:
    """Gradients by torch: with a graph of their own for second derivatives, or where there is no plan."""
    further = torch.is_grad_enabled()
    if not further:
        tensors = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    forward = ctx.entry.forward
    values = dict(zip(ctx.entry.numbers, ctx.numbers, strict=True))
    with torch.enable_grad():
        outputs = _interpreted(forward.traced.whole, list(tensors), forward.traced, values)
        pairs = [
            (o, c)
            for o, c in zip(outputs, cotangents, strict=True)
            if isinstance(o, Tensor) and o.requires_grad and isinstance(c, Tensor)
        ]
        chosen = [t for t, want in zip(tensors, wanted, strict=True) if want]
        gradients = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                chosen,
                [c for _, c in pairs],
                create_graph=further,
                allow_unused=True,
            )
        )
    return [next(gradients) if want else None for want in wanted]


def _interpreted(
    graph: torch.fx.GraphModule, tensors: Sequence[Tensor], traced: Traced, values: dict[int, Any]
) -> list[Any]:
    """A traced graph run by torch, captured tensors given last, numbers by position."""
    placeholders = sum(node.op == "placeholder" for node in graph.graph.nodes)
    # The graphs of a trace name what they captured each on its own.
    objects = [id(getattr(traced.graph, name)) for name in traced.captured]
    captured = dict(zip(objects, tensors[placeholders:], strict=True))
    given = iter(tensors)
    env: dict[torch.fx.Node, Any] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return env[value]
        if isinstance(value, float) and value in traced.numbers:
            return values[traced.numbers[value]]
        return value

    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            held = getattr(graph, str(node.target))
            env[node] = captured.get(id(held), held)
        elif node.op == "call_function":
            args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
            env[node] = node.target(*args, **kwargs)
        elif node.op == "output":
            return [argument(value) for value in node.args[0]]
    raise AssertionError("a graph without an output")


def _unsuited_graph(traced: Traced) -> str | None:
    """Why a graph cannot be planned: it changes what it was given."""
    for node in traced.graph.graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            return f"{node.target} returns nothing"
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            if node.target._schema.is_mutable:
                return f"{node.target} changes a tensor in place"
            if any(isinstance(m, Tensor) and m.numel() == 0 for m in [node.meta.get("val")]):
                return "an empty tensor inside"
    return None


def _random_op(traced: Traced) -> str | None:
    for node in traced.graph.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            return f"{node.target} draws random numbers, which a derived backward would draw again"
    return None


def _captures(fn: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Where a function takes things from that are not its arguments: cells, globals, and those of its helpers."""
    found: list[tuple[Any, str]] = []
    seen: set[int] = set()

    def look(function: Any) -> None:
        if not isinstance(function, types.FunctionType) or id(function.__code__) in seen:
            return
        seen.add(id(function.__code__))
        if function.__module__ and function.__module__.split(".")[0] == "torch":
            return
        for cell in function.__closure__ or ():
            found.append((cell, ""))
            look(_content(cell, ""))
        for name in function.__code__.co_names:
            if name in function.__globals__ and not isinstance(function.__globals__[name], types.ModuleType):
                found.append((function.__globals__, name))
                look(function.__globals__[name])

    look(fn)
    return found


def _content(holder: Any, name: str) -> Any:
    if name:
        return holder.get(name)
    try:
        return holder.cell_contents
    except ValueError:
        return None  # a cell that is not filled yet


def fuse(fn: Callable[..., Any] | None = None, *, single: bool = False) -> Any:
    """Make a function of tensors run as few kernels as possible, forward and backward.

    Args:
        fn: a function of tensors, numbers and other constants. It is traced at the first call with a
            signature: shapes, strides, dtypes, devices, gradients wanted, autocast, and the values of what is
            neither a tensor nor a float. Tensors that it captures are inputs; a captured name that is given
            another object is noticed. Inside of torch.compile, export and transforms the plain function runs.
        single: raise `FusionError` where it does not come out as one kernel.

    Raises:
        FusionError: with `single`, naming what splits it.

    >>> import torch
    >>> from burnt.codegen import fuse
    >>> @fuse
    ... def gelu(x):
    ...     return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
    >>> x = torch.linspace(-2, 2, 5)
    >>> torch.allclose(gelu(x), torch.nn.functional.gelu(x))
    True
    """
    if fn is None:
        return functools.partial(fuse, single=single)
    return Function(fn, single=single)
