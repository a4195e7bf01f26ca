"""Which rows of a GPU have no result in `results/`, and what is aimed at in each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kernel_table import gpu
from kernel_table.report import markdown_table
from kernel_table.steps import Step

MEANS = "geometric means over the families"
SWAP = "swap, Llama 1B training"
OF = {
    "torch": "torch",
    "unfused": "the unfused reference",
    "compile": "torch.compile",
    "liger": "Liger-Kernel",
    "own": "torch, by our own candidate",
}


def aims() -> dict[str, str]:
    """What is aimed at, by the name of the row; nothing is an empty text."""
    found = {}
    for name, row in gpu.rows().items():
        parts = []
        if not isinstance(row, Step):
            family, gradients = row
            if family.share and not family.product:
                parts.append(f"{gpu.SHARE:.0%} of the copy bandwidth")
            backward = {"own": " (the backward alone)"} if gradients else {}
            parts += [
                f"{aim:g}x {OF[rival]}{backward.get(rival, '')}"
                for rival, aim in family.aimed(gradients).items()
            ]
            if family.peak:
                parts.append("no more memory than Liger-Kernel")
            if not family.product:
                parts.append(f"{gpu.HOST:g} us of host time")
        found[name] = ", ".join(parts)
    found[MEANS] = ", ".join(f"{aim:g}x {OF[rival]}" for rival, aim in gpu.TARGETS.items())
    found[SWAP] = "1.15x tokens/s of eager with 30% less peak memory, ahead of Liger-Kernel's patch"
    return found


def run_on_devices(folder: Path) -> Iterator[str]:
    """Names of rows that `scripts/gpu` has a result of, in full and on a GPU."""
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if "stages" not in document or document["dry_run"] or document["asked_for"] == "cpu":
            continue
        for stage in ("memory", "products", "not_run", "swap"):
            results = document["stages"].get(stage, {}).get("results", {})
            if results.get("quick", True):
                continue
            if stage == "swap":
                yield from [SWAP] if results["rows"] else []
                continue
            yield from (name for name, row in results["rows"].items() if "seconds" in row)
            yield from [MEANS] if stage == "memory" and not results.get("left_out") else []


def markdown(folder: Path) -> str:
    """The list as it is committed."""
    done = set(run_on_devices(folder))
    left = {name: aim for name, aim in aims().items() if name not in done}
    parts = [
        "# Rows of a GPU that have not been run",
        "`python benchmarks/kernels.py --list-gpu > benchmarks/results/gpu-not-run.md`: every row of the "
        "GPU's table (bfloat16) for which there is no result of `scripts/gpu` in this folder, with what is "
        "aimed at, on an H200. fwd+bwd is both together; torch is what eager torch does, flex_attention "
        "where the row says so. On a CPU the rows are rehearsed with small inputs, which says nothing of "
        "their speed.",
    ]
    lines = [[name, aim or "nothing", "not run"] for name, aim in left.items()]
    parts.append(markdown_table([["row", "aim", ""], *lines]) if lines else "All have been run.")
    return "\n\n".join(parts) + "\n"
