"""What a fused function runs: its kernels, what is in them, the bytes they move, and why each ends."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from burnt.codegen.backward import derived_plan
from burnt.codegen.function import Function, Planned
from burnt.codegen.ir import Buffer, Kernel, OnlineReduction, ReductionStep, ScanStep, Store, walk
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.codegen.runtime.target import BuiltKernels
from burnt.codegen.runtime.targets import TARGETS
from burnt.codegen.schedule.scheduler import VIEW_OPS, Call, Plan
from burnt.errors import ConfigError

__all__ = ["Explanation", "Step", "explain"]

_NO_OPS = frozenset({"load", "const", "number", "index", "as", "reduced", "scanned", "identity"})


@dataclasses.dataclass(frozen=True)
class Step:
    """A kernel, or a call of torch's own.

    Args:
        name: the kernel's function, or torch's op.
        kind: that of the kernel (`Kernel.kind`), ``library``, or ``view`` of what such a call reads or makes.
        ops: what is computed in it, in order.
        bytes: of memory that it reads and writes, each tensor counted once.
        why: why it is a step of its own.
        seconds: that it takes, the median of some runs, or None where it was not timed.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    bytes: int
    why: str
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a function runs for some arguments.

    Args:
        steps: kernels and calls in order; none where the eager function runs.
        fallback_reason: why the eager function runs, or None.
        texts: the generated text of each kernel, by name: C, Triton or Metal, as the tensors' device wants.
        backward: the same of its gradients, where an argument wants one and there is a plan for them.
    """

    steps: tuple[Step, ...]
    fallback_reason: str | None = None
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    backward: Explanation | None = None

    @property
    def plain(self) -> str | None:
        """Deprecated name of `fallback_reason`."""
        warnings.warn(
            "Explanation.plain is deprecated: use Explanation.fallback_reason",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.fallback_reason

    def source(self, name: str) -> str:
        """The text of a kernel.

        Raises:
            KeyError: no kernel has this name.
        """
        if name in self.texts:
            return self.texts[name]
        if self.backward is not None and name in self.backward.texts:
            return self.backward.texts[name]
        there = [*self.texts, *(self.backward.texts if self.backward is not None else ())]
        raise KeyError(f"no kernel {name!r}; there are: {', '.join(there)}")

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        if self.fallback_reason is not None:
            return f"the eager function runs: {self.fallback_reason}"
        steps = [*self.steps, *(self.backward.steps if self.backward is not None else ())]
        timed = any(s.seconds is not None for s in steps)
        rows = [
            (
                "kernel",
                "kind",
                "bytes",
                *(["us", "GB/s"] if timed else []),
                "ops",
                "a step of its own because",
            )
        ]
        for s in steps:
            speed = (
                (f"{s.seconds * 1e6:,.1f}", f"{s.bytes / s.seconds / 1e9:.1f}") if s.seconds else ("-", "-")
            )
            rows.append((s.name, s.kind, f"{s.bytes:,}", *(speed if timed else ()), " ".join(s.ops), s.why))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        numbers = range(2, len(rows[0]) - 2)
        lines = []
        for row in rows:
            cells = [
                c.rjust(w) if i in numbers else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def explain(
    fn: Callable[..., Any], *args: Any, timed: bool = True, target: str | None = None, **kwargs: Any
) -> Explanation:
    """What a function runs for these arguments: kernels, ops, bytes, times, and why groups end.

    Args:
        fn: a function made by `fuse`, or a plain one, which is fused to be looked at.
        args: its arguments; the function is called with them, and with those that want gradients its
            backward is, too.
        timed: measure every step, for a fifth of a second altogether.
        target: ``"c"``, ``"triton"`` or ``"metal"``: show the kernels as they would be on such a device,
            which need not be there, nor a compiler for it; nothing is run.
        kwargs: more of the function's arguments.

    Raises:
        ConfigError: there is no such target.

    >>> import torch
    >>> from burnt.codegen import explain
    >>> print(explain(lambda x: torch.softmax(x * 2, -1), torch.ones(4, 8), timed=False))
    kernel      kind       bytes  ops                             a step of its own because
    _lambda__0  reduction    256  mul max sub exp sum reciprocal  it is all there is
    """
    function = fn if isinstance(fn, Function) else Function(fn)
    if function.single:
        # What it is split into is what one wants to know, and not that again.
        function = Function(function.fn, target=function.target, lowered=True)
    if kwargs:
        args = function.positional(args, kwargs)
    if target is not None:
        return _elsewhere(function, args, target)
    planned = function.planned(*args)
    if planned.forward is None:
        return Explanation(_calls(planned), None if planned.served else planned.fallback_reason)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *planned.captured]
    numbers = [args[i] for i in planned.forward.plan.numbers]
    backward = None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        results = [
            r for r in pytree.tree_leaves(function(*args)) if isinstance(r, Tensor) and r.requires_grad
        ]
        wanted = [t for t in tensors if t.requires_grad]
        torch.autograd.grad(results, wanted, [torch.ones_like(r) for r in results], allow_unused=True)
        plan = planned.forward.backward_plans.get(tuple(t.requires_grad for t in tensors))
        if plan is not None:
            backward = _explained(plan.plan, _seconds(plan.plan) if timed else None)
    with torch.no_grad():
        seconds = planned.forward.time_steps(tensors, numbers) if timed else None
    return dataclasses.replace(_explained(planned.forward, seconds), backward=backward)


def _calls(planned: Planned) -> tuple[Step, ...]:
    """What serves where the eager function runs because torch's own kernel is known to be faster."""
    if planned.served is None:
        return ()
    calls, moved, why = planned.served
    ops = tuple(name.split(".")[1] for name in calls)
    return (Step(" ".join(calls), "library", ops, moved, f"torch's own call serves: {why}"),)


