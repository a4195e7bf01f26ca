"""Rows of the kernels' table launched through the null driver, at their sizes: no figures, no results.

    python -m tests.null.rows --group memory --rows "^softmax" --seconds 60

A row's op is replaced by the candidate that is a GPU's: flash attention, loops of recurrent layers, generated
kernels. Rows of which nothing is a kernel of ours (functions around several ops) are named as left out.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.null import driver

ROOT = Path(__file__).parents[2]
CANDIDATES = "triton", "flash", "steps", "generated"  # of a GPU, the special ones first


def launched(op: Any) -> Callable[..., Any]:
    """An op that takes the candidate of a GPU, called as the op is."""
    from burnt.codegen.render.triton.matmul_config import HOPPER
    from burnt.kernels.interface.binding import bind_candidate
    from burnt.kernels.ops.attention.flash_config import configs

    name = next(name for name in CANDIDATES if name in op.candidates)

    def call(*args: Any, **kwargs: Any) -> Any:
        full = op.bind(args, kwargs)
        blocks: dict[str, Any] | None = None
        if name == "triton":
            blocks = op.candidates[name].alternatives(full)[0].config
        if name == "flash":
            blocks = dict(configs(full[0].shape[3], full[0].element_size(), HOPPER)[0])
        return bind_candidate(op, op.candidates[name], blocks, full)(*full)

    return call


def launch(family: Any, gradients: bool, small: int) -> str | None:
    """Run a row's call, and its gradients; returns why there was nothing to launch, or None."""
    from burnt import kernels

    name, call = family.beneath or (family.op, family.call)
    op = kernels.OPS.get(name)
    if op is None or not any(known in op.candidates for known in CANDIDATES):
        return f"{name} is a function around several ops"
    inputs = family.inputs(torch.device("cpu"), gradients, 1)
    # What the host's time is taken with: the same forward of a few elements.
    call(launched(op), *family.inputs(torch.device("cpu"), gradients, max(inputs[0].numel() // small, 2)))
    result = call(launched(op), *inputs)
    if gradients:
        roots = [t for t in (result if isinstance(result, tuple) else (result,)) if t.requires_grad]
        wanted = [t for t in inputs if t.requires_grad]
        torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True)
    return None


def step(row: Any) -> None:
    """Run an optimizer's step of burnt's."""
    from kernel_table import steps

    params, grads = ([torch.zeros(shape) for shape in row.shapes(1)] for _ in range(2))
    steps.burnts(row.kind, params, grads)()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--group", choices=("memory", "products"), help="half of the rows")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row later")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from kernel_table import gpu
    from kernel_table.steps import Step

    from burnt.codegen.render.triton.matmul_config import HOPPER
    from burnt.codegen.runtime import triton_compile_pool

    driver.install()
    triton_compile_pool.limits_of = lambda device: HOPPER
    began = time.monotonic()
    failed = late = 0
    for name, row in gpu.rows(options.group).items():
        if not re.search(options.rows, name):
            continue
        if time.monotonic() - began > options.seconds:
            late += 1
            continue
        before, launches = len(driver.compiled()), driver.last_launch().launches
        try:
            why = step(row) if isinstance(row, Step) else launch(*row, gpu.SMALL)
        except Exception as error:  # of any kind: the other rows are launched all the same
            failed += 1
            print(f"failed    {name}: {type(error).__name__}: {error}", flush=True)
            continue
        hits = [kernel.hit for kernel in driver.compiled()[before:]]
        launches = driver.last_launch().launches - launches
        found = f"{launches} launches, {sum(hits)} of {len(hits)} kernels from the cache"
        print(f"{'left out' if why else 'launched'}  {name}: {why or found}", flush=True)
    if late:
        print(f"{late} rows were not begun: no time was left")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
