"""Plans as text and figures: ``BURNT_DEBUG=ir,groups,source,timing``, for `explain` and `stages`."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from burnt import _torch
from burnt.codegen.ir import Buffer, Expr, Kernel, OnlineReduction, ReductionStep, ScanStep, Store, walk
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.codegen.schedule.placement import VIEW_OPS
from burnt.codegen.schedule.scheduler import Plan, TorchCall
from burnt.errors import quantity

MACHINE = ("registers", "spilled", "shared")
"""What a kernel needs of a GPU: fields of a `Step`."""

_PARTS = ("ir", "groups", "source", "timing")


def debug_log(name: str, message: str) -> None:
    """Print a message about a function or graph to stderr, if BURNT_DEBUG is set."""
    if _debug_parts():
        print(f"burnt: {name}: {message}", file=sys.stderr)  # noqa: T201


def debug_log_plan(plan: CompiledPlan) -> None:
    """Print the parts of a plan that BURNT_DEBUG names; of ``1`` its steps and the source of its kernels."""
    parts = [part for part in _PARTS if part in _debug_parts()]
    if not parts:
        return
    lines = [quantity(len(plan.plan.steps), "step")]
    for part in parts:
        lines += [f" {part}"] * (len(parts) > 1)
        lines += _part_lines(part, plan)
    debug_log(plan.name, "\n".join(lines))


def _debug_parts() -> frozenset[str]:
    return _parse_parts(os.environ.get("BURNT_DEBUG", ""))


@functools.cache  # so that a wrong word is warned of once
def _parse_parts(text: str) -> frozenset[str]:
    if text in ("", "0", "1"):
        return frozenset(["source"] if text == "1" else [])
    words = dict.fromkeys(word.strip() for word in text.split(","))
    unknown = [word for word in words if word not in _PARTS]
    if unknown:
        warnings.warn(
            f"BURNT_DEBUG={text}: {', '.join(map(repr, unknown))} is ignored; it takes 1, or any of "
            f"{', '.join(_PARTS)}, separated by commas",
            RuntimeWarning,
            stacklevel=5,
        )
    return frozenset(words) & {*_PARTS}


def _part_lines(part: str, plan: CompiledPlan) -> Iterator[str]:
    if part == "ir":
        yield from (f"  {line}" for line in graph_text(plan.traced.graph).splitlines())
        return
    seconds: Sequence[float] = []
    if part == "timing":
        try:
            seconds = measure(plan)
        except Exception as error:  # inputs that are all 0 or 1 may be invalid
            yield f"  not timed: {type(error).__name__}: {error}"
            return
    for i, step in enumerate(plan.plan.steps):
        facts = explain_step(step, plan.plan)
        if part == "timing":
            yield f"  {seconds[i] * 1e6:10,.1f} us  {facts.name}"
        elif part == "groups":
            yield f"  {facts.name}, {facts.bytes:,} bytes; {facts.why}"
            if isinstance(step, Kernel):
                yield from (f"    {line}" for line in kernel_text(step).splitlines())
        elif isinstance(step, TorchCall):
            yield f"  {facts.name}, torch's own call: {step.reason}"
        else:
            yield f"  {facts.name}, {facts.kind}\n{plan.texts.get(step, '')}"


def graph_text(graph: torch.fx.GraphModule) -> str:
    """Return a graph as text: a line for each node, with dtype and shape."""
    return "\n".join(map(_graph_line, graph.graph.nodes))


_NO_OPS = frozenset({"load", "const", "number", "index", "as", "reduced", "scanned", "identity"})


@dataclasses.dataclass(frozen=True)
class Step:
    """A generated kernel or a torch call."""

    name: str
    # Kind of the kernel (`Kernel.kind`), ``library`` for a torch call, ``view`` for a view of a torch call's
    # argument or result, or ``torch`` for a graph that torch runs op by op.
    kind: str
    ops: tuple[str, ...]  # the ops that it computes, in order
    bytes: int  # bytes of memory that it reads and writes, each tensor counted once
    why: str
    seconds: float | None = None  # median time of a few runs; None if it was not timed
    graph: str = ""  # of a compiled model: the name of the graph
    # Of a kernel for a GPU architecture, the most of its functions: registers per thread, bytes per thread
    # spilled from them, and bytes of shared memory per program.
    registers: int | None = None
    spilled: int | None = None
    shared: int | None = None


def explain_step(step: Kernel | TorchCall, plan: Plan) -> Step:
    """Return the facts about a step of a plan."""
    if isinstance(step, TorchCall):
        name = _target_name(step.node)
        ops = (name.split(".")[1] if "." in name else name,)
        if step.node.target in VIEW_OPS:
            return Step(name, "view", ops, 0, "a torch call reads or returns its memory")
        num_bytes = _num_bytes([*step.inputs.values(), *(b for b in step.outputs if b is not None)])
        chosen = step.node.meta.get("library")
        return Step(name, "library", ops, num_bytes, chosen or f"torch's call is used: {step.reason}")
    num_bytes = _num_bytes([*step.buffers_read, *step.buffers_written])
    return Step(step.name, step.kind, tuple(_ops(step)) or ("copy",), num_bytes, _why_separate(step, plan))


def _ops(kernel: Kernel) -> list[str]:
    """Return the names of a kernel's ops, each once: a reduction and its store may repeat a computation."""
    names: dict[str, None] = {}
    for step in kernel.steps:
        element = step.element if isinstance(step, OnlineReduction) else None
        exprs = walk([element or step.body])
        names |= dict.fromkeys(e.op for e in exprs if e.op not in _NO_OPS)
        if isinstance(step, OnlineReduction):
            names[f"online {step.reduction.kind}"] = None
        elif isinstance(step, ReductionStep):
            names[step.reduction.kind] = None
        elif isinstance(step, ScanStep):
            names[f"running {step.scan.kind}"] = None
    return list(names)


