"""Show what each stage of the compiler makes of a function: graph, kernels as loops, source text.

``python -m burnt.codegen.stages`` prints a softmax's stages, as `docs/softmax-to-c.md` shows. Nothing is
compiled or run, so neither the device nor a compiler is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from burnt.codegen.frontend.containers import FlatCall, flatten
from burnt.codegen.frontend.trace import trace
from burnt.codegen.ir import Expr, Kernel, OnlineReduction, ScanStep, Store
from burnt.codegen.runtime.targets import find_target
from burnt.errors import ConfigError


class Stages(NamedTuple):
    """The stages of a function for some arguments, as text."""

    graph: str  # the traced aten ops, a line each
    kernels: str  # the plan: each kernel as loops and steps, and each call of torch's own
    source: str  # the generated source of each kernel, without the helpers that all kernels share


def stages(fn: Callable[..., Any], *args: Any, target: str = "c", **kwargs: Any) -> Stages:
    """Trace, lower, schedule and render a function; nothing is compiled or run.

    Args:
        fn: a function of tensors and numbers, and of containers of them.
        args: its positional arguments; the values of tensors are not used.
        target: the language, ``"c"``, ``"triton"`` or ``"metal"``.
        kwargs: its keyword arguments.

    Raises:
        UnsupportedError: the function cannot be traced.
        ConfigError: there is no such target.

    >>> print(stages(lambda x: x.sum(-1) * 2, torch.ones(4, 8)).kernels)
    kernel, reduction: for i0 < 4
      r0 = sum for i1 < 8 of x0[8*i0 + i1]
      y0[i0] = mul(r0, 2.0)
    """
    to = find_target(target)
    leaves: list[Any] = []
    structure = flatten((args, kwargs), leaves)
    traced, _ = trace(FlatCall(fn, structure).trace, leaves)
    captured = [getattr(traced.graph, name) for name in traced.captured]
    plan = to.schedule(traced, captured)
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    for i, kernel in enumerate(kernels):
        kernel.name = f"{getattr(fn, '__name__', type(fn).__name__).strip('<>')}_{i}"
    texts = to.show(kernels, plan.number_positions)
    graph = [_graph_line(node) for node in traced.graph.graph.nodes]
    steps = [
        _kernel(s) if isinstance(s, Kernel) else f"torch's own call: {s.node.target}" for s in plan.steps
    ]
    return Stages("\n".join(graph), "\n".join(steps), "\n".join(texts.values()))


def _graph_line(node: torch.fx.Node) -> str:
    if node.op == "output":
        return "return " + ", ".join(map(str, node.all_input_nodes))
    value = node.meta.get("val")
    shape = ""
    if isinstance(value, torch.Tensor):
        shape = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if node.op != "call_function":
        return f"{node.name}: {shape}".rstrip(": ")
    return f"{node.name}: {shape} = {node.target}({', '.join(map(str, node.args))})"


def _kernel(kernel: Kernel) -> str:
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


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the last axis of ``x``, as one writes it by hand."""
    weights = torch.exp(x - x.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def main(target: str = "c") -> None:
    """Print the stages of a softmax of 4 rows of 1,000 float32 numbers."""
    found = stages(softmax, torch.empty(4, 1000), target=target)
    for name, text in zip(Stages._fields, found, strict=True):
        print(f"--- {name}\n{text}\n")  # noqa: T201 - this is a command


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ConfigError as error:
        sys.exit(str(error))
