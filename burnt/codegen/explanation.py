"""`explain`: the kernels that a fused function runs, with ops, bytes, times, and why each is separate."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt._text import bytes_text, table_lines
from burnt.codegen.backward import build_backward_plan
from burnt.codegen.frontend.containers import flatten
from burnt.codegen.function import CacheEntry, Function
from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.printing import MACHINE, Step, explain_step, measure
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.runtime.target import BuiltKernels, Target
from burnt.codegen.runtime.targets import TARGETS
from burnt.codegen.runtime.triton_backend import ARCHITECTURES, TRITON
from burnt.errors import ConfigError, UnsupportedError, quantity


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a function runs for some arguments.

    Args:
        steps: kernels and torch calls in order; empty if the eager function runs.
        fallback_reason: why the eager function runs, or None.
        texts: the generated source of each kernel, by name: C, Triton or Metal, by the tensors' device.
        backward: the explanation of its backward, if an argument requires a gradient and there is a plan.
        graph_breaks: where and why Dynamo split a compiled model into several graphs.
        assembly: for an architecture the PTX or AMDGCN of each kernel, by name.
    """

    steps: tuple[Step, ...]
    fallback_reason: str | None = None
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    backward: Explanation | None = None
    graph_breaks: tuple[str, ...] = ()
    assembly: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def plain(self) -> str | None:
        """Deprecated name of `fallback_reason`."""
        warnings.warn(
            "Explanation.plain is deprecated: use Explanation.fallback_reason",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.fallback_reason

    def source(self, name: str, *, assembly: bool = False) -> str:
        """Return the generated source of a kernel, or its assembly.

        Raises:
            KeyError: there is no kernel of this name.
        """
        parts = [self] if self.backward is None else [self, self.backward]
        texts: dict[str, str] = {}
        for part in parts:
            texts |= part.assembly if assembly else part.texts
        if name not in texts:
            raise KeyError(f"no kernel {name!r}; there are: {', '.join(texts)}")
        return texts[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as a dict that can be written as JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        if self.fallback_reason is not None:
            return f"the eager function runs: {self.fallback_reason}"
        steps = [*self.steps, *(self.backward.steps if self.backward is not None else ())]
        graphs = dict.fromkeys(step.graph for step in steps)
        if not any(graphs):
            return "\n".join(_table([(step, 1) for step in steps]))
        counts = Counter(step.kind for step in steps)
        outside = [(counts.pop("library", 0), "library call"), (counts.pop("torch", 0), "torch graph")]
        del counts["view"]
        figures = [(len(graphs), "graph"), (counts.total(), "kernel"), *outside]
        lines = [
            ", ".join(quantity(number, what) for number, what in figures if number or what == "kernel")
            + f"; {bytes_text(sum(step.bytes for step in steps))} read and written"
        ]
        if any(step.seconds for step in steps):
            total, calls = (
                sum(step.seconds or 0 for step in some) * 1e6
                for some in (steps, [step for step in steps if step.kind == "library"])
            )
            lines[0] += f"; {total:,.0f} us, of which library calls take {calls:,.0f}"
        for graph in graphs:
            rows = self._merged([step for step in steps if step.graph == graph])
            lines += ["", graph, *(f"  {line}" for line in _table(rows))]
        lines += ["", "where Dynamo split the model"] * bool(self.graph_breaks)
        return "\n".join([*lines, *(f"  {reason}" for reason in self.graph_breaks)])

    def _merged(self, steps: Sequence[Step]) -> list[tuple[Step, int]]:
        """Return steps that differ in name and time only as one with the total time, and their number."""
        groups: dict[Any, list[Step]] = {}
        for step in steps:
            name = step.name if step.kind in ("library", "view", "torch") else None
            machine = [getattr(step, field) for field in MACHINE]
            groups.setdefault((name, step.kind, step.ops, step.bytes, step.why, *machine), []).append(step)
        return [
            (dataclasses.replace(same[0], seconds=sum(filter(None, (s.seconds for s in same)))), len(same))
            for same in groups.values()
        ]


def _table(steps: Sequence[tuple[Step, int]]) -> list[str]:
    """Return the lines of a table of steps; each with the number of those that are like it."""
    counts = ["times"] if any(count > 1 for _, count in steps) else []
    figures = ["us", "GB/s"] if any(s.seconds for s, _ in steps) else []
    figures += list(MACHINE) if any(s.registers is not None for s, _ in steps) else []
    rows = [["kernel", *counts, "kind", "bytes", *figures, "ops", "separate step because"]]
    for s, count in steps:
        values = {name: f"{value:,}" for name in MACHINE if (value := getattr(s, name)) is not None}
        if s.seconds:
            values |= {"us": f"{s.seconds * 1e6:,.1f}", "GB/s": f"{s.bytes * count / s.seconds / 1e9:.1f}"}
        row = [s.name, *[str(count)] * len(counts), s.kind, f"{s.bytes * count:,}"]
        rows.append([*row, *(values.get(name, "-") for name in figures), " ".join(s.ops), s.why])
    right = {*range(1, 1 + len(counts)), *range(2 + len(counts), len(rows[0]) - 2)}
    return table_lines(rows, right=right)


def explain(
    fn: Callable[..., Any], *args: Any, timed: bool = True, target: str | None = None, **kwargs: Any
) -> Explanation:
    """Explain what a function runs for these arguments, as `burnt.explain` does, but of functions only.

    >>> import torch
    >>> from burnt.codegen import explain
    >>> print(explain(lambda x: torch.softmax(x * 2, -1), torch.ones(4, 8), timed=False))
    kernel      kind       bytes  ops                             separate step because
    _lambda__0  reduction    256  mul max sub exp sum reciprocal  it is the only step
    """
    function = fn if isinstance(fn, Function) else Function(fn)
    if function.single:
        # Show the steps it is split into, rather than raise the same error again.
        function = Function(function.fn, target=function.target, always_generate=True)
    function, args = function.resolve(*args, **kwargs)
    if target is not None:
        return _explain_for_target(function, args, target)
    entry = function.cache_entry(*args)
    if entry.forward is None:
        return Explanation(_eager_steps(entry), None if entry.eager_calls else entry.fallback_reason)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *entry.captured_tensors]
    numbers = [args[i] for i in entry.forward.plan.number_positions]
    backward = None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        differentiate(function(*args), tensors)
        plan = entry.forward.backward_plans.get(tuple(t.requires_grad for t in tensors))
        if plan is not None:
            backward = explain_plan(plan.plan, measure(plan.plan) if timed else None)
    with torch.no_grad():
        seconds = entry.forward.time_steps(tensors, numbers) if timed else None
    return dataclasses.replace(explain_plan(entry.forward, seconds), backward=backward)


def differentiate(result: Any, tensors: Sequence[Tensor]) -> None:
    """Run the backward of what a call returned, with gradients of ones."""
    leaves: list[Any] = []
    flatten(result, leaves)
    results = [r for r in leaves if isinstance(r, Tensor) and r.requires_grad]
    inputs = [t for t in tensors if t.requires_grad]
    if results and inputs:
        torch.autograd.grad(results, inputs, [torch.ones_like(r) for r in results], allow_unused=True)


def _eager_steps(entry: CacheEntry) -> tuple[Step, ...]:
    """Return the torch calls that run because they are known to be faster; empty if there are none."""
    if entry.eager_calls is None:
        return ()
    calls, num_bytes, why = entry.eager_calls
    ops = tuple(name.split(".")[1] for name in calls)
    return (Step(" ".join(calls), "library", ops, num_bytes, f"torch's call is used: {why}"),)


@functools.cache
def source_only(name: str) -> Target:
    """Return a target that generates kernels which cannot run; its device need not be present.

    Raises:
        ConfigError: there is no such target.
        UnsupportedError: there is no Triton to compile for an architecture.
    """
    if name not in (*TARGETS, *ARCHITECTURES):
        known = ", ".join([*TARGETS, *ARCHITECTURES])
        raise ConfigError(f"there is no target {name!r}", expected=known, found=name)
    target = TARGETS.get(name)
    if target is None:
        if (reason := TRITON.why_unavailable()) is not None:
            raise UnsupportedError(f"no kernels can be compiled for {name}", found=reason)
        target = dataclasses.replace(TRITON, name=name, show=functools.partial(_show_for, name))

    def build(kernels: Sequence[Kernel], buffers: Sequence[Buffer], positions: Sequence[int]) -> BuiltKernels:
        return BuiltKernels(target.show(list(kernels), positions), dict.fromkeys(kernels, _refuse_to_run))

    return dataclasses.replace(target, build=build, why_unavailable=lambda: None)


def _show_for(architecture: str, kernels: Sequence[Kernel], positions: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.runtime.triton_ahead import printed_for

    return {kernel: printed_for(kernel, architecture).text.rstrip("\n") for kernel in kernels}


def _explain_for_target(function: Function, args: Sequence[Any], name: str) -> Explanation:
    """Schedule a function and generate its kernels for a target whose device need not be present."""
    entry = Function(function.fn, target=source_only(name)).cache_entry(*args)
    if entry.forward is None:
        return Explanation((), entry.fallback_reason)
    tensors = [*(a for a in args if isinstance(a, Tensor)), *entry.captured_tensors]
    plan = build_backward_plan(entry.forward, tensors)
    backward = None if plan is None else explain_plan(plan.plan, None)
    return dataclasses.replace(explain_plan(entry.forward, None), backward=backward)


def _refuse_to_run(code: HostCode, tensors: Sequence[str], numbers: Sequence[str]) -> None:
    raise AssertionError("kernels generated for explain(target=...) do not run")


def explain_plan(compiled: CompiledPlan, seconds: Sequence[float] | None) -> Explanation:
    """Explain a plan; `seconds` are the times of its steps."""
    times: Sequence[float | None] = seconds or [None] * len(compiled.plan.steps)
    steps = tuple(
        dataclasses.replace(explain_step(step, compiled.plan), seconds=s)
        for step, s in zip(compiled.plan.steps, times, strict=True)
    )
    codes: dict[str, Any] = {}
    if compiled.target.name in ARCHITECTURES:
        from burnt.codegen.runtime.triton_ahead import compile_kernel

        codes = {kernel.name: compile_kernel(kernel, compiled.target.name) for kernel in compiled.kernels}
        needs = {name: {field: getattr(code, field) for field in MACHINE} for name, code in codes.items()}
        steps = tuple(dataclasses.replace(step, **needs.get(step.name, {})) for step in steps)
    texts = {kernel.name: text for kernel, text in compiled.texts.items()}
    return Explanation(steps, None, texts, assembly={name: code.assembly for name, code in codes.items()})
