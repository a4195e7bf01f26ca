"""A cost model of kernels with tensor cores (sm_90), from their machine code: which candidates to measure.

Where products stay in flight an iteration takes what the tensor cores or the issue of its instructions need,
whichever is more; elsewhere their sum. It names a few candidates, not the best one.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.codegen.render.triton.machine_code import TOOLS, Instruction, MachineCode, disassembled

_PRODUCTS = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA")
# Products of a warp group by descriptors, and those of a warp from registers, of 16 rows and 8 columns each.
_SHAPE = re.compile(r"(?:64x(\d+)x|MMA\.(16)8)(\d+)\S*\s+(\S+),\s*(R|gdesc)")
_WARP_RATE = 0.62  # of the products of a warp: by NVIDIA's figures and others' measurements


class Constants(NamedTuple):
    """Facts of a device; the defaults were chosen by four rows of an H100."""

    rate: float = 0.78  # share of the tensor cores' peak that they reach
    latency: float = 1500.0  # cycles from a program's start to its first product
    clock: float = 1.755e9  # Hz
    multiprocessors: int = 132


class Work(NamedTuple):
    """What a launch does; cycles are those of a multiprocessor."""

    tensor: float  # cycles of the tensor cores, for an iteration of the loop with the products
    issue: float  # cycles in which the instructions of an iteration are issued
    hidden: float  # share of `issue` during which products are in flight
    outside: float  # cycles in which the other instructions are issued, for a tile
    resident: int  # programs for which a multiprocessor has room
    programs: int
    tiles: float  # that the programs compute
    iterations: float  # of all programs

    def seconds(self, constants: Constants) -> float:
        """Return the estimated time."""
        iterations, outside = self.iterations / self.programs, self.tiles / self.programs * self.outside
        tensor = self.tensor / constants.rate
        longest = max(tensor + self.issue * (1 - self.hidden), self.issue)
        waves = math.ceil(self.programs / (constants.multiprocessors * self.resident))
        share = math.ceil(self.programs / constants.multiprocessors)
        busy = share * max(iterations * tensor, iterations * self.issue + outside)
        return max(waves * (constants.latency + iterations * longest + outside), busy) / constants.clock


def work_of(cubin: bytes, threads: int, shared: int, programs: int, products: float, outputs: int) -> Work:
    """Return the work of a launch; without a loop with products, each instruction once.

    `products` are multiply-adds of all programs; by the elements of the result, `outputs`, the tiles of
    persistent programs are counted.
    """
    code, groups = disassembled(cubin), threads / 128

    def multiplies(span: range) -> bool:
        return MachineCode(code.instructions[span.start : span.stop]).count(*_PRODUCTS) > 0

    loop = min(filter(multiplies, (range(a, b + 1) for a, b in code.loops)), key=len, default=range(0))
    # Persistent programs have the end of a tile in their loop, and most iterations skip it.
    ends = [
        range(a + 1, b) for a, b in code.skips if a in loop and b <= loop.stop and 2 * (b - a) > len(loop)
    ]
    end = max((end for end in ends if not multiplies(end)), key=len, default=range(0))
    body = [code.instructions[number] for number in loop if number not in end]
    shapes = filter(None, (_SHAPE.search(one.opcode + one.operands) for one in body))
    found = [(int(s[1] or 8), int(s[3]), s[4], s[5] == "gdesc", _WARP_RATE if s[2] else 1) for s in shapes]
    resident = _resident(cubin, threads, shared)
    if not found:
        return Work(0, 0, 0, groups * len(code), resident, programs, programs, 0)
    tile = sum({registers: 64 * n for n, _, registers, *_ in found}.values())
    # Operands from shared memory, 128 bytes a cycle, may take longer than the products.
    tensor = sum(max(n / 2 / rate, n / 4 + 16 * is_shared) for n, _, _, is_shared, rate in found)
    return Work(
        groups * tensor, groups * len(body), _hidden(body), groups * (len(code) - len(body)),
        resident, programs,
        max(outputs / tile / groups, programs) if end else programs,
        products / (groups * sum(64 * n * k for n, k, *_ in found)),
    )  # fmt: skip


def _hidden(body: Sequence[Instruction]) -> float:
    """All, where a wait leaves products in flight or none is needed; else of exponentials those before it."""
    total, overlapping, in_flight = 0, 0, False
    for opcode, operands in [*body, *body]:  # a loop may begin anywhere
        if opcode.startswith("WARPGROUP.DEPBAR") and operands.split()[-1] != "0x0":
            return 1.0
        in_flight = opcode.startswith(_PRODUCTS) or (in_flight and not opcode.startswith("WARPGROUP.DEPBAR"))
        total += opcode == "MUFU.EX2"
        overlapping += opcode == "MUFU.EX2" and in_flight
    if not any(one.opcode.startswith("WARPGROUP.DEPBAR") for one in body):
        return 1.0
    return overlapping / total if total else 0.0


def _resident(cubin: bytes, threads: int, shared: int) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers = -(-max(int(usage.partition("REG:")[2].split()[0]), 24) // 8) * 8
    return max(min(65536 // (registers * threads), (228 << 10) // (shared + 1024)), 1)


def fit(picks: dict[str, Any], race: dict[str, Any]) -> tuple[Constants, float]:
    """Return the constants that fit the seconds of a race best, and the mean factor of their error."""
    pairs = [(row, pick) for name, row in race["rows"].items() for pick in picks[name] if pick["works"]]
    seconds = [row.get("candidates", {}).get(json.dumps(pick["config"])) for row, pick in pairs]
    rows = [([Work(**w) for w in p["works"]], s) for (_, p), s in zip(pairs, seconds, strict=True) if s]
    clocks = sorted(row["clock_mhz"] * 1e6 for row, _ in pairs if "clock_mhz" in row)

    def error(constants: Constants) -> float:
        logs = [abs(math.log(sum(w.seconds(constants) for w in works) / s)) for works, s in rows]
        return math.exp(sum(logs) / len(logs))

    begin = Constants(clock=clocks[len(clocks) // 2]) if clocks else Constants()
    choices = (begin._replace(rate=r / 100, latency=n) for r in range(40, 101) for n in range(0, 6001, 250))
    best = min(choices, key=error)
    return best, error(best)
