"""Rows of the kernels' table launched through the null driver, at their sizes: no figures, no results.

    python -m tests.null.rows --group memory --rows "^softmax" --seconds 60
    python -m tests.null.rows --picks .gpu/picks.json

A row's op is replaced by the candidate that is a GPU's: flash attention, loops of recurrent layers, generated
kernels. Rows of which nothing is a kernel of ours (functions around several ops) are named as left out.

With `--picks` candidates of the products are launched, and what they launched is disassembled. The default
and the four that are fastest by the cost model (`tests.null.cost`) are written, for a race on a GPU
(`benchmarks/kernels.py --picks`).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from burnt import kernels
from tests.null import cost, driver

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from kernel_table import clock, gpu, own, steps  # noqa: E402

RACED = (
    r"^(matmul 4096|linear, bias, gelu|bmm .*|quantized.*|scaled.*|grouped.*|attention|attention, causal)$"
)
RACED += r"|^(attention|conv (56|28)\S+)( fwd\+bwd)?$"
PICKS, LAUNCHED = 5, 16  # candidates of a row
ATTENTION = {"forward_kernel": 2, "backward_keys": 4, "backward_queries": 3}
"""Products of a pair of blocks; the keys' kernel has five where it computes the queries' gradient, too."""


def launch(family: Any, gradients: bool, small: int) -> str | None:
    """Run a row's call, and its gradients; returns why there was nothing to launch, or None."""
    name, call = family.beneath or (family.op, family.call)
    op = kernels.OPS.get(name)
    if op is None or own.candidate_of(op) is None:
        return f"{name} is a function around several ops"
    cpu = torch.device("cpu")
    inputs = family.inputs(cpu, gradients, 1)
    # What the host's time is taken with: the same forward of a few elements.
    call(own.bound(op, None), *family.inputs(cpu, gradients, max(inputs[0].numel() // small, 2)))
    clock.runner(functools.partial(call, own.bound(op, None)), inputs, gradients)()
    return None


def step(row: Any) -> None:
    """Run an optimizer's step of burnt's."""
    params, grads = ([torch.zeros(shape) for shape in row.shapes(1)] for _ in range(2))
    steps.burnts(row.kind, params, grads)()


def works_of(run: Any, products: float) -> list[cost.Work]:
    """Make a call, and return the work of its launches; nothing where none of them has a product."""
    since = driver.last_launch().launches
    outputs = run()[0].numel()
    launches = [(*driver.loaded(launch), launch) for launch in driver.launches(since)]
    names, works = {name for name, *_ in launches}, []
    for name, cubin, launch in launches:
        times = ATTENTION.get(name, 1) + (name == "backward_keys" and "backward_queries" not in names)
        sizes = math.prod(launch.block), launch.shared, math.prod(launch.grid)
        works.append(cost.work_of(cubin, *sizes, products * times, outputs))
    return works if any(work.tensor for work in works) else []


def picks_of(name: str, end: float, constants: cost.Constants) -> list[dict[str, Any]]:
    """The default candidate of a row and the best of the others; none is compiled after `end`."""
    family, gradients = gpu.rows()[name]
    op_name, call = family.beneath or (family.op, family.call)
    op, full = kernels.OPS[op_name], []
    with FlopCounterMode(display=False) as counter:
        family.unfused(*family.inputs(torch.device("meta"), False, 1))
    halves = 1 + ("attention" in op_name) + ("causal" in name)  # two products; half of their blocks
    products = counter.get_total_flops() / 2**halves
    inputs = family.inputs(torch.device("cpu"), gradients, 1)
    found: list[dict[str, Any]] = []

    def add(config: dict[str, Any] | None) -> None:
        try:
            run = clock.runner(functools.partial(call, own.bound(op, config)), inputs, gradients)
            works = works_of(run, products)
        except Exception as error:  # of any kind, such as too much shared memory: it is no candidate
            print(f"    {config}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            return
        seconds = sum(work.seconds(constants) for work in works)
        found.append({"config": config, "seconds": seconds, "works": [w._asdict() for w in works]})

    def note(*args: Any, **kwargs: Any) -> Any:
        full[:] = op.bind(args, kwargs)
        return own.bound(op, None)(*args, **kwargs)

    call(note, *inputs)
    add(None)
    candidate = own.candidate_of(op)
    for alternative in candidate.alternatives(full)[1:LAUNCHED]:
        if alternative.skip_reason is None and time.monotonic() < end:
            add(alternative.config)
    together = candidate.suggest_config([(pick["config"], pick["seconds"]) for pick in found])
    if together is not None:
        add(together)
    return [*found[:1], *sorted(found[1:], key=lambda pick: pick["seconds"])[: PICKS - 1]]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--group", choices=("memory", "products"), help="half of the rows")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row later")
    parser.add_argument("--picks", type=Path, help="pick candidates of the products, and write them")
    options = parser.parse_args()
    driver.install()
    end = time.monotonic() + options.seconds
    constants, picks = cost.Constants(), {}
    for file in sorted((ROOT / "benchmarks" / "results").glob("nvidia-*-figures.json")):
        refit = json.loads(file.read_text(encoding="utf-8"))["stages"].get("refit", {})
        constants = cost.Constants(**refit["constants"]) if "constants" in refit else constants
    failed = late = 0
    for name, row in gpu.rows(options.group).items():
        if not re.search(options.rows, name) or (options.picks and not re.search(RACED, name)):
            continue
        if time.monotonic() > end:
            late += 1
            continue
        before, launches = len(driver.compiled()), driver.last_launch().launches
        why = None
        try:
            if options.picks:
                picks[name] = picks_of(name, end, constants)
            elif isinstance(row, steps.Step):
                step(row)
            else:
                why = launch(*row, gpu.SMALL)
        except Exception as error:  # of any kind: the other rows are launched all the same
            failed += 1
            print(f"failed    {name}: {type(error).__name__}: {error}", flush=True)
            continue
        hits = [kernel.hit for kernel in driver.compiled()[before:]]
        launches = driver.last_launch().launches - launches
        found = f"{launches} launches, {sum(hits)} of {len(hits)} kernels from the cache"
        print(f"{'left out' if why else 'launched'}  {name}: {why or found}", flush=True)
        for pick in picks.get(name, ()):
            print(f"{pick['seconds'] * 1e3:12.3f} ms  {json.dumps(pick['config'])}", flush=True)
    if options.picks:
        gpu.written(options.picks, picks)
    if late:
        print(f"{late} rows were not begun: no time was left")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
