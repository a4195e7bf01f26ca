"""How long importing burnt takes, next to `import torch`.

    python benchmarks/imports.py [--quick]

Each sample is a process of its own, with the files in the disk cache and the bytecode compiled; what is timed
lies inside it, from its first line to its last, so that starting Python does not count. The candidates
alternate in a random order, and the medians are shown with the quartiles.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys

CANDIDATES = {
    "import torch": "import torch",
    "import burnt": "import burnt",
    "import burnt.store": "import burnt.store",
    "burnt.Module": "import burnt; burnt.Module",
    "burnt.nn, burnt.optim": "import burnt; burnt.nn; burnt.optim",
    "burnt.train.SupervisedTraining": "import burnt; burnt.train.SupervisedTraining",
}
_TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def sample(statement: str) -> float:
    """Milliseconds that a statement takes in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(statement)], capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e3


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="how long importing burnt takes")
    parser.add_argument("--quick", action="store_true", help="two samples each: shows that it runs, no more")
    rounds = 2 if parser.parse_args(arguments).quick else 15
    dice = random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for statement in CANDIDATES.values():
        sample(statement)
    for _ in range(rounds):
        for name in dice.sample(list(CANDIDATES), len(CANDIDATES)):
            taken[name].append(sample(CANDIDATES[name]))
    torch = statistics.median(taken["import torch"])
    print(f"{'':<32} {'median':>10} {'quartiles':>20} {'of torch':>9}")
    for name, values in taken.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"{name:<32} {median:>7.0f} ms {f'{low:.0f} to {high:.0f} ms':>20} {median / torch:>8.2f}x")


if __name__ == "__main__":
    main()
