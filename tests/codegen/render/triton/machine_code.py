"""The machine code of NVIDIA GPUs (SASS), by the disassembler in Triton's wheel: instructions and loops."""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_LABEL = re.compile(r"\s*(\.L_\w+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")


class Instruction(NamedTuple):
    """An instruction, ``("LDG.E.128", " R4, desc[UR4][R2.64]")``."""

    opcode: str
    operands: str


@dataclasses.dataclass(frozen=True)
class MachineCode:
    """Instructions in the order of the file.

    Args:
        instructions: of the kernel, or of a loop in it.
        loops: first and last instruction of each loop, by number.
        skips: each branch forward, and the instruction to which it leads.
    """

    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[int, int], ...] = ()
    skips: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.instructions)

    def count(self, *opcodes: str) -> int:
        """Return the number of instructions whose opcode begins so, ``count("LDG.E.U8")``."""
        return sum(one.opcode.startswith(opcodes) for one in self.instructions)

    def counts(self) -> Counter[str]:
        """Return how often each instruction is there, without its modifiers: ``{"FFMA": 12}``."""
        return Counter(one.opcode.split(".")[0] for one in self.instructions)

    def loop_with(self, *opcodes: str) -> MachineCode:
        """Return the shortest loop that has such an instruction."""
        bodies = (MachineCode(self.instructions[first : last + 1]) for first, last in self.loops)
        return min((body for body in bodies if body.count(*opcodes)), key=len)

    def outside(self, loop: MachineCode) -> int:
        """Return the number of instructions that are not in a loop."""
        return len(self) - len(loop)


@functools.cache
def disassembled(cubin: bytes) -> MachineCode:
    """Return the machine code of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    labels: dict[str, int] = {}
    found: list[Instruction] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        if instruction := _INSTRUCTION.search(line):
            found.append(Instruction(instruction[1], instruction[2]))
    branches = []
    for number, one in enumerate(found):
        target = re.search(r"`\((\.L_\w+)\)", one.operands)
        if one.opcode.startswith("BRA") and target and target[1] in labels:
            branches.append((number, labels[target[1]]))
    # The last instruction of a file branches to itself.
    loops = tuple((target, number) for number, target in branches if target < number)
    return MachineCode(tuple(found), loops, tuple(skip for skip in branches if skip[0] < skip[1]))
