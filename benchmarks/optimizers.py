"""Optimizer steps with clipping of the global norm: burnt's passes next to torch's steps.

    python benchmarks/optimizers.py [--quick] [--rows PATTERN]

The rows of `kernel_table.steps`, which `benchmarks/kernels.py` has in its table, too. All take samples in
turns, in one process with the pool for host buffers on; a ratio is one of medians of calm samples, with the
quartiles of the rounds, then what is aimed at.
"""

from __future__ import annotations

import argparse
import re
import sys

import torch
from kernel_table import report, steps
from kernel_table.cpu import FULL_EFFORT, QUICK_EFFORT, say

import burnt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how burnt's optimizer steps compare with torch's")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    options = parser.parse_args(arguments)
    burnt.memory.enable()
    effort = QUICK_EFFORT if options.quick else FULL_EFFORT
    rows = {}
    for step in steps.ON_CPU:
        if re.search(options.rows, step.name):
            say(step.name)
            rows[step.name] = steps.measure(step, effort)
    print(f"{burnt.device_info('cpu').name}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(report.text_table(report.step_lines({"steps": rows})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
