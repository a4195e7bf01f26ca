"""What burnt costs next to its kernels: the first one in a new process, a call, an op's front."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import burnt
from kernel_table.rival import compiled

# A program whose last line says how many seconds its first kernel took. Whoever traces with fake tensors, as
# torch.compile does, makes torch import its compiler, which takes longer than all the rest.
FIRST = """
import json, time
import torch, burnt
{imports}
x = torch.randn(1 << 16)
began = time.perf_counter()
{decorator}(lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))))(x)
print(json.dumps(time.perf_counter() - began))
"""
Result = dict[str, Any]


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * y + x)


def measure(rivals: Sequence[str], quick: bool) -> dict[str, Result]:
    """Rows of the second table: what was measured, what is aimed at, and what others take next to it."""
    results = {}
    for imports in ("", "import torch._inductor"):
        name = "first kernel, empty caches, " + ("after all imports, s" if imports else "s")
        results[name] = first_kernel(imports, rivals, 1 if quick else 5)
    number, repeats = (200, 3) if quick else (2000, 25)
    for gradients in (False, True):
        name = "call on 16 elements" + (", gradients wanted" if gradients else "") + ", us"
        x, y = (torch.randn(16, requires_grad=gradients) for _ in range(2))
        functions: dict[str, Callable[..., Any]] = {"burnt": burnt.fuse(scaled)}
        functions |= {r: compiled(scaled) if r == "inductor" else scaled for r in rivals}
        calls = {n: functools.partial(f, x, y) for n, f in functions.items()}
        times = alternated(calls, number, repeats)
        results[name] = row(times, 20 if gradients else 12)
    kernels = getattr(burnt, "kernels", None)
    if kernels is not None:
        for gradients in (False, True):
            name = "an op's front" + (", gradients wanted" if gradients else "") + ", us above its winner"
            x = torch.randn(4, 4, requires_grad=gradients)
            arguments = kernels.softmax.bind((x, -1), {})
            winner = kernels.softmax.chosen(*arguments).call
            calls = {
                "burnt": functools.partial(kernels.softmax, *arguments),
                "winner": functools.partial(winner, *arguments),
            }
            times = alternated(calls, number, repeats)
            above = [front - call for front, call in zip(times["burnt"], times["winner"], strict=True)]
            results[name] = row({"burnt": above}, 8 if gradients else 5)
    return results


def first_kernel(imports: str, rivals: Sequence[str], rounds: int) -> Result:
    """Seconds until a first kernel has run, in a new process with empty caches.

    Args:
        imports: a line that is run before the clock starts.
        rivals: of these Inductor is measured next to burnt.
        rounds: how often.
    """
    decorators = {"burnt": "burnt.fuse"}
    if "inductor" in rivals:
        decorators["inductor"] = "torch.compile"
    taken: dict[str, list[float]] = {name: [] for name in decorators}
    for _ in range(rounds):
        for name, decorator in decorators.items():
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [sys.executable, "-c", FIRST.format(imports=imports, decorator=decorator)],
                    env={**os.environ, "BURNT_CACHE": folder, "TORCHINDUCTOR_CACHE_DIR": folder},
                    cwd=Path(burnt.__file__).parents[1],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                taken[name].append(json.loads(done.stdout))
    return row(taken, 1.0)


def alternated(runs: dict[str, Callable[[], object]], number: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds of a call, in turns."""
    for run in runs.values():
        timeit.timeit(run, number=number // 10)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(timeit.timeit(run, number=number) / number * 1e6)
    return times


def row(times: dict[str, list[float]], target: float) -> Result:
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "least": min(times["burnt"]), "target": target, "met": medians["burnt"] <= target}