def _elsewhere(function: Function, args: Sequence[Any], name: str) -> Explanation:
    """A function planned and printed for a target, whose device need not be there."""
    target = TARGETS.get(name)
    if target is None:
        raise ConfigError(f"there is no target {name!r}", expected=", ".join(TARGETS), found=name)

    def printed(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> BuiltKernels:
        return BuiltKernels("", target.show(list(kernels), numbers), dict.fromkeys(kernels, _not_here))

    shown = dataclasses.replace(target, build=printed, why_unavailable=lambda: None)
    planned = Function(function.fn, target=shown).planned(*args)
    if planned.forward is None:
        return Explanation((), planned.fallback_reason)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *planned.captured]
    backward = derived_plan(planned.forward, tensors)
    return dataclasses.replace(
        _explained(planned.forward, None),
        backward=None if backward is None else _explained(backward.plan, None),
    )


def _not_here(memory: Sequence[Any], numbers: Sequence[float]) -> None:
    raise AssertionError("kernels that are shown do not run")


def _seconds(compiled: CompiledPlan) -> list[float]:
    """The times of a plan's steps with inputs of the right shapes: which values they hold is all the same."""
    tensors = [
        torch.empty_strided(b.shape, b.strides, dtype=b.dtype, device=compiled.device).fill_(
            b.dtype.is_floating_point
        )
        for b in compiled.plan.inputs
    ]
    return compiled.time_steps(tensors, [0.5] * len(compiled.plan.numbers))


def _explained(compiled: CompiledPlan, seconds: Sequence[float] | None) -> Explanation:
    measured: Sequence[float | None] = seconds or [None] * len(compiled.plan.steps)
    steps = tuple(
        dataclasses.replace(_step(step, compiled.plan), seconds=s)
        for step, s in zip(compiled.plan.steps, measured, strict=True)
    )
    return Explanation(steps, None, {kernel.name: text for kernel, text in compiled.texts.items()})


def _step(step: Kernel | Call, plan: Plan) -> Step:
    if isinstance(step, Call):
        moved = [*step.inputs.values(), *(b for b in step.outputs if b is not None)]
        name = str(step.node.target)
        if step.node.target in VIEW_OPS:
            return Step(name, "view", (name.split(".")[1],), 0, "torch's own call reads or makes its memory")
        return Step(
            name, "library", (name.split(".")[1],), _bytes(moved), f"torch's own call serves: {step.reason}"
        )
    exprs = [s.value if isinstance(s, Store) else s.body for s in step.steps]
    moved = [e.extra[0] for e in walk(exprs) if e.op == "load"]  # type: ignore[misc]
    moved += [s.buffer for s in step.steps if isinstance(s, Store)]
    return Step(step.name, step.kind, tuple(_ops(step)), _bytes(moved), _why(step, plan))


def _ops(kernel: Kernel) -> list[str]:
    """The ops of a kernel, each once: a fold and the store after it compute the same chain in loops apart."""
    names: dict[str, None] = {}
    for step in kernel.steps:
        element = step.element if isinstance(step, OnlineReduction) else None
        exprs = walk([element or (step.value if isinstance(step, Store) else step.body)])
        names |= dict.fromkeys(e.op for e in exprs if e.op not in _NO_OPS)
        if isinstance(step, OnlineReduction):
            names[f"online {step.reduction.kind}"] = None
        elif isinstance(step, ReductionStep):
            names[step.reduction.kind] = None
        elif isinstance(step, ScanStep):
            names[f"running {step.scan.kind}"] = None
    return list(names)


def _why(kernel: Kernel, plan: Plan) -> str:
    if len(plan.steps) == 1:
        return "it is all there is"
    stores = [s.buffer for s in kernel.steps if isinstance(s, Store)]
    readers = [s for s in plan.steps if isinstance(s, Call) and any(b in s.inputs.values() for b in stores)]
    if readers:
        return f"{readers[0].node.target} reads its result from memory"
    if any(b.role == "between" for b in stores):
        return "other rows need its folds, or its rows are few and long"
    sizes = ", ".join(str(tuple(b.shape)) for b in stores)
    return f"its results {sizes} have rows of their own"


def _bytes(buffers: list[Buffer]) -> int:
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in dict.fromkeys(buffers) if b.role != "local")