def _why_separate(kernel: Kernel, plan: Plan) -> str:
    if len(plan.steps) == 1:
        return "it is the only step"
    stores = [s.buffer for s in kernel.steps if isinstance(s, Store)]
    readers = [
        s for s in plan.steps if isinstance(s, TorchCall) and any(b in s.inputs.values() for b in stores)
    ]
    if readers:
        return f"{_target_name(readers[0].node)} reads its result from memory"
    own = plan.steps.index(kernel)
    last = max((i for i, s in enumerate(plan.steps) if set(stores) & set(_read(s))), default=own)
    if any(isinstance(s, TorchCall) and s.node.target not in VIEW_OPS for s in plan.steps[own:last]):
        return "kernels after a library call load its result"
    if any(b.role == "intermediate" for b in stores):
        if kernel.kind == "elementwise":
            return "later kernels load its result, which is not computed again"
        return "other rows need its reductions, or its rows are few and long"
    sizes = ", ".join(str(tuple(b.shape)) for b in stores)
    return f"its results {sizes} have rows of their own"


def _read(step: Kernel | TorchCall) -> Iterable[Buffer]:
    return step.inputs.values() if isinstance(step, TorchCall) else step.buffers_read


def _num_bytes(buffers: list[Buffer]) -> int:
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in dict.fromkeys(buffers) if b.role != "local")


def measure(compiled: CompiledPlan) -> list[float]:
    """Time a plan's steps with inputs of the right shapes, of ones and zeros; their values do not matter."""
    devices = [compiled.device] if compiled.device.type == "cuda" else []
    with torch.no_grad(), _torch.real_tensors(), torch.random.fork_rng(devices):
        tensors = [
            torch.empty_strided(b.shape, b.strides, dtype=b.dtype, device=compiled.device).fill_(
                b.dtype.is_floating_point
            )
            for b in compiled.plan.inputs
            if b is not compiled.plan.seed
        ]
        return compiled.time_steps(tensors, [0.5] * len(compiled.plan.number_positions))


def _graph_line(node: torch.fx.Node) -> str:
    if node.op == "output":
        return "return " + ", ".join(map(str, node.all_input_nodes))
    value = node.meta.get("val")
    shape = ""
    if isinstance(value, torch.Tensor):
        shape = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if node.op != "call_function":
        return f"{node.name}: {shape}".rstrip(": ")
    return f"{node.name}: {shape} = {_target_name(node)}({', '.join(map(str, node.args))})"


def _target_name(node: torch.fx.Node) -> str:
    target: Any = node.target
    return str(target) if hasattr(target, "overloadpacket") else getattr(target, "__name__", str(target))


def kernel_text(kernel: Kernel) -> str:
    """A kernel as text: its outer loops, then a line for each step."""
    results: dict[tuple[Any, ...], str] = {}
    lines = [f"kernel, {kernel.kind}:{_loops(kernel.outer)}"]
    for step in kernel.steps:
        if isinstance(step, Store):
            index = step.offset
            lines.append(f"  {step.buffer.name}[{index}]{_loops(step.inner)} = {_expr(step.body, results)}")
            continue
        reduction = step.scan if isinstance(step, ScanStep) else step.reduction
        name = f"r{len(results)}"
        body = _expr(step.body, results)
        if isinstance(step, OnlineReduction):
            body = f"{step.kind} of {body}, about {results[step.reference.reduction, step.reference.index]}"
        results[reduction, step.index] = name
        lines.append(f"  {name} = {reduction.kind}{_loops(step.inner)} of {body}")
    names: dict[str, str] = {}
    return re.sub(r"\bi\d+\b", lambda m: names.setdefault(m[0], f"i{len(names)}"), "\n".join(lines))


def _loops(variables: Sequence[Any]) -> str:
    return "".join(f" for {v} < {v.extent}" for v in variables)


def _expr(expr: Expr, results: dict[tuple[Any, ...], str]) -> str:
    """An expression as text; results of earlier steps go by their names."""
    if expr.op == "load":
        buffer, index = expr.extra
        return f"{buffer.name}[{index}]"
    if expr.op in ("reduced", "scanned"):
        return results[expr.extra]
    if expr.op in ("const", "index"):
        return str(expr.extra[0])
    if expr.op == "number":
        return f"number {expr.extra[0]}"
    dtype = [str(expr.dtype).removeprefix("torch.")] if expr.op == "cast" else []
    return f"{expr.op}({', '.join([*(_expr(a, results) for a in expr.args), *dtype])})"
