"""What `burnt.fuse` gains on a CPU, as ratios to eager torch and, with --inductor, to torch.compile.

    python benchmarks/fuse.py [--quick] [--inductor]

Rivals alternate call by call in one process with one allocator; a sample in which the machine took time away
(steal in /proc/stat) is dropped. Bandwidth is that of `tensor.clone()` into memory that is already there,
measured in the same run; a row's share of it counts each input and each output once.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import burnt


@dataclasses.dataclass(frozen=True)
class Row:
    """A function, its arguments, and whether its backward is timed as well."""

    name: str
    fn: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    backward: bool = False


def gelu_by_hand(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> Any:
    total = x + residual
    return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight, total


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


ROWS = [
    Row("gelu by hand, 16 M", gelu_by_hand, [(4096, 4096)]),
    Row("relu(a*w+b)+r, 16 M", lambda a, w, b, r: F.relu(a * w + b) + r,
        [(4096, 4096), (4096,), (4096,), (4096, 4096)]),
    Row("var, last axis, 4096 x 1024", lambda x: x.var(-1), [(4096, 1024)]),
    Row("sum, first axis, 4096 x 1024", lambda x: x.sum(0), [(4096, 1024)]),
    Row("logsumexp 4096 x 1024", lambda x: torch.logsumexp(x, -1), [(4096, 1024)]),
    Row("softmax 4096 x 1024", lambda x: torch.softmax(x, -1), [(4096, 1024)]),
    Row("layer_norm 4096 x 1024", lambda x, w, b: F.layer_norm(x, (1024,), w, b),
        [(4096, 1024), (1024,), (1024,)]),
    Row("rms_norm + residual", rms_norm, [(4096, 1024), (1024,), (4096, 1024)]),
    Row("swiglu", swiglu, [(4096, 1024), (4096, 1024)]),
    Row("softmax, fwd+bwd", lambda x: torch.softmax(x, -1), [(4096, 1024)], True),
    Row("rms_norm + residual, fwd+bwd", rms_norm, [(4096, 1024), (1024,), (4096, 1024)], True),
    Row("swiglu, fwd+bwd", swiglu, [(4096, 1024), (4096, 1024)], True),
]  # fmt: skip


def stolen() -> int:
    """Ticks that the host took from this machine."""
    path = Path("/proc/stat")
    return int(path.read_text().split("\n")[0].split()[8]) if path.exists() else 0


def timed(run: Callable[[], object]) -> float | None:
    """Seconds of a call, or None where time was stolen."""
    before, start = stolen(), time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return None if stolen() > before else seconds


def runner(fn: Callable[..., Any], args: Sequence[torch.Tensor], backward: bool) -> Callable[[], object]:
    """A call, with its backward from ones where that is timed."""
    if not backward:
        return lambda: fn(*args)

    def both() -> None:
        made = fn(*args)
        outputs = made if isinstance(made, tuple) else (made,)
        torch.autograd.grad(outputs, args, [torch.ones_like(o) for o in outputs])

    return both


def measure(row: Row, rounds: int, inductor: bool) -> dict[str, float]:
    """Median seconds by rival."""
    args = [torch.randn(shape).requires_grad_(row.backward) for shape in row.shapes]
    rivals = {"eager": row.fn, "burnt": burnt.fuse(row.fn)}
    if inductor:
        rivals["inductor"] = torch.compile(row.fn)
    runs = {name: runner(fn, args, row.backward) for name, fn in rivals.items()}
    for run in runs.values():
        run()
        run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds = timed(run)
            if seconds is not None:
                samples[name].append(seconds)
    return {name: statistics.median(values) if values else float("nan") for name, values in samples.items()}


def bandwidth() -> float:
    """Bytes per second of a copy, reads and writes counted."""
    source, target = torch.randn(1 << 24), torch.empty(1 << 24)
    target.copy_(source)
    times = [t for t in (timed(lambda: target.copy_(source)) for _ in range(9)) if t is not None]
    return 2 * source.nbytes / statistics.median(times)


def moved(row: Row) -> int:
    """Bytes of inputs and outputs, each once."""
    args = [torch.empty(shape, device="meta") for shape in row.shapes]
    made = row.fn(*args)
    outputs = made if isinstance(made, tuple) else (made,)
    return sum(t.numel() * t.element_size() for t in (*args, *outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, for the tests")
    parser.add_argument("--inductor", action="store_true", help="torch.compile too; it compiles for minutes")
    options = parser.parse_args()
    copy = bandwidth()
    print(f"{torch.get_num_threads()} threads, copy {copy / 1e9:.1f} GB/s, torch {torch.__version__}")
    print(f"{'':<30}{'burnt ms':>10}{'x eager':>10}{'x inductor':>12}{'of copy':>9}")
    for row in ROWS:
        seconds = measure(row, 3 if options.quick else 21, options.inductor)
        ours = seconds["burnt"]
        inductor = f"{seconds['inductor'] / ours:.2f}" if options.inductor else "-"
        share = "-" if row.backward else f"{moved(row) / ours / copy:.0%}"
        print(f"{row.name:<30}{ours * 1e3:>10.2f}{seconds['eager'] / ours:>10.2f}{inductor:>12}{share:>9}")


if __name__ == "__main__":
    main()
