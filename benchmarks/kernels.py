"""How burnt's kernels compare: with eager torch and torch.compile on the CPU, with more on a GPU.

    python benchmarks/kernels.py [--quick] [--rows PATTERN] [--rivals eager,inductor] [--save] [--check]
    python benchmarks/kernels.py --device cuda [--group memory] [--rows PATTERN] [--seconds 95]
                                 [--rivals torch,unfused,liger] [--json FILE]
    python benchmarks/kernels.py --list-gpu
    python benchmarks/kernels.py --write-rules [--rows PATTERN]

The pool for host buffers (`burnt.memory`) makes eager torch faster too, so a CPU row has two columns of
ratios. *Same allocator*: all in one process, with the pool on. *As shipped*: the rivals in a process of
their own that has no burnt, asked for a sample at a time over a pipe. In a round everybody takes a sample,
in turns; a ratio is one of medians. Samples in which the host took time away (steal in /proc/stat) or the
kernel did (involuntary switches) are dropped, as long as five are left. The share is of the bandwidth of a
copy that takes its samples in the same rounds. Where an op takes a call of torch's or oneDNN's, our own
candidate takes samples in the same rounds too. That all compute the same is checked first. Then: steps of
optimizers next to torch's (`kernel_table.steps`), with one allocator; the first kernel of a process with
empty caches, what a call costs, and the front of an op. torch.compile takes a
minute for some rows; its own cache on disk makes the second process quick.

``--save`` writes results/cpu-kernels.json, .md and .svg; ``--check`` compares ratios with that file, never
seconds, and fails where one has fallen below 0.8 of what it was; with both, nothing is written then.

The GPU's table: `kernel_table.gpu`; ``--group``, ``--rows`` and ``--seconds`` together choose its rows.
Another process measures them, and a new one after a row that broke the device or took longer than
``--row-seconds``; ``--json`` is written after each row. torch.compile with max-autotune takes 8 to 25 s a
row: rivals without ``compile`` leave Inductor out, and with it the rivals of the rows next to flex_attention.
``--list-gpu`` prints which rows have no result yet.

``--write-rules`` measures the table of where torch's kernels are faster (`burnt/torch_speed.json`) on this
machine; ``--rows`` chooses its ops (`kernel_table.rules`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from kernel_table import cpu, gpu, gpu_list, overheads, report, rules, steps
from kernel_table.rival import Sibling
from kernel_table.rows import ROWS

import burnt

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    pool = burnt.memory.stats()
    return {
        "cpu": burnt.device_info("cpu").name,
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "burnt": burnt.__version__,
        "pool": "on" if pool.enabled else f"off: {pool.reason}",
    }


def cpu_table(options: argparse.Namespace) -> dict[str, Any]:
    burnt.memory.enable()
    results: dict[str, Any] = {
        "machine": machine(),
        "quick": options.quick,
        "rivals": options.rivals,
        "rows": {},
    }
    chosen = [row for row in ROWS if re.search(options.rows, row.name)]
    effort = cpu.QUICK_EFFORT if options.quick else cpu.FULL_EFFORT
    sibling = Sibling(torch.get_num_threads())
    try:
        for number, row in enumerate(chosen, 1):
            cpu.say(f"{number}/{len(chosen)} {row.name}")
            results["rows"][row.name] = cpu.measure(row, options.rivals, sibling, effort)
    finally:
        sibling.close()
    results["steps"] = {}
    for step in steps.ON_CPU:
        if re.search(options.rows, step.name):
            cpu.say(step.name)
            results["steps"][step.name] = steps.measure(step, effort)
    if re.search(options.rows, "overheads"):
        cpu.say("overheads")
        results["overheads"] = overheads.measure(options.rivals, options.quick)
    return results


def save(results: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cpu-kernels.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (RESULTS / "cpu-kernels.md").write_text(report.markdown(results), encoding="utf-8")
    (RESULTS / "cpu-kernels.svg").write_text(report.picture(results), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="how burnt's kernels compare with others'",
        epilog="A GPU's rows are measured by another process, and by a new one after a row that broke the "
        "device or took too long: an illegal access costs one row.",
    )
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument(
        "--rivals",
        type=lambda text: text.split(","),
        help="some of eager,inductor, or on a GPU of torch,unfused,compile,liger; default: all. Without "
        "compile nothing of a GPU's table is compiled by Inductor",
    )
    parser.add_argument("--save", action="store_true", help="write results/cpu-kernels.json, .md and .svg")
    parser.add_argument("--check", action="store_true", help="compare ratios with results/cpu-kernels.json")
    parser.add_argument("--json", type=Path, help="write the results to this file; on a GPU after each row")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--table", choices=("cpu", "gpu"), help="the GPU's on a CPU is a rehearsal")
    parser.add_argument(
        "--group",
        choices=("memory", "products"),
        help="of a GPU's rows; --rows and --seconds choose among them",
    )
    parser.add_argument("--tune", action="store_true", help="tune ops for a GPU's rows first")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="N", help="begin no row of a GPU later"
    )
    parser.add_argument(
        "--row-seconds",
        type=float,
        default=gpu.ROW_SECONDS,
        metavar="N",
        help="stop a row of a GPU after as many; default: %(default)g",
    )
    parser.add_argument(
        "--picks",
        type=Path,
        metavar="FILE",
        help="time these candidates of a GPU's rows next to torch, and no other rows (tests/null/rows.py)",
    )
    parser.add_argument("--list-gpu", action="store_true", help="print a GPU's rows that have no result")
    parser.add_argument(
        "--write-rules", action="store_true", help="measure burnt/torch_speed.json, of ops that match --rows"
    )
    options = parser.parse_args(arguments)
    if options.write_rules:
        rules.write(options.rows, RESULTS)
        return 0
    if options.list_gpu:
        print(gpu_list.markdown(RESULTS), end="")
        return 0
    table = options.table or ("cpu" if options.device.type == "cpu" else "gpu")
    known = ("eager", "inductor") if table == "cpu" else gpu.RIVALS
    options.rivals = list(known) if options.rivals is None else options.rivals
    if unknown := set(options.rivals) - set(known):
        parser.error(f"--rivals: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.quick and (options.save or options.check):
        parser.error("ratios of --quick say nothing: neither --save nor --check")
    saved = RESULTS / "cpu-kernels.json"
    if options.check and not saved.exists():
        parser.error(f"there is no {saved} to compare with: --save writes it")
    if table == "gpu":
        gpu.run(options)
        return 0
    results = cpu_table(options)
    print(report.machine(results))
    for lines in report.tables(results):
        print(report.text_table(lines), end="\n\n")
    if report.has_own(results):
        print(report.OWN, end="\n\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if options.check:
        before = json.loads(saved.read_text(encoding="utf-8"))
        if before["machine"] != results["machine"]:
            print(f"compared with another machine or versions: {report.machine(before)}", file=sys.stderr)
        if found := report.worse(results, before):
            print("worse than it was:", *found, sep="\n  ")
            return 1
    if options.save:
        save(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
