"""Optimizer steps with clipping of the global norm: burnt's passes beside torch's fused and foreach steps.

    python benchmarks/optimizers.py [--quick] [--rows PATTERN]

A row is a step of all tensors of a model, after their gradients' norm was taken and they were scaled down to
it: `burnt.kernels` in two passes, torch by `clip_grad_norm_` and the step of `torch.optim`. All take samples
in turns, in one process with the pool for host buffers on; a ratio is one of medians of calm samples
(`kernel_table.clock`). That all come to the same parameters is checked first. With 300 tensors their sizes
are spread as a transformer's are: evenly in their logarithm, from biases to embeddings.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from kernel_table import clock
from kernel_table.cpu import calm_median, quartiles, used
from torch import Tensor

import burnt
from burnt import kernels

ROUNDS = 21
MAX_NORM = 1.0


class Row(NamedTuple):
    """A step: which, of how many parameters in how many tensors, and the ratio that is aimed at."""

    name: str
    kind: str
    count: int
    tensors: int
    target: float | None = None


ROWS = (
    Row("adamw + clip, 50 M in 300 tensors", "adamw", 50_000_000, 300, 1.4),
    Row("sgd, momentum + clip, 50 M in 300 tensors", "sgd", 50_000_000, 300),
    Row("adamw + clip, 1 M in 300 tensors", "adamw", 1_000_000, 300),
    Row("adamw + clip, 9 k in 6 tensors", "adamw", 9_000, 6),
)


def sizes(count: int, tensors: int) -> list[int]:
    """Of tensors, spread over three orders of magnitude, `count` in all or a few more."""
    weights = [math.exp(7 * i / max(tensors - 1, 1)) for i in range(tensors)]
    return [max(1, round(count * weight / sum(weights))) for weight in weights]


def burnts(kind: str, params: list[Tensor], grads: list[Tensor]) -> Callable[[], Any]:
    first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
    if kind == "sgd":
        buffers: list[Tensor | None] = [None] * len(params)
        return lambda: kernels.sgd_step(params, grads, buffers, lr=1e-3, momentum=0.9, max_norm=MAX_NORM)
    steps = [torch.zeros(()) for _ in params]
    return lambda: kernels.adamw_step(params, grads, first, second, steps, lr=1e-3, max_norm=MAX_NORM)


def torchs(kind: str, params: list[Tensor], grads: list[Tensor], **options: Any) -> Callable[[], Any]:
    own = [torch.nn.Parameter(p) for p in params]
    for parameter, gradient in zip(own, grads, strict=True):
        parameter.grad = gradient
    optimizer: torch.optim.Optimizer
    if kind == "sgd":
        optimizer = torch.optim.SGD(own, lr=1e-3, momentum=0.9, **options)
    else:
        optimizer = torch.optim.AdamW(own, lr=1e-3, **options)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(own, MAX_NORM)
        optimizer.step()

    return run


def measure(row: Row, rounds: int, divisor: int) -> str:
    """The row's line of the table."""
    generator = torch.Generator().manual_seed(0)
    shapes = sizes(row.count // divisor, row.tensors)
    start = [torch.randn(n, generator=generator) for n in shapes]
    # Of a norm that clipping leaves: torch's changes its gradients, and finds them small the next time.
    grads = [torch.randn(n, generator=generator) * (0.5 / math.sqrt(sum(shapes))) for n in shapes]
    made: dict[str, list[Tensor]] = {}
    runs: dict[str, Callable[[], Any]] = {}
    makers: dict[str, Callable[..., Callable[[], Any]]] = {
        "burnt": burnts,
        "fused": lambda *args: torchs(*args, fused=True),
        "foreach": lambda *args: torchs(*args, foreach=True),
    }
    for name, make in makers.items():
        made[name] = [p.clone() for p in start]
        runs[name] = make(row.kind, made[name], [g.clone() for g in grads])
        for _ in range(2):
            runs[name]()
    for name, params in made.items():
        for ours, theirs in zip(made["burnt"], params, strict=True):
            if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5):
                raise SystemExit(f"{row.name}: {name} and burnt come to different parameters")
    calls = {name: clock.warmed(run) for name, run in runs.items()}
    samples: dict[str, list[clock.Sample]] = {name: [] for name in runs}
    orders = clock.orders(runs)
    for _ in range(rounds):
        for name in next(orders):
            samples[name].append(clock.sample(runs[name], calls[name]))
    ms = {name: calm_median(taken) * 1e3 for name, taken in samples.items()}
    ratio = ms["fused"] / ms["burnt"]
    low, high = quartiles(
        [a.seconds / b.seconds for a, b in zip(samples["fused"], samples["burnt"], strict=True)]
    )
    calm = f"{sum(s.calm for s in samples['burnt'])}/{len(used(samples['burnt']))}"
    aim = "" if row.target is None else f"  target {row.target}: {'met' if ratio >= row.target else 'missed'}"
    return (
        f"{row.name:<44}{ms['burnt']:>10.3f}{ms['fused']:>12.3f}{ms['foreach']:>12.3f}{ratio:>8.2f}"
        f"  {low:.2f} to {high:.2f}, calm {calm}{aim}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how burnt's optimizer steps compare with torch's")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    options = parser.parse_args(arguments)
    burnt.memory.enable()
    print(f"{burnt.device_info('cpu').name}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'step':<44}{'burnt ms':>10}{'fused ms':>12}{'foreach ms':>12}{'ratio':>8}  quartiles")
    for row in ROWS:
        if re.search(options.rows, row.name):
            print(measure(row, 2 if options.quick else ROUNDS, 64 if options.quick else 1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
