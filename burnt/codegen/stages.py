"""Show what each stage of the compiler makes of a function: graph, kernels as loops, source text.

``python -m burnt.codegen.stages`` prints a softmax's stages, as `docs/softmax-to-c.md` shows. Nothing is
compiled or run, so neither the device nor a compiler is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from burnt.codegen.frontend.containers import FlatCall, flatten
from burnt.codegen.frontend.trace import trace
from burnt.codegen.ir import Kernel
from burnt.codegen.printing import graph_text, kernel_text
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
    steps = [
        kernel_text(s) if isinstance(s, Kernel) else f"torch's own call: {s.node.target}" for s in plan.steps
    ]
    return Stages(graph_text(traced.graph), "\n".join(steps), "\n".join(texts.values()))


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
